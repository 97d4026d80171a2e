"""`xcray top`: readiness, jobs, models and requests of a server in a terminal."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.cli.connect import ServerOption, make_client
from xcray.cli.terminal import output
from xcray.cli.terminal.progress import format_duration, format_progress, progress_from_json
from xcray.errors import Unavailable, XcrayError
from xcray.system.units import format_bytes

if TYPE_CHECKING:
    from xcray.client import Client

LATENCY = "xcray_predict_duration_seconds_bucket"
MAX_JOBS = 100  # of a status that are counted and shown
SAMPLE_PATTERN = re.compile(r"^(\w+)(\{.*\})? (\S+)$")


@dataclass
class Overview:
    """Reads the state of a server; the rate of requests is that since the last reading."""

    client: Client
    _last: tuple[float, float] | None = field(default=None, init=False)

    def read(self) -> dict[str, Any]:
        """Return the status, running jobs and models in memory, JSON-ready.

        Raises Unavailable if the server does not answer, and errors of the key.
        """
        ready = self.client.readiness()
        jobs = {
            status: list(islice(self.client.jobs.list(status=status, page=MAX_JOBS), MAX_JOBS))
            for status in ("RUNNING", "PENDING")
        }
        loaded = {
            model["name"]: [s["version"] for s in model["states"] if s["state"] == "LOADED"]
            for model in self.client.models.list()
        }
        return {
            "ready": ready["ready"],
            "reasons": [*ready["reasons"], *ready["degraded"]],
            "running": [job_row(job) for job in jobs["RUNNING"]],
            "waiting": len(jobs["PENDING"]),
            "models": len(loaded),
            "in_memory": {name: versions for name, versions in loaded.items() if versions},
            **self._read_metrics(),
        }

    def _read_metrics(self) -> dict[str, Any]:
        """Return values of the metrics; the reason for none if the key has no right to them."""
        try:
            text = self.client.metrics()
        except XcrayError as error:
            return {"metrics_error": error.message}
        samples, now = parse_samples(text), time.monotonic()
        requests = sum_of(samples, "xcray_http_requests_total")
        last, self._last = self._last, (now, requests)
        rate = None if last is None else max(0.0, requests - last[1]) / max(now - last[0], 1e-9)
        return {
            "requests_per_second": rate,
            "p99_seconds": p99_limit(samples),
            "disk_free_bytes": sum_of(samples, "xcray_disk_free_bytes"),
            "disk_bytes": sum_of(samples, "xcray_disk_size_bytes"),
        }


def top(
    server: ServerOption = None,
    interval: Annotated[
        float, typer.Option(min=0.2, max=3600, help="Seconds between two readings.")
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one reading and exit, as without a terminal.")
    ] = False,
) -> None:
    """Show readiness, jobs, models and requests of a server until Ctrl-C.

    Example: xcray top --server http://127.0.0.1:8000
    """
    with make_client(server) as client:
        overview = Overview(client)
        if not (once or output.is_json()) and sys.stdout.isatty():
            show_live(overview, interval)
            return
        status = overview.read()
        output.print_json(status)
        for line in lines_of(status):
            output.print_line(line)


def show_live(overview: Overview, interval: float) -> None:
    """Redraw the screen after each reading, until Ctrl-C."""
    from rich.live import Live
    from rich.text import Text

    try:
        with Live(screen=True, auto_refresh=False) as live:
            while True:
                try:
                    lines = lines_of(overview.read())
                except Unavailable as error:  # it may be starting again
                    lines = [error.message]
                live.update(Text("\n".join(lines)), refresh=True)
                time.sleep(interval)
    except KeyboardInterrupt:
        return


def lines_of(status: Mapping[str, Any]) -> list[str]:
    """Return the lines of a reading."""
    state = "ready" if status["ready"] else "not ready"
    rate, p99 = status.get("requests_per_second"), status.get("p99_seconds")
    pairs = {
        "service": ": ".join(filter(None, [state, ", ".join(status["reasons"])])),
        "jobs": f"{len(status['running'])} running, {status['waiting']} waiting",
        "models": f"{status['models']}, {len(status['in_memory'])} in memory",
        "requests": "measuring" if rate is None else f"{rate:.1f} per second",
        "p99 of predictions": "none yet" if p99 is None else f"at most {format_duration(p99)}",
    }
    if "metrics_error" in status:
        pairs = {**pairs, "requests": status["metrics_error"], "p99 of predictions": "-"}
    elif status["disk_bytes"]:
        free, size = (format_bytes(status[name]) for name in ("disk_free_bytes", "disk_bytes"))
        pairs["disk"] = f"{free} free of {size}"
    width = max(map(len, pairs))
    lines = [f"{name:<{width}}  {output.printable(value)}" for name, value in pairs.items()]
    jobs = [f"{job['name']}  {job['text']}" for job in status["running"]]
    models = [
        f"{name}  version {', '.join(map(str, versions))} in memory"
        for name, versions in status["in_memory"].items()
    ]
    return [*lines, *map(output.printable, [*jobs, *models])]


def job_row(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the id, the name and the progress of a running job."""
    text = format_progress(progress_from_json(job["progress"], job["phase"]))
    return {"id": job["id"], "name": job["name"], "text": text}


def parse_samples(text: str) -> list[tuple[str, str, float]]:
    """Return (name, labels, value) of each sample in the text format of Prometheus."""
    found = (SAMPLE_PATTERN.match(line) for line in text.splitlines() if not line.startswith("#"))
    return [(m[1], m[2] or "", float(m[3])) for m in found if m]


def sum_of(samples: Sequence[tuple[str, str, float]], name: str) -> float:
    """Return the sum of all samples of a metric."""
    return sum(value for each, _, value in samples if each == name)


def p99_limit(samples: Sequence[tuple[str, str, float]]) -> float | None:
    """Return the limit of the bucket with the 99th percentile of predictions; None without any."""
    counts: dict[float, float] = {}
    for name, labels, value in samples:
        limit = re.search(r'le="([^"]+)"', labels)
        if name == LATENCY and limit:
            counts[float(limit[1])] = counts.get(float(limit[1]), 0.0) + value
    largest = max(counts.values(), default=0.0)
    if not largest:
        return None
    return min(limit for limit, count in counts.items() if count >= 0.99 * largest)
