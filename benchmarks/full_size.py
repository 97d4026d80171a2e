"""Train, publish, search and serve a generated set of the size of a public one, phase by phase.

`python -m benchmarks.full_size [--shape amazon|wiki|...] [--scale 0.1] [--kills threads|ray]`

The rows are generated (`benchmarks.data.corpus`): as many rows, features, labels, and words and
labels per row as in the original, other words. The training has the defaults of PPDSparse. Each
part runs in a process of its own. For every phase the benchmark gives seconds, processor seconds,
peak of resident memory (mapped files count) and what is on disk, next to the core seconds of the
PPDSparse paper, Table 1, on 100 cores. With --kills a second training, on threads or on Ray actors,
is ended by SIGKILL when 30, 60 and 90 % of the labels are done, and resumed each time; its model
must have the same SHA-256. Its processor seconds on Ray are those of the driver.
With --folder everything is kept in DIR, and parts that are complete are not made again. --price:
of a core hour, for the cost per thousand labels and per million requests.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.data.corpus import Shape, generate
from benchmarks.data.shapes import TASKS
from benchmarks.harness import run_benchmark, service
from benchmarks.serving.__main__ import load, processor_seconds, sparse
from xcray.data.dataset import Dataset
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.system.units import format_bytes
from xcray.training import TrainSpec, train

PAPER_CORES: Final = 100
# rows, words and labels per row of the Extreme Classification Repository
_DELICIOUS = Shape("delicious", 205_443, 782_585, 196_606, 340, 75.5, most=0.3)
_AMAZONCAT = Shape("amazoncat", 13_330, 203_882, 1_186_239, 80, 5.04, most=0.28)
KILLS: Final = (0.3, 0.6, 0.9)  # shares of the labels
QUERIES: Final = 1000
KS: Final = (5, 100)
SERVED_SECONDS: Final = 10.0


class Original(NamedTuple):
    """A shape, and the seconds of PPDSparse on 100 cores in Table 1 of its paper."""

    shape: Shape
    paper_seconds: float


SHAPES: Final = {
    "amazon": Original(TASKS["amazon"].shape, 921.9),
    "wiki": Original(replace(TASKS["wiki"].shape, rows=1_778_351), 353.0),
    "delicious": Original(_DELICIOUS, 2869.0),
    "amazoncat": Original(_AMAZONCAT, 122.8),
}


class Meter:
    """Measures the phases of its process, and sends them to the parent."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._phase = ""
        self._start()

    def _start(self) -> None:
        """Begin a phase: reset the peak of the resident memory."""
        Path("/proc/self/clear_refs").write_text("5")
        self._began, self._cpu = time.perf_counter(), time.process_time()

    def enter(self, phase: str) -> None:
        """Send the figures of the current phase, and begin another one."""
        if phase == self._phase:
            return
        if self._phase:
            self._pipe.send(
                {
                    "phase": self._phase,
                    "seconds": round(time.perf_counter() - self._began, 2),
                    "cpu_seconds": round(time.process_time() - self._cpu, 2),
                    "peak_bytes": _peak_bytes(),
                }
            )
        self._phase = phase
        self._start()

    def report(self, done: float) -> None:
        """Send a share of a phase, and its processor seconds so far."""
        self._pipe.send({"share": done, "cpu_seconds": time.process_time() - self._cpu})


