"""Work on a chunk: read its rows, predict labels, encode the answers as a Parquet file.

The bytes of a part depend only on the model, the chunk and the request, not on clock, path or
worker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from xcray.arrays import CSR, Int32, csr
from xcray.batch.parquet import ParquetCursor, read_parquet
from xcray.batch.plan import BatchPlan, Chunk
from xcray.batch.row_schema import RowBatch
from xcray.batch.spec import BatchPredictSpec
from xcray.data.readers.error_log import ErrorCollector
from xcray.errors import Stopped, XcrayError
from xcray.index.filters import LabelFilter
from xcray.index.search_result import SearchResult, concatenate_results
from xcray.kernels.sparse import row_range
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.predict.arrow import to_arrow
from xcray.predict.input_warnings import InputCounts, count_inputs
from xcray.predict.thresholds import thresholds_of
from xcray.workers.pool import StopFlag

ROWS_PER_STEP: Final = 256  # rows between two checks of the stop flag
PART_KEY: Final = b"xcray.part"  # key of a part's summary in its schema's metadata
MAX_REASONS: Final = 20  # invalid rows whose reasons are stored


class AnswerPart(NamedTuple):
    """The answers of a chunk. content: Parquet file, (n,) uint8, with a summary."""

    chunk: int
    content: NDArray[np.uint8]


@dataclass(frozen=True)
class ChunkState:
    """State of a worker.

    The predictor is shared by threads. label_filter: labels that answers can contain. cursor:
    position in the input.
    """

    predictor: Predictor
    label_filter: LabelFilter | None
    stop: StopFlag
    cursor: ParquetCursor = field(default_factory=ParquetCursor)

    def clone_for_thread(self) -> Self:
        """Return the same state with its own position in the input."""
        return replace(self, cursor=ParquetCursor())


@dataclass(frozen=True)
class ChunkTask:
    """Chunks of a plan to predict with the model at `model`, whose content hash is `sha256`."""

    counter: ClassVar[tuple[str, str]] = (
        "xcray_batch_chunks",
        "Chunks of rows predicted by this worker.",
    )

    spec: BatchPredictSpec
    plan: BatchPlan
    model: str
    sha256: str

    def make_state(self, predictor: Predictor, stop: StopFlag) -> ChunkState:
        """Return a worker's state.

        Raises NotFound, ParameterError for invalid `allow` and `deny`.
        """
        allow, deny = (
            None if labels is None else list(labels) for labels in (self.spec.allow, self.spec.deny)
        )
        return ChunkState(
            predictor, predictor.filter(allow, deny, sets=self.spec.labels_of_set), stop
        )

    def open(self) -> ChunkState | None:
        """Map the model, if this node can read it and the input; otherwise return None."""
        try:
            model = Model.open(self.model, verify=False)
        except XcrayError:
            return None
        if model.sha256 != self.sha256 or not all(
            Path(file.path).is_file() for file in self.plan.files
        ):
            return None
        state = self.make_state(Predictor(model), StopFlag())
        warm_kernels(state, self.spec)
        return state

    def load(self, *_: Any) -> ChunkState:
        """Raise NotImplementedError: a model is never sent to workers."""
        raise NotImplementedError("batch predictions read the model from its directory")

    def warm_up(self, local: Any = None) -> None:
        """Do nothing: `warm_kernels` runs in the driver before any worker starts."""

    def decode_result(self, result: list[AnswerPart]) -> list[AnswerPart]:
        """Return the parts unchanged."""
        return result

    def solve(
        self, state: ChunkState, labels: Int32, stopped: Callable[[], bool] = lambda: False
    ) -> list[AnswerPart]:
        """Return the parts of chunks (n,) int32.

        Raises Stopped, and DataErrors for invalid rows that are not skipped.
        """
        return [
            self._answer_chunk(state, self.plan.chunks[i], lambda: stopped() or state.stop.is_set())
            for i in labels.tolist()
        ]

    def _answer_chunk(
        self, state: ChunkState, chunk: Chunk, stopped: Callable[[], bool]
    ) -> AnswerPart:
        """Return the part of one chunk, predicted a slice of rows at a time."""
        spec, width = self.spec, state.predictor.model.n_features
        tally = ErrorCollector(MAX_REASONS, spec.on_error == "skip")
        ids, answers = list[pa.Array](), list[SearchResult]()
        counts = InputCounts()
        for read in read_parquet(self.plan, chunk, width, tally, state.cursor):
            for step in _split_steps(read):
                if stopped():
                    raise Stopped(
                        "stopped on request; finished parts are kept, the next run does the rest"
                    )
                rows = state.predictor.encode(step.rows)
                counts = self._count(chunk, counts, step, state.predictor.features(rows), state)
                answers.append(
                    state.predictor.search(
                        rows,
                        spec.top_k,
                        allow=state.label_filter,
                        probabilities=spec.needs_probabilities,
                    )
                )
                ids.append(step.ids)
        summary: dict[str, Any] = {
            "chunk": chunk.number,
            "first_row": chunk.first_row,
            "rows_read": chunk.n_rows,
            "rows": sum(map(len, ids)),
            "skipped": tally.n_bad,
            "skipped_reasons": [error.as_dict() for error in tally.errors[:MAX_REASONS]],
            "inputs": counts._asdict(),
        }
        table = self._to_table(state, ids, answers) if ids else self._output_schema().empty_table()
        head = {PART_KEY: json.dumps(summary, sort_keys=True).encode()}
        content = encode_parquet(table.replace_schema_metadata(head))
        return AnswerPart(chunk.number, content)

    def _count(
        self, chunk: Chunk, counts: InputCounts, step: RowBatch, X: CSR, state: ChunkState
    ) -> InputCounts:
        """Add rows to the counts of a chunk; words are counted at the start of the first chunk."""
        has_words = chunk.number == 0 and not counts.rows
        new = count_inputs(step.rows, X, state.predictor.model.text if has_words else None)
        if has_words:
            return new
        return counts._replace(rows=counts.rows + new.rows, empty=counts.empty + new.empty)

    def _output_schema(self) -> pa.Schema:
        """Return the columns of the answers."""
        schema = self.plan.schema
        columns: dict[str, pa.DataType] = {
            "row" if schema.id is None else "id": pa.type_for_alias(schema.id_type)
        }
        columns |= {"labels": pa.list_(pa.string()), "scores": pa.list_(pa.float64())}
        if self.spec.probabilities:
            columns["probabilities"] = pa.list_(pa.float64())
        if self.spec.certificate:
            columns |= {"exact": pa.bool_(), "bound_gap": pa.float64()}
        return pa.schema(columns)

    def _to_table(
        self, state: ChunkState, ids: list[pa.Array], answers: list[SearchResult]
    ) -> pa.Table:
        """Return the answers of a chunk as a table, made of whole arrays."""
        answer = concatenate_results(answers)
        filtered = state.label_filter is not None
        probabilities = (
            state.predictor.probabilities(answer, filtered=filtered)
            if self.spec.needs_probabilities
            else None
        )
        spec, model = self.spec, state.predictor.model
        keep = thresholds_of(
            model, answer, spec.min_score, spec.min_probability, spec.label_thresholds
        ).keep(answer.labels, answer.scores, probabilities)
        names = model.answer_names.array
        table, schema = to_arrow(answer, names, probabilities, keep), self._output_schema()
        columns = [pa.concat_arrays(ids), *(table.column(name) for name in schema.names[1:])]
        return pa.Table.from_arrays(columns, schema.names).cast(schema)


def warm_kernels(state: ChunkState, spec: BatchPredictSpec) -> None:
    """Compile or load every kernel that a chunk needs.

    One process has to fill numba's disk cache before many processes read it.
    """
    model = state.predictor.model
    row = csr([0, 1], [0], [1.0], model.n_features) if model.n_features else csr([0, 0], [], [], 0)
    state.predictor.scorer.compile()
    state.predictor.search(
        row,
        spec.top_k,
        allow=state.label_filter,
        probabilities=spec.needs_probabilities,
    )
    if model.text is not None:
        state.predictor.encode(["warm up"])


def encode_parquet(table: pa.Table) -> NDArray[np.uint8]:
    """Return a table as the bytes of a Parquet file: (n,) uint8.

    The same table gives the same bytes with one version of Arrow. Label names repeat, so they are
    dictionary-encoded. Scores do not; their bytes are stored in order of significance.
    """
    sink = pa.BufferOutputStream()
    floats = dict.fromkeys(
        ("scores.list.element", "probabilities.list.element"), "BYTE_STREAM_SPLIT"
    )
    encodings = {
        name: kind for name, kind in floats.items() if name.partition(".")[0] in table.column_names
    }
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=["labels.list.element"],
        column_encoding=encodings,
    )
    return np.frombuffer(sink.getvalue(), np.uint8)


def _split_steps(rows: RowBatch) -> Iterator[RowBatch]:
    """Yield at most ROWS_PER_STEP rows at a time."""
    n = len(rows.ids)
    for lo in range(0, n, ROWS_PER_STEP):
        hi = min(lo + ROWS_PER_STEP, n)
        step = rows.rows[lo:hi] if isinstance(rows.rows, list) else row_range(rows.rows, lo, hi)
        yield RowBatch(step, rows.ids.slice(lo, hi - lo))
