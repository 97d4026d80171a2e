"""Tokenizer: normalisation, token pattern, identifier parts, plurals, aliases; the parameters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from xcray.data.text.fields import LANGUAGE, MAX_FIELDS, SEPARATOR, TEXT, VECTOR, Field
from xcray.data.text.stems import AUTO, algorithm
from xcray.errors import ParameterError
from xcray.parameters import check_parameters, parameter

# characters that readers do not see, so terms ignore them
INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff\ud800-\udfff]")
# letters of scripts without blanks between words: Thai, Lao, Burmese, Khmer, kana, Chinese
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
UNSPACED_RUNS = (2, 3)  # the runs of characters that such texts need in place of words
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
# HTTPError2 -> HTTP Error 2; DictReader -> Dict Reader
IDENTIFIER_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\dA-Z_]+|\d+")
# classes, hashes, boxes, matches, branches, searches
SIBILANT_PLURAL = re.compile(r"(?:ss|sh|x|tch|nch|rch)es$")

LANGUAGE_HINT = (
    "a language with a Snowball stemmer, like de or english, auto, or the field that holds the "
    "language of each row"
)


@dataclass(frozen=True)
class TextParams:
    """How text becomes terms and terms become weights.

    aliases: pairs (token, replacement), applied last and once: (("dict", "dictionary"),).
    char_ngrams: shortest and longest run of characters within a word (with a blank on both sides)
    that is an additional term: (4, 6); for compounds and typing errors.
    fields: of documents, in their order; () for plain texts. Only the text fields share terms.
    """

    lowercase: bool = parameter(True, "fold case, after NFKC normalisation, which always happens")
    token_pattern: str = parameter(
        r"\b\w\w+\b", "regular expression of one token; if it has a group, that is the token"
    )
    split_identifiers: bool = parameter(
        False,
        "also split DictReader, max_iter and HTTPError into parts; n-grams run over the parts, "
        "the whole identifier is an additional term",
    )
    fold_plurals: bool = parameter(
        False, "read English plurals as their singular (rows, dictionaries), by rule"
    )
    aliases: tuple[tuple[str, str], ...] = ()
    ngram_max: int = parameter(1, "terms are runs of 1 to ngram_max tokens", low=1, high=5)
    min_df: int = parameter(1, "drop terms in fewer texts than this", low=1)
    max_df: float = parameter(
        1.0, "drop terms in more than this share of the texts", above=0, high=1
    )
    max_features: int | None = parameter(
        None,
        "maximum number of terms: the most frequent by total count stay, ties by name",
        low=1,
        kind=int,
    )
    sublinear_tf: bool = parameter(False, "weight counts as 1 + ln(count)")
    language: str | None = parameter(
        None,
        "read words as their stems: a code or name of a Snowball algorithm (de, german), the field "
        "that holds the language of the row, or auto to detect it; needs the extra `text`",
        low=1,
        high=1000,
        kind=str,
    )
    char_ngrams: tuple[int, int] | None = None
    fields: tuple[Field, ...] = ()

    def __post_init__(self) -> None:
        """Raise ParameterError for values out of range."""
        check_parameters(self)
        pairs = all(
            isinstance(pair, tuple) and [*map(type, pair)] == [str, str] for pair in self.aliases
        )
        sound = pairs and not any(LONE_SURROGATE.search(word) for word in chain(*self.aliases))
        _require(
            sound, "aliases", self.aliases, "pairs of strings without halves of surrogate pairs"
        )
        _compile_pattern(self.token_pattern)
        runs = self.char_ngrams
        _require(
            runs is None
            or (len(runs) == 2 and all(map(_is_int, runs)) and 2 <= runs[0] <= runs[1] <= 10),
            "char_ngrams",
            runs,
            "the shortest and the longest run of characters, from 2 to 10: [4, 6]",
        )
        names, kinds = ([getattr(x, part) for x in self.fields] for part in ("name", "kind"))
        _require(
            len({*names}) == len(names) <= MAX_FIELDS
            and kinds.count(VECTOR) <= 1
            and (not kinds or TEXT in kinds),
            "fields",
            names,
            f"at most {MAX_FIELDS} different fields with a text, and with one vector at most",
        )

    def require_language(self) -> None:
        """Raise ParameterError for a language that is neither known nor a field of the rows."""
        known = self.language in (None, AUTO) or algorithm(str(self.language)) is not None
        fields = [field.name for field in self.fields if field.kind == LANGUAGE]
        _require(known or fields == [self.language], "language", self.language, LANGUAGE_HINT)

    def as_json(self) -> dict[str, Any]:
        """Return the parameters as JSON, without newer ones that have their default.

        So pipelines without them keep their fingerprint.
        """
        values = asdict(self)
        newer = ("language", "char_ngrams", "fields")
        return {name: value for name, value in values.items() if name not in newer or value}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TextParams:
        """Return the parameters for a JSON object.

        Raises ParameterError for values out of range, TypeError for unknown names.
        """
        aliases = values.get("aliases", ())
        _require(
            isinstance(aliases, list | tuple), "aliases", aliases, "a list of pairs of strings"
        )
        runs, fields = values.get("char_ngrams"), values.get("fields", ())
        _require(
            runs is None or isinstance(runs, list | tuple), "char_ngrams", runs, "a pair of numbers"
        )
        parsed = {
            "aliases": tuple(tuple(x) if isinstance(x, list) else x for x in aliases),
            "char_ngrams": None if runs is None else tuple(runs),
            "fields": tuple(
                field if isinstance(field, Field) else Field(**field) for field in fields
            ),
        }
        return cls(**{**values, **parsed})


def normalise(text: str) -> str:
    """Return NFKC without invisible characters; case is kept.

    Invisible characters are soft hyphens, zero-width and direction marks, byte order marks and
    lone surrogates.
    """
    return text if text.isascii() else INVISIBLE.sub("", unicodedata.normalize("NFKC", text))


def is_unspaced(texts: Iterable[str]) -> bool:
    """Return whether most characters of texts are of a script without blanks between words."""
    joined = " ".join(texts)
    return not joined.isascii() and 2 * len(UNSPACED.findall(joined)) > len(joined)


def make_cutter(params: TextParams) -> Callable[[str], tuple[list[str], list[str]]]:
    """Return the function from a text to its tokens and its whole identifiers.

    N-grams are made of the tokens only.
    """
    find, aliases = _compile_pattern(params.token_pattern).findall, dict(params.aliases)

    def cut(text: str) -> tuple[list[str], list[str]]:
        text = normalise(text.replace(SEPARATOR, " "))
        wholes: list[str] = []
        if params.lowercase and not params.split_identifiers:
            text = text.lower()
        tokens = find(text)
        if params.split_identifiers:
            tokens, wholes = identifier_parts(tokens)
            if params.lowercase:
                tokens, wholes = [t.lower() for t in tokens], [t.lower() for t in wholes]
        if params.fold_plurals:
            tokens = [singular(t) if t[-1:] == "s" else t for t in tokens]
        if aliases:
            tokens = [aliases.get(t, t) for t in tokens]
        return tokens, wholes

    return cut


def identifier_parts(tokens: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return tokens with identifiers replaced by their parts, and the identifiers.

    Parts of one character are dropped.
    """
    words, wholes = [], []
    for token in tokens:
        if token.islower() and token.isalpha():  # a plain word, the most frequent case
            words.append(token)
            continue
        parts = IDENTIFIER_PART.findall(token)
        if len(parts) > 1:
            words.extend(part for part in parts if len(part) > 1)
            wholes.append(token)
        else:
            words.append(token)
    return words, wholes


