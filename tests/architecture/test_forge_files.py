"""Files that a public forge and citation managers read: their schemas, commands and version."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest
import yaml

import xcray
from tests.support.printed import ROOT

FILES = {
    ".github/workflows/*.yml": "vendor.github-workflows",
    ".github/ISSUE_TEMPLATE/*.yml": "vendor.github-issue-forms",
    "CITATION.cff": "vendor.citation-file-format",
}


@pytest.mark.parametrize("pattern", FILES)
def test_files_follow_their_schema(pattern: str) -> None:
    paths = sorted(ROOT.glob(pattern))
    assert paths
    ran = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", FILES[pattern], *paths],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_workflows_call_commands_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        jobs = yaml.safe_load(path.read_text())["jobs"].values()
        for command in [step["run"] for job in jobs for step in job["steps"] if "run" in step]:
            for verb in re.findall(r"\bmake (\w+)", command):
                assert f"\n{verb}:" in makefile, verb
            for script in re.findall(r"\bbash (\S+)", command):
                assert (ROOT / script).is_file(), script


def test_there_is_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" in project["dynamic"]  # read from xcray/__init__.py
    version = xcray.__version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert yaml.safe_load((ROOT / "helm/xcray/Chart.yaml").read_text())["appVersion"] == version
    assert f"ARG VERSION={version}\n" in (ROOT / "deploy/docker/Dockerfile").read_text()
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
