"""The service and the browser of the drills of the console."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser import Browsing, browsing, chromium
from tests.support.console_service import Live, served
from tests.support.missing_tools import say
from xcray.service.routes.health import ASSETS


@pytest.fixture(scope="package")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Yield a service with the model `topics` and the data set `topics`."""
    with served(tmp_path_factory.mktemp("console")) as live:
        yield live


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
