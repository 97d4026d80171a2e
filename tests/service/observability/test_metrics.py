"""Metrics and logs: Prometheus naming, a fixed number of series, and the documented list."""

from __future__ import annotations

import gc
import json
import logging
import re
import sys
import threading
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from prometheus_client.parser import text_string_to_metric_families

from tests.support.clocks import Clock
from tests.support.live_service import TEXTS, client_of, publish, settings_for, text_model
from xcray.errors import InputError
from xcray.jobs.database.schema import EVENTS, JOBS
from xcray.jobs.runner.main import run_attempt
from xcray.jobs.runner.monitor import MonitorOptions
from xcray.jobs.states import FAILED, SUCCEEDED
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission
from xcray.jobs.store.metric_deltas import AttemptMetrics, bucket_label, classify_reason
from xcray.model.registry import Registry
from xcray.predict import Predictor
from xcray.predict.drift import DriftCounter, reference_of
from xcray.schedule.events import Task
from xcray.service.app import create_app
from xcray.service.http.offload import run_in_heavy_thread
from xcray.service.observability import request_log as logs
from xcray.service.observability.metrics import MAX_CODES, Metrics
from xcray.service.observability.probe import BackgroundProbe
from xcray.service.observability.store_metrics import StoreCollector
from xcray.telemetry.logging import (
    JSONFormatter,
    LogContext,
    TextFormatter,
    configure_runner_logging,
    escape_invisible,
)
from xcray.telemetry.progress import Progress
from xcray.workers.contract import WorkerStatus
from xcray.workers.run_metrics import RunMetrics
from xcray.workers.timeline import DONE, DUPLICATE, LOST, Span

ROOT = Path(__file__).parents[3]
CANARY = "xck_aaaaaaaaaaaaaaaaaaaa_" + "S3cret" * 7 + "x"


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000_000.0)


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[JobStore]:
    store = JobStore(f"sqlite:///{tmp_path / 'store.db'}", now=clock)
    yield store
    store.close()


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the samples of an exposition: (name, labels) -> value."""
    result = text_string_to_metric_families(text.decode())
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value
        for family in result
        for each in family.samples
    }


def store_metrics(store: JobStore) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the current metrics of a store."""
    return samples(Metrics(StoreCollector(store.statistics.read, timeout=300.0)).render())


# Metrics


def test_names_follow_the_conventions_and_help_names_the_scope(store: JobStore) -> None:
    text = Metrics(StoreCollector(store.statistics.read, timeout=300.0)).render().decode()
    families = [
        each
        for each in text_string_to_metric_families(text)
        if not each.name.startswith(("process_", "python_"))
    ]
    assert len({each.name for each in families}) == len(families) > 30
    for each in families:
        assert re.fullmatch(r"xcray_[a-z][a-z0-9_]*[a-z0-9]", each.name)
        assert each.documentation.startswith(("Of this replica: ", "Of the store: ")), each.name
        assert each.documentation.endswith(".")
        assert each.type in ("counter", "gauge", "histogram"), each.name
        assert not re.search(r"_(ms|millis|minutes|kb|mb|count|total|percent)$", each.name), (
            each.name
        )
        if each.type == "histogram":
            assert each.name.endswith("_seconds")
        if "_bytes" in each.name:
            assert each.name.endswith("_bytes")


def test_the_page_lists_every_check() -> None:
    text = (ROOT / "docs" / "observing.md").read_text()
    for code in (
        "DRAINING",
        "STORE",
        "SCHEMA",
        "DISK",
        "MODELS",
        "RUNNER",
        "RAY",
        "MODEL",
        "BUILDER",
        "WORKERS",
    ):
        assert f"| {code} |" in text


def test_waits_ends_and_losses_are_counted_in_the_transaction_of_the_change(
    store: JobStore, clock: Clock
) -> None:
    job, _ = store.jobs.submit(JobSubmission({"a": 1}, name="x"))
    clock.seconds += 7.0
    assert store_metrics(store)["xcray_jobs_oldest_pending_seconds", ()] == 7.0
    store.attempts.claim("me", lease_seconds=10.0)
    store.attempts.mark_lost(job.id, 1)
    clock.seconds += 400.0
    again = store.attempts.claim("me", lease_seconds=10.0)
    assert again is not None
    store.attempts.finish(job.id, again.attempt, FAILED, reason="SOME_READERS_CODE", message="no")
    result = store_metrics(store)
    assert result["xcray_job_queue_wait_seconds_bucket", (("le", "10.0"),)] == 1
    assert result["xcray_job_queue_wait_seconds_bucket", (("le", "900.0"),)] == 2
    assert result["xcray_job_queue_wait_seconds_count", ()] == 2
    assert result["xcray_job_queue_wait_seconds_sum", ()] == 407.0
    assert result["xcray_job_attempts_lost_total", ()] == 1
    assert (
        result[
            "xcray_jobs_completed_total",
            (("kind", "train"), ("reason", "INPUT"), ("status", "FAILED")),
        ]
        == 1
    )
    assert result["xcray_jobs", (("status", "FAILED"),)] == 1
    assert result["xcray_jobs_oldest_pending_seconds", ()] == 0


