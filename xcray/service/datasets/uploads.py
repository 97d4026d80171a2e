"""Uploads: request bodies streamed to disk.

Bodies are counted and hashed as they arrive, and become visible only when they are complete and
synced.

HOME/uploads/upl_.../body, owner.json     complete: tenant, size, SHA-256, idempotency key
HOME/uploads/.upl_....part/body           incomplete, or left by a crash

Uploads of other tenants are invisible to a caller. The complete and incomplete uploads of a tenant
share one quota.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fastapi import Request

from xcray.data.readers.blocks import compressed_suffix
from xcray.errors import Conflict, Corrupt, InputError, NotFound, Refused, Unavailable
from xcray.jobs.home import check_id
from xcray.jobs.job import new_id
from xcray.service import constants
from xcray.service.http import body
from xcray.service.http.auth import ANONYMOUS, Caller
from xcray.service.settings import Settings
from xcray.storage.atomic import link_file, publish_directory, read_json, write_json

BLOCK_BYTES = 1 << 20  # bytes buffered before they are written
SHA256_PATTERN = re.compile(r"[0-9a-f]{64}")
RETENTION_SECONDS = 86_400  # age at which unused complete uploads are removed


class Upload(NamedTuple):
    """A complete upload."""

    id: str
    path: Path
    n_bytes: int
    sha256: str


class UploadStore:
    """Receives bodies into one folder, a few at a time."""

    def __init__(self, root: Path, settings: Settings) -> None:
        self._root = root
        self._settings = settings
        self._n_active = 0
        self._incoming_bytes: dict[str, int] = {}  # reserved bytes of incomplete uploads, by tenant
        self._lock = threading.Lock()
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def receive(
        self, request: Request, expected_sha256: str | None = None, key: str | None = None
    ) -> Upload:
        """Stream a request's body to disk, for its caller.

        key: idempotency key; sending the same bytes again returns the upload of the first request,
        while it is unused. Raises InputError BODY_TOO_LARGE, SLOW_BODY, EMPTY_BODY or
        UPLOAD_TRUNCATED (differs from the declared hash), Refused DISK_FULL or UPLOAD_QUOTA,
        Conflict for a key of other bytes, and Unavailable BUSY. On error, nothing is left behind.
        """
        declared = body.declared_length(request)
        upload = await asyncio.to_thread(
            self._open_incoming, request.scope.get("caller") or ANONYMOUS, declared, expected_sha256
        )
        buffer = bytearray()
        try:
            async for chunk in body.body_chunks(request, constants.BODY_IDLE_SECONDS):
                buffer += chunk
                upload.check(len(buffer))
                if len(buffer) >= BLOCK_BYTES:
                    await asyncio.to_thread(upload.append, bytes(buffer))
                    buffer.clear()
            await asyncio.to_thread(upload.append, bytes(buffer))
            return await asyncio.to_thread(upload.finish, expected_sha256, key)
        finally:
            await asyncio.to_thread(upload.close)

    def receive_blocks(
        self, caller: Caller, blocks: Iterable[bytes], expected_sha256: str | None = None
    ) -> Upload:
        """Store blocks that do not come from a request, with the same checks.

        Blocking; runs in a thread.
        """
        upload = self._open_incoming(caller, 0, expected_sha256)
        try:
            for block in blocks:
                upload.check(len(block))
                upload.append(block)
            return upload.finish(expected_sha256, None)
        finally:
            upload.close()

    def path(self, upload_id: str, tenant: str = "default") -> Path:
        """Return the file of a complete upload of a tenant. Raises NotFound or ParameterError."""
        path = self._root / check_id(upload_id) / "body"
        if not path.is_file() or _read_owner(path.parent).get("tenant") != tenant:
            raise NotFound(
                f"there is no upload {upload_id}: an upload can be used once, within a day"
            )
        return path

    def remove(self, upload_id: str) -> None:
        """Remove an upload."""
        shutil.rmtree(self._root / check_id(upload_id), ignore_errors=True)

    def sweep(self, now: float | None = None, *, exclusive: bool = True) -> int:
        """Remove abandoned uploads and return their number.

        exclusive: no upload is being received, as at the start of the only process. Otherwise an
        incomplete upload is removed when it has received nothing for ten times the longest allowed
        pause within a body.
        """
        now = time.time() if now is None else now
        max_age = -float("inf") if exclusive else 10 * constants.BODY_IDLE_SECONDS
        abandoned = [
            path
            for path in self._root.iterdir()
            if now - _last_modified(path) > (max_age if path.name[0] == "." else RETENTION_SECONDS)
        ]
        for path in abandoned:
            shutil.rmtree(path, ignore_errors=True)
        return len(abandoned)

    def used_bytes(self, tenant: str) -> int:
        """Return the bytes of a tenant's complete uploads and of those being received here."""
        with self._lock:
            incoming = self._incoming_bytes.get(tenant, 0)
        return incoming + sum(
            int(owner.get("bytes", 0))
            for owner in self._read_owners()
            if owner.get("tenant") == tenant
        )

    def _read_owners(self) -> list[dict[str, Any]]:
        """Return the owner record of each complete upload, with its id."""
        return [
            {**_read_owner(path), "id": path.name}
            for path in self._root.iterdir()
            if path.name[0] != "."
        ]

    def _open_incoming(
        self, caller: Caller, declared: int, expected_sha256: str | None
    ) -> _IncomingUpload:
        """Check limits and open a new incoming upload."""
        if expected_sha256 is not None and not SHA256_PATTERN.fullmatch(expected_sha256):
            raise InputError("sha256 must be 64 lower-case hexadecimal digits", code="SHA256")
        if declared > self._settings.upload_bytes:
            raise body.body_too_large(self._settings.upload_bytes)
        self._check_disk(declared)
        with self._lock:
            if self._n_active >= constants.MAX_CONCURRENT_UPLOADS:
                raise Unavailable(
                    f"{self._n_active} uploads are being received: try again later", code="BUSY"
                )
            self._n_active += 1
        quota = caller.limits.upload_bytes
        if quota is None:
            quota = constants.UPLOADS_PER_TENANT * self._settings.upload_bytes
        upload = _IncomingUpload(self, caller, quota)
        try:
            upload.reserve(declared)
            upload.open()
        except BaseException:
            upload.close()
            raise
        return upload

    def _check_disk(self, more: int) -> None:
        """Raise Refused DISK_FULL if the reserve for running jobs and the store would be used."""
        disk = shutil.disk_usage(self._root)
        reserve = constants.disk_reserve(disk.total)
        if disk.free - more < reserve:
            raise Refused(
                f"the disk has {disk.free:,} bytes free, {reserve:,} must stay free: delete data "
                "sets or jobs",
                code="DISK_FULL",
            )


