"""Damaged models: the number of damages that are not detected when a model is opened, by kind.

It must be zero.

`python -m benchmarks.soak.corruption [--flips 10000] [--seed 0] [--json FILE]`

A small model that reads text is written once. Single bits are flipped at random places of random
files (in proportion to their length, including the manifest). Files are truncated at random
lengths, overwritten with zero pages, lengthened, removed, exchanged with each other and with those
of another model of the same shape, and signed again with NaN biases, or another schema version or
shape. Each damaged model is opened as the service does (`Model.open(verify=True)`), and then
restored.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import run_benchmark
from xcray.arrays import csr_from
from xcray.data.text.pipeline import TextPipeline
from xcray.errors import Corrupt, NotFound
from xcray.model.manifest import MANIFEST, seal_manifest
from xcray.model.model import Model
from xcray.model.write import ModelContent, TrainingRecord, write_model
from xcray.storage.arrow import write_table
from xcray.storage.atomic import file_digests

TEXTS = (
    "read rows of a csv file",
    "write rows into a json file",
    "open a socket and listen",
    "rows of text in files",
)
LABELS = ("csv", "json", "socket", "io")
PAGE = 4096

Damage = tuple[str, Callable[[], None]]  # kind, and function that does the damage


def small_model(path: Path, seed: int) -> Path:
    """Write a model that reads text, with random weights."""
    pipeline = TextPipeline.fit(TEXTS)
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(len(LABELS), pipeline.n_features))
    bias, names = rng.normal(size=len(LABELS)), pipeline.terms.to_pylist()
    content = ModelContent(csr_from(weights), bias, LABELS, names, text=pipeline)
    write_model(path, content, TrainingRecord("ppdsparse", {}, "0" * 64))
    return path


def files_of(model: Path) -> list[Path]:
    """Return the files of the model, by name."""
    manifest = json.loads((model / MANIFEST).read_text())
    return [model / MANIFEST, *(model / name for name in sorted(manifest["files"]))]


def flips(model: Path, count: int, rng: np.random.Generator) -> Iterator[Damage]:
    """Yield flips of single bits at any place."""
    files = files_of(model)
    sizes = np.array([path.stat().st_size for path in files])
    for _ in range(count):
        path = files[int(rng.choice(len(files), p=sizes / sizes.sum()))]
        content = bytearray(path.read_bytes())
        content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
        yield "flip", lambda path=path, content=content: path.write_bytes(content) and None  # type: ignore[misc]


def cuts(model: Path, rng: np.random.Generator) -> Iterator[Damage]:
    """Yield for each file: truncated, lengthened, a page of zeros, emptied, removed."""
    for path in files_of(model):
        content = path.read_bytes()
        cut = int(rng.integers(len(content)))
        start = int(rng.integers(len(content)))
        zeros = content[:start] + bytes(min(PAGE, len(content) - start)) + content[start + PAGE :]
        kinds = {
            "truncated": content[:cut],
            "lengthened": content + b"\0",
            "zero page": zeros,
            "emptied": b"",
        }
        for kind, changed in kinds.items():
            if changed != content:  # otherwise the page has only zeros already
                yield kind, lambda path=path, changed=changed: path.write_bytes(changed) and None  # type: ignore[misc]
        yield "removed", path.unlink


def exchanges(model: Path, other: Path) -> Iterator[Damage]:
    """Yield files in each other's places, and files of another model.

    The manifest of the other model is left out, because it would make a complete model.
    """
    files = files_of(model)
    contents = {path: path.read_bytes() for path in files}

    def put(pairs: dict[Path, bytes]) -> None:
        for path, content in pairs.items():
            path.write_bytes(content)

    for i, a in enumerate(files):
        for b in files[i + 1 :]:
            if contents[a] != contents[b]:
                yield "exchanged", lambda pairs={a: contents[b], b: contents[a]}: put(pairs)  # type: ignore[misc]
    for path in files:
        theirs = (other / path.relative_to(model)).read_bytes()
        if theirs != contents[path]:
            yield "another model's", lambda pairs={path: theirs}: put(pairs)  # type: ignore[misc]


def forgeries(model: Path) -> Iterator[Damage]:
    """Yield damages with valid checksums, as written by a faulty program."""

    def sign(**changes: Any) -> None:
        manifest = json.loads((model / MANIFEST).read_text())
        manifest.pop("seal")
        digests = file_digests(model, skip=[MANIFEST])
        (model / MANIFEST).write_text(seal_manifest({**manifest, "files": digests, **changes}))

    def poison(value: float) -> None:
        bias = np.full(len(LABELS), value, np.float32)
        write_table(model / "bias.arrow", pa.table({"bias": pa.array(bias)}))
        sign()

    for value in (np.nan, np.inf, -np.inf):
        yield "NaN", lambda value=value: poison(float(value))  # type: ignore[misc]
    for version in (0, 3, 99, "2", None):
        yield "wrong version", lambda version=version: sign(schema_version=version)  # type: ignore[misc]
    for shape in ([4, 0], [0, 4], [2**31, 4], [-1, 4], [10**12, 10**12]):
        yield "wrong shape", lambda shape=shape: sign(shape=shape)  # type: ignore[misc]


def detects_damage(model: Path) -> bool:
    """Return whether opening detects the damage."""
    try:
        Model.open(model, verify=True)
    except (Corrupt, NotFound):
        return True
    return False


def damage(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Apply all damages, one after the other; count them by kind, also those not detected."""
    rng = np.random.default_rng(seed)
    whole, model, other = (
        small_model(folder / "whole", 1),
        folder / "model",
        small_model(folder / "other", 2),
    )
    shutil.copytree(whole, model)
    if detects_damage(model):
        raise SystemExit("an undamaged model does not open")
    counts: Counter[str] = Counter()
    unseen: Counter[str] = Counter()
    for kind, damage in (*cuts(model, rng), *exchanges(model, other), *forgeries(model)):
        damage()
        counts[kind] += 1
        unseen[kind] += not detects_damage(model)
        shutil.rmtree(model)
        shutil.copytree(whole, model)
    for kind, damage in flips(model, count, rng):
        before = {path: path.read_bytes() for path in files_of(model)}
        damage()
        counts[kind] += 1
        unseen[kind] += not detects_damage(model)
        for path, content in before.items():
            if path.read_bytes() != content:
                path.write_bytes(content)
    if detects_damage(model):
        raise SystemExit("the restored model does not open")
    return {
        "damages": dict(counts),
        "unseen": {kind: number for kind, number in unseen.items() if number},
    }


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Damage the model in every way."""
    begun = time.perf_counter()
    result = damage(folder, options.flips, options.seed)
    for kind, number in result["damages"].items():
        print(f"{kind:16s} {number:7,d} damages, {result['unseen'].get(kind, 0)} not detected")
    return {**result, "seconds": round(time.perf_counter() - begun, 1)}


def main() -> None:
    """Run all damages and print the result."""
    run_benchmark(
        measure,
        __doc__,
        quick={"flips": 20},
        flips={"type": int, "default": 10_000, "help": "single bits to flip"},
        seed={"type": int, "default": 0},
    )


if __name__ == "__main__":
    main()
