"""Trainings that `benchmarks.cluster.nodes` observes: their progress, batches and figures."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc

from benchmarks.cluster.raylets import Nodes, nodes
from tests.robustness.faults.stage import Stage, until
from xcray.data.dataset import Dataset
from xcray.storage.atomic import read_json
from xcray.training import TrainSpec, train
from xcray.workers.timeline import DONE, DUPLICATE, LOST, read_streams

TRAINING_SECONDS: Final = 1200.0  # a longer training counts as hung
RAYS: Final = count()
GRID: Final = {"shards": 8, "blocks": 8}


class Run:
    """A driver on the head of a Ray, and the progress it has reported."""

    def __init__(self, ray: Nodes, place: Path, spec: TrainSpec, **more: Any) -> None:
        place.mkdir()
        self.folder = place
        self._read = 0
        self._progress = dict[str, Any]()
        fields = {"place": str(place), "spec": spec.as_dict(), **more}
        words = [sys.executable, "-m", "benchmarks.cluster.nodes_driver", json.dumps(fields)]
        self.began = time.time()
        self.process = ray.head.start(words, place / "driver.log")
        self.history: list[dict[str, Any]] = []

    def progress(self) -> dict[str, Any]:
        """Return the latest progress: phase, done, total, nodes."""
        path = self.folder / "seen.jsonl"
        text = path.read_text()[self._read :] if path.exists() else ""
        for line in text.splitlines(keepends=True):
            if line.endswith("\n"):
                self._read += len(line)
                self.history.append(json.loads(line))
                self._progress |= self.history[-1]
        assert self.process.poll() in (None, 0), (self.folder / "driver.log").read_text(
            errors="replace"
        )[-3000:]
        return self._progress

    def at(self, share: float) -> None:
        """Wait until this share of the training is done."""

        def reached() -> bool:
            now = self.progress()
            over = self.process.poll() is not None
            return over or (
                now.get("phase") == "TRAINING"
                and now.get("total", 0)
                and now["done"] >= share * now["total"]
            )

        until(reached, f"{share:.0%} of {self.folder.name}", TRAINING_SECONDS, 0.02)
        assert self.process.poll() is None, "the training ended too early: give it more work"

    def end(self) -> dict[str, Any]:
        """Wait for the end and return the result."""
        until(
            lambda: self.progress() is not None and self.process.poll() is not None,
            self.folder.name,
            TRAINING_SECONDS,
            0.1,
        )
        self.progress()
        return {**read_json(self.folder / "result.json"), "seconds": time.time() - self.began}

    def batches(self, *outcomes: str) -> list[dict[str, Any]]:
        """Return the batches with these outcomes, sorted by their start.

        Each has the wall-clock times of its start and end, and the address of its node.
        """
        (opened,) = read_json(self.folder / "result.json")["opened"]
        rows = read_streams(self.folder / "run")
        chosen = rows.filter(
            pc.is_in(rows.column("outcome"), pc.cast([*outcomes], "string"))
        ).to_pylist()
        for each in chosen:
            each |= {
                "from": opened + each["started"],
                "to": opened + each["started"] + each["seconds"],
            }
            each["node"] = each["node"].split("/")[0]
        return sorted(chosen, key=lambda each: each["from"])

    @property
    def over(self) -> bool:
        """Return whether the driver has ended, after reading its progress."""
        self.progress()
        return self.process.poll() is not None

    def store_peaks(self) -> dict[str, list[int]]:
        """Return the largest bytes in the object store, outside of it and spilled, by node."""
        peaks: dict[str, list[int]] = {}
        for each in self.history:
            for name in (name for name in each if name.startswith("store-")):
                before = peaks.get(name[6:], [0, 0, 0])
                peaks[name[6:]] = [max(pair) for pair in zip(before, each[name], strict=True)]
        return peaks

    def first_look(self, holds: Any) -> float | None:
        """Return the wall-clock time of the first sample whose nodes fulfil a condition."""
        return next(
            (each["at"] for each in self.history if "nodes" in each and holds(each["nodes"])), None
        )


class Bench:
    """State shared by the parts: data, options, folder, and hashes by name."""

    def __init__(self, set: Stage, data: Dataset, chosen: argparse.Namespace) -> None:
        self.stage = set
        self.data = data
        self.chosen = chosen
        self.rows: list[dict[str, Any]] = []
        self._hashes: dict[str, str] = {}

    def spec(self, how: str, workers: int, ray: Nodes | None) -> TrainSpec:
        """Return a training specification: "ppdsparse", or one of the orders of DS-MLR."""
        params: dict[str, Any] = {
            "epochs": self.chosen.epochs,
            "order": how,
            "tolerance": 0.0,
            **GRID,
        }
        params = {"eps": self.chosen.eps} if how == "ppdsparse" else params
        place: dict[str, Any] = (
            {"pool": "threads"} if ray is None else {"pool": "ray", "ray_address": ray.gcs}
        )
        solver = "ppdsparse" if how == "ppdsparse" else "dsmlr"
        return TrainSpec(
            str(self.data.path), solver=solver, params=params, workers=workers, **place
        )

    def expected(self, how: str) -> str:
        """Return the SHA-256 of the same training on threads of this process."""
        if how not in self._hashes:
            place = self.stage.place(f"threads-{how}")
            began = time.time()
            self._hashes[how] = train(
                self.spec(how, 2, None), run_dir=place / "run", out=place / "model"
            ).sha256
            self.record_row("threads", how, sha256=self._hashes[how], seconds=time.time() - began)
        return self._hashes[how]

    def start(self, ray: Nodes, name: str, how: str, workers: int, **more: Any) -> Run:
        """Start a training on a Ray."""
        return Run(
            ray,
            self.stage.folder / name,
            self.spec(how, workers, ray),
            eager=self.chosen.small,
            **more,
        )

    @contextmanager
    def ray(self, store: int | None = None) -> Iterator[Nodes]:
        """Start a Ray in its own folder, under a short path; store: MiB of each object store."""
        place = self.stage.place(f"r{next(RAYS)}")
        how = {"quick": not self.chosen.slow_health, "patient": self.chosen.small}
        with nodes(place, store=(store or self.chosen.store) << 20, **how) as ray:
            yield ray

    def record_row(self, part: str, how: str, **figures: Any) -> dict[str, Any]:
        """Record a row and print it."""
        row = {"part": part, "how": how, **figures}
        self.rows.append(row)
        shown = {
            name: round(value, 2) if isinstance(value, float) else value
            for name, value in row.items()
            if name != "chart"
        }
        print("  ".join(f"{name} {str(value)[:60]}" for name, value in shown.items()), flush=True)
        return row

    def judged(self, run: Run, how: str) -> dict[str, Any]:
        """Return the figures that every run has: equal hashes, lost labels and repeated work."""
        result, done = run.end(), run.batches(DONE)
        labels = [label for each in done for label in each["labels"]]
        again = [each["seconds"] for each in done if each["attempt"] > 1]
        core = sum(each["seconds"] for each in done)
        out = {
            "same_sha256": result["sha256"] == self.expected(how),
            "seconds": result["seconds"],
            "core_seconds": core,
            "batches": len(done),
            "lost_batches": len(run.batches(LOST)),
        }
        if how == "ppdsparse":
            wasted = sum(each["seconds"] for each in run.batches(DUPLICATE))
            out["lost_labels"] = self.data.n_labels - len(set(labels))
            out["doubled_labels"] = len(labels) - len(set(labels))
            out["repeated_work"] = (sum(again) + wasted) / max(core, 1e-9)
        return out

    def chart(self, run: Run, **events: float) -> dict[str, Any]:
        """Return the data of a picture, in seconds since the first batch.

        It contains bars (worker, node, from, to, outcome) and the events as vertical lines.
        """
        batches = run.batches(DONE, LOST, DUPLICATE)
        zero = batches[0]["from"]
        bars = [
            [
                b["worker"],
                b["node"],
                round(b["from"] - zero, 3),
                round(b["to"] - zero, 3),
                b["outcome"],
            ]
            for b in batches
        ]
        return {
            "bars": bars,
            "events": {name: round(when - zero, 3) for name, when in events.items()},
        }
