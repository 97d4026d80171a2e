"""A simulated kubelet for one pod: private mounts, network and processes, and a read-only root.

It runs as root inside `unshare --mount --net --pid --fork --kill-child --mount-proc`. Then `python
-m tests.deployment.chart.cell PLAN.json` mounts the volumes of the pod, makes everything else
read-only, and runs the init containers and the container. It sends the requests of the plan, ends
the container by SIGTERM, and prints one JSON object. Containers run as the pod's user, without
capabilities and without a way to gain any. The seccomp profile RuntimeDefault, resource limits and
network policies are not simulated.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

RETAINED_FOLDER: Final = Path("/run/kept")
START_SECONDS: Final = 120
CALL_SECONDS: Final = 30


def main(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Run a plan (see `tests.deployment.chart.pod`) and return the results."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "address", "add", f"{plan['ip']}/32", "dev", "lo")
    sources = mount_all(plan)
    for port, socket_file in plan["forward"].items():
        forward(
            plan["ip"],
            int(port),
            str(Path(sources[str(Path(socket_file).parent)], Path(socket_file).name)),
        )
    fields: dict[str, Any] = {"init": []}
    for container in plan["init"]:
        completion = subprocess.run(
            as_user(plan, container),
            env=container["env"],
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
        )
        fields["init"].append(
            {
                "name": container["name"],
                "status": completion.returncode,
                "output": completion.stdout + completion.stderr,
            }
        )
        if completion.returncode:
            return fields
    with open("/tmp/output", "wb") as output:
        process = subprocess.Popen(
            as_user(plan, plan["main"]), env=plan["main"]["env"], stdout=output, stderr=output
        )
    try:
        fields["started"] = wait_until(plan, process, plan["probe"])
        if fields["started"]:
            fields["companions"] = [start_companion(plan, each) for each in plan["companions"]]
            fields["answers"] = [ask(plan, each) for each in plan["requests"]]
            fields["programs"] = [program(plan, each) for each in plan["programs"]]
            fields["ending"] = end(plan, process)
    finally:
        process.kill()
        process.wait()
    fields["output"] = Path("/tmp/output").read_text(errors="replace")[-20_000:]
    return fields


def run(*command: str) -> None:
    """Run a system command. Raises CalledProcessError; its standard error is shown."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def mount_all(plan: Mapping[str, Any]) -> dict[str, str]:
    """Mount the volumes, keep the needed folders of this checkout, and make the rest read-only.

    Return the present path of each folder of the plan, also of those that a mount hides.
    """
    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "tmpfs", "-o", "mode=0755", "kept", "/run")
    known = [
        *plan["keep"],
        *plan["mounts"].values(),
        *(str(Path(each).parent) for each in plan["forward"].values()),
    ]
    sources = {path: keep(path, number) for number, path in enumerate(known)}
    for cover in plan["cover"]:  # folders closed to other users, or hidden by a volume
        run("mount", "-t", "tmpfs", "-o", "mode=1777", "cover", cover)
    run("mount", "-t", "tmpfs", "-o", "mode=0755", "volumes", "/var/lib")
    for path in plan["keep"]:
        if any(Path(path).is_relative_to(cover) for cover in plan["cover"]):
            place(sources[path], path)
    for where, path in plan["mounts"].items():
        place(sources[path], where)
    writable = {"/tmp", *(where for where in plan["writable"])}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        where = line.split()[4].replace("\\040", " ")
        # Otherwise a later mount covers it.
        if (
            where not in writable
            and not where.startswith(("/proc", "/dev", "/sys"))
            and os.path.ismount(where)
        ):
            run("mount", "-o", "remount,bind,ro", where)
    return sources


def keep(path: str, number: int) -> str:
    """Bind a folder or file to a second path that no mount hides."""
    selection = RETAINED_FOLDER / str(number)
    make_point(selection, Path(path).is_dir())
    run("mount", "--bind", path, str(selection))
    return str(selection)


def place(source: str, where: str) -> None:
    """Mount a kept folder or file at its path."""
    make_point(Path(where), Path(source).is_dir())
    run("mount", "--bind", source, where)


def make_point(where: Path, folder: bool) -> None:
    """Create a folder or file as a mount point."""
    (where if folder else where.parent).mkdir(parents=True, exist_ok=True)
    if not folder:
        where.touch()


