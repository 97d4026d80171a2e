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
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from xcray.arrays import CSR, Float64, Int64, csr, frozen
from xcray.data.text.analyzer import Analyzer, Part
from xcray.data.text.fields import MAX_NUMBER, readable
from xcray.data.text.stems import AUTO, detector_version, require_version, stemmer_version
from xcray.data.text.term_counts import TermCounts, renumber_terms
from xcray.data.text.tokenizer import TextParams
from xcray.data.text.vectorizer import AnalysedTexts, Vectorizer
from xcray.data.text.vocabulary import build_vocabulary, read_lookup, string_bytes, write_lookup
from xcray.errors import Corrupt, DataError, ParameterError
from xcray.kernels.text import SEPARATOR
from xcray.kernels.vocabulary import Vocabulary
from xcray.storage.arrow import read_column, read_table, write_table
from xcray.storage.atomic import read_json, sha256_arrays, write_json

__all__ = ["TextParams", "TextPipeline", "count_empty_rows", "empty_rows"]

SCHEMA_VERSION = 1
COLUMNS = {"term": pa.large_string(), "df": pa.int64(), "idf": pa.float64()}  # of vocabulary.arrow


class TextPipeline:
    """Fitted tf-idf pipeline, immutable.

    Training and serving compute equal rows for equal texts.
    """

    def __init__(
        self,
        params: TextParams,
        terms: Any,
        df: Any,
        n_texts: int,
        numbers: Sequence[Sequence[float]] = (),
        stemmer: str | None = None,
        detector: str | None = None,
    ) -> None:
        """Initialise from fitted state.

        terms: D names (a sequence or an Arrow array), distinct and sorted; df: (D,) number
        of texts per term; n_texts: number of fitted texts; numbers: mean and standard deviation of
        each number field; stemmer: version of PyStemmer, for stemmed words; detector: of py3langid,
        for detected languages.
        """
        self.params = params
        self.n_texts = int(n_texts)
        self.numbers = tuple((float(mean), float(deviation)) for mean, deviation in numbers)
        self.stemmer = stemmer
        self.detector = detector
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
    def analyzer(self) -> Analyzer:
        """The analyzer of this pipeline. Raises Refused for other versions of what it needs."""
        if self.stemmer is not None:
            require_version("PyStemmer", self.stemmer)
        if self.detector is not None:
            require_version("py3langid", self.detector)
        return Analyzer(self.params)

    @cached_property
    def weights(self) -> Float64:
        """(D,) weights of terms: idf, times the weight of the field for its own terms."""
        weighted = [field for field in self.params.fields if field.weight not in (0, 1)]
        if not weighted:
            return self.idf
        weights = self.idf.copy()
        for field in weighted:
            weights[self._own_terms(field.prefix)] *= field.weight
        return frozen(weights, np.float64)

    def _own_terms(self, prefix: str) -> Any:
        """Return (D,) bool: which terms begin with the prefix of a field."""
        return pc.starts_with(self.terms, prefix).to_numpy(zero_copy_only=False)

    @property
    def names(self) -> pa.LargeStringArray:
        """(D,) names of the features for readers, like title:word."""
        if not self.params.fields and self.params.char_ngrams is None:
            return self.terms
        return pa.array(map(readable, self.terms.to_pylist()), pa.large_string())

    @cached_property
    def _vectorizer(self) -> Vectorizer:
        """The vectorizer of this pipeline."""
        return Vectorizer(self.analyzer, self.vocabulary, self.weights)

    def written(self, text: str) -> dict[int, str]:
        """Return the words of a text by the number of their term, as written where it is first."""
        words = self.analyzer.written(text)
        found = pc.index_in(pa.array(words, pa.large_string()), self.terms).to_pylist()
        named = zip(found, words.values(), strict=True)
        return {j: readable(each) for j, each in named if j is not None}

    def count_words(self, texts: Sequence[str]) -> tuple[int, int]:
        """Return the number of words of texts, and of those that are no term."""
        found = (
            bytes(self._vectorizer.read(texts).words).decode(errors="replace").split(chr(SEPARATOR))
        )
        words = pa.array(filter(None, found), pa.large_string())
        unknown = pc.invert(pc.is_in(words, self.terms))
        return len(words), pc.sum(unknown).as_py() or 0

    def name_tokens(self, name: str, languages: Sequence[str] = ()) -> Iterator[list[str]]:
        """Yield the words of a name as they are analysed in texts of each of the languages.

        languages: values of the language field; without one, the language is that of all texts.
        """
        analyzer = self.analyzer
        for stems in analyzer.stems_by(languages):
            yield analyzer.words(Part(0, name, stems))[0]

    @property
    def n_features(self) -> int:
        """Number of terms, D."""
        return len(self.df)

    @classmethod
    def fit(cls, texts: Iterable[str], params: TextParams | None = None) -> TextPipeline:
        """Fit terms and their document frequencies. Raises errors as `fit_transform`."""
        return cls.fit_transform(texts, params)[0]

    @classmethod
    def fit_transform(
        cls, texts: Iterable[str], params: TextParams | None = None
    ) -> tuple[TextPipeline, CSR]:
        """Return the fitted pipeline and its rows of the same texts.

        Each text is tokenized once. Raises ParameterError if no term is left, DataError if a text
        is not a string.
        """
        params = params or TextParams()
        counts = TermCounts(Analyzer(params))
        indptr, ids, values = array("q", [0]), array("i"), array("i")
        for row in counts.rows(texts):
            ids.extend(row.keys())
            values.extend(row.values())
            indptr.append(len(ids))
        fitted, new_id = counts.select(params)
        stemmer = None if params.language is None else stemmer_version()
        detector = detector_version() if params.language == AUTO else None
        pipeline = cls(params, *fitted, stemmer, detector)
        X = pipeline._to_tfidf(*renumber_terms(indptr, ids, values, new_id))
        return pipeline, pipeline._with_numbers(X, counts.numbers)

    def transform(self, texts: Iterable[str]) -> CSR:
        """Return (n x D) float32 rows of length 1, columns ascending. Texts are not kept.

        A text without known terms gives an empty row (`count_empty_rows`). Raises DataError
        if `texts` is one string or holds a value that is not a string.
        """
        if isinstance(texts, str):
            raise DataError(
                "NOT_A_LIST",
                "a list of texts was expected, this is one text; wrap it in [ ]",
                value=texts,
            )
        if not self.numbers:
            return self._vectorizer.rows(texts)
        numbers = array("d")
        return self._with_numbers(
            self._vectorizer.rows(self._note_numbers(texts, numbers)), numbers
        )

    def read(self, texts: Iterable[str]) -> AnalysedTexts:
        """Return the rows of `transform` and the words of texts, which names are found in."""
        if not self.numbers:
            return self._vectorizer.read(texts)
        numbers = array("d")
        rows = self._vectorizer.read(self._note_numbers(texts, numbers))
        return rows._replace(X=self._with_numbers(rows.X, numbers))

    def _note_numbers(self, texts: Iterable[str], numbers: array[float]) -> Iterator[str]:
        """Yield the texts, and append the values of their numbers and vectors."""
        for text in texts:
            numbers.extend(self.analyzer.dense_values(text, len(self.numbers)))
            yield text

    def _with_numbers(self, X: CSR, numbers: array[float]) -> CSR:
        """Return rows with the features of numbers and vectors.

        A number is (number - mean) / (3 standard deviations), cut to -1 to 1, times the weight of
        its field; 0, so no entry, if there is none. A vector has the length of its weight. numbers:
        of all rows, row by row.
        """
        if not self.numbers:
            return X
        named = self.analyzer.dense_columns(len(self.numbers))
        means, deviations = np.array(self.numbers).T
        scaled = (np.array(numbers).reshape(-1, len(named)) - means) / (MAX_NUMBER * deviations)
        scaled = np.clip(np.nan_to_num(scaled), -1.0, 1.0) * [weight for _, weight in named]
        names = pa.array([name for name, _ in named], pa.large_string())
        columns = pc.index_in(names, self.terms).to_numpy()
        rows, which = np.nonzero(scaled)
        rows = np.concatenate([np.repeat(np.arange(X.n_rows), np.diff(X.indptr)), rows])
        indices = np.concatenate([X.indices, columns[which].astype(np.int32)])
        values = np.concatenate([X.data, scaled[scaled != 0].astype(np.float32)])
        order = np.lexsort((indices, rows))
        indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=X.n_rows))))
        return csr(indptr, indices[order], values[order], self.n_features)

    def _to_tfidf(self, indptr: Any, ids: Any, counts: Any) -> CSR:
        """Return tf-idf rows of length 1 for counts, computed in float64."""
        weights = counts.astype(np.float64)
        if self.params.sublinear_tf:
            weights = np.log(weights) + 1.0
        weights *= self.weights[ids]
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
        parts = {
            "params": json.dumps(self.params.as_json(), sort_keys=True),
            "terms": text,
            "lengths": lengths,
            "df": self.df,
            "n": str(self.n_texts),
        }
        if self._extra:
            parts["extra"] = json.dumps(self._extra, sort_keys=True)
        return sha256_arrays(parts)

    @property
    def _extra(self) -> dict[str, Any]:
        """What only some pipelines have: scales of numbers, versions of packages."""
        extra = {
            "numbers": [[*each] for each in self.numbers],
            "stemmer": self.stemmer,
            "detector": self.detector,
        }
        return {name: value for name, value in extra.items() if value}

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
        head |= {"params": self.params.as_json(), "fingerprint": self.fingerprint, **self._extra}
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
            terms, df, idf = (
                read_column(table, name, kind, "vocabulary.arrow") for name, kind in COLUMNS.items()
            )
            params, extra = TextParams.from_dict(head["params"]), head.get("numbers", ())
            versions = head.get("stemmer"), head.get("detector")
            out = cls(params, terms, df.to_numpy(), head["n_texts"], extra, *versions)
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


def _header_seal(head: dict[str, Any]) -> str:
    """Return SHA-256 over the content of text.json."""
    return hashlib.sha256(json.dumps(head, sort_keys=True).encode()).hexdigest()
