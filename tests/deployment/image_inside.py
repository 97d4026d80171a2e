"""The part of `python -m tests.deployment.image` that runs in a container with only xcray.

`python image_inside.py STEP` prints one JSON object.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

TOOLS = ("cc", "gcc", "g++", "ld", "as", "make", "pip", "pip3", "curl", "wget", "git", "sudo")
OUTSIDE = ("/proc", "/sys", "/dev", "/tmp", "/var/lib/xcray", "/run/secrets")
ANSWER = """
import sys, time
from pathlib import Path
started = time.perf_counter()
from xcray.service.models.loading import open_predictor
predictor = open_predictor(Path(sys.argv[1]))
predictor.predict([[1.0] * predictor.model.n_features], 5)
print(time.perf_counter() - started)
"""
SERVE = """
import time
from urllib.request import urlopen
from ray import serve
from xcray.service.ray_serve import application
started = time.perf_counter()
serve.start(http_options={"host": "127.0.0.1", "port": 8000})
serve.run(application({"home": "/tmp/served", "insecure_dev": True}), name="xcray", route_prefix="/")
with urlopen("http://127.0.0.1:8000/healthz", timeout=30) as answer:
    print(answer.status)
print(round(time.perf_counter() - started, 1))
serve.shutdown()
"""


def inspect() -> dict[str, Any]:
    """Return the user, its rights, writable folders, tools, and sizes of packages."""
    status = dict(
        line.split(":\t", 1)
        for line in Path("/proc/self/status").read_text().splitlines()
        if ":\t" in line
    )
    special, writable = [], []
    for folder, folders, files in os.walk("/"):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in OUTSIDE]
        if os.access(folder, os.W_OK):
            writable.append(folder)
        for name in files:
            mode = os.lstat(os.path.join(folder, name)).st_mode
            if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
                special.append(os.path.join(folder, name))
    prefix = Path(sys.prefix)
    packages = next(prefix.glob("lib/python3.*/site-packages"))
    sizes = {path.name: size_of(path) for path in packages.iterdir()}
    return {
        "uid": os.getuid(),
        "gid": os.getgid(),
        "capabilities": int(status["CapEff"], 16),
        "no_new_privileges": status["NoNewPrivs"].strip() == "1",
        "writable": writable,
        "setuid": special,
        "tools": [name for name in TOOLS if shutil.which(name)],
        "kernels": sum(1 for _ in (prefix / "kernels").glob("*/*.nbi")),
        "components": len(json.loads((prefix / "sbom.cdx.json").read_text())["components"]),
        "packages_mb": {
            name: round(size / 1e6)
            for name, size in sorted(sizes.items(), key=lambda each: -each[1])[:14]
        },
        "kernels_mb": round(size_of(prefix / "kernels") / 1e6),
        "bytecode_mb": round(sum(path.stat().st_size for path in prefix.rglob("*.pyc")) / 1e6),
        "all_mb": round(size_of(prefix) / 1e6),
    }


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(each.lstat().st_size for each in files if not each.is_dir())


def first() -> dict[str, Any]:
    """Return the seconds from the start of a process to its first prediction.

    The runs use the baked kernels twice, and then no baked kernels.
    """
    from xcray.cli.setup.compile_kernels import write_random_model

    model = write_random_model(Path("/tmp/first-model"), 3000, "identity")
    shutil.rmtree(os.environ["NUMBA_CACHE_DIR"], ignore_errors=True)  # as when a container starts
    out = {}
    for name, environment in (
        ("links_made", {}),
        ("baked", {}),
        ("compiled", {"XCRAY_KERNELS": "", "NUMBA_CACHE_DIR": "/tmp/without"}),
    ):
        report = answered([sys.executable, "-c", ANSWER, str(model)], environment)
        out[name] = round(float(report[0]), 2)
    return {"seconds_to_first_answer": out, "compiled_here": missed()}


def answered(command: list[str], environment: dict[str, str]) -> list[str]:
    """Run a command that must succeed and return its lines."""
    process = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if process.returncode:
        raise SystemExit(process.stderr)
    return process.stdout.splitlines()


def missed() -> list[str]:
    """Return the kernels that were compiled in this container."""
    from xcray.kernels import unbaked_kernels as found

    return found()


def zombies() -> dict[str, Any]:
    """Return the number of processes, and of zombies, in this container."""
    states = [state_of(path) for path in Path("/proc").glob("[0-9]*")]
    return {
        "processes": len([each for each in states if each]),
        "zombies": states.count("Z"),
        "compiled_here": missed(),
    }


def cluster() -> dict[str, Any]:
    """Check a Ray head as in the compose file, and return sizes and states.

    Covered are health, dashboard pages, Ray Serve, and the programs of a login shell.
    """
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    wait_for(
        "http://127.0.0.1:8265/api/gcs_healthz", "http://127.0.0.1:52365/api/local_raylet_healthz"
    )
    page = fetch_page("http://127.0.0.1:8265/", token)
    scripts = re.findall(r'(?:src|href)="\.?/?([^"]+\.(?:js|css))"', page)
    sizes = {
        name.rpartition("/")[2]: len(fetch_page(f"http://127.0.0.1:8265/{name}", token))
        for name in scripts
    }
    nodes = json.loads(fetch_page("http://127.0.0.1:8265/api/v0/nodes", token))["data"]["result"][
        "result"
    ]
    report = answered([sys.executable, "-c", SERVE], {"RAY_ADDRESS": "127.0.0.1:6379"})[-2:]
    result = answered(["bash", "--login", "-c", "command -v xcray ray python"], {})
    return {
        "dashboard": sizes,
        "nodes": [each["state"] for each in nodes],
        "serve": report,
        "login_shell": result,
    }


def wait_for(*urls: str, seconds: float = 600) -> None:
    """Wait until all URLs answer with 200."""
    deadline = time.monotonic() + seconds
    for url in urls:
        while True:
            try:
                with urlopen(url, timeout=10):
                    break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.3)


def fetch_page(url: str, token: Path) -> str:
    """Return the body of a page that requires Ray's token."""
    with urlopen(
        Request(url, headers={"Authorization": f"Bearer {token.read_text()}"}), timeout=60
    ) as answer:
        text: str = answer.read().decode()
    return text


