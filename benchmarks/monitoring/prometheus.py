"""A private Prometheus for the length of a `with` statement.

It is Debian's program, with its own folder and a free port of the loopback interface.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from xcray.workers.ray.session import free_port

RULES: Final = Path(__file__).parents[2] / "helm" / "xcray" / "monitoring" / "rules.yaml"
SCRAPE: Final = 3  # seconds
START_SECONDS: Final = 60.0


class Prometheus:
    """HTTP client of a Prometheus whose targets are files in its folder (see `scrape`)."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = folder
        self._http = httpx.Client(base_url=url, trust_env=False, timeout=60.0)

    def scrape(self, job: str, targets: Sequence[str]) -> None:
        """Scrape these targets (host:port) as `job` from now on."""
        aside = self._folder / f"{job}.new"
        aside.write_text(json.dumps([{"targets": list(targets)}]))
        aside.rename(self._folder / f"{job}.json")

    def ask(self, path: str, **query: Any) -> Any:
        """Return the answer of the API. Raises ValueError with the reason if it is an error."""
        answer = self._http.get(f"/api/v1/{path}", params=query).json()
        if answer["status"] != "success":
            raise ValueError(f"{query}: {answer['error']}")
        return answer["data"]

    def series(
        self, expr: str, begin: float, end: float, step: float
    ) -> list[tuple[Mapping[str, str], list[tuple[float, float]]]]:
        """Return labels and (time, value) pairs of each series of an expression, without NaN."""
        response = self.ask("query_range", query=expr, start=begin, end=end, step=step)["result"]
        out = [
            (each["metric"], [(float(at), float(value)) for at, value in each["values"]])
            for each in response
        ]
        return [
            (labels, selection)
            for labels, values in out
            if (selection := [(at, value) for at, value in values if value == value])
        ]


@contextlib.contextmanager
def prometheus(folder: Path, jobs: Sequence[str]) -> Iterator[Prometheus]:
    """Start a Prometheus with our rules and the jobs of `scrape`.

    Raises SystemExit if the program is not installed.
    """
    program = shutil.which("prometheus")
    if program is None:
        raise SystemExit(
            "prometheus is not installed: apt-get install prometheus, then disable its system service"
        )
    folder.mkdir(parents=True)
    relabel = [{"regex": "SessionName|otel_scope_.*", "action": "labeldrop"}]
    configs = [
        {
            "job_name": job,
            "file_sd_configs": [{"files": [str(folder / f"{job}.json")], "refresh_interval": "2s"}],
        }
        | ({"metric_relabel_configs": relabel} if job == "ray" else {})
        for job in jobs
    ]
    every = {"scrape_interval": f"{SCRAPE}s", "evaluation_interval": "5s"}
    config = {"global": every, "rule_files": [RULES.name], "scrape_configs": configs}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    shutil.copy(RULES, folder)  # Prometheus' pages show paths, so use a neutral one
    command = [program, "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    with open(folder / "prometheus.log", "ab") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log, cwd=folder
        )
        try:
            yield _ready(Prometheus(f"http://127.0.0.1:{port}", folder), process, folder)
        finally:
            process.terminate()
            process.wait(60)


def _ready(result: Prometheus, process: subprocess.Popen[bytes], folder: Path) -> Prometheus:
    """Wait until Prometheus answers. Raises SystemExit with the end of its log if it does not."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{result.url}/-/ready", trust_env=False).status_code == 200:
                return result
        time.sleep(0.1)
    raise SystemExit((folder / "prometheus.log").read_text()[-2000:])
