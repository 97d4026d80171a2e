"""`xcray predict-batch`: answer every row of a file, here or on a server; Parquet files come out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from xcray.cli.models.predict import (
    Allowed,
    Denied,
    ModelName,
    WithProbabilities,
    is_directory,
    sets_around,
)
from xcray.cli.service.connect import ServerChoice, client_of
from xcray.cli.service.jobs import follow_quietly, show
from xcray.cli.terminal import output
from xcray.cli.terminal.interrupt import resumable
from xcray.cli.terminal.progress import duration
from xcray.errors import Conflict, InputError


def predict_batch(
    model: ModelName,
    file: Annotated[
        Path,
        typer.Argument(metavar="INPUT", help="A file of rows, or a directory of Parquet files."),
    ],
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUTPUT", help="The directory of Parquet files to write; it must not exist."
        ),
    ],
    format: Annotated[
        str | None,
        typer.Option(
            help="parquet, svmlight, xc, jsonl or text. [default: by the name of the input]"
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many labels for each row.")] = 5,
    allow: Allowed = None,
    deny: Denied = None,
    probabilities: WithProbabilities = False,
    certificate: Annotated[
        bool,
        typer.Option("--certificate", help="Whether each answer is proven, and by what margin."),
    ] = False,
    text_column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Parquet, jsonl: where the text is; several are joined."),
    ] = None,
    indices_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Parquet, jsonl: lists of feature numbers.")
    ] = None,
    values_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Parquet, jsonl: lists of their values; alone: of all features."
        ),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Parquet, jsonl: copied to the answers. [default: the row's number, from 0]",
        ),
    ] = None,
    zero_based: Annotated[
        bool, typer.Option("--zero-based", help="svmlight: feature indices start at 0.")
    ] = False,
    on_error: Annotated[
        str, typer.Option(help="fail at a row that can't be read, or skip it and count.")
    ] = "fail",
    part_rows: Annotated[
        int, typer.Option(min=0, help="Rows of a part file; 0: chosen by the size of the input.")
    ] = 0,
    pool: Annotated[
        str | None,
        typer.Option(help="serial, threads or ray. [default: threads; there: the server's]"),
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Workers; 0 means all cores.")] = 0,
    ray_address: Annotated[
        str | None, typer.Option(help="A running Ray; without one, --pool ray starts a local one.")
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            help="Where finished parts are kept; the same one again resumes. [default: OUTPUT.run]"
        ),
    ] = None,
    server: ServerChoice = None,
    json: output.AsJson = False,
) -> None:
    """The best labels of every row of a file. Ctrl-C keeps finished parts; the same command again does the rest."""
    if out.exists():
        raise Conflict(f"{out} exists already; choose another output, or remove it first")
    asked: dict[str, Any] = {
        "allow": allow or None,
        "deny": deny or None,
        "text_columns": text_column or None,
    }
    asked |= {
        "indices_column": indices_column,
        "values_column": values_column,
        "id_column": id_column,
        "on_error": on_error,
    }
    asked |= {
        "probabilities": probabilities,
        "certificate": certificate,
        "zero_based": zero_based,
        "part_rows": part_rows,
    }
    asked |= {"format": format or _format(file), "pool": pool, "workers": workers}
    asked = {name: value for name, value in asked.items() if value is not None}
    if is_directory(model, server):
        answer_here(model, file, out, {**asked, "k": k, "ray_address": ray_address}, run_dir, json)
        return
    if ray_address is not None or run_dir is not None:
        raise InputError(
            "--ray-address and --run-dir are for model directories: a server has its own",
            code="USAGE",
        )
    answer_there(model, file, out, {**asked, "top_k": k}, server, json)


def _format(file: Path) -> str:
    """The format that the name of the input tells. Raises ParameterError."""
    from xcray.batch.spec import format_of

    return format_of(str(file))


def answer_here(
    model: str, file: Path, out: Path, asked: dict[str, Any], run_dir: Path | None, as_json: bool
) -> None:
    """Answer by a model directory, with progress, stopping at Ctrl-C. Raises Stopped with the way to resume."""
    from xcray.batch import BulkSpec, predict_bulk
    from xcray.batch.spec import sets_named

    sets = sets_around(Path(model))
    named = (
        {} if sets is None else sets_named([*asked.get("allow", ()), *asked.get("deny", ())], sets)
    )
    spec = BulkSpec.from_dict({**asked, "model": model, "input": str(file), "label_sets": named})
    kept = run_dir or out.with_name(f"{out.name}.run")
    with resumable(lambda: f"finished parts are kept in {kept}", as_json) as (report, flag):
        manifest = predict_bulk(spec, run_dir=kept, out=out, progress=report, stop=flag).manifest
    if run_dir is None:
        shutil.rmtree(kept, ignore_errors=True)  # ours, and of no use once the answers are there
    told(out, manifest, as_json)


def answer_there(
    model: str, file: Path, out: Path, asked: dict[str, Any], server: str | None, as_json: bool
) -> None:
    """Send the file, follow the job, fetch the answers. Ctrl-C leaves the job running."""
    with client_of(server) as client:
        job = client.jobs.predict(model, file=file, **asked)
        if not as_json:
            output.note(
                f"{job['id']}: Ctrl-C leaves it running; xcray jobs output {job['id']} {out} fetches the answers"
            )
        ended = follow_quietly(client, job["id"], as_json)
        if ended["status"] != "SUCCEEDED":
            if as_json:
                output.emit(ended)
            else:
                show(ended)
            raise typer.Exit(output.FAILURE)
        client.jobs.download(job["id"], out)
    told(out, ended["result"] or {}, as_json)


def told(out: Path, result: dict[str, Any], as_json: bool) -> None:
    """Say what came out."""
    if as_json:
        output.emit(
            {
                "output": str(out),
                **{name: value for name, value in result.items() if name != "output"},
            }
        )
        return
    for reason in result["skipped_reasons"]:
        output.note(f"skipped: {reason['message']}")
    skipped = f", {result['skipped']:,} skipped" if result["skipped"] else ""
    parts = result["parts"] if isinstance(result["parts"], int) else len(result["parts"])
    report = result["report"]
    rate = f", {report['rows_per_second']:,.0f} rows/s" if report.get("rows_per_second") else ""
    took = duration(sum(report["seconds"].values()))
    output.say(
        f"{out}: {result['answered']:,} rows answered{skipped}, {parts:,} files, in {took}{rate}"
    )
