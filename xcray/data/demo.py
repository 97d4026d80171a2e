"""The demo data set: documentation of the Python code that is installed on this machine.

One document per module, public class and public function of the standard library and of the
packages installed next to xcray. Sources are parsed with `ast` and never imported. Labels are the
dotted module, its parents, and the enclosing classes (`csv`, `csv.DictReader`). Names are the
public ones: private parts of a path are left out, so that `sklearn.linear_model._ridge.Ridge`
becomes `sklearn.linear_model.Ridge`.

The text is the object's own name and its arguments, followed by the docstring. The standard library
keeps much of its documentation in a manual and not in docstrings (`csv.DictReader` has none).
There, a function without a docstring is described by its comments and the names it uses, and a
class by the first line of its module and the names of its members. The names of the enclosing
module and class are never part of the text, because they are the labels. Outside the standard
library, a file without a triple-quoted string counts as undocumented.

Left out are tests, vendored copies, generated code, packaging and debugging tools
(`TOOL_PACKAGES`), private objects, and documents whose words occurred before. So no copied
docstring is on both sides of a split.
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
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from xcray.data.text.tokenizer import TextParams
from xcray.errors import NotFound

# source code uses abbreviations and agent nouns; queries use plain words
ABBREVIATIONS = (
    "addr=address arg=argument attr=attribute auth=authentication buf=buffer "
    "char=character cls=class cmd=command col=column "
    "cond=condition config=configuration conn=connection ctx=context decoder=decode "
    "dest=destination dict=dictionary dir=directory "
    "dirs=directory doc=document elem=element encoder=encode env=environment err=error "
    "exc=exception expr=expression fn=function "
    "func=function img=image impl=implementation info=information init=initialize "
    "int=integer iter=iterator kwarg=argument "
    "len=length lib=library loader=load loc=location max=maximum mem=memory min=minimum "
    "mod=module msg=message num=number "
    "obj=object op=operation param=parameter parser=parse pos=position prev=previous "
    "proc=process ptr=pointer reader=read "
    "regex=regular repr=representation req=request resp=response sep=separator "
    "seq=sequence spec=specification src=source "
    "stmt=statement str=string temp=temporary tmp=temporary util=utility val=value "
    "var=variable vec=vector writer=write"
)
TEXT_PARAMS = TextParams(
    split_identifiers=True,
    fold_plurals=True,
    aliases=tuple(
        (short, word) for short, _, word in (pair.partition("=") for pair in ABBREVIATIONS.split())
    ),
    min_df=2,
    max_df=0.2,
    sublinear_tf=True,
)

WORD = re.compile(r"[^\W\d_]{2,}")
DOCSTRING = re.compile(rb'"""|\'\'\'')
COMMENT = re.compile(r"(?:^\s*|\s\s)#+[: ]\s*(.*)$")
SKIPPED_FOLDERS = re.compile(
    r"_bundled|_vendor(ed)?|dist-packages|extern(als?)?|idle_test|pydoc_data|site-packages|tests?"
    r"|testing_data|third_?party(_files)?|vendor(ed)?"
)
SKIPPED_FILES = re.compile(r"(?:test_.*|.*_test|.*_pb2(?:_grpc)?|conftest|setup)\.py")
# packages for packaging, checking and debugging, which programs rarely import
TOOL_PACKAGES = re.compile(
    r"_distutils_hack|debugpy|distlib|distutils|ensurepip|idlelib|lib2to3|mypyc?|pip|pkg_resources"
    r"|setuptools|turtledemo|virtualenv"
)
# public names of private modules in the standard library, if the name differs
PUBLIC_NAME = {
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


MIN_WORDS = 5  # of a description
MIN_LABEL_DOCUMENTS = 2  # labels of fewer documents are left out


class Document(NamedTuple):
    """One description.

    id: module:qualified.name as in the source; labels: public names, sorted.
    """

    id: str
    text: str
    labels: tuple[str, ...]


def documents(
    roots: Sequence[Path] | None = None, packages: Collection[str] = ()
) -> list[Document]:
    """Return the documents of every module below the roots, in a fixed order.

    roots: by default the standard library, then site-packages. The name of a module is its path
    below its root. packages: only these top-level names; () selects all. Files that cannot be
    parsed are left out. Raises NotFound for a root that is not a directory.
    """
    seen: set[bytes] = set()
    found: list[Document] = []
    stdlib = default_roots()[0]
    for root in default_roots() if roots is None else roots:
        for path in _source_files(Path(root), packages):
            try:
                module = _Module(path, Path(root), from_code=Path(root) == stdlib)
            except (SyntaxError, ValueError, RecursionError, OSError):
                continue
            for document, digest in module.documents():
                if digest not in seen:
                    seen.add(digest)
                    found.append(document)
    return _drop_rare_labels(found)


def default_roots() -> tuple[Path, ...]:
    """Return the standard library and the site-packages of the running Python."""
    paths = sysconfig.get_paths()
    return tuple(
        Path(path)
        for path in dict.fromkeys(paths[name] for name in ("stdlib", "purelib", "platlib"))
    )


def _source_files(root: Path, packages: Collection[str]) -> Iterator[Path]:
    """Yield the selected Python files below a root, sorted."""
    if not root.is_dir():
        raise NotFound(f"there is no directory {root.name} to read Python sources from")
    for folder, folders, files in os.walk(root):
        top = Path(folder) == root
        folders[:] = sorted(
            name
            for name in folders
            if name.isidentifier()
            and not SKIPPED_FOLDERS.fullmatch(name)
            and (not top or _is_selected(name, packages))
        )
        for name in sorted(files):
            if (
                name.endswith(".py")
                and not SKIPPED_FILES.fullmatch(name)
                and (not top or _is_selected(name[:-3], packages))
            ):
                yield Path(folder, name)


def _is_selected(name: str, packages: Collection[str]) -> bool:
    """Whether a top-level module or package is selected."""
    return not TOOL_PACKAGES.fullmatch(name) and (not packages or name in packages)


class _Module:
    """One parsed source file."""

    def __init__(self, path: Path, root: Path, from_code: bool) -> None:
        source = path.read_bytes()
        with warnings.catch_warnings():
            # invalid escapes in third-party strings
            warnings.simplefilter("ignore")
            # parsing takes most of the time
            self.tree = ast.parse(source if from_code or DOCSTRING.search(source) else b"")
        parts = path.relative_to(root).with_suffix("").parts
        self.name = ".".join(parts).removesuffix(".__init__")
        self.public = public_name(
            [part for part in parts if part not in ("__init__", "__main__")] or parts
        )
        self.lines = source.decode("utf-8", "replace").split("\n") if from_code else []
        self.from_code = from_code

    def documents(self) -> Iterator[tuple[Document, bytes]]:
        """Yield the module's documents, each with the digest of its description."""
        labels = [".".join(self.public[:i]) for i in range(1, len(self.public) + 1)]
        yield from self._document(self.name, "", _docstring(self.tree), labels)
        yield from self._members(self.tree.body, self.name + ":", self.public, labels)

    def _members(
        self, body: list[ast.stmt], prefix: str, scope: tuple[str, ...], labels: list[str]
    ) -> Iterator[tuple[Document, bytes]]:
        """Yield documents of the public definitions in a body, including nested classes."""
        times: Counter[str] = Counter()
        for node in _definitions(body):
            times[node.name] += 1
            # setters and overloads repeat a name
            identity = prefix + node.name + (f"#{times[node.name]}" if times[node.name] > 1 else "")
            inner, own = (*scope, node.name), labels
            if isinstance(node, ast.ClassDef):
                own = [*labels, ".".join(inner)]
            description = _docstring(node)
            if self.from_code and len(WORD.findall(description)) < MIN_WORDS:
                description = f"{description}\n{self._code_words(node, scope)}"
            yield from self._document(identity, _signature(node), description, own)
            if isinstance(node, ast.ClassDef):
                yield from self._members(node.body, identity + ".", inner, own)

    def _document(
        self, identity: str, names: str, description: str, labels: list[str]
    ) -> Iterator[tuple[Document, bytes]]:
        """Yield the document if its description has enough words."""
        words = WORD.findall(description.lower())
        if len(words) >= MIN_WORDS:
            text = f"{names}\n{inspect.cleandoc(description)}".strip()
            yield (
                Document(identity, text, tuple(sorted(set(labels)))),
                hashlib.sha256(" ".join(words).encode("utf-8", "replace")).digest(),
            )

    def _code_words(self, node: Definition, scope: tuple[str, ...]) -> str:
        """Return the words that describe a definition without a docstring.

        For a function: its comments and the names it uses. For a class: the first line of
        its module and the names of its members.
        """
        if isinstance(node, ast.ClassDef):
            summary = _docstring(self.tree).strip().partition("\n")[0]
            return " ".join(
                [summary, *dict.fromkeys(_signature(member) for member in _definitions(node.body))]
            )
        lines = self.lines[node.lineno - 1 : node.end_lineno]
        comments = " ".join(match.group(1) for match in map(COMMENT.search, lines) if match)
        used = dict.fromkeys(
            _identifier(inner) for statement in node.body for inner in ast.walk(statement)
        )
        return " ".join(
            [comments, *(name for name in used if name not in ("", "self", "cls", *scope))]
        )


def public_name(parts: Sequence[str]) -> tuple[str, ...]:
    """Return the public name of a module.

    Private parts are left out. A private top-level name is replaced, or loses its underscore.
    """
    top = PUBLIC_NAME.get(parts[0], parts[0] if parts[0].startswith("__") else parts[0].lstrip("_"))
    return (*top.split("."), *(part for part in parts[1:] if not part.startswith("_")))


def _definitions(body: list[ast.stmt]) -> Iterator[Definition]:
    """Yield the public classes and functions of a body, also below `if`, `try` and `with`.

    Names such as __init__ are public.
    """
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not node.name.startswith("_") or node.name.endswith("__"):
                yield node
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _definitions(
                [*node.body, *getattr(node, "orelse", []), *getattr(node, "finalbody", [])]
            )


def _signature(node: Definition) -> str:
    """Return the name of a definition, followed by the arguments of a function."""
    if isinstance(node, ast.ClassDef):
        return node.name
    arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    return " ".join([node.name, *(a.arg for a in arguments if a.arg not in ("self", "cls"))])


def _docstring(node: Definition | ast.Module) -> str:
    """Return the docstring as written, or ""."""
    return ast.get_docstring(node, clean=False) or ""


def _identifier(node: ast.AST) -> str:
    """Return the name that an expression uses, or ""."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _drop_rare_labels(documents: list[Document]) -> list[Document]:
    """Return documents without labels of fewer than MIN_LABEL_DOCUMENTS documents.

    Documents that keep no label are dropped.
    """
    times = Counter(label for document in documents for label in document.labels)
    trimmed = (
        document._replace(
            labels=tuple(label for label in document.labels if times[label] >= MIN_LABEL_DOCUMENTS)
        )
        for document in documents
    )
    return [document for document in trimmed if document.labels]
