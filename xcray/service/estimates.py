"""Estimate of a training before it is submitted, made by a child process.

Usage of the child: python -m xcray.service.estimates PARENT_PID < SPEC.json

The child solves some labels for about two seconds, which would slow down the predictions of the
service. It prints {"estimate": ...} or {"problem": ...}.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from xcray.data.dataset import Dataset
from xcray.errors import Corrupt, NotFound, ParameterError, Refused, Unavailable, XcrayError
from xcray.system.child_process import inherited_environment, limit_this_process
from xcray.training.auto_params import selection_seconds
from xcray.training.capacity.disk import free_bytes
from xcray.training.capacity.preflight import Estimate, check_fits, memory_limits
from xcray.training.spec import TrainSpec
from xcray.training.strategies import estimate_training

MAX_SECONDS: Final = 120  # of an estimate
CLASS_OF_CODE: Final = {
    kind.code: kind for kind in (Corrupt, NotFound, ParameterError, Unavailable)
}


def estimate_in_child(spec: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the estimate of a training as described by `EstimateView`.

    spec: of `TrainSpec`. folder: where its files and the model would be written. Raises Corrupt,
    NotFound and ParameterError as a training would, and Refused if no estimate is possible.
    """
    command = [sys.executable, "-m", "xcray.service.estimates", str(os.getpid())]
    try:
        child = subprocess.run(
            command,
            input=json.dumps({"spec": spec, "folder": str(folder)}),
            stdout=subprocess.PIPE,
            text=True,
            env=inherited_environment(),
            timeout=MAX_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise Refused(
            f"the estimate took longer than {MAX_SECONDS} s; submit the job, which checks again",
            code="TIME_LIMIT",
        ) from None
    outcome = json.loads(child.stdout) if child.stdout else {}
    if "estimate" in outcome:
        return dict(outcome["estimate"])
    default = {"code": "ESTIMATE_DIED", "message": "the estimate ended early; see the server log"}
    problem = outcome.get("problem", default)
    raise CLASS_OF_CODE.get(problem["code"], Refused)(problem["message"], code=problem["code"])


def estimate_fields(spec: TrainSpec, folder: Path) -> dict[str, Any]:
    """Return the fields of `EstimateView`, estimated in this process."""
    estimate, limits = estimate_training(spec), memory_limits(spec)
    return {
        "fits": (problem := _problem_of(estimate, limits, folder)) is None,
        "problem": problem,
        "workers": estimate.workers,
        "worker_bytes": estimate.worker + estimate.process,
        "memory_bytes": estimate.memory,
        "available_bytes": limits,
        "mapped_bytes": estimate.mapped,
        "disk_bytes": estimate.disk,
        "disk_free_bytes": free_bytes(folder),
        "weights": estimate.weights,
        "core_seconds": estimate.core_seconds,
        "seconds": estimate.seconds,
        "selection_core_seconds": selection_seconds(
            spec, Dataset.open(spec.dataset), estimate.core_seconds
        ),
        "probed_labels": estimate.probed,
    }


def _problem_of(estimate: Estimate, limits: Mapping[str, int], folder: Path) -> str | None:
    """Return why a training does not fit, None if it does."""
    try:
        check_fits(estimate, limits, folder, folder)
    except Refused as error:
        return error.message
    return None


def main(arguments: list[str]) -> int:
    """Estimate the training whose spec is on standard input; return 0 on success."""
    request = json.load(sys.stdin)
    limit_this_process(int(arguments[0]), MAX_SECONDS)
    spec, folder = TrainSpec.from_dict(request["spec"]), Path(request["folder"])
    try:
        outcome = {"estimate": estimate_fields(spec, folder)}
    except XcrayError as error:
        message = error.message.replace(f"{Path(spec.dataset).parent}/", "")
        outcome = {"problem": {"code": error.code, "message": message}}
    except MemoryError:
        outcome = {"problem": {"code": "MEMORY", "message": "no memory is left for an estimate"}}
    except Exception:  # a bug in xcray: the traceback goes to the log
        traceback.print_exc()
        return 1
    print(json.dumps(outcome))
    return 0 if "estimate" in outcome else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
