"""SIGTERM under load, with real processes.

Accepted requests are answered, later clients get an error, and the process exits with 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import missing_tools as without
from tests.support.live_service import TEXTS, publish, settings_for
from xcray.model.registry import Registry
from xcray.service.app import create_app
from xcray.service.processes.server import Server
from xcray.service.processes.sockets import listen, stop_accepting

SERVE = "import sys; from xcray.cli.main import main; sys.exit(main(sys.argv[1:]))"
BODY = {"instances": [{"text": text} for text in TEXTS]}
PATIENCE = 180.0
DRAIN = 60  # seconds: more than all that is looked at takes; a second signal ends it


def until(look: Any, seconds: float = PATIENCE) -> Any:
    """The first true answer."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come to pass")


class Crowd:
    """Clients that ask all the time, each on a connection that it keeps for some requests; what
    they were told.
    """

    def __init__(self, url: str) -> None:
        self.told: Counter[str] = Counter()
        self.ending = threading.Event()
        self._url = url
        self._threads = [threading.Thread(target=self._ask) for _ in range(3)]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End."""
        self.ending.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _ask(self) -> None:
        with httpx.Client(base_url=self._url, trust_env=False, timeout=PATIENCE) as http:
            while not self.ending.is_set():
                try:
                    self.told[str(http.post("/v1/models/docs:predict", json=BODY).status_code)] += 1
                except (
                    httpx.ConnectError
                ):  # nobody listens any more: refused before it was sent, another replica takes it
                    self.told["refused"] += 1
                    return
                except httpx.HTTPError as error:
                    self.told[type(error).__name__] += 1


def asked(url: str, path: str) -> httpx.Response:
    """An answer, on a connection of its own."""
    return httpx.get(f"{url}{path}", trust_env=False, timeout=PATIENCE)


def may_be_reset() -> set[str]:
    """What else clients may be told here: where the kernel takes no filters, those who connect in
    the last instant are reset.
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
    """An upload of which half has been sent."""
    address = httpx.URL(url)
    connection = socket.create_connection((address.host, address.port or 80), timeout=PATIENCE)
    lines = (
        "POST /v1/uploads HTTP/1.1",
        f"Host: {address.host}",
        "Content-Type: application/octet-stream",
        "Content-Length: 1000",
    )
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + b"x" * 500)
    return connection


@pytest.mark.drill
@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_fails_nobody_who_was_let_in(tmp_path: Path, workers: int) -> None:
    home = tmp_path / "home"
    publish(Registry(home / "models"), "docs", tmp_path / "staged")
    command = [
        sys.executable,
        "-c",
        SERVE,
        "serve",
        "--home",
        str(home),
        "--port",
        "0",
        "--workers",
        str(workers),
    ]
    environment = {
        **os.environ,
        "XCRAY_DRAIN_SECONDS": f"{DRAIN}",
        "XCRAY_DISK_RESERVE_BYTES": "0",
        "XCRAY_PRELOAD": '["docs"]',
    }
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        url = until(
            lambda: (
                (home / "serve.json").is_file()
                and json.loads((home / "serve.json").read_text())["url"]
            )
        )
        until(lambda: asked(url, "/readyz").json()["ready"])
        crowd = Crowd(url)
        crowd.start()
        with contextlib.closing(slow_upload(url)) as upload:
            until(lambda: crowd.told["200"] >= 20)
            process.send_signal(signal.SIGTERM)
            unready = until(lambda: (answer := asked(url, "/readyz")).status_code == 503 and answer)
            assert (
                unready.json()["reasons"][0] == "DRAINING"
            )  # a second worker may still be loading: MODELS
            assert unready.headers["connection"] == "close"
            assert asked(url, "/healthz").status_code == 200  # alive: nothing to restart
            at_signal = crowd.told["200"]
            until(lambda: crowd.told["200"] > at_signal)  # still answered meanwhile
            process.send_signal(signal.SIGTERM)  # whoever routes has seen it: the drain may end
            until(
                lambda: crowd.told["refused"]
            )  # nobody new is let in any more, and the upload is not whole yet
            upload.sendall(b"x" * 500)
            assert upload.recv(65_536).startswith(b"HTTP/1.1 201")
        assert process.wait(PATIENCE) == 0, (tmp_path / "log").read_text()
        crowd.stop()
    finally:
        process.kill()
        process.wait()
    assert {"200", "refused"} <= set(crowd.told) <= {"200", "refused"} | may_be_reset(), crowd.told
    assert not (home / "serve.json").exists()


def test_a_second_signal_does_not_wait_for_the_drain(tmp_path: Path) -> None:
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


def test_who_is_connected_and_has_not_asked_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client may be on a busy machine: it has a connection, as far as it knows, and must not be
    told that it has none.
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
            time.sleep(1.0)  # it would be gone by now
            assert thread.is_alive()
            early.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert early.recv(65_536).startswith(b"HTTP/1.1 200")
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_listener_that_admits_no_more_still_gives_who_waits() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        with socket.create_connection(address, timeout=PATIENCE) as early:
            held = stop_accepting(listener)
            assert held or may_be_reset()
            with socket.socket() as late:
                late.settimeout(0.3)
                if held:
                    with pytest.raises(TimeoutError):
                        late.connect(address)
            taken, _ = listener.accept()
            with taken:
                early.sendall(b"x")
                assert taken.recv(1) == b"x"
