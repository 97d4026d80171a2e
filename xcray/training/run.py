"""train(spec): from a data set directory to a published model, resumable at any point."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from xcray.data.dataset import open_verified
from xcray.data.label_texts import open_label_texts
from xcray.errors import InputError, Stopped
from xcray.index.search import SearchIndex
from xcray.index.staged import link_of
from xcray.model.calibration import Calibration
from xcray.model.directory import DUALS, Staging
from xcray.model.stages import n_weights
from xcray.model.write import ModelContent, TrainingRecord, write_model
from xcray.parameters import require_type
from xcray.solvers import make_solver
from xcray.solvers.group_contract import StagedModel
from xcray.solvers.solved_labels import SolvedLabels
from xcray.telemetry.progress import EMPTY, Progress
from xcray.training.auto_params import choose_params
from xcray.training.block_store import BlockStore
from xcray.training.calibration.fit import SearchFn, calibrate_held_out, held_out_part
from xcray.training.capacity.monitor import ResourceMonitor
from xcray.training.capacity.preflight import check_fits, memory_limits, merge_budget
from xcray.training.label_groups.data import GroupPlan, make_groups, with_group_labels
from xcray.training.label_groups.plan import plan_groups, summarize_groups
from xcray.training.observer import TrainingObserver
from xcray.training.part_training import PART, PartTraining, with_part_training
from xcray.training.ranking.fit import FittedRanker, fit_ranker, require_rankable
from xcray.training.ranking.queries import ranked_query, search_query
from xcray.training.report.baseline import baseline_warnings
from xcray.training.report.partial import check_any_finished, partial_summary
from xcray.training.report.summary import convergence_warnings, data_report, measure_held_out
from xcray.training.report.timeline import normalize_timeline
from xcray.training.run_lock import hold_run_directory
from xcray.training.spec import TrainSpec
from xcray.training.strategies import make_strategy
from xcray.training.strategy import TrainingContext
from xcray.workers.pool import StopFlag
from xcray.workers.run_metrics import RunMetrics
from xcray.workers.timeline import balance, read_streams


class TrainResult(NamedTuple):
    """Path of the model, its content hash, measures as fractions ("P@1": 0.63), and the report."""

    model_path: Path
    sha256: str
    measures: dict[str, float]
    report: dict[str, Any]


def train(
    spec: TrainSpec,
    *,
    run_dir: Path,
    out: Path,
    progress: Callable[[Progress], None] | None = None,
    stop: StopFlag | None = None,
    job: str = "local",
    notes: Mapping[str, Any] | None = None,
    exclusive: bool = True,
) -> TrainResult:
    """Train `spec` and publish the model directory `out`.

    run_dir: stores finished batches. Call again with the same directory to resume. progress: called
    regularly with a Progress. stop: when set, Stopped is raised within a kernel slice. job: prefix
    of the names of Ray actors. notes: additional entries of the model's report (JSON). With
    spec.max_seconds the labels with the most training rows are solved first. When the time is up,
    the model is published without the other labels; its manifest, card and report state this.
    Calling again with the same run_dir and more time solves the rest. exclusive: see
    `hold_run_directory`. Raises NotFound, Corrupt, ParameterError, InputError; Conflict (`out`
    exists, `run_dir` belongs to another run, or another process uses it); Refused (does not fit in
    memory or on disk, or no label finished in time); Unavailable (no Ray, workers lost); Stopped.
    """
    require_type("spec", spec, TrainSpec, "a TrainSpec, which names the data set and the solver")
    stop = stop or StopFlag()
    with hold_run_directory(Path(run_dir), Path(out), stop, exclusive):
        report = progress or (lambda _: None)
        chosen: dict[str, Any] = {}
        if spec.auto:
            spec, chosen = choose_params(spec, Path(run_dir), Path(out), report, stop)
        training = PartTraining(train_model, report, stop, job)
        plan, weighed = plan_groups(spec, Path(run_dir), training)
        run = _TrainingRun(spec, Path(run_dir), training, plan)
        run.notes = {**chosen, **weighed, **(notes or {})}
        return run.train(Path(out))


def train_model(
    spec: TrainSpec, run_dir: Path, out: Path, training: PartTraining, plan: GroupPlan | None
) -> TrainResult:
    """Train with the chosen parameters and groups, in a run directory that is held already."""
    return _TrainingRun(spec, run_dir, training, plan).train(out)


class _TrainingRun:
    """State of one training run."""

    def __init__(
        self, spec: TrainSpec, run_dir: Path, training: PartTraining, plan: GroupPlan | None
    ) -> None:
        self.spec, self.plan, self.run_dir = spec, plan, run_dir
        self.training, self.stop = training, training.stop
        self.start_time = time.monotonic()
        self.phase_seconds: dict[str, float] = {}
        self.report_progress("LOADING", 0, 0)
        self.dataset = open_verified(spec.dataset)
        self.solver = make_solver(spec.solver, spec.params)
        self.seed = self.solver.seed
        self.dataset.require_labels()
        # the groups of a plan are further labels
        labelled = with_group_labels(self.dataset, plan.clusters) if plan else self.dataset
        self.strategy = make_strategy(
            TrainingContext(
                spec, labelled, self.solver, run_dir, training.job, clusters=plan and plan.clusters
            )
        )
        self.metrics = RunMetrics(self.strategy.workers, self.dataset.train.n_rows)
        self.parts = BlockStore(
            run_dir,
            self._fingerprint(),
            n_labels=labelled.n_labels,
            n_features=self.dataset.n_features,
        )
        self.notes: dict[str, Any] = {"by_frequency": {}}
        self.calibration: tuple[Calibration, dict[str, Any]] | None = None
        self.ranker: FittedRanker | None = None

    def train(self, out: Path) -> TrainResult:
        """Run all phases."""
        self.prepare(out)
        self.solve()
        if self.spec.rank:
            self.fit_ranker()
        return self.publish(out)

    def prepare(self, out: Path) -> None:
        """Estimate the resources and refuse a training that cannot fit or be calibrated."""
        if self.spec.calibrate:
            held_out_part(self.dataset)
        if self.spec.rank:
            require_rankable(self.dataset)
        estimate = self.strategy.estimate(self.parts.missing)
        whole = estimate
        if self.spec.rank and self.spec.groups == "none":  # that of groups is already done
            whole = with_part_training(self.spec, estimate, self.dataset)
        check_fits(whole, memory_limits(self.spec), self.run_dir, out)
        self.monitor = ResourceMonitor(
            estimate, self.strategy.weight_shares(), self.parts, self.run_dir, out
        )

    def solve(self) -> None:
        """Solve the labels that no part holds."""
        self.phase_seconds["LOADING"] = time.monotonic() - self.start_time
        began = time.monotonic()
        self.strategy.solve(
            TrainingObserver(
                self.parts,
                self.run_dir,
                self.stop,
                self.metrics,
                self._seconds_left,
                self._report_solving,
                self.monitor.set_worker_source,
            )
        )
        self.phase_seconds["TRAINING"] = time.monotonic() - began
        check_any_finished(self.dataset.n_labels, self.parts.missing, self.spec.max_seconds)

    def fit_ranker(self) -> None:
        """Fit a ranker; without one, the report states why: few correct candidates, or no time."""
        self._report_phase("RANKING")
        began = time.monotonic()
        training = self.training.renamed("RANKING")
        folder, seed = self.run_dir / PART, self.seed or 0
        left, weight = self._seconds_left(), self.plan.weight if self.plan else 0.0
        self.ranker, notes = fit_ranker(
            self.spec, self.dataset, folder, training, seed, left, weight
        )
        self.notes |= notes
        self.phase_seconds["RANKING"] = time.monotonic() - began

    def publish(self, out: Path) -> TrainResult:
        """Merge the parts, evaluate the model on the held-out part, and publish its directory.

        No step holds all weights in memory.
        """
        if self.strategy.staged is not None:
            return self._publish_stages(out, self.strategy.staged)
        budget = merge_budget(self.spec, int(self.parts.lengths.sum()))
        with Staging(
            out,
            budget,
            on_step=lambda: self._report_phase("MERGING"),
            marker=self.run_dir / "staged",
        ) as staging:
            self._report_phase("MERGING")
            began = time.monotonic()
            merge = partial(
                self.parts.merge,
                budget=budget,
                allow_missing=self.spec.max_seconds is not None,
                positives=self.dataset.label_counts,
                tick=lambda: self._report_phase("MERGING"),
            )
            K, N, groups = self.dataset.n_labels, self.dataset.train.n_rows, None
            block = merge(staging.weights, labels=range(K))
            if self.plan is not None:
                others = range(K, len(self.parts.lengths))
                solved = merge(self.run_dir / "groups.arrow", labels=others)
                groups = make_groups(self.plan, solved)
                self.notes.setdefault("groups", {}).update(summarize_groups(solved, self.solver))
            if self.spec.keep_duals:
                self.notes["duals"] = self.parts.merge_duals(staging.path / DUALS, N, budget)
            index = staging.index(block.bias, self.solver.row_norm, groups)
            self.phase_seconds["MERGING"] = time.monotonic() - began
            query = search_query(index, self.monitor.poll_publishing)
            measures = self._measure(query)
            if self.spec.calibrate and self.ranker is None:
                self._calibrate(query)
            if self.ranker is not None:
                self.ranker[1]["search"] = measures
                ranked = ranked_query(self.ranker[0], self.dataset, index)
                measures = self._measure(ranked, len(self.ranker[0].labels.label_names))
            self._report_phase("PUBLISHING")
            return self._write_model(staging, block._replace(W=index.W), index, measures)

    def _publish_stages(self, out: Path, result: StagedModel) -> TrainResult:
        """Evaluate a chain of stages on the held-out part, and publish its directory."""
        measures = self._measure(result.query)
        if self.spec.calibrate:
            self._calibrate(result.query)
        self._report_phase("PUBLISHING")
        with Staging(out, marker=self.run_dir / "staged") as staging:
            return self._write_model(staging, result.block, None, measures)

    def _write_model(
        self,
        staging: Staging,
        block: SolvedLabels,
        index: SearchIndex | None,
        measures: dict[str, float],
    ) -> TrainResult:
        """Write everything except staged arrays, and publish by rename.

        index: None for a chain of stages.
        """
        timeline, stages = read_streams(self.run_dir), self.strategy.stages
        report = self._make_report(
            block, staging.path, balance(timeline, self.strategy.workers), measures
        )
        content = ModelContent(
            None if index is None else index.W,
            None if index is None else index.b,
            self.dataset.label_names,
            self.dataset.feature_names,
            text=self.dataset.text,
            link=link_of(stages, self.solver.link),
            calibration=self.calibration,
            row_norm=self.solver.row_norm,
            stages=stages,
            groups=None if index is None else index.groups,
            label_texts=open_label_texts(self.dataset),
            ranker=self.ranker,
        )
        record = TrainingRecord(
            self.spec.solver,
            self.solver.as_dict(),
            self.dataset.content_hash,
            seed=self.seed,
            measures=measures,
            report=report,
            label_table=self.strategy.label_table(block, timeline),
            timeline=normalize_timeline(timeline) if timeline.num_rows else None,
            missing=len(self.parts.missing),
            reading=self.dataset.reading,
        )
        model = write_model(staging.target, content, record, staged=staging)
        return TrainResult(model.path, model.sha256, model.measures, report)

    def report_progress(
        self,
        phase: str,
        done: int,
        total: int,
        rate: float = 0.0,
        eta: float | None = None,
        note: str = "",
        newest: Mapping[str, Any] = EMPTY,
    ) -> None:
        """Report progress, or raise Stopped on request; between phases all batches are on disk."""
        if self.stop.is_set():
            raise Stopped(
                "stopped on request; finished batches are kept, the next run does the rest"
            )
        metrics = self.metrics.snapshot() if phase == "TRAINING" else EMPTY
        seconds = time.monotonic() - self.start_time
        step = Progress(phase, done, total, seconds, rate, eta, note, newest, metrics)
        if metrics:
            self.metrics.export(step)
        self.training.progress(step)

    def _report_phase(self, phase: str) -> None:
        """Report a phase after solving: all labels are solved, or the time limit was reached."""
        self.monitor.poll_publishing()
        n_labels = len(self.parts.lengths)
        self.report_progress(phase, n_labels - len(self.parts.missing), n_labels)

    def _report_solving(self, *args: Any, **kwargs: Any) -> None:
        """Report the progress of solving; see `ProgressFn`."""
        self.monitor.poll()
        self.report_progress("TRAINING", *args, **kwargs)

    def _seconds_left(self) -> float | None:
        """Return the rest of the spec's time limit, None without a limit."""
        limit = self.spec.max_seconds
        return None if limit is None else max(0.0, limit - (time.monotonic() - self.start_time))

    def _fingerprint(self) -> dict[str, Any]:
        """Return the data that identifies this run when it is resumed."""
        return {
            "solver": self.spec.solver,
            "revision": self.solver.revision,
            "params": self.solver.as_dict(),
            "dataset": self.dataset.content_hash,
            "format": 1,
            **self.strategy.run_settings(),
        }

    def _measure(self, query: SearchFn, n_labels: int | None = None) -> dict[str, float]:
        """Return measures on the held-out part; empty without one.

        query: returns the k best labels of rows, of the data set or of `n_labels`.
        """
        test, ks = self.dataset.test, self.spec.ks
        if test is None or test.n_rows == 0:
            return {}
        self._report_phase("EVALUATING")
        began, top = time.monotonic(), query(test.X, max(ks))
        measures, notes = measure_held_out(top, self.dataset, ks, n_labels)
        self.notes |= notes
        self.phase_seconds["EVALUATING"] = time.monotonic() - began
        return measures

    def _calibrate(self, query: SearchFn) -> None:
        """Fit probabilities on the held-out part.

        With too few correct answers the model is not calibrated, and its report states why.
        """
        self._report_phase("CALIBRATING")
        began = time.monotonic()
        try:
            self.calibration = calibrate_held_out(query, self.dataset, self.seed or 0, self.spec.ks)
        except InputError as error:
            self.notes["not_calibrated"] = error.message
        self.phase_seconds["CALIBRATING"] = time.monotonic() - began

    def _make_report(
        self,
        block: SolvedLabels,
        staged: Path,
        balance_report: dict[str, Any],
        measures: dict[str, float],
    ) -> dict[str, Any]:
        """Return the report of the training; JSON.

        balance_report: distribution of the work over workers.
        """
        seconds = self.phase_seconds["TRAINING"] + self.phase_seconds.get("MERGING", 0.0)
        actual = {
            "weights": int(self.parts.lengths.sum()) + sum(map(n_weights, self.strategy.stages)),
            "model": sum(path.stat().st_size for path in staged.rglob("*.arrow")),
            "core_seconds": balance_report["core_seconds"],
            "seconds": round(seconds, 3),
        }
        outcome = self.strategy.summarize(block, measures)
        return {
            "data": data_report(self.dataset),
            "pool": self.spec.pool,
            "workers": self.strategy.workers,
            "seconds": {phase: round(seconds, 3) for phase, seconds in self.phase_seconds.items()},
            **outcome,
            "warnings": convergence_warnings(self.solver, outcome)
            + ([] if len(self.parts.missing) else baseline_warnings(self.dataset, measures)),
            "damaged_parts": self.parts.damaged,
            **balance_report,
            "preflight": self.monitor.summarize(actual),
            **partial_summary(self.dataset.label_counts, self.parts.missing, self.spec.max_seconds),
            **self.notes,
        }
