"""Traces with an in-memory exporter: requests by route, and one trace per job."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.support.flat_models import write_fields
from tests.support.live_service import TEXTS, client_of, publish, settings_for
from xcray.arrays import csr
from xcray.jobs.home import Home
from xcray.jobs.job import new_id
from xcray.jobs.runner.main import run_attempt
from xcray.jobs.runner.monitor import MonitorOptions
from xcray.jobs.states import SUCCEEDED
from xcray.jobs.store.job_store import JobStore
from xcray.model.registry import Registry
from xcray.service.app import AppParts, create_app
from xcray.telemetry import tracing
from xcray.telemetry.progress import Progress
from xcray.training import TrainResult

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Enable tracing and yield the exporter that collects the spans."""
    exporter = InMemorySpanExporter()
    assert tracing.enable_tracing("test", SimpleSpanProcessor(exporter))
    yield exporter
    tracing.disable_tracing()


def named(exporter: InMemorySpanExporter, name: str) -> Any:
    """Return the only span of a name."""
    (result,) = [each for each in exporter.get_finished_spans() if each.name == name]
    return result


def ready_dataset(store: JobStore, home: Path) -> str:
    """Add a READY data set without files and return its id."""
    return store.datasets.add("data", str(home / "datasets" / "x"), dataset_id=new_id("ds")).id


def good(spec: Any, *, out: Path, progress: Any, **_: Any) -> TrainResult:
    """Run a training that succeeds at once."""
    for phase in ("LOADING", "TRAINING", "PUBLISHING"):
        progress(Progress(phase, 1, 1, 0.1, 1.0, None, ""))
    eye = csr(np.arange(3), np.arange(2, dtype=np.int32), np.ones(2, np.float32), 2)
    about: dict[str, Any] = {"solver": "ppdsparse", "params": {}, "dataset_hash": "0" * 64}
    model = write_fields(
        out,
        W=eye,
        b=np.zeros(2, np.float32),
        label_names=["a", "b"],
        feature_names=["x", "y"],
        **about,
    )
    return TrainResult(out, model.sha256, {}, {})


def test_tracing_is_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not tracing.enable_tracing("test")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not tracing.enable_tracing("test")
    with tracing.span("x") as span:
        assert span is None
        assert (tracing.trace_headers(), tracing.current_trace_id()) == ({}, None)
    assert tracing.span("x") is tracing.span("y", job_id="z")  # no span object is created


def test_tracing_without_the_extra_logs_the_extra(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.resources", None)
    assert not tracing.enable_tracing("test")
    assert "xcray[telemetry]" in caplog.text


def test_spans_go_to_the_endpoint_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            results.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Write no log."""

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        monkeypatch.setenv(
            "OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}"
        )
        monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
        assert tracing.enable_tracing("xcray")
        with tracing.span("hello", job_id="job_1"):
            assert tracing.current_trace_id()
        tracing.disable_tracing()
        collector.shutdown()
    ((path, body),) = results
    assert path == "/v1/traces"
    assert all(word in body for word in (b"hello", b"xcray.job_id", b"job_1", b"mine"))


def test_a_prediction_is_a_span_of_its_callers_trace(
    spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    app = create_app(settings_for(tmp_path / "home"))
    publish(Registry(tmp_path / "home" / "models"), "docs", tmp_path / "m")
    with client_of(app) as http:
        headers = {"traceparent": CALLER, "X-Request-ID": "req_7"}
        assert (
            http.post(
                "/v1/models/docs:predict", json={"instances": [{"text": TEXTS[0]}]}, headers=headers
            ).status_code
            == 200
        )
        assert (
            http.post("/v1/models/none:predict", json={"instances": [{"text": "x"}]}).status_code
            == 404
        )
        http.get("/healthz")
    request, other = [each for each in spans.get_finished_spans() if each.name.startswith("POST ")]
    assert request.name == other.name == "POST /v1/models/{reference}:predict"
    assert (request.context.trace_id, request.parent.span_id) == (
        int(CALLER[3:35], 16),
        int(CALLER[36:52], 16),
    )
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["xcray.request_id"] == "req_7"
    assert (other.attributes["http.response.status_code"], other.attributes["error.type"]) == (
        404,
        "NotFound",
    )
    assert other.parent is None
    below = [
        each.name
        for each in spans.get_finished_spans()
        if each.parent and each.parent.span_id == request.context.span_id
    ]
    assert [name for name in below if not name.startswith("store")] == [
        "parse",
        "find",
        "compute",
        "encode",
    ]
    assert named(spans, "model load").attributes["xcray.version"] == 1
    assert not [each for each in spans.get_finished_spans() if "health" in each.name]


def test_a_job_is_one_trace_from_its_submission_to_its_phases(
    spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    home = Home(tmp_path / "home")
    store = JobStore(home.store_url)
    app = create_app(
        settings_for(home.path), parts=AppParts(store=store, check_spec=lambda spec: spec)
    )
    request = {"dataset": ready_dataset(store, home.path), "model": "m"}
    with client_of(app) as http:
        result = _submit(http, request)
        # its trace context is not part of the compared body
        assert _submit(http, request)["id"] == result["id"]
        assert "traceparent" not in result["spec"]
    # The service and its tracing have ended; the runner is another process.
    later = InMemorySpanExporter()
    assert tracing.enable_tracing("test", SimpleSpanProcessor(later))
    claimed = store.attempts.claim("test", lease_seconds=60)
    assert claimed is not None
    assert (
        run_attempt(
            store,
            home,
            claimed.id,
            1,
            train_function=good,
            options=MonitorOptions(lease_seconds=60.0),
        )
        == SUCCEEDED
    )
    store.close()
    submitted = next(each for each in spans.get_finished_spans() if each.name == "POST /v1/jobs")
    attempt, queue = named(later, "attempt"), named(later, "queue")
    assert {each.context.trace_id for each in (submitted, attempt, queue)} == {
        submitted.context.trace_id
    }
    assert attempt.parent.span_id == queue.parent.span_id == submitted.context.span_id
    assert attempt.attributes["xcray.job_id"] == claimed.id
    assert queue.end_time <= attempt.start_time
    phases = [
        each
        for each in later.get_finished_spans()
        if each.name in ("LOADING", "TRAINING", "PUBLISHING")
    ]
    assert [each.name for each in phases] == ["LOADING", "TRAINING", "PUBLISHING"]
    assert {each.parent.span_id for each in phases} == {attempt.context.span_id}


def test_errors_are_recorded_by_type_without_their_message(spans: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match="secret"), tracing.span("x"):
        raise ValueError("a secret")
    result = named(spans, "x")
    assert not result.status.is_ok
    assert result.attributes["error.type"] == "ValueError"
    assert "secret" not in result.to_json()


def _submit(http: httpx.Client, options: dict[str, Any]) -> dict[str, Any]:
    """Submit a job and return it."""
    response = http.post("/v1/jobs", json=options, headers={"Idempotency-Key": "k"})
    assert response.status_code in (200, 201), response.text
    return dict(response.json())
