"""Build the image and run it. Steps go to stderr; the last line of stdout is one JSON object.

    python -m tests.deployment.image

--base NAME|TAR   base image: a name that exists or can be pulled, or a root file system with
                  Python 3.11 and its venv module [default: python:3.11-slim-bookworm by docker;
                  without docker mmdebstrap builds a substitute from Debian bookworm]
--skip STEP,...   steps to leave out: inspect, doctor, first, signals, train, cluster, demo
--folder DIR      folder of images and containers [a temporary folder, removed at the end]
--keep            keep the temporary folder
--image NAME      test this existing image instead of building one
--cpu NAME        XCRAY_CPU, the processor for which kernels are compiled

It uses docker if its engine answers, otherwise buildah and podman as root, without a daemon
(Debian: buildah podman runc netavark aardvark-dns catatonit mmdebstrap). Containers run as in
production: read-only root file system, no capabilities, no new privileges, no network, a volume
and a /tmp.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
PYTHON: Final = "docker.io/library/python:3.11-slim-bookworm"
CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
ISOLATED: Final = (
    "--read-only",
    "--cap-drop",
    "ALL",
    "--security-opt",
    "no-new-privileges",
    "--network",
    "none",
    "--init",
)
ROOM: Final = ("--tmpfs", "/tmp:mode=1777,size=3g", "--shm-size", "1g")
CONFIGURATION: Final = """[containers]
default_ulimits = ["nofile=20000:20000", "nproc=30000:30000"]
[network]
network_backend = "netavark"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""


