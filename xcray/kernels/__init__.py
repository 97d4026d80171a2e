"""Numba kernels: arrays in, arrays out; no classes, no I/O, no logging. All release the GIL and are cached on disk.

Here is only what an image with a read-only root file system needs. Numba reads compiled kernels from one folder, and must be able
to write there. Such an image names two: XCRAY_KERNELS, which `xcray compile` has filled, and NUMBA_CACHE_DIR, a place that can be
written, where the first process puts links to them. So what was baked is loaded, and what was not is compiled and kept beside it.
Numba's index names the processor, its features, its own version and the content of each source file: what does not fit is not used.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from xcray.errors import Unavailable

V2: Final = ("cx16", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3")
V3: Final = (*V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
V4: Final = (*V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
LEVELS: Final = {
    "x86-64-v2": V2,
    "x86-64-v3": V3,
    "x86-64-v4": V4,
}  # what code for these may use: x86-64 psABI 1.0, table 3.1


def use_baked() -> None:
    """Put links to baked kernels where numba looks, when the environment names both places; once, whichever process is first.

    Raises Unavailable when this processor can't run what NUMBA_CPU_NAME has kernels compiled for: it would end the process.
    """
    baked, place = os.environ.get("XCRAY_KERNELS"), os.environ.get("NUMBA_CACHE_DIR")
    if not baked or not place:
        return
    folders = [
        folder for folder in Path(baked).iterdir() if not (Path(place) / folder.name).exists()
    ]
    if folders:
        check_processor(os.environ.get("NUMBA_CPU_NAME", ""))
        Path(place).mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in folders:
        link_all(folder, Path(place) / folder.name)


def link_all(folder: Path, target: Path) -> None:
    """Make `target`, a folder with a link to each file of `folder`; it appears whole. Somebody else may make it meanwhile."""
    made = Path(tempfile.mkdtemp(prefix=".links-", dir=target.parent))
    try:
        for entry in os.scandir(folder):
            os.symlink(entry.path, made / entry.name)
        made.rename(target)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not target.is_dir():
            raise


def check_processor(wanted: str) -> None:
    """Raise Unavailable when this processor lacks what `wanted`, the name of a level of x86-64, may use; other names pass."""
    import llvmlite.binding as llvm  # here: who uses no image needs none of this

    needs = LEVELS.get(wanted, ())
    there = llvm.get_host_cpu_features() if needs else {}
    missing = [name for name in needs if not there.get(name)]
    if missing:
        raise Unavailable(
            f"this processor lacks {', '.join(missing)}, which kernels compiled for {wanted} use",
            code="PROCESSOR",
            hint="build the image with --build-arg XCRAY_CPU=x86-64-v2 (or generic), or run it on a newer processor",
        )


def missed() -> list[str]:
    """Names of kernels in NUMBA_CACHE_DIR that were compiled here, not baked: files that are no links. Sorted."""
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


use_baked()  # before numba hears of the first kernel, because then it chooses where that one's cache is
