"""Numba's disk cache for kernels: compile again what is built on a changed file.

Numba compares the file of a kernel only, and a compiled kernel contains the functions of other
files that it calls. `KernelCacheLocator` stamps each kernel with its file and the kernel files that
this one imports. Functions outside this package are cached as numba does it.

Before it loads a compiled kernel, numba imports all that a compiler needs, which takes longer than
a small training. `KernelCache` and `KernelUnpickler` leave that out.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import io
import os
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numba
from numba.core import caching, dispatcher, environment
from numba.core.runtime import rtsys  # type: ignore[attr-defined]

KERNELS: Final = Path(__file__).resolve().parent
IMPORTED: Final = re.compile(r"^from xcray\.kernels\.([\w.]+) import", re.MULTILINE)
# where numba stores compiled code, in its order
NUMBA_LOCATORS: Final = (
    "UserProvidedCacheLocator",
    "InTreeCacheLocator",
    "UserWideCacheLocator",
    "IPythonCacheLocator",
    "ZipCacheLocator",
)


@functools.cache
def source_digest(path: Path) -> str:
    """Return the SHA-256 of a kernel file and of all kernel files that it imports."""
    text = path.read_text(encoding="utf-8")
    imported = (KERNELS.joinpath(*name.split(".")) for name in IMPORTED.findall(text))
    parts = [text, *(source_digest(file.with_suffix(".py")) for file in imported)]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


class KernelCacheLocator:
    """One of numba's locators, with a stamp that includes the imported kernel files.

    locator: decides the folder. stamp: kernels cached with another one are compiled again.
    """

    def __init__(self, locator: Any, stamp: str) -> None:
        self.locator = locator
        self.stamp = stamp

    @classmethod
    def from_function(
        cls,
        py_func: Callable[..., Any],
        py_file: str,
    ) -> KernelCacheLocator | None:
        """Return a locator for a function of this package, None for others."""
        path = Path(py_file).resolve()
        if KERNELS not in path.parents:
            return None
        for name in NUMBA_LOCATORS:
            locator = getattr(caching, name).from_function(py_func, py_file)
            if locator is not None:
                return cls(locator, source_digest(path))
        return None

    def get_source_stamp(self) -> str:
        """Return the digest of the sources."""
        return self.stamp

    def __getattr__(self, name: str) -> Any:
        return getattr(self.locator, name)


class LockedCacheFile(caching.IndexDataCacheFile):
    """Numba's index and data files of a kernel, for processes that save and load at once.

    Numba alone can give two new signatures of a kernel the same data file, and it writes the index
    before the data, so a process could load the code of another signature or of older sources.
    """

    def save(self, key: Any, data: Any) -> None:
        """Save compiled code while no other process saves or loads."""
        with locked(self._cache_path, fcntl.LOCK_EX):
            super().save(key, data)  # type: ignore[no-untyped-call]

    def load(self, key: Any) -> Any:
        """Return the compiled code of a signature; None if it is missing."""
        with locked(self._cache_path, fcntl.LOCK_SH):
            return super().load(key)  # type: ignore[no-untyped-call]

    def _load_index(self) -> Any:
        """Return the data files by signature; none if a class of a signature has another name."""
        try:
            return super()._load_index()  # type: ignore[no-untyped-call]
        except (AttributeError, ImportError):  # numba reads the signatures before the stamp
            return {}

    def _load_data(self, name: str) -> Any:
        path = Path(self._cache_path, name)
        return KernelUnpickler(io.BytesIO(path.read_bytes())).load()


class KernelUnpickler(pickle.Unpickler):
    """Read compiled code; do not import the modules of numba's functions that a kernel calls."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle names, our function for the one that imports those modules."""
        if (module, name) == (environment.__name__, "_rebuild_env"):
            return restore_environment
        return super().find_class(module, name)


def restore_environment(module: str, constants: Any, name: str) -> Any:
    """Return the constants of a compiled function, without the module of a function of numba.

    Compiled code reads constants only; a module's variables are for object mode.
    """
    found = environment.lookup_environment(name)  # type: ignore[no-untyped-call]
    if found is None and not module.startswith("numba."):
        return environment._rebuild_env(module, constants, name)  # type: ignore[no-untyped-call]
    if found is None:
        found = environment.Environment({"__name__": module})
        found.consts[:] = constants
        found.env_name = name
        environment.Environment._memo[name] = found
    return found


class KernelCache(caching.FunctionCache):
    """Numba's cache of one function; compiled kernels are loaded without a compiler's imports."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function of a signature, None if it must be compiled."""
        if not isinstance(self._impl.locator, KernelCacheLocator):
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        rtsys.initialize(target_context)  # kernels allocate arrays
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def locked(folder: str, mode: int) -> Iterator[None]:
    """Hold a lock on a folder of compiled code, if it exists and its file system has locks."""
    if not os.path.isdir(folder):
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, mode)
        yield
    finally:
        os.close(handle)


def is_compiled(kernel: Any) -> bool:
    """Return whether a kernel needs no compilation: it is in this process or in numba's cache."""
    return bool(kernel.signatures or kernel._cache._cache_file._load_index())


def load_compiled(kernel: Any) -> None:
    """Load a kernel from numba's cache, if this machine has compiled it; compile nothing."""
    codegen = kernel.targetctx.codegen()
    for key in list(kernel._cache._cache_file._load_index()):
        if key == kernel._cache._index_key(key[0], codegen):
            kernel.compile(key[0])


def register() -> None:
    """Make numba use these classes, and ask this locator first, then those that it asked before."""
    vars(caching)["IndexDataCacheFile"] = LockedCacheFile
    vars(dispatcher)["FunctionCache"] = KernelCache
    own = f"{__name__}.{KernelCacheLocator.__name__}"
    settings = vars(numba.config)  # numba creates them from its variables NUMBA_*
    chosen = settings["CACHE_LOCATOR_CLASSES"] or ",".join(NUMBA_LOCATORS)
    if own not in chosen:
        settings["CACHE_LOCATOR_CLASSES"] = f"{own},{chosen}"
