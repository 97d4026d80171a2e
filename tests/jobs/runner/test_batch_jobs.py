"""Batch prediction jobs over REST, the client and the command line.

They are stopped, resumed, killed, fenced and deleted.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from tests.support.live_service import (
    PATIENCE,
    client_of,
    plain_model,
    publish,
    serving,
    settings_for,
)
from xcray.batch import BatchPredictResult, BatchPredictSpec, predict_batch
from xcray.batch.output import MANIFEST, OutputParts
from xcray.cli.main import main
from xcray.client import Client
from xcray.errors import (
    Conflict,
    Corrupt,
    InputError,
    NotFound,
    ParameterError,
    Refused,
    Unavailable,
    XcrayError,
)
from xcray.jobs.database.schema import JOBS
from xcray.jobs.job import PREDICT
from xcray.jobs.runner.main import run_attempt
from xcray.jobs.runner.monitor import MonitorOptions
from xcray.jobs.states import FAILED, PENDING, RUNNING, STOPPED, SUCCEEDED
from xcray.jobs.store.jobs import JobSubmission
from xcray.predict import Predictor
from xcray.service.app import create_app
from xcray.service.app_state import AppState
from xcray.service.models.cache import ModelTarget
from xcray.workers.pool import StopFlag

TEXTS = [f"{word} rows of a file" for word in ("csv", "json", "socket")] * 10
QUICK = MonitorOptions(
    lease_seconds=600.0,
    heartbeat_seconds=0.05,
    report_seconds=0.02,
    stop_grace_seconds=600.0,
)  # longer than the test: the monitor never ends this process


class ServerSetup(NamedTuple):
    """A served app with two models, `text` and `vector`, and a client.

    Jobs run only when the test runs them.
    """

    app_state: AppState
    client: Client
    http: httpx.Client
    url: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerSetup]:
    home = tmp_path_factory.mktemp("batch") / "home"
    app = create_app(settings_for(home, dataset_roots=(home.parent / "open",), pool="serial"))
    app_state: AppState = app.state.app_state
    publish(app_state.registry, "text", home / "a")
    plain_model(home / "b")
    app_state.registry.publish("vector", home / "b")
    with (
        serving(app) as url,
        Client(url) as client,
        httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE) as http,
    ):
        yield ServerSetup(app_state, client, http, url)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a Parquet file of texts with keys."""
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"text": TEXTS, "key": [f"k{i}" for i in range(len(TEXTS))]}), path)
    return path


def run_next(server: ServerSetup, stop_flag: StopFlag | None = None) -> str:
    """Run the pending job in this process and return its new status."""
    job = server.app_state.store.attempts.claim("test", lease_seconds=600)
    assert job is not None
    return run_attempt(
        server.app_state.store,
        server.app_state.home,
        job.id,
        job.attempt,
        stop_flag=stop_flag,
        options=QUICK,
    )


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        ({"probabilities": True}, "train with calibrate=true"),
        ({"min_probability": 0.5}, "train with calibrate=true"),
        ({"label_thresholds": True}, "xcray thresholds"),
    ],
)
def test_what_the_model_was_not_fitted_for_is_refused_at_submission(
    server: ServerSetup, file: Path, options: dict[str, Any], fix: str
) -> None:
    before = list(server.client.jobs.list())
    with pytest.raises(XcrayError, match=fix):
        server.client.jobs.predict("text", file=file, format="parquet", **options)
    assert list(server.client.jobs.list()) == before


