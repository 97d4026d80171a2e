"""`xcray demo`: end-to-end demo: build a data set, train on Ray through REST, predict, clean up."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer

from xcray.cli.models.explain import print_explanation
from xcray.cli.models.predict import print_prediction
from xcray.cli.service.jobs import report_event
from xcray.cli.setup.compile_kernels import PARTS
from xcray.cli.terminal import output
from xcray.cli.terminal.progress import format_duration, make_reporter
from xcray.cli.training.train import print_measures
from xcray.errors import InputError, NotFound, Unavailable, XcrayError, excerpt
from xcray.system import processes

if TYPE_CHECKING:
    from xcray.api.job_replies import DatasetView, JobView
    from xcray.client import Client

QUESTIONS = (
    "read rows of a csv file into dictionaries",
    "compress a file with gzip",
    "a queue shared between processes",
    "parse an xml document into a tree",
    "open a database connection with a transaction",
)
TOP = 5  # answers to a question
START_SECONDS = 300.0  # the first start of a busy machine compiles all modules
END_SECONDS = 60.0


class DemoService(NamedTuple):
    """The service of the demo: process, address and home directory."""

    process: subprocess.Popen[bytes]
    url: str
    home: Path


def demo(
    small: Annotated[
        bool, typer.Option("--small", help="Documents of the standard library alone: 30 seconds.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the service running until Ctrl-C.")
    ] = False,
    home: Annotated[
        Path | None, typer.Option(help="Home directory to use and keep; default: a temporary one.")
    ] = None,
    pool: Annotated[str, typer.Option(help="Pool: ray, threads or serial.")] = "ray",
) -> None:
    """Build a data set, train it on Ray through REST, evaluate it, and predict five questions.

    Takes a minute on two cores, and up to five more where kernels are not compiled yet.

    Example: xcray demo --small
    """
    from xcray.api.options import POOLS
    from xcray.client import Client

    if pool not in POOLS:
        raise InputError(f"--pool must be one of {', '.join(POOLS)}, not {excerpt(pool)!r}")
    started = time.monotonic()
    with (
        interruptible(),
        demo_home(home) as place,
        running_service(place, pool) as running,
        Client(running.url) as client,
    ):
        with compiling_kernels(running.home):
            dataset = build_dataset(client, running.home if small else None)
        job = train_model(client, dataset, running, pool)
        answers = predict_questions(client)
        results = {
            "seconds": time.monotonic() - started,
            "url": running.url,
            "dataset": dataset,
            "job": job,
            **answers,
        }
        if keep:
            wait_for_interrupt(running)
    output.print_json(results)
    output.print_line(
        f"done in {format_duration(results['seconds'])}; all started processes have exited"
    )
    output.print_line("next: xcray serve, or xcray data build pydocs DIR and xcray train DIR")


@contextmanager
def interruptible() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, so that started processes are terminated."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def demo_home(home: Path | None) -> Iterator[Path]:
    """Yield the given home directory, or a temporary one that is removed at the end."""
    if home is not None:
        yield home.absolute()
        return
    place = Path(tempfile.mkdtemp(prefix="xcray-demo-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def running_service(home: Path, pool: str) -> Iterator[DemoService]:
    """Run a service on a free port; terminate it with all its descendants at the end."""
    from xcray.jobs.home import Home

    Home(home)
    command = [
        sys.executable,
        "-m",
        "xcray",
        "serve",
        "--port",
        "0",
        "--home",
        str(home),
        "--pool",
        pool,
        "--log-level",
        "warning",
    ]
    setting = "XCRAY_KERNELS"  # set in images; other settings do not apply to the demo
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("XCRAY_") or name == setting
    }
    with open(home / "serve.log", "ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )  # a session of its own: Ctrl-C comes to us alone, and we end it in order
    try:
        url = wait_for_address(process, home)
        output.print_pairs({"console": f"{url}/", "docs": f"{url}/docs", "log": home / "serve.log"})
        yield DemoService(process, url, home)
    finally:
        stop_service(process, home)


def wait_for_address(process: subprocess.Popen[bytes], home: Path) -> str:
    """Return the address of the service once it responds.

    Raises Unavailable with the end of its log if it does not start.
    """
    from xcray.storage.atomic import read_json

    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            state = read_json(home / "serve.json")
        except NotFound:
            time.sleep(0.1)
            continue
        if state["pid"] == process.pid:
            return str(state["url"])
        time.sleep(0.1)
    lines = (home / "serve.log").read_text(errors="replace").splitlines()
    raise Unavailable(
        f"the service did not start: {lines[-1] if lines else 'its log is empty'}",
        hint="run xcray doctor to find the cause",
    )


def stop_service(process: subprocess.Popen[bytes], home: Path) -> None:
    """Stop the service and its descendants; remaining processes are killed and reported."""
    from xcray.workers.ray.local_cluster import ManagedLocalRay

    cluster = ManagedLocalRay(home / "ray")
    ray = cluster.info()
    ours = processes.find_descendants([process.pid, *([ray.pid] if ray else [])])
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    try:
        cluster.stop()
    except XcrayError as error:
        output.print_note(error.message, always=True)
    left = processes.wait_for_exit(ours, seconds=10.0)
    processes.kill_processes(left)
    output.print_line(
        f"ended {len(ours)} processes" + (f", {len(left)} of them by force" if left else "")
    )


@contextmanager
def compiling_kernels(home: Path) -> Iterator[None]:
    """Compile kernels in a process per part meanwhile, and wait for them at the end.

    If that fails, each process of the service compiles what it needs.
    """
    command = [sys.executable, "-m", "xcray", "compile-kernels", "--json", "--only"]
    with open(home / "kernels.log", "ab") as log, ExitStack() as compilers:
        running = {
            part: compilers.enter_context(
                subprocess.Popen([*command, part], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            )
            for part in PARTS
        }
        try:
            yield
            for number, (part, process) in enumerate(running.items()):
                if process.poll() is None:
                    output.print_note(
                        f"compiling kernels, once: {number} of {len(running)} parts ({part})"
                    )
                process.wait()
        finally:
            for process in running.values():
                process.kill()


def build_dataset(client: Client, small: Path | None) -> DatasetView:
    """Build a data set from the documentation of this Python, on the service.

    small: folder for a file with the documents of the standard library, to upload instead.
    """
    output.print_line()
    packages = "" if small else " and the installed packages"
    output.print_line(
        f"building the data set from the documentation of the standard library{packages}"
    )
    if small is None:
        created = client.datasets.build("pydocs", "pydocs")
    else:
        created = upload_standard_library(client, small / "pydocs.jsonl")
    record = client.datasets.wait(created["id"])
    stats = record["stats"]
    rows = ", ".join(f"{split['n_rows']:,} {part}" for part, split in stats["splits"].items())
    output.print_line(
        f"{record['id']}: {rows} documents, {stats['n_labels']:,} labels, "
        f"{stats['n_features']:,} features"
    )
    return record


def upload_standard_library(client: Client, path: Path) -> DatasetView:
    """Write the documents of the standard library as JSON lines and upload them."""
    from xcray.data.demo import TEXT_PARAMS, default_roots, documents

    with open(path, "w", encoding="utf-8") as file:
        for document in documents(default_roots()[:1]):
            file.write(json.dumps(document._asdict()) + "\n")
    closed = ("token_pattern", "fields")  # these can't be set over HTTP
    text = {name: value for name, value in asdict(TEXT_PARAMS).items() if name not in closed}
    options = {"test_fraction": 0.1, "text": text}
    return client.datasets.upload(path, name="pydocs", format="jsonl", options=options)


def train_model(client: Client, dataset: DatasetView, running: DemoService, pool: str) -> JobView:
    """Train over REST and follow the job. Raises Unavailable if it does not succeed."""
    named: dict[str, Any] = {"model": "pydocs", "name": "demo", "pool": pool}
    # a Ray that does not start is not tried again for an hour, as a service does; once is too few,
    # because on a busy machine a new one takes long to accept jobs
    submitted = client.jobs.submit(dataset=dataset["id"], max_attempts=4, **named)
    output.print_line()
    output.print_line(f"training on the pool {pool!r}: {running.url}/v1/jobs/{submitted['id']}")
    shown = output.is_json() or pool != "ray"
    with make_reporter() as report:
        for event in client.jobs.events(submitted["id"]):
            shown = shown or show_dashboard(running.home)
            report_event(report, event)
    job = client.jobs.get(submitted["id"])
    if job["status"] != "SUCCEEDED":
        log = client.jobs.logs(job["id"], tail=20)
        raise Unavailable(
            f"the training ended as {job['status']}: {job['message']}",
            code=job["reason"],
            hint=log or "xcray demo --pool threads needs no Ray; --home DIR keeps the logs",
        )
    output.print_line()
    output.print_line("evaluated on held-out documents:")
    print_measures((job["result"] or {}).get("measures", {}))
    return job


def show_dashboard(home: Path) -> bool:
    """Print the address of Ray's dashboard, if it is running."""
    from xcray.workers.ray.local_cluster import ManagedLocalRay

    ray = ManagedLocalRay(home / "ray").info()
    if ray is not None:
        output.print_pairs({"Ray dashboard": ray.dashboard, "its token": f"in {ray.token_path}"})
    return ray is not None


