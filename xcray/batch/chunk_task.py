"""What a worker does with a chunk: read its rows, answer them, encode the answers as a Parquet file.

The bytes of a part depend on the model, the chunk and what is asked, and on nothing else: no clock, no path, no name of a worker.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from xcray.arrays import CSR, Int32, csr
from xcray.batch.lines import parse_one, read_lines
from xcray.batch.parquet import Cursor, read_parquet
from xcray.batch.plan import Chunk, Plan
from xcray.batch.row_schema import Rows
from xcray.batch.spec import BulkSpec
from xcray.data.readers.error_log import Tally
from xcray.errors import Stopped, XcrayError
from xcray.index.filters import LabelFilter
from xcray.index.search_result import Answer
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.predict.arrow import answer_table
from xcray.workers.pool import StopFlag

STEP: Final = 256  # rows answered between two looks at the stop flag
FACTS: Final = b"xcray.part"  # key of a part's facts in its schema's metadata
REASONS: Final = 20  # bad rows whose reasons are kept
PHASES: Final = ("reading", "features", "search", "writing")


class Part(NamedTuple):
    """A chunk's answers as a Parquet file: (n,) uint8; rows answered and skipped; CPU seconds of each of PHASES."""

    chunk: int
    content: NDArray[np.uint8]
    rows: int
    skipped: int
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class BulkLocal:
    """What stays at a worker: the predictor, shared by threads; which labels it may answer; and where it is in the input."""

    predictor: Predictor
    among: LabelFilter | None
    stop: StopFlag
    cursor: Cursor = field(default_factory=Cursor)

    def sibling(self) -> Self:
        """The same, with a place in the input of its own."""
        return replace(self, cursor=Cursor())


@dataclass(frozen=True)
class BulkWork:
    """Chunks of a plan to be answered by the model at `model` whose content hash is `sha256`."""

    counter: ClassVar[tuple[str, str]] = (
        "xcray_chunks_answered",
        "Chunks of rows answered by this worker",
    )

    spec: BulkSpec
    plan: Plan
    model: str
    sha256: str

    def local(self, predictor: Predictor, stop: StopFlag) -> BulkLocal:
        """What stays at a worker, with this predictor. Raises NotFound, ParameterError for `allow` and `deny` that do not fit."""
        allow, deny = (
            None if labels is None else list(labels) for labels in (self.spec.allow, self.spec.deny)
        )
        return BulkLocal(
            predictor, predictor.filter(allow, deny, sets=self.spec.labels_of_set), stop
        )

    def open(self) -> BulkLocal | None:
        """Map the model when this node has it, and the input; None when not."""
        try:
            model = Model.open(self.model, verify=False)
        except XcrayError:
            return None
        if model.sha256 != self.sha256 or not all(
            Path(file.path).is_file() for file in self.plan.files
        ):
            return None
        local = self.local(Predictor(model), StopFlag())
        warm(local, self.spec)
        return local

    def load(self, *_: Any) -> BulkLocal:
        """Never called: a model is not sent about."""
        raise NotImplementedError("batch predictions read the model from its directory")

    def warm_up(self) -> None:
        """Nothing: kernels are warm once the model is open (`warm`), in the driver before any worker."""

    def received(self, result: list[Part]) -> list[Part]:
        """The parts as they are."""
        return result

    def solve(
        self, local: BulkLocal, labels: Int32, stopped: Callable[[], bool] = lambda: False
    ) -> list[Part]:
        """The parts of chunks (n,) int32. Raises Stopped, and DataErrors for rows that may not be skipped."""
        return [
            self._answer(local, self.plan.chunks[i], lambda: stopped() or local.stop.is_set())
            for i in labels.tolist()
        ]

    def _answer(self, local: BulkLocal, chunk: Chunk, stopped: Callable[[], bool]) -> Part:
        """One chunk, a slice of rows at a time."""
        spec, watch = self.spec, _Watch()
        tally = Tally(REASONS, spec.on_error == "skip")
        ids, answers = list[pa.Array](), list[Answer]()
        for rows in watch.each("reading", self._read(chunk, local, tally)):
            for some in _steps(rows):
                if stopped():
                    raise Stopped(
                        "stopped on request; finished parts are kept, the next run does the rest"
                    )
                with watch("features"):
                    X = local.predictor.features(some.rows)
                with watch("search"):
                    answers.append(
                        local.predictor.answer(
                            X, spec.k, allow=local.among, probabilities=spec.probabilities
                        )
                    )
                ids.append(some.ids)
        with watch("writing"):
            reasons = [error.as_dict() for error in tally.errors[:REASONS]]
            facts: dict[str, Any] = {
                "chunk": chunk.number,
                "first_row": chunk.first_row,
                "rows_read": chunk.n_rows,
            }
            facts |= {
                "rows": sum(map(len, ids)),
                "skipped": tally.n_bad,
                "skipped_reasons": reasons,
            }
            table = self._table(local, ids, answers) if ids else self._schema().empty_table()
            content = encoded(
                table.replace_schema_metadata({FACTS: json.dumps(facts, sort_keys=True).encode()})
            )
        return Part(
            chunk.number,
            content,
            facts["rows"],
            tally.n_bad,
            tuple(watch.seconds[name] for name in PHASES),
        )

    def _read(self, chunk: Chunk, local: BulkLocal, tally: Tally) -> Iterator[Rows]:
        """The rows of a chunk."""
        width = local.predictor.model.n_features
        if self.spec.format == "parquet":
            return read_parquet(self.plan, chunk, self.spec, width, tally, local.cursor)
        return read_lines(self.plan, chunk, self.spec, width, tally)

    def _schema(self) -> pa.Schema:
        """The columns of the answers."""
        form = self.plan.form
        columns: dict[str, pa.DataType] = {
            "row" if form.id is None else "id": pa.type_for_alias(form.id_type)
        }
        columns |= {"labels": pa.list_(pa.string()), "scores": pa.list_(pa.float64())}
        if self.spec.probabilities:
            columns["probabilities"] = pa.list_(pa.float64())
        if self.spec.certificate:
            columns |= {"exact": pa.bool_(), "bound_gap": pa.float64()}
        return pa.schema(columns)

    def _table(self, local: BulkLocal, ids: list[pa.Array], answers: list[Answer]) -> pa.Table:
        """The answers of a chunk as columns, made of whole arrays."""
        answer = Answer(*(np.concatenate(each) for each in zip(*answers, strict=True)))
        filtered = local.among is not None
        told = (
            local.predictor.probabilities(answer, filtered=filtered)
            if self.spec.probabilities
            else None
        )
        table, schema = (
            answer_table(answer, local.predictor.model.label_names, told),
            self._schema(),
        )
        columns = [pa.concat_arrays(ids), *(table.column(name) for name in schema.names[1:])]
        return pa.Table.from_arrays(columns, schema.names).cast(schema)


