"""Change the database password and the first admin key while pods answer requests and train.

    python -m tests.deployment.chart.rotation

Processes of this machine run with the commands and environment of the rendered pods (mode cluster)
on a private PostgreSQL: a runner, and API pods behind a simulated Service, which sends requests to
ready pods. There are two procedures, as in docs/operations.md:

roles     A second role acts as the first. Its URL and another key go into the Secrets, and pods are
          replaced, each after its successor is ready. Then the first role can no longer log in.
          Clients send predictions and requests for the list of jobs, which needs the store, all the
          time.
password  One role gets another password by ALTER ROLE, and its connections are ended, as by a
          restart of the server. The run shows what fails until the new pods are ready.

The output shows the observations and one JSON line. The exit status is 0 if all checks pass and 1
otherwise. The run takes two minutes on two idle cores.
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
DRAIN: Final = 1.0  # the simulated Service knows at once which pod ends
JOBS: Final = 3
LOOK: Final = 5.0  # seconds of observation of a state
DATA: Final = {"rows": 6000, "features": 3000, "labels": 3000, "seed": 7}


def manifests() -> dict[str, Any]:
    """Return the pod specs of a release in mode cluster."""
    results = {
        each["kind"] + "/" + each["metadata"]["name"]: each["spec"]
        for each in template_values(VALUES)
        if "spec" in each
    }
    return {name: spec["template"]["spec"] for name, spec in results.items() if "template" in spec}


class Release:
    """A namespace with its Secrets, home and pods. specs: of `manifests`."""

    def __init__(self, specs: Mapping[str, Any], folder: Path, url: str) -> None:
        self.specs = specs
        self.folder = folder
        self.home = Home(folder / "home")
        self.secrets = {"admin": {"key": create_token().token}, "store": {"url": url}}
        self.pods: list[Pod] = []

    def run(self, name: str, number: int = 0) -> dict[str, Any]:
        """Run a container of a Job or an init container of a Deployment; return its JSON."""
        kind = "containers" if name.startswith("Job/") else "initContainers"
        container = self.container(self.specs[name][kind][number])
        command = (
            container["command"]
            if "--json" in container["command"]
            else [*container["command"], "--json"]
        )
        process = subprocess.run(
            command, env=container["env"], capture_output=True, text=True, timeout=300
        )
        if process.returncode:
            raise RuntimeError(f"{name}: {process.stdout}{process.stderr}")
        document: dict[str, Any] = json.loads(process.stdout)
        return document

    def container(self, container: Mapping[str, Any], **more: str) -> dict[str, Any]:
        """Return command and environment, with folders of this machine in place of the pod's.

        Each start uses the current Secrets.
        """
        result = runnable(container, self.secrets)
        (self.folder / "key").write_text(self.secrets["admin"]["key"])
        result["command"] = [
            word.replace("/run/secrets/xcray-admin/key", str(self.folder / "key"))
            for word in result["command"]
        ]
        result["env"] |= {
            "XCRAY_HOME": str(self.home.path),
            "HOME": str(self.folder),
            "OMP_NUM_THREADS": "1",
            **more,
        }
        return result

    def start(self, name: str) -> Pod:
        """Run the last init container of a Deployment, start its pod, and wait until ready."""
        self.run(f"Deployment/{name}", -1)
        result = Pod(self, name)
        self.pods.append(result)
        result.ready()
        return result

    def grace(self, name: str) -> float:
        """Return the seconds until a kubelet kills a pod of a Deployment."""
        return float(self.specs[f"Deployment/{name}"]["terminationGracePeriodSeconds"])

    @property
    def key(self) -> dict[str, str]:
        """Headers with the current key of the Secret."""
        return {"Authorization": f"Bearer {self.secrets['admin']['key']}"}

    def ask(
        self, method: str, path: str, *, key: Mapping[str, str] | None = None, **what: Any
    ) -> httpx.Response:
        """Send one request as through the Service: to a ready pod that is not ending."""
        pod = next(
            (each for each in reversed(self.pods) if each.name == "xcray-api" and each.serves), None
        )
        if pod is None:
            raise httpx.ConnectError("the Service has no pod")
        return pod.http.request(method, path, headers=dict(key or self.key), **what)


class Pod:
    """The container of a pod as a process."""

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

    def readiness_status(self) -> int:
        """Return the status of the readiness check; 0 without a response."""
        with suppress(httpx.HTTPError):
            return self.http.get("/readyz").status_code
        return 0

    def ready(self) -> None:
        """Wait until the pod is ready."""

        def welcome() -> bool:
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-3000:]
            return self.readiness_status() == 200

        until(welcome, f"{self.name} is ready", 300)
        self.serves = True

    def end(self, seconds: float) -> float | None:
        """End the pod like a kubelet: SIGTERM, and SIGKILL after `seconds`.

        Return the seconds until its end, or None if it was killed or ended with an error.
        """
        self.serves, began = False, time.monotonic()
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            return round(time.monotonic() - began, 1) if self.process.wait(seconds) == 0 else None
        self.process.kill()
        return None

    def kill(self) -> None:
        """Kill the pod at the end of a run."""
        self.process.kill()
        self.process.wait()
        self.http.close()


class Clients(threading.Thread):
    """A client that sends predictions and requests for the job list all the time.

    It uses the first key and counts the responses.
    """

    def __init__(self, release: Release) -> None:
        super().__init__(daemon=True)
        self.release = release
        self.key = release.key
        self.over = threading.Event()
        self.predicted = Counter[str]()
        self.listed = Counter[str]()

    def run(self) -> None:
        """Run the thread."""
        while not self.over.wait(PAUSE):
            self.predicted[
                self.outcome_of(
                    lambda: self.release.ask(
                        "POST", "/v1/models/plain:predict", json=ASK, key=self.key
                    )
                )
            ] += 1
            self.listed[
                self.outcome_of(lambda: self.release.ask("GET", "/v1/jobs", key=self.key))
            ] += 1

    def outcome_of(self, ask: Callable[[], httpx.Response]) -> str:
        """Return 200, or the error."""
        try:
            answer = ask()
        except httpx.HTTPError as error:
            return type(error).__name__
        return "200" if answer.is_success else f"{answer.status_code} {answer.json().get('code')}"


class Drill:
    """A release on its own database and owner role. Ends with the block."""

    def __init__(
        self, server: PostgresServer, folder: Path, specs: Mapping[str, Any], runner: bool
    ) -> None:
        self.server = server
        self.database = server.database().rpartition("/")[2]
        self.tag = self.database  # roles belong to the server, so each run needs its own names
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
        """Add the key as the hook and the init container do at the first installation.

        At the upgrade they run themselves.
        """
        about = self.release.specs["Deployment/xcray-api"]["initContainers"][-1]["args"]
        token = import_token(self.release.secrets["admin"]["key"])
        store = JobStore(self.url("a"))
        name = next(word.removeprefix("--name=") for word in about if word.startswith("--name="))
        store.keys.add(
            tenant="default", name=name, scopes=["admin"], digest=token.digest, key_id=token.key_id
        )
        store.close()

    def __exit__(self, *_: object) -> None:
        self.clients.over.set()
        self.clients.join(120)
        for pod in self.release.pods:
            pod.kill()

    def url(self, role: str, password: str = PASSWORD) -> str:
        """Return the URL of the database for a role."""
        quoted = password.replace(" ", "%20")
        return (
            f"postgresql://{self.tag}_{role}:{quoted}@127.0.0.1:{self.server.port}/{self.database}"
        )

    def sql(self, *statements: str) -> None:
        """Run statements as the administrator of the database."""
        for statement in statements:
            self.server.run(statement, self.database)

    def note(self, **facts: Any) -> None:
        """Record facts and print them at once."""
        self.facts |= facts
        print(facts, flush=True)

    def expect(self, holds: bool, what: str) -> None:
        """Record `what` as broken unless the condition holds."""
        self.broken += [] if holds else [what]

    def submitted(self) -> list[str]:
        """Submit jobs and wait until the first one trains; return their ids."""
        ask = self.release.ask
        options = {"test_fraction": 0.2, "synthetic": DATA}
        document = ask(
            "POST", "/v1/datasets", json={"name": "d", "format": "synthetic", "options": options}
        ).json()["id"]
        until(
            lambda: ask("GET", f"/v1/datasets/{document}").json()["status"] == "READY",
            "data set",
            120,
        )
        body = {
            "dataset": document,
            "solver": "ppdsparse",
            "pool": "serial",
            "params": {"eps": 1e-5},
        }
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
        """Return the current state of a job."""
        response: dict[str, Any] = self.release.ask("GET", f"/v1/jobs/{job}").json()
        return response

    def second_role(self) -> None:
        """Create a role that acts as the first, also as owner of objects, so either can go."""
        a, b = f"{self.tag}_a", f"{self.tag}_b"
        self.sql(
            f"CREATE ROLE {b} LOGIN PASSWORD 'another' IN ROLE {a}",
            f"ALTER ROLE {b} SET role = {a}",
        )

    def upgrade(self, url: str) -> list[int]:
        """Change the Secrets, run the migrations, and replace the pods like `helm upgrade`.

        A new API pod starts before the old one ends; a runner ends before the next starts.
        Return in how many hours the older keys expire.
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
        return [
            round((each - time.time()) / 3600) for each in self.key_expiries() if each is not None
        ]

    def key_expiries(self) -> list[float | None]:
        """Return the expiry of the keys in the store (Unix seconds) in order of creation."""
        return [
            row[0]
            for row in self.server.run("SELECT expires FROM keys ORDER BY created", self.database)
        ]

    def check_only_role(self, role: str, other: str) -> None:
        """Lock out the other role; check that it has no session and the store still answers."""
        self.sql(f"ALTER ROLE {self.tag}_{other} NOLOGIN")
        left = self.server.run(
            f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{self.tag}_{other}'"
        )[0][0]
        self.expect(left == 0, f"{left} sessions of the old role are left")
        response = [self.release.ask("GET", "/v1/jobs").status_code for _ in range(20)]
        self.expect(response == [200] * 20, f"the store answers by the new role alone: {response}")

    def judge(self) -> None:
        """Check that all jobs succeeded in order and that no prediction failed."""
        key_expiries = [
            until(lambda job=job: self.ended(job), f"the end of {job}", 300) for job in self.jobs
        ]
        self.clients.over.set()
        self.clients.join(120)
        started = [each["started"] for each in key_expiries]
        self.facts |= {
            "statuses": [each["status"] for each in key_expiries],
            "attempts": [each["attempt"] for each in key_expiries],
        }
        self.facts |= {"order_kept": started == sorted(started)}
        self.facts |= {
            "predictions": dict(self.clients.predicted),
            "lists_of_jobs": dict(self.clients.listed),
        }
        self.expect(set(self.clients.predicted) == {"200"}, "a prediction failed")
        self.expect(
            all(each["status"] == "SUCCEEDED" for each in key_expiries)
            and self.facts["order_kept"],
            "jobs and their order",
        )

    def ended(self, job: str) -> dict[str, Any] | None:
        """Return a job if it has finished, else None."""
        result = self.job(job)
        return result if result["status"] in ("SUCCEEDED", "FAILED", "CANCELLED") else None