def say(text: str) -> None:
    """Print one line about a step."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


class Engine:
    """Docker, or buildah and podman with a private store."""

    def __init__(self, folder: Path) -> None:
        self.docker = shutil.which("docker") is not None and self._answers(["docker", "version"])
        self.folder = folder
        self.environment = dict(os.environ)
        self.store: list[str] = []
        if self.docker:
            return
        missing = [name for name in ("buildah", "podman", "runc") if shutil.which(name) is None]
        if missing or os.getuid() != 0:
            raise SystemExit(
                f"no engine: docker does not answer, and {', '.join(missing) or 'root'} is missing (see --help)"
            )
        say("docker does not answer: buildah and podman are used")
        (folder / "containers.conf").write_text(CONFIGURATION)
        self.environment["CONTAINERS_CONF"] = str(folder / "containers.conf")
        self.store = [
            "--root",
            str(folder / "root"),
            "--runroot",
            str(folder / "run"),
            "--storage-driver",
            "overlay",
        ]

    @staticmethod
    def _answers(command: list[str]) -> bool:
        return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0

    def __call__(
        self, *arguments: str, seconds: float = 900, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of the engine. Ends the program on failure, unless `check` is False."""
        command = ["docker"] if self.docker else ["podman", *self.store]
        process = subprocess.run(
            [*command, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if check and process.returncode:
            raise SystemExit(
                f"{' '.join(arguments[:6])} ... ended with {process.returncode}:\n{process.stdout[-2000:]}{process.stderr[-4000:]}"
            )
        return process

    def inside(
        self, image: str, *command: str, options: Sequence[str] = (), seconds: float = 900
    ) -> str:
        """Run a command in a new container and return its output."""
        return self(
            "run", "--rm", *self.limits(), *options, image, *command, seconds=seconds
        ).stdout

    def limits(self) -> list[str]:
        """Return the options of `run`: isolation, writable folders, script with the checks."""
        # podman's option lets /run and /var/tmp be written.
        closed = [
            *ISOLATED,
            *(() if self.docker else ("--read-only-tmpfs=false",)),
        ]
        return [
            *closed,
            *ROOM,
            "-v",
            "/var/lib/xcray",
            "-v",
            f"{ROOT / 'tests/deployment/image_inside.py'}:/inside.py:ro",
        ]

    def build(self, context: Path, image: str, arguments: dict[str, str]) -> None:
        """Build an image."""
        reports = [
            word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")
        ]
        command = (
            ["docker", "build"]
            if self.docker
            else ["buildah", *self.store, "bud", "--layers", "--format", "docker"]
        )
        if not self.docker:
            command += ["--isolation", "chroot", "--network", "host", "--pull-never", *mounts()]
        with open(self.folder / "build.log", "a") as log:
            process = subprocess.run(
                [*command, *reports, "-t", image, "-f", "deploy/docker/Dockerfile", "."],
                env=self.environment,
                cwd=context,
                stdout=log,
                stderr=log,
                timeout=3600,
                check=False,
            )
        if process.returncode:
            raise SystemExit(
                f"the build failed:\n{(self.folder / 'build.log').read_text()[-4000:]}"
            )


def mounts() -> list[str]:
    """Return the mounts that a build needs if the network uses its own certificates."""
    expected = [path for path in (CERTIFICATES.parent, Path("/etc/pip.conf")) if path.exists()]
    return [word for path in expected for word in ("-v", f"{path}:{path}:ro")]


def base_image(engine: Engine, base: str | None) -> str:
    """Return the name of the base image, after fetching or building it."""
    if base is not None and not Path(base).is_file():
        return base
    if engine.docker and base is None:
        return PYTHON
    if engine("image", "exists", PYTHON, check=False).returncode == 0:
        return PYTHON
    tar = Path(base) if base else made_base(engine.folder / "base.tar")
    say(f"{tar.name} stands for {PYTHON}")
    engine("import", str(tar), PYTHON)
    return PYTHON


def made_base(tar: Path) -> Path:
    """Build Debian bookworm with its Python 3.11.

    It equals python:3.11-slim-bookworm except for the path of Python.
    """
    if shutil.which("mmdebstrap") is None:
        raise SystemExit(
            "no base image: without docker no registry is queried, and mmdebstrap is missing; give --base"
        )
    command = [
        "mmdebstrap",
        "--variant=minbase",
        "--include=python3,python3-venv,ca-certificates",
        "bookworm",
        str(tar),
    ]
    say(" ".join(command))
    process = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if process.returncode:
        raise SystemExit(process.stderr[-3000:])
    return tar


def checkout(target: Path) -> Path:
    """Copy the current content of the files that git tracks."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


# The steps. Each returns figures, and raises SystemExit if a check fails.


def expect(condition: bool, problem: str) -> None:
    """Exit with the problem unless the condition holds."""
    if not condition:
        raise SystemExit(f"not good: {problem}")


def inspect(engine: Engine, image: str) -> dict[str, Any]:
    """Check user, writable files, labels and tools of the image; list its layers by size."""
    document: dict[str, Any] = json.loads(engine.inside(image, "python", "/inside.py", "inspect"))
    expect(
        (document["uid"], document["gid"], document["capabilities"]) == (10001, 10001, 0),
        f"it runs with {document}",
    )
    expect(
        not document["writable"] and not document["setuid"],
        f"writable {document['writable']}, setuid {document['setuid']}",
    )
    expect(not document["tools"], f"tools are left: {document['tools']}")
    expect(document["kernels"] > 200, f"{document['kernels']} kernels are baked")
    content = json.loads(engine("image", "inspect", image).stdout)[0]
    labels = content["Config"]["Labels"]
    expect(labels["org.opencontainers.image.title"] == "xcray", f"labels {labels}")
    history = engine(
        "history", "--format", "{{.Size}}|{{.CreatedBy}}", "--no-trunc", image
    ).stdout.splitlines()
    layers = [line for line in history if not line.startswith("0B") and not line.startswith("0 B")]
    document["layers"] = [
        f"{size} {by[:90]}" for size, _, by in (line.partition("|") for line in layers)
    ]
    document["size_mb"] = round(content["Size"] / 1e6)
    return document


def doctor(engine: Engine, image: str) -> dict[str, Any]:
    """Check that `xcray doctor` finds no problem."""
    document = json.loads(engine.inside(image, "xcray", "doctor", "--json"))
    expect(document["ok"], f"doctor says {document}")
    return {"doctor": {each["name"]: each["status"] for each in document["checks"]}}


def first(engine: Engine, image: str) -> dict[str, Any]:
    """Measure how soon a container answers."""
    document: dict[str, Any] = json.loads(engine.inside(image, "python", "/inside.py", "first"))
    expect(document["compiled_here"] == [], f"kernels were compiled: {document['compiled_here']}")
    return document


def service(
    engine: Engine, image: str, work: Callable[[str], dict[str, Any]], without: Sequence[str] = ()
) -> dict[str, Any]:
    """Run a service, call `work` with its name, stop it, and measure the stop.

    without: options of `Engine.limits` that are left out.
    """
    name = engine(
        "run", "--detach", *(option for option in engine.limits() if option not in without), image
    ).stdout.strip()
    try:
        deadline = time.monotonic() + 120
        started = time.monotonic()
        while engine("exec", name, "xcray", "health", check=False).returncode:
            expect(
                time.monotonic() < deadline,
                f"no health: {engine('logs', name, check=False).stderr[-3000:]}",
            )
            time.sleep(0.2)
        fields = {"seconds_to_health": round(time.monotonic() - started, 1), **work(name)}
        started = time.monotonic()
        engine("stop", "--time", "60", name)
        fields["seconds_to_stop"] = round(time.monotonic() - started, 1)
        fields["exit_code"] = int(
            json.loads(engine("inspect", name).stdout)[0]["State"]["ExitCode"]
        )
        expect(fields["exit_code"] in (0, 143), f"it ended with {fields['exit_code']}")
        return fields
    finally:
        engine("rm", "--force", "--volumes", name, check=False)


def signals(engine: Engine, image: str) -> dict[str, Any]:
    """Check that process 1 without an init answers and ends on SIGTERM; `train` has an init."""

    def nothing(name: str) -> dict[str, Any]:
        report = engine("exec", name, "xcray", "health", "--ready", "--json").stdout
        return {"ready": json.loads(report)["ok"]}

    return {"service": service(engine, image, nothing, without=("--init",))}


def train(engine: Engine, image: str) -> dict[str, Any]:
    """Train on threads and on Ray; check for equal models, no compiled kernel and no zombie."""

    def work(name: str) -> dict[str, Any]:
        out = dict(
            json.loads(engine("exec", name, "python", "/inside.py", "trained", seconds=900).stdout)
        )
        return {**out, **json.loads(engine("exec", name, "python", "/inside.py", "zombies").stdout)}

    result = service(engine, image, work)
    expect(
        result["threads"]["status"] == result["ray"]["status"] == "SUCCEEDED",
        f"trainings: {result}",
    )
    expect(result["threads"]["sha256"] == result["ray"]["sha256"], f"the models differ: {result}")
    expect(result["zombies"] == 0 and result["compiled_here"] == [], f"left over: {result}")
    return {"trained": result}


def cluster(engine: Engine, image: str) -> dict[str, Any]:
    """Check a Ray head: health, dashboard, token, Ray Serve, and programs of a login shell."""
    random = "python -c 'import secrets; print(secrets.token_hex(), end=str())'"
    start = f"umask 077; {random} > $RAY_AUTH_TOKEN_PATH; exec ray start --head --block"
    reports = ["--env", "RAY_AUTH_MODE=token", "--env", "RAY_AUTH_TOKEN_PATH=/tmp/token"]
    command = ["sh", "-c", f"{start} --port=6379 --num-cpus=2 --object-store-memory=200000000"]
    name = engine("run", "--detach", *engine.limits(), *reports, image, *command).stdout.strip()
    try:
        process = engine("exec", name, "python", "/inside.py", "cluster", seconds=1800, check=False)
        expect(
            process.returncode == 0,
            f"{process.stderr[-3000:]}\n{engine('logs', name, check=False).stdout[-2000:]}",
        )
        document: dict[str, Any] = json.loads(process.stdout)
    finally:
        engine("rm", "--force", "--volumes", name, check=False)
    expect(
        document["nodes"] == ["ALIVE"]
        and document["serve"][0] == "200"
        and min(document["dashboard"].values()) > 0,
        f"cluster: {document}",
    )
    expect(
        document["login_shell"]
        == [f"/opt/xcray/bin/{each}" for each in ("xcray", "ray", "python")],
        f"cluster: {document}",
    )
    return {"cluster": document}


def demo(engine: Engine, image: str) -> dict[str, Any]:
    """Run `xcray demo` like `make demo`: a training on Ray through REST, and five queries."""
    started = time.monotonic()
    document = json.loads(engine.inside(image, "xcray", "demo", "--json", seconds=1800))
    measures = (document["job"]["result"] or {}).get("measures", {})
    expect(len(document["answers"]) == 5, f"answers {document['answers']}")
    return {"demo": {"seconds": round(time.monotonic() - started), "P@1": measures.get("P@1")}}


STEPS: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    each.__name__: each for each in (inspect, doctor, first, signals, train, cluster, demo)
}


def main() -> None:
    """Build the image, run all steps, and print one JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, add_help=True
    )
    parser.add_argument("--base")
    parser.add_argument("--skip", default="")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--image")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--cpu", default="x86-64-v3")
    chosen = parser.parse_args()
    folder = (chosen.folder or Path(tempfile.mkdtemp(prefix="xcray-image-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    engine, image = Engine(folder), chosen.image or "xcray:test"
    fields: dict[str, Any] = {
        "benchmark": "image",
        "engine": "docker" if engine.docker else "buildah and podman",
    }
    try:
        if chosen.image is None:
            arguments = {"PYTHON_IMAGE": base_image(engine, chosen.base), "XCRAY_CPU": chosen.cpu}
            started = time.monotonic()
            say(f"building {image} (log: {folder / 'build.log'})")
            with tempfile.TemporaryDirectory(dir=folder) as context:
                engine.build(checkout(Path(context)), image, arguments)
            fields["build_seconds"] = round(time.monotonic() - started)
        for name, step in STEPS.items():
            if name not in chosen.skip.split(","):
                say(f"{name}: {(step.__doc__ or '').splitlines()[0]}")
                result = step(engine, image)
                say(json.dumps(result))
                fields |= result
    finally:
        if not chosen.keep and chosen.folder is None:
            if not engine.docker:
                engine("rmi", "--all", "--force", check=False)
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(fields))


if __name__ == "__main__":
    main()
