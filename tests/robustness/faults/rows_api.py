"""Rows about the API process: it dies, has many jobs, or no file descriptors."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import httpx

from tests.robustness.faults.catalogue import row
from tests.robustness.faults.measurements import percentile
from tests.robustness.faults.rows_runners import drained
from tests.robustness.faults.service import PATIENCE, Service, store_of
from tests.robustness.faults.stage import Stage, until
from tests.robustness.faults.work import again, ok, submit
from xcray.client import Client
from xcray.jobs.states import PENDING, SUCCEEDED, TERMINAL
from xcray.jobs.store.jobs import JobFilter, JobSubmission
from xcray.system.processes import PROC

OCTETS = {"Content-Type": "application/octet-stream"}


def stop_all(service: Service) -> None:
    """Stop every job that has not ended, and wait until all have ended."""
    store = store_of(service.home)
    for status in ("PENDING", "RUNNING"):
        while jobs := store.jobs.list_page(JobFilter(status=status), limit=1000)[0]:
            for job in jobs:
                again(lambda job=job: service.http.post(f"/v1/jobs/{job.id}/stop"))
            if status == "RUNNING":
                time.sleep(0.2)
    store.close()


@row(
    "F4",
    "kill -9 of the service",
    "SIGKILL every 0.5 to 3 s while 4 clients submit with keys and retries",
    "tests/jobs/supervision/test_supervisor.py",
    "tests/service/processes/test_manager.py",
)
def service_killed(stage: Stage) -> None:
    service = Service(stage)
    service.up()
    data = service.dataset()
    expected = 40 if stage.small else 200 * stage.runs
    left, lock = iter(range(expected)), threading.Lock()
    done = threading.Event()

    def client() -> None:
        with httpx.Client(base_url=service.url, trust_env=False, timeout=PATIENCE) as http:
            while True:
                with lock:
                    number = next(left, None)
                if number is None:
                    return
                submit(http, stage.ledger, data, "m", f"key-{number}", priority=-1)
                # slow enough that kills happen during the submits
                time.sleep(0.2 if stage.small else 0.0)

    clients = [threading.Thread(target=client) for _ in range(4)]
    for each in clients:
        each.start()
    waiter = threading.Thread(target=lambda: ([each.join() for each in clients], done.set()))
    waiter.start()
    while not done.wait(stage.random.uniform(0.5, 1.0 if stage.small else 3.0)):
        service.kill()
        with stage.measurements.recovering():
            service.up()
        stage.measurements.runs += 1
        values = len(stage.ledger.ids("job"))
        until(
            lambda observations=values: (
                done.is_set() or len(stage.ledger.ids("job")) > observations
            ),
            "a client is answered between two kills",
        )
        # The small form has two kills: each start of the service takes seconds.
        if stage.small and stage.measurements.runs == 2:
            break
    waiter.join()
    # All jobs were submitted before the first kill.
    if not stage.measurements.runs:
        service.kill()
        with stage.measurements.recovering():
            service.up()
        stage.measurements.runs += 1
    stage.measurements.details["submitted"] = expected
    store = store_of(service.home)
    stage.expect(len(stage.ledger.ids("job")) == expected, "a client gave up")
    there = (
        len(store.jobs.list_page(limit=1000)[0])
        if expected < 1000
        else sum(store.statistics.read().jobs.values())
    )
    if there > expected:
        stage.measurements.double(f"{there} jobs for {expected} keys")
    store.close()
    stop_all(service)
    drained(stage, service)


def _paces(service: Service, count: int) -> list[float]:
    """Return the seconds of `count` consecutive predictions."""
    out = []
    body = {"instances": [{"indices": [1, 2], "values": [1.0, 1.0]}], "top_k": 3}
    for _ in range(count):
        began = time.perf_counter()
        ok(service.http.post("/v1/models/m:predict", json=body))
        out.append(time.perf_counter() - began)
    return out


@row(
    "F29",
    "all clients reconnect at once",
    "SIGKILL of the service while 200 clients (the client library's own retries) ask for predictions",
    "tests/client/test_client.py",
)
def retry_storm(stage: Stage) -> None:
    service = Service(stage)
    service.up()
    data = service.dataset()
    service.trained(data)
    before = percentile(_paces(service, 200), 0.99)
    ending, errors, paces = threading.Event(), [], []
    instance = {"indices": [1, 2], "values": [1.0, 1.0]}

    def client() -> None:
        with Client(service.url, retries=8) as mine:
            while not ending.is_set():
                began = time.monotonic()
                try:
                    mine.predict("m", [instance], top_k=3)
                    paces.append((time.monotonic(), time.monotonic() - began))
                except Exception as error:
                    errors.append(f"{type(error).__name__}: {error}")
                ending.wait(stage.random.uniform(0.5, 1.5))

    clients = [threading.Thread(target=client) for _ in range(20 if stage.small else 200)]
    for each in clients:
        each.start()
    for _ in range(min(1, stage.runs)):
        time.sleep(3.0)
        service.kill()
        back = service.up()
        since = time.monotonic()
        time.sleep(8.0)
        late = [
            when - since for when, pace in paces if when > since and pace > max(10 * before, 0.5)
        ]
        stage.measurements.recovery.append(back + max(late, default=0.0))
        stage.measurements.runs += 1
    ending.set()
    for each in clients:
        each.join()
    stage.measurements.details |= {
        "clients": len(clients),
        "predictions": len(paces),
        "failed": len(errors),
    }
    stage.expect(
        not errors, f"{len(errors)} predictions failed in spite of retries, first: {errors[:1]}"
    )
    drained(stage, service)


@row(
    "F16",
    "ten thousand queued jobs",
    "4 clients submit until 10,000 jobs wait; a restart; all are stopped",
    "tests/jobs/store/test_store.py",
    limit=600,
)
def many_jobs(stage: Stage) -> None:
    service = Service(stage)
    service.up()
    data = service.dataset()
    service.submit(data, "m", "template")
    until(lambda: ok(service.http.get("/v1/jobs"))["jobs"][0]["status"] in TERMINAL, "the first")
    store = store_of(service.home)
    spec = store.jobs.list_page()[0][0].spec
    expected, resident = (500 if stage.small else 10_000), _resident(service)
    before = [
        store.jobs.submit(JobSubmission(spec, name="m", priority=-1))
        for _ in range(max(0, expected - 500))
    ]
    paces = []
    for number in range(min(expected, 500)):
        began = time.perf_counter()
        service.submit(data, "m", f"many{number}", priority=-1)
        paces.append(time.perf_counter() - began)
    lists = []
    for _ in range(100):
        began = time.perf_counter()
        ok(service.http.get("/v1/jobs?limit=50"))
        lists.append(time.perf_counter() - began)
    stage.measurements.details |= {
        "queued": len(before) + len(paces),
        "submit_p99_ms": round(1000 * percentile(paces, 0.99)),
        "list_p99_ms": round(1000 * percentile(lists, 0.99)),
        "resident_grew_mb": round((_resident(service) - resident) / 1e6),
    }
    service.kill()
    with stage.measurements.recovering():
        service.up()
    stage.expect(
        store.statistics.read().jobs[PENDING] >= expected * 0.9,
        f"after the restart {store.statistics.read().jobs}",
    )
    stop_all(service)
    stage.measurements.runs += expected
    store.close()
    drained(stage, service)


def _resident(service: Service) -> int:
    """Return the resident memory of the service in bytes."""
    status = (PROC / str(service.pid) / "status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


@row(
    "F27",
    "out of file descriptors",
    "prlimit of the service to 20 open files more than it has, and 100 connections",
)
def few_descriptors(stage: Stage) -> None:
    service = Service(stage)
    service.up()
    data = service.dataset()
    service.trained(data)
    import resource

    for _ in range(stage.runs):
        before = len([*(PROC / str(service.pid) / "fd").iterdir()])
        limits = resource.prlimit(service.pid, resource.RLIMIT_NOFILE)
        # Only the soft limit is lowered: a lowered hard limit cannot be raised again.
        resource.prlimit(service.pid, resource.RLIMIT_NOFILE, (before + 20, limits[1]))
        items = []
        with contextlib.suppress(OSError):
            items.extend(
                socket.create_connection(("127.0.0.1", service.port), timeout=2) for _ in range(100)
            )
        time.sleep(1.0)
        stage.expect(service.alive, "the service ended without file descriptors")
        for connection in items:
            connection.close()
        with stage.measurements.recovering():
            until(
                lambda: (
                    again(
                        lambda: httpx.get(f"{service.url}/healthz", trust_env=False, timeout=5)
                    ).status_code
                    == 200
                ),
                "it answers",
                60,
            )
        resource.prlimit(service.pid, resource.RLIMIT_NOFILE, limits)
        _paces(service, 20)
        until(
            lambda b=before: len([*(PROC / str(service.pid) / "fd").iterdir()]) <= b + 5,
            "descriptors are given back",
            60,
        )
        stage.measurements.runs += 1
    service.submit(data, "m", "after")
    assert service.ended(stage.ledger.ids("job")[-1])["status"] == SUCCEEDED
    drained(stage, service)
