"""Training of solvers that go in rounds (family "rounds"): all workers do one verb at a time, the driver adds up what they tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from xcray.arrays import Float64, Int32, Pattern, TopK, frozen
from xcray.data.dataset import Dataset, Split
from xcray.errors import Corrupt, Unavailable, XcrayError
from xcray.kernels.sparse import take_pattern_rows
from xcray.metrics import chosen, f1, precision_at_k
from xcray.schedule.events import Task
from xcray.solvers import make_solver
from xcray.solvers.multinomial import Shard, shard_of, shard_rows, total_weight
from xcray.solvers.solved_labels import Block
from xcray.solvers.synchronous_contract import Part, Round, Start, Trained, Watched
from xcray.storage.atomic import (
    discard_directory,
    publish_directory,
    read_json,
    staging_directory,
    write_json,
)
from xcray.system.blas_threads import one_core_each
from xcray.training.capacity.joint_resources import going, sizes_of
from xcray.training.capacity.preflight import Estimate
from xcray.training.checkpoints import read_arrays, write_arrays
from xcray.training.joint import Together, outcome, team_of, tell
from xcray.training.strategy import Desk, Setting
from xcray.workers.synchronous_calls import TeamRounds
from xcray.workers.timeline import DONE, Span, Timeline
from xcray.workers.worker_group import THING_LOST, Answer, Reply, Team

SEED: Final = 0  # of the shares of rows; the optimum does not depend on them
KEEP_SECONDS: Final = 30.0  # between two times that the weights are kept
STORED: Final = 4  # times all weights in Ray's object store: weights and gradients, of now and of the round before
ENDED: Final = "ended.json"
NOTE: Final = "note.json"
LIMITS: Final = ("max_iterations", "max_rounds")  # how solvers call the most rounds there may be
LOSSES: Final = 5  # times that a training goes back to what was kept because a node was lost


@dataclass(frozen=True)
class RoundsWork:
    """What makes the hands: solver, parameters: see `make_solver`; path, content_hash: of the data set, which all nodes must see;
    workers: how many hands there are."""

    solver: str
    parameters: Mapping[str, Any]
    path: str
    content_hash: str
    workers: int

    def hand(self, worker: str, stopped: Callable[[], bool], /) -> Any:
        """The solver's local part: a share of the rows, or all of them where the solver wants that."""
        solver: Any = make_solver(self.solver, self.parameters)
        number = int(worker.rpartition("-")[2])
        try:
            data = Dataset.open(Path(self.path))
            if data.content_hash != self.content_hash:
                raise Corrupt("another data set is there")
        except XcrayError as error:
            raise Unavailable(
                f"{worker} does not see the data set ({error.message}): put it on a file system that all nodes share",
                code="UNSEEN",
            ) from error
        shares = (1, 0) if solver.replicated else (self.workers, number)
        return solver.local(*shards_of(data, solver, *shares), stopped)

    def warm_up(self) -> None:
        """Nothing is compiled."""


