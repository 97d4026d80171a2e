"""`xcray top`: a reading of a server, its rates, and what a key without rights sees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.live_service import plain_model, serving, settings_for
from xcray.cli.main import main
from xcray.cli.service.top import Overview, lines_of, p99_limit, parse_samples, sum_of
from xcray.client import Client
from xcray.service.app import create_app

METRICS = """# HELP xcray_http_requests_total Requests.
xcray_http_requests_total{code="200",route="a"} 30.0
xcray_http_requests_total{code="404",route="b"} 2
xcray_predict_duration_seconds_bucket{le="0.001",model="m"} 90
xcray_predict_duration_seconds_bucket{le="0.01",model="m"} 98
xcray_predict_duration_seconds_bucket{le="0.1",model="m"} 100
xcray_predict_duration_seconds_bucket{le="+Inf",model="m"} 100
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Serve a registry with one model, without keys."""
    app = create_app(settings_for(tmp_path / "home"))
    plain_model(tmp_path / "staged")
    app.state.app_state.registry.publish("small", tmp_path / "staged")
    with serving(app) as url:
        yield url


def test_figures_of_metrics() -> None:
    samples = parse_samples(METRICS)
    assert sum_of(samples, "xcray_http_requests_total") == 32.0
    assert p99_limit(samples) == 0.1
    assert p99_limit([]) is None


def test_a_reading(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Client(server) as client:
        row = {"indices": [0], "values": [1.0]}
        client.predict("small", [row])
        overview = Overview(client)
        first, second = overview.read(), overview.read()
    assert first["ready"] is True
    assert first["models"] == 1
    assert first["in_memory"] == {"small": [1]}
    assert first["requests_per_second"] is None
    assert second["requests_per_second"] > 0.0
    assert second["p99_seconds"] > 0.0
    assert second["disk_bytes"] > second["disk_free_bytes"] > 0.0
    lines = "\n".join(lines_of(second))
    assert "0 running, 0 waiting" in lines
    assert "small  version 1 in memory" in lines
    assert main(["top", "--server", server]) == 0  # no terminal: one reading
    assert "models" in capsys.readouterr().out
    assert main(["top", "--server", server, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["models"] == 1


def test_running_jobs_and_missing_rights_are_shown() -> None:
    job = {"id": "job_1", "name": "words", "text": "TRAINING 5 of 10 (50 %)"}
    status: dict[str, Any] = {
        "ready": False,
        "reasons": ["DISK"],
        "running": [job],
        "waiting": 3,
        "models": 0,
        "in_memory": {},
        "metrics_error": "the key has no scope metrics",
    }
    lines = "\n".join(lines_of(status))
    assert "not ready: DISK" in lines
    assert "words  TRAINING 5 of 10" in lines
    assert "the key has no scope metrics" in lines


def test_no_server_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--server", "http://127.0.0.1:9"]) == 1
    assert "127.0.0.1:9" in capsys.readouterr().err


def test_one_reading_is_printed_line_by_line(
    server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--once", "--server", server]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["service", "ready"]
    assert lines[1].split() == ["jobs", "0", "running,", "0", "waiting"]
