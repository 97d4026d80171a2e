"""Generate docs/alerts.md from the Prometheus rules: `python docs/alerts.py` (a test compares)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

PAGE = Path(__file__).parent / "alerts.md"
RULES = Path(__file__).parent.parent / "helm" / "xcray" / "monitoring" / "rules.yaml"
SECTIONS = {
    "xcray-jobs": "Jobs",
    "xcray-serving": "Serving",
    "xcray-store": "Store and disk",
    "xcray-ray": "Ray",
    "xcray-kubernetes": "Kubernetes",
}
HEAD = """# Alerts

The Prometheus alerts of xcray, what each means, and how to respond. This page is generated from
`helm/xcray/monitoring/rules.yaml`, which compose mounts and the chart installs as a PrometheusRule
(`monitoring.rules.enabled`). `promtool test rules` checks for each alert that it fires when it
should, and only then (tests/deployment/test_monitoring.py).

*critical*: users are affected now. *warning*: users will be affected soon. *info*: resources are
wasted; do not page.

"""


def groups() -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the alerts by section of the page."""
    loaded = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [(SECTIONS[each["name"]], each["rules"]) for each in loaded if each["name"] in SECTIONS]


def records() -> list[dict[str, Any]]:
    """Return the recording rules."""
    loaded = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in loaded for rule in group["rules"] if "record" in rule]


def written() -> str:
    """Return the page."""
    lines = ["| alert | severity | when | for |", "|---|---|---|---|"]
    for _, rules in groups():
        for rule in rules:
            name, labels, notes = rule["alert"], rule["labels"], rule["annotations"]
            lines.append(
                f"| [{name}](#{name.lower()}) | {labels['severity']} | {notes['summary']} "
                f"| {rule.get('for', '')} |"
            )
    parts = [HEAD, "\n".join(lines), "\n"]
    for section, rules in groups():
        parts.append(f"\n## {section}\n")
        parts += [_section(rule) for rule in rules]
    parts.append(
        "\n## Recording rules\n\nExpressions that are queried often, computed every 30 seconds.\n\n"
        "| name | expression |\n|---|---|\n"
    )
    parts += [f"| `{rule['record']}` | `{rule['expr']}` |\n" for rule in records()]
    return "".join(parts)


def _section(rule: dict[str, Any]) -> str:
    """Return the section of one alert."""
    notes = rule["annotations"]
    return (
        f"\n### {rule['alert']}\n\n{notes['description']}\n\n**Action:** {notes['action']}\n\n"
        f"```promql\n{rule['expr']}\n```\n"
    )


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
