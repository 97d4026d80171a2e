"""Older stores are upgraded completely or not at all, others are refused; the store commands."""

import json
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import sqlalchemy as sa

from tests.support.job_store import claim, raw, submit
from tests.support.live_service import client_of, settings_for
from tests.support.next_release import ADDED, FOLLOWING, next_steps, upgrade_to
from tests.support.waiting import until
from xcray.cli.main import main
from xcray.errors import Conflict, ParameterError, Unavailable
from xcray.jobs.database import upgrade
from xcray.jobs.database.migrations import HEAD
from xcray.jobs.states import PENDING, RUNNING
from xcray.jobs.store.job_store import JobStore
from xcray.service.app import create_app


@pytest.fixture
def fresh_url(store_url, postgres, tmp_path) -> str:
    return (
        postgres.database()
        if store_url.startswith("postgresql")
        else f"sqlite:///{tmp_path / 'fresh.db'}"
    )


@pytest.fixture
def filled_url(fresh_url) -> str:
    """Return the URL of a store of this release: one running job, one pending job, one data set."""
    with closing(JobStore(fresh_url)) as store:
        submit(store, name="runs")
        claim(store)
        submit(store, name="waits", idempotency_key="k", digest="d")
        store.datasets.add("pydocs", "/d", dataset_id="ds_1")
    return fresh_url


def is_whole(url: str) -> None:
    """Assert that the store is at the next release, works, and has all its data."""
    store = JobStore(url)
    fields = {
        "store": store._database.kind,
        "revision": FOLLOWING,
        "oldest": HEAD,
        "needed": HEAD,
        "ready": True,
    }
    assert upgrade.inspect_store(url) == fields
    waits, runs = store.jobs.list_page()[0]
    assert (waits.name, waits.status) == ("waits", PENDING)
    assert (runs.name, runs.status, runs.attempt) == ("runs", RUNNING, 1)
    assert store.attempts.heartbeat(runs.id, 1, lease_seconds=9) is False
    assert store.attempts.expire() == []
    assert submit(store, idempotency_key="k", digest="d").id == waits.id
    assert claim(store).id == waits.id
    assert [event.kind for event in store.jobs.list_events(waits.id)] == ["status", "status"]
    assert store.datasets.get("ds_1").version == 1
    assert raw(store, "SELECT tries, count(*) FROM jobs GROUP BY tries") == [(0, 2)]
    assert "jobs_colour" in {
        index["name"] for index in sa.inspect(store._database._engine).get_indexes("jobs")
    }
    store.close()


def test_concurrent_opens_of_an_empty_store_create_it_once(fresh_url):
    with ThreadPoolExecutor(6) as pool:
        for store in list(pool.map(lambda _: JobStore(fresh_url), range(6))):
            work(store, 1)
            store.close()
    assert upgrade.inspect_store(fresh_url)["revision"] == HEAD


def test_concurrent_upgrades_run_each_step_once(filled_url):
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: upgrade_to(ADDED, filled_url), range(4))) <= {
            HEAD,
            HEAD + 1,
            FOLLOWING,
        }
    is_whole(filled_url)


@pytest.mark.parametrize(
    "hold", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE", "BEGIN; SELECT * FROM sqlite_master"]
)
def test_switching_an_old_store_to_wal_waits_for_its_user(tmp_path, hold):
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as user:
        user.executescript("CREATE TABLE theirs (x)")
        for statement in hold.split("; "):
            user.execute(statement).fetchall()
        with pytest.raises(Unavailable) as error:
            JobStore(f"sqlite:///{path}", busy_seconds=0.2)
        assert error.value.code == "STORE"
        release = threading.Timer(0.5, lambda: user.execute("COMMIT"))
        release.start()
        JobStore(f"sqlite:///{path}").close()
        release.join()
        assert path.read_bytes()[18:20] == b"\2\2"  # the file header says: write-ahead log


def test_an_upgrade_that_is_not_allowed_is_refused_and_the_error_names_the_command(filled_url):
    needed = f"needs {FOLLOWING}: run `xcray store upgrade`"
    with pytest.raises(Conflict, match=needed) as caught:
        upgrade_to(ADDED, filled_url, may_upgrade=False)
    assert caught.value.code == "SCHEMA_OLDER"
    assert upgrade_to(ADDED, filled_url) == HEAD
    assert upgrade_to(ADDED, filled_url, may_upgrade=False) == FOLLOWING
    is_whole(filled_url)


