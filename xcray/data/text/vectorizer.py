"""Vectorizer: texts to tf-idf rows with a fitted vocabulary.

An ASCII text under the default token pattern is never split into Python objects. One compiled call
without the interpreter lock tokenizes, normalises, looks up, counts and weights it. Any other text
is normalised and split by `re` first. Its terms are then looked up in the same call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from xcray.arrays import CSR, Float64, csr, frozen
from xcray.data.text.tokenizer import TextParams, make_cutter
from xcray.data.text.vocabulary import build_vocabulary, string_bytes
from xcray.errors import DataError
from xcray.kernels.text import (
    WORD_END,
    WORDS_END,
    TermWeights,
    TextRules,
    as_plain_tuple,
    vectorize_texts,
)
from xcray.kernels.vocabulary import Vocabulary

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


class Vectorizer:
    """Vectorizer with fixed parameters, vocabulary and idf. It is thread-safe."""

    def __init__(self, params: TextParams, vocabulary: Vocabulary, idf: Float64) -> None:
        """Initialise. vocabulary: of D terms; idf: (D,) float64."""
        self._vocabulary = as_plain_tuple(vocabulary)
        self._cut = make_cutter(params)
        self._compiled = params.token_pattern in COMPILED_PATTERNS
        aliases = dict(params.aliases)
        rules = TextRules(
            params.lowercase,
            params.split_identifiers,
            params.fold_plurals,
            params.ngram_max,
            build_vocabulary(pa.array(aliases.keys(), pa.large_string())),
            string_bytes(pa.array(aliases.values(), pa.large_string())),
        )
        self._rules = as_plain_tuple(rules)
        self._weighing = TermWeights(
            idf, _damped_counts(TABULATED_COUNTS if params.sublinear_tf else 0)
        )

    def rows(self, texts: Iterable[str]) -> CSR:
        """Return (n x D) float32, one row per text. Raises DataError if a text is not a string."""
        parts = [self._compute(*batch) for batch in self._batches(texts)]
        if len(parts) != 1:
            return csr(*_stack_rows(parts), len(self._weighing.idf))
        for array in parts[0]:
            # same effect as `csr`, which would take half the time of one short text
            array.flags.writeable = False
        return CSR(*parts[0], len(self._weighing.idf))

    def _batches(self, texts: Iterable[str]) -> Iterator[tuple[list[bytes], bytearray]]:
        """Yield batches of texts for `rows_of_texts`.

        Each has flags for the texts that are split already.
        """
        pieces: list[bytes] = []
        cut, size = bytearray(), 0
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise not_a_string_error(text, i)
            if self._compiled and text.isascii():
                piece = text.encode()
                cut.append(0)
            else:
                words, outside = self._cut(text)
                joined = AFTER_WORD.join((*words, AFTER_WORDS + AFTER_WORD.join((*outside, ""))))
                piece = joined.encode("utf-8", "surrogateescape")
                cut.append(1)
            pieces.append(piece)
            size += len(piece)
            if size >= BATCH_BYTES or len(pieces) == BATCH_TEXTS:
                yield pieces, cut
                pieces, cut, size = [], bytearray(), 0
        if pieces:
            yield pieces, cut

    def _compute(self, pieces: list[bytes], cut: bytearray) -> tuple[Any, Any, Any]:
        """Return indptr, indices and values of one batch."""
        text = np.frombuffer(pieces[0] if len(pieces) == 1 else b"".join(pieces), np.uint8)
        starts = np.array([*accumulate(map(len, pieces), initial=0)], np.int64)
        starts.flags.writeable = False  # kernels expect read-only arrays
        marks, weighing = np.frombuffer(bytes(cut), np.uint8), self._weighing
        indptr, indices, values, most = vectorize_texts(
            text, starts, marks, self._vocabulary, self._rules, (*weighing,)
        )
        if 0 < len(weighing.tf) < most:
            self._weighing = TermWeights(weighing.idf, _damped_counts(2 * most))
            return self._compute(pieces, cut)
        return indptr, indices, values


def not_a_string_error(value: Any, i: int) -> DataError:
    """Return the error for text number i, which is not a string."""
    return DataError(
        "TEXT_NOT_STRING",
        f"text {i} is a {type(value).__name__} where a string was expected",
        value=repr(value),
    )


def _damped_counts(n: int) -> Float64:
    """Return the sublinear weights of counts 1 to n: 1 + ln(count)."""
    return frozen(np.log(np.arange(1, n + 1, dtype=np.float64)) + 1.0, np.float64)


def _stack_rows(parts: list[tuple[Any, Any, Any]]) -> tuple[Any, Any, Any]:
    """Return the rows of several batches, stacked."""
    lengths = np.concatenate([[0], *(np.diff(indptr) for indptr, _, _ in parts)])
    nothing: list[Any] = [np.empty(0, np.int32)]
    indices, values = (
        np.concatenate([part[which] for part in parts] or nothing) for which in (1, 2)
    )
    return np.cumsum(lengths), indices, values
