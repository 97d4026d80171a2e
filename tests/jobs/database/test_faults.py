"""Faults of the store's database: locked, full, read-only, damaged, killed, unreachable.

Errors name the fix, and no data is lost: acknowledged writes are still there afterwards, and every
other write is there completely or not at all.
"""

import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from tests.support.job_store import SPEC, claim, raw, submit
from tests.support.waiting import until
from xcray.errors import Conflict, Corrupt, InputError, ParameterError, Refused, Unavailable
from xcray.jobs.database import engine
from xcray.jobs.database.backup import back_up
from xcray.jobs.database.db_errors import RetryableTransaction, translate_error
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobFilter, JobSubmission

pytestmark = pytest.mark.drill

# --- SQLite


@pytest.fixture
def path(tmp_path):
    return tmp_path / "xcray.db"


@pytest.fixture
def store(path):
    store = JobStore(f"sqlite:///{path}", busy_seconds=0.2)
    yield store
    store.close()


def test_sqlite_settings_are_durable(store):
    with store._database.write() as connection:
        results = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "busy_timeout")
        ]
    assert results == ["wal", 2, 200]  # 2 is FULL


def test_a_stuck_writer_makes_writes_unavailable_and_reads_go_on(store, path):
    job = submit(store)
    stuck = sqlite3.connect(path, isolation_level=None)
    stuck.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="try again") as caught:
        submit(store)
    assert "INSERT" not in str(caught.value)
    assert str(path.parent) not in str(caught.value)
    assert store.jobs.get(job.id) == job
    assert store.jobs.list_page()[0] == [job]
    stuck.execute("ROLLBACK")
    stuck.close()
    submit(store)


def test_a_stuck_writer_of_the_same_process_makes_writes_unavailable_too(store):
    with store._database.write(), ThreadPoolExecutor(1) as pool:
        with pytest.raises(Unavailable, match="try again"):
            pool.submit(submit, store).result()
    submit(store)


def test_a_full_disk_is_reported_as_disk_full_and_reads_go_on(store):
    job = submit(store)
    with store._database.read() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
    with sa.create_engine(store.url).connect() as other:
        assert other.exec_driver_sql("PRAGMA page_count").scalar() == pages

    def smallest(connection, _record):
        connection.execute(f"PRAGMA max_page_count = {pages}")

    sa.event.listen(store._database._engine, "connect", smallest)
    store._database._engine.dispose()
    with pytest.raises(Refused, match="make room") as caught:
        store.jobs.submit(JobSubmission({"long": "x" * 1_000_000}, name="n"))
    assert caught.value.code == "DISK_FULL"
    assert job in store.jobs.list_page(limit=1000)[0]
    store.jobs.request_stop(job.id)  # requests that free space still work
    sa.event.remove(store._database._engine, "connect", smallest)
    store._database._engine.dispose()
    store.jobs.submit(JobSubmission({"long": "x" * 100_000}, name="again"))


def test_a_read_only_store_rejects_writes_and_serves_reads(store, path):
    job = submit(store)
    other = JobStore(store.url)
    sa.event.listen(
        other._database._engine,
        "connect",
        lambda connection, _: connection.execute("PRAGMA query_only = ON"),
    )
    other._database._engine.dispose()
    assert other.jobs.get(job.id) == job
    with pytest.raises(Unavailable, match="read-only") as caught:
        submit(other)
    assert caught.value.code == "STORE_READ_ONLY"
    other.close()


@pytest.mark.parametrize("damage", ["no database", "zeros in the middle"])
def test_a_damaged_file_is_reported_as_corrupt(store, path, damage):
    for number in range(50):
        submit(store, f"n{number}")
    store.close()
    content = path.read_bytes()
    path.write_bytes(
        b"once upon a time" * 1000
        if damage == "no database"
        else content[:8192] + bytes(len(content) - 8192)
    )
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    with pytest.raises(Corrupt, match="restore it") as caught:
        JobStore(store.url).jobs.list_page(JobFilter(name="n1"))
    assert str(path) not in str(caught.value)


