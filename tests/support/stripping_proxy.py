"""A reverse proxy that removes a path prefix, as ingress controllers and nginx do."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

HOP_BY_HOP = frozenset({"connection", "transfer-encoding", "content-length", "content-encoding"})


@contextmanager
def stripping_proxy(
    upstream: str, prefix: str, headers: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Yield the URL of `upstream` below `prefix`; all other paths have status 404.

    headers: added to each request.
    """

    class Handler(BaseHTTPRequestHandler):
        def forward(self) -> None:
            size = int(self.headers.get("content-length", 0))
            body = self.rfile.read(size)
            if not self.path.startswith(prefix + "/"):
                self.send_error(404)
                return
            sent = {**self.headers, **(headers or {})}
            with client.stream(
                self.command, upstream + self.path[len(prefix) :], headers=sent, content=body
            ) as answer:
                content = answer.read()
            self.send_response(answer.status_code)
            for name, value in answer.headers.multi_items():
                if name not in HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = forward  # names of http.server

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with httpx.Client(trust_env=False, timeout=600) as client:
        try:
            yield f"http://127.0.0.1:{server.server_port}{prefix}"
        finally:
            server.shutdown()
            server.server_close()
