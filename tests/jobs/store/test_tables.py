"""The store's other tables, on every database: data sets, keys, the audit log, counters, duties."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.job_store import BEGINNING, Clock, claim, raw, submit
from xcray.errors import Conflict, Fenced, NotFound
from xcray.jobs.states import SUCCEEDED
from xcray.jobs.store.counters import Counter, make_counter
from xcray.jobs.store.job_store import JobStore

NOW = "2023-11-14T22:13:20.000Z"


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(store_url, clock):
    store = JobStore(store_url, now=clock, monotonic=clock)
    yield store
    store.close()


# --- data sets


def test_data_sets_are_kept_by_tenant(store):
    one = store.add_dataset("pydocs", "/d/1", stats={"N": 3})
    two = store.add_dataset("pydocs", "/d/2", dataset_id="ds_given", status="BUILDING")
    other = store.add_dataset("pydocs", "/d/3", tenant="other")
    assert re.fullmatch(r"ds_[a-z2-7]{20}", one.id)
    assert two.id == "ds_given"
    assert store.get_dataset(one.id) == one
    assert one.stats == {"N": 3}
    page, token = store.list_datasets(limit=1)
    assert page == [two]
    assert store.list_datasets(limit=1, page_token=token) == ([one], None)
    ready = store.update_dataset(two.id, status="READY", stats={"N": 4})
    assert (ready.status, ready.stats, ready.path) == ("READY", {"N": 4}, "/d/2")
    for call in (
        store.get_dataset,
        store.delete_dataset,
        lambda i: store.update_dataset(i, status="X"),
    ):
        with pytest.raises(NotFound):
            call(other.id)
    store.delete_dataset(one.id)
    assert store.list_datasets() == ([ready], None)


def test_a_change_of_a_data_set_counts_up_its_version(store):
    record = store.add_dataset("a", "/d/1")
    assert record.version == 1
    assert store.update_dataset(record.id, status="FAILED").version == 2
    assert store.update_dataset(record.id, if_version=2, name="b").version == 3
    with pytest.raises(Conflict, match="changed in between") as caught:
        store.update_dataset(record.id, if_version=2, name="c")
    assert caught.value.code == "VERSION"
    assert store.get_dataset(record.id).name == "b"
    assert store.find_dataset(record.id).version == 3
    assert store.find_dataset("ds_none") is None
    with pytest.raises(TypeError, match="created"):
        store.update_dataset(record.id, created="x")


def test_one_key_is_one_data_set_however_many_ask(store):
    with ThreadPoolExecutor(10) as pool:
        made = list(
            pool.map(
                lambda n: store.add_dataset("a", f"/d/{n}", idempotency_key="k", digest="d"),
                range(10),
            )
        )
    assert len({record.id for record in made}) == 1
    assert store.find_dataset_by_key("default", "k", "d") == made[0]
    assert store.find_dataset_by_key("other", "k", "d") is None
    assert store.find_dataset_by_key("default", None, None) is None
    with pytest.raises(Conflict, match="another body"):
        store.add_dataset("a", "/d", idempotency_key="k", digest="e")
    assert (
        store.add_dataset("a", "/d", tenant="other", idempotency_key="k", digest="e").id
        != made[0].id
    )


# --- keys


def test_a_key_is_found_by_its_digest_and_never_by_more(store, clock):
    key = store.add_key(
        "acme",
        "laptop",
        ["read", "submit"],
        "aa" * 32,
        expires=BEGINNING + 60,
        limits={"max_running": 2},
    )
    assert re.fullmatch(r"key_[a-z2-7]{20}", key.id)
    assert store.find_key("aa" * 32) == key
    assert store.find_key("bb" * 32) is None
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
    assert not store.has_keys()
    one = store.add_key("acme", "one", ["read"], "1")
    two = store.add_key("acme", "two", ["admin"], "2", key_id="key_mine")
    other = store.add_key("other", "three", ["read"], "3")
    assert two.id == "key_mine"
    assert store.has_keys()
    assert store.list_keys() == [one, two, other]
    assert store.list_keys("acme") == [one, two]
    clock.seconds += 1
    store.touch_key(one.id)
    assert store.find_key("1").last_used == "2023-11-14T22:13:21.000Z"
    gone = store.revoke_key(one.id)
    assert not gone.is_valid(BEGINNING)
    clock.seconds += 1
    assert store.revoke_key(one.id, "acme").revoked == gone.revoked == "2023-11-14T22:13:21.000Z"
    assert store.find_key("1") == gone
    for call in (lambda: store.revoke_key("key_none"), lambda: store.revoke_key(other.id, "acme")):
        with pytest.raises(NotFound, match="xcray keys list"):
            call()
    assert store.find_key("3").revoked is None


def test_a_digest_or_an_id_can_be_taken_once(store):
    key = store.add_key("acme", "one", ["read"], "1")
    for more in ({"digest": "1"}, {"digest": "2", "key_id": key.id}):
        with pytest.raises(Conflict) as caught:
            store.add_key("acme", "two", ["read"], **more)
        assert caught.value.code == "KEY_TAKEN"
    assert len(store.list_keys()) == 1


# --- audit


def test_the_audit_log_is_read_newest_first_and_cut_at_its_old_end(store):
    for number in range(5):
        store.record_audit("acme", "key_1", "job.submit", f"job_{number}", {"n": number}, "req_1")
    store.record_audit("other", None, "key.revoke", "key_2")
    page, token = store.list_audit("acme", limit=3)
    assert [entry.subject for entry in page] == ["job_4", "job_3", "job_2"]
    assert [entry.detail for entry in store.list_audit("acme", limit=3, page_token=token)[0]] == [
        {"n": 1},
        {"n": 0},
    ]
    newest = store.list_audit()[0][0]
    assert (newest.tenant, newest.key_id, newest.action, newest.detail, newest.request_id) == (
        "other",
        None,
        "key.revoke",
        {},
        None,
    )
    assert newest.time == NOW
    assert [entry.subject for entry in store.list_audit(action="key.revoke")[0]] == ["key_2"]
    assert store.trim_audit(2) == 4
    assert [entry.subject for entry in store.list_audit()[0]] == ["key_2", "job_4"]
    assert store.trim_audit(2) == 0


# --- counters


def ours(store):
    """Counters of these tests; the store counts moves of jobs by itself."""
    return [found for found in store.list_counters() if found[0].startswith("my_")]


def test_counters_add_up_by_name_and_labels_also_when_many_count(store):
    assert make_counter("my_b", y="2", x="1") == Counter("my_b", '{"x":"1","y":"2"}')
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: store.increment("my_b", {"x": "1"}, 0.5), range(40)))
        list(
            pool.map(
                lambda n: store.increment_all(
                    {make_counter(f"my_{c}"): 1.0 for c in ("cd" if n % 2 else "dc")}
                ),
                range(20),
            )
        )
    store.increment("my_b")
    assert ours(store) == [
        ("my_b", {"x": "1"}, 20.0),
        ("my_b", {}, 1.0),
        ("my_c", {}, 20.0),
        ("my_d", {}, 20.0),
    ]


def test_what_a_job_counts_is_counted_with_its_own_transaction_or_not_at_all(store):
    submit(store)
    job = claim(store)
    some = {make_counter("my_classes", solver="ppdsparse"): 10.0}
    store.heartbeat(job.id, 1, lease_seconds=9, increments=some)
    store.append_event(job.id, 1, "progress", {"done": 1}, increments=some)
    store.finish_attempt(job.id, 1, SUCCEEDED, result={}, increments=some)
    for call in (
        lambda: store.heartbeat(job.id, 1, lease_seconds=9, increments=some),
        lambda: store.append_event(job.id, 1, "progress", {}, increments=some),
        lambda: store.finish_attempt(job.id, 1, SUCCEEDED, increments=some),
    ):
        with pytest.raises(Fenced):
            call()
    assert ours(store) == [("my_classes", {"solver": "ppdsparse"}, 30.0)]


# --- duties


def test_one_process_at_a_time_has_a_duty(store, store_url, clock):
    steady = Clock(7.0)
    other = JobStore(store_url, now=clock, monotonic=steady)
    assert store.try_acquire_leadership("builds", "a", 10.0) == 1
    assert other.try_acquire_leadership("builds", "b", 10.0) is None
    steady.seconds += 9
    assert store.try_acquire_leadership("builds", "a", 10.0) == 1  # kept: the same term
    steady.seconds += 9
    assert other.try_acquire_leadership("builds", "b", 10.0) is None  # a renewal was seen since
    clock.seconds += 86_400  # the world's clock says nothing
    assert other.try_acquire_leadership("builds", "b", 10.0) is None
    steady.seconds += 10.5
    assert other.try_acquire_leadership("builds", "b", 10.0) == 2
    assert store.try_acquire_leadership("builds", "a", 10.0) is None
    store.release_leadership("builds", "a")  # it is no longer its to give up
    assert store.try_acquire_leadership("builds", "c", 10.0) is None
    other.release_leadership("builds", "b")
    assert store.try_acquire_leadership("builds", "a", 10.0) == 3
    assert store.try_acquire_leadership("sweeps", "c", 10.0) == 1  # another duty
    other.close()


def test_of_many_who_stand_for_a_new_duty_one_gets_it(store):
    with ThreadPoolExecutor(8) as pool:
        terms = list(
            pool.map(lambda n: store.try_acquire_leadership("builds", f"owner{n}", 10.0), range(8))
        )
    assert sorted(term for term in terms if term is not None) == [1]
    assert raw(store, "SELECT term, beats FROM duties") == [(1, 1)]
