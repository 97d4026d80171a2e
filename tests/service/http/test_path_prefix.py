"""The service below a path prefix, behind a proxy that removes it or does not."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest

from tests.support.live_service import build_stub, client_of, serving, settings_for
from tests.support.stripping_proxy import stripping_proxy
from xcray.client import Client
from xcray.service.app import AppParts, create_app
from xcray.service.routes.health import PAGES

PREFIX = "/team/ml"
ROWS = {"content": b'{"text": "a", "labels": ["b"]}\n'}
UPLOAD = "/v1/datasets?name=d&format=jsonl"
OCTETS = {"content-type": "application/octet-stream"}
MODULE = re.compile(r'"(\.\.?/[^"]+\.js)"')
LINK = re.compile(r'(?:href|src)="([^"]+)"')


def test_pages_links_and_the_description_keep_the_prefix(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "home", root_path=PREFIX + "/")
    app = create_app(settings, parts=AppParts(build_command=build_stub(tmp_path)))
    with (
        serving(app) as upstream,
        stripping_proxy(upstream, PREFIX) as url,
        httpx.Client(trust_env=False, timeout=600) as http,
    ):
        loaded = reachable(http, [url + path for path in PAGES])
        assert {f"{url}/openapi.json", f"{url}/static/console/api.js"} <= loaded
        assert http.get(f"{url}/openapi.json").json()["servers"] == [{"url": PREFIX}]
        made = http.post(url + UPLOAD, headers=OCTETS, **ROWS)
        assert made.headers["location"] == f"{PREFIX}/v1/datasets/{made.json()['id']}"
        assert http.get(urljoin(url, made.headers["location"])).status_code == 200
        with Client(url) as client:
            assert [each["name"] for each in client.datasets.list()] == ["d"]


def reachable(http: httpx.Client, waiting: list[str]) -> set[str]:
    """Return the addresses that pages and their modules refer to; all must be found."""
    seen = set(waiting)
    while waiting:
        address = waiting.pop()
        answer = http.get(address)
        assert answer.status_code == 200, address
        if "/vendor/" not in address and "/swagger/" not in address:
            is_page = answer.headers["content-type"].startswith("text/html")
            found = (LINK if is_page else MODULE).findall(answer.text)
            further = {urljoin(address, reference) for reference in found} - seen
            seen |= further
            waiting += further
    return seen


def test_a_proxy_can_leave_the_prefix_in_the_path(tmp_path: Path) -> None:
    with client_of(create_app(settings_for(tmp_path / "home", root_path="/ml"))) as http:
        for path in ("/ml/v1/solvers", "/v1/solvers", "/ml/docs", "/ml/static/viewer.js"):
            assert http.get(path).status_code == 200, path
        # Relative addresses of the console need the slash.
        answer = http.get("/ml")
        assert (answer.status_code, answer.headers["location"]) == (308, "/ml/")
        assert http.get("/mlx/v1/solvers").status_code == 404


@pytest.mark.parametrize("trusted", [True, False])
def test_the_header_counts_behind_a_proxy_only(tmp_path: Path, trusted: bool) -> None:
    app = create_app(settings_for(tmp_path / "home", behind_proxy=trusted, root_path="/ml"))
    with client_of(app) as http:

        def server(prefix: str) -> httpx.Response:
            return http.get("/openapi.json", headers={"x-forwarded-prefix": prefix})

        expected = "/other" if trusted else "/ml"
        assert server("/other/").json()["servers"] == [{"url": expected}]
        assert server("/").json()["servers"] == [{"url": "/" if trusted else "/ml"}]
        for wrong in ("//evil.example", "/a/../b", "http://evil.example", "/v1", "/a,/b", "/a b"):
            answer = server(wrong)
            assert answer.status_code == (400 if trusted else 200), wrong
            assert not trusted or answer.json()["code"] == "BAD_HEADER"


@pytest.mark.parametrize("wrong", ["ml", "//ml", "/v1/ml", "/static", "/a/..", "/a b", "/ml?x"])
def test_a_wrong_prefix_is_refused_at_the_start(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(ValueError, match="is not a path prefix: write one like /ml"):
        settings_for(tmp_path, root_path=wrong)
