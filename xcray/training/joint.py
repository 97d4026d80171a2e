"""What trainings of all labels together share: their team of workers, how far they are, and what the report says of them.

Such a training goes in epochs (or rounds), has one objective for all labels, and ends with weights of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from xcray.arrays import Float64
from xcray.errors import lacking_ray
from xcray.schedule.placement import A_CPU, Need
from xcray.solvers.solved_labels import Block
from xcray.storage.arrow import write_table
from xcray.training.capacity.preflight import workers_of
from xcray.training.report.summary import class_table
from xcray.training.spec import TrainSpec, link_of
from xcray.training.strategy import Desk, Setting
from xcray.workers.local_group import ThreadTeam
from xcray.workers.worker_group import HandWork, Team

ENTRIES: Final = 500  # of a history, in a report
EPOCHS: Final = "epochs.arrow"  # of the model's directory: the whole of a long history
FOLDER: Final = "rests"  # of the run directory, where checkpoints are
TOLD: Final = (
    "epoch",
    "objective",
    "held_out",
    "P@1",
)  # of a history's entry, in progress and events


class Together:
    """What is the same in the ways of such families; see `Way`."""

    def __init__(self, at: Setting) -> None:
        self._at = at
        self._solver = at.solver
        self.workers = workers_at(at)
        self.link = link_of(at.solver)

    @property
    def folder(self) -> Path:
        """Where checkpoints are, and how the training ended."""
        return self._at.run_dir / FOLDER

    def shares(self) -> Float64:
        """All labels alike: every weight is there until small ones are dropped."""
        return np.ones(self._at.dataset.n_labels)

    def classes(self, block: Block, timeline: pa.Table) -> pa.Table:
        """Without seconds and workers: all labels are trained together."""
        return class_table(block).drop_columns(["seconds", "worker"])


def open_ended(at: Setting) -> bool:
    """Whether a training is to use what there is of a cluster that others run."""
    return (
        at.spec.pool == "ray"
        and at.spec.ray_address is not None
        and not at.spec.workers
        and at.cluster
    )


def workers_at(at: Setting) -> int:
    """How many workers a training begins with; where it names no number, one for each processor that it can have: of the cluster
    it joins, else of this machine. Raises Unavailable when the cluster can't be asked."""
    if not open_ended(at):
        return workers_of(at.spec)
    try:
        from xcray.workers.ray.cluster_state import cores_at
        from xcray.workers.ray.pool import MOST
    except ModuleNotFoundError as error:
        raise lacking_ray(error) from None
    return min(cores_at(str(at.spec.ray_address)), MOST)


def team_of(
    spec: TrainSpec, work: HandWork, workers: int, job: str, store: int, most: int | None = None
) -> Team:
    """The team that the spec asks for; not open yet. Serial is a team of one thread, so that a stop is heard meanwhile.

    store: bytes that the workers hold together in Ray's object store, where the training starts a Ray of its own. most: so many
    there may be should a cluster grow, and one will do to begin with; by default all of them are waited for.
    """
    if spec.pool != "ray":
        return ThreadTeam(work, workers)
    try:
        from xcray.workers.ray.pool import session
        from xcray.workers.ray.worker_group import RayTeam
    except ModuleNotFoundError as error:
        raise lacking_ray(error) from None
    need = Need(store=store / workers) if spec.ray_address is not None else A_CPU
    where = session(spec.ray_address, workers, store)
    return RayTeam(
        work,
        max(workers, most or 0),
        where,
        job,
        need=need,
        begin=workers,
        least=1 if most else None,
    )


def tell(
    desk: Desk,
    done: float,
    total: int,
    rate: float,
    eta: float | None,
    newest: Mapping[str, Any],
    note: str = "",
) -> None:
    """Report how far a training is. newest: the last entry of its history; note: what was unusual."""
    desk.vitals.reach_epoch(done)
    shown = {name: newest[name] for name in TOLD if newest.get(name) is not None}
    words = {"objective": "objective {:.6g}", "held_out": "held-out loss {:.4g}"}
    said = [words[name].format(shown[name]) for name in words if name in shown]
    desk.tell(int(done), total, rate, eta, ", ".join([*said, *([note] if note else [])]), shown)


def outcome(
    found: Mapping[str, Any], block: Block, measures: Mapping[str, float]
) -> dict[str, Any]:
    """How a training came out, for its report; JSON.

    found: "epochs", "objective", "reason" and "history" of the training; block: of all labels, as published; measures: of the
    published model. "export" compares what held-out rows said of all weights, at the last rest, with the published ones.
    """
    records, history = block.records, [each for each in found["history"] if not each.get("back")]
    last = history[-1] if history else {}
    export = compared(last, measures)
    pruned = int(records["pruned"].sum()) if "pruned" in (records.dtype.names or ()) else 0
    return {
        "classes": len(block.labels),
        "classes_without_positives": int((records["positives"] == 0).sum()),
        "weights": block.W.nnz,
        "weights_pruned": pruned,
        "objective": found["objective"],
        "epochs": found["epochs"],
        "stopped": found["reason"],
        **({"held_out": last["held_out"]} if last.get("held_out") is not None else {}),
        **({"export": export} if export else {}),
        "history": [dict(entry) for entry in found["history"]],
    }


def compared(
    full: Mapping[str, Any], published: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Measures that both have: of all weights, of those published, and what the small weights were worth (all as fractions)."""
    both = [
        name
        for name, value in full.items()
        if "@" in name and value is not None and name in published
    ]
    return {
        name: {
            "full": full[name],
            "published": published[name],
            "loss": round(full[name] - published[name], 6),
        }
        for name in both
    }


def keep_history(report: dict[str, Any], folder: Path) -> None:
    """Where the history of a report is long, leave ENTRIES of it there, and write all of it to epochs.arrow in `folder`.

    A row an entry, a column a name; an entry without that name has null there.
    """
    history = report.get("history", ())
    if len(history) <= ENTRIES:
        return
    names = dict.fromkeys(name for entry in history for name in entry)
    write_table(
        folder / EPOCHS, pa.table({name: [entry.get(name) for entry in history] for name in names})
    )
    report["history"] = thinned(history)


def thinned(history: Sequence[Mapping[str, Any]], most: int = ENTRIES) -> list[dict[str, Any]]:
    """At most about `most` entries, evenly, the first and the last among them."""
    step = -(-len(history) // most) or 1
    kept = [dict(entry) for entry in history[::step]]
    return kept if not history or (len(history) - 1) % step == 0 else [*kept, dict(history[-1])]
