"""Models to object storage and back: bytes per second, against a plain local copy.

`python -m studies.object_storage [--megabytes 512] [--repeats 3] [--uri s3://bucket/folder]
[--json FILE]`

The model is a sealed directory of the given size, shaped like a model (weights and lists, each
nearly half, and small files). Each figure is the best of `repeats`: `copy`, files copied and
synced; `hash`, SHA-256 of all files; push and pull by file:// and by S3's protocol to a moto server
in its own process, which is in Python and a lower bound. With --uri, a real storage is used
instead. A pull verifies and syncs every byte, so its upper bound on files is a copy with a hash in
parallel.
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
from xcray.storage.atomic import file_digests, verify_files
from xcray.storage.objectstore.client import StoragePath
from xcray.storage.objectstore.transfer import download_files, upload_files
from xcray.workers.ray.session import free_port, is_reachable

MB = 1_000_000
BUCKET = "benchmark"


def sealed(folder: Path, megabytes: int) -> Path:
    """Write random files shaped like a model's."""
    sizes = {
        "weights.arrow": 47,
        "index/lists.arrow": 47,
        "label_table.arrow": 4,
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
    """Start a moto S3 server in its own process, and return the URI of an empty folder there."""
    import boto3

    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            while not is_reachable(f"127.0.0.1:{port}", 1.0):
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
    """Return the seconds of the fastest repeat, and megabytes per second."""
    seconds = []
    for turn in range(repeats):
        began = time.perf_counter()
        act(turn)
        seconds.append(time.perf_counter() - began)
    return {"seconds": round(min(seconds), 3), "MB/s": round(size / MB / min(seconds), 1)}


def copied(source: Path, target: Path) -> None:
    """Copy and sync the files."""
    shutil.copytree(source, target)
    for path in target.rglob("*"):
        if path.is_file():
            with open(path, "rb") as handle:
                os.fsync(handle.fileno())


def measure_storage(
    uri: str, source: Path, files: Any, size: int, folder: Path, repeats: int
) -> dict[str, Any]:
    """Measure push and pull of one storage."""
    root = StoragePath.parse(uri) / uuid.uuid4().hex
    name = uri.partition(":")[0]
    out = {
        f"push {name}": best(
            repeats, size, lambda turn: upload_files(source, files, b"{}", root / str(turn))
        )
    }
    out[f"pull {name}"] = best(
        repeats, size, lambda turn: download_files(root / "0", files, folder / f"{name}-{turn}")
    )
    for turn in range(repeats):
        shutil.rmtree(folder / f"{name}-{turn}")
    return out


def measure(folder: Path, chosen: Any) -> dict[str, Any]:
    """Measure all transfers."""
    source = sealed(folder, chosen.megabytes)
    files = file_digests(source)
    size = sum(entry["bytes"] for entry in files.values())
    fields: dict[str, Any] = {
        "copy": best(chosen.repeats, size, lambda turn: copied(source, folder / f"copy-{turn}"))
    }
    for turn in range(chosen.repeats):
        shutil.rmtree(folder / f"copy-{turn}")
    fields["hash"] = best(chosen.repeats, size, lambda turn: verify_files(source, files))
    fields |= measure_storage(
        f"file://{folder / 'store'}", source, files, size, folder, chosen.repeats
    )
    with contextlib.nullcontext(chosen.uri) if chosen.uri else storage() as uri:
        fields |= measure_storage(uri, source, files, size, folder, chosen.repeats)
    for name, report in fields.items():
        print(f"{name:<10} {report['seconds']:8.2f} s {report['MB/s']:8.0f} MB/s")
    return {"bytes": size, "ways": fields}


def main() -> None:
    """Run the benchmark."""
    chosen = arguments(
        __doc__ or "",
        megabytes={"type": int, "default": 512},
        repeats={"type": int, "default": 3},
        uri={"help": "a folder of a real storage; pushed files are not deleted"},
    )
    in_folder(lambda folder: measure(folder, chosen), chosen.json)


if __name__ == "__main__":
    main()
