"""Folders of object storage, and of file systems, by URI: s3://bucket/folder, gs://bucket/folder, file:///folder.

Arrow's file systems speak the protocols. Credentials come from where the cloud's own tools find them (environment, files, the
role of the machine or pod), never from a URI; what is shown of a URI has no query. An error says which it is: no such bucket,
not allowed, not reachable.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from pyarrow import fs

from xcray.errors import (
    Conflict,
    Corrupt,
    NotFound,
    ParameterError,
    Refused,
    Unavailable,
    XcrayError,
    excerpt,
)
from xcray.storage.atomic import write_bytes

NO_BUCKET: Final = "NO_BUCKET"
SCHEMES: Final = ("s3", "gs", "file")
OPTIONS: Final = ("region", "endpoint_override", "scheme")  # of the query of an s3 or gs URI
BUCKET: Final = re.compile(r"[a-z0-9A-Z][a-zA-Z0-9._-]{1,221}")
TRIES: Final = 4
PAUSE: Final = 0.25  # seconds before the second try; each further one waits twice as long
CONNECT_SECONDS: Final = 10.0
REQUEST_SECONDS: Final = 20.0  # without a byte; the storage's own client tries three times
AGAIN: Final = (
    "NETWORK_CONNECTION",
    "SLOW_DOWN",
    "INTERNAL_FAILURE",
    "SERVICE_UNAVAILABLE",
    "REQUEST_TIMEOUT",
    "THROTTLING",
    "UNAVAILABLE",
)
DENIED: Final = re.compile(
    r"ACCESS_DENIED|FORBIDDEN|INVALID_ACCESS_KEY|INVALID_CLIENT_TOKEN|SIGNATURE|UNRECOGNIZED_CLIENT|EXPIRED|CREDENTIAL|PERMISSION_DENIED|UNAUTHENTICATED"
)
WORDS: Final = re.compile(r"AWS Error ([A-Z_]+)(?: \(HTTP status (\d+)\))? during (\w+)")
GOOGLE: Final = re.compile(
    r"\b(UNAUTHENTICATED|PERMISSION_DENIED|NOT_FOUND|UNAVAILABLE|DEADLINE_EXCEEDED)\b"
)

T = TypeVar("T")


class Entry(NamedTuple):
    """What lies in a folder: a name, and the bytes of an object; None for a folder."""

    name: str
    size: int | None


class Place(NamedTuple):
    """A folder or an object. files: its file system; path: in Arrow's spelling; shown: the URI for people, without any secret."""

    files: fs.FileSystem
    path: str
    shown: str

    @classmethod
    def at(cls, uri: str) -> Self:
        """The place a URI names. Raises ParameterError with the mend."""
        parts = urlsplit(uri)
        if parts.scheme not in SCHEMES:
            raise ParameterError(
                f"{excerpt(parts.scheme)!r} is no storage that is known: write s3://..., gs://... or file:///...",
                code="URI",
            )
        if "@" in parts.netloc:
            raise ParameterError(
                "a URI must not hold credentials, it ends up in logs: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the "
                "machine or pod a role",
                code="URI",
            )
        folder = "/".join(part for part in unquote(parts.path).split("/") if part)
        if (
            any(part in (".", "..") for part in folder.split("/"))
            or "\0" in folder
            or parts.fragment
        ):
            raise ParameterError(
                f"{excerpt(folder)!r} is no folder: write it without . and ..", code="URI"
            )
        if parts.scheme == "file":
            if parts.netloc not in ("", "localhost") or parts.query or not folder:
                raise ParameterError(
                    "a folder of this machine is written file:///path/of/folder", code="URI"
                )
            return cls(fs.LocalFileSystem(), f"/{folder}", f"file:///{folder}")
        if not BUCKET.fullmatch(parts.netloc):
            raise ParameterError(
                f"{excerpt(parts.netloc)!r} is no bucket: write {parts.scheme}://bucket/folder",
                code="URI",
            )
        path = f"{parts.netloc}/{folder}".rstrip("/")
        return cls(
            _storage(parts.scheme, parts.netloc, _options(parts.query)),
            path,
            f"{parts.scheme}://{path}",
        )

    def __truediv__(self, name: str) -> Place:
        """What is called so below this folder."""
        return Place(self.files, f"{self.path}/{name}", f"{self.shown}/{name}")

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rsplit("/", 1)[-1]

    @property
    def parent(self) -> Place:
        """The folder around it."""
        return Place(self.files, self.path.rsplit("/", 1)[0], self.shown.rsplit("/", 1)[0])

    @property
    def is_local(self) -> bool:
        """Whether it lies in a file system of this machine, where what was written has to be synced."""
        return str(self.files.type_name) == "local"

    def entries(self) -> list[Entry]:
        """What lies directly in this folder, by name; nothing where there is none. Raises NotFound (bucket), Unavailable."""
        selector = fs.FileSelector(self.path, recursive=False)
        try:
            found = patiently(self, lambda: self.files.get_file_info(selector))
        except NotFound as error:
            if error.code == NO_BUCKET:
                raise
            return []
        kinds = {fs.FileType.File, fs.FileType.Directory}
        listed = [
            Entry(info.base_name, int(info.size) if info.is_file else None)
            for info in found
            if info.type in kinds
        ]
        return sorted(listed)

    def size(self) -> int | None:
        """Bytes of this object, None where there is none. Raises Unavailable."""
        info = patiently(self, lambda: self.files.get_file_info(self.path))
        return int(info.size) if info.is_file else None

    def read(self, most: int) -> bytes:
        """The whole object. Raises NotFound, and Refused, before any memory is taken, when it has more than `most` bytes."""
        size = self.size()
        if size is None:
            raise NotFound(f"there is no {self.shown}")
        if size > most:
            raise Refused(
                f"{self.shown} has {size:,} bytes; at most {most:,} are read", code="TOO_LARGE"
            )

        def whole() -> bytes:
            with self.files.open_input_file(self.path) as opened:
                return bytes(opened.read(size + 1))

        content = patiently(self, whole)
        if len(content) != size:
            raise Corrupt(f"{self.shown} changed while it was read: try again")
        return content

    def write(self, content: bytes) -> None:
        """Write a small object, whole or not at all. Raises NotFound (bucket), Unavailable."""

        def put() -> None:
            with self.files.open_output_stream(self.path) as out:
                out.write(content)

        if self.is_local:
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(Path(self.path), content)
        else:
            patiently(self, put)