def state_of(path: Path) -> str:
    """Return the letter of a process's state; empty if it has ended."""
    try:
        return (path / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def trained() -> dict[str, Any]:
    """Train a small data set by the service on threads and on Ray, and predict."""
    from xcray.client import Client

    out: dict[str, Any] = {}
    with Client("http://127.0.0.1:8000") as client:
        synthetic = {"rows": 3000, "features": 800, "labels": 100}
        data = client.datasets.wait(
            client.datasets.build("small", "synthetic", options={"synthetic": synthetic})["id"]
        )
        for pool in ("threads", "ray"):
            started = time.monotonic()
            job = client.jobs.wait(
                client.jobs.submit(dataset=data["id"], model=f"small-{pool}", name=pool, pool=pool)[
                    "id"
                ]
            )
            out[pool] = {"status": job["status"], "seconds": round(time.monotonic() - started, 1)}
            out[pool]["sha256"] = (
                client.models.version(f"small-{pool}", 1)["sha256"][:12]
                if job["status"] == "SUCCEEDED"
                else ""
            )
        started = time.monotonic()
        reply = client.predict(
            "small-ray", [{"indices": [1, 2, 3], "values": [1.0, 1.0, 1.0]}], top_k=3
        )
        out["answer"] = {
            "labels": reply["predictions"][0]["labels"],
            "seconds": round(time.monotonic() - started, 2),
        }
    return out


if __name__ == "__main__":
    print(
        json.dumps(
            {each.__name__: each for each in (inspect, first, zombies, trained, cluster)}[
                sys.argv[1]
            ]()
        )
    )