class _Watch:
    """CPU seconds of each phase of one worker's work: others on the machine don't count, and neither does waiting for a disk."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._phase = ""
        self._began = 0.0

    def __call__(self, phase: str) -> Self:
        """`with watch(phase)`: what follows belongs to it."""
        self._phase = phase
        return self

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self.seconds[self._phase] += time.thread_time() - self._began

    def each(self, phase: str, found: Iterator[Rows]) -> Iterator[Rows]:
        """What an iterator gives; its own time belongs to the phase."""
        while True:
            with self(phase):
                rows = next(found, None)
            if rows is None:
                return
            yield rows


def warm(local: BulkLocal, spec: BulkSpec) -> None:
    """Compile or load every kernel that a chunk needs: one process has to fill numba's disk cache before many read it."""
    model = local.predictor.model
    row = csr([0, 1], [0], [1.0], model.n_features) if model.n_features else csr([0, 0], [], [], 0)
    local.predictor.answer(row, spec.k, allow=local.among, probabilities=spec.probabilities)
    if model.text is not None:
        local.predictor.features(["warm up"])
    if spec.format in ("svmlight", "xc"):
        parse_one()


def encoded(table: pa.Table) -> NDArray[np.uint8]:
    """A table as the bytes of a Parquet file: (n,) uint8. The same table gives the same bytes, with one version of Arrow.

    Names of labels repeat, so they go through a dictionary; scores do not, and their bytes are put in order of significance.
    """
    sink = pa.BufferOutputStream()
    floats = dict.fromkeys(
        ("scores.list.element", "probabilities.list.element"), "BYTE_STREAM_SPLIT"
    )
    given = {
        name: kind for name, kind in floats.items() if name.partition(".")[0] in table.column_names
    }
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=["labels.list.element"],
        column_encoding=given,
    )
    return np.frombuffer(sink.getvalue(), np.uint8)


def _steps(rows: Rows) -> Iterator[Rows]:
    """At most STEP rows at a time."""
    n = len(rows.ids)
    for lo in range(0, n, STEP):
        hi = min(lo + STEP, n)
        some = rows.rows[lo:hi] if isinstance(rows.rows, list) else some_rows(rows.rows, lo, hi)
        yield Rows(some, rows.ids.slice(lo, hi - lo))


def some_rows(rows: CSR, lo: int, hi: int) -> CSR:
    """Rows [lo, hi) of a matrix; its entries are views."""
    first, last = int(rows.indptr[lo]), int(rows.indptr[hi])
    return csr(
        rows.indptr[lo : hi + 1] - first,
        rows.indices[first:last],
        rows.data[first:last],
        rows.n_cols,
    )
