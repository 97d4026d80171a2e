"""python -m tests.deployment.chart.rotation: the database's password and the first admin key are
changed under pods that answer and train.

Processes of this machine with the commands and the environment of the rendered pods (mode cluster),
on a private PostgreSQL: pods of the API behind a stand-in for a Service (it sends requests to pods
that are ready), and a runner. Two ways, as in docs/operations.md:

roles     A second role that acts as the first; its URL and another key go into the Secrets, pods
are replaced, a new one first, and the first role may no longer log in. Predictions are asked for
all the time, and the list of jobs, which needs the store. password  One role, ALTER ROLE ...
PASSWORD, and its connections ended, as a restart of the server does: what fails until new pods are
there.

Prints what was seen, and one JSON line. Exit status: 0 all held, 1 not. Two minutes on two free
cores.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import httpx

from tests.deployment.chart.helm import template_values
from tests.deployment.chart.pod import runnable
from tests.robustness.faults.stage import free_port, until
from tests.support.live_service import plain_model
from tests.support.postgres import PASSWORD, PostgresServer, private_postgres
from xcray.jobs.home import Home
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.tokens import create_token, import_token
from xcray.model.registry import Registry

VALUES: Final[dict[str, Any]] = {
    "mode": "cluster",
    "api": {"drainSeconds": 6, "graceSeconds": 5},
    "auth": {"existingSecret": "admin"},
    "store": {"existingSecret": "store"},
    "settings": {"job_nice": 0, "disk_reserve_bytes": 0},
}
ASK: Final = {"instances": [{"indices": [1, 3], "values": [1.0, 0.5]}], "top_k": 1}
PAUSE: Final = 0.02
DRAIN: Final = 1.0  # the balancer here learns at once who leaves
JOBS: Final = 3
LOOK: Final = 5.0  # seconds that a state is watched
DATA: Final = {"rows": 6000, "features": 3000, "labels": 3000, "seed": 7}


def manifests() -> dict[str, Any]:
    """Pod specs of a release in mode cluster."""
    found = {
        each["kind"] + "/" + each["metadata"]["name"]: each["spec"]
        for each in template_values(VALUES)
        if "spec" in each
    }
    return {name: spec["template"]["spec"] for name, spec in found.items() if "template" in spec}


class Release:
    """A namespace: its Secrets, its home, its pods. specs: of `manifests`."""

    def __init__(self, specs: Mapping[str, Any], folder: Path, url: str) -> None:
        self.specs = specs
        self.folder = folder
        self.home = Home(folder / "home")
        self.secrets = {"admin": {"key": create_token().token}, "store": {"url": url}}
        self.pods: list[Pod] = []

    def run(self, name: str, number: int = 0) -> dict[str, Any]:
        """Run a Job's container, or an init container of a Deployment, to its end; what it said as
        JSON.
        """
        kind = "containers" if name.startswith("Job/") else "initContainers"
        container = self.container(self.specs[name][kind][number])
        command = (
            container["command"]
            if "--json" in container["command"]
            else [*container["command"], "--json"]
        )
        done = subprocess.run(
            command, env=container["env"], capture_output=True, text=True, timeout=300
        )
        if done.returncode:
            raise RuntimeError(f"{name}: {done.stdout}{done.stderr}")
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def container(self, container: Mapping[str, Any], **more: str) -> dict[str, Any]:
        """Command and environment, with this machine's folders for the pod's; each start reads the
        Secrets as they are now.
        """
        made = runnable(container, self.secrets)
        (self.folder / "key").write_text(self.secrets["admin"]["key"])
        made["command"] = [
            word.replace("/run/secrets/xcray-admin/key", str(self.folder / "key"))
            for word in made["command"]
        ]
        made["env"] |= {
            "XCRAY_HOME": str(self.home.path),
            "HOME": str(self.folder),
            "OMP_NUM_THREADS": "1",
            **more,
        }
        return made

    def start(self, name: str) -> Pod:
        """A pod of a Deployment: what comes before it, then the pod; returns when it is ready."""
        self.run(f"Deployment/{name}", -1)
        made = Pod(self, name)
        self.pods.append(made)
        made.ready()
        return made

    def grace(self, name: str) -> float:
        """Seconds until a kubelet kills a pod of a Deployment."""
        return float(self.specs[f"Deployment/{name}"]["terminationGracePeriodSeconds"])

    @property
    def key(self) -> dict[str, str]:
        """Headers with the key that is in the Secret now."""
        return {"Authorization": f"Bearer {self.secrets['admin']['key']}"}

    def ask(
        self, method: str, path: str, *, key: Mapping[str, str] | None = None, **what: Any
    ) -> httpx.Response:
        """One request, as through the Service: to a pod that is ready and does not end."""
        pod = next(
            (each for each in reversed(self.pods) if each.name == "xcray-api" and each.serves), None
        )
        if pod is None:
            raise httpx.ConnectError("the Service has no pod")
        return pod.http.request(method, path, headers=dict(key or self.key), **what)


class Pod:
    """A pod's container as a process."""

    def __init__(self, release: Release, name: str) -> None:
        self.name = name
        self.serves = False
        self.port = free_port()
        own = {
            "XCRAY_HOST": "127.0.0.1",
            "XCRAY_PORT": str(self.port),
            "XCRAY_DRAIN_SECONDS": str(DRAIN),
        }
        own |= {"XCRAY_RUNNER_HOST": "127.0.0.1", "XCRAY_RUNNER_PORT": str(self.port)}
        container = release.container(release.specs[f"Deployment/{name}"]["containers"][0], **own)
        self.log = release.folder / f"{name}-{self.port}.log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                container["command"],
                env=container["env"],
                stdout=out,
                stderr=out,
                cwd=release.folder,
            )
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}", trust_env=False, timeout=120
        )

    def standing(self) -> int:
        """What readiness answers; 0 where nobody does."""
        with suppress(httpx.HTTPError):
            return self.http.get("/readyz").status_code
        return 0

    def ready(self) -> None:
        """Wait until it is welcome."""

        def welcome() -> bool:
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-3000:]
            return self.standing() == 200

        until(welcome, f"{self.name} is ready", 300)
        self.serves = True

    def end(self, seconds: float) -> float | None:
        """As a kubelet does: SIGTERM, and after so many seconds SIGKILL. Seconds that it took; None
        where it had to be killed, or did not end with 0.
        """
        self.serves, began = False, time.monotonic()
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            return round(time.monotonic() - began, 1) if self.process.wait(seconds) == 0 else None
        self.process.kill()
        return None

    def kill(self) -> None:
        """At the end of a play."""
        self.process.kill()
        self.process.wait()
        self.http.close()


