"""The prediction endpoint at full load: requests per second and latencies over HTTP.

Requests have one row or 32, as text or sparse.

`python -m benchmarks.serving [--model DIR --rows DATASET] [--workers 1] [--seconds 5] [--repeats 3]
[--rates 1000 2000] [--texts FILE] [--parts training variants] [--json FILE]`

Without --model a text model is trained on pydocs (DATA/pydocs if present) and receives texts and
sparse rows. A given model receives the test rows of --rows, and the texts of --texts. The service
runs as in production (`serve`, logs to a file) on all cores except the last;
`benchmarks.serving.load` sends the requests from the last one. Each case has `repeats` rounds, and
medians are reported:

- bare: the predictor alone, in this process on the service's core; milliseconds for the rows of one
  request.
- idle: one client that sends its next request after each answer.
- capacity: 32 clients that do the same; crowd: 300 of them (one row per request only).
- open: requests due at random times, at 80 % of capacity, on up to 300 connections. Latency counts
  from the time at which a request was due.
- rates: the same for the first case at each of --rates requests per second on 64 connections, in
  turn with a bare ASGI app on the same core (benchmarks.serving.baselines).

`cpu_us` is the processor time of the service per request in microseconds, which depends less on the
load of the machine than the other figures. `variants` repeats the first case with other settings of
the service. `training` repeats it at half of capacity before and while a job trains, which the
service runs on its own core.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from benchmarks.harness import dataset, in_turns, run_benchmark, service
from benchmarks.serving.baselines import baseline
from xcray.client import Client
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.data.demo import default_roots, documents
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.predict import Predictor
from xcray.training import TrainSpec, train

Case = dict[str, Any]  # name, reference of the model, bodies, input of the bare predictor
N_REQUESTS = 400  # distinct requests per case
CLIENTS, MANY_CLIENTS = 32, 300
PACKAGES = (
    "asyncio",
    "collections",
    "concurrent",
    "email",
    "http",
    "importlib",
    "json",
    "logging",
    "multiprocessing",
    "unittest",
)
BAR = 1100  # required requests per second at 300 clients
PARTS = ("training", "variants")
VARIANTS = {
    "no log of requests": {"XCRAY_LOG_LEVEL": "warning"},
}


def cores() -> tuple[set[int], set[int]]:
    """Return the cores of the service and that of the client; the same if there is only one."""
    all_of_them = sorted(os.sched_getaffinity(0))
    return set(all_of_them[:-1] or all_of_them), {all_of_them[-1]}


def load(url: str, case: Case, seconds: float, **how: Any) -> dict[str, Any]:
    """Run one measurement by a process on the client's core."""
    request = {
        "url": url,
        "path": f"/v1/models/{case['model']}:predict",
        "bodies": case["bodies"],
        "seconds": seconds,
        "warm": 0.5,
        **how,
    }
    client = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.serving.load"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    os.sched_setaffinity(client.pid, cores()[1])
    report, _ = client.communicate(json.dumps(request))
    if client.returncode:
        raise SystemExit(f"the client ended with {client.returncode}")
    return dict(json.loads(report))


def processor_seconds(process: psutil.Process) -> float:
    """Return the processor seconds of a service and its workers."""
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def sparse(row: tuple[np.ndarray, np.ndarray]) -> dict[str, Any]:
    """Return a row in the format of a request."""
    return {"indices": row[0].tolist(), "values": [float(value) for value in row[1]]}


