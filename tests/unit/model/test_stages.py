"""Files of stages: a round trip keeps every bit, and forged files are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from xcray.arrays import CSR, Float32, csr, csr_from
from xcray.errors import Corrupt, NotFound
from xcray.features.fourier import random_fourier
from xcray.index.staged import Stage, StageCalibration, StagedScorer
from xcray.model.stages import read_stages, stages_hash, write_stages
from xcray.storage.arrow import read_table, write_matrix, write_table

D, K, OUTPUTS = 6, 4, 5
RANDOM = np.random.default_rng(11)


def numbers(*shape: int) -> Float32:
    """Return random float32 numbers of this shape."""
    return RANDOM.normal(size=shape).astype(np.float32)


SPARSE = csr_from(numbers(D, K) * (RANDOM.random((D, K)) < 0.5))
CALIBRATION = StageCalibration(numbers(3 * K, K), numbers(K))
STAGES = (
    Stage(SPARSE, numbers(K)),
    Stage(numbers(OUTPUTS, K), numbers(K), random_fourier(D, OUTPUTS, 4.0, seed=1), CALIBRATION),
    Stage(numbers(D, K), numbers(K), None, StageCalibration(numbers(3, K), numbers(K), False)),
)


def test_stages_are_read_as_they_were_written(tmp_path: Path) -> None:
    entries = write_stages(tmp_path, STAGES)
    read = read_stages(tmp_path, entries, D, K)
    assert [entry["sparse"] for entry in entries] == [True, False, False]
    assert [entry["cubic"] for entry in entries] == [
        None,
        {"simplex": True},
        {"simplex": False},
    ]
    assert stages_hash(read) == stages_hash(STAGES)
    X = numbers(7, D)
    ours, expected = (StagedScorer(stages, D).top_k(X, K) for stages in (read, STAGES))
    for mine, other in zip(ours, expected, strict=True):
        assert mine.tobytes() == other.tobytes()


@pytest.mark.parametrize("number", range(len(STAGES)))
@pytest.mark.parametrize("field", ["W", "b", "features", "calibration"])
def test_the_hash_depends_on_every_part_of_a_stage(number: int, field: str) -> None:
    stage = STAGES[number]
    changes: dict[str, Any] = {
        "W": stage.W._replace(data=-stage.W.data) if isinstance(stage.W, CSR) else -stage.W,
        "b": -stage.b,
        "features": random_fourier(D, OUTPUTS, 4.0, seed=2),
        "calibration": CALIBRATION._replace(c=-CALIBRATION.c),
    }
    changed = list(STAGES)
    changed[number] = stage._replace(**{field: changes[field]})
    assert stages_hash(changed) != stages_hash(STAGES)


def test_the_hash_depends_on_the_order_and_number_of_stages() -> None:
    assert len({stages_hash(s) for s in (STAGES, STAGES[::-1], STAGES[:2], STAGES[1:])}) == 4


def forge_arrays(number: int, **arrays: pa.Array) -> Callable[[Path], None]:
    """Return a function that replaces columns of the arrays of a stage; None removes one."""

    def forge(folder: Path) -> None:
        path = folder / str(number) / "arrays.arrow"
        table = read_table(path)
        columns = {name: table.column(name).combine_chunks() for name in table.column_names}
        merged = {**columns, **arrays}
        write_table(path, pa.table({n: a for n, a in merged.items() if a is not None}))

    return forge


def forge_weights(matrix: CSR) -> Callable[[Path], None]:
    """Return a function that replaces the sparse weights of stage 0."""
    return lambda folder: write_matrix(folder / "0" / "weights.arrow", matrix)


def floats(*values: float | None) -> pa.Array:
    """Return one row with these numbers."""
    return pa.array([list(values)], pa.large_list(pa.float32()))


def change(matrix: CSR, **fields: Any) -> CSR:
    """Return the matrix with other first entries of its arrays."""
    arrays = {name: getattr(matrix, name).copy() for name in fields}
    for name, value in fields.items():
        arrays[name][0] = value
    return matrix._replace(**arrays)


FORGERIES: list[tuple[Callable[[Path], None], str]] = [
    (forge_arrays(0, b=floats(1.0, 2.0)), "b of stage 0"),
    (forge_arrays(0, b=floats(1.0, 2.0, 3.0, np.nan)), "b of stage 0"),
    (forge_arrays(0, b=floats(1.0, 2.0, 3.0, None)), "b of stage 0"),
    (forge_arrays(0, b=pa.array([[1.0] * K], pa.large_list(pa.float64()))), "stage 0: 'b' is not"),
    (forge_arrays(1, C=None), "stage 1 lacks b, W, C, c"),
    (forge_arrays(2, W=floats(*range(D * K - 1))), "W of stage 2"),
    (forge_arrays(2, C=floats(*[np.inf] * (3 * K * K))), "C of stage 2"),
    (forge_weights(change(SPARSE, indices=K)), "row 0"),
    (forge_weights(change(SPARSE, indices=-1)), "row 0"),
    (forge_weights(change(SPARSE, data=np.inf)), "row 0"),
    (forge_weights(SPARSE._replace(n_cols=K + 1)), "W of stage 0"),
    (forge_weights(csr([0, 0], [], [], K)), "W of stage 0"),
    (
        lambda folder: write_table(
            folder / "0" / "weights.arrow", pa.table({"indices": floats(1.0)})
        ),
        "not a sparse matrix",
    ),
    (
        lambda folder: random_fourier(D, OUTPUTS, 4.0, seed=2).save(folder / "1" / "features"),
        "stage 1 is not what its manifest entry says",
    ),
    (
        lambda folder: random_fourier(D + 1, OUTPUTS, 4.0, seed=1).save(folder / "1" / "features"),
        "stage 1 is not what its manifest entry says",
    ),
]


@pytest.mark.parametrize(("forge", "problem"), FORGERIES)
def test_forged_files_are_refused(
    tmp_path: Path, forge: Callable[[Path], None], problem: str
) -> None:
    entries = write_stages(tmp_path, STAGES)
    forge(tmp_path)
    with pytest.raises(Corrupt, match=problem):
        read_stages(tmp_path, entries, D, K)


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ({"features": "input", "sparse": True}, Corrupt),
        ({"features": "input", "sparse": True, "cubic": "simplex"}, Corrupt),
        ({"features": "input", "sparse": True, "cubic": {"simplex": True}}, Corrupt),
        ({"features": "input", "sparse": False, "cubic": None}, Corrupt),
        ({"features": "0" * 64, "sparse": True, "cubic": None}, NotFound),
        ({"features": "input", "sparse": True, "cubic": None, "more": 1}, Corrupt),
        (["features"], Corrupt),
    ],
)
def test_forged_manifest_entries_are_refused(
    tmp_path: Path, entry: Any, error: type[Exception]
) -> None:
    entries = write_stages(tmp_path, STAGES)
    with pytest.raises(error):
        read_stages(tmp_path, [entry, *entries[1:]], D, K)
    with pytest.raises(Corrupt, match="0 stages"):
        read_stages(tmp_path, [], D, K)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    entries = write_stages(tmp_path, STAGES)
    (tmp_path / "2" / "arrays.arrow").unlink()
    with pytest.raises(NotFound):
        read_stages(tmp_path, entries, D, K)
    with pytest.raises(NotFound):
        read_stages(tmp_path, [*entries, entries[0]], D, K)
