"""The frame of all benchmarks: options, data sets, services, turns, medians, tables, the JSON line.

A benchmark is a function `measure(options, folder)` that returns figures. `run_benchmark` parses
the options, calls it with a temporary folder, draws the picture, and prints the figures as one JSON
object, the last line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from xcray.arrays import csr_from, pattern
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import MANIFEST, Dataset
from xcray.data.readers.options import ReadOptions
from xcray.data.writer import DatasetWriter

SERVE = "import sys; from xcray.cli.main import main; sys.exit(main(sys.argv[1:]))"
Measure = Callable[[argparse.Namespace, Path], dict[str, Any]]
Draw = Callable[[dict[str, Any], Path], None]


def arguments(
    description: str, quick: Mapping[str, Any], **extra: dict[str, Any]
) -> argparse.Namespace:
    """Parse --data, --json, --quick and `extra` (name -> arguments of add_argument).

    quick: defaults of `extra` that --quick replaces, for a run of seconds.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, help="directory of data sets, each with train.txt.xz and test.txt.xz"
    )
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    parser.add_argument("--quick", action="store_true", help="small data and few repeats: seconds")
    for name, options in extra.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **options)
    if parser.parse_args().quick:
        parser.set_defaults(**quick)
    return parser.parse_args()


def run_benchmark(
    measure: Measure,
    description: str | None,
    /,
    *,
    draw: Draw | None = None,
    quick: Mapping[str, Any] | None = None,
    **extra: dict[str, Any],
) -> None:
    """Run a benchmark in a temporary folder and print its figures, one JSON object, as last line.

    measure: its figures may have `wrong`, a list of sentences; the exit status is 1 if there are
    any. draw: called with the figures and the file of --picture. quick, extra: see `arguments`.
    """
    if draw is not None:
        extra["picture"] = {"type": Path, "help": "also draw a PNG"}
    options = arguments(description or "", quick or {}, **extra)
    before = machine()
    with tempfile.TemporaryDirectory(prefix="xcray-bench-") as folder:
        figures = measure(options, Path(folder))
    if draw is not None and options.picture is not None:
        draw(figures, options.picture)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # of all that was compared
    text = json.dumps({"machine": before, "peak_bytes": peak, **figures}, sort_keys=True)
    if options.json is not None:
        options.json.write_text(text + "\n")
    for sentence in figures.get("wrong", ()):
        print(f"WRONG: {sentence}")
    print(text)
    if figures.get("wrong"):
        raise SystemExit(1)


def machine() -> dict[str, Any]:
    """Return a description of the machine that runs the benchmark."""
    return {
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "processor": platform.machine(),
    }


def in_turns(
    methods: Mapping[str, Callable[[], dict[str, Any]]], repeats: int
) -> dict[str, dict[str, Any]]:
    """Call all methods in turn, `repeats` times, and return the medians of the figures of each.

    The order is reversed in every other turn, so that a change of the machine's load affects all.
    """
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in methods}
    for turn in range(repeats):
        for name in list(methods)[:: -1 if turn % 2 else 1]:
            turns[name].append(methods[name]())
    return {name: medians(each) for name, each in turns.items()}


def medians(turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each figure over the turns; `statuses` are summed."""
    out: dict[str, Any] = {}
    for name, value in turns[0].items():
        values = [turn[name] for turn in turns if name in turn]
        if name == "statuses":
            statuses = sorted({status for each in values for status in each})
            out[name] = {status: sum(each.get(status, 0) for each in values) for status in statuses}
        elif isinstance(value, dict):
            out[name] = medians(values)
        elif isinstance(value, int | float):
            out[name] = round(float(median(values)), 4)
        else:
            out[name] = value
    return out


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Return rows as text with aligned columns; figures have four significant digits."""
    cells = [list(columns), *([_cell(row.get(name)) for name in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    )


def _cell(value: Any) -> str:
    """Return a figure as text."""
    if value is None:
        return "-"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def dataset(name: str, data: Path | None, folder: Path) -> Dataset:
    """Return the data set `name` in `folder`, built if missing.

    pydocs and synthetic are generated. The others are read from `data`/NAME, which is a data set
    (of `xcray data fetch`), or holds train.txt.xz and test.txt.xz, or NAME.npz with images.
    """
    target = folder / name.replace("_", "-")
    if target.exists():
        return Dataset.open(target)
    if name in ("pydocs", "synthetic"):
        return build(name, {}, target, BuildOptions(test_fraction=0.1))
    if data is None:
        raise SystemExit(f"set {name} needs --data DIR, a directory with {name}/train.txt.xz")
    if (data / name / MANIFEST).is_file():
        return Dataset.open(data / name)
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


@contextlib.contextmanager
def service(
    home: Path, workers: int, settings: Mapping[str, str], cores: set[int] | None = None
) -> Iterator[tuple[str, psutil.Process]]:
    """Start `xcray serve` as in production, logs to a file; yield its URL and process.

    settings: environment variables of the service, which has no others named XCRAY_*. cores: those
    it may use; None: all.
    """
    (home / "serve.json").unlink(missing_ok=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("XCRAY_")}
    command = [sys.executable, "-c", SERVE, "serve", "--home", str(home), "--port", "0"]
    command += ["--processes", str(workers)]
    with open(home / "serve.log", "ab") as log:
        process = subprocess.Popen(command, env={**clean, **settings}, stdout=log, stderr=log)
        if cores:
            os.sched_setaffinity(process.pid, cores)
        try:
            while not (home / "serve.json").is_file():
                if process.poll() is not None:
                    raise SystemExit((home / "serve.log").read_text()[-2000:])
                time.sleep(0.05)
            yield json.loads((home / "serve.json").read_text())["url"], psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
