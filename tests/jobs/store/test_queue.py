"""The fair-share queue, time limits, leases, jumping clocks, and deletion of ended jobs."""

import pytest

from tests.support.job_store import BEGINNING, Clock, claim, order, raw, submit
from xcray.errors import Fenced, NotFound, ParameterError
from xcray.jobs.job import EXPIRED, TIMEOUT
from xcray.jobs.states import FAILED, PENDING, RUNNING, STOPPED, SUCCEEDED
from xcray.jobs.store.fair_queue import MAX_BACKOFF_SECONDS
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobFilter, JobSubmission

HOUR, DAY = 3600.0, 86400.0


@pytest.fixture
def clock():
    """Return the wall clock."""
    return Clock()


@pytest.fixture
def steady():
    """Return the monotonic clock that leases use."""
    return Clock(5.0)


@pytest.fixture
def store(store_url, clock, steady):
    store = JobStore(store_url, now=clock, monotonic=steady)
    yield store
    store.close()


@pytest.fixture
def replica_clock():
    return Clock(99_000.0)


@pytest.fixture
def replica(store, store_url, replica_clock):
    """Yield the store of another process: other monotonic clock, wall clock 5 minutes ahead."""
    other = JobStore(store_url, now=Clock(BEGINNING + 300.0), monotonic=replica_clock)
    yield other
    other.close()


# --- order of the queue


def test_tenants_take_turns_within_a_priority(store):
    for name, tenant in (
        ("a1", "a"),
        ("a2", "a"),
        ("a3", "a"),
        ("b1", "b"),
        ("c1", "c"),
        ("b2", "b"),
    ):
        submit(store, name, tenant=tenant)
    submit(store, "urgent", tenant="a", priority=5)
    submit(store, "idle", tenant="b", priority=-5)
    assert order(store) == ["urgent", "b1", "c1", "a1", "b2", "a2", "a3", "idle"]


def test_a_tenant_at_its_limit_is_skipped_also_for_lower_priorities(store):
    quota = {"a": 1}.get
    for name, tenant, priority in (("a1", "a", 9), ("a2", "a", 9), ("b1", "b", 0), ("b2", "b", 0)):
        submit(store, name, tenant=tenant, priority=priority)
    assert [job.name for job in iter(lambda: claim(store, quota=quota), None)] == [
        "a1",
        "b1",
        "b2",
    ]
    first = store.jobs.list_page(JobFilter("a", status=RUNNING))[0][0]
    store.attempts.finish(first.id, 1, SUCCEEDED, result={})
    assert claim(store, quota=quota).name == "a2"


def test_a_limit_of_zero_lets_no_job_run(store):
    submit(store, tenant="a")
    assert claim(store, quota={"a": 0}.get) is None
    assert claim(store, max_running=0) is None
    assert claim(store, max_running=1, quota={"b": 0}.get).tenant == "a"


def test_a_paused_job_does_not_block_others(store, clock):
    submit(store, "first"), submit(store, "second")
    job = claim(store)
    store.attempts.retry_later(job.id, 1, reason="RAY", message="not there")
    assert order(store) == ["second"]
    clock.seconds += 6
    assert order(store) == ["first"]


# --- lists


def test_lists_are_filtered_by_all_given_criteria(store, clock):
    for dataset_id in ("ds_1", "ds_2"):
        store.datasets.add("a", "/d", dataset_id=dataset_id)
    results = [
        submit(store, "a", model="m", dataset_id="ds_1", priority=1),
        submit(store, "b", model="m", dataset_id="ds_2"),
        submit(store, "a", model="n", kind="predict"),
    ]
    clock.seconds += 10
    results.append(submit(store, "a", model="m", dataset_id="ds_1"))
    other = submit(store, "a", tenant="other", model="m")

    def indices_of(**wish):
        return [results.index(job) for job in store.jobs.list_page(JobFilter(**wish))[0]]

    assert indices_of(name="a") == [3, 2, 0]
    assert indices_of(model="m") == [3, 1, 0]
    assert indices_of(model="m", name="a") == [3, 0]
    assert indices_of(dataset_id="ds_2") == [1]
    assert indices_of(kind="predict") == [2]
    assert indices_of(priority=1) == [0]
    assert indices_of(created_after=BEGINNING + 10) == [3]
    assert indices_of(created_before=BEGINNING + 10) == [2, 1, 0]
    assert indices_of(created_after=BEGINNING, created_before=BEGINNING + 0.001, model="n") == [2]
    assert indices_of(status=RUNNING) == indices_of(name="nobody") == []
    assert [job.id for job in store.jobs.list_page(JobFilter(None))[0]] == [
        other.id,
        *(job.id for job in reversed(results)),
    ]


