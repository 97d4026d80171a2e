"""Traffic split of an alias: one or more versions by weight, and optionally a shadow version.

A hash of a key selects the version, so equal keys always get the same version, in any process. The
share of a version is the share of hashes in its weight interval. Moving weight from one version to
the next moves only the keys in between.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from xcray.errors import Corrupt, ParameterError

MAX_VERSIONS: Final = 8  # versions of a split
WEIGHT_TOLERANCE: Final = 1e-6  # rounding error of the sum of weights


class VersionShare(NamedTuple):
    """A version and its share of the requests."""

    version: int
    weight: float


class TrafficSplit(NamedTuple):
    """Versions by weight, which sum to 1.

    shadow: a version that gets copies of a share of the requests; its responses are discarded.
    """

    shares: tuple[VersionShare, ...]
    shadow: VersionShare | None = None

    @classmethod
    def single(cls, version: int) -> Self:
        """Return the split with one version."""
        return cls((VersionShare(version, 1.0),))

    @classmethod
    def from_weights(
        cls, split: Sequence[tuple[int, float]], shadow: tuple[int, float] | None = None
    ) -> Self:
        """Return a validated split. Raises ParameterError with a fix."""
        shares = tuple(VersionShare(int(version), float(weight)) for version, weight in split)
        if not 1 <= len(shares) <= MAX_VERSIONS:
            raise ParameterError(
                f"a split has {len(shares)} versions: give 1 to {MAX_VERSIONS}", code="SPLIT"
            )
        if len({share.version for share in shares}) < len(shares):
            raise ParameterError("a split has a version twice: add its weights", code="SPLIT")
        if not all(0.0 < share.weight <= 1.0 for share in shares):  # also NaN
            raise ParameterError(
                "weights of a split must be above 0 and at most 1: "
                "leave out versions without weight",
                code="SPLIT",
            )
        total = math.fsum(share.weight for share in shares)
        if abs(total - 1.0) > WEIGHT_TOLERANCE:
            raise ParameterError(
                f"the weights of a split sum to {total:.6g}: make them sum to 1", code="SPLIT"
            )
        if shadow is None:
            return cls(shares)
        shadow_share = VersionShare(int(shadow[0]), float(shadow[1]))
        if shadow_share.version in {share.version for share in shares}:
            raise ParameterError(
                f"version {shadow_share.version} serves requests already: "
                "choose another version as shadow",
                code="SPLIT",
            )
        if not 0.0 < shadow_share.weight <= 1.0:
            raise ParameterError(
                "the share of a shadow must be above 0 and at most 1: change it, "
                "or leave out the shadow",
                code="SPLIT",
            )
        return cls(shares, shadow_share)

    def with_canary(self, version: int, weight: float) -> Self:
        """Return the split in which a new version has a weight below 1, and the others the rest.

        Raises ParameterError if the version serves requests already or there are too many.
        """
        rest = [(share.version, (1.0 - weight) * share.weight) for share in self.shares]
        shadow = self.shadow and (self.shadow.version, self.shadow.weight)
        return self.from_weights([*rest, (version, weight)], shadow)

    @property
    def primary(self) -> int:
        """The version with the highest weight; the first of equal ones."""
        return max(self.shares, key=lambda share: share.weight).version

    @property
    def serving(self) -> tuple[int, ...]:
        """The versions that serve requests, in order."""
        return tuple(share.version for share in self.shares)

    @property
    def versions(self) -> tuple[int, ...]:
        """All versions that it needs, the shadow last."""
        return self.serving + (() if self.shadow is None else (self.shadow.version,))

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form that `from_dict` reads."""
        out: dict[str, Any] = {"split": [[share.version, share.weight] for share in self.shares]}
        return (
            out
            if self.shadow is None
            else {**out, "shadow": [self.shadow.version, self.shadow.weight]}
        )

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Deserialise a split.

        Raises KeyError, TypeError, ValueError or ParameterError if the data is invalid.
        """
        shadow = value.get("shadow")
        return cls.from_weights(
            [(version, weight) for version, weight in value["split"]],
            None if shadow is None else (shadow[0], shadow[1]),
        )


def hash_point(salt: str, key: str) -> float:
    """Return the position of a key in [0, 1) by BLAKE2b, equal on every machine.

    Keys are spread evenly and independently for each salt.
    """
    digest = hashlib.blake2b(
        key.encode("utf-8", "surrogatepass"), digest_size=8, key=salt.encode()[:64]
    ).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


def pick_version(split: Sequence[VersionShare], point: float) -> int:
    """Return the index of the share that contains a point of [0, 1)."""
    cumulative = 0.0
    for index, share in enumerate(split):
        cumulative += share.weight
        if point < cumulative:
            return index
    return len(split) - 1


def split_of_alias(state: Mapping[str, Any], alias: str) -> TrafficSplit | None:
    """Return the split of an alias from the state of its name (aliases.json); None without alias.

    Raises Corrupt.
    """
    version, stored = state["aliases"].get(alias), state["routes"].get(alias)
    if version is None or stored is None:
        return None if version is None else TrafficSplit.single(int(version))
    try:
        return TrafficSplit.from_dict(stored)
    except (KeyError, TypeError, ValueError, IndexError, ParameterError) as error:
        raise Corrupt(
            f"aliases.json: the split of alias {alias} can't be read "
            f"({type(error).__name__}); set it again"
        ) from None


def versions_of_alias(state: Mapping[str, Any], alias: str) -> tuple[int, ...]:
    """Return the versions of an alias, including its shadow."""
    split = split_of_alias(state, alias)
    return () if split is None else split.versions
