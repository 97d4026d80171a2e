"""A long mixed load on a service, to find leaks, failures and replies that mix two versions.

`python -m benchmarks.soak [--minutes 30] [--switches 20] [--workers 1] [--json FILE]
[--picture FILE]`

Clients of every kind (`benchmarks.soak.traffic`) use a real service with a separate home. Meanwhile
its models are changed: new versions, aliases, splits, shadows, deletions, spread evenly over the
time. Its processes are sampled every few seconds. Reported are the slope of memory after the
warm-up (least squares, with its standard error), file descriptors and threads before and after,
errors by kind (must be none), mixed replies (must be none), and latencies by kind. The exit status
is 1 after errors or mixed replies, or if a serving process has more file descriptors or threads at
the end than after the warm-up.

`service` are the serving processes; `all` includes runners, builds and their children. `private`
memory excludes file-backed pages, such as models. Figures are of this machine, clients included.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from benchmarks.harness import run_benchmark, service
from benchmarks.matplotlib_page import figure_page
from benchmarks.soak.traffic import Models, Record, clients
from xcray.client import Client

EVERY: Final = 3.0  # seconds between samples
WARM_SHARE, WARM_MOST = (
    0.25,
    300.0,
)  # warm-up as a share of the time, and its maximum in seconds: caches and pools fill
REST: Final = (
    15.0  # seconds without requests before the last sample, so that unused models are unloaded
)
MORE_FDS: Final = (
    5  # additional descriptors allowed at the end, such as a store connection or a log
)
SETTINGS: Final = {
    "XCRAY_KEEP_JOBS_DAYS": "0.01",
    "XCRAY_MAX_RUNNING_JOBS": "2",
    "XCRAY_LOG_LEVEL": "warning",
}


def answering(first: psutil.Process) -> list[psutil.Process]:
    """Return the serving processes, including the worker manager."""
    workers = []
    for each in first.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "xcray.service.processes.worker" in each.cmdline():
                workers.append(each)
    return [first, *workers]


def look(first: psutil.Process, home: Path, begun: float) -> dict[str, float]:
    """Return one sample."""
    out: dict[str, float] = {"at": time.monotonic() - begun}
    names = ("rss", "private", "fds", "threads", "files")
    for group, processes in (
        ("service", answering(first)),
        ("all", [first, *first.children(recursive=True)]),
    ):
        sums = dict.fromkeys(names, 0.0)
        for each in processes:
            with contextlib.suppress(psutil.Error):  # the process has just ended
                memory = each.memory_full_info()
                figures = (
                    memory.rss,
                    memory.uss,
                    each.num_fds(),
                    each.num_threads(),
                    len(each.open_files()),
                )
                for name, value in zip(names, figures, strict=True):
                    sums[name] += value
        out |= {f"{group}_{name}": value for name, value in sums.items()} | {
            f"{group}_processes": len(processes)
        }
    out["store_bytes"] = sum(path.stat().st_size for path in home.glob("xcray.db*"))
    out["home_bytes"] = size_of(home)
    return out


def size_of(home: Path) -> int:
    """Return the bytes on disk; files appear and disappear meanwhile."""
    total = 0
    for folder, _, names in os.walk(home):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(f"{folder}/{name}").st_blocks * 512
    return total


def slope(at: np.ndarray, values: np.ndarray) -> dict[str, float]:
    """Return units per hour by least squares, with the standard error. at: seconds."""
    if len(at) < 3:
        return {"per_hour": float("nan"), "error": float("nan")}
    hours = (at - at.mean()) / 3600.0
    spread = float((hours**2).sum())
    rise = float((hours * (values - values.mean())).sum()) / spread
    residue = values - values.mean() - rise * hours
    return {"per_hour": rise, "error": float(np.sqrt((residue**2).sum() / (len(at) - 2) / spread))}


def observe(
    first: psutil.Process, home: Path, begun: float, seconds: float, ending: threading.Event
) -> list[dict[str, float]]:
    """Return samples until the time is up."""
    samples = []
    while time.monotonic() - begun < seconds and not ending.is_set():
        samples.append(look(first, home, begun))
        ending.wait(EVERY)
    return samples


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Run the whole benchmark."""
    home = folder / "home"
    home.mkdir()
    seconds = 60.0 * options.minutes
    models, record, ending = Models(home, folder), Record(), threading.Event()
    models.prepare()
    with service(home, options.workers, SETTINGS) as (url, first):
        with Client(url) as client:
            client.predict("docs", ["warm up"])
            begun = time.monotonic()
            before = look(first, home, begun)
            threads = clients(
                url, folder, models, record, ending, seconds=seconds, switches=options.switches
            )
            for thread in threads:
                thread.start()
            try:
                samples = observe(first, home, begun, seconds, ending)
            finally:
                ending.set()
                for thread in threads:
                    thread.join(180)
            alive = [thread.name for thread in threads if thread.is_alive()]
            time.sleep(REST)
            after = look(first, home, begun)
            ready = client._connection.request("GET", "/readyz")
    result = {
        **report(before, after, samples, record, models, seconds),
        "hung": alive,
        "degraded": ready["degraded"],
    }
    print_figures(result)
    return {**result, "wrong": leaks(result)}


