"""Documents of several fields: texts, categories, numbers, vectors, and the language of the row.

The fields of a document travel as one string, separated by U+001F, in the order of the pipeline. So
every path that takes texts takes documents. Terms of one field alone are its name, U+001F and the
term; names for readers show a colon.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from xcray.errors import DataError, ParameterError, excerpt, similar_or_all

SEPARATOR: Final = "\x1f"
TEXT, CATEGORY, NUMBER, LANGUAGE, VECTOR = "text", "category", "number", "language", "vector"
KINDS: Final = (TEXT, CATEGORY, NUMBER, LANGUAGE, VECTOR)
MAX_FIELDS: Final = 60  # the kernel numbers them in six bits
MAX_NUMBER: Final = 3.0  # standard deviations from the mean; numbers beyond are cut
WEIGHTED = re.compile(r"(.+):([0-9]+(?:\.[0-9]+)?)")


@dataclass(frozen=True)
class Field:
    """A field of a document.

    kind: text, category, number, vector, or language (of the stems). weight: of a text, the weight
    of its own terms (0: none), in addition to those that all texts share; of others, the weight
    relative to a word. ngram_max: of a text, in place of that of the pipeline.
    """

    name: str
    kind: str = TEXT
    weight: float = 0.0
    ngram_max: int | None = None

    def __post_init__(self) -> None:
        """Raise ParameterError for values out of range."""
        if not isinstance(self.name, str) or not self.name or SEPARATOR in self.name:
            raise ParameterError(f"a field is called {self.name!r}; give the name of a column")
        if self.kind not in KINDS:
            raise ParameterError(f"a field is of kind {self.kind!r}; there are {', '.join(KINDS)}")
        number = isinstance(self.weight, int | float) and not isinstance(self.weight, bool)
        if not number or not 0 <= self.weight <= 1000:
            raise ParameterError(
                f"field {self.name!r} has weight {self.weight!r}; it must be from 0 to 1000"
            )
        n = self.ngram_max
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= 5):
            raise ParameterError(
                f"field {self.name!r} has ngram_max {n!r}; it must be a whole number from 1 to 5"
            )

    @property
    def prefix(self) -> str:
        """Start of the field's own terms."""
        return self.name + SEPARATOR


def text_field(value: str) -> Field:
    """Return the field that "title:2" or "abstract" describes."""
    match = WEIGHTED.fullmatch(value)
    return Field(value) if match is None else Field(match[1], TEXT, float(match[2]))


def text_fields_of(value: Any) -> tuple[Field, ...]:
    """Return text fields from names with weights, or from {"title": {"weight": 2}, ...}.

    Raises ParameterError.
    """
    if not isinstance(value, Mapping):
        return tuple(text_field(each) for each in value)
    known = ("weight", "ngram_max")
    for name, options in value.items():
        if not isinstance(options, Mapping):
            raise ParameterError(f"text_fields.{name} is {options!r}; it must be an object")
        for option in options:
            if option not in known:
                similar = similar_or_all(option, known)
                raise ParameterError(f"field {name!r} has no option {excerpt(option)!r}{similar}")
    return tuple(Field(name, TEXT, **options) for name, options in value.items())


def reading_options(values: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Field, ...]]:
    """Return reading options with the names of all fields of a document, and the fields.

    text_fields, category_fields, number_fields and vector_fields become text_fields, the names in
    this order, and value_fields, those of the kinds other than text. There are no fields if all are
    plain texts. Raises ParameterError.
    """
    rest = dict(values)
    fields: list[Field] = []
    texts = rest.get("text_fields")
    if isinstance(texts, str) and texts.lstrip().startswith("{"):
        try:
            texts = json.loads(texts)
        except ValueError as error:
            raise ParameterError(f"text_fields is not JSON: {error}") from None
    if texts is not None:
        objects = isinstance(texts, Mapping)
        fields += text_fields_of(texts if objects else names_of("text_fields", texts))
    for kind in (CATEGORY, NUMBER, VECTOR):
        option = f"{kind}_fields"
        if option in rest:
            named = map(text_field, names_of(option, rest.pop(option)))
            fields += [Field(each.name, kind, each.weight or 1.0) for each in named]
    if texts is None and fields:
        fields.insert(0, Field("text"))
    if fields:
        rest["text_fields"] = [field.name for field in fields]
        rest |= value_fields(fields)
    return rest, () if all(field == Field(field.name) for field in fields) else tuple(fields)


def value_fields(fields: Iterable[Field]) -> dict[str, Any]:
    """Return the option with the names of the fields that are not texts, if there are any."""
    names = [field.name for field in fields if field.kind != TEXT]
    return {"value_fields": names} if names else {}


def names_of(option: str, value: Any) -> tuple[str, ...]:
    """Return a tuple of names from a list, or from one string with commas.

    Raises ParameterError.
    """
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ParameterError(f"{option} is {value!r}; it must be a list of field names")
    return tuple(value)


def cell_text(value: Any) -> str | None:
    """Return the text of a category, number, vector or language in a file; None for other values.

    Nothing is an empty text, and a whole number has no decimal point.
    """
    if isinstance(value, list) and all(isinstance(each, int | float) for each in value):
        return " ".join(map(repr, value))
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, str | int | float) else None


def join_fields(values: Iterable[str]) -> str:
    """Return the document with these values, in the order of the fields."""
    return SEPARATOR.join([value.replace(SEPARATOR, " ") for value in values])


def document(values: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the document of named values; missing ones are empty.

    Raises ParameterError for a name that is not among `names`, and for a value that is neither a
    text nor a number.
    """
    texts = {name: cell_text(_plain(value)) for name, value in values.items()}
    for name in values:
        if name not in names:
            raise ParameterError(
                f"there is no field {excerpt(name)!r}; the model reads {', '.join(names)}"
            )
        if texts[name] is None:
            raise ParameterError(
                f"field {name!r} is {values[name]!r}; give a text, a number or a list of numbers"
            )
    return join_fields(texts.get(name) or "" for name in names)


def _plain(value: Any) -> Any:
    """Return an array of NumPy as a list or number."""
    return value.tolist() if hasattr(value, "tolist") else value


def readable(term: str) -> str:
    """Return a term for readers: title:word, publisher:Springer, year, *part of a word*."""
    if SEPARATOR not in term:
        return term
    name, _, rest = term.partition(SEPARATOR)
    return f"{name}:{rest}" if name and rest else name or f"*{rest}*"


def to_vector(value: str) -> list[float]:
    """Return the numbers of a vector, scaled to length 1; none for an empty text.

    Raises DataError for what is not a list of numbers.
    """
    try:
        vector = [float(each) for each in value.strip("[] ").replace(",", " ").split()]
    except ValueError:
        vector = [math.nan]
    length = math.sqrt(math.fsum(each * each for each in vector))
    if not math.isfinite(length):
        raise vector_error("the vector is not a list of finite numbers", value)
    return [each / length for each in vector] if length else vector


def vector_error(problem: str, value: str) -> DataError:
    """Return the error of a vector."""
    return DataError("FIELD_TYPE", problem, value=value[:100], hint="give each row as many numbers")


def to_number(value: str) -> float:
    """Return the number in a cell; NaN if there is none."""
    try:
        number = float(value)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan
