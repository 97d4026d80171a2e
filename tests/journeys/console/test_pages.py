"""Keys, errors, keyboard, widths and names of the pages of the service, in a browser."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.browser import Browsing, accessibility_faults, browsing, chromium, expect
from tests.support.chain_models import staged_content
from tests.support.console_service import Live
from tests.support.service_processes import process, read_process_file
from tests.support.stripping_proxy import stripping_proxy
from tests.support.waiting import until
from xcray.data.text.pipeline import TextPipeline
from xcray.jobs.home import Home
from xcray.model.write import TrainingRecord, write_model
from xcray.service.models.registries import Registries

pytestmark = pytest.mark.drill

# Pages, and what only each of them shows last: a label, or the end of a link.
PAGES = {
    "": "Newest models",
    "datasets": "Data sets",
    "train": "Train",
    "jobs": "Jobs",
    "models": "Models",
    "models/topics": "Values: by frequency",
    "ask": "Ask",
    "admin": "Audit log",
    "models/topics?tab=labels": "Labels",
    "models/topics?tab=cost": "Values: certificates",
    "models/topics?tab=versions": "Versions",
    "models/topics?tab=calibration": "&tab=change",
    "models/topics?tab=feedback": "Feedback",
    "models/topics?tab=change": "Change",
    "models/topics?tab=files": "calls",
    "compare?models=topics:1": "Recorded",
    f"compare?models={','.join(['topics:1'] * 5)}": "Time of an answer",
}


def test_a_key_without_the_scope_is_refused_with_the_reason(
    live: Live, pages: Browsing | None
) -> None:
    if pages is None:
        return
    page = pages.open("/", key="xck_wrong")
    page.get_by_role("alert").wait_for()
    page.get_by_role("heading", name="Sign in").wait_for()
    page.get_by_role("heading", name="xcray", exact=True).wait_for()
    page = pages.open("/#/datasets", key=live.keys["read"])
    page.get_by_role("button", name="Upload a file").click()
    button = page.get_by_role("button", name="Upload", exact=True)
    expect(button).to_be_disabled()
    expect(button).to_have_attribute("title", "needs a key with the scope submit")
    page.get_by_role("navigation").get_by_role("link", name="Train").click()
    button = page.get_by_role("button", name="Train", exact=True)
    expect(button).to_be_disabled()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("heading", name="Sign in").wait_for()
    assert page.evaluate("sessionStorage.length") == 0
    page = pages.open("/#/jobs", key=live.keys["predict"])
    page.get_by_text("this needs a key with the scope read").wait_for()
    page.get_by_role("link", name="Ask").click()
    page.get_by_label("Text", exact=True).fill("rows")
    page.get_by_role("button", name="Ask").click()
    page.get_by_role("heading", name="Why csv").wait_for()
    assert {status for status, _ in pages.refused} == {401}  # nothing else was even asked for


def test_the_console_works_behind_a_proxy_with_a_path_prefix(live: Live) -> None:
    program = chromium()
    if program is None:
        return
    with stripping_proxy(live.url, "/team/ml") as url, browsing(url, program) as pages:
        page = pages.open("/", key=live.keys["submit"])
        page.get_by_role("link", name="Jobs").click()
        page.get_by_role("link", name="topics").first.click()
        page.locator("figure svg").first.wait_for()
        page.get_by_role("link", name="Ask", exact=True).click()
        page.get_by_label("Text", exact=True).fill("rows")
        page.get_by_role("button", name="Ask").click()
        page.get_by_role("heading", name="Why csv").wait_for()
        page = pages.open("/docs")
        page.get_by_label("Key (xck_...)").fill(live.keys["admin"])
        page.get_by_role("button", name="Sign in").click()
        page.get_by_text("/v1/jobs").first.wait_for()


def test_labels_below_the_least_score_are_left_out(live: Live, pages: Browsing | None) -> None:
    if pages is None:
        return
    page = pages.open("/#/ask?model=topics", key=live.keys["predict"])
    page.get_by_label("Text", exact=True).fill("rows")
    page.get_by_text("Filters").click()
    for least, shown in (("0", "Why csv"), ("100000", "none reaches the least score")):
        page.get_by_label("Least score").fill(least)
        page.get_by_role("button", name="Ask", exact=True).click()
        page.get_by_text(shown).first.wait_for()
    link = page.get_by_role("link", name="Link to this question")
    expect(link).to_have_attribute("href", re.compile("min_score=100000"))


def test_a_file_suggests_its_name_and_format(
    live: Live, pages: Browsing | None, tmp_path: Path
) -> None:
    if pages is None:
        return
    file = tmp_path / "My Tickets 2026.tsv.gz"
    file.write_bytes(b"")
    page = pages.open("/", key=live.keys["read"])
    first: list[dict[str, Any]] = [{"datasets": [], "next_page_token": None}]
    page.route(
        "**/v1/datasets?*",
        lambda route: route.fulfill(json=first.pop()) if first else route.continue_(),
    )
    page.get_by_role("link", name="Data sets").click()
    page.get_by_label("File").set_input_files(file)
    expect(page.get_by_label("Name")).to_have_value("my-tickets-2026")
    page.get_by_label("Data sets", exact=True).wait_for()  # another client made one meanwhile
    expect(page.get_by_label("Name")).to_have_value("my-tickets-2026")
    expect(page.get_by_label("Format")).to_have_value("tsv")


def test_an_admin_creates_and_revokes_a_key(live: Live, pages: Browsing | None) -> None:
    if pages is None:
        return
    page = pages.open("/#/admin", key=live.keys["read"])
    page.get_by_text("this needs a key with the scope admin").wait_for()
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
    expect(page.locator("main:focus, main :focus")).to_have_count(1)  # not lost with its row
    until(lambda: live.http.get("/v1/jobs", headers=headers).status_code == 401)
    page.get_by_label("Action").fill("key.revoke")
    page.get_by_role("button", name="Filter").click()
    rows = page.get_by_label("Audit log", exact=True).locator("tbody tr")
    rows.filter(has_text=created["id"]).wait_for()
    rows.filter(has_text="key.create").first.wait_for(state="detached")


def test_the_secret_of_the_first_key_stays_until_sign_in(tmp_path: Path) -> None:
    program = chromium()
    if program is None:
        return
    home = tmp_path / "home"
    with process(home, "serve") as child:
        url = read_process_file(home, child, "serve")["url"]
        with browsing(url, program) as pages:
            page = pages.open("/healthz")
            held: list[Any] = []
            page.route("**/v1/keys", lambda route: held.append(route))
            page.goto(f"{url}/#/admin")
            until(lambda: held, tick=lambda: page.wait_for_timeout(20))
            # Only the list of keys says that the first one needs the scope admin.
            expect(page.get_by_label("Name", exact=True)).to_have_count(0)
            held[0].continue_()
            page.unroute("**/v1/keys")
            page.get_by_label("Name", exact=True).fill("me")
            page.get_by_role("button", name="Create the key").click()
            secret = page.get_by_label("secret").inner_text()
            page.get_by_role("button", name="Sign in").click()
            page.get_by_label("Key (xck_...)").fill(secret)
            page.get_by_role("button", name="Sign in").click()
            page.get_by_role("button", name="Revoke me").wait_for()  # its scope is admin


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_pages_fit_the_width_and_are_accessible(
    live: Live,
    pages: Browsing | None,
    width: int,
    scheme: str,
    request: pytest.FixtureRequest,
) -> None:
    if pages is None:
        return
    page = pages.open("/", width, live.keys["admin"], color_scheme=scheme)
    page.get_by_role("heading", name="Overview").wait_for()
    job = live.http.get("/v1/jobs", params={"model": "topics"}).json()["jobs"][-1]
    question = str(httpx.QueryParams({"model": "topics", "text": "csv rows", "k": 3}))
    judged = {"id": "fb_1", "instance": {"text": "csv rows"}, "right": ["csv"], "wrong": ["json"]}
    live.http.post("/v1/models/topics/feedback", json=judged).raise_for_status()
    request.addfinalizer(lambda: live.http.delete("/v1/models/topics/feedback/fb_1"))
    data = f"datasets/{job['spec']['dataset']}"
    details = {
        f"jobs/{job['id']}": "Workers",
        f"jobs/{job['id']}?tab=result": "Duality gaps",
        f"jobs/{job['id']}?tab=log": "Events",
        f"jobs/{job['id']}?tab=calls": "REST call",
        data: "Values: picture",
        f"{data}?tab=runs": "Models trained on it",
        f"{data}?tab=details": "Statistics",
        f"ask?{question}": "Contributions",
    }
    for name, last in {**PAGES, **details}.items():
        page.goto(f"{live.url}/#/{name}")
        found = page.locator(f"main [aria-label='{last}'], main a[href$='{last}']")
        found.last.wait_for(state="attached")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        links = page.get_by_role("navigation", name="Pages").get_by_role("link").all()
        assert len({link.bounding_box()["y"] for link in links}) == 1, name
        for control in page.locator("main input, main select, main textarea").all():
            named = control.evaluate("node => node.labels.length > 0 || Boolean(node.ariaLabel)")
            assert named, (name, control.get_attribute("name"))
        assert accessibility_faults(page) == [], name
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    lightness = sum(int(part) for part in re.findall(r"\d+", background)[:3]) / 3
    assert (lightness < 100) == (scheme == "dark")


def test_a_link_that_is_followed_at_once_opens_its_page(live: Live, pages: Browsing | None) -> None:
    if pages is None:
        return
    page = pages.open("/healthz")
    # The only event comes when the scripts have run and nothing was painted yet.
    page.add_init_script("""
        addEventListener("hashchange", (event) => event.isTrusted && event.stopImmediatePropagation());
        addEventListener("DOMContentLoaded", () => {
            location.hash = "#/jobs";
            dispatchEvent(new HashChangeEvent("hashchange"));
        });""")
    page.goto(f"{live.url}/")
    page.get_by_label("Key (xck_...)").fill(live.keys["read"])
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Jobs", level=1).wait_for()


def test_an_answer_that_cannot_be_drawn_is_told(live: Live, pages: Browsing | None) -> None:
    if pages is None:
        return
    page = pages.open("/", key=live.keys["admin"])
    page.route("**/v1/datasets?*", lambda route: route.fulfill(json={"datasets": [{}]}))
    page.get_by_role("link", name="Data sets").click()
    page.get_by_role("heading", name="This page cannot be shown").wait_for()
    page.get_by_role("link", name="Jobs").click()
    page.get_by_role("heading", name="Jobs").wait_for()


def test_missing_scopes_sets_and_models_are_told(live: Live, pages: Browsing | None) -> None:
    if pages is None:
        return
    page = pages.open("/#/compare?models=topics:1,topics:1", key=live.keys["read"])
    page.get_by_text("no difference shown").first.wait_for()
    page.get_by_label("Add a model").fill("nothing")
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_role("alert").get_by_text("there is no model 'nothing'").wait_for()
    page.route("**/v1/datasets?*", lambda route: route.fulfill(json={"datasets": []}))
    page.reload()
    page.get_by_text("There is no data set to compare on").wait_for()
    away = {"status": 503, "json": {"detail": "the service is draining"}}
    page.route("**/v1/me", lambda route: route.fulfill(**away))
    page.reload()
    page.get_by_role("alert").get_by_text("the service is draining").wait_for()
    expect(page.get_by_text("this needs a key")).to_have_count(0)


def test_an_update_is_shown_with_its_gate_and_command(live: Live, pages: Browsing | None) -> None:
    job = live.http.get("/v1/jobs", params={"model": "topics"}).json()["jobs"][-1]
    update = {"update": "topics:1", "gate": "P@1 >= 0", "alias": "live"}
    changed = {
        **job,
        "spec": {**job["spec"], **update},
        "result": {**job["result"], "comparison": {"passed": False}},
    }
    if pages is None:
        return
    page = pages.open("/", key=live.keys["read"])
    page.route(f"**/v1/jobs/{job['id']}", lambda route: route.fulfill(json=changed))
    page.goto(f"{live.url}/#/jobs/{job['id']}?tab=calls")
    page.get_by_text("not passed").wait_for()
    command = page.get_by_label("command")
    start = f"xcray jobs update topics:1 --dataset {job['spec']['dataset']}"
    expect(command).to_have_text(re.compile(f"^{re.escape(start)}"))
    expect(command).to_contain_text("--gate 'P@1 >= 0' --alias live")
    expect(page.get_by_label("REST call")).to_contain_text("/v1/models/topics:1:update")


def test_the_keyboard_is_enough(live: Live, pages: Browsing | None) -> None:
    if pages is None:
        return
    page = pages.open("/#/ask?model=topics", key=live.keys["admin"])
    page.get_by_label("Text", exact=True).wait_for()
    expect(page.locator("main")).to_be_focused()
    page.reload()
    page.get_by_label("Text", exact=True).wait_for()
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.type("json object")
    for _ in range(4):  # model, number of labels, filters, the button
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
    page = pages.open("/#/models/chain?tab=labels", key=live.keys["admin"])
    page.get_by_role("button", name="red", exact=True).click()
    page.get_by_text(described["detail"]).wait_for()
    page.goto(f"{live.url}/#/ask?model=chain&text=csv+rows")
    page.get_by_text(explained["detail"]).wait_for()
    expect(page.get_by_label("Labels", exact=True).locator("tbody tr")).to_have_count(4)


def test_the_description_is_shown_and_tried_out(live: Live, pages: Browsing | None) -> None:
    if pages is None:
        return
    page = pages.open("/docs", key=live.keys["admin"])
    page.locator("#operations-predictions-predict_predict .opblock-summary-control").click()
    operation = page.locator("#operations-predictions-predict_predict")
    operation.get_by_placeholder("reference").fill("topics")
    operation.get_by_role("button", name="Execute").click()
    operation.locator(".live-responses-table .response-col_status").get_by_text("200").wait_for()


@pytest.mark.parametrize(
    ("path", "reply"),
    [
        ("metrics", {"status": 401, "json": {"detail": "no key"}}),
        ("v1/me", {"json": {"tenant": "default", "scopes": ["admin"]}}),
    ],
)
def test_a_late_reply_to_another_key_changes_nothing(
    live: Live, pages: Browsing | None, path: str, reply: dict[str, Any]
) -> None:
    if pages is None:
        return
    page = pages.open("/healthz")
    late: list[Any] = []

    def hold(route: Any) -> None:
        if late or live.keys["admin"] not in route.request.headers.get("authorization", ""):
            route.continue_()
        else:
            late.append(route)

    page.route(f"**/{path}", hold)
    page.goto(f"{live.url}/")
    page.get_by_label("Key (xck_...)").fill(live.keys["admin"])
    page.get_by_role("button", name="Sign in").click()
    until(lambda: late, tick=lambda: page.wait_for_timeout(20))
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("Key (xck_...)").fill(live.keys["read"])
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Overview").wait_for()
    with page.expect_response(f"**/{path}"):
        late[0].fulfill(**reply)
    page.evaluate("fetch('healthz').then((later) => later.text())")  # the page has read the reply
    page.get_by_role("link", name="Admin").click()
    page.get_by_text("this needs a key with the scope admin").wait_for()
    assert {status for status, _ in pages.refused} == {401}  # the page knows the scopes
    assert page.evaluate("sessionStorage.length") == 1
