"""The other tables of the store, on every database: data sets, keys, audit, counters, leaders."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.job_store import BEGINNING, Clock, claim, raw, submit
from xcray.errors import Conflict, Fenced, NotFound, Refused
from xcray.jobs.states import SUCCEEDED
from xcray.jobs.store.counters import Counter, make_counter
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission

NOW = "2023-11-14T22:13:20.000Z"


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(store_url, clock):
    store = JobStore(store_url, now=clock, monotonic=clock, busy_seconds=300.0)
    yield store
    store.close()


# --- data sets


def test_data_sets_are_kept_by_tenant(store):
    one = store.datasets.add("pydocs", "/d/1", stats={"N": 3})
    two = store.datasets.add("pydocs", "/d/2", dataset_id="ds_given", status="BUILDING")
    other = store.datasets.add("pydocs", "/d/3", tenant="other")
    assert re.fullmatch(r"ds_[a-z2-7]{20}", one.id)
    assert two.id == "ds_given"
    assert store.datasets.get(one.id) == one
    assert one.stats == {"N": 3}
    page, token = store.datasets.list_page(limit=1)
    assert page == [two]
    assert store.datasets.list_page(limit=1, page_token=token) == ([one], None)
    ready = store.datasets.update(two.id, status="READY", stats={"N": 4})
    assert (ready.status, ready.stats, ready.path) == ("READY", {"N": 4}, "/d/2")
    for call in (
        store.datasets.get,
        store.datasets.delete,
        lambda i: store.datasets.update(i, status="X"),
    ):
        with pytest.raises(NotFound):
            call(other.id)
    store.datasets.delete(one.id)
    assert store.datasets.list_page() == ([ready], None)


def test_a_change_of_a_data_set_increments_its_version(store):
    record = store.datasets.add("a", "/d/1")
    assert record.version == 1
    assert store.datasets.update(record.id, status="FAILED").version == 2
    assert store.datasets.update(record.id, name="b").version == 3
    assert store.datasets.get(record.id).name == "b"
    assert store.datasets.find(record.id).version == 3
    assert store.datasets.find("ds_none") is None
    with pytest.raises(TypeError, match="created"):
        store.datasets.update(record.id, created="x")


def test_concurrent_requests_with_one_key_are_one_data_set(store):
    with ThreadPoolExecutor(10) as pool:
        results = list(
            pool.map(
                lambda n: store.datasets.add("a", f"/d/{n}", idempotency_key="k", digest="d"),
                range(10),
            )
        )
    assert len({record.id for record in results}) == 1
    assert store.datasets.find_by_key("default", "k", "d") == results[0]
    assert store.datasets.find_by_key("other", "k", "d") is None
    assert store.datasets.find_by_key("default", None, None) is None
    with pytest.raises(Conflict, match="another body"):
        store.datasets.add("a", "/d", idempotency_key="k", digest="e")
    assert (
        store.datasets.add("a", "/d", tenant="other", idempotency_key="k", digest="e").id
        != results[0].id
    )


def test_a_data_set_is_used_or_deleted_but_not_both(store):
    def submit(dataset_id):
        store.jobs.submit(JobSubmission({}, name="a", dataset_id=dataset_id))

    with ThreadPoolExecutor(2) as pool:
        for number in range(10):
            dataset_id = store.datasets.add("a", "/d").id
            steps = (submit, store.datasets.delete)[:: 1 if number % 2 else -1]
            calls = {step: pool.submit(step, dataset_id) for step in steps}
            errors = (calls[submit].exception(), calls[store.datasets.delete].exception())
            assert list(map(type, errors)) in ([type(None), Conflict], [NotFound, type(None)])


def test_a_data_set_of_an_active_job_is_not_deleted(store):
    record = store.datasets.add("a", "/d")
    job, _ = store.jobs.submit(JobSubmission({}, name="a", dataset_id=record.id))
    with pytest.raises(Conflict, match=rf"is used by {job.id} \(PENDING\): stop it first"):
        store.datasets.delete(record.id)
    store.jobs.request_stop(job.id)
    store.datasets.delete(record.id)
    with pytest.raises(NotFound, match="there is no data set"):
        store.jobs.submit(JobSubmission({}, name="a", dataset_id=record.id))
    with pytest.raises(NotFound, match=f"there is no data set '{record.id}'"):
        store.jobs.resume(job.id)
    assert store.jobs.get(job.id).status == "STOPPED"
    assert [each.id for each in store.jobs.list_page()[0]] == [job.id]


# --- feedback

CONTENT = {"instance": {"text": "a \x00 row"}, "right": ["csv"], "wrong": []}


def send(store, feedback_id, *, model="docs", tenant="default", limit=10, content=CONTENT):
    return store.feedback.add(
        tenant, model, feedback_id, content, version=2, key_id="key_a", limit=limit
    )


def test_feedback_is_stored_once_per_id_tenant_and_model(store):
    one, created = send(store, "d/1")
    assert created
    assert (one.version, one.content, one.key_id, one.created) == (2, CONTENT, "key_a", NOW)
    assert send(store, "d/1") == (one, False)
    with pytest.raises(Conflict, match="other content"):
        send(store, "d/1", content={**CONTENT, "right": ["json"]})
    two, other = send(store, "2")[0], send(store, "d/1", model="news")[0]
    send(store, "d/1", tenant="other")
    page, token = store.feedback.list_page("default", "docs", limit=1)
    assert page == [two]
    assert store.feedback.list_page("default", "docs", limit=1, page_token=token) == ([one], None)
    assert list(store.feedback.all_after("default", "docs")) == [one, two]
    assert list(store.feedback.all_after("default", "docs", one.seq)) == [two]
    assert store.feedback.get("default", "news", "d/1") == other


def test_concurrent_feedback_stays_within_the_limit_of_the_tenant(store):
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(send, store, str(n % 12), limit=5) for n in range(24)]
    errors = [future.exception() for future in futures]
    assert {type(error) for error in errors} == {type(None), Refused}
    stored = list(store.feedback.all_after("default", "docs"))
    assert len(stored) == 5
    assert send(store, stored[0].id, limit=5) == (stored[0], False)


def test_deleted_feedback_is_in_no_file_of_the_store(store):
    """Its number is not used again, so that a data set never takes a later entry for it."""
    secret = {**CONTENT, "instance": {"text": "a secret text " * 500}}
    first = send(store, "1", content=secret)[0]
    store.feedback.delete("default", "docs", "1")
    for call in (store.feedback.get, store.feedback.delete):
        with pytest.raises(NotFound):
            call("default", "docs", "1")
    assert send(store, "1")[0].seq > first.seq
    if store.url.startswith("sqlite"):
        path = Path(store.url.removeprefix("sqlite:///"))
        files = [each.read_bytes() for each in path.parent.glob(f"{path.name}*")]
        assert files
        assert not any(b"secret text" in content for content in files)


# --- keys


def test_a_key_is_found_by_its_exact_digest_only(store, clock):
    key = store.keys.add(
        "acme",
        "laptop",
        ["read", "submit"],
        "aa" * 32,
        expires=BEGINNING + 60,
        limits={"max_running": 2},
    )
    assert re.fullmatch(r"key_[a-z2-7]{20}", key.id)
    assert store.keys.find("aa" * 32) == key
    assert store.keys.find("bb" * 32) is None
    assert (key.tenant, key.name, key.scopes, key.created, key.limits) == (
        "acme",
        "laptop",
        ("read", "submit"),
        NOW,
        {"max_running": 2},
    )
    assert (key.revoked, key.last_used) == (None, None)
    assert key.is_valid(BEGINNING)
    assert not key.is_valid(BEGINNING + 60)


def test_keys_are_listed_touched_and_revoked(store, clock):
    assert not store.keys.has_any()
    one = store.keys.add("acme", "one", ["read"], "1")
    two = store.keys.add("acme", "two", ["admin"], "2", key_id="key_mine")
    other = store.keys.add("other", "three", ["read"], "3")
    assert two.id == "key_mine"
    assert store.keys.has_any()
    assert store.keys.list_all() == [one, two, other]
    assert store.keys.list_all("acme") == [one, two]
    clock.seconds += 1
    store.keys.touch(one.id)
    assert store.keys.find("1").last_used == "2023-11-14T22:13:21.000Z"
    gone = store.keys.revoke(one.id)
    assert not gone.is_valid(BEGINNING)
    clock.seconds += 1
    assert store.keys.revoke(one.id).revoked == gone.revoked == "2023-11-14T22:13:21.000Z"
    assert store.keys.find("1") == gone
    with pytest.raises(NotFound, match="GET /v1/keys"):
        store.keys.revoke("key_none")
    assert store.keys.find("3").revoked is None


def test_digests_and_ids_of_keys_are_unique(store):
    key = store.keys.add("acme", "one", ["read"], "1")
    for more in ({"digest": "1"}, {"digest": "2", "key_id": key.id}):
        with pytest.raises(Conflict) as caught:
            store.keys.add("acme", "two", ["read"], **more)
        assert caught.value.code == "KEY_TAKEN"
    assert len(store.keys.list_all()) == 1


# --- audit


def test_the_audit_log_is_listed_newest_first_and_trimmed_at_its_old_end(store):
    for number in range(5):
        store.audit.record("acme", "key_1", "job.submit", f"job_{number}", {"n": number}, "req_1")
    store.audit.record("other", None, "key.revoke", "key_2")
    page, token = store.audit.list_page("acme", limit=3)
    assert [entry.subject for entry in page] == ["job_4", "job_3", "job_2"]
    assert [
        entry.detail for entry in store.audit.list_page("acme", limit=3, page_token=token)[0]
    ] == [
        {"n": 1},
        {"n": 0},
    ]
    newest = store.audit.list_page()[0][0]
    assert (newest.tenant, newest.key_id, newest.action, newest.detail, newest.request_id) == (
        "other",
        None,
        "key.revoke",
        {},
        None,
    )
    assert newest.time == NOW
    assert [entry.subject for entry in store.audit.list_page(action="key.revoke")[0]] == ["key_2"]
    assert store.audit.trim(2) == 4
    assert [entry.subject for entry in store.audit.list_page()[0]] == ["key_2", "job_4"]
    assert store.audit.trim(2) == 0


# --- counters


def ours(store):
    """Return the counters of these tests; the store itself counts status changes of jobs."""
    return [result for result in store.counters.list_all() if result[0].startswith("my_")]


def test_concurrent_increments_add_up_by_name_and_labels(store):
    assert make_counter("my_b", y="2", x="1") == Counter("my_b", '{"x":"1","y":"2"}')
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda _: store.counters.increment_all({make_counter("my_b", x="1"): 0.5}),
                range(40),
            )
        )
        list(
            pool.map(
                lambda n: store.counters.increment_all(
                    {make_counter(f"my_{c}"): 1.0 for c in ("cd" if n % 2 else "dc")}
                ),
                range(20),
            )
        )
    store.counters.increment_all({make_counter("my_b"): 1.0})
    assert ours(store) == [
        ("my_b", {"x": "1"}, 20.0),
        ("my_b", {}, 1.0),
        ("my_c", {}, 20.0),
        ("my_d", {}, 20.0),
    ]


def test_counters_of_a_job_are_part_of_its_transactions(store):
    submit(store)
    job = claim(store)
    some = {make_counter("my_classes", solver="ppdsparse"): 10.0}
    store.attempts.append_event(job.id, 1, "progress", {"done": 1}, increments=some)
    store.attempts.finish(job.id, 1, SUCCEEDED, result={})
    with pytest.raises(Fenced):
        store.attempts.append_event(job.id, 1, "progress", {}, increments=some)
    assert ours(store) == [("my_classes", {"solver": "ppdsparse"}, 10.0)]


# --- leader election


def test_one_process_at_a_time_is_the_leader(store, store_url, clock):
    steady = Clock(7.0)
    other = JobStore(store_url, now=clock, monotonic=steady)
    assert store.leader_leases.try_acquire("builds", "a", 10.0) == 1
    assert other.leader_leases.try_acquire("builds", "b", 10.0) is None
    steady.seconds += 9
    assert store.leader_leases.try_acquire("builds", "a", 10.0) == 1  # renewed in the same term
    steady.seconds += 9
    assert other.leader_leases.try_acquire("builds", "b", 10.0) is None  # it observed the renewal
    clock.seconds += 86_400  # the wall clock has no effect
    assert other.leader_leases.try_acquire("builds", "b", 10.0) is None
    steady.seconds += 10.5
    assert other.leader_leases.try_acquire("builds", "b", 10.0) == 2
    assert store.leader_leases.try_acquire("builds", "a", 10.0) is None
    store.leader_leases.release("builds", "a")  # no effect: "a" is not the leader any more
    assert store.leader_leases.try_acquire("builds", "c", 10.0) is None
    other.leader_leases.release("builds", "b")
    assert store.leader_leases.try_acquire("builds", "a", 10.0) == 3
    assert store.leader_leases.try_acquire("sweeps", "c", 10.0) == 1  # another role
    other.close()


def test_one_of_many_candidates_becomes_the_leader(store):
    with ThreadPoolExecutor(8) as pool:
        terms = list(
            pool.map(
                lambda n: store.leader_leases.try_acquire("builds", f"owner{n}", 10.0), range(8)
            )
        )
    assert sorted(term for term in terms if term is not None) == [1]
    assert raw(store, "SELECT term, beats FROM duties") == [(1, 1)]