def case_of(
    name: str, model: str, instances: Sequence[dict[str, Any]], inputs: Any, rows: int
) -> Case:
    """Return a case with requests of `rows` instances each."""
    n = min(N_REQUESTS, len(instances) // rows)
    bodies = [
        json.dumps({"instances": instances[i * rows : (i + 1) * rows], "top_k": 5})
        for i in range(n)
    ]
    return {
        "name": f"{name} x {rows}",
        "model": model,
        "bodies": bodies,
        "rows": rows,
        "given": [inputs(i * rows, rows) for i in range(n)],
    }


def cases_of(name: str, X: Any, texts: list[str] | None) -> list[Case]:
    """Return the cases of one row and of 32, for sparse rows and texts."""
    result, matrix = [], X.to_scipy()
    instances = [sparse(X.row(i)) for i in range(min(X.n_rows, N_REQUESTS * 4))]
    for rows in (1, 32):
        if texts is not None:
            result.append(
                case_of(
                    "text",
                    name,
                    [{"text": text} for text in texts],
                    lambda i, n: texts[i : i + n],
                    rows,
                )
            )
        result.append(case_of("sparse", name, instances, lambda i, n: matrix[i : i + n], rows))
    return result


def bare(predictor: Predictor, case: Case) -> float:
    """Return the median milliseconds of the predictor alone per request, including names.

    It runs on the service's core.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores()[0])
    seconds = []
    values = [
        predictor.features(each) if not isinstance(each, list) else each for each in case["given"]
    ]
    for each in values:
        begun = time.perf_counter()
        predictor.scored_labels(predictor.predict(each, 5))
        seconds.append(time.perf_counter() - begun)
    os.sched_setaffinity(0, before)
    return 1e3 * median(seconds)


def measured(
    url: str, process: psutil.Process, predictor: Predictor, case: Case, seconds: float
) -> dict[str, Any]:
    """Run one round of a case."""
    out: dict[str, Any] = {
        "bare_ms": bare(predictor, case),
        "idle": load(url, case, seconds, connections=1),
    }
    begun = processor_seconds(process)
    out["capacity"] = load(url, case, seconds, connections=CLIENTS if case["rows"] == 1 else 4)
    answered = (
        sum(out["capacity"]["statuses"].values()) * (seconds + 0.5) / seconds
    )  # the warm-up does not count
    out["cpu_us"] = 1e6 * (processor_seconds(process) - begun) / max(1.0, answered)
    if case["rows"] == 1:
        out["crowd"] = load(url, case, seconds, connections=MANY_CLIENTS)
    rate = max(1.0, 0.8 * out["capacity"]["requests_a_second"])
    out["open"] = load(url, case, seconds, connections=MANY_CLIENTS, rate=rate)
    return out


def print_line(name: str, record: dict[str, Any]) -> None:
    """Print one line."""
    opened, crowd = record["open"], record.get("crowd", {})
    print(
        f"{name:12s} bare {record['bare_ms']:7.3f} ms | idle p50 {record['idle']['p50']:7.2f} | capacity "
        f"{record['capacity']['requests_a_second']:7.0f}/s, {record['cpu_us']:5.0f} us each | 300 clients "
        f"{crowd.get('requests_a_second', float('nan')):7.0f}/s | open {opened['requests_a_second']:6.0f}/s "
        f"p50 {opened['p50']:7.2f} p99 {opened['p99']:7.2f} p99.9 {opened['p999']:7.2f} ms",
        flush=True,
    )


def while_training(
    url: str, case: Case, data: Dataset, rate: float, seconds: float
) -> dict[str, Any]:
    """Return latencies at `rate`, before and while a job of the service trains."""
    out = {"rate": round(rate, 1), "before": load(url, case, seconds, connections=64, rate=rate)}
    with Client(url) as client:
        known = client.datasets.register(data.path, name="bench")
        job = client.jobs.submit(
            dataset=known["id"], model="bench", pool="threads", params={"C": 10.0}
        )
        while client.jobs.get(job["id"])["phase"] != "TRAINING":
            if client.jobs.get(job["id"])["status"] not in ("PENDING", "RUNNING"):
                raise SystemExit(f"the job did not train: {client.jobs.logs(job['id'])[-500:]}")
            time.sleep(0.1)
        out["while"] = load(url, case, seconds, connections=64, rate=rate)
        out["still_training"] = client.jobs.get(job["id"])["phase"] == "TRAINING"
        if client.jobs.get(job["id"])["status"] == "RUNNING":
            client.jobs.stop(job["id"])
            client.jobs.wait(job["id"])
    return out


def dataset_of(found: Sequence[Any], folder: Path) -> Dataset:
    """Return a data set of some documents, for a quick run."""
    file = folder / "texts.jsonl"
    rows = ({"text": each.text, "labels": list(each.labels)} for each in found)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return build("jsonl", {"train": file}, folder / "texts", BuildOptions(test_fraction=0.1))


def prepared(options: Any, folder: Path) -> tuple[Path, Predictor, list[Case], Dataset]:
    """Return a home with the published model, and its cases."""
    if (options.model is None) != (options.rows is None):
        raise SystemExit("give both --model and --rows, or none")
    home = folder / "home"
    home.mkdir()
    if options.model is None:
        found = documents(default_roots()[:1], PACKAGES)
        texts = list(islice(cycle([each.text for each in found]), N_REQUESTS * 8))
        if options.quick:
            data = dataset_of(found, folder)
        else:
            has_set = options.data is not None and (options.data / "pydocs").is_dir()
            data = dataset("pydocs", None, options.data if has_set else folder)
        train(
            TrainSpec(str(data.path), pool="threads"), run_dir=folder / "run", out=folder / "model"
        )
    else:
        data = Dataset.open(options.rows)
        texts = options.texts and [
            json.loads(line)["text"] for line in options.texts.read_text().splitlines()
        ]
        (folder / "model").mkdir()
        for path in (
            p for p in sorted(options.model.rglob("*")) if p.is_file()
        ):  # publishing moves the files, so copy them
            target = folder / "model" / path.relative_to(options.model)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
    registry = Registry(home / "models")
    registry.publish("bench", folder / "model")
    part = data.test if data.test is not None else data.train
    return (
        home,
        Predictor(Model.open(registry.resolve("bench"))),
        cases_of("bench", part.X, texts),
        data,
    )


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Measure all cases, a training, and the variants."""
    home, predictor, cases, data = prepared(options, folder)
    model, first = predictor.model, cases[0]
    out: dict[str, Any] = {
        "labels": model.n_labels,
        "features": model.n_features,
        "weights": model.nnz,
        "workers": options.workers,
    }
    roots = {"XCRAY_DATASET_ROOTS": json.dumps([str(data.path.resolve().parent)])}
    with service(home, options.workers, roots, cores()[0]) as (url, process):
        for case in cases:
            load(url, case, 0.5, connections=1)
        methods = {
            case["name"]: partial(measured, url, process, predictor, case, options.seconds)
            for case in cases
        }
        out["cases"] = in_turns(methods, options.repeats)
        for name, result in out["cases"].items():
            result["overhead_us"] = round(result["cpu_us"] - 1e3 * result["bare_ms"], 1)
            print_line(name, result)
        with baseline(folder, cores()[0]) as (bare_url, _):
            out["rates"] = at_rates({"service": url, "bare ASGI app": bare_url}, first, options)
        if options.model is None and "training" in options.parts:
            rate = 0.5 * out["cases"][first["name"]]["capacity"]["requests_a_second"]
            out["training"] = while_training(url, first, data, rate, options.seconds)
            p99 = {when: out["training"][when]["p99"] for when in ("before", "while")}
            print(p99, "ms p99 before and while a job trains")
    out["variants"] = {}
    for name, environment in VARIANTS.items() if "variants" in options.parts else ():
        with service(home, options.workers, environment, cores()[0]) as (url, process):
            load(url, first, 0.5, connections=1)
            method = partial(measured, url, process, predictor, first, options.seconds)
            out["variants"] |= in_turns({name: method}, options.repeats)
            print_line(name[:12], out["variants"][name])
    out["bar"] = {
        "clients": MANY_CLIENTS,
        "requests_a_second": BAR,
        "met": out["cases"][first["name"]]["crowd"]["requests_a_second"] >= BAR,
    }
    return out


def at_rates(urls: dict[str, str], case: Case, options: Any) -> dict[str, Any]:
    """Return the latencies of servers at each of the rates, in turn."""
    methods = {
        f"{name}, {rate:g} a second": partial(
            load, url, case, options.seconds, connections=64, rate=rate
        )
        for rate in options.rates
        for name, url in urls.items()
    }
    out = in_turns(methods, options.repeats)
    for name, record in out.items():
        print(f"{name:24s} p50 {record['p50']:7.2f} p99 {record['p99']:7.2f} ms", flush=True)
    return out


def main() -> None:
    """Run all measurements and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        quick={"seconds": 0.3, "repeats": 1, "parts": [], "rates": [500.0]},
        model={"type": Path, "help": "a model directory, instead of training on pydocs"},
        rows={
            "type": Path,
            "help": "a data set directory whose test rows are sent (with --model)",
        },
        texts={"type": Path, "help": "JSON lines with a field text (with --model)"},
        rates={
            "type": float,
            "nargs": "*",
            "default": [1000.0, 2000.0],
            "help": "requests per second of the first case at random times",
        },
        workers={"type": int, "default": 1, "help": "serving processes"},
        parts={
            "nargs": "*",
            "choices": PARTS,
            "default": list(PARTS),
            "help": "what is measured besides the cases",
        },
        seconds={"type": float, "default": 5.0, "help": "duration of each measurement"},
        repeats={"type": int, "default": 3},
    )


if __name__ == "__main__":
    main()
