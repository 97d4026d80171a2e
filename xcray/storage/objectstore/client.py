"""Client of object storage and file systems by URI.

URIs are s3://bucket/folder, gs://bucket/folder and file:///folder. Arrow's file systems implement
the protocols. Credentials come from the sources of the cloud's own tools (environment, files, the
role of the machine or pod), never from a URI. Displayed URIs have no query. Errors distinguish a
missing bucket, denied access, and an unreachable storage.
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
# query parameters of an s3 or gs URI
URI_OPTIONS: Final = ("region", "endpoint_override", "scheme")
BUCKET_NAME: Final = re.compile(r"[a-z0-9A-Z][a-zA-Z0-9._-]{1,221}")
MAX_ATTEMPTS: Final = 4
# delay before the second attempt; doubled for each further one
RETRY_SECONDS: Final = 0.25
CONNECT_SECONDS: Final = 10.0
REQUEST_SECONDS: Final = 20.0  # without a byte; the storage's client tries three times
DENIED_CODES: Final = re.compile(
    r"ACCESS_DENIED|FORBIDDEN|INVALID_ACCESS_KEY|INVALID_CLIENT_TOKEN|SIGNATURE|UNRECOGNIZED_CLIENT|EXPIRED|CREDENTIAL|PERMISSION_DENIED|UNAUTHENTICATED"
)
AWS_ERROR: Final = re.compile(r"AWS Error ([A-Z_]+)(?: \(HTTP status (\d+)\))? during (\w+)")
GOOGLE_ERROR: Final = re.compile(
    r"\b(UNAUTHENTICATED|PERMISSION_DENIED|NOT_FOUND|UNAVAILABLE|DEADLINE_EXCEEDED)\b"
)

T = TypeVar("T")


class StorageEntry(NamedTuple):
    """An entry of a folder: its name, and the size of an object; None for a folder."""

    name: str
    n_bytes: int | None


class StoragePath(NamedTuple):
    """A folder or an object.

    filesystem: its Arrow file system; path: in Arrow's notation; uri: for display, without
    secrets.
    """

    filesystem: fs.FileSystem
    path: str
    uri: str

    @classmethod
    def parse(cls, uri: str) -> Self:
        """Return the path of a URI. Raises ParameterError with a fix."""
        parts = urlsplit(uri)
        if parts.scheme not in SCHEMES:
            scheme = parts.scheme or ("" if "@" in uri else uri)  # never repeat credentials
            raise ParameterError(
                f"{excerpt(scheme)!r} is not a supported storage: "
                "write s3://..., gs://... or file:///...",
                code="URI",
            )
        if "@" in parts.netloc:
            raise ParameterError(
                "a URI must not hold credentials, it ends up in logs: "
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the "
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
                f"{excerpt(folder)!r} is not a valid folder: write it without . and ..", code="URI"
            )
        if parts.scheme == "file":
            if parts.netloc not in ("", "localhost") or parts.query or not folder:
                raise ParameterError(
                    "a local folder must be written as file:///path/of/folder", code="URI"
                )
            return cls(fs.LocalFileSystem(), f"/{folder}", f"file:///{folder}")
        if not BUCKET_NAME.fullmatch(parts.netloc):
            raise ParameterError(
                f"{excerpt(parts.netloc)!r} is not a valid bucket: write {parts.scheme}://bucket/folder",
                code="URI",
            )
        path = f"{parts.netloc}/{folder}".rstrip("/")
        return cls(
            _open_filesystem(parts.scheme, parts.netloc, _parse_options(parts.query)),
            path,
            f"{parts.scheme}://{path}",
        )

    def __truediv__(self, name: str) -> StoragePath:
        """Return the child with this name."""
        return StoragePath(self.filesystem, f"{self.path}/{name}", f"{self.uri}/{name}")

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rsplit("/", 1)[-1]

    @property
    def parent(self) -> StoragePath:
        """The folder that contains it."""
        return StoragePath(self.filesystem, self.path.rsplit("/", 1)[0], self.uri.rsplit("/", 1)[0])

    @property
    def is_local(self) -> bool:
        """Whether it is in a file system of this machine, where written files must be synced."""
        return str(self.filesystem.type_name) == "local"

    def list_entries(self) -> list[StorageEntry]:
        """Return the direct entries of this folder by name; empty if it does not exist.

        Raises NotFound (bucket), Unavailable.
        """
        selector = fs.FileSelector(self.path, recursive=False)
        try:
            infos = with_retries(self, lambda: self.filesystem.get_file_info(selector))
        except NotFound as error:
            if error.code == NO_BUCKET:
                raise
            return []
        kinds = {fs.FileType.File, fs.FileType.Directory}
        entries = [
            StorageEntry(info.base_name, int(info.size) if info.is_file else None)
            for info in infos
            if info.type in kinds
        ]
        return sorted(entries)

    def size(self) -> int | None:
        """Return the bytes of this object; None if it does not exist. Raises Unavailable."""
        info = with_retries(self, lambda: self.filesystem.get_file_info(self.path))
        return int(info.size) if info.is_file else None

    def read(self, max_bytes: int) -> bytes:
        """Return the content of the object.

        Raises NotFound, and Refused if it has more than `max_bytes` bytes, before memory is
        allocated.
        """
        size = self.size()
        if size is None:
            raise NotFound(f"there is no {self.uri}")
        if size > max_bytes:
            raise Refused(
                f"{self.uri} has {size:,} bytes; the limit is {max_bytes:,}", code="TOO_LARGE"
            )

        def read_all() -> bytes:
            with self.filesystem.open_input_file(self.path) as file:
                return bytes(file.read(size + 1))

        content = with_retries(self, read_all)
        if len(content) != size:
            raise Corrupt(f"{self.uri} changed while it was read: try again")
        return content

    def write(self, content: bytes) -> None:
        """Write a small object atomically. Raises NotFound (bucket), Unavailable."""

        def put() -> None:
            with self.filesystem.open_output_stream(self.path) as out:
                out.write(content)

        if self.is_local:
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(Path(self.path), content)
        else:
            with_retries(self, put)


def with_retries(path: StoragePath, call: Callable[[], T]) -> T:
    """Return the result of a storage call, retried with exponential backoff.

    Only transient errors are retried. Raises errors as `translate_storage_errors`.
    """
    for attempt in range(MAX_ATTEMPTS):
        try:
            with translate_storage_errors(path):
                return call()
        except Unavailable as error:
            if error.code != "STORAGE_AWAY" or attempt == MAX_ATTEMPTS - 1:
                raise
            time.sleep(RETRY_SECONDS * 2**attempt)
    raise AssertionError("unreachable")


@contextmanager
def translate_storage_errors(path: StoragePath) -> Iterator[None]:
    """Raise errors of a storage as NotFound, or Unavailable with STORAGE_DENIED or STORAGE_AWAY.

    Of the storage's message only its error code is repeated, because the text can hold secrets.
    """
    try:
        yield
    except XcrayError:
        raise
    except FileNotFoundError:
        raise NotFound(f"there is no {path.uri}") from None
    except OSError as error:
        raise _translate_error(path, error) from None


def _translate_error(path: StoragePath, error: OSError) -> Exception:
    """Return the error for an error of a file system."""
    if path.is_local:
        return error
    match = AWS_ERROR.search(str(error))
    code = match.group(1) if match else next(iter(GOOGLE_ERROR.findall(str(error))), "")
    bucket = path.path.split("/")[0]
    if code == "NO_SUCH_BUCKET":
        return NotFound(
            f"there is no bucket {bucket!r}: create it, or correct the URI {path.uri}",
            code=NO_BUCKET,
        )
    if code in ("NO_SUCH_KEY", "RESOURCE_NOT_FOUND", "NOT_FOUND"):
        return NotFound(f"there is no {path.uri}")
    if DENIED_CODES.search(code) or (match and match.group(2) in ("401", "403")):
        return Unavailable(
            f"{path.uri} denies access ({code}): set credentials in the environment, or a role, "
            f"that can use bucket {bucket!r}",
            code="STORAGE_DENIED",
        )
    if code == "PRECONDITION_FAILED":
        return Conflict(f"{path.uri} was changed by another process")
    step = f" during {match.group(3)}" if match else ""
    return Unavailable(
        f"{path.uri} did not answer ({code or type(error).__name__}{step}): is the storage up?",
        code="STORAGE_AWAY",
    )


def _parse_options(query: str) -> dict[str, str]:
    """Return the options of a URI. Raises ParameterError for any other, such as keys."""
    options = dict(parse_qsl(query, keep_blank_values=True))
    wrong = sorted(set(options) - set(URI_OPTIONS))
    if wrong:
        raise ParameterError(
            f"a URI has no option {excerpt(wrong[0])!r}; it has {', '.join(URI_OPTIONS)}",
            code="URI",
        )
    return options


def _open_filesystem(scheme: str, bucket: str, options: Mapping[str, str]) -> fs.FileSystem:
    """Return the file system of a bucket."""
    arguments: dict[str, Any] = dict(options)
    try:
        if scheme == "gs":
            arguments.pop("region", None)
            return fs.GcsFileSystem(
                retry_time_limit=timedelta(seconds=REQUEST_SECONDS), **arguments
            )
        endpoint = (
            arguments.get("endpoint_override")
            or os.environ.get("AWS_ENDPOINT_URL_S3")
            or os.environ.get("AWS_ENDPOINT_URL")
        )
        if endpoint:
            before, separator, host = endpoint.rpartition("://")
            arguments |= {
                "endpoint_override": host.rstrip("/"),
                **({"scheme": before} if separator else {}),
            }
        elif "region" not in arguments and not (
            os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        ):
            arguments["region"] = _bucket_region(bucket)
        region = (
            arguments.pop("region", None)
            or os.environ.get("AWS_REGION")
            or os.environ.get("AWS_DEFAULT_REGION")
            or "us-east-1"
        )
        return fs.S3FileSystem(
            region=region,
            connect_timeout=CONNECT_SECONDS,
            request_timeout=REQUEST_SECONDS,
            **arguments,
        )
    except (ValueError, TypeError) as error:
        raise ParameterError(
            f"the options of the URI were refused: {excerpt(str(error))}", code="URI"
        ) from None


def _bucket_region(bucket: str) -> str:
    """Return the AWS region of a bucket.

    It is the first region if AWS does not report one. The first request then reports the error.
    """
    try:
        return str(fs.resolve_s3_region(bucket))
    except OSError:
        return "us-east-1"
