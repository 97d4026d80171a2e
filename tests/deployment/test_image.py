"""The parts of the image: Dockerfile, requirements, compose, Ray's launcher, and baked kernels.

`python -m tests.deployment.image` builds and runs the image, which takes minutes.
"""

from __future__ import annotations

import ctypes
import fnmatch
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support import missing_tools as without
from tests.support.live_service import PATIENCE, serving, settings_for
from xcray import kernels
from xcray.cli import main as cli
from xcray.cli.service import health
from xcray.cli.setup import compile_kernels as compiling
from xcray.errors import ParameterError, Unavailable
from xcray.service.app import create_app
from xcray.service.settings import Settings
from xcray.solvers import SOLVERS

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy" / "docker"
DOCKERFILE = DOCKER / "Dockerfile"
COMPOSE = ROOT / "deploy" / "compose.yaml"
EXTRAS = ("serve", "postgres", "telemetry", "sklearn", "ray", "ray-serve")
# Variables of the image and of compose.yaml.
OTHER_VARIABLES = {
    "XCRAY_KERNELS",
    "XCRAY_CPU",
    "XCRAY_BLAS",
    "XCRAY_IMAGE",
    "XCRAY_WORKER_CPUS",
}
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, PR_CAPBSET_DROP = 1, 2, 24


def statements(path: Path) -> list[tuple[str, str]]:
    """Return the statements of a Dockerfile with their continued lines.

    Example: [("FROM", "${PYTHON_IMAGE} AS packages"), ...].
    """
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [
        (line.split()[0].upper(), line.split(None, 1)[1].strip()) for line in lines if line.strip()
    ]


def statement_arguments(path: Path, word: str) -> list[str]:
    """Return the arguments of each statement with this keyword."""
    return [rest for name, rest in statements(path) if name == word]


def context() -> list[Path]:
    """Return the files of the checkout that `.dockerignore` includes in the build context."""
    rules = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    results = []
    for folder, folders, files in os.walk(ROOT):
        place = Path(folder).relative_to(ROOT)
        folders[:] = [name for name in folders if is_included(place / name, rules)]
        results += [place / name for name in files if is_included(place / name, rules)]
    return results


def is_included(path: Path, rules: list[str]) -> bool:
    """Return whether a path is included: the last rule for it or a parent folder decides."""
    out = True
    for rule in rules:
        pattern = rule.lstrip("!")
        above = [path, *path.parents][:-1]
        if any(fits(each.as_posix(), pattern) for each in above):
            out = rule.startswith("!")
    return out


def fits(path: str, pattern: str) -> bool:
    """Return whether a path matches Docker's pattern: `**/` matches any depth, `*` one folder."""
    if pattern.startswith("**/"):
        return fnmatch.fnmatchcase(path.rpartition("/")[2], pattern[3:])
    return path.count("/") == pattern.count("/") and fnmatch.fnmatchcase(path, pattern)


# The Dockerfile


def test_the_image_has_stages_and_a_plain_user() -> None:
    froms = statement_arguments(DOCKERFILE, "FROM")
    assert [each.split()[0] for each in froms] == ["${PYTHON_IMAGE}", "packages", "${PYTHON_IMAGE}"]
    assert statement_arguments(DOCKERFILE, "USER") == ["10001:10001"]
    words = [word for word, _ in statements(DOCKERFILE)]
    assert "ADD" not in words
    assert "ENTRYPOINT" not in words  # KubeRay and the chart set commands
    assert words[-2:] == ["HEALTHCHECK", "CMD"]
    last = words[len(words) - words[::-1].index("FROM") :]
    assert "pip" not in " ".join(
        rest
        for word, rest in statements(DOCKERFILE)[-len(last) :]
        if word == "RUN" and "install pip" in rest
    )
    assert statement_arguments(DOCKERFILE, "STOPSIGNAL") == ["SIGTERM"]


def test_commands_of_the_image_are_commands_of_xcray() -> None:
    check = statement_arguments(DOCKERFILE, "HEALTHCHECK")[0]
    commands = [
        json.loads(check[check.index("[") :]),
        json.loads(statement_arguments(DOCKERFILE, "CMD")[0]),
    ]
    assert commands == [["xcray", "health"], ["xcray", "serve"]]
    assert {"health", "serve", "compile-kernels"} <= cli.COMMANDS.keys()


