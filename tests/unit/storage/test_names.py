"""Names of labels and features."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

from xcray.data.dataset import Dataset
from xcray.storage.names import MAX_SINGLE_LOOKUPS, Names


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


@pytest.mark.parametrize("rows", [0, 1, MAX_SINGLE_LOOKUPS // 2, MAX_SINGLE_LOOKUPS // 2 + 1])
def test_names_of_numbers(rows: int) -> None:
    names = Names(pa.array(["x", "é \U0001f600", '"', "", "d"], pa.large_string()))[1:]
    numbers = np.arange(rows * 2, dtype=np.int32).reshape(rows, 2) % 4
    expected = [[names[int(j)] for j in row] for row in numbers]
    assert names.rows(numbers) == expected
    flat = [name for row in expected for name in row]
    assert [str(name, "utf-8") for name in names.utf8(numbers)] == names.texts(numbers) == flat
    assert pickle.loads(pickle.dumps(names)).rows(numbers) == expected
    assert names.texts(np.array([-1])) == Names(pa.array([], pa.large_string())).texts(
        np.array([-1])
    )
