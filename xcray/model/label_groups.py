"""Label groups of a model as files.

groups/weights.arrow  (D, G) weights of the groups, one row per feature
groups/bias.arrow     G biases
groups/members.arrow  the groups of each label, one column per size, from coarse to fine
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from xcray.arrays import CSR, frozen
from xcray.errors import Corrupt, ShapeMismatch
from xcray.index.label_groups import LabelGroups
from xcray.kernels.sparse import take_rows
from xcray.model.stages import not_finite, read_canonical
from xcray.storage.arrow import read_column, read_table, write_matrix, write_table
from xcray.storage.atomic import sha256_arrays

FOLDER: Final = "groups"
WEIGHTS, BIAS, MEMBERS = (
    f"{FOLDER}/weights.arrow",
    f"{FOLDER}/bias.arrow",
    f"{FOLDER}/members.arrow",
)
MAX_SIZES: Final = 64


def write_groups(path: Path, groups: LabelGroups) -> dict[str, Any]:
    """Write the groups of a model directory, and return their entry of its stage, JSON-ready.

    Raises ParameterError if a weight is not finite.
    """
    if not all(np.isfinite(each).all() for each in (groups.postings.data, groups.b, groups.weight)):
        raise not_finite("a weight of a label group")
    (path / FOLDER).mkdir()
    write_matrix(path / WEIGHTS, groups.postings)
    write_table(path / BIAS, pa.table({"bias": pa.array(groups.b)}))
    columns = {str(size): pa.array(groups.members[:, size]) for size in range(len(groups.sizes))}
    write_table(path / MEMBERS, pa.table(columns))
    return {"sizes": list(groups.sizes), "weight": groups.weight, "nnz": groups.postings.nnz}


def read_groups(path: Path, entry: Any, n_labels: int, n_features: int) -> LabelGroups:
    """Map the groups of a model directory with this entry. Raises NotFound or Corrupt.

    Types, shapes, finite numbers and canonical rows are checked.
    """
    try:
        sizes, weight, nnz = entry["sizes"], entry["weight"], entry["nnz"]
        sound = 1 <= len(sizes) <= MAX_SIZES and all(type(size) is int for size in (*sizes, nnz))
    except (KeyError, TypeError) as error:
        raise Corrupt(f"the entry of the label groups is not valid: {error!r}") from None
    if not (sound and type(weight) is float and np.isfinite(weight)):
        raise Corrupt("the entry of the label groups is not valid")
    postings = read_canonical(path / WEIGHTS, WEIGHTS)
    if postings.shape != (n_features, sum(sizes)) or postings.nnz != nnz:
        raise Corrupt(f"{WEIGHTS} is {postings.shape} with {postings.nnz} weights", file=WEIGHTS)
    b = read_column(read_table(path / BIAS), "bias", pa.float32(), BIAS, sum(sizes)).to_numpy()
    if not np.isfinite(b).all():
        raise Corrupt(f"{BIAS}: a bias is not finite", file=BIAS)
    table = read_table(path / MEMBERS)
    columns = [
        read_column(table, str(size), pa.int32(), MEMBERS, n_labels) for size in range(len(sizes))
    ]
    members = np.column_stack([column.to_numpy() for column in columns])
    try:
        return LabelGroups(
            tuple(sizes), postings, frozen(b, np.float32), frozen(members, np.int32), weight
        )
    except ShapeMismatch as error:
        raise Corrupt(f"{MEMBERS}: {error.message}", file=MEMBERS) from None


def groups_hash(groups: LabelGroups) -> str:
    """Return the SHA-256 over all arrays and the weight of groups, in hexadecimal."""
    return sha256_arrays({"weights": weights_hash(groups), "members": groups.members})


def weights_hash(groups: LabelGroups) -> str:
    """Return the SHA-256 of groups without their labels."""
    indptr, indices, data, n_cols = groups.postings
    arrays = {"indptr": indptr, "indices": indices, "data": data, "bias": groups.b}
    settings = repr((tuple(groups.sizes), float(groups.weight), int(n_cols)))
    return sha256_arrays({**arrays, "settings": settings})


def change_labels(groups: LabelGroups, rows: Any, W: CSR) -> LabelGroups:
    """Return the groups of changed labels.

    rows: (K',), the former number of each label; below 0 for new ones, which join the groups that
    are nearest to their weights. W: (K', D), of the changed labels.
    """
    members, is_new = groups.members[rows], rows < 0
    if is_new.any():
        members[is_new] = nearest_groups(take_rows(W, np.flatnonzero(is_new)), groups)
    return groups.with_members(members)


def fold_groups(W: CSR, b: Any, groups: LabelGroups) -> tuple[CSR, Any]:
    """Return weights (K, D) and biases (K,) float32 that contain those of the groups.

    They have several times as many weights, and scores that differ by the rounding of float32.
    """
    import scipy.sparse as sp

    n_labels, n_sizes = groups.members.shape
    rows = np.repeat(np.arange(n_labels), n_sizes)
    shares = np.full(rows.size, groups.share)
    members = sp.csr_matrix((shares, (rows, groups.members.ravel())), (n_labels, groups.n_groups))
    own = W.to_scipy().astype(np.float64)
    folded = (own + members @ groups.W.to_scipy().astype(np.float64)).astype(np.float32)
    folded.sort_indices()
    out = CSR(
        frozen(folded.indptr, np.int64),
        frozen(folded.indices, np.int32),
        frozen(folded.data, np.float32),
        W.n_cols,
    )
    return out, frozen(b.astype(np.float64) + members @ groups.b.astype(np.float64), np.float32)


def nearest_groups(W: CSR, groups: LabelGroups) -> Any:
    """Return the groups of labels with weights W (n, D) whose weights are most similar: (n, S)."""
    import scipy.sparse as sp

    own, others = W.to_scipy().astype(np.float64), groups.W.to_scipy().astype(np.float64)
    lengths = np.sqrt(np.asarray(others.multiply(others).sum(axis=1)).ravel())
    cosines = own @ (sp.diags(1.0 / np.maximum(lengths, 1e-30)) @ others).T
    cosines = cosines.toarray()
    ends = np.cumsum(groups.sizes)
    columns = [
        start + np.argmax(cosines[:, start:end], axis=1)
        for start, end in zip(ends - groups.sizes, ends, strict=True)
    ]
    return frozen(np.column_stack(columns), np.int32)
