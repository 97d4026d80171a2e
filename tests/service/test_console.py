"""A person uses the pages of the service in a real browser.

Without Chromium, the same requests are sent without the pages.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.support.browser import Browsing, browsing, chromium
from tests.support.chain_models import staged_content
from tests.support.missing_tools import say
from tests.support.service_processes import process, until
from xcray.client.models import extract
from xcray.data.text.pipeline import TextPipeline
from xcray.jobs.home import Home
from xcray.model.model import Model, TrainingRecord, write_model
from xcray.service.models.registries import Registries
from xcray.service.routes.health import ASSETS

pytestmark = pytest.mark.drill

WORDS = {
    "csv": ("csv", "rows", "columns", "delimiter"),
    "json": ("json", "parse", "dump", "object"),
    "socket": ("socket", "listen", "connect", "port"),
}
OTHER_WORDS = [f"word{i}" for i in range(300)]
BAD_LINES = '{"text": "broken", "labels": \n{"txt": "no text", "labels": ["csv"]}\n'
PAGES = ("", "datasets", "train", "jobs", "models", "models/topics", "ask", "admin")
ENDLESS = {"epochs": 1_000_000, "tolerance": 0.0, "history": 0, "steps": "sqrt", "rate": 1e-6}


def question_lines() -> str:
    """Return 2,000 rows of text with one label each, as JSON lines; one of ten labels is wrong."""
    rng = random.Random(1)
    lines = []
    for _ in range(2000):
        topic = rng.choice(list(WORDS))
        label = topic if rng.random() < 0.9 else rng.choice(list(WORDS))
        words = rng.choices(WORDS[topic], k=3) + rng.choices(OTHER_WORDS, k=4)
        lines.append({"text": " ".join(words), "labels": [label]})
    return "".join(json.dumps(line) + "\n" for line in lines)


class Live(NamedTuple):
    """A running service that requires keys: one per scope."""

    url: str
    http: httpx.Client
    keys: dict[str, str]
    home: Path


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Yield a service with the model `topics`, trained over REST, and the data set `topics`."""
    home = tmp_path_factory.mktemp("console") / "home"
    with process(home, "serve"):
        until((home / "serve.json").is_file, home)
        url = json.loads((home / "serve.json").read_text())["url"]
        with httpx.Client(base_url=url, trust_env=False, timeout=600) as http:
            keys = {}
            for scope in ("admin", "submit", "read", "predict"):
                scopes = ["submit", "predict"] if scope == "submit" else [scope]
                body = {"name": scope, "scopes": scopes}
                keys[scope] = http.post("/v1/keys", json=body).json()["key"]
                http.headers["authorization"] = f"Bearer {keys['admin']}"
            live = Live(url, http, keys, home)
            _train(live)
            yield live


def _train(live: Live) -> None:
    """Upload the rows and train the model `topics`."""
    answer = live.http.post(
        "/v1/datasets",
        params={"name": "topics", "format": "jsonl", "options": '{"test_fraction": 0.1}'},
        content=question_lines(),
        headers={"content-type": "application/octet-stream"},
    )
    _wait(live, answer.headers["location"], "READY")
    job = live.http.post("/v1/jobs", json={"dataset": "topics", "model": "topics"})
    _wait(live, job.headers["location"], "SUCCEEDED")


def _wait(live: Live, path: str, status: str) -> dict[str, Any]:
    """Wait until a data set or job has a status, and return it."""

    def look() -> dict[str, Any] | None:
        body: dict[str, Any] = live.http.get(path).json()
        assert body["status"] in (status, "BUILDING", "PENDING", "RUNNING"), body
        return body if body["status"] == status else None

    result: dict[str, Any] = until(look, live.home)
    return result


@pytest.fixture
def pages(live: Live) -> Iterator[Browsing | None]:
    """Yield a browser on the service; None without Chromium, after the assets were read."""
    program = chromium()
    if program is None:
        say("chromium", "the pages are not opened in a browser, only their files are read")
        for name, path in ASSETS.items():
            assert live.http.get(f"/static/{name}").content == path.read_bytes()
        yield None
        return
    with browsing(live.url, program) as result:
        yield result


def _upload(page: Any, path: Path, name: str) -> None:
    """Upload a file on the page of data sets."""
    page.get_by_role("link", name="Data sets").click()
    page.get_by_label("File").set_input_files(path)
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Upload").click()


