"""`--estimate` and `--values`: what a training needs, here or on a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from xcray.cli.terminal import output
from xcray.cli.terminal.progress import format_duration
from xcray.errors import Refused
from xcray.system.units import format_bytes


def print_values(spec: Any) -> None:
    """Print values of the Helm chart for a training, and exit."""
    from xcray.data.dataset import Dataset
    from xcray.training.capacity.chart_values import chart_values
    from xcray.training.strategies import estimate_training

    values = chart_values(
        estimate_training(spec), Dataset.open(spec.dataset), cluster=spec.pool == "ray"
    )
    output.print_json({"values": values})
    if not output.is_json():
        typer.echo(values, nl=False)
    raise typer.Exit


def print_estimate(estimate: Mapping[str, Any], problem: Refused | None) -> None:
    """Print the fields of `EstimateView`. Raises the problem if the training does not fit."""
    output.print_json(estimate)
    available = (
        f"{format_bytes(free)} ({name})" for name, free in estimate["available_bytes"].items()
    )
    free, selection = format_bytes(estimate["disk_free_bytes"]), estimate["selection_core_seconds"]
    probed = estimate["probed_labels"]
    pairs = {
        "workers": f"{estimate['workers']} of {format_bytes(estimate['worker_bytes'])}",
        "total memory": format_bytes(estimate["memory_bytes"]),
        "available memory": ", ".join(available) or "unknown",
        "mapped data": format_bytes(estimate["mapped_bytes"]),
        "weights": f"{estimate['weights']:,}",
        "disk": f"{format_bytes(estimate['disk_bytes'])}, {free} free",
        "core time of --auto, at most": selection and format_duration(selection),
        "core time": format_duration(estimate["core_seconds"]),
        "time": format_duration(estimate["seconds"]),
        "based on": f"{probed} solved labels" if probed else "sizes alone",
    }
    output.print_pairs({name: value for name, value in pairs.items() if value is not None})
    if problem is not None:
        raise problem