def test_a_file_is_uploaded_predicted_and_downloaded(
    server: ServerSetup, file: Path, tmp_path: Path
) -> None:
    client = server.client
    job = client.jobs.predict(
        "text",
        file=file,
        format="parquet",
        top_k=2,
        id_field="key",
        part_rows=7,
        name="mine",
        certificate=True,
    )
    assert (job["kind"], job["status"], job["name"], job["spec"]["model"]) == (
        "predict",
        "PENDING",
        "mine",
        "text:1",
    )
    assert job["spec"]["input"].startswith("upl_")
    assert str(server.app_state.home.path) not in json.dumps(job)
    with pytest.raises(NotFound, match="it is PENDING"):
        client.jobs.output(job["id"])
    assert run_next(server) == SUCCEEDED
    outcome = client.jobs.get(job["id"])
    assert outcome["result"] is not None
    assert {
        name: outcome["result"][name] for name in ("model", "rows", "answered", "skipped", "parts")
    } == {
        "model": "text:1",
        "rows": 30,
        "answered": 30,
        "skipped": 0,
        "parts": 5,
    }
    assert (outcome["progress"]["phase"], outcome["progress"]["done"]) == ("PUBLISHING", 30)
    listed = client.jobs.output(job["id"])
    assert [part["file"] for part in listed["parts"]] == [f"part-0000{i}.parquet" for i in range(5)]
    result = pads.dataset(
        client.jobs.download(job["id"], tmp_path / "answers"), format="parquet"
    ).to_table()
    predictor = server.app_state.prediction.model_cache.get(
        ModelTarget("default", "text")
    ).predictor
    assert isinstance(predictor, Predictor)
    expected = predictor.scored_labels(predictor.predict(TEXTS, 2))
    assert result.column("labels").to_pylist() == [[one.label for one in row] for row in expected]
    assert result.column("scores").to_pylist() == [[one.score for one in row] for row in expected]
    assert result.column("id").to_pylist() == [f"k{i}" for i in range(30)]
    assert result.column("exact").to_pylist() == [True] * 30
    assert (tmp_path / "answers" / MANIFEST).is_file()
    assert client.jobs.timeline(job["id"])["n_labels"] == 5
    folder = server.app_state.home.run(job["id"])
    # Only the answers are kept.
    assert not list(folder.glob("part-*")) + list(folder.glob("input*"))


def test_only_output_files_of_the_job_are_served(server: ServerSetup, file: Path) -> None:
    job = server.client.jobs.predict("text", file=file, format="parquet")
    assert run_next(server) == SUCCEEDED
    base = f"/v1/jobs/{job['id']}/output"
    part = server.client.jobs.output(job["id"])["parts"][0]
    whole = server.http.get(f"{base}/{part['file']}")
    assert hashlib.sha256(whole.content).hexdigest() == part["sha256"]
    assert whole.headers["content-type"] == "application/vnd.apache.parquet"
    piece = server.http.get(f"{base}/{part['file']}", headers={"Range": "bytes=4-9"})
    assert (piece.status_code, piece.content) == (206, whole.content[4:10])
    rows = pq.read_table(io.BytesIO(whole.content)).to_pylist()
    lines = server.http.get(f"{base}/answers.jsonl").text.splitlines()
    assert [json.loads(line) for line in lines[: len(rows)]] == rows
    table = list(csv.DictReader(server.http.get(f"{base}/answers.csv").text.splitlines()))
    assert len(lines) == len(table) == 30
    assert table[0]["labels"].split("|") == rows[0]["labels"]
    for name in (
        "run.json",
        "..%2Frun.json",
        "%2e%2e",
        "part-00001.parquet",
        "part-00000.parquet%00",
        "..%2f..%2fxcray.db",
    ):
        assert server.http.get(f"{base}/{name}").status_code == 404, name
    assert server.http.get(f"{base}/{MANIFEST}").json()["answered"] == 30


def test_deleting_the_job_removes_its_answers(server: ServerSetup, file: Path) -> None:
    job = server.client.jobs.predict("text", file=file, format="parquet")
    run_next(server)
    assert server.client.jobs.output(job["id"])
    server.client.jobs.delete(job["id"])
    assert not server.app_state.home.run(job["id"]).exists()
    with pytest.raises(NotFound):
        server.client.jobs.output(job["id"])


