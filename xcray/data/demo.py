"""The demo data set: what Python code says about itself, on every machine that runs Python.

One document per module, public class and public function of the standard library and of the packages installed
beside xcray, read with `ast`, never imported. Labels: the dotted module, its parents, and the enclosing classes
(`csv`, `csv.DictReader`). The names are the public ones: private parts of a path are left out, so that
`sklearn.linear_model._ridge.Ridge` is `sklearn.linear_model.Ridge`.

The text is the docstring, after the thing's own name and its arguments. The standard library keeps much of its
documentation in a manual rather than in docstrings (`csv.DictReader` has none); there, a function without a docstring
is described by its comments and the names it uses, a class by the first line of its module and the names of its members.
Neither the name of the module nor of the class a thing belongs to is put into its text: those are the labels.
Elsewhere than in the standard library a file without a triple-quoted string counts as undocumented.

Left out: tests, vendored copies, generated code, tools of the trade (`TOOLS`), private things, and any document whose
words were seen before, so that no copied docstring sits on both sides of a split.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from xcray.data.text.tokenizer import TextParams
from xcray.errors import NotFound, ParameterError

SPELT_OUT = (  # code abbreviates and names its agents; people who ask do not
    "addr=address arg=argument attr=attribute auth=authentication buf=buffer char=character cls=class cmd=command col=column "
    "cond=condition config=configuration conn=connection ctx=context decoder=decode dest=destination dict=dictionary dir=directory "
    "dirs=directory doc=document elem=element encoder=encode env=environment err=error exc=exception expr=expression fn=function "
    "func=function img=image impl=implementation info=information init=initialize int=integer iter=iterator kwarg=argument "
    "len=length lib=library loader=load loc=location max=maximum mem=memory min=minimum mod=module msg=message num=number "
    "obj=object op=operation param=parameter parser=parse pos=position prev=previous proc=process ptr=pointer reader=read "
    "regex=regular repr=representation req=request resp=response sep=separator seq=sequence spec=specification src=source "
    "stmt=statement str=string temp=temporary tmp=temporary util=utility val=value var=variable vec=vector writer=write"
)
TEXT_PARAMS = TextParams(
    split_identifiers=True,
    fold_plurals=True,
    aliases=tuple(
        (short, word) for short, _, word in (pair.partition("=") for pair in SPELT_OUT.split())
    ),
    min_df=2,
    max_df=0.2,
    sublinear_tf=True,
)

WORD = re.compile(r"[^\W\d_]{2,}")
DOCSTRING = re.compile(rb'"""|\'\'\'')
COMMENT = re.compile(r"(?:^\s*|\s\s)#+[: ]\s*(.*)$")
SKIPPED_FOLDERS = frozenset(
    (
        *(
            "_bundled",
            "_vendor",
            "_vendored",
            "dist-packages",
            "extern",
            "external",
            "externals",
            "idle_test",
            "pydoc_data",
        ),
        *(
            "site-packages",
            "test",
            "testing_data",
            "tests",
            "third_party",
            "thirdparty",
            "thirdparty_files",
            "vendor",
            "vendored",
        ),
    )
)
SKIPPED_FILES = re.compile(r"(?:test_.*|.*_test|.*_pb2(?:_grpc)?|conftest|setup)\.py")
TOOLS = (  # they package, check and debug programs; programs are not written with them
    *(
        "_distutils_hack",
        "debugpy",
        "distlib",
        "distutils",
        "ensurepip",
        "idlelib",
        "lib2to3",
        "mypy",
        "mypyc",
        "pip",
    ),
    *("pkg_resources", "setuptools", "turtledemo", "virtualenv"),
)
PUBLIC_NAME = {  # private modules of the standard library whose public name is another word
    "_aix_support": "sysconfig",
    "_bootsubprocess": "subprocess",
    "_collections_abc": "collections.abc",
    "_compat_pickle": "pickle",
    "_markupbase": "html.parser",
    "_osx_support": "sysconfig",
    "_py_abc": "abc",
    "_pydatetime": "datetime",
    "_pydecimal": "decimal",
    "_pyio": "io",
    "_pylong": "int",
    "_sitebuiltins": "site",
    "_strptime": "time",
    "_threading_local": "threading",
    "_weakrefset": "weakref",
}
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class PydocsParams:
    """What becomes a document and a label.

    min_words: least words of a description (>= 1); min_label_documents: labels of fewer documents are left out (>= 1);
    packages: take only these top-level names, () takes all; exclude: leave these out.
    """

    min_words: int = 5
    min_label_documents: int = 2
    packages: tuple[str, ...] = ()
    exclude: tuple[str, ...] = TOOLS

    def __post_init__(self) -> None:
        """Raise ParameterError for values out of range."""
        for name in ("min_words", "min_label_documents"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name} is {getattr(self, name)}; it must be at least 1")


