"""Changed data sets from files: rows to add, ids of rows to remove, and rows with new labels."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from xcray.data.build import BuildOptions, build
from xcray.data.dataset import READING, Dataset
from xcray.data.delta.rows import make_delta
from xcray.data.readers.formats import FILE_FORMATS
from xcray.data.readers.labels import has_half_surrogate, plain_label
from xcray.data.texts import read_ids
from xcray.errors import InputError, NotFound, ParameterError, excerpt, missing_file


def delta_from_files(
    base: str | Path,
    out: str | Path,
    *,
    add: Path | None = None,
    format: str | None = None,
    remove: Path | None = None,
    relabel: Path | None = None,
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Dataset:
    """Publish a changed data set at `out`, from files of changes.

    add: rows in a format of `build`, by default that of the suffix, read with the features of the
    base. remove: one row per line: its id, if the base was built with `id_field`, else its number
    among the training rows, from 0. relabel: JSON lines with "row" (the same) and "labels".
    options: of reading `add`. name: as for `make_delta`. Raises as `make_delta` and `build`.
    """
    data = Dataset.open(base)
    find = _RowFinder(data)
    removed = [row for line in _lines(remove) for row in find.rows(line)]
    relabelled: dict[int, Sequence[str]] = {}
    for line in _lines(relabel):
        row, labels = _read_relabelling(line)
        relabelled |= dict.fromkeys(find.rows(row), labels)
    check_delta_options(options or {}, adds=add is not None)
    if add is None:
        return make_delta(data, out, remove=removed, relabel=relabelled, name=name)
    format = format or add.name.removesuffix(".xz").removesuffix(".gz").rpartition(".")[2]
    if format not in FILE_FORMATS:
        raise ParameterError(f"the format of {add.name} is not known: give --format")
    Path(out).absolute().parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".xcray-", dir=Path(out).absolute().parent) as folder:
        how = BuildOptions.from_dict({**_base_options(data, format), **(options or {})})
        how = replace(how, like=str(base))
        return make_delta(
            data,
            out,
            add=build(format, {"train": add}, Path(folder, "added"), how),
            remove=removed,
            relabel=relabelled,
            name=name,
        )


def check_delta_options(options: Mapping[str, Any], *, adds: bool) -> None:
    """Raise ParameterError for options of features and held-out rows, all if no file adds rows."""
    if options and not adds:
        raise ParameterError("options are for a file of rows to add: leave them out")
    for name in ("test_fraction", "test_rows_file", "text"):
        if options.get(name):
            raise ParameterError(
                f"{name} cannot be given: a changed data set has the features and the held-out "
                "rows of its base"
            )


def _base_options(base: Dataset, format: str) -> dict[str, Any]:
    """Return how files of the base were read, for further ones of the same format."""
    source = base.manifest["source"]
    if source.get("format") != format:
        return {}
    # text fields and delimiters follow from `like`
    own = ("test_fraction", "seed", "labels_file", *READING)
    return {name: each for name, each in source["options"].items() if name not in own}


class _RowFinder:
    """Finds training rows by id, or by number if the base has no ids."""

    def __init__(self, base: Dataset) -> None:
        self._base = base
        ids = read_ids(base)
        self._rows: dict[str, list[int]] | None = None
        if ids is not None:
            self._rows = {}
            for row, id in enumerate(ids):
                self._rows.setdefault(id, []).append(row)

    def rows(self, name: str) -> list[int]:
        """Return the rows of an id or number. Raises NotFound."""
        n = self._base.train.n_rows
        if self._rows is not None and name in self._rows:
            return self._rows[name]
        if self._rows is None and name.isascii() and name.isdigit() and int(name) < n:
            return [int(name)]
        kind = f"number from 0 to {n - 1}" if self._rows is None else "id of one"
        raise NotFound(
            f"{excerpt(name)!r} is not a training row of {self._base.name}: give the {kind}"
        )


def _lines(path: Path | None) -> Iterator[str]:
    """Yield the lines of a file that are not empty; none without a file."""
    if path is None:
        return
    if not path.is_file():
        raise missing_file(path)
    with open(path, encoding="utf-8") as lines:
        yield from filter(None, map(str.strip, lines))


def _read_relabelling(line: str) -> tuple[str, list[str]]:
    """Return the row and the labels of a JSON line, as readers have them. Raises InputError."""
    try:
        entry = json.loads(line)
        row, labels = entry["row"], entry["labels"]
        valid = isinstance(labels, list) and all(
            type(each) in (str, int) for each in (row, *labels)
        )
    except (ValueError, KeyError, TypeError):
        valid = False
    names = [plain_label(str(each)) for each in labels] if valid else []
    if not names or not all(names) or any(map(has_half_surrogate, names)):
        raise InputError(
            f'{excerpt(line)!r} is not an object like {{"row": 3, "labels": ["a", "b"]}}; '
            "a row needs a label, and labels are strings or whole numbers that are not empty"
        )
    return str(row), names
