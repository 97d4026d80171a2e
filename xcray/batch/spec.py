"""BatchPredictSpec: description of a batch prediction, validated before any work.

The command line, jobs and scripts share it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from xcray.errors import NotFound, ParameterError
from xcray.predict.labels import SET_PREFIX
from xcray.workers.pool import POOLS

FORMATS: Final = ("parquet", "svmlight", "xc", "jsonl", "csv", "tsv", "text")
SUFFIXES: Final = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".svmlight": "svmlight",
    ".svm": "svmlight",
    ".libsvm": "svmlight",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
}
COMPRESSED_SUFFIXES: Final = (".gz", ".xz", ".bz2")
ON_ERROR: Final = ("fail", "skip")
MAX_K: Final = 10_000
MAX_PART_ROWS: Final = 1 << 20
COLUMN_FIELDS: Final = ("indices_column", "values_column", "id_column")
LIST_FIELDS: Final = ("allow", "deny", "text_columns")


@dataclass(frozen=True)
class BatchPredictSpec:
    """Description of a batch prediction. Validated when created; raises ParameterError with a fix.

    model: path of a model directory. input: path of a file, or of a directory of Parquet files (in
    order of their names). format: one of FORMATS; None derives it from the file name. parquet;
    svmlight; xc, with its header; jsonl, one object per line; text, one text per line. k: labels
    per row, limited to the number of labels.
    allow, deny: label names or numbers that answers can or cannot contain, and set:NAME for the
    labels of a set. label_sets: the labels of these sets, by name, so that a resumed run uses the
    same sets.
    probabilities, certificate: add these columns.
    text_columns: columns (fields in jsonl) joined by blanks to the text. indices_column,
    values_column: lists of a sparse row; values_column alone: a dense row. None selects the first
    existing ones of: text; indices and values; values.
    id_column: copied to the answers, which otherwise have the row number, from 0. zero_based:
    svmlight indices start at 0. on_error: fail at an invalid row, or skip and count it. part_rows:
    rows per part file, 0 for a default.
    pool: serial, threads or ray. workers: 0 for one per core. ray_address: a cluster to join;
    otherwise a local Ray is started.
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
        """Validate everything that does not depend on the files."""
        object.__setattr__(self, "format", self.format or guess_format(self.input))
        _check_choice("format", self.format, FORMATS)
        _check_choice("pool", self.pool, POOLS)
        _check_choice("on_error", self.on_error, ON_ERROR)
        _check_int("k", self.k, 1, MAX_K)
        _check_int("workers", self.workers, 0, 4096)
        _check_int("part_rows", self.part_rows, 0, MAX_PART_ROWS)
        for name in ("probabilities", "certificate", "zero_based"):
            if not isinstance(getattr(self, name), bool):
                raise ParameterError(
                    f"{name} must be true or false, not {_to_text(getattr(self, name))}"
                )
        for name in LIST_FIELDS:
            kinds = (str,) if name == "text_columns" else (str, int)
            _check_sequence(name, getattr(self, name), kinds)
        for name in COLUMN_FIELDS:
            if getattr(self, name) is not None and not isinstance(getattr(self, name), str):
                raise ParameterError(
                    f"{name} must be the name of a column, not {_to_text(getattr(self, name))}"
                )
        _check_label_sets(self.label_sets)
        self._check_columns()

    def labels_of_set(self, name: str) -> Sequence[str]:
        """Return the labels of a set. Raises NotFound if the spec does not contain it."""
        if name not in self.label_sets:
            raise NotFound(
                f"there is no set of labels {name[:80]!r} here; "
                f"existing sets: {', '.join(sorted(self.label_sets)) or 'none'}"
            )
        return self.label_sets[name]

    def _check_columns(self) -> None:
        """Raise ParameterError unless the column names fit together and to the format."""
        named = [
            name for name in ("text_columns", *COLUMN_FIELDS) if getattr(self, name) is not None
        ]
        if named and self.format not in ("parquet", "jsonl", "csv", "tsv"):
            raise ParameterError(f"format {self.format} has no columns: leave {named[0]} out")
        if self.text_columns is not None and (self.indices_column or self.values_column):
            raise ParameterError("name text_columns, or the columns of feature rows, not both")
        if self.indices_column is not None and self.values_column is None:
            raise ParameterError("indices_column needs values_column as well")
        if self.text_columns == ():
            raise ParameterError("text_columns is empty: name at least one column")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BatchPredictSpec:
        """Return a spec from plain JSON.

        Raises ParameterError for unknown keys, a missing `model` or `input`, and invalid values.
        """
        known = {f.name for f in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ParameterError(
                f"unknown key {unknown[0][:80]!r} in the spec; "
                f"valid keys: {', '.join(sorted(known))}"
            )
        for name in ("model", "input"):
            if not isinstance(values.get(name), str):
                raise ParameterError(f"the spec needs `{name}`, a path")
        lists = {
            name: tuple(values[name]) for name in LIST_FIELDS if isinstance(values.get(name), list)
        }
        return cls(**{**values, **lists})

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        lists = {
            name: list(getattr(self, name))
            for name in LIST_FIELDS
            if getattr(self, name) is not None
        }
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {
            **plain,
            **lists,
            "label_sets": {name: list(labels) for name, labels in self.label_sets.items()},
        }

    def request(self) -> dict[str, Any]:
        """Return the spec without the locations of files and work; JSON."""
        places = ("model", "input", "pool", "workers", "ray_address")
        return {name: value for name, value in self.as_dict().items() if name not in places}


def guess_format(path: str) -> str:
    """Return the format of a file by its name. Raises ParameterError if the name is ambiguous."""
    place = Path(path)
    if place.is_dir():
        return "parquet"
    suffix = Path(
        place.stem if place.suffix.lower() in COMPRESSED_SUFFIXES else place.name
    ).suffix.lower()
    if suffix not in SUFFIXES:
        raise ParameterError(
            f"the name {place.name[:80]!r} does not determine a format: "
            f"give `format`, one of {', '.join(FORMATS)}"
        )
    return SUFFIXES[suffix]


def resolve_label_sets(
    labels: Iterable[int | str], sets: Callable[[str], Iterable[str]]
) -> dict[str, list[str]]:
    """Return the current contents of the label sets that a list names, for `label_sets`.

    sets: returns the labels of a set, or raises NotFound. A label can be called set:NAME as well:
    unknown sets are left to the model.
    """
    set_names = {
        label.removeprefix(SET_PREFIX)
        for label in labels
        if isinstance(label, str) and label.startswith(SET_PREFIX)
    }
    resolved = {}
    for name in sorted(set_names):
        with suppress(NotFound, ParameterError):
            resolved[name] = list(sets(name))
    return resolved


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise ParameterError unless the value is one of the choices."""
    if value not in choices:
        raise ParameterError(f"{name} must be one of {', '.join(choices)}, not {_to_text(value)}")


def _check_int(name: str, value: Any, low: int, high: int) -> None:
    """Raise ParameterError unless the value is a whole number within the range."""
    if type(value) is not int or not low <= value <= high:
        raise ParameterError(
            f"{name} must be a whole number from {low} to {high}, not {_to_text(value)}"
        )


def _check_sequence(name: str, value: Any, kinds: tuple[type, ...]) -> None:
    """Raise ParameterError unless the value is None or a tuple of these types."""
    valid = isinstance(value, tuple) and all(
        isinstance(each, kinds) and not isinstance(each, bool) for each in value
    )
    if value is not None and not valid:
        what = "label names or numbers" if int in kinds else "column names"
        raise ParameterError(f"{name} must be a list of {what}, not {_to_text(value)}")


def _check_label_sets(value: Any) -> None:
    """Raise ParameterError unless the value maps set names to lists of label names."""
    valid = isinstance(value, Mapping) and all(
        isinstance(name, str)
        and isinstance(labels, list | tuple)
        and all(isinstance(label, str) for label in labels)
        for name, labels in value.items()
    )
    if not valid:
        raise ParameterError(
            f"label_sets must be lists of label names by the names of sets, not {_to_text(value)}"
        )


def _to_text(value: Any) -> str:
    """Return a value as shown in an error message."""
    return repr(value)[:80]
