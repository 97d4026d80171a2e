"""Contract of solvers whose workers act together: a program on the driver calls their methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Concatenate, Literal, NamedTuple, ParamSpec, Protocol, TypeVar

from xcray.arrays import CSR, Float32, Int64, Pattern, TopK
from xcray.errors import Unavailable
from xcray.index.staged import Stage
from xcray.schedule.calls import Call, ObjectHandle
from xcray.solvers.contract import Solver
from xcray.solvers.declarations import ProblemShape, ResourceNeeds
from xcray.solvers.held_out import HeldOut
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.checkpoints import TrainingState

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
A = TypeVar("A")


class Grid(NamedTuple):
    """Number of row shards and of label blocks."""

    shards: int
    blocks: int


class Layout(NamedTuple):
    """How the work of a training is laid out.

    workers: number of workers. in_memory: whether they can copy their rows; if not, solvers that
    can read rows again in each pass do so, with the same result. threads: of a worker, for solvers
    whose workers use several. processes: whether workers share no memory. grid: of solvers whose
    workers hold shards, else None.
    """

    workers: int
    in_memory: bool = True
    threads: int = 1
    processes: bool = False
    grid: Grid | None = None


class TrainingRows(NamedTuple):
    """Rows of a data set, mapped from files, from which each worker takes its share.

    X (N, D), Y (N, K), weights (N,) or None: of the training part. held_out: X and Y of the
    held-out rows, and their weights, or None.
    """

    X: CSR
    Y: Pattern
    weights: Float32 | None = None
    held_out: tuple[CSR, Pattern, Float32 | None] | None = None


class WeightBlock(NamedTuple):
    """Weights of labels lo .. hi-1.

    W: (D', hi-lo) float32, one row per feature; state: arrays that travel along.
    """

    lo: int
    hi: int
    W: Float32
    state: tuple[Float32, ...]


class PlacedBlock(NamedTuple):
    """A block, or another object of a block, at the worker that created it."""

    worker: str
    handle: ObjectHandle[Any]


class CellReport(NamedTuple):
    """A block has passed a shard: their numbers, and what the solver's worker reports of it."""

    block: int
    shard: int
    report: Any


class Rotation(NamedTuple):
    """Blocks after a rotation, and the reports of all cells: of a block or shard in their order."""

    blocks: list[PlacedBlock]
    reports: list[CellReport]


class WorkerCalls(Protocol):
    """Method calls on the workers of a training (see `xcray.workers.calls`).

    A method is an unbound one of the class of the solver's workers. It returns (object or None,
    result): the object stays where it was computed and the driver receives its handle; the result
    is sent to the driver. `schedule.calls.at_worker` passes a handle as an argument. Arguments are
    passed by position. All methods raise Stopped, errors of the workers, and WorkerLost when
    something is lost that only a checkpoint has: then the program is started again from there.

    The last five are for workers that hold shards, see `shard_contract.ShardSolver`.
    """

    @property
    def layout(self) -> Layout:
        """Return the layout of the training."""

    @property
    def size(self) -> int:
        """Return the number of workers in the layout; one worker can do the work of several."""

    def call(
        self, method: Callable[Concatenate[Any, P], tuple[T, R]], *args: P.args, **kwargs: P.kwargs
    ) -> list[tuple[ObjectHandle[T], R]]:
        """Call a method on every worker; return (handle, result) of each, in worker order."""

    def call_each(
        self,
        method: Callable[Concatenate[Any, A, P], tuple[T, R]],
        each: Sequence[A],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[tuple[ObjectHandle[T], R]]:
        """Do the same with a first argument for each worker, in worker order."""

    def put(self, value: T) -> ObjectHandle[T]:
        """Return a handle of `value`, which is sent to each worker at most once."""

    def fetch(self, handle: ObjectHandle[T]) -> T:
        """Return the object of a handle, read-only."""

    def create_blocks(
        self, method: Callable[[Any, int, int], tuple[WeightBlock, None]], n_labels: int
    ) -> list[PlacedBlock]:
        """Call `method(lo, hi)` for each block of the grid, on workers in turn."""

    def call_many(self, calls: Sequence[Call[Any, R]]) -> Iterator[tuple[PlacedBlock, R]]:
        """Run calls of single workers; yield the object, if one was created, and result of each."""

    def rotate(
        self,
        blocks: Sequence[PlacedBlock],
        steps: Sequence[Any],
        *,
        order: str,
        seed: int,
        epochs: int,
        first: int = 0,
    ) -> Rotation:
        """Let every block pass every shard, once per step; `blocks` are not changed.

        steps: an argument of `pass_block` for each sweep. order: one of `schedule.rotation.ORDERS`.
        seed: of orders that draw. first: shard at which block 0 starts in the other orders, modulo
        their number. epochs: how many it adds, for the report of progress.
        """

    def keep_state(self) -> None:
        """Take a snapshot of the state of all shards: this sync point counts."""

    def restore_state(self) -> None:
        """Restore all shards from their last snapshots."""


class StateLost(Unavailable):
    """A worker was replaced, and a method needs a state that the lost one had.

    The program starts again from the newest checkpoint.
    """

    code = "STATE_LOST"


class StagedModel(NamedTuple):
    """A model that is a chain of stages.

    query: returns the k best labels of rows X (n, D). block: all labels, without weights.
    """

    stages: tuple[Stage, ...]
    query: Callable[[CSR, int], TopK]
    block: SolvedLabels


class Round(NamedTuple):
    """What a program yields after a round.

    number: of rounds done, also those before a resume. state: from which the program goes on with
    the same bits; its groups are asked for before the program goes on, or after its end. entry: of
    the history, such as "objective" and "gradient". held_out: evaluation of the held-out rows, or
    None. ratio: what the tolerance bounds, infinity if it is unknown. staged: the model so far,
    if it is a chain of stages.
    """

    number: int
    state: TrainingState
    entry: Mapping[str, Any]
    held_out: HeldOut | None = None
    ratio: float = math.inf
    staged: StagedModel | None = None


# yields rounds, and returns why the training ended
Program = Generator[Round, None, str]


class GroupSolver(Solver, Protocol):
    """Solver whose workers act together in rounds.

    Its workers are objects of a class of its own, which hold a share of the rows. Their methods are
    pure functions of their arguments and of the rows, so that a lost worker can be replaced: what
    changes is in the state of the program, which runs on the driver. A method that needs more
    raises StateLost at a new worker. A worker takes a share of the rows, the same at any place: a
    process does the work of several while there are fewer of them. For workers that hold shards
    see `shard_contract.ShardSolver`. maps_rows: whether workers can read rows from disk in each
    pass, see `Layout`.
    """

    family: ClassVar[Literal["group"]] = "group"
    maps_rows: ClassVar[bool] = False

    def layout(self, workers: int, processes: bool, rows: TrainingRows) -> Layout:
        """Return how the work is laid out on that many workers at most.

        processes: whether workers are processes of their own, which share no memory.
        """
        return Layout(workers, processes=processes)

    def n_weights(self, n_inputs: int) -> int:
        """Return D', the rows of W, for `n_inputs` features of the data."""
        return n_inputs

    def create_worker(
        self, rows: TrainingRows, number: int, layout: Layout, stopped: Callable[[], bool]
    ) -> Any:
        """Return worker `number`, created where it will run.

        `stopped` is called every few rows; soon after it returns True, methods raise Stopped.
        """

    def program(
        self, calls: WorkerCalls, rows: TrainingRows, state: TrainingState | None = None
    ) -> Program:
        """Yield rounds until a stopping rule is met; return the reason.

        state: of an earlier round, of which the program is the continuation;
        None for the start. It may be that of the last round. Raises Stopped, and errors of workers.
        """

    def export(
        self, calls: WorkerCalls, state: TrainingState, positives: Int64
    ) -> Iterator[SolvedLabels]:
        """Yield the labels of a finished training, one range at a time.

        calls: of the program, which has ended. positives: (K,) training rows of each label. Raises
        StateLost.
        """

    def report(self, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return what the report of a training has in addition to the history; JSON."""
        return {}

    def staged(self, state: TrainingState, rows: TrainingRows) -> StagedModel | None:
        """Return the model of a finished training if it is a chain of stages, else None."""
        return None

    def resources(self, shape: ProblemShape, layout: Layout) -> ResourceNeeds:
        """Return the resource needs of a training."""


def only_first(workers: int) -> list[bool]:
    """Return True for the first worker, and False for the others."""
    return [number == 0 for number in range(workers)]
