"""Check that kills do not change the model: killed workers, a killed driver and its resume.

`python -m benchmarks.training.kills [--data DIR] [--set gutenberg_lcsh] [--kills 3] [--seed 0]`

The trainings use 1, 2 and 4 workers, threads and Ray, with three kill -9 of workers. Every training
must have the SHA-256 of the first. Workers are killed at random shares of the job, by the process
id that the job's actor reports. The work lost with a worker is the time of its current batch in the
timeline. The work lost with a driver is about the seconds since the last commits, one per worker.
Without --data the set is synthetic.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import ray

from benchmarks.common import arguments, dataset, in_folder
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.telemetry.progress import Progress
from xcray.training import TrainSpec, train
from xcray.workers.ray.session import local_ray
from xcray.workers.timeline import DONE, LOST, read_streams

SMALL = {"rows": 40_000, "features": 20_000, "labels": 20_000, "seed": 1}
JOB = "kills"


def spec(data: Dataset, pool: str, workers: int, address: str | None = None) -> TrainSpec:
    """Return the training that is repeated."""
    return TrainSpec(str(data.path), pool=pool, workers=workers, ray_address=address)


def run(
    data: Dataset,
    place: Path,
    title: str,
    pool: str,
    workers: int,
    watch: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Run one training to its end; return its hash, time and lost work."""
    began = time.perf_counter()
    result = train(
        spec(data, pool, workers),
        run_dir=place / "run",
        out=place / "model",
        progress=watch,
        job=JOB,
    )
    seconds, timeline = time.perf_counter() - began, read_streams(place / "run")
    lost = timeline.filter(pc.equal(timeline.column("outcome"), LOST))
    done = timeline.filter(pc.equal(timeline.column("outcome"), DONE))
    row = {
        "run": title,
        "pool": pool,
        "workers": workers,
        "sha256": result.sha256,
        "seconds": seconds,
        "makespan": result.report["makespan"],
        "core_seconds": result.report["core_seconds"],
        "work_lost_seconds": lost.column("seconds").to_pylist(),
        "longest_batch_seconds": pc.max(done.column("seconds")).as_py(),
    }
    print(
        f"{title:32s} {row['sha256'][:16]} {seconds:7.2f} s, lost {[round(s, 3) for s in row['work_lost_seconds']]}",
        flush=True,
    )
    return row


