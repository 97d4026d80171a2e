"""Rows about the store.

Clocks, replicas, crashes of writers, an unreachable database, programs of two versions.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from tests.robustness.faults import invariants, strace
from tests.robustness.faults.catalogue import row
from tests.robustness.faults.ledger import Ledger
from tests.robustness.faults.rows_runners import drained, same_model, working
from tests.robustness.faults.service import MAIN, Service, environment, runner_process, store_of
from tests.robustness.faults.stage import Stage
from tests.robustness.faults.work import MIDDLE, SLOW, again, at_share, ended, ok, submit
from tests.support.next_release import ADDED, next_steps, program, upgrade_to
from tests.support.postgres import PostgresServer, private_postgres
from xcray.errors import Conflict
from xcray.jobs.database.migrations import HEAD
from xcray.jobs.database.upgrade import inspect_store
from xcray.jobs.home import Home
from xcray.jobs.states import STOPPED, SUCCEEDED
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
HOUR, DAY = 3600.0, 86_400.0


def postgres(stage: Stage, *, durable: bool = False) -> PostgresServer | None:
    """Start a private PostgreSQL that ends with the stage.

    Returns None and adds a note if its binaries are missing.
    """
    manager = private_postgres(durable=durable)
    try:
        server = manager.__enter__()
    except FileNotFoundError as error:
        stage.measurements.note(str(error))
        return None
    stage.closing.append(lambda: manager.__exit__(None, None, None))
    return server


@row(
    "F14",
    "clocks jump and differ",
    "the clocks of three stores on one database are an hour or a day apart and jump while jobs run; a "
    "service under libfaketime whose clock jumps by a day",
    "tests/jobs/store/test_store.py",
    "tests/jobs/store/test_queue.py",
)
def clocks(stage: Stage) -> None:
    ahead = [0.0, 0.0, 0.0]
    path = f"sqlite:///{stage.folder / 'clocks.db'}"
    stores = [JobStore(path, now=lambda i=i: time.time() + ahead[i]) for i in range(3)]
    for turn in range(20 * stage.runs):
        ahead[:] = [
            stage.random.choice((-DAY, -HOUR, -300.0, 0.0, 300.0, HOUR, DAY)) for _ in stores
        ]
        one, two, three = stage.random.sample(stores, 3)
        first, second = (
            one.jobs.submit(JobSubmission({"n": turn, "i": i}, name="clock"))[0] for i in range(2)
        )
        claimed = two.attempts.claim("me", lease_seconds=60)
        stage.expect(
            claimed is not None and claimed.id == first.id,
            "jobs are not taken in the order they came",
        )
        ahead[:] = [stage.random.choice((-DAY, 0.0, DAY)) for _ in stores]
        for each in stores:
            stage.expect(
                each.attempts.expire() == [], "a jump of the clock took a job from its runner"
            )
        three.attempts.heartbeat(first.id, 1, lease_seconds=60)
        outcome = three.attempts.finish(first.id, 1, STOPPED)
        stage.expect(
            str(outcome.finished) >= str(outcome.started) >= outcome.created,
            f"a duration is negative: {outcome}",
        )
        other = one.attempts.claim("me", lease_seconds=60)
        stage.expect(other is not None and other.id == second.id, "the second job was not found")
        two.attempts.finish(second.id, 1, STOPPED)
        stage.measurements.runs += 1
    for each in stores:
        each.close()
    if not stage.small:
        _jumping_service(stage)


def _jumping_service(stage: Stage) -> None:
    """Run a service and its runners with a clock that jumps by a day in both directions."""
    if not Path(FAKETIME).is_file():
        stage.measurements.note(
            "libfaketime is not here (apt-get install libfaketime): no whole process had a wrong clock"
        )
        return
    file = stage.folder / "faketime"
    file.write_text("+0")
    fake = {
        "LD_PRELOAD": FAKETIME,
        "FAKETIME_TIMESTAMP_FILE": file,
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    service, data, sha = working(stage, **fake)
    for turn, jump in enumerate(("+1d", "-1d")):
        job = service.submit(data, "m", f"j{turn}", **SLOW)
        at_share(service.http, job, 0.3)
        file.write_text(jump)
        outcome = service.ended(job)
        same_model(stage, outcome, sha)
        stage.expect(outcome["attempt"] == 1, f"a clock that jumped by {jump} cost an attempt")
        stage.expect(
            outcome["finished"] >= outcome["started"] >= outcome["created"],
            f"after {jump} a duration is negative",
        )
        file.write_text("+0")
        stage.measurements.runs += 1
    drained(stage, service)


CLAIMER = """
import sys
from xcray.jobs.store.job_store import JobStore
store = JobStore(sys.argv[1])
sys.stdout.write("ready\\n"); sys.stdout.flush(); sys.stdin.readline()
while (job := store.attempts.claim(sys.argv[2], lease_seconds=600)) is not None:
    print(job.id, job.attempt, flush=True)
    store.attempts.finish(job.id, job.attempt, "STOPPED")
