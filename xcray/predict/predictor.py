"""The predictor: a model with its search index."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from itertools import chain, compress, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from xcray.api.options import ThresholdOptions
from xcray.arrays import CSR, Float64, Pattern, TopK, csr, frozen
from xcray.data.text.vectorizer import AnalysedTexts
from xcray.errors import ParameterError, ShapeMismatch
from xcray.index.filters import LabelFilter
from xcray.index.log_partition import LogPartition, softmax
from xcray.index.scorer import Scorer
from xcray.index.search_result import NOT_COMPUTED, SearchResult
from xcray.index.staged import StagedScorer
from xcray.measures import evaluate
from xcray.model.calibration import probability_source, require_probabilities
from xcray.model.model import Model
from xcray.parameters import require_type, takes
from xcray.predict.arrow import to_arrow
from xcray.predict.explain import (
    Explanation,
    list_contributions,
    list_groups,
    only_found_by_name,
)
from xcray.predict.inputs import matrix_of, text_pipeline, texts_of
from xcray.predict.labels import FilterCache, SetLookup, unknown_labels
from xcray.predict.ranking import TextRanker, origin_views, widen
from xcray.predict.thresholds import thresholds_of


class ScoredLabel(NamedTuple):
    """A label's name and score, and its probability if given.

    name: of its label texts, if the model has some. origin: of a ranked label, see `origin_views`.
    """

    label: str
    score: float
    probability: float | None = None
    name: str | None = None
    origin: dict[str, Any] | None = None


class Predictor:
    """A model with its search index. Thread-safe."""

    def __init__(
        self, model: Model | str | Path, *, threads: int = 1, scorer: Scorer | None = None
    ) -> None:
        """Create a predictor.

        model: an open model, or the path of its directory, whose checksums are then compared.
        threads: cores used per batch (>= 1); results do not depend on it. scorer: of a model in
        shards, which has none of its own. Raises ParameterError, and NotFound or Corrupt for a
        directory.
        """
        require_type("threads", threads, int, "a whole number")
        if threads < 1:
            raise ParameterError(f"threads is {threads}: it must be at least 1")
        if isinstance(model, str | Path):
            model = Model.open(model)
        require_type("model", model, Model, "an open Model, or the path of its directory")
        self.model = model
        self.threads = threads
        self.scorer = model.scorer(threads) if scorer is None else scorer
        is_sum = model.link == "softmax" and model.linear is not None
        self._log_partition = LogPartition(model.search) if is_sum else None
        self._filters = FilterCache(model)
        self._ranker: TextRanker | None = None
        if model.ranker is not None and model.text is not None:
            linear = model.require_linear()
            self._ranker = TextRanker(model.ranker, linear, self.scorer)

    @property
    def probability_source(self) -> str | None:
        """Return the source of probabilities: "ranker", "curves" if calibrated, else by the link.

        "softmax": from scores and `log_normaliser`; "scores": the scores are probabilities; None:
        there are none.
        """
        return probability_source(self.model.manifest)

    def predict(self, rows: Any, k: int = 5) -> TopK:
        """Return the k best labels of each row with scores, best first, ties by lower label number.

        rows: (n, D) CSR, scipy sparse matrix or dense array; or a list of texts or one text, if the
        model reads text, each a string or the values of its fields: {"title": ..., "year": ...}.
        k: at least 1, clipped to the number of labels. Raises ShapeMismatch,
        ParameterError or InputError with a fix.
        """
        return self.search(rows, k).top

    def search(
        self,
        rows: Any,
        k: int = 5,
        *,
        deadline_ms: float | None = None,
        allow: Any = None,
        deny: Any = None,
        probabilities: bool = False,
        rank: bool = True,
    ) -> SearchResult:
        """Return the k best allowed labels with a certificate, within a deadline.

        If the model has a ranker and the rows are texts, they are the best of its candidates, in
        its order; rank=False returns those of the search. rows: as for `predict`, or of `encode`.

        deadline_ms: time limit of the whole call in milliseconds; rows that are not finished by
        then have the best labels found so far (`exact` False). allow, deny: label numbers or names,
        or a result of `filter` as `allow`. probabilities: prepare the result for the method
        `probabilities`. Softmax models then sum over all labels of each row (`log_normaliser`),
        regardless of the deadline, and the search gets the remaining time; calibrated models need
        no preparation. Raises as `predict` and `filter`, and NotCalibrated.
        """
        require_type("k", k, (int, np.integer), "a whole number")
        started = time.perf_counter()
        if probabilities:
            self.require_probabilities()
        encoded = self.encode(rows) if rank and self._ranker is not None else self.features(rows)
        label_filter = self.filter(allow, deny)
        is_ranked = isinstance(encoded, AnalysedTexts)
        log_normaliser = NOT_COMPUTED
        if probabilities and not is_ranked and self.probability_source == "softmax":
            log_normaliser = self.log_normaliser(encoded)
        if deadline_ms is not None and deadline_ms >= 0:  # the search refuses a negative one
            deadline_ms = max(0.0, deadline_ms - 1e3 * (time.perf_counter() - started))
        if isinstance(encoded, AnalysedTexts):
            assert self._ranker is not None
            return self._ranker.search(
                encoded, k, deadline_ms=deadline_ms, label_filter=label_filter
            )
        result = self.scorer.top_k(encoded, k, deadline_ms=deadline_ms, label_filter=label_filter)
        return result._replace(log_normaliser=log_normaliser) if probabilities else result

    def log_normaliser(self, rows: Any) -> Float64:
        """Return log(sum(exp(score))) over all labels of a softmax model per row: (n,) float64.

        Exact up to rounding. rows: as for `predict`. The probability of a label is exp(score -
        log_normaliser). Raises as `predict`, and ParameterError for models whose scores are
        margins.
        """
        if self.model.link != "softmax":
            raise ParameterError(
                f"scores of this model have the link {self.model.link!r}: only those of softmax "
                "models have a log_normaliser"
            )
        if self._log_partition is None:
            assert isinstance(self.scorer, StagedScorer)
            return self.scorer.log_partition(self.features(rows))
        return self._log_partition.compute(self.features(rows), threads=self.threads)

    def filter(
        self, allow: Any = None, deny: Any = None, *, sets: SetLookup | None = None
    ) -> LabelFilter | None:
        """Return the filter of labels in `allow` (None: all) that are not in `deny`; None if all.

        allow, deny: lists of label numbers, label names and "set:NAME" for the labels of a set.
        sets: returns the labels of a set, for example `Registry(root).sets(model_name)`; without
        it, "set:NAME" is an ordinary label name. Labels of a set that the model does not have are
        skipped (see `unknown_labels`). A LabelFilter as `allow` is returned unchanged. The last
        filters are cached, because building one takes a pass over the label names. Raises NotFound
        for unknown labels, ParameterError if no label is left.
        """
        if isinstance(allow, LabelFilter):
            if deny is not None:
                raise ParameterError(
                    "a LabelFilter can't be combined with `deny`; build one of both: "
                    "predictor.filter(allow, deny)"
                )
            return allow
        if allow is None and deny is None:
            return None
        return self._filters.get(allow, deny, sets)

    def unknown_labels(self, names: Sequence[str]) -> list[str]:
        """Return those of `names` that no label of this model has, in their order."""
        return unknown_labels(self.model, names)

    def require_probabilities(self) -> None:
        """Raise NotCalibrated, with a fix, if this model has scores but no probabilities."""
        require_probabilities(self.model.manifest)

    def probabilities(self, top: TopK | SearchResult, *, filtered: bool = False) -> Float64:
        """Return the probability that each returned label is correct: (n, k) float64 in 0 to 1.

        Those of a ranked result are those of the ranker: 1 / (1 + exp(-score)).

        Calibrated models use their curves, whatever their scores are: by score, rank and training
        frequency. top: results of this model, each row from its first rank on. filtered: the search
        had a filter (`allow`, `deny`), so that ranks have no meaning. The labels keep the order of
        their scores; a probability can be higher than the one before it.

        Other softmax models return exp(score - log_normaliser), normalised over all labels of the
        model, also if the search had a filter, and chains that end on the probability simplex
        return their scores. top: from `search(..., probabilities=True)`. Raises
        NotCalibrated if the model has neither, ParameterError for results without log_normaliser.
        """
        if isinstance(top, SearchResult) and top.is_ranked:
            return frozen(1.0 / (1.0 + np.exp(-top.scores)), np.float64)
        self.require_probabilities()
        if self.model.calibration is not None:
            return self.model.calibration.estimate(top.labels, top.scores, filtered=filtered)
        if self.probability_source == "ranker":
            raise ParameterError(
                "this result is not ranked, so it has no probabilities: a ranker needs texts, not "
                "rows of features"
            )
        if self.probability_source == "scores":
            return top.scores
        log_normaliser = top.log_normaliser if isinstance(top, SearchResult) else NOT_COMPUTED
        if len(log_normaliser) != len(top.scores):
            raise ParameterError(
                "this result has no log_normaliser: use predictor.search(rows, k, "
                "probabilities=True), or exp(score - predictor.log_normaliser(rows))"
            )
        return softmax(top.scores, log_normaliser)

    @takes(ThresholdOptions)
    def table(self, result: SearchResult, *, filtered: bool = False, **thresholds: Any) -> pa.Table:
        """Return a search result as an Arrow table, see `to_arrow`.

        It has probabilities if the model is calibrated or its scores are probabilities, or if it is
        softmax and they were requested.
        """
        has_probabilities = (
            self.probability_source in ("curves", "scores")
            or result.is_ranked
            or thresholds.get("min_probability") is not None
            or (
                self.probability_source == "softmax"
                and len(result.log_normaliser) == len(result.scores)
            )
        )
        probabilities = self.probabilities(result, filtered=filtered) if has_probabilities else None
        keep = thresholds_of(self.model, result, **thresholds).keep(
            result.labels, result.scores, probabilities
        )
        return to_arrow(result, self.model.answer_names.array, probabilities, keep)

    @takes(ThresholdOptions)
    def scored_labels(
        self,
        top: TopK | SearchResult,
        probabilities: Float64 | None = None,
        **thresholds: Any,
    ) -> list[list[ScoredLabel]]:
        """Return names and scores of a result, one list per row.

        probabilities: (n, k), from the method `probabilities`; added to the items if given, and
        needed for min_probability.
        """
        keep = thresholds_of(self.model, top, **thresholds).keep(
            top.labels, top.scores, probabilities
        )
        origins: Iterator[Any] = repeat(None)
        shown = self.model.display_names
        if isinstance(top, SearchResult) and top.is_ranked:
            origins = chain.from_iterable(origin_views(top))
        columns = zip(
            self.model.answer_names.texts(top.labels),
            top.scores.ravel().tolist(),
            repeat(None) if probabilities is None else probabilities.ravel().tolist(),
            repeat(None) if shown is None else shown.texts(top.labels),
            origins,
            strict=False,
        )
        items, (n_rows, k) = list(map(ScoredLabel._make, columns)), top.labels.shape
        rows = [items[i * k : (i + 1) * k] for i in range(n_rows)]
        if keep is None:
            return rows
        return [list(compress(row, kept)) for row, kept in zip(rows, keep.tolist(), strict=True)]

    def explain(self, row: Any, label: int | str, top: int = 10, k: int = 5) -> Explanation:
        """Explain the score of one label for one row, and its gaps to the best and k-th best label.

        row: one text, or a matrix of one row in any form that `predict` takes. label: number or
        name. top: number of features to list. A text and a ranker add what the ranker makes of the
        label. Raises NotFound for an unknown label, ShapeMismatch for more than one row.
        """
        encoded = self.encode(row)
        x, j = self.features(encoded), self.model.answer_id(label)
        if top < 0:
            raise ParameterError(f"top is {top}: it must be at least 0")
        ranking = None
        texts = texts_of(row, self.model)
        if self._ranker is not None and isinstance(encoded, AnalysedTexts) and x.n_rows == 1:
            ranking = self._ranker.explain(encoded, j)
        if j >= self.model.n_labels:
            return only_found_by_name(self.model, j)._replace(ranking=ranking)
        summands = self.scorer.contributions(x, j)
        score = float(self.scorer.scores(x, [j])[0, 0])
        best = self.scorer.top_k(x, k).scores[0]
        parts = list_contributions(self.model, summands, texts[0] if texts else None)
        listed, rest = parts[:top], parts[top:]
        return Explanation(
            label=j,
            name=self.model.label_name(j),
            score=score,
            bias=summands.bias,
            contributions=tuple(listed),
            rest=math.fsum(part.contribution for part in rest),
            n_rest=len(rest),
            rank=self.scorer.rank(x, j),
            gap_to_top=float(best[0]) - score,
            gap_to_kth=float(best[-1]) - score,
            k=len(best),
            groups=list_groups(self.model, summands, top, texts[0] if texts else None),
            ranking=ranking,
        )

    def evaluate(
        self,
        rows: Any,
        Y: Pattern,
        *,
        ks: Sequence[int] = (1, 3, 5),
        label_counts: Any = None,
        n_train: int | None = None,
    ) -> dict[str, float]:
        """Return evaluation measures at each k as fractions by name, for example {"P@1": 0.63}.

        See `xcray.measures.evaluate`. rows: n rows as for `predict`. Y: (n, K), their labels.
        label_counts: (K,) and n_train: number of training rows per label and in total, needed for
        the propensity-scored measures. Raises ShapeMismatch if rows and Y differ in shape.
        """
        rows = self.encode(rows)
        X = self.features(rows)
        if Y.shape != (X.n_rows, self.model.n_labels):
            raise ShapeMismatch(
                f"Y is {Y.shape}, it must be rows x labels of the model: "
                f"{(X.n_rows, self.model.n_labels)}"
            )
        if self.model.ranker is not None:
            Y, label_counts = widen(Y, label_counts, len(self.model.answer_names))
        return evaluate(
            self.search(rows, max(ks, default=1)).top,
            Y,
            ks=ks,
            label_counts=label_counts,
            n_train=n_train,
        )

    def features(self, rows: Any) -> CSR:
        """Return the feature rows (n, D) of any input that `predict` takes. Raises as `predict`.

        rows: or what `encode` returned for them.
        """
        if isinstance(rows, AnalysedTexts):
            return rows.X
        texts = texts_of(rows, self.model)
        if texts is None:
            return matrix_of(rows, self.model.n_features)
        if not texts:
            return csr([0], [], [], self.model.n_features)
        return text_pipeline(self.model).transform(texts)

    def encode(self, rows: Any) -> CSR | AnalysedTexts:
        """Return what `search` needs of an input, for callers that need the features, too.

        With a ranker, the words of texts and their features; else the features. Raises as
        `predict`.
        """
        if isinstance(rows, AnalysedTexts):
            return rows
        texts = None if self._ranker is None else texts_of(rows, self.model)
        return self.features(rows) if texts is None else text_pipeline(self.model).read(texts)
