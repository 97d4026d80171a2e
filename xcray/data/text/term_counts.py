"""Counts of terms in one pass over texts, and the choice of those that stay."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from xcray.arrays import Int64
from xcray.data.text.analyzer import Analyzer
from xcray.data.text.fields import MAX_NUMBER, NUMBER
from xcray.data.text.tokenizer import TextParams
from xcray.data.text.vectorizer import not_a_string_error
from xcray.errors import ParameterError


class FittedTerms(NamedTuple):
    """Selected terms: their names in order, document frequencies; texts; scales of numbers."""

    terms: list[str]
    df: Int64
    n_texts: int
    numbers: list[tuple[float, float]]


class TermCounts:
    """Terms in order of occurrence, with their document and term frequencies."""

    def __init__(self, analyzer: Analyzer) -> None:
        self.analyzer = analyzer
        self.ids: dict[str, int] = {}
        self.df = array("q")
        self.tf = array("q")
        self.n_texts = 0
        self.numbers = array("d")  # and vectors, of all texts, text by text
        self.width: int | None = None  # of those of a text

    def rows(self, texts: Iterable[str]) -> Iterator[dict[int, int]]:
        """Count each text and yield {term number: count}."""
        ids, df, tf, split = self.ids, self.df, self.tf, self.analyzer.terms
        for text in texts:
            row = {}
            for term, times in Counter(split(_require_string(text, self.n_texts))).items():
                j = ids.setdefault(term, len(ids))
                if j == len(df):
                    df.append(0)
                    tf.append(0)
                df[j] += 1
                tf[j] += times
                row[j] = times
            if self.analyzer.is_dense:
                values = self.analyzer.dense_values(text, self.width)
                self.width = len(values)
                self.numbers.extend(values)
            self.n_texts += 1
            yield row

    def select(self, params: TextParams) -> tuple[FittedTerms, Int64]:
        """Return the selected terms, and the new number of each counted term.

        The new number of a dropped term is -1.
        """
        df, tf = (np.array(counts, np.int64) for counts in (self.df, self.tf))
        names = list(self.ids)
        selected: Sequence[int] = np.flatnonzero(
            (df >= params.min_df) & (df <= params.max_df * self.n_texts)
        ).tolist()
        if params.max_features is not None and len(selected) > params.max_features:
            selected = sorted(selected, key=lambda j: (-tf[j], names[j]))[: params.max_features]
        selected = sorted(selected, key=names.__getitem__)
        if not names:
            raise ParameterError(
                f"no text of {self.n_texts} has a term: check the text column; a term is what "
                f"token_pattern ({params.token_pattern}) finds, by default a word of two letters "
                "or more"
            )
        if not selected:
            raise ParameterError(
                f"no term is left of {len(names)} in {self.n_texts} texts; "
                f"lower min_df ({params.min_df}) or raise max_df ({params.max_df})"
            )
        kept, counts, scales = [names[j] for j in selected], df[selected], self._scales()
        fields = [name for name, _ in self.analyzer.dense_columns(self.width or 0)]
        if fields:
            present = np.isfinite(np.array(self.numbers).reshape(-1, len(fields))).sum(0)
            order = np.argsort(np.array([*kept, *fields], object), kind="stable")
            kept = [[*kept, *fields][i] for i in order]
            counts = np.concatenate([counts, present])[order]
        place = {name: j for j, name in enumerate(kept)}
        new_id = np.full(len(names), -1, np.int64)
        new_id[selected] = [place[names[j]] for j in selected]
        return FittedTerms(kept, counts, self.n_texts, scales), new_id

    def _scales(self) -> list[tuple[float, float]]:
        """Return mean and standard deviation of each number (1 for a constant).

        Those of a vector are 0 and 1 / 3, so that its numbers stay what they are.
        """
        names = [field.name for field in self.analyzer.params.fields if field.kind == NUMBER]
        values = np.array(self.numbers).reshape(-1, self.width or 1)
        out = []
        for name, column in zip(names, values.T, strict=False):
            known = column[np.isfinite(column)]
            if not len(known):
                raise ParameterError(f"the number field {name!r} has no number in any row")
            out.append((float(known.mean()), float(known.std()) or 1.0))
        return out + [(0.0, 1.0 / MAX_NUMBER)] * ((self.width or 0) - len(out))


def renumber_terms(
    indptr: array[int], ids: array[int], values: array[int], new_id: Int64
) -> tuple[Any, Any, Any]:
    """Return rows with new term numbers, columns ascending, without dropped terms."""
    columns, counts = new_id[_int32(ids)], _int32(values)
    starts = np.array(indptr, np.int64)
    n_rows = len(starts) - 1
    row_of = np.repeat(np.arange(n_rows), starts[1:] - starts[:-1])
    keep = columns >= 0
    columns, counts, row_of = columns[keep], counts[keep], row_of[keep]
    order = np.lexsort((columns, row_of))
    starts = np.concatenate(([0], np.cumsum(np.bincount(row_of, minlength=n_rows))))
    return starts, columns[order].astype(np.int32), counts[order]


def _int32(values: array[int]) -> Any:
    """Return an array of C ints as int32; numpy refuses an empty buffer."""
    return np.frombuffer(values, np.int32) if len(values) else np.empty(0, np.int32)


def _require_string(text: Any, i: int) -> str:
    """Return the text. Raises DataError unless it is a string."""
    if not isinstance(text, str):
        raise not_a_string_error(text, i)
    return text
