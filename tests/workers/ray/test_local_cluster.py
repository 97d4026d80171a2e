"""xcray's own local Ray: started once, shared, protected by a token, ended completely.

Each test ends only what it started.
"""

import contextlib
import fcntl
import inspect
import math
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import create_autospec

import pytest

from tests.support import missing_tools as without
from xcray.errors import Unavailable
from xcray.storage.atomic import read_json, write_json
from xcray.system import processes
from xcray.system.file_lock import wait_for_lock
from xcray.system.processes import descendants
from xcray.workers.ray import local_daemon as ray_keeper
from xcray.workers.ray import session as ray_session
from xcray.workers.ray.local_cluster import ClusterInfo, ManagedLocalRay, connect, local_ray
from xcray.workers.ray.session import (
    free_port,
    is_reachable,
    make_short_root,
    set_environment,
)
from xcray.workers.ray.token import auth_environment, write_token

pytestmark = pytest.mark.ray
SMALL = {"num_cpus": 1, "object_store_memory": 100 << 20}
DEFAULTS = (Path("/tmp/ray"), Path.home() / ".ray")


def marks():
    """Return the state of Ray's default folders, which must not change."""
    return [(path.exists(), path.stat().st_mtime_ns if path.exists() else 0) for path in DEFAULTS]


def settings_():
    """Return the environment without a variable that the import of Ray sets."""
    return {name: value for name, value in os.environ.items() if name != "RAY_CLIENT_MODE"}


def wait_for_exit(pids):
    """Wait for the end of processes and return those that are left."""
    deadline = time.monotonic() + 600.0
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def alive(pid):
    return pid in {each.pid for each in processes.list_processes()}


def root_of(directory):
    return Path(ray_cluster_file(directory)["root"])


def ray_cluster_file(directory):
    return read_json(directory / "ray.json")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("own") / "ray"


@pytest.fixture(scope="module")
def before():
    return marks()


@pytest.fixture(scope="module")
def cluster(directory, before):
    """Yield a cluster that was started for a process which has been killed since."""
    asker = subprocess.Popen(
        [sys.executable, "-c", QUERY_SCRIPT, str(directory)], start_new_session=True
    )
    cluster = ManagedLocalRay(directory, **SMALL)
    deadline = time.monotonic() + 300
    while not (directory / "asked").exists():
        assert asker.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(asker.pid, signal.SIGKILL)
    asker.wait()
    yield cluster
    cluster.stop()


QUERY_SCRIPT = """
import sys, time
from pathlib import Path
from xcray.workers.ray.local_cluster import ManagedLocalRay
ManagedLocalRay(sys.argv[1], num_cpus=1, object_store_memory=100 << 20).ensure()
Path(sys.argv[1], "asked").touch()
time.sleep(600)
"""


def get(url, headers=None):
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers or {}), timeout=600
        ) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.drill
def test_the_cluster_outlives_its_first_client_and_is_found_again(cluster, directory):
    info = cluster.ensure()
    assert info == ManagedLocalRay(directory).info() == ManagedLocalRay(directory).ensure()
    assert alive(info.pid)
    assert is_reachable(info.address)


def test_only_the_bearer_of_the_token_gets_in_and_on_the_loopback_interface(cluster):
    info = cluster.ensure()
    assert info.dashboard.startswith("http://127.0.0.1:")
    jobs = f"{info.dashboard}/api/jobs/"
    assert [get(jobs), get(jobs, {"Authorization": "Bearer wrong"}), get(jobs, info.headers)] == [
        401,
        403,
        200,
    ]


