"""Chromium for tests of the pages, driven by Playwright. It is the Chromium of the system."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE_MS = 600_000  # until a wait fails: on a slow machine jobs may have to compile kernels


def chromium() -> str | None:
    """Return the path of the system's Chromium; None if there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browsing:
    """A browser on one service, with everything that its pages must not do.

    errors: messages of the console and exceptions. A refused request is a message of the network,
    not of a page, and is kept in `refused`. foreign: requests to other hosts.
    """

    def __init__(self, browser: Any, url: str) -> None:
        self._browser = browser
        self.url = url
        self.errors: list[str] = []
        self.refused: list[tuple[int, str]] = []
        self.foreign: list[str] = []

    def open(self, path: str, width: int = 1200, key: str | None = None, **how: Any) -> Any:
        """Return a page in a new context, which has no key yet; sign in with `key` if given."""
        context = self._browser.new_context(viewport={"width": width, "height": 800}, **how)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", self._on_message)
        page.on("pageerror", lambda error: self.errors.append(f"{error}\n{error.stack}"))
        page.on("request", self._on_request)
        page.on("response", self._on_response)
        page.goto(self.url + path)
        if key is not None:
            page.get_by_label("Key (xck_...)").fill(key)
            page.get_by_role("button", name="Sign in").click()
        return page

    def open_other_site(self, url: str, headers: dict[str, str]) -> Any:
        """Return a page of another site in a new context, which is not checked."""
        page = self._browser.new_context(extra_http_headers=headers).new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(url)
        return page

    def _on_message(self, message: Any) -> None:
        """Keep errors and warnings."""
        is_network = message.text.startswith("Failed to load resource")
        if message.type in ("error", "warning") and not is_network:
            self.errors.append(message.text)

    def _on_request(self, request: Any) -> None:
        """Keep requests to other hosts."""
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.foreign.append(request.url)

    def _on_response(self, response: Any) -> None:
        """Keep refused requests."""
        if response.status >= 400:
            self.refused.append((response.status, response.url.removeprefix(self.url)))


def expect(found: Any) -> Any:
    """Return Playwright's assertions about a page or a locator: they wait until they hold."""
    # Playwright is imported here: only drills need it.
    from playwright.sync_api import expect as assertions

    return assertions(found)


def accessibility_faults(page: Any) -> list[str]:
    """Return the violations that axe-core finds, with everything unfolded."""
    # axe-core is imported here: only drills need it.
    from axe_playwright_python.sync_playwright import Axe

    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {node['html'][:200]} {node['any'][:1]}"
        for each in found
        for node in each["nodes"]
    ]


@contextmanager
def browsing(url: str, program: str) -> Iterator[Browsing]:
    """Start Chromium and yield it; at the end of the block, check what its pages did."""
    # Playwright is imported here: only drills need it.
    from playwright.sync_api import expect as assertions
    from playwright.sync_api import sync_playwright

    assertions.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        # Chromium cannot make its own sandbox as root in a container.
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"], timeout=PATIENCE_MS
        )
        result = Browsing(browser, url)
        yield result
        browser.close()
    assert not result.errors, result.errors
    assert not result.foreign, result.foreign