class _IncomingUpload:
    """One body that is being received.

    `check` is cheap and runs on the event loop. The other methods run in threads, one at a time.
    """

    def __init__(self, store: UploadStore, caller: Caller, quota: int) -> None:
        self._store = store
        self._caller = caller
        self._quota = quota
        self._id = new_id("upl")
        self._part = store._root / f".{self._id}.part"
        self._digest = hashlib.sha256()
        self._size = 0
        self._reserved = 0
        self._out: Any = None

    def open(self) -> None:
        """Create its folder and file."""
        self._part.mkdir(mode=0o700)
        self._out = open(self._part / "body", "xb")  # noqa: SIM115 - closed in `close`

    def check(self, more: int) -> None:
        """Raise InputError BODY_TOO_LARGE if `more` bytes exceed the limit."""
        if self._size + more > self._store._settings.upload_bytes:
            raise body.body_too_large(self._store._settings.upload_bytes)

    def reserve(self, size: int) -> None:
        """Reserve `size` bytes of the tenant's quota in total. Raises Refused UPLOAD_QUOTA."""
        more = size - self._reserved
        if more <= 0:
            return
        stored = self._store.used_bytes(self._caller.tenant)
        if stored + more > self._quota:
            raise Refused(
                f"uploads of this tenant would take {stored + more:,} bytes; the quota is "
                f"{self._quota:,}: create data sets from the unused ones, or wait until they "
                "expire "
                "(after a day)",
                code="UPLOAD_QUOTA",
                limit=self._quota,
            )
        with self._store._lock:
            self._store._incoming_bytes[self._caller.tenant] = (
                self._store._incoming_bytes.get(self._caller.tenant, 0) + more
            )
        self._reserved = size

    def append(self, block: bytes) -> None:
        """Write one block."""
        self._digest.update(block)
        self._size += len(block)
        self.reserve(self._size)
        self._store._check_disk(len(block))
        self._out.write(block)

    def finish(self, expected: str | None, key: str | None) -> Upload:
        """Publish the upload, complete and synced."""
        sha256 = self._digest.hexdigest()
        _check_body(self._size, sha256, expected)
        self._out.flush()
        os.fsync(self._out.fileno())
        owner = {
            "tenant": self._caller.tenant,
            "key_id": self._caller.key_id,
            "bytes": self._size,
            "sha256": sha256,
            "key": key,
        }
        write_json(self._part / "owner.json", owner)
        with self._store._lock:
            existing = None if key is None else self._find_duplicate(key, sha256)
            if existing is not None:
                return Upload(existing, self._store._root / existing / "body", self._size, sha256)
            publish_directory(self._part, self._store._root / self._id)
        return Upload(self._id, self._store._root / self._id / "body", self._size, sha256)

    def close(self) -> None:
        """Release the reservation and remove an unpublished body."""
        if self._out is not None:
            with suppress(OSError):  # data that could not be written can't be flushed either
                self._out.close()
        with self._store._lock:
            self._store._n_active -= 1
            left = self._store._incoming_bytes.get(self._caller.tenant, 0) - self._reserved
            if left > 0:
                self._store._incoming_bytes[self._caller.tenant] = left
            else:
                self._store._incoming_bytes.pop(self._caller.tenant, None)
        shutil.rmtree(self._part, ignore_errors=True)

    def _find_duplicate(self, key: str, sha256: str) -> str | None:
        """Return the upload of an earlier request with this idempotency key, if any.

        Raises Conflict if it had other bytes.
        """
        for owner in self._store._read_owners():
            if owner.get("tenant") == self._caller.tenant and owner.get("key") == key:
                if owner["sha256"] != sha256:
                    raise Conflict(
                        "the idempotency key was used before, for other bytes: use a new key",
                        code="IDEMPOTENCY_MISMATCH",
                    )
                return str(owner["id"])
        return None


