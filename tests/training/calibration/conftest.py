"""A data set and a model, to which probabilities and thresholds are fitted."""

from __future__ import annotations

import pytest

from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.model.model import Model
from xcray.training import TrainSpec, train


@pytest.fixture(scope="package")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Return a data set of 3,000 rows, half of them held out."""
    options = {
        "test_fraction": 0.5,
        "synthetic": {"rows": 3000, "features": 120, "labels": 30, "seed": 3},
    }
    return build(
        "synthetic", {}, tmp_path_factory.mktemp("data") / "data", BuildOptions.from_dict(options)
    )


@pytest.fixture(scope="package")
def plain(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Return a model without probabilities and thresholds."""
    folder = tmp_path_factory.mktemp("plain")
    spec = TrainSpec(str(data.path), pool="serial", params={"eps": 0.1})
    return Model.open(train(spec, run_dir=folder / "run", out=folder / "model").model_path)
