"""The table of API keys. It holds the SHA-256 of a secret, never the secret itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from xcray.errors import Conflict, NotFound
from xcray.jobs.database.engine import Table, first_row, retry_once
from xcray.jobs.database.schema import KEYS
from xcray.jobs.job import format_utc, new_id


@dataclass
class Key:
    """An API key without its secret.

    `limits` can hold max_running, max_queued, requests_per_minute, instances_per_minute,
    upload_bytes.
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

    def is_valid(self, now: float) -> bool:
        """Return whether the key can be used at Unix second `now`."""
        return self.revoked is None and (self.expires is None or now < self.expires)


class KeyTable(Table):
    """Records of API keys."""

    @retry_once
    def add(
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
        """Record a key. Raises Conflict if the id or the digest exists already.

        digest: SHA-256 of the secret, in hexadecimal. key_id: a server-made `new_id("key")`, if the
        key had to be named before.
        """
        values: dict[str, Any] = {
            "id": key_id or new_id("key"),
            "tenant": tenant,
            "name": name,
            "scopes": list(scopes),
        }
        values |= {
            "digest": digest,
            "created": format_utc(self._now()),
            "expires": expires,
            "limits": limits or {},
        }
        try:
            with self._database.write() as connection:
                connection.execute(sa.insert(KEYS).values(**values))
                return _to_key(
                    connection.execute(sa.select(KEYS).where(KEYS.c.id == values["id"]))
                    .mappings()
                    .one()
                )
        except IntegrityError:
            raise Conflict(
                "this key exists already: create another one", code="KEY_TAKEN"
            ) from None

    @retry_once
    def find(self, digest: str) -> Key | None:
        """Return the key with a digest, even if revoked or expired, or None."""
        with self._database.read() as connection:
            row = first_row(connection, sa.select(KEYS).where(KEYS.c.digest == digest))
        return None if row is None else _to_key(row)

    @retry_once
    def list_all(self, tenant: str | None = None) -> list[Key]:
        """Return all keys in order of creation; of one tenant if given."""
        query = sa.select(KEYS).order_by(KEYS.c.seq)
        if tenant is not None:
            query = query.where(KEYS.c.tenant == tenant)
        with self._database.read() as connection:
            return [_to_key(row) for row in connection.execute(query).mappings()]

    @retry_once
    def has_any(self) -> bool:
        """Return whether any key was ever created."""
        with self._database.read() as connection:
            return connection.execute(sa.select(KEYS.c.seq).limit(1)).first() is not None

    @retry_once
    def revoke(self, key_id: str) -> Key:
        """Revoke a key. Idempotent. Raises NotFound if it is missing."""
        with self._database.write() as connection:
            connection.execute(
                sa.update(KEYS)
                .where(KEYS.c.id == key_id, KEYS.c.revoked.is_(None))
                .values(revoked=format_utc(self._now()))
            )
            row = first_row(connection, sa.select(KEYS).where(KEYS.c.id == key_id))
        if row is None:
            raise NotFound(f"there is no key {key_id[:80]!r}: GET /v1/keys lists them")
        return _to_key(row)

    @retry_once
    def retire(self, key_ids: Sequence[str], at: float) -> list[Key]:
        """Make keys expire at Unix second `at`; return those changed.

        Keys that expire sooner, or are revoked, stay as they are.
        """
        sooner = KEYS.c.expires.is_(None) | (KEYS.c.expires > at)
        with self._database.write() as connection:
            conditions = [KEYS.c.id.in_(key_ids), KEYS.c.revoked.is_(None), sooner]
            changed = list(connection.execute(sa.select(KEYS.c.id).where(*conditions)).scalars())
            connection.execute(sa.update(KEYS).where(KEYS.c.id.in_(changed)).values(expires=at))
            rows = connection.execute(
                sa.select(KEYS).where(KEYS.c.id.in_(changed)).order_by(KEYS.c.seq)
            ).mappings()
            return [_to_key(row) for row in rows]

    @retry_once
    def touch(self, key_id: str) -> None:
        """Record that a key was used now. It writes: call it occasionally, not per request."""
        with self._database.write() as connection:
            connection.execute(
                sa.update(KEYS).where(KEYS.c.id == key_id).values(last_used=format_utc(self._now()))
            )


def _to_key(row: sa.RowMapping) -> Key:
    """Return a row as a key."""
    values = {name: row[name] for name in Key.__dataclass_fields__}
    return Key(**{**values, "scopes": tuple(values["scopes"])})
