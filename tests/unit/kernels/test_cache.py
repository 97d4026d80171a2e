"""Numba's cache of kernels: what a change of a source file makes out of date."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba
from numba.core import caching

from tests.support.source import PACKAGE
from xcray.kernels import cache, fingerprint, random

CALLS = """
import json
import numpy as np
from xcray.arrays import csr
from xcray.kernels.cache import is_compiled
from xcray.kernels.fingerprint import fingerprints
rows = csr([0, 1], [3], [1.0], 9)
before = is_compiled(fingerprints)
value = int(fingerprints(rows, rows.data.view(np.uint32), 7)[0])
hits = sum(fingerprints.stats.cache_hits.values())
print(json.dumps([value, hits, before, is_compiled(fingerprints)]))
"""


LOADS = """
import json, sys
from xcray.kernels.cache import load_compiled
from xcray.kernels.fingerprint import fingerprints
load_compiled(fingerprints)
misses = sum(fingerprints.stats.cache_misses.values())
imported = "numba.np.arraymath" in sys.modules
print(json.dumps([len(fingerprints.signatures), misses, imported]))
"""


def run(script: str, folder: Path) -> list[int]:
    """Return the JSON that a script prints, with the package in `folder`."""
    process = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(folder / "cache")},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def run_fingerprints(folder: Path) -> tuple[int, int]:
    """Return a hash and the number of cached kernels loaded, from the package in `folder`."""
    value, hits, before, after = run(CALLS, folder)
    assert (before, after) == (hits > 0, True)
    return value, hits


def test_a_kernel_is_compiled_again_when_a_file_that_it_calls_changes(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "xcray", ignore=shutil.ignore_patterns("__pycache__"))
    assert run(LOADS, tmp_path) == [0, 0, False]
    first, hits = run_fingerprints(tmp_path)
    assert hits == 0
    assert run(LOADS, tmp_path) == [1, 0, False]  # loaded, never compiled, without a compiler
    assert run_fingerprints(tmp_path) == (first, 1)
    callee = tmp_path / "xcray" / "kernels" / "random.py"
    changed = callee.read_text().replace("0x94D049BB133111EB", "0x94D049BB133111ED")
    assert changed != callee.read_text()
    callee.write_text(changed)
    second, hits = run_fingerprints(tmp_path)
    assert (second != first, hits) == (True, 0)
    unrelated = tmp_path / "xcray" / "kernels" / "merge.py"
    unrelated.write_text(unrelated.read_text() + "\n")
    assert run_fingerprints(tmp_path) == (second, 1)


def test_signatures_that_are_saved_at_once_keep_their_code(tmp_path: Path) -> None:
    assert type(random.mix._cache._cache_file) is cache.LockedCacheFile
    files = [cache.LockedCacheFile(str(tmp_path), "kernel", "stamp") for _ in range(16)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: files[number].save(number, b"%d" % number), range(16)))
    assert [files[0].load(number) for number in range(16)] == [b"%d" % n for n in range(16)]
    assert cache.LockedCacheFile(str(tmp_path / "none"), "kernel", "stamp").load(1) is None


def test_signatures_of_a_renamed_class_are_not_loaded(tmp_path: Path, monkeypatch: Any) -> None:
    class Renamed:
        """A class whose name the index contains."""

    Renamed.__qualname__ = "Renamed"
    monkeypatch.setattr(cache, "Renamed", Renamed, raising=False)
    Renamed.__module__ = cache.__name__
    files = cache.LockedCacheFile(str(tmp_path), "kernel", "stamp")
    files.save(Renamed, "code")
    assert files.load(Renamed) == "code"
    monkeypatch.delattr(cache, "Renamed")
    assert files.load("signature") is None
    files.save("signature", "other code")
    assert files.load("signature") == "other code"


def test_functions_outside_the_package_are_cached_as_numba_does_it() -> None:
    place = cache.KernelCacheLocator
    assert place.from_function(json.dumps, json.__file__) is None
    locator = place.from_function(fingerprint.fingerprints.py_func, str(fingerprint.__file__))
    assert locator is not None
    assert locator.get_source_stamp() == cache.source_digest(Path(str(fingerprint.__file__)))
    assert locator.get_source_stamp() != cache.source_digest(Path(str(random.__file__)))
    names = vars(numba.config)["CACHE_LOCATOR_CLASSES"].split(",")
    assert names == ["xcray.kernels.cache.KernelCacheLocator", *cache.NUMBA_LOCATORS]
    assert [getattr(caching, name) for name in names[1:]] == caching.CacheImpl._locator_classes
