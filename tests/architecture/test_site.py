"""The documentation site: pages from the code, links, search; nothing from another host."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from docs import drawings, error_codes, hooks, reference
from tests.support.browser import browsing, chromium
from tests.support.missing_tools import say
from tests.support.printed import COMMANDS, sources
from xcray.data.readers.error_codes import CODES
from xcray.service.http import problems
from xcray.service.settings import Settings

ROOT = Path(__file__).parents[2]
SCRIPT = re.compile(r"<(?:script|img|iframe)[^>]* src=\"(?:https?:)?//|<link[^>]* href=\"https?://")

# what a new user searches for, and the page that must be the first result
FIRST_DAY = {
    "which solver": "which_solver",
    "PSP": "measures",
    "threshold": "thresholds",
    "new rows": "updates",
    "update": "updates",
    "German": "text",
    "GPU": "troubleshooting",
    "bigrams": "text",
    "several machines": "clusters",
    "memory": "memory",
    "stop a job": "training",
    "probabilities": "predicting",
    "Annif": "coming_from",
}


def test_reference_pages_list_everything_there_is() -> None:
    pages = reference.pages()
    assert all(f"## `xcray {name}`" in pages["reference/cli.md"] for name in COMMANDS.commands)
    assert all(
        f"`XCRAY_{name.upper()}`" in pages["reference/settings.md"]
        for name in Settings.model_fields
    )
    document = json.loads(pages["reference/openapi.json"])
    shown = re.findall(r"^### ([A-Z]+) (/\S*)$", pages["reference/rest.md"], re.MULTILINE)
    assert sorted(shown) == sorted(
        (method.upper(), path)
        for path, methods in document["paths"].items()
        for method in methods
        if method != "parameters"
    )
    for metric, labels in reference.listed_metrics():
        assert f"`{metric.name}" in pages["reference/metrics.md"]
        assert all(label in pages["reference/metrics.md"] for label in labels)
    assert "](#xcraystoredown) | critical |" in pages["reference/alerts.md"]


def test_every_error_code_has_a_cause_and_what_to_do() -> None:
    page = error_codes.page()
    rows = re.findall(
        r"^\| `([A-Z0-9_]+)` \| (?:[\d-]+ \| )?(.+?) \| (.+?) \|$", page, re.MULTILINE
    )
    assert len(rows) == page.count("\n| `")
    for code, cause, cure in rows:
        assert len(cause.strip("… ")) > 8, code
        assert len(cure.strip("… ")) > 5, code
        assert not re.match("…[:,]", cure), code  # a place, and then a cause
    source = "".join(sources("xcray").values())
    codes = {*re.findall(r"\bcode=\"([A-Z0-9_]+)\"", source), *problems.STATUS_OF_CODE, *CODES}
    assert codes - {row[0] for row in rows} == set()


@pytest.mark.parametrize("name", drawings.PICTURES)
def test_a_drawing_is_that_of_its_script(name: str) -> None:
    assert (drawings.FOLDER / name).read_text() == drawings.PICTURES[name](), (
        "run python -m docs.drawings"
    )


@pytest.mark.parametrize(
    ("page", "link", "result"),
    [
        ("api.md", "[a](../README.md#install)", "[a](index.md#install)"),
        ("index.md", "[a](docs/api.md)", "[a](api.md)"),
        ("index.md", "![a](docs/pictures/search.png)", "![a](pictures/search.png)"),
        ("api.md", "[a](../Makefile)", "a (`Makefile`)"),
        ("decisions/README.md", "[a](../architecture.md#b)", "[a](../architecture.md#b)"),
        ("api.md", "[a](../nothing.md)", "[a](../nothing.md)"),
    ],
)
def test_links_lead_to_pages_of_the_site(page: str, link: str, result: str) -> None:
    place = SimpleNamespace(file=SimpleNamespace(src_uri=page), meta={})
    assert hooks.on_page_markdown(link, place) == result


@pytest.mark.drill
def test_the_site_is_built_without_a_dead_link(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    index = json.loads((tmp_path / "search/search_index.json").read_text())["docs"]
    pages = {entry["location"].partition("#")[0] for entry in index}
    assert {"search.html", "reference/cli.html", "tutorials/estimator.html"} <= pages
    assert any("xcray.model.model.Model" in entry["location"] for entry in index)
    for word, found in FIRST_DAY.items():
        texts = [
            entry["title"] + " " + entry["text"]
            for entry in index
            if entry["location"].startswith(f"{found}.html")
        ]
        assert any(re.search(rf"\b{word}", text, re.IGNORECASE) for text in texts), word
    for page in tmp_path.rglob("*.html"):
        assert not SCRIPT.search(page.read_text(encoding="utf-8")), page
    check_search(tmp_path)


def check_search(site: Path) -> None:
    """Search in the files, without a server and without a network."""
    program = chromium()
    if program is None:
        say("chromium", "the search of the documentation site is not used in a browser")
        return
    with browsing(f"{site.as_uri()}/", program) as pages:
        page = pages.open("index.html")
        for word, found in FIRST_DAY.items():
            box = page.get_by_role("textbox", name="Search")
            box.fill("")
            box.press_sequentially(word)
            link = f".md-search-result__item:first-child a[href*='/{found}.html']"
            page.locator(link).first.wait_for(state="attached")