def test_an_empty_store_is_not_created_when_upgrades_are_not_allowed(fresh_url):
    with pytest.raises(Conflict, match=f"is empty.* needs {HEAD}: run `xcray store upgrade`"):
        JobStore(fresh_url, upgrade=False)


@pytest.mark.parametrize("tables", [["jobs"], ["jobs", "store_schema"]])
def test_a_database_with_tables_of_another_program_is_refused_and_not_changed(fresh_url, tables):
    engine = sa.create_engine(fresh_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        for table in tables:
            connection.exec_driver_sql(f"CREATE TABLE {table} (revision INTEGER, oldest INTEGER)")
    for refused in (JobStore, upgrade.inspect_store, upgrade.upgrade_store):
        with pytest.raises(Conflict, match="another home, or an empty database") as caught:
            refused(fresh_url)
        assert caught.value.code == "STORE_NOT_EMPTY"
    assert sorted(sa.inspect(engine).get_table_names()) == tables
    engine.dispose()


def test_a_database_without_an_encoding_stores_texts(postgres):
    postgres.run("CREATE DATABASE unencoded ENCODING 'SQL_ASCII' TEMPLATE template0")
    store = JobStore(postgres.url("unencoded"))
    job = submit(store, name="Bücher")
    assert store.jobs.get(job.id).name == "Bücher"
    store.close()


def test_a_store_for_newer_releases_only_is_refused(fresh_url):
    JobStore(fresh_url).close()
    engine = sa.create_engine(fresh_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE store_schema SET revision = 9999, oldest = 9999")
    engine.dispose()
    with pytest.raises(Conflict, match=r"revision 9999.*newer xcray") as caught:
        JobStore(fresh_url)
    assert caught.value.code == "SCHEMA_NEWER"


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:hidden@h/d",
        "hidden",
        "postgresql+asyncpg:/hidden",
        "sqlite://",
        "http://u:hidden@h",
    ],
)
def test_an_invalid_address_is_refused_and_not_repeated(url):
    with pytest.raises(ParameterError, match=r"sqlite:////path/xcray\.db") as caught:
        JobStore(url)
    assert "hidden" not in str(caught.value)


def test_the_commands_check_upgrade_and_back_up(tmp_path, capsys, monkeypatch):
    at = ["--home", str(tmp_path), "--json"]
    assert main(["store", "check", *at]) == 2
    assert json.loads(capsys.readouterr().err)["code"] == "NOT_FOUND"
    for before in (None, HEAD):
        assert main(["store", "upgrade", *at]) == 0
        assert json.loads(capsys.readouterr().out)["before"] == before
    assert main(["store", "check", *at]) == 0
    assert json.loads(capsys.readouterr().out)["ready"] is True
    with closing(JobStore(f"sqlite:///{tmp_path / 'xcray.db'}")) as store:
        submit(store)
    copy = tmp_path / "copy.db"
    assert main(["store", "backup", str(copy), *at]) == 0
    details = json.loads(capsys.readouterr().out)
    assert (details["jobs"], details["revision"], details["bytes"]) == (
        1,
        HEAD,
        copy.stat().st_size,
    )
    assert main(["store", "backup", str(copy), *at]) == 1
    assert json.loads(capsys.readouterr().err)["code"] == "EXISTS"
    monkeypatch.setenv("XCRAY_STORE", f"sqlite:///{tmp_path / 'elsewhere.db'}")
    for command in (["check"], ["verify"], ["sweep"], ["backup", str(tmp_path / "copy-2.db")]):
        assert main(["store", *command, *at]) == 2
        assert "no job store in" in capsys.readouterr().err
    assert not (tmp_path / "elsewhere.db").exists()  # these commands create no file


def test_a_service_that_may_not_upgrade_starts_after_the_hook(tmp_path, monkeypatch):
    settings = settings_for(tmp_path, store_upgrade=False)
    with pytest.raises(Conflict, match="run `xcray store upgrade`"):
        create_app(settings)
    # The hook has the environment of the service, but its command upgrades the store anyway.
    monkeypatch.setenv("XCRAY_STORE_UPGRADE", "false")
    assert main(["store", "upgrade", "--home", str(tmp_path)]) == 0
    with client_of(create_app(settings)) as http:
        assert http.get("/v1/jobs").status_code == 200


