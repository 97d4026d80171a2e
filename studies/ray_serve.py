"""The same service under plain uvicorn and under Ray Serve: latency and throughput.

`python -m studies.ray_serve [--seconds 5] [--ha-proxy] [--json FILE]`

Latencies are those of one client, requests per second those of sixteen. There is one model, and one
row per request. Plain is one process of `xcray serve`; Serve is one replica behind its proxy, in
Python, or in HAProxy with --ha-proxy. The client is a separate process on the last core; the
service uses the others.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from benchmarks.common import arguments, dataset, in_folder
from benchmarks.serving.__main__ import case_of, load, service, sparse
from xcray.jobs.home import Home
from xcray.model.registry import Registry
from xcray.training import TrainSpec, train
from xcray.workers.ray.local_cluster import ManagedLocalRay, connect
from xcray.workers.ray.session import free_port

CLIENTS = (1, 16)


def prepared(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return a home with a model, and a case."""
    data = dataset("synthetic", None, folder)
    result = train(TrainSpec(str(data.path)), run_dir=folder / "run", out=folder / "model")
    home = Home(folder / "home")
    Registry(home.models).publish("bench", result.model_path)
    assert data.test is not None
    X = data.test.X
    rows = [
        sparse((X.indices[a:b], X.data[a:b]))
        for a, b in zip(X.indptr[:400], X.indptr[1:401], strict=True)
    ]
    return home.path, case_of("sparse", "bench", rows, lambda start, n: None, 1)


def request_latencies(url: str, case: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Measure one client, then sixteen, after a warm-up."""
    load(url, case, 2.0, connections=1)
    return {f"{n} clients": load(url, case, seconds, connections=n) for n in CLIENTS}


def by_serve(folder: Path, home: Path, case: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Measure behind Serve's proxy."""
    from ray import serve

    from xcray.service.ray_serve import application

    cluster = ManagedLocalRay(folder / "ray", num_cpus=2, object_store_memory=100 << 20)
    port = free_port()
    info = cluster.ensure(300)
    try:
        with connect(info.address, token_path=info.token_path):
            try:
                serve.start(http_options={"host": "127.0.0.1", "port": port})
                args = {
                    "home": str(home),
                    "preload": ["bench"],
                    "insecure_dev": True,
                    "disk_reserve_bytes": 0,
                    "log_level": "warning",
                }
                serve.run(application(args), name="xcray", route_prefix="/")
                return request_latencies(f"http://127.0.0.1:{port}", case, seconds)
            finally:
                serve.shutdown()
    finally:
        cluster.stop()


def measure(folder: Path, chosen: Any) -> dict[str, Any]:
    """Measure both."""
    if chosen.ha_proxy:
        os.environ["RAY_SERVE_ENABLE_HA_PROXY"] = "1"
    home, case = prepared(folder)
    with service(home, 1, {"XCRAY_LOG_LEVEL": "warning", "XCRAY_PRELOAD": '["bench"]'}) as (url, _):
        plain = request_latencies(url, case, chosen.seconds)
    result = {
        "uvicorn": plain,
        "serve with HAProxy" if chosen.ha_proxy else "serve": by_serve(
            folder, home, case, chosen.seconds
        ),
    }
    for name, output in result.items():
        for clients, report in output.items():
            print(f"{name:<20} {clients:<11} {json.dumps(report)}")
    return result


def main() -> None:
    """Run the benchmark."""
    chosen = arguments(
        __doc__ or "", seconds={"type": float, "default": 5.0}, ha_proxy={"action": "store_true"}
    )
    in_folder(lambda folder: measure(folder, chosen), chosen.json)


if __name__ == "__main__":
    main()
