"""Texts to tf-idf rows by one fitted vocabulary: Python cuts what only a regular expression can, compiled code does the rest.

A text in ASCII under the default token pattern never becomes Python objects: it is cut, folded, looked up, counted and weighed in
one call without the interpreter lock. Any other is normalised and cut by `re` first; its terms are then looked up in the same call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from xcray.arrays import CSR, Float64, csr, frozen
from xcray.data.text.tokenizer import TextParams, cutter
from xcray.data.text.vocabulary import table_of, words_of
from xcray.errors import DataError
from xcray.kernels.text import END, OUTSIDE, Rules, Weighing, rows_of_texts, unnamed
from xcray.kernels.vocabulary import Vocabulary

PLAIN = (r"\b\w\w+\b", r"(?u)\b\w\w+\b")  # token patterns that compiled code knows
TEXTS, LETTERS = (
    1024,
    1 << 20,
)  # of one compiled call, which takes milliseconds, so that a batch can be interrupted
COUNTS = (
    256  # of one term in one text: enough for most; a longer table is made when a text needs one
)
AFTER_WORD, AFTER_WORDS = (
    chr(0xDC00 + byte) for byte in (END, OUTSIDE)
)  # become these bytes by "surrogateescape"


class Vectoriser:
    """A text's tf-idf row by fixed parameters, vocabulary and idf. Safe for any number of threads at once."""

    def __init__(self, params: TextParams, vocabulary: Vocabulary, idf: Float64) -> None:
        """vocabulary: of D terms; idf: (D,) float64."""
        self._vocabulary = unnamed(vocabulary)
        self._cut = cutter(params)
        self._compiled = params.token_pattern in PLAIN
        aliases = dict(params.aliases)
        rules = Rules(
            params.lowercase,
            params.split_identifiers,
            params.fold_plurals,
            params.ngram_max,
            table_of(pa.array(aliases.keys(), pa.large_string())),
            words_of(pa.array(aliases.values(), pa.large_string())),
        )
        self._rules = unnamed(rules)
        self._weighing = Weighing(idf, _logarithms(COUNTS if params.sublinear_tf else 0))

    def rows(self, texts: Iterable[str]) -> CSR:
        """(n x D) float32, one row a text. Raises DataError when one is not a string."""
        parts = [self._compute(*batch) for batch in self._batches(texts)]
        if len(parts) != 1:
            return csr(*_stacked(parts), len(self._weighing.idf))
        for array in parts[0]:
            array.flags.writeable = (
                False  # what `csr` does, which for one short text is half of all work
            )
        return CSR(*parts[0], len(self._weighing.idf))

    def _batches(self, texts: Iterable[str]) -> Iterator[tuple[list[bytes], bytearray]]:
        """Pieces of text as `rows_of_texts` takes them, with the marks of those cut here."""
        pieces: list[bytes] = []
        cut, size = bytearray(), 0
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise not_text(text, i)
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
            if size >= LETTERS or len(pieces) == TEXTS:
                yield pieces, cut
                pieces, cut, size = [], bytearray(), 0
        if pieces:
            yield pieces, cut

    def _compute(self, pieces: list[bytes], cut: bytearray) -> tuple[Any, Any, Any]:
        """indptr, indices and values of one batch."""
        text = np.frombuffer(pieces[0] if len(pieces) == 1 else b"".join(pieces), np.uint8)
        starts = np.array([*accumulate(map(len, pieces), initial=0)], np.int64)
        starts.flags.writeable = False  # as all arrays that kernels take
        marks, weighing = np.frombuffer(bytes(cut), np.uint8), self._weighing
        indptr, indices, values, most = rows_of_texts(
            text, starts, marks, self._vocabulary, self._rules, (*weighing,)
        )
        if 0 < len(weighing.tf) < most:
            self._weighing = Weighing(weighing.idf, _logarithms(2 * most))
            return self._compute(pieces, cut)
        return indptr, indices, values


def not_text(found: Any, i: int) -> DataError:
    """The error for text number i that is no string."""
    return DataError(
        "TEXT_NOT_STRING",
        f"text {i} is a {type(found).__name__} where a string was expected",
        value=repr(found),
    )


def _logarithms(n: int) -> Float64:
    """What counts 1 to n weigh when they are damped: 1 + ln(count)."""
    return frozen(np.log(np.arange(1, n + 1, dtype=np.float64)) + 1.0, np.float64)


def _stacked(parts: list[tuple[Any, Any, Any]]) -> tuple[Any, Any, Any]:
    """Rows of several batches below each other."""
    lengths = np.concatenate([[0], *(np.diff(indptr) for indptr, _, _ in parts)])
    nothing: list[Any] = [np.empty(0, np.int32)]
    indices, values = (
        np.concatenate([part[which] for part in parts] or nothing) for which in (1, 2)
    )
    return np.cumsum(lengths), indices, values
