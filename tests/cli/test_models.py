"""Splits, shadows, load and unload through the command line and the client, with a served app."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.support.live_service import TEXTS, publish, serving, settings_for
from xcray.cli.main import main
from xcray.cli.models.models import format_alias, parse_split
from xcray.client import Client
from xcray.errors import InputError
from xcray.service.app import create_app
from xcray.service.app_state import AppState


class ServerSetup(NamedTuple):
    """A served app with three versions of docs."""

    url: str
    app_state: AppState


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerSetup]:
    home = tmp_path_factory.mktemp("models") / "home"
    app = create_app(settings_for(home))
    app_state: AppState = app.state.app_state
    for version in (1, 2, 3):
        publish(app_state.registry, "docs", home / "staged", seed=version)
    with serving(app) as url:
        yield ServerSetup(url, app_state)


def run(server: ServerSetup, *arguments: Any) -> int:
    """Run a command of `xcray models`."""
    return main(["models", *(str(each) for each in arguments), "--server", server.url])


def test_splits_and_shadows(server: ServerSetup, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(server, "alias", "docs", "prod", "--split", "1=0.9,2=0.1", "--shadow", 3, "--share", 1)
        == 0
    )
    assert "docs@prod points to version 1:90%+2:10% (shadow 3)" in capsys.readouterr().out
    with Client(server.url) as client:
        for _ in range(4):
            client.predict("docs@prod", list(TEXTS))
        # a copy is queued just after its reply was sent, so by the time this request is answered
        split = client.models.get("docs")["splits"]["prod"]["split"]
        assert split[1] == {"version": 2, "weight": 0.1}
        server.app_state.prediction.shadows._pool.submit(lambda: None).result()
        view = client.models.shadow("docs", "prod")
        assert view["shadow"] == {"version": 3, "weight": 1.0}
        assert sum(pair["rows"] for pair in view["pairs"]) == 4 * len(TEXTS)
    assert run(server, "shadow", "docs", "prod") == 0
    assert "overlap %" in capsys.readouterr().out
    assert run(server, "shadow", "docs", "prod", "--json") == 0
    assert json.loads(capsys.readouterr().out)["alias"] == "prod"
    assert run(server, "list") == 0
    assert "prod=1:90%+2:10% (shadow 3)" in capsys.readouterr().out
    assert run(server, "alias", "docs", "prod", 2) == 0
    assert "docs@prod points to version 2\n" in capsys.readouterr().out
    assert run(server, "alias", "docs", "prod", "--split", "1=0.9,2=0.2") != 0
    assert "sum to 1.1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [(), (1, "--split", "1=1"), ("--split", "1"), ("--split", "a=b"), ("--split", "1=0.5,1=0.5")],
)
def test_an_invalid_split_is_rejected(
    server: ServerSetup, arguments: tuple[Any, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(server, "alias", "docs", "other", *arguments) == 2
    assert capsys.readouterr().err


def test_load_and_unload(server: ServerSetup, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(server, "load", "docs:1") == 0
    assert "version 1 is loaded" in capsys.readouterr().out
    with Client(server.url) as client:
        assert client.models.get("docs")["states"][0] == {
            "version": 1,
            "state": "LOADED",
            "reason": None,
        }
        assert run(server, "unload", "docs") == 0
        assert {state["state"] for state in client.models.get("docs")["states"]} == {"AVAILABLE"}
    assert run(server, "load", "nothing") != 0
    assert "there is no model" in capsys.readouterr().err


def test_format_alias_and_parse_split() -> None:
    split = [{"version": 3, "weight": 0.995}, {"version": 4, "weight": 0.005}]
    assert (
        format_alias({"splits": {"a": {"split": split, "shadow": None}}}, "a", 3)
        == "3:99.5%+4:0.5%"
    )
    assert format_alias({}, "a", 3) == "3"
    assert parse_split("3=0.9,4=0.1") == {3: 0.9, 4: 0.1}
    with pytest.raises(InputError, match="write versions and weights"):
        parse_split("3:0.9")
