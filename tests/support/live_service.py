"""A service under test: the real server in a thread, a file store, and small models.

`raw` sends requests that no client library sends.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from fastapi import FastAPI

from xcray.arrays import csr_from
from xcray.data.text.pipeline import TextPipeline
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.model.write import ModelContent, TrainingRecord, write_model
from xcray.service.processes.server import Server
from xcray.service.processes.sockets import listen
from xcray.service.settings import Settings

TEXTS = (
    "read rows of a csv file",
    "write rows into a json file",
    "open a socket and listen",
    "rows of text in files",
)
LABELS = ("csv", "json", "socket", "io")
# Seconds until a wait fails: the first process that loads a model may have to compile the kernels.
PATIENCE = 600.0
OCTETS = {"Content-Type": "application/octet-stream"}
READY = "(folder / 'outcome.json').write_text(json.dumps({'stats': {'n_labels': 4}}))"


def settings_for(home: Path, **changes: Any) -> Settings:
    """Return settings of a service in a folder of the test, independent of the environment."""
    fixed: dict[str, Any] = {
        "home": home,
        "port": 0,
    }
    return Settings(**{**fixed, **changes})


def build_stub(folder: Path, code: str = READY) -> tuple[str, ...]:
    """Return the command of a stub that replaces the child process of data set builds.

    sys.argv[1] of the stub is the request; by default the data set is READY at once.
    """
    script = folder / "stub.py"
    script.write_text(
        f"import json, os, pathlib, signal, sys, time\nfolder = pathlib.Path(sys.argv[1]).parent\n{code}\n"
    )
    return (sys.executable, str(script))


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """Serve an app and yield its URL."""
    settings: Settings = app.state.settings
    ready = threading.Event()
    # Long enough for readiness checks on a busy machine.
    app.state.app_state.readiness.timeout = 60.0
    with closing(listen(settings.model_copy(update={"port": 0}))) as listener:
        server = Server(app, settings, ready.set)
        thread = threading.Thread(
            target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True
        )
        thread.start()
        assert ready.wait(PATIENCE), "the server did not start"
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            app.state.app_state.draining = True
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive(), "the server did not end"


@contextmanager
def client_of(app: FastAPI) -> Iterator[httpx.Client]:
    """Serve an app and yield a plain HTTP client of it."""
    with (
        serving(app) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE) as client,
    ):
        yield client


def text_model(
    path: Path, *, seed: int = 0, texts: Sequence[str] = TEXTS, labels: Sequence[str] = LABELS
) -> Model:
    """Write a model that reads text, with random weights."""
    pipeline = TextPipeline.fit(texts)
    return _write(path, seed, pipeline.n_features, labels, pipeline.terms.to_pylist(), pipeline)


def plain_model(path: Path, n_features: int = 6, *, seed: int = 0) -> Model:
    """Write a model with numbered features."""
    return _write(path, seed, n_features, LABELS, [str(j) for j in range(n_features)], None)


def publish(registry: Registry, name: str, staged: Path, **how: Any) -> int:
    """Publish a text model and return its version."""
    text_model(staged, **how)
    return registry.publish(name, staged)


def _write(
    path: Path,
    seed: int,
    n_features: int,
    labels: Sequence[str],
    features: Sequence[str],
    text: TextPipeline | None,
) -> Model:
    """Write a model with random weights, half of them zero."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(len(labels), n_features)) * (
        rng.random((len(labels), n_features)) < 0.5
    )
    bias = rng.normal(size=len(labels)).astype(np.float32)
    return write_model(
        path,
        ModelContent(
            W=csr_from(weights), b=bias, label_names=labels, feature_names=features, text=text
        ),
        TrainingRecord(
            solver="ppdsparse", params={}, dataset_hash="0" * 64, seed=seed, measures={"P@1": 0.5}
        ),
    )


def raw(url: str, data: bytes, *, seconds: float = 10.0) -> bytes:
    """Send bytes without change and return the response.

    The response ends when the server closes the connection. If `data` does not ask for that, it
    also ends when the server sends nothing for one second.
    """
    parts = httpx.URL(url)
    out = b""
    with socket.create_connection((parts.host, parts.port or 80), timeout=seconds) as connection:
        connection.settimeout(PATIENCE)
        connection.sendall(data)
        try:
            while chunk := connection.recv(65_536):
                out += chunk
                if b"connection: close" not in data.lower():
                    connection.settimeout(1.0)
        except (TimeoutError, ConnectionResetError):
            return out
    return out
