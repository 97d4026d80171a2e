"""Common parts of all benchmarks: arguments, data sets by name, the machine, and the JSON line."""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from xcray.arrays import csr_from, pattern
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.data.readers.options import ReadOptions
from xcray.data.writer import DatasetWriter


def arguments(description: str, **extra: dict[str, Any]) -> argparse.Namespace:
    """Parse --data, --json, --picture and `extra` (name -> arguments of add_argument)."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--data", type=Path, help="directory of data sets, each with train.txt.xz and test.txt.xz"
    )
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    parser.add_argument("--picture", type=Path, help="also draw a PNG")
    for name, options in extra.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **options)
    return parser.parse_args()


def dataset(name: str, data: Path | None, folder: Path) -> Dataset:
    """Return the data set `name` in `folder`, built if missing.

    pydocs and synthetic are generated. The others are read from `data`/NAME, which holds
    train.txt.xz and test.txt.xz, or NAME.npz with images.
    """
    target = folder / name.replace("_", "-")
    if target.exists():
        return Dataset.open(target)
    if name in ("pydocs", "synthetic"):
        return build(name, {}, target, BuildOptions(test_fraction=0.1))
    if data is None:
        raise SystemExit(f"set {name} needs --data DIR, a directory with {name}/train.txt.xz")
    if (data / name / f"{name}.npz").exists():
        return images(name, data / name / f"{name}.npz", target)
    sources = {part: data / name / f"{part}.txt.xz" for part in ("train", "test")}
    return build("xc", sources, target, BuildOptions(read=ReadOptions()))


def images(name: str, path: Path, target: Path) -> Dataset:
    """Build a data set of grey images from X_train, y_train, X_test, y_test.

    Each pixel is a feature from 0 to 1, each class a label.
    """
    arrays = np.load(path)
    n_labels = int(arrays["y_train"].max()) + 1
    with DatasetWriter(target, name=name, n_labels=n_labels) as writer:
        for part in ("train", "test"):
            pixels = arrays[f"X_{part}"].reshape(len(arrays[f"X_{part}"]), -1) / np.float32(255.0)
            classes = arrays[f"y_{part}"]
            writer.add(
                part, csr_from(pixels), pattern(np.arange(len(classes) + 1), classes, n_labels)
            )
        return writer.finish(source={"format": "npz", "files": {"train": path.name}})


def machine() -> dict[str, Any]:
    """Return a description of the machine that runs the benchmark."""
    return {
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "processor": platform.machine(),
    }


def in_folder(run: Callable[[Path], dict[str, Any]], out: Path | None) -> None:
    """Run in a temporary folder and print the result as the last line, also into the file `out`."""
    before = machine()
    with tempfile.TemporaryDirectory(prefix="xcray-bench-") as folder:
        result = {"machine": before, **run(Path(folder))}
    text = json.dumps(result, sort_keys=True)
    if out is not None:
        out.write_text(text + "\n")
    print(text)
