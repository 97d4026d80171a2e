"""Fixtures for every test: a clean environment, a small data set, a local Ray of our own.

The environment is cleaned before anything is imported, so that no test finds a cluster, a home or a
key of the person who runs it.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.support import missing_tools as without

if TYPE_CHECKING:
    from xcray.data.dataset import Dataset

for _name in [
    name
    for name in os.environ
    if name.startswith(("XCRAY_", "RAY_")) and name != "XCRAY_KUBERAY_CRDS"
]:
    del os.environ[_name]
_HOME = tempfile.TemporaryDirectory(
    prefix="xcray-test-", ignore_cleanup_errors=True
)  # for what runs before any test: imports
os.environ.update(
    XCRAY_HOME=_HOME.name,
    RAY_USAGE_STATS_ENABLED="0",
    XCRAY_RAY_START_SECONDS="600",  # an actor may take minutes to start on a machine that is busy
    MPLBACKEND="Agg",
    NO_COLOR="1",
    COLUMNS="140",
    OMP_NUM_THREADS="1",  # the pools under test bring the parallelism
)
os.environ.pop("FORCE_COLOR", None)
signal.signal(
    signal.SIGINT, signal.default_int_handler
)  # a shell that starts us in the background had it ignored


# the same examples in each run, however slow the machine; more of them by hand:
# HYPOTHESIS_PROFILE=default
settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what this machine lacked, and what was done instead."""
    if said := without.lines():
        terminalreporter.section("this machine lacks something")
        terminalreporter.write_line("\n".join(said))


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test has a home of its own; what it does to the environment ends with it."""
    home = tmp_path / "xcray-home"
    monkeypatch.setenv("XCRAY_HOME", str(home))
    return home


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """What a test does to the loggers ends with it: a stream that it captured is closed after
    it.
    """
    loggers = [logging.getLogger(name) for name in ("xcray", "uvicorn")]
    before = [(each.handlers[:], each.propagate, each.level) for each in loggers]
    yield
    for each, (handlers, propagate, level) in zip(loggers, before, strict=True):
        each.handlers, each.propagate = handlers, propagate
        each.setLevel(level)


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers, the same in each run."""
    return np.random.default_rng(20240607)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A synthetic data set: a few hundred rows and some dozens of labels, with a test split."""
    from xcray.data.build import BuildOptions, build

    options = {
        "test_fraction": 0.25,
        "synthetic": {"rows": 400, "features": 200, "labels": 40, "seed": 7},
    }
    return build(
        "synthetic", {}, tmp_path_factory.mktemp("tiny") / "data", BuildOptions.from_dict(options)
    )


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A local Ray with two CPUs, started for the tests of one file and ended after them; no other
    cluster is joined or touched.
    """
    from xcray.workers.ray.local_cluster import local_ray

    with local_ray() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A private PostgreSQL, one for all tests of a session; skips its test, with the reason, where
    the binaries lack.
    """
    from tests.support.postgres import server_or_skip

    with server_or_skip() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty job store: each test that asks for it runs on a file of SQLite and on
    PostgreSQL.
    """
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'xcray.db'}"
    from tests.support.postgres import unhurried

    return unhurried(request.getfixturevalue("postgres").emptied())
