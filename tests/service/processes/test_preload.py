"""Workers with XCRAY_PRELOAD receive connections once their models are loaded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.live_service import TEXTS, publish, settings_for
from tests.support.service_processes import (
    PATIENCE,
    process,
    read_process_file,
    until,
    worker_processes,
)
from xcray.model.registry import Registry
from xcray.predict import Predictor
from xcray.service.app import AppParts, create_app
from xcray.service.models.loading import open_predictor
from xcray.service.processes.manager import VERIFIED_FILE
from xcray.service.processes.server import Server
from xcray.service.processes.sockets import listen
from xcray.service.settings import Settings
from xcray.system.file_lock import exclusive_lock


class GatedOpener:
    """Opens models when the test permits it."""

    def __init__(self) -> None:
        self.called, self.permitted = threading.Event(), threading.Event()

    def __call__(self, path: Path) -> Predictor:
        self.called.set()
        assert self.permitted.wait(PATIENCE)
        return open_predictor(path)


@contextlib.contextmanager
def served(
    settings: Settings, opener: Callable[[Path], Predictor]
) -> Iterator[tuple[tuple[str, int], threading.Event]]:
    """Serve as a worker process does; yield its address, and an event set when it is ready."""
    app, ready = create_app(settings, parts=AppParts(opener=opener)), threading.Event()
    app.state.app_state.readiness.timeout = PATIENCE
    with contextlib.closing(listen(settings)) as listener:
        server = Server(app, settings, ready.set)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        try:
            yield listener.getsockname(), ready
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
    assert not thread.is_alive()


def get_readiness(address: tuple[str, int]) -> dict[str, Any]:
    """Return the body of GET /readyz."""
    url = f"http://127.0.0.1:{address[1]}/readyz"
    return dict(httpx.get(url, trust_env=False, timeout=PATIENCE).json())


def test_a_worker_listens_when_its_models_are_loaded(tmp_path: Path) -> None:
    publish(Registry(tmp_path / "home" / "models"), "docs", tmp_path / "staged")
    opener = GatedOpener()
    settings = settings_for(tmp_path / "home", processes=2, preload=("docs",))
    with served(settings, opener) as (address, ready):
        try:
            assert opener.called.wait(PATIENCE)
            assert not ready.wait(1.0)  # it would have listened by now
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address, timeout=PATIENCE)
        finally:
            opener.permitted.set()
        assert ready.wait(PATIENCE)
        assert get_readiness(address)["reasons"] == []


def test_a_worker_listens_although_a_model_is_missing(tmp_path: Path) -> None:
    """Otherwise its API could not be used to train or publish the model."""
    settings = settings_for(tmp_path / "home", processes=2, preload=("missing",))
    with served(settings, open_predictor) as (address, ready):
        assert ready.wait(PATIENCE)
        assert get_readiness(address)["reasons"] == ["MODELS"]


def test_a_single_process_listens_while_it_loads(tmp_path: Path) -> None:
    """A load balancer then sees that it is alive and not ready."""
    publish(Registry(tmp_path / "home" / "models"), "docs", tmp_path / "staged")
    opener = GatedOpener()
    with served(settings_for(tmp_path / "home", preload=("docs",)), opener) as (address, ready):
        try:
            assert ready.wait(PATIENCE)
            assert get_readiness(address)["reasons"] == ["MODELS"]
        finally:
            opener.permitted.set()


def count_listeners(url: str) -> int:
    """Return how many sockets listen at the port of a URL, read from /proc."""
    local = f":{httpx.URL(url).port:04X} 00000000:0000 0A "  # state 0A: LISTEN
    return Path("/proc/net/tcp").read_text().count(local)


@pytest.mark.drill
def test_a_restarted_worker_joins_when_its_models_are_loaded(tmp_path: Path) -> None:
    home = tmp_path / "home"
    publish(Registry(home / "models"), "docs", tmp_path / "staged")
    variables = {"XCRAY_PRELOAD": '["docs"]'}
    with process(home, "serve", "--processes", "2", variables=variables) as manager:
        url = read_process_file(home, manager, "serve")["url"]
        workers = set(worker_processes(manager.pid))
        assert (len(workers), count_listeners(url)) == (2, 2)

        def ask() -> int:
            body = {"instances": [{"text": TEXTS[0]}]}
            address = f"{url}/v1/models/docs:predict"
            return httpx.post(address, json=body, trust_env=False, timeout=PATIENCE).status_code

        def n_alive() -> int:
            return int(read_process_file(home, manager, "serve")["alive"])

        with exclusive_lock((home / "metrics" / VERIFIED_FILE).with_suffix(".lock")):
            os.kill(min(workers), signal.SIGKILL)
            (new,) = until(lambda: set(worker_processes(manager.pid)) - workers, home)
            waiting = f"-> FLOCK  ADVISORY  WRITE {new} "  # for the lock, to verify the model
            until(lambda: waiting in Path("/proc/locks").read_text(), home)
            assert {ask() for _ in range(8)} == {200}
            assert count_listeners(url) == 1
            until(lambda: n_alive() == 1, home)
        until(lambda: n_alive() == 2, home)
        assert count_listeners(url) == 2
