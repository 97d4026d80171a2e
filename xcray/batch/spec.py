"""BatchPredictSpec: description of a batch prediction, validated before any work.

The command line, jobs and scripts share it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Final

from xcray.api.options import FORMATS, BatchOptions
from xcray.errors import NotFound, ParameterError
from xcray.parameters import check_parameters, require_type
from xcray.predict.labels import SET_PREFIX

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
FIELD_NAMES: Final = ("indices_field", "values_field", "id_field")


@dataclass(frozen=True)
class BatchPredictSpec(BatchOptions):
    """Description of a batch prediction. Validated when created; raises ParameterError with a fix.

    model: path of a model directory. input: path of a file, or of a directory of Parquet files (in
    order of their names). format: one of FORMATS; None derives it from the file name. parquet;
    svmlight; xc, with its header; jsonl, one object per line; text, one text per line. label_sets:
    the labels of the sets that `allow` and `deny` name, so that a resumed run uses the same sets.
    ray_address: a cluster to join; otherwise the pool "ray" starts a local Ray. Further options are
    those of `xcray.api.options.BatchOptions`.

    top_k is limited to the number of labels. values_field alone: a dense row. Without names of
    fields, a row is the first existing one of: the text fields of the model's data; text; indices
    and values; values.
    """

    model: str
    input: str
    format: str | None = None
    _: KW_ONLY
    label_sets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ray_address: str | None = None

    def __post_init__(self) -> None:
        """Validate everything that does not depend on the files."""
        for name, form in (("model", "of a model directory"), ("input", "of a file")):
            require_type(name, getattr(self, name), (str, Path), f"the path {form}")
            object.__setattr__(self, name, str(getattr(self, name)))
        object.__setattr__(self, "format", self.format or guess_format(self.input))
        if self.format not in FORMATS:
            raise ParameterError(
                f"format must be one of {', '.join(FORMATS)}, not {repr(self.format)[:80]}"
            )
        check_parameters(self)
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
        named = [name for name in ("text_fields", *FIELD_NAMES) if getattr(self, name) is not None]
        if named and self.format not in ("parquet", "jsonl", "csv", "tsv"):
            raise ParameterError(f"format {self.format} has no named fields: leave {named[0]} out")
        if self.delimiter is not None and self.format not in ("csv", "tsv"):
            raise ParameterError(f"format {self.format} has no delimiter: leave it out")
        if self.text_fields is not None and (self.indices_field or self.values_field):
            raise ParameterError("name text_fields, or the fields of feature rows, not both")
        if self.indices_field is not None and self.values_field is None:
            raise ParameterError("indices_field needs values_field as well")

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
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**{**values, **lists})

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        lists = {name: [*value] for name, value in values.items() if isinstance(value, tuple)}
        sets = {name: list(labels) for name, labels in self.label_sets.items()}
        return {**values, **lists, "label_sets": sets}

    @property
    def needs_probabilities(self) -> bool:
        """Return whether probabilities are computed, for the answers or for their threshold."""
        return self.probabilities or self.min_probability is not None

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
            f"give `format`, one of {', '.join(FORMATS)} (text: one text per line)"
        )
    return SUFFIXES[suffix]


def resolve_label_sets(
    labels: Iterable[str], sets: Callable[[str], Iterable[str]]
) -> dict[str, list[str]]:
    """Return the current contents of the label sets that a list names, for `label_sets`.

    sets: returns the labels of a set, or raises NotFound. A label can be called set:NAME as well:
    unknown sets are left to the model.
    """
    set_names = {label.removeprefix(SET_PREFIX) for label in labels if label.startswith(SET_PREFIX)}
    resolved = {}
    for name in sorted(set_names):
        with suppress(NotFound, ParameterError):
            resolved[name] = list(sets(name))
    return resolved


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
            f"label_sets must be lists of label names by the names of sets, not {repr(value)[:80]}"
        )
