"""Data files that the service downloads from addresses that the operator has listed.

The risk is server-side request forgery: a caller could make the service send requests that only the
service can send, to its own machine, its network or the cloud's metadata service. Therefore a URI
must start with a listed prefix, character by character. Its host is resolved once, every address of
it must be public, and the connection uses the address that was checked. Redirects and proxies of
the environment are not used, and user names and passwords in URIs are refused. The size, the read
timeout and the total time are limited.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urlsplit

from xcray.errors import InputError, ParameterError, Refused, Unavailable
from xcray.service import constants
from xcray.service.observability.request_log import LOGGER
from xcray.service.settings import Settings

BLOCK_BYTES: Final = 1 << 20
CONNECT_TIMEOUT_SECONDS: Final = 10.0
READ_TIMEOUT_SECONDS: Final = 30.0
URI_PATTERN: Final = re.compile(r"[\x21-\x7e]{1,2048}")
HOST_PATTERN: Final = re.compile(
    r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?)*"
)
DEFAULT_PORTS: Final = {"http": 80, "https": 443}

Resolver: TypeAlias = Callable[[str, int], list[str]]


def fetch(uri: str, settings: Settings, resolve: Resolver | None = None) -> Iterator[bytes]:
    """Yield the bytes of a URI in blocks. Blocking; runs in a thread.

    resolve: (host, port) -> addresses. Raises Refused URI_FORBIDDEN before any request is sent,
    InputError if the file is missing, too large or too slow, and Unavailable if the host does not
    answer.
    """
    scheme, host, port, path = parse_allowed_uri(uri, settings.dataset_uris)
    address = _resolve_address(
        host, port, settings.dataset_uris_private, resolve or _system_resolver
    )
    connection = _PinnedConnection(scheme, host, port, address)
    timer = threading.Timer(constants.DATASET_URI_SECONDS, connection.abort)
    timer.daemon = True
    timer.start()
    try:
        yield from _read_blocks(connection, path, settings.upload_bytes)
        if connection.is_aborted.is_set():  # an aborted transfer can look complete
            raise _timeout_error()
    except (OSError, http.client.HTTPException, InputError) as error:
        if connection.is_aborted.is_set():
            raise _timeout_error() from None
        if isinstance(error, InputError):
            raise
        LOGGER.warning("a file can't be fetched", extra={"host": host, "detail": str(error)})
        raise Unavailable(
            f"{host} did not send the file: check the URI, or try again later",
            code="URI_UNREACHABLE",
        ) from None
    finally:
        timer.cancel()
        connection.close()


def _timeout_error() -> InputError:
    """Return the error for a file that takes too long."""
    seconds = constants.DATASET_URI_SECONDS
    return InputError(
        f"the file did not arrive within {seconds:g} s: send it with POST /v1/uploads",
        code="URI_SLOW",
    )


def parse_allowed_uri(uri: str, prefixes: tuple[str, ...]) -> tuple[str, str, int, str]:
    """Return scheme, host, port and path of a URI that the operator has listed.

    Raises Refused with the same message for every other URI.
    """
    refusal = Refused(
        "this URI is not allowed for data sets: send the file with POST /v1/uploads",
        code="URI_FORBIDDEN",
        hint="the operator can allow a prefix: XCRAY_DATASET_URIS='[\"https://host/folder/\"]'",
    )
    if not URI_PATTERN.fullmatch(uri) or not any(uri.startswith(prefix) for prefix in prefixes):
        raise refusal
    try:
        parts = urlsplit(uri)
        port = parts.port or DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError:
        raise refusal from None
    host = (parts.hostname or "").removesuffix(".")
    plain = "@" not in parts.netloc and "\\" not in uri and not parts.fragment and "::" not in uri
    climbs = any(
        part in (".", "..") for part in unquote(unquote(parts.path)).replace("\\", "/").split("/")
    )
    if (
        parts.scheme not in DEFAULT_PORTS
        or not HOST_PATTERN.fullmatch(host)
        or not port
        or not plain
        or climbs
    ):
        raise refusal
    return (
        parts.scheme,
        host,
        port,
        (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
    )


def is_public(address: str) -> bool:
    """Return whether an address is globally reachable, in any spelling.

    Addresses of this machine, of private networks and of special ranges are not.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    inner: list[Any] = [parsed]
    if isinstance(parsed, ipaddress.IPv6Address):
        inner += [
            embedded
            for embedded in (parsed.ipv4_mapped, parsed.sixtofour, *(parsed.teredo or ()))
            if embedded is not None
        ]
        if parsed in ipaddress.ip_network("64:ff9b::/96"):  # IPv4 behind a translator
            inner.append(ipaddress.ip_address(int(parsed) & 0xFFFFFFFF))
    return all(
        embedded.is_global and not embedded.is_multicast and not embedded.is_reserved
        for embedded in inner
    )


