"""Marks of corrupt versions, for all processes that use a registry."""

from __future__ import annotations

from typing import Any

from xcray.model.registry_files import RegistryFiles


class CorruptMarks:
    """The versions of all models of a registry that failed to load."""

    def __init__(self, files: RegistryFiles) -> None:
        self._files = files

    def versions(self, name: str) -> dict[int, str]:
        """Return the versions that failed to load because their files changed, with the reason."""
        return {
            int(version): str(reason)
            for version, reason in self._files.read_state(name)["corrupt"].items()
        }

    def mark(self, name: str, version: int, reason: str | None) -> None:
        """Mark a version as corrupt for all processes; a reason of None removes the mark.

        Raises NotFound.
        """
        self._files.version_path(name, version)

        def change(state: dict[str, Any]) -> None:
            state["corrupt"].pop(str(version), None)
            if reason is not None:
                state["corrupt"][str(version)] = reason

        self._files.update_state(
            name, change, "sound" if reason is None else "corrupt", version=version
        )
