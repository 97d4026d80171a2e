"""Everything that docs pages, NOTES, YAML files, hints and error messages mention exists.

The checks cover commands with options and arguments, variables and their defaults, metrics, alerts,
HTTP calls, chart values, object names, make targets, modules, paths and codes.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from docs import reference
from tests.deployment.chart import helm
from tests.support import missing_tools as without
from tests.support.live_service import settings_for
from tests.support.printed import (
    COMMANDS,
    ROOT,
    calls,
    faults,
    is_value,
    lines,
    operations,
    pages,
    quoted,
    sources,
    values_in,
)
from xcray.data.dataset import Dataset
from xcray.service.app import create_app
from xcray.service.settings import Settings
from xcray.storage.arrow import read_table
from xcray.training.run import train
from xcray.training.spec import TrainSpec

PROSE = {name: text for name, text in pages().items() if name.endswith((".md", ".txt"))}
RULES = yaml.safe_load((ROOT / "helm/xcray/monitoring/rules.yaml").read_text())
ALERTS = {rule["alert"] for group in RULES["groups"] for rule in group["rules"] if "alert" in rule}
# Prefixes of variables, not codes.
FOREIGN = (
    "XCRAY_",
    "OTEL_",
    "AWS_",
    "GOOGLE_",
    "RAY_",
    "OPENBLAS_",
    "POSTGRES_",
    "PROMETHEUS_",
    "GRAFANA_",
)
NO_CODES = {
    "NULL",
    "GRANT",
    "DROP",
    "ADDED_VALUES",
    "README",
    "LICENSE",
    "HTTP",
    "SHA",
    "SIGTERM",
    "SIGKILL",
    "ENOSPC",
    "HASH",
    "NAME",
}
KINDS = {
    "deploy": "Deployment",
    "deployment": "Deployment",
    "service": "Service",
    "job": "Job",
    "secret": "Secret",
}


def sorted_faults(broken: Iterator[str]) -> list[str]:
    """Return the faults, sorted and without duplicates."""
    return sorted(set(broken))


def unknown(
    places: dict[str, str], pattern: str, known: Collection[str], at_least: int = 0
) -> set[tuple[str, str]]:
    """Return the places and names that match a pattern and are not known."""
    named = {
        (place, name)
        for place, text in places.items()
        for name in re.findall(pattern, text, re.MULTILINE)
    }
    assert len({name for _, name in named}) > at_least
    return {each for each in named if each[1] not in known}


# commands


def test_every_command_of_a_page_is_accepted_by_the_parser() -> None:
    commands = [(name, each) for name, text in pages().items() for each in lines(text)]
    broken = [f"{name}: {fault}" for name, each in commands for fault in faults(each, True)]
    assert broken == []
    assert len(commands) > 80


def test_every_command_named_in_text_or_an_error_exists() -> None:
    places = {**pages(), **sources("xcray")}
    commands = [(name, each) for name, text in places.items() for each in quoted(text)]
    assert [f"{name}: {fault}" for name, each in commands for fault in faults(each)] == []
    assert len(commands) > 150


def test_every_option_that_the_service_names_is_an_option_of_serve() -> None:
    options = {name for each in COMMANDS.commands["serve"].params for name in each.opts}
    options |= {"--no-runner", "--scopes", "--previous"}  # of keys create, of kubectl
    rules = "helm/xcray/monitoring/rules.yaml"
    places = {**sources("xcray/service", "deploy/dashboards"), rules: pages()[rules]}
    assert unknown(places, r"(?<=[\s`\"])--[a-z][a-z-]+", options, at_least=5) == set()


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("xcray store bakcup x", "no bakcup"),
        ("xcray nothing", "no nothing"),
        ("xcray labels add|forget", "no forget"),
        ("xcray store backup x --nothing", "No such option"),
        ("xcray store backup x y", "'y' is too much"),
        ("xcray store backup", "is missing"),
        ("xcray train DIR --out", "requires an argument"),
        ("xcray tune DIR --grid lam=0.1,0.2 --out X Y", "'Y' is too much"),
    ],
)
def test_the_check_of_commands_finds_faults(command: str, fault: str) -> None:
    assert fault in faults(command, True)[0]


@pytest.mark.parametrize(
    "command", ["xcray store backup x > y", "A=1 xcray serve --no-runner", "xcray labels add|merge"]
)
def test_the_check_of_commands_accepts_valid_commands(command: str) -> None:
    assert faults(command) == []


def test_every_module_run_by_a_page_exists_with_its_options() -> None:
    def broken() -> Iterator[str]:
        for name, text in PROSE.items():
            for module, rest in re.findall(
                r"python -m ((?:benchmarks|deploy|tests)[\w.]*)([^`\n]*)",
                text.replace("\\\n", " "),
            ):
                path = ROOT / module.replace(".", "/")
                files = (
                    [path.with_suffix(".py")]
                    if path.with_suffix(".py").exists()
                    else sorted(path.glob("*.py"))
                )
                source = "".join(each.read_text() for each in files)
                if module.startswith("benchmarks"):
                    source += (ROOT / "benchmarks" / "harness.py").read_text()
                if not files:
                    yield f"{name}: there is no {module}"
                for option in re.findall(r"(?<=\s)--([a-z-]+)", re.split(r"\s#|\s{3,}", rest)[0]):
                    if f"--{option}" not in source and not re.search(
                        rf"\b{option.replace('-', '_')}=", source
                    ):
                        yield f"{name}: {module} has no --{option}"

    assert sorted_faults(broken()) == []


def test_every_named_make_target_is_in_the_makefile() -> None:
    verbs = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = r"(?:`|^ {4})make ([a-z]+)"
    assert unknown(PROSE, named, verbs) == set()
    contributing = re.findall(named, PROSE["CONTRIBUTING.md"], re.MULTILINE)
    assert set(contributing) >= verbs - {"help", "install"}


# variables and their defaults


def variables() -> set[str]:
    """Return every XCRAY_ variable that the service, CLI, image, compose file or tests read."""
    read = [
        *sources("xcray", "tests").values(),
        pages()["deploy/compose.yaml"],
        pages()["deploy/docker/Dockerfile"],
    ]
    named = re.findall(r"(?:[\"']|\$\{|^ARG )(XCRAY_[A-Z_]+)", "\n".join(read), re.MULTILINE)
    return {f"XCRAY_{name.upper()}" for name in Settings.model_fields} | set(named)


def test_every_named_variable_is_read() -> None:
    known = variables() | {"XCRAY_NAME"}  # docs/security.md uses XCRAY_NAME as a placeholder
    places = {**pages(), **sources("xcray", "benchmarks")}
    assert unknown(places, r"\bXCRAY_[A-Z_]*[A-Z]\b", known, at_least=40) == set()


def test_every_documented_default_is_the_default() -> None:
    def broken() -> Iterator[str]:
        for name, text in PROSE.items():
            for variable, report in re.findall(r"`XCRAY_([A-Z_]+)`,? \(?([\d,.]*\d)\)", text):
                if Settings.model_fields[variable.lower()].default != float(
                    report.replace(",", "")
                ):
                    yield f"{name}: XCRAY_{variable} is not {report}"
        units = {"": 1, "MB": 10**6, "GB": 10**9}
        for setting, report, unit in re.findall(
            r"\| `([a-z_]+)` ([\d,]+)(?: (MB|GB))?\b", PROSE["docs/security.md"]
        ):
            if Settings.model_fields[setting].default != int(report.replace(",", "")) * units[unit]:
                yield f"docs/security.md: {setting} is not {report} {unit}"

    assert sorted_faults(broken()) == []


# metrics and alerts


def metric_names() -> set[str]:
    """Return the names of all series: of the service, of Ray workers, and of recording rules."""
    names = {
        rule["record"] for group in RULES["groups"] for rule in group["rules"] if "record" in rule
    }
    for metric, _ in reference.listed_metrics():
        ends = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(
            metric.type, ("",)
        )
        names |= {metric.name + end for end in ("", *ends)}
    inside = re.findall(
        r"\"(xcray_[a-z_]+)\"", "".join(sources("xcray/workers", "xcray/batch").values())
    )
    return names | {f"ray_{name}{end}" for name in inside for end in ("", "_total")}


def test_every_named_metric_is_registered() -> None:
    places = {
        **PROSE,
        **{
            name: pages()[name]
            for name in ("helm/xcray/monitoring/rules.yaml", "helm/xcray/values.yaml")
        },
    }
    series = r"(?<![\w/.:-])(?:ray_)?xcray_[a-z_]+(?![\w*(./])"
    assert unknown(places, series, metric_names(), at_least=30) == set()


def test_every_named_alert_exists() -> None:
    kinds = {"RayCluster", "RayJob", "RayService", "RayExecutor"}
    assert unknown(PROSE, r"\b(?:Xcray|Ray)[A-Z][A-Za-z]+\b", ALERTS | kinds) == set()
    assert unknown(PROSE, r"alerts\.md#(\w+)", {alert.lower() for alert in ALERTS}) == set()


# columns


def test_the_columns_of_training_records_are_those_of_a_model(
    tiny: Dataset, tmp_path: Path
) -> None:
    train(TrainSpec(str(tiny.path), pool="serial"), run_dir=tmp_path / "run", out=tmp_path / "out")
    section = pages()["docs/formats.md"].partition("## Training records in a model")[2]
    parts = section.partition("None of these")[0].split("`timeline.arrow`")
    for name, part in zip(("label_table", "timeline"), parts, strict=True):
        columns = read_table(tmp_path / "out" / f"{name}.arrow").column_names
        assert {*re.findall("`([a-z_]+)`", part)} == {*columns}, name


# HTTP


def test_every_http_call_of_a_page_is_an_operation(tmp_path: Path) -> None:
    selection = list(operations(create_app(settings_for(tmp_path / "home")).openapi()))
    selection += [("GET", re.compile(path)) for path in ("/docs", "/openapi.json", "/")]

    def broken() -> Iterator[str]:
        for name, text in pages().items():
            for method, path in calls(text):
                # A table of README abbreviates paths like this.
                full = f"/v1/models{path}" if path.startswith("/{name}") else path
                if not any(
                    method == each and pattern.fullmatch(full) for each, pattern in selection
                ):
                    yield f"{name}: {method} {path}"

    assert sorted_faults(broken()) == []
    assert sum(len(calls(text)) for text in pages().values()) > 40


def test_every_body_of_a_page_is_accepted_by_its_schema(tmp_path: Path) -> None:
    document = create_app(settings_for(tmp_path / "home")).openapi()
    shown = re.compile(r"(POST|PUT) +(/v\d[^\s?]*) +(?=\{)")
    checked = 0
    for name, text in PROSE.items():
        for match in shown.finditer(text):
            method, path = match.groups()
            rest = re.sub(r"\bID\b", '"up_1"', text[match.end() :])
            body, end = json.JSONDecoder().raw_decode(rest)
            content = request_body(document, method, path)["content"]["application/json"]
            schema = {**content["schema"], "components": document["components"]}
            faults = [each.message for each in Draft202012Validator(schema).iter_errors(body)]
            assert faults == [], f"{name}: {method} {path} {rest[:end]}"
            checked += 1
    assert checked >= 13


def request_body(document: dict[str, Any], method: str, path: str) -> dict[str, Any]:
    """Return the description of the body of an operation."""
    pattern, found = next(
        (template, methods[method.lower()])
        for template, methods in document["paths"].items()
        if method.lower() in methods
        and re.fullmatch(re.sub(r"\\\{.*?\\\}", "[^/]+?", re.escape(template)), path)
    )
    assert "requestBody" in found, pattern
    return dict(found["requestBody"])


# the chart


def test_every_named_value_exists_in_the_chart() -> None:
    named = {
        (name, each)
        for name, text in pages().items()
        for each in values_in(text, plain=name.startswith("helm/"))
    }
    assert {each for each in named if not is_value(each[1])} == set()
    assert len(named) > 300
    assert is_value("ray.workerGroups.spot.maxReplicas")
    assert not is_value("ray.autoscaling.enable")


def named_objects(text: str) -> set[tuple[str, str]]:
    """Return the objects in kubectl commands, such as ("Deployment", "xcray-api").

    Commands that create an object are left out, because the reader chooses its name.
    """
    text = "\n".join(
        line for line in text.splitlines() if "kubectl" in line and " create " not in line
    )
    return {
        (KINDS[kind], name)
        for kind, name in re.findall(
            rf"\b({'|'.join(KINDS)})[ /]([a-z][a-z0-9]*(?:-[a-z0-9]+)*)\b", text
        )
    }


def test_every_object_in_a_kubectl_command_of_a_page_is_rendered() -> None:
    there = {
        (each["kind"], each["metadata"]["name"])
        for name in helm.values_files()
        for each in helm.rendering(name)
    }
    named = {
        each
        for name, text in PROSE.items()
        if not name.endswith("NOTES.txt")
        for each in named_objects(text)
    }
    assert named >= {("Deployment", "xcray-api"), ("Job", "xcray-migrate"), ("Service", "xcray")}
    assert named - there == set()


def test_every_object_in_a_kubectl_command_of_notes_is_rendered() -> None:
    program = helm.helms().get("helm4")
    if program is None:
        without.say("helm 4, for NOTES", "names in NOTES were not compared with what is rendered")
        return
    for name, path in helm.values_files().items():
        chart = (helm.RELEASE, str(helm.CHART), f"--namespace={helm.NAMESPACE}", f"--values={path}")
        process = helm.run(program, "install", *chart, "--dry-run=client")
        process = process.partition("\nNOTES:\n")[2]
        there = {(each["kind"], each["metadata"]["name"]) for each in helm.rendering(name)}
        clusters = {each for kind, each in there if kind == "RayCluster"}
        operators = {("Service", f"{each}-head-svc") for each in clusters} | {
            ("Secret", each) for each in clusters
        }
        values = path.read_text()
        readers = {
            ("Secret", each)
            for kind, each in named_objects(process)
            if kind == "Secret" and f": {each}" in values
        }
        assert ("Deployment", "xcray-api") in named_objects(process), name
        assert named_objects(process) - there - operators - readers == set(), name


# paths, codes, programs


def test_every_named_path_exists() -> None:
    folders = ("", "xcray", "deploy", "helm/xcray", "tests")
    ours = r"xcray|tests|docs|deploy|helm|benchmarks|notebooks|schedule|training|workers|batch|solvers|kernels|service|jobs|ci|docker|ray|templates"

    def broken() -> Iterator[str]:
        for name, text in PROSE.items():
            named = [
                *re.findall(rf"`((?:{ours})/[\w./-]+\w)[`:]", text),
                *re.findall(r"(?:-f|--values) ([\w./-]+/[\w.-]+)", text),
            ]
            named += re.findall(
                r"(?<![\w/])((?:tests|deploy|helm|docs|notebooks|benchmarks)/[\w/-]+\.[a-z]+)\b",
                text,
            )
            for each in named:
                if not any((ROOT / place / each).exists() for place in folders):
                    yield f"{name}: {each}"
            for each in re.findall(r"`(test_\w+\.py)`", text):
                if not (ROOT / "tests" / each).exists():
                    yield f"{name}: {each}"

    assert sorted_faults(broken()) == []


def test_every_named_code_is_defined() -> None:
    values = set(re.findall(r"[\"']([A-Z][A-Z0-9_]{2,})[\"']", "".join(sources("xcray").values())))
    places = {name: text for name, text in PROSE.items() if name != "CONTRIBUTING.md"}
    named = unknown(places, r"`([A-Z][A-Z_]{3,})`", values | NO_CODES, at_least=60)
    assert {each for each in named if not each[1].startswith(FOREIGN)} == set()


def test_every_constant_named_in_contributing_is_defined() -> None:
    code = "".join(sources("xcray", "tests").values())
    defined = set(re.findall(r"^([A-Z][A-Z_]+)(?:: .*)? = ", code, re.MULTILINE))
    named = set(re.findall(r"`([A-Z][A-Z_]{3,})`", PROSE["CONTRIBUTING.md"]))
    assert {each for each in named - defined if not each.startswith(FOREIGN)} == set()
    assert {"SOLVERS", "READERS", "OPERATIONS"} <= named


def test_imports_in_python_of_the_pages_exist() -> None:
    notebook = json.loads((ROOT / "notebooks/quickstart.ipynb").read_text())
    blocks = [
        ("quickstart.ipynb", "".join(cell["source"]))
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]
    blocks += [
        (name, each)
        for name, text in PROSE.items()
        for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    ]
    nodes = [
        (name, node)
        for name, block in blocks
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom)
    ]
    ours: list[tuple[str, Any]] = [
        (name, node) for name, node in nodes if (node.module or "").startswith("xcray")
    ]
    assert len(ours) >= 2
    for name, node in ours:
        for each in node.names:
            module = importlib.import_module(node.module)
            assert each.name in getattr(module, "__all__", dir(module)), (
                f"{name}: {node.module} has no {each.name}"
            )
