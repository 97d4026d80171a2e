"""Dashboards and alerts: all names exist, alerts fire exactly when they should, JSON is current."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.models import dashboard as grafana

from benchmarks.monitoring.dashboards import EMPTY, filled, named
from deploy.dashboards.__main__ import BOARDS, path_of
from deploy.dashboards.board import TITLES, written
from docs import reference
from tests.support import missing_tools as without
from tests.support.alert_cases import CASES, LOOK, Case
from tests.support.foreign_metrics import KUBERNETES, RAY, scraped_with

ROOT = Path(__file__).parents[2]
RULES = ROOT / "helm" / "xcray" / "monitoring" / "rules.yaml"
# Labels that the scraper adds, and the label of buckets.
TARGET = {
    "namespace",
    "instance",
    "pod",
    "job",
    "ray_io_cluster",
    "le",
}
BUILT_IN = re.compile(
    r"\b(sum|max|min|count|avg|topk|max_over_time|by|without|rate|increase|histogram_quantile|label_replace|absent|vector|time|and|or|unless|on|ignoring|offset)\b"
)


@functools.cache
def known() -> dict[str, set[str]]:
    """Return all series with their labels.

    Those of xcray come from its code, those of Ray and Kubernetes from `foreign_metrics`.
    """
    out: dict[str, set[str]] = {}
    for metric, labels in reference.listed_metrics():
        ends = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(
            metric.type, [""]
        )
        out |= {metric.name + end: set(labels) for end in ends}
    out |= {
        name: set() for name in ("process_resident_memory_bytes", "process_cpu_seconds_total", "up")
    }
    out |= {rule["record"]: set() for rule in rules() if "record" in rule}
    return out | RAY | KUBERNETES


@functools.cache
def rules() -> list[dict[str, Any]]:
    """Return the rules of all groups."""
    return [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]


def alerts() -> dict[str, dict[str, Any]]:
    """Return alerts by name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def boards() -> list[dict[str, Any]]:
    """Return the dashboards of the chart."""
    return [
        json.loads(path.read_text())
        for path in sorted((RULES.parent / "dashboards").glob("*.json"))
    ]


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all panels except the headings."""
    return [each for each in board["panels"] if each["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    """Yield (location, expression) of every panel and rule."""
    for board in boards():
        for panel in panels(board):
            for target in panel["targets"]:
                yield f"{board['uid']}: {panel['title']}", target["expr"]
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]


def names_and_labels(expr: str) -> tuple[set[str], set[str]]:
    """Return names of series in an expression, and labels that it matches or groups by."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expr)
    grouped = {
        label.strip()
        for result in re.findall(r"\b(?:by|on|without)\s*\(([^)]*)\)", bare)
        for label in result.split(",")
    }
    matched = set(re.findall(r"[{,]\s*([a-z_A-Z]\w*)\s*(?:=~|!=|!~|=)", bare))
    left = re.sub(r"\b(?:by|on|without)\s*\([^)]*\)|\{[^}]*\}|\[[^\]]*\]", " ", bare)
    names = set(re.findall(r"(?<![\w:.])[a-zA-Z_][\w:]*", BUILT_IN.sub(" ", left)))
    return names, grouped | matched


@pytest.mark.parametrize(("where", "expr"), list(queries()), ids=lambda text: str(text)[:60])
def test_every_series_and_label_of_a_query_exists(where: str, expr: str) -> None:
    names, labels = names_and_labels(expr)
    assert names, expr
    assert names <= known().keys(), names - known().keys()
    allowed = set.union(TARGET, *(known()[name] for name in names))
    assert labels <= allowed, f"{where}: {labels - allowed}"


def test_names_and_labels_of_queries_are_found() -> None:
    assert names_and_labels('sum by (code) (rate(no_such{a="x",b=~"y"}[5m])) / 2 > 0') == (
        {"no_such"},
        {"code", "a", "b"},
    )
    assert names_and_labels("a:b:rate5m > 1e3 unless on (namespace) other_total") == (
        {"a:b:rate5m", "other_total"},
        {"namespace"},
    )


