"""Traffic splits: equal keys get the same version, and shares match the hashes.

Older and newer versions of xcray read each other's files.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.support.staged_models import staged
from xcray.errors import Conflict, Corrupt, NotFound, ParameterError
from xcray.model.registry import Registry
from xcray.model.traffic_split import TrafficSplit, VersionShare, hash_point, pick_version
from xcray.storage.atomic import read_json, write_json

KEYS = [f"client-{i}" for i in range(40_000)]
POINTS = [hash_point("news@prod", key) for key in KEYS]


@pytest.mark.parametrize("weights", [(0.9, 0.1), (0.5, 0.5), (0.99, 0.01), (0.2, 0.3, 0.5)])
def test_shares_are_those_of_the_hashes(weights: tuple[float, ...]) -> None:
    """40,000 fixed keys: within four standard deviations, and equal in every run."""
    split = TrafficSplit.from_weights(
        [(number + 1, weight) for number, weight in enumerate(weights)]
    ).shares
    counts = [0] * len(weights)
    for at in POINTS:
        counts[pick_version(split, at)] += 1
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count / len(POINTS) - weight) < 4 * math.sqrt(
            weight * (1 - weight) / len(POINTS)
        )


def test_a_canary_takes_its_share_of_all_others() -> None:
    split = TrafficSplit.from_weights([(3, 0.75), (4, 0.25)], shadow=(5, 0.5)).with_canary(6, 0.2)
    assert [share.version for share in split.shares] == [3, 4, 6]
    assert [share.weight for share in split.shares] == pytest.approx([0.6, 0.2, 0.2])
    assert split.shadow == (5, 0.5)
    with pytest.raises(ParameterError, match="serves requests already"):
        split.with_canary(5, 0.1)


def test_points_are_the_same_everywhere() -> None:
    """The point is the first 53 bits of BLAKE2b-64, keyed by the reference.

    A change would move every sticky client.
    """
    assert [round(hash_point("news@prod", key), 12) for key in ("a", "b", "é")] == [
        0.329372309844,
        0.975673824853,
        0.770436986406,
    ]
    assert hash_point("news@prod", "a") != hash_point("news@beta", "a")
    assert all(0.0 <= at < 1.0 for at in POINTS)


def test_weight_that_moves_moves_only_the_keys_between() -> None:
    small, large = (
        TrafficSplit.from_weights([(3, 0.9), (4, 0.1)]).shares,
        TrafficSplit.from_weights([(3, 0.7), (4, 0.3)]).shares,
    )
    moved = [(pick_version(small, at), pick_version(large, at)) for at in POINTS]
    assert (1, 0) not in moved  # clients of the new version keep it
    assert abs(moved.count((0, 1)) / len(moved) - 0.2) < 0.01


def test_the_last_version_answers_at_the_very_end() -> None:
    """Weights in floating point can sum to slightly less than one."""
    split = (VersionShare(1, 0.1), VersionShare(2, 0.2), VersionShare(3, 0.7 - 1e-9))
    assert pick_version(split, 1.0 - 2.0**-53) == 2


@pytest.mark.parametrize(
    ("split", "shadow"),
    [
        ([], None),
        ([(1, 0.5), (2, 0.4)], None),
        ([(1, 0.5), (1, 0.5)], None),
        ([(1, 1.0), (2, 0.0)], None),
        ([(1, 1.5), (2, -0.5)], None),
        ([(1, math.nan)], None),
        ([(n, 1 / 9) for n in range(9)], None),
        ([(1, 1.0)], (1, 0.5)),
        ([(1, 1.0)], (2, 0.0)),
        ([(1, 1.0)], (2, 1.5)),
    ],
)
def test_bad_splits_are_refused(
    split: list[tuple[int, float]], shadow: tuple[int, float] | None
) -> None:
    with pytest.raises(ParameterError) as error:
        TrafficSplit.from_weights(split, shadow)
    assert error.value.code == "SPLIT"


def test_an_alias_can_refer_to_several_versions(registry: Registry) -> None:
    route = TrafficSplit.from_weights([(1, 0.25), (2, 0.75)], (3, 0.1))
    registry.aliases.set_split("news", "prod", route)
    assert registry.resolve_split("news@prod") == ("news", route)
    assert registry.resolve_version("news@prod") == ("news", 2)
    assert registry.aliases.of("news") == {"prod": 2, "latest": 3}
    assert registry.aliases.splits("news") == {"prod": route}
    for version in (1, 2, 3):
        with pytest.raises(Conflict, match="in use as prod"):
            registry.delete("news", version)
    registry.aliases.set("news", "prod", 1)
    assert (registry.resolve_split("news@prod"), registry.aliases.splits("news")) == (
        ("news", TrafficSplit.single(1)),
        {},
    )
    assert registry.previous_versions("news", "prod") == [2]
    registry.delete("news", 2)
    assert registry.previous_versions("news", "prod") == []
    with pytest.raises(NotFound, match="news:9"):
        registry.aliases.set_split("news", "prod", TrafficSplit.from_weights([(1, 0.5), (9, 0.5)]))


def test_registries_of_earlier_programs_are_read(registry: Registry, tmp_path: Path) -> None:
    """The file is byte-identical to one from before traffic splits."""
    path = registry.root / "news" / "aliases.json"
    path.write_text(
        '{\n  "aliases": {\n    "champion": 2\n  },\n  "highest": 3,\n  "schema_version": 1\n}\n'
    )
    assert registry.aliases.of("news") == {"champion": 2, "latest": 3}
    assert registry.resolve_split("news@champion") == ("news", TrafficSplit.single(2))
    assert (
        registry.published_sha256("news", 2),
        registry.corrupt.versions("news"),
        registry.pins.read("news"),
    ) == (
        None,
        {},
        ([], {}),
    )
    assert registry.publish("news", staged(tmp_path / "next", 4)) == 4
    assert registry.aliases.of("news") == {"champion": 2, "latest": 4}


def test_an_unreadable_traffic_split_is_reported(registry: Registry) -> None:
    registry.aliases.set_split("news", "prod", TrafficSplit.from_weights([(1, 0.9), (2, 0.1)]))
    path = registry.root / "news" / "aliases.json"
    for damaged in ([[1, 0.9]], [[1]], "x", [[1, "a"], [2, 0.1]]):
        write_json(path, {**read_json(path), "routes": {"prod": {"split": damaged}}})
        with pytest.raises(Corrupt, match="split of alias prod can't be read"):
            registry.resolve_split("news@prod")


def test_corrupt_pinned_and_published_versions_are_remembered(registry: Registry) -> None:
    registry.corrupt.mark("news", 2, "weights.arrow differs")
    assert Registry(registry.root).corrupt.versions("news") == {2: "weights.arrow differs"}
    lines = len(registry.history("news"))
    registry.corrupt.mark("news", 2, "weights.arrow differs")
    assert len(registry.history("news")) == lines  # nothing changed
    registry.corrupt.mark("news", 2, None)
    assert registry.corrupt.versions("news") == {}
    registry.pins.add("news@latest")
    registry.pins.add("news:1")
    assert registry.pins.read("news") == (["news:1", "news@latest"], {})
    registry.pins.unload("news:1")
    registry.pins.unload("news")
    registry.pins.unload("news")
    assert registry.pins.read("news") == ([], {"news:1": 1, "news": 2})
    assert registry.published_sha256("news", 1) is not None
    registry.delete("news", 1)
    assert registry.published_sha256("news", 1) is None
