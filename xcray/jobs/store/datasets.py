"""The table of data sets."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from xcray.errors import Conflict, NotFound
from xcray.jobs.database.engine import Table, first_row, retry_once
from xcray.jobs.database.schema import DATASETS
from xcray.jobs.job import DatasetRecord, format_utc, new_id
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
    ) -> DatasetRecord:
        """Record a data set.

        `dataset_id` is a server-made `new_id("ds")` if its directory had to be named before. If the
        tenant used the key before for a request with the same `digest`, the record of that request
        is returned, with its own id. Raises Conflict if the key was used with another digest.
        """
        existing = self.find_by_key(tenant, idempotency_key, digest)
        if existing is not None:
            return existing
        record = DatasetRecord(
            dataset_id or new_id("ds"),
            tenant,
            name,
            path,
            status,
            stats or {},
            format_utc(self._now()),
        )
        try:
            with self._database.write() as connection:
                connection.execute(
                    sa.insert(DATASETS).values(
                        **vars(record), idempotency_key=idempotency_key, digest=digest
                    )
                )
        except IntegrityError:
            # a concurrent request used the same key
            existing = self.find_by_key(tenant, idempotency_key, digest)
            if existing is None:
                raise
            return existing
        return record

    @retry_once
    def count(self, tenant: str) -> int:
        """Return how many data sets a tenant has, whatever their status."""
        with self._database.read() as connection:
            return int(
                connection.execute(
                    sa.select(sa.func.count()).where(DATASETS.c.tenant == tenant)
                ).scalar_one()
            )

    @retry_once
    def find_by_key(self, tenant: str, key: str | None, digest: str | None) -> DatasetRecord | None:
        """Return the record that was created with an idempotency key, or None.

        Raises Conflict if that request was another one.
        """
        if key is None:
            return None
        query = sa.select(DATASETS).where(
            DATASETS.c.tenant == tenant, DATASETS.c.idempotency_key == key
        )
        with self._database.read() as connection:
            row = first_row(connection, query)
        if row is not None and row["digest"] != digest:
            raise Conflict(
                f"the idempotency key was used before, for data set {row['id']} with another body:"
                " use a new key",
                code="IDEMPOTENCY_MISMATCH",
                dataset=row["id"],
            )
        return None if row is None else _to_record(row)

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
        """Delete a record. The caller removes its directory.

        Raises NotFound as `get`; Conflict, code PRECONDITION, if it is no longer
        `if_version`.
        """
        mine = _matches(dataset_id, tenant)
        same = mine if if_version is None else sa.and_(mine, DATASETS.c.version == if_version)
        with self._database.write() as connection:
            if connection.execute(sa.delete(DATASETS).where(same)).rowcount == 1:
                return
            there = connection.execute(sa.select(DATASETS.c.seq).where(mine)).first()
        if there is None:
            raise _not_found(dataset_id)
        raise Conflict(
            f"data set {dataset_id} has changed since you read it: read it again, and decide again",
            code="PRECONDITION",
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