class Clients(threading.Thread):
    """Somebody who asks for predictions and for the list of jobs all the time, with the key from
    before; counts what came.
    """

    def __init__(self, release: Release) -> None:
        super().__init__(daemon=True)
        self.release = release
        self.key = release.key
        self.over = threading.Event()
        self.predicted = Counter[str]()
        self.listed = Counter[str]()

    def run(self) -> None:
        """The thread."""
        while not self.over.wait(PAUSE):
            self.predicted[
                self.told(
                    lambda: self.release.ask(
                        "POST", "/v1/models/plain:predict", json=ASK, key=self.key
                    )
                )
            ] += 1
            self.listed[self.told(lambda: self.release.ask("GET", "/v1/jobs", key=self.key))] += 1

    def told(self, ask: Callable[[], httpx.Response]) -> str:
        """200, or what it was instead."""
        try:
            answer = ask()
        except httpx.HTTPError as error:
            return type(error).__name__
        return "200" if answer.is_success else f"{answer.status_code} {answer.json().get('code')}"


class Drill:
    """A release on a database of its own, with a role that owns it. Ends with the block."""

    def __init__(
        self, server: PostgresServer, folder: Path, specs: Mapping[str, Any], runner: bool
    ) -> None:
        self.server = server
        self.database = server.database().rpartition("/")[2]
        self.tag = self.database  # roles belong to the server: no two drills may share one
        self.sql(
            f"CREATE ROLE {self.tag}_a LOGIN PASSWORD '{PASSWORD}'",
            f"ALTER DATABASE {self.database} OWNER TO {self.tag}_a",
        )
        self.release = Release(specs, folder, self.url("a"))
        self.runner = runner
        self.facts = dict[str, Any]()
        self.broken: list[str] = []

    def __enter__(self) -> Drill:
        plain_model(self.release.folder / "staged")
        Registry(self.release.home.models).publish("plain", self.release.folder / "staged")
        self.prepare()
        self.release.pods.append(Pod(self.release, "xcray-api"))
        self.release.pods[0].ready()
        if self.runner:
            self.release.start("xcray-runner")
        self.clients = Clients(self.release)
        self.expect(
            self.release.ask("POST", "/v1/models/plain:predict", json=ASK).status_code == 200,
            "the model answers",
        )
        self.jobs = self.submitted() if self.runner else []
        self.clients.start()
        return self

    def prepare(self) -> None:
        """What the hook and the init container do at the first install; at the upgrade they do it
        themselves.
        """
        about = self.release.specs["Deployment/xcray-api"]["initContainers"][-1]["args"]
        token = import_token(self.release.secrets["admin"]["key"])
        store = JobStore(self.url("a"))
        name = next(word.removeprefix("--name=") for word in about if word.startswith("--name="))
        store.add_key(
            tenant="default", name=name, scopes=["admin"], digest=token.digest, key_id=token.key_id
        )
        store.close()

    def __exit__(self, *_: object) -> None:
        self.clients.over.set()
        self.clients.join(120)
        for pod in self.release.pods:
            pod.kill()

    def url(self, role: str, password: str = PASSWORD) -> str:
        """The database by a role."""
        quoted = password.replace(" ", "%20")
        return (
            f"postgresql://{self.tag}_{role}:{quoted}@127.0.0.1:{self.server.port}/{self.database}"
        )

    def sql(self, *statements: str) -> None:
        """As the database's operator."""
        for statement in statements:
            self.server.run(statement, self.database)

    def note(self, **facts: Any) -> None:
        """Something that was seen, told at once."""
        self.facts |= facts
        print(facts, flush=True)

    def expect(self, holds: bool, what: str) -> None:
        """Something that must hold."""
        self.broken += [] if holds else [what]

    def submitted(self) -> list[str]:
        """Jobs in the queue, the first under way."""
        ask = self.release.ask
        options = {"test_fraction": 0.2, "synthetic": DATA}
        made = ask(
            "POST", "/v1/datasets", json={"name": "d", "format": "synthetic", "options": options}
        ).json()["id"]
        until(
            lambda: ask("GET", f"/v1/datasets/{made}").json()["status"] == "READY", "data set", 120
        )
        body = {"dataset": made, "solver": "ppdsparse", "pool": "serial", "params": {"eps": 1e-5}}
        jobs = [
            ask("POST", "/v1/jobs", json={**body, "model": f"m{number}"}).json()["id"]
            for number in range(JOBS)
        ]
        until(
            lambda: (self.job(jobs[0]).get("progress") or {}).get("done", 0) > 0,
            "the first job trains",
            120,
        )
        return jobs

    def job(self, job: str) -> dict[str, Any]:
        """A job as it is now."""
        found: dict[str, Any] = self.release.ask("GET", f"/v1/jobs/{job}").json()
        return found

    def second_role(self) -> None:
        """A role that acts as the first: what it makes is the first's, so either may go."""
        a, b = f"{self.tag}_a", f"{self.tag}_b"
        self.sql(
            f"CREATE ROLE {b} LOGIN PASSWORD 'another' IN ROLE {a}",
            f"ALTER ROLE {b} SET role = {a}",
        )

    def upgrade(self, url: str) -> list[int]:
        """The Secrets change, and `helm upgrade` follows: migrations, then pods, a new one first;
        runners end before the next.

        In how many hours older keys end.
        """
        release, leaving = self.release, self.release.pods[:]
        release.secrets = {"admin": {"key": create_token().token}, "store": {"url": url}}
        release.run("Job/xcray-migrate")
        for old in leaving:
            if old.name == "xcray-runner":
                running = release.ask("GET", "/v1/jobs", params={"status": "RUNNING"}).json()[
                    "jobs"
                ]
                self.facts["given_back"] = [
                    (self.jobs.index(each["id"]), (each.get("progress") or {}).get("done"))
                    for each in running
                ]
                self.facts["runner_ended_after_s"] = old.end(release.grace(old.name))
            release.start(old.name)
            if old.name == "xcray-api":
                self.facts["api_ended_after_s"] = old.end(release.grace(old.name))
        return [round((each - time.time()) / 3600) for each in self.ends() if each is not None]

    def ends(self) -> list[float | None]:
        """When keys of the store end, Unix seconds, in order of making."""
        return [
            row[0]
            for row in self.server.run("SELECT expires FROM keys ORDER BY created", self.database)
        ]

    def alone(self, role: str, other: str) -> None:
        """The other role may log in no more, and has no session."""
        self.sql(f"ALTER ROLE {self.tag}_{other} NOLOGIN")
        left = self.server.run(
            f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{self.tag}_{other}'"
        )[0][0]
        self.expect(left == 0, f"{left} sessions of the old role are left")
        asked = [self.release.ask("GET", "/v1/jobs").status_code for _ in range(20)]
        self.expect(asked == [200] * 20, f"the store answers by the new role alone: {asked}")

    def judge(self) -> None:
        """Jobs have ended, in their order, and nobody missed an answer."""
        ends = [
            until(lambda job=job: self.ended(job), f"the end of {job}", 300) for job in self.jobs
        ]
        self.clients.over.set()
        self.clients.join(120)
        started = [each["started"] for each in ends]
        self.facts |= {
            "statuses": [each["status"] for each in ends],
            "attempts": [each["attempt"] for each in ends],
        }
        self.facts |= {"order_kept": started == sorted(started)}
        self.facts |= {
            "predictions": dict(self.clients.predicted),
            "lists_of_jobs": dict(self.clients.listed),
        }
        self.expect(set(self.clients.predicted) == {"200"}, "a prediction failed")
        self.expect(
            all(each["status"] == "SUCCEEDED" for each in ends) and self.facts["order_kept"],
            "jobs and their order",
        )

    def ended(self, job: str) -> dict[str, Any] | None:
        """A job that has ended."""
        found = self.job(job)
        return found if found["status"] in ("SUCCEEDED", "FAILED", "CANCELLED") else None


