"""Data files that the service fetches itself, from addresses that the operator lists. Nothing is fetched unless listed.

What a stranger could make of it is to have the service ask where only the service can: its own machine, its network, the cloud's
metadata. So a URI must begin with a listed prefix, letter by letter; its host is resolved once, every address it has must be
public, and the connection goes to the address that was looked at. Redirects are not followed, proxies of the environment not
used, names and passwords in URIs refused; sizes, silences and the whole time are bounded.
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
from xcray.service.observability.request_log import LOGGER
from xcray.service.settings import Settings

BLOCK: Final = 1 << 20
CONNECT_SECONDS: Final = 10.0
SILENCE_SECONDS: Final = 30.0
SPELLED: Final = re.compile(r"[\x21-\x7e]{1,2048}")
HOST: Final = re.compile(
    r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?)*"
)
PORTS: Final = {"http": 80, "https": 443}

Resolve: TypeAlias = Callable[[str, int], list[str]]


def fetch(uri: str, settings: Settings, resolve: Resolve | None = None) -> Iterator[bytes]:
    """The bytes behind a URI, block by block. In a thread.

    resolve: host, port -> its addresses. Raises Refused URI_FORBIDDEN before anything is asked, InputError when what answers has no
    such file, is too large or too slow, Unavailable when nobody answers.
    """
    scheme, host, port, path = check_uri(uri, settings.dataset_uris)
    address = _address(host, port, settings.dataset_uris_private, resolve or _resolve)
    connection = _Pinned(scheme, host, port, address)
    timer = threading.Timer(settings.dataset_uri_seconds, connection.cut)
    timer.daemon = True
    timer.start()
    try:
        yield from _blocks(connection, path, settings.upload_bytes)
        if connection.is_cut.is_set():  # what was cut off can look as if it had ended
            raise _slow(settings)
    except (OSError, http.client.HTTPException, InputError) as error:
        if connection.is_cut.is_set():
            raise _slow(settings) from None
        if isinstance(error, InputError):
            raise
        LOGGER.warning("a file can't be fetched", extra={"host": host, "detail": str(error)})
        raise Unavailable(
            f"{host} did not give the file: check the URI, or try again later",
            code="URI_UNREACHABLE",
        ) from None
    finally:
        timer.cancel()
        connection.close()


def _slow(settings: Settings) -> InputError:
    """The error for a file that takes too long."""
    seconds = settings.dataset_uri_seconds
    return InputError(
        f"the file did not arrive within {seconds:g} s: send it by POST /v1/uploads",
        code="URI_SLOW",
    )


def check_uri(uri: str, prefixes: tuple[str, ...]) -> tuple[str, str, int, str]:
    """Scheme, host, port and path of a URI that the operator lists. Raises Refused, the same for all that are not listed."""
    refusal = Refused(
        "this URI is not open to data sets: send the file by POST /v1/uploads",
        code="URI_FORBIDDEN",
        hint="the operator can open a prefix: XCRAY_DATASET_URIS='[\"https://host/folder/\"]'",
    )
    if not SPELLED.fullmatch(uri) or not any(uri.startswith(prefix) for prefix in prefixes):
        raise refusal
    try:
        parts = urlsplit(uri)
        port = parts.port or PORTS.get(parts.scheme, 0)
    except ValueError:
        raise refusal from None
    host = (parts.hostname or "").removesuffix(".")
    plain = "@" not in parts.netloc and "\\" not in uri and not parts.fragment and "::" not in uri
    climbs = any(
        part in (".", "..") for part in unquote(unquote(parts.path)).replace("\\", "/").split("/")
    )
    if parts.scheme not in PORTS or not HOST.fullmatch(host) or not port or not plain or climbs:
        raise refusal
    return (
        parts.scheme,
        host,
        port,
        (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
    )


def is_public(address: str) -> bool:
    """Whether an address is one of the whole world's, however spelled: not this machine's, this network's or a special one."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    inner: list[Any] = [found]
    if isinstance(found, ipaddress.IPv6Address):
        inner += [
            each
            for each in (found.ipv4_mapped, found.sixtofour, *(found.teredo or ()))
            if each is not None
        ]
        if found in ipaddress.ip_network("64:ff9b::/96"):  # IPv4 behind a translator
            inner.append(ipaddress.ip_address(int(found) & 0xFFFFFFFF))
    return all(each.is_global and not each.is_multicast and not each.is_reserved for each in inner)


