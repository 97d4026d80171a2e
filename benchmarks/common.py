"""What every benchmark does the same way: arguments, data sets by name, the machine, the last line."""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.data.options import ReadOptions


def arguments(description: str, **extra: dict[str, Any]) -> argparse.Namespace:
    """--data, --json, --picture and what `extra` adds (name -> options of add_argument)."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, help="directory of data sets, each with train.txt.xz and test.txt.xz")
    parser.add_argument("--json", type=Path, help="write the result here too")
    parser.add_argument("--picture", type=Path, help="write a PNG here")
    for name, options in extra.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **options)
    return parser.parse_args()


def dataset(name: str, data: Path | None, folder: Path) -> Dataset:
    """The data set called `name`: built from `data`/NAME, or made: pydocs and synthetic need no data."""
    target = folder / name.replace("_", "-")
    if name in ("pydocs", "synthetic"):
        return build(name, {}, target, BuildOptions(test_fraction=0.1))
    if data is None:
        raise SystemExit(f"set {name} needs --data DIR, a directory that holds {name}/train.txt.xz")
    sources = {part: data / name / f"{part}.txt.xz" for part in ("train", "test")}
    return build("xc", sources, target, BuildOptions(read=ReadOptions()))


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "processor": platform.machine(),
    }


def in_folder(run: Callable[[Path], dict[str, Any]], out: Path | None) -> None:
    """Run in a temporary folder, print the result as the last line, and write it to `out` if given."""
    before = machine()
    with tempfile.TemporaryDirectory(prefix="xcray-bench-") as folder:
        result = {"machine": before, **run(Path(folder))}
    text = json.dumps(result, sort_keys=True)
    if out is not None:
        out.write_text(text + "\n")
    print(text)
