"""What to answer: the spec that the command line, jobs and scripts share, checked before any work."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from xcray.errors import NotFound, ParameterError
from xcray.predict.labels import SET
from xcray.workers.pool import POOLS

FORMATS: Final = ("parquet", "svmlight", "xc", "jsonl", "text")
SUFFIXES: Final = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".svmlight": "svmlight",
    ".svm": "svmlight",
    ".libsvm": "svmlight",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
PACKED: Final = (".gz", ".xz", ".bz2")
ON_ERROR: Final = ("fail", "skip")
MOST_K: Final = 10_000
MOST_ROWS: Final = 1 << 20
NAMED: Final = ("indices_column", "values_column", "id_column")
LISTS: Final = ("allow", "deny", "text_columns")


@dataclass(frozen=True)
class BulkSpec:
    """What to answer. Checked when made; raises ParameterError with the mend.

    model: path of a model directory; input: path of a file, or of a directory of Parquet files (in order of their names);
    format: one of FORMATS, by the name's suffix when None: parquet; svmlight; xc, with its header; jsonl, an object a line;
    text, a text a line. k: labels for each row, clipped to the number there is.
    allow, deny: label names or numbers that may, or may not, be answered, and set:NAME for those of a set; label_sets: the labels
    of these sets, by name, so that an answer begun goes on with the sets as they were. probabilities, certificate: more columns.
    text_columns: columns (fields, in jsonl) joined by blanks to the text; indices_column, values_column: lists of a sparse
    row; values_column alone: a dense row. None: by the names there are: text; indices and values; values.
    id_column: copied to the answers, which else have the number of the row, from 0. zero_based: svmlight's indices start at 0.
    on_error: fail at a row that can't be read, or skip it and count. part_rows: rows of a part file, 0 to have it chosen.
    pool: serial, threads or ray; workers: 0 for one per core; ray_address: a cluster to join, else a local Ray is started.
    """

    model: str
    input: str
    format: str | None = None
    k: int = 5
    allow: tuple[int | str, ...] | None = None
    deny: tuple[int | str, ...] | None = None
    label_sets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    probabilities: bool = False
    certificate: bool = False
    text_columns: tuple[str, ...] | None = None
    indices_column: str | None = None
    values_column: str | None = None
    id_column: str | None = None
    zero_based: bool = False
    on_error: str = "fail"
    part_rows: int = 0
    pool: str = "threads"
    workers: int = 0
    ray_address: str | None = None

    def __post_init__(self) -> None:
        """Check everything that can be checked without the files."""
        object.__setattr__(self, "format", self.format or format_of(self.input))
        _one_of("format", self.format, FORMATS)
        _one_of("pool", self.pool, POOLS)
        _one_of("on_error", self.on_error, ON_ERROR)
        _whole("k", self.k, 1, MOST_K)
        _whole("workers", self.workers, 0, 4096)
        _whole("part_rows", self.part_rows, 0, MOST_ROWS)
        for name in ("probabilities", "certificate", "zero_based"):
            if not isinstance(getattr(self, name), bool):
                raise ParameterError(
                    f"{name} must be true or false, not {_shown(getattr(self, name))}"
                )
        for name in LISTS:
            kinds = (str,) if name == "text_columns" else (str, int)
            _sequence(name, getattr(self, name), kinds)
        for name in NAMED:
            if getattr(self, name) is not None and not isinstance(getattr(self, name), str):
                raise ParameterError(
                    f"{name} must be the name of a column, not {_shown(getattr(self, name))}"
                )
        _sets(self.label_sets)
        self._check_columns()

    def labels_of_set(self, name: str) -> Sequence[str]:
        """The labels of a set. Raises NotFound when the spec has none of that name."""
        if name not in self.label_sets:
            raise NotFound(
                f"there is no set of labels {name[:80]!r} here; there are: {', '.join(sorted(self.label_sets)) or 'none'}"
            )
        return self.label_sets[name]

    def _check_columns(self) -> None:
        """Names of columns go together, and with the format."""
        given = [name for name in ("text_columns", *NAMED) if getattr(self, name) is not None]
        if given and self.format not in ("parquet", "jsonl"):
            raise ParameterError(f"format {self.format} has no columns: leave {given[0]} out")
        if self.text_columns is not None and (self.indices_column or self.values_column):
            raise ParameterError("name text_columns, or the columns of feature rows, not both")
        if self.indices_column is not None and self.values_column is None:
            raise ParameterError("indices_column needs values_column beside it")
        if self.text_columns == ():
            raise ParameterError("text_columns is empty: name at least one column")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BulkSpec:
        """A spec from plain JSON. Raises ParameterError for unknown keys, missing `model` or `input`, and bad values."""
        known = {f.name for f in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ParameterError(
                f"unknown key {unknown[0][:80]!r} in the spec; there are: {', '.join(sorted(known))}"
            )
        for name in ("model", "input"):
            if not isinstance(values.get(name), str):
                raise ParameterError(f"the spec needs `{name}`, a path")
        lists = {name: tuple(values[name]) for name in LISTS if isinstance(values.get(name), list)}
        return cls(**{**values, **lists})

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        lists = {
            name: list(getattr(self, name)) for name in LISTS if getattr(self, name) is not None
        }
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {
            **plain,
            **lists,
            "label_sets": {name: list(labels) for name, labels in self.label_sets.items()},
        }

    def question(self) -> dict[str, Any]:
        """What is asked, without where the files lie and where the work is done; JSON."""
        places = ("model", "input", "pool", "workers", "ray_address")
        return {name: value for name, value in self.as_dict().items() if name not in places}


def format_of(path: str) -> str:
    """The format that a name tells. Raises ParameterError for names that tell none."""
    place = Path(path)
    if place.is_dir():
        return "parquet"
    suffix = Path(place.stem if place.suffix.lower() in PACKED else place.name).suffix.lower()
    if suffix not in SUFFIXES:
        raise ParameterError(
            f"the name {place.name[:80]!r} does not tell a format: give format, one of {', '.join(FORMATS)}"
        )
    return SUFFIXES[suffix]


def sets_named(
    labels: Iterable[int | str], sets: Callable[[str], Iterable[str]]
) -> dict[str, list[str]]:
    """The sets of labels that a list names, as they are now, for `label_sets`; sets: gives the labels of one, or raises NotFound.

    A label may be called set:NAME too: what is no set is left to the model.
    """
    named = {
        label.removeprefix(SET)
        for label in labels
        if isinstance(label, str) and label.startswith(SET)
    }
    found = {}
    for name in sorted(named):
        with suppress(NotFound, ParameterError):
            found[name] = list(sets(name))
    return found


def _one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise ParameterError unless a value is among its choices."""
    if value not in choices:
        raise ParameterError(f"{name} must be one of {', '.join(choices)}, not {_shown(value)}")


