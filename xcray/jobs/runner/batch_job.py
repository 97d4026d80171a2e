"""A batch prediction as a job: everything of it lies in the job's folder, and goes when the job is deleted.

runs/JOB/   input/ what was uploaded, until it is answered   part-*.parquet finished parts, until all are   output/ the answers
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

from xcray.batch import BulkSpec, predict_bulk
from xcray.batch.output import found as published
from xcray.jobs.job import Job
from xcray.jobs.runner.monitor import Heart

INPUT: Final = "input"
OUTPUT: Final = "output"
TOLD: Final = ("rows", "answered", "skipped", "skipped_reasons", "columns", "report")


def found(folder: Path) -> dict[str, Any] | None:
    """The manifest of answers that an earlier attempt published; None when none did. Raises Corrupt."""
    return published(folder / OUTPUT)


def answer(job: Job, spec: dict[str, Any], folder: Path, heart: Heart) -> dict[str, Any]:
    """Answer what is left and publish all; the manifest. Raises as `predict_bulk`, and Fenced before anything is published."""
    out = folder / OUTPUT
    how: dict[str, Any] = {
        "progress": heart.progress,
        "stop": heart.flag,
        "job": job.id,
        "check": heart.commit,
    }
    return predict_bulk(BulkSpec.from_dict(spec), run_dir=folder, out=out, **how).manifest


def result_of(job: Job, manifest: dict[str, Any]) -> dict[str, Any]:
    """What the job's record says: where the answers are, how many, and how it went."""
    told = {name: manifest[name] for name in TOLD}
    parts = manifest["parts"]
    sizes = {"parts": len(parts), "bytes": sum(part["bytes"] for part in parts)}
    model = job.spec.get("shown", {}).get("model", manifest["model"]["name"])
    return {
        "output": f"/v1/jobs/{job.id}/output",
        "model": model,
        "sha256": manifest["model"]["sha256"],
        **sizes,
        **told,
    }


def clear(folder: Path) -> None:
    """Remove what an answered job needs no more: the input that was its own, and the first names of the parts."""
    shutil.rmtree(folder / INPUT, ignore_errors=True)
    for path in folder.glob("part-*.parquet"):
        path.unlink(missing_ok=True)