def patiently(place: Place, call: Callable[[], T]) -> T:
    """What a question to a storage gives; asked again, ever slower, while the trouble may pass. Raises what `told` says."""
    for turn in range(TRIES):
        try:
            with told(place):
                return call()
        except Unavailable as error:
            if error.code != "STORAGE_AWAY" or turn == TRIES - 1:
                raise
            time.sleep(PAUSE * 2**turn)
    raise AssertionError("unreachable")


@contextmanager
def told(place: Place) -> Iterator[None]:
    """Errors of a storage in our words: NotFound (no such bucket or object), Unavailable with code STORAGE_DENIED or STORAGE_AWAY.

    Of what the storage said only its own code is repeated: its sentences may hold what belongs into no log.
    """
    try:
        yield
    except XcrayError:
        raise
    except FileNotFoundError:
        raise NotFound(f"there is no {place.shown}") from None
    except OSError as error:
        raise _problem(place, error) from None


def _problem(place: Place, error: OSError) -> Exception:
    """What an error of a file system means."""
    if place.is_local:
        return error
    found = WORDS.search(str(error))
    code = found.group(1) if found else next(iter(GOOGLE.findall(str(error))), "")
    bucket = place.path.split("/")[0]
    if code == "NO_SUCH_BUCKET":
        return NotFound(
            f"there is no bucket {bucket!r}: make it first, or mend the URI {place.shown}",
            code=NO_BUCKET,
        )
    if code in ("NO_SUCH_KEY", "RESOURCE_NOT_FOUND", "NOT_FOUND"):
        return NotFound(f"there is no {place.shown}")
    if DENIED.search(code) or (found and found.group(2) in ("401", "403")):
        return Unavailable(
            f"{place.shown} is not open to us ({code}): set credentials in the environment, or a role, "
            f"that may use bucket {bucket!r}",
            code="STORAGE_DENIED",
        )
    if code == "PRECONDITION_FAILED":
        return Conflict(f"{place.shown} was changed by another")
    step = f" during {found.group(3)}" if found else ""
    return Unavailable(
        f"{place.shown} did not answer ({code or type(error).__name__}{step}): is the storage up?",
        code="STORAGE_AWAY",
    )


def _options(query: str) -> dict[str, str]:
    """The options of a URI. Raises ParameterError for any other: keys do not belong there."""
    given = dict(parse_qsl(query, keep_blank_values=True))
    wrong = sorted(set(given) - set(OPTIONS))
    if wrong:
        raise ParameterError(
            f"a URI has no option {excerpt(wrong[0])!r}; it may have {', '.join(OPTIONS)}",
            code="URI",
        )
    return given


def _storage(scheme: str, bucket: str, options: Mapping[str, str]) -> fs.FileSystem:
    """The file system of a bucket."""
    given: dict[str, Any] = dict(options)
    try:
        if scheme == "gs":
            given.pop("region", None)
            return fs.GcsFileSystem(retry_time_limit=timedelta(seconds=REQUEST_SECONDS), **given)
        endpoint = (
            given.get("endpoint_override")
            or os.environ.get("AWS_ENDPOINT_URL_S3")
            or os.environ.get("AWS_ENDPOINT_URL")
        )
        if endpoint:
            before, separator, host = endpoint.rpartition("://")
            given |= {
                "endpoint_override": host.rstrip("/"),
                **({"scheme": before} if separator else {}),
            }
        elif "region" not in given and not (
            os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        ):
            given["region"] = _region(bucket)
        region = (
            given.pop("region", None)
            or os.environ.get("AWS_REGION")
            or os.environ.get("AWS_DEFAULT_REGION")
            or "us-east-1"
        )
        return fs.S3FileSystem(
            region=region, connect_timeout=CONNECT_SECONDS, request_timeout=REQUEST_SECONDS, **given
        )
    except (ValueError, TypeError) as error:
        raise ParameterError(
            f"the options of the URI were refused: {excerpt(str(error))}", code="URI"
        ) from None


def _region(bucket: str) -> str:
    """Where Amazon keeps a bucket; the first region where it does not say: then the first request tells what is wrong."""
    try:
        return str(fs.resolve_s3_region(bucket))
    except OSError:
        return "us-east-1"
