"""The job queue under load: submit, list, stop, restart and claim with many jobs.

`python -m benchmarks.serving.queue [--jobs 10000] [--rows 100000] [--claims 10000] [--store
sqlite,postgresql] [--json FILE]`

--store selects the stores, which alternate in each step: sqlite (a file in a temporary folder),
postgresql (a private server from the binaries of this machine, with synchronous commits), or the
URL of an empty database. Over HTTP, against `xcray serve --no-runner`:

- submit: jobs per second by 8 clients, each job acknowledged when it is on disk; the same by one.
- list: pages of 50 while all jobs are pending: newest first, deep pages, by status, by name.
- restart: seconds from SIGTERM to the end, and from start to ready, with all jobs pending.
- stop: seconds to stop all jobs, by POST /v1/jobs:stop if available, otherwise one by one.

In the store itself: `filled` lists by each filter, counts, submits and claims with `rows` jobs of
all states and 20 tenants. `claims` lets 4 processes claim `claims` jobs, and counts duplicates.
Times are milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from benchmarks.common import arguments, dataset, in_folder
from benchmarks.serving.queue_service import BODY, Service, checked, many, timed
from tests.support.postgres import private_postgres
from xcray.data.dataset import Dataset
from xcray.jobs.database.schema import EVENTS, JOBS
from xcray.jobs.job import format_utc, new_id
from xcray.jobs.states import FAILED, PENDING, STATUSES, STOPPED, SUCCEEDED
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobFilter, JobSubmission

Figures = dict[str, Any]
CLIENTS, CLAIMERS = 8, 4
PAGES = 200  # requested pages per kind
DAY = 86_400.0
BARS = {
    "submit a second": 100,
    "submit p99 ms": 50,
    "list p99 ms": 100,
    "restart s": 5,
    "stop all s": 10,
    "claimed twice": 0,
}


def spread(seconds: list[float]) -> Figures:
    """Return p50, p99 and maximum in milliseconds."""
    milliseconds = np.asarray(seconds) * 1e3
    return {
        "p50": rounded(np.percentile(milliseconds, 50)),
        "p99": rounded(np.percentile(milliseconds, 99)),
        "max": rounded(milliseconds.max()),
    }


def rounded(value: float) -> float:
    """Round to three significant digits."""
    return float(f"{value:.3g}")


# --- over HTTP


def submitting(service: Service, built: Dataset, jobs: int) -> Figures:
    """Submit by many clients and by one."""
    body = {**BODY, "dataset": service.add_dataset(built)}
    before = service.rss()

    def step(number: int) -> Callable[[Any], Any]:
        return lambda client: client.post(
            "/v1/jobs",
            json={**body, "name": f"n{number % 50}"},
            headers={"Idempotency-Key": f"k{number}"},
        )

    alone, _ = many(service, 1, [step(number) for number in range(300)])
    seconds, total = many(service, CLIENTS, [step(number) for number in range(300, jobs)])
    figures = {
        "per_second": rounded(len(seconds) / total),
        "clients": CLIENTS,
        **spread(seconds),
        "one_client": spread(alone),
    }
    return {**figures, "rss_mb_more": rounded(service.rss() - before)}


def listing(service: Service) -> Figures:
    """Request pages of lists while the queue is long."""
    with service.client() as client:
        tokens, token = [], None
        while len(tokens) < PAGES:
            page = checked(
                client.get(
                    "/v1/jobs", params={"limit": 50, **({"page_token": token} if token else {})}
                )
            ).json()
            token = page["next_page_token"]
            if token is None:
                break
            tokens.append(token)
    wishes: dict[str, list[Figures]] = {
        "newest": [{}] * PAGES,
        "deep": [{"page_token": token} for token in tokens],
        "status": [{"status": "PENDING"}] * PAGES,
        "none": [{"status": "FAILED"}] * PAGES,
        "name": [{"name": f"n{number % 50}"} for number in range(PAGES)],
    }
    out = {}
    for name, params in wishes.items():
        steps = [
            lambda client, wish=wish: client.get("/v1/jobs", params={"limit": 50, **wish})
            for wish in params
        ]
        out[name] = spread(many(service, 1, steps)[0])
    return out


def restarting(service: Service) -> Figures:
    """End the service and start it again."""
    return {"end_seconds": rounded(service.end()), "start_seconds": rounded(service.start())}


def stopping(service: Service, jobs: int) -> Figures:
    """Stop all pending jobs."""
    with service.client() as client:
        begun = time.monotonic()
        answer = client.post("/v1/jobs:stop", json={"status": "PENDING"})
        if answer.status_code == 200:
            while answer.json()["more"]:
                answer = checked(client.post("/v1/jobs:stop", json={"status": "PENDING"}))
            return {"seconds": rounded(time.monotonic() - begun), "by": "POST /v1/jobs:stop"}
        ids: list[str] = []
        token: dict[str, str] = {}
        while len(ids) < jobs:
            page = checked(client.get("/v1/jobs", params={"limit": 1000, **token})).json()
            ids += [job["id"] for job in page["jobs"]]
            if page["next_page_token"] is None:
                break
            token = {"page_token": page["next_page_token"]}
    many(
        service,
        CLIENTS,
        [lambda client, job=job: client.post(f"/v1/jobs/{job}/stop") for job in ids],
    )
    return {
        "seconds": rounded(time.monotonic() - begun),
        "by": f"{CLIENTS} clients, one request per job",
    }


# --- in the store itself


def fill(store: JobStore, rows: int) -> None:
    """Insert the jobs of about a year, with specs of 1 kB and results of 4 kB."""
    rng, now = np.random.default_rng(1), time.time()
    statuses = rng.choice([SUCCEEDED, FAILED, STOPPED, PENDING], rows, p=[0.6, 0.1, 0.1, 0.2])
    spec = {"solver": "ppdsparse", "note": "x" * 1000}
    result = {"model": "m", "report": {"figures": [0.123456] * 400}}
    with store._database.write() as connection:
        for start in range(0, rows, 2000):
            chosen = range(start, min(start + 2000, rows))
            connection.execute(
                sa.insert(JOBS),
                [_row(number, str(statuses[number]), spec, result, now, rows) for number in chosen],
            )
            ids = connection.execute(
                sa.select(JOBS.c.id).order_by(JOBS.c.seq.desc()).limit(len(chosen))
            ).scalars()
            first = {
                "seq": 1,
                "time": format_utc(now),
                "kind": "status",
                "data": {"status": PENDING},
            }
            connection.execute(sa.insert(EVENTS), [{**first, "job_id": job_id} for job_id in ids])
    analyse = store._database.raw_connection()
    analyse.driver_connection.execute("ANALYZE")
    analyse.driver_connection.commit()
    analyse.close()


def _row(
    number: int, status: str, spec: Figures, result: Figures, now: float, rows: int
) -> Figures:
    """Return one of many jobs."""
    created = format_utc(now - (rows - number) * 365 * DAY / rows)
    ended = status != PENDING
    return {
        "id": new_id("job"),
        "tenant": "default" if number % 2 else f"t{number % 40 // 2}",
        "name": f"n{number % 500}",
        "spec": spec,
        "digest": secrets.token_hex(32),
        "idempotency_key": f"k{number}",
        "status": status,
        "phase": "QUEUED",
        "attempt": int(ended),
        "priority": number % 3,
        "progress": {"done": 1},
        "result": result if status == SUCCEEDED else None,
        "stop_requested": False,
        "not_before": 0.0,
        "losses": 0,
        "advanced": False,
        "events": 1,
        "created": created,
        "finished": created if ended else None,
        "model": f"m{number % 200}",
        "dataset_id": f"ds_{number % 1000}",
        "kind": "predict" if number % 10 == 0 else "train",
    }


def filled(store: JobStore, repeats: int = 100) -> Figures:
    """Measure lists by each filter, and other calls that depend on the number of jobs."""
    now = time.time()
    wishes: dict[str, Callable[[int], Any]] = {
        "newest": lambda _: store.jobs.list_page(),
        "deep": lambda i: store.jobs.list_page(page_token=_token(store, i)),
        **{
            f"status {each}": lambda _, each=each: store.jobs.list_page(JobFilter(status=each))
            for each in STATUSES
        },
        "kind": lambda _: store.jobs.list_page(JobFilter(kind="predict")),
        "name": lambda i: store.jobs.list_page(JobFilter(name=f"n{i}")),
        "nobody": lambda i: store.jobs.list_page(JobFilter(name=f"nobody{i}")),
        "model": lambda i: store.jobs.list_page(JobFilter(model=f"m{i}")),
        "dataset": lambda i: store.jobs.list_page(JobFilter(dataset_id=f"ds_{i}")),
        "priority": lambda i: store.jobs.list_page(JobFilter(priority=i % 3, status=FAILED)),
        "created before": lambda i: store.jobs.list_page(JobFilter(created_before=now - 300 * DAY)),
        "created between": lambda i: store.jobs.list_page(
            JobFilter(created_after=now - (i + 2) * DAY, created_before=now - (i + 1) * DAY)
        ),
        "of a small tenant": lambda i: store.jobs.list_page(
            JobFilter(f"t{i % 20}", status=PENDING)
        ),
        "counts": lambda _: store.jobs.count(),
        "counts of a tenant": lambda _: store.jobs.count("default"),
        "figures": lambda _: store.statistics.read(),
        "get": lambda i: store.jobs.list_page(JobFilter(name=f"n{i}"), limit=1),
        "expire": lambda _: store.attempts.expire(),
        "retire nothing": lambda _: store.jobs.delete_ended(0.0, keep=10**9),
        "submit": lambda i: store.jobs.submit(
            JobSubmission({"a": 1}, name="x", idempotency_key=secrets.token_hex(8))
        ),
        "submit with quota": lambda i: store.jobs.submit(
            JobSubmission({"a": 1}, name="x"), max_queued=10**6
        ),
        "claim": lambda i: store.attempts.claim(
            "me", lease_seconds=1e6, max_running=10**6, quota=lambda _: 10**6
        ),
    }
    return {
        name: spread([timed(lambda i=i, wish=wish: wish(i)) for i in range(repeats)])
        for name, wish in wishes.items()
    }  # type: ignore[misc]


def _token(store: JobStore, place: int) -> str | None:
    """Return the token of a page in the middle."""
    return (
        None
        if place % 2
        else store.jobs.list_page(JobFilter(created_before=time.time() - 180 * DAY), limit=1)[1]
    )


CLAIMER = """
import sys
from xcray.errors import Unavailable
from xcray.jobs.store.job_store import JobStore
store = JobStore(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
while True:
    try:
        job = store.attempts.claim(sys.argv[2], lease_seconds=1e6)
    except Unavailable:  # other processes had the write lock for 15 seconds
        print("unavailable", file=sys.stderr, flush=True)
        continue
    if job is None:
        break
    print(job.id, job.attempt)
"""


def claims(url: str, jobs: int) -> Figures:
    """Let processes claim all jobs, and count the jobs of each."""
    store = JobStore(url)
    with store._database.write() as connection:
        now = time.time()
        rows = [
            {**_row(number, PENDING, {}, {}, now, jobs), "idempotency_key": None}
            for number in range(jobs)
        ]
        connection.execute(sa.insert(JOBS), rows)
    command = [sys.executable, "-c", CLAIMER, url]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [
        subprocess.Popen([*command, f"claimer {number}"], **pipes) for number in range(CLAIMERS)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    begun = time.monotonic()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    with contextlib.ExitStack() as readers:
        pool = readers.enter_context(ThreadPoolExecutor(CLAIMERS))
        reports = list(pool.map(lambda worker: worker.communicate()[0].splitlines(), workers))
    total = time.monotonic() - begun
    lines = [line for each in reports for line in each]
    missing = store.jobs.count()[PENDING]
    store.close()
    figures = {
        "jobs": jobs,
        "processes": CLAIMERS,
        "per_second": rounded(jobs / total),
        "shares": [len(each) for each in reports],
    }
    return {
        **figures,
        "claimed_twice": len(lines) - len(set(lines)),
        "attempts_above_1": sum(not line.endswith(" 1") for line in lines),
        "left": missing,
    }


# --- all parts


@contextlib.contextmanager
def stores(names: list[str], folder: Path) -> Iterator[dict[str, Callable[[], str]]]:
    """Yield, by name, functions that return the address of a new, empty store."""
    with contextlib.ExitStack() as stack:
        results: dict[str, Callable[[], str]] = {}
        for name in names:
            if name == "postgresql":
                results[name] = stack.enter_context(private_postgres(durable=True)).database
            elif name == "sqlite":
                results[name] = lambda: (
                    f"sqlite:///{Path(tempfile.mkdtemp(dir=folder)) / 'xcray.db'}"
                )
            else:
                results[sa.make_url(name).get_backend_name()] = lambda name=name: name  # type: ignore[misc]
        yield results


def measure(folder: Path, names: list[str], jobs: int, rows: int, claimed: int) -> Figures:
    """Run each step on each store in turn."""
    out: dict[str, Figures] = {name: {} for name in names}
    with stores(names, folder) as result:
        out = {name: {} for name in result}
        if jobs:
            built = dataset("pydocs", None, folder)
            services = {
                name: Service(Path(tempfile.mkdtemp(dir=folder)), new())
                for name, new in result.items()
            }
            steps: dict[str, Callable[[Service], Figures]] = {
                "submit": lambda service: submitting(service, built, jobs),
                "list": listing,
                "restart": restarting,
                "stop": lambda service: stopping(service, jobs),
            }
            try:
                for service in services.values():
                    service.start()
                for step, do in steps.items():
                    for name, service in services.items():
                        record_step(out[name], name, step, do(service))
            finally:
                for service in services.values():
                    service.end()
        for name, new in result.items():
            if rows:
                store = JobStore(new())
                fill(store, rows)
                record_step(out[name], name, "filled", {"rows": rows, **filled(store)})
                store.close()
        for name, new in result.items():
            if claimed:
                record_step(out[name], name, "claims", claims(new(), claimed))
    return out


def record_step(out: Figures, store: str, step: str, figures: Figures) -> None:
    """Store and print the result of a step."""
    out[step] = figures
    print(f"{store:12}{step}")
    for name, value in figures.items():
        print(f"{'':14}{name:22}{json.dumps(value)}", flush=True)


def main() -> None:
    """Measure, and print one line of JSON at the end."""
    chosen = arguments(
        "the queue under load",
        jobs={
            "type": int,
            "default": 10_000,
            "help": "jobs submitted over HTTP; 0 skips this part",
        },
        rows={
            "type": int,
            "default": 100_000,
            "help": "jobs in the filled store; 0 skips this part",
        },
        claims={
            "type": int,
            "default": 10_000,
            "help": "jobs that four processes claim; 0 skips this part",
        },
        store={
            "default": "sqlite,postgresql",
            "help": "sqlite, postgresql or a URL, separated by commas",
        },
    )
    names = chosen.store.split(",")

    def run(folder: Path) -> Figures:
        return {
            "bars": BARS,
            "stores": measure(folder, names, chosen.jobs, chosen.rows, chosen.claims),
        }

    in_folder(run, chosen.json)


if __name__ == "__main__":
    main()
