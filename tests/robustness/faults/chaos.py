"""Random kills for several minutes while clients continue.

There are two API replicas and two runners on PostgreSQL, or one service on SQLite. Clients submit
with keys, upload and predict. Every few seconds one of the processes, a running attempt or the
database is killed or stopped, and started again. At the end all work is drained, and the invariants
must hold.
"""

from __future__ import annotations

import random
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx

from tests.robustness.faults import invariants
from tests.robustness.faults.measurements import Measurements, percentile
from tests.robustness.faults.rows_api import OCTETS
from tests.robustness.faults.service import (
    Process,
    Service,
    attempts,
    redact,
    runner_process,
    store_of,
)
from tests.robustness.faults.stage import Stage, kill, stage, until
from tests.robustness.faults.work import MIDDLE, QUICK, SLOW, again, dataset, ended, ok
from tests.support.live_service import text_model
from tests.support.postgres import PostgresServer, private_postgres
from xcray.jobs.home import Home
from xcray.jobs.states import SUCCEEDED, TERMINAL
from xcray.model.registry import Registry

PACE = (2.0, 5.0)  # seconds between two faults
MOST_WAITING = 8  # jobs; clients submit no more while this number is pending
TEXT = {"instances": [{"text": "read rows of a csv file"}], "top_k": 3}


class Cast:
    """The processes that can be killed, and the observations of the clients.

    `lock` guards `tally` and `paces`.
    """

    def __init__(self, here: Stage, store: str) -> None:
        self.here = here
        self.home = Home(here.folder / "home")
        self.server: PostgresServer | None = _postgres(here) if store == "postgres" else None
        how: dict[str, Any] = {"lease_seconds": 8.0, "max_running_jobs": 2, "max_attempts": 10}
        if self.server is not None:
            self.url = how["store"] = self.server.database().partition("?")[0]
            self.apis = [
                Service(here, f"api{i}", self.home.path, ("--no-runner",), **how) for i in range(2)
            ]
            self.runners = [
                runner_process(here, self.home.path, f"runner{i}", **how) for i in range(2)
            ]
        else:
            self.url = self.home.store_url
            self.apis = [Service(here, "serve", self.home.path, **how)]
            self.runners = []
        self.ending = threading.Event()
        self.lock = threading.Lock()
        self.tally: Counter[str] = Counter()
        self.paces: list[float] = []
        self.waiting: list[str] = []

    @property
    def processes(self) -> list[Process]:
        """Return all processes that can be killed and started."""
        return [*self.apis, *self.runners]

    def start(self) -> None:
        """Publish a model, start all processes and build the data sets."""
        text_model(self.here.folder / "staged", seed=1)
        Registry(self.home.models).publish("docs", self.here.folder / "staged")
        self.here.ledger.acknowledged("model", "docs:1")
        for each in self.processes:
            each.start()
        for api in self.apis:
            api.ready()
        self.small = dataset(self.apis[0].http, self.here.ledger)
        self.middle = dataset(self.apis[0].http, self.here.ledger, "middle", **MIDDLE)
        self.answer = ok(self.apis[0].http.post("/v1/models/docs:predict", json=TEXT))[
            "predictions"
        ]

    def count(self, what: str) -> None:
        """Increment a counter."""
        with self.lock:
            self.tally[what] += 1


def _postgres(here: Stage) -> PostgresServer | None:
    """Start a private PostgreSQL that ends with the stage.

    Returns None and adds a note if its binaries are missing.
    """
    manager = private_postgres(durable=True)
    try:
        server = manager.__enter__()
    except FileNotFoundError as error:
        here.measurements.note(str(error))
        return None
    here.closing.append(lambda: manager.__exit__(None, None, None))
    return server


def play(minutes: float, seed: int, store: str) -> Measurements:
    """Run the command and return its measurements."""
    title = f"chaos for {minutes:g} minutes on {store}"
    with stage("chaos", title, runs=1, seed=seed) as here:
        here.measurements.injected = "kill -9 of replicas, runners, attempts; SIGSTOP and restarts of the database, at random"
        try:
            here.measurements.details |= on_stage(here, minutes, store)
        except Exception as error:
            traceback.print_exc()
            here.measurements.fault(f"{type(error).__name__}: {str(error)[:500]}")
    return here.measurements


