"""Check of dashboards and alerts against a real run.

The run has a service, its Ray, trainings, traffic, and a Prometheus that scrapes all of them.

`python -m benchmarks.monitoring.dashboards [--minutes 6] [--json FILE]`

Everything is private and on this machine: a separate home with its local Ray, and Debian's
Prometheus on a free port. During a steady stream of predictions (`benchmarks.soak.traffic`), models
are replaced, some requests are rejected, and jobs run on Ray: labels of pydocs, a model with
epochs, a batch prediction, and a job that must fail. One worker is killed. Then every query of
every panel and every rule is evaluated by that Prometheus. A panel's query must have data, or be in
`EMPTY` with the reason.

Reported are the panels with data, the alerts by state, and the use of Ray's object store as
measured by xcray and by Ray. The exit status is 1 if a panel without data should have some, or if a
rule fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

from benchmarks.harness import run_benchmark, service
from benchmarks.monitoring.prometheus import SCRAPE, Prometheus, prometheus
from benchmarks.soak.__main__ import SETTINGS
from benchmarks.soak.traffic import Models, Record, Traffic
from xcray.client import Client
from xcray.errors import XcrayError
from xcray.workers.ray.local_cluster import ManagedLocalRay
from xcray.workers.ray.session import free_port

BOARDS: Final = Path(__file__).parents[2] / "helm" / "xcray" / "monitoring" / "dashboards"
WINDOW: Final = 10 * SCRAPE  # seconds, for $__rate_interval
POINTS: Final = 150
KUBERNETES: Final = "no Kubernetes here: the data come from kube-state-metrics and the kubelet"
EMPTY: Final[dict[str, str]] = {  # panels that are expected to have no data in this run
    "xcray-cluster: Pods by phase": KUBERNETES,
    "xcray-cluster: Restarts": KUBERNETES,
    "xcray-cluster: Free space on volumes": KUBERNETES,
}

Story = tuple[Callable[..., None], tuple[Any, ...]]  # a function and its arguments


class Workload:
    """Jobs that run next to the traffic, one after the other until the time is up."""

    def __init__(self, url: str, home: Path, folder: Path, ending: threading.Event) -> None:
        self.url = url
        self.home = home
        self.folder = folder
        self.ending = ending
        self.ends: Counter[str] = Counter()
        self.killed = 0

    def run(self) -> None:
        """Submit all jobs at once, so that some wait, and again when they have ended.

        Pydocs joins when its data set is built.
        """
        small = {"synthetic": {"rows": 4000, "features": 800, "labels": 60, "seed": 3}}
        with Client(self.url, timeout=120.0) as client:
            many = {"synthetic": {"rows": 20_000, "features": 4000, "labels": 3000, "seed": 4}}
            new_dataset = [
                client.datasets.build("epochs", "synthetic", {**small, "test_fraction": 0.2}),
                client.datasets.build("labels", "synthetic", {**many, "test_fraction": 0.1}),
                client.datasets.build("pydocs", "pydocs", {"test_fraction": 0.1}),
            ]
            epochs, labels, docs = (each["id"] for each in new_dataset)
            for dataset in (epochs, labels):
                client.datasets.wait(dataset)
            while not self.ending.is_set():
                jobs = [
                    client.jobs.submit(
                        dataset=epochs, model="epochs", solver="dsmlr", pool="ray", workers=2
                    ),
                    client.jobs.submit(dataset=labels, model="labels", pool="ray", workers=2),
                    client.jobs.predict(
                        "docs", format="jsonl", file=self.nonsense(), top_k=5, pool="serial"
                    ),
                    client.jobs.predict(
                        "docs", format="text", file=self.questions(), top_k=5, pool="ray", workers=2
                    ),
                ]
                if client.datasets.get(docs)["status"] == "READY":
                    jobs.append(
                        client.jobs.submit(dataset=docs, model="pydocs", pool="ray", workers=2)
                    )
                for job in jobs:
                    self.follow(client, job["id"])

    def follow(self, client: Client, job_id: str) -> None:
        """Follow one job to its end, or to the end of the run."""
        while (now := client.jobs.get(job_id))["status"] in ("PENDING", "RUNNING"):
            if self.ending.wait(0.5):
                client.jobs.stop(job_id)
                now = client.jobs.wait(job_id)
                break
        self.ends[f"{now['kind']} {now['status']} {now.get('reason') or ''}".strip()] += 1

    def questions(self) -> Path:
        """Write rows for a batch prediction."""
        path = self.folder / "questions.txt"
        path.write_text(
            "".join(
                f"word{i % 2000} word{(7 * i) % 2000} word{(31 * i) % 2000}\n"
                for i in range(400_000)
            )
        )
        return path

    def nonsense(self) -> Path:
        """Write invalid rows, so that the job must fail with a client error."""
        path = self.folder / "nonsense.jsonl"
        path.write_text("this is not JSON\n" * 10)
        return path

    def kill_a_worker(self) -> None:
        """Kill one worker of this home's Ray when a job runs on it."""
        while not self.ending.wait(1.0):
            info = ManagedLocalRay(self.home / "ray").info()
            workers = (
                []
                if info is None
                else [
                    each
                    for each in _family(info.pid)
                    if re.match(r"ray::(xcray|\w+Worker)", _title(each))
                ]
            )
            if len(workers) > 1 and not self.ending.wait(8.0):
                with contextlib.suppress(psutil.NoSuchProcess):
                    workers[0].kill()
                    self.killed += 1
                    return

    def refused(self) -> None:
        """Send requests that are rejected: too large, of a wrong type, for a missing model."""
        with httpx.Client(base_url=self.url, trust_env=False, timeout=60.0) as http:
            while not self.ending.wait(1.5):
                http.post(
                    "/v1/models/docs:predict",
                    content=b" " * 20_000_000,
                    headers={"content-type": "application/json"},
                )
                http.post("/v1/models/missing:predict", json={"instances": [{"text": "x"}]})