def test_a_clock_that_jumps_back_gives_no_negative_wait(store: JobStore, clock: Clock) -> None:
    store.jobs.submit(JobSubmission({"a": 1}, name="x"))
    clock.seconds -= 3600.0
    assert store.statistics.read().longest_wait <= 0.0
    store.attempts.claim("me", lease_seconds=10.0)
    assert store_metrics(store)["xcray_job_queue_wait_seconds_sum", ()] == 0.0


def test_buckets_and_classes_of_reasons() -> None:
    assert [bucket_label(seconds) for seconds in (0.0, 0.5, 0.6, 86400.0, 1e9)] == [
        "0.5",
        "0.5",
        "1.0",
        "86400.0",
        "+Inf",
    ]
    assert [classify_reason(reason) for reason in (None, "CRASH_LOOP", "K_RANGE")] == [
        "NONE",
        "CRASH_LOOP",
        "INPUT",
    ]


def test_metrics_of_attempts_are_counted_once_and_shown_while_they_run(store: JobStore) -> None:
    job, _ = store.jobs.submit(JobSubmission({"a": 1}, name="x"))
    store.attempts.claim("me", lease_seconds=10.0)
    tally = AttemptMetrics()
    fields = {
        "workers": 4,
        "workers_wanted": 6,
        "busy_share": 0.5,
        "largest_gap": 0.01,
        "object_store_bytes": 7,
    }
    fields |= {"counted": {"labels_solved": 10.0}}
    tally.update(Progress("TRAINING", 1, 2, 1.0, 1.0, None, "", metrics=fields))
    # The reply was lost, so the increments stay pending.
    store.attempts.append_event(
        job.id, 1, "progress", {"metrics": fields, "eta": 90.0}, increments=tally.pending()
    )
    news = tally.pending()
    tally.acknowledge(news)
    assert list(news.values()) == [10.0]
    assert tally.pending() == {}
    tally.update(
        Progress(
            "TRAINING",
            2,
            2,
            1.0,
            1.0,
            None,
            "",
            metrics={**fields, "counted": {"labels_solved": 12.0, "worker_seconds": 3.0}},
        )
    )
    assert store_metrics(store)["xcray_jobs_remaining_seconds", ()] == 90.0
    lost = {
        "batches_lost": 2.0,
        "seconds_lost": 0.5,
        "workers_lost": 1,
        "nodes_lost": 1,
        "batches_copied": 3.0,
    }
    tally.update(
        Progress("TRAINING", 2, 2, 1.0, 1.0, None, "", metrics={**fields, "counted": lost})
    )
    store.attempts.append_event(
        job.id, 1, "phase", {"phase": "MERGING"}, increments=tally.pending()
    )
    result = store_metrics(store)
    assert result["xcray_labels_solved_total", ()] == 12.0
    assert result["xcray_worker_seconds_total", (("kind", "train"),)] == 3.0
    assert result["xcray_batches_total", (("outcome", "lost"),)] == 2.0
    assert result["xcray_worker_seconds_wasted_total", (("outcome", "lost"),)] == 0.5
    assert [
        result[f"xcray_{name}_total", ()]
        for name in ("batches_speculative", "workers_lost", "nodes_lost")
    ] == [3.0, 1.0, 1.0]
    assert (
        result["xcray_workers", ()],
        result["xcray_workers_desired", ()],
        result["xcray_workers_busy_share", ()],
    ) == (4, 6, 0.5)
    assert (
        result["xcray_max_relative_duality_gap", ()],
        result["xcray_object_store_bytes", ()],
    ) == (
        0.01,
        7,
    )
    store.attempts.finish(job.id, 1, SUCCEEDED)
    assert store_metrics(store)["xcray_workers", ()] == 0


