"""The models on which a search is measured, each with held-out queries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness import dataset
from xcray.arrays import CSR, csr, csr_from
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.data.synthetic import SyntheticParams
from xcray.errors import NotFound
from xcray.model.model import Model
from xcray.training import TrainSpec, train

SMALL = SyntheticParams(
    rows=20_000, features=30_000, labels=4_000, nnz_per_row=60, labels_per_row=3, seed=4
)


class Subject(NamedTuple):
    """A model with its queries: X (n, D), non-empty rows in random order."""

    name: str
    model: Model
    X: CSR


def subjects(
    models: Path | None, pydocs: bool, only: list[str] | None, queries: int, folder: Path
) -> Iterator[Subject]:
    """Yield the models of a directory, with at most `queries` queries each.

    The directory contains NAME/model with NAME/dataset, NAME/queries or NAME/queries.npz. Without a
    directory a small model is trained. pydocs is added if requested.
    """
    for place in sorted(path.parent for path in models.glob("*/model")) if models else []:
        if only is None or place.name in only:
            yield Subject(
                place.name, Model.open(place / "model", verify=False), some(rows_of(place), queries)
            )
    instance = [] if models else ["small"]
    for name in [*instance, *(["pydocs"] if pydocs else [])]:
        if name == "small":
            data = build(
                "synthetic", {}, folder / name, BuildOptions(test_fraction=0.2, synthetic=SMALL)
            )
        else:
            data = dataset(name, None, folder)
        result = train(
            TrainSpec(str(data.path), pool="serial"),
            run_dir=folder / f"{name}-run",
            out=folder / f"{name}-model",
        )
        yield Subject(name, Model.open(result.model_path), some(data["test"].X, queries))


def rows_of(place: Path) -> CSR:
    """Return the queries of a model. Raises NotFound with the possible places."""
    if (place / "queries.npz").exists():
        import scipy.sparse as sp

        return csr_from(sp.load_npz(place / "queries.npz"))
    for name in ("queries", "dataset"):
        if (place / name).exists():
            data = Dataset.open(place / name)
            return (data.test or data.train).X
    raise NotFound(
        f"{place} holds a model without queries; put a data set at {place / 'dataset'} or rows at queries.npz"
    )


def some(X: CSR, n: int) -> CSR:
    """Return at most n non-empty rows of X, in a fixed random order."""
    filled = np.flatnonzero(np.diff(X.indptr))
    chosen = np.random.default_rng(0).permutation(filled)[:n]
    return csr_from(X.to_scipy()[chosen])


def repeated(X: CSR, n: int) -> CSR:
    """Return n rows: those of X, repeated."""
    whole = X.to_scipy()
    return csr_from(whole[np.arange(n) % X.n_rows])


def row(X: CSR, i: int) -> CSR:
    """Return one row of X with its own arrays, as in a service."""
    indices, data = X.row(i)
    return csr([0, len(indices)], indices.copy(), data.copy(), X.n_cols)


def arrays_of(thing: Any, values: set[int]) -> Iterator[Any]:
    """Yield every numpy array reachable from an object, once."""
    if id(thing) in values:
        return
    values.add(id(thing))
    if isinstance(thing, np.ndarray):
        yield thing
    elif isinstance(thing, tuple | list):
        for part in thing:
            yield from arrays_of(part, values)
    elif type(thing).__module__.startswith("xcray."):
        for part in vars(thing).values() if hasattr(thing, "__dict__") else ():
            yield from arrays_of(part, values)


def index_bytes(search: Any) -> int:
    """Return the bytes of the arrays that a search reads, including rows for rescoring.

    Memory shared by two views counts once.
    """
    spans = {
        (array.__array_interface__["data"][0], array.nbytes) for array in arrays_of(search, set())
    }
    return sum(size for _, size in spans)


def csr_bytes(model: Model) -> int:
    """Return the bytes of the weights by label: 4 per label number, 4 per value, 8 per offset."""
    return 8 * model.nnz + 8 * (model.n_labels + 1)