def forward(ip: str, port: int, socket_file: str) -> None:
    """Forward a TCP port inside the namespace to a Unix socket of a database outside."""
    listener = socket.create_server((ip, port))

    def pass_on(source: socket.socket, goal: socket.socket) -> None:
        with contextlib.suppress(OSError):  # one side has closed the connection
            while received := source.recv(65_536):
                goal.sendall(received)
            goal.shutdown(socket.SHUT_WR)

    def serve() -> None:
        while True:
            client, _ = listener.accept()
            server = socket.socket(socket.AF_UNIX)
            server.connect(socket_file)
            for pair in ((client, server), (server, client)):
                threading.Thread(target=pass_on, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()


def as_user(plan: Mapping[str, Any], container: Mapping[str, Any]) -> list[str]:
    """Return the command of a container, run as its user.

    It has the group of the volumes, no capabilities, and no way to gain any.
    """
    ids = [f"--reuid={plan['uid']}", f"--regid={plan['gid']}", f"--groups={plan['groups']}"]
    return [
        "setpriv",
        *ids,
        "--no-new-privs",
        "--bounding-set=-all",
        "--inh-caps=-all",
        "--",
        *container["command"],
    ]


def start_companion(plan: Mapping[str, Any], container: Mapping[str, Any]) -> dict[str, Any]:
    """Start a container of another pod that runs until this process ends.

    Return whether its startup and readiness probes pass.
    """
    path = f"/tmp/{container['name']}"
    with open(path, "wb") as file:
        process = subprocess.Popen(
            as_user(plan, container), env=container["env"], stdout=file, stderr=file
        )
    started = wait_until(plan, process, container["probe"])
    return {
        "name": container["name"],
        "started": started,
        "ready": ask(plan, {**container["probe"], "path": "/readyz"}),
        "output": Path(path).read_text(errors="replace")[-5000:],
    }


def wait_until(
    plan: Mapping[str, Any], process: subprocess.Popen[bytes], probe: Mapping[str, Any]
) -> bool:
    """Return whether the startup probe passes before the container ends."""
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if ask(plan, probe)["status"] == 200:
            return True
        time.sleep(0.1)
    return False


def ask(plan: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Send one request to the pod's address, like a kubelet.

    The Host header is that address unless the plan sets another.
    """
    connection = connection_to(plan, record.get("port", plan["port"]))
    try:
        connection.request("GET", record["path"], headers=record.get("headers", {}))
        answer = connection.getresponse()
        return {
            **record,
            "status": answer.status,
            "text": answer.read().decode(errors="replace")[:2000],
        }
    except OSError as error:
        return {**record, "status": 0, "text": str(error)}
    finally:
        connection.close()


def connection_to(plan: Mapping[str, Any], port: int) -> http.client.HTTPConnection:
    """Connect by the probe's scheme; like a kubelet, without verification of certificates."""
    if plan["scheme"] == "HTTP":
        return http.client.HTTPConnection(plan["ip"], port, timeout=CALL_SECONDS)
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(plan["ip"], port, timeout=CALL_SECONDS, context=trusting)


def program(plan: Mapping[str, Any], container: Mapping[str, Any]) -> dict[str, Any]:
    """Run another container in the pod, such as that of `helm test`; status None on timeout."""
    try:
        process = subprocess.run(
            as_user(plan, container),
            env=container["env"],
            capture_output=True,
            text=True,
            timeout=plan["program_seconds"],
        )
    except subprocess.TimeoutExpired:
        return {
            "name": container["name"],
            "status": None,
            "output": f"not done within {plan['program_seconds']} s",
        }
    return {
        "name": container["name"],
        "status": process.returncode,
        "output": process.stdout + process.stderr,
    }


def end(plan: Mapping[str, Any], process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Send SIGTERM; return readiness and liveness during shutdown, its duration and exit status."""
    began = time.monotonic()
    process.terminate()
    ready = alive = 0
    while process.poll() is None and time.monotonic() - began < plan["grace"]:
        if ready != 503:
            ready = ask(plan, {"path": "/readyz"})["status"]
            alive = ask(plan, {"path": "/healthz"})["status"]
        time.sleep(0.1)
    return {
        "ready": ready,
        "alive": alive,
        "seconds": time.monotonic() - began,
        "status": process.poll(),
    }


def whole(arguments: Sequence[str]) -> None:
    """Read the plan, run it, and print the results."""
    with open(arguments[0]) as file:
        plan = json.load(file)
    print(json.dumps(main(plan)), flush=True)


if __name__ == "__main__":
    os.umask(0o022)
    whole(sys.argv[1:])
