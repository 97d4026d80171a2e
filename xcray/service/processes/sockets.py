"""Listening sockets."""

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


def listen(settings: Settings, reserved: socket.socket | None = None) -> socket.socket:
    """Return a socket bound to the address in `settings`.

    reserved: the socket of `reserve_address`. The result is then a further socket of its address,
    with which it shares new connections evenly (Linux). Raises Conflict if the port is taken,
    ParameterError if the address is not local.
    """
    family, kind, protocol, address = _address(settings)
    if reserved is not None:
        address = reserved.getsockname()
    # Without the protocol, asyncio leaves Nagle's algorithm on: 40 ms per reply.
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reserved is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        reason = os.strerror(error.errno or 0)
        message = (
            f"cannot use port {settings.port} of {settings.host} ({reason}): "
            "use --port 0 for a free one"
        )
        raise Conflict(message, code="PORT_IN_USE") from None
    return listener


def reserve_address(settings: Settings) -> socket.socket:
    """Return a socket that reserves the address in `settings` and receives no connections.

    Raises the errors of `listen`.
    """
    # This socket does not share its port, so it fails if another process uses the port.
    first = listen(settings)
    address = first.getsockname()
    first.close()
    reserved = socket.socket(first.family, first.type, first.proto)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(address)
    return reserved


def stop_accepting(listener: socket.socket) -> bool:
    """Drop new connections of a listening socket and return whether that is possible.

    Queued connections can still be accepted. Closing the socket would reset them, although their
    clients are connected already. So on Linux a filter (BPF: "return 0") drops the first packet of
    new connections; clients send it again a second later, when the socket is closed. On other
    systems, and in a sandbox that forbids filters, nothing is done and the last connections are
    reset. The load balancer must then stop routing first.
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
    """Return family, kind, protocol and address to bind."""
    try:
        addresses = socket.getaddrinfo(
            settings.host.strip("[]"),
            settings.port,
            type=socket.SOCK_STREAM,
            proto=socket.IPPROTO_TCP,
        )
    except OSError:
        message = (
            f"host {settings.host.strip('[]')!r} is not an address of this machine: "
            "use --host 127.0.0.1"
        )
        raise ParameterError(message, code="HOST") from None
    family, kind, protocol, _, address = addresses[0]
    return family, kind, protocol, address
