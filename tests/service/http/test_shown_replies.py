"""The JSON that pages show as written by the service has the fields and types of real replies."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import httpx

from tests.support.live_service import OCTETS, PATIENCE, client_of, publish, settings_for
from tests.support.printed import pages
from xcray.jobs.store.tokens import create_token
from xcray.service.app import create_app
from xcray.service.observability.request_log import LOGGER, log_context
from xcray.telemetry.logging import JSONFormatter


def shown() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (page, document) for all JSON objects in pages that only the service writes."""
    for name, text in pages().items():
        if not name.endswith(".md"):
            continue
        text = text.replace("[...]", "[]")
        for match in re.finditer(r'\{(?=")', text):
            try:
                found, _ = json.JSONDecoder().raw_decode(text[match.start() :])
            except json.JSONDecodeError:  # such as a label of a metric
                continue
            if {"status", "ready"} & set(found):
                yield name, found


def kinds(value: Any) -> Any:
    """Return the types of a JSON value, by key; those of a list are those of its first element."""
    if isinstance(value, dict):
        return {key: kinds(each) for key, each in value.items()}
    if isinstance(value, list):
        return [kinds(each) for each in value[:1]]
    return float if type(value) is int else type(value)


def agrees(part: Any, whole: Any) -> bool:
    """Return whether a document of kinds has the fields of another, and can have more."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and agrees(part[key], whole[key]) for key in part)
    if isinstance(part, list) and isinstance(whole, list):
        return all(agrees(*pair) for pair in zip(part, whole, strict=False))
    return bool(part == whole)


def failed_build(http: httpx.Client) -> Any:
    """Return a data set whose file has an invalid line."""
    place = "/v1/datasets?name=bad&format=svmlight"
    reply = http.post(place, content=b"0 1:1\n1 3:abc\n", headers=OCTETS).json()
    end = time.monotonic() + PATIENCE
    while reply["status"] == "BUILDING" and time.monotonic() < end:
        reply = http.get(f"/v1/datasets/{reply['id']}").json()
    return reply


def test_every_reply_of_a_page_has_the_fields_of_a_real_one(tmp_path: Path) -> None:
    app = create_app(settings_for(tmp_path / "home"))
    state, key = app.state.app_state, create_token()
    state.store.keys.add("default", "n", ["admin"], key.digest, key_id=key.key_id)
    publish(state.registry, "docs", tmp_path / "staged")
    log = StringIO()
    handler = logging.StreamHandler(log)
    handler.setFormatter(JSONFormatter(log_context))
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    try:
        with client_of(app) as http:
            http.headers["Authorization"] = f"Bearer {key.token}"
            body = {"instances": [{"text": "a"}], "top_k": 0}
            refused = http.post("/v1/models/docs:predict", json=body).json()
            real = [refused, failed_build(http), http.get("/readyz").json()]
    finally:
        LOGGER.removeHandler(handler)
    real += [json.loads(line) for line in log.getvalue().splitlines()]
    documents = list(shown())
    assert {name for name, _ in documents} == {
        "docs/api.md",
        "docs/formats.md",
        "docs/observing.md",
    }
    for name, document in documents:
        assert any(agrees(kinds(document), kinds(each)) for each in real), (name, document)