def test_pages_of_a_filter_hold_each_job_once(store):
    expected = [submit(store, "even" if number % 2 == 0 else "odd") for number in range(11)][::2]
    values, token = [], None
    while True:
        page, token = store.jobs.list_page(JobFilter(name="even"), limit=2, page_token=token)
        values += page
        if token is None:
            break
    assert values == expected[::-1]


# --- time limits


def test_running_time_is_added_up_over_attempts(store):
    job = submit(store, timeout_seconds=10.0)
    claim(store)
    assert store.attempts.heartbeat(job.id, 1, lease_seconds=9, ran_seconds=6.0) is False
    store.attempts.release(job.id, 1)
    claim(store)
    assert store.jobs.get(job.id).ran_seconds == 6.0
    assert store.attempts.heartbeat(job.id, 2, lease_seconds=9, ran_seconds=3.9) is False
    assert store.attempts.heartbeat(job.id, 2, lease_seconds=9, ran_seconds=0.1) is True
    assert store.jobs.get(job.id).overtime_reason(BEGINNING) == TIMEOUT
    store.attempts.finish(job.id, 2, FAILED, reason=TIMEOUT, message="it took too long")
    assert store.jobs.resume(job.id).ran_seconds == 0.0


def test_a_job_that_expires_in_the_queue_fails_and_never_runs(store, clock):
    job, patient = (
        submit(store, expires_seconds=60.0),
        submit(store, "patient", expires_seconds=600.0),
    )
    assert store.attempts.expire() == []
    clock.seconds += 61
    assert order(store) == ["patient"]
    (ended,) = store.attempts.expire()
    assert (ended.id, ended.status, ended.reason, ended.attempt) == (job.id, FAILED, EXPIRED, 0)
    assert store.attempts.expire() == []
    again = store.jobs.resume(job.id)
    assert (again.status, again.expires) == (PENDING, None)
    assert store.jobs.get(patient.id).status == SUCCEEDED


def test_a_heartbeat_reports_that_the_job_has_expired(store, clock, steady):
    job = submit(store, expires_seconds=60.0)
    claim(store)
    assert store.attempts.heartbeat(job.id, 1, lease_seconds=9) is False
    clock.seconds += 60
    assert store.attempts.heartbeat(job.id, 1, lease_seconds=9) is True
    assert store.attempts.expire() == []  # the runner is alive and ends the job itself
    steady.seconds += 10
    (ended,) = store.attempts.expire()
    assert (ended.status, ended.reason) == (FAILED, EXPIRED)


def test_a_job_can_set_its_own_number_of_attempts(store, clock):
    job = submit(store, max_attempts=1)
    claim(store)
    assert store.attempts.mark_lost(job.id, 1, max_attempts=3).status == FAILED
    job = submit(store, max_attempts=4)
    for attempt in (1, 2, 3):
        claim(store)
        assert (
            store.attempts.retry_later(
                job.id, attempt, reason="RAY", message="no", max_attempts=1
            ).status
            == PENDING
        )
        clock.seconds += MAX_BACKOFF_SECONDS
    claim(store)
    assert store.attempts.mark_lost(job.id, 4, max_attempts=1).status == FAILED


# --- expiry of leases