def test_the_build_context_contains_exactly_the_copied_files() -> None:
    files = context()
    sources = [
        word
        for rest in statement_arguments(DOCKERFILE, "COPY")
        if "--from" not in rest
        for word in rest.split()[:-1]
    ]
    assert sources
    for source in sources:
        assert any(path == Path(source) or Path(source) in path.parents for path in files), source
    allowed = {"pyproject.toml", "README.md", "LICENSE", "xcray", "deploy"}
    assert {path.parts[0] for path in files} <= allowed
    assert {path.parts[1] for path in files if path.parts[0] == "deploy"} == {"docker"}
    assert not [
        path
        for path in files
        if "__pycache__" in path.parts or path.suffix in (".nbi", ".nbc", ".pyc", ".db", ".key")
    ]
    assert sum((ROOT / path).stat().st_size for path in files) < 8_000_000


def test_hadolint_finds_no_fault() -> None:
    program = shutil.which("hadolint") or shutil.which(
        "hadolint", path=str(Path(sys.executable).parent)
    )
    if program is None:
        without.say("hadolint", "only tests/deployment/test_image.py checked the Dockerfiles")
        return
    for path in (DOCKERFILE, ROOT / "deploy/ray/Dockerfile"):
        process = subprocess.run(
            [program, str(path)], capture_output=True, text=True, timeout=600, check=False
        )
        assert (process.returncode, process.stdout) == (0, "")


# Requirements


def pins(path: Path) -> dict[str, Requirement]:
    """Return the requirements of a pinned file by name, without their hashes."""
    joined = path.read_text().replace("\\\n", " ")
    results = [Requirement(line.split("--hash")[0]) for line in joined.splitlines() if line.strip()]
    return {canonicalize_name(each.name): each for each in results}