def test_a_training_fills_the_metrics(tmp_path: Path, tiny: Any) -> None:
    from xcray.jobs.home import Home

    home = Home(tmp_path / "home")
    store = JobStore(home.store_url)
    spec = {
        "dataset": str(tiny.path),
        "name": "tiny",
        "pool": "threads",
        "workers": 2,
        "solver": "ppdsparse",
        "params": {},
    }
    job, _ = store.jobs.submit(JobSubmission(spec, name="tiny"))
    store.attempts.claim("me", lease_seconds=60.0)
    assert (
        run_attempt(store, home, job.id, 1, options=MonitorOptions(lease_seconds=60.0)) == SUCCEEDED
    )
    result = store_metrics(store)
    reports = [
        event.data["metrics"]
        for event in store.jobs.list_events(job.id)
        if event.kind == "progress" and "metrics" in event.data
    ]
    store.close()
    assert result["xcray_labels_solved_total", ()] == tiny.n_labels
    assert result["xcray_batches_total", (("outcome", "done"),)] > 0
    assert result["xcray_worker_seconds_total", (("kind", "train"),)] > 0
    assert all(each["workers_wanted"] == 2 for each in reports)


def test_as_many_series_for_ten_thousand_jobs_as_for_one(store: JobStore) -> None:
    job, _ = store.jobs.submit(JobSubmission({"a": 1}, name="x", tenant="t0"))
    store.attempts.claim("me", lease_seconds=10.0)
    store.attempts.finish(job.id, 1, SUCCEEDED)
    store.jobs.submit(JobSubmission({"a": 1}, name="x", tenant="t0"))
    before = set(store_metrics(store))
    with store._database.write() as connection:
        row = dict(
            connection.execute(sa.select(JOBS).where(JOBS.c.status == "PENDING")).mappings().one()
        )
        row.pop("seq")
        more = [
            {**row, "id": f"job_{i}", "name": f"name{i}", "tenant": f"t{i % 500}"}
            for i in range(10_000)
        ]
        connection.execute(sa.insert(JOBS), more)
    result = store_metrics(store)
    assert set(result) == before
    assert result["xcray_jobs", (("status", "PENDING"),)] == 10_001
    with store._database.read() as connection:
        # The events were not scanned.
        assert connection.execute(sa.select(sa.func.count()).select_from(EVENTS)).scalar() < 10


def test_run_metrics_cover_the_last_half_minute() -> None:
    metrics, task = RunMetrics(2, 10), Task(0, (), 0.0)
    assert metrics.snapshot() == {
        "workers": 2,
        "workers_wanted": 2,
        "busy_share": None,
        "counted": {},
    }
    musters = iter(
        [
            WorkerStatus(4, 2, stored_bytes=100),
            WorkerStatus(4, 3, lost=1, nodes_lost=1, stored_bytes=200),
        ]
    )
    metrics.set_worker_source(lambda: next(musters))
    for begin, seconds, outcome in ((0.0, 10.0, DONE), (0.0, 5.0, LOST), (90.0, 10.0, DONE)):
        metrics.add_span(Span("w", task, begin, seconds, outcome))
    metrics.add_span(Span("w", Task(1, (), 0.0, 2, copy=True), 95.0, 0.0, DUPLICATE))
    report = metrics.snapshot()
    # seconds 70 to 100, two workers
    assert report["busy_share"] == pytest.approx(10.0 / (2 * 30.0), abs=1e-4)
    assert report["counted"] == {  # lost work does not count as worker seconds
        "worker_seconds": 20.0,
        "seconds_lost": 5.0,
        "seconds_duplicate": 0.0,
        "batches_done": 2.0,
        "batches_lost": 1.0,
        "batches_duplicate": 1.0,
        "batches_copied": 1.0,
    }
    assert (report["workers"], report["workers_wanted"], report["object_store_bytes"]) == (
        2,
        4,
        100,
    )
    metrics.add_certified(2, 3)
    metrics.add_certified(1, 1)
    report = metrics.snapshot()
    assert (report["workers"], report["object_store_bytes"]) == (3, 200)
    assert report["certified_share"] == 0.75
    assert (report["counted"]["workers_lost"], report["counted"]["nodes_lost"]) == (1, 1)
    metrics.set_worker_source(lambda: WorkerStatus(2, 2))
    # an earlier attempt did 5 epochs; then back from 6 to 4, and forward again
    for epoch in (5, 6, 4, 7):
        metrics.set_epochs(epoch)
    assert metrics.snapshot()["counted"]["epochs"] == 2
    assert metrics.snapshot()["counted"]["rows_trained"] == 20


def test_a_store_that_hangs_delays_no_scrape() -> None:
    event = threading.Event()

    def hang() -> Any:
        event.wait(300)
        raise InputError("too late")

    before = set(threading.enumerate())
    gauges = Metrics(StoreCollector(hang, timeout=0.01))
    for _ in range(3):
        result = samples(gauges.render())
        assert result["xcray_store_metrics_age_seconds", ()] == float("inf")
        assert not any(name.startswith("xcray_jobs") for name, _ in result)
    # one thread is waiting, not three
    assert (
        sum(thread.name == "xcray-store-metrics" for thread in set(threading.enumerate()) - before)
        == 1
    )
    event.set()