def _family(pid: int) -> list[psutil.Process]:
    """Return the descendants of a process."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return list(psutil.Process(pid).children(recursive=True))
    return []


def _title(process: psutil.Process) -> str:
    """Return the title of a process."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def follow_ray(result: Prometheus, home: Path, ending: threading.Event) -> None:
    """Scrape the Ray of the home as soon as Ray has written its list of metrics endpoints."""
    while not ending.wait(1.0):
        with contextlib.suppress(FileNotFoundError, ValueError):
            root = Path(json.loads((home / "ray" / "ray.json").read_text())["root"])
            document = json.loads((root / "r" / "prom_metrics_service_discovery.json").read_text())
            result.scrape("ray", [target for group in document for target in group["targets"]])


def filled(expr: str, seconds: float) -> str:
    """Return a panel's expression with its variables replaced as Grafana does."""
    values = {
        "namespace": ".*",
        "instance": ".*",
        "pods": ".*xcray.*",
        "ray": ".*",
        "__rate_interval": f"{WINDOW}s",
        "__range": f"{int(seconds)}s",
    }
    return re.sub(r"\$(\w+)", lambda name: values[name[1]], expr)


def named(board: Mapping[str, Any], panel: Mapping[str, Any]) -> str:
    """Return the key of a panel. A number and a graph can have the same title."""
    return f"{board['uid']}: {panel['title']}" + (", now" if panel["type"] == "stat" else "")


def panel_query(result: Prometheus, begin: float, end: float) -> dict[str, dict[str, Any]]:
    """Query every panel. Return its series by query, and whether the result is as expected."""
    out: dict[str, dict[str, Any]] = {}
    step = max(float(SCRAPE), (end - begin) / POINTS)
    for path in sorted(BOARDS.glob("*.json")):
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            if panel["type"] == "row":
                continue
            name = named(board, panel)
            queries = {
                each["refId"]: result.series(filled(each["expr"], end - begin), begin, end, step)
                for each in panel["targets"]
            }
            out[name] = {
                "series": queries,
                "data": all(queries.values()),
                "id": (board["uid"], panel["id"]),
            }
    return out