def _peak_bytes() -> int:
    """Return the peak of the resident memory since `Meter.enter`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def _generate(meter: Meter, pipe: Connection, shape: Shape, path: str) -> None:
    """Generate the data set."""
    meter.enter("DATA")
    generate(shape, Path(path))


def _train(meter: Meter, pipe: Connection, run: str, out: str, spec: TrainSpec) -> None:
    """Train, and publish the model."""

    def progress(step: Any) -> None:
        meter.enter(step.phase)
        if step.phase == "TRAINING" and step.total:
            meter.report(step.done / step.total)

    result = train(spec, run_dir=Path(run), out=Path(out), progress=progress)
    pipe.send({"sha256": result.sha256, "measures": result.measures, "report": result.report})


def _search(meter: Meter, pipe: Connection, data: str, model: str) -> None:
    """Open the model with its checksums verified, and time single queries on one thread."""
    meter.enter("OPEN")
    search = Model.open(model).search
    meter.enter("SEARCH")
    part = Dataset.open(data).test
    assert part is not None
    rows = [part.X.row(i) for i in range(min(QUERIES, part.n_rows))]
    queries = [type(part.X)(np.array([0, len(row[0])]), *row, part.X.n_cols) for row in rows]
    out = {}
    for k in KS:
        times = []
        for query in (*queries[:20], *queries):
            began = time.perf_counter()
            search.query(query, k)
            times.append(1e3 * (time.perf_counter() - began))
        p50, p99 = np.percentile(times[20:], (50, 99))
        out[f"k={k}"] = {"p50_ms": round(float(p50), 3), "p99_ms": round(float(p99), 3)}
    pipe.send({"queries": out})


def run_part(
    part: Callable[..., None], *args: Any, kill_at: float | None = None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run a part in a new process; return its phases and its result.

    kill_at: share of the labels at which the process is ended by SIGKILL. Raises SystemExit if it
    fails.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(part, sender, *args))
    process.start()
    sender.close()
    phases: list[dict[str, Any]] = []
    result: dict[str, Any] = {}
    killed = False
    while True:
        try:
            message = receiver.recv()
        except EOFError:
            break
        if "phase" in message:
            phases.append(message)
            print(_line(message), flush=True)
        elif "share" not in message:
            result |= message
        elif kill_at is not None and message["share"] >= kill_at and not killed:
            killed = True
            process.kill()
            result = message
    process.join()
    if process.exitcode and not killed:
        raise SystemExit(f"{part.__name__} ended with {process.exitcode}")
    return phases, result


def _child(part: Callable[..., None], pipe: Connection, *args: Any) -> None:
    """Run a part in this process."""
    meter = Meter(pipe)
    part(meter, pipe, *args)
    meter.enter("")
    pipe.close()


def _line(phase: Mapping[str, Any]) -> str:
    """Return a phase as a line of text."""
    return (
        f"{phase['phase']:<12} {phase['seconds']:>9.1f} s {phase['cpu_seconds']:>9.1f} CPU s"
        f" {format_bytes(phase['peak_bytes']):>10} at the peak"
    )


def on_disk(folder: Path) -> dict[str, int]:
    """Return the files below a folder and their bytes."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {"files": len(files), "bytes": sum(path.stat().st_size for path in files)}


def train_killed(spec: TrainSpec, folder: Path) -> dict[str, Any]:
    """Train with kills; return the SHA-256, and what the attempts took.

    Each attempt but the last is killed.
    """
    args = str(folder / "killed-run"), str(folder / "killed"), spec
    cpu = [run_part(_train, *args, kill_at=share)[1]["cpu_seconds"] for share in KILLS]
    phases, result = run_part(_train, *args)
    cpu.append(next(each["cpu_seconds"] for each in phases if each["phase"] == "TRAINING"))
    return {
        "pool": spec.pool,
        "sha256": result["sha256"],
        "cpu_seconds": [round(each, 2) for each in cpu],
        "lost_seconds": result["report"]["work_lost_seconds"],
        "run": on_disk(folder / "killed-run"),
    }