def _run_shown_command(live: Live, command: str) -> None:
    """Run the command that the page of a job shows; it submits the same training."""
    words = shlex.split(command)
    assert words[0] == "xcray"
    answer = subprocess.run(
        [sys.executable, "-m", "xcray", *words[1:], "--json"],
        env={**os.environ, "XCRAY_KEY": live.keys["admin"]},
        capture_output=True,
        text=True,
        check=True,
    )
    jobs = live.http.get("/v1/jobs", params={"model": "questions"}).json()["jobs"]
    assert json.loads(answer.stdout)["id"] == jobs[0]["id"]
    assert jobs[0]["spec"] == jobs[1]["spec"]
    live.http.post(f"/v1/jobs/{jobs[0]['id']}/stop")


def test_from_a_file_with_bad_lines_to_an_answer(
    live: Live, pages: Browsing | None, tmp_path: Path
) -> None:
    if pages is None:
        return
    bad, good = tmp_path / "bad.jsonl", tmp_path / "good.jsonl"
    bad.write_text(question_lines() + BAD_LINES)
    good.write_text(question_lines())
    page = pages.open("/", key=live.keys["submit"])

    _upload(page, bad, "questions")
    page.get_by_role("heading", name="Invalid lines").wait_for()
    rows = page.get_by_label("Invalid lines").locator("tbody tr").all_inner_texts()
    assert [row.split("\t")[1] for row in rows] == ["2,001", "2,002"]
    assert "there is no field 'text'" in rows[1]

    _upload(page, good, "questions")
    page.get_by_role("link", name="Train on it").click()
    page.get_by_label("Also fit probabilities").check()
    page.get_by_text("Parameters of ppdsparse").click()
    page.get_by_label("lam", exact=True).fill("0.001")
    page.get_by_role("button", name="Estimate").click()
    page.get_by_role("heading", name="Estimate").wait_for()
    page.get_by_text("core time").wait_for()
    page.get_by_role("button", name="Train").click()
    page.get_by_text("Status: SUCCEEDED").wait_for()
    command = page.get_by_label("command").inner_text()
    # the runner writes its last line after the job has succeeded
    log = page.get_by_label("last 200 lines")
    log.filter(has_text="published questions version 1").wait_for()
    page.get_by_role("link", name="questions, version 1").click()

    page.get_by_label("Part of the name").fill("SOCK")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("button", name="csv", exact=True).wait_for(state="detached")
    page.get_by_role("button", name="socket", exact=True).click()
    page.get_by_role("heading", name="Label socket").wait_for()
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("textbox", name="New alias").fill("prod")
    page.get_by_role("button", name="Set", exact=True).click()
    page.get_by_role("cell", name="prod").wait_for()
    assert live.http.get("/v1/models/questions").json()["aliases"]["prod"] == 1

    page.get_by_role("link", name="Ask", exact=True).click()
    page.get_by_label("Model", exact=True).select_option("questions@prod")
    page.get_by_label("Text", exact=True).fill("Read the CSV rows; listen")
    page.get_by_label("Number of labels").fill("3")
    page.get_by_label("Probabilities").check()
    page.get_by_role("button", name="Ask").click()
    page.locator("mark.for").first.wait_for()
    words = page.locator("mark.for").all_inner_texts()
    assert words == ["CSV", "rows"]
    assert page.get_by_label("Labels", exact=True).locator("tbody tr").count() == 3
    assert page.get_by_label("Number of labels").input_value() == "3"  # the answer changes no field
    link = page.get_by_role("link", name="Link to this question").get_attribute("href")
    again = pages.open(f"/{link}", key=live.keys["submit"])
    again.locator("mark.for").first.wait_for()
    assert again.locator("mark.for").all_inner_texts() == words
    page.get_by_role("button", name="socket", exact=True).focus()
    page.get_by_role("heading", name="Why socket").wait_for()
    page.locator("mark.for").get_by_text("listen", exact=True).wait_for()
    _run_shown_command(live, command)


