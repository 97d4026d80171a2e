"""Patterns that the source must not contain, such as pickle, swallowed errors and skipped tests.

Each check is a function from a parsed file to a list of offences. The last tests run the checks on
short snippets to prove that they find offences.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.source import (
    PACKAGE,
    ROOT,
    SOURCES,
    constant,
    dotted,
    kernel_decorators,
    offences,
    parse,
)

CODE_FORMATS = {
    *("pickle", "cPickle", "_pickle", "cloudpickle", "dill"),
    *("joblib", "shelve", "marshal"),
}
# Joined here because this file is checked, too.
KILLERS = [
    "".join(word) for word in (("pk", "ill"), ("kill", "all"), ("task", "kill"), ("ray ", "stop"))
]
RUNNERS = {
    *("eval", "exec", "yaml.load", "yaml.unsafe_load", "yaml.full_load"),
    *("os.system", "os.popen"),
}
# Numba writes compiled kernels as pickles.
MAY_UNPICKLE = PACKAGE / "kernels" / "cache.py"
WRITABLE_MAPS = {"open_memmap", "create_memory_map", "SharedMemory"}
SKIPS = {"skip", "skipif", "xfail", "importorskip"}
UNDECIDED = ["".join(word) for word in (("TO", "DO"), ("FIX", "ME"), ("X", "XX"))]
# Without PostgreSQL's programs or helm there is nothing to test.
MAY_SKIP = (
    ROOT / "tests" / "support" / "postgres.py",
    ROOT / "tests" / "deployment" / "chart" / "helm.py",
)
TEXTS = sorted(
    path
    for folder, patterns in (
        (".", ("*.md", "*.toml", "Makefile")),
        ("xcray", ("**/*.py", "**/*.html", "**/*.js")),
        ("tests", ("**/*.py",)),
        ("docs", ("**/*.md", "**/*.py")),
        ("benchmarks", ("**/*.py", "**/*.md")),
        ("examples", ("*.py",)),
        ("notebooks", ("**/*.ipynb",)),
        ("deploy", ("**/*",)),
        ("helm", ("**/*",)),
        (".ci", ("*",)),
    )
    for pattern in patterns
    for path in (ROOT / folder).glob(pattern)
    if path.is_file() and not {"__pycache__", ".ipynb_checkpoints", "vendor"} & set(path.parts)
)


def code_from_bytes(tree: ast.Module) -> list[str]:
    """Return the calls and imports that can run code while they read data."""
    out = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                names = [node.module or ""]
            unsafe = [name for name in names if name.split(".")[0] in CODE_FORMATS]
            out += [f"line {node.lineno}: imports {name}" for name in unsafe]
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


def swallowed_errors(tree: ast.Module) -> list[str]:
    """Return the handlers that drop an error without handling it."""
    out = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            silent = all(isinstance(step, ast.Pass) or is_remark(step) for step in node.body)
            if silent or node.type is None:
                fault = "does nothing" if silent else "names no class"
                out.append(f"line {node.lineno}: an except that {fault}")
        elif isinstance(node, ast.Call) and dotted(node.func).endswith("suppress"):
            wide = [dotted(a) for a in node.args if dotted(a) in {"Exception", "BaseException"}]
            out += [f"line {node.lineno}: suppresses every {name}" for name in wide]
    return out


def is_remark(step: ast.stmt) -> bool:
    """Return whether a statement is only a string or an ellipsis."""
    return isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant)


def kernel_options(tree: ast.Module) -> list[str]:
    """Return the kernels that hold the interpreter lock or are not cached on disk."""
    out = []
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        for decorator in kernel_decorators(function):
            keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
            options = {k.arg: constant(k.value) for k in keywords}
            where = f"line {function.lineno}: kernel {function.name}"
            base = decorator.func if isinstance(decorator, ast.Call) else decorator
            both = options.get("nogil") is True and options.get("cache") is True
            if not (both or dotted(base) == "inner"):  # xcray.kernels.inner sets both
                out.append(f"{where} without nogil=True, cache=True")
            if options.get("fastmath"):
                out.append(f"{where} with fastmath: sums must keep their order")
    return out


def mapped_writes(tree: ast.Module) -> list[str]:
    """Return the files that are written through a mapping: on a full disk that ends the process."""
    out = []
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = dotted(node.func).rpartition(".")[2]
        modes = {keyword.arg: constant(keyword.value) for keyword in node.keywords}
        writes = name in WRITABLE_MAPS or (name == "memmap" and modes.get("mode") != "r")
        writes |= name == "memory_map" and (len(node.args) > 1 or modes.get("mode", "r") != "r")
        out += [f"line {node.lineno}: {name} maps a file for writing"] if writes else []
    return out


def skipped_tests(tree: ast.Module) -> list[str]:
    """Return the tests that can be skipped."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr in SKIPS]
    return [f"line {n.lineno}: {dotted(n)}" for n in calls if dotted(n).startswith("pytest.")]


