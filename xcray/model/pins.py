"""References that every process of a service keeps in memory, and requests to unload them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xcray.errors import NotFound
from xcray.model.registry_files import RegistryFiles
from xcray.model.traffic_split import TrafficSplit


class Pins:
    """The pinned references of all models of a registry."""

    def __init__(
        self, files: RegistryFiles, resolve_split: Callable[[str], tuple[str, TrafficSplit]]
    ) -> None:
        """resolve_split: see `Registry.resolve_split`."""
        self._files = files
        self._resolve_split = resolve_split

    def read(self, name: str) -> tuple[list[str], dict[str, int]]:
        """Return the references that every process keeps in memory, and unload counts.

        The counts are numbers of unload requests per reference.
        """
        state = self._files.read_state(name)
        return list(state["kept"]), {
            reference: int(times) for reference, times in state["unloads"].items()
        }

    def add(self, reference: str) -> None:
        """Make every process keep the versions of a reference in memory.

        Raises NotFound, ParameterError.
        """
        name, _ = self._resolve_split(reference)

        def change(state: dict[str, Any]) -> None:
            state["kept"] = sorted({*state["kept"], reference})

        self._files.update_state(name, change, "load", reference=reference)

    def unload(self, reference: str) -> None:
        """Make every process unload the versions of a reference.

        A bare name unloads all its versions; "name:3" unpins all references to that
        version. Raises NotFound, ParameterError.
        """
        name, split = self._resolve_split(reference)

        def remains_pinned(pinned: str) -> bool:
            return reference not in (name, pinned) and not (
                ":" in reference and split.primary in self._versions_of(pinned)
            )

        def change(state: dict[str, Any]) -> None:
            state["kept"] = [each for each in state["kept"] if remains_pinned(each)]
            state["unloads"][reference] = int(state["unloads"].get(reference, 0)) + 1

        self._files.update_state(name, change, "unload", reference=reference)

    def _versions_of(self, reference: str) -> tuple[int, ...]:
        """Return the versions of a reference; empty if it no longer resolves."""
        try:
            return self._resolve_split(reference)[1].versions
        except NotFound:
            return ()