def requirements_of(extras: tuple[str, ...]) -> Iterator[Requirement]:
    """Yield the requirements of pyproject.toml, with these extras and those that they name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    yield from map(Requirement, project["dependencies"])
    for extra in extras:
        for each in map(Requirement, project["optional-dependencies"][extra]):
            if each.name == "xcray":
                yield from requirements_of(tuple(each.extras))
            else:
                yield each


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-build.txt"])
def test_every_requirement_is_one_version_with_hashes_and_no_host(name: str) -> None:
    text = (DOCKER / name).read_text()
    assert "://" not in text
    assert "--index-url" not in text
    assert "--find-links" not in text
    for line in text.replace("\\\n", " ").splitlines():
        assert re.fullmatch(
            r"[A-Za-z0-9_.-]+==[^ ;]+( ;[^-]+)?\s+(--hash=sha256:[0-9a-f]{64}\s*)+", line
        ), line[:80]


def test_pinned_versions_meet_the_requirements() -> None:
    pinned = pins(DOCKER / "requirements.txt")
    for each in requirements_of(EXTRAS):
        version = str(pinned[canonicalize_name(each.name)].specifier).removeprefix("==")
        assert each.specifier.contains(version), (
            f"{each} but {version}: run deploy/docker/update-requirements"
        )
    text = (DOCKER / "update-requirements").read_text()
    assert set(EXTRAS) <= set(re.findall(r"--extra ([a-z-]+)", text))


# Compose and Ray's launcher


def composed() -> dict[str, Any]:
    """Return the compose file."""
    document: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return document


def test_compose_is_valid_by_its_schema() -> None:
    schema = ("--builtin-schema", "vendor.compose-spec")
    command = [sys.executable, "-m", "check_jsonschema", *schema, str(COMPOSE)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.parametrize(
    "name",
    ["postgres", "setup", "api", "runner", "ray-head", "ray-worker", "prometheus", "grafana"],
)
def test_each_service_of_compose_is_isolated(name: str) -> None:
    service = composed()["services"][name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["init"]
    assert not service.keys() & {"privileged", "cap_add", "network_mode", "pid", "devices"}
    published = service.get("ports", [])
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert bool(published) == (name in ("api", "prometheus", "grafana"))
    secrets = {
        key: value
        for key, value in service.get("environment", {}).items()
        if re.search("PASSWORD|TOKEN|SECRET|KEY", key)
    }
    assert all(
        str(value).startswith("/run/secrets/") or key == "RAY_AUTH_MODE"
        for key, value in secrets.items()
    )
    assert service.get("healthcheck") or name in ("prometheus", "grafana")


def test_mounts_of_compose_exist() -> None:
    mounted = [
        volume
        for service in composed()["services"].values()
        for volume in service.get("volumes", [])
        if volume[0] == "."
    ]
    assert mounted
    for volume in mounted:
        assert (COMPOSE.parent / volume.split(":")[0]).exists(), volume
        assert volume.endswith(":ro")
    assert "/deploy/secrets/" in (ROOT / ".gitignore").read_text().split()


@pytest.mark.parametrize(
    "path", [COMPOSE, DOCKERFILE, ROOT / "deploy/ray/cluster.yaml"], ids=lambda path: path.name
)
def test_named_settings_exist(path: Path) -> None:
    known = {f"XCRAY_{name.upper()}" for name in Settings.model_fields} | OTHER_VARIABLES
    assert set(re.findall(r"\bXCRAY_[A-Z_]+", path.read_text())) <= known


def test_settings_of_compose_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("api", "runner"):
        for key, value in composed()["services"][name]["environment"].items():
            monkeypatch.setenv(key, str(value))
        settings = Settings()
        assert settings.has_shared_store
        assert settings.pool == "ray"
        assert settings.allowed_hosts == (name,)


def test_secrets_are_generated_once_and_are_keys(tmp_path: Path) -> None:
    script = tmp_path / "make-secrets"
    shutil.copy(ROOT / "deploy" / "make-secrets", script)
    texts = []
    for _ in range(2):
        subprocess.run(["sh", str(script)], check=True, timeout=600)
        texts.append({path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()})
    assert texts[0] == texts[1]
    assert set(texts[0]) == set(composed()["secrets"])
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    key = f"--secret-file {tmp_path}/secrets/admin_key"
    assert cli.main(f"keys create --scopes admin {key} --json".split()) == 0


def test_rays_launcher_accepts_its_cluster_file() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = yaml.safe_load((ROOT / "deploy/ray/cluster.yaml").read_text())
    validate_config(prepare_config(config))
    starts = [config["head_start_ray_commands"][-1], config["worker_start_ray_commands"][-1]]
    assert "--num-cpus=0" in starts[0]
    assert all("ray start" in start for start in starts)
    assert {"--read-only", "--cap-drop=ALL", "--env=RAY_AUTH_MODE=token"} <= set(
        config["docker"]["run_options"]
    )
    with pytest.raises(Exception, match="max_workerz"):
        validate_config(prepare_config({**config, "max_workerz": 3}))


# Kernels of a read-only image

PROBE = """
import json, sys
import numpy as np
from xcray import kernels
from xcray.kernels.training.products import scores
from xcray.kernels.random import mix
mix(np.uint64(1))
if sys.argv[1] == "more":
    from xcray.kernels.random import below
    below(np.uint64(1), 5)
hits = {str(sum(mix.stats.cache_hits.values())): sum(mix.stats.cache_misses.values())}
print(json.dumps({"hits": hits, "missed": kernels.unbaked_kernels()}))
"""


def as_a_plain_user() -> None:
    """Drop root's rights to ignore file permissions, in a new process."""
    if os.getuid() == 0 and sys.platform == "linux":
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            if prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "prctl")


def probed(what: str, **environment: str) -> dict[str, Any]:
    """Run PROBE in a new process without special rights and return its output."""
    process = subprocess.run(
        [sys.executable, "-c", PROBE, what],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,  # all kernels of a module are compiled
        check=False,
        preexec_fn=as_a_plain_user,
    )
    assert process.returncode == 0, process.stderr
    document: dict[str, Any] = json.loads(process.stdout)
    return document


def test_baked_kernels_are_loaded_from_a_read_only_folder(tmp_path: Path) -> None:
    baked, place = tmp_path / "baked", tmp_path / "place"
    assert probed("one", NUMBA_CACHE_DIR=str(baked))["hits"] == {"0": 1}  # compiled
    content = {path: path.read_bytes() for path in baked.rglob("*") if path.is_file()}
    for path in [*baked.rglob("*"), baked]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    image = {"XCRAY_KERNELS": str(baked), "NUMBA_CACHE_DIR": str(place)}
    assert probed("one", **image) == {"hits": {"1": 0}, "missed": []}
    assert all(path.is_symlink() for path in place.glob("*/*"))
    result = probed("more", **image)  # a kernel that was not baked is compiled and stored here
    assert result["hits"] == {"1": 0}
    assert [name for name in result["missed"] if name.startswith("random.below")]
    assert content == {path: path.read_bytes() for path in baked.rglob("*") if path.is_file()}
    for path in [*baked.rglob("*"), baked]:
        path.chmod(0o755)


