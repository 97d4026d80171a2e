"""Aliases of a model: names for versions that can be moved, with their traffic splits."""

from __future__ import annotations

from xcray.errors import NotFound, ParameterError, excerpt
from xcray.model.registry_files import RegistryFiles, append_history
from xcray.model.traffic_split import TrafficSplit, split_of_alias
from xcray.storage.atomic import check_name

LATEST = "latest"  # implicit: the highest version


def check_alias(alias: str) -> None:
    """Raise ParameterError unless an alias of this name can be set."""
    if check_name(alias, "alias") == LATEST:
        raise ParameterError(
            f"alias {LATEST!r} always means the highest version; choose another name"
        )


class Aliases:
    """The aliases of all models of a registry."""

    def __init__(self, files: RegistryFiles) -> None:
        self._files = files

    def of(self, name: str) -> dict[str, int]:
        """Return the version numbers by alias, including `latest` if there is a version."""
        versions = self._files.versions(name)
        return {
            **self._files.read_state(name)["aliases"],
            **({LATEST: versions[-1]} if versions else {}),
        }

    def find_split(self, name: str, alias: str) -> TrafficSplit | None:
        """Return the traffic split of an alias, or None without such an alias."""
        return split_of_alias(self._files.read_state(name), alias)

    def splits(self, name: str) -> dict[str, TrafficSplit]:
        """Return the aliases with several versions or a shadow, and their traffic splits.

        The other aliases point to one version (`of`).
        """
        state = self._files.read_state(name)
        splits = {alias: split_of_alias(state, alias) for alias in state["routes"]}
        return {
            alias: split
            for alias, split in splits.items()
            if split is not None and len(split.versions) > 1
        }

    def count_changes(self, name: str, alias: str) -> int:
        """Return how often an alias was set or deleted."""
        actions = ("set_alias", "delete_alias")
        history = self._files.history(name)
        return sum(each["action"] in actions and each["alias"] == alias for each in history)

    def set(self, name: str, alias: str, version: int) -> None:
        """Point an alias at a version.

        Raises NotFound if there is no such version, ParameterError for an invalid alias.
        """
        self.set_split(name, alias, TrafficSplit.single(version))

    def set_split(self, name: str, alias: str, split: TrafficSplit) -> None:
        """Point an alias at versions by weight.

        Raises NotFound if a version does not exist, ParameterError for an invalid alias.
        """
        check_alias(alias)
        for version in split.versions:
            self._files.version_path(name, version)
        with self._files.lock(name) as folder:
            for version in split.versions:
                # check again: a version can be deleted before the lock is held
                self._files.version_path(name, version)
            state = self._files.read_state(name)
            aliases = {
                **state["aliases"],
                alias: split.primary,
            }
            routes = {
                each: split_entry for each, split_entry in state["routes"].items() if each != alias
            }
            stored = split.as_dict() if len(split.versions) > 1 else {}
            self._files.write_state(
                name,
                {
                    **state,
                    "aliases": aliases,
                    "routes": {**routes, alias: stored} if stored else routes,
                },
            )
            append_history(
                folder,
                "set_alias",
                alias=alias,
                version=split.primary,
                before=state["aliases"].get(alias),
                **stored,
            )

    def delete(self, name: str, alias: str) -> None:
        """Delete an alias. Raises NotFound if there is none."""
        with self._files.lock(name) as folder:
            state = self._files.read_state(name)
            if alias not in state["aliases"]:
                raise NotFound(
                    f"model {name} has no alias {excerpt(alias)!r}; "
                    f"it has {', '.join(state['aliases']) or 'none'}"
                )
            version = state["aliases"].pop(alias)
            state["routes"].pop(alias, None)
            self._files.write_state(name, state)
            append_history(folder, "delete_alias", alias=alias, before=version)
