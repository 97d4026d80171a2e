"""The data sets that the service holds: one table, half of the store's face."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from xcray.errors import Conflict, NotFound
from xcray.jobs.database.engine import Database, once_more
from xcray.jobs.database.schema import DATASETS
from xcray.jobs.job import DatasetRecord, new_id, utc
from xcray.jobs.store.paging import page_start, page_token_after


class DatasetTable:
    """Records of data sets. The bytes lie elsewhere; a record says where."""

    _database: Database
    _now: Callable[[], float]

    @once_more
    def add_dataset(
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
        """Record a data set; `dataset_id` is a server-made `new_id("ds")` when its folder had to be named before.

        With a key that the tenant used before, for a request with the same `digest`: the record it made then, under another id
        than the one given. Raises Conflict when the key was used with another digest.
        """
        known = self.same_dataset(tenant, idempotency_key, digest)
        if known is not None:
            return known
        record = DatasetRecord(
            dataset_id or new_id("ds"), tenant, name, path, status, stats or {}, utc(self._now())
        )
        try:
            with self._database.write() as connection:
                connection.execute(
                    sa.insert(DATASETS).values(
                        **vars(record), idempotency_key=idempotency_key, digest=digest
                    )
                )
        except IntegrityError:  # the same key came through another door in between
            known = self.same_dataset(tenant, idempotency_key, digest)
            if known is None:
                raise
            return known
        return record

    @once_more
    def count_datasets(self, tenant: str) -> int:
        """How many data sets a tenant has, whatever their status."""
        with self._database.read() as connection:
            return int(
                connection.execute(
                    sa.select(sa.func.count()).where(DATASETS.c.tenant == tenant)
                ).scalar_one()
            )

    @once_more
    def same_dataset(
        self, tenant: str, key: str | None, digest: str | None
    ) -> DatasetRecord | None:
        """The record that was made with this key, None when there is none; Conflict when its request was another one."""
        if key is None:
            return None
        query = sa.select(DATASETS).where(
            DATASETS.c.tenant == tenant, DATASETS.c.idempotency_key == key
        )
        with self._database.read() as connection:
            row = connection.execute(query).mappings().first()
        if row is not None and row["digest"] != digest:
            raise Conflict(
                f"the idempotency key was used before, for data set {row['id']} with another body: use a new key",
                code="IDEMPOTENCY_MISMATCH",
                dataset=row["id"],
            )
        return None if row is None else _record(row)

    @once_more
    def get_dataset(self, dataset_id: str, tenant: str = "default") -> DatasetRecord:
        """One record. NotFound when there is none, or when it is another tenant's."""
        with self._database.read() as connection:
            row = (
                connection.execute(sa.select(DATASETS).where(_is(dataset_id, tenant)))
                .mappings()
                .first()
            )
        if row is None:
            raise _none(dataset_id)
        return _record(row)

    @once_more
    def find_dataset(self, dataset_id: str) -> DatasetRecord | None:
        """One record of whatever tenant, None when there is none: for xcray's own processes."""
        with self._database.read() as connection:
            row = (
                connection.execute(sa.select(DATASETS).where(DATASETS.c.id == dataset_id))
                .mappings()
                .first()
            )
        return None if row is None else _record(row)

    @once_more
    def list_datasets(
        self, tenant: str | None = "default", *, limit: int = 50, page_token: str | None = None
    ) -> tuple[list[DatasetRecord], str | None]:
        """Records of a tenant (None: of all), newest first, and the token of the next page or None."""
        query = sa.select(DATASETS).order_by(DATASETS.c.seq.desc())
        if tenant is not None:
            query = query.where(DATASETS.c.tenant == tenant)
        start = page_start(page_token, limit)
        if start is not None:
            query = query.where(DATASETS.c.seq < start)
        with self._database.read() as connection:
            rows = connection.execute(query.limit(limit + 1)).mappings().all()
        return [_record(row) for row in rows[:limit]], page_token_after(rows, limit)

    @once_more
    def update_dataset(
        self,
        dataset_id: str,
        tenant: str = "default",
        *,
        if_version: int | None = None,
        **changes: Any,
    ) -> DatasetRecord:
        """Change `status`, `stats`, `path` or `name` of a record, which counts up its version. NotFound as in `get_dataset`.

        if_version: only a record of that version; Conflict, code VERSION, when it is another by now.
        """
        unknown = set(changes) - {"status", "stats", "path", "name"}
        if unknown:
            raise TypeError(f"a data set's record has no changeable {sorted(unknown)}")
        with self._database.write() as connection:
            change = (
                sa.update(DATASETS)
                .where(_is(dataset_id, tenant))
                .values(**changes, version=DATASETS.c.version + 1)
            )
            if if_version is not None:
                change = change.where(DATASETS.c.version == if_version)
            changed = connection.execute(change).rowcount
            row = (
                connection.execute(sa.select(DATASETS).where(_is(dataset_id, tenant)))
                .mappings()
                .first()
            )
        if row is None:
            raise _none(dataset_id)
        if not changed:
            raise Conflict(
                f"data set {dataset_id} was changed in between: read it again",
                code="VERSION",
                version=row["version"],
            )
        return _record(row)

    @once_more
    def delete_dataset(
        self, dataset_id: str, tenant: str = "default", *, if_version: int | None = None
    ) -> None:
        """Forget a record; removing its folder is the caller's. NotFound as in `get_dataset`.

        if_version: only a record of that version; Conflict, code PRECONDITION, when it is another by now.
        """
        mine = _is(dataset_id, tenant)
        same = mine if if_version is None else sa.and_(mine, DATASETS.c.version == if_version)
        with self._database.write() as connection:
            if connection.execute(sa.delete(DATASETS).where(same)).rowcount == 1:
                return
            there = connection.execute(sa.select(DATASETS.c.seq).where(mine)).first()
        if there is None:
            raise _none(dataset_id)
        raise Conflict(
            f"data set {dataset_id} has changed since you read it: read it again, and decide again",
            code="PRECONDITION",
        )


def _is(dataset_id: str, tenant: str) -> sa.ColumnElement[bool]:
    """The tenant is part of every question."""
    return sa.and_(DATASETS.c.id == dataset_id, DATASETS.c.tenant == tenant)


def _none(dataset_id: str) -> NotFound:
    """The error for a missing record."""
    return NotFound(f"there is no data set {dataset_id[:80]!r}: list them with `xcray data list`")


def _record(row: sa.RowMapping) -> DatasetRecord:
    """A row as a record."""
    return DatasetRecord(**{name: row[name] for name in DatasetRecord.__dataclass_fields__})
