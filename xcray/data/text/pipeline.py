"""Text to features: tf-idf, learnt in one pass over the texts and kept with the data set and the model.

A text is normalised (NFKC; zero-width characters and lone surrogates go), split into terms, counted, weighted
by tf * idf with idf = ln((1 + n) / (1 + df)) + 1, and scaled to length 1: what scikit-learn's TfidfVectorizer
computes, without needing it. The vocabulary is searched in its file, so serving processes share one copy.
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

from xcray.arrays import CSR, Float64, Int64, csr, frozen
from xcray.data.text.tokenizer import TextParams, tokenizer
from xcray.data.text.vectorizer import Vectoriser, not_text
from xcray.data.text.vocabulary import read_lookup, table_of, words_of, write_lookup
from xcray.errors import Corrupt, DataError, ParameterError
from xcray.kernels.vocabulary import Vocabulary
from xcray.storage.arrow import read_table, write_table
from xcray.storage.atomic import read_json, sha256_arrays, write_json

__all__ = ["TextParams", "TextPipeline", "empty_rows"]

SCHEMA_VERSION = 1
COLUMNS = {"term": pa.large_string(), "df": pa.int64(), "idf": pa.float64()}  # of vocabulary.arrow


class TextPipeline:
    """Fitted tf-idf: immutable; the same texts give the same rows, in training and in serving."""

    def __init__(self, params: TextParams, terms: Any, df: Any, n_texts: int) -> None:
        """terms: D names (a sequence, or Arrow's), each once, sorted; df: (D,) texts each is in; n_texts: texts seen by `fit`."""
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
        """The table in which terms are found, mapped when a directory held it."""
        return table_of(self.terms)

    @cached_property
    def _vectoriser(self) -> Vectoriser:
        """What makes rows."""
        return Vectoriser(self.params, self.vocabulary, self.idf)

    @property
    def n_features(self) -> int:
        """Number of terms, D."""
        return len(self.df)

    @classmethod
    def fit(cls, texts: Iterable[str], params: TextParams | None = None) -> TextPipeline:
        """Learn terms and their document frequencies in one pass; memory grows with the vocabulary, not with the texts.

        Raises ParameterError when no term is left, DataError when a text is not a string.
        """
        params = params or TextParams()
        counts = _Counts(tokenizer(params))
        for _ in counts.rows(texts):
            pass  # the counting is the effect; rows are not kept
        return counts.select(params)[0]

    @classmethod
    def fit_transform(
        cls, texts: Iterable[str], params: TextParams | None = None
    ) -> tuple[TextPipeline, CSR]:
        """The fitted pipeline and its rows of the same texts, splitting each text once; errors as `fit`."""
        params = params or TextParams()
        counts = _Counts(tokenizer(params))
        indptr, ids, values = array("q", [0]), array("i"), array("i")
        for row in counts.rows(texts):
            ids.extend(row.keys())
            values.extend(row.values())
            indptr.append(len(ids))
        pipeline, new_id = counts.select(params)
        return pipeline, pipeline._weigh(*_renumbered(indptr, ids, values, new_id))

    def transform(self, texts: Sequence[str]) -> CSR:
        """(n x D) float32 rows of length 1, columns ascending; a text of unknown terms alone is an empty row (`empty_rows`).

        Raises DataError when `texts` is one string, or holds something that is not a string.
        """
        if isinstance(texts, str):
            raise DataError(
                "NOT_A_LIST",
                "a list of texts was expected, this is one text; wrap it in [ ]",
                value=texts,
            )
        return self.transform_stream(texts)

    def transform_stream(self, texts: Iterable[str]) -> CSR:
        """`transform` of texts that come one by one and are not kept."""
        return self._vectoriser.rows(texts)

    def _weigh(self, indptr: Any, ids: Any, counts: Any) -> CSR:
        """Counts to tf-idf rows of length 1, in float64 until the end."""
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
        """SHA-256 over parameters, terms and document frequencies: equal fingerprints give equal rows."""
        offsets, letters = words_of(self.terms)
        lengths = pc.utf8_length(self.terms).to_numpy()
        text = letters[offsets[0] : offsets[-1]]
        return sha256_arrays(
            {
                "params": _canonical(self.params),
                "terms": text,
                "lengths": lengths,
                "df": self.df,
                "n": str(self.n_texts),
            }
        )

    def save(self, directory: Path) -> None:
        """Write text.json, vocabulary.arrow (term, df, idf) and lookup.arrow into a directory, made when missing."""
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
        write_json(directory / "text.json", {**head, "seal": _seal(head)})

    @classmethod
    def load(cls, directory: Path, verify: bool = True) -> TextPipeline:
        """Map what `save` wrote; nothing is copied. Directories of older versions have no lookup table: it is built when needed.

        verify: compare terms and frequencies with their fingerprint and look every term up, a pass over all. Without it,
        text.json's own seal, types and sizes are still checked.
        Raises NotFound, or Corrupt when the files disagree with each other or with their fingerprint.
        """
        head = read_json(directory / "text.json")
        table = read_table(directory / "vocabulary.arrow")
        try:
            if head["schema_version"] != SCHEMA_VERSION:
                raise Corrupt(
                    f"text.json has schema version {head['schema_version']}, this xcray reads {SCHEMA_VERSION}"
                )
            terms, df, idf = (_column(table, name, kind) for name, kind in COLUMNS.items())
            out = cls(TextParams.from_dict(head["params"]), terms, df.to_numpy(), head["n_texts"])
            seal, fingerprint = head.pop("seal", None), head["fingerprint"]
            n_features = head["n_features"]
        except (KeyError, TypeError, AttributeError, ParameterError) as error:
            raise Corrupt(
                f"the text pipeline in {directory.name} is not readable: {error}"
            ) from error
        idf, found = frozen(idf.to_numpy(), np.float64), read_lookup(directory, terms, verify)
        same = len(terms) == n_features and (seal is None or seal == _seal(head))
        if verify or seal is None:
            same = (
                same
                and out.fingerprint == fingerprint
                and np.allclose(idf, out.idf, rtol=1e-12, atol=0)
            )
        if not same:
            raise Corrupt(
                f"the text pipeline in {directory.name} is not what was written (its fingerprint differs)"
            )
        vars(out).update(
            {"idf": idf, "fingerprint": fingerprint}
            | ({} if found is None else {"vocabulary": found})
        )
        return out


def empty_rows(X: CSR) -> int:
    """Rows without a single feature: texts of unknown terms alone."""
    return int(np.count_nonzero(np.diff(X.indptr) == 0))


class _Counts:
    """Terms met so far, numbered as they come, with the texts and the times each was found."""

    def __init__(self, split: Callable[[str], list[str]]) -> None:
        self.split = split
        self.ids: dict[str, int] = {}
        self.df = array("q")
        self.tf = array("q")
        self.n_texts = 0

    def rows(self, texts: Iterable[str]) -> Iterator[dict[int, int]]:
        """Count each text: term number -> times."""
        ids, df, tf = self.ids, self.df, self.tf
        for text in texts:
            row = {}
            for term, times in Counter(self.split(_checked(text, self.n_texts))).items():
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
        """The pipeline over the terms that the parameters keep, and the new number of each counted term (-1: left out)."""
        df, tf = (np.array(counts, np.int64) for counts in (self.df, self.tf))
        names = list(self.ids)
        kept: Sequence[int] = np.flatnonzero(
            (df >= params.min_df) & (df <= params.max_df * self.n_texts)
        ).tolist()
        if params.max_features is not None and len(kept) > params.max_features:
            kept = sorted(kept, key=lambda j: (-tf[j], names[j]))[: params.max_features]
        kept = sorted(kept, key=names.__getitem__)
        if not kept:
            raise ParameterError(
                f"no term is left of {len(names)} in {self.n_texts} texts; "
                f"lower min_df ({params.min_df}) or raise max_df ({params.max_df})"
            )
        new_id = np.full(len(names), -1, np.int64)
        new_id[kept] = np.arange(len(kept))
        return TextPipeline(params, [names[j] for j in kept], df[kept], self.n_texts), new_id


def _renumbered(
    indptr: array[int], ids: array[int], values: array[int], new_id: Int64
) -> tuple[Any, Any, Any]:
    """Rows with new term numbers, left-out terms dropped, columns ascending."""
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
    """An array of C ints as int32 (numpy refuses an empty buffer)."""
    return np.frombuffer(values, np.int32) if len(values) else np.empty(0, np.int32)


def _checked(text: Any, i: int) -> str:
    """The text itself, or DataError when it is none."""
    if not isinstance(text, str):
        raise not_text(text, i)
    return text


def _column(table: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    """A column as one mapped array. Raises Corrupt when it has another type, or holes."""
    column = table.column(name)
    if column.type != kind or column.null_count or column.num_chunks > 1:
        raise Corrupt(
            f"vocabulary.arrow holds {name!r} as {column.type}, or with holes; {kind} was written"
        )
    return column.chunk(0) if column.num_chunks else pa.array([], kind)


def _seal(head: dict[str, Any]) -> str:
    """SHA-256 over what text.json says."""
    return hashlib.sha256(json.dumps(head, sort_keys=True).encode()).hexdigest()


def _canonical(params: TextParams) -> str:
    """Parameters as JSON with sorted names."""
    return json.dumps(asdict(params), sort_keys=True)
