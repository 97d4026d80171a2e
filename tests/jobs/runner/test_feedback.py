"""Feedback over REST: from a correction to the served version in three requests."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.support.live_service import LABELS, TEXTS, serving, settings_for
from tests.support.waiting import until
from xcray.client import Client
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.errors import Conflict, InputError, NotFound, ParameterError, Refused
from xcray.jobs.runner.main import run_attempt
from xcray.jobs.states import SUCCEEDED
from xcray.jobs.store.jobs import JobSubmission
from xcray.service.app import create_app
from xcray.service.app_state import AppState
from xcray.service.datasets.statistics import statistics
from xcray.storage.run_directory import REBUILT

QUESTION = "word7"


def add_base(state: AppState, folder: Path) -> Dataset:
    """Add a READY data set of documents with ids."""
    rows = [
        {"id": f"r{i}", "text": f"{TEXTS[i % 4]} word{i % 12}", "labels": [LABELS[i % 4]]}
        for i in range(24)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = BuildOptions.from_dict({"id_field": "id", "test_fraction": 0.0})
    base = build("jsonl", {"train": folder / "rows.jsonl"}, folder / "docs", options)
    state.store.datasets.add("docs", str(base.path), stats=statistics(base))
    return base


def run_next(state: AppState) -> None:
    """Run the pending job in this process."""
    job = state.store.attempts.claim("test", lease_seconds=600)
    assert job is not None
    assert run_attempt(state.store, state.home, job.id, job.attempt) == SUCCEEDED


def test_feedback_changes_the_served_version_in_three_requests(tmp_path: Path) -> None:
    app = create_app(settings_for(tmp_path / "home", pool="serial", tenant_feedback=3))
    state: AppState = app.state.app_state
    with serving(app) as url, Client(url) as client:
        base = add_base(state, tmp_path)
        client.jobs.submit(dataset="docs", model="docs", keep_duals=True)
        run_next(state)
        state.registry.aliases.set("docs", "live", 1)
        models = client.models
        assert client.predict("docs@live", [QUESTION])["predictions"][0]["labels"][0] != "new"

        sent = models.give_feedback("docs@live", QUESTION, right=["new\n", "csv"], id="n/1")
        assert (sent["model"], sent["version"], sent["new_labels"]) == ("docs", 1, ["new"])
        assert models.give_feedback("docs@live", QUESTION, right=["new", "csv"], id="n/1") == sent
        with pytest.raises(Conflict, match="other content"):
            models.give_feedback("docs", QUESTION, right=["csv"], id="n/1")
        with pytest.raises(ParameterError, match="no label is both"):
            models.give_feedback("docs", QUESTION, right=["csv"], wrong=["csv"])
        with pytest.raises(ParameterError, match="or empty"):
            models.give_feedback("docs", QUESTION, right=[" "])
        with pytest.raises(InputError, match="id"):  # DELETE .../feedback/.. is another path
            models.give_feedback("docs", QUESTION, right=["csv"], id="..")
        with pytest.raises(InputError, match="the model has features 0 to"):
            models.give_feedback("docs", {"indices": [9999], "values": [1.0]}, right=["csv"])
        models.give_feedback("docs", TEXTS[1], right=["io"], wrong=["json"], id="r1")
        models.give_feedback("docs", "only a rejection", wrong=["io"])
        with pytest.raises(Refused, match="3 feedback entries") as refused:
            models.give_feedback("docs", QUESTION, right=["io"])
        assert refused.value.code == "FEEDBACK_QUOTA"

        made = client.datasets.from_feedback("docs@live", name="docs-2")
        made = client.datasets.wait(made["id"], seconds=600)
        data = Dataset.open(state.store.datasets.get(made["id"], "default").path)
        assert data.manifest["source"]["delta"]["base"] == base.content_hash
        assert data.train.n_rows == base.train.n_rows + 1
        client.jobs.update("docs@live", dataset="docs-2", alias="live")
        run_next(state)
        assert state.registry.aliases.of("docs")["live"] == 2
        # the old version answers while the new one loads
        ask = partial(client.predict, "docs@live", [QUESTION], top_k=2)
        until(lambda: ask()["model"]["version"] == 2)
        assert set(ask()["predictions"][0]["labels"]) == {"new", "csv"}
        with pytest.raises(Conflict, match="has all feedback of docs"):
            client.datasets.from_feedback("docs@live", name="docs-3")
        with pytest.raises(ParameterError, match="needs a `model`"):
            client.datasets._create({"name": "x", "format": "feedback"})
        state.store.datasets.delete(made["id"])
        with pytest.raises(NotFound, match="give a `base`"):
            client.datasets.from_feedback("docs@live", name="docs-3")
        # `auto` trains on a data set with other text options, which its run has
        for tenant, error in (("other", NotFound), ("default", Conflict)):
            auto = state.store.jobs.submit(JobSubmission({}, "auto", tenant))[0]
            state.home.run(auto.id).mkdir(parents=True)
            (state.home.run(auto.id) / REBUILT).symlink_to(data.path)
            with pytest.raises(error, match=r"give a `base`|has all feedback of docs"):
                client.datasets.from_feedback("docs@live", name="docs-3")

        listed = list(models.feedback("docs"))
        large = httpx.get(f"{url}/v1/models/docs/feedback?limit=101", trust_env=False)
        assert large.status_code == 422  # an entry can have a megabyte
        assert [each["wrong"] for each in listed] == [["io"], ["json"], []]
        lines = httpx.get(f"{url}/v1/models/docs/feedback:export", trust_env=False).text
        assert [json.loads(line) for line in lines.splitlines()] == listed[::-1]
        models.delete_feedback("docs", "n/1")
        with pytest.raises(NotFound):
            models.delete_feedback("docs", "n/1")
        assert len(list(models.feedback("docs"))) == 2
        entries = state.store.audit.list_page(action="feedback.create")[0]
        assert entries[-1].subject == "/v1/models/docs/feedback/n%2F1"
        assert len(state.store.audit.list_page(action="feedback.delete")[0]) == 1