def test_a_missing_folder_is_reported_as_unavailable(tmp_path):
    with pytest.raises(Unavailable, match="check its folder"):
        JobStore(f"sqlite:///{tmp_path}/nowhere/xcray.db")


# --- backup and restore


def test_a_backup_replaces_a_file_only_on_request_and_copies_only_stores(store, path, tmp_path):
    submit(store)
    postgres_store = tmp_path / "there.db"
    postgres_store.write_text("mine")
    with pytest.raises(Conflict):
        back_up(store.url, postgres_store)
    assert postgres_store.read_text() == "mine"
    assert back_up(store.url, postgres_store, replace=True)["jobs"] == 1
    with pytest.raises(ParameterError, match="no job store"):
        back_up(f"sqlite:///{tmp_path / 'empty.db'}", tmp_path / "copy.db")


# --- PostgreSQL


@pytest.fixture
def postgres_store(postgres):
    """Yield a store on PostgreSQL and its server."""
    store = JobStore(postgres.emptied())
    yield store, postgres
    store.close()


def opened(server, busy_seconds):
    """Return a store with its own connection timeout, as soon as the server answers in time."""

    def look():
        try:
            return JobStore(server.url("emptied").partition("?")[0], busy_seconds=busy_seconds)
        except Unavailable:
            return None

    return until(look)


@pytest.fixture
def timeout_stores(postgres_store):
    """Yield a store with a short timeout, one with a long timeout, and their PostgreSQL server."""
    calm, server = postgres_store
    store = opened(server, 1.0)
    yield store, calm, server
    store.close()


def test_a_backup_of_postgresql_is_refused_and_the_error_names_pg_dump(postgres_store, tmp_path):
    with pytest.raises(ParameterError, match="pg_dump"):
        back_up(postgres_store[0].url, tmp_path / "copy.db")


def test_a_server_that_is_silent_makes_it_unavailable_for_a_while(timeout_stores):
    store, calm, server = timeout_stores
    job = submit(calm)
    with server.paused():
        begun = time.monotonic()
        for call in (lambda: store.jobs.get(job.id), lambda: submit(store), store.ping):
            with pytest.raises(Unavailable, match="try again"):
                call()
        alone, begun = (time.monotonic() - begun) / 3, time.monotonic()
        with ThreadPoolExecutor(20) as pool:
            requests = [pool.submit(store.jobs.get, job.id) for _ in range(100)]
        assert {type(future.exception()) for future in requests} == {Unavailable}
        # Requests time out concurrently; one after the other would take twice as long as this.
        assert time.monotonic() - begun < 50 * alone
    until(lambda: answered(store, job) == job)
    submit(calm)


def answered(store, job):
    """Return the job from a store, or None while the store is unavailable."""
    try:
        return store.jobs.get(job.id)
    except Unavailable:
        return None


def test_a_long_lock_timeout_does_not_apply_to_a_silent_server(postgres):
    postgres.emptied()
    store = opened(postgres, 600.0)  # leaves an idle connection in the pool
    with postgres.paused(), ThreadPoolExecutor(1) as pool:
        # The timeout only detects a hang; it is not a target.
        assert isinstance(pool.submit(store.ping).exception(timeout=300), Unavailable)
    store.close()


def test_a_server_that_is_killed_and_started_again_has_all_that_was_acknowledged(timeout_stores):
    store, _, server = timeout_stores
    acknowledged, refused, ending = [], [], threading.Event()

    def write(owner: int) -> None:
        number = 0
        while not ending.is_set():
            number += 1
            try:
                acknowledged.append(
                    store.jobs.submit(
                        JobSubmission(SPEC, name="n", idempotency_key=f"{owner} {number}")
                    )[0].id
                )
            except Unavailable as error:
                refused.append(error)

    threads = [threading.Thread(target=write, args=[owner]) for owner in range(3)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(acknowledged) > 20)
        server.kill()
        until(lambda: len(refused) > 20)
        before = len(acknowledged)
        server.start()
        until(lambda: len(acknowledged) > before + 3)
    finally:
        ending.set()
        for thread in threads:
            thread.join()
    selection = {row[0] for row in raw(timeout_stores[1], "SELECT id FROM jobs")}
    assert set(acknowledged) <= selection
    assert len(acknowledged) == len(set(acknowledged))
    for error in refused:
        for secret in ("secret", "127.0.0.1", str(server.port), "INSERT"):
            assert secret not in error.message


