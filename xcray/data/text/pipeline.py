"""Text to tf-idf features, fitted in one pass and stored with the data set and the model.

A text is normalised (NFKC, without zero-width characters and lone surrogates), split into terms,
counted, weighted by tf * idf with idf = ln((1 + n) / (1 + df)) + 1, and scaled to length 1. This is
what scikit-learn's TfidfVectorizer computes, without the dependency. The vocabulary is searched in
its memory-mapped file, so serving processes share one copy.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from xcray.arrays import CSR, Float64, Int64, csr, frozen
from xcray.data.text.tokenizer import TextParams, make_tokenizer
from xcray.data.text.vectorizer import Vectorizer, not_a_string_error
from xcray.data.text.vocabulary import build_vocabulary, read_lookup, string_bytes, write_lookup
from xcray.errors import Corrupt, DataError, ParameterError
from xcray.kernels.vocabulary import Vocabulary
from xcray.storage.arrow import read_table, write_table
from xcray.storage.atomic import read_json, sha256_arrays, write_json

__all__ = ["TextParams", "TextPipeline", "count_empty_rows", "empty_rows"]

SCHEMA_VERSION = 1
COLUMNS = {"term": pa.large_string(), "df": pa.int64(), "idf": pa.float64()}  # of vocabulary.arrow


class TextPipeline:
    """Fitted tf-idf pipeline, immutable.

    Training and serving compute equal rows for equal texts.
    """

    def __init__(self, params: TextParams, terms: Any, df: Any, n_texts: int) -> None:
        """Initialise from fitted state.

        terms: D names (a sequence or an Arrow array), distinct and sorted; df: (D,) number
        of texts per term; n_texts: number of fitted texts.
        """
        self.params = params
        self.n_texts = int(n_texts)
        self.df: Int64 = frozen(df, np.int64)
        self.terms: pa.LargeStringArray = (
            terms if isinstance(terms, pa.Array) else pa.array(terms, pa.large_string())
        )

    @cached_property
    def idf(self) -> Float64:
        """(D,) inverse document frequencies."""
        return frozen(np.log((1.0 + self.n_texts) / (1.0 + self.df)) + 1.0, np.float64)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Lookup table of the terms; memory-mapped if the directory has it."""
        return build_vocabulary(self.terms)

    @cached_property
    def _vectorizer(self) -> Vectorizer:
        """The vectorizer of this pipeline."""
        return Vectorizer(self.params, self.vocabulary, self.idf)

    @property
    def n_features(self) -> int:
        """Number of terms, D."""
        return len(self.df)

    @classmethod
    def fit(cls, texts: Iterable[str], params: TextParams | None = None) -> TextPipeline:
        """Fit terms and their document frequencies in one pass.

        Memory grows with the vocabulary, not with the texts. Raises ParameterError if no
        term is left, DataError if a text is not a string.
        """
        params = params or TextParams()
        counts = _TermCounts(make_tokenizer(params))
        for _ in counts.rows(texts):
            pass  # only the counts are needed
        return counts.select(params)[0]

    @classmethod
    def fit_transform(
        cls, texts: Iterable[str], params: TextParams | None = None
    ) -> tuple[TextPipeline, CSR]:
        """Return the fitted pipeline and its rows of the same texts.

        Each text is tokenized once. Raises errors as `fit`.
        """
        params = params or TextParams()
        counts = _TermCounts(make_tokenizer(params))
        indptr, ids, values = array("q", [0]), array("i"), array("i")
        for row in counts.rows(texts):
            ids.extend(row.keys())
            values.extend(row.values())
            indptr.append(len(ids))
        pipeline, new_id = counts.select(params)
        return pipeline, pipeline._to_tfidf(*_renumber_terms(indptr, ids, values, new_id))

    def transform(self, texts: Sequence[str]) -> CSR:
        """Return (n x D) float32 rows of length 1, columns ascending.

        A text without known terms gives an empty row (`count_empty_rows`). Raises DataError
        if `texts` is one string or holds a value that is not a string.
        """
        if isinstance(texts, str):
            raise DataError(
                "NOT_A_LIST",
                "a list of texts was expected, this is one text; wrap it in [ ]",
                value=texts,
            )
        return self.transform_stream(texts)

    def transform_stream(self, texts: Iterable[str]) -> CSR:
        """Transform texts from an iterator without keeping them."""
        return self._vectorizer.rows(texts)

    def _to_tfidf(self, indptr: Any, ids: Any, counts: Any) -> CSR:
        """Return tf-idf rows of length 1 for counts, computed in float64."""
        weights = counts.astype(np.float64)
        if self.params.sublinear_tf:
            weights = np.log(weights) + 1.0
        weights *= self.idf[ids]
        lengths = np.diff(indptr)
        row_of = np.repeat(np.arange(len(lengths)), lengths)
        weights /= np.sqrt(np.bincount(row_of, weights * weights, minlength=len(lengths)))[row_of]
        return csr(indptr, ids, weights, self.n_features)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over parameters, terms and document frequencies.

        Equal fingerprints give equal rows.
        """
        offsets, letters = string_bytes(self.terms)
        lengths = pc.utf8_length(self.terms).to_numpy()
        text = letters[offsets[0] : offsets[-1]]
        return sha256_arrays(
            {
                "params": _params_json(self.params),
                "terms": text,
                "lengths": lengths,
                "df": self.df,
                "n": str(self.n_texts),
            }
        )

    def save(self, directory: Path) -> None:
        """Write text.json, vocabulary.arrow (term, df, idf) and lookup.arrow.

        The directory is created if it is missing.
        """
        directory.mkdir(parents=True, exist_ok=True)
        write_table(
            directory / "vocabulary.arrow",
            pa.table({"term": self.terms, "df": self.df, "idf": self.idf}),
        )
        write_lookup(directory, self.vocabulary)
        head: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "n_texts": self.n_texts,
            "n_features": self.n_features,
        }
        head |= {"params": asdict(self.params), "fingerprint": self.fingerprint}
        write_json(directory / "text.json", {**head, "seal": _header_seal(head)})

    @classmethod
    def load(cls, directory: Path, verify: bool = True) -> TextPipeline:
        """Map the files that `save` wrote, without copying.

        verify: compare terms and frequencies with their fingerprint and look up every term
        (one pass over all). Without it, the seal of text.json, types and sizes are still
        checked.
        Raises NotFound, or Corrupt if the files contradict each other or their fingerprint.
        """
        head = read_json(directory / "text.json")
        table = read_table(directory / "vocabulary.arrow")
        try:
            if head["schema_version"] != SCHEMA_VERSION:
                raise Corrupt(
                    f"text.json has schema version {head['schema_version']}, "
                    f"this xcray reads {SCHEMA_VERSION}"
                )
            terms, df, idf = (_column(table, name, kind) for name, kind in COLUMNS.items())
            out = cls(TextParams.from_dict(head["params"]), terms, df.to_numpy(), head["n_texts"])
            seal, fingerprint = head.pop("seal"), head["fingerprint"]
            n_features = head["n_features"]
        except (KeyError, TypeError, AttributeError, ParameterError) as error:
            raise Corrupt(
                f"the text pipeline in {directory.name} is not readable: {error}"
            ) from error
        idf, vocabulary = frozen(idf.to_numpy(), np.float64), read_lookup(directory, terms, verify)
        intact = len(terms) == n_features and seal == _header_seal(head)
        if verify:
            intact = (
                intact
                and out.fingerprint == fingerprint
                and np.allclose(idf, out.idf, rtol=1e-12, atol=0)
            )
        if not intact:
            raise Corrupt(
                f"the text pipeline in {directory.name} was changed after it was written "
                "(its fingerprint differs)"
            )
        vars(out).update({"idf": idf, "fingerprint": fingerprint, "vocabulary": vocabulary})
        return out


def count_empty_rows(X: CSR) -> int:
    """Return the number of rows without a feature: texts without known terms."""
    return int(np.count_nonzero(empty_rows(X)))


def empty_rows(X: CSR) -> NDArray[np.bool_]:
    """Return (n,) bool: which rows have no feature."""
    empty: NDArray[np.bool_] = X.indptr[1:] == X.indptr[:-1]
    return empty


class _TermCounts:
    """Terms in order of occurrence, with their document and term frequencies."""

    def __init__(self, split: Callable[[str], list[str]]) -> None:
        self.split = split
        self.ids: dict[str, int] = {}
        self.df = array("q")
        self.tf = array("q")
        self.n_texts = 0

    def rows(self, texts: Iterable[str]) -> Iterator[dict[int, int]]:
        """Count each text and yield {term number: count}."""
        ids, df, tf = self.ids, self.df, self.tf
        for text in texts:
            row = {}
            for term, times in Counter(self.split(_require_string(text, self.n_texts))).items():
                j = ids.setdefault(term, len(ids))
                if j == len(df):
                    df.append(0)
                    tf.append(0)
                df[j] += 1
                tf[j] += times
                row[j] = times
            self.n_texts += 1
            yield row

    def select(self, params: TextParams) -> tuple[TextPipeline, Int64]:
        """Return the pipeline over the selected terms, and the new number of each counted term.

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
        new_id = np.full(len(names), -1, np.int64)
        new_id[selected] = np.arange(len(selected))
        return TextPipeline(
            params, [names[j] for j in selected], df[selected], self.n_texts
        ), new_id


def _renumber_terms(
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


def _column(table: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    """Return a column as one mapped array. Raises Corrupt for another type or nulls."""
    column = table.column(name)
    if column.type != kind or column.null_count or column.num_chunks > 1:
        raise Corrupt(
            f"vocabulary.arrow holds {name!r} as {column.type}, or with nulls; {kind} is expected"
        )
    return column.chunk(0) if column.num_chunks else pa.array([], kind)


def _header_seal(head: dict[str, Any]) -> str:
    """Return SHA-256 over the content of text.json."""
    return hashlib.sha256(json.dumps(head, sort_keys=True).encode()).hexdigest()


def _params_json(params: TextParams) -> str:
    """Return parameters as JSON with sorted names."""
    return json.dumps(asdict(params), sort_keys=True)