def test_the_token_is_in_one_file_of_its_owner_and_shown_nowhere(cluster, directory):
    info = cluster.ensure()
    token = info.token_path.read_text()
    assert len(token) == 64
    assert stat.S_IMODE(info.token_path.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(root_of(directory).stat().st_mode) == 0o700
    commands = [ray_keeper._command_line(each.pid).decode() for each in processes.list_processes()]
    assert any("gcs_server" in command for command in commands)
    files = [path for path in directory.iterdir() if path != info.token_path]
    shown = [path.read_text(errors="replace") for path in files]
    assert not any(token in text for text in [*commands, repr(info), *shown])


def test_a_driver_joins_by_address_and_leaves_it_running(cluster):
    info = cluster.ensure()
    handler = signal.getsignal(signal.SIGTERM)
    environment = settings_()
    with connect(info.address, token_path=info.token_path):
        import ray

        assert ray.get_runtime_context().namespace == "xcray"
        assert ray.get(ray.remote(lambda: 6 * 7).remote(), timeout=300) == 42
        assert signal.getsignal(signal.SIGTERM) is handler
    assert settings_() == environment
    assert not ray.is_initialized()
    assert alive(info.pid)


def test_a_driver_with_another_token_is_refused(cluster, tmp_path):
    info = cluster.ensure()
    write_token(tmp_path / "token")
    program = (
        "import sys; from xcray.workers.ray.local_cluster import connect\n"
        "with connect(sys.argv[1], token_path=sys.argv[2]): print('in')\n"
    )
    reply = subprocess.run(
        [sys.executable, "-c", program, info.address, str(tmp_path / "token")],
        capture_output=True, text=True, timeout=300, check=False,
        # By default Ray tries twenty times, once per second.
        env={**os.environ, "RAY_NUM_REDIS_GET_RETRIES": "1"},
    )  # fmt: skip
    assert reply.returncode != 0
    assert "refused the connection" in reply.stderr
    assert "in" not in reply.stdout.split()


def test_stop_ends_everything_it_started_and_nothing_else(cluster, directory, before):
    info = cluster.ensure()
    with connect(info.address, token_path=info.token_path):
        import ray

        pid = ray.get(ray.remote(lambda: os.getpid()).remote(), timeout=300)
        pids = [info.pid, *descendants(info.pid)]
        assert pid in pids
        root = root_of(directory)
    assert list(root.glob("pymp-*"))  # of the dashboard, which does not remove it
    bystander = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)  # xcray ray"]
    )
    cluster.stop()
    assert wait_for_exit(pids) == []
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
    assert not root.exists()
    assert not (directory / "ray.json").exists()
    assert not (directory / "token").exists()
    assert cluster.info() is None
    cluster.stop()  # no effect without a cluster
    assert marks() == before


@pytest.mark.drill
def test_a_killed_daemon_ends_its_ray_and_the_next_one_cleans_up(tmp_path):
    cluster = ManagedLocalRay(tmp_path / "ray", **SMALL)
    try:
        first = cluster.ensure()
        pids, root = [first.pid, *descendants(first.pid)], root_of(tmp_path / "ray")
        os.kill(first.pid, signal.SIGKILL)
        assert wait_for_exit(pids) == []
        assert cluster.info() is None
        assert root.exists()
        second = cluster.ensure()
        assert second.pid != first.pid
        assert not root.exists()
    finally:
        cluster.stop()


@pytest.mark.drill
def test_a_node_that_ends_with_status_0_is_noticed_and_replaced(tmp_path):
    """The raylet exits with 0 after `kill -9` of the dashboard agent, but `ray start` runs on."""
    cluster = ManagedLocalRay(tmp_path / "ray", **SMALL)
    try:
        first = cluster.ensure()
        cluster.check()
        pids = [first.pid, *descendants(first.pid)]
        agents = [pid for pid in pids if b"dashboard/agent.py" in ray_keeper._command_line(pid)]
        assert agents
        for pid in agents:  # a child that has not called exec yet looks like its parent
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert wait_for_exit(pids) == []
        assert cluster.info() is None
        with pytest.raises(Unavailable, match="ended by itself") as caught:
            cluster.check()
        assert caught.value.code == "RAY_ENDED"
        assert cluster.ensure().pid != first.pid
        cluster.check()
    finally:
        cluster.stop()


def test_a_closed_ray_is_not_started_by_a_launch_under_way(tmp_path, monkeypatch):
    cluster, errors = ManagedLocalRay(tmp_path / "ray", **SMALL), []
    lock = tmp_path / "ray" / "keeper.lock"

    def spawn(_seconds):
        """Start a daemon whose Ray is not ready."""
        words = [sys.executable, "-c", KEEPER, str(lock)]
        daemons.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert daemons[0].stdout.readline()
        lock.write_text(str(daemons[0].pid))

    daemons = []
    monkeypatch.setattr(cluster, "_spawn_daemon", spawn)

    def launch():
        try:
            cluster.ensure()
        except Unavailable as error:
            errors.append(error.message)

    thread = threading.Thread(target=launch)
    thread.start()
    deadline = time.monotonic() + 300
    while not cluster._is_daemon_alive():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    cluster.close()
    thread.join(300)
    with daemons[0] as daemon:
        assert daemon.wait(300) == -signal.SIGTERM
    assert errors == ["the local Ray is being stopped"]
    assert not cluster._is_daemon_alive()
    with pytest.raises(Unavailable, match="being stopped"):
        cluster.ensure()
    assert not cluster._is_daemon_alive()


