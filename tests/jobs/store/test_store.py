"""The contract of the job store, on every supported database, from submit to the end of a job."""

import itertools
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.job_store import SPEC, Clock, claim, raw, submit
from xcray.errors import Conflict, Fenced, NotFound, ParameterError, Refused
from xcray.jobs.states import FAILED, PENDING, RUNNING, STOPPED, SUCCEEDED
from xcray.jobs.store import event_retention
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobFilter, JobSubmission
from xcray.jobs.store.transitions import MAX_MESSAGE_CHARS, find_row, update_row


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(store_url, clock):
    # 50 concurrent writers can be slow on a slow disk.
    store = JobStore(store_url, now=clock, monotonic=clock, busy_seconds=300.0)
    yield store
    store.close()


# --- submit, get, list


def test_a_submitted_job_is_pending_and_readable(store):
    job, created = store.jobs.submit(JobSubmission(SPEC, name="pydocs", priority=3))
    assert created
    assert re.fullmatch(r"job_[a-z2-7]{20}", job.id)
    assert store.jobs.get(job.id) == job
    assert (job.status, job.phase, job.attempt, job.spec, job.name, job.priority) == (
        PENDING,
        "QUEUED",
        0,
        SPEC,
        "pydocs",
        3,
    )
    assert (job.created, job.started, job.finished, job.result) == (
        "2023-11-14T22:13:20.000Z",
        None,
        None,
        None,
    )
    assert [(e.seq, e.kind, e.data["status"]) for e in store.jobs.list_events(job.id)] == [
        (1, "status", PENDING)
    ]


def test_one_key_and_one_body_is_one_job(store):
    first, created = store.jobs.submit(JobSubmission(SPEC, name="a", idempotency_key="k"))
    again, created_again = store.jobs.submit(
        JobSubmission(dict(reversed(SPEC.items())), name="a", idempotency_key="k")
    )
    assert created
    assert not created_again
    assert again == first


@pytest.mark.parametrize(
    "other", [{"name": "b"}, {"name": "a", "priority": 1}, {"name": "a", "digest": "other"}]
)
def test_one_key_and_another_body_is_a_conflict(store, other):
    job = submit(store, idempotency_key="k")
    with pytest.raises(Conflict, match=f"{job.id}.*new key") as caught:
        store.jobs.submit(JobSubmission(SPEC, idempotency_key="k", **other))
    assert caught.value.code == "IDEMPOTENCY_MISMATCH"
    assert sum(store.statistics.read().jobs.values()) == 1


def test_a_key_belongs_to_its_tenant(store):
    ours, theirs = (
        submit(store, idempotency_key="k"),
        submit(store, idempotency_key="k", tenant="other"),
    )
    assert ours.id != theirs.id


def test_a_digest_of_the_caller_stands_for_the_body(store):
    first = submit(store, "a", idempotency_key="k", digest="d")
    assert submit(store, "another name", idempotency_key="k", digest="d") == first


def test_jobs_of_another_tenant_are_not_found(store):
    job = submit(store, tenant="ours")
    for call in (
        store.jobs.get,
        store.jobs.list_events,
        store.jobs.request_stop,
        store.jobs.resume,
        store.jobs.delete,
    ):
        with pytest.raises(NotFound):
            call(job.id, "theirs")
        with pytest.raises(NotFound):
            call("job_none", "ours")
    assert store.jobs.list_page(JobFilter("theirs")) == ([], None)
    assert store.jobs.get(job.id, None) == store.jobs.find(job.id) == job
    assert store.jobs.find("job_none") is None
    assert store.jobs.get(job.id, "ours") == job


def test_a_full_last_page_has_no_next_page_token(store):
    for _ in range(4):
        submit(store)
    page, token = store.jobs.list_page(limit=2)
    page, token = store.jobs.list_page(limit=2, page_token=token)
    assert len(page) == 2
    assert token is None


@pytest.mark.parametrize(
    "wrong",
    [{"limit": 0}, {"limit": 1001}, {"page_token": "x"}, {"page_token": "é"}],
)
def test_the_error_of_an_invalid_list_argument_names_the_fix(store, wrong):
    with pytest.raises(ParameterError, match=r"use|omit"):
        store.jobs.list_page(**wrong)


