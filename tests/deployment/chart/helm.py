"""Rendering the chart: by the helm programs of this machine, or, where there is none, from what was
rendered last and committed.

Helm 3 and helm 4 are looked for as `helm3` and `helm4` in build/tools (`python -m
tests.deployment.chart.fetch build/tools`), then on PATH, where a plain `helm` counts as what it
says it is.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.support.missing_tools import say

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm" / "xcray"
TOOLS = ROOT / "build" / "tools"
RENDERED = Path(__file__).parent / "rendered"
SECONDS = 120
KUBE = "1.30.0"
APIS = (
    "monitoring.coreos.com/v1",
    "gateway.networking.k8s.io/v1",
    "ray.io/v1",
)  # what the cluster offers beside Kubernetes
RELEASE, NAMESPACE = "xcray", "ml"
# characters of a ConfigMap's value that are committed; of longer ones (dashboards) a checksum
LONGEST_DATA = 4000

Objects = list[dict[str, Any]]


class Refused(Exception):
    """Helm did not render; its text says why."""


class Rendering(NamedTuple):
    """What came out: objects in order, and where from ("helm4", or "committed")."""

    objects: Objects
    source: str


class _Loader(yaml.CSafeLoader):
    """YAML as Kubernetes reads it: a key that comes twice is an error."""


def _unique(loader: _Loader, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    if doubled := [key for key in keys if keys.count(key) > 1]:
        raise yaml.constructor.ConstructorError(
            None, None, f"keys that come twice: {sorted(set(doubled))}", node.start_mark
        )
    return yaml.CSafeLoader.construct_mapping(loader, node, deep=deep)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique)


def read(text: str) -> Objects:
    """The objects of a manifest. Raises yaml.YAMLError, also for doubled keys."""
    return [document for document in yaml.load_all(text, Loader=_Loader) if document]


def plain(value: Any) -> Any:
    """Without YAML's aliases, so that objects may be changed one by one."""
    return json.loads(json.dumps(value))


@functools.cache
def helms() -> dict[str, str]:
    """The programs that are here: {"helm3": path, "helm4": path}, either may lack."""
    found: dict[str, str] = {}
    for name in ("helm3", "helm4", "helm"):
        path = TOOLS / name
        program = str(path) if path.is_file() else shutil.which(name)
        if program is None:
            continue
        said = subprocess.run(
            [program, "version", "--short"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        ).stdout
        found.setdefault(f"helm{said.strip().lstrip('v')[0]}", program)
    return {name: found[name] for name in sorted(found) if name in ("helm3", "helm4")}


def values_files() -> dict[str, Path]:
    """What is rendered everywhere, by name. `minimal` is the chart as it is."""
    return {
        path.stem.removesuffix("-values"): path
        for path in sorted((CHART / "ci").glob("*-values.yaml"))
    }


def run(program: str, *words: str) -> str:
    """What helm says. Raises Refused."""
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        raise Refused(done.stderr.strip())
    return done.stdout


@functools.cache
def template(helm: str, name: str, release: str = RELEASE, apis: tuple[str, ...] = APIS) -> str:
    """`helm template` for a file of `values_files`, tests and hooks too. Raises Refused."""
    path = values_files()[name]
    words = ["template", release, str(CHART), "--namespace", NAMESPACE, "--kube-version", KUBE]
    words += [word for api in apis for word in ("--api-versions", api)]
    return run(helms()[helm], *words, "--values", str(path))


def template_values(
    values: dict[str, Any], release: str = RELEASE, helm: str | None = None
) -> Objects:
    """The objects for any values, by the newest helm. Raises Refused."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values, file)
        file.flush()
        words = [
            "template",
            release,
            str(CHART),
            "--namespace",
            NAMESPACE,
            "--kube-version",
            KUBE,
            "--values",
            file.name,
        ]
        words += [word for api in APIS for word in ("--api-versions", api)]
        return read(run(helms()[helm or newest()], *words))


def newest() -> str:
    """The name of the newest helm that is here; there must be one."""
    return max(helms())


def chart_files() -> Iterator[Path]:
    """Every file that a rendering depends on."""
    for path in sorted(CHART.rglob("*")):
        if path.is_file() and path.suffix != ".md" and not path.name.startswith("."):
            yield path


def chart_hash() -> str:
    """One checksum of all of them."""
    total = hashlib.sha256()
    for path in chart_files():
        total.update(
            f"{path.relative_to(CHART)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()
        )
    return total.hexdigest()


def normal(objects: Objects) -> Objects:
    """As they are committed: a made-up key is replaced by one that is none, long data by its
    checksum.
    """
    out = plain(objects)
    for each in out:
        if each["kind"] == "Secret":
            each["data"] = {name: _made_up(value) for name, value in each.get("data", {}).items()}
        if each["kind"] == "ConfigMap":
            each["data"] = {name: _short(value) for name, value in each.get("data", {}).items()}
    return out


def _made_up(value: str) -> str:
    text = base64.b64decode(value).decode()
    assert re.fullmatch(r"xck_[a-z]{20}_[A-Za-z0-9]{43}", text), (
        "a Secret of the chart holds something else than a made-up key"
    )
    return base64.b64encode(f"xck_{'a' * 20}_{'0' * 43}".encode()).decode()


def _short(value: str) -> str:
    return (
        value
        if len(value) <= LONGEST_DATA
        else f"sha256:{hashlib.sha256(value.encode()).hexdigest()}"
    )


def committed(name: str) -> Path:
    """The file of what was rendered last."""
    return RENDERED / f"{name}.yaml"


def manifest(name: str) -> str:
    """The text that is committed for a values file."""
    objects = normal(read(template(newest(), name)))
    head = f"# Rendered by `python -m tests.deployment.chart.render` from helm/xcray; not to be edited.\n# chart: sha256:{chart_hash()}\n"
    return head + yaml.safe_dump_all(objects, sort_keys=True, width=132, explicit_start=True)


@functools.cache
def _rendering(name: str) -> str:
    if helms():
        return newest()
    say(
        "helm",
        f"the chart's manifests were checked as they were rendered last ({_age(name)}); refusals were not played",
    )
    return "committed"


def _age(name: str) -> str:
    current = f"# chart: sha256:{chart_hash()}" in committed(name).read_text().splitlines()
    return "from this state of the chart" if current else "from an OLDER state of the chart"


@functools.cache
def _text(name: str) -> str:
    source = _rendering(name)
    text = committed(name).read_text() if source == "committed" else template(source, name)
    return json.dumps(read(text))


def rendering(name: str) -> Rendering:
    """The objects of a values file: fresh from helm, or the committed ones. Callers may change
    them.
    """
    return Rendering(json.loads(_text(name)), _rendering(name))
