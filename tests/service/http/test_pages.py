"""Pages of the service: who can read them, and that the wheel contains what they load."""

from __future__ import annotations

import glob
import json
import re
import tomllib
from pathlib import Path

from tests.support.live_service import client_of, settings_for
from tests.support.source import ROOT
from xcray.api.options import FORMATS as BATCH_FORMATS
from xcray.data.readers.formats import NAMED_FIELDS, UPLOAD_FORMATS
from xcray.jobs.store.tokens import create_token
from xcray.service.app import create_app
from xcray.service.routes.health import ASSETS, PAGES, STATIC

MAX_STATIC_BYTES = 400_000


def test_the_wheel_contains_the_pages_and_all_they_load() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["xcray"]
    contained = {
        Path(path)
        for pattern in patterns
        for path in glob.glob(str(ROOT / "xcray" / pattern), recursive=True)
    }
    own = {path for path in ASSETS.values() if path.is_relative_to(STATIC)}
    assert {STATIC / name for name in PAGES.values()} | own <= contained
    assert sum(path.stat().st_size for path in own) <= MAX_STATIC_BYTES


def test_the_forms_have_the_formats_of_the_service() -> None:
    def listed(page: str, name: str) -> tuple[str, ...]:
        [names] = re.findall(rf"const {name} = (\[.*\]);", (STATIC / "console" / page).read_text())
        return tuple(sorted(json.loads(names)))

    assert listed("upload.js", "FORMATS") == tuple(sorted(UPLOAD_FORMATS))
    assert listed("upload.js", "TEXTS") == tuple(sorted(NAMED_FIELDS))
    assert listed("batch.js", "FORMATS") == tuple(sorted(BATCH_FORMATS))


def test_vendored_folders_have_a_version_and_a_licence() -> None:
    folders = [path for path in (STATIC / "vendor").iterdir() if path.is_dir()]
    update_note = (STATIC / "vendor" / "README.md").read_text()
    assert folders
    for folder in folders:
        assert (folder / "LICENSE").stat().st_size > 500, folder
        assert f"| {folder.name} |" in update_note


def test_the_description_needs_a_key_and_its_pages_do_not(tmp_path: Path) -> None:
    app = create_app(settings_for(tmp_path / "home"))
    token = create_token()
    app.state.app_state.store.keys.add("default", "n", ["admin"], token.digest, key_id=token.key_id)
    with client_of(app) as http:
        for path in PAGES:
            answer = http.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/html")
        preloaded = re.findall('modulepreload" href="static/(.*)"', http.get("/").text)
        assert {"console/app.js", "console/models.js", "session.js"} <= set(preloaded)
        assert set(preloaded) <= set(ASSETS)
        assert http.get("/openapi.json").status_code == 401
        with_key = {"authorization": f"Bearer {token.token}"}
        assert http.get("/openapi.json", headers=with_key).status_code == 200


def test_only_assets_are_served(tmp_path: Path) -> None:
    with client_of(create_app(settings_for(tmp_path / "home"))) as http:
        for name in (
            "console.html",
            "vendor/README.md",
            "../app.py",
            "%2e%2e/app.py",
            "",
            "vendor",
        ):
            assert http.get(f"/static/{name}").status_code == 404, name
        for name, path in ASSETS.items():
            answer = http.get(f"/static/{name}")
            assert answer.content == path.read_bytes()
            assert answer.headers["cache-control"] != "no-store"
            again = http.get(f"/static/{name}", headers={"if-none-match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
