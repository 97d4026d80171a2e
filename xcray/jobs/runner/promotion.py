"""Promotion of an updated version: its gate, and the alias that moves to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from xcray.errors import ParameterError
from xcray.model.aliases import check_alias
from xcray.model.registry import Registry
from xcray.model.traffic_split import TrafficSplit
from xcray.system.cores import available_cores
from xcray.training.evaluation import compare_models

COMPARED: Final = ("differences", "labels_gained", "labels_lost", "gate", "passed")


def target_of(registry: Registry, name: str, alias: str | None, weight: float) -> dict[str, Any]:
    """Return the entries of a spec for an alias of a model that gets the new version.

    weight: share of the requests. Raises ParameterError if no version could have the rest.
    """
    present = None if alias is None else registry.aliases.find_split(name, alias)
    if weight < 1.0:
        if present is None:
            raise ParameterError(
                "the other versions of `alias` get the rest of `weight`: give an alias that exists"
            )
        present.with_canary(0, weight)  # raises if there are too many versions
    if alias is None:
        return {}
    check_alias(alias)
    changes = registry.aliases.count_changes(name, alias)
    return {"alias": alias, "weight": weight, "alias_changes": changes}


def promote(
    registry: Registry, values: Mapping[str, Any], published: dict[str, Any]
) -> dict[str, Any]:
    """Compare a published version with the old one, and move the alias if it passes the gate.

    values: the spec of the update; published: the job's result so far. Returns the result with the
    comparison and the alias. An attempt that follows a published one does the same again.
    """
    result, gate, alias = dict(published), values.get("gate"), values.get("alias")
    name, version = result["model"], result["version"]
    if gate is not None:
        paths = [values["update"], registry.resolve(f"{name}:{version}")]
        threads = values["workers"] or available_cores()
        found = compare_models(paths, values["dataset"], gate, threads)["models"][1]
        result["comparison"] = {each: found[each] for each in COMPARED}
        if not found["passed"]:
            return result
    if alias is not None:
        if move_alias(registry, name, version, values):
            result["alias"] = alias
        else:
            result["warnings"] = [
                {
                    "code": "ALIAS_CHANGED",
                    "message": f"alias {alias} was set or deleted after the update was submitted, "
                    f"so it is left as it is: set it to version {version} if that is wanted",
                }
            ]
    return result


def move_alias(registry: Registry, name: str, version: int, values: Mapping[str, Any]) -> bool:
    """Give a version the `weight` of an `alias`, unless that has changed since the submission.

    Returns whether the version has the alias. The number of earlier changes is compared, not the
    version: an operator who has moved the alias back means it.
    """
    alias, aliases = values["alias"], registry.aliases
    with registry.locked(name):
        present = aliases.find_split(name, alias)
        if present is not None and version in present.serving:
            return True  # an earlier attempt has moved it
        if aliases.count_changes(name, alias) != values["alias_changes"]:
            return False
        aliases.set_split(
            name,
            alias,
            TrafficSplit.single(version)
            if present is None or values["weight"] == 1.0
            else present.with_canary(version, values["weight"]),
        )
        return True
