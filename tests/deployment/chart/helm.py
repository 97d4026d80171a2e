"""Rendering of the chart by the helm programs of this machine.

Helm 3 and helm 4 are searched as `helm3` and `helm4` in build/tools (`python -m
tests.deployment.chart.fetch build/tools`), then on PATH. The version of a plain `helm` on PATH is
queried. Without helm, tests of rendered objects are skipped, and the summary of the run says so.
"""

from __future__ import annotations

import base64
import functools
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.missing_tools import say

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm" / "xcray"
TOOLS = ROOT / "build" / "tools"
SECONDS = 600  # only detects a hang
KUBE = "1.30.0"
# APIs of the cluster in addition to those of Kubernetes.
APIS = (
    "monitoring.coreos.com/v1",
    "gateway.networking.k8s.io/v1",
    "ray.io/v1",
)
RELEASE, NAMESPACE = "xcray", "ml"

Objects = list[dict[str, Any]]


class Refused(Exception):
    """Helm did not render; the message gives the reason."""


class _Loader(yaml.CSafeLoader):
    """YAML as Kubernetes reads it: a duplicate key is an error."""


def _unique(loader: _Loader, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    if doubled := [key for key in keys if keys.count(key) > 1]:
        raise yaml.constructor.ConstructorError(
            None, None, f"duplicate keys: {sorted(set(doubled))}", node.start_mark
        )
    return yaml.CSafeLoader.construct_mapping(loader, node, deep=deep)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique)


def read(text: str) -> Objects:
    """Return the objects of a manifest. Raises yaml.YAMLError, also for duplicate keys."""
    return [document for document in yaml.load_all(text, Loader=_Loader) if document]


def plain(value: Any) -> Any:
    """Copy a value without YAML's aliases, so that objects can be changed one by one."""
    return json.loads(json.dumps(value))


@functools.cache
def helms() -> dict[str, str]:
    """Return the available programs, {"helm3": path, "helm4": path}; either can be missing."""
    results: dict[str, str] = {}
    for name in ("helm3", "helm4", "helm"):
        path = TOOLS / name
        program = str(path) if path.is_file() else shutil.which(name)
        if program is None:
            continue
        process = subprocess.run(
            [program, "version", "--short"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        ).stdout
        results.setdefault(f"helm{process.strip().lstrip('v')[0]}", program)
    return {name: results[name] for name in sorted(results) if name in ("helm3", "helm4")}


def values_files() -> dict[str, Path]:
    """Return the values files that are rendered, by name. `minimal` has only the defaults."""
    return {
        path.stem.removesuffix("-values"): path
        for path in sorted((CHART / "ci").glob("*-values.yaml"))
    }


def run(program: str, *words: str) -> str:
    """Run helm and return its output. Raises Refused if it fails."""
    process = subprocess.run([program, *words], capture_output=True, text=True, timeout=SECONDS)
    if process.returncode:
        raise Refused(process.stderr.strip())
    return process.stdout


@functools.cache
def template(helm: str, name: str, release: str = RELEASE, apis: tuple[str, ...] = APIS) -> str:
    """Return `helm template` for a file of `values_files`, with tests and hooks. Raises Refused."""
    return _template(helm, release, str(values_files()[name]), apis)


def _template(helm: str, release: str, file: str, apis: tuple[str, ...] = APIS) -> str:
    words = ["template", release, str(CHART), "--namespace", NAMESPACE, "--kube-version", KUBE]
    words += [word for api in apis for word in ("--api-versions", api)]
    return run(helms()[helm], *words, "--values", file)


def template_values(
    values: dict[str, Any], release: str = RELEASE, helm: str | None = None
) -> Objects:
    """Return the objects for any values, by the newest helm. Raises Refused."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values, file)
        file.flush()
        return read(_template(helm or newest(), release, file.name))


def newest() -> str:
    """Return the name of the newest available helm. Raises ValueError if there is none."""
    return max(helms())


def normal(objects: Objects) -> Objects:
    """Return objects with every generated key replaced by a fixed one."""
    out = plain(objects)
    for each in out:
        if each["kind"] == "Secret":
            each["data"] = {name: _made_up(value) for name, value in each.get("data", {}).items()}
    return out


def _made_up(value: str) -> str:
    text = base64.b64decode(value).decode()
    assert re.fullmatch(r"xck_[a-z]{20}_[A-Za-z0-9]{43}", text), (
        "a Secret of the chart holds something else than a made-up key"
    )
    return base64.b64encode(f"xck_{'a' * 20}_{'0' * 43}".encode()).decode()


@functools.cache
def _text(name: str) -> str:
    return json.dumps(read(template(newest(), name)))


def rendering(name: str) -> Objects:
    """Return the objects of a values file, rendered by the newest helm. Callers can change them.

    Without helm the calling test is skipped.
    """
    if not helms():
        say("helm", "no object of the chart was rendered")
        pytest.skip("helm is missing: python -m tests.deployment.chart.fetch build/tools")
    loaded: Objects = json.loads(_text(name))
    return loaded


def available() -> list[str]:
    """Return the available helms; without helm, `rendering` skips the test."""
    if not helms():
        rendering("minimal")
    return sorted(helms())