def test_an_unknown_status_is_refused():
    with pytest.raises(ParameterError, match="use one of PENDING"):
        JobFilter(status="DONE")


# --- claim, heartbeat, finish


def test_a_claimed_job_runs_in_a_new_attempt(store, clock):
    job = submit(store)
    clock.seconds += 5
    mine = claim(store)
    assert (mine.id, mine.status, mine.attempt, mine.started) == (
        job.id,
        RUNNING,
        1,
        "2023-11-14T22:13:25.000Z",
    )
    assert [job.id for job in store.attempts.list_running()] == [job.id]


def test_a_finished_job_keeps_its_result(store):
    submit(store)
    job = claim(store)
    outcome = store.attempts.finish(
        job.id, 1, SUCCEEDED, result={"version": 1, "measures": {"P@1": 0.5}}
    )
    assert store.jobs.get(job.id) == outcome
    assert (outcome.status, outcome.result["measures"], outcome.finished) == (
        SUCCEEDED,
        {"P@1": 0.5},
        "2023-11-14T22:13:20.000Z",
    )
    assert store.attempts.expire() == []
    assert claim(store) is None


def test_a_result_that_is_not_json_is_refused_and_nothing_changes(store):
    submit(store)
    job = claim(store)
    with pytest.raises(Exception, match="JSON compliant"):
        store.attempts.finish(job.id, 1, SUCCEEDED, result={"eta": float("nan")})
    assert store.jobs.get(job.id) == job


def writes(store, job_id, attempt):
    return [
        lambda: store.attempts.heartbeat(job_id, attempt, lease_seconds=9),
        lambda: store.attempts.append_event(job_id, attempt, "progress", {"done": 1}),
        lambda: store.attempts.finish(job_id, attempt, SUCCEEDED, result={}),
        lambda: store.attempts.release(job_id, attempt),
        lambda: store.attempts.retry_later(job_id, attempt, reason="LAUNCH", message="no"),
        lambda: store.attempts.mark_lost(job_id, attempt),
        lambda: store.attempts.get_owned(job_id, attempt),
    ]


def test_an_old_attempt_cannot_write(store, clock):
    submit(store)
    old = claim(store, lease=1)
    assert store.attempts.expire() == []
    clock.seconds += 2
    assert [job.status for job in store.attempts.expire()] == [PENDING]
    for state in (PENDING, RUNNING):  # after the loss, and after the next claim
        before = (store.jobs.get(old.id), store.jobs.list_events(old.id))
        assert before[0].status == state
        for write in writes(store, old.id, old.attempt):
            with pytest.raises(Fenced, match=f"attempt 1 of {old.id}"):
                write()
        assert (store.jobs.get(old.id), store.jobs.list_events(old.id)) == before
        claim(store)
    job = store.jobs.get(old.id)
    assert (job.attempt, job.reason, job.message) == (2, None, None)  # those of the first are past


def test_a_row_that_changed_since_it_was_read_is_not_overwritten(store):
    submit(store)
    job = claim(store)
    with store._database.read() as connection:
        row = find_row(connection, job.id, None)
    store.attempts.append_event(job.id, 1, "progress", {"done": 1})
    with (
        pytest.raises(Fenced, match="changed at the same moment"),
        store._database.write() as again,
    ):
        update_row(again, row, message="late")


def test_writes_to_an_ended_or_deleted_job_are_refused(store):
    submit(store)
    job = claim(store)
    store.attempts.finish(job.id, 1, FAILED, reason="INTERNAL", message="see the log")
    for write in writes(store, job.id, 1):
        with pytest.raises(Fenced):
            write()
    store.jobs.delete(job.id)
    for write in writes(store, job.id, 1):
        with pytest.raises(Fenced, match="gone"):
            write()


def test_finish_accepts_only_terminal_statuses(store):
    submit(store)
    job = claim(store)
    for status in (PENDING, RUNNING, "DONE"):
        with pytest.raises(Conflict):
            store.attempts.finish(job.id, 1, status)


# --- progress and events