def test_a_background_probe_caches_its_result_and_reports_its_age() -> None:
    clock, request = Clock(1_000_000.0), list[int]()
    question = BackgroundProbe("xcray-test", lambda: request.append(1) or len(request), clock)
    assert question.get(2.0, 10.0).value == 1
    clock.seconds += 1.0
    assert question.get(2.0, 10.0) == (1, None, 1.0, 0.0)
    clock.seconds += 2.0
    assert question.get(2.0, 10.0).value == 2
    assert len(request) == 2


def test_the_number_of_rejection_codes_is_bounded() -> None:
    gauges = Metrics()
    for i in range(3 * MAX_CODES):
        gauges.count_rejection(429, f"CODE{i}")
    gauges.count_rejection(404, "NOT_FOUND")
    codes = {
        dict(labels)["code"]
        for name, labels in samples(gauges.render())
        if name == "xcray_http_rejected_requests_total"
    }
    assert len(codes) == MAX_CODES + 1
    assert "OTHER" in codes
    assert "NOT_FOUND" not in codes


def test_a_prediction_changes_its_metrics(tmp_path: Path) -> None:
    publish(Registry(tmp_path / "home" / "models"), "docs", tmp_path / "m")
    app = create_app(settings_for(tmp_path / "home"))
    with client_of(app) as http:
        for top_k in (1, 4):
            body = {"instances": [{"text": text} for text in TEXTS], "top_k": top_k}
            assert http.post("/v1/models/docs:predict", json=body).status_code == 200
        body = {"instances": [{"text": "unknownword"}, {"text": TEXTS[0]}]}
        assert http.post("/v1/models/docs:predict", json=body).status_code == 200
        assert http.post("/v1/models/docs:predict", content=b"x" * 10_000_001).status_code in (
            413,
            415,
        )
        result = samples(http.get("/metrics").content)
    assert (
        result["xcray_predict_instances_total", ()]
        == result["xcray_predict_certified_instances_total", ()]
        == 2 * len(TEXTS) + 2
    )
    assert result["xcray_predict_labels_scored_total", ()] >= len(TEXTS)
    assert result["xcray_predict_empty_instances_total", ()] == 1
    assert result["xcray_predict_duration_seconds_count", ()] == 3
    # The first request loaded the model, the others did not.
    assert result["xcray_model_cache_requests_total", (("result", "miss"),)] == 1
    assert result["xcray_model_cache_requests_total", (("result", "hit"),)] == 2
    assert result["xcray_model_loads_total", (("outcome", "loaded"),)] == 1
    assert result["xcray_http_requests_in_progress", ()] == 1  # the request for the metrics
    assert result["xcray_store_transaction_duration_seconds_count", (("mode", "read"),)] > 0
    assert result["xcray_disk_free_bytes", ()] > 0
    assert result["xcray_readiness_check_failing", (("check", "DRAINING"),)] == 0
    assert ("process_resident_memory_bytes", ()) in result or sys.platform != "linux"


def test_drift_is_exported_per_version_that_answered_enough(tmp_path: Path) -> None:
    model = text_model(tmp_path / "m")
    Registry(tmp_path / "home" / "models").publish("docs", tmp_path / "m")
    app = create_app(settings_for(tmp_path / "home"))
    top = Predictor(model).search(list(TEXTS), 1).top
    X = model.text.transform(TEXTS)
    reference = reference_of(top, X, np.ones(model.n_labels), model.text, TEXTS)
    with client_of(app) as http:
        loaded = app.state.app_state.prediction.model_cache.load("default", "docs")
        loaded.drift = DriftCounter(model, reference)
        body = {"instances": [{"text": "zebra"}] * 500 + [{"text": TEXTS[0]}] * 500}
        for sent, body["deny"] in ((False, ["csv"]), (True, None)):
            assert http.post("/v1/models/docs:predict", json=body).status_code == 200
            result = samples(http.get("/metrics").content)
            assert any(name == "xcray_predict_drift" for name, _ in result) == sent
    version = {"tenant": "default", "model": "docs", "version": "1"}
    named = tuple(sorted({**version, "kind": "empty"}.items()))
    assert result["xcray_predict_drift", named] > 0.25
    for of, share in (("recent", 0.5), ("training", 0.0)):
        named = tuple(sorted({**version, "kind": "empty", "of": of}.items()))
        assert result["xcray_predict_unknown_share", named] == share


