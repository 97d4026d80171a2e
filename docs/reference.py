"""Reference pages from the code: Python, commands, REST, settings, metrics, alerts, error codes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer
import yaml
from prometheus_client import Metric
from typer.cli import get_docs_for_click
from typer.core import MARKUP_MODE_KEY

import xcray
from docs import error_codes
from xcray.cli.main import commands_for
from xcray.jobs.store.statistics import StoreStatistics
from xcray.service.app import create_app
from xcray.service.observability.metrics import (
    REPLICA_PREFIX,
    DiskCollector,
    DriftCollector,
    FailingChecksCollector,
    Metrics,
)
from xcray.service.observability.store_metrics import (
    COUNTERS,
    STORE_PREFIX,
    StoreCollector,
    families,
)
from xcray.service.settings import Settings

RULES = Path(__file__).parents[1] / "helm" / "xcray" / "monitoring" / "rules.yaml"
PYTHON = {
    "xcray": tuple(f"{module}.{name}" for name, module in sorted(xcray._EXPORTS.items())),
    "data": (
        "xcray.data.build",
        "xcray.data.frames",
        "xcray.data.writer",
        "xcray.data.splits",
        "xcray.data.synthetic",
        "xcray.data.demo",
        "xcray.data.metric_forest.directory",
        "xcray.arrays",
    ),
    "models": (
        "xcray.model.registry",
        "xcray.model.card",
        "xcray.model.diff",
        "xcray.index.approximate",
        "xcray.predict.mlflow_model",
    ),
    "measures": (
        "xcray.measures",
        "xcray.training.calibration.measures",
        "xcray.plots.picture",
        "xcray.plots.trainings",
        "xcray.training.report.pictures",
        "xcray.training.report.render",
    ),
    "client": (
        "xcray.client.resources",
        "xcray.client.models",
        "xcray.api.job_replies",
        "xcray.api.model_replies",
    ),
    "solvers": tuple(
        f"xcray.solvers.{name}"
        for name in (
            "contract",
            "group_contract",
            "shard_contract",
            "ppdsparse",
            "pdsparse",
            "memoir.solver",
            "memoir.parameters",
            "indexed_bcd.solver",
            "indexed_bcd.label",
            "indexed_bcd.baselines",
            "dsmlr",
            "lbfgs.solver",
            "lc.solver",
            "least_squares.solver",
            "least_squares.staged_solvers",
            "least_squares.stages",
            "least_squares.stages_solver",
        )
    ),
}


def pages() -> dict[str, str]:
    """Return every generated page by its path in the site."""
    document = openapi()
    return {
        **{f"reference/python/{name}.md": python(name) for name in PYTHON},
        "reference/cli.md": cli(),
        "reference/rest.md": rest(document),
        "reference/openapi.json": json.dumps(document, indent=2),
        "reference/settings.md": settings(),
        "reference/metrics.md": metrics(),
        "reference/alerts.md": alerts(),
        "reference/errors.md": error_codes.page(),
    }


def table(head: str, rows: Iterable[tuple[object, ...]]) -> str:
    """Return a Markdown table; `head` names the columns, separated by commas."""
    columns = head.split(",")
    lines = [tuple(columns), ("---",) * len(columns), *rows]
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells) + "\n"


def python(name: str) -> str:
    """Return a page that mkdocstrings fills with the docstrings of some modules.

    In the search, guides come before it.
    """
    return f"---\nsearch: {{boost: 0.2}}\n---\n\n# Python: {name}\n\n" + "\n".join(
        f"::: {module}\n" for module in PYTHON[name]
    )


def cli() -> str:
    """Return the help of all commands, as typer writes it."""
    command = commands_for([])
    context = typer.Context(command, obj={MARKUP_MODE_KEY: "rich"})
    text = get_docs_for_click(obj=command, ctx=context, name="xcray").strip()
    return f"---\nsearch: {{boost: 0.5}}\n---\n\n{text}\n"


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document of the service, without starting a server."""
    with tempfile.TemporaryDirectory() as home:
        return create_app(Settings(home=Path(home))).openapi()


