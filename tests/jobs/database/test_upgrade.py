"""Older stores are upgraded completely or not at all; others are refused. And the commands."""

import json
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from tests.support.job_store import Clock, claim, raw, submit
from tests.support.next_release import ADDED, NextStep, newest, release, upgrade_to
from xcray.cli.main import main
from xcray.errors import Conflict, ParameterError, Unavailable
from xcray.jobs.database import clients as programs
from xcray.jobs.database import upgrade
from xcray.jobs.database.clients import HEARTBEAT_SECONDS, LEASE_SECONDS
from xcray.jobs.database.schema import HEAD, METADATA
from xcray.jobs.states import PENDING, RUNNING
from xcray.jobs.store.job_store import JobStore


@pytest.fixture
def fresh_url(store_url, postgres, tmp_path) -> str:
    return (
        postgres.database()
        if store_url.startswith("postgresql")
        else f"sqlite:///{tmp_path / 'fresh.db'}"
    )


@pytest.fixture
def filled_url(fresh_url) -> str:
    """A store of this release: a job that runs, one that waits, and a data set."""
    with closing(JobStore(fresh_url)) as store:
        submit(store, name="runs")
        claim(store)
        submit(store, name="waits", idempotency_key="k", digest="d")
        store.add_dataset("pydocs", "/d", dataset_id="ds_1")
    return fresh_url


@pytest.fixture
def folder(tmp_path) -> Path:
    """The steps of a next release that only adds."""
    return release(tmp_path / "next", *ADDED)


def is_whole(url: str, folder: Path) -> None:
    """The store is at the next release and works, and everything that was in it is there."""
    store = JobStore(url)
    told = {
        "store": store._database.kind,
        "revision": newest(folder),
        "oldest": HEAD,
        "needed": HEAD,
        "ready": True,
        "programs": {},
    }
    assert upgrade.inspect_store(url) == told
    waits, runs = store.list_jobs()[0]
    assert (waits.name, waits.status) == ("waits", PENDING)
    assert (runs.name, runs.status, runs.attempt) == ("runs", RUNNING, 1)
    assert store.heartbeat(runs.id, 1, lease_seconds=9) is False
    assert store.expire_jobs() == []
    assert submit(store, idempotency_key="k", digest="d").id == waits.id
    assert claim(store).id == waits.id
    assert [event.kind for event in store.list_events(waits.id)] == ["status", "status"]
    assert store.get_dataset("ds_1").version == 1
    assert raw(store, "SELECT tries, count(*) FROM jobs GROUP BY tries") == [(0, 2)]
    assert "jobs_colour" in {
        index["name"] for index in sa.inspect(store._database._engine).get_indexes("jobs")
    }
    store.close()


def test_the_steps_lead_to_the_tables_of_the_program(store_url):
    store = JobStore(store_url)
    with store._database.read() as connection:
        context = MigrationContext.configure(
            connection, opts={"include_name": is_ours, "compare_type": True}
        )
        assert compare_metadata(context, METADATA) == []
    store.close()
    assert ScriptDirectory(str(upgrade.OWN_SCRIPTS.folder)).get_heads() == [HEAD]


def is_ours(name, kind, _parents):
    """All but the table that tells the revision."""
    return kind != "table" or name != "alembic_version"


def test_many_who_open_an_empty_store_at_once_make_it_once(fresh_url):
    with ThreadPoolExecutor(6) as pool:
        for store in list(pool.map(lambda _: JobStore(fresh_url), range(6))):
            work(store, 1)
            store.close()
    assert upgrade.inspect_store(fresh_url)["revision"] == HEAD


def test_many_upgrade_a_store_at_once_also_by_steps_outside_a_transaction(filled_url, folder):
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: upgrade_to(folder, filled_url), range(4))) <= {
            HEAD,
            f"{int(HEAD) + 1:04}",
            newest(folder),
        }
    is_whole(filled_url, folder)


