"""The job store: jobs, data sets, keys and all other records of the service in one database.

The database is an SQLite file or a PostgreSQL database.

  store = JobStore("sqlite:////var/lib/xcray/xcray.db")
  submission = JobSubmission({"dataset": "ds_..."}, name="pydocs", idempotency_key="k1")
  job, created = store.jobs.submit(submission)
"""

from __future__ import annotations

import time
from collections.abc import Callable

import sqlalchemy as sa

from xcray.jobs.database.compatibility import SchemaGuard, require_support
from xcray.jobs.database.engine import Database, TransactionObserver, retry_once
from xcray.jobs.database.upgrade import upgrade_database
from xcray.jobs.store.attempts import AttemptTable
from xcray.jobs.store.audit import AuditTable
from xcray.jobs.store.counters import CounterTable
from xcray.jobs.store.datasets import DatasetTable
from xcray.jobs.store.feedback import FeedbackTable
from xcray.jobs.store.jobs import JobTable
from xcray.jobs.store.keys import KeyTable
from xcray.jobs.store.leader_leases import LeaderLeaseTable
from xcray.jobs.store.statistics import StatisticsReader


class JobStore:
    """All records of the service in one database that processes share, one attribute per subject.

    Every method of the parts is one transaction and can be called from any thread. Raises
    Unavailable if the database cannot answer, Refused, code DISK_FULL, if its disk is full, and
    Unavailable, code SCHEMA_NEWER, once a newer xcray has upgraded it beyond what this version
    supports.
    """

    def __init__(
        self,
        url: str,
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        busy_seconds: float = 15.0,
        upgrade: bool = True,
    ) -> None:
        """Open a store, and upgrade it if needed and allowed.

        url: the database in SQLAlchemy's form. now: the wall clock in Unix seconds, for times that
        people read. monotonic: a clock that never jumps, in seconds, for leases. busy_seconds: how
        long a transaction can wait for others. upgrade: whether an older store can be upgraded.
        Raises Conflict if not, and if the store supports only newer programs.
        """
        self.url = url
        self._database = database = Database(url, busy_seconds)
        try:
            upgrade_database(database, may_upgrade=upgrade)
            database.guard = SchemaGuard()
        except BaseException:
            database.close()
            raise
        self.jobs = JobTable(database, now)
        self.attempts = AttemptTable(database, now, monotonic)
        self.datasets = DatasetTable(database, now)
        self.feedback = FeedbackTable(database, now)
        self.keys = KeyTable(database, now)
        self.audit = AuditTable(database, now)
        self.counters = CounterTable(database)
        self.leader_leases = LeaderLeaseTable(database, monotonic)
        self.statistics = StatisticsReader(database, now)

    def set_observer(self, observer: TransactionObserver) -> None:
        """Call `observer` after every transaction from now on."""
        self._database.observer = observer

    def check_schema(self) -> None:
        """Raise Conflict if the store does not support this program (any more).

        The code is SCHEMA_NEWER or SCHEMA_OLDER.
        """
        with self._database.read(guarded=False) as connection:
            require_support(connection)

    @retry_once
    def ping(self) -> None:
        """Return if the database answers, whatever its schema. Raises Unavailable if not."""
        with self._database.read(guarded=False) as connection:
            connection.execute(sa.select(1))

    def close(self) -> None:
        """Close all connections. The store cannot be used afterwards."""
        self._database.close()
