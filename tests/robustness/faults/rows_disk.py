"""Rows about storage: full disks, crashes at every system call of publishing."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

from tests.robustness.faults import strace, verbs
from tests.robustness.faults.catalogue import row
from tests.robustness.faults.rows_api import OCTETS
from tests.robustness.faults.rows_runners import drained
from tests.robustness.faults.service import Service
from tests.robustness.faults.stage import Stage, namespaces, small_disk, until
from tests.robustness.faults.work import MIDDLE, QUICK, SLOW, at_share, ok
from xcray.jobs.states import SUCCEEDED


@row(
    "F8",
    "the disk is full",
    "the home on a small tmpfs, filled below the reserve and to the last page, during uploads, submits, a training",
    "tests/service/test_service.py",
    "tests/jobs/runner/test_runner.py",
    "tests/jobs/database/test_faults.py",
)
def disk_full(stage: Stage) -> None:
    if not namespaces():
        stage.measurements.note("mounting is not allowed here: nothing was filled")
        stage.measurements.runs = 0
        raise PermissionError(
            "F8 needs mounts of its own (unshare --mount): run it as root, or where user namespaces are allowed"
        )
    with small_disk(stage.folder / "disk", 160) as disk:
        service = Service(
            stage, home=disk / "home", DISK_RESERVE_BYTES=20_000_000, DISK_RESERVE_SHARE=0.125
        )
        service.up()
        data = service.dataset(**MIDDLE)
        job = service.ended(service.submit(data, "m", "before", **SLOW))
        assert job["status"] == SUCCEEDED, job
        for turn in range(min(stage.runs, 2)):
            _below_reserve(stage, service, disk, data, turn)
            _to_the_brim(stage, service, disk, data, turn)
            _while_training(stage, service, disk, data, job["result"]["sha256"], turn)
        drained(stage, service)


def _fill(disk: Path, leave: int) -> Path:
    """Write a file that leaves `leave` bytes of the disk free and return its path."""
    ballast = disk / "ballast"
    # Another process can get the last page.
    with (
        open(ballast, "wb", buffering=0) as out,
        contextlib.suppress(OSError),
    ):
        left = shutil.disk_usage(disk).free - leave
        while left > 0:
            left -= out.write(b"\0" * min(1 << 20, left))
    return ballast


def _below_reserve(stage: Stage, service: Service, disk: Path, data: str, turn: int) -> None:
    """Check that uploads below the reserve are refused and everything else continues to work."""
    ballast = _fill(disk, 6_000_000)
    refused = service.http.post("/v1/uploads", content=b"a" * 1_000_000, headers=OCTETS)
    stage.expect(
        refused.status_code == 507,
        f"an upload below the reserve was answered {refused.status_code}",
    )
    until(lambda: not [*(service.home.path / "uploads").iterdir()], "half an upload is removed")
    until(
        lambda: "DISK" in service.http.get("/readyz").json()["reasons"],
        "/readyz says that the disk is full",
    )
    ready = service.http.get("/readyz")
    stage.expect(ready.status_code == 503, f"/readyz says {ready.text}")
    job = service.submit(data, "m", f"low{turn}", priority=-1)
    service.job(job)
    ok(service.http.post(f"/v1/jobs/{job}/stop"))
    service.ended(job)
    ok(service.http.delete(f"/v1/jobs/{job}"))
    stage.ledger.acknowledged("delete", job)
    ok(service.predict())
    ballast.unlink()
    with stage.measurements.recovering():
        service.ready()
    stage.measurements.runs += 1


def _to_the_brim(stage: Stage, service: Service, disk: Path, data: str, turn: int) -> None:
    """Fill the disk completely and check the service.

    Writes are refused with an error, reads and predictions continue. With free space the service
    recovers without a restart.
    """
    ballast = _fill(disk, 0)
    body = {**QUICK, "dataset": data, "model": "m"}
    answers = [
        service.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": f"brim{turn}-{i}"})
        for i in range(3)
    ]
    for number, answer in enumerate(answers):
        stage.expect(
            answer.status_code in (200, 201, 503, 507),
            f"a submit on a full disk was answered {answer.status_code}",
        )
        if answer.is_success:
            stage.ledger.acknowledged("job", answer.json()["id"], key=f"brim{turn}-{number}")
    stage.measurements.details["submits_on_a_full_disk"] = (
        "refused" if all(a.is_error for a in answers) else "some fitted"
    )
    for path in ("/v1/jobs", "/v1/datasets", "/v1/models", "/healthz"):
        response = service.http.get(path)
        stage.expect(
            response.status_code == 200,
            f"GET {path} on a full disk was answered {response.status_code}",
        )
    predicted = service.predict()
    stage.expect(
        predicted.status_code == 200,
        f"a prediction on a full disk was answered {predicted.status_code}",
    )
    ballast.unlink()
    with stage.measurements.recovering():
        service.ready()
        job = service.submit(data, "m", f"after{turn}")
    stage.expect(
        service.ended(job)["status"] == SUCCEEDED,
        "a job after the disk was full did not succeed",
    )
    stage.measurements.runs += 1


def _while_training(
    stage: Stage, service: Service, disk: Path, data: str, sha: str, turn: int
) -> None:
    """Fill the disk during a training.

    The job is released. With free space it ends with the same model, without being resumed.
    """
    job = service.submit(data, "m", f"train{turn}", **SLOW)
    at_share(service.http, job, 0.0)
    ballast = _fill(disk, 0)

    def met() -> Any:
        response = service.job(job)
        return (response["status"] != "RUNNING" or response["attempt"] > 1) and response

    try:
        state = until(met, "the training meets the full disk", 5 if stage.small else 20)
        stage.measurements.details["a_training_became"] = (
            f"{state['status']} {state['reason'] or ''}".strip()
        )
    except TimeoutError:  # the store is full too, so the state could not be written
        stage.measurements.details["a_training_became"] = "RUNNING until there was space"
    ballast.unlink()
    with stage.measurements.recovering():
        service.ready()

        def over() -> Any:
            reply = service.job(job)
            stage.expect(
                reply["status"] != "FAILED",
                f"a training failed on a full disk: {reply['reason']}: {reply['message']}",
            )
            return reply["status"] in (SUCCEEDED, "FAILED") and reply

        done = until(over, "the training ends well once there is space")
    stage.expect(
        (done["result"] or {}).get("sha256") == sha, "after a full disk the model has other bits"
    )
    stage.measurements.runs += 1


def _crash(stage: Stage, verb: str, what: str, calls: tuple[str, ...], most: int) -> None:
    """Run a verb once per system call, with that call failing or killing the process.

    Afterwards a reader finds the old or the new state, and the verb can be repeated.
    """
    beginning = stage.folder / f"{verb}-{what.split('=')[1]}-0"
    beginning.mkdir()
    verbs.VERBS[verb].prepare(beginning)
    do = verbs.VERBS[verb].do
    rehearsal = _copy(beginning, "rehearsal")
    result = strace.counts(lambda: do(rehearsal), stage.folder / "calls", calls)
    shutil.rmtree(rehearsal)
    for call, count in result.items():
        for when in stage.random.sample(range(1, count + 1), min(count, most)):
            folder = _copy(beginning, f"{call}-{when}")
            # The lambda is called at once, so it sees the current loop variables.
            code = strace.inject(lambda: do(folder), call, what, when)  # noqa: B023
            state = verbs.state(verb, folder)
            stage.expect(state in ("old", "new"), f"{verb}, {what} at {call} {when}: {state}")
            if code == 0 and state != "new":
                stage.measurements.lose(
                    f"{verb}, {what} at {call} {when}: said to be done, but it is {state}"
                )
            if state == "old":
                do(folder)
                after = verbs.state(verb, folder)
                stage.expect(
                    after == "new", f"{verb} after {what} at {call} {when}, done again: {after}"
                )
            stage.measurements.runs += 1
            shutil.rmtree(folder)


def _copy(beginning: Path, name: str) -> Path:
    folder = beginning.with_name(f"{beginning.name}-{name}")
    shutil.copytree(beginning, folder)
    return folder


@row(
    "F12",
    "a crash at each system call of publishing",
    "strace: SIGKILL at the n-th write, sync, rename, unlink, mkdir while a model, "
    "a job's model, parts, a checkpoint, a data set, an alias or a JSON file is published",
    "tests/jobs/runner/test_runner.py",
    "tests/unit/model/test_registry.py",
    limit=900,
)
def crash_at_each_call(stage: Stage) -> None:
    _each_call(stage, "signal=KILL", strace.CALLS)


@row(
    "F13",
    "fsync or rename fails",
    "strace: EIO and ENOSPC at the n-th fsync; EIO at the n-th rename",
    "tests/unit/data/test_weights.py",
    limit=900,
)
def sync_fails(stage: Stage) -> None:
    _each_call(stage, "error=EIO", ("fsync", "fdatasync", "rename"))
    if not stage.small:
        _each_call(stage, "error=ENOSPC", ("fsync", "write", "pwrite64", "writev"))


def _each_call(stage: Stage, what: str, calls: tuple[str, ...]) -> None:
    """Crash all verbs; the small form uses few verbs and few calls."""
    if not strace.is_available():
        raise PermissionError(
            "F12 and F13 need strace (apt-get install strace), and the right to trace"
        )
    for verb in ("json", "parts", "job") if stage.small else verbs.VERBS:
        _crash(stage, verb, what, calls, 4 if stage.small else 5 * stage.runs)
