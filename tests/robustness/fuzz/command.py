"""Run targets, each in a child process, and print one line each and one JSON line at the end.

The exit code is 1 if a target failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = (
    "svmlight",
    "xc",
    "jsonl",
    "csv",
    "tsv",
    "parquet",
    "json-predict",
    "oip",
    "npy",
    "lists",
    "model-directory",
)
ROOT = Path(__file__).parents[3]
SILENCE = 180.0  # seconds without a figure after which a child hangs where no signal reaches it


def main(arguments: list[str]) -> int:
    """The command."""
    given = _parser().parse_args(arguments)
    names = given.target or list(NAMES)
    out = Path(given.out or tempfile.mkdtemp(prefix="xcray-fuzz-"))
    found = importlib.util.find_spec("atheris") is not None
    engine = given.engine if given.engine != "auto" else "atheris" if found else "random"
    figures = []
    for name in names:
        seconds = 60.0 * given.minutes / len(names)
        one = run(name, out / name, engine, seconds, given.seed, given.executions)
        figures.append(one)
        print(line_of(one), flush=True)
    total = {"engine": engine, "seed": given.seed, "targets": figures}
    total |= {
        key: sum(one[key] for one in figures) for key in ("executions", "crashes", "failures")
    }
    failed = bool(total["crashes"] or total["failures"])
    if failed:
        print(f"inputs that fail are in {out}/TARGET/failed, each with what it did")
    elif not given.out:
        shutil.rmtree(out, ignore_errors=True)
    print(json.dumps(total))
    return int(failed)


def line_of(one: dict[str, Any]) -> str:
    """The figures of a target for people."""
    speed, peak, grown = (
        one["executions"] / max(1e-9, one["seconds"]),
        one["peak_rss"] / 2**20,
        one["grown"] / 2**20,
    )
    coverage = f", {one['coverage']} edges" if one["coverage"] else ""
    done = f"{one['target']:16} {one['executions']:>9,} executions {speed:>8,.0f}/s, {one['accepted']:,} accepted"
    failed = f"{one['crashes']} crashes, {one['failures']} failures"
    return f"{done}, {one['outcomes']} outcomes{coverage}, {failed}, peak {peak:,.0f} MB (+{grown:,.0f})"


def run(
    name: str, folder: Path, engine: str, seconds: float, seed: int, executions: int
) -> dict[str, Any]:
    """One target: children one after another until the time is up, a new one with the next seed
    after each that died.
    """
    folder.mkdir(parents=True, exist_ok=True)
    crashes, coverage, end = 0, 0, time.monotonic() + seconds
    shared = Path(
        "/dev/shm"
    )  # where inputs lie in memory: a disk that others use would be the limit
    work = Path(tempfile.mkdtemp(prefix="xcray-fuzz-", dir=shared if shared.is_dir() else None))
    sums = {"executions": 0, "seconds": 0.0, "failures": 0, "accepted": 0}
    most = {"outcomes": 0, "peak_rss": 0, "grown": 0}
    while True:
        (folder / "figures.json").unlink(missing_ok=True)
        left = max(1.0, end - time.monotonic())
        request = {
            "target": name,
            "folder": str(folder),
            "work": str(work),
            "engine": engine,
            "seconds": left,
            "seed": seed + crashes,
        }
        code, said = child({**request, "executions": executions}, folder, left)
        told = (
            json.loads((folder / "figures.json").read_text())
            if (folder / "figures.json").exists()
            else {}
        )
        sums = {key: value + told.get(key, 0) for key, value in sums.items()}
        most = {key: max(value, told.get(key, 0)) for key, value in most.items()}
        coverage = max([coverage, *(int(n) for n in re.findall(r"cov: (\d+)", said))])
        if code == 0:
            break
        crashes += 1
        _keep_crash(name, folder, work, code, said)
        if time.monotonic() > end or crashes >= 5:
            break
    shutil.rmtree(work, ignore_errors=True)
    return {"target": name, **sums, **most, "crashes": crashes, "coverage": coverage}


def child(request: dict[str, Any], folder: Path, seconds: float) -> tuple[int, str]:
    """A child to its end; its exit code (negative: the signal, SIGKILL when it fell silent), and
    the end of what it said.
    """
    (folder / "request.json").write_text(json.dumps(request))
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    environment["MALLOC_ARENA_MAX"] = (
        "2"  # threads of a library do not reserve 64 MiB of addresses each
    )
    command = [sys.executable, "-m", "tests.robustness.fuzz.child", str(folder / "request.json")]
    with open(folder / "said.txt", "w+b") as said:
        process = subprocess.Popen(
            command, env=environment, stdout=said, stderr=subprocess.STDOUT, cwd=ROOT
        )
        end, code = time.monotonic() + seconds + 90, None
        while code is None:
            try:
                code = process.wait(timeout=1.0)
            except subprocess.TimeoutExpired:
                pulse = folder / "figures.json"
                silent = pulse.exists() and time.time() - pulse.stat().st_mtime > SILENCE
                if silent or time.monotonic() > end:
                    process.kill()
                    process.wait()
                    code = -signal.SIGKILL
        said.seek(max(0, said.tell() - 20_000))
        return code, said.read().decode(errors="replace")


def _keep_crash(name: str, folder: Path, work: Path, code: int, said: str) -> None:
    """Keep what the child was at when it died."""
    failed = folder / "failed"
    failed.mkdir(exist_ok=True)
    current = work / "current"
    data = current.read_bytes() if current.exists() else b""
    path = failed / f"{name}-died-{abs(code)}-{len(list(failed.iterdir()))}"
    path.write_bytes(data)
    Path(f"{path}.txt").write_text(f"exit code {code}\n{data[:300]!r}\n{said[-6000:]}")


def _parser() -> argparse.ArgumentParser:
    """Options of the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.robustness.fuzz", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="for all targets together (default: 10)"
    )
    parser.add_argument(
        "--target",
        action="append",
        choices=NAMES,
        help="one target, may be given again (default: all)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random engine (default: 0)")
    parser.add_argument(
        "--executions", type=int, default=1 << 62, help="at most so many of a target; random engine"
    )
    parser.add_argument(
        "--engine",
        choices=("auto", "random", "atheris"),
        default="auto",
        help="auto: atheris where it is installed",
    )
    parser.add_argument("--out", help="folder for what fails (default: a temporary one)")
    return parser