def test_a_server_path_must_be_below_an_allowed_root(server: ServerSetup, file: Path) -> None:
    root = server.app_state.home.path.parent / "open"
    root.mkdir(exist_ok=True)
    (root / "in.parquet").write_bytes(file.read_bytes())
    job = server.client.jobs.predict(
        "text@latest", path=str(root / "in.parquet"), format="parquet", top_k=1
    )
    assert job["spec"]["input"] == str(root / "in.parquet")
    assert run_next(server) == SUCCEEDED
    assert (root / "in.parquet").is_file()  # outside the home, so it is not deleted
    for path in (str(file), f"{root}/../home/xcray.db", "/etc/passwd"):
        with pytest.raises(Refused, match="not allowed"):
            server.client.jobs.predict("text", path=path, format="parquet")


@pytest.mark.parametrize(
    ("changes", "error", "code"),
    [
        ({"format": "xlsx"}, InputError, "CHOICE"),
        ({"top_k": 0}, InputError, "K_RANGE"),
        ({"text_fields": ["a"], "values_field": "b"}, ParameterError, "PARAMETER"),
        ({"surprise": 1}, InputError, "UNKNOWN_FIELD"),
        ({"allow": []}, InputError, "LENGTH"),
    ],
)
def test_an_invalid_request_is_refused_and_keeps_the_upload(
    server: ServerSetup, file: Path, changes: dict[str, Any], error: type[Exception], code: str
) -> None:
    uploads = server.app_state.home.path / "uploads"
    runs = set(server.app_state.home.runs.iterdir())
    before = len(list(uploads.iterdir()))
    with pytest.raises(error) as raised:
        server.client.jobs.predict("text", **{"file": file, "format": "parquet", **changes})
    assert raised.value.code == code  # type: ignore[attr-defined]
    assert len(list(uploads.iterdir())) == before + 1
    assert set(server.app_state.home.runs.iterdir()) == runs


def test_exactly_one_input_and_an_existing_model_are_required(
    server: ServerSetup, file: Path
) -> None:
    with pytest.raises(InputError, match="give either a file"):
        server.client.jobs.predict("text", format="parquet")
    neither = server.http.post("/v1/models/text:batchPredict", json={"format": "parquet"})
    assert (neither.status_code, neither.json()["code"]) == (422, "INPUT")
    gone = server.http.post(
        "/v1/models/text:batchPredict", json={"format": "parquet", "upload": "upl_gone"}
    )
    assert gone.status_code == 404
    with pytest.raises(NotFound):
        server.client.jobs.predict("nobody", file=file, format="parquet")
    assert "BatchRequest" in server.http.get("/openapi.json").json()["components"]["schemas"]


def test_two_requests_with_one_key_are_one_job_and_one_upload(
    server: ServerSetup, file: Path
) -> None:
    headers = {"Content-Type": "application/octet-stream"}
    upload = server.http.post("/v1/uploads", content=file.read_bytes(), headers=headers).json()[
        "id"
    ]
    body = {"format": "parquet", "upload": upload}

    def submit_batch(**more: Any) -> httpx.Response:
        return server.http.post(
            "/v1/models/text:batchPredict",
            json={**body, **more},
            headers={"Idempotency-Key": upload},
        )

    first, second, other = submit_batch(), submit_batch(), submit_batch(top_k=3)
    assert (first.status_code, second.status_code, other.status_code) == (201, 200, 409)
    assert first.json() == second.json()
    # The upload was consumed by the first request.
    assert server.http.post("/v1/models/text:batchPredict", json=body).status_code == 404
    assert run_next(server) == SUCCEEDED