"""


def _claims(stage: Stage, url: str, jobs: int) -> None:
    """Claim all jobs in four processes; each job must be claimed once."""
    store = JobStore(url)
    for number in range(jobs):
        store.jobs.submit(JobSubmission({"n": number}, name="claims"))
    words = [sys.executable, "-c", CLAIMER, url]
    how: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "text": True,
        "env": environment(stage.folder),
    }
    claimers = [subprocess.Popen([*words, f"c{i}"], **how) for i in range(4)]
    for each in claimers:
        assert each.stdout is not None
        each.stdout.readline()
    outputs: list[str] = ["", "", "", ""]

    def run(number: int) -> None:
        outputs[number], _ = claimers[number].communicate("go\n", timeout=300)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    claimed = Counter(line.split()[0] for text in outputs for line in text.splitlines())
    for job, times in claimed.items():
        if times > 1:
            stage.measurements.double(f"{job} was claimed {times} times")
    for process in claimers:
        stage.expect(process.returncode == 0, f"a claimer ended with {process.returncode}")
    if len(claimed) != jobs or store.statistics.read().jobs[STOPPED] != jobs:
        stage.measurements.lose(
            f"{jobs} jobs, {len(claimed)} claims, {store.statistics.read().jobs}"
        )
    stage.measurements.runs += jobs
    store.close()


@row(
    "F19",
    "several replicas on one store",
    "four processes claim from SQLite and from PostgreSQL; two API replicas and two runners of one home on PostgreSQL",
    "tests/jobs/store/test_store.py",
)
def replicas(stage: Stage) -> None:
    _claims(
        stage, f"sqlite:///{stage.folder / 'claims.db'}", 100 if stage.small else 200 * stage.runs
    )
    server = postgres(stage)
    if server is None:
        return
    _claims(stage, server.database(), 100 if stage.small else 200 * stage.runs)
    home, url = Home(stage.folder / "home"), server.database()
    apis = [Service(stage, f"api{i}", home.path, ("--no-runner",), store=url) for i in range(2)]
    for each in apis:
        each.up()
    runners = [
        runner_process(stage, home.path, f"runner{i}", store=url, max_running_jobs=2)
        for i in range(2)
    ]
    for each in runners:
        each.start()
    data = apis[0].dataset()
    expected = 4 if stage.small else 4 * stage.runs
    answers = Counter[int]()
    jobs = []
    for number in range(expected):
        job = submit(apis[number % 2].http, stage.ledger, data, f"m{number % 3}", f"k{number}")
        response = apis[1 - number % 2].http.get(f"/v1/jobs/{job}")
        answers[response.status_code] += 1
        jobs.append(job)
    for number, job in enumerate(jobs):
        outcome = ended(apis[number % 2].http, job)
        stage.expect(
            (outcome["status"], outcome["attempt"]) == (SUCCEEDED, 1),
            f"{job} is {outcome['status']} in attempt {outcome['attempt']}",
        )
    stage.expect(set(answers) == {200}, f"the other replica answered {dict(answers)}")
    stage.measurements.runs += expected
    _end(stage, home, url, [*apis, *runners])


def _end(stage: Stage, home: Home, url: str, processes: list[Any]) -> None:
    """Check the invariants and end several processes."""
    store = store_of(home, url)
    invariants.check(
        stage.measurements, stage.ledger, store, home, logs=[each.log for each in processes]
    )
    store.close()
    for each in processes:
        each.end()


SUBMITTER = """
import sys
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission
store = JobStore(sys.argv[1])
n = 0
while True:
    spec, key = {"n": n, "fill": "x" * 2000}, f"{sys.argv[2]}-{n}"
    job, _ = store.jobs.submit(JobSubmission(spec, name="load", idempotency_key=key))
    print(job.id, flush=True)
    n += 1