# Logs


def lines_of(formatter: logging.Formatter, event: str, **extra: Any) -> list[str]:
    """Return the lines written for one event."""
    stream, logger = StringIO(), logging.Logger("test")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger.addHandler(handler)
    logger.info("%s", event, extra=extra)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(
    "text",
    [
        "a\r\nb",
        "\x1b[31mred",
        "a\u2028b",
        "\u202egnp.exe",
        "n" * 1_000_000,
        "\ud800",
        '"}{',
        "a=b c",
    ],
)
def test_each_event_is_one_line_in_both_forms(text: str) -> None:
    where = LogContext("job_1", 2)
    where.set_phase("TRAINING")
    (line,) = lines_of(JSONFormatter(where), text, model=text)
    entry = json.loads(line)
    assert (entry["job"], entry["attempt"], entry["phase"]) == ("job_1", 2, "TRAINING")
    assert (entry["event"], entry["model"]) == (text[:256], text[:256])
    (line,) = lines_of(TextFormatter(where), text, model=text)
    assert line.endswith(f"job=job_1 attempt=2 phase=TRAINING model={line.rpartition('model=')[2]}")
    assert line == escape_invisible(line)
    assert len(line) < 4000


def test_a_runner_log_is_text_by_default_and_json_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        for form, begins in ((None, "20"), ("json", '{"time"')):
            if form:
                monkeypatch.setenv("XCRAY_LOG_FORMAT", form)
            configure_runner_logging(tmp_path / f"{form}.log", LogContext("job_1", 1))
            logging.getLogger("xcray.jobs").info("hello")
            assert (tmp_path / f"{form}.log").read_text().startswith(begins)
            assert (tmp_path / f"{form}.log").stat().st_mode & 0o777 == 0o600
            for handler in root.handlers:
                assert isinstance(handler, logging.StreamHandler)
                if handler.stream is not sys.stderr:
                    handler.stream.close()
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    assert "hello" in capfd.readouterr().err


def test_a_request_log_names_the_caller_and_contains_no_credentials(tmp_path: Path) -> None:
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JSONFormatter(logs.log_context))
    level = logs.LOGGER.level
    logs.LOGGER.addHandler(handler)
    logs.LOGGER.setLevel(logging.DEBUG)
    try:
        with client_of(create_app(settings_for(tmp_path / "home"))) as http:
            http.get("/v1/jobs", headers={"X-Request-ID": "req_9"})
            http.get(
                "/v1/jobs", headers={"Authorization": f"Bearer {CANARY}", "X-Request-ID": "req_10"}
            )
            http.get("/v1/jobs/none", headers={"X-Request-ID": "req_11"})
            http.post(
                "/v1/models/m:predict",
                json={"instances": [{"text": CANARY}]},
                headers={"X-Request-ID": "req_12"},
            )
    finally:
        logs.LOGGER.removeHandler(handler)
        logs.LOGGER.setLevel(level)
    entries = [json.loads(line) for line in stream.getvalue().splitlines()]
    by_id = {entry["request_id"]: entry for entry in entries if entry["event"] == "request"}
    assert by_id["req_9"]["tenant"] == "default"
    assert by_id["req_11"]["code"] == "NOT_FOUND"
    assert "code" not in by_id["req_9"]
    assert set(by_id) >= {"req_10", "req_12"}
    assert "S3cret" not in stream.getvalue()


# Heavy work


def test_heavy_work_runs_one_at_a_time_without_garbage_collection() -> None:
    import asyncio

    logs.REQUEST_ID.set("req_heavy")
    at_work, most = [0], [0]

    def work() -> tuple[bool, str]:
        at_work[0] += 1
        most[0] = max(most[0], at_work[0])
        time.sleep(0.002)
        at_work[0] -= 1
        return gc.isenabled(), logs.REQUEST_ID.get()

    async def all_of_them() -> list[tuple[bool, str]]:
        return list(await asyncio.gather(*(run_in_heavy_thread(work) for _ in range(8))))

    assert asyncio.run(all_of_them()) == [(False, "req_heavy")] * 8
    assert most == [1]
    assert gc.isenabled()


def test_an_error_of_heavy_work_holds_no_reference_to_the_body() -> None:
    import asyncio

    def work() -> None:
        body = [0] * 10
        try:
            raise ValueError(body)
        except ValueError:
            raise InputError("no") from None

    async def ask() -> InputError:
        with pytest.raises(InputError) as caught:
            await run_in_heavy_thread(work)
        return caught.value

    error = asyncio.run(ask())
    assert error.__context__ is None
    names = []
    trace = error.__traceback__
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert "work" not in names