def on_stage(here: Stage, minutes: float, store: str) -> dict[str, Any]:
    """Inject faults on a stage and return details; its measurements count broken promises."""
    cast = Cast(here, store)
    if store == "postgres" and cast.server is None:
        raise FileNotFoundError(
            "chaos on PostgreSQL needs its binaries (apt-get install postgresql), or --store sqlite"
        )
    cast.start()
    clients = [(_submits, 0), (_submits, 1), (_predicts, 2), (_predicts, 3), (_uploads, 4)]
    threads = [threading.Thread(target=_client, args=(cast, do, seed)) for do, seed in clients]
    for each in threads:
        each.start()
    try:
        _kills(cast, time.monotonic() + 60 * minutes)
    finally:
        cast.ending.set()
        for each in threads:
            each.join()
    return _drain(cast)


def _client(cast: Cast, do: Callable[[Cast, random.Random], None], seed: int) -> None:
    """Repeat an action until the end; an exception is a broken promise."""
    mine = random.Random(seed)
    while not cast.ending.is_set():
        try:
            do(cast, mine)
        except Exception as error:
            with cast.lock:
                cast.here.measurements.fault(
                    f"a client of {do.__name__[1:]} got {type(error).__name__}: {str(error)[:300]}"
                )
            cast.ending.wait(1.0)


def _anyone(
    cast: Cast, mine: random.Random, ask: Callable[[httpx.Client], httpx.Response], what: str
) -> httpx.Response:
    """Send a request to a random replica; retry broken connections and 503, as any client must."""

    def once() -> httpx.Response:
        api = mine.choice(cast.apis)
        with httpx.Client(base_url=api.url, trust_env=False, timeout=60) as http:
            try:
                response = ask(http)
            except httpx.TransportError:
                cast.count(f"{what}_broken_connections")
                raise
            if response.status_code == 503:
                cast.count(f"{what}_503")
            return response

    return again(once, 180)


def _submits(cast: Cast, mine: random.Random) -> None:
    """Submit a job with a key; sometimes stop it."""
    key, slow = f"key-{mine.getrandbits(60):x}", mine.random() < 0.3
    body = {"dataset": cast.middle, **SLOW} if slow else {"dataset": cast.small, **QUICK}
    body |= {"model": f"m{mine.randrange(3)}"}
    document = ok(
        _anyone(
            cast,
            mine,
            lambda http: http.post("/v1/jobs", json=body, headers={"Idempotency-Key": key}),
            "submit",
        )
    )
    cast.here.ledger.acknowledged("job", document["id"], key=key)
    cast.count("submitted")
    if mine.random() < 0.1:
        ok(_anyone(cast, mine, lambda http: http.post(f"/v1/jobs/{document['id']}/stop"), "stop"))
        cast.here.ledger.acknowledged("stop", document["id"])
        cast.count("stopped")
    while not cast.ending.wait(0.5):
        page = ok(_anyone(cast, mine, lambda http: http.get("/v1/jobs?limit=50"), "list"))["jobs"]
        if sum(job["status"] not in TERMINAL for job in page) < MOST_WAITING:
            return


def _predicts(cast: Cast, mine: random.Random) -> None:
    """Request a prediction and check it."""
    began = time.monotonic()
    body = ok(
        _anyone(cast, mine, lambda http: http.post("/v1/models/docs:predict", json=TEXT), "predict")
    )
    with cast.lock:
        cast.here.measurements.expect(
            body["predictions"] == cast.answer, "a prediction is another one"
        )
        cast.tally["predicted"] += 1
        cast.paces.append(time.monotonic() - began)
    cast.ending.wait(0.05)


def _uploads(cast: Cast, mine: random.Random) -> None:
    """Upload a small data set."""
    lines = "".join(
        f'{{"text": "row {mine.randrange(99)} of file {i}", "labels": ["a", "b{i % 7}"]}}\n'
        for i in range(200)
    )
    path, key = (
        f"/v1/datasets?name=up{mine.randrange(5)}&format=jsonl",
        f"up-{mine.getrandbits(60):x}",
    )
    headers = {**OCTETS, "Idempotency-Key": key}
    body = ok(
        _anyone(
            cast,
            mine,
            lambda http: http.post(path, content=lines.encode(), headers=headers),
            "upload",
        )
    )
    cast.here.ledger.acknowledged("dataset", body["id"])
    cast.count("uploaded")
    cast.ending.wait(2.0)


