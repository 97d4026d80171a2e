"""Analyzer: documents to terms, by field and language.

`terms` is the reference of what `kernels.text` computes from the parts of a document.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from xcray.data.text.fields import (
    CATEGORY,
    LANGUAGE,
    NUMBER,
    SEPARATOR,
    TEXT,
    VECTOR,
    Field,
    to_number,
    to_vector,
    vector_error,
)
from xcray.data.text.stems import AUTO, Stems, algorithm, detect, stems_of
from xcray.data.text.tokenizer import TextParams, make_cutter, ngrams


class Part(NamedTuple):
    """The text of one field.

    number: of the field, from 1; 0 for texts without fields. stems: of its language, if any.
    """

    number: int
    text: str
    stems: Stems | None


class Analyzer:
    """Splitter of documents, see `TextParams`. Thread-safe."""

    def __init__(self, params: TextParams) -> None:
        """Initialise.

        stems: of the language of all texts, if any. Raises ParameterError for an unknown language,
        Unavailable if PyStemmer is missing.
        """
        params.require_language()
        self.params = params
        self.cut = make_cutter(params)
        fields = params.fields
        self.fields = (Field("text"), *fields)
        self.is_dense = any(field.kind in (NUMBER, VECTOR) for field in fields)
        own_language = params.language and algorithm(params.language)
        self.stems = stems_of(own_language) if own_language else None
        kinds = [field.kind for field in fields]
        self.detects_language = params.language == AUTO
        self._language = kinds.index(LANGUAGE) if LANGUAGE in kinds else None
        texts = [i for i, kind in enumerate(kinds) if kind == TEXT]
        # where a text without fields belongs
        self._plain = next((i for i in texts if not fields[i].weight), texts[0] if texts else 0)

    def values(self, document: str) -> list[str]:
        """Return the value of each field, empty if it is missing.

        A text without fields is the one whose terms all texts share, else the first.
        """
        fields = self.params.fields
        values = document.split(SEPARATOR)
        if len(values) == 1 and len(fields) > 1:
            return [document if i == self._plain else "" for i in range(len(fields))]
        return (values + [""] * len(fields))[: len(fields)]

    def parts(self, document: str) -> Iterator[Part]:
        """Yield the texts of a document, at least one."""
        language = self.language(document)
        name = None if language is None else algorithm(language)
        stems = self.stems if language is None else stems_of(name) if name else None
        if not self.params.fields:
            yield Part(0, document, stems)
            return
        values = self.values(document)
        for i, field in enumerate(self.params.fields):
            if field.kind == TEXT:
                yield Part(i + 1, values[i], stems)

    def stems_by(self, languages: Iterable[str]) -> list[Stems | None]:
        """Return the stems of texts in each of the languages; None: words stay as they are."""
        if self._language is None and not self.detects_language:
            return [self.stems]
        names = dict.fromkeys(map(algorithm, languages)) or [None]
        return [stems_of(name) if name else None for name in names]

    def document(self, text: str, language: str) -> str:
        """Return a text as a document in a language, in the field whose terms all texts share."""
        if self._language is None:
            return text
        values = self.values(text)
        values[self._language] = language
        return SEPARATOR.join(values)

    def language(self, document: str) -> str | None:
        """Return the value of the language field, or the language of the texts if it is detected.

        None if there is no such field.
        """
        if self._language is not None:
            return self.values(document)[self._language]
        if not self.detects_language:
            return None
        named = zip(self.params.fields, self.values(document), strict=True)
        texts = [value for field, value in named if field.kind == TEXT]
        return detect(" ".join(texts) if self.params.fields else document)

    def categories(self, document: str) -> list[str]:
        """Return the terms of the document's categories."""
        values = self.values(document)
        return [
            field.prefix + value.strip()
            for field, value in zip(self.params.fields, values, strict=True)
            if field.kind == CATEGORY and value.strip()
        ]

    def dense_values(self, document: str, width: int | None = None) -> list[float]:
        """Return the document's numbers (NaN where there is none), then its vector.

        width: of both, once it is known; a missing vector is then NaN. Raises DataError for a
        vector of another length, or none in the first document.
        """
        named = [*zip(self.params.fields, self.values(document), strict=True)]
        out = [to_number(value) for field, value in named if field.kind == NUMBER]
        for field, value in named:
            if field.kind != VECTOR:
                continue
            vector = to_vector(value)
            if not vector and width is not None:
                vector = [math.nan] * (width - len(out))
            out += vector
            if not vector or (width is not None and len(out) != width):
                problem = f"field {field.name!r} has {len(vector)} numbers"
                raise vector_error(f"{problem}; the rows of the training have others", value)
        return out

    def dense_columns(self, width: int) -> list[tuple[str, float]]:
        """Return the terms and weights of the values of `dense_values`."""
        fields = self.params.fields
        out = [(field.prefix, field.weight) for field in fields if field.kind == NUMBER]
        for field in fields:
            if field.kind == VECTOR:
                size = width - len(out)
                out += [(f"{field.prefix}{i:05d}", field.weight) for i in range(size)]
        return out

    def words(self, part: Part) -> tuple[list[str], list[str], list[str]]:
        """Return the stems of a part, the words as written, and its whole identifiers."""
        words, wholes = self.cut(part.text)
        stems = part.stems
        return (words if stems is None else [stems[word] for word in words]), words, wholes

    def terms(self, document: str) -> list[str]:
        """Return the terms of a document with repeats, without its numbers."""
        terms = self.categories(document)
        for part in self.parts(document):
            stems, _, wholes = self.words(part)
            terms += self._runs(stems, wholes, part.number) + self._characters(stems)
        return terms

    def written(self, document: str) -> dict[str, str]:
        """Return the terms of a document with the words that each stands for.

        These are written as in the document where the term occurs first.
        """
        out: dict[str, str] = {}
        for part in self.parts(document):
            stems, words, wholes = self.words(part)
            terms = self._runs(stems, wholes, part.number)
            for term, run in zip(terms, self._runs(words, wholes, part.number), strict=True):
                out.setdefault(term, run)
        return out

    def _runs(self, words: list[str], wholes: list[str], number: int) -> list[str]:
        """Return the runs of words and the identifiers of a field, with those of its own."""
        field = self.fields[number]
        runs = ngrams(words, field.ngram_max or self.params.ngram_max)
        own = [field.prefix + run for run in runs] if field.weight else []
        return [*runs, *wholes, *own]

    def _characters(self, words: list[str]) -> list[str]:
        """Return the terms of runs of characters."""
        runs = self.params.char_ngrams
        return [] if runs is None else [term for word in words for term in char_ngrams(word, *runs)]


def char_ngrams(word: str, low: int, high: int) -> Iterator[str]:
    """Yield the terms of runs of low to high characters of a word between two blanks."""
    padded = f" {word} "
    for start in range(len(padded)):
        for length in range(low, min(high, len(padded) - start) + 1):
            yield SEPARATOR + padded[start : start + length]
