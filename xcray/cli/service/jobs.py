"""`xcray jobs`: trainings and batch predictions on a server, over REST."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.api.options import ChangeOptions, JobOptions, LocalPoolOptions, TrainingOptions
from xcray.cli.connect import ServerOption, make_client
from xcray.cli.terminal import output
from xcray.cli.terminal.declared_options import Options, with_options
from xcray.cli.terminal.evaluations import print_gate
from xcray.cli.terminal.progress import Reporter, format_progress, make_reporter, progress_from_json
from xcray.cli.training.estimate import print_estimate
from xcray.cli.training.report import PictureOption, print_timeline
from xcray.cli.training.train import ParameterOption, SolverOption, format_partial, print_measures
from xcray.errors import Refused
from xcray.system.units import parse_seconds

if TYPE_CHECKING:
    from xcray.api.job_replies import JobView as ClientJob
    from xcray.client import Client

app = typer.Typer(
    name="jobs",
    help="Trainings and batch predictions on a server: submit, watch, stop, resume.",
    no_args_is_help=True,
)

JobId = Annotated[str, typer.Argument(metavar="JOB", help="Id of a job.")]
KeyOption = Annotated[
    str | None, typer.Option(help="Idempotency key; the same key returns the same job.")
]
WatchOption = Annotated[bool, typer.Option("--watch", help="Wait and show the progress.")]


@app.command()
@with_options(TrainingOptions, JobOptions, server=True)
def submit(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="Id or name of a data set on the server.")
    ],
    model: Annotated[str, typer.Option(help="Name to publish the model under.")],
    solver: SolverOption = "ppdsparse",
    param: ParameterOption = None,
    *,
    options: Options,
    key: KeyOption = None,
    watch: WatchOption = False,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate", help="Print memory, disk and time that it needs; submit nothing."
        ),
    ] = False,
    server: ServerOption = None,
) -> None:
    """Submit a training.

    Example: xcray jobs submit tickets --model tickets --auto P@1 --watch
    """
    request = {"dataset": dataset, "model": model, "solver": solver, **options}
    request["params"] = parse_solver_parameters(solver, param)
    with make_client(server) as client:
        if estimate:
            document = client.jobs.estimate(**request)
            problem = document["problem"]
            print_estimate(document, None if problem is None else Refused(problem))
            return
        job = client.jobs.submit(**request, idempotency_key=key)
        print_submitted(client, job, watch)


@app.command()
@with_options(ChangeOptions, LocalPoolOptions, JobOptions, server=True)
def update(
    version: Annotated[
        str, typer.Argument(metavar="VERSION", help="Model: name, name@alias or name:version.")
    ],
    dataset: Annotated[
        str,
        typer.Option(help="Id or name of a data set with the features of the version."),
    ],
    model: Annotated[
        str | None, typer.Option(help="Name to publish under; default: that of the version.")
    ] = None,
    gate: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITIONS",
            help="What the new version must reach on held-out rows before --alias moves, such as "
            '"P@1 >= -0.2".',
        ),
    ] = None,
    alias: Annotated[
        str | None, typer.Option(help="Alias that then points to the new version.")
    ] = None,
    weight: Annotated[
        float | None, typer.Option(help="Share of the requests to --alias; default: all.")
    ] = None,
    *,
    options: Options,
    key: KeyOption = None,
    watch: WatchOption = False,
    server: ServerOption = None,
) -> None:
    """Submit a change of a version, by default to changed rows; see --change.

    Example: xcray jobs update tickets@prod --dataset tickets-2 --alias prod --gate "P@1 >= -0.2"
    """
    with make_client(server) as client:
        named: dict[str, Any] = {"model": model, "gate": gate, "alias": alias, "weight": weight}
        job = client.jobs.update(version, dataset=dataset, idempotency_key=key, **named, **options)
        print_submitted(client, job, watch)


def print_submitted(client: Client, job: ClientJob, watch: bool) -> None:
    """Print a submitted job, or follow it to its end. Raises Exit."""
    if watch:
        raise typer.Exit(follow(client, job["id"]))
    output.print_json(job)
    output.print_line(f"{job['id']} {job['status']}; xcray jobs watch {job['id']}")


def parse_time(text: str | None) -> str | None:
    """Return a time, or a time ago, in the format of the service. Raises InputError."""
    if text is None or "T" in text:
        return text
    ago = datetime.now(UTC) - timedelta(seconds=parse_seconds(text))
    return ago.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_solver_parameters(solver: str, assignments: list[str] | None) -> dict[str, Any]:
    """Return parameters with the types that the solver declares.

    A request carries numbers, not strings. Raises ParameterError.
    """
    from xcray.solvers import make_solver

    values = output.parse_assignments(assignments)
    checked = make_solver(solver, values).as_dict()
    return {name: checked[name] for name in values}


@app.command("list")
def list_jobs(
    status: Annotated[
        list[str] | None,
        typer.Option(help="Only PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED; repeatable."),
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Filter by kind: train or predict.")] = None,
    name: Annotated[str | None, typer.Option(help="Filter by name.")] = None,
    model: Annotated[str | None, typer.Option(help="Filter by trained or used model.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Filter by data set id.")] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Only jobs since: 2h or 7d ago, or 2026-01-31T12:00:00Z."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="Maximum number of jobs, newest first.")
    ] = 50,
    server: ServerOption = None,
) -> None:
    """List jobs, newest first."""
    filters = {
        "kind": kind,
        "name": name,
        "model": model,
        "dataset": dataset,
        "created_after": parse_time(since),
    }
    with make_client(server) as client:
        jobs = list(islice(client.jobs.list(status=status, page=limit, **filters), limit))
    output.print_json({"jobs": jobs})
    rows = [
        [
            job["id"],
            job["name"],
            job["status"],
            format_progress(progress_from_json(job["progress"], job["phase"])),
            job["created"],
        ]
        for job in jobs
    ]
    output.print_table(["job", "name", "status", "progress", "created"], rows)


@app.command()
def get(job: JobId, server: ServerOption = None) -> None:
    """Show the state, progress and result of a job."""
    with make_client(server) as client:
        record = client.jobs.get(job)
    output.print_json(record)
    print_job(record)


@app.command()
def watch(job: JobId, server: ServerOption = None) -> None:
    """Follow a job until it ends; exit with 0 if it SUCCEEDED.

    Ctrl-C stops watching, not the job.
    """
    with make_client(server) as client:
        raise typer.Exit(follow(client, job))


@app.command("output")
def fetch_output(
    job: JobId,
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Directory to write, or one file NAME.jsonl or NAME.csv; it must not exist.",
        ),
    ],
    server: ServerOption = None,
) -> None:
    """Download the results of a batch prediction."""
    with make_client(server) as client:
        download_answers(client, job, folder)
        outcome = client.jobs.output(job)
    output.print_json({"output": str(folder), **outcome})
    output.print_line(
        f"{folder}: {outcome['answered']:,} rows predicted, {len(outcome['parts']):,} files"
    )


def follow_events(client: Client, job: str) -> ClientJob:
    """Show progress until the job has ended; return the job."""
    with make_reporter() as report:
        for event in client.jobs.events(job):
            report_event(report, event)
    return client.jobs.get(job)


def follow(client: Client, job: str) -> int:
    """Show progress, then the ended job; return the exit code: 1 also for a missed gate."""
    try:
        record = follow_events(client, job)
    except KeyboardInterrupt:
        output.print_note(f"the job goes on: xcray jobs watch {job}, or xcray jobs stop {job}")
        raise
    output.print_json(record)
    print_job(record)
    passed = (record["result"] or {}).get("comparison", {}).get("passed", True)
    return output.OK if record["status"] == "SUCCEEDED" and passed else output.FAILURE


def report_event(report: Reporter, event: Mapping[str, Any]) -> None:
    """Report a progress event, or that the job is pending or starts."""
    waits = event["kind"] == "status" and event["data"].get("status") in ("PENDING", "RUNNING")
    if event["kind"] == "progress" or waits:
        report(progress_from_json(event["data"]))


def print_job(job: Mapping[str, Any]) -> None:
    """Print a job."""
    result, is_running = job["result"] or {}, job["status"] == "RUNNING"
    progress = progress_from_json(job["progress"], job["phase"])
    lines = {
        "job": f"{job['id']} ({job['name']})",
        "status": job["status"]
        + (" (stop requested)" if is_running and job["stop_requested"] else ""),
        "progress": format_progress(progress) if is_running else None,
        "reason": job["reason"],
        "message": job["message"],
        "attempts": job["attempt"] if job["attempt"] != 1 else None,
        "finished": job["finished"],
        "alias": result.get("alias"),
        "ray": job.get("ray_job") and f"{job['ray_job']} (token: cat ~/.xcray/ray/token)",
    }
    output.print_pairs({name: value for name, value in lines.items() if value is not None})
    if result.get("model"):
        output.print_pairs({"model": f"{result['model']}:{result.get('version', '')}".rstrip(":")})
    if "answered" in result:
        output.print_line(
            f"{result['answered']:,} rows predicted; "
            f"download them with: xcray jobs output {job['id']} DIR"
        )
    if result.get("partial"):
        output.print_line(format_partial(result["partial"]))
    if result.get("measures"):
        print_measures(result["measures"])
    print_gate(result.get("comparison", {}).get("gate", ()))
    output.print_warnings([*result.get("data_warnings", ()), *result.get("warnings", ())])


def download_answers(client: Client, job: str, out: Path) -> None:
    """Download the results of a job into a directory, or into one file; see `file_format`."""
    from xcray.batch.answer_file import file_format, write_answer_file

    if file_format(out) is None:
        client.jobs.download(job, out)
        return
    with TemporaryDirectory(dir=out.absolute().parent, prefix=f".{out.name}.") as folder:
        write_answer_file(client.jobs.download(job, Path(folder) / "answers"), out)


@app.command()
def logs(
    job: JobId,
    tail: Annotated[int, typer.Option(min=1, max=10_000, help="Number of lines.")] = 200,
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue to show new lines until the job has ended.")
    ] = False,
    server: ServerOption = None,
) -> None:
    """Show the last lines of a job's log."""
    with make_client(server) as client:
        if not follow:
            text = client.jobs.logs(job, tail=tail)
        else:
            text = ""
            for piece in client.jobs.follow_logs(job, tail=tail):
                text += piece
                print_log(piece)
    output.print_json({"job": job, "lines": text.splitlines()})
    if not follow:
        print_log(text)


