"""Where an alias leads: to one version, or to several by weights, with perhaps one more that answers along unheard.

Which version of a split answers is decided by a hash of a key, so equal keys always meet the same version, in any process, and
the share of a version is that of the hashes below its weight. Weight moved from one version to the next moves only keys between.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from xcray.errors import Corrupt, ParameterError

MOST: Final = 8  # versions of a split
NEAR: Final = 1e-6  # weights sum to one but for rounding


class Share(NamedTuple):
    """A version, and which part of the requests it answers."""

    version: int
    weight: float


class Route(NamedTuple):
    """Versions by weight, which sum to 1; shadow: a version that gets copies of a share of the requests, and is not heard."""

    split: tuple[Share, ...]
    shadow: Share | None = None

    @classmethod
    def to(cls, version: int) -> Self:
        """The way to one version."""
        return cls((Share(version, 1.0),))

    @classmethod
    def of(
        cls, split: Sequence[tuple[int, float]], shadow: tuple[int, float] | None = None
    ) -> Self:
        """A route, checked. Raises ParameterError with the mend."""
        shares = tuple(Share(int(version), float(weight)) for version, weight in split)
        if not 1 <= len(shares) <= MOST:
            raise ParameterError(
                f"a split names {len(shares)} versions: name 1 to {MOST}", code="SPLIT"
            )
        if len({share.version for share in shares}) < len(shares):
            raise ParameterError("a split names a version twice: add its weights up", code="SPLIT")
        if not all(0.0 < share.weight <= 1.0 for share in shares):  # also NaN
            raise ParameterError(
                "weights of a split lie between 0 and 1: leave out versions without weight",
                code="SPLIT",
            )
        total = math.fsum(share.weight for share in shares)
        if abs(total - 1.0) > NEAR:
            raise ParameterError(
                f"the weights of a split sum to {total:.6g}: let them sum to 1", code="SPLIT"
            )
        if shadow is None:
            return cls(shares)
        copies = Share(int(shadow[0]), float(shadow[1]))
        if copies.version in {share.version for share in shares}:
            raise ParameterError(
                f"version {copies.version} answers already: a shadow is another version",
                code="SPLIT",
            )
        if not 0.0 < copies.weight <= 1.0:
            raise ParameterError(
                "the share of a shadow lies between 0 and 1: leave it out, or give it some",
                code="SPLIT",
            )
        return cls(shares, copies)

    @property
    def primary(self) -> int:
        """The version that answers most; the first of equal ones."""
        return max(self.split, key=lambda share: share.weight).version

    @property
    def answering(self) -> tuple[int, ...]:
        """The versions that answer, in their order."""
        return tuple(share.version for share in self.split)

    @property
    def versions(self) -> tuple[int, ...]:
        """All versions that it needs, the shadow last."""
        return self.answering + (() if self.shadow is None else (self.shadow.version,))

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: what `from_dict` reads."""
        out: dict[str, Any] = {"split": [[share.version, share.weight] for share in self.split]}
        return (
            out
            if self.shadow is None
            else {**out, "shadow": [self.shadow.version, self.shadow.weight]}
        )

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """A route as it was kept. Raises KeyError, TypeError, ValueError, ParameterError when it is none."""
        shadow = value.get("shadow")
        return cls.of(
            [(version, weight) for version, weight in value["split"]],
            None if shadow is None else (shadow[0], shadow[1]),
        )


def point(salt: str, key: str) -> float:
    """Where a key lies in [0, 1): by BLAKE2b, the same everywhere; keys spread evenly, and anew for each salt."""
    digest = hashlib.blake2b(
        key.encode("utf-8", "surrogatepass"), digest_size=8, key=salt.encode()[:64]
    ).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


def chosen(split: Sequence[Share], at: float) -> int:
    """The place in a split of the version that answers at a point of [0, 1)."""
    reached = 0.0
    for place, share in enumerate(split):
        reached += share.weight
        if at < reached:
            return place
    return len(split) - 1


def route_of(state: Mapping[str, Any], alias: str) -> Route | None:
    """Where an alias leads by the state of its name (aliases.json), None when there is none. Raises Corrupt.

    An earlier program that moved the alias knew nothing of its split, which is over then.
    """
    version, more = state["aliases"].get(alias), state["routes"].get(alias)
    if version is None or more is None:
        return None if version is None else Route.to(int(version))
    try:
        route = Route.from_dict(more)
    except (KeyError, TypeError, ValueError, IndexError, ParameterError) as error:
        raise Corrupt(
            f"aliases.json: the split of alias {alias} can't be read ({type(error).__name__}); set it again"
        ) from None
    return route if route.primary == version else Route.to(int(version))


def needed(state: Mapping[str, Any], alias: str) -> tuple[int, ...]:
    """The versions that an alias leads to, its shadow too."""
    route = route_of(state, alias)
    return () if route is None else route.versions