def test_progress_and_phases_are_the_jobs_own(store):
    submit(store)
    job = claim(store)
    store.attempts.append_event(job.id, 1, "phase", {"phase": "TRAINING"})
    store.attempts.append_event(
        job.id, 1, "progress", {"phase": "TRAINING", "done": 5, "total": 10}
    )
    store.attempts.append_event(job.id, 1, "note", {"phase": "not a phase"})
    now = store.jobs.get(job.id)
    assert now.phase == "TRAINING"
    assert now.progress == {"phase": "TRAINING", "done": 5, "total": 10}
    events = store.jobs.list_events(job.id)
    assert [e.kind for e in events] == ["status", "status", "phase", "progress", "note"]
    assert [e.seq for e in events] == [1, 2, 3, 4, 5]
    assert store.jobs.list_events(job.id, after=3, limit=1) == [events[3]]


@pytest.fixture
def short_history(monkeypatch):
    """Lower the limits of a job's history so that a test reaches them quickly."""
    for name, value in (
        ("MAX_SERIES_EVENTS", 20),
        ("MAX_OTHER_EVENTS", 16),
        ("CHECK_INTERVAL", 10),
    ):
        monkeypatch.setattr(event_retention, name, value)


@pytest.mark.parametrize("kind", ["progress", "epoch"])
def test_the_history_of_a_job_stays_bounded_while_it_runs(store, short_history, kind):
    submit(store)
    job, total, most = claim(store), 120, 0
    for done in range(total):
        store.attempts.append_event(job.id, 1, kind, {"phase": "TRAINING", "done": done})
        most = max(most, raw(store, "SELECT count(*) FROM events")[0][0])
    assert most <= 20 + 10 + 2
    store.attempts.finish(job.id, 1, SUCCEEDED, result={})
    events = store.jobs.list_events(job.id, limit=1000)
    selection = [e.data["done"] for e in events if e.kind == kind]
    assert 10 <= len(selection) <= 21
    assert (selection[0], selection[-1]) == (0, total - 1)
    # The remaining events are spread evenly over the job.
    assert max(after - before for before, after in itertools.pairwise(selection)) <= 3 * total / 20
    assert [e.data["status"] for e in events if e.kind == "status"] == [PENDING, RUNNING, SUCCEEDED]


def test_status_events_of_a_job_are_bounded(store, short_history):
    job = submit(store)
    for attempt in range(1, 26):
        claim(store)
        store.attempts.release(job.id, attempt)
        assert raw(store, "SELECT count(*) FROM events")[0][0] <= 16 + 10
    assert store.jobs.get(job.id).attempt == attempt
    assert store.jobs.list_events(job.id)[-1].data["status"] == PENDING


def test_the_length_of_a_message_is_bounded(store):
    submit(store)
    job = claim(store)
    assert (
        len(store.attempts.finish(job.id, 1, FAILED, reason="R", message="x" * 10_000).message)
        == MAX_MESSAGE_CHARS
    )


# --- stop, resume, delete, release, launch failures, expiry


def test_a_running_job_receives_the_stop_with_its_heartbeat(store):
    submit(store)
    job = claim(store)
    request = store.jobs.request_stop(job.id)
    assert (request.status, request.stop_requested) == (RUNNING, True)
    assert store.jobs.request_stop(job.id) == request
    assert [e.kind for e in store.jobs.list_events(job.id)].count("stop") == 1
    assert store.attempts.heartbeat(job.id, 1, lease_seconds=9) is True
    assert store.attempts.finish(job.id, 1, STOPPED).stop_requested is False


def test_resume_queues_a_stopped_or_failed_job_again(store):
    for end in (STOPPED, FAILED):
        submit(store)
        job = claim(store)
        store.attempts.finish(job.id, 1, end, reason="R", message="M")
        again = store.jobs.resume(job.id)
        assert (again.status, again.phase, again.reason, again.message, again.finished) == (
            PENDING,
            "QUEUED",
            None,
            None,
            None,
        )
        assert store.jobs.resume(job.id) == again
        assert claim(store).attempt == 2
        assert store.jobs.resume(job.id).status == RUNNING
        store.attempts.finish(job.id, 2, SUCCEEDED, result={})