def report(
    before: dict[str, float],
    after: dict[str, float],
    samples: list[dict[str, float]],
    record: Record,
    models: Models,
    seconds: float,
) -> dict[str, Any]:
    """Return the figures of the run."""
    warm = min(WARM_MOST, WARM_SHARE * seconds)
    late = [sample for sample in samples if sample["at"] >= warm]
    at = np.array([sample["at"] for sample in late])
    slopes = {}
    for name in ("service_rss", "service_private", "all_rss", "store_bytes", "home_bytes"):
        result = slope(at, np.array([sample[name] for sample in late]))
        slopes[name] = {key: round(value / 2**20, 2) for key, value in result.items()}
    first_warm = late[0] if late else before
    selection = (
        "service_rss",
        "service_private",
        "service_fds",
        "service_threads",
        "service_files",
        "all_processes",
        "home_bytes",
    )
    return {
        "seconds": round(seconds, 1),
        "warm_up": round(warm, 1),
        "mb_per_hour": slopes,
        **{
            when: {name: each[name] for name in selection}
            for when, each in (("before", before), ("warm", first_warm), ("after", after))
        },
        "requests": record.counts(),
        "latencies_ms": record.latencies(),
        "errors": record.errors(),
        "mixed": record.mixed,
        "switches": models.switches,
        "versions_seen": len(record.versions),
        "samples": [
            {name: round(value, 1) for name, value in sample.items()} for sample in samples
        ],
    }


def leaks(record: dict[str, Any]) -> list[str]:
    """Return the failures of the run as sentences."""
    out = [f"{kind}: {count}" for kind, count in record["errors"].items()]
    if record["mixed"]:
        out.append(f"{record['mixed']} replies mixed versions")
    if record["hung"]:
        out.append(f"clients that hung: {record['hung']}")
    if record["degraded"]:
        out.append(f"degraded: {record['degraded']}")
    peak = max((sample["service_fds"] for sample in record["samples"]), default=0.0)
    if (
        record["after"]["service_fds"]
        > min(peak, record["before"]["service_fds"] + 4 * MORE_FDS) + MORE_FDS
    ):
        out.append(
            f"file descriptors: {record['before']['service_fds']:.0f} before, {record['after']['service_fds']:.0f} after"
        )
    return out


def print_figures(record: dict[str, Any]) -> None:
    """Print the figures."""
    for name, each in record["mb_per_hour"].items():
        print(f"{name:16s} {each['per_hour']:+9.2f} MB/h +- {each['error']:.2f}")
    for when in ("before", "warm", "after"):
        result = record[when]
        print(
            f"{when:7s} rss {result['service_rss'] / 2**20:7.1f} MB, private {result['service_private'] / 2**20:7.1f} MB, "
            f"{result['service_fds']:.0f} descriptors, {result['service_threads']:.0f} threads, {result['all_processes']:.0f} processes"
        )
    for kind, each in record["latencies_ms"].items():
        times = "  ".join(f"{name} {each[name]:9.2f}" for name in ("p50", "p99", "max"))
        print(f"{kind:12s} {record['requests'][kind]:8,d}   {times} ms")
    print(
        f"{record['switches']} switches, {record['versions_seen']} versions seen, {record['mixed']} mixed; errors: {record['errors'] or 0}"
    )


def picture(record: dict[str, Any], path: Path) -> None:
    """Draw memory, descriptors and disk over time."""
    minutes = [sample["at"] / 60 for sample in record["samples"]]
    note = "dotted: end of the warm-up"
    with figure_page(path, 9, 8.6, "A service under mixed load", note) as figure:
        axes = figure.subplots(3, 1, sharex=True)
        lines = (
            (axes[0], "MB", 2**20, ("all_rss", "service_rss", "service_private")),
            (axes[1], "number", 1, ("service_fds", "service_threads", "all_processes")),
            (axes[2], "MB", 2**20, ("home_bytes", "store_bytes")),
        )
        for axis, unit, scale, names in lines:
            for name in names:
                values = [sample[name] / scale for sample in record["samples"]]
                axis.plot(minutes, values, label=name.replace("_", " "))
            axis.axvline(record["warm_up"] / 60, color="black", linewidth=1, linestyle=":")
            axis.set(ylabel=unit, ylim=(0, None))
            axis.legend(loc="center right")
        axes[2].set(xlabel="minutes")


def main() -> None:
    """Run the benchmark and exit with its status."""
    run_benchmark(
        measure,
        __doc__,
        draw=picture,
        quick={"minutes": 0.5, "switches": 3},
        minutes={"type": float, "default": 30.0},
        switches={
            "type": int,
            "default": 20,
            "help": "changes of model versions, spread over the time",
        },
        workers={"type": int, "default": 1, "help": "serving processes"},
    )


if __name__ == "__main__":
    main()
