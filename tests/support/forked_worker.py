"""A fork server whose workers write a request id and end with the code that they are given."""

from __future__ import annotations

import os
import socket
import sys

from xcray.service.observability.request_log import new_request_id
from xcray.service.processes.fork_server import fork_workers


def main() -> int:
    """Fork workers, or be one: `listener` is checked to be the inherited socket."""
    listener = fork_workers(socket.socket(fileno=int(sys.argv[1])))
    if listener is None:
        return 0
    with socket.socket(fileno=listener) as inherited:
        assert inherited.getsockname()[0] == "127.0.0.1"
    os.write(1, new_request_id().encode())
    command = sys.stdin.readline().strip()
    if command == "wait":
        sys.stdin.read()  # until it is killed, or the test has ended
        return 0
    return int(command)


if __name__ == "__main__":
    sys.exit(main())