def by_roles(drill: Drill) -> None:
    """The way without a gap."""
    drill.second_role()
    drill.facts["older_keys_end_in_hours"] = drill.upgrade(drill.url("b", "another"))
    drill.alone("b", "a")
    drill.expect(
        None not in [drill.facts.get(f"{each}_ended_after_s", 0) for each in ("api", "runner")],
        "pods end by themselves",
    )
    drill.expect(drill.facts["older_keys_end_in_hours"] == [24], "the first key ends a day later")
    drill.expect(set(drill.clients.listed) <= {"200"}, "the list of jobs failed")


def by_password(drill: Drill) -> None:
    """The way with a gap, and how wide it is."""
    tag = drill.tag
    drill.sql(f"ALTER ROLE {tag}_a PASSWORD 'another'")
    time.sleep(LOOK)
    drill.note(open_connections_live_on=dict(drill.clients.listed))
    drill.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{tag}_a'")
    time.sleep(LOOK)
    drill.note(
        lists_once_they_are_cut=dict(drill.clients.listed),
        predictions_then=dict(drill.clients.predicted),
    )
    drill.note(readiness_without_the_store=[pod.standing() for pod in drill.release.pods])
    drill.note(pods_replaced=drill.upgrade(drill.url("a", "another")))
    before = drill.clients.listed.total() - drill.clients.listed["200"]
    time.sleep(LOOK)
    drill.expect(
        drill.clients.listed.total() - drill.clients.listed["200"] <= before + 1,
        "lists of jobs come again",
    )


WAYS: Final[dict[str, Callable[[Drill], None]]] = {"roles": by_roles, "password": by_password}


def main(given: list[str]) -> int:
    """Play both ways, or one."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.deployment.chart.rotation", description=__doc__
    )
    parser.add_argument(
        "--way",
        choices=sorted(WAYS),
        action="append",
        help="again for several; both where none is named",
    )
    options = parser.parse_args(given)
    os.environ.pop("XCRAY_HOME", None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    told: dict[str, Any] = {}
    for way in options.way or sorted(WAYS):
        with ExitStack() as held:
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="xr-")))
            server = held.enter_context(private_postgres())
            drill = held.enter_context(Drill(server, folder, manifests(), runner=True))
            WAYS[way](drill)
            drill.judge()
            told[way] = {**drill.facts, "broken": drill.broken}
            print(json.dumps(told[way], indent=1), flush=True)
    print(json.dumps(told))
    return 1 if any(each["broken"] for each in told.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
