"""Fixtures for every test: a clean environment, a small data set, a private local Ray.

The environment is cleaned before any import, so that no test finds a cluster, a home or a key of
the user who runs it.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.support import missing_tools as without

if TYPE_CHECKING:
    from tests.support.s3 import FaultProxy
    from xcray.data.dataset import Dataset

for _name in [
    name
    for name in os.environ
    if name.startswith(("XCRAY_", "RAY_")) and name != "XCRAY_KUBERAY_CRDS"
]:
    del os.environ[_name]
# For imports, which run before any test.
_HOME = tempfile.TemporaryDirectory(prefix="xcray-test-", ignore_cleanup_errors=True)
_TESTS = itertools.count()
os.environ.update(
    XCRAY_HOME=_HOME.name,
    RAY_USAGE_STATS_ENABLED="0",
    XCRAY_RAY_START_SECONDS="600",  # an actor can take minutes to start on a busy machine
    RAY_worker_niceness="0",  # the default of 15 starves Ray while other tests use the cores
    MPLBACKEND="Agg",
    NO_COLOR="1",
    COLUMNS="140",
    OMP_NUM_THREADS="1",  # the worker pools under test run in parallel
)
os.environ.pop("FORCE_COLOR", None)
# A shell can start background processes with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Use the same examples in each run, on machines of any speed. HYPOTHESIS_PROFILE=default runs more.
settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
# Hypothesis also draws constants of the modules that this process has imported by then, and these
# depend on the order of the tests. The module's own collection of them is empty here.
providers._get_local_constants = lambda: providers._local_constants


# Files of `make test` that use the local Ray; one process runs them all.
RAY_FILES = (
    "tests/workers/test_workers.py",
    "tests/workers/test_pools.py",
    "tests/workers/ray/test_worker_group.py",
    "tests/workers/ray/test_trainings.py",
)

# Files whose tests run for long, the longest first.
LONG_FILES = (
    *RAY_FILES,
    "tests/journeys/test_command_line.py",
    "tests/workers/ray/test_local_cluster.py",
    "tests/robustness/test_faults.py",
    "tests/unit/test_examples.py",
    "tests/robustness/test_fuzz.py",
    "tests/training/test_edge_cases.py",
    "tests/robustness/test_bad_input.py",
    "tests/jobs/supervision/test_supervisor.py",
    "tests/training/test_selection.py",
    "tests/training/test_tune.py",
    "tests/training/test_staged.py",
    "tests/training/test_solvers_contract.py",
    "tests/unit/solvers/indexed_bcd/test_paged_rows.py",
    "tests/service/http/test_openapi.py",
    "tests/service/test_estimates.py",
)

# The same for drills.
LONG_DRILLS = (
    "tests/architecture/test_notebook.py",
    "tests/deployment/test_distribution.py",
    "tests/workers/ray/test_head_loss.py",
    "tests/journeys/test_guides.py",
    "tests/service/http/test_examples.py",
    "tests/workers/ray/test_nodes.py",
    "tests/workers/ray/test_rotation_faults.py",
    "tests/robustness/test_faults.py",
    "tests/training/test_staged.py",
    "tests/training/test_edge_cases.py",
    "tests/deployment/test_chart_pods.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Return the number of test processes: one more than cores, because some tests wait.

    None, the default of pytest-xdist, if its environment variable is set.
    """
    from xcray.system.cores import available_cores

    return None if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") else available_cores() + 1


