"""The laws of the house, read from the source itself: imports run downward only, nothing forbidden is used, the face stays light.

Each law is a function from a parsed file to a list of offences, so that the last tests can show that it catches what it should.
"""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "xcray"

# Highest first. A room imports from the floors below its own, and from itself.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("xcray", "__main__"),
    ("cli",),
    ("service", "client"),
    ("jobs",),
    ("train", "bulk"),
    ("estimators",),
    ("execution",),
    ("solvers", "predict"),
    ("model",),
    ("index",),
    ("data", "metrics", "kernels", "plots"),
    ("schedule", "files"),
    ("arrays", "cores"),
    ("errors",),
)
SIDEWAYS = {("data", "kernels")}  # the one door between rooms of a floor
ONLY = {
    "client": {"errors", "arrays", "files"}
}  # a client is a guest: it speaks HTTP and knows no other room
LAZY_ROOMS = {
    "xcray",
    "cli",
}  # may import rooms late, so that `import xcray` and `xcray --help` start at once
LAZY_DOORS = {
    ("train", "execution"),
    ("bulk", "execution"),
}  # the Ray pool is the one part of them that needs Ray
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

HEAVY = ("ray", "fastapi", "uvicorn", "sklearn", "matplotlib", "scipy", "numba")
CODE_FORMATS = {
    "pickle",
    "cPickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "shelve",
    "marshal",
}
# joined here, because this file is read too
KILLERS = [
    "".join(word) for word in (("pk", "ill"), ("kill", "all"), ("task", "kill"), ("ray ", "stop"))
]
RUNNERS = {
    "eval",
    "exec",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "os.system",
    "os.popen",
}
SKIPS = {"skip", "skipif", "xfail", "importorskip"}
UNDECIDED = ["".join(word) for word in (("TO", "DO"), ("FIX", "ME"), ("X", "XX"))]
LONGEST_FUNCTION, LONGEST_FILE, LONGEST_KERNELS = 60, 400, 600


class Import(NamedTuple):
    """One import of an xcray module: where it is written, what it names, whether inside a function, or for type checkers."""

    line: int
    module: str
    name: str | None
    inside: bool
    typing: bool


def room_of(module: str) -> str:
    """`xcray.data.text` lives in the room data; the package itself is the room xcray."""
    return module.split(".")[1] if "." in module else module


def module_of(path: Path) -> str:
    """The dotted name of a file of the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def xcray_imports(tree: ast.AST, inside: bool = False, typing: bool = False) -> Iterator[Import]:
    """Every import of xcray in a tree, also late ones and those for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (
                Import(node.lineno, a.name, None, inside, typing)
                for a in node.names
                if a.name.split(".")[0] == "xcray"
            )
        elif isinstance(node, ast.ImportFrom) and (
            node.level or (node.module or "").split(".")[0] == "xcray"
        ):
            module = "." * node.level + (node.module or "")
            yield from (Import(node.lineno, module, a.name, inside, typing) for a in node.names)
        late = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from xcray_imports(
            node,
            late,
            typing or (isinstance(node, ast.If) and dotted(node.test).endswith("TYPE_CHECKING")),
        )


def target_of(found: Import) -> str:
    """The module an import reaches: `from xcray import files` reaches xcray.files."""
    if found.module == "xcray" and found.name is not None and found.name in FLOOR_OF:
        return f"xcray.{found.name}"
    return found.module


def offence_of(room: str, found: Import) -> str | None:
    """Why `room` may not import this, or None."""
    if found.module.startswith("."):
        return "relative import; write it in full"
    if found.module == "xcray" and found.name == "__version__":
        return None
    goal = room_of(target_of(found))
    if goal not in FLOOR_OF:
        return f"{goal} has no floor; add it to FLOORS"
    if found.inside and room not in LAZY_ROOMS and (room, goal) not in LAZY_DOORS:
        return (
            f"imports {goal} inside a function; only {sorted(LAZY_ROOMS)} may, for their start-up"
        )
    if goal == room or (room, goal) in SIDEWAYS:
        return None
    if goal not in ONLY.get(room, {goal}):
        return f"{room} may import only {sorted(ONLY[room])}, not {goal}"
    return (
        None if FLOOR_OF[goal] > FLOOR_OF[room] else f"{room} imports {goal}, which is not below it"
    )


def upward(tree: ast.Module, room: str) -> list[str]:
    """Offences against the floors."""
    return [
        f"line {found.line}: {why}"
        for found in xcray_imports(tree)
        if (why := offence_of(room, found))
    ]


