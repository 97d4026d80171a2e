"""`xcray jobs`: trainings and batch predictions on a server, over REST."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.cli.service.connect import ServerChoice, client_of
from xcray.cli.terminal import output
from xcray.cli.terminal.progress import Reporter, line_of, reporter, step_of
from xcray.cli.training.report import Picture, told
from xcray.cli.training.train import Parameters, partial_line, show_measures
from xcray.errors import InputError

if TYPE_CHECKING:
    from xcray.client import Client
    from xcray.client.types import Job as ClientJob

app = typer.Typer(
    name="jobs",
    help="Trainings and batch predictions on a server: submit, watch, stop, resume.",
    no_args_is_help=True,
)

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The id of a job.")]


@app.command()
def submit(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="Id or name of a data set of the server.")
    ],
    model: Annotated[str, typer.Option(help="The name under which the model is published.")],
    solver: Annotated[str, typer.Option(help="Which solver.")] = "ppdsparse",
    param: Parameters = None,
    pool: Annotated[
        str | None, typer.Option(help="serial, threads or ray. [default: the server's]")
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Workers; 0 means all cores.")] = 0,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            help="Begin no class, or epoch, after so long; publish what is done, most frequent labels first.",
        ),
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory the training may take, as 4GiB; it fails at once when it needs more.",
        ),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Fit probabilities too, on the held-out part.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="A readable name. [default: the model's]")
    ] = None,
    priority: Annotated[int, typer.Option(help="Higher runs first.")] = 0,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Running time allowed, as 90m; then it FAILED."),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time from now to have ended, as 2d; else it FAILED."),
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, help="How often its runner may vanish before it FAILED.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: the same one again gives the same job.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Stay and show its progress.")] = False,
    server: ServerChoice = None,
    json: output.AsJson = False,
) -> None:
    """Queue a training."""
    spec: dict[str, Any] = {
        "dataset": dataset,
        "model": model,
        "solver": solver,
        "params": read(solver, param),
        "workers": workers,
    }
    more = {
        "pool": pool,
        "name": name,
        "priority": priority or None,
        "max_seconds": max_seconds,
        "calibrate": calibrate or None,
    }
    more |= {
        "timeout_seconds": seconds_of(timeout),
        "expires_seconds": seconds_of(expires),
        "max_attempts": max_attempts,
    }
    if memory_limit is not None:
        from xcray.system.units import parse_bytes

        more["memory_limit"] = parse_bytes(memory_limit)
    spec |= {name: value for name, value in more.items() if value is not None}
    with client_of(server) as client:
        job = client.jobs.submit(**spec, idempotency_key=key)
        if watch:
            raise typer.Exit(follow(client, job["id"], json))
    if json:
        output.emit(job)
    else:
        output.say(f"{job['id']} {job['status']}; xcray jobs watch {job['id']}")


UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(given: str | None) -> float | None:
    """90, 90s, 15m, 2h or 7d as seconds. Raises InputError."""
    if given is None:
        return None
    number, unit = (given[:-1], given[-1]) if given[-1:] in UNITS else (given, "s")
    try:
        seconds = float(number) * UNITS[unit]
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise InputError(
            f"{given[:40]!r} is no time: write it like 90s, 15m, 2h or 7d", code="TIME"
        )
    return seconds


def moment_of(given: str | None) -> str | None:
    """A time, or how long ago it is, as the service reads it. Raises InputError."""
    if given is None or "T" in given:
        return given
    ago = datetime.now(UTC) - timedelta(seconds=seconds_of(given) or 0.0)
    return ago.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read(solver: str, given: list[str] | None) -> dict[str, Any]:
    """Parameters with the types the solver declares: a request carries numbers, not strings. Raises ParameterError."""
    from xcray.solvers import make_solver

    values = output.assignments(given)
    checked = make_solver(solver, values).as_dict()
    return {name: checked[name] for name in values}


@app.command("list")
def index(
    status: Annotated[
        list[str] | None,
        typer.Option(
            help="Only PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED ones; may be given again."
        ),
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Only train, or predict.")] = None,
    name: Annotated[str | None, typer.Option(help="Only those of this name.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Only those that make or ask this model.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Only those of this data set, by its id.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only those submitted since: 2h or 7d ago, or 2026-01-31T12:00:00Z.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="At most so many, newest first.")
    ] = 50,
    server: ServerChoice = None,
    json: output.AsJson = False,
) -> None:
    """Jobs, newest first."""
    wanted = {
        "kind": kind,
        "name": name,
        "model": model,
        "dataset": dataset,
        "created_after": moment_of(since),
    }
    with client_of(server) as client:
        jobs = list(islice(client.jobs.list(status=status, page=limit, **wanted), limit))
    if json:
        output.emit({"jobs": jobs})
        return
    rows = [
        [
            job["id"],
            job["name"],
            job["status"],
            line_of(step_of(job["progress"], job["phase"])),
            job["created"],
        ]
        for job in jobs
    ]
    output.table(["job", "name", "status", "progress", "created"], rows)


@app.command()
def get(job: JobId, server: ServerChoice = None, json: output.AsJson = False) -> None:
    """One job: its state, progress and result."""
    with client_of(server) as client:
        found = client.jobs.get(job)
    if json:
        output.emit(found)
    else:
        show(found)


@app.command()
def watch(job: JobId, server: ServerChoice = None, json: output.AsJson = False) -> None:
    """Follow a job to its end. Ctrl-C stops the watching, not the job. Ends with 0 when it SUCCEEDED."""
    with client_of(server) as client:
        raise typer.Exit(follow(client, job, json))


@app.command("output")
def fetch(
    job: JobId,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The directory to write; it must not exist.")
    ],
    server: ServerChoice = None,
    json: output.AsJson = False,
) -> None:
    """Fetch the answers of a batch prediction."""
    with client_of(server) as client:
        client.jobs.download(job, folder)
        found = client.jobs.output(job)
    if json:
        output.emit({"output": str(folder), **found})
    else:
        output.say(f"{folder}: {found['answered']:,} rows answered, {len(found['parts']):,} files")


def follow_quietly(client: Client, job: str, as_json: bool) -> ClientJob:
    """Show progress until the job has ended; the job as it is then."""
    with reporter(quiet=as_json) as report:
        for event in client.jobs.events(job):
            tell(report, event)
    return client.jobs.get(job)


def follow(client: Client, job: str, as_json: bool) -> int:
    """Show progress until the job has ended, and the job; the exit code."""
    found = follow_quietly(client, job, as_json)
    if as_json:
        output.emit(found)
    else:
        show(found)
    return output.OK if found["status"] == "SUCCEEDED" else output.FAILURE


def tell(report: Reporter, event: Mapping[str, Any]) -> None:
    """Report an event of progress, or that the job waits or starts."""
    waits = event["kind"] == "status" and event["data"].get("status") in ("PENDING", "RUNNING")
    if event["kind"] == "progress" or waits:
        report(step_of(event["data"]))


def show(job: Mapping[str, Any]) -> None:
    """A job for people."""
    lines = {
        "job": f"{job['id']} ({job['name']})",
        "status": job["status"]
        + (" (stop requested)" if job["stop_requested"] and job["status"] == "RUNNING" else ""),
        "progress": line_of(step_of(job["progress"], job["phase"]))
        if job["status"] == "RUNNING"
        else None,
        "reason": job["reason"],
        "message": job["message"],
        "attempts": job["attempt"] if job["attempt"] != 1 else None,
        "finished": job["finished"],
    }
    result = job["result"] or {}
    output.pairs({name: value for name, value in lines.items() if value is not None})
    if result.get("model"):
        output.pairs({"model": f"{result['model']}:{result.get('version', '')}".rstrip(":")})
    if result.get("output"):
        output.say(
            f"{result['answered']:,} rows answered; xcray jobs output {job['id']} DIR fetches the answers"
        )
    if result.get("partial"):
        output.say(partial_line(result["partial"]))
    if result.get("measures"):
        show_measures(result["measures"])


@app.command()
def logs(
    job: JobId,
    tail: Annotated[int, typer.Option(min=1, max=10_000, help="The last so many lines.")] = 200,
    follow: Annotated[
        bool, typer.Option("--follow", help="Stay, and show more lines until the job has ended.")
    ] = False,
    server: ServerChoice = None,
    json: output.AsJson = False,
) -> None:
    """The last lines of a job's log."""
    with client_of(server) as client:
        if not follow:
            text = client.jobs.logs(job, tail=tail)
        else:
            text = ""
            for piece in client.jobs.follow_logs(job, tail=tail):
                if json:
                    text += piece
                else:
                    told_lines(piece)
    if json:
        output.emit({"job": job, "lines": text.splitlines()})
    elif not follow:
        told_lines(text)


