"""Time profile of a query down to the lines of the kernels, from `perf` samples and debug tables.

`python -m benchmarks.search.profile FILE.svg [--models DIR --only NAME] [--engine scan] [--k 5]`
runs an engine in a separate process, whose kernels are compiled with line tables (at the same
speed), records it with `perf record`, and draws the result. Each level is a row of blocks, as wide
as their share of the time: part of the system, kernel, function, line. It needs Linux with perf,
and nm and addr2line (binutils).
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.search.models import Subject, row, subjects
from xcray.index.inverted import InvertedIndex
from xcray.predict import Predictor

ROOT = Path(__file__).parents[2]
RATE = 1999  # samples per second; a prime avoids aliasing with the work
Place = tuple[str, ...]


def child(chosen: argparse.Namespace, folder: Path) -> None:
    """Warm up, write the list of kernels, report ready, and answer queries until the time is up."""
    subject = next(iter(subjects(chosen.models, chosen.pydocs, chosen.only, 500, folder)))
    predictor = Predictor(subject.model)
    engine: Any = predictor.model.search
    if chosen.engine == "scan":
        engine = InvertedIndex(subject.model.W, subject.model.postings, subject.model.b)
    rows = [row(subject.X, i) for i in range(subject.X.n_rows)]
    for x in rows[:50]:
        engine.query(x, chosen.k)
    (folder / "kernels.json").write_text(json.dumps(kernels(folder)))
    print(title_of(subject), flush=True)
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < chosen.seconds + 1:
        for x in rows:
            engine.query(x, chosen.k)
        done += len(rows)
    print(json.dumps({"queries": done, "seconds": time.perf_counter() - began}), flush=True)


def title_of(subject: Subject) -> str:
    """Return a title."""
    return f"{subject.name}: {subject.model.n_labels:,} labels, {subject.model.nnz:,} weights"


def kernels(folder: Path) -> list[dict[str, Any]]:
    """Return each compiled kernel of this process: name, address, and file of its machine code."""
    from numba.core.registry import CPUDispatcher

    out = []
    modules = [
        module for name, module in list(sys.modules.items()) if name.startswith("xcray.kernels.")
    ]
    results = {
        id(thing): thing
        for module in modules
        for thing in vars(module).values()
        if isinstance(thing, CPUDispatcher)
    }
    for dispatcher in results.values():
        for compiled in dispatcher.overloads.values():
            symbol, library = compiled.fndesc.mangled_name, compiled.library
            path = folder / f"{len(out)}.o"
            path.write_bytes(library._get_compiled_object())
            name = f"{dispatcher.py_func.__module__.split('.')[-1]}.{dispatcher.py_func.__name__}"
            out.append(
                {
                    "name": name,
                    "symbol": symbol,
                    "at": library.get_pointer_to_function(symbol),
                    "object": str(path),
                }
            )
    return out


def watched(
    chosen: argparse.Namespace, folder: Path
) -> tuple[str, dict[str, Any], list[tuple[int, str]]]:
    """Return the title, the report of the child, and the samples.

    A sample is an address and the name of the file mapped there.
    """
    command = [
        sys.executable,
        "-m",
        "benchmarks.search.profile",
        *sys.argv[1:],
        "--child",
        str(folder),
    ]
    environment = {**os.environ, "NUMBA_DEBUGINFO": "1", "NUMBA_CACHE_DIR": str(folder / "cache")}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        title = process.stdout.readline().strip()
        data = str(folder / "perf.data")
        record = [
            "perf",
            "record",
            "-q",
            "-e",
            "cpu-clock:u",
            "-F",
            str(RATE),
            "-p",
            str(process.pid),
            "-o",
            data,
        ]
        subprocess.run(
            [*record, "--", "sleep", str(chosen.seconds)], check=True, capture_output=True
        )
        did = json.loads(process.stdout.readline())
    listed = subprocess.run(
        ["perf", "script", "-i", data, "-F", "ip,sym,dso"],
        check=True,
        capture_output=True,
        text=True,
    )
    samples = []
    for line in listed.stdout.splitlines():
        parts = line.split()
        if parts:
            samples.append((int(parts[0], 16), Path(parts[-1].strip("()")).name))
    return title, did, samples


def placed(samples: list[tuple[int, str]], record: list[dict[str, Any]]) -> Counter[Place]:
    """Return the samples per path: part of the system, kernel, function, line."""
    out: Counter[Place] = Counter()
    inside: dict[int, list[int]] = {}
    spans = [(number, *span(kernel)) for number, kernel in enumerate(record)]
    for address, mapped in samples:
        home = [
            (number, address - base)
            for number, base, size in spans
            if base <= address < base + size
        ]
        if home:
            inside.setdefault(home[0][0], []).append(home[0][1])
        else:
            out["Python, numpy and the system", mapped] += 1
    for number, offsets in inside.items():
        for line in lines_of(record[number]["object"], offsets):
            out["kernels", record[number]["name"], *line] += 1
    return out


def span(kernel: dict[str, Any]) -> tuple[int, int]:
    """Return the address of a kernel's code section, and its bytes."""
    listed = subprocess.run(
        ["nm", "-S", kernel["object"]], check=True, capture_output=True, text=True
    ).stdout
    symbols = {}
    for parts in (line.split(maxsplit=3) for line in listed.splitlines()):
        if len(parts) == 4 and parts[2] in "tTW":
            symbols[parts[3]] = (int(parts[0], 16), int(parts[1], 16))
    return kernel["at"] - symbols[kernel["symbol"]][0], max(
        start + size for start, size in symbols.values()
    )