def test_an_unused_ray_is_ended(tmp_path, monkeypatch):
    """The daemon ends 100 s of its own clock after the last use, however long it has run."""
    clock, expected, turns = [0.0], tmp_path / "wanted", []

    def sleep(_seconds):
        clock[0] += 40.0
        turns.append(clock[0])
        if len(turns) <= 5:
            expected.touch()
            os.utime(expected, ns=(len(turns), len(turns)))

    monkeypatch.setattr(
        ray_keeper, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep)
    )
    # The daemon must not reap the children of this process.
    monkeypatch.setattr(ray_keeper, "_reap", lambda _but: None)
    keeper = ray_keeper.LocalRayDaemon(tmp_path, 1, 1, grace=100.0)
    keeper.root.rmdir()
    keeper.ray = SimpleNamespace(poll=lambda: None, pid=0)
    assert keeper.watch() == 0
    assert turns[-1] == 320.0
    keeper.ray.poll = lambda: -9
    assert keeper.watch() == 1


def test_a_ray_that_starts_slowly_is_waited_for(monkeypatch, tmp_path):
    """On a busy machine, a start can exceed the limit of thirty seconds that Ray sets."""
    from ray._private import node, services

    source = inspect.getsource(node.Node.__init__)
    assert ray_session.SLOW_START_TEXT in source
    assert "services.get_node(" in source.partition("except RuntimeError")[0]
    now, up, ended = [0.0], 150.0, []

    class Starting:
        """A node that Ray waits for like its own; some of its processes run already."""

        kill_all_processes = create_autospec(
            node.Node.kill_all_processes, side_effect=lambda self, **how: ended.append(self)
        )

        def __init__(self):
            try:
                self.info = services.get_node("gcs", "id")
            except RuntimeError:
                raise Exception(f"The current node {ray_session.SLOW_START_TEXT}.") from None

    def get_node(address, node_id):
        if now[0] < up:
            raise RuntimeError("not registered yet")
        return {"node": node_id}

    def sleep(seconds):
        now[0] += 1.0

    monkeypatch.setattr(Starting, "__module__", node.__name__)
    monkeypatch.setattr(services, "get_node", get_node)
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(ray_session, "time", clock)
    monkeypatch.setattr(ray_session, "START_SECONDS", 180.0)
    assert ray_session.start_node(Starting).info == {"node": "id"}
    assert (now, ended) == ([150.0], [])
    up = 400.0
    with pytest.raises(Unavailable, match="not up within 180 s: is the machine busy") as caught:
        ray_session.start_node(Starting)
    assert (caught.value.code, len(ended)) == ("RAY_START", 1)
    assert services.get_node is get_node
    with pytest.raises(ZeroDivisionError):
        ray_session.start_node(lambda: 1 // 0)


def test_a_daemon_reports_why_ray_ended_at_its_start(tmp_path):
    keeper = ray_keeper.LocalRayDaemon(tmp_path, 1, 1, grace=1.0)
    keeper.root.rmdir()
    keeper.ray = SimpleNamespace(poll=lambda: 1, returncode=1)
    with pytest.raises(Unavailable, match="ended at its start"):
        keeper._wait_until_ready(1, tmp_path / "token", math.inf)


@pytest.mark.drill
def test_a_local_ray_ends_with_the_block(before):
    import ray

    environment, mine = settings_(), set(descendants(os.getpid()))
    with local_ray(num_cpus=1, object_store_memory=100 << 20) as address:
        assert is_reachable(address)
        assert ray.get(ray.remote(lambda: 1).remote(), timeout=300) == 1
        started = set(descendants(os.getpid())) - mine
        root = Path(os.environ["RAY_AUTH_TOKEN_PATH"]).parent
        assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert wait_for_exit(started) == []
    assert not root.exists()
    assert settings_() == environment
    assert marks() == before


def test_a_free_port_is_given_once_and_outside_the_range_of_the_system(monkeypatch):
    values = [free_port() for _ in range(20)]
    assert len(set(values)) == 20
    ranges = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first, last = map(int, ranges.read_text().split()) if ranges.exists() else (49_152, 65_535)
    # The system's range of ports can be configured to overlap.
    assert (
        not [port for port in values if first <= port <= last]
        or first < ray_session.PRIVATE_PORTS[-1]
    )
    with socket.socket() as selection:
        selection.bind(("127.0.0.1", port := free_port()))
        monkeypatch.setattr(ray_session, "_PORTS", iter([port, other := free_port()]))
        assert free_port() == other


def test_processes_give_out_different_ports(monkeypatch):
    """A node of Ray ends if another process has taken a port before the node's agents start."""
    port = free_port()
    first = port - port % 10
    monkeypatch.setattr(ray_session, "PRIVATE_PORTS", range(first, first + 10))
    assert not list(ray_session._own_ports())


def test_a_process_gives_out_its_ports_again(monkeypatch):
    monkeypatch.setattr(ray_session, "MAX_TENS", 2)
    ports = list(islice(ray_session._own_ports(), 36))
    assert ports[:18] == ports[18:]
    assert len(set(ports)) == 18


def test_a_closed_port_is_reported_at_once():
    with pytest.raises(Unavailable, match="no Ray answers at 127") as caught:
        with connect(f"127.0.0.1:{free_port()}"):
            pass
    assert caught.value.code == "RAY_UNREACHABLE"


@pytest.mark.drill
def test_a_start_that_fails_says_why(tmp_path):
    # Ray refuses such a small object store.
    cluster = ManagedLocalRay(tmp_path / "ray", num_cpus=1, object_store_memory=1)
    with pytest.raises(Unavailable, match=r"ray\.log") as caught:
        cluster.ensure()
    assert caught.value.code == "RAY_START"
    assert cluster.info() is None


KEEPER = """
import fcntl, sys, time
lock = open(sys.argv[1], "a")
fcntl.flock(lock, fcntl.LOCK_EX)
print(1, flush=True)
sys.stdin.readline()
time.sleep(0.3)
"""


def test_the_start_waits_for_a_daemon_that_is_ending(tmp_path, monkeypatch):
    """A daemon can have removed its address and still be ending its processes."""
    cluster, keepers = ManagedLocalRay(tmp_path, **SMALL), []

    def keeper():
        words = [sys.executable, "-c", KEEPER, str(tmp_path / "keeper.lock")]
        keepers.append(
            subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        assert keepers[-1].stdout.readline()

    def spawn(_seconds):
        with open(tmp_path / "keeper.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # never two daemons at once
        keeper()
        write_json(
            tmp_path / "ray.json",
            {"address": "a:1", "dashboard": "d", "token_path": "t", "pid": keepers[-1].pid},
        )

    monkeypatch.setattr(cluster, "_spawn_daemon", spawn)
    keeper()
    looks = cluster.info
    # The first daemon ends after the first query.
    monkeypatch.setattr(cluster, "info", lambda: (keepers[0].stdin.close(), looks())[1])
    try:
        assert cluster.ensure(600).pid == keepers[1].pid
    finally:
        for each in keepers:
            with each:  # closes its pipes, so it ends
                pass


def test_a_test_of_the_daemon_lock_only_delays_a_daemon(tmp_path):
    look, lock = (os.open(tmp_path / "keeper.lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    fcntl.flock(look, fcntl.LOCK_SH)
    assert not wait_for_lock(lock, 0.0, poll_seconds=0.02)
    threading.Timer(0.2, os.close, (look,)).start()
    assert wait_for_lock(lock, 300.0, poll_seconds=0.02)
    os.close(lock)


def test_a_long_temporary_folder_is_avoided_or_named(monkeypatch, tmp_path):
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(ray_session.tempfile, "gettempdir", lambda: str(long))
    root = make_short_root()
    assert len(str(root)) <= ray_session.MAX_ROOT_LENGTH
    root.rmdir()
    monkeypatch.setattr(ray_session.os.path, "isdir", lambda _: False)
    with pytest.raises(Unavailable, match="TMPDIR"):
        make_short_root()


def test_settings_are_put_back(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    with ray_session.environment(auth_environment("/nowhere/token")):
        assert os.environ["RAY_AUTH_MODE"] == "token"
    assert os.environ["RAY_AUTH_MODE"] == "disabled"
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ
    set_environment({"RAY_AUTH_MODE": None})
    assert "RAY_AUTH_MODE" not in os.environ


def test_descendants_are_found_over_generations_by_both_methods(monkeypatch):
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    child = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while len(result := descendants(child.pid)) < 1:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert child.pid in descendants(os.getpid())
        assert set(result) < set(descendants(os.getpid()))
        found = [processes.list_processes]
        if shutil.which("ps"):
            found.append(processes._processes_by_ps)
        else:
            without.say("ps", "the processes of a machine that has no /proc were not listed")
        for listed in found:
            assert (result[0], child.pid) in [(each.pid, of) for each, of in listed().items()]
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    assert child.pid not in descendants(os.getpid())
    assert ray_keeper._command_line(child.pid) == b""  # it has ended; a small Linux has no `ps`
    monkeypatch.setenv("PATH", "")
    assert ray_keeper._command_line(os.getpid())
    assert ray_keeper._command_line(child.pid) == b""


def test_cluster_info_does_not_show_the_token(tmp_path):
    (tmp_path / "token").write_text("secret")
    info = ClusterInfo("h:1", "http://h:2", tmp_path / "token", 1)
    assert "secret" not in repr(info)
    assert info.headers == {"Authorization": "Bearer secret"}
