"""SIGTERM under load, with real processes.

Accepted requests are answered, later clients get an error, and the process exits with 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.support import missing_tools as without
from tests.support.live_service import TEXTS, publish, settings_for
from tests.support.service_processes import process, read_process_file
from tests.support.waiting import until
from xcray.model.registry import Registry
from xcray.service.app import create_app
from xcray.service.processes.server import Server
from xcray.service.processes.sockets import listen, stop_accepting

BODY = {"instances": [{"text": text} for text in TEXTS]}
PATIENCE = 600.0


class RequestLoop:
    """Clients that send requests continuously; each connection is used for several requests.

    `counts` has the results.
    """

    def __init__(self, url: str) -> None:
        self.counts: Counter[str] = Counter()
        self.ending = threading.Event()
        self._url = url
        self._threads = [threading.Thread(target=self._ask) for _ in range(3)]

    def start(self) -> None:
        """Start the clients."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the clients and wait for them."""
        self.ending.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _ask(self) -> None:
        with httpx.Client(base_url=self._url, trust_env=False, timeout=PATIENCE) as http:
            while not self.ending.is_set():
                try:
                    self.counts[
                        str(http.post("/v1/models/docs:predict", json=BODY).status_code)
                    ] += 1
                except httpx.ConnectError:
                    # The listener is closed. Another replica can take the request: it was not sent.
                    self.counts["refused"] += 1
                    return
                except httpx.HTTPError as error:
                    self.counts[type(error).__name__] += 1


def get_once(url: str, path: str) -> httpx.Response:
    """Request a path on a new connection."""
    return httpx.get(f"{url}{path}", trust_env=False, timeout=PATIENCE)


def is_unready(url: str, answers: list[httpx.Response]) -> bool:
    """Ask for readiness once more; return whether no worker has been ready for a while.

    Each one must have handled the signal: a second one that came before would count as the first.
    """
    answers.append(get_once(url, "/readyz"))
    return [each.status_code for each in answers[-20:]] == [503] * 20


