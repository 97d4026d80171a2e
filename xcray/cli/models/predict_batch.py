"""`xcray predict-batch`: predict all rows of a file, locally or on a server."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from xcray.api.options import FORMATS, BatchOptions
from xcray.cli.connect import (
    RayAddressOption,
    ServerOption,
    make_client,
    model_client,
    resolve_ray_address,
)
from xcray.cli.models.predict import ModelName, find_label_sets, is_directory
from xcray.cli.service.jobs import download_answers, follow_events, print_job
from xcray.cli.terminal import output
from xcray.cli.terminal.declared_options import Options, with_options
from xcray.cli.terminal.interrupt import resumable_run
from xcray.cli.terminal.progress import format_duration
from xcray.errors import Conflict, InputError, NotFound


@with_options(BatchOptions, server=True)
def predict_batch(
    model: ModelName,
    file: Annotated[
        Path,
        typer.Argument(metavar="INPUT", help="File of rows, or directory of Parquet files."),
    ],
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUTPUT",
            help="Directory of Parquet files to write, or one file NAME.jsonl or NAME.csv; "
            "it must not exist.",
        ),
    ],
    format: Annotated[
        str | None,
        typer.Option(help=f"Format: {', '.join(FORMATS)}; default: by the input name."),
    ] = None,
    *,
    options: Options,
    ray_address: RayAddressOption = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            help="Directory for finished parts; use it again to resume; default: OUTPUT.run."
        ),
    ] = None,
    server: ServerOption = None,
) -> None:
    """Predict the best labels of every row of a file.

    Ctrl-C keeps finished parts; the same command resumes.

    Example: xcray predict-batch MODEL new.jsonl answers.csv -k 3
    """
    if not file.exists():
        raise NotFound(f"there is no file {file}")
    if out.exists():
        raise Conflict(f"{out} exists already; choose another output, or remove it first")
    address = resolve_ray_address(options.get("pool"), ray_address)
    if "text_fields" in options:  # also with commas, as in `xcray data build`
        names = [name for each in options["text_fields"] for name in each.split(",")]
        options = {**options, "text_fields": names}
    request = {"format": format or _infer_format(file), **options}
    if is_directory(model, server):
        run_local(model, file, out, {**request, "ray_address": address}, run_dir)
        return
    if ray_address is not None or run_dir is not None:
        raise InputError(
            "--ray-address and --run-dir work with model directories only: a server uses its own",
            code="USAGE",
        )
    run_remote(model, file, out, request, server)


def _infer_format(file: Path) -> str:
    """Return the format from the file name. Raises ParameterError."""
    from xcray.batch.spec import guess_format

    return guess_format(str(file))


def run_local(
    model: str, file: Path, out: Path, request: dict[str, Any], run_dir: Path | None
) -> None:
    """Predict with a model directory, with progress and Ctrl-C handling.

    Raises Stopped with a hint on how to resume.
    """
    from xcray.batch import BatchPredictSpec, predict_batch
    from xcray.batch.answer_file import file_format, write_answer_file
    from xcray.batch.spec import resolve_label_sets

    sets = find_label_sets(Path(model))
    named = (
        {}
        if sets is None
        else resolve_label_sets([*request.get("allow", ()), *request.get("deny", ())], sets)
    )
    spec = BatchPredictSpec.from_dict(
        {**request, "model": model, "input": str(file), "label_sets": named}
    )
    is_file = file_format(out) is not None
    with resumable_run(run_dir, out, "parts") as run:
        answers = run.folder / "answers" if is_file else out
        if is_file:
            shutil.rmtree(answers, ignore_errors=True)  # of a run that was killed before its file
        manifest = predict_batch(
            spec, run_dir=run.folder, out=answers, progress=run.progress, stop=run.stop
        ).manifest
        if is_file:
            write_answer_file(answers, out)
            shutil.rmtree(answers)
    print_result(out, manifest)


def run_remote(
    model: str, file: Path, out: Path, request: dict[str, Any], server: str | None
) -> None:
    """Upload the file, follow the job, download the results. Ctrl-C leaves the job running."""
    with model_client(server, model) as client:
        job = client.jobs.predict(model, file=file, **request)
    with make_client(server) as client:
        output.print_note(
            f"{job['id']}: Ctrl-C leaves it running; "
            f"xcray jobs output {job['id']} {out} downloads the results"
        )
        ended = follow_events(client, job["id"])
        if ended["status"] != "SUCCEEDED":
            output.print_json(ended)
            print_job(ended)
            raise typer.Exit(output.FAILURE)
        download_answers(client, job["id"], out)
    print_result(out, ended["result"] or {})


def print_result(out: Path, result: dict[str, Any]) -> None:
    """Print the result."""
    output.print_json({"output": str(out), **result})
    for reason in result["skipped_reasons"]:
        output.print_note(f"skipped: {reason['message']}")
    output.print_warnings(result.get("warnings", ()))
    skipped = f", {result['skipped']:,} skipped" if result["skipped"] else ""
    parts = result["parts"] if isinstance(result["parts"], int) else len(result["parts"])
    report = result["report"]
    rate = f", {report['rows_per_second']:,.0f} rows/s" if report.get("rows_per_second") else ""
    took = format_duration(sum(report["seconds"].values()))
    files = "1 file" if parts == 1 else f"{parts:,} files"
    output.print_line(
        f"{out}: {result['answered']:,} rows predicted{skipped}, {files}, in {took}{rate}"
    )