def link_upload(path: Path, folder: Path, part: str, format: str = "") -> str:
    """Link an upload into a folder and return its name there: the part, format and compression.

    Readers know the compression by the name. Raises NotFound if the upload is gone.
    """
    try:
        name = f"{part}.{format}".rstrip(".") + compressed_suffix(path)
        link_file(path, folder / name)
    except FileNotFoundError:
        raise NotFound(f"the upload for {part!r} was just used by another request") from None
    return name


def _read_owner(folder: Path) -> dict[str, Any]:
    """Return the owner record of an upload; empty if it was just used or is unreadable."""
    try:
        return dict(read_json(folder / "owner.json"))
    except (NotFound, Corrupt):
        return {}


def _last_modified(path: Path) -> float:
    """Return when an upload's folder last changed (Unix seconds), or now if it is gone."""
    times = []
    for entry in (path, path / "body"):
        with suppress(FileNotFoundError):
            times.append(entry.stat().st_mtime)
    return max(times, default=time.time())


def _check_body(n_bytes: int, digest: str, expected: str | None) -> None:
    """Raise InputError if the body is empty or differs from the declared hash."""
    if n_bytes == 0:
        raise InputError("the body is empty where a data file was expected", code="EMPTY_BODY")
    if expected is not None and digest != expected:
        raise InputError(
            f"received {n_bytes:,} bytes with SHA-256 {digest}, declared was {expected}: send "
            "again",
            code="UPLOAD_TRUNCATED",
        )