def test_a_job_is_watched_stopped_and_resumed(live: Live, pages: Browsing | None) -> None:
    body = {"dataset": "topics", "model": "endless", "solver": "dsmlr", "params": ENDLESS}
    job = live.http.post("/v1/jobs", json=body).json()
    if pages is None:
        live.http.post(f"/v1/jobs/{job['id']}/stop")
        _wait(live, f"/v1/jobs/{job['id']}", "STOPPED")
        return
    page = pages.open(f"/#/jobs/{job['id']}", key=live.keys["submit"])
    page.get_by_text("Objective by epoch").wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Status: STOPPED").wait_for()
    page.get_by_role("button", name="Resume").click()
    page.get_by_text("Status: RUNNING").wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Status: STOPPED").wait_for()
    events = page.get_by_label("Events", exact=True).locator("tbody tr")
    events.first.filter(has_text="STOPPED, attempt: 2").wait_for()  # newest first


def test_the_workers_of_a_job_are_on_a_timeline(live: Live, pages: Browsing | None) -> None:
    job = live.http.get("/v1/jobs", params={"model": "topics"}).json()["jobs"][-1]
    timeline = live.http.get(f"/v1/jobs/{job['id']}/timeline").json()
    assert timeline["batches"]
    if pages is None:
        return
    page = pages.open(f"/#/jobs/{job['id']}", key=live.keys["read"])
    lanes = page.get_by_role("img", name="timeline:")
    lanes.wait_for()
    assert lanes.locator("rect.done").count() == len(timeline["batches"])
    drawn = lanes.bounding_box()
    for bar in lanes.locator("rect.done").all():
        box = bar.bounding_box()
        assert box["x"] >= drawn["x"] - 1
        assert box["x"] + box["width"] <= drawn["x"] + drawn["width"] + 1
    events = page.get_by_label("Events", exact=True).locator("tbody tr")
    assert "SUCCEEDED" in events.first.inner_text()


def test_two_versions_are_compared(live: Live, pages: Browsing | None, tmp_path: Path) -> None:
    for lam in (0.01, 0.1):
        body = {"dataset": "topics", "model": "pair", "params": {"lam": lam}, "calibrate": True}
        job = live.http.post("/v1/jobs", json=body)
        _wait(live, job.headers["location"], "SUCCEEDED")
    expected = live.http.get("/v1/models/pair:diff").json()
    assert [each["version"] for each in expected["versions"]] == [1, 2]
    assert expected["params"] == {"lam": [0.01, 0.1]}
    if pages is None:
        return
    page = pages.open("/#/models", key=live.keys["submit"])
    page.get_by_label("Part of the name").fill("PAI")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("link", name="topics").wait_for(state="detached")
    page.get_by_role("link", name="pair").click()
    measures = page.get_by_label("Measures", exact=True)
    measures.get_by_role("columnheader", name="version 1").wait_for()
    p1 = expected["versions"][1]["measures"]["P@1"]
    assert (
        measures.get_by_role("row", name=re.compile("^P@1")).inner_text().split("\t")[1]
        == f"{p1:.4f}"
    )
    for name in ("Labels by duality gap", "Recall and precision, tenths of the labels"):
        page.get_by_role("img", name=name).wait_for()
    page.get_by_role("img", name="Observed by predicted probability, first label").wait_for()
    page.get_by_role("button", name="Compare").click()
    page.get_by_label("Parameters that differ").get_by_role("row", name="lam").wait_for()
    changed = page.get_by_label("Labels that differ").get_by_role("row", name="changed")
    assert changed.inner_text().split("\t")[1] == str(expected["changed"]["count"])
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    extract(Path(download.value.path()), tmp_path / "pair-2")
    sha256 = expected["versions"][1]["sha256"]
    assert Model.open(tmp_path / "pair-2").sha256 == sha256

    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete version 1").click()
    page.get_by_role("button", name="Delete version 1").wait_for(state="detached")
    assert live.http.get("/v1/models/pair").json()["versions"] == [2]


def test_a_question_with_filters_and_another_label(live: Live, pages: Browsing | None) -> None:
    if pages is None:
        return
    page = pages.open("/#/ask", key=live.keys["predict"])
    page.get_by_label("Text", exact=True).fill("read csv rows")
    page.get_by_label("Model", exact=True).select_option("topics")
    page.get_by_text("Filters").click()
    page.get_by_label("Never these labels").fill("csv")
    page.get_by_role("button", name="Ask").click()
    labels = page.get_by_label("Labels", exact=True).locator("tbody tr")
    labels.first.wait_for()
    assert labels.count() == 2
    assert "csv" not in " ".join(labels.all_inner_texts())
    page.get_by_label("Another label").fill("csv")
    page.get_by_role("button", name="Why not?").click()
    page.get_by_role("heading", name="Why not csv").wait_for()
    page.get_by_text("Rank 1 of all labels.").wait_for()
    page.get_by_label("Another label").fill("nothing")
    page.get_by_role("button", name="Why not?").click()
    page.get_by_role("alert").get_by_text("nothing").wait_for()
    link = page.get_by_role("link", name="Link to this question").get_attribute("href")
    again = pages.open(f"/{link}", key=live.keys["predict"])
    again.get_by_label("Labels", exact=True).locator("tbody tr").first.wait_for()
    assert again.get_by_label("Never these labels").input_value() == "csv"
    assert again.get_by_label("Labels", exact=True).locator("tbody tr").count() == 2


