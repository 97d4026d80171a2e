"""The chart's values: comments, the table in the README, and the settings of the program."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.deployment.chart.values_table import CHART, renewed, rows
from xcray import __version__
from xcray.service.settings import Settings

# Settings that the chart derives from other values, so `settings` must not repeat them.
DECIDED = {
    *(
        "home",
        "store",
        "store_upgrade",
        "host",
        "port",
        "insecure_dev",
        "allowed_hosts",
        "tls_certfile",
        "tls_keyfile",
        "behind_proxy",
        "root_path",
    ),
    *(
        "cors_origins",
        "preload",
        "pool",
        "ray_address",
        "ray_dashboard",
        "ray_token_path",
        "max_running_jobs",
    ),
    *("runner_port", "processes", "drain_seconds", "grace_seconds", "public_metrics"),
}


def test_every_value_has_a_comment() -> None:
    result, bare = rows((CHART / "values.yaml").read_text())
    assert bare == []
    assert len(result) > 150
    assert all(len(row.text) >= 4 for row in result)


def test_a_value_without_a_comment_is_found() -> None:
    text = "# -- Said.\na: 1\nb:\n  # -- Said, too,\n  # at length.\n  c: {}\n  d: []\n# -- As a whole.\ne:\n  f: 1\ng: 2\n"
    result, bare = rows(text)
    assert [(".".join(row.path), row.text) for row in result] == [
        ("a", "Said."),
        ("b.c", "Said, too, at length."),
        ("e", "As a whole."),
    ]
    assert bare == ["b.d", "g"]


def test_the_table_in_the_readme_is_current() -> None:
    page = (CHART / "README.md").read_text()
    assert page == renewed(page, (CHART / "values.yaml").read_text()), (
        "python -m tests.deployment.chart.values_table"
    )


def test_the_schema_lists_the_settings_of_the_program() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    allowed = set(schema["properties"]["settings"]["properties"])
    assert DECIDED <= set(Settings.model_fields)
    assert allowed == set(Settings.model_fields) - DECIDED, (
        "a setting is new or gone: see `settings` in values.schema.json, and DECIDED"
    )
    assert schema["properties"]["settings"]["additionalProperties"] is False


def open_objects(schema: object, path: str = "") -> list[str]:
    """Return the paths of objects in a schema that accept unknown keys."""
    if isinstance(schema, list):
        return [
            place for i, each in enumerate(schema) for place in open_objects(each, f"{path}/{i}")
        ]
    if not isinstance(schema, dict):
        return []
    here = (
        [path]
        if "properties" in schema
        and schema.get("type") == "object"
        and "additionalProperties" not in schema
        else []
    )
    return here + [
        place for name, each in schema.items() for place in open_objects(each, f"{path}/{name}")
    ]


def test_the_schema_accepts_unknown_keys_only_in_global() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    must = {"/properties/global"}  # parent charts have their own keys there
    assert set(open_objects(schema)) == must


@pytest.mark.parametrize("name", ["version", "appVersion"])
def test_the_chart_names_its_version_of_xcray(name: str) -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["apiVersion"] == "v2"
    assert isinstance(chart[name], str)
    assert chart["appVersion"] == __version__