def serve(model: Path, data: Path, folder: Path) -> dict[str, Any]:
    """Serve the model; return the rate and the processor time of requests of one sparse row."""
    home, part = folder / "home", Dataset.open(data).test
    assert part is not None
    registry = Registry(home / "models")
    if not (home / "models").is_dir():
        (folder / "copy").mkdir()
        for path in (each for each in model.rglob("*") if each.is_file()):
            target = folder / "copy" / path.relative_to(model)
            target.parent.mkdir(exist_ok=True)
            os.link(path, target)  # publishing moves the files
        registry.publish("full-size", folder / "copy")
    rows = [sparse(part.X.row(i)) for i in range(min(QUERIES, part.n_rows))]
    bodies = [json.dumps({"instances": [row], "top_k": 5}) for row in rows]
    case = {"model": "full-size", "bodies": bodies}
    with service(home, 1, {}) as (url, process):
        load(url, case, 1.0, connections=1)
        before = processor_seconds(process)
        out = load(url, case, SERVED_SECONDS, connections=8)
        used = processor_seconds(process) - before
    return {**out, "cpu_seconds_per_request": used / max(out["answered"], 1)}


def cost(price: float, labels: int, cpu_seconds: float, per_request: float) -> dict[str, float]:
    """Return what core hours cost: per thousand labels trained, and per million requests."""
    return {
        "price_per_core_hour": price,
        "per_thousand_labels": round(price * cpu_seconds / 3600 / labels * 1e3, 6),
        "per_million_requests": round(price * per_request / 3600 * 1e6, 4),
    }


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Run all parts one after the other."""
    folder = options.folder or folder
    folder.mkdir(parents=True, exist_ok=True)
    original, data, model = SHAPES[options.shape], folder / "data", folder / "model"
    shape = original.shape if options.scale == 1.0 else original.shape.scaled(options.scale)
    phases = [] if data.exists() else run_part(_generate, shape, str(data))[0]
    result: dict[str, Any] = {}
    spec = TrainSpec(str(data), name="full-size", workers=options.workers)
    if not model.exists():
        trained, result = run_part(_train, str(folder / "run"), str(model), spec)
        phases += trained
    searched, queries = run_part(_search, str(data), str(model))
    phases += searched
    served = serve(model, data, folder)
    solving = ("LOADING", "TRAINING", "MERGING", "EVALUATING", "PUBLISHING")
    cpu = sum(each["cpu_seconds"] for each in phases if each["phase"] in solving)
    paper = PAPER_CORES * original.paper_seconds
    out = {
        "benchmark": "full_size",
        "shape": {name: getattr(shape, name) for name in ("labels", "features", "rows")},
        "scale": options.scale,
        "rows": "generated, not those of the original",
        "phases": phases,
        "training_cpu_seconds": round(cpu, 1),
        "paper_core_seconds": paper if options.scale == 1.0 else None,
        "paper_over_this": round(paper / cpu, 1) if options.scale == 1.0 and cpu else None,
        "run": on_disk(folder / "run"),
        "model": on_disk(model),
        "sha256": Model.open(model, verify=False).sha256,
        "measures": Model.open(model, verify=False).measures,
        "preflight": result.get("report", {}).get("preflight", {}).get("compared"),
        **queries,
        "served": served,
        "cost": cost(options.price, shape.labels, cpu, served["cpu_seconds_per_request"]),
        "wrong": [],
    }
    if options.kills:
        out["killed"] = train_killed(replace(spec, pool=options.kills), folder)
        if out["killed"]["sha256"] != out["sha256"]:
            out["wrong"].append("the model of the killed training has another SHA-256")
    return out


def main() -> None:
    """Run the parts and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        quick={"scale": 0.01, "kills": "threads"},
        shape={"choices": list(SHAPES), "default": "amazon"},
        scale={"type": float, "default": 1.0, "help": "share of rows and labels"},
        workers={"type": int, "default": 2, "help": "of the training"},
        kills={
            "choices": ("threads", "ray"),
            "help": "train again on this pool, killed three times",
        },
        folder={"type": Path, "help": "keeps everything; default: temporary"},
        price={"type": float, "default": 0.05, "help": "of a core hour, for the cost"},
    )


if __name__ == "__main__":
    main()
