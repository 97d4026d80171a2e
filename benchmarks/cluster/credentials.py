"""A secret of Ray is changed under a service that trains on it: predictions go on, jobs keep their
place, models keep their bits.

`python -m benchmarks.cluster.credentials --secret redis|token [--json FILE]`; needs Linux,
namespaces, for redis Redis' programs; three minutes on two free cores. The stage is that of
`benchmarks.cluster.head`: head, two nodes, API and runner, which join by address, dashboard and
token; jobs are queued, and in the middle of the first the secret is changed as docs/operations.md
says:

redis  The head's password of Redis. A second password is given to the user that is there; the head
is ended and started with it, as KubeRay does with a head's pod that is deleted; the first password
is taken away. Nodes live on. token  Ray's token. Nodes have the one they started with; API and
runner have a file of their own, as a kubelet mounts the Secret. That file changes; head and nodes
are ended, and started with the new one.

Told: predictions asked and failed; what the service said of itself meanwhile; whether what holds
the old secret is refused; attempts, order and bits of the jobs. (The database's password: `python
-m tests.deployment.chart.rotation`.)
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.cluster.head import Play
from benchmarks.common import machine
from tests.robustness.faults.stage import Stage, enter, namespaces, stage, until
from tests.robustness.faults.work import MIDDLE, ok
from tests.support.ray_nodes import nodes

AWAY: Final = 5.0  # seconds from the end of a head's pod to the next one
LOOK: Final = 2.0  # seconds that the old state is watched after the secret has changed
LONGER: Final = {
    **MIDDLE,
    "labels": 9000,
}  # a training that is still under way when all have seen the change


class Password(Play):
    """The password of Redis."""

    shape = LONGER

    def take_head(self) -> float:
        """A second password; then the head ends."""
        self.old, self.new = self.ray._given["redis_password"], secrets.token_hex(16)
        self.facts["redis_said"] = [
            self.redis(self.old, "ACL", "SETUSER", "default", f">{self.new}")
        ]
        done = self.job_share()
        time.sleep(LOOK)
        self.expect(
            self.ray.head.alive and self.job_share() >= done,
            "the head works on with the old password",
        )
        self.facts["opened_by_old_and_new"] = [
            self.redis(each, "PING") for each in (self.old, self.new)
        ]
        return self.ray.head.kill()

    def bring_head(self) -> float:
        """A head with the new password; then the old one opens nothing."""
        self.ray._given["redis_password"] = self.new
        back = super().bring_head()
        self.facts["redis_said"].append(
            self.redis(self.new, "ACL", "SETUSER", "default", f"<{self.old}")
        )
        self.facts["opened_by_old_afterwards"] = self.redis(self.old, "PING")
        self.expect(
            "WRONGPASS" in self.facts["opened_by_old_afterwards"], "the old password opens nothing"
        )
        return back

    def job_share(self) -> int:
        """Classes that the job which runs has done."""
        found = ok(self.service.http.get("/v1/jobs", params={"status": "RUNNING"}))["jobs"]
        return int((found[0].get("progress") or {}).get("done", 0)) if found else 0

    def redis(self, password: str, *words: str) -> str:
        """What Redis says to a command."""
        host, _, port = self.ray.environment["RAY_REDIS_ADDRESS"].rpartition(":")
        command = ["redis-cli", "-h", host, "-p", port, "--no-auth-warning", "-a", password, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        return (done.stdout + done.stderr).strip()


class Token(Play):
    """The token of Ray."""

    shape = LONGER

    def begin(self) -> None:
        """Play.begin; then it is known which token opens the dashboard."""
        super().begin()
        self.expect(
            self.dashboard(self.ray.token.read_text().strip()) == 200,
            "the token opens the dashboard",
        )

    def take_head(self) -> float:
        """The file changes; API and runner read it, the head does not know it; then head and nodes
        end.
        """
        self.old = self.ray.token.read_text().strip()
        changed = time.time()
        self.ray.token.write_text(secrets.token_hex(32))
        degraded = until(lambda: self.standing("RAY"), "/readyz says RAY", 60)
        self.facts |= {
            "degraded_after_change": degraded,
            "seconds_to_degraded": round(time.time() - changed, 1),
        }
        running = ok(self.service.http.get("/v1/jobs", params={"status": "RUNNING"}))["jobs"]
        self.facts["running_with_the_old_token"] = len(running)
        self.ray.head.kill()
        return changed  # it is since then that readiness says RAY

    def bring_head(self) -> float:
        """Head and nodes with the new token, as KubeRay makes pods anew."""
        new = self.ray.token.read_text().strip()
        Path(self.ray.environment["RAY_AUTH_TOKEN_PATH"]).write_text(new)
        back = super().bring_head()
        self.facts["opened_by_old_and_new"] = [self.dashboard(each) for each in (self.old, new)]
        self.expect(
            self.facts["opened_by_old_and_new"] == [403, 200],
            "the new token opens, the old one does not",
        )
        return back

    def standing(self, check: str) -> bool:
        """Whether readiness names a check as amiss."""
        try:
            return check in self.service.http.get("/readyz").json().get("degraded", ())
        except httpx.TransportError:
            return False

    def dashboard(self, token: str) -> int:
        """What the dashboard answers to a token."""
        opens = {"Authorization": f"Bearer {token}"}
        return httpx.get(
            f"{self.ray.dashboard}/api/jobs/", headers=opens, trust_env=False, timeout=60
        ).status_code


def played(set: Stage, chosen: argparse.Namespace) -> dict[str, Any]:
    """The whole play; what was seen."""
    with nodes(set.place("r"), dashboard=True, redis=chosen.redis) as ray:
        if chosen.secret == "token":  # what API and runner read is no file of the nodes
            own, ray.token = ray.token, set.folder / "mounted-token"
            ray.token.write_text(own.read_text())
            ray.token.chmod(0o600)
        ray.add()
        ray.add()
        play = {"redis": Password, "token": Token}[chosen.secret](set, ray, chosen)
        play.begin()
        play.head_goes()
        if play.facts.get("broken"):
            print(play.runner.tail(40))
        return play.facts


def main(given: list[str]) -> int:
    """Exit status: 0 when all holds."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster.credentials", description=__doc__
    )
    parser.add_argument(
        "--secret", choices=("redis", "token"), required=True, help="which one is changed"
    )
    parser.add_argument(
        "--json", type=lambda text: Path(text).absolute(), help="write the result here too"
    )
    chosen = parser.parse_args(given)
    enter(given, module="benchmarks.cluster.credentials")
    if not namespaces():
        raise SystemExit(
            "there are no namespaces here: a head can't be told from the rest of the machine"
        )
    chosen.redis, chosen.away, chosen.how = chosen.secret == "redis", AWAY, "kill"
    before = machine()
    with stage("credentials", "a secret of Ray is changed", runs=1, seed=0) as set:
        facts = played(set, chosen)
    result = {
        "benchmark": "credentials",
        "secret": chosen.secret,
        "machine": before,
        "nodes": os.environ.get("FAULTS_INSIDE"),
        **facts,
    }
    text = json.dumps(result, sort_keys=True)
    if chosen.json is not None:
        chosen.json.write_text(text + "\n")
    print(text)
    return 1 if facts.get("broken") else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