LOOK = """
import json
from pathlib import Path
from xcray.cli.setup.doctor import check_disk
from xcray.cli.main import main
print(json.dumps([check_disk(Path.home() / ".xcray"), main(["keys", "list", "--json"])]))
"""


def test_an_unwritable_home_is_reported_with_the_fix(tmp_path: Path) -> None:
    """With a HOME of another user there is no traceback, and the doctor names the fix."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    process = subprocess.run(
        [sys.executable, "-c", LOOK],
        env={
            **{name: value for name, value in os.environ.items() if name != "XCRAY_HOME"},
            "HOME": str(closed),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        preexec_fn=as_a_plain_user,
    )
    closed.chmod(0o700)
    (_, status, _, fix), code = json.loads(process.stdout)
    assert (status, code) == ("fail", 1)
    document = json.loads(process.stderr)
    assert document["code"] == "HOME"
    assert "XCRAY_HOME" in fix
    assert "XCRAY_HOME" in document["hint"]


def test_a_second_process_keeps_the_links_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "baked").mkdir()
    (tmp_path / "baked" / "a.nbi").write_text("1")
    target = tmp_path / "place"
    target.mkdir()
    (target / "kept").write_text("mine")
    kernels.link_all(tmp_path / "baked", target)
    assert sorted(path.name for path in target.iterdir()) == ["kept"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".links-")] == []
    with pytest.raises(FileNotFoundError):
        kernels.link_all(tmp_path / "none", tmp_path / "other")


def test_an_unsupported_processor_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    import llvmlite.binding as llvm

    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: dict.fromkeys(kernels.V2, True))
    kernels.check_processor("x86-64-v2")
    kernels.check_processor("generic")
    with pytest.raises(Unavailable, match="lacks avx, avx2, bmi") as caught:
        kernels.check_processor("x86-64-v3")
    assert caught.value.code == "PROCESSOR"
    assert "XCRAY_CPU" in (caught.value.hint or "")


def test_all_solvers_are_compiled() -> None:
    named = {SOLVERS[training.solver] for training in compiling.trainings().values()}
    assert [
        name
        for name, solver in SOLVERS.items()
        if not any(issubclass(solver, each) for each in named)
    ] == []


# `xcray health`


def test_health_of_a_running_and_a_stopped_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(health, "TIMEOUT_SECONDS", PATIENCE)
    monkeypatch.setenv("XCRAY_HOME", str(tmp_path))
    assert health.find_endpoints(None) == [("127.0.0.1", 8000)]
    with serving(create_app(settings_for(tmp_path / "home"))) as url:
        port = url.rpartition(":")[2]
        assert cli.main(["health", "--port", port]) == 0
        (tmp_path / "runner.json").write_text(json.dumps({"url": url}))
        assert cli.main(["health"]) == 0
        assert f"127.0.0.1:{port} returned 200" in capsys.readouterr().out
        (tmp_path / "runner.json").unlink()
        monkeypatch.setenv("XCRAY_PORT", port)
        monkeypatch.setenv("XCRAY_HOST", "0.0.0.0")
        assert cli.main(["health", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["answers"] == {f"127.0.0.1:{port}": "200"}
        monkeypatch.setenv("XCRAY_PORT", "0")
        monkeypatch.setenv("XCRAY_RUNNER_PORT", port)
        assert cli.main(["health", "--ready"]) == 0
    assert cli.main(["health"]) == 1
    assert "no response (ConnectionRefusedError)" in capsys.readouterr().out


def test_health_without_a_service(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as silent:  # accepts the connection but sends nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setattr(health, "TIMEOUT_SECONDS", 0.2)
        assert cli.main(["health", "--port", str(silent.getsockname()[1])]) == 1
    monkeypatch.setenv("XCRAY_PORT", "80a")
    assert cli.main(["health"]) == 2
    with pytest.raises(ParameterError, match="XCRAY_PORT"):
        health.find_endpoints(None)
