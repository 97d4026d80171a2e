"""Child process that builds one data set.

Usage: python -m xcray.service.datasets.ingest REQUEST.json PARENT_PID

It limits its own resources before it reads any data. It writes the outcome next to the request,
with the same suffix (request-7.json, outcome-7.json): {"stats": ...} or {"problem": ..., "errors":
[...]}.
"""

from __future__ import annotations

import shutil
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.data.delta.feedback import delta_from_feedback
from xcray.data.delta.files import delta_from_files
from xcray.data.label_texts import read_label_texts, set_label_texts
from xcray.errors import Conflict, XcrayError, is_disk_full
from xcray.service import constants
from xcray.service.datasets.statistics import statistics
from xcray.storage.atomic import read_json, write_json
from xcray.system.child_process import limit_this_process

MAX_ERRORS = 20
VOCABULARY = "labels"  # the part of an upload that has label texts


def main(arguments: list[str]) -> int:
    """Build the requested data set; return 0 on success."""
    request_path = Path(arguments[0])
    request = read_json(request_path)
    limits = request["limits"]
    limit_this_process(int(arguments[1]), limits["seconds"], limits["memory_bytes"])
    outcome = run_build(request, request_path.parent)
    write_json(request_path.with_name(request_path.name.replace("request", "outcome", 1)), outcome)
    return 0 if "stats" in outcome else 1


def run_build(request: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Build the data set and return the outcome: statistics, or a problem without server paths."""
    target = Path(request["target"])
    sources = {part: Path(path) for part, path in request["sources"].items()}
    vocabulary = sources.pop(VOCABULARY, None)
    try:
        texts = None if vocabulary is None else read_label_texts(vocabulary)
        try:
            dataset = _build(request, sources, target)
        except Conflict:  # published by an attempt that died before it wrote its outcome
            dataset = Dataset.open(target, verify=texts is None)
        if texts is not None:
            dataset = set_label_texts(dataset, texts)
    except XcrayError as error:
        shutil.rmtree(target, ignore_errors=True)  # built, but its vocabulary was refused
        return _error_outcome(error, (folder, target.parent))
    except MemoryError:
        return _problem_outcome(
            "MEMORY_LIMIT", "the build needs more memory than this server allows; send less data"
        )
    except Exception as error:  # a bug in xcray: the traceback goes to the log
        traceback.print_exc()
        if is_disk_full(error):
            return _problem_outcome("DISK_FULL", constants.DISK_FULL)
        return _problem_outcome(
            "INTERNAL",
            "internal error, not caused by your file; the server log has details",
        )
    return {"stats": statistics(dataset)}


def _build(request: Mapping[str, Any], sources: dict[str, Path], target: Path) -> Dataset:
    """Build the data set from its files, or from the changes of another one."""
    name, format, options = (request[key] for key in ("name", "format", "options"))
    if request.get("base") is None:
        return build(format, sources, target, BuildOptions.from_dict({**options, "name": name}))
    if format == "feedback":
        return delta_from_feedback(
            request["base"], target, sources["feedback"], model=options["model"], name=name
        )
    return delta_from_files(
        request["base"],
        target,
        add=sources.get("train"),
        format=format,
        remove=sources.get("remove"),
        relabel=sources.get("relabel"),
        options=options,
        name=name,
    )


def _problem_outcome(code: str, message: str) -> dict[str, Any]:
    """Return an outcome that is not related to a line of a file."""
    return {"problem": {"code": code, "message": message}, "errors": []}


def _error_outcome(error: XcrayError, folders: tuple[Path, ...]) -> dict[str, Any]:
    """Return an error as an outcome, with server folders removed from its messages."""
    problem = error.as_dict()
    errors = problem.pop("errors", [])[:MAX_ERRORS]
    return {
        "problem": _strip_folders(problem, folders),
        "errors": [_strip_folders(entry, folders) for entry in errors],
    }


def _strip_folders(entry: Mapping[str, Any], folders: tuple[Path, ...]) -> dict[str, Any]:
    """Return an entry whose strings do not reveal folders of the server."""
    out = dict(entry)
    for name, value in out.items():
        for folder in folders:
            if isinstance(value, str):
                value = value.replace(f"{folder}/", "")
        out[name] = value
    return out


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
