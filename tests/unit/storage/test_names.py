"""Names of labels and features."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from xcray.data.dataset import Dataset
from xcray.storage.names import Names


def test_names_are_a_sequence_of_strings(tiny: Dataset) -> None:
    names = Names(pa.array(["a", "b", "c"], pa.large_string()))
    assert (names[0], names[-1], names[np.int64(1)], len(names)) == ("a", "c", "b", 3)
    assert names[1:] == ["b", "c"]
    assert list(names) == ["a", "b", "c"]
    assert ("b" in names, names.index("c")) == (True, 2)
    assert names != Names(names.array.slice(1))
    assert pa.array(names).equals(names.array)
    assert names.take([2, 0]).to_pylist() == ["c", "a"]
    assert repr(names) == "Names(3: a, b, c)"
    assert isinstance(tiny.feature_names[0], str)
    assert isinstance(tiny.label_names[0], str)
