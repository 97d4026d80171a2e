"""Batch predictions as jobs. All files lie in the job's directory and are deleted with the job.

runs/JOB/   input/          the uploaded input, until it is processed
            part-*.parquet  finished parts, until all are
            output/         the results
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

from xcray.batch import BatchPredictSpec, predict_batch
from xcray.jobs.job import Job
from xcray.jobs.runner.monitor import AttemptMonitor

INPUT_FOLDER: Final = "input"
OUTPUT_FOLDER: Final = "output"
RESULT_KEYS: Final = (
    *("rows", "answered", "skipped", "skipped_reasons"),
    *("warnings", "columns", "report"),
)


def predict_and_publish(
    job: Job, spec: dict[str, Any], folder: Path, monitor: AttemptMonitor
) -> dict[str, Any]:
    """Predict the remaining rows, publish all results, and return the manifest.

    Raises the errors of `predict_batch`, and Fenced before anything is published.
    """
    out = folder / OUTPUT_FOLDER
    options: dict[str, Any] = {
        "progress": monitor.report_progress,
        "stop": monitor.stop_flag,
        "job": job.id,
        "check": monitor.commit,
        "exclusive": False,
    }
    return predict_batch(
        BatchPredictSpec.from_dict(spec), run_dir=folder, out=out, **options
    ).manifest


def job_result(job: Job, manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the result for the job's record: counts and statistics."""
    statistics = {name: manifest[name] for name in RESULT_KEYS}
    parts = manifest["parts"]
    sizes = {"parts": len(parts), "bytes": sum(part["bytes"] for part in parts)}
    model = job.spec.get("shown", {}).get("model", manifest["model"]["name"])
    return {
        "model": model,
        "sha256": manifest["model"]["sha256"],
        **sizes,
        **statistics,
    }


def clean_up(folder: Path) -> None:
    """Remove what a finished job no longer needs: its own input and the parts."""
    shutil.rmtree(folder / INPUT_FOLDER, ignore_errors=True)
    for path in folder.glob("part-*.parquet"):
        path.unlink(missing_ok=True)