def _resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, as the system knows them."""
    return [
        str(found[4][0])
        for found in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )
    ]


def _address(host: str, port: int, private: bool, resolve: Resolve) -> str:
    """The one address to connect to, looked up once; all that a host has must be allowed."""
    try:
        found = resolve(host, port)
    except OSError:
        raise Unavailable(
            f"{host} has no address: check the URI, or try again later", code="URI_UNREACHABLE"
        ) from None
    if not found or not (private or all(is_public(address) for address in found)):
        hint = "the operator can allow it: XCRAY_DATASET_URIS_PRIVATE=1"
        raise Refused(
            f"{host} is not an address of the open network", code="URI_FORBIDDEN", hint=hint
        )
    return found[0]


class _Pinned(http.client.HTTPConnection):
    """A connection to one address, for one host; of TLS, the certificate must be the host's."""

    def __init__(self, scheme: str, host: str, port: int, address: str) -> None:
        super().__init__(host, port, timeout=SILENCE_SECONDS)
        self.is_cut = threading.Event()
        self._own: socket.socket | None = None  # http.client lets go of it once an answer begins
        self._address = address
        self._tls = ssl.create_default_context() if scheme == "https" else None
        if port == PORTS[scheme]:
            self.default_port = port  # so that the Host header names none

    def connect(self) -> None:
        """Connect to the address, whatever the host's name means by now."""
        plain = socket.create_connection((self._address, self.port), CONNECT_SECONDS)
        plain.settimeout(SILENCE_SECONDS)
        try:
            self.sock = self._own = (
                plain
                if self._tls is None
                else self._tls.wrap_socket(plain, server_hostname=self.host)
            )
        except OSError:
            plain.close()
            raise
        if self.is_cut.is_set():
            raise TimeoutError

    def cut(self) -> None:
        """Time is up: whatever waits for bytes hears the end."""
        self.is_cut.set()
        if self._own is not None:
            with contextlib.suppress(OSError):  # it has ended by itself
                self._own.shutdown(socket.SHUT_RDWR)


def _blocks(connection: _Pinned, path: str, most: int) -> Iterator[bytes]:
    """What is answered, when it is a file as it is and not too large."""
    connection.request(
        "GET",
        path,
        headers={"Accept-Encoding": "identity", "User-Agent": "xcray", "Connection": "close"},
    )
    reply = connection.getresponse()
    with contextlib.closing(reply):
        if reply.status != 200:
            moved = " and redirects are not followed" if 300 <= reply.status < 400 else ""
            raise InputError(
                f"{connection.host} answered {reply.status}{moved}: name the file itself",
                code="URI_ANSWER",
            )
        if (reply.getheader("content-encoding") or "identity").lower() != "identity":
            raise InputError(
                f"{connection.host} answered with an encoding nobody asked for", code="URI_ANSWER"
            )
        declared, size = reply.length, 0
        if declared is None and not reply.chunked:
            raise InputError(
                f"{connection.host} does not say where the file ends: it could be cut off unseen",
                code="URI_ANSWER",
            )
        if declared is not None and declared > most:
            raise ParameterError(
                f"the file has {declared:,} bytes, at most {most:,} are fetched",
                code="BODY_TOO_LARGE",
            )
        while block := reply.read1(BLOCK):
            size += len(block)
            if size > most:
                raise ParameterError(
                    f"the file has more than {most:,} bytes, which is the most that is fetched",
                    code="BODY_TOO_LARGE",
                )
            yield block
        if declared is not None and size != declared:
            raise InputError(
                f"{connection.host} sent {size:,} bytes of {declared:,}: try again",
                code="URI_ANSWER",
            )
