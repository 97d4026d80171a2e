"""`xcray train --estimate` and `--values`: estimate the resources of a training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from xcray.cli.terminal import output
from xcray.cli.terminal.progress import format_duration
from xcray.errors import Refused

if TYPE_CHECKING:
    from xcray.api.job_replies import EstimateView


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


def print_estimate(spec: Any, out: Path, run_dir: Path) -> None:
    """Print the estimated memory, disk and time of a training, and exit.

    The selection of --auto comes in addition, with its own line. Raises Refused if the
    training cannot fit.
    """
    from xcray.data.dataset import Dataset
    from xcray.system.units import format_bytes
    from xcray.training.auto_params import selection_seconds
    from xcray.training.capacity.preflight import check_fits, memory_limits
    from xcray.training.strategies import estimate_training

    estimate, limits = estimate_training(spec), memory_limits(spec)
    selection = selection_seconds(spec, Dataset.open(spec.dataset), estimate.core_seconds)
    extra = {} if selection is None else {"selection": {"core_seconds": selection}}
    output.print_json({"estimate": estimate.as_dict(), "limits": limits, **extra})
    output.print_pairs(
        {
            "workers": f"{estimate.workers} of {format_bytes(estimate.worker + estimate.process)}",
            "total memory": format_bytes(estimate.memory),
            "available memory": ", ".join(
                f"{format_bytes(size)} ({name})" for name, size in limits.items()
            )
            or "unknown",
            "mapped data": format_bytes(estimate.mapped),
            "weights": f"{estimate.weights:,}",
            **(
                {"disk for checkpoints, at most": format_bytes(estimate.checkpoints)}
                if estimate.checkpoints
                else {}
            ),
            "disk for parts": format_bytes(estimate.parts),
            "disk for the model": format_bytes(estimate.model),
            **(
                {"core time of --auto, at most": format_duration(selection)}
                if selection is not None
                else {}
            ),
            "core time": format_duration(estimate.core_seconds),
            "time": format_duration(estimate.seconds),
            "based on": f"{estimate.probed} solved labels" if estimate.probed else "sizes alone",
        }
    )
    check_fits(estimate, limits, run_dir, out)
    raise typer.Exit


def print_server_estimate(estimate: EstimateView) -> None:
    """Print the estimate of a training on a server. Raises Refused if it does not fit."""
    output.print_json(estimate)
    size = output.format_bytes
    available = (f"{size(free)} ({name})" for name, free in estimate["available_bytes"].items())
    selection = estimate["selection_core_seconds"]
    pairs = {
        "workers": f"{estimate['workers']} of {size(estimate['worker_bytes'])}",
        "memory": size(estimate["memory_bytes"]),
        "available": ", ".join(available) or "unknown",
        "mapped data": size(estimate["mapped_bytes"]),
        "disk": f"{size(estimate['disk_bytes'])}, {size(estimate['disk_free_bytes'])} free",
        "core time": format_duration(estimate["core_seconds"]),
        "time": format_duration(estimate["seconds"]),
    }
    if selection is not None:
        pairs["core time of --auto, at most"] = format_duration(selection)
    output.print_pairs(pairs)
    if estimate["problem"] is not None:
        raise Refused(estimate["problem"])
