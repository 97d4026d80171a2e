"""From a file to an answer with Tab, Enter, space and typed text alone, in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Browsing
from tests.support.console_service import Live, question_lines

pytestmark = pytest.mark.drill

MAX_TABS = 80  # from one control of a page to another
NAME_OF = """({labels, textContent, ariaLabel}) =>
    (ariaLabel || labels?.[0]?.textContent || textContent).trim()"""
IS_READY = f"""(name) => [...document.querySelectorAll("a, button, input, select, textarea")].some(
    (each) => !each.disabled && each.checkVisibility() && ({NAME_OF})(each) === name)"""


def tab_to(page: Any, name: str) -> None:
    """Wait for the control with this text or label, and press Tab until it has the focus."""
    page.wait_for_function(IS_READY, arg=name)
    seen = []
    for _ in range(MAX_TABS):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(f"({NAME_OF})(document.activeElement)"))
        if seen[-1] == name:
            return
    raise AssertionError(f"no Tab reaches {name!r}, only {list(dict.fromkeys(seen))}")


def press(page: Any, *names: str) -> None:
    """Press Enter on controls, one after the other."""
    for name in names:
        tab_to(page, name)
        page.keyboard.press("Enter")


def test_from_a_file_to_an_answer(live: Live, pages: Browsing | None, tmp_path: Path) -> None:
    if pages is None:
        return
    file = tmp_path / "keyboard.jsonl"
    file.write_text(question_lines())
    page = pages.open("/", key=live.keys["submit"])
    # From the start: a chooser that opens while listening is being set up is lost.
    page.on("filechooser", lambda chooser: chooser.set_files(file))
    page.get_by_role("heading", name="Overview").wait_for()
    press(page, "Data sets")
    page.get_by_role("button", name="Upload a file").wait_for()
    press(page, "Upload a file")
    tab_to(page, "File")
    page.keyboard.press("Space")
    page.get_by_label("First rows").wait_for()
    press(page, "Upload")
    page.get_by_text("Status: READY").wait_for()
    press(page, "Train on it")
    page.get_by_role("heading", name="Train").wait_for()
    tab_to(page, "Choose parameters and text options for me")
    page.keyboard.press("Space")
    press(page, "Train")
    page.get_by_text("Status: SUCCEEDED").wait_for()
    press(page, "Ask the model")
    page.get_by_label("Text", exact=True).wait_for()
    tab_to(page, "Text")
    page.keyboard.type("csv rows")
    press(page, "Ask")
    page.get_by_role("heading", name="Why csv").wait_for()
