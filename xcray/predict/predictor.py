"""The predictor: a model with its index, ready to answer."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from xcray.arrays import CSR, Float64, Pattern, TopK, csr, csr_from
from xcray.errors import InputError, NotCalibrated, ParameterError, ShapeMismatch
from xcray.index.filters import LabelFilter
from xcray.index.log_partition import Normaliser, softmax
from xcray.index.search_result import NOT_ASKED, Answer
from xcray.metrics import evaluate
from xcray.model.model import Model
from xcray.predict.arrow import answer_table
from xcray.predict.explain import Explanation, contributions
from xcray.predict.labels import Filters, Sets, unknown


class Scored(NamedTuple):
    """A label's name and its score; how likely it is right, when that was given."""

    label: str
    score: float
    probability: float | None = None


class Predictor:
    """A model with its index, ready to answer; safe for many threads at once."""

    def __init__(self, model: Model, *, threads: int = 1) -> None:
        """threads: cores used for a batch (>= 1); answers do not depend on it."""
        if threads < 1:
            raise ParameterError(f"threads is {threads}: it must be at least 1")
        self.model = model
        self.threads = threads
        self.index = model.search
        self._normaliser = Normaliser(self.index) if model.link == "softmax" else None
        self._filters = Filters(model)

    @property
    def likely(self) -> str | None:
        """What its probabilities are: "curves" where the model is calibrated, else "softmax" for scores that are such, or None."""
        if self.model.calibration is not None:
            return "curves"
        return None if self._normaliser is None else "softmax"

    def predict(self, rows: Any, k: int = 5) -> TopK:
        """The k best labels of each row with their scores, best first, equal scores by lower label number.

        rows: (n, D) CSR, scipy sparse matrix or dense array; or a list of texts, or one text, when the model reads text.
        k: at least 1, clipped to the number of labels. Raises ShapeMismatch, ParameterError, InputError with the mend.
        """
        return self.answer(rows, k).top

    def answer(
        self,
        rows: Any,
        k: int = 5,
        *,
        deadline_ms: float | None = None,
        allow: Any = None,
        deny: Any = None,
        probabilities: bool = False,
    ) -> Answer:
        """`predict` with its certificate, in time, among the labels allowed.

        deadline_ms: milliseconds for the whole call; rows that are not done then have the best found so far (`exact` False).
        allow, deny: label numbers or names; or what `filter` gave, as `allow`. probabilities: the method of that name shall have
        what it asks for. Softmax models then add up all labels of each row (`log_normaliser`), to the end whatever the deadline,
        of which the search gets what is left; calibrated ones have nothing to do. Raises as `predict` and `filter`, and
        NotCalibrated.
        """
        if not probabilities:
            return self.index.query(
                self.features(rows),
                k,
                threads=self.threads,
                deadline_ms=deadline_ms,
                among=self.filter(allow, deny),
            )
        begun = time.perf_counter()
        self.require_probabilities()
        X, among = self.features(rows), self.filter(allow, deny)
        total = self.log_normaliser(X) if self.likely == "softmax" else NOT_ASKED
        if deadline_ms is not None:
            deadline_ms = max(0.0, deadline_ms - 1e3 * (time.perf_counter() - begun))
        found = self.index.query(X, k, threads=self.threads, deadline_ms=deadline_ms, among=among)
        return found._replace(log_normaliser=total)

    def log_normaliser(self, rows: Any) -> Float64:
        """log of the sum of exp(score) over all labels of a softmax model, for each row: (n,) float64, exact to rounding.

        rows: as for `predict`. A label's probability is exp(score - this). Raises as `predict`, and ParameterError for models whose
        scores are margins.
        """
        if self._normaliser is None:
            raise ParameterError(
                f"scores of this model are margins (link {self.model.link!r}): they have no normaliser"
            )
        return self._normaliser.of(self.features(rows), threads=self.threads)

    def filter(
        self, allow: Any = None, deny: Any = None, *, sets: Sets | None = None
    ) -> LabelFilter | None:
        """Which labels may be answered: those of `allow` (None: all) that are not in `deny`; None when all may.

        allow, deny: lists of label numbers, label names and "set:NAME", the labels kept under a name. sets: gives the labels of a
        set, say `Registry(root).sets(model_name)`; without it "set:NAME" is a label's name like any other. Labels of a set
        that this model has not are passed over (`unknown` tells them). A LabelFilter as `allow` comes back as it is.
        The filters made last are remembered: making one takes a pass over the label names.
        Raises NotFound for unknown labels and sets, ParameterError when no label is left.
        """
        if isinstance(allow, LabelFilter):
            if deny is not None:
                raise ParameterError(
                    "a ready LabelFilter takes no `deny`; make one of both: predictor.filter(allow, deny)"
                )
            return allow
        if allow is None and deny is None:
            return None
        return self._filters.of(allow, deny, sets)

    def unknown(self, names: Sequence[str]) -> list[str]:
        """Those of `names` that no label of this model has, in their order: what a named set has too much."""
        return unknown(self.model, names)

    def require_probabilities(self) -> None:
        """Raise NotCalibrated, which names the mend, when this model has scores but no probabilities."""
        if self.likely is None:
            raise NotCalibrated(
                "this model has scores but no probabilities: make one that has with `xcray calibrate MODEL DATASET -o NEW`, "
                "or train with --calibrate; held-out rows are needed"
            )

    def probabilities(self, top: TopK | Answer, *, filtered: bool = False) -> Float64:
        """How likely each answered label is right: (n, k) float64 in 0 to 1.

        By curves where the model is calibrated, whatever its scores are: given score, place and frequency in training. top:
        answers of this model, each row from its first place on. filtered: they were found among some labels only (`allow`,
        `deny`), so that their places mean nothing. The answers keep their order, which is that of scores: a probability may be
        higher than the one before it.

        Else, of softmax models, exp(score - log_normaliser): the shares of a whole that all labels of the model make up, also where
        some were not allowed. top: of `answer(..., probabilities=True)`. Raises NotCalibrated when there are neither,
        ParameterError for answers without their normaliser.
        """
        self.require_probabilities()
        if self.model.calibration is not None:
            return self.model.calibration.of(top.labels, top.scores, filtered=filtered)
        total = top.log_normaliser if isinstance(top, Answer) else NOT_ASKED
        if len(total) != len(top.scores):
            raise ParameterError(
                "these answers came without their normaliser: ask with predictor.answer(rows, k, probabilities=True), or take "
                "exp(score - predictor.log_normaliser(rows))"
            )
        return softmax(top.scores, total)

    def table(self, answer: Answer, *, filtered: bool = False) -> pa.Table:
        """An answer in Arrow, a row each: see `answer_table`. With probabilities when the model is calibrated, or softmax
        and asked for them."""
        asked = self.likely == "curves" or (
            self.likely == "softmax" and len(answer.log_normaliser) == len(answer.scores)
        )
        told = self.probabilities(answer, filtered=filtered) if asked else None
        return answer_table(answer, self.model.label_names, told)

    def named(self, top: TopK | Answer, probabilities: Float64 | None = None) -> list[list[Scored]]:
        """Names and scores of an answer, one list per row; with `probabilities` (n, k), of the method of that name, these too."""
        names = self.model.label_names.take(pa.array(top.labels.ravel())).to_pylist()
        likely = () if probabilities is None else (probabilities.ravel().tolist(),)
        scored = [
            Scored(*each) for each in zip(names, top.scores.ravel().tolist(), *likely, strict=True)
        ]
        n_rows, k = top.labels.shape
        return [scored[i * k : (i + 1) * k] for i in range(n_rows)]

    def explain(self, row: Any, label: int | str, top: int = 10, k: int = 5) -> Explanation:
        """Why one label has its score for one row, and how far it is from the best and the k-th best.

        row: one text, or a matrix of one row in any form that `predict` takes. label: number or name.
        top: how many features to show. Raises NotFound for an unknown label, ShapeMismatch for more than one row.
        """
        x, j = self.features(row), self.model.label_id(label)
        if x.n_rows != 1:
            raise ShapeMismatch(
                f"explain takes one row, this is {x.n_rows}; choose one, as in X[i : i + 1]"
            )
        if top < 0:
            raise ParameterError(f"top is {top}: it must be at least 0")
        score, best = self.index.score(x, j), self.index.query(x, k).scores[0]
        parts = contributions(self.model, x, j)
        shown, rest = parts[:top], parts[top:]
        return Explanation(
            label=j,
            name=self.model.label_name(j),
            score=score,
            bias=float(self.model.b[j]),
            contributions=tuple(shown),
            rest=math.fsum(part.contribution for part in rest),
            n_rest=len(rest),
            rank=self.index.rank(x, j),
            gap_to_top=float(best[0]) - score,
            gap_to_kth=float(best[-1]) - score,
            k=len(best),
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
        """Measures at each k, as fractions by name ("P@1": 0.63), see `xcray.metrics.evaluate`.

        rows: n rows as for `predict`; Y: (n, K) their labels. label_counts: (K,) and n_train: labels' and rows' numbers
        in training, which the propensity-scored measures need. Raises ShapeMismatch when rows and Y disagree.
        """
        X = self.features(rows)
        if Y.shape != (X.n_rows, self.model.n_labels):
            raise ShapeMismatch(
                f"Y is {Y.shape}, it must be rows x labels of the model: {(X.n_rows, self.model.n_labels)}"
            )
        return evaluate(
            self.predict(X, max(ks, default=1)),
            Y,
            ks=ks,
            label_counts=label_counts,
            n_train=n_train,
        )

    def features(self, rows: Any) -> CSR:
        """Rows of features (n, D) of anything that `predict` takes. Errors as there."""
        if isinstance(rows, str):
            rows = [rows]
        if isinstance(rows, (list, tuple)) and all(isinstance(row, str) for row in rows):
            return self._of_texts(rows)
        try:
            return csr_from(rows, self.model.n_features)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"rows of type {type(rows).__name__} can't be read ({error}); give a CSR, a scipy sparse matrix, "
                "a 2-d array of numbers or a list of texts",
                code="ROWS",
            ) from None

    def _of_texts(self, texts: Sequence[str]) -> CSR:
        """Features of texts by the model's own pipeline."""
        if not texts:
            return csr([0], [], [], self.model.n_features)
        if self.model.text is None:
            raise InputError(
                "this model was trained on feature rows and has no text pipeline: give rows of "
                f"{self.model.n_features} features, or train it on a data set built from text",
                code="NO_TEXT",
            )
        return self.model.text.transform(texts)