@pytest.mark.parametrize(
    "hold", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE", "BEGIN; SELECT * FROM sqlite_master"]
)
def test_who_opens_a_store_of_the_old_log_waits_for_who_uses_it(tmp_path, hold):
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as user:
        user.executescript("CREATE TABLE theirs (x)")
        for statement in hold.split("; "):
            user.execute(statement).fetchall()
        with pytest.raises(Unavailable) as told:
            JobStore(f"sqlite:///{path}", busy_seconds=0.2)
        assert told.value.code == "STORE"
        release = threading.Timer(0.5, lambda: user.execute("COMMIT"))
        release.start()
        JobStore(f"sqlite:///{path}").close()
        release.join()
        assert path.read_bytes()[18:20] == b"\2\2"  # the kind of its log: written ahead


# A process that is killed at the n-th change it sends, or right before it commits the first.
KILLED = """
import os, signal, sys
import sqlalchemy as sa
from pathlib import Path
from tests.support.next_release import upgrade_to
sent = 0
def count(_connection, _cursor, statement, *_):
    global sent
    sent += statement.lstrip().startswith(("ALTER", "CREATE", "UPDATE", "DELETE", "INSERT"))
    if str(sent) == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)
def commit(_):
    if sent and sys.argv[3] == "commit":
        os.kill(os.getpid(), signal.SIGKILL)
sa.event.listen(sa.Engine, "before_cursor_execute", count)
sa.event.listen(sa.Engine, "commit", commit)
upgrade_to(Path(sys.argv[2]), sys.argv[1])
print("through")
"""


@pytest.mark.drill
@pytest.mark.parametrize(("change", "left"), [(2, 0), (6, 0), ("commit", 0), (8, 1), (9, 1)])
def test_a_killed_upgrade_leaves_complete_steps_and_the_next_start_does_the_rest(
    filled_url, folder, change, left
):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, filled_url, str(folder), str(change)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, ""), done.stderr
    assert upgrade.inspect_store(filled_url)["revision"] == f"{int(HEAD) + left:04}"
    assert upgrade_to(folder, filled_url) == f"{int(HEAD) + left:04}"
    is_whole(filled_url, folder)


def test_an_upgrade_that_is_not_allowed_is_refused_with_the_mend(filled_url, folder):
    needed = f"needs {newest(folder)}: run `xcray store upgrade`"
    with pytest.raises(Conflict, match=needed) as caught:
        upgrade_to(folder, filled_url, may_upgrade=False)
    assert caught.value.code == "SCHEMA_OLDER"
    assert upgrade_to(folder, filled_url) == HEAD
    assert upgrade_to(folder, filled_url, may_upgrade=False) == newest(folder)
    is_whole(filled_url, folder)


def test_an_empty_store_is_not_made_either_when_that_is_not_allowed(fresh_url):
    with pytest.raises(Conflict, match=f"is empty.* needs {HEAD}: run `xcray store upgrade`"):
        JobStore(fresh_url, upgrade=False)


