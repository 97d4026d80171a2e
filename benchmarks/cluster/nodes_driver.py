"""Driver of a training that `benchmarks.cluster.nodes` observes, on the head of a Ray.

`python -m benchmarks.cluster.nodes_driver JSON` takes the keys `spec` (see TrainSpec), `place` (a
folder), `eager` (start all workers, however little work there is), `together` (solve no label
before all workers are there), `checkpoint_seconds` (the checkpoint interval of DS-MLR) and `stores`
(sample the object stores; a node that hangs delays it).
It writes PLACE/seen.jsonl, one line per change of the progress, of the living nodes or of their
object stores, and PLACE/result.json at the end.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from xcray.storage import checkpoints
from xcray.storage.atomic import write_json
from xcray.telemetry.progress import Progress
from xcray.training import TrainSpec, train
from xcray.workers.ray import pool as ray_pool
from xcray.workers.ray.workers import RayWorkers

LOOK = 0.1  # seconds between two samples
JOB = "job-nodes"


class ClusterSampler:
    """Thread that samples the cluster and records changes. stores: also the object stores."""

    def __init__(self, path: Path, *, stores: bool) -> None:
        self._out, self._stores = path.open("w"), stores
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._known: dict[str, Any] = {}

    def __enter__(self) -> ClusterSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._out.close()

    def progress(self, report: Progress) -> None:
        """Record the progress of the training."""
        self.note(phase=report.phase, done=report.done, total=report.total, note=report.note)

    def note(self, **values: Any) -> None:
        """Write one line if a value has changed."""
        with self._lock:
            new = {name: value for name, value in values.items() if self._known.get(name) != value}
            self._known |= new
            if new:
                self._out.write(json.dumps({"at": time.time(), **new}) + "\n")
                self._out.flush()

    def _sample(self) -> None:
        """Sample the nodes. Ray can be away, or not started yet."""
        import ray
        from ray._private.internal_api import node_stats

        while not self._over.wait(LOOK):
            if ray.is_initialized():
                with contextlib.suppress(
                    ray.exceptions.RayError, RuntimeError, ValueError, AttributeError, KeyError
                ):
                    alive = {n["NodeManagerAddress"]: n for n in ray.nodes() if n["Alive"]}
                    self.note(nodes={address: n["NodeID"] for address, n in alive.items()})
                    for address, n in alive.items() if self._stores else ():
                        store = node_stats(address, n["NodeManagerPort"], False).store_stats
                        names = ("object_store_bytes_used", "object_store_bytes_fallback")
                        sizes = [getattr(store, name) for name in (*names, "spilled_bytes_total")]
                        self.note(**{f"store-{address}": sizes})


def main(text: str) -> None:
    """Run one training."""
    document = json.loads(text)
    place, spec = Path(document["place"]), TrainSpec.from_dict(document["spec"])
    if "checkpoint_seconds" in document:
        seconds = float(document["checkpoint_seconds"])
        checkpoints.seconds_between = lambda _: seconds
    if document.get("eager"):
        ray_pool.scaling_policy_for = lambda _: None
    opened: list[float] = []
    open_workers = RayWorkers.open

    def noted(self: RayWorkers) -> None:
        open_workers(self)
        opened.append(self._opened)
        while document.get("together") and len(self.available) < self._n_desired:
            self.wait(LOOK)  # type: ignore[attr-defined]

    RayWorkers.open = noted  # type: ignore[method-assign]
    stores = bool(document.get("stores"))
    with ClusterSampler(place / "seen.jsonl", stores=stores) as looker:
        result = train(
            spec, run_dir=place / "run", out=place / "model", progress=looker.progress, job=JOB
        )
    fields = {
        "sha256": result.sha256,
        "report": result.report,
        "measures": result.measures,
        "opened": opened,
    }
    write_json(place / "result.json", fields)


if __name__ == "__main__":
    main(sys.argv[1])
