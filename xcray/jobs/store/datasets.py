"""The table of data sets."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from xcray.errors import Conflict, NotFound, Refused
from xcray.jobs.database.engine import Table, first_row, retry_once
from xcray.jobs.database.schema import DATASETS, JOBS
from xcray.jobs.job import DatasetRecord, format_utc, new_id
from xcray.jobs.states import PENDING, RUNNING
from xcray.jobs.store.paging import read_page


class DatasetTable(Table):
    """Records of data sets. The files lie elsewhere, at the recorded path."""

    @retry_once
    def add(
        self,
        name: str,
        path: str,
        *,
        tenant: str = "default",
        status: str = "READY",
        stats: dict[str, Any] | None = None,
        dataset_id: str | None = None,
        idempotency_key: str | None = None,
        digest: str | None = None,
        limit: int | None = None,
    ) -> DatasetRecord:
        """Record a data set.

        `dataset_id` is a server-made `new_id("ds")` if its directory had to be named before. If the
        tenant used the key before for a request with the same `digest`, the record of that request
        is returned, with its own id. Raises Conflict if the key was used with another digest, and
        Refused, code DATASET_QUOTA, if the tenant has `limit` records.
        """
        record = DatasetRecord(
            dataset_id or new_id("ds"),
            tenant,
            name,
            path,
            status,
            stats or {},
            format_utc(self._now()),
        )
        with self._database.write() as connection:
            # one writer per tenant, for its keys and the count
            self._database.advisory_lock(connection, f"data sets of {tenant}")
            existing = _record_with_key(connection, tenant, idempotency_key, digest)
            if existing is not None:
                return existing
            if limit is not None:
                _check_quota(connection, tenant, limit)
            connection.execute(
                sa.insert(DATASETS).values(
                    **vars(record), idempotency_key=idempotency_key, digest=digest
                )
            )
        return record

    @retry_once
    def find_by_key(self, tenant: str, key: str | None, digest: str | None) -> DatasetRecord | None:
        """Return the record that was created with an idempotency key, or None.

        Raises Conflict if that request was another one.
        """
        with self._database.read() as connection:
            return _record_with_key(connection, tenant, key, digest)

    @retry_once
    def get(self, dataset_id: str, tenant: str = "default") -> DatasetRecord:
        """Return a record. Raises NotFound if it is missing or another tenant's."""
        with self._database.read() as connection:
            row = first_row(connection, sa.select(DATASETS).where(_matches(dataset_id, tenant)))
        if row is None:
            raise _not_found(dataset_id)
        return _to_record(row)

    @retry_once
    def find(self, dataset_id: str) -> DatasetRecord | None:
        """Return a record of any tenant, or None, for xcray's own processes."""
        with self._database.read() as connection:
            row = first_row(connection, sa.select(DATASETS).where(DATASETS.c.id == dataset_id))
        return None if row is None else _to_record(row)

    @retry_once
    def list_page(
        self, tenant: str | None = "default", *, limit: int = 50, page_token: str | None = None
    ) -> tuple[list[DatasetRecord], str | None]:
        """Return records, newest first, and the token of the next page or None.

        `tenant` None lists those of all tenants.
        """
        conditions = [] if tenant is None else [DATASETS.c.tenant == tenant]
        rows, token = read_page(self._database, DATASETS, conditions, limit, page_token)
        return [_to_record(row) for row in rows], token

    @retry_once
    def update(self, dataset_id: str, tenant: str = "default", **changes: Any) -> DatasetRecord:
        """Change `status`, `stats`, `path` or `name` and increase the record's version.

        Raises NotFound as `get`.
        """
        unknown = set(changes) - {"status", "stats", "path", "name"}
        if unknown:
            raise TypeError(f"a data set's record has no changeable {sorted(unknown)}")
        with self._database.write() as connection:
            connection.execute(
                sa.update(DATASETS)
                .where(_matches(dataset_id, tenant))
                .values(**changes, version=DATASETS.c.version + 1)
            )
            row = first_row(connection, sa.select(DATASETS).where(_matches(dataset_id, tenant)))
        if row is None:
            raise _not_found(dataset_id)
        return _to_record(row)

    @retry_once
    def delete(
        self, dataset_id: str, tenant: str = "default", *, if_version: int | None = None
    ) -> None:
        """Delete a record that no pending or running job uses. The caller removes its directory.

        Raises NotFound as `get`; Conflict, code STATE, if a job uses it, and code PRECONDITION, if
        it is no longer `if_version`.
        """
        active = (JOBS.c.tenant == tenant, JOBS.c.status.in_((PENDING, RUNNING)))
        users = sa.select(JOBS.c.id, JOBS.c.status).where(*active, JOBS.c.dataset_id == dataset_id)
        with self._database.write() as connection:
            row = first_row(
                connection,
                sa.select(DATASETS).where(_matches(dataset_id, tenant)).with_for_update(),
            )
            if row is None:
                raise _not_found(dataset_id)
            if if_version not in (None, row["version"]):
                raise Conflict(
                    f"data set {dataset_id} has changed since you read it: read it again, and "
                    "decide again",
                    code="PRECONDITION",
                )
            user = first_row(connection, users.limit(1))
            if user is not None:
                raise Conflict(
                    f"data set {dataset_id} is used by {user['id']} ({user['status']}): stop it "
                    "first",
                    code="STATE",
                    job=user["id"],
                )
            connection.execute(sa.delete(DATASETS).where(DATASETS.c.seq == row["seq"]))


def hold_dataset(connection: Connection, dataset_id: str, tenant: str) -> None:
    """Keep a record from being deleted until the transaction ends. Raises NotFound."""
    query = sa.select(DATASETS.c.seq).where(_matches(dataset_id, tenant))
    if connection.execute(query.with_for_update(read=True)).first() is None:
        raise _not_found(dataset_id)


def _record_with_key(
    connection: Connection, tenant: str, key: str | None, digest: str | None
) -> DatasetRecord | None:
    """Return the record with an idempotency key, or None. Raises Conflict for another digest."""
    if key is None:
        return None
    query = sa.select(DATASETS).where(
        DATASETS.c.tenant == tenant, DATASETS.c.idempotency_key == key
    )
    row = first_row(connection, query)
    if row is not None and row["digest"] != digest:
        raise Conflict(
            f"the idempotency key was used before, for data set {row['id']} with another body:"
            " use a new key",
            code="IDEMPOTENCY_MISMATCH",
            dataset=row["id"],
        )
    return None if row is None else _to_record(row)


def _check_quota(connection: Connection, tenant: str, limit: int) -> None:
    """Raise Refused if the tenant has `limit` records, whatever their status."""
    count = sa.select(sa.func.count()).where(DATASETS.c.tenant == tenant)
    if connection.execute(count).scalar_one() >= limit:
        raise Refused(
            f"this tenant has {limit:,} data sets, which is the limit: delete some",
            code="DATASET_QUOTA",
            limit=limit,
        )


def _matches(dataset_id: str, tenant: str) -> sa.ColumnElement[bool]:
    """Return the condition for a record. The tenant is part of every query."""
    return sa.and_(DATASETS.c.id == dataset_id, DATASETS.c.tenant == tenant)


def _not_found(dataset_id: str) -> NotFound:
    """Return the error for a missing record."""
    return NotFound(f"there is no data set {dataset_id[:80]!r}: GET /v1/datasets lists them")


def _to_record(row: sa.RowMapping) -> DatasetRecord:
    """Return a row as a record."""
    return DatasetRecord(**{name: row[name] for name in DatasetRecord.__dataclass_fields__})