def _kills(cast: Cast, until_when: float) -> None:
    """Inject a fault every few seconds until `until_when`."""
    measurements, mine = cast.here.measurements, cast.here.random
    while time.monotonic() < until_when:
        time.sleep(mine.uniform(*PACE))
        act = mine.choices(
            (_kill_process, _kill_attempt, _stop_database, _restart_database), (5, 4, 1, 1)
        )[0]
        output = act(cast)
        if output:
            cast.count(output)
            measurements.runs += 1


def _kill_process(cast: Cast) -> str:
    """Kill one of the services or runners and start it again."""
    victim = cast.here.random.choice(cast.processes)
    victim.kill()
    time.sleep(cast.here.random.uniform(0.0, 1.5))
    if isinstance(victim, Service):
        with cast.here.measurements.recovering():
            victim.up()
    else:
        victim.start()
    return f"killed_{'runner' if victim in cast.runners else 'api'}"


def _kill_attempt(cast: Cast) -> str:
    """Kill the process of an attempt, or suspend it for longer than its lease."""
    there = sorted(attempts(cast.home.path).values())
    if not there:
        return ""
    pid = cast.here.random.choice(there)
    if cast.here.random.random() < 0.2:
        kill(pid, signal.SIGSTOP)
        threading.Timer(10.0, kill, (pid, signal.SIGCONT)).start()
        return "stopped_attempt"
    return "killed_attempt" if kill(pid) else ""


def _stop_database(cast: Cast) -> str:
    """Suspend all of PostgreSQL for a moment."""
    if cast.server is None:
        return ""
    with cast.server.paused():
        time.sleep(cast.here.random.uniform(0.5, 5.0))
    return "stopped_database"


def _restart_database(cast: Cast) -> str:
    """Kill PostgreSQL and let it recover."""
    if cast.server is None:
        return ""
    cast.server.kill()
    time.sleep(cast.here.random.uniform(0.0, 2.0))
    cast.server.start()
    return "killed_database"


def _drain(cast: Cast) -> dict[str, Any]:
    """Wait until all jobs and builds have ended; check the invariants and return measurements."""
    measurements, http = cast.here.measurements, cast.apis[0].http
    for each in cast.processes:
        if not each.alive:
            each.start()
    cast.apis[0].ready()
    began = time.monotonic()
    for job in cast.here.ledger.ids("job"):
        record = ended(http, job, 600)
        wished = job in cast.here.ledger.ids("stop")
        if (
            record["status"] != SUCCEEDED
            and not wished
            and record["reason"] not in ("LOST", "CRASH_LOOP")
        ):
            measurements.fault(
                f"{job} is {record['status']} {record['reason']}: {record['message']}"
            )
        cast.tally[record["status"].lower()] += 1
        cast.tally["attempts"] += record["attempt"]
    for data in cast.here.ledger.ids("dataset"):
        until(
            lambda data=data: (
                ok(again(lambda: http.get(f"/v1/datasets/{data}")))["status"] == "READY"
            ),
            f"{data} is READY",
            180,
        )
    store = store_of(cast.home, cast.url)
    deadline = time.monotonic() + 60
    while (
        list(invariants.orphans(store, cast.home, {job.id for job in invariants.all_jobs(store)}))
        and time.monotonic() < deadline
    ):
        time.sleep(1.0)  # the maintenance leader sweeps incomplete files of killed processes
    logs = [each.log for each in cast.processes]
    invariants.check(
        measurements, cast.here.ledger, store, cast.home, logs=logs, swept=False, most_attempts=10
    )
    left = list(
        invariants.orphans(store, cast.home, {job.id for job in invariants.all_jobs(store)})
    )
    store.close()
    measurements.details["left_for_the_sweep"] = len(left)
    for sentence in left:
        measurements.note(f"left for the sweep: {redact(sentence)}")
    for each in cast.processes:
        each.end()
    return {
        **dict(sorted(cast.tally.items())),
        "drained_in_s": round(time.monotonic() - began, 1),
        "predict_p50_ms": round(1000 * percentile(cast.paces, 0.5), 1),
        "predict_max_s": round(max(cast.paces, default=0.0), 1),
    }