def rest(document: dict[str, Any]) -> str:
    """Return the operations of an OpenAPI document by tag."""
    parts = [
        f"# REST operations\n\n{document['info']['description']}\n\nAll schemas are in "
        "[openapi.json](openapi.json); a running service shows them at `/docs`.\n\n"
    ]
    operations = [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if "operationId" in operation
    ]
    for tag in document["tags"]:
        parts.append(f"## {tag['name'].capitalize()}\n\n{tag['description']}\n\n")
        parts += [_operation(*each) for each in operations if tag["name"] in each[2]["tags"]]
    return "".join(parts)


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    """Return the section of one operation."""
    values = [
        (f"`{each['name']}`", each["in"], each.get("description", ""))
        for each in operation.get("parameters", ())
    ]
    statuses = [
        (status, answer.get("description") or Path(answer["$ref"]).name)
        for status, answer in operation["responses"].items()
    ]
    parameters = table("parameter,in,meaning", values) if values else ""
    return (
        f"### {method.upper()} {path}\n\n{operation.get('description', '')}\n\n{parameters}"
        f"{table('status,meaning', statuses)}"
    )


KINDS = {
    "array": "JSON list",
    "boolean": "true, false",
    "integer": "whole number",
    "number": "number",
    "string": "text",
}


def _kind(schema: dict[str, Any]) -> str:
    """Return the values of a setting for readers, from its JSON schema."""
    schema = next(each for each in schema.get("anyOf", [schema]) if each.get("type") != "null")
    if schema.get("format") in ("path", "directory-path"):
        return "path"
    return ", ".join(schema["enum"]) if "enum" in schema else KINDS[schema["type"]]


def settings() -> str:
    """Return the settings of the service, with types and defaults."""
    rows = []
    for name, schema in Settings.model_json_schema()["properties"].items():
        default = schema.get("default")
        text = default if isinstance(default, str) else json.dumps(default)
        shown = f"`{text}`" if default not in (None, "") else ""
        rows.append((f"`XCRAY_{name.upper()}`", _kind(schema), shown, schema["description"]))
    head = "# Settings\n\nEnvironment variables of `xcray serve` and `xcray runner`.\n\n"
    return head + table("variable,values,default,meaning", rows)


def listed_metrics() -> list[tuple[Metric, tuple[str, ...]]]:
    """Return all metrics of the service and of the store with their labels."""
    empty = StoreStatistics({}, 0.0, ())
    gauges = Metrics(DiskCollector(Path("/")), FailingChecksCollector(dict), DriftCollector(list))
    labels = {
        **gauges.labels,
        **DriftCollector.labels,
        **{name: of for name, (_, of) in COUNTERS.items()},
        "xcray_jobs": ("status",),
        "xcray_readiness_check_failing": ("check",),
    }
    foreign = ("process_", "python_")
    replica = [each for each in gauges.families() if not each.name.startswith(foreign)]
    age = next(iter(StoreCollector(lambda: empty).collect()))
    shown = [*replica, age, *families(empty)]
    return [(each, labels.get(each.name, labels.get(f"{each.name}_total", ()))) for each in shown]


def metrics() -> str:
    """Return the table of all metrics."""
    rows = []
    for metric, labels in listed_metrics():
        scope = "store" if metric.documentation.startswith(STORE_PREFIX) else "replica"
        text = metric.documentation.removeprefix(REPLICA_PREFIX).removeprefix(STORE_PREFIX)
        name = metric.name + ("_total" if metric.type == "counter" else "")
        shown = f"`{name}{{{','.join(labels)}}}`" if labels else f"`{name}`"
        rows.append((shown, metric.type, scope, text))
    head = "# Metrics\n\n[Monitoring](../observing.md) explains replica and store metrics.\n\n"
    return head + table("metric,type,of,meaning", rows)


def alerts() -> str:
    """Return the alerts with their meaning and action, and the recording rules."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    named = [rule for rule in rules if "alert" in rule]
    rows = [
        (
            f"[{rule['alert']}](#{rule['alert'].lower()})",
            rule["labels"]["severity"],
            rule["annotations"]["summary"],
            rule.get("for", ""),
        )
        for rule in named
    ]
    recorded = [(f"`{rule['record']}`", f"`{rule['expr']}`") for rule in rules if "record" in rule]
    return (
        "# Alerts\n\n*critical*: users are affected now. *warning*: users will be affected soon. "
        "*info*: resources are wasted; do not page.\n\n"
        + table("alert,severity,when,for", rows)
        + "".join(map(_alert, named))
        + "## Recording rules\n\nExpressions that are queried often, computed every 30 seconds.\n\n"
        + table("name,expression", recorded)
    )


def _alert(rule: dict[str, Any]) -> str:
    """Return the section of one alert."""
    notes = rule["annotations"]
    return (
        f"## {rule['alert']}\n\n{notes['description']}\n\n**Action:** {notes['action']}\n\n"
        f"```promql\n{rule['expr']}\n```\n\n"
    )
