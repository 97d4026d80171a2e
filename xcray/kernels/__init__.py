"""Numba kernels: arrays in, arrays out; no classes, no I/O, no logging.

All kernels release the GIL and are cached on disk.

This module only handles images with a read-only root file system. Numba reads compiled kernels from
one folder, which must be writable. Such an image sets two variables: XCRAY_KERNELS, the folder that
`xcray compile-kernels` filled, and NUMBA_CACHE_DIR, a writable folder in which the first process
creates links to it. So baked kernels are loaded, and all others are compiled and stored next to the
links. Numba's index contains the processor, its features, the version of numba and a digest of the
sources (`cache.py`); kernels that do not match are not used.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from xcray.errors import Unavailable
from xcray.kernels import cache

V2: Final = ("cx16", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3")
V3: Final = (*V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
V4: Final = (*V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
# processor features that code for each level can use: x86-64 psABI 1.0, table 3.1
LEVELS: Final = {
    "x86-64-v2": V2,
    "x86-64-v3": V3,
    "x86-64-v4": V4,
}


def link_baked_kernels() -> None:
    """Link baked kernels into numba's cache folder, if the environment names both folders.

    Done once, by the first process. Raises Unavailable if this processor cannot run the kernels
    compiled for NUMBA_CPU_NAME, which would crash the process.
    """
    baked, cache = os.environ.get("XCRAY_KERNELS"), os.environ.get("NUMBA_CACHE_DIR")
    if not baked or not cache:
        return
    folders = [
        folder for folder in Path(baked).iterdir() if not (Path(cache) / folder.name).exists()
    ]
    if folders:
        check_processor(os.environ.get("NUMBA_CPU_NAME", ""))
        Path(cache).mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in folders:
        link_all(folder, Path(cache) / folder.name)


def link_all(folder: Path, target: Path) -> None:
    """Create the folder `target` with a link to each file of `folder`, atomically.

    Another process can create it at the same time.
    """
    staging = Path(tempfile.mkdtemp(prefix=".links-", dir=target.parent))
    try:
        for entry in os.scandir(folder):
            os.symlink(entry.path, staging / entry.name)
        staging.rename(target)
    except OSError:
        shutil.rmtree(staging, ignore_errors=True)
        if not target.is_dir():
            raise


def check_processor(level: str) -> None:
    """Raise Unavailable if this processor lacks a feature of `level`, a level of x86-64.

    Other names pass.
    """
    # imported here: needed with baked kernels only
    import llvmlite.binding as llvm

    needs = LEVELS.get(level, ())
    features = llvm.get_host_cpu_features() if needs else {}
    missing = [name for name in needs if not features.get(name)]
    if missing:
        raise Unavailable(
            f"this processor lacks {', '.join(missing)}, which kernels compiled for {level} use",
            code="PROCESSOR",
            hint="build the image with --build-arg XCRAY_CPU=x86-64-v2 (or generic), "
            "or run it on a newer processor",
        )


def unbaked_kernels() -> list[str]:
    """Return the names of kernels in NUMBA_CACHE_DIR that were compiled here, sorted.

    These are the files that are not links.
    """
    place = os.environ.get("NUMBA_CACHE_DIR")
    if not place:
        return []
    return sorted(
        {
            path.name.rpartition("-")[0]
            for path in Path(place).glob("*/*.nbi")
            if not path.is_symlink()
        }
    )


# before the first kernel is imported, because numba chooses the location of its cache then
link_baked_kernels()
cache.register()