"""


@row(
    "F23",
    "who writes the store is killed",
    "SIGKILL of processes in the middle of commits; an upgrade "
    "killed at its n-th system call; an older program on a newer store; a backup under load",
    "tests/jobs/store/test_store.py",
    "tests/jobs/database/test_upgrade.py",
)
def writers_killed(stage: Stage) -> None:
    url = f"sqlite:///{stage.folder / 'written.db'}"
    JobStore(url).close()
    for turn in range(4 * stage.runs):
        _killed_commit(stage, url, turn)
    _backup(stage)
    _upgrade_killed(stage)
    _newer(stage)


def _killed_commit(stage: Stage, url: str, turn: int) -> None:
    """Kill a process that submits as fast as it can.

    All printed jobs must be in the store, at most one more, and the file must be intact.
    """
    writer = subprocess.Popen(
        [sys.executable, "-c", SUBMITTER, url, str(turn)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(stage.folder),
    )
    assert writer.stdout is not None
    reports = [writer.stdout.readline().strip()]
    timer = threading.Timer(stage.random.uniform(0.05, 0.4), writer.kill)
    timer.start()
    reports += [line.strip() for line in writer.stdout if line.endswith("\n")]
    writer.wait()
    writer.stdout.close()
    with stage.measurements.recovering():
        store = JobStore(url)
        there = {
            job.id
            for job in invariants.all_jobs(store)
            if str(job.idempotency_key).startswith(f"{turn}-")
        }
    store.close()
    for job in set(reports) - there:
        stage.measurements.lose(f"{job} was acknowledged and is gone")
    stage.expect(
        len(there - set(reports)) <= 1,
        f"{len(there - set(reports))} jobs were stored and not acknowledged",
    )
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as raw:
        stage.expect(
            raw.execute("PRAGMA integrity_check").fetchone() == ("ok",), "the file is not sound"
        )
    stage.measurements.runs += 1


def _backup(stage: Stage) -> None:
    """Take a backup while another process writes; it must contain all jobs printed before."""
    home = stage.place("busy")
    url = f"sqlite:///{home / 'xcray.db'}"
    JobStore(url).close()
    writer = subprocess.Popen(
        [sys.executable, "-c", SUBMITTER, url, "b"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(stage.folder),
    )
    assert writer.stdout is not None
    before = [writer.stdout.readline().strip() for _ in range(50)]
    copy = stage.folder / "copy.db"
    words = [*MAIN, "store", "backup", str(copy), "--home", str(home)]
    process = subprocess.run(
        words, capture_output=True, text=True, env=environment(stage.folder), cwd=stage.folder
    )
    writer.kill()
    writer.wait()
    writer.stdout.close()
    if not stage.expect(process.returncode == 0, f"a backup under load: {process.stderr[-300:]}"):
        return
    restored = JobStore(f"sqlite:///{copy}")
    there = {job.id for job in invariants.all_jobs(restored)}
    restored.close()
    for job in set(before) - there:
        stage.measurements.lose(f"{job} was acknowledged before the backup and is not in it")
    stage.measurements.runs += 1


def _upgrade_killed(stage: Stage) -> None:
    """Kill an upgrade at each system call; the steps must be complete and no job lost."""
    if not strace.is_available():
        stage.measurements.note("no upgrade was killed: it needs strace")
        return
    beginning = stage.place("before")
    store = JobStore(f"sqlite:///{beginning / 'xcray.db'}")
    reports = {store.jobs.submit(JobSubmission({"n": n}, name="old"))[0].id for n in range(30)}
    store.close()

    def upgrade(folder: Path) -> None:
        upgrade_to(ADDED, f"sqlite:///{folder / 'xcray.db'}")

    rehearsal = stage.folder / "rehearsal"
    shutil.copytree(beginning, rehearsal)
    result = strace.counts(lambda: upgrade(rehearsal), stage.folder / "calls")
    for call, count in result.items():
        for when in stage.random.sample(
            range(1, count + 1), min(count, 4 if stage.small else 4 * stage.runs)
        ):
            folder = stage.folder / f"upgrade-{call}-{when}"
            shutil.copytree(beginning, folder)
            # The lambda is called at once, so it sees the current loop variables.
            strace.inject(lambda: upgrade(folder), call, "signal=KILL", when)  # noqa: B023
            upgrade(folder)
            store = JobStore(f"sqlite:///{folder / 'xcray.db'}")
            there = {job.id for job in invariants.all_jobs(store)}
            store.close()
            for job in reports - there:
                stage.measurements.lose(f"{job} is gone after an upgrade killed at {call} {when}")
            stage.measurements.runs += 1
            shutil.rmtree(folder)


def _newer(stage: Stage) -> None:
    """Check that this program refuses an incompatible newer store and does not change it."""
    file = stage.folder / "newer.db"
    store = JobStore(f"sqlite:///{file}")
    job, _ = store.jobs.submit(JobSubmission({}, name="kept"))
    store.close()
    cuts = next_steps(("ALTER TABLE keys DROP COLUMN revoked",), oldest=HEAD + 1)
    upgrade_to(cuts, f"sqlite:///{file}")
    try:
        JobStore(f"sqlite:///{file}").close()
        stage.expect(False, "an older program opened a newer store")
    except Conflict as error:
        stage.expect("newer" in str(error), f"an older program on a newer store: {error}")
    with contextlib.closing(sqlite3.connect(file)) as raw:
        stage.expect(
            raw.execute("SELECT id FROM jobs").fetchall() == [(job.id,)],
            "an older program changed a newer store",
        )
    stage.measurements.runs += 1


@row(
    "F24",
    "the database is away",
    "SIGSTOP of all PostgreSQL's processes for 30 s while a job trains, then SIGCONT; SIGKILL and a restart",
    "tests/jobs/store/test_store.py",
)
def database_away(stage: Stage) -> None:
    server = postgres(stage, durable=True)
    if server is None:
        raise FileNotFoundError("F24 needs PostgreSQL's binaries (apt-get install postgresql)")
    service, data, sha = working(stage, store=server.database())
    for turn in range(1 if stage.small else min(stage.runs, 2)):
        if not turn and not stage.small:  # each request takes a full timeout, so do this once
            job = service.submit(data, "m", f"p{turn}", **SLOW)
            at_share(service.http, job, 0.1)
            with server.paused():
                _answers_without(stage, service, data, 30.0, turn)
            _back(stage, service, job, sha)
        job = service.submit(data, "m", f"q{turn}", **SLOW)
        at_share(service.http, job, 0.1)
        server.kill()
        _answers_without(stage, service, data, 1.0 if stage.small else 5.0, turn + 10)
        server.start()
        _back(stage, service, job, sha)
    store = JobStore(str(service.settings["store"]))
    invariants.check(stage.measurements, stage.ledger, store, service.home, logs=[service.log])
    store.close()
    service.end()


def _answers_without(stage: Stage, service: Service, data: str, seconds: float, turn: int) -> None:
    """Check the service while the database is unreachable.

    It is alive and not ready, predictions continue, and writes are refused with 503 and
    Retry-After.
    """
    began, patience = time.monotonic(), 60.0
    while True:
        alive = service.http.get("/healthz", timeout=patience)
        stage.expect(alive.status_code == 200, f"/healthz said {alive.status_code}")
        body = {"dataset": data, "model": "m", **SLOW}
        start = time.monotonic()
        refused = service.http.post(
            "/v1/jobs", json=body, headers={"Idempotency-Key": f"away{turn}"}, timeout=patience
        )
        stage.measurements.details["refused_after_s"] = round(
            max(time.monotonic() - start, stage.measurements.details.get("refused_after_s", 0)), 1
        )
        report = refused.status_code == 503 and "retry-after" in refused.headers
        stage.expect(report, f"a submit was answered {refused.status_code} {refused.text[:200]}")
        predicted = service.http.post(
            "/v1/models/plain:predict",
            json={"instances": [{"indices": [1], "values": [1.0]}]},
            timeout=patience,
        )
        stage.expect(
            predicted.status_code == 200, f"a prediction was answered {predicted.status_code}"
        )
        if time.monotonic() - began > seconds:
            break
    ready = service.http.get("/readyz", timeout=patience)
    stage.expect(ready.status_code == 503, f"/readyz said {ready.status_code}")
    stage.measurements.runs += 1


def _back(stage: Stage, service: Service, job: str, sha: str) -> None:
    """Check that the service is ready again and the running job ends with the same model."""
    with stage.measurements.recovering():
        service.ready()
        ok(again(lambda: service.http.get(f"/v1/jobs/{job}")))
    same_model(stage, service.ended(job), sha)


@row(
    "F26",
    "one version follows another",
    "a service is replaced in the middle of a queue by one whose release adds to the schema, by "
    "SIGTERM and by SIGKILL, under clients that submit; then the older one is started again",
    limit=600,
)
def two_versions(stage: Stage) -> None:
    tree = program(stage.folder / "next", ADDED)
    for turn in range(1 if stage.small else min(stage.runs, 2)):
        ledger = Ledger(stage.folder / f"ledger{turn}.jsonl")  # each turn has its own home
        try:
            _followed(stage._replace(ledger=ledger), tree, turn)
        finally:
            ledger.close()


def _followed(stage: Stage, tree: Path, turn: int) -> None:
    """Replace an old service by a new one and back, on the same home and port."""
    new = Service(stage, f"new{turn}", stage.folder / f"home{turn}")
    old = Service(stage, f"old{turn}", new.home.path)
    old.words[old.words.index("--port") + 1] = str(new.port)
    new.settings["PYTHONPATH"], old.http, old.port = str(tree), new.http, new.port
    old.up(120)
    data = old.dataset(**MIDDLE)
    first = old.submit(data, "m", f"v{turn}-first", **SLOW)
    running = old.submit(data, "m", f"v{turn}-running", **SLOW)
    sha = old.ended(first)["result"]["sha256"]
    at_share(old.http, running, 0.3)
    ids, ending = [], threading.Event()

    def client() -> None:
        number = 0
        with httpx.Client(base_url=new.url, trust_env=False, timeout=60) as http:
            while not ending.is_set():
                ids.append(
                    submit(
                        http,
                        stage.ledger,
                        data,
                        "m",
                        f"v{turn}-{number}",
                        solver="ppdsparse",
                        priority=-number % 100,
                    )
                )
                number += 1
                time.sleep(0.3)

    asker = threading.Thread(target=client)
    asker.start()
    with stage.measurements.recovering():
        old.kill() if turn else old.end()
        new.up()
    time.sleep(1.0)
    ending.set()
    asker.join()
    same_model(stage, new.ended(running), sha)
    for job in ids:
        stage.expect(
            new.ended(job)["status"] == SUCCEEDED,
            f"{job}, submitted around the change, did not succeed",
        )
    stage.measurements.details["submitted_around_it"] = stage.measurements.details.get(
        "submitted_around_it", 0
    ) + len(ids)
    stage.expect(
        inspect_store(f"sqlite:///{new.home.path / 'xcray.db'}")["revision"] > HEAD,
        "the store is not at the next release",
    )
    drained(stage, new, swept=False)
    old.up(120)
    back = old.submit(data, "m", f"v{turn}-back", **SLOW)
    same_model(stage, old.ended(back), sha)
    old.end()
    stage.measurements.runs += 2