def told_lines(text: str) -> None:
    """Lines of a log."""
    for line in text.splitlines():
        output.say(line)


@app.command()
def timeline(
    job: JobId,
    png: Picture = None,
    limit: Annotated[
        int, typer.Option(min=1, max=20_000, help="Entries to draw at most; neighbours become one.")
    ] = 5000,
    server: ServerChoice = None,
    json: output.AsJson = False,
) -> None:
    """Which worker did what when, so far or to the end; it outlives the run's files with the model."""
    with client_of(server) as client:
        found = client.jobs.timeline(job, limit=limit)
        name = client.jobs.get(job)["name"]
    told(found, f"{name} ({job})", png, json)


def changed(job: Mapping[str, Any], as_json: bool) -> None:
    """A job after it was asked to change."""
    if as_json:
        output.emit(job)
    else:
        asked = ", stop requested" if job["stop_requested"] else ""
        output.say(f"{job['id']} {job['status']}{asked}")


@app.command()
def stop(job: JobId, server: ServerChoice = None, json: output.AsJson = False) -> None:
    """Ask a job to stop; finished work is kept."""
    with client_of(server) as client:
        changed(client.jobs.stop(job), json)


@app.command()
def resume(job: JobId, server: ServerChoice = None, json: output.AsJson = False) -> None:
    """Queue a stopped or failed job again; it does what is left."""
    with client_of(server) as client:
        changed(client.jobs.resume(job), json)


@app.command()
def delete(job: JobId, server: ServerChoice = None, json: output.AsJson = False) -> None:
    """Forget an ended job, its events, log and finished parts, and the answers of a batch prediction. The model stays."""
    with client_of(server) as client:
        client.jobs.delete(job)
    if json:
        output.emit({"deleted": job})
    else:
        output.say(f"{job} is deleted")
