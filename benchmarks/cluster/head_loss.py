"""Loss of the head of a joined Ray while a service trains on it.

Predictions must continue. Jobs must wait, and continue when the head is back.

`python -m benchmarks.cluster.head_loss [--how kill|freeze|cut] [--redis] [--away 30] [--parts head
auto] [--json FILE]` needs Linux and namespaces, and takes three minutes on two free cores.

All parts run on one machine, each with its own network (see `benchmarks.cluster.raylets`): a head
with a dashboard and no CPU, two nodes of one CPU, an API process (`xcray serve --no-runner`) and a
runner (`xcray runner`), which join by address, dashboard and token. Several jobs are queued. During
the first one the head is killed with all its processes, frozen, or cut off. After --away seconds a
head is available again. With --redis it is the same cluster, whose nodes keep running. Without, it
is a new cluster with new nodes, as KubeRay would start it.

Measured are the numbers of predictions and of failed predictions, the seconds until /readyz reports
RAY and until it stops, the seconds until the job waits and until it trains again, the attempts lost
to the outage, the classes recovered, the order of the queue, and whether all models equal an
undisturbed one. The part `auto` runs `xcray train --pool ray --ray-address auto` as a Ray job on
that head.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import httpx

from benchmarks.cluster.isolated_run import parse_isolated, print_result
from benchmarks.cluster.raylets import Nodes, nodes
from benchmarks.harness import machine
from tests.robustness.faults.service import Service, runner_process, store_of
from tests.robustness.faults.stage import Stage, stage, until
from tests.robustness.faults.work import MIDDLE, SLOW, at_share, dataset, ended, ok, submit
from xcray.jobs.states import PENDING, RUNNING
from xcray.jobs.supervision.ray_launch import _job_client
from xcray.workers.ray.local_cluster import ExternalRay

ASK: Final = {"instances": [{"indices": [1, 5, 9], "values": [1.0, 0.5, 0.2]}]}
PAUSE: Final = 0.02  # seconds between predictions
JOBS: Final = 3
ON_RAY: Final[dict[str, Any]] = {**SLOW, "pool": "ray", "workers": 2}


class PredictionClient(threading.Thread):
    """Thread that sends predictions and polls /readyz all the time, and records failures."""

    def __init__(self, service: Service) -> None:
        super().__init__(daemon=True)
        self.service = service
        self.over = threading.Event()
        self.n_requests = 0
        self.failed = list[str]()
        self.slowest = 0.0
        self.n_unanswered = 0
        self.degradations: list[tuple[float, tuple[str, ...], int]] = []

    def run(self) -> None:
        """Send predictions until `over` is set."""
        while not self.over.wait(PAUSE):
            began = time.monotonic()
            try:
                response = self.service.http.post("/v1/models/plain:predict", json=ASK)
                if response.status_code != 200:
                    self.failed.append(f"{response.status_code} {response.text[:200]}")
            except Exception as error:  # any error means that a client had no answer
                self.failed.append(repr(error))
            self.n_requests += 1
            self.slowest = max(self.slowest, time.monotonic() - began)
            try:
                ready = self.service.http.get("/readyz")
            except httpx.TransportError:  # an idle connection was closed during the request
                self.n_unanswered += 1
                continue
            degraded_checks = tuple(ready.json().get("degraded", ()))
            if not self.degradations or self.degradations[-1][1:] != (
                degraded_checks,
                ready.status_code,
            ):
                self.degradations.append((time.time(), degraded_checks, ready.status_code))

    def since(self, moment: float, *, degraded: bool) -> float | None:
        """Return the seconds from a moment until the check RAY failed, or passed again."""
        return next(
            (
                at - moment
                for at, degraded_checks, _ in self.degradations
                if at > moment and ("RAY" in degraded_checks) == degraded
            ),
            None,
        )


class HeadFailureRun:
    """A service, its joined Ray, and the details observed. `shape` describes the training data."""

    shape: Mapping[str, int] = MIDDLE

    def __init__(self, set: Stage, ray: Nodes, chosen: argparse.Namespace) -> None:
        self.stage = set
        self.ray = ray
        self.chosen = chosen
        settings = {
            name.removeprefix("XCRAY_").lower(): value for name, value in ray.joined.items()
        }
        self.service = Service(set, words=["--no-runner"], max_running_jobs=1, **settings)
        self.runner = runner_process(
            set, self.service.home.path, "runner", max_running_jobs=1, log_level="info", **settings
        )
        self.details: dict[str, Any] = {}

    def begin(self) -> None:
        """Start everything and train one model without Ray."""
        self.service.up()
        self.runner.start()
        http = self.service.http
        self.data = dataset(http, self.stage.ledger, **self.shape)
        plain = ended(http, submit(http, self.stage.ledger, self.data, "plain", "plain", **SLOW))
        self.sha = plain["result"]["sha256"]
        self.expect(
            ok(http.post("/v1/models/plain:predict", json=ASK)) is not None, "the model answers"
        )

    def expect(self, holds: bool, what: str) -> None:
        """Record `what` as broken unless `holds`."""
        self.details.setdefault("broken", [])
        if not holds:
            self.details["broken"].append(what)

    def job(self, job: str) -> dict[str, Any]:
        """Return the current state of a job."""
        response: dict[str, Any] = ok(self.service.http.get(f"/v1/jobs/{job}"))
        return response

    def head_goes(self) -> None:
        """Queue jobs, remove the head, bring it back, and judge the result."""
        client_thread = PredictionClient(self.service)
        client_thread.start()
        http, ledger = self.service.http, self.stage.ledger
        jobs = [
            submit(http, ledger, self.data, f"m{number}", f"k{number}", **ON_RAY)
            for number in range(JOBS)
        ]
        before = at_share(http, jobs[0], 0.3)
        self.expect(before["status"] == RUNNING, "the first job trained when the head went")
        gone = self.take_head()
        degraded = until(lambda: client_thread.since(gone, degraded=True), "/readyz says RAY", 120)
        until(lambda: self.job(jobs[0])["status"] == PENDING, "the job waits", 240)
        waits = time.time() - gone
        jobs.append(
            submit(http, ledger, self.data, f"m{JOBS}", "late", **ON_RAY)
        )  # accepted while Ray is away
        time.sleep(max(0.0, self.chosen.away - (time.time() - gone)))
        claimed = [self.job(job)["attempt"] for job in jobs]
        brought = time.time()
        back = self.bring_head()  # /readyz can recover before new nodes have joined
        well = until(
            lambda: client_thread.since(brought, degraded=False), "/readyz is well again", 240
        )  # from the start of the head
        until(
            lambda: (
                self.job(jobs[0])["phase"] == "TRAINING"
                or self.job(jobs[0])["status"] not in (PENDING, RUNNING)
            ),
            "training",
            240,
        )
        trains = time.time() - back
        results = [ended(http, job, 600) for job in jobs]
        client_thread.over.set()
        client_thread.join()
        self.details |= {
            "how": self.chosen.how,
            "redis": self.chosen.redis,
            "predictions": client_thread.n_requests,
            "failed_predictions": len(client_thread.failed),
            "failures": client_thread.failed[:3],
            "slowest_prediction_seconds": round(client_thread.slowest, 3),
            "readyz_unheard": client_thread.n_unanswered,
            "readyz_not_200": sum(status != 200 for *_, status in client_thread.degradations),
            "degraded_after_seconds": degraded,
            "job_waits_after_seconds": waits,
            "well_after_seconds": well,
            "trains_after_seconds": trains,
            "attempts_while_away": claimed,
            "attempts": [job["attempt"] for job in results],
            "statuses": [job["status"] for job in results],
            "messages": [job["message"] for job in results if job["message"]],
            "same_sha256": [(job["result"] or {}).get("sha256") == self.sha for job in results],
        }
        self.judge(jobs)

    def judge(self, jobs: list[str]) -> None:
        """Check losses, order and recovered classes in the store."""
        store = store_of(self.service.home)
        events = {job: list(store.jobs.list_events(job)) for job in jobs}
        store.close()
        runs = {
            job: [each for each in events[job] if each.data.get("status") == RUNNING]
            for job in jobs
        }
        began = [runs[job][-1].time for job in jobs]
        reasons = [
            each.data.get("reason")
            for job in jobs
            for each in events[job]
            if each.data.get("status") == PENDING
        ]
        reports = [
            each
            for each in events[jobs[0]]
            if each.kind == "progress" and each.seq > runs[jobs[0]][-1].seq
        ]
        again = [each for each in reports if each.data.get("phase") == "TRAINING"]
        self.details |= {
            "order_kept": began == sorted(began),
            "reasons": [reason for reason in reasons if reason],
            "labels_found_again": int(again[0].data["done"]) if again else 0,
        }
        self.expect(self.details["failed_predictions"] == 0, "a prediction failed")
        self.expect(self.details["readyz_not_200"] == 0, "the service was not ready")
        self.expect(self.details["order_kept"], "the queue lost its order")
        self.expect(all(self.details["same_sha256"]), "a model has other bits")
        self.expect(set(self.details["reasons"]) <= {"LAUNCH"}, "the outage cost an attempt")
        self.expect(
            self.details["labels_found_again"] > 0, "nothing was found again of what was finished"
        )
        self.expect(max(self.details["attempts_while_away"]) <= 1, "jobs were claimed in vain")

    def take_head(self) -> float:
        """Remove the head and return the time."""
        if self.chosen.how == "kill":
            return self.ray.head.kill()
        if self.chosen.how == "cut":
            return self.ray.head.cut()
        self.ray.head.freeze()
        return time.time()

    def bring_head(self) -> float:
        """Bring the head back and return the time."""
        if self.chosen.how == "cut":
            self.ray.head.heal()
        elif self.chosen.how == "freeze":
            self.ray.head.freeze(signal.SIGCONT)
        else:
            self.ray.revive_head()
        if not self.chosen.redis and self.chosen.how == "kill":  # KubeRay restarts the worker pods
            for node in self.ray.others:
                if node.alive:
                    node.kill()
            self.ray.others.clear()
            self.ray.add()
            self.ray.add()
            self.details["nodes_that_lived_on"] = 0
        else:
            self.details["nodes_that_lived_on"] = sum(node.alive for node in self.ray.others)
        return time.time()

    def auto(self) -> None:
        """Run `--ray-address auto` in a Ray job, on a head without a CPU."""
        info = ExternalRay(self.ray.gcs, self.ray.dashboard, self.ray.token).ensure()
        client, out = _job_client(info), self.stage.folder / "auto"
        data = self.service.home.path / "datasets" / self.data
        words = [
            sys.executable,
            "-m",
            "xcray",
            "train",
            str(data),
            "--pool",
            "ray",
            "--ray-address",
            "auto",
            "--workers",
            "2",
        ]
        words += ["--param", "eps=1e-5", "--out", str(out), "--json"]
        began = time.time()
        name = client.submit_job(entrypoint=" ".join(words), submission_id="auto")
        status = until(
            lambda: (
                (now := str(client.get_job_status(name))) in ("SUCCEEDED", "FAILED", "STOPPED")
                and now
            ),
            "auto",
            300,
        )
        report = client.get_job_logs(name)
        self.details |= {"auto": status, "auto_seconds": time.time() - began}
        self.expect(status == "SUCCEEDED", f"auto: {report[-500:]}")
        self.details["auto_same_sha256"] = self.sha in report
        self.expect(self.sha in report, "auto made other bits")


def main(values: list[str]) -> int:
    """Run the scenario and return the exit status, 0 if all expectations hold."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster.head_loss", description=__doc__
    )
    parser.add_argument(
        "--how", choices=("kill", "freeze", "cut"), default="kill", help="what happens to the head"
    )
    parser.add_argument("--redis", action="store_true", help="keep the head's state in Redis")
    parser.add_argument("--away", type=float, default=30.0, help="seconds until the head is back")
    parser.add_argument("--parts", nargs="+", choices=("head", "auto"), default=["auto", "head"])
    chosen = parse_isolated(parser, values)
    before = machine()
    with (
        stage("head", "the head goes away", runs=1, seed=0) as set,
        nodes(set.place("r"), dashboard=True, redis=chosen.redis) as ray,
    ):
        ray.add()
        ray.add()
        play = HeadFailureRun(set, ray, chosen)
        play.begin()
        for part in chosen.parts:
            {"head": play.head_goes, "auto": play.auto}[part]()
        print_details(play.details, play.runner.tail(40))
    return print_result(play.details, chosen.json, benchmark="head", machine=before)


def print_details(details: Mapping[str, Any], log: str) -> None:
    """Print the details, and the runner's log if an expectation is broken."""
    if details.get("broken"):
        print(log)
    for name, value in details.items():
        print(f"{name}: {round(value, 2) if isinstance(value, float) else value}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