def dotted(node: ast.AST) -> str:
    """`np.load` of the expression np.load; empty for anything that is not a dotted name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def constant(node: ast.AST | None) -> object:
    """The value of a constant expression; None for any other."""
    return node.value if isinstance(node, ast.Constant) else None


def code_from_bytes(tree: ast.Module) -> list[str]:
    """Ways to read data that can run code."""
    out = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
            )
            out += [
                f"line {node.lineno}: imports {name}"
                for name in names
                if name.split(".")[0] in CODE_FORMATS
            ]
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            pickled = any(
                k.arg == "allow_pickle" and constant(k.value) is not False for k in node.keywords
            )
            if name in RUNNERS or pickled:
                out.append(f"line {node.lineno}: calls {name}{'(allow_pickle)' if pickled else ''}")
            out += [
                f"line {node.lineno}: starts a shell" for k in node.keywords if k.arg == "shell"
            ]
    return out


def is_remark(step: ast.stmt) -> bool:
    """A statement that only is a string or an ellipsis."""
    return isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant)


def swallowed(tree: ast.Module) -> list[str]:
    """Errors caught and dropped without a word."""
    out = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            silent = all(isinstance(step, ast.Pass) or is_remark(step) for step in node.body)
            if silent or node.type is None:
                out.append(
                    f"line {node.lineno}: an except that {'does nothing' if silent else 'names no class'}"
                )
        elif isinstance(node, ast.Call) and dotted(node.func).endswith("suppress"):
            wide = [dotted(a) for a in node.args if dotted(a) in {"Exception", "BaseException"}]
            out += [f"line {node.lineno}: suppresses every {name}" for name in wide]
    return out


def too_long(tree: ast.Module) -> list[str]:
    """Functions that do not fit a screen; a kernel's loop may."""
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    lengths = [
        (f.name, f.lineno, (f.end_lineno or f.lineno) - f.lineno + 1)
        for f in functions
        if not kernel_decorators(f)
    ]
    return [
        f"line {line}: {name} has {n} lines, more than {LONGEST_FUNCTION}"
        for name, line, n in lengths
        if n > LONGEST_FUNCTION
    ]


def kernel_decorators(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr]:
    """The numba decorators of a function."""
    names = [(d, dotted(d.func if isinstance(d, ast.Call) else d)) for d in function.decorator_list]
    return [d for d, name in names if name.split(".")[-1] in {"njit", "jit"}]


def kernel_options(tree: ast.Module) -> list[str]:
    """Kernels that hold the interpreter's lock, or are compiled anew in each process."""
    out = []
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        for decorator in kernel_decorators(function):
            keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
            given = {k.arg: constant(k.value) for k in keywords}
            if not (given.get("nogil") is True and given.get("cache") is True):
                out.append(
                    f"line {function.lineno}: kernel {function.name} without nogil=True, cache=True"
                )
            if given.get("fastmath"):
                out.append(
                    f"line {function.lineno}: kernel {function.name} with fastmath: sums must keep their order"
                )
    return out


def skipped_tests(tree: ast.Module) -> list[str]:
    """Tests that may not run."""
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in SKIPS
    ]
    return [
        f"line {node.lineno}: {dotted(node)}"
        for node in calls
        if dotted(node).startswith("pytest.")
    ]


def bad_words(text: str) -> list[str]:
    """Killing by name, open questions, places of one machine."""
    machine = ["".join(word) for word in (("/wo", "rk/"), ("/ro", "ot/"), ("/tmp", "/xc"))]
    lines = enumerate(text.splitlines(), 1)
    return [
        f"line {number}: {word!r}"
        for number, line in lines
        for word in (*KILLERS, *UNDECIDED, *machine)
        if word in line
    ]


PACKAGE_LAWS: dict[str, Callable[[ast.Module], list[str]]] = {
    "code from bytes": code_from_bytes,
    "swallowed errors": swallowed,
    "long functions": too_long,
    "kernel options": kernel_options,
}

MAY_SKIP = ROOT / "tests" / "postgres.py"
SOURCES = sorted(PACKAGE.rglob("*.py"))
TEXTS = sorted(
    path
    for place, kinds in (
        (".", ("*.md", "*.toml", "Makefile")),
        ("xcray", ("**/*.py", "**/*.html", "**/*.js")),
        ("tests", ("**/*.py",)),
        ("docs", ("**/*.md", "**/*.py")),
        ("benchmarks", ("**/*.py", "**/*.md")),
        ("notebooks", ("**/*.ipynb",)),
        ("deploy", ("**/*",)),
        ("helm", ("**/*",)),
        (".ci", ("*",)),
    )
    for kind in kinds
    for path in (ROOT / place).glob(kind)
    if path.is_file() and "__pycache__" not in path.parts and ".ipynb_checkpoints" not in path.parts
)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def collect(offences: Callable[[Path], list[str]], paths: list[Path]) -> list[str]:
    return [f"{path.relative_to(ROOT)}: {offence}" for path in paths for offence in offences(path)]


