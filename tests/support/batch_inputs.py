"""Inputs of batch predictions and ways to compare their outputs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from xcray.arrays import csr_from
from xcray.batch import BatchPredictSpec, predict_batch

D = 6


def sparse(n, seed=0):
    """Return random rows with up to D features; one row is empty."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)).astype(np.float32) * (rng.random((n, D)) < 0.5)
    X[min(2, n - 1)] = 0
    return csr_from(X)


def table_of(X, **more):
    """Return rows as a table with list columns."""
    lists = {
        "indices": [X.row(i)[0].tolist() for i in range(X.n_rows)],
        "values": pa.array([X.row(i)[1].tolist() for i in range(X.n_rows)], pa.list_(pa.float32())),
    }
    return pa.table({**lists, **more})


def written(path, table, **how):
    """Write a table as a Parquet file."""
    pq.write_table(table, path, **how)
    return path


def run(tmp_path, model, path, name="out", **body):
    """Predict a file; return the manifest, and the predictions as one table."""
    body = {"pool": "serial", "top_k": 3, "part_rows": 7, **body}
    out = tmp_path / name
    result = predict_batch(
        BatchPredictSpec(str(model.path), str(path), **body),
        run_dir=tmp_path / f"{name}.run",
        out=out,
    )
    return result.manifest, pads.dataset(out, format="parquet").to_table()


def digests(manifest):
    """Return the names and checksums of the parts."""
    return [(part["file"], part["sha256"]) for part in manifest["parts"]]
