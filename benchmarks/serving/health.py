"""Latency of /healthz and /readyz while clients send the most expensive allowed predict bodies.

`python -m benchmarks.serving.health [--seconds 10] [--clients 4] [--workers 1] [--cases
sparse,strict,...] [--json FILE]`

The service runs as in production, with models of random weights (20,000 features, 4,000 labels; one
reads text). For each case `clients` connections of a separate process send the same body again
after each response. Meanwhile /healthz and /readyz are polled ten times per second each, on new
connections. Reported are the milliseconds p50, p99 and maximum, and the number of responses by
status. The limit is a p99 of 500 ms: kubelets wait one second by default.

- sparse: 1,024 rows of features, 10 MB.
- strict: the same with an error at its end.
- wide: one row of two million values.
- answer: 1,024 rows, top_k 1,000.
- text: 1,024 texts, 10 MB.
- many: two million empty instances.
- names: a filter of 10 MB of label names.
- braces: 10 MB of objects inside an invalid value.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks.common import arguments, in_folder, machine
from benchmarks.serving.__main__ import service
from xcray.arrays import csr_from
from xcray.data.text.pipeline import TextPipeline
from xcray.model.model import ModelContent, TrainingRecord, write_model
from xcray.model.registry import Registry

FEATURES, LABELS, BYTES, ROWS = 20_000, 4_000, 9_990_000, 1_024
BAR = 500.0  # milliseconds
PATHS = ("/healthz", "/readyz")
EVERY = 0.1


def publish(home: Path) -> None:
    """Publish the models: `rows` reads features, `texts` reads text."""
    registry, rng = Registry(home / "models"), np.random.default_rng(1)
    pipeline = TextPipeline.fit(
        [" ".join(f"word{(i * 37 + j) % 3000}" for j in range(40)) for i in range(2000)]
    )
    for name, width, text in (("rows", FEATURES, None), ("texts", pipeline.n_features, pipeline)):
        W = csr_from(rng.normal(size=(LABELS, width)) * (rng.random((LABELS, width)) < 0.005))
        names = text.terms.to_pylist() if text is not None else [str(j) for j in range(width)]
        labels = [f"a label with a longer name {i}" for i in range(LABELS)]
        b = rng.normal(size=LABELS).astype(np.float32)
        content = ModelContent(W, b, labels, names, text=text)
        record = TrainingRecord("ppdsparse", {}, "0" * 64, seed=0)
        write_model(home / f"staged-{name}", content, record)
        registry.publish(name, home / f"staged-{name}")


def _rows() -> list[dict[str, Any]]:
    """Return rows that fill a body."""
    rng, n = np.random.default_rng(2), BYTES // ROWS // 14
    return [
        {
            "indices": np.sort(rng.choice(FEATURES, n, replace=False)).tolist(),
            "values": rng.random(n).round(5).tolist(),
        }
        for _ in range(ROWS)
    ]


def _sparse() -> dict[str, Any]:
    return {"instances": _rows(), "top_k": 5}


def _strict() -> dict[str, Any]:
    return {"instances": [*_rows()[:-1], {"indices": [1], "values": [1.0], "more": 1}]}


def _wide() -> dict[str, Any]:
    return {"instances": [{"values": [1.25] * (BYTES // 6)}]}


def _answer() -> dict[str, Any]:
    return {"instances": [{"indices": [i], "values": [1.0]} for i in range(ROWS)], "top_k": 1000}


def _text() -> dict[str, Any]:
    words = " ".join(f"word{i % 3000}" for i in range(BYTES // ROWS // 9))
    return {"instances": [{"text": words}] * ROWS}


def _many() -> dict[str, Any]:
    return {"instances": [{}] * (BYTES // 4)}


def _names() -> dict[str, Any]:
    return {
        "instances": [{"indices": [1], "values": [1.0]}],
        "deny": [f"no such label {i}" for i in range(BYTES // 26)],
    }


def _braces() -> dict[str, Any]:
    return {"instances": [{"text": [{"a": [{}, {}]}] * (BYTES // 20)}]}


CASES: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "sparse": ("rows", _sparse),
    "strict": ("rows", _strict),
    "wide": ("rows", _wide),
    "answer": ("rows", _answer),
    "text": ("texts", _text),
    "many": ("rows", _many),
    "names": ("rows", _names),
    "braces": ("rows", _braces),
}


def send(url: str, model: str, body: bytes, seconds: float, clients: int) -> dict[str, int]:
    """Send requests from `clients` threads for `seconds`; count responses by status.

    `lost` counts requests without a response.
    """
    statuses: Counter[str] = Counter()
    until = time.monotonic() + seconds

    def ask() -> None:
        while time.monotonic() < until:
            connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
            try:
                connection.request(
                    "POST",
                    f"/v1/models/{model}:predict",
                    body,
                    {"Content-Type": "application/json"},
                )
                answer = connection.getresponse()
                answer.read()
                statuses[str(answer.status)] += 1
                if answer.status == 503:
                    time.sleep(0.05)
            except OSError:
                statuses["lost"] += 1
            finally:
                connection.close()

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return dict(statuses)


def probe(url: str, path: str, ending: threading.Event, took: list[float]) -> None:
    """Poll a path ten times per second like a probe, on new connections; append milliseconds."""
    due = time.monotonic()
    while not ending.is_set():
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        begun = time.perf_counter()
        connection.request("GET", path)
        connection.getresponse().read()
        took.append(1e3 * (time.perf_counter() - begun))
        connection.close()
        due = max(due + EVERY, time.monotonic())
        ending.wait(max(0.0, due - time.monotonic()))


def measured(url: str, case: str, seconds: float, clients: int) -> dict[str, Any]:
    """Measure one case."""
    model, make = CASES[case]
    body = json.dumps(make(), separators=(",", ":")).encode()
    request = json.dumps({"url": url, "model": model, "seconds": seconds, "clients": clients})
    command = [sys.executable, "-m", "benchmarks.serving.health", "--client", request]
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    ending, took = threading.Event(), {path: list[float]() for path in PATHS}
    probes = [
        threading.Thread(target=probe, args=(url, path, ending, took[path])) for path in PATHS
    ]
    for thread in probes:
        thread.start()
    report, _ = client.communicate(body)
    ending.set()
    for thread in probes:
        thread.join()
    shown = {path.strip("/"): _percentiles(times) for path, times in took.items()}
    return {
        "case": case,
        "megabytes": round(len(body) / 1e6, 2),
        "statuses": json.loads(report),
        **shown,
    }


def _percentiles(times: list[float]) -> dict[str, float]:
    """Return percentiles of milliseconds."""
    p50, p99 = np.percentile(times, [50, 99])
    return {
        "p50": round(float(p50), 1),
        "p99": round(float(p99), 1),
        "most": round(max(times), 1),
        "asked": len(times),
    }


def main() -> None:
    """Measure, and print a line of JSON at the end."""
    if "--client" in sys.argv:
        document = json.loads(sys.argv[-1])
        print(
            json.dumps(
                send(
                    document["url"],
                    document["model"],
                    sys.stdin.buffer.read(),
                    document["seconds"],
                    document["clients"],
                )
            )
        )
        return
    chosen = arguments(
        __doc__ or "",
        seconds={"type": float, "default": 10.0},
        clients={"type": int, "default": 4},
        workers={"type": int, "default": 1},
        cases={"default": ",".join(CASES)},
    )

    def run(folder: Path) -> dict[str, Any]:
        home = folder / "home"
        publish(home)
        results = []
        with service(home, chosen.workers, {}) as (url, _):
            for model in ("rows", "texts"):
                send(url, model, b'{"instances":[{"indices":[1],"values":[1.0]}]}', 0.1, 1)
            for case in chosen.cases.split(","):
                results.append(measured(url, case, chosen.seconds, chosen.clients))
                print(json.dumps(results[-1]), flush=True)
        worst = max(each["healthz"]["p99"] for each in results)
        return {
            "machine": machine(),
            "worst_p99_ms": worst,
            "bar_ms": BAR,
            "holds": worst <= BAR,
            "cases": results,
        }

    in_folder(run, chosen.json)


if __name__ == "__main__":
    main()