class Going(Together):
    """See `Way`."""

    def __init__(self, at: Setting) -> None:
        super().__init__(at)
        self._history: list[dict[str, Any]] = []
        self._began = self._before = 0.0  # when this attempt did; seconds of those before
        self._reason = ""  # why no more rounds are wanted
        self._limit = next(
            int(getattr(at.solver, name)) for name in LIMITS if hasattr(at.solver, name)
        )

    def settled(self) -> dict[str, Any]:
        """Nothing: any number of workers goes on where others were."""
        return {}

    def foreseen(self, missing: Int32, probe: float | None = None) -> Estimate:
        """See `xcray.training.capacity.joint_resources`."""
        return going(
            self._at.spec, sizes_of(self._at.dataset, self._solver), self._solver, self.workers
        )

    def solve(self, desk: Desk) -> None:
        """Rounds from the weights kept last, or from 0; then all weights in parts."""
        if (self.folder / ENDED).is_file() and not len(desk.parts.missing):
            return
        (self.folder / ENDED).unlink(missing_ok=True)
        desk.parts.clear()
        at, kept = self._at, Kept(self.folder)
        work = RoundsWork(
            at.spec.solver,
            at.solver.as_dict(),
            str(at.dataset.path.resolve()),
            at.dataset.content_hash,
            self.workers,
        )
        team = team_of(
            at.spec, work, self.workers, at.job, STORED * 8 * self._n_features * at.dataset.n_labels
        )
        self._began = time.monotonic()
        try:
            team.open()
            desk.watch(team.footprints)
            desk.vitals.follow(team.muster)
            with Timeline(at.run_dir, lambda: team.nodes) as timeline, one_core_each():

                def record(span: Span) -> None:
                    timeline.add(span)
                    desk.vitals.span(span)

                rounds = TeamRounds(cast("Team", Heard(team, record)), desk.stop.is_set)
                trained = self._trained(rounds, desk, kept)
                self._write_end(self._reason or trained.reason, rounds.lost)
                for block in self._solver.blocks(trained, at.dataset.label_counts):
                    desk.parts.commit(block)
        finally:
            team.stop()
            team.close()
        kept.clear()

    def figures(self, block: Block, measures: Mapping[str, float]) -> dict[str, Any]:
        """See `outcome`; and how large the gradient was at the end."""
        found = read_json(self.folder / ENDED)
        return {
            **outcome(found, block, measures),
            "gradient": found["gradient"],
            "workers_lost": found["lost"],
        }

    def _trained(self, rounds: TeamRounds, desk: Desk, kept: Kept) -> Trained:
        """All rounds; where a node is lost with what its workers made, from what was kept again."""
        for lost in range(LOSSES + 1):
            found = kept.newest()
            self._history, self._before, start = ([], 0.0, None) if found is None else found
            base = len(self._history)

            def heard(told: Round, parts: Callable[[], Iterator[Part]], base: int = base) -> bool:
                return self._heard(told._replace(number=base + told.number), parts, desk, kept)

            try:
                return cast(
                    "Trained",
                    self._solver.train(
                        rounds, self._n_features, self._at.dataset.n_labels, heard, start
                    ),
                )
            except Unavailable as error:
                if error.code != THING_LOST or lost == LOSSES:
                    raise
        raise AssertionError("the last time around raises")

    @property
    def _n_features(self) -> int:
        """D', with the constant feature."""
        return int(self._at.dataset.n_features) + bool(self._solver.bias)

    def _heard(
        self, told: Round, parts: Callable[[], Iterator[Part]], desk: Desk, kept: Kept
    ) -> bool:
        """A round is done: note it, report it, keep the weights when it is time; whether that is enough."""
        seconds = self._before + time.monotonic() - self._began
        entry = {
            "epoch": told.number,
            "seconds": round(seconds, 3),
            "objective": told.objective,
            "gradient": told.gradient,
        }
        self._history.append({**entry, **self._watched(told.watched)})
        rate = told.number / max(seconds, 1e-9)
        tell(
            desk,
            told.number,
            self._limit,
            rate,
            (self._limit - told.number) / rate,
            self._history[-1],
        )
        left = desk.seconds_left()
        if left is not None and left <= 0.0:
            self._reason = f"the time of {self._at.spec.max_seconds:g} s was up"
        elif told.number >= self._limit:
            self._reason = f"after {self._limit} rounds"
        if kept.due or self._reason:
            kept.save(self._history, seconds, parts)
        return bool(self._reason)

    def _watched(self, watched: Watched | None) -> dict[str, float]:
        """Measures of held-out rows; nothing when they were not looked at."""
        test = self._at.dataset.test
        if watched is None or test is None:
            return {}
        truth: Pattern = take_pattern_rows(test.Y, frozen(watched.rows, np.int64))
        top = TopK(frozen(watched.labels, np.int32), frozen(watched.scores, np.float64))
        precision = {
            f"P@{k}": precision_at_k(top, truth, k) for k in sorted({1, watched.labels.shape[1]})
        }
        return {"held_out": watched.loss, **precision, **f1(chosen(top, truth.n_cols, k=1), truth)}

    def _write_end(self, reason: str, lost: int) -> None:
        """Note how the training ended: before its parts, so that they are never without."""
        last = self._history[-1]
        told = {
            "epochs": last["epoch"],
            "objective": last["objective"],
            "gradient": last["gradient"],
            "reason": reason,
        }
        write_json(self.folder / ENDED, {**told, "history": self._history, "lost": lost})