def test_metrics_of_the_store_are_never_summed_over_replicas() -> None:
    of_store = {
        metric.name
        for metric, _ in reference.listed_metrics()
        if metric.documentation.startswith("Of the store")
    }
    for where, expr in queries():
        for name in names_and_labels(expr)[0]:
            if name.removesuffix("_total").removesuffix("_bucket") in of_store:
                before = re.findall(
                    rf"(\w+)\s*(?:by \([^)]*\)\s*)?\(\s*(?:rate\(|increase\()?{name}\b", expr
                )
                assert set(before) == {"max"}, (
                    f"{where}: {name} is the same from every replica: max, not {before}"
                )


def test_names_of_ray_are_in_the_installed_ray() -> None:
    result = importlib.util.find_spec("ray")
    assert result is not None
    root = Path(str(result.origin)).parent
    files = [
        root / "_raylet.so",
        *(root / "core" / "src" / "ray" / part for part in ("gcs/gcs_server", "raylet/raylet")),
    ]
    files += [
        *(root / "dashboard").rglob("*.py"),
        *(root / "autoscaler" / "_private").glob("*.py"),
        *(root / "_private").glob("*.py"),
    ]
    text = b"".join(path.read_bytes() for path in files if path.is_file())
    for name in RAY:
        if "xcray" not in name:
            core = re.sub(r"^(ray|autoscaler)_|_(bucket|total)$", "", name)
            assert core.encode() in text, (
                f"{name} is not in Ray {version('ray')}; the list is of {scraped_with}"
            )


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_the_json_is_current(board: Any) -> None:
    assert path_of(board).read_text(encoding="utf-8") == written(board), (
        "run: python -m deploy.dashboards"
    )


@pytest.mark.parametrize("board", boards(), ids=lambda board: board["uid"])
def test_grafanas_models_keep_every_field_of_a_dashboard(board: dict[str, Any]) -> None:
    again = json.loads(
        json.dumps(grafana.Dashboard.from_json(board), default=lambda each: each.to_json())
    )
    assert again == board
    assert board["schemaVersion"] >= 41


@pytest.mark.parametrize("board", boards(), ids=lambda board: board["uid"])
def test_a_dashboard_has_titles_descriptions_and_units(board: dict[str, Any]) -> None:
    assert board["title"] == TITLES[board["uid"]]
    assert len({each["id"] for each in board["panels"]}) == len(board["panels"])
    variables = [each["name"] for each in board["templating"]["list"]]
    assert variables[:2] == ["datasource", "namespace"]
    for panel in panels(board):
        assert len(panel["description"]) > 15, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"
        used = {
            name for target in panel["targets"] for name in re.findall(r"\$(\w+)", target["expr"])
        }
        assert used <= {*variables, "__rate_interval", "__range"}, panel["title"]
    links = {each["url"] for each in board["links"]}
    assert links == {f"/d/{uid}" for uid in TITLES if uid != board["uid"]}


@pytest.mark.parametrize("board", boards(), ids=lambda board: board["uid"])
def test_no_panels_overlap(board: dict[str, Any]) -> None:
    counts: Counter[tuple[int, int]] = Counter()
    for each in board["panels"]:
        at = each["gridPos"]
        assert at["x"] + at["w"] <= 24
        counts.update(
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        )
    assert max(counts.values()) == 1


def test_uids_and_titles_are_unique() -> None:
    assert len({board["uid"] for board in boards()}) == len(boards()) == len(TITLES) == 5
    assert len({board["title"] for board in boards()}) == len(boards())


def test_alerts_have_a_description_an_action_and_a_runbook() -> None:
    assert len(alerts()) >= 30
    page = reference.alerts()
    for name, rule in alerts().items():
        notes = rule["annotations"]
        assert set(notes) == {"summary", "description", "action", "runbook"}, name
        assert rule["labels"] in (
            {"severity": "critical"},
            {"severity": "warning"},
            {"severity": "info"},
        ), name
        assert notes["summary"].endswith("."), name
        assert notes["runbook"] == f"reference/alerts.html#{name.lower()}"
        assert f"## {name}\n" in page, name


def test_there_is_a_case_for_every_alert() -> None:
    assert CASES.keys() == alerts().keys()


