"""Keys of rows: scores of single labels on more than 2**16 features, and damaged keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from xcray.arrays import CSR, csr_from, frozen
from xcray.errors import Corrupt
from xcray.index import packed
from xcray.index.inverted import InvertedIndex
from xcray.index.search import SearchIndex

N_FEATURES = 3 * 65536 + 7  # four segments, the last one short


def _matrix(n_rows: int, per_row: int, seed: int) -> CSR:
    """Return rows whose features lie around the bounds of segments, and elsewhere."""
    rng = np.random.default_rng(seed)
    near = [s * 65536 + step for s in range(1, 4) for step in range(-40, 7)]
    rows = np.repeat(np.arange(n_rows), per_row)
    columns = np.where(
        rng.random(len(rows)) < 0.5,
        rng.choice(near, len(rows)),
        rng.integers(0, N_FEATURES, len(rows)),
    )
    # the same low 16 bits in several segments
    columns = np.where(rng.random(len(rows)) < 0.2, (columns % 3) * 65536 + 5, columns)
    values = rng.normal(size=len(rows)).astype(np.float32)
    return csr_from(sp.csr_matrix((values, (rows, columns)), shape=(n_rows, N_FEATURES)))


@pytest.mark.parametrize("per_row", [3, 200, 900])
def test_scores_are_those_of_the_plain_scan_to_the_bit(per_row: int) -> None:
    """Compare one label at a time, and searches, on features in four segments."""
    W, X = _matrix(300, per_row, 0), _matrix(8, 150, 1)
    b = np.random.default_rng(2).normal(size=300).astype(np.float32)
    search, plain = SearchIndex.build(W, b), InvertedIndex.build(W, b)
    for label in range(0, 300, 7):
        assert search.score(X, label, 3) == plain.score(X, label, 3)
    found, expected = search.query(X, 10), plain.query(X, 10)
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.scores, expected.scores)


def test_keys_of_a_file_are_those_of_the_weights_and_damage_is_found(tmp_path: Path) -> None:
    """Read written keys, then change a key and a bound of a segment."""
    W, b = _matrix(50, 100, 3), np.zeros(50, np.float32)
    packed.write_lists(tmp_path / "l.arrow", W, b, budget=4096)
    lists, order = packed.read_lists(tmp_path / "l.arrow", W)
    np.testing.assert_array_equal(lists.keys, W.indices.astype(np.uint16))
    expected = [np.searchsorted(W.row(i)[0], [65536, 131072, 196608]) for i in range(50)]
    np.testing.assert_array_equal(lists.segments, np.concatenate(expected))
    packed.check_lists(lists, W, order, "l.arrow")
    for name in ("keys", "segments"):
        damaged = getattr(lists, name).copy()
        damaged[20] += 1
        changed = lists._replace(**{name: frozen(damaged, damaged.dtype)})
        with pytest.raises(Corrupt, match="keys of label"):
            packed.check_lists(changed, W, order, "l.arrow")