def print_log(text: str) -> None:
    """Print the lines of a log."""
    for line in text.splitlines():
        output.print_line(line)


@app.command()
def timeline(
    job: JobId,
    picture: PictureOption = None,
    limit: Annotated[
        int,
        typer.Option(min=1, max=20_000, help="Maximum of entries; adjacent ones are merged."),
    ] = 5000,
    server: ServerOption = None,
) -> None:
    """Show which worker did what and when. It stays available with the model."""
    with make_client(server) as client:
        record = client.jobs.timeline(job, limit=limit)
        name = client.jobs.get(job)["name"]
    print_timeline(record, f"{name} ({job})", picture)


def print_change(job: Mapping[str, Any]) -> None:
    """Print a job after a change."""
    output.print_json(job)
    note = ", stop requested" if job["stop_requested"] else ""
    output.print_line(f"{job['id']} {job['status']}{note}")


@app.command()
def stop(job: JobId, server: ServerOption = None) -> None:
    """Request a job to stop. Finished work is kept."""
    with make_client(server) as client:
        print_change(client.jobs.stop(job))


@app.command()
def resume(job: JobId, server: ServerOption = None) -> None:
    """Queue a stopped or failed job again; it continues from its finished work."""
    with make_client(server) as client:
        print_change(client.jobs.resume(job))


@app.command()
def delete(job: JobId, server: ServerOption = None) -> None:
    """Delete an ended job with its events, log, finished parts and batch results.

    The model is kept.
    """
    with make_client(server) as client:
        client.jobs.delete(job)
    output.print_json({"deleted": job})
    output.print_line(f"{job} deleted")
