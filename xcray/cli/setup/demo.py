"""`xcray demo`: the whole story in minutes: text in, a training on Ray through REST, exact answers out, nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer

from xcray.cli.models.predict import show_answer, show_explanation
from xcray.cli.service.jobs import tell
from xcray.cli.terminal import output, processes
from xcray.cli.terminal.progress import duration, reporter
from xcray.cli.training.train import show_measures
from xcray.errors import NotFound, Unavailable, XcrayError

if TYPE_CHECKING:
    from xcray.client import Client
    from xcray.client.types import Dataset, Job

QUESTIONS = (
    "read rows of a csv file into dictionaries",
    "compress a file with gzip",
    "a queue shared between processes",
    "multiply sparse matrices",
    "open a database connection with a transaction",
)
TOP = 5  # answers to a question
START_SECONDS = 60.0
END_SECONDS = 60.0


class Service(NamedTuple):
    """A service of our own: its process, its address and its folder."""

    process: subprocess.Popen[bytes]
    url: str
    home: Path


def demo(
    keep: Annotated[
        bool, typer.Option("--keep", help="Stay up until Ctrl-C, to look around.")
    ] = False,
    home: Annotated[
        Path | None, typer.Option(help="Use this folder and leave it. [default: a temporary one]")
    ] = None,
    pool: Annotated[
        str, typer.Option(help="Where classes are solved: ray, threads or serial.")
    ] = "ray",
    json: output.AsJson = False,
) -> None:
    """Build a data set, train it on Ray through REST, measure it, ask five questions; minutes on two cores."""
    from xcray.client import Client

    started = time.monotonic()
    with (
        interruptible(),
        folder(home) as place,
        service(place, pool, json) as running,
        Client(running.url) as client,
    ):
        dataset = build(client, json)
        job = train(client, dataset, running, pool, json)
        answers = ask(client, json)
        found = {
            "seconds": time.monotonic() - started,
            "url": running.url,
            "dataset": dataset,
            "job": job,
            **answers,
        }
        if keep:
            stay(running)
    if json:
        output.emit(found)
        return
    output.say(f"done in {duration(found['seconds'])}; everything that was started has ended")
    output.say("next: xcray serve, or xcray data build pydocs DIR and xcray train DIR")


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM ends as Ctrl-C does, so that what was started is ended too."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def folder(home: Path | None) -> Iterator[Path]:
    """The folder that was named, or a temporary one that goes at the end."""
    if home is not None:
        yield home.absolute()
        return
    place = Path(tempfile.mkdtemp(prefix="xcray-demo-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def service(home: Path, pool: str, quiet: bool) -> Iterator[Service]:
    """A service on a free port, ended with everything that came from it."""
    home.mkdir(parents=True, exist_ok=True)
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
    kept = "XCRAY_KERNELS"  # of an image; everything else that says how a service is, is not the demo's
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("XCRAY_") or name == kept
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
        url = address(process, home)
        if not quiet:
            output.pairs({"console": f"{url}/", "docs": f"{url}/docs", "log": home / "serve.log"})
        yield Service(process, url, home)
    finally:
        close(process, home, quiet)


def address(process: subprocess.Popen[bytes], home: Path) -> str:
    """Where the service answers, once it does. Raises Unavailable with the end of its log when it does not."""
    from xcray.storage.atomic import read_json

    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            told = read_json(home / "serve.json")
        except NotFound:
            time.sleep(0.1)
            continue
        if told["pid"] == process.pid:
            return str(told["url"])
        time.sleep(0.1)
    lines = (home / "serve.log").read_text(errors="replace").splitlines()
    raise Unavailable(
        f"the service did not start: {lines[-1] if lines else 'it said nothing'}",
        hint="xcray doctor looks for the reason",
    )


def close(process: subprocess.Popen[bytes], home: Path, quiet: bool) -> None:
    """End the service and see that nothing that came from it is left; what stays is ended by its id, and told."""
    from xcray.workers.ray.local_cluster import LocalCluster

    cluster = LocalCluster(home / "ray")
    ray = cluster.info()
    ours = processes.family([process.pid, *([ray.pid] if ray else [])])
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    try:
        cluster.stop()
    except XcrayError as error:
        output.note(error.message)
    left = processes.left_of(ours, seconds=10.0)
    processes.end(left)
    if not quiet:
        output.say(
            f"ended {len(ours)} processes" + (f", {len(left)} of them by force" if left else "")
        )


def build(client: Client, quiet: bool) -> Dataset:
    """The documentation of this Python as a data set, made by the service."""
    if not quiet:
        output.say()
        output.say(
            "building the data set: what the standard library and the installed packages say about themselves"
        )
    found = client.datasets.wait(client.datasets.build("pydocs", "pydocs")["id"])
    if not quiet:
        stats = found["stats"]
        rows = ", ".join(f"{split['n_rows']:,} {part}" for part, split in stats["splits"].items())
        output.say(
            f"{found['id']}: {rows} documents, {stats['n_labels']:,} labels, {stats['n_features']:,} features"
        )
    return found


def train(client: Client, dataset: Dataset, running: Service, pool: str, quiet: bool) -> Job:
    """A training over REST, watched to its end. Raises Unavailable when it did not succeed."""
    submitted = client.jobs.submit(dataset=dataset["id"], model="pydocs", name="demo", pool=pool)
    if not quiet:
        output.say()
        output.say(f"training on the pool {pool!r}: {running.url}/v1/jobs/{submitted['id']}")
    shown = quiet or pool != "ray"
    with reporter(quiet) as report:
        for event in client.jobs.events(submitted["id"]):
            shown = shown or show_dashboard(running.home)
            tell(report, event)
    job = client.jobs.get(submitted["id"])
    if job["status"] != "SUCCEEDED":
        log = client.jobs.logs(job["id"], tail=20)
        raise Unavailable(
            f"the training ended as {job['status']}: {job['message']}",
            code=job["reason"],
            hint=log or None,
        )
    if not quiet:
        output.say()
        output.say("measured on documents that were held out:")
        show_measures((job["result"] or {}).get("measures", {}))
    return job


def show_dashboard(home: Path) -> bool:
    """Print the address of Ray's dashboard when there is one."""
    from xcray.workers.ray.local_cluster import LocalCluster

    ray = LocalCluster(home / "ray").info()
    if ray is not None:
        output.pairs({"Ray dashboard": ray.dashboard, "its token": f"in {ray.token_path}"})
    return ray is not None


def ask(client: Client, quiet: bool) -> dict[str, Any]:
    """Five questions, and the words behind the first answer."""
    reply = client.predict("pydocs", list(QUESTIONS), top_k=TOP)
    answers = []
    for question, found in zip(QUESTIONS, reply["predictions"], strict=True):
        pairs = zip(found["labels"], found["scores"], strict=True)
        answers.append(
            {
                "input": question,
                "labels": [{"label": label, "score": score} for label, score in pairs],
            }
        )
    reason = client.explain("pydocs", QUESTIONS[0], top=5)
    if not quiet:
        output.say()
        output.say(
            f"five questions for {reply['model']['name']} version {reply['model']['version']}:"
        )
        for answer in answers:
            show_answer(answer)
        output.say()
        output.say(f"the words behind the first answer to {QUESTIONS[0]!r}:")
        show_explanation(dict(reason))
        output.say()
    return {"answers": answers, "explanation": dict(reason)}


def stay(running: Service) -> None:
    """Wait for Ctrl-C, or for the end of the service."""
    output.note(f"{running.url}/ stays up until Ctrl-C")
    try:
        running.process.wait()
    except KeyboardInterrupt:
        output.note("ending")