class Killer:
    """Progress callback that kills a worker of this job at random shares of solved classes."""

    def __init__(self, kills: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._marks = sorted(self._random.uniform(0.05, 0.85, kills).tolist())
        self.killed: list[dict[str, Any]] = []

    def __call__(self, progress: Progress) -> None:
        """Kill a worker if the next share is reached."""
        if (
            progress.phase == "TRAINING"
            and self._marks
            and progress.done > self._marks[0] * progress.total
        ):
            names = [
                name for name in ray.util.list_named_actors() if name.startswith(f"xcray:{JOB}:")
            ]
            name = str(self._random.choice(sorted(names)))
            pid = ray.get(ray.get_actor(name).pid.remote())
            os.kill(pid, signal.SIGKILL)
            self.killed.append({"worker": name, "at_share": progress.done / progress.total})
            self._marks.pop(0)


def kill_driver(
    data: Dataset, place: Path, pool: str, workers: int, address: str | None, share: float
) -> dict[str, Any]:
    """Run a training in a separate process, and kill it when `share` of the classes is committed.

    Return what it leaves on disk.
    """
    place.mkdir()
    text = json.dumps({**spec(data, pool, workers, address).as_dict(), "place": str(place)})
    child = subprocess.Popen([sys.executable, "-m", "benchmarks.training.kills", "--child", text])
    try:
        while committed(place) < share * data.n_labels and child.poll() is None:
            time.sleep(0.02)
    finally:
        child.kill()
        killed = time.time()
        child.wait()
    times = sorted(
        (path.stat().st_mtime for path in (place / "run").glob("part-*.arrow")), reverse=True
    )
    about = sum(killed - each for each in times[:workers])
    return {
        "committed_share": committed(place) / data.n_labels,
        "work_lost_seconds_about": about,
        "exit": child.returncode,
    }


def committed(place: Path) -> int:
    """Return the number of classes in the part files of a run.

    The timeline's rows and the files are counted, which is cheap enough for polling.
    """
    timeline = read_streams(place / "run")
    return int(
        pc.sum(
            timeline.filter(pc.equal(timeline.column("outcome"), DONE)).column("n_labels")
        ).as_py()
        or 0
    )


def child(text: str) -> None:
    """Run the driver that will be killed."""
    values = json.loads(text)
    place = Path(values.pop("place"))
    train(TrainSpec.from_dict(values), run_dir=place / "run", out=place / "model", job=JOB)


def everything(data: Dataset, folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Do all runs of one set."""
    rows = [run(data, folder / f"threads-{n}", f"threads, {n}", "threads", n) for n in (1, 2, 4)]
    drivers = []
    for pool in ("threads", "ray"):
        with local_ray(num_cpus=4) as address:
            if pool == "ray":
                rows += [run(data, folder / f"ray-{n}", f"Ray, {n}", "ray", n) for n in (1, 2, 4)]
                killer = Killer(kills, seed)
                rows.append(
                    {
                        **run(data, folder / "killed", f"Ray, 4, {kills} kills", "ray", 4, killer),
                        "kills": killer.killed,
                    }
                )
            place = folder / f"driver-{pool}"
            left = kill_driver(data, place, pool, 2, address if pool == "ray" else None, 0.4)
            rows.append(run(data, place, f"{pool}, 2, driver killed", pool, 2))
            drivers.append({"pool": pool, **left})
            print(drivers[-1], flush=True)
    return {"set": data.name, "labels": data.n_labels, "runs": rows, "drivers": drivers}


def verdict(record: dict[str, Any], kills: int) -> dict[str, Any]:
    """Return the checks of all runs.

    All have one hash; all kills happened, those of drivers during the training; at most one batch
    is lost per worker, and not longer than a whole batch.
    """
    killed = next(row for row in record["runs"] if "kills" in row)
    return {
        "same_sha256": len({row["sha256"] for row in record["runs"]}) == 1,
        "workers_killed": len(killed["kills"]) == kills,
        "drivers_killed_midway": all(
            driver["exit"] == -9 and driver["committed_share"] < 1.0 for driver in record["drivers"]
        ),
        "one_batch_a_kill_at_most": len(killed["work_lost_seconds"]) <= kills,
        "largest_loss_seconds": max(killed["work_lost_seconds"], default=0.0),
        "longest_batch_seconds": killed["longest_batch_seconds"],
    }


def main() -> None:
    """Run everything and print the JSON; exit 1 if a hash differs."""
    chosen = arguments(
        __doc__ or "",
        set={"default": "gutenberg_lcsh", "help": "the set of --data to train on"},
        kills={"type": int, "default": 3},
        seed={"type": int, "default": 0},
        child={"help": "for internal use"},
    )
    if chosen.child:
        child(chosen.child)
        return

    def all_runs(folder: Path) -> dict[str, Any]:
        if chosen.data is None:
            data = build(
                "synthetic", {}, folder / "made", BuildOptions.from_dict({"synthetic": SMALL})
            )
        else:
            data = dataset(chosen.set, chosen.data, folder)
        result = everything(data, folder, chosen.kills, chosen.seed)
        bars = verdict(result, chosen.kills)
        print(bars, flush=True)
        if not (
            bars["same_sha256"] and bars["workers_killed"] and bars["one_batch_a_kill_at_most"]
        ):
            raise SystemExit(f"a check failed: {bars}")
        return {"benchmark": "kills", "bars": bars, **result}

    in_folder(all_runs, chosen.json)


if __name__ == "__main__":
    main()