def predict_questions(client: Client) -> dict[str, Any]:
    """Predict five questions, and explain the first prediction."""
    reply = client.predict("pydocs", list(QUESTIONS), top_k=TOP)
    answers = []
    for question, prediction in zip(QUESTIONS, reply["predictions"], strict=True):
        pairs = zip(prediction["labels"], prediction["scores"], strict=True)
        answers.append(
            {
                "input": question,
                "labels": [{"label": label, "score": score} for label, score in pairs],
            }
        )
    reason = client.explain("pydocs", QUESTIONS[0], top=5)
    output.print_line()
    output.print_line(
        f"predictions for five questions by {reply['model']['name']} "
        f"version {reply['model']['version']}:"
    )
    for answer in answers:
        print_prediction(answer)
    output.print_line()
    output.print_line(f"explanation of the first prediction for {QUESTIONS[0]!r}:")
    print_explanation(dict(reason))
    output.print_line()
    return {"answers": answers, "explanation": dict(reason)}


def wait_for_interrupt(running: DemoService) -> None:
    """Wait for Ctrl-C or for the service to exit."""
    output.print_note(f"{running.url}/ runs until Ctrl-C", always=True)
    try:
        running.process.wait()
    except KeyboardInterrupt:
        output.print_note("stopping", always=True)