def test_resume_refuses_a_job_that_succeeded_or_is_stopping(store):
    submit(store)
    job = claim(store)
    store.jobs.request_stop(job.id)
    with pytest.raises(Conflict, match="stopping"):
        store.jobs.resume(job.id)
    store.attempts.finish(job.id, 1, SUCCEEDED, result={})
    with pytest.raises(Conflict, match="submit a new one"):
        store.jobs.resume(job.id)


def test_only_an_ended_job_can_be_deleted(store):
    job = submit(store, idempotency_key="k")
    with pytest.raises(Conflict, match="stop it"):
        store.jobs.delete(job.id)
    claim(store)
    with pytest.raises(Conflict, match="stop it"):
        store.jobs.delete(job.id)
    store.attempts.finish(job.id, 1, STOPPED)
    store.jobs.delete(job.id)
    with pytest.raises(NotFound):
        store.jobs.get(job.id)
    assert raw(store, "SELECT count(*) FROM events") == [(0,)]
    assert submit(store, idempotency_key="k").id != job.id


def test_the_third_failed_launch_fails_the_job(store, clock):
    job, waits = submit(store), []
    for attempt in (1, 2, 3):
        assert claim(store).attempt == attempt
        after = store.attempts.retry_later(
            job.id, attempt, reason="LAUNCH", message="no such program", max_attempts=3
        )
        if attempt < 3:
            assert claim(store) is None
            waits.append(raw(store, "SELECT not_before FROM jobs")[0][0] - clock.seconds)
            clock.seconds += waits[-1]
    assert waits == [5.0, 10.0]
    assert (after.status, after.reason, after.message) == (FAILED, "LAUNCH", "no such program")
    store.jobs.resume(job.id)
    assert claim(store).attempt == 4  # without a pause, and all launch attempts are available again
    assert (
        store.attempts.retry_later(job.id, 4, reason="LAUNCH", message="no", max_attempts=3).status
        == PENDING
    )


@pytest.mark.parametrize(("done", "reason"), [(0, "CRASH_LOOP"), (3, "LOST")])
def test_a_job_with_repeatedly_lost_runners_fails(store, clock, done, reason):
    job = submit(store)
    for attempt in (1, 2, 3):
        claim(store, lease=1)
        store.attempts.append_event(
            job.id, attempt, "progress", {"phase": "TRAINING", "done": done}
        )
        assert store.attempts.expire(max_attempts=3) == []
        clock.seconds += 1.5
        (after,) = store.attempts.expire(max_attempts=3)
        assert after.status == (PENDING if attempt < 3 else FAILED)
        if attempt == 2:  # after the first loss there is no pause, after the second one there is
            assert store.attempts.claim("r", lease_seconds=1) is None
            clock.seconds += 5
    assert after.reason == reason
    assert "vanished 3 times" in after.message
    assert store.attempts.expire() == []


def test_failed_launches_and_lost_runners_are_counted_separately(store, clock):
    job = submit(store)

    def launch_fails(attempt, status):
        clock.seconds += 1000
        claim(store)
        after = store.attempts.retry_later(
            job.id, attempt, reason="LAUNCH", message="Ray is away", max_attempts=3
        )
        assert after.status == status

    def vanishes(attempt, status):
        clock.seconds += 1000
        claim(store)
        after = store.attempts.mark_lost(job.id, attempt, max_attempts=3)
        assert after.status == status
        return after

    for attempt, happens in enumerate((launch_fails, vanishes, launch_fails, vanishes), start=1):
        happens(attempt, PENDING)
    assert "vanished 3 times" in vanishes(5, FAILED).message
    store.jobs.resume(job.id)
    for attempt, happens in enumerate((vanishes, launch_fails, vanishes, launch_fails), start=6):
        happens(attempt, PENDING)
    launch_fails(10, FAILED)


def test_all_claimants_together_keep_the_cap_on_running_jobs(store):
    for _ in range(3):
        submit(store)
    assert store.attempts.claim("a", lease_seconds=20, max_running=2)
    assert store.attempts.claim("b", lease_seconds=20, max_running=2)
    assert store.attempts.claim("a", lease_seconds=20, max_running=2) is None
    with ThreadPoolExecutor(8) as pool:
        claimed = [
            job
            for job in pool.map(
                lambda _: store.attempts.claim("c", lease_seconds=20, max_running=3), range(8)
            )
            if job
        ]
    assert len(claimed) == 1