def may_be_reset() -> set[str]:
    """Return additional results that clients can get here.

    Where the kernel has no socket filters, connections of the last instant are reset.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if stop_accepting(listener):
            return set()
    without.say(
        "filters of sockets (SO_ATTACH_FILTER)",
        "clients who connect in the very instant of an end may be reset",
    )
    return {"ReadError", "RemoteProtocolError"}


def slow_upload(url: str) -> socket.socket:
    """Begin an upload and return the connection."""
    address = httpx.URL(url)
    connection = socket.create_connection((address.host, address.port or 80), timeout=PATIENCE)
    lines = (
        "POST /v1/uploads HTTP/1.1",
        f"Host: {address.host}",
        "Content-Type: application/octet-stream",
        "Transfer-Encoding: chunked",
    )
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    return connection


def send_chunk(connection: socket.socket, size: int = 20_000) -> None:
    """Send more of an upload, enough for the least rate over ten seconds; size 0: its end."""
    connection.sendall(b"%x\r\n%b\r\n" % (size, b"x" * size))


@pytest.mark.drill
@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_fails_no_accepted_request(tmp_path: Path, workers: int) -> None:
    home = tmp_path / "home"
    publish(Registry(home / "models"), "docs", tmp_path / "staged")
    words = ("serve", "--processes", str(workers))
    variables = {
        "XCRAY_DRAIN_SECONDS": "600",  # longer than all checks before a second signal
        "XCRAY_GRACE_SECONDS": "600",
        "XCRAY_PRELOAD": '["docs"]',
    }
    with process(home, *words, variables=variables) as serve:
        url = read_process_file(home, serve, "serve")["url"]
        until(lambda: get_once(url, "/readyz").json()["ready"])
        clients, answers = RequestLoop(url), list[httpx.Response]()
        clients.start()
        with contextlib.closing(slow_upload(url)) as upload:
            until_sent = partial(until, tick=lambda: send_chunk(upload))
            until_sent(lambda: clients.counts["200"] >= 20)
            serve.send_signal(signal.SIGTERM)
            until_sent(lambda: is_unready(url, answers))
            unready = answers[-1]
            reasons = unready.json()["reasons"]
            assert reasons[0] == "DRAINING"
            assert "MODELS" not in reasons
            assert unready.headers["connection"] == "close"
            # it is alive, so that it is not restarted
            assert get_once(url, "/healthz").status_code == 200
            at_signal = clients.counts["200"]
            until_sent(lambda: clients.counts["200"] > at_signal)  # requests are still answered
            serve.send_signal(signal.SIGTERM)  # the load balancer has noticed: the drain can end
            # New connections are refused while the upload is still incomplete.
            until_sent(lambda: clients.counts["refused"])
            send_chunk(upload, 0)
            assert upload.recv(65_536).startswith(b"HTTP/1.1 201")
        assert serve.wait(PATIENCE) == 0, (home / "processes.log").read_text()
        clients.stop()
    assert {"200", "refused"} <= set(clients.counts) <= {"200", "refused"} | may_be_reset(), (
        clients.counts
    )
    # every line of the log has been written: of each worker, the last batch too
    lines = (home / "processes.log").read_text().splitlines()
    assert sum('"status":200' in line for line in lines) >= clients.counts["200"]
    assert not (home / "serve.json").exists()


def test_a_second_signal_ends_the_drain(tmp_path: Path) -> None:
    app = create_app(settings_for(tmp_path / "home", drain_seconds=600.0))
    server = Server(app, app.state.settings, lambda: None)
    assert (app.state.app_state.draining, server.should_exit) == (False, False)
    server.handle_exit(signal.SIGTERM, None)
    assert (app.state.app_state.draining, server.should_exit, server.force_exit) == (
        True,
        False,
        False,
    )
    server.handle_exit(signal.SIGTERM, None)
    assert (server.should_exit, server.force_exit) == (True, False)
    server.handle_exit(signal.SIGTERM, None)
    assert server.force_exit
    app.state.app_state.store.close()


def test_a_drain_ends_by_itself_when_its_seconds_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, later = create_app(settings_for(tmp_path / "home", drain_seconds=600.0)), [0.0]
    now = time.monotonic
    monkeypatch.setattr("xcray.service.processes.server.time.monotonic", lambda: now() + later[0])
    server = Server(app, app.state.settings, lambda: None)

    async def story() -> None:
        assert not await server.on_tick(1)
        server.handle_exit(signal.SIGTERM, None)
        assert not await server.on_tick(1)
        later[0] = 601.0
        assert await server.on_tick(1)

    asyncio.run(story())
    app.state.app_state.store.close()


def test_connections_without_a_request_are_kept_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection without a request is kept for a while.

    On a busy machine its client may have connected before the drain, so its request must be
    answered.
    """
    monkeypatch.setattr("xcray.service.processes.server.SILENT_CONNECTION_SECONDS", PATIENCE)
    app, ready = create_app(settings_for(tmp_path / "home")), threading.Event()
    with contextlib.closing(listen(app.state.settings)) as listener:
        server = Server(app, app.state.settings, ready.set)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        assert ready.wait(PATIENCE)
        address = listener.getsockname()
        with socket.create_connection(address, timeout=PATIENCE) as early:
            until(lambda: server.server_state.connections)
            server.should_exit = True
            time.sleep(1.0)  # by now it would have been closed
            assert thread.is_alive()
            early.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert early.recv(65_536).startswith(b"HTTP/1.1 200")
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_listener_that_stops_accepting_returns_waiting_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        with socket.create_connection(address, timeout=PATIENCE) as early:
            state = stop_accepting(listener)
            assert state or may_be_reset()
            with socket.socket() as late:
                late.settimeout(0.3)
                if state:
                    with pytest.raises(TimeoutError):
                        late.connect(address)
            selection, _ = listener.accept()
            with selection:
                early.sendall(b"x")
                assert selection.recv(1) == b"x"