def test_postgresql_errors_are_reported_without_secrets(postgres_store):
    store, server = postgres_store
    wrong = store.url.replace("secret", "guess")
    for url, sentence in ((wrong, "no connection"), (server.url("nowhere"), "no connection")):
        with pytest.raises(Unavailable, match=sentence) as caught:
            JobStore(url)
        assert not [
            word for word in ("guess", "secret", "127.0.0.1", 'xcray"') if word in str(caught.value)
        ]
    with pytest.raises(InputError, match="NUL"):
        submit(store, "a\0b")
    with pytest.raises(Unavailable) as caught:
        JobStore("postgresql://u:hidden@127.0.0.1:1/d")
    assert "hidden" not in str(caught.value)


def test_a_read_only_database_is_reported_as_read_only(postgres_store):
    store, server = postgres_store
    job = submit(store)
    server.run("ALTER DATABASE emptied SET default_transaction_read_only = on")
    try:
        other = JobStore(store.url)
        assert other.jobs.get(job.id) == job
        with pytest.raises(Unavailable, match="read-only"):
            submit(other)
        other.close()
    finally:
        server.run("ALTER DATABASE emptied RESET default_transaction_read_only")


def test_a_locked_row_makes_only_its_writers_wait(timeout_stores):
    store, calm, _ = timeout_stores
    state, free = submit(calm), submit(calm)
    with psycopg.connect(store.url) as other:
        other.execute("SELECT 1 FROM jobs WHERE id = %s FOR UPDATE", [state.id])
        with pytest.raises(Unavailable, match="try again"):
            store.jobs.request_stop(state.id)
        assert calm.jobs.get(state.id) == state
        assert claim(calm).id == free.id  # the locked row is skipped
    assert claim(calm).id == state.id


def test_settings_in_the_url_override_the_defaults(postgres_store):
    store, _ = postgres_store
    more = JobStore(
        f"{store.url}&sslmode=disable&application_name=mine&options=-c%20statement_timeout%3D7000"
    )
    assert raw(more, "SHOW statement_timeout") == [("7s",)]
    assert raw(more, "SHOW lock_timeout") == [("15s",)]
    assert raw(more, "SHOW application_name") == [("mine",)]
    assert raw(more, "SHOW transaction_isolation") == [("read committed",)]
    more.close()


# --- retries


@pytest.mark.parametrize(
    ("state", "again"), [("40001", True), ("40P01", True), ("53100", False), ("57014", False)]
)
def test_only_transactions_that_the_database_rolled_back_are_retried(state, again):
    driver = type("Trouble", (Exception,), {"sqlstate": state})()
    error = translate_error(OperationalError("INSERT secret", {}, driver))
    assert isinstance(error, RetryableTransaction) == again
    assert "secret" not in str(error)


def test_a_lost_connection_is_retried_unless_it_was_lost_at_the_commit():
    lost = OperationalError("COMMIT", {}, Exception("gone"), connection_invalidated=True)
    assert isinstance(translate_error(lost), RetryableTransaction)
    assert not isinstance(translate_error(lost, committing=True), RetryableTransaction)


def test_a_deadlock_is_retried_once_and_then_reported(store, monkeypatch):
    calls = []

    @engine.retry_once
    def step(trouble: int) -> str:
        calls.append(trouble)
        if len(calls) <= trouble:
            raise RetryableTransaction("undone")
        return "done"

    assert step(1) == "done"
    assert calls == [1, 1]
    with pytest.raises(Unavailable):
        step(9)
    assert calls == [1, 1, 9, 9]