class Document(NamedTuple):
    """One description: `id` is module:qualified.name as in the source, `labels` are sorted public names."""

    id: str
    text: str
    labels: tuple[str, ...]


class Corpus(NamedTuple):
    """All documents in a fixed order, with what was left out: unreadable files (name and reason) and repeated descriptions."""

    documents: list[Document]
    n_files: int
    unreadable: list[str]
    n_repeated: int


def documents(
    roots: Sequence[Path] | None = None, params: PydocsParams | None = None
) -> Iterator[Document]:
    """The documents of `read`, one by one."""
    yield from read(roots, params).documents


def read(roots: Sequence[Path] | None = None, params: PydocsParams | None = None) -> Corpus:
    """Read every module below the roots (default: standard library, then site-packages), in sorted order.

    A module's name is its path below its root. Raises NotFound for a root that is no directory.
    """
    params = params or PydocsParams()
    seen: set[bytes] = set()
    found: list[Document] = []
    unreadable: list[str] = []
    n_files = n_repeated = 0
    stdlib = default_roots()[0]
    for root in default_roots() if roots is None else roots:
        for path in _sources(Path(root), params):
            n_files += 1
            try:
                module = _Module(path, Path(root), params.min_words, from_code=Path(root) == stdlib)
            except (SyntaxError, ValueError, RecursionError, OSError) as error:
                unreadable.append(
                    f"{path.relative_to(root).as_posix()}: {type(error).__name__}: {error}"
                )
                continue
            for document, digest in module.documents():
                if digest in seen:
                    n_repeated += 1
                    continue
                seen.add(digest)
                found.append(document)
    return Corpus(_frequent(found, params.min_label_documents), n_files, unreadable, n_repeated)


def default_roots() -> tuple[Path, ...]:
    """The standard library and the site-packages of the running Python."""
    paths = sysconfig.get_paths()
    return tuple(
        Path(path)
        for path in dict.fromkeys(paths[name] for name in ("stdlib", "purelib", "platlib"))
    )


def _sources(root: Path, params: PydocsParams) -> Iterator[Path]:
    """Python files below a root, sorted, without those that document nothing of their own."""
    if not root.is_dir():
        raise NotFound(f"there is no directory {root.name} to read Python sources from")
    for folder, folders, files in os.walk(root):
        top = Path(folder) == root
        folders[:] = sorted(
            name for name in folders if name.isidentifier() and name not in SKIPPED_FOLDERS
        )
        if top:
            folders[:] = [name for name in folders if _wanted(name, params)]
        for name in sorted(files):
            if (
                name.endswith(".py")
                and not SKIPPED_FILES.fullmatch(name)
                and (not top or _wanted(name[:-3], params))
            ):
                yield Path(folder, name)


def _wanted(name: str, params: PydocsParams) -> bool:
    """Whether a top-level module or package is asked for."""
    return name not in params.exclude and (not params.packages or name in params.packages)