def test_a_data_set_is_drawn_with_example_rows(live: Live, pages: Browsing | None) -> None:
    sets = live.http.get("/v1/datasets").json()["datasets"]
    path = next(each["id"] for each in sets if each["name"] == "topics")
    found = live.http.get(f"/v1/datasets/{path}/figures?examples=3").json()
    assert sum(found["rows_per_label"]["counts"]) == 3
    if pages is None:
        return
    page = pages.open(f"/#/datasets/{path}", key=live.keys["read"])
    for name in ("Training rows per label", "Labels per training row", "Features per training row"):
        page.get_by_role("img", name=name).wait_for()
    rows = page.get_by_label("Example rows: train").locator("tbody tr")
    first = found["parts"]["train"]["examples"][0]
    assert rows.first.inner_text().split("\t")[1] == ", ".join(first["labels"])
    assert first["features"][0]["feature"] in rows.first.inner_text()


def test_a_key_without_the_scope_is_refused_with_the_reason(
    live: Live, pages: Browsing | None, tmp_path: Path
) -> None:
    if pages is None:
        return
    file = tmp_path / "rows.jsonl"
    file.write_text(question_lines())
    page = pages.open("/", key="xck_wrong")
    page.get_by_role("heading", name="Sign in").wait_for()
    page = pages.open("/", key=live.keys["read"])
    _upload(page, file, "refused")
    page.get_by_text("this needs a key with the scope submit").wait_for()
    assert page.get_by_role("button", name="Upload").is_disabled()
    page.get_by_role("link", name="Train").click()
    assert page.get_by_role("button", name="Train").is_disabled()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("heading", name="Sign in").wait_for()
    assert page.evaluate("sessionStorage.length") == 0
    page = pages.open("/#/jobs", key=live.keys["predict"])
    page.get_by_text("this needs a key with the scope read").wait_for()
    page.get_by_role("link", name="Ask").click()
    page.get_by_label("Text", exact=True).fill("rows")
    page.get_by_role("button", name="Ask").click()
    page.get_by_role("heading", name="Why csv").wait_for()
    assert {status for status, _ in pages.refused} == {401, 403}


def test_an_admin_creates_and_revokes_a_key(live: Live, pages: Browsing | None) -> None:
    if pages is None:
        return
    page = pages.open("/#/admin", key=live.keys["read"])
    page.get_by_text("this needs a key with the scope admin").wait_for()
    assert page.get_by_role("button", name="Create the key").is_disabled()
    page = pages.open("/#/admin", key=live.keys["admin"])
    page.get_by_label("Name", exact=True).fill("notebook")
    page.get_by_role("group", name="Scopes").get_by_label("read:").check()
    page.get_by_label("Tenant", exact=True).first.fill("team")
    page.get_by_label("Valid for days").fill("2")
    page.get_by_text("Limits of this key").click()
    page.get_by_label("Waiting jobs").fill("7")
    page.get_by_role("button", name="Create the key").click()
    secret = page.get_by_label("secret").inner_text()
    created = next(
        key for key in live.http.get("/v1/keys").json()["keys"] if key["name"] == "notebook"
    )
    assert (created["tenant"], created["limits"]) == ("team", {"max_queued": 7})
    assert sorted(created["scopes"]) == ["predict", "read"]
    assert created["expires"] is not None
    headers = {"authorization": f"Bearer {secret}"}
    assert live.http.get("/v1/jobs", headers=headers).json() == {
        "jobs": [],
        "next_page_token": None,
    }

    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Revoke notebook").click()
    page.get_by_role("button", name="Revoke notebook").wait_for(state="detached")
    until(lambda: live.http.get("/v1/jobs", headers=headers).status_code == 401, live.home)
    page.get_by_label("Action").fill("key.revoke")
    page.get_by_role("button", name="Filter").click()
    rows = page.get_by_label("Audit log", exact=True).locator("tbody tr")
    rows.filter(has_text=created["id"]).wait_for()
    rows.filter(has_text="key.create").first.wait_for(state="detached")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_pages_fit_the_width_and_have_names(
    live: Live, pages: Browsing | None, width: int, scheme: str
) -> None:
    if pages is None:
        return
    page = pages.open("/", width, live.keys["admin"], color_scheme=scheme)
    page.get_by_role("heading", name="Overview").wait_for()
    job = live.http.get("/v1/jobs", params={"model": "topics"}).json()["jobs"][-1]
    for name in (*PAGES, f"jobs/{job['id']}", f"datasets/{job['spec']['dataset']}"):
        page.goto(f"{live.url}/#/{name}")
        page.get_by_role("heading", level=1).wait_for()
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        for control in page.locator("main input, main select, main textarea").all():
            named = control.evaluate("node => node.labels.length > 0")
            assert named, (name, control.get_attribute("name"))
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    lightness = sum(int(part) for part in re.findall(r"\d+", background)[:3]) / 3
    assert (lightness < 100) == (scheme == "dark")


