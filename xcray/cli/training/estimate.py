"""`xcray train --estimate`: what a training would take, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from xcray.cli.terminal import output
from xcray.cli.terminal.progress import duration


def show_estimate(spec: Any, out: Path, run_dir: Path, as_json: bool) -> None:
    """Print memory, disk and time foreseen for a training, and end. Raises Refused when it could not fit."""
    from xcray.system.units import human
    from xcray.training.capacity.preflight import check, limits_of
    from xcray.training.strategies import foresee

    found, limits = foresee(spec), limits_of(spec)
    if as_json:
        output.emit({"estimate": found.as_dict(), "limits": limits})
    else:
        output.pairs(
            {
                "workers": f"{found.workers} of {human(found.worker + found.process)}",
                "memory in all": human(found.memory),
                "that can be had": ", ".join(
                    f"{human(size)} ({name})" for name, size in limits.items()
                )
                or "not known",
                "mapped data": human(found.mapped),
                "weights": f"{found.weights:,}",
                **({"disk for checkpoints": human(found.checkpoints)} if found.checkpoints else {}),
                "disk for parts": human(found.parts),
                "disk for the model": human(found.model),
                "core time": duration(found.core_seconds),
                "time": duration(found.seconds),
                "known from": f"{found.probed} labels solved" if found.probed else "sizes alone",
            }
        )
    check(found, limits, run_dir, out)
    raise typer.Exit