class _Module:
    """One parsed source file."""

    def __init__(self, path: Path, root: Path, min_words: int, from_code: bool) -> None:
        source = path.read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings
            self.tree = ast.parse(
                source if from_code or DOCSTRING.search(source) else b""
            )  # parsing is most of the time
        parts = path.relative_to(root).with_suffix("").parts
        self.name = ".".join(parts).removesuffix(".__init__")
        self.public = public_name(
            [part for part in parts if part not in ("__init__", "__main__")] or parts
        )
        self.lines = source.decode("utf-8", "replace").split("\n") if from_code else []
        self.min_words = min_words
        self.from_code = from_code

    def documents(self) -> Iterator[tuple[Document, bytes]]:
        """The module's documents, each with the digest of its description."""
        labels = [".".join(self.public[:i]) for i in range(1, len(self.public) + 1)]
        yield from self._document(self.name, "", _docstring(self.tree), labels)
        yield from self._members(self.tree.body, self.name + ":", self.public, labels)

    def _members(
        self, body: list[ast.stmt], prefix: str, scope: tuple[str, ...], labels: list[str]
    ) -> Iterator[tuple[Document, bytes]]:
        """Documents of the public classes and functions in a body, at any depth of classes."""
        times: Counter[str] = Counter()
        for node in _definitions(body):
            times[node.name] += 1
            identity = (
                prefix + node.name + (f"#{times[node.name]}" if times[node.name] > 1 else "")
            )  # setters, overloads
            inner, own = (*scope, node.name), labels
            if isinstance(node, ast.ClassDef):
                own = [*labels, ".".join(inner)]
            description = _docstring(node)
            if self.from_code and len(WORD.findall(description)) < self.min_words:
                description = f"{description}\n{self._code_words(node, scope)}"
            yield from self._document(identity, _signature(node), description, own)
            if isinstance(node, ast.ClassDef):
                yield from self._members(node.body, identity + ".", inner, own)

    def _document(
        self, identity: str, names: str, description: str, labels: list[str]
    ) -> Iterator[tuple[Document, bytes]]:
        """The document, when its description has enough words."""
        words = WORD.findall(description.lower())
        if len(words) >= self.min_words:
            text = f"{names}\n{inspect.cleandoc(description)}".strip()
            yield (
                Document(identity, text, tuple(sorted(set(labels)))),
                hashlib.sha256(" ".join(words).encode("utf-8", "replace")).digest(),
            )

    def _code_words(self, node: Definition, scope: tuple[str, ...]) -> str:
        """Comments and the names used in a function; of a class, its module's first line and the names of its members."""
        if isinstance(node, ast.ClassDef):
            summary = _docstring(self.tree).strip().partition("\n")[0]
            return " ".join(
                [summary, *dict.fromkeys(_signature(member) for member in _definitions(node.body))]
            )
        lines = self.lines[node.lineno - 1 : node.end_lineno]
        comments = " ".join(found.group(1) for found in map(COMMENT.search, lines) if found)
        used = dict.fromkeys(
            _identifier(inner) for statement in node.body for inner in ast.walk(statement)
        )
        return " ".join(
            [comments, *(name for name in used if name not in ("", "self", "cls", *scope))]
        )


def public_name(parts: Sequence[str]) -> tuple[str, ...]:
    """The public name of a module: private parts left out, a private top-level name replaced or without its underscore."""
    top = PUBLIC_NAME.get(parts[0], parts[0] if parts[0].startswith("__") else parts[0].lstrip("_"))
    return (*top.split("."), *(part for part in parts[1:] if not part.startswith("_")))


def _definitions(body: list[ast.stmt]) -> Iterator[Definition]:
    """Public classes and functions of a body, also those under `if`, `try` and `with`; __init__ and its like are public."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not node.name.startswith("_") or node.name.endswith("__"):
                yield node
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _definitions(
                [*node.body, *getattr(node, "orelse", []), *getattr(node, "finalbody", [])]
            )


def _signature(node: Definition) -> str:
    """The own name, and the arguments of a function."""
    if isinstance(node, ast.ClassDef):
        return node.name
    arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    return " ".join([node.name, *(a.arg for a in arguments if a.arg not in ("self", "cls"))])


def _docstring(node: Definition | ast.Module) -> str:
    """The docstring as written, or nothing."""
    return ast.get_docstring(node, clean=False) or ""


def _identifier(node: ast.AST) -> str:
    """The name an expression uses, if it is one."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _frequent(found: list[Document], least: int) -> list[Document]:
    """Documents with the labels that occur often enough; documents left without a label go."""
    times = Counter(label for document in found for label in document.labels)
    kept = (
        document._replace(labels=tuple(label for label in document.labels if times[label] >= least))
        for document in found
    )
    return [document for document in kept if document.labels]
