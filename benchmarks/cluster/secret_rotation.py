"""Rotation of a Ray secret while a service trains on that Ray.

Predictions must continue, jobs must keep their place in the queue, and models must be unchanged.

`python -m benchmarks.cluster.secret_rotation --secret redis|token [--json FILE]` needs Linux and
namespaces, and Redis' programs for `--secret redis`. It takes three minutes on two free cores. The
set-up is that of `benchmarks.cluster.head_loss`: a head, two nodes, an API process and a runner,
which join by address, dashboard and token. Several jobs are queued. During the first one the secret
is changed as docs/operations.md describes:

- redis: the password with which the head connects to Redis. The existing Redis user gets a second
  password. The head is ended and started with it, as KubeRay does after a head pod is deleted. Then
  the first password is removed. The nodes keep running.
- token: Ray's token. The nodes keep the token they were started with. The API process and the
  runner read a file of their own, as when the kubelet mounts the Secret. That file changes, and the
  head and the nodes are ended and started with the new token.

Reported are the numbers of predictions and of failed predictions, the readiness of the service
during the rotation, whether the old secret is rejected, and the attempts, order and hashes of the
jobs. (For the database's password: `tests/deployment/test_chart_pods.py`.)
"""

from __future__ import annotations

import argparse
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.cluster.head_loss import HeadFailureRun
from benchmarks.cluster.isolated_run import parse_isolated, print_result
from benchmarks.cluster.raylets import nodes
from benchmarks.harness import machine
from tests.robustness.faults.stage import Stage, stage, until
from tests.robustness.faults.work import MIDDLE, ok

HEAD_GAP_SECONDS: Final = 5.0  # seconds from the end of a head's pod to the next one
LOOK: Final = 2.0  # seconds for which the old state is observed after the change
LONGER: Final = {
    **MIDDLE,
    "labels": 9000,
}  # a training that is still running when all processes have seen the change


class Password(HeadFailureRun):
    """Rotation of the Redis password."""

    shape = LONGER

    def take_head(self) -> float:
        """Add a second password, then kill the head."""
        self.old, self.new = self.ray.options["redis_password"], secrets.token_hex(16)
        self.details["redis_said"] = [
            self.redis(self.old, "ACL", "SETUSER", "default", f">{self.new}")
        ]
        done = self.job_share()
        time.sleep(LOOK)
        self.expect(
            self.ray.head.alive and self.job_share() >= done,
            "the head works on with the old password",
        )
        self.details["opened_by_old_and_new"] = [
            self.redis(each, "PING") for each in (self.old, self.new)
        ]
        return self.ray.head.kill()

    def bring_head(self) -> float:
        """Start a head with the new password, and check that the old one is rejected."""
        self.ray.options["redis_password"] = self.new
        back = super().bring_head()
        self.details["redis_said"].append(
            self.redis(self.new, "ACL", "SETUSER", "default", f"<{self.old}")
        )
        self.details["opened_by_old_afterwards"] = self.redis(self.old, "PING")
        self.expect(
            "WRONGPASS" in self.details["opened_by_old_afterwards"],
            "the old password opens nothing",
        )
        return back

    def job_share(self) -> int:
        """Return the number of classes that the running job has finished."""
        body = ok(self.service.http.get("/v1/jobs", params={"status": "RUNNING"}))["jobs"]
        return int((body[0].get("progress") or {}).get("done", 0)) if body else 0

    def redis(self, password: str, *words: str) -> str:
        """Run a Redis command and return its output."""
        host, _, port = self.ray.environment["RAY_REDIS_ADDRESS"].rpartition(":")
        command = ["redis-cli", "-h", host, "-p", port, "--no-auth-warning", "-a", password, *words]
        process = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        return (process.stdout + process.stderr).strip()


class Token(HeadFailureRun):
    """Rotation of Ray's token."""

    shape = LONGER

    def begin(self) -> None:
        """Start everything, and check that the dashboard accepts the token."""
        super().begin()
        self.expect(
            self.dashboard(self.ray.token.read_text().strip()) == 200,
            "the token opens the dashboard",
        )

    def take_head(self) -> float:
        """Change the token file, wait until readiness reports RAY, then kill the head.

        The API process and the runner read the new token, which the head does not accept.
        """
        self.old = self.ray.token.read_text().strip()
        changed = time.time()
        self.ray.token.write_text(secrets.token_hex(32))
        degraded = until(lambda: self.is_failing("RAY"), "/readyz says RAY", 60)
        self.details |= {
            "degraded_after_change": degraded,
            "seconds_to_degraded": round(time.time() - changed, 1),
        }
        running = ok(self.service.http.get("/v1/jobs", params={"status": "RUNNING"}))["jobs"]
        self.details["running_with_the_old_token"] = len(running)
        self.ray.head.kill()
        return changed  # readiness reports RAY from this moment

    def bring_head(self) -> float:
        """Start the head and the nodes with the new token, as KubeRay does with new pods."""
        new = self.ray.token.read_text().strip()
        Path(self.ray.environment["RAY_AUTH_TOKEN_PATH"]).write_text(new)
        back = super().bring_head()
        self.details["opened_by_old_and_new"] = [self.dashboard(each) for each in (self.old, new)]
        self.expect(
            self.details["opened_by_old_and_new"] == [403, 200],
            "the new token opens, the old one does not",
        )
        return back

    def is_failing(self, check: str) -> bool:
        """Return whether readiness lists a check as failing."""
        try:
            return check in self.service.http.get("/readyz").json().get("degraded", ())
        except httpx.TransportError:
            return False

    def dashboard(self, token: str) -> int:
        """Return the status code with which the dashboard answers a token."""
        opens = {"Authorization": f"Bearer {token}"}
        return httpx.get(
            f"{self.ray.dashboard}/api/jobs/", headers=opens, trust_env=False, timeout=60
        ).status_code


def played(set: Stage, chosen: argparse.Namespace) -> dict[str, Any]:
    """Run the whole scenario and return the observed details."""
    with nodes(set.place("r"), dashboard=True, redis=chosen.redis) as ray:
        if chosen.secret == "token":  # API and runner have a token file of their own
            own, ray.token = ray.token, set.folder / "mounted-token"
            ray.token.write_text(own.read_text())
            ray.token.chmod(0o600)
        ray.add()
        ray.add()
        play = {"redis": Password, "token": Token}[chosen.secret](set, ray, chosen)
        play.begin()
        play.head_goes()
        if play.details.get("broken"):
            print(play.runner.tail(40))
        return play.details


def main(values: list[str]) -> int:
    """Run the rotation and return the exit status, 0 if all expectations hold."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster.secret_rotation", description=__doc__
    )
    parser.add_argument(
        "--secret", choices=("redis", "token"), required=True, help="the secret to change"
    )
    chosen = parse_isolated(parser, values)
    chosen.redis, chosen.away, chosen.how = chosen.secret == "redis", HEAD_GAP_SECONDS, "kill"
    before = machine()
    with stage("credentials", "a secret of Ray is changed", runs=1, seed=0) as set:
        details = played(set, chosen)
    return print_result(
        details, chosen.json, benchmark="credentials", secret=chosen.secret, machine=before
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