@pytest.mark.parametrize("step", ["uploads.path", "store.jobs.submit"])
def test_a_request_overtaken_by_another_process_is_the_same_job(
    server: ServerSetup, file: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process accepts the same request just before `step`."""
    home = server.app_state.home
    headers = {"Content-Type": "application/octet-stream", "Idempotency-Key": step}
    upload = server.http.post("/v1/uploads", content=file.read_bytes(), headers=headers).json()
    place, _, name = step.rpartition(".")
    owner = attrgetter(place)(server.app_state)
    proceed, earlier = getattr(owner, name), []

    def submit_to(http: httpx.Client) -> httpx.Response:
        content = {"format": "parquet", "upload": upload["id"]}
        path = "/v1/models/text:batchPredict"
        return http.post(path, json=content, headers={"Idempotency-Key": step})

    def overtaken(*args: Any, **kwargs: Any) -> Any:
        if not earlier:
            with client_of(create_app(settings_for(home.path))) as http:
                earlier.append(submit_to(http))
        return proceed(*args, **kwargs)

    monkeypatch.setattr(owner, name, overtaken)
    runs = len(list(home.runs.iterdir()))
    answer = submit_to(server.http)
    assert (earlier[0].status_code, answer.status_code) == (201, 200)
    assert answer.json()["id"] == earlier[0].json()["id"]
    assert len(list(home.runs.iterdir())) == runs + 1
    assert not (home.path / "uploads" / upload["id"]).exists()
    assert run_next(server) == SUCCEEDED


def test_a_job_whose_submission_got_no_answer_from_the_store_keeps_its_input(
    server: ServerSetup, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"Content-Type": "application/octet-stream"}
    upload = server.http.post("/v1/uploads", content=file.read_bytes(), headers=headers).json()
    jobs = server.app_state.store.jobs
    record = jobs.submit

    def lose_answer(*values: Any, **more: Any) -> None:
        record(*values, **more)
        raise Unavailable("the connection broke during the commit")

    def submit_batch() -> int:
        content = {"format": "parquet", "upload": upload["id"]}
        path, key = "/v1/models/text:batchPredict", {"Idempotency-Key": "lost"}
        return server.http.post(path, json=content, headers=key).status_code

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "submit", lose_answer)
        assert submit_batch() == 503
    assert submit_batch() == 200
    assert run_next(server) == SUCCEEDED


def test_label_sets_are_resolved_when_the_job_is_submitted(
    server: ServerSetup, file: Path, tmp_path: Path
) -> None:
    sets = server.app_state.registry.label_sets("text")
    sets.put("files", ["csv", "json"])
    job = server.client.jobs.predict("text", file=file, format="parquet", allow=["set:files"])
    sets.put("files", ["io"])
    assert run_next(server) == SUCCEEDED
    result = pads.dataset(
        server.client.jobs.download(job["id"], tmp_path / "out"), format="parquet"
    ).to_table()
    assert {label for row in result.column("labels").to_pylist() for label in row} == {
        "csv",
        "json",
    }


def test_a_bad_row_fails_the_job_with_its_line_or_is_skipped_and_counted(
    server: ServerSetup, tmp_path: Path
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "csv"}\n{"text": 3}\n{"text": "json"}\n')
    job = server.client.jobs.predict("text", file=path, format="jsonl")
    assert run_next(server) == FAILED
    failed = server.client.jobs.get(job["id"])
    assert (failed["reason"], failed["message"]) == (
        "FIELD_TYPE",
        "input.jsonl:2: field 'text' is not a string",
    )
    job = server.client.jobs.predict("text", file=path, format="jsonl", on_error="skip")
    assert run_next(server) == SUCCEEDED
    result = server.client.jobs.get(job["id"])["result"]
    assert result is not None
    assert (result["answered"], result["skipped"], result["skipped_reasons"][0]["line"]) == (
        2,
        1,
        2,
    )


def stop_after(server: ServerSetup, job_id: str, parts: int, flag: StopFlag) -> Callable[[], None]:
    """Return a function that stops a job once it has `parts` finished parts.

    It returns after the job's monitor has set the flag.
    """

    def look() -> None:
        if len(list(server.app_state.home.run(job_id).glob("part-*.parquet"))) >= parts:
            server.app_state.store.jobs.request_stop(job_id)
            ends = time.monotonic() + PATIENCE
            while not flag.is_set():
                assert time.monotonic() < ends, "the monitor did not receive the stop"
                time.sleep(0.01)

    return look


def test_a_stopped_resumed_and_crashed_job_gives_the_same_bytes(
    server: ServerSetup, file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A stopped, resumed and crashed job gives the same bytes as an undisturbed one.

    The first attempt is stopped by the user, the second crashes right after the rename, the third
    only records the result.
    """
    whole = server.client.jobs.predict("text", file=file, format="parquet", part_rows=3)
    assert run_next(server) == SUCCEEDED
    job = server.client.jobs.predict("text", file=file, format="parquet", part_rows=3)
    flag, commit = StopFlag(), "xcray.batch.output.OutputParts.commit"
    look = stop_after(server, job["id"], 4, flag)
    original = OutputParts.commit

    def watched(self: OutputParts, part: Any) -> None:
        original(self, part)
        look()

    monkeypatch.setattr(commit, watched)
    assert run_next(server, stop_flag=flag) == STOPPED
    selection = len(list(server.app_state.home.run(job["id"]).glob("part-*.parquet")))
    assert 4 <= selection < 10
    monkeypatch.setattr(commit, original)
    assert server.client.jobs.resume(job["id"])["status"] == PENDING

    class Crash(BaseException):
        """Simulates the death of the process."""

    def die(*_: Any, **__: Any) -> None:
        raise Crash

    with monkeypatch.context() as dying:
        dying.setattr("xcray.jobs.runner.batch_job.job_result", die)
        with pytest.raises(Crash):
            run_next(server)
    server.app_state.store.attempts.mark_lost(job["id"], 2)
    assert server.client.jobs.get(job["id"])["status"] == PENDING
    assert run_next(server) == SUCCEEDED
    outcome = server.client.jobs.get(job["id"])
    assert outcome["result"] is not None
    assert (outcome["attempt"], outcome["result"]["report"]["rows_kept"]) == (3, 3 * selection)
    parts = [
        [part["sha256"] for part in server.client.jobs.output(one)["parts"]]
        for one in (whole["id"], job["id"])
    ]
    assert parts[0] == parts[1]


def test_a_fenced_attempt_publishes_nothing(
    server: ServerSetup, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that was replaced without noticing it publishes nothing after its last row."""
    job, store = (
        server.client.jobs.predict("text", file=file, format="parquet", part_rows=3),
        server.app_state.store,
    )
    assert store.attempts.claim("test", lease_seconds=60) is not None

    def late(
        spec: BatchPredictSpec, *, check: Callable[[], None], **more: Any
    ) -> BatchPredictResult:
        def replaced() -> None:
            store.attempts.mark_lost(job["id"], 1)
            store.attempts.claim("other", lease_seconds=60)
            check()

        return predict_batch(spec, check=replaced, **more)

    with monkeypatch.context() as patched:
        patched.setattr("xcray.jobs.runner.batch_job.predict_batch", late)
        assert (
            run_attempt(
                store,
                server.app_state.home,
                job["id"],
                1,
                options=replace(QUICK, heartbeat_seconds=60.0),
            )
            == "FENCED"
        )
    assert not (server.app_state.home.run(job["id"]) / "output").exists()
    assert run_attempt(store, server.app_state.home, job["id"], 2, options=QUICK) == SUCCEEDED
    outcome = store.jobs.get(job["id"])
    assert outcome.result is not None
    assert outcome.result["report"]["rows_kept"] == 30


def test_a_changed_file_fails_the_download_and_leaves_nothing(
    server: ServerSetup, file: Path, tmp_path: Path
) -> None:
    job = server.client.jobs.predict("text", file=file, format="parquet")
    run_next(server)
    part = server.app_state.home.run(job["id"]) / "output" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with pytest.raises(Corrupt, match="download it again"):
        server.client.jobs.download(job["id"], tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))
    (tmp_path / "there").mkdir()
    with pytest.raises(Conflict):
        server.client.jobs.download(job["id"], tmp_path / "there")


def test_a_job_of_an_unknown_kind_waits_for_a_newer_runner(server: ServerSetup) -> None:
    store = server.app_state.store
    with pytest.raises(ParameterError, match="one of train, predict"):
        store.jobs.submit(JobSubmission({}, name="x", kind="dream"))
    job, _ = store.jobs.submit(JobSubmission({}, name="x", kind=PREDICT))
    with closing(sqlite3.connect(server.app_state.home.path / "xcray.db")) as database:
        database.execute("UPDATE jobs SET kind = 'dream' WHERE id = ?", (job.id,))
        database.commit()
    assert store.attempts.claim("test", lease_seconds=60) is None
    after, _ = store.jobs.submit(JobSubmission({}, name="x", kind=PREDICT))
    # The unknown job does not block other jobs.
    assert store.attempts.claim("test", lease_seconds=60) == store.jobs.get(after.id)
    store.attempts.finish(after.id, 1, STOPPED)
    with store._database.write() as connection:
        connection.execute(
            sa.update(JOBS).where(JOBS.c.id == job.id).values(status=RUNNING, attempt=1)
        )
    # A runner that gets the unknown job fails it and reports the reason.
    assert run_attempt(store, server.app_state.home, job.id, 1, options=QUICK) == FAILED
    assert store.jobs.get(job.id).reason == "KIND"
    store.jobs.delete(job.id)


# --- the command line


def test_the_command_line_predicts_in_the_local_process(
    server: ServerSetup, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(server.app_state.registry.resolve("text:1"))
    out = tmp_path / "out"
    server.app_state.registry.label_sets("text").put("net", ["socket", "io"])
    requests = [
        "predict-batch",
        model,
        str(file),
        str(out),
        "-k",
        "3",
        "--pool",
        "serial",
        "--allow",
        "set:net",
        "--id-field",
        "key",
    ]
    assert main([*requests, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["output"], document["answered"]) == (str(out), 30)
    result = pads.dataset(out, format="parquet").to_table()
    assert {label for row in result.column("labels").to_pylist() for label in row} == {
        "socket",
        "io",
    }
    assert not (tmp_path / "out.run").exists()
    assert main(requests) == 1
    assert "exists already" in capsys.readouterr().err
    (tmp_path / "rows.dat").write_text("rows\n")
    assert main(["predict-batch", model, str(tmp_path / "rows.dat"), str(tmp_path / "b")]) == 2
    assert "does not determine a format" in capsys.readouterr().err


def test_the_command_line_predicts_on_a_server(
    server: ServerSetup,
    file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command submits the job to the server and waits for its end."""
    from xcray.client.resources import Jobs

    original = Jobs.predict

    def submitted(self: Jobs, *inputs: Any, **more: Any) -> Any:
        job = original(self, *inputs, **more)
        run_next(server)
        return job

    monkeypatch.setattr(Jobs, "predict", submitted)
    there = ["--server", server.url]
    assert main(["predict-batch", "text", str(file), str(tmp_path / "out"), *there]) == 0
    shown = capsys.readouterr()
    assert "30 rows predicted, 1 file," in shown.out
    job = shown.err.split(":")[0].strip()
    assert pads.dataset(tmp_path / "out", format="parquet").count_rows() == 30
    assert main(["jobs", "output", job, str(tmp_path / "again"), *there]) == 0
    assert (tmp_path / "again" / MANIFEST).read_bytes() == (
        tmp_path / "out" / MANIFEST
    ).read_bytes()
    assert main(["jobs", "get", job, *there]) == 0
    assert f"xcray jobs output {job} DIR" in capsys.readouterr().out
    assert main(["predict-batch", "vector", str(file), str(tmp_path / "b"), *there]) == 1
    assert "no text pipeline" in capsys.readouterr().out
    assert (
        main(["predict-batch", "text", str(file), str(tmp_path / "c"), "--run-dir", "x", *there])
        == 2
    )
