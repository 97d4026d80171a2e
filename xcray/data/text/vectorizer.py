"""Vectorizer: texts to tf-idf rows with a fitted vocabulary.

A text under the default token pattern is not split into Python objects, unless it has words whose
stems are not known yet, or characters of four bytes. One compiled call without the interpreter lock
tokenizes, looks up, counts and weights it. If it is not ASCII, it is normalised first. Any other
text is normalised and split by `re`; its terms are then looked up in the same call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from xcray.arrays import CSR, Float64, Int64, csr, frozen
from xcray.data.text.analyzer import Analyzer, Part
from xcray.data.text.fields import CATEGORY, TEXT
from xcray.data.text.stems import KNOWN_STEMS
from xcray.data.text.tokenizer import normalise
from xcray.data.text.vocabulary import build_vocabulary, string_bytes
from xcray.errors import DataError
from xcray.kernels.text import (
    CONTINUED,
    FIELD_SHIFT,
    LANGUAGE_SHIFT,
    MISSED,
    TOKENIZED,
    WORD_END,
    WORDS_END,
    TermWeights,
    TextRules,
    as_plain_tuple,
    read_texts,
    vectorize_texts,
)
from xcray.kernels.vocabulary import Vocabulary, Words

# token patterns that compiled code implements
COMPILED_PATTERNS = (r"\b\w\w+\b", r"(?u)\b\w\w+\b")
# limits of one compiled call, which takes milliseconds, so that a batch can be interrupted
BATCH_TEXTS, BATCH_BYTES = (
    1024,
    1 << 20,
)
# counts per term and text in the table; a text with a larger count extends it
TABULATED_COUNTS = 256
# "surrogateescape" encodes these characters as the bytes END and OUTSIDE
AFTER_WORD, AFTER_WORDS = (chr(0xDC00 + byte) for byte in (WORD_END, WORDS_END))


class AnalysedTexts(NamedTuple):
    """Texts as features and as words.

    X: (n, D). words: writable uint8, the words of all texts in order, analysed as for terms,
    without n-grams, each followed by `kernels.text.SEPARATOR`; an empty word separates the fields
    of a document. starts: (n + 1,) int64, where the words of each text begin.
    """

    X: CSR
    words: Any
    starts: Int64


class TextBatch:
    """Texts of one compiled call: fields as read (None for categories), their bytes and forms."""

    def __init__(self) -> None:
        self.parts: list[Part | None] = []
        self.pieces: list[bytes] = []
        self.forms: list[int] = []

    def as_arrays(self) -> tuple[Any, Int64, Any]:
        """Return all bytes, the start of each text, and the forms."""
        pieces = self.pieces
        text = np.frombuffer(pieces[0] if len(pieces) == 1 else b"".join(pieces), np.uint8)
        starts = np.array([*accumulate(map(len, pieces), initial=0)], np.int64)
        starts.flags.writeable = False  # kernels expect read-only arrays
        return text, starts, np.array(self.forms, np.uint16)


class Vectorizer:
    """Vectorizer with fixed parameters, vocabulary and idf. It is thread-safe."""

    def __init__(self, analyzer: Analyzer, vocabulary: Vocabulary, weights: Float64) -> None:
        """Initialise. vocabulary: of D terms; weights: (D,) of the terms, idf times field."""
        params, self._analyzer = analyzer.params, analyzer
        self._vocabulary = as_plain_tuple(vocabulary)
        self._compiled = params.token_pattern in COMPILED_PATTERNS
        # the rules for identifiers and plurals are compiled for ASCII only
        self._compiles_unicode = not (params.split_identifiers or params.fold_plurals)
        self._is_plain = not params.fields and not analyzer.detects_language
        self._has_categories = any(field.kind == CATEGORY for field in params.fields)
        aliases, fields = dict(params.aliases), analyzer.fields
        low, high = params.char_ngrams or (0, 0)
        prefixes = [field.prefix if field.kind == TEXT and field.weight else "" for field in fields]
        lengths = [field.ngram_max or params.ngram_max for field in fields]
        rules = TextRules(
            word_characters(),
            params.lowercase,
            params.split_identifiers,
            params.fold_plurals,
            build_vocabulary(pa.array(aliases.keys(), pa.large_string())),
            string_bytes(pa.array(aliases.values(), pa.large_string())),
            _words(prefixes),
            frozen(lengths, np.int64),
            low,
            high,
        )
        self._rules = as_plain_tuple(rules)
        damped = _damped_counts(TABULATED_COUNTS if params.sublinear_tf else 0)
        self._weighing = TermWeights(weights, damped)

    def rows(self, texts: Iterable[str]) -> CSR:
        """Return (n x D) float32, one row per text. Raises DataError if a text is not a string."""
        return self._stack([self._compute(batch) for batch in self._batches(texts)])

    def read(self, texts: Iterable[str]) -> AnalysedTexts:
        """Return rows and words of texts. Raises as `rows`."""
        parts = [self._compute(batch, read_texts) for batch in self._batches(texts)]
        X = self._stack([part[:3] for part in parts])
        if len(parts) == 1:  # as in most requests
            words, ends = parts[0][3:]
        else:
            words = np.concatenate([np.empty(0, np.uint8), *(part[3] for part in parts)])
            sizes = accumulate((len(part[3]) for part in parts), initial=0)
            shifted = (part[4] + size for part, size in zip(parts, sizes, strict=False))
            ends = np.concatenate([np.empty(0, np.int64), *shifted])
        return AnalysedTexts(X, words, frozen(np.concatenate(([0], ends)), np.int64))

    def _stack(self, parts: list[list[Any]]) -> CSR:
        """Return the rows of all batches."""
        if len(parts) != 1:
            return csr(*_stack_rows(parts), len(self._weighing.idf))
        indptr, indices, values = parts[0]
        for array in (indptr, indices, values):
            # same effect as `csr`, which would take half the time of one short text
            array.flags.writeable = False
        return CSR(indptr, indices, values, len(self._weighing.idf))

    def _batches(self, texts: Iterable[str]) -> Iterator[TextBatch]:
        """Yield batches of texts for compiled code."""
        batch, size = TextBatch(), 0
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise not_a_string_error(text, i)
            if self._is_plain:
                self._add(batch, Part(0, text, self._analyzer.stems))
            else:
                self._add_fields(batch, text)
            size += len(text)
            if size >= BATCH_BYTES or len(batch.forms) >= BATCH_TEXTS:
                yield batch
                batch, size = TextBatch(), 0
        if batch.forms:
            yield batch

    def _add(self, batch: TextBatch, part: Part) -> None:
        """Append the text of a field, without an object per word if compiled code can read it."""
        number, text, stems = part
        form = number << FIELD_SHIFT
        plain = self._compiled and (text.isascii() or self._compiles_unicode)
        if plain and stems is not None:
            form |= stems.number << LANGUAGE_SHIFT
        if plain and not text.isascii():
            text = normalise(text)
            text = text.lower() if self._analyzer.params.lowercase else text
        batch.parts.append(part)
        batch.pieces.append(text.encode() if plain else self._tokenized(part))
        batch.forms.append(form if plain else form | TOKENIZED)

    def _tokenized(self, part: Part) -> bytes:
        """Return the bytes of a text as words."""
        words, _, outside = self._analyzer.words(part)
        return _join_terms(words, outside)

    def _add_fields(self, batch: TextBatch, text: str) -> None:
        """Append the fields of a document; last its categories, as a text without words."""
        first = len(batch.forms)
        for part in self._analyzer.parts(text):
            self._add(batch, part)
        if self._has_categories:
            batch.pieces.append(_join_terms([], self._analyzer.categories(text)))
            batch.parts.append(None)
            batch.forms.append(TOKENIZED)
        for i in range(first, len(batch.forms) - 1):
            batch.forms[i] |= CONTINUED

    def _tokenize_missed(self, batch: TextBatch, forms: Any) -> None:
        """Split the texts in Python that compiled code could not read."""
        missed = np.flatnonzero(forms & MISSED).tolist()
        for i in missed:
            part = batch.parts[i]
            assert part is not None
            batch.pieces[i] = self._tokenized(part)
            batch.forms[i] |= TOKENIZED
        KNOWN_STEMS.note_missed(len(missed))

    def _compute(self, batch: TextBatch, kernel: Any = vectorize_texts) -> list[Any]:
        """Return the arrays of one batch: indptr, indices and values; of `read_texts` also words.

        These are followed by the end of each row.
        """
        (text, starts, forms), weighing = batch.as_arrays(), self._weighing
        arrays: list[Any]
        *arrays, most = kernel(
            text, starts, forms, self._vocabulary, self._rules, KNOWN_STEMS.table, (*weighing,)
        )
        if most < 0:
            self._tokenize_missed(batch, forms)
            return self._compute(batch, kernel)
        if 0 < len(weighing.tf) < most:
            self._weighing = TermWeights(weighing.idf, _damped_counts(2 * most))
            return self._compute(batch, kernel)
        return arrays


def not_a_string_error(value: Any, i: int) -> DataError:
    """Return the error for text number i, which is not a string."""
    return DataError(
        "TEXT_NOT_STRING",
        f"text {i} is a {type(value).__name__} where a string was expected",
        value=repr(value),
    )


@cache
def word_characters() -> Any:
    """Return which characters of up to three bytes are letters or digits: (65,536,) uint8."""
    return frozen([chr(i).isalnum() for i in range(0x10000)], np.uint8)


def _words(strings: list[str]) -> Words:
    """Return strings as bytes in memory of NumPy."""
    encoded = [each.encode() for each in strings]
    letters = np.frombuffer(b"".join(encoded), np.uint8)
    return Words(frozen([0, *accumulate(map(len, encoded))], np.int64), letters)


def _join_terms(words: list[str], outside: list[str]) -> bytes:
    """Return a tokenized text: words, and terms that are not part of n-grams."""
    joined = AFTER_WORD.join((*words, AFTER_WORDS + AFTER_WORD.join((*outside, ""))))
    return joined.encode("utf-8", "surrogateescape")


def _damped_counts(n: int) -> Float64:
    """Return the sublinear weights of counts 1 to n: 1 + ln(count)."""
    return frozen(np.log(np.arange(1, n + 1, dtype=np.float64)) + 1.0, np.float64)


def _stack_rows(parts: list[list[Any]]) -> tuple[Any, Any, Any]:
    """Return the rows of several batches, stacked."""
    lengths = np.concatenate([[0], *(np.diff(indptr) for indptr, _, _ in parts)])
    nothing: list[Any] = [np.empty(0, np.int32)]
    indices, values = (
        np.concatenate([part[which] for part in parts] or nothing) for which in (1, 2)
    )
    return np.cumsum(lengths), indices, values
