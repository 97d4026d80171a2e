"""Options of a data set build, and which of them fit together."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from xcray.data.dataset import READING
from xcray.data.feature_space import reads_zero_based
from xcray.data.readers.formats import FORMATS_OF, check_option_names
from xcray.data.readers.options import SEQUENCES, ReadOptions
from xcray.data.splits import HashSplit
from xcray.data.synthetic import SyntheticParams
from xcray.data.text.fields import CATEGORY, NUMBER, VECTOR, Field, names_of, reading_options
from xcray.data.text.tokenizer import TextParams
from xcray.errors import ParameterError, excerpt, similar_or_all
from xcray.parameters import check_parameters, parameter

OWN_OPTIONS: Final = ("name", "test_fraction", "seed", "test_rows_file", "label_names_file")
GROUPS: Final[dict[str, type[TextParams | SyntheticParams]]] = {
    "text": TextParams,
    "synthetic": SyntheticParams,
}
NO_TEXT_FIELDS: Final = "text.fields cannot be given; name the fields with text_fields"


@dataclass(frozen=True)
class BuildOptions:
    """How to build a data set.

    read: how files are read. name: name of the data set; by default derived from the target.
    test_fraction: share of rows held out by a hash of their id (or row number) if there is no
    test file. None means 0, or 0.1 for pydocs and synthetic. seed: selects the split.
    fields: of documents, if they have more than plain texts. text: tf-idf parameters; None takes
    the defaults of the format. synthetic: parameters of the generator.
    like: a model or data set directory whose features the new data set must have. Text goes
    through its fitted pipeline. It is a local path and is never read from JSON.
    origin: addresses, checksums and licence of a public set, for the manifest; not from JSON.
    given: names of options that hold against `like`, also with their default values.
    """

    read: ReadOptions = field(default_factory=ReadOptions)
    name: str | None = None
    test_fraction: float | None = None
    seed: int = 0
    test_rows_file: str | None = parameter(
        None, "row numbers from 1 to hold out: a split file of the XC repository", kind=str
    )
    # for text, other labels are errors; whole numbers are ids, if no name is one or with label_ids
    label_names_file: str | None = parameter(
        None, "one label name per line, in the order of the ids", kind=str
    )
    text: TextParams | None = None
    fields: tuple[Field, ...] = ()
    synthetic: SyntheticParams = field(default_factory=SyntheticParams)
    like: str | None = None
    origin: Mapping[str, Any] | None = None
    given: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Raise ParameterError for values that no format takes."""
        check_parameters(self)
        self.hash_split()
        if self.text is not None and self.text.fields:
            raise ParameterError(NO_TEXT_FIELDS)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BuildOptions:
        """Return the options for a JSON object.

        The object holds the reading options next to these options; `text` and `synthetic`
        are objects. Null means "not given". Raises ParameterError.
        """
        rest = {name: each for name, each in values.items() if each is not None}
        given = frozenset(rest)
        _check_names(rest)
        text, synthetic = (_group(rest, name) for name in GROUPS)
        own = {name: rest.pop(name) for name in OWN_OPTIONS if name in rest}
        rest, document_fields = reading_options(rest)
        rest |= {name: names_of(name, rest[name]) for name in SEQUENCES if name in rest}
        if text is not None and "fields" in text:
            raise ParameterError(NO_TEXT_FIELDS)
        return cls(
            read=ReadOptions(**rest),
            text=None if text is None else TextParams.from_dict(text),
            fields=document_fields,
            synthetic=SyntheticParams(**(synthetic or {})),
            given=given,
            **own,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the options that shaped the data, JSON-ready, without file paths."""
        values = {"test_fraction": self.test_fraction, "seed": self.seed, **self.read.as_dict()}
        if "labels_file" in values:
            values["labels_file"] = Path(str(values["labels_file"])).name
        return values

    @property
    def names(self) -> frozenset[str]:
        """Names of the options that were given, or that differ from their defaults."""
        return self.given | _changed(self) | _changed(self.read)

    def check(self, format: str, parts: Collection[str]) -> None:
        """Raise ParameterError unless a data set can be built with these options.

        parts: train and test, those that have a file.
        """
        check_option_names(format, self.given)  # first: others can follow from these
        check_option_names(format, self.names)
        if "test" in parts and (self.test_fraction or self.test_rows_file):
            raise ParameterError(
                "there is a test file and a split of the training file; give only one of them"
            )
        if "test" in parts and self.read.labels_file is not None:
            raise ParameterError(
                "labels_file belongs to the training file; "
                "hold test rows out with test_rows_file or test_fraction"
            )

    def with_reading(self, format: str, reading: Mapping[str, Any]) -> BuildOptions:
        """Return the options with `Dataset.reading` of other data, unless others are set."""
        read, default = self.read, ReadOptions()
        values: dict[str, Any] = {
            name: reading[name]
            for name in READING
            if name in reading
            and name not in self.given
            and format in FORMATS_OF[name]
            and getattr(read, name) == getattr(default, name)
        }
        if "text_fields" in values:
            values["text_fields"] = tuple(values["text_fields"])
            values["value_fields"] = tuple(reading.get("value_fields", ()))
        else:  # those of other texts
            values.pop("value_fields", None)
        if format == "tsv":  # the delimiter is one of csv
            values.pop("delimiter", None)
        if format == "svmlight":
            first = reading.get("first_index")
            values["zero_based"] = reads_zero_based(read.zero_based, first)
        return replace(self, read=replace(read, **values))

    def hash_split(self, default: float = 0.0) -> HashSplit:
        """Return the split by a hash. default: share of held-out rows if none is given."""
        return HashSplit(default if self.test_fraction is None else self.test_fraction, self.seed)


def _group(values: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Take a group of options, an object, out of the values; None if it was not given."""
    group = values.pop(name, None)
    if group is not None and not isinstance(group, Mapping):
        raise ParameterError(f"{name} is {excerpt(str(group))!r}: name its options")
    known = GROUPS[name].__dataclass_fields__
    for unknown in sorted(set(group or ()) - set(known)):
        similar = similar_or_all(unknown, known)
        raise ParameterError(f"{name} has no parameter {excerpt(unknown)!r}{similar}")
    return None if group is None else dict(group)


def _changed(options: BuildOptions | ReadOptions) -> frozenset[str]:
    """Return the names of the options that differ from their defaults."""
    default, names = type(options)(), (each.name for each in fields(options))
    return frozenset(name for name in names if getattr(options, name) != getattr(default, name))


def _check_names(names: Collection[str]) -> None:
    """Raise ParameterError for an option that does not exist, or that belongs into a group."""
    of_kinds = (f"{kind}_fields" for kind in (CATEGORY, NUMBER, VECTOR))
    known = [*OWN_OPTIONS, *GROUPS, *of_kinds, *ReadOptions.__dataclass_fields__]
    for name in sorted(set(names) - set(known)):
        if name == "fields":
            raise ParameterError(NO_TEXT_FIELDS)
        for group, options in GROUPS.items():
            if name in options.__dataclass_fields__:
                raise ParameterError(f"option {name!r} belongs to {group}: write {group}.{name}")
        raise ParameterError(f"there is no option {excerpt(name)!r}{similar_or_all(name, known)}")