def test_each_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        without.say(
            "promtool",
            "names and labels of rules.yaml were checked; no alert was fired",
        )
        return
    for name, case in CASES.items():
        write_rule(tmp_path, name)
        (tmp_path / f"{name}.test.yaml").write_text(yaml.safe_dump(rehearsal(name, case)))
    checked = subprocess.run(
        [promtool, "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    files = sorted(path.name for path in tmp_path.glob("*.test.yaml"))
    process = subprocess.run(
        [promtool, "test", "rules", *files],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, (process.stdout + process.stderr)[-4000:]
    upside_down = rehearsal(
        "XcrayAbsent", Case(CASES["XcrayAbsent"].silent, CASES["XcrayAbsent"].fires)
    )
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(upside_down))
    assert subprocess.run(
        [promtool, "test", "rules", "wrong.yaml"], cwd=tmp_path, capture_output=True, check=False
    ).returncode


def write_rule(folder: Path, name: str) -> None:
    """Write one alert to a file, with the recording rules, to run ten times faster."""
    rule = alerts()[name]
    recorded = [each for each in rules() if "record" in each and ":" in rule["expr"]]
    groups = [{"name": "one", "rules": [*recorded, rule]}]
    (folder / f"{name}.rules.yaml").write_text(yaml.safe_dump({"groups": groups}))


def rehearsal(name: str, case: Case) -> dict[str, Any]:
    """Return a test file for promtool in which the alert fires once and is silent once."""
    firing = f'count by (severity) (ALERTS{{alertname="{name}",alertstate="firing"}}) > 0'
    severity = alerts()[name]["labels"]["severity"]

    def played(series: dict[str, str], fires: bool) -> dict[str, Any]:
        expected = [{"labels": f'{{severity="{severity}"}}', "value": 1}] if fires else []
        return {
            "interval": "1m",
            "input_series": [{"series": key, "values": values} for key, values in series.items()],
            "promql_expr_test": [
                {"expr": firing, "eval_time": f"{LOOK}m", "exp_samples": expected}
            ],
        }

    tests = [played(case.fires, True), played(case.silent, False)]
    return {"rule_files": [f"{name}.rules.yaml"], "evaluation_interval": "1m", "tests": tests}


def test_variables_of_a_query_are_filled_like_in_grafana() -> None:
    request = filled(
        'rate(a{namespace=~"$namespace",pod=~"$pods"}[$__rate_interval]) / b[$__range]', 300.0
    )
    assert request == 'rate(a{namespace=~".*",pod=~".*xcray.*"}[30s]) / b[300s]'
    for where, expr in queries():
        assert "$" not in filled(expr, 300.0), where


def test_panels_have_unique_names_and_the_list_of_empty_panels_is_valid() -> None:
    assert len({named(board, panel) for board in boards() for panel in panels(board)}) == sum(
        len(panels(board)) for board in boards()
    )
    assert EMPTY.keys() <= {named(board, panel) for board in boards() for panel in panels(board)}


def test_compose_mounts_the_files_of_prometheus_and_grafana(tmp_path: Path) -> None:
    deploy = ROOT / "deploy"
    services = yaml.safe_load((deploy / "compose.yaml").read_text())["services"]
    mounted = {
        target: (deploy / source).resolve()
        for service in ("prometheus", "grafana")
        for source, target, *_ in (
            each.split(":") for each in services[service]["volumes"] if each.startswith(".")
        )
    }
    config = yaml.safe_load(mounted["/etc/prometheus/prometheus.yml"].read_text())
    assert [mounted[path] for path in config["rule_files"]] == [RULES]
    targets = {
        each
        for job in config["scrape_configs"]
        for group in job["static_configs"]
        for each in group["targets"]
    }
    names = {
        name
        for job in config["scrape_configs"]
        for sd in job.get("dns_sd_configs", [])
        for name in sd["names"]
    }
    assert {target.partition(":")[0] for target in targets} - {
        "127.0.0.1"
    } | names <= services.keys()
    provisioning = mounted["/etc/grafana/provisioning"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "xcray.yaml").read_text())[
        "providers"
    ]
    assert mounted[provider["options"]["path"]] == RULES.parent / "dashboards"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    assert source["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]
    if promtool := shutil.which("promtool"):
        (tmp_path / "prometheus.yml").write_text(
            yaml.safe_dump({**config, "rule_files": [str(RULES)]})
        )
        command = [promtool, "check", "config", str(tmp_path / "prometheus.yml")]
        checked = subprocess.run(command, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr
