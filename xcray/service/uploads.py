"""Bodies streamed to disk: counted and hashed as they come, in sight only when they are whole and synced.

HOME/uploads/upl_.../body      arrived whole        HOME/uploads/.upl_....part/body    on its way, or left by a crash
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from fastapi import Request

from xcray.errors import InputError, NotFound, Refused, Unavailable
from xcray.files import publish_directory
from xcray.jobs.home import check_id
from xcray.jobs.job import new_id
from xcray.service import body
from xcray.service.logs import LOGGER
from xcray.service.settings import Settings

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
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def receive(self, request: Request, expected_sha256: str | None = None) -> Upload:
        """Stream a request's body to disk.

        Raises InputError: BODY_TOO_LARGE, SLOW_BODY, EMPTY_BODY, UPLOAD_TRUNCATED (it is not what the sender declared);
        Refused DISK_FULL; Unavailable BUSY. Nothing is left behind then.
        """
        self._check(request, expected_sha256)
        upload_id = new_id("upl")
        part = self._root / f".{upload_id}.part"
        part.mkdir(mode=0o700)
        self._here += 1
        try:
            n_bytes, digest = await self._write(request, part / "body")
            _compare(n_bytes, digest, expected_sha256)
            await asyncio.to_thread(publish_directory, part, self._root / upload_id)
        finally:
            self._here -= 1
            await asyncio.to_thread(shutil.rmtree, part, ignore_errors=True)
        return Upload(upload_id, self._root / upload_id / "body", n_bytes, digest)

    def path(self, upload_id: str) -> Path:
        """The file of a whole upload. Raises NotFound, ParameterError."""
        path = self._root / check_id(upload_id) / "body"
        if not path.is_file():
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
        gone = [path for path in self._root.iterdir() if now - _touched(path) > (silence if path.name[0] == "." else KEPT_SECONDS)]
        for path in gone:
            shutil.rmtree(path, ignore_errors=True)
        return len(gone)

    def _check(self, request: Request, expected_sha256: str | None) -> None:
        """What can be refused before a byte is read."""
        if expected_sha256 is not None and not SHA256.fullmatch(expected_sha256):
            raise InputError("sha256 must be 64 lower-case hexadecimal digits", code="SHA256")
        if self._here >= self._settings.uploads_at_once:
            raise Unavailable(f"{self._here} uploads are being received: try again later", code="BUSY")
        declared = body.declared_length(request)
        if declared > self._settings.upload_bytes:
            raise body.too_large(self._settings.upload_bytes)
        self._check_disk(declared)

    def _check_disk(self, more: int) -> None:
        """Refuse what would eat the reserve that running jobs and the store need."""
        disk = shutil.disk_usage(self._root)
        reserve = max(self._settings.disk_reserve_bytes, disk.total // 20) if self._settings.disk_reserve_bytes else 0
        if disk.free - more < reserve:
            raise Refused(
                f"the disk has {disk.free:,} bytes free and {reserve:,} must stay free: delete data sets or jobs", code="DISK_FULL"
            )

    async def _write(self, request: Request, path: Path) -> tuple[int, str]:
        """Body -> file; its size and SHA-256."""
        digest, size, gathered = hashlib.sha256(), 0, bytearray()
        with open(path, "xb") as out:
            async for chunk in body.chunks(request, self._settings.body_seconds):
                size += len(chunk)
                if size > self._settings.upload_bytes:
                    raise body.too_large(self._settings.upload_bytes)
                gathered += chunk
                if len(gathered) >= BLOCK:
                    await asyncio.to_thread(self._append, out, digest, bytes(gathered))
                    gathered.clear()
            await asyncio.to_thread(self._append, out, digest, bytes(gathered))
            await asyncio.to_thread(_sync, out)
        return size, digest.hexdigest()

    def _append(self, out: IO[bytes], digest: hashlib._Hash, block: bytes) -> None:
        """Write one block, off the event loop."""
        digest.update(block)
        self._check_disk(len(block))
        try:
            out.write(block)
        except OSError as error:
            LOGGER.error("an upload can't be written", extra={"detail": str(error)})
            raise Refused("the disk took no more of the upload: delete data sets or jobs", code="DISK_FULL") from error


def _touched(path: Path) -> float:
    """When an upload's folder last got something, Unix seconds; now, when it is gone."""
    times = []
    for each in (path, path / "body"):
        with suppress(FileNotFoundError):
            times.append(each.stat().st_mtime)
    return max(times, default=time.time())


def _sync(out: IO[bytes]) -> None:
    """Make the file durable."""
    out.flush()
    os.fsync(out.fileno())


def _compare(n_bytes: int, digest: str, expected: str | None) -> None:
    """Raise unless something came, and is what was declared."""
    if n_bytes == 0:
        raise InputError("the body is empty where a data file was expected", code="EMPTY_BODY")
    if expected is not None and digest != expected:
        raise InputError(
            f"{n_bytes:,} bytes came with SHA-256 {digest}, declared was {expected}: send the file again", code="UPLOAD_TRUNCATED"
        )