def test_an_answer_that_cannot_be_drawn_is_told(live: Live, pages: Browsing | None) -> None:
    if pages is None:
        return
    page = pages.open("/", key=live.keys["admin"])
    page.route("**/v1/datasets?*", lambda route: route.fulfill(json={"datasets": [{}]}))
    page.get_by_role("link", name="Data sets").click()
    page.get_by_role("heading", name="This page cannot be shown").wait_for()
    page.get_by_role("link", name="Jobs").click()
    page.get_by_role("heading", name="Jobs").wait_for()


def test_the_keyboard_is_enough(live: Live, pages: Browsing | None) -> None:
    if pages is None:
        return
    page = pages.open("/#/ask", key=live.keys["admin"])
    page.get_by_label("Text", exact=True).wait_for()
    assert page.evaluate("document.activeElement.tagName") == "MAIN"
    page.reload()
    page.get_by_label("Text", exact=True).wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.tagName") == "MAIN"
    page.keyboard.press("Tab")
    page.keyboard.type("json object")
    for _ in range(5):  # model, number of labels, probabilities, filters, the button
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Why json").wait_for()


def test_a_chain_of_stages_says_that_it_has_no_words(live: Live, pages: Browsing | None) -> None:
    pipeline = TextPipeline.fit(["csv rows json parse socket port"])
    content = replace(staged_content(text=pipeline), feature_names=pipeline.terms.to_pylist())
    record = TrainingRecord(
        solver="least-squares", params={}, dataset_hash="0" * 64, seed=0, measures={}
    )
    write_model(live.home.parent / "chain", content, record)
    Registries(Home(live.home)).of("default").publish("chain", live.home.parent / "chain")
    explained = live.http.post(
        "/v1/models/chain:explain", json={"instance": {"text": "csv rows"}}
    ).json()
    described = live.http.get("/v1/models/chain/labels/red").json()
    if pages is None:
        assert "can't be" in explained["detail"]
        assert "stages" in described["detail"]
        return
    page = pages.open("/#/models/chain", key=live.keys["admin"])
    page.get_by_role("button", name="red", exact=True).click()
    page.get_by_text(described["detail"]).wait_for()
    page.goto(f"{live.url}/#/ask?model=chain&text=csv+rows")
    page.get_by_text(explained["detail"]).wait_for()
    assert page.get_by_label("Labels", exact=True).locator("tbody tr").count() == 4


def test_the_description_is_shown_and_tried_out(live: Live, pages: Browsing | None) -> None:
    if pages is None:
        return
    page = pages.open("/docs", key=live.keys["admin"])
    page.locator("#operations-predictions-predict_predict .opblock-summary-control").click()
    operation = page.locator("#operations-predictions-predict_predict")
    operation.get_by_placeholder("reference").fill("topics")
    operation.get_by_role("button", name="Execute").click()
    operation.locator(".live-responses-table .response-col_status").get_by_text("200").wait_for()
    page = pages.open("/redoc", key=live.keys["admin"])
    page.get_by_text("Online predictions.").wait_for()
