"""Models to object storage and back: bytes a second, against a plain local copy.

`python -m benchmarks.serving.objectstore [--megabytes 512] [--repeats 3] [--uri s3://bucket/folder] [--json FILE]`

A sealed directory as large as asked, shaped like a model (weights and lists, each nearly half, and small files). Of each way the
best of `repeats`: `copy`, files copied and synced; `hash`, SHA-256 of all files; push and pull by file:// and by S3's protocol to a
server of moto in a process of its own, which is in Python and the slower end; with --uri to a real storage instead. A pull
verifies and syncs every byte, so what it can reach at most on files is a copy and a hash side by side.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import arguments, in_folder
from xcray.model.objectstore.client import Place
from xcray.model.objectstore.transfer import fetch, send
from xcray.storage.atomic import file_digests, verify_files
from xcray.workers.ray.session import free_port, reachable

MB = 1_000_000
BUCKET = "benchmark"


def sealed(folder: Path, megabytes: int) -> Path:
    """Random files shaped like a model's."""
    sizes = {
        "weights.arrow": 47,
        "index/lists.arrow": 47,
        "classes.arrow": 4,
        "labels.arrow": 1,
        "bias.arrow": 1,
    }
    for name, percent in sizes.items():
        path = folder / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as out:
            for _ in range(max(1, megabytes * percent // 100)):
                out.write(os.urandom(MB))
    return folder / "model"


@contextlib.contextmanager
def storage() -> Iterator[str]:
    """An S3 of moto's in a process of its own, with an empty bucket; the URI of a folder there."""
    import boto3

    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            while not reachable(f"127.0.0.1:{port}", 1.0):
                time.sleep(0.1)
            url = f"http://127.0.0.1:{port}"
            os.environ |= {
                "AWS_ENDPOINT_URL": url,
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
            }
            boto3.client("s3", endpoint_url=url, region_name="us-east-1").create_bucket(
                Bucket=BUCKET
            )
            yield f"s3://{BUCKET}/models"
        finally:
            server.terminate()


def best(repeats: int, size: int, act: Callable[[int], Any]) -> dict[str, float]:
    """Seconds of the quickest turn, and megabytes a second."""
    seconds = []
    for turn in range(repeats):
        began = time.perf_counter()
        act(turn)
        seconds.append(time.perf_counter() - began)
    return {"seconds": round(min(seconds), 3), "MB/s": round(size / MB / min(seconds), 1)}


def copied(source: Path, target: Path) -> None:
    """A plain copy, synced."""
    shutil.copytree(source, target)
    for path in target.rglob("*"):
        if path.is_file():
            with open(path, "rb") as handle:
                os.fsync(handle.fileno())


def ways(
    uri: str, source: Path, files: Any, size: int, folder: Path, repeats: int
) -> dict[str, Any]:
    """Push and pull of one storage."""
    root = Place.at(uri) / uuid.uuid4().hex
    name = uri.partition(":")[0]
    out = {
        f"push {name}": best(
            repeats, size, lambda turn: send(source, files, b"{}", root / str(turn))
        )
    }
    out[f"pull {name}"] = best(
        repeats, size, lambda turn: fetch(root / "0", files, folder / f"{name}-{turn}")
    )
    for turn in range(repeats):
        shutil.rmtree(folder / f"{name}-{turn}")
    return out


def measure(folder: Path, chosen: Any) -> dict[str, Any]:
    """All ways."""
    source = sealed(folder, chosen.megabytes)
    files = file_digests(source)
    size = sum(entry["bytes"] for entry in files.values())
    found: dict[str, Any] = {
        "copy": best(chosen.repeats, size, lambda turn: copied(source, folder / f"copy-{turn}"))
    }
    for turn in range(chosen.repeats):
        shutil.rmtree(folder / f"copy-{turn}")
    found["hash"] = best(chosen.repeats, size, lambda turn: verify_files(source, files))
    found |= ways(f"file://{folder / 'store'}", source, files, size, folder, chosen.repeats)
    with contextlib.nullcontext(chosen.uri) if chosen.uri else storage() as uri:
        found |= ways(uri, source, files, size, folder, chosen.repeats)
    for name, told in found.items():
        print(f"{name:<10} {told['seconds']:8.2f} s {told['MB/s']:8.0f} MB/s")
    return {"bytes": size, "ways": found}


def main() -> None:
    """Run it."""
    chosen = arguments(
        __doc__ or "",
        megabytes={"type": int, "default": 512},
        repeats={"type": int, "default": 3},
        uri={"help": "a folder of a real storage; what is pushed there stays"},
    )
    in_folder(lambda folder: measure(folder, chosen), chosen.json)


if __name__ == "__main__":
    main()