def verdict(result: Prometheus, panels: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Summarise panels and rules."""
    empty = sorted(name for name, panel in panels.items() if not panel["data"])
    rules = [rule for group in result.ask("rules")["groups"] for rule in group["rules"]]
    sick = [f"{rule['name']}: {rule.get('lastError')}" for rule in rules if rule["health"] != "ok"]
    states = {rule["name"]: rule["state"] for rule in rules if rule["type"] == "alerting"}
    targets = result.ask("targets")["activeTargets"]
    return {
        "panels": len(panels),
        "panels_with_data": len(panels) - len(empty),
        "queries": sum(len(panel["series"]) for panel in panels.values()),
        "rightly_empty": {name: EMPTY[name] for name in empty if name in EMPTY},
        "wrongly_empty": [name for name in empty if name not in EMPTY],
        "rules_evaluated": len(rules),
        "rules_that_fail": sick,
        "alerts": dict(Counter(states.values())),
        "alerts_not_silent": {name: state for name, state in states.items() if state != "inactive"},
        "targets": {
            f"{each['labels']['job']} {each['health']}": each["lastError"] for each in targets
        },
    }


def object_store(result: Prometheus, begin: float, end: float) -> dict[str, float]:
    """Return the largest use of the object store, as measured by xcray and by Ray."""
    names = {
        "xcray_object_store_bytes": "max(xcray_object_store_bytes)",
        "ray_spill_manager_objects_bytes Pinned": 'sum(ray_spill_manager_objects_bytes{State="Pinned"})',
        "ray_resources object_store_memory USED": 'sum(ray_resources{Name="object_store_memory",State="USED"})',
        "ray_object_store_used_memory": "sum(ray_object_store_used_memory)",
    }
    out = {}
    for name, expr in names.items():
        series = result.series(expr, begin, end, SCRAPE)
        out[name] = max(
            (value for _, values in series for _, value in values), default=float("nan")
        )
    return out


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Run the whole check."""
    minutes = options.minutes
    home, ending, record = folder / "home", threading.Event(), Record()
    home.mkdir()
    for name in ("AUTOSCALER_METRIC_PORT", "DASHBOARD_METRIC_PORT"):
        os.environ[name] = str(
            free_port()
        )  # Ray's default ports are the same for every Ray of a machine
    models = Models(home, folder)
    models.prepare()
    try:
        with (
            service(home, 1, SETTINGS) as (url, _),
            prometheus(folder / "prometheus", ("xcray", "ray")) as result,
        ):
            result.scrape("xcray", [url.removeprefix("http://")])
            begin = time.time()
            traffic, work = (
                Traffic(url, folder, models, record, ending),
                Workload(url, home, folder, ending),
            )
            stories: list[Story] = [
                *((traffic.repeat, (seed, traffic.predict)) for seed in range(2)),
                (traffic.repeat, (9, traffic.explain)),
                (traffic.switching, (60.0 * minutes, max(6, int(3 * minutes)))),
                (work.run, ()),
                (work.kill_a_worker, ()),
                (work.refused, ()),
                (follow_ray, (result, home, ending)),
            ]
            end = run_for(60.0 * minutes, stories, record, ending)
            panels = panel_query(result, begin, end)
            fields = {
                **verdict(result, panels),
                "object_store_most": object_store(result, begin, end),
            }
    finally:
        ManagedLocalRay(home / "ray").stop()
    output = {
        "minutes": minutes,
        "jobs": dict(work.ends),
        "workers_killed": work.killed,
        "errors": record.errors(),
        **fields,
    }
    print_summary(output)
    wrong = [f"no data: {name}" for name in output["wrongly_empty"]] + output["rules_that_fail"]
    return {**output, "wrong": wrong}


def run_for(seconds: float, stories: list[Story], record: Record, ending: threading.Event) -> float:
    """Run the stories in threads and return the time of their end."""
    threads = [
        threading.Thread(target=run_scenario, args=(story, args, record), daemon=True)
        for story, args in stories
    ]
    for thread in threads:
        thread.start()
    try:
        ending.wait(seconds)
    finally:
        end = time.time()  # before the jobs end, so that the panels show running work
        ending.set()
        for thread in threads:
            thread.join(120)
    return end


def print_summary(output: Mapping[str, Any]) -> None:
    """Print the panels, rules and jobs of the run."""
    print(
        f"{output['panels_with_data']} of {output['panels']} panels have data in all their {output['queries']} queries"
    )
    for name, why in output["rightly_empty"].items():
        print(f"  empty, as expected: {name} ({why})")
    print(
        f"{output['rules_evaluated']} rules evaluated; alerts: {output['alerts']}, not silent: {output['alerts_not_silent']}"
    )
    print(
        f"jobs: {output['jobs']}; workers killed: {output['workers_killed']}; errors: {output['errors']}"
    )
    print(f"object store, most bytes: {output['object_store_most']}")


def run_scenario(story: Callable[..., None], args: tuple[Any, ...], record: Record) -> None:
    """Run a scenario in a thread and count its errors."""
    with record.of(story.__name__):
        try:
            story(*args)
        except XcrayError as error:
            raise RuntimeError(f"{error.code}: {error.message}") from error


def main() -> None:
    """Run the check, print the result, and exit with its status."""
    run_benchmark(measure, __doc__, quick={"minutes": 2.0}, minutes={"type": float, "default": 6.0})


if __name__ == "__main__":
    main()