def test_a_new_observer_waits_for_a_full_lease(store, replica, steady, replica_clock):
    submit(store)
    job = claim(store, lease=10)
    for _ in range(3):
        steady.seconds += 9
        assert store.attempts.expire() == []
        store.attempts.heartbeat(job.id, 1, lease_seconds=10)
    assert replica.attempts.expire() == []
    replica_clock.seconds += 10.5
    assert replica.attempts.expire() == [replica.jobs.get(job.id)]
    assert replica.jobs.get(job.id).status == PENDING
    assert store.attempts.expire() == []
    with pytest.raises(Fenced):
        store.attempts.heartbeat(job.id, 1, lease_seconds=10)


@pytest.mark.parametrize("jump", [HOUR, -HOUR, DAY, -DAY])
def test_a_clock_jump_neither_ends_a_lease_nor_delays_a_job(store, clock, steady, jump):
    submit(store, "first"), submit(store, "second"), submit(store, "paused")
    job = claim(store, lease=10)
    assert store.attempts.expire() == []
    clock.seconds += jump
    assert store.attempts.expire() == []  # no heartbeat was missed
    steady.seconds += 5
    assert store.attempts.heartbeat(job.id, 1, lease_seconds=10) is False
    steady.seconds += 9
    assert store.attempts.expire() == []
    store.attempts.finish(job.id, 1, SUCCEEDED, result={})
    second = claim(store)
    assert second.name == "second"
    store.attempts.retry_later(second.id, 1, reason="RAY", message="no")
    clock.seconds -= jump
    clock.seconds += 2 * MAX_BACKOFF_SECONDS
    assert order(store) == ["second", "paused"]
    assert [job.name for job in store.jobs.list_page()[0]] == ["paused", "second", "first"]


def test_a_requested_stop_takes_precedence_over_a_timeout(store, steady):
    job = submit(store, timeout_seconds=1.0)
    claim(store, lease=10)
    store.attempts.heartbeat(job.id, 1, lease_seconds=10, ran_seconds=5.0)
    store.jobs.request_stop(job.id)
    store.attempts.expire()
    steady.seconds += 11
    assert [job.status for job in store.attempts.expire()] == [STOPPED]


def test_old_jobs_are_deleted_with_their_events_in_order_of_their_end(store, clock):
    ended = []
    for number in range(6):
        job = submit(store, f"n{number}", idempotency_key=f"k{number}")
        claim(store)
        clock.seconds += 10
        ended.append(store.attempts.finish(job.id, 1, SUCCEEDED, result={}))
    waiting = submit(store, "waiting")
    running = submit(store, "running", priority=1)
    claim(store)
    assert store.jobs.delete_ended(BEGINNING, keep=6) == []
    assert store.jobs.delete_ended(BEGINNING + 25, keep=6) == ended[:2]
    assert store.jobs.delete_ended(BEGINNING, keep=2, limit=1) == ended[2:3]
    assert store.jobs.delete_ended(BEGINNING, keep=2, limit=9) == ended[3:4]
    assert store.jobs.delete_ended(BEGINNING, keep=2) == []
    assert {job.id for job in store.jobs.list_page()[0]} == {
        ended[4].id,
        ended[5].id,
        waiting.id,
        running.id,
    }
    assert raw(store, "SELECT count(DISTINCT job_id) FROM events") == [(4,)]
    with pytest.raises(NotFound):
        store.jobs.get(ended[0].id)
    assert store.jobs.delete_ended(BEGINNING + DAY, keep=9) == ended[4:]
    assert store.jobs.resume(store.jobs.request_stop(waiting.id).id).status == PENDING
    # Resumed and running jobs have not ended.
    assert store.jobs.delete_ended(BEGINNING + DAY, keep=0) == []
    assert store.jobs.submit(JobSubmission({}, name="n0", idempotency_key="k0"))[1] is True


def test_invalid_kinds_are_refused(store):
    with pytest.raises(ParameterError, match="use one of train, predict"):
        store.jobs.submit(JobSubmission({}, name="a", kind="dance"))