def _system_resolver(host: str, port: int) -> list[str]:
    """Return the addresses of a host from the system's resolver."""
    return [
        str(entry[4][0])
        for entry in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )
    ]


def _resolve_address(host: str, port: int, private: bool, resolve: Resolver) -> str:
    """Resolve the host once and return the address to use; all of its addresses must be allowed."""
    try:
        addresses = resolve(host, port)
    except OSError:
        raise Unavailable(
            f"{host} can't be resolved: check the URI, or try again later", code="URI_UNREACHABLE"
        ) from None
    if not addresses or not (private or all(is_public(address) for address in addresses)):
        hint = "the operator can allow it: XCRAY_DATASET_URIS_PRIVATE=1"
        raise Refused(f"{host} is not a public address", code="URI_FORBIDDEN", hint=hint)
    return addresses[0]


class _PinnedConnection(http.client.HTTPConnection):
    """HTTP connection to one fixed address; with TLS, the certificate must match the host name."""

    def __init__(self, scheme: str, host: str, port: int, address: str) -> None:
        super().__init__(host, port, timeout=READ_TIMEOUT_SECONDS)
        self.is_aborted = threading.Event()
        # http.client drops its reference once a response begins
        self._raw_socket: socket.socket | None = None
        self._resolve_address = address
        self._tls = ssl.create_default_context() if scheme == "https" else None
        if port == DEFAULT_PORTS[scheme]:
            self.default_port = port  # keeps the port out of the Host header

    def connect(self) -> None:
        """Connect to the fixed address, whatever the host name resolves to by now."""
        plain = socket.create_connection(
            (self._resolve_address, self.port), CONNECT_TIMEOUT_SECONDS
        )
        plain.settimeout(READ_TIMEOUT_SECONDS)
        try:
            self.sock = self._raw_socket = (
                plain
                if self._tls is None
                else self._tls.wrap_socket(plain, server_hostname=self.host)
            )
        except OSError:
            plain.close()
            raise
        if self.is_aborted.is_set():
            raise TimeoutError

    def abort(self) -> None:
        """Shut the connection down when the time is up; pending reads end."""
        self.is_aborted.set()
        if self._raw_socket is not None:
            with contextlib.suppress(OSError):  # already closed
                self._raw_socket.shutdown(socket.SHUT_RDWR)


def _read_blocks(connection: _PinnedConnection, path: str, max_bytes: int) -> Iterator[bytes]:
    """Yield the response body if it is a plain file of at most `most` bytes."""
    connection.request(
        "GET",
        path,
        headers={"Accept-Encoding": "identity", "User-Agent": "xcray", "Connection": "close"},
    )
    response = connection.getresponse()
    with contextlib.closing(response):
        if response.status != 200:
            moved = " and redirects are not followed" if 300 <= response.status < 400 else ""
            raise InputError(
                f"{connection.host} answered {response.status}{moved}: use the URI of the file "
                "itself",
                code="URI_ANSWER",
            )
        if (response.getheader("content-encoding") or "identity").lower() != "identity":
            raise InputError(
                f"{connection.host} answered with a content encoding that was not requested",
                code="URI_ANSWER",
            )
        declared, size = response.length, 0
        if declared is None and not response.chunked:
            raise InputError(
                f"{connection.host} does not send the length of the file: a truncated transfer "
                "could not be detected",
                code="URI_ANSWER",
            )
        if declared is not None and declared > max_bytes:
            raise ParameterError(
                f"the file has {declared:,} bytes; the limit is {max_bytes:,}",
                code="BODY_TOO_LARGE",
            )
        while block := response.read1(BLOCK_BYTES):
            size += len(block)
            if size > max_bytes:
                raise ParameterError(
                    f"the file has more than {max_bytes:,} bytes, which is the limit",
                    code="BODY_TOO_LARGE",
                )
            yield block
        if declared is not None and size != declared:
            raise InputError(
                f"{connection.host} sent {size:,} bytes of {declared:,}: try again",
                code="URI_ANSWER",
            )