def singular(token: str) -> str:
    """Return the singular of an English word by Harman's s-rules.

    Words of three letters and words in us, ss, is are unchanged.
    """
    if len(token) < 4 or token.endswith(("us", "ss", "is")):
        return token
    if token.endswith("ies") and len(token) > 4:
        return token[:-3] + "y"
    return (
        token[:-2]
        if SIBILANT_PLURAL.search(token)
        else token[:-1]
        if token.endswith("s")
        else token
    )


def ngrams(tokens: list[str], max_length: int) -> list[str]:
    """Return runs of 1 to `max_length` tokens, joined by blanks."""
    if max_length == 1:
        return tokens
    return [
        " ".join(run)
        for n in range(1, max_length + 1)
        for run in zip(*(tokens[i:] for i in range(n)), strict=False)
    ]


def _compile_pattern(token_pattern: str) -> re.Pattern[str]:
    """Compile the token pattern. Raises ParameterError with the reason if it is invalid."""
    try:
        pattern = re.compile(token_pattern)
    except (re.error, TypeError) as error:
        raise ParameterError(
            f"token_pattern {token_pattern!r} is not a regular expression: {error}"
        ) from None
    if pattern.groups > 1:
        raise ParameterError(
            f"token_pattern {token_pattern!r} has {pattern.groups} groups; use one, "
            "and (?: ) for the others"
        )
    return pattern


def _require(condition: bool, name: str, value: Any, expected: str) -> None:
    """Raise ParameterError unless the condition holds."""
    if not condition:
        raise ParameterError(f"{name} is {value!r}; it must be {expected}")


def _is_int(value: Any) -> bool:
    """Whether the value is a whole number and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)