def pytest_configure(config: pytest.Config) -> None:
    """Keep the order of files below; pytest-xdist would start those with most tests first."""
    config.option.loadscopereorder = False


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests that take the fixture `ray` with the mark of the same name."""
    if "ray" in getattr(item, "fixturenames", ()):
        item.add_marker("ray")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give the files that share one local Ray to one process; None, the default, for drills."""
    from xdist.scheduler import LoadFileScheduling

    class OneRay(LoadFileScheduling):
        """Files are the units of work, but those of Ray are one."""

        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "ray" if file in RAY_FILES else file

    if config.option.dist != "loadfile" or config.option.markexpr == "drill":
        return None
    return OneRay(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start long files first in parallel runs, so that no process is left with one at the end."""
    if hasattr(config, "workerinput"):
        names = (*LONG_DRILLS, *LONG_FILES) if config.option.markexpr == "drill" else LONG_FILES
        missing = [name for name in names if not (config.rootpath / name).exists()]
        assert not missing, f"LONG_FILES names files that do not exist: {missing}"
        ranks = {config.rootpath / name: rank for rank, name in enumerate(dict.fromkeys(names))}
        n_tests = Counter(item.path for item in items)
        items.sort(key=lambda item: (ranks.get(item.path, len(ranks)), -n_tests[item.path]))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the missing tools of a test process to the process that reports them."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["missing tools"] = without.said


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Receive the missing tools of a test process; a crashed one has sent nothing."""
    for what, instead in getattr(node, "workeroutput", {}).get("missing tools", {}).items():
        without.say(what, instead)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report the tools that this machine lacks, and the checks done instead."""
    if output := without.lines():
        terminalreporter.section("tools that this machine lacks")
        terminalreporter.write_line("\n".join(output))


@pytest.fixture(autouse=True, scope="session")
def patient_ray() -> None:
    """Give a Ray of this process ten minutes to start."""
    from xcray.workers.ray import session

    session.START_SECONDS = 600.0  # type: ignore[misc]


@pytest.fixture(autouse=True, scope="session")
def quick_service() -> None:
    """Services in this process poll often, whatever the disk and however many wrong keys."""
    from xcray.service import constants

    constants.EVENT_POLL_SECONDS = 0.02
    constants.EVENT_HEARTBEAT_SECONDS = 0.2
    constants.DISK_RESERVE_BYTES = 0
    constants.FAILED_KEYS_PER_MINUTE = 0


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Set a private home for each test and yield it; most tests need no directory on disk."""
    home = Path(_HOME.name) / f"home-{next(_TESTS)}"
    monkeypatch.setenv("XCRAY_HOME", str(home))
    yield home
    if home.exists():
        shutil.rmtree(home, ignore_errors=True)  # processes that end can still write


@pytest.fixture(scope="session")
def s3_server() -> Iterator[FaultProxy]:
    """Start one S3 server per test process; each test has its own folders."""
    from tests.support.s3 import s3

    with s3() as server:
        yield server


@pytest.fixture
def proxy(s3_server: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """Set the environment of an S3 client, and return the server, which can inject faults."""
    from tests.support.s3 import use_server

    use_server(s3_server, monkeypatch)
    yield s3_server
    s3_server.fault = None


@pytest.fixture(params=["s3", "file"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URI of an empty folder in a storage."""
    if request.param == "file":
        return f"file://{tmp_path / 'store'}"
    request.getfixturevalue("proxy")
    name = f"{request.module.__name__}.{request.node.name}"
    return f"s3://models/{name.translate(str.maketrans('[]', '__'))}"


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """Restore the loggers after each test, because a captured stream is closed then."""
    loggers = [logging.getLogger(name) for name in ("xcray", "uvicorn")]
    before = [(each.handlers[:], each.propagate, each.level) for each in loggers]
    yield
    for each, (handlers, propagate, level) in zip(loggers, before, strict=True):
        each.handlers, each.propagate = handlers, propagate
        each.setLevel(level)


@pytest.fixture
def rng() -> np.random.Generator:
    """Return a random generator with a fixed seed."""
    return np.random.default_rng(20240607)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Return a synthetic data set with 400 rows, 40 labels and a test split."""
    from xcray.data.build import BuildOptions, build

    options = {
        "test_fraction": 0.25,
        "synthetic": {"rows": 400, "features": 200, "labels": 40, "seed": 7},
    }
    return build(
        "synthetic", {}, tmp_path_factory.mktemp("tiny") / "data", BuildOptions.from_dict(options)
    )


@pytest.fixture
def ray() -> str:
    """Return the address of a local Ray with four CPUs, which consecutive tests share."""
    from tests.support import shared_ray

    return shared_ray.start()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the local Ray after the last test of a file, unless the next one takes it.

    A test with the mark `ray` alone can start a Ray of its own, which needs an unconnected process.
    """
    shared_ray = sys.modules.get("tests.support.shared_ray")
    if shared_ray is None or (nextitem is not None and nextitem.path == item.path):
        return
    if nextitem is None or "ray" not in getattr(nextitem, "fixturenames", ()):
        shared_ray.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """Run a private PostgreSQL for the session; skip the test if the binaries are missing."""
    from tests.support.postgres import server_or_skip

    with server_or_skip() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty job store; each test runs on SQLite and on PostgreSQL."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'xcray.db'}"
    return str(request.getfixturevalue("postgres").emptied())
