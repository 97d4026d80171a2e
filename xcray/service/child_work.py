"""Work of requests in a child process: estimates of trainings, and comparisons of models.

Usage of the child: python -m xcray.service.child_work PARENT_PID < REQUEST.json

The child computes for seconds, which would slow down the predictions of the service. It prints
{"reply": ...} or {"problem": ...}.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from xcray.errors import Corrupt, NotFound, ParameterError, Refused, Unavailable, XcrayError
from xcray.system.child_process import inherited_environment, limit_this_process
from xcray.training.evaluation import compare_models
from xcray.training.spec import TrainSpec
from xcray.training.strategies import estimate_document

MAX_SECONDS: Final = 120  # of a child
CLASS_OF_CODE: Final = {
    kind.code: kind for kind in (Corrupt, NotFound, ParameterError, Unavailable)
}


def estimate_in_child(spec: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the estimate of a training as described by `EstimateView`.

    spec: of `TrainSpec`. folder: where its files and the model would be written. Raises Corrupt,
    NotFound and ParameterError as a training would, and Refused if no estimate is possible.
    """
    hint = "submit the job, which checks again"
    return _in_child("estimate", {"spec": spec, "folder": str(folder)}, hint)


def compare_in_child(
    models: Sequence[tuple[str, Path]], dataset: Path, gate: str | None
) -> dict[str, Any]:
    """Return the comparison of models on the held-out rows of a data set, see `ComparisonView`.

    models: references with directories. Raises Corrupt, NotFound, ParameterError, and Refused if
    the models do not fit the data set or it takes too long.
    """
    paths = [(name, str(path)) for name, path in models]
    hint = "use xcray evaluate for large data sets"
    return _in_child("compare", {"models": paths, "dataset": str(dataset), "gate": gate}, hint)


def _in_child(task: str, request: Mapping[str, Any], hint: str) -> dict[str, Any]:
    """Return the reply of a child. hint: what to do if it takes too long. Raises as above."""
    command = [sys.executable, "-m", "xcray.service.child_work", str(os.getpid())]
    try:
        child = subprocess.run(
            command,
            input=json.dumps({"task": task, **request}),
            stdout=subprocess.PIPE,
            text=True,
            env=inherited_environment(),
            timeout=MAX_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise Refused(f"this took longer than {MAX_SECONDS} s; {hint}", code="TIME_LIMIT") from None
    outcome = json.loads(child.stdout) if child.stdout else {}
    if "reply" in outcome:
        return dict(outcome["reply"])
    if "problem" not in outcome:
        raise Refused("its process ended early; the log of the service says why", code="CHILD_DIED")
    problem = outcome["problem"]
    raise CLASS_OF_CODE.get(problem["code"], Refused)(
        problem["message"], code=problem["code"], hint=problem.get("hint")
    )


def estimate(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the estimate that a request asks for."""
    folder = Path(request["folder"])
    return estimate_document(TrainSpec.from_dict(request["spec"]), folder, folder)[0]


def compare(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the comparison that a request asks for."""
    references, paths = zip(*request["models"], strict=True)
    document = compare_models(paths, request["dataset"], request["gate"])
    for reference, each in zip(references, document["models"], strict=True):
        each["model"] = reference
    return document


TASKS: Final = {"estimate": estimate, "compare": compare}


def main(arguments: list[str]) -> int:
    """Do the work that standard input asks for; return 0 on success."""
    request = json.load(sys.stdin)
    limit_this_process(int(arguments[0]), MAX_SECONDS)
    try:
        outcome = {"reply": TASKS[request["task"]](request)}
    except XcrayError as error:
        message = _without_folders(error.message, request)
        outcome = {"problem": {"code": error.code, "message": message, "hint": error.hint}}
    except MemoryError:
        outcome = {
            "problem": {"code": "MEMORY", "message": "no memory is left for this: try again later"}
        }
    except Exception:  # a bug in xcray: the traceback goes to the log
        traceback.print_exc()
        return 1
    print(json.dumps(outcome))
    return 0 if "reply" in outcome else 1


def _without_folders(message: str, request: Mapping[str, Any]) -> str:
    """Return a message with references in place of the folders of models, and no other folder."""
    for reference, path in request.get("models", []):
        message = message.replace(path, reference)
    dataset = request.get("dataset") or request["spec"]["dataset"]
    return message.replace(f"{Path(dataset).parent}/", "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
