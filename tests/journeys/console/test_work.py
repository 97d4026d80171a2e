"""A person trains, watches, compares and asks with the pages of the service, in a browser."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.browser import Browsing, expect
from tests.support.console_service import WORDS, Live, question_lines, upload, wait_for
from tests.support.waiting import until
from xcray.client.models import extract
from xcray.model.model import Model
from xcray.plots.axes import exact_number

pytestmark = pytest.mark.drill

BAD_LINES = '{"text": "broken", "labels": \n{"txt": "no text", "labels": ["csv"]}\n'
ENDLESS = {"epochs": 1_000_000, "tolerance": 0.0, "history": 0, "steps": "sqrt", "rate": 1e-6}


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

    upload(page, bad, "questions")
    page.get_by_role("heading", name="Invalid lines").wait_for()
    rows = page.get_by_label("Invalid lines").locator("tbody tr")
    expect(rows.locator("td:nth-child(2)")).to_have_text(["2,001", "2,002"])
    expect(rows.last).to_contain_text("there is no field 'text'")

    upload(page, good, "questions")
    page.get_by_role("heading", name="Data set questions").wait_for()
    page.get_by_role("link", name="Train on it").click()
    page.get_by_text("Options", exact=True).click()
    page.get_by_label("calibrate").check()
    page.get_by_text("Parameters of ppdsparse").click()
    page.get_by_label("lam", exact=True).fill("0.001")
    page.get_by_label("memory_limit in MiB").fill("1")
    page.get_by_role("button", name="Estimate").click()
    page.get_by_role("heading", name="Estimate").wait_for()
    page.get_by_text("core time").wait_for()
    page.get_by_role("alert").get_by_text("memory").wait_for()  # the limit is too small
    page.get_by_label("memory_limit in MiB").fill("4096")
    page.get_by_role("button", name="Train", exact=True).click()
    page.get_by_text("Status: SUCCEEDED").wait_for()
    page.get_by_role("link", name="Command and REST").click()
    shown = page.get_by_label("command")
    expect(shown).to_contain_text(f"--memory-limit {4096 << 20}")
    command = shown.inner_text()
    page.get_by_role("link", name="Events and log").click()
    # the runner writes its last line after the job has succeeded
    log = page.get_by_label("last 200 lines")
    log.filter(has_text="published questions version 1").wait_for()
    page.get_by_role("link", name="questions:1").click()

    page.get_by_role("link", name="Labels").click()
    page.get_by_label("Part of the name").fill("SOCK")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("button", name="csv", exact=True).wait_for(state="detached")
    page.get_by_role("button", name="socket", exact=True).click()
    page.get_by_role("heading", name="Label socket").wait_for()
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("link", name="Versions and traffic").click()
    page.get_by_role("textbox", name="New alias").fill("prod")
    page.get_by_role("button", name="Set", exact=True).click()
    page.get_by_role("cell", name="prod", exact=True).wait_for()
    assert live.http.get("/v1/models/questions").json()["aliases"]["prod"] == 1

    page.get_by_role("link", name="Ask", exact=True).click()
    page.get_by_label("Model", exact=True).select_option("questions@prod")
    page.get_by_label("Text", exact=True).fill("Read the CSV rows; listen")
    page.get_by_label("Number of labels").fill("3")
    page.get_by_role("checkbox", name="Probabilities", checked=True).wait_for()  # the default
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("mark.for")).to_have_text(["CSV", "rows"])
    expect(page.get_by_label("Labels", exact=True).locator("tbody tr")).to_have_count(3)
    expect(page.get_by_label("Number of labels")).to_have_value("3")  # the answer changes no field
    link = page.get_by_role("link", name="Link to this question").get_attribute("href")
    again = pages.open(f"/{link}", key=live.keys["submit"])
    expect(again.locator("mark.for")).to_have_text(["CSV", "rows"])
    page.get_by_role("button", name="socket", exact=True).focus()
    page.get_by_role("heading", name="Why socket").wait_for()
    page.locator("mark.for").get_by_text("listen", exact=True).wait_for()
    _run_shown_command(live, command)


def test_the_columns_of_a_file_are_chosen_from_its_first_rows(
    live: Live, pages: Browsing | None, tmp_path: Path
) -> None:
    if pages is None:
        return
    rows = [f'{i};"read; {w}";"about {w} again";{w}/all' for i, w in enumerate(WORDS)] * 20
    text = "\n".join(["id;title;body;tags", *rows]) + "\n"
    table, held_out = tmp_path / "tickets.csv.gz", tmp_path / "held.csv"
    table.write_bytes(gzip.compress((text + "one field\n").encode()))
    held_out.write_text(text)
    page = pages.open("/#/datasets", key=live.keys["submit"])
    page.get_by_role("button", name="Upload a file").click()
    page.get_by_label("File").set_input_files(table)
    first = page.get_by_label("First rows").locator("tbody tr").first
    expect(first.locator("td").nth(1)).to_have_text("read; csv")
    expect(page.get_by_label("Delimiter")).to_have_value(";")
    page.get_by_role("checkbox", name="title").check()
    page.get_by_role("checkbox", name="body").check()
    page.get_by_label("Label column").select_option("tags")
    page.get_by_label("Separator of labels").fill("/")
    page.get_by_text("Labels of the first row: csv all").wait_for()
    page.get_by_label("Held-out rows").set_input_files(held_out)
    expect(page.get_by_label("Share of rows held out")).to_be_disabled()
    page.get_by_role("checkbox", name="Skip bad lines").check()
    page.get_by_role("button", name="Upload", exact=True).click()
    page.get_by_text("Status: READY").wait_for()
    found = next(
        each
        for each in live.http.get("/v1/datasets").json()["datasets"]
        if each["name"] == "tickets"
    )["stats"]
    assert (found["n_labels"], found["skipped"]) == (4, 1)
    assert {part: each["n_rows"] for part, each in found["splits"].items()} == {
        "train": 60,
        "test": 60,
    }


def test_labels_of_a_file_are_joined_objects_or_columns_of_0_and_1(
    live: Live, pages: Browsing | None, tmp_path: Path
) -> None:
    if pages is None:
        return
    objects = [{"text": f"about {w}", "subjects": [{"uri": f"u:{w}"}]} for w in WORDS]
    (tmp_path / "objects.jsonl").write_text("\n".join(map(json.dumps, objects)))
    (tmp_path / "matrix.csv").write_text("text,a,b\nabout a,1,0\nabout b,0,1\n")
    (tmp_path / "joined.csv").write_text("text,labels\nabout a,a;b\nabout b,b;c\n")
    for name, choose in (
        ("joined.csv", lambda page: page.get_by_text("Labels of the first row: a b").wait_for()),
        (
            "objects.jsonl",
            lambda page: page.get_by_label("Label column").select_option("subjects.uri"),
        ),
        ("matrix.csv", lambda page: page.get_by_label("Columns of 0 and 1").fill("a:b")),
    ):
        page = pages.open("/#/datasets", key=live.keys["submit"])
        page.get_by_role("button", name="Upload a file").click()
        page.get_by_label("File").set_input_files(tmp_path / name)
        page.get_by_label("First rows").wait_for()
        choose(page)
        page.get_by_label("Share of rows held out").fill("0")
        page.get_by_role("button", name="Upload", exact=True).click()
        page.get_by_text("Status: READY").wait_for()
    rows = live.http.get("/v1/datasets").json()["datasets"]
    found = {each["name"]: each["stats"].get("n_labels") for each in rows}
    assert (found["joined"], found["objects"], found["matrix"]) == (3, 3, 2)


def test_errors_of_an_upload_name_the_fields_of_the_form(
    live: Live, pages: Browsing | None, tmp_path: Path
) -> None:
    if pages is None:
        return
    (tmp_path / "rows.jsonl").write_text('{"words": "about a", "tags": "x;y"}\n{"words": "b"}\n')
    page = pages.open("/#/datasets", key=live.keys["submit"])
    page.get_by_role("button", name="Upload a file").click()
    page.evaluate("""() => {
        const { read } = ReadableStreamDefaultReader.prototype;
        const gate = new Promise((done) => { window.readOn = done; });
        ReadableStreamDefaultReader.prototype.read = async function () {
            await gate;
            return read.call(this);
        };
    }""")
    page.get_by_label("File").set_input_files(tmp_path / "rows.jsonl")
    button = page.get_by_role("button", name="Upload", exact=True)
    expect(button).to_be_disabled()  # until it is known how the file is read
    page.evaluate("readOn()")
    page.get_by_label("First rows").wait_for()
    page.get_by_label("Label column").select_option("tags")
    page.get_by_text("Labels of the first row: x y").wait_for()
    page.get_by_role("checkbox", name="words").uncheck()
    page.get_by_role("button", name="Upload", exact=True).click()
    page.get_by_role("alert").get_by_text("at least one column at “Text columns”").wait_for()
    page.get_by_role("checkbox", name="words").check()
    page.get_by_role("button", name="Upload", exact=True).click()
    page.get_by_text("Status: FAILED").wait_for()
    alert = page.get_by_role("alert").first
    expect(alert).to_contain_text("“Text columns”")
    expect(alert).not_to_contain_text("text_fields")


def test_a_job_is_watched_stopped_and_resumed(live: Live, pages: Browsing | None) -> None:
    body = {"dataset": "topics", "model": "endless", "solver": "dsmlr", "params": ENDLESS}
    job = live.http.post("/v1/jobs", json=body).json()
    if pages is None:
        live.http.post(f"/v1/jobs/{job['id']}/stop")
        wait_for(live, f"/v1/jobs/{job['id']}", "STOPPED")
        return
    page = pages.open(f"/#/jobs/{job['id']}", key=live.keys["submit"])
    page.get_by_text("Objective by epoch", exact=True).wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Status: STOPPED").wait_for()
    page.get_by_role("button", name="Resume").click()
    page.get_by_text("Status: RUNNING").wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Status: STOPPED").wait_for()
    page.get_by_role("link", name="Events and log").click()
    events = page.get_by_label("Events", exact=True).locator("tbody tr")
    events.first.filter(has_text="STOPPED, attempt: 2").wait_for()  # newest first


def test_the_workers_of_a_job_are_on_a_timeline(live: Live, pages: Browsing | None) -> None:
    job = live.http.get("/v1/jobs", params={"model": "topics"}).json()["jobs"][-1]
    batches = live.http.get(f"/v1/jobs/{job['id']}/timeline").json()["batches"]
    done = [each for each in batches if each["outcome"] == "done"]  # not: tried by two workers
    assert done
    if pages is None:
        return
    page = pages.open(f"/#/jobs/{job['id']}", key=live.keys["read"])
    lanes = page.get_by_role("img", name="Timeline")
    lanes.wait_for()
    bars = lanes.locator("[data-series=done] rect")
    expect(bars).to_have_count(len(done))
    drawn = lanes.bounding_box()
    for bar in bars.all():
        box = bar.bounding_box()
        assert box["x"] >= drawn["x"] - 1
        assert box["x"] + box["width"] <= drawn["x"] + drawn["width"] + 1
    page.get_by_role("link", name="Events and log").click()
    events = page.get_by_label("Events", exact=True).locator("tbody tr")
    expect(events.first).to_contain_text("SUCCEEDED")


def _watch_a_shadow(live: Live, page: Any) -> None:
    """Set an alias with version 1 as the shadow, send five rows, and read the agreement."""
    page.get_by_role("textbox", name="New alias").fill("canary")
    page.get_by_role("combobox", name="Shadow").select_option("1")
    page.get_by_role("button", name="Set", exact=True).click()
    page.get_by_role("cell", name="version 2: 100 %, shadow 1: copies of 100.0 %").wait_for()
    page.get_by_text("No request was copied yet.").wait_for()
    body = {
        "instances": [{"text": text} for text in ("csv rows", "json", "socket", "port", "dump")]
    }
    live.http.post("/v1/models/pair@canary:predict", json=body).raise_for_status()
    agreement = page.get_by_label("Agreement of the shadow of canary")
    expect(agreement.locator("tbody td").nth(2)).to_have_text("5")
    pair = live.http.get("/v1/models/pair/aliases/canary/shadow").json()["pairs"][0]
    same = f"{100 * pair['top1_agreement']:.1f} %"
    expect(agreement.locator("tbody td").nth(3)).to_have_text(same)
    page.get_by_role("button", name="Remove", exact=True).click()
    page.get_by_text("There is no alias.").wait_for()


def _compare(live: Live, page: Any) -> None:
    """Compare both versions of `pair` and the model `topics`, starting from the list."""
    page.get_by_role("link", name="Models").click()
    page.get_by_role("checkbox", name="Compare pair:2").check()
    page.get_by_role("checkbox", name="Compare topics:1").check()
    page.get_by_role("link", name="Compare 2 models").click()
    page.get_by_label("Add a model").fill("pair:1")
    page.get_by_role("button", name="Add", exact=True).click()
    measures = page.get_by_label("Measures", exact=True)
    measures.get_by_role("columnheader", name="pair:1").wait_for()
    body = {"models": ["pair:2", "topics:1", "pair:1"], "dataset": "topics"}
    found = live.http.post("/v1/models:compare", json=body).raise_for_status().json()
    cells = measures.get_by_role("row", name=re.compile("^P@1")).locator("td")
    expect(cells).to_have_count(1 + len(found["models"]))
    expect(cells.nth(1)).to_have_text(f"{100 * found['models'][0]['measures']['P@1']:.2f} %")
    for i, each in enumerate(found["models"][1:], start=2):
        difference = each["differences"]["P@1"]["difference"]
        expect(cells.nth(i)).to_contain_text(f"{abs(100 * difference):.2f} ±")
    page.get_by_label("Parameters that differ").get_by_role("row", name="lam").wait_for()


def test_two_versions_are_compared(live: Live, pages: Browsing | None, tmp_path: Path) -> None:
    for lam in (0.01, 0.1):
        body = {"dataset": "topics", "model": "pair", "params": {"lam": lam}, "calibrate": True}
        job = live.http.post("/v1/jobs", json=body)
        wait_for(live, job.headers["location"], "SUCCEEDED")
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
    p1 = expected["versions"][1]["measures"]["P@1"]
    page.get_by_text(f"{100 * p1:.1f} %").first.wait_for()
    rows = live.http.get("/v1/models/pair/versions/2/report").json()["by_frequency"]["labels"]
    picture = page.get_by_role("img", name="Which labels are found").last
    values = [re.compile(f": {re.escape(exact_number(100 * row['P@1']))}$") for row in rows]
    expect(picture.locator("[data-series='P@1']").first.locator("title")).to_have_text(values)
    for tab, name in (
        ("Cost and certificate", "How the labels converged"),
        ("Calibration", "Calibration"),
    ):
        page.get_by_role("link", name=tab, exact=True).click()
        page.get_by_role("img", name=name).wait_for()
    _compare(live, page)
    page.get_by_role("link", name="Models").click()
    page.get_by_role("link", name="pair", exact=True).click()
    page.get_by_role("link", name="Files and API").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    extract(Path(download.value.path()), tmp_path / "pair-2")
    sha256 = expected["versions"][1]["sha256"]
    assert Model.open(tmp_path / "pair-2").sha256 == sha256

    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("link", name="Versions and traffic").click()
    page.get_by_text("Split and shadow").click()
    _watch_a_shadow(live, page)
    page.get_by_role("textbox", name="New alias").fill("prod")
    page.get_by_label("Another version answers, too").select_option("1")
    page.get_by_label("Its share of the requests").fill("25")
    page.get_by_role("combobox", name="Shadow").select_option("1")
    page.get_by_role("button", name="Set", exact=True).click()
    page.get_by_role("alert").wait_for()  # a version cannot answer and be the shadow
    page.get_by_role("combobox", name="Shadow").select_option("")
    page.get_by_role("button", name="Set", exact=True).click()
    page.get_by_role("cell", name="version 2: 75 %, version 1: 25 %").wait_for()
    page.get_by_role("button", name="Remove", exact=True).click()
    page.get_by_text("There is no alias.").wait_for()
    page.get_by_role("link", name="1", exact=True).click()
    page.get_by_role("heading", name="Model pair version 1").wait_for()
    page.get_by_text("More", exact=True).click()
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
    expect(labels).to_have_count(2)
    expect(labels.filter(has_text="csv")).to_have_count(0)
    page.get_by_label("Another label").fill("csv")
    page.get_by_role("button", name="Why not?").click()
    page.get_by_role("heading", name="Why not csv").wait_for()
    page.get_by_text("Rank 1 of all labels.").wait_for()
    page.get_by_label("Another label").fill("nothing")
    page.get_by_role("button", name="Why not?").click()
    page.get_by_role("alert").get_by_text("nothing").wait_for()
    link = page.get_by_role("link", name="Link to this question").get_attribute("href")
    again = pages.open(f"/{link}", key=live.keys["predict"])
    expect(again.get_by_label("Labels", exact=True).locator("tbody tr")).to_have_count(2)
    expect(again.get_by_label("Never these labels")).to_have_value("csv")


def test_an_answer_is_of_the_latest_question_with_a_reply(
    live: Live, pages: Browsing | None
) -> None:
    if pages is None:
        return
    page = pages.open("/#/ask?model=topics", key=live.keys["predict"])
    page.get_by_label("Text", exact=True).fill("read csv rows")
    page.get_by_role("button", name="Ask").click()
    page.get_by_role("heading", name="Why csv").wait_for()
    page.get_by_role("button", name="json", exact=True).click()
    page.get_by_role("heading", name="Why json").wait_for()
    page.get_by_label("Text", exact=True).fill("listen on a port")
    page.get_by_role("button", name="Ask").click()
    page.get_by_role("heading", name="Why socket").wait_for()  # the label that was chosen is gone
    away = {"status": 503, "json": {"detail": "the service is draining"}}
    page.route("**/*:predict", lambda route: route.fulfill(**away))
    page.get_by_role("button", name="Ask").click()
    page.get_by_role("alert").get_by_text("the service is draining").wait_for()


def test_a_text_stays_when_the_fields_of_the_model_become_known(
    live: Live, pages: Browsing | None
) -> None:
    if pages is None:
        return
    path = "/v1/models/topics/versions/1"
    version = live.http.get(path).json()
    version["reading"]["text_fields"] = ["title", "body"]
    page = pages.open("/healthz")
    held: list[Any] = []
    page.route(f"**{path}", lambda route: held.append(route))
    page.goto(f"{live.url}/#/ask?model=topics:1")
    page.get_by_label("Key (xck_...)").fill(live.keys["predict"])
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("Text", exact=True).fill("csv rows")
    until(lambda: held, tick=lambda: page.wait_for_timeout(20))
    held[0].fulfill(json=version)
    page.get_by_label("body").wait_for()
    expect(page.get_by_label("title")).to_have_value("csv rows")


def test_judged_answers_become_the_data_set_of_an_update(
    live: Live, pages: Browsing | None
) -> None:
    if pages is None:
        return
    page = pages.open("/#/ask", key=live.keys["predict"])
    for text, right in (("read csv rows", "csv"), ("listen on a port", "socket")):
        page.get_by_label("Text", exact=True).fill(text)
        page.get_by_label("Model", exact=True).select_option("topics")
        page.get_by_role("button", name="Ask").click()
        page.get_by_role("heading", name=f"Why {right}").wait_for()
        page.get_by_text("Accept or reject").click()
        page.get_by_role("checkbox", name=right).check()
        page.get_by_label("Right labels that are missing").fill("new label\n")
        page.get_by_role("button", name="Send as feedback").click()
        page.get_by_text("Stored for the next version; new labels: new label.").wait_for()
    entries = live.http.get("/v1/models/topics/feedback").json()["feedback"]
    assert [(each["instance"]["text"], each["right"]) for each in entries] == [
        ("listen on a port", ["socket", "new label"]),
        ("read csv rows", ["csv", "new label"]),
    ]
    assert sorted(entries[1]["wrong"]) == ["json", "socket"]
    page = pages.open("/#/models/topics?tab=feedback", key=live.keys["submit"])
    table = page.get_by_label("Feedback", exact=True)
    table.get_by_text("read csv rows").wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as a file").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert [json.loads(line) for line in lines] == entries[::-1]
    page.get_by_role("button", name="Update version").click()
    page.wait_for_url(re.compile("tab=change&change=rows&dataset=ds_"))
    made = live.http.get(f"/v1/datasets/{page.url.rpartition('=')[2]}").json()
    assert (made["name"], made["status"]) == ("topics-feedback", "READY")
    page = pages.open("/#/models/topics?tab=feedback", key=live.keys["submit"])
    page.on("dialog", lambda dialog: dialog.accept())
    for each in entries:
        page.get_by_role("button", name=f"Delete {each['id']}").click()
        place = f"/v1/models/topics/feedback/{each['id']}"
        until(lambda place=place: live.http.get(place).status_code == 404)
    live.http.delete(f"/v1/datasets/{made['id']}").raise_for_status()


def test_a_data_set_is_drawn_with_example_rows(live: Live, pages: Browsing | None) -> None:
    sets = live.http.get("/v1/datasets").json()["datasets"]
    path = next(each["id"] for each in sets if each["name"] == "topics")
    found = live.http.get(f"/v1/datasets/{path}/histograms?examples=3").json()
    assert sum(found["rows_per_label"]["counts"]) == 3
    if pages is None:
        return
    page = pages.open(f"/#/datasets/{path}", key=live.keys["read"])
    picture = page.get_by_role("img", name="Rows, labels and features")
    picture.wait_for()
    for name in ("Training rows per label", "Labels per training row", "Features per training row"):
        expect(picture.get_by_text(name, exact=True)).to_have_count(1)
    row = page.get_by_label("Example rows: train").locator("tbody tr").first
    first = found["parts"]["train"]["examples"][0]
    expect(row.locator("td").nth(1)).to_have_text(", ".join(first["labels"]))
    expect(row).to_contain_text(first["features"][0]["feature"])


def test_a_whole_file_is_answered(live: Live, pages: Browsing | None, tmp_path: Path) -> None:
    if pages is None:
        return
    file = tmp_path / "texts.txt"
    file.write_text("read csv rows\nlisten on a port\n")
    page = pages.open("/#/ask", key=live.keys["submit"])
    page.get_by_label("Model", exact=True).select_option("topics")
    page.get_by_text("A whole file").click()
    page.get_by_label("File of rows").set_input_files(file)
    expect(page.get_by_label("Format")).to_have_value("text")
    page.get_by_role("button", name="Predict", exact=True).click()
    page.get_by_text("Status: SUCCEEDED").wait_for()
    page.get_by_text("2 of 2 rows were answered.").wait_for()
    expect(page.get_by_role("link", name="topics:1", exact=True)).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name=".parquet").click()
    with page.expect_download() as lines:
        page.get_by_role("button", name="JSON lines").click()
    assert len(Path(lines.value.path()).read_text().splitlines()) == 2
    labels = pq.read_table(download.value.path()).column("labels").to_pylist()
    assert [row[0] for row in labels] == ["csv", "socket"]


def test_a_version_is_calibrated_and_a_label_renamed(live: Live, pages: Browsing | None) -> None:
    if pages is None:
        return
    body = {"dataset": "topics", "model": "changed"}
    wait_for(live, live.http.post("/v1/jobs", json=body).headers["location"], "SUCCEEDED")
    page = pages.open("/#/models/changed?tab=calibration", key=live.keys["submit"])
    page.get_by_role("link", name="fit them").click()
    page.get_by_role("button", name="Make the next version").click()
    page.get_by_text("Status: SUCCEEDED").wait_for()
    assert live.http.get("/v1/models/changed/versions/2").json()["calibrated"]
    page.goto(f"{live.url}/#/models/changed?tab=change")
    page.get_by_label("Change", exact=True).last.select_option("rename")
    page.get_by_label("Labels", exact=True).fill("csv")
    page.get_by_label("New name").fill("tables")
    page.get_by_label("Alias that then moves").fill("next")
    page.get_by_role("button", name="Make the next version").click()
    page.get_by_text("Status: SUCCEEDED").wait_for()
    page.get_by_role("link", name="Command and REST").click()
    change = "--change rename --labels csv --into tables"
    expect(page.get_by_label("command")).to_contain_text(change)
    assert live.http.get("/v1/models/changed").json()["aliases"]["next"] == 3
    labels = live.http.get("/v1/models/changed:3/labels").json()["labels"]
    assert "tables" in [each["label"] for each in labels]