def by_roles(drill: Drill) -> None:
    """Run the procedure without downtime."""
    drill.second_role()
    drill.facts["older_keys_end_in_hours"] = drill.upgrade(drill.url("b", "another"))
    drill.check_only_role("b", "a")
    drill.expect(
        None not in [drill.facts.get(f"{each}_ended_after_s", 0) for each in ("api", "runner")],
        "pods end by themselves",
    )
    drill.expect(drill.facts["older_keys_end_in_hours"] == [24], "the first key ends a day later")
    drill.expect(set(drill.clients.listed) <= {"200"}, "the list of jobs failed")


def by_password(drill: Drill) -> None:
    """Run the procedure with downtime, and measure it."""
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
    drill.note(readiness_without_the_store=[pod.readiness_status() for pod in drill.release.pods])
    drill.note(pods_replaced=drill.upgrade(drill.url("a", "another")))
    before = drill.clients.listed.total() - drill.clients.listed["200"]
    time.sleep(LOOK)
    drill.expect(
        drill.clients.listed.total() - drill.clients.listed["200"] <= before + 1,
        "lists of jobs succeed again",
    )


WAYS: Final[dict[str, Callable[[Drill], None]]] = {"roles": by_roles, "password": by_password}


def main(values: list[str]) -> int:
    """Run both procedures, or one."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.deployment.chart.rotation", description=__doc__
    )
    parser.add_argument(
        "--way",
        choices=sorted(WAYS),
        action="append",
        help="again for several; both where none is named",
    )
    options = parser.parse_args(values)
    os.environ.pop("XCRAY_HOME", None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    results: dict[str, Any] = {}
    for way in options.way or sorted(WAYS):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xr-")))
            server = stack.enter_context(private_postgres())
            drill = stack.enter_context(Drill(server, folder, manifests(), runner=True))
            WAYS[way](drill)
            drill.judge()
            results[way] = {**drill.facts, "broken": drill.broken}
            print(json.dumps(results[way], indent=1), flush=True)
    print(json.dumps(results))
    return 1 if any(each["broken"] for each in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
