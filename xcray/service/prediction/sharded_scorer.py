"""The scorer of a model in shards: asks the services of all label ranges, and merges the answers.

Each shard returns its k best labels with exact scores, so the k best of all are among them.
Requests are sent to all shards before the first reply is read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from typing import Final, NoReturn

import msgspec
import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int64
from xcray.errors import ParameterError, Unavailable
from xcray.index.filters import LabelFilter
from xcray.index.scorer import Contributions, sparse_rows
from xcray.index.search_result import SearchResult, concatenate_results
from xcray.index.validate_rows import check_query, check_rows
from xcray.kernels.sparse import take_rows
from xcray.model.manifest import LabelRange, ranges_of, read_manifest
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.service.models.loading import Opener
from xcray.service.observability.request_log import LOGGER
from xcray.service.prediction.shards import ShardLost, ShardQuestion, ShardReply, ShardService
from xcray.service.schemas.base import MAX_FILTER_LABELS
from xcray.service.settings import Settings

ROWS_PER_REQUEST: Final = 256
REPLY_SECONDS: Final = 10.0  # limit of a reply, after the deadline if there is one
LEAST_MS: Final = 0.001  # deadline of a request, which must be above 0
_ENCODER: Final = msgspec.json.Encoder()


class ShardedScorer:
    """The scorer of a model in shards: labels and scores are those of the whole one, to the bit."""

    n_bytes = 0
    answers_while_compiling = False

    def __init__(
        self, shards: Sequence[ShardService], n_inputs: int, partial: bool = False
    ) -> None:
        """Create a scorer. shards: of all labels in order; empty if no addresses are known.

        partial: whether a shard that does not answer makes the answer partial (`missing`, not
        `exact`), and not an error.
        """
        self._shards = shards
        self._partial = partial
        self.n_inputs = n_inputs
        self.n_labels = shards[-1].labels.end if shards else 0

    def compile(self) -> None:
        """Do nothing: the shards have the kernels."""

    def top_k(
        self,
        X: CSR | Float32,
        k: int = 5,
        *,
        label_filter: LabelFilter | None = None,
        deadline_ms: float | None = None,
    ) -> SearchResult:
        """Return the k best allowed labels of each row, see `Scorer.top_k`.

        Raises Unavailable SHARD if a shard does not answer, or none if answers can be partial.
        """
        if not self._shards:
            raise Unavailable(
                "the weights of this model are in shards, and this service has no address of "
                "each: set XCRAY_SHARDS",
                code="SHARD",
            )
        rows = sparse_rows(X)
        check_rows(rows, self.n_inputs)
        check_query(k, deadline_ms, label_filter, self.n_labels)
        k = min(k, self.n_labels if label_filter is None else len(label_filter.labels))
        filters = [_filter_of(shard.labels, label_filter) for shard in self._shards]
        parts, started = [], time.monotonic()
        for begin in range(0, max(1, rows.n_rows), ROWS_PER_REQUEST):
            passed_ms = 1e3 * (time.monotonic() - started)
            left_ms = None if deadline_ms is None else max(deadline_ms - passed_ms, LEAST_MS)
            chosen = np.arange(begin, min(begin + ROWS_PER_REQUEST, rows.n_rows))
            part = take_rows(rows, chosen) if len(chosen) < rows.n_rows else rows
            parts.append(self._search(part, k, filters, left_ms))
        shortest = min(part.labels.shape[1] for part in parts)  # partial ones can be shorter
        return concatenate_results(
            [
                part._replace(labels=part.labels[:, :shortest], scores=part.scores[:, :shortest])
                for part in parts
            ]
        )

    def scores(self, X: CSR | Float32, labels: Sequence[int]) -> Float64:
        """Raise ParameterError."""
        self._refuse()

    def rank(self, X: CSR | Float32, label: int) -> int:
        """Raise ParameterError."""
        self._refuse()

    def contributions(self, X: CSR | Float32, label: int) -> Contributions:
        """Raise ParameterError."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        """Raise the error of what needs the weights of a label."""
        raise ParameterError(
            "the weights of this model are in shards, so its scores can't be explained: explain "
            "them with the model before it was split",
            code="IN_SHARDS",
        )

    def _search(
        self,
        X: CSR,
        k: int,
        filters: Sequence[tuple[bytes, int]],
        deadline_ms: float | None,
    ) -> SearchResult:
        """Ask all shards that have allowed labels, and merge their answers."""
        end = time.monotonic() + REPLY_SECONDS + (deadline_ms or 0.0) / 1e3
        head = b'{"instances":%b,"certificate":true,"top_k":%d' % (_instances(X), k)
        if deadline_ms is not None:
            head += b',"deadline_ms":%b' % _ENCODER.encode(deadline_ms)
        sent: list[tuple[ShardService, ShardQuestion, HTTPConnection]] = []
        replies: list[tuple[ShardQuestion, ShardReply]] = []
        lost: list[tuple[ShardService, ShardQuestion]] = []
        for shard, (fields, n_labels) in zip(self._shards, filters, strict=True):
            if n_labels and X.n_rows:
                question = ShardQuestion(head + fields + b"}", n_labels, end)
                try:
                    sent.append((shard, question, shard.send(question)))
                except ShardLost:
                    lost.append((shard, question))
        for shard, question, connection in sent:
            try:
                replies.append((question, shard.receive(connection, question)))
            except ShardLost:
                lost.append((shard, question))
        if lost and not (self._partial and replies):
            self._raise_lost(lost[0][0])
        missing = sum(question.n_labels for _, question in lost)
        return merge(
            [_to_result(reply, question, k, X.n_rows) for question, reply in replies],
            k,
            np.full(X.n_rows, missing, np.int64),
        )

    def _raise_lost(self, shard: ShardService) -> NoReturn:
        """Raise the error of a request to a shard that does not answer."""
        number = 1 + self._shards.index(shard)
        raise Unavailable(
            f"shard {number} of {len(self._shards)} (labels {shard.labels.begin:,} to "
            f"{shard.labels.end - 1:,}) does not answer: see the log of the service for the reason",
            code="SHARD",
            retry_after=1,
        )


def merge(parts: Sequence[tuple[SearchResult, Float64]], k: int, missing: Int64) -> SearchResult:
    """Return the k best labels of all ranges.

    parts: for each range, in order, its result, and (n,) an upper bound of its other labels.
    missing: (n,), labels of ranges without a result.
    """
    if not parts:  # no rows
        none = np.empty(0, np.int64)
        labels, scores = np.empty((0, k), np.int32), np.empty((0, k))
        return SearchResult(labels, scores, none > 0, none, none, np.empty(0), missing=missing)
    results = [result for result, _ in parts]
    labels = np.concatenate([each.labels for each in results], axis=1)
    scores = np.concatenate([each.scores for each in results], axis=1)
    # stable: equal scores stay in the order of the ranges, which is that of the labels
    order = np.argsort(-scores, axis=1, kind="stable")
    best, k = order[:, :k], min(k, labels.shape[1])
    sorted_scores = np.take_along_axis(scores, order, axis=1)
    bound = np.max([bound for _, bound in parts], axis=0)
    if labels.shape[1] > k:
        bound = np.maximum(bound, sorted_scores[:, k])
    gap = np.where(bound == -np.inf, 0.0, sorted_scores[:, k - 1] - bound)
    exact = np.all([each.exact for each in results], axis=0) & (missing == 0)
    gap = np.where(exact, np.maximum(gap, 0.0), gap)
    return SearchResult(
        np.take_along_axis(labels, best, axis=1),
        sorted_scores[:, :k],
        exact,
        np.sum([each.labels_scored for each in results], axis=0),
        np.sum([each.postings_read for each in results], axis=0),
        np.where(missing > 0, -np.inf, gap),
        missing=missing,
    )


def _to_result(
    reply: ShardReply, question: ShardQuestion, k: int, n_rows: int
) -> tuple[SearchResult, Float64]:
    """Return a reply as a result, and an upper bound of the labels that are not in it."""
    certificates = [each.certificate for each in reply.predictions]
    result = SearchResult(
        np.array([each.labels for each in reply.predictions], np.int32),
        np.array([each.scores for each in reply.predictions], np.float64),
        np.array([each.exact for each in certificates]),
        np.array([each.labels_scored for each in certificates], np.int64),
        np.array([each.postings_read for each in certificates], np.int64),
        np.array([-np.inf if each.bound_gap is None else each.bound_gap for each in certificates]),
    )
    if question.n_labels <= k:
        return result, np.full(n_rows, -np.inf)
    return result, np.nextafter(result.scores[:, -1] - result.bound_gap, np.inf)


def _instances(X: CSR) -> bytes:
    """Return rows as the instances of a request; float32 keeps its bits in JSON."""
    indices, values, ends = X.indices.tolist(), X.data.tolist(), X.indptr.tolist()
    return _ENCODER.encode(
        [
            {"indices": indices[begin:end], "values": values[begin:end]}
            for begin, end in pairwise(ends)
        ]
    )


def _filter_of(labels: LabelRange, among: LabelFilter | None) -> tuple[bytes, int]:
    """Return the fields of a request for the allowed labels of a range, and their number."""
    size = labels.end - labels.begin
    if among is None:
        return b"", size
    allowed = among.allowed[labels.begin : labels.end]
    n_allowed = int(np.count_nonzero(allowed))
    if n_allowed in (0, size):
        return b"", n_allowed
    is_short = n_allowed <= size - n_allowed
    listed = np.flatnonzero(allowed if is_short else allowed == 0) + labels.begin
    if len(listed) > MAX_FILTER_LABELS:
        raise ParameterError(
            f"a shard can't be asked with a filter that allows and denies more than "
            f"{MAX_FILTER_LABELS:,} of its labels: allow fewer labels",
            code="FILTER",
        )
    field = _ENCODER.encode({"allow" if is_short else "deny": list(map(str, listed.tolist()))})
    return b"," + field[1:-1], n_allowed


def with_shards(opener: Opener, settings: Settings) -> Opener:
    """Return an opener that also opens models in shards, whose services the settings name.

    opener: of all other models.
    """

    def open_model(path: Path) -> Predictor:
        ranges = ranges_of(read_manifest(path))
        if not ranges:
            return opener(path)
        model = Model.open(path)
        shards = _shards(ranges, settings)
        return Predictor(
            model, scorer=ShardedScorer(shards, model.n_features, settings.shards_partial)
        )

    return open_model


def _shards(ranges: Sequence[LabelRange], settings: Settings) -> list[ShardService]:
    """Return the shards of a model at the addresses of the settings; empty if these do not fit."""
    addresses = settings.shards * (len(ranges) if len(settings.shards) == 1 else 1)
    if len(addresses) != len(ranges):
        LOGGER.warning(
            "XCRAY_SHARDS needs one address for all shards, or one for each",
            extra={"addresses": len(addresses), "shards": len(ranges)},
        )
        return []
    path = settings.shards_key_path
    key = None if path is None else path.read_text(encoding="ascii").strip()
    return [ShardService(*each, key) for each in zip(ranges, addresses, strict=True)]
