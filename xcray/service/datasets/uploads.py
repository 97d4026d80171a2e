"""Bodies streamed to disk: counted and hashed as they come, in sight only when they are whole and synced.

HOME/uploads/upl_.../body, owner.json     arrived whole: whose it is, its size and SHA-256, the key of its request
HOME/uploads/.upl_....part/body           on its way, or left by a crash

Another tenant's uploads do not exist for a caller. What a tenant has here, and has on its way, is bounded together.
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

from xcray.errors import Conflict, Corrupt, InputError, NotFound, Refused, Unavailable
from xcray.jobs.home import check_id
from xcray.jobs.job import new_id
from xcray.service.http import body
from xcray.service.http.auth import ANYBODY, Caller
from xcray.service.observability.request_log import LOGGER
from xcray.service.settings import Settings
from xcray.storage.atomic import publish_directory, read_json, write_json

BLOCK = 1 << 20  # bytes gathered before they are written
SHA256 = re.compile(r"[0-9a-f]{64}")
KEPT_SECONDS = 86_400  # whole uploads that no data set took


class Upload(NamedTuple):
    """A body that arrived whole."""

    id: str
    path: Path
    n_bytes: int
    sha256: str


class UploadDesk:
    """Receives bodies into one folder, a few at a time."""

    def __init__(self, root: Path, settings: Settings) -> None:
        self._root = root
        self._settings = settings
        self._here = 0
        self._coming: dict[str, int] = {}  # bytes on their way, by tenant
        self._lock = threading.Lock()
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def receive(
        self, request: Request, expected_sha256: str | None = None, key: str | None = None
    ) -> Upload:
        """Stream a request's body to disk, for its caller.

        key: sending the same bytes again with it gives the upload that they made, as long as nobody took it.
        Raises InputError: BODY_TOO_LARGE, SLOW_BODY, EMPTY_BODY, UPLOAD_TRUNCATED (it is not what the sender declared);
        Refused DISK_FULL or UPLOAD_QUOTA; Conflict for a key of other bytes; Unavailable BUSY. Nothing is left behind then.
        """
        declared = body.declared_length(request)
        arrival = await asyncio.to_thread(
            self._begin, request.scope.get("caller") or ANYBODY, declared, expected_sha256
        )
        gathered = bytearray()
        try:
            async for chunk in body.chunks(request, self._settings.body_seconds):
                gathered += chunk
                arrival.check(len(gathered))
                if len(gathered) >= BLOCK:
                    await asyncio.to_thread(arrival.append, bytes(gathered))
                    gathered.clear()
            await asyncio.to_thread(arrival.append, bytes(gathered))
            return await asyncio.to_thread(arrival.finish, expected_sha256, key)
        finally:
            await asyncio.to_thread(arrival.close)

    def take(
        self, caller: Caller, blocks: Iterable[bytes], expected_sha256: str | None = None
    ) -> Upload:
        """As `receive`, of blocks that come from elsewhere; in a thread."""
        arrival = self._begin(caller, 0, expected_sha256)
        try:
            for block in blocks:
                arrival.check(len(block))
                arrival.append(block)
            return arrival.finish(expected_sha256, None)
        finally:
            arrival.close()

    def path(self, upload_id: str, tenant: str = "default") -> Path:
        """The file of a whole upload of a tenant. Raises NotFound, ParameterError."""
        path = self._root / check_id(upload_id) / "body"
        if not path.is_file() or _owner(path.parent).get("tenant") != tenant:
            raise NotFound(f"there is no upload {upload_id}: each can be used once, within a day")
        return path

    def remove(self, upload_id: str) -> None:
        """Forget an upload."""
        shutil.rmtree(self._root / check_id(upload_id), ignore_errors=True)

    def sweep(self, now: float | None = None, *, alone: bool = True) -> int:
        """Remove what crashes and forgetful clients left; how many.

        alone: nothing is on its way, as at the start of the only process. Else what is not whole goes when nothing more came for
        ten times the longest pause within a body.
        """
        now = time.time() if now is None else now
        silence = -float("inf") if alone else 10 * self._settings.body_seconds
        gone = [
            path
            for path in self._root.iterdir()
            if now - _touched(path) > (silence if path.name[0] == "." else KEPT_SECONDS)
        ]
        for path in gone:
            shutil.rmtree(path, ignore_errors=True)
        return len(gone)

    def stored(self, tenant: str) -> int:
        """Bytes that a tenant has here: whole uploads, and what is on its way to this process."""
        with self._lock:
            coming = self._coming.get(tenant, 0)
        return coming + sum(
            int(owner.get("bytes", 0)) for owner in self._owners() if owner.get("tenant") == tenant
        )

    def _owners(self) -> list[dict[str, Any]]:
        """What is written down of each whole upload, with its id."""
        return [
            {**_owner(path), "id": path.name}
            for path in self._root.iterdir()
            if path.name[0] != "."
        ]

    def _begin(self, caller: Caller, declared: int, expected_sha256: str | None) -> _Arrival:
        """An upload that begins, when it may."""
        if expected_sha256 is not None and not SHA256.fullmatch(expected_sha256):
            raise InputError("sha256 must be 64 lower-case hexadecimal digits", code="SHA256")
        if declared > self._settings.upload_bytes:
            raise body.too_large(self._settings.upload_bytes)
        self._check_disk(declared)
        with self._lock:
            if self._here >= self._settings.uploads_at_once:
                raise Unavailable(
                    f"{self._here} uploads are being received: try again later", code="BUSY"
                )
            self._here += 1
        own = caller.limits.upload_bytes
        arrival = _Arrival(self, caller, self._settings.tenant_upload_bytes if own is None else own)
        try:
            arrival.reserve(declared)
            arrival.open()
        except BaseException:
            arrival.close()
            raise
        return arrival

    def _check_disk(self, more: int) -> None:
        """Refuse what would eat the reserve that running jobs and the store need."""
        disk = shutil.disk_usage(self._root)
        reserve = (
            max(self._settings.disk_reserve_bytes, disk.total // 20)
            if self._settings.disk_reserve_bytes
            else 0
        )
        if disk.free - more < reserve:
            raise Refused(
                f"the disk has {disk.free:,} bytes free and {reserve:,} must stay free: delete data sets or jobs",
                code="DISK_FULL",
            )


class _Arrival:
    """One body on its way. `check` is cheap and for the event loop; the other methods are for threads, one at a time."""

    def __init__(self, desk: UploadDesk, caller: Caller, quota: int) -> None:
        self._desk = desk
        self._caller = caller
        self._quota = quota
        self._id = new_id("upl")
        self._part = desk._root / f".{self._id}.part"
        self._digest = hashlib.sha256()
        self._size = 0
        self._reserved = 0
        self._out: Any = None

    def open(self) -> None:
        """Make its folder and file."""
        self._part.mkdir(mode=0o700)
        self._out = open(self._part / "body", "xb")  # noqa: SIM115  # closed in `close`

    def check(self, more: int) -> None:
        """Raise BODY_TOO_LARGE when `more` bytes are too many."""
        if self._size + more > self._desk._settings.upload_bytes:
            raise body.too_large(self._desk._settings.upload_bytes)

    def reserve(self, size: int) -> None:
        """See to it that so many bytes of this tenant's quota are kept for it. Raises Refused UPLOAD_QUOTA."""
        more = size - self._reserved
        if more <= 0:
            return
        stored = self._desk.stored(self._caller.tenant)
        if stored + more > self._quota:
            raise Refused(
                f"uploads of this tenant would take {stored + more:,} bytes, {self._quota:,} are allowed: make data sets of those "
                "that wait, or let them go (after a day)",
                code="UPLOAD_QUOTA",
                limit=self._quota,
            )
        with self._desk._lock:
            self._desk._coming[self._caller.tenant] = (
                self._desk._coming.get(self._caller.tenant, 0) + more
            )
        self._reserved = size

    def append(self, block: bytes) -> None:
        """Write one block."""
        self._digest.update(block)
        self._size += len(block)
        self.reserve(self._size)
        self._desk._check_disk(len(block))
        try:
            self._out.write(block)
        except OSError as error:
            LOGGER.error("an upload can't be written", extra={"detail": str(error)})
            raise Refused(
                "the disk took no more of the upload: delete data sets or jobs", code="DISK_FULL"
            ) from error

    def finish(self, expected: str | None, key: str | None) -> Upload:
        """Put it in sight, whole and synced."""
        sha256 = self._digest.hexdigest()
        _compare(self._size, sha256, expected)
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
        with self._desk._lock:
            known = None if key is None else self._same(key, sha256)
            if known is not None:
                return Upload(known, self._desk._root / known / "body", self._size, sha256)
            publish_directory(self._part, self._desk._root / self._id)
        return Upload(self._id, self._desk._root / self._id / "body", self._size, sha256)

    def close(self) -> None:
        """Give back what was reserved, and remove what is not in sight."""
        if self._out is not None:
            with suppress(OSError):  # what could not be written can't be flushed
                self._out.close()
        with self._desk._lock:
            self._desk._here -= 1
            left = self._desk._coming.get(self._caller.tenant, 0) - self._reserved
            if left > 0:
                self._desk._coming[self._caller.tenant] = left
            else:
                self._desk._coming.pop(self._caller.tenant, None)
        shutil.rmtree(self._part, ignore_errors=True)

    def _same(self, key: str, sha256: str) -> str | None:
        """The upload that the same request made before. Raises Conflict when it had other bytes."""
        for owner in self._desk._owners():
            if owner.get("tenant") == self._caller.tenant and owner.get("key") == key:
                if owner["sha256"] != sha256:
                    raise Conflict(
                        "the idempotency key was used before, for other bytes: use a new key",
                        code="IDEMPOTENCY_MISMATCH",
                    )
                return str(owner["id"])
        return None


def _owner(folder: Path) -> dict[str, Any]:
    """What is written down of an upload; nothing, when it was just taken, or its file is spoilt."""
    try:
        return dict(read_json(folder / "owner.json"))
    except (NotFound, Corrupt):
        return {}


def _touched(path: Path) -> float:
    """When an upload's folder last got something, Unix seconds; now, when it is gone."""
    times = []
    for each in (path, path / "body"):
        with suppress(FileNotFoundError):
            times.append(each.stat().st_mtime)
    return max(times, default=time.time())


def _compare(n_bytes: int, digest: str, expected: str | None) -> None:
    """Raise unless something came, and is what was declared."""
    if n_bytes == 0:
        raise InputError("the body is empty where a data file was expected", code="EMPTY_BODY")
    if expected is not None and digest != expected:
        raise InputError(
            f"{n_bytes:,} bytes came with SHA-256 {digest}, declared was {expected}: send the file again",
            code="UPLOAD_TRUNCATED",
        )