def test_imports_run_downward_only() -> None:
    assert not collect(lambda path: upward(parse(path), room_of(module_of(path))), SOURCES)


def test_every_room_has_a_floor() -> None:
    rooms = {path.stem for path in PACKAGE.glob("*.py")} | {
        path.parent.name for path in PACKAGE.glob("*/__init__.py")
    }
    assert rooms - {"__init__"} <= set(FLOOR_OF)


def test_no_two_files_import_each_other() -> None:
    modules = {module_of(path): path for path in SOURCES}
    graph = {
        name: sorted(neighbours(name, path, set(modules)))
        for name, path in modules.items()
        if name != "xcray"
    }
    assert circle(graph) == []


def neighbours(name: str, path: Path, modules: set[str]) -> set[str]:
    """The files a file imports, whole names first: `from xcray.data import text` means xcray.data.text."""
    imports = (
        f for f in xcray_imports(parse(path)) if not f.typing
    )  # types may speak of each other
    found = [f for f in imports if f.module != "xcray" or f.name in FLOOR_OF]
    goals = {
        f"{f.module}.{f.name}" if f"{f.module}.{f.name}" in modules else target_of(f) for f in found
    }
    return goals - {name}


def circle(graph: dict[str, list[str]]) -> list[str]:
    """The names of one circle of imports, or nothing."""
    done: set[str] = set()

    def walk(name: str, trail: list[str]) -> list[str]:
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name in done:
            return []
        for goal in graph.get(name, []):
            if found := walk(goal, [*trail, name]):
                return found
        done.add(name)
        return []

    return next((found for name in graph if (found := walk(name, []))), [])


def kernel_imports(tree: ast.Module) -> set[str]:
    """The kernel files that a kernel file takes functions from, by name."""
    return {
        f.module.split(".")[-1]
        for f in xcray_imports(tree)
        if f.module.startswith("xcray.kernels.")
    }


def built_on(tree: ast.Module) -> dict[str, str]:
    """What a kernel file says those files hold: name -> first eight digits of their SHA-256."""
    told = (
        s.value
        for s in tree.body
        if isinstance(s, ast.Assign) and [dotted(t) for t in s.targets] == ["BUILT_ON"]
    )
    return {name: digits for value in told for name, digits in ast.literal_eval(value).items()}


@pytest.mark.parametrize(
    "path", sorted((PACKAGE / "kernels").glob("*.py")), ids=lambda path: path.stem
)
def test_kernels_know_what_they_are_built_on(path: Path) -> None:
    """Numba's disk cache sees changes of one file only. So a file names the content of those it calls, and changes with them."""
    tree = parse(path)
    found = {
        name: hashlib.sha256((PACKAGE / f"kernels/{name}.py").read_bytes()).hexdigest()[:8]
        for name in kernel_imports(tree)
    }
    assert built_on(tree) == found, (
        f"{path.name} must hold: BUILT_ON = {json.dumps(dict(sorted(found.items())))}"
    )


@pytest.mark.parametrize("law", sorted(PACKAGE_LAWS))
def test_law_holds_in_every_file(law: str) -> None:
    assert not collect(lambda path: PACKAGE_LAWS[law](parse(path)), SOURCES)


def test_no_test_can_be_skipped() -> None:
    paths = [
        path
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path not in (Path(__file__), MAY_SKIP)
    ]
    assert not collect(lambda path: skipped_tests(parse(path)), paths)
    assert (
        len(skipped_tests(parse(MAY_SKIP))) == 1
    )  # without PostgreSQL's binaries nothing can be tested on it


def test_no_bad_words_anywhere() -> None:
    assert not collect(
        lambda path: bad_words(path.read_text(encoding="utf-8", errors="replace")), TEXTS
    )


def test_files_can_be_read_in_one_sitting() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    limits = {
        path: LONGEST_KERNELS if path.parent.name == "kernels" else LONGEST_FILE for path in SOURCES
    }
    assert not {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n > limits[path]}


def modules_after(code: str) -> set[str]:
    """What a fresh interpreter has loaded after running `code`, top-level names and xcray's rooms."""
    shown = f"import sys\n{code}\nprint(*(m for m in sys.modules if '.' not in m or m.startswith('xcray.')))"
    done = subprocess.run(
        [sys.executable, "-c", shown], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.split())


def test_the_face_is_light() -> None:
    assert not modules_after("import xcray") & set(HEAVY)


def test_predicting_needs_neither_ray_nor_trainers() -> None:
    loaded = modules_after("import xcray\nxcray.Predictor\nxcray.Model")
    trainers = {
        f"xcray.{room}"
        for room in ("solvers", "execution", "train", "estimators", "jobs", "service")
    }
    assert "xcray.predict" in loaded
    assert not loaded & {"ray", "fastapi", "sklearn", *trainers}


