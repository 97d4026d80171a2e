"""The count of compiled kernels, and how garbage is collected meanwhile."""

from __future__ import annotations

import gc
from typing import Any

from xcray.kernels.compilation import COLLECTION, COMPILING, CompilationCount


def test_garbage_is_collected_less_often_while_kernels_are_compiled() -> None:
    usual, count, event = gc.get_threshold(), CompilationCount(), Any
    count.on_start(event)
    count.on_start(event)  # a function that is compiled for the kernel
    assert (gc.get_threshold(), count.note()) == (COLLECTION, COMPILING)
    count.on_end(event)
    assert gc.get_threshold() == COLLECTION
    count.on_end(event)
    assert (gc.get_threshold(), count.n_kernels, count.note()) == (usual, 1, "")
    count.on_end(event)  # of a function that another thread began before there was a listener
    assert (gc.get_threshold(), count.n_kernels) == (usual, 1)