@pytest.mark.parametrize(
    "statements",
    [
        (
            "CREATE TABLE alembic_version (version_num VARCHAR(32))",
            "INSERT INTO alembic_version VALUES ('0003')",
        ),
        ("CREATE TABLE jobs (id TEXT)",),
    ],
    ids=["a revision", "none"],
)
def test_a_store_from_before_the_first_release_is_refused_with_the_mend(fresh_url, statements):
    engine = sa.create_engine(fresh_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    for refused in (
        lambda: JobStore(fresh_url),
        lambda: upgrade.inspect_store(fresh_url),
        lambda: upgrade.upgrade_store(fresh_url, force=True),
    ):
        with pytest.raises(
            Conflict, match=r"first release.* another home or XCRAY_STORE"
        ) as caught:
            refused()
        assert caught.value.code == "SCHEMA_OLDER"
    assert len(sa.inspect(engine).get_table_names()) == 1
    engine.dispose()


def test_a_database_without_an_encoding_holds_texts_too(postgres):
    postgres.run("CREATE DATABASE unencoded ENCODING 'SQL_ASCII' TEMPLATE template0")
    store = JobStore(postgres.url("unencoded"))
    job = submit(store, name="Bücher")
    assert store.get_job(job.id).name == "Bücher"
    store.close()


@pytest.mark.parametrize("oldest", ["9999", None])
def test_a_store_that_serves_newer_xcrays_alone_is_refused(fresh_url, oldest):
    JobStore(fresh_url).close()
    engine = sa.create_engine(fresh_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
        connection.exec_driver_sql(
            f"UPDATE oldest_program SET revision = '{oldest}'"
            if oldest
            else "DROP TABLE oldest_program"
        )
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
def test_an_address_that_is_none_is_refused_and_not_repeated(url):
    with pytest.raises(ParameterError, match=r"sqlite:////path/xcray\.db") as caught:
        JobStore(url)
    assert "hidden" not in str(caught.value)


def test_the_commands_check_upgrade_and_back_up(tmp_path, capsys, monkeypatch):
    at = ["--home", str(tmp_path), "--json"]
    assert main(["store", "check", *at]) == 0
    told = {
        "store": "sqlite",
        "revision": None,
        "oldest": None,
        "needed": HEAD,
        "ready": False,
        "programs": {},
    }
    assert json.loads(capsys.readouterr().out) == told
    for before in (None, HEAD):
        assert main(["store", "upgrade", *at]) == 0
        assert json.loads(capsys.readouterr().out)["before"] == before
    assert main(["store", "check", *at]) == 0
    assert json.loads(capsys.readouterr().out)["ready"] is True
    with closing(JobStore(f"sqlite:///{tmp_path / 'xcray.db'}")) as store:
        submit(store)
    copy = tmp_path / "copy.db"
    assert main(["store", "backup", str(copy), *at]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["jobs"], facts["revision"], facts["bytes"]) == (1, HEAD, copy.stat().st_size)
    assert main(["store", "backup", str(copy), *at]) == 1
    assert json.loads(capsys.readouterr().err)["code"] == "EXISTS"
    monkeypatch.setenv("XCRAY_STORE", f"sqlite:///{tmp_path / 'elsewhere.db'}")
    assert main(["store", "check", *at]) == 0
    assert json.loads(capsys.readouterr().out)["revision"] is None
    assert not (tmp_path / "elsewhere.db").exists()  # looking makes nothing


def work(store: JobStore, n: int) -> None:
    """Jobs from submit to end, keys, data sets: often enough for drivers to remember how each
    statement is done.
    """
    for i in range(n):
        job = submit(store, name=f"job {i}")
        mine = claim(store)
        assert mine.id == job.id
        store.heartbeat(job.id, 1, lease_seconds=9)
        store.append_event(job.id, 1, "progress", {"phase": "TRAINING", "done": i})
        store.finish_attempt(job.id, 1, "SUCCEEDED", result={})
        assert store.get_job(job.id).status == store.list_jobs(limit=1)[0][0].status == "SUCCEEDED"
        key = store.add_key("default", f"key {i}", ["read"], f"{time.monotonic_ns():064}")
        store.touch_key(key.id)
        assert store.find_key(key.digest).id == key.id
        store.add_dataset(f"set {i}", "/d")
        assert store.read_statistics().jobs["RUNNING"] == 0


def test_an_open_store_goes_on_when_the_next_release_has_added_to_it(fresh_url, folder):
    with closing(JobStore(fresh_url)) as store:
        work(store, 7)
        assert upgrade_to(folder, fresh_url) == HEAD
        work(store, 7)
        told = upgrade.inspect_store(fresh_url)
        assert (told["revision"], told["oldest"], told["ready"]) == (newest(folder), HEAD, True)
        assert upgrade_to(folder, fresh_url) == newest(folder)  # twice is once


def test_an_upgrade_waits_for_a_dump_and_nobody_waits_for_the_upgrade(postgres, folder):
    url = postgres.database()
    with (
        closing(JobStore(url, busy_seconds=5 * upgrade.LOCK_TIMEOUT_SECONDS)) as store,
        ThreadPoolExecutor(1) as pool,
    ):
        engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        with engine.connect() as dump:
            dump.execute(sa.text("SELECT count(*) FROM jobs"))  # holds the table until it ends
            upgrading = pool.submit(upgrade_to, folder, url)
            waiting = sa.text(
                "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
            )
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as looking:
                for _ in range(2):  # it comes, goes, and comes again
                    while not looking.execute(waiting).scalar_one():
                        time.sleep(0.01)
                    submit(store)  # behind it: for HOLD_SECONDS at most
                    while looking.execute(waiting).scalar_one():
                        time.sleep(0.01)
            assert not upgrading.done()
            assert upgrade.inspect_store(url)["revision"] == HEAD
        assert upgrading.result(60) == HEAD
        engine.dispose()
    assert upgrade.inspect_store(url)["revision"] == newest(folder)


def test_an_upgrade_that_waits_for_too_long_says_why(postgres, folder, monkeypatch):
    monkeypatch.setattr(upgrade, "RETRY_SECONDS", 0.0)
    url = postgres.database()
    JobStore(url).close()
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as dump:
        dump.execute(sa.text("SELECT count(*) FROM jobs"))
        with pytest.raises(Unavailable, match="others hold the tables for long"):
            upgrade_to(folder, url)
    engine.dispose()
    assert upgrade.inspect_store(url)["revision"] == HEAD


def test_programs_note_that_they_are_at_work_and_are_forgotten_when_they_are_gone(fresh_url):
    clock = Clock()
    with closing(JobStore(fresh_url, monotonic=clock)) as one:
        killed = JobStore(fresh_url, monotonic=clock)
        killed.heartbeat_client()
        one.heartbeat_client()
        one.heartbeat_client()  # too soon to be noted again
        assert sorted(each.beats for each in one.list_clients()) == [1, 1]
        assert upgrade.inspect_store(fresh_url)["programs"] == {HEAD: 2}
        clock.seconds += HEARTBEAT_SECONDS
        one.heartbeat_client()
        clock.seconds += LEASE_SECONDS
        one.heartbeat_client()
        assert [each.beats for each in one.list_clients()] == [3]
        killed.close()
        with closing(JobStore(fresh_url)) as other:
            other.heartbeat_client()
            assert len(one.list_clients()) == 2
        assert len(one.list_clients()) == 1  # who ends takes its note away


def test_an_upgrade_that_cuts_off_programs_is_refused_while_they_live(
    fresh_url, tmp_path, monkeypatch
):
    monkeypatch.setattr(upgrade, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(programs, "HEARTBEAT_SECONDS", 0.0)
    monkeypatch.setattr(programs, "LEASE_SECONDS", 0.3)
    cuts = release(
        tmp_path / "next",
        NextStep('op.drop_column("keys", "last_used")', f'oldest = "{int(HEAD) + 1:04}"'),
    )
    store, ending = JobStore(fresh_url), threading.Event()

    def live() -> None:
        while not ending.wait(0.02):
            store.heartbeat_client()

    living = threading.Thread(target=live)
    living.start()
    while not store.list_clients():
        time.sleep(0.01)
    try:
        with pytest.raises(Conflict, match="--force") as caught:
            upgrade_to(cuts, fresh_url)
        assert caught.value.code == "SCHEMA_IN_USE"
        assert upgrade.inspect_store(fresh_url)["revision"] == HEAD
    finally:
        ending.set()
        living.join()
    assert (
        len(store.list_clients()) == 1
    )  # it ended without a word: nobody beats for a lease, and that is enough
    assert upgrade_to(cuts, fresh_url) == HEAD
    for refused in (
        store.count_jobs,
        lambda: submit(store),
        store.heartbeat_client,
    ):  # and should it live after all, it touches nothing
        store._database._guard_checked_at = -float("inf")
        with pytest.raises(Unavailable) as caught:
            refused()
        assert caught.value.code == "SCHEMA_NEWER"
    store.ping()
    store.close()