class Heard:
    """A team whose answers are noted in a timeline, too."""

    def __init__(self, team: Team, record: Callable[[Span], None]) -> None:
        self._team = team
        self._record = record

    def __getattr__(self, name: str) -> Any:
        """Everything else is the team's."""
        return getattr(self._team, name)

    def wait(self, seconds: float) -> list[Reply]:
        """See `Team`."""
        replies = self._team.wait(seconds)
        for reply in replies:
            if isinstance(reply, Answer):
                self._record(
                    Span(
                        reply.worker,
                        Task(reply.ticket, (), 0.0),
                        reply.started,
                        reply.seconds,
                        DONE,
                    )
                )
        return replies


class Kept:
    """The weights of a training on disk, at most every KEEP_SECONDS: a directory, published by one rename; the newest stays."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".round-*.part"):
            discard_directory(left)
        self._folder = folder
        self._last = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether it is time."""
        return time.monotonic() - self._last >= KEEP_SECONDS

    def save(
        self, history: list[dict[str, Any]], seconds: float, parts: Callable[[], Iterator[Part]]
    ) -> None:
        """Keep the weights after the last round of `history`, after `seconds` of training."""
        target = self._folder / f"round-{len(history):06d}"
        staged, files = staging_directory(target), []
        try:
            for number, part in enumerate(parts()):
                digest = write_arrays(staged / f"weights-{number:05d}.arrow", {"W": part.W})
                files.append({"lo": part.lo, "hi": part.hi, "sha256": digest})
            write_json(staged / NOTE, {"history": history, "seconds": seconds, "files": files})
            discard_directory(target)
            publish_directory(staged, target)
        finally:
            discard_directory(staged)
        for older in self._paths()[1:]:
            discard_directory(older)
        self._last = time.monotonic()

    def newest(self) -> tuple[list[dict[str, Any]], float, Start] | None:
        """The history, the seconds and the weights kept last; None without any. Damaged ones are removed: there is nothing to learn
        from them."""
        for path in self._paths():
            try:
                note = read_json(path / NOTE)
                files = [
                    (f"weights-{number:05d}.arrow", each["sha256"])
                    for number, each in enumerate(note["files"])
                ]
                arrays = [read_arrays(path / name, digest)["W"] for name, digest in files]
            except XcrayError:
                discard_directory(path)
                continue
            ends = [(each["lo"], each["hi"]) for each in note["files"]]
            return note["history"], note["seconds"], partial(columns, ends, arrays)
        return None

    def clear(self) -> None:
        """Remove all: what they were kept for is done."""
        for path in self._paths():
            discard_directory(path)

    def _paths(self) -> list[Path]:
        """Those published, newest first."""
        return sorted(self._folder.glob("round-[0-9]*"), reverse=True)


def shards_of(data: Dataset, solver: Any, shares: int, number: int) -> tuple[Shard, Shard | None]:
    """Share `number` of `shares` of the training rows, and of the held-out ones (None without any), as a solver takes them."""
    train, test = data.train, data.test

    def shard(part: Split) -> Shard:
        rows, weights = shard_rows(part.n_rows, shares, SEED, number), part.weights
        return shard_of(
            part.X,
            part.Y,
            rows,
            total=total_weight(part.Y, weights),
            weights=weights,
            bias=solver.bias,
        )

    return shard(train), None if test is None or not test.Y.nnz else shard(test)


def columns(
    ends: Sequence[tuple[int, int]], arrays: Sequence[Float64], lo: int, hi: int
) -> Float64:
    """Labels lo .. hi-1 of weights of which `arrays` hold labels a .. b-1 each, by `ends`: (D', hi-lo)."""
    held = [
        W[:, max(lo - a, 0) : hi - a]
        for (a, b), W in zip(ends, arrays, strict=True)
        if a < hi and b > lo
    ]
    return np.concatenate(held, axis=1)
