"""Memory of several workers with one model, and the wait of their first clients.

`python -m benchmarks.serving.workers [--model DIR --rows DATASET] [--workers 1 4] [--repeats 3]
[--json FILE]`

A service starts with the model preloaded (XCRAY_PRELOAD) or not, and 16 clients on connections of
their own, so that every worker gets some, send one request each as soon as it is ready; then 64
requests follow, so that every worker has answered. Reported are the seconds until the service is
ready (with `preloaded`: GET /readyz), the longest wait of the first clients, and the memory of all
its processes from /proc/PID/smaps_rollup: the proportional share, and what is private. Medians of
new services. Without --model a text model is trained on pydocs.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from benchmarks.common import arguments, in_folder
from benchmarks.serving.__main__ import prepared, service
from benchmarks.serving.footprint_child import memory

FIRST_CLIENTS = 16
ROUNDS = 4  # requests per client after the first


def ask(url: str, body: str, waits: list[float]) -> None:
    """Send the requests of one client; report the wait of each."""
    with httpx.Client(base_url=url, timeout=120.0) as client:
        for _ in range(1 + ROUNDS):
            began = time.perf_counter()
            answer = client.post(
                "/v1/models/bench:predict",
                content=body,
                headers={"Content-Type": "application/json"},
            )
            if answer.status_code != 200:
                raise SystemExit(answer.text)
            waits.append(time.perf_counter() - began)


def wait_until_ready(url: str) -> None:
    """Return when the service is ready."""
    while httpx.get(f"{url}/readyz", timeout=60.0).status_code != 200:
        time.sleep(0.02)


def one_service(home: Path, workers: int, preload: bool, bodies: list[str]) -> dict[str, float]:
    """Measure one new service."""
    environment = {"XCRAY_PRELOAD": '["bench"]'} if preload else {}
    began = time.perf_counter()
    with service(home, workers, environment) as (url, process):
        wait_until_ready(url)
        ready = time.perf_counter() - began
        waits: list[list[float]] = [[] for _ in range(FIRST_CLIENTS)]
        clients = [
            threading.Thread(target=ask, args=(url, body, own))
            for body, own in zip(bodies, waits, strict=False)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        time.sleep(1.0)
        shares = [memory(each.pid) for each in (process, *process.children(recursive=True))]
        cpu = sum(
            sum(each.cpu_times()[:2]) for each in (process, *process.children(recursive=True))
        )
    return {
        "ready_s": ready,
        "first_wait_s": max(own[0] for own in waits),
        "later_wait_s": max(max(own[1:]) for own in waits),
        "pss_mb": sum(each["pss"] for each in shares) / 1e6,
        "private_mb": sum(each["anonymous"] for each in shares) / 1e6,
        "cpu_s": cpu,
    }


def measure(folder: Path, chosen: Any) -> dict[str, Any]:
    """Measure all numbers of workers in turn."""
    home, predictor, cases, _ = prepared(folder, chosen)
    model_mb = predictor.model.n_bytes / 1e6
    del predictor  # this process would share the mapped model
    plan = [(count, preload) for count in chosen.workers for preload in (False, True)]
    runs: dict[tuple[int, bool], list[dict[str, float]]] = {case: [] for case in plan}
    for _ in range(chosen.repeats):
        for case in plan:
            runs[case].append(one_service(home, *case, cases[0]["bodies"]))
    out: dict[str, Any] = {"model_mb": model_mb}
    for (count, preload), results in runs.items():
        name = f"{count} workers{', preloaded' if preload else ''}"
        out[name] = {key: round(median(result[key] for result in results), 3) for key in results[0]}
        print(f"{name:24s}", out[name], flush=True)
    return out


def main() -> None:
    """Run all measurements and print the JSON."""
    chosen = arguments(
        str(__doc__).split("\n")[0],
        model={"type": Path, "help": "a model directory, instead of training on pydocs"},
        rows={"type": Path, "help": "a data set directory whose test rows are sent"},
        workers={"type": int, "nargs": "+", "default": [1, 4], "help": "numbers of workers"},
        repeats={"type": int, "default": 3, "help": "new services of each kind"},
    )
    if (chosen.model is None) != (chosen.rows is None):
        raise SystemExit("give both --model and --rows, or none")
    in_folder(lambda folder: measure(folder, chosen), chosen.json)


if __name__ == "__main__":
    main()
