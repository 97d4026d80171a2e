"""The code blocks of README and docs run: Python as it is printed, tutorials command by command."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from scipy.sparse import random
from sklearn.svm import LinearSVC

from tests.support.live_service import publish, serving, settings_for
from tests.support.missing_tools import say
from tests.support.printed import ROOT
from tests.support.service_processes import no_jobs_left, process, read_process_file
from xcray import Model, Predictor, TrainSpec, train
from xcray.data.build import BuildOptions, build
from xcray.model.registry import Registry
from xcray.service.app import create_app

PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
YAML = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r'^```\w+ title="([\w.]+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)
TUTORIALS = [ROOT / "docs" / "tutorials" / f"{name}.md" for name in ("cluster", "own_csv")]
PAGES = (
    "README.md",
    "docs/coming_from.md",
    "docs/ds-mlr.md",
    "docs/measures.md",
    "docs/predicting.md",
    "docs/thresholds.md",
)


def values_of(page: str, folder: Path) -> dict[str, Any]:
    """Return what the blocks of a page use and do not make."""
    X = random(60, 20, 0.3, "csr", np.float32, random_state=1)
    Y = random(60, 5, 0.3, "csr", np.float32, random_state=2).ceil()
    if page == "docs/predicting.md":
        return predicting_values(folder)
    if page == "docs/thresholds.md":
        predicting_values(folder)
    if page == "docs/coming_from.md":
        y, frame = np.arange(60) % 3, {"text": ["a red apple"], "labels": [["fruit"]]}
        names = [f"word{j}" for j in range(20)]
        (folder / "model").mkdir()
        (folder / "model" / "weights.bin").write_bytes(napkinxc_weights())
        return {
            "n_features": 2,
            "classifier": LinearSVC().fit(X, y),
            "names": names,
            "frame": pa.table(frame),
        }
    if page == "docs/ds-mlr.md":
        return {"X": X, "y": np.arange(60) % 3}
    return {"X": X, "Y": Y, "X_new": X[:4], "X_test": X[:10], "Y_test": Y[:10]}


def napkinxc_weights() -> bytes:
    """Return a file of three labels: dense, sparse with the negative class first, in all rows."""
    dense = struct.pack("<iiiQQQQ?4f?", 2, 1, 0, 4, 4, 4, 4, False, 0.0, 0.5, 2.0, 0.0, False)
    sparse = struct.pack("<iiiQQQQ?ifif?", 2, 0, 0, 4, 4, 4, 2, True, 1, 0.25, 3, -4.0, False)
    return struct.pack("<i", 3) + dense + sparse + struct.pack("<iii", 1, 1, 0)


def predicting_values(folder: Path) -> dict[str, Any]:
    """Return rows, a registry and a softmax predictor; write a calibrated model of texts."""
    labels, lines = ("csv", "json", "art", "music"), []
    for i in range(2000):
        label = labels[i % 4] if i % 7 else labels[i % 3]  # some labels are wrong
        lines.append(
            {
                "id": str(i),
                "text": f"read rows {labels[i % 4]} word{i % 89} word{i % 97}",
                "labels": [label],
            }
        )
    (folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = BuildOptions(test_fraction=0.5)
    data = build("jsonl", {"train": folder / "rows.jsonl"}, folder / "data", options)
    for out, more in (("model", {"calibrate": True}), ("softmax", {"solver": "dsmlr"})):
        spec = TrainSpec(dataset=str(folder / "data"), pool="serial", **more)
        train(spec, run_dir=folder / f"{out}-run", out=folder / out)
    registry = Registry(folder / "registry")
    shutil.copytree(folder / "model", folder / "staged")
    registry.publish("docs", folder / "staged")
    softmax = Predictor(Model.open(folder / "softmax"))
    return {"rows": data.test.X.to_scipy()[:3], "registry": registry, "softmax": softmax}


@pytest.mark.parametrize("page", PAGES)
def test_the_python_blocks_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = values_of(page, tmp_path)
    blocks = PYTHON.findall((ROOT / page).read_text())
    assert blocks
    app = create_app(settings_for(tmp_path / "home"))
    publish(app.state.app_state.registry, "pydocs", tmp_path / "served")
    with serving(app) as url:
        for block in blocks:
            if "log_normaliser" in block:  # of softmax models
                values["predictor"] = values["softmax"]
            exec(compile(block.replace("http://127.0.0.1:8000", url), page, "exec"), values)
    if page == "docs/coming_from.md":  # the weights of napkinXC
        assert values["b"].tolist() == [0.5, -0.25, 10.0]
        assert values["W"].toarray().tolist() == [[2.0, 0.0], [0.0, 4.0], [0.0, 0.0]]


def test_yaml_blocks_can_be_read() -> None:
    blocks = [
        (path.name, block)
        for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))
        for block in YAML.findall(path.read_text())
    ]
    assert "serving.md" in {page for page, _ in blocks}
    for page, block in blocks:
        assert isinstance(yaml.safe_load(block), dict | list), page


def test_every_page_with_python_blocks_is_run() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))
        if PYTHON.search(path.read_text())
    }
    assert found == set(PAGES)


@pytest.mark.drill
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda path: path.stem)
def test_the_commands_of_a_tutorial_run_in_order(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    for name, content in FILE.findall(text):
        (tmp_path / name).write_text(content)
    shown = ""
    for line in re.findall(r"^    xcray (.+)$", text, re.MULTILINE):
        if "HEAD:" in line:  # another machine
            continue
        command = [sys.executable, "-c", "from xcray.cli.main import main; main()"]
        words = re.findall(r'"[^"]*"|\S+', line)
        ran = subprocess.run(
            [*command, *(word.strip('"') for word in words)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, (line, ran.stderr)
        shown += ran.stdout
    shown_words = {"own_csv": "paper", "cluster": "the same"}
    assert shown_words[page.stem] in shown


@pytest.mark.drill
def test_the_lines_of_the_tour_with_curl_run_in_order(tmp_path: Path) -> None:
    programs = {name: shutil.which(name) for name in ("bash", "curl", "jq")}
    if missing := [name for name, path in programs.items() if path is None]:
        say(", ".join(missing), "the lines of docs/tour_with_curl.md were only read by the parser")
        return
    text = (ROOT / "docs" / "tour_with_curl.md").read_text()
    for name, content in FILE.findall(text):
        (tmp_path / name).write_text(content)
    lines = re.findall(r"^    (\S.*)$", text, re.MULTILINE)
    assert sum(line.startswith("curl") for line in lines) > 12
    home = tmp_path / "home"
    with no_jobs_left(home), process(home, "serve") as child:
        url = read_process_file(home, child, "serve")["url"]
        script = "\n".join(["set -e -o pipefail", *lines]).replace("http://127.0.0.1:8000", url)
        ran = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=1800
        )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr
    assert ran.stdout.count('"status": "SUCCEEDED"') == 2  # a stream of events, and the job
    assert '"exact": true' in ran.stdout
    assert '"prod": 3' in ran.stdout
    assert "questions-2/manifest.json" in ran.stdout
    assert ran.stdout.rstrip().endswith("204")