def forbidden_words(text: str) -> list[str]:
    """Return commands that kill by name, to-do marks and paths of one machine."""
    machine = ["".join(word) for word in (("/wo", "rk/"), ("/ro", "ot/"), ("/tmp", "/xc"))]
    return [
        f"line {number}: {word!r}"
        for number, line in enumerate(text.splitlines(), 1)
        for word in (*KILLERS, *UNDECIDED, *machine)
        if word in line
    ]


PACKAGE_CHECKS = (code_from_bytes, swallowed_errors, kernel_options, mapped_writes)


def test_the_package_passes() -> None:
    def check_all(path: Path) -> list[str]:
        tree = parse(path)
        checks = PACKAGE_CHECKS[1:] if path == MAY_UNPICKLE else PACKAGE_CHECKS
        return [fault for check in checks for fault in check(tree)]

    assert offences(check_all, SOURCES) == []


def test_no_test_can_be_skipped() -> None:
    own = (Path(__file__), *MAY_SKIP)
    files = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path not in own]
    # Parse only what mentions one of the words.
    words = re.compile("|".join(SKIPS))
    paths = [path for path in files if words.search(path.read_text(encoding="utf-8"))]
    assert not offences(lambda path: skipped_tests(parse(path)), paths)
    assert [len(skipped_tests(parse(path))) for path in MAY_SKIP] == [1, 1]


def test_no_forbidden_words_anywhere() -> None:
    assert not offences(
        lambda path: forbidden_words(path.read_text(encoding="utf-8", errors="replace")), TEXTS
    )


# Tests of the checks: each must find the offence in a snippet, and accept good code.


@pytest.mark.parametrize(
    ("check", "snippet"),
    [
        (code_from_bytes, "import pickle"),
        (code_from_bytes, "from joblib import load"),
        (code_from_bytes, "from ray import x\nimport cloudpickle"),
        (code_from_bytes, "eval(text)"),
        (code_from_bytes, "yaml.load(text)"),
        (code_from_bytes, "np.load(path, allow_pickle=True)"),
        (code_from_bytes, "np.load(path, allow_pickle=flag)"),
        (code_from_bytes, "subprocess.run(line, shell=True)"),
        (swallowed_errors, "try:\n    f()\nexcept ValueError:\n    pass"),
        (swallowed_errors, "try:\n    f()\nexcept ValueError:\n    ..."),
        (swallowed_errors, "try:\n    f()\nexcept:\n    raise"),
        (swallowed_errors, "with contextlib.suppress(Exception):\n    f()"),
        (kernel_options, "@numba.njit\ndef f(): return 1"),
        (kernel_options, "@njit(nogil=True)\ndef f(): return 1"),
        (kernel_options, "@njit(nogil=True, cache=True, fastmath=True)\ndef f(): return 1"),
        (mapped_writes, "np.memmap(path, dtype)"),
        (mapped_writes, "np.memmap(path, dtype, mode='w+')"),
        (mapped_writes, "pa.memory_map(path, 'r+')"),
        (mapped_writes, "np.lib.format.open_memmap(path)"),
        (skipped_tests, "@pytest.mark." + "skip\ndef test(): assert True"),
        (skipped_tests, "sklearn = pytest." + "importorskip('sklearn')"),
    ],
)
def test_each_check_can_fail(check: Callable[[ast.Module], list[str]], snippet: str) -> None:
    assert len(check(ast.parse(snippet))) == 1


@pytest.mark.parametrize(
    ("check", "snippet"),
    [
        (code_from_bytes, "np.load(path, allow_pickle=False)\njson.loads(text)\nmodel.eval()"),
        (
            swallowed_errors,
            "try:\n    f()\nexcept ValueError:\n    x = 1\nexcept OSError:\n    log()",
        ),
        (swallowed_errors, "with suppress(ProcessLookupError):\n    f()"),
        (kernel_options, "@numba.njit(nogil=True, cache=True)\ndef f(): return 1"),
        (mapped_writes, "np.memmap(path, kind, mode='r')\npa.memory_map(path)\nmmap.mmap(-1, 5)"),
        (skipped_tests, "skip = rows.skip(3)"),
    ],
)
def test_each_check_accepts_good_code(
    check: Callable[[ast.Module], list[str]], snippet: str
) -> None:
    assert check(ast.parse(snippet)) == []


def test_forbidden_words_are_found() -> None:
    for word in (*KILLERS, *UNDECIDED, "/ro" + "ot/x"):
        assert forbidden_words(f"fine\nso {word} it is") == [f"line 2: {word.removesuffix('x')!r}"]
