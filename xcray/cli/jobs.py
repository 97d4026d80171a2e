"""`xcray jobs`: trainings and batch predictions on a server, over REST."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xcray.cli import output
from xcray.cli.progress import Reporter, line_of, reporter, step_of
from xcray.cli.report import Picture, told
from xcray.cli.server import ServerChoice, client_of
from xcray.cli.train import Parameters, partial_line, show_measures

if TYPE_CHECKING:
    from xcray.client import Client
    from xcray.client.results import Job as ClientJob

app = typer.Typer(
    name="jobs", help="Trainings and batch predictions on a server: submit, watch, stop, resume.", no_args_is_help=True
)

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The id of a job.")]


@app.command()
def submit(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="Id or name of a data set of the server.")],
    model: Annotated[str, typer.Option(help="The name under which the model is published.")],
    solver: Annotated[str, typer.Option(help="Which solver.")] = "ppdsparse",
    param: Parameters = None,
    pool: Annotated[str | None, typer.Option(help="serial, threads or ray. [default: the server's]")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Workers; 0 means all cores.")] = 0,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="Begin no class, or epoch, after so long; publish what is done, most frequent labels first."
        ),
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory the training may take, as 4GiB; it fails at once when it needs more.")
    ] = None,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Fit probabilities too, on the held-out part.")] = False,
    name: Annotated[str | None, typer.Option(help="A readable name. [default: the model's]")] = None,
    priority: Annotated[int, typer.Option(help="Higher runs first.")] = 0,
    key: Annotated[str | None, typer.Option(help="Idempotency key: the same one again gives the same job.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Stay and show its progress.")] = False,
    server: ServerChoice = None,
    json: output.AsJson = False,
) -> None:
    """Queue a training."""
    spec: dict[str, Any] = {"dataset": dataset, "model": model, "solver": solver, "params": read(solver, param), "workers": workers}
    more = {"pool": pool, "name": name, "priority": priority or None, "max_seconds": max_seconds, "calibrate": calibrate or None}
    if memory_limit is not None:
        from xcray.execution.memory import parse_bytes

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


def read(solver: str, given: list[str] | None) -> dict[str, Any]:
    """Parameters with the types the solver declares: a request carries numbers, not strings. Raises ParameterError."""
    from xcray.solvers import make_solver

    values = output.assignments(given)
    checked = make_solver(solver, values).as_dict()
    return {name: checked[name] for name in values}


@app.command("list")
def index(
    status: Annotated[str | None, typer.Option(help="Only those that are PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many, newest first.")] = 50,
    server: ServerChoice = None,
    json: output.AsJson = False,
) -> None:
    """Jobs, newest first."""
    with client_of(server) as client:
        jobs = list(islice(client.jobs.list(status=status), limit))
    if json:
        output.emit({"jobs": jobs})
        return
    rows = [
        [job["id"], job["name"], job["status"], line_of(step_of(job["progress"], job["phase"])), job["created"]] for job in jobs
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
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The directory to write; it must not exist.")],
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
        "status": job["status"] + (" (stop requested)" if job["stop_requested"] and job["status"] == "RUNNING" else ""),
        "progress": line_of(step_of(job["progress"], job["phase"])) if job["status"] == "RUNNING" else None,
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
        output.say(f"{result['answered']:,} rows answered; xcray jobs output {job['id']} DIR fetches the answers")
    if result.get("partial"):
        output.say(partial_line(result["partial"]))
    if result.get("measures"):
        show_measures(result["measures"])


@app.command()
def logs(
    job: JobId,
    tail: Annotated[int, typer.Option(min=1, max=10_000, help="The last so many lines.")] = 200,
    server: ServerChoice = None,
    json: output.AsJson = False,
) -> None:
    """The last lines of a job's log."""
    with client_of(server) as client:
        text = client.jobs.logs(job, tail=tail)
    if json:
        output.emit({"job": job, "lines": text.splitlines()})
        return
    for line in text.splitlines():
        output.say(line)


@app.command()
def timeline(
    job: JobId,
    png: Picture = None,
    limit: Annotated[int, typer.Option(min=1, max=20_000, help="Entries to draw at most; neighbours become one.")] = 5000,
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
