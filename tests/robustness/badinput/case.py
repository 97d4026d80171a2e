"""The rows of the catalogue, and the files and build options of a row."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from xcray.data.build import BuildOptions

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
PATHS = ("labels_file", "label_names_file", "test_rows_file")


class Bad(NamedTuple):
    """A row that is refused: the training file, the code, and other parts of the error.

    options: options of reading and building; those in `PATHS` name one of the files in `more`.
    test: bytes of a test file. file: the file that the error is about. A row of the catalogue with
    several inputs has ids with a dash: S12, S12-long.
    """

    id: str
    data: bytes
    code: str
    line: int | None = None
    column: int | None = None
    value: str | None = None
    hint: str = ""
    says: str = ""
    options: dict[str, Any] = {}  # noqa: RUF012
    name: str = ""
    row: int | None = None
    test: bytes | None = None
    more: dict[str, bytes] = {}  # noqa: RUF012
    file: str = ""

    @property
    def over_http(self) -> bool:
        """Return whether a client can send the case.

        Clients cannot set server paths. The server chooses the file names, by the content if it is
        compressed.
        """
        is_named = bool(self.name) or self.data.startswith((b"\x1f\x8b", b"\xfd7zXZ"))
        return not is_named and not set(PATHS) & set(self.options)


class Good(NamedTuple):
    """A row that is accepted as docs/formats.md states, with its X, Y, label names and warnings."""

    id: str
    data: bytes
    X: list[list[float]] | None = None
    Y: list[list[int]] | None = None
    labels: list[str] | None = None
    warnings: dict[str, int] | None = None
    options: dict[str, Any] = {}  # noqa: RUF012
    name: str = ""


def row_of(case: Any) -> str:
    """Return the row of a case: S12 for S12-long, J3 for "J3 trailing"."""
    return str(case.id).replace(" ", "-").split("-")[0]


def laid_out(case: Bad | Good, format: str, folder: Path) -> tuple[dict[str, Path], BuildOptions]:
    """Write the files of a case and return the sources by part and the options."""
    sources = {"train": folder / (case.name or f"train.{SUFFIXES[format]}")}
    sources["train"].write_bytes(case.data)
    if isinstance(case, Bad):
        for name, data in case.more.items():
            (folder / name).write_bytes(data)
        if case.test is not None:
            sources["test"] = folder / f"test.{SUFFIXES[format]}"
            sources["test"].write_bytes(case.test)
    options = {
        name: str(folder / value) if name in PATHS else value
        for name, value in case.options.items()
    }
    return sources, BuildOptions.from_dict(options)


SUFFIXES: Mapping[str, str] = {
    "svmlight": "svm",
    "xc": "txt",
    "csv": "csv",
    "tsv": "tsv",
    "jsonl": "jsonl",
    "fasttext": "txt",
    "parquet": "parquet",
    "npz": "npz",
}


def wrong(case: Bad, problem: Mapping[str, Any], file: str | None) -> list[str]:
    """Return the differences between an error (as JSON) and a case; empty if it is correct.

    file: the name of the first file.
    """
    fields: dict[str, Any] = {"code": case.code}
    place = {"line": case.line, "column": case.column, "row": case.row, "value": case.value}
    fields |= {name: value for name, value in place.items() if value is not None}
    if file is not None:
        fields["file"] = case.file or file
    out = [
        f"{name} is {problem.get(name)!r}, not {value!r}"
        for name, value in fields.items()
        if problem.get(name) != value
    ]
    message, hint = str(problem.get("message", "")), str(problem.get("hint", ""))
    out += [] if case.says in message else [f"{case.says!r} is not in {message!r}"]
    out += [] if case.hint in hint else [f"{case.hint!r} is not in the hint {hint!r}"]
    out += [] if len(hint) > 5 else [f"the hint is missing: {problem}"]
    out += [] if message.isprintable() and hint.isprintable() else ["control characters"]
    return out + (
        []
        if len(str(problem.get("value", ""))) <= 80
        else ["the excerpt is longer than 80 characters"]
    )


def zipped(*members: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for member in members:
            archive.writestr(member, "1 1:1\n")
    return out.getvalue()


def tarred() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("train.svm"))
    return out.getvalue()
