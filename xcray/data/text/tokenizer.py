"""How a text falls into terms: normalised, cut by a pattern, identifiers opened, plurals folded, n-grams."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from xcray.errors import ParameterError

UNSEEN = re.compile(
    "[\u00ad\u200b-\u200f\u2060\ufeff\ud800-\udfff]"
)  # invisible to readers, so invisible to terms
LONE = re.compile("[\ud800-\udfff]")
PARTS = re.compile(
    r"[A-Z]+(?![a-z])|[A-Z]?[^\W\dA-Z_]+|\d+"
)  # HTTPError2 -> HTTP Error 2; DictReader -> Dict Reader
SIBILANT = re.compile(
    r"(?:ss|sh|x|tch|nch|rch)es$"
)  # classes, hashes, boxes, matches, branches, searches


@dataclass(frozen=True)
class TextParams:
    """How text becomes terms and terms become weights.

    lowercase: fold case (after NFKC normalisation, which always happens).
    token_pattern: regular expression of one token, with at most one group (then the group is the token).
    split_identifiers: also give the parts of DictReader, max_iter, HTTPError: n-grams run over the parts, the whole
        word is added as a term of its own.
    fold_plurals: read English plurals as their singular (rows -> row, dictionaries -> dictionary), by rule.
    aliases: pairs (token, what to read it as), applied last and once: (("dict", "dictionary"),).
    ngram_max: terms are runs of 1 to ngram_max tokens (1-5).
    min_df: leave out terms found in fewer texts than this (>= 1).
    max_df: leave out terms found in more than this share of the texts (0-1].
    max_features: keep only so many terms, the most frequent by total count, equal counts by name; None keeps all.
    sublinear_tf: weight counts as 1 + ln(count).
    """

    lowercase: bool = True
    token_pattern: str = r"\b\w\w+\b"
    split_identifiers: bool = False
    fold_plurals: bool = False
    aliases: tuple[tuple[str, str], ...] = ()
    ngram_max: int = 1
    min_df: int = 1
    max_df: float = 1.0
    max_features: int | None = None
    sublinear_tf: bool = False

    def __post_init__(self) -> None:
        """Raise ParameterError for values out of range."""
        _require(
            _is_int(self.ngram_max) and 1 <= self.ngram_max <= 5,
            "ngram_max",
            self.ngram_max,
            "a whole number from 1 to 5",
        )
        _require(
            _is_int(self.min_df) and self.min_df >= 1,
            "min_df",
            self.min_df,
            "a whole number of texts, at least 1",
        )
        _require(
            _is_number(self.max_df) and 0 < self.max_df <= 1,
            "max_df",
            self.max_df,
            "a share of the texts: above 0, at most 1",
        )
        limit = self.max_features
        _require(
            limit is None or (_is_int(limit) and limit >= 1),
            "max_features",
            limit,
            "a whole number of at least 1, or null",
        )
        for name in ("lowercase", "split_identifiers", "fold_plurals", "sublinear_tf"):
            _require(
                isinstance(getattr(self, name), bool), name, getattr(self, name), "true or false"
            )
        pairs = all(
            len(pair) == 2 and all(isinstance(word, str) for word in pair) for pair in self.aliases
        )
        _require(pairs, "aliases", self.aliases, "pairs of strings")
        sound = not any(LONE.search(word) for pair in self.aliases for word in pair)
        _require(
            sound,
            "aliases",
            self.aliases,
            "pairs of strings without lone surrogates, which no file can hold",
        )
        _compiled(self.token_pattern)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TextParams:
        """Parameters from JSON. Raises ParameterError for unknown names and values out of range."""
        unknown = sorted(set(values) - set(cls.__dataclass_fields__))
        if unknown:
            raise ParameterError(
                f"text has no parameter {unknown[0]!r}; it has {', '.join(cls.__dataclass_fields__)}"
            )
        aliases = values.get("aliases", ())
        _require(
            isinstance(aliases, list | tuple), "aliases", aliases, "a list of pairs of strings"
        )
        return cls(**{**values, "aliases": tuple(tuple(pair) for pair in aliases)})


def normalise(text: str) -> str:
    """NFKC without soft hyphens, zero-width and direction marks, byte order marks and lone surrogates; case is kept."""
    return text if text.isascii() else UNSEEN.sub("", unicodedata.normalize("NFKC", text))


def tokenizer(params: TextParams) -> Callable[[str], list[str]]:
    """The function from a text to its terms, in order, repeats included."""
    cut = cutter(params)

    def split(text: str) -> list[str]:
        tokens, wholes = cut(text)
        return _ngrams(tokens, params.ngram_max) + wholes

    return split


def cutter(params: TextParams) -> Callable[[str], tuple[list[str], list[str]]]:
    """The function from a text to its tokens, of which n-grams are made, and the terms that stay outside of these."""
    find, aliases = _compiled(params.token_pattern).findall, dict(params.aliases)

    def cut(text: str) -> tuple[list[str], list[str]]:
        text = normalise(text)
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
    """Tokens with identifiers replaced by their parts of two and more characters, and the identifiers themselves."""
    words, wholes = [], []
    for token in tokens:
        if token.islower() and token.isalpha():  # a plain word, as most are
            words.append(token)
            continue
        parts = PARTS.findall(token)
        if len(parts) > 1:
            words.extend(part for part in parts if len(part) > 1)
            wholes.append(token)
        else:
            words.append(token)
    return words, wholes


def singular(token: str) -> str:
    """The singular of an English word by Harman's s-rules; words of three letters and those in us, ss, is stay."""
    if len(token) < 4 or token.endswith(("us", "ss", "is")):
        return token
    if token.endswith("ies") and len(token) > 4:
        return token[:-3] + "y"
    return token[:-2] if SIBILANT.search(token) else token[:-1] if token.endswith("s") else token


def _ngrams(tokens: list[str], longest: int) -> list[str]:
    """Runs of 1 to `longest` tokens, joined by blanks."""
    if longest == 1:
        return tokens
    return [
        " ".join(run)
        for n in range(1, longest + 1)
        for run in zip(*(tokens[i:] for i in range(n)), strict=False)
    ]


def _compiled(token_pattern: str) -> re.Pattern[str]:
    """The token pattern, or ParameterError with the reason it can't be one."""
    try:
        pattern = re.compile(token_pattern)
    except (re.error, TypeError) as error:
        raise ParameterError(
            f"token_pattern {token_pattern!r} is not a regular expression: {error}"
        ) from None
    if pattern.groups > 1:
        raise ParameterError(
            f"token_pattern {token_pattern!r} has {pattern.groups} groups; use one, and (?: ) for the others"
        )
    return pattern


def _require(holds: bool, name: str, value: Any, expected: str) -> None:
    """Raise ParameterError unless the condition holds."""
    if not holds:
        raise ParameterError(f"{name} is {value!r}; it must be {expected}")


def _is_int(value: Any) -> bool:
    """Whether it is a whole number and not a truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    """Whether it is a number and not a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)