def test_counts_name_every_status(store):
    submit(store), submit(store), submit(store, tenant="other")
    claim(store)
    jobs = store.statistics.read().jobs
    assert jobs == {PENDING: 2, RUNNING: 1, STOPPED: 0, SUCCEEDED: 0, FAILED: 0}


# --- concurrency


def test_fifty_submits_with_one_key_are_one_job(store):
    with ThreadPoolExecutor(50) as pool:
        answers = list(
            pool.map(
                lambda _: store.jobs.submit(JobSubmission(SPEC, name="a", idempotency_key="k")),
                range(50),
            )
        )
    assert len({job.id for job, _ in answers}) == 1
    assert [created for _, created in answers].count(True) == 1
    assert sum(store.statistics.read().jobs.values()) == 1


def test_threads_never_claim_one_job_twice(store):
    for _ in range(60):
        submit(store)
    with ThreadPoolExecutor(8) as pool:
        claimed = [job.id for job in pool.map(lambda _: claim(store), range(70)) if job]
    assert len(claimed) == len(set(claimed)) == 60


@pytest.mark.parametrize("status", [STOPPED, FAILED])
def test_a_race_of_stop_and_finish_has_the_result_of_one_order(store, status):
    go = threading.Barrier(2)

    def finish(job):
        go.wait()
        store.attempts.finish(job.id, job.attempt, status, reason="RACE")

    def stop(job):
        go.wait()
        store.jobs.request_stop(job.id)

    with ThreadPoolExecutor(2) as pool:
        for _ in range(8):
            submit(store)
            job = claim(store)
            for end in [pool.submit(finish, job), pool.submit(stop, job)]:
                end.result()
            after = store.jobs.get(job.id)
            assert (after.status in (STOPPED, FAILED), after.stop_requested) == (True, False)
            with pytest.raises((Conflict, Fenced)):
                store.attempts.finish(job.id, job.attempt, SUCCEEDED, result={})


def test_concurrent_submits_do_not_exceed_the_queue_limit_of_a_tenant(store):
    with ThreadPoolExecutor(12) as pool:
        tried = [pool.submit(submit, store, f"n{i}", max_queued=5) for i in range(12)]
    refused = [future.exception() for future in tried if future.exception()]
    assert len(refused) == 7
    assert {(type(error), error.code) for error in refused} == {(Refused, "QUOTA")}
    assert "5 of your jobs are pending" in refused[0].message
    submit(store, tenant="other", max_queued=1)
    claim(store)
    assert submit(store, idempotency_key="k", max_queued=5).status == PENDING
    # A repeated request returns the existing job.
    assert submit(store, idempotency_key="k", max_queued=5).name == "a"


WORKER = """
import sys
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission
store = JobStore(sys.argv[1], busy_seconds=300.0)
sys.stdin.readline()
submission = JobSubmission({"a": 1}, name="shared", idempotency_key="k")
for _ in range(5):
    print("submitted", store.jobs.submit(submission)[1])
while (job := store.attempts.claim("worker", lease_seconds=60)) is not None:
    print("claimed", job.id, job.attempt)
    store.attempts.append_event(job.id, job.attempt, "progress", {"phase": "TRAINING", "done": 1})
    store.attempts.finish(job.id, job.attempt, "SUCCEEDED", result={})
"""


@pytest.mark.drill
def test_processes_never_claim_one_job_twice_and_lose_no_write(store, store_url):
    ids = {submit(store).id for _ in range(40)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, store_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    lines = list(
        itertools.chain.from_iterable(
            worker.communicate(timeout=600)[0].splitlines() for worker in workers
        )
    )
    assert [worker.returncode for worker in workers] == [0] * 4
    claimed = [line.split()[1] for line in lines if line.startswith("claimed")]
    assert len(claimed) == len(set(claimed)) == 41
    assert ids < set(claimed)
    assert lines.count("submitted True") == 1
    assert lines.count("submitted False") == 19
    assert store.statistics.read().jobs[SUCCEEDED] == 41
    for job_id in claimed:
        assert [e.seq for e in store.jobs.list_events(job_id)] == [1, 2, 3, 4]
