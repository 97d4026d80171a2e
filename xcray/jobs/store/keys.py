"""Keys of those who may ask: one table. The secret itself is nowhere, only its SHA-256."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from xcray.errors import Conflict, NotFound
from xcray.jobs.database.engine import Database, once_more
from xcray.jobs.database.schema import KEYS
from xcray.jobs.job import new_id, utc


@dataclass
class Key:
    """A key without its secret.

    `limits` may hold max_running, max_queued, requests_per_minute, instances_per_minute, upload_bytes.
    """

    id: str
    tenant: str
    name: str
    scopes: tuple[str, ...]
    digest: str
    created: str
    expires: float | None
    revoked: str | None
    last_used: str | None
    limits: dict[str, Any]

    def valid(self, now: float) -> bool:
        """Whether it opens anything at Unix second `now`."""
        return self.revoked is None and (self.expires is None or now < self.expires)


class KeyTable:
    """Records of keys."""

    _database: Database
    _now: Callable[[], float]

    @once_more
    def add_key(
        self,
        tenant: str,
        name: str,
        scopes: Sequence[str],
        digest: str,
        *,
        key_id: str | None = None,
        expires: float | None = None,
        limits: dict[str, Any] | None = None,
    ) -> Key:
        """Record a key; `digest` is the SHA-256 of its secret in hexadecimal, `key_id` a server-made `new_id("key")` when it was
        named before. Raises Conflict when the id or the digest is taken."""
        values: dict[str, Any] = {
            "id": key_id or new_id("key"),
            "tenant": tenant,
            "name": name,
            "scopes": list(scopes),
        }
        values |= {
            "digest": digest,
            "created": utc(self._now()),
            "expires": expires,
            "limits": limits or {},
        }
        try:
            with self._database.write() as connection:
                connection.execute(sa.insert(KEYS).values(**values))
                return _key(
                    connection.execute(sa.select(KEYS).where(KEYS.c.id == values["id"]))
                    .mappings()
                    .one()
                )
        except IntegrityError:
            raise Conflict(
                "there is such a key already: make another one", code="KEY_TAKEN"
            ) from None

    @once_more
    def find_key(self, digest: str) -> Key | None:
        """The key with this digest, also one that is revoked or has expired; None when there is none."""
        with self._database.read() as connection:
            row = (
                connection.execute(sa.select(KEYS).where(KEYS.c.digest == digest))
                .mappings()
                .first()
            )
        return None if row is None else _key(row)

    @once_more
    def list_keys(self, tenant: str | None = None) -> list[Key]:
        """All keys in order of making; of one tenant when named."""
        query = sa.select(KEYS).order_by(KEYS.c.seq)
        if tenant is not None:
            query = query.where(KEYS.c.tenant == tenant)
        with self._database.read() as connection:
            return [_key(row) for row in connection.execute(query).mappings()]

    @once_more
    def has_keys(self) -> bool:
        """Whether any key was ever made."""
        with self._database.read() as connection:
            return connection.execute(sa.select(KEYS.c.seq).limit(1)).first() is not None

    @once_more
    def revoke_key(self, key_id: str, tenant: str | None = None) -> Key:
        """Let a key open nothing from now on; twice is once. NotFound when there is none, or when it is another tenant's."""
        mine = [KEYS.c.id == key_id] + ([KEYS.c.tenant == tenant] if tenant is not None else [])
        with self._database.write() as connection:
            connection.execute(
                sa.update(KEYS)
                .where(*mine, KEYS.c.revoked.is_(None))
                .values(revoked=utc(self._now()))
            )
            row = connection.execute(sa.select(KEYS).where(*mine)).mappings().first()
        if row is None:
            raise NotFound(f"there is no key {key_id[:80]!r}: list them with `xcray keys list`")
        return _key(row)

    @once_more
    def retire_keys(self, key_ids: Sequence[str], at: float) -> list[Key]:
        """Let keys open nothing from Unix second `at` on; those changed. Keys that end sooner, or are revoked, stay as they are."""
        sooner = KEYS.c.expires.is_(None) | (KEYS.c.expires > at)
        with self._database.write() as connection:
            mine = [KEYS.c.id.in_(key_ids), KEYS.c.revoked.is_(None), sooner]
            changed = list(connection.execute(sa.select(KEYS.c.id).where(*mine)).scalars())
            connection.execute(sa.update(KEYS).where(KEYS.c.id.in_(changed)).values(expires=at))
            rows = connection.execute(
                sa.select(KEYS).where(KEYS.c.id.in_(changed)).order_by(KEYS.c.seq)
            ).mappings()
            return [_key(row) for row in rows]

    @once_more
    def touch_key(self, key_id: str) -> None:
        """Note that a key was used now. A write: call it now and then, not with each request."""
        with self._database.write() as connection:
            connection.execute(
                sa.update(KEYS).where(KEYS.c.id == key_id).values(last_used=utc(self._now()))
            )


def _key(row: sa.RowMapping) -> Key:
    """A row as a key."""
    values = {name: row[name] for name in Key.__dataclass_fields__}
    return Key(**{**values, "scopes": tuple(values["scopes"])})
