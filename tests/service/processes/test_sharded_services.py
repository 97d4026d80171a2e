"""A model in shards with real processes: one is killed, and comes back."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.live_service import TEXTS, text_model
from tests.support.service_processes import process, until
from xcray.cli.main import main
from xcray.predict import Predictor
from xcray.workers.ray.session import free_port

pytestmark = pytest.mark.drill
BODY = {"instances": [{"text": text} for text in TEXTS], "top_k": 3}


def served_by(home: Path) -> Callable[[], Any]:
    """Return a function that returns the address of the service of a home, once it serves."""
    return lambda: (
        json.loads((home / "serve.json").read_text())["url"]
        if (home / "serve.json").is_file()
        else None
    )


def test_a_killed_shard_is_an_error_until_it_is_back(tmp_path: Path, capsys: Any) -> None:
    whole = Predictor(text_model(tmp_path / "docs"))
    words = ["models", "shard", str(tmp_path / "docs"), "--shards", "2", "--json"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    homes = {Path(each["home"]).name: each for each in json.loads(capsys.readouterr().out)["homes"]}
    assert [each["labels"] for each in homes.values()] == [[0, 2], [2, 4], [0, 4]]
    first, second, front = (Path(homes[name]["home"]) for name in homes)
    with ExitStack() as stack:
        serve = ("serve", "--no-runner")
        stack.enter_context(process(first, *serve))
        port = {"XCRAY_PORT": str(free_port())}
        killed = stack.enter_context(process(second, *serve, variables=port))
        addresses = [until(served_by(home), home) for home in (first, second)]
        stack.enter_context(
            process(front, *serve, variables={"XCRAY_SHARDS": json.dumps(addresses)})
        )
        url = until(served_by(front), front)

        def ask() -> httpx.Response:
            return httpx.post(
                f"{url}/v1/models/docs:predict", json=BODY, timeout=600.0, trust_env=False
            )

        expected = whole.search(list(TEXTS), 3)
        # on a slow machine, replies come too late
        reply = until(lambda: (reply := ask()).status_code == 200 and reply, front)
        assert [row["scores"] for row in reply.json()["predictions"]] == expected.scores.tolist()
        killed.send_signal(signal.SIGKILL)
        killed.wait()

        def names_the_labels() -> bool:
            reply = ask()
            assert (reply.status_code, reply.json()["code"]) == (503, "SHARD")
            return "labels 2 to 3" in reply.json()["detail"]  # or those of a slow shard

        until(names_the_labels, front)
        stack.enter_context(process(second, *serve, variables=port))
        until(lambda: ask().status_code == 200, front)