def lines_of(path: str, offsets: list[int]) -> list[Place]:
    """Return (function, line) in the source of each offset into the code of an object."""
    sections = subprocess.run(
        ["nm", "-f", "sysv", path], check=True, capture_output=True, text=True
    ).stdout
    section = ".ltext" if ".ltext" in sections else ".text"
    text = "\n".join(hex(offset) for offset in offsets)
    command = ["addr2line", "-e", path, "-j", section]
    answers = subprocess.run(
        command, input=text, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return [place_of(answer) for answer in answers]


SOURCES: dict[str, tuple[list[str], list[tuple[int, int, str]]]] = {}


def place_of(answer: str) -> Place:
    """Parse FILE:LINE into (function, line with its text).

    The function is read from the source file, because inlining keeps only the line.
    """
    file, _, number = answer.split(" ")[0].rpartition(":")
    if not number.isdigit() or not Path(file).exists():
        return ("calls, without a line",)
    if file not in SOURCES:
        text = Path(file).read_text()
        defined = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
        SOURCES[file] = (
            text.splitlines(),
            [(node.lineno, node.end_lineno or node.lineno, node.name) for node in defined],
        )
    text_lines, functions = SOURCES[file]
    line = int(number)
    names = [name for first, last, name in functions if first <= line <= last]
    return (names[-1] if names else Path(file).stem, f"{line}: {text_lines[line - 1].strip()}")


def draw(counts: Counter[Place], title: str, path: Path) -> None:
    """Draw blocks as wide as their share, callers above, and children by share."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    whole = counts.total()
    figure, axis = plt.subplots(figsize=(16, 5), layout="constrained")

    def block(prefix: Place, left: float, depth: int) -> None:
        sizes: Counter[str] = Counter()
        for place, count in counts.items():
            if place[:depth] == prefix and len(place) > depth:
                sizes[place[depth]] += count
        for name, count in sizes.most_common():
            share = count / whole
            axis.barh(
                -depth,
                share,
                left=left,
                height=0.94,
                align="center",
                color=plt.cm.YlOrRd(0.15 + 0.15 * depth),
                edgecolor="white",
            )
            if share > 0.012:
                shown = f"{name} {100 * share:.0f} %"
                axis.text(
                    left + share / 2,
                    -depth,
                    shown[: int(150 * share) + 4],
                    ha="center",
                    va="center",
                    fontsize=6,
                    clip_on=True,
                )
            block((*prefix, name), left, depth + 1)
            left += share

    block((), 0.0, 0)
    axis.set(xlim=(0, 1), yticks=[], xlabel="share of time", title=title)
    for side in ("top", "left", "right"):
        axis.spines[side].set_visible(False)
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    """Record, draw, and print the shares by function."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--pydocs", action="store_true")
    parser.add_argument("--engine", choices=("search", "scan"), default="search")
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        child(chosen, chosen.child)
        return
    missing = [tool for tool in ("perf", "nm", "addr2line") if shutil.which(tool) is None]
    if missing:
        raise SystemExit(f"a profile needs {' and '.join(missing)}; install the missing programs")
    with tempfile.TemporaryDirectory(prefix="xcray-profile-") as folder:
        title, did, samples = watched(chosen, Path(folder))
        counts = placed(samples, json.loads((Path(folder) / "kernels.json").read_text()))
    ms = 1e3 * did["seconds"] / did["queries"]
    draw(
        counts,
        f"{title}; {chosen.engine}, k = {chosen.k}: {ms:.3f} ms per query, {counts.total()} samples",
        chosen.picture,
    )
    by_function: Counter[str] = Counter()
    for place, count in counts.items():
        by_function[" > ".join(place[1:3])] += count
    shares = {name: round(count / counts.total(), 4) for name, count in by_function.most_common(20)}
    print(
        json.dumps(
            {"benchmark": "search-profile", "ms": ms, "samples": counts.total(), "shares": shares}
        )
    )


if __name__ == "__main__":
    main()
