"""Sockets that listen."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
from typing import Any

from xcray.errors import Conflict, ParameterError
from xcray.service.settings import Settings

_SO_ATTACH_FILTER = 26
_BPF_RETURN = 0x06
SPREAD = (
    sys.platform == "linux"
)  # there, sockets bound with SO_REUSEPORT share new connections evenly


def listen(settings: Settings, beside: socket.socket | None = None) -> socket.socket:
    """A socket bound to the address in `settings`. Raises Conflict when the port is taken, ParameterError for a foreign address.

    beside: what `reserve` gave: then it is one more socket of the same address, or where that is not to be had, the same one.
    """
    if beside is not None and not SPREAD:
        return beside.dup()
    family, kind, protocol, address = _address(settings)
    if beside is not None:
        address = beside.getsockname()
    listener = socket.socket(
        family, kind, protocol
    )  # protocol: without it asyncio leaves Nagle's algorithm on, 40 ms a reply
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if beside is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        reason = os.strerror(error.errno or 0)
        message = f"port {settings.port} of {settings.host} can't be used ({reason}): use --port 0 for a free one"
        raise Conflict(message, code="PORT_IN_USE") from None
    return listener


def reserve(settings: Settings) -> socket.socket:
    """A socket that keeps the address in `settings` for those that `listen` beside it, and gets no connections. Errors as there."""
    first = listen(
        settings
    )  # this one shares with nobody, so that it sees whether anybody is there
    if not SPREAD:
        return first
    address = first.getsockname()
    first.close()
    held = socket.socket(first.family, first.type, first.proto)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(address)
    return held


def admit_no_more(listener: socket.socket) -> bool:
    """Let no new connection begin at a listening socket, while those that wait in its queue can still be accepted; whether it does.

    Closing it would reset those: their clients are connected already, as far as they know. So Linux drops the first packet of new
    connections by a filter (BPF: "return 0"); clients send it again a second later, when nobody listens any more. Elsewhere, and
    in a sandbox that forbids filters, nothing is done, and who connects in the last instant is reset: who routes has to know.
    """
    if sys.platform != "linux":
        return False
    drop = ctypes.create_string_buffer(struct.pack("HBBI", _BPF_RETURN, 0, 0, 0))
    try:
        listener.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(drop))
        )
    except OSError:
        return False
    return True


def _address(settings: Settings) -> tuple[socket.AddressFamily, socket.SocketKind, int, Any]:
    """Family, kind, protocol and address to bind."""
    try:
        found = socket.getaddrinfo(
            settings.host.strip("[]"),
            settings.port,
            type=socket.SOCK_STREAM,
            proto=socket.IPPROTO_TCP,
        )
    except OSError:
        message = f"host {settings.host.strip('[]')!r} is not an address of this machine: use --host 127.0.0.1"
        raise ParameterError(message, code="HOST") from None
    family, kind, protocol, _, address = found[0]
    return family, kind, protocol, address
