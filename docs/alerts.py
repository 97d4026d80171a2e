"""docs/alerts.md, from the rules that Prometheus reads: `python docs/alerts.py` writes it anew; a test compares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

PAGE = Path(__file__).parent / "alerts.md"
RULES = Path(__file__).parent.parent / "helm" / "xcray" / "monitoring" / "rules.yaml"
ROOMS = {
    "xcray-jobs": "Jobs",
    "xcray-serving": "Serving",
    "xcray-store": "Store and disk",
    "xcray-ray": "Ray",
    "xcray-kubernetes": "Kubernetes",
}
HEAD = """# Alerts

What Prometheus tells of xcray when something needs a person, and what that person does. This page is written from
`helm/xcray/monitoring/rules.yaml`, which compose mounts and the chart installs as a PrometheusRule (`monitoring.rules.enabled`).
Each alert has been made to fire, and not to fire, by `promtool test rules` (tests/deployment/test_monitoring.py).

*critical*: somebody is hurt now. *warning*: somebody will be. *info*: money or time is wasted; no one need get up for it.

"""


def groups() -> list[tuple[str, list[dict[str, Any]]]]:
    """Alerts by room of the page."""
    found = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [(ROOMS[group["name"]], group["rules"]) for group in found if group["name"] in ROOMS]


def records() -> list[dict[str, Any]]:
    """Rules that record."""
    found = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in found for rule in group["rules"] if "record" in rule]


def written() -> str:
    """The page."""
    lines = ["| alert | severity | when | for |", "|---|---|---|---|"]
    for _, rules in groups():
        for rule in rules:
            name, labels, notes = rule["alert"], rule["labels"], rule["annotations"]
            lines.append(
                f"| [{name}](#{name.lower()}) | {labels['severity']} | {notes['summary']} | {rule.get('for', '')} |"
            )
    parts = [HEAD, "\n".join(lines), "\n"]
    for room, rules in groups():
        parts.append(f"\n## {room}\n")
        parts += [_section(rule) for rule in rules]
    parts.append(
        "\n## Recorded\n\nAsked often, so computed once, every 30 seconds.\n\n| name | expression |\n|---|---|\n"
    )
    parts += [f"| `{rule['record']}` | `{rule['expr']}` |\n" for rule in records()]
    return "".join(parts)


def _section(rule: dict[str, Any]) -> str:
    """What one alert means and wants."""
    notes = rule["annotations"]
    return f"\n### {rule['alert']}\n\n{notes['description']}\n\n**Do:** {notes['action']}\n\n```promql\n{rule['expr']}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