def work(store: JobStore, n: int) -> None:
    """Run jobs to their end and add keys and data sets.

    A PostgreSQL driver prepares a statement that it has seen several times, so choose a large `n`
    to cover prepared statements.
    """
    for i in range(n):
        job = submit(store, name=f"job {i}")
        mine = claim(store)
        assert mine.id == job.id
        store.attempts.heartbeat(job.id, 1, lease_seconds=9)
        store.attempts.append_event(job.id, 1, "progress", {"phase": "TRAINING", "done": i})
        store.attempts.finish(job.id, 1, "SUCCEEDED", result={})
        assert (
            store.jobs.get(job.id).status
            == store.jobs.list_page(limit=1)[0][0].status
            == "SUCCEEDED"
        )
        key = store.keys.add("default", f"key {i}", ["read"], f"{time.monotonic_ns():064}")
        store.keys.touch(key.id)
        assert store.keys.find(key.digest).id == key.id
        store.datasets.add(f"set {i}", "/d")
        assert store.statistics.read().jobs["RUNNING"] == 0


def test_an_open_store_keeps_working_after_the_next_release_adds_to_it(fresh_url):
    with closing(JobStore(fresh_url)) as store:
        work(store, 7)
        assert upgrade_to(ADDED, fresh_url) == HEAD
        work(store, 7)
        schema = upgrade.inspect_store(fresh_url)
        assert (schema["revision"], schema["oldest"], schema["ready"]) == (
            FOLLOWING,
            HEAD,
            True,
        )
        assert upgrade_to(ADDED, fresh_url) == FOLLOWING  # the upgrade is idempotent


def test_an_upgrade_waits_for_a_dump_and_blocks_no_other_client(postgres, monkeypatch):
    monkeypatch.setattr(upgrade, "RETRY_SECONDS", 3600.0)
    url = postgres.database()
    with (
        closing(JobStore(url, busy_seconds=600.0)) as store,
        ThreadPoolExecutor(1) as pool,
    ):
        engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        with engine.connect() as dump:
            dump.execute(sa.text("SELECT count(*) FROM jobs"))  # locks the table until the end
            upgrading = pool.submit(upgrade_to, ADDED, url)
            waiting = sa.text(
                "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
            )
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as looking:
                # The upgrade requests the lock, times out, and requests it again.
                for _ in range(2):
                    until(lambda: looking.execute(waiting).scalar_one())
                    submit(store)  # waits LOCK_TIMEOUT_SECONDS at most
                    until(lambda: not looking.execute(waiting).scalar_one())
            assert not upgrading.done()
            assert upgrade.inspect_store(url)["revision"] == HEAD
        assert upgrading.result(600) == HEAD
        engine.dispose()
    assert upgrade.inspect_store(url)["revision"] == FOLLOWING


def test_an_upgrade_that_waits_too_long_reports_the_cause(postgres, monkeypatch):
    monkeypatch.setattr(upgrade, "RETRY_SECONDS", 0.0)
    url = postgres.database()
    JobStore(url).close()
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as dump:
        dump.execute(sa.text("SELECT count(*) FROM jobs"))
        with pytest.raises(Unavailable, match="others hold the tables for long"):
            upgrade_to(ADDED, url)
    engine.dispose()
    assert upgrade.inspect_store(url)["revision"] == HEAD


def test_a_program_that_an_upgrade_cuts_off_can_no_longer_use_the_store(fresh_url):
    cuts = next_steps(("ALTER TABLE keys DROP COLUMN last_used",), oldest=HEAD + 1)
    with closing(JobStore(fresh_url)) as store:
        assert upgrade_to(cuts, fresh_url) == HEAD
        for refused in (lambda: store.jobs.get("j-1"), lambda: submit(store)):
            store._database._guard_checked_at = -float("inf")
            with pytest.raises(Unavailable) as caught:
                refused()
            assert caught.value.code == "SCHEMA_NEWER"
        store.ping()