def test_every_public_name_can_be_loaded_and_train_stays_a_function() -> None:
    code = "import xcray.train, xcray\nassert None not in [getattr(xcray, n) for n in xcray.__all__]\nassert callable(xcray.train)"
    assert "ray" not in modules_after(code)


# The judges themselves, judged: each must find the offence in a snippet made for it, and nothing in a good one.


@pytest.mark.parametrize(
    ("room", "snippet", "expected"),
    [
        ("data", "from xcray.model.model import Model", "not below"),
        ("solvers", "import xcray.predict", "not below"),
        ("kernels", "from xcray.data.text import X", "not below"),
        ("files", "from xcray import metrics", "not below"),
        ("train", "from xcray import Dataset", "not below"),
        ("model", "if TYPE_CHECKING:\n    from xcray.jobs.store import Store", "not below"),
        ("service", "def f():\n    from xcray.cli import main", "inside a function"),
        ("jobs", "def f():\n    from xcray.solvers import SOLVERS", "inside a function"),
        ("client", "from xcray.jobs.job import Job", "may import only"),
        ("jobs", "from .store import Store", "relative"),
        ("jobs", "import xcray.attic", "no floor"),
    ],
)
def test_the_import_law_can_fail(room: str, snippet: str, expected: str) -> None:
    assert [expected in offence for offence in upward(ast.parse(snippet), room)] == [True]


@pytest.mark.parametrize(
    ("room", "snippet"),
    [
        ("data", "from xcray.kernels.sparse import transpose"),
        ("cli", "def f():\n    from xcray.train import train"),
        ("jobs", "from xcray.jobs.store import Store\nfrom xcray import __version__"),
        ("model", "from xcray import files, errors\nimport numpy"),
    ],
)
def test_the_import_law_lets_good_imports_pass(room: str, snippet: str) -> None:
    assert upward(ast.parse(snippet), room) == []


@pytest.mark.parametrize(
    ("law", "snippet"),
    [
        (code_from_bytes, "import pickle"),
        (code_from_bytes, "from joblib import load"),
        (code_from_bytes, "from ray import x\nimport cloudpickle"),
        (code_from_bytes, "eval(text)"),
        (code_from_bytes, "yaml.load(text)"),
        (code_from_bytes, "np.load(path, allow_pickle=True)"),
        (code_from_bytes, "np.load(path, allow_pickle=flag)"),
        (code_from_bytes, "subprocess.run(line, shell=True)"),
        (swallowed, "try:\n    f()\nexcept ValueError:\n    pass"),
        (swallowed, "try:\n    f()\nexcept ValueError:\n    ..."),
        (swallowed, "try:\n    f()\nexcept:\n    raise"),
        (swallowed, "with contextlib.suppress(Exception):\n    f()"),
        (too_long, "def f():\n" + "    x = 1\n" * 60),
        (kernel_options, "@numba.njit\ndef f(): return 1"),
        (kernel_options, "@njit(nogil=True)\ndef f(): return 1"),
        (kernel_options, "@njit(nogil=True, cache=True, fastmath=True)\ndef f(): return 1"),
        (skipped_tests, "@pytest.mark." + "skip\ndef test(): assert True"),
        (skipped_tests, "sklearn = pytest." + "importorskip('sklearn')"),
    ],
)
def test_each_law_can_fail(law: Callable[[ast.Module], list[str]], snippet: str) -> None:
    assert len(law(ast.parse(snippet))) == 1


@pytest.mark.parametrize(
    ("law", "snippet"),
    [
        (code_from_bytes, "np.load(path, allow_pickle=False)\njson.loads(text)\nmodel.eval()"),
        (swallowed, "try:\n    f()\nexcept ValueError:\n    x = 1\nexcept OSError:\n    log()"),
        (swallowed, "with suppress(ProcessLookupError):\n    f()"),
        (too_long, "@njit(nogil=True, cache=True)\ndef f():\n" + "    x = 1\n" * 90),
        (kernel_options, "@numba.njit(nogil=True, cache=True)\ndef f(): return 1"),
        (skipped_tests, "skip = rows.skip(3)"),
    ],
)
def test_each_law_lets_good_code_pass(law: Callable[[ast.Module], list[str]], snippet: str) -> None:
    assert law(ast.parse(snippet)) == []


def test_bad_words_are_found() -> None:
    for word in (*KILLERS, *UNDECIDED, "/ro" + "ot/x"):
        assert bad_words(f"fine\nso {word} it is") == [f"line 2: {word.removesuffix('x')!r}"]


def test_circles_are_found() -> None:
    assert circle({"a": ["b"], "b": ["c"], "c": ["b"]}) == ["b", "c", "b"]
    assert circle({"a": ["b", "c"], "b": ["c"], "c": []}) == []
