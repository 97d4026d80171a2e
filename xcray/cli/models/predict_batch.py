"""`xcray predict-batch`: predict all rows of a file, locally or on a server, into Parquet files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from xcray.cli.connect import ServerOption, check_ray_options, make_client, model_client
from xcray.cli.models.predict import (
    AllowOption,
    DenyOption,
    ModelName,
    ProbabilitiesOption,
    find_label_sets,
    is_directory,
)
from xcray.cli.service.jobs import follow_events, print_job
from xcray.cli.terminal import output
from xcray.cli.terminal.interrupt import resumable_run, run_directory
from xcray.cli.terminal.progress import format_duration
from xcray.errors import Conflict, InputError, NotFound


def predict_batch(
    model: ModelName,
    file: Annotated[
        Path,
        typer.Argument(metavar="INPUT", help="File of rows, or directory of Parquet files."),
    ],
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUTPUT", help="Directory of Parquet files to write; it must not exist."
        ),
    ],
    format: Annotated[
        str | None,
        typer.Option(
            help="Format: parquet, svmlight, xc, jsonl, csv, tsv or text. "
            "[default: by the input name]"
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of labels per row.")] = 5,
    allow: AllowOption = None,
    deny: DenyOption = None,
    probabilities: ProbabilitiesOption = False,
    certificate: Annotated[
        bool,
        typer.Option(
            "--certificate", help="Write whether each prediction is proven exact, and its gap."
        ),
    ] = False,
    text_column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Parquet, jsonl, csv, tsv: column of the text; several are joined. Repeatable.",
        ),
    ] = None,
    indices_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Parquet, jsonl: column of feature index lists."),
    ] = None,
    values_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Parquet, jsonl: column of value lists; without indices: of all features.",
        ),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Parquet, jsonl: id column, copied to the output. [default: row number from 0]",
        ),
    ] = None,
    zero_based: Annotated[
        bool, typer.Option("--zero-based", help="svmlight: feature indices start at 0.")
    ] = False,
    on_error: Annotated[
        str, typer.Option(help="Handling of invalid rows: fail, or skip (and count them).")
    ] = "fail",
    part_rows: Annotated[
        int, typer.Option(min=0, help="Rows per output file; 0: chosen by the input size.")
    ] = 0,
    pool: Annotated[
        str | None,
        typer.Option(help="Pool: serial, threads or ray. [default: threads, or set by the server]"),
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Number of workers; 0 for all cores.")] = 0,
    ray_address: Annotated[
        str | None,
        typer.Option(help="Address of a running Ray. [default: --pool ray starts a local Ray]"),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            help="Directory for finished parts; use it again to resume. [default: OUTPUT.run]"
        ),
    ] = None,
    server: ServerOption = None,
    json: output.JsonOption = False,
) -> None:
    """Predict the best labels of every row of a file.

    Ctrl-C keeps finished parts; the same command resumes.
    """
    if not file.exists():
        raise NotFound(f"there is no file {file}")
    if out.exists():
        raise Conflict(f"{out} exists already; choose another output, or remove it first")
    check_ray_options(pool, ray_address)
    request: dict[str, Any] = {
        "allow": allow or None,
        "deny": deny or None,
        "text_columns": text_column or None,
    }
    request |= {
        "indices_column": indices_column,
        "values_column": values_column,
        "id_column": id_column,
        "on_error": on_error,
    }
    request |= {
        "probabilities": probabilities,
        "certificate": certificate,
        "zero_based": zero_based,
        "part_rows": part_rows,
    }
    request |= {"format": format or _infer_format(file), "pool": pool, "workers": workers}
    request = {name: value for name, value in request.items() if value is not None}
    if is_directory(model, server):
        run_local(model, file, out, {**request, "k": k, "ray_address": ray_address}, run_dir, json)
        return
    if ray_address is not None or run_dir is not None:
        raise InputError(
            "--ray-address and --run-dir work with model directories only: a server uses its own",
            code="USAGE",
        )
    run_remote(model, file, out, {**request, "top_k": k}, server, json)


def _infer_format(file: Path) -> str:
    """Return the format from the file name. Raises ParameterError."""
    from xcray.batch.spec import guess_format

    return guess_format(str(file))


def run_local(
    model: str, file: Path, out: Path, request: dict[str, Any], run_dir: Path | None, as_json: bool
) -> None:
    """Predict with a model directory, with progress and Ctrl-C handling.

    Raises Stopped with a hint on how to resume.
    """
    from xcray.batch import BatchPredictSpec, predict_batch
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
    working_directory = run_directory(run_dir, out)
    with resumable_run(lambda: f"finished parts are kept in {working_directory}", as_json) as (
        report,
        flag,
    ):
        manifest = predict_batch(
            spec, run_dir=working_directory, out=out, progress=report, stop=flag
        ).manifest
    if run_dir is None:
        shutil.rmtree(working_directory, ignore_errors=True)  # not needed once the output exists
    print_result(out, manifest, as_json)


def run_remote(
    model: str, file: Path, out: Path, request: dict[str, Any], server: str | None, as_json: bool
) -> None:
    """Upload the file, follow the job, download the results. Ctrl-C leaves the job running."""
    with model_client(server, model) as client:
        job = client.jobs.predict(model, file=file, **request)
    with make_client(server) as client:
        if not as_json:
            output.print_note(
                f"{job['id']}: Ctrl-C leaves it running; "
                f"xcray jobs output {job['id']} {out} downloads the results"
            )
        ended = follow_events(client, job["id"], as_json)
        if ended["status"] != "SUCCEEDED":
            if as_json:
                output.print_json(ended)
            else:
                print_job(ended)
            raise typer.Exit(output.FAILURE)
        client.jobs.download(job["id"], out)
    print_result(out, ended["result"] or {}, as_json)


def print_result(out: Path, result: dict[str, Any], as_json: bool) -> None:
    """Print the result."""
    if as_json:
        output.print_json(
            {
                "output": str(out),
                **{name: value for name, value in result.items() if name != "output"},
            }
        )
        return
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