def _whole(name: str, value: Any, low: int, high: int) -> None:
    """Raise ParameterError unless a value is a whole number within its range."""
    if type(value) is not int or not low <= value <= high:
        raise ParameterError(
            f"{name} must be a whole number from {low} to {high}, not {_shown(value)}"
        )


def _sequence(name: str, value: Any, kinds: tuple[type, ...]) -> None:
    """Raise ParameterError unless a value is None or a tuple of these kinds."""
    sound = isinstance(value, tuple) and all(
        isinstance(each, kinds) and not isinstance(each, bool) for each in value
    )
    if value is not None and not sound:
        what = "label names or numbers" if int in kinds else "column names"
        raise ParameterError(f"{name} must be a list of {what}, not {_shown(value)}")


def _sets(value: Any) -> None:
    """Raise ParameterError unless a value is label names by the names of sets."""
    sound = isinstance(value, Mapping) and all(
        isinstance(name, str)
        and isinstance(labels, list | tuple)
        and all(isinstance(label, str) for label in labels)
        for name, labels in value.items()
    )
    if not sound:
        raise ParameterError(
            f"label_sets must be lists of label names by the names of sets, not {_shown(value)}"
        )


def _shown(value: Any) -> str:
    """A value as an error shows it."""
    return repr(value)[:80]
