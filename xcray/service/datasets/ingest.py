"""The child process that builds one data set: python -m xcray.service.datasets.ingest REQUEST.json PARENT_PID

It limits itself before it reads a byte, and leaves OUTCOME.json beside the request, named as it is (request-7, outcome-7):
{"stats": ...} or {"problem": ..., "errors": [...]}.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.errors import Conflict, XcrayError
from xcray.service.datasets.statistics import statistics
from xcray.storage.atomic import read_json, write_json

SHOWN = 20
PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Build what the request says; 0 when the data set is there."""
    request_path = Path(arguments[0])
    request = read_json(request_path)
    _limit(request["limits"], int(arguments[1]))
    outcome = attempt(request, request_path.parent)
    write_json(request_path.with_name(request_path.name.replace("request", "outcome", 1)), outcome)
    return 0 if "stats" in outcome else 1


def attempt(request: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The outcome of building, for outcome.json: figures, or a problem without paths of the server."""
    target = Path(request["target"])
    sources = {part: Path(path) for part, path in request["sources"].items()}
    try:
        options = BuildOptions.from_dict({**request["options"], "name": request["name"]})
        dataset = build(request["format"], sources, target, options)
    except Conflict:  # published by an attempt that died before it could say so
        dataset = Dataset.open(target, verify=True)
    except XcrayError as error:
        return _problem(error, (folder, target.parent))
    except MemoryError:
        return _refusal(
            "MEMORY_LIMIT", "the build needs more memory than this server allows; send less data"
        )
    except Exception:  # ours to mend; the traceback is for the log
        traceback.print_exc()
        return _refusal(
            "INTERNAL",
            "something went wrong here, not with your file; the log of the server has more",
        )
    return {"stats": statistics(dataset)}


def _refusal(code: str, message: str) -> dict[str, Any]:
    """An outcome that no line of a file explains."""
    return {"problem": {"code": code, "message": message}, "errors": []}


def _problem(error: XcrayError, folders: tuple[Path, ...]) -> dict[str, Any]:
    """An error as JSON; folders of the server are cut from its words."""
    problem = error.as_dict()
    errors = problem.pop("errors", [])[:SHOWN]
    return {
        "problem": _without(problem, folders),
        "errors": [_without(entry, folders) for entry in errors],
    }


def _without(entry: Mapping[str, Any], folders: tuple[Path, ...]) -> dict[str, Any]:
    """An entry whose strings do not tell where the server keeps things."""
    out = dict(entry)
    for name, value in out.items():
        for folder in folders:
            if isinstance(value, str):
                value = value.replace(f"{folder}/", "")
        out[name] = value
    return out


def _limit(limits: Mapping[str, int], parent: int) -> None:
    """Address space, processor time, no core file; milder than the service; dead when the service is."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent went before we could ask for the signal
        sys.exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (limits["seconds"], limits["seconds"] + 5))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (limits["memory_bytes"], limits["memory_bytes"]))
    os.nice(5)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
