"""Stages of a model as files: a folder per stage, whose sizes follow from the manifest.

stages/N/arrays.arrow   one row of float32 lists: b, dense W, C and c, as far as the stage has
                        them
stages/N/weights.arrow  sparse W, one row per feature
stages/N/features/      the feature pipeline, if the stage does not use the input itself
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from xcray.arrays import CSR, Float32
from xcray.errors import Corrupt, ParameterError, ShapeMismatch
from xcray.features.pipeline import load_pipeline
from xcray.index.staged import Stage, StageCalibration, StagedScorer
from xcray.kernels.canonical import FAULTS, first_fault
from xcray.storage.arrow import (
    CSR_TYPES,
    list_row,
    read_csr,
    read_float_row,
    read_table,
    write_matrix,
    write_table,
)
from xcray.storage.atomic import sha256_arrays

ARRAYS: Final = "arrays.arrow"
SPARSE_WEIGHTS: Final = "weights.arrow"
FEATURES: Final = "features"
INPUT: Final = "input"  # the entry of stages without a feature pipeline
MAX_STAGES: Final = 1024
ENTRY_NAMES: Final = ("features", "sparse", "cubic")


def not_finite(what: str) -> ParameterError:
    """Return the error of a training whose results are not finite numbers."""
    return ParameterError(
        f"{what} is not finite: feature values are too large or too small, or "
        "parameters of the training too large; "
        "scale the features, for example to rows of length 1",
        code="NOT_FINITE",
    )


def read_canonical(path: Path, what: str) -> CSR:
    """Map a matrix of weights with valid rows. what: the file, for messages.

    Raises NotFound or Corrupt.
    """
    table = read_table(path, validate_data=True)
    chunks = [chunk for column in table.columns for chunk in column.chunks]
    if {field.name: field.type for field in table.schema} != CSR_TYPES or any(
        chunk.null_count or chunk.flatten().null_count for chunk in chunks
    ):
        raise Corrupt(f"{what} is not a sparse matrix", file=path.name)
    matrix = read_csr(path)
    code, row = first_fault(matrix)
    if code:
        raise Corrupt(f"{what}, row {row}: {FAULTS[code]}", file=path.name)
    return matrix


def write_stages(folder: Path, stages: Sequence[Stage]) -> list[dict[str, Any]]:
    """Write stages below an existing folder, and return their manifest entries, JSON-ready.

    An entry has `features` ("input", or the fingerprint of the pipeline), `sparse` (whether W is
    sparse), and `cubic` (None, or `simplex` of that calibration).
    Raises ParameterError if a weight is not finite.
    """
    for number, stage in enumerate(stages):
        sparse = [stage.W.data] if isinstance(stage.W, CSR) else []
        for array in (*_dense_arrays(stage).values(), *sparse):
            if not np.isfinite(array).all():
                raise not_finite(f"a weight of stage {number + 1}")
        place = folder / str(number)
        place.mkdir()
        columns = {name: pa.array(each.ravel()) for name, each in _dense_arrays(stage).items()}
        write_table(place / ARRAYS, list_row(columns))
        if isinstance(stage.W, CSR):
            write_matrix(place / SPARSE_WEIGHTS, stage.W)
        if stage.features is not None:
            (place / FEATURES).mkdir()
            stage.features.save(place / FEATURES)
    return [_entry(stage) for stage in stages]


def read_stages(
    folder: Path, entries: Sequence[Mapping[str, Any]], n_inputs: int, n_labels: int
) -> tuple[Stage, ...]:
    """Map the stages with these manifest entries, without copying.

    `calibration` in an entry, of the model's probabilities, is ignored.
    Shapes, types, finite numbers and canonical rows are checked; checksums of files are not. Raises
    NotFound for a missing file, and Corrupt for invalid entries or files.
    """
    if not 1 <= len(entries) <= MAX_STAGES:
        raise Corrupt(f"{len(entries)} stages: a model has 1 to {MAX_STAGES}")
    stages = []
    for number, entry in enumerate(entries):
        stage = _read_stage(folder / str(number), entry, n_inputs, n_labels)
        if _entry(stage) != {k: v for k, v in entry.items() if k != "calibration"}:
            raise Corrupt(f"stage {number} is not what its manifest entry says")
        stages.append(stage)
    try:
        return StagedScorer(stages, n_inputs).stages
    except ShapeMismatch as error:
        raise Corrupt(str(error)) from None


def n_weights(stage: Stage) -> int:
    """Return the number of stored weights of a stage."""
    return int(stage.W.nnz if isinstance(stage.W, CSR) else stage.W.size)


def stages_hash(stages: Sequence[Stage]) -> str:
    """Return the SHA-256 over the arrays and settings of all stages, in hexadecimal."""
    content: dict[str, Any] = {"count": str(len(stages))}
    for number, stage in enumerate(stages):
        arrays: dict[str, Any] = dict(_dense_arrays(stage))
        if isinstance(stage.W, CSR):
            indptr, indices, data, n_cols = stage.W
            arrays |= {"indptr": indptr, "indices": indices, "data": data, "cols": str(n_cols)}
        arrays["entry"] = repr(sorted(_entry(stage).items()))
        content[str(number)] = sha256_arrays(arrays)
    return sha256_arrays(content)


def _entry(stage: Stage) -> dict[str, Any]:
    """Return the manifest entry of a stage."""
    calibration = stage.calibration
    return {
        "features": INPUT if stage.features is None else stage.features.fingerprint,
        "sparse": isinstance(stage.W, CSR),
        "cubic": None if calibration is None else {"simplex": calibration.simplex},
    }


def _dense_arrays(stage: Stage) -> dict[str, Float32]:
    """Return the dense arrays of a stage by name."""
    arrays = {"b": stage.b}
    if not isinstance(stage.W, CSR):
        arrays["W"] = stage.W
    if stage.calibration is not None:
        arrays |= {"C": stage.calibration.C, "c": stage.calibration.c}
    return arrays


def _read_stage(place: Path, entry: Mapping[str, Any], n_inputs: int, n_labels: int) -> Stage:
    """Map one stage. Raises NotFound or Corrupt."""
    try:
        features, sparse, cubic = (entry[name] for name in ENTRY_NAMES)
        simplex = None if cubic is None else cubic["simplex"]
    except (KeyError, TypeError) as error:
        raise Corrupt(f"stage {place.name} has an invalid manifest entry: {error!r}") from None
    pipeline = None if features == INPUT else load_pipeline(place / FEATURES)
    n_outputs = n_inputs if pipeline is None else pipeline.n_outputs
    shapes: dict[str, tuple[int, ...]] = {"b": (n_labels,)}
    if not sparse:
        shapes["W"] = (n_outputs, n_labels)
    if simplex is not None:
        shapes |= {"C": (3 * n_labels if simplex else 3, n_labels), "c": (n_labels,)}
    arrays = read_float_row(place / ARRAYS, shapes, f"stage {place.name}")
    what = f"{SPARSE_WEIGHTS} of stage {place.name}"
    W = read_canonical(place / SPARSE_WEIGHTS, what) if sparse else arrays["W"]
    calibration = None if simplex is None else StageCalibration(arrays["C"], arrays["c"], simplex)
    return Stage(W, arrays["b"], pipeline, calibration)
