"""Blended models: the sum of their parts, chosen on some rows and measured on others."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tests.support.flat_models import write_fields
from xcray.arrays import csr_from
from xcray.cli.main import main
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.errors import Conflict, InputError, ParameterError, ShapeMismatch
from xcray.index.scorer import SparseScorer
from xcray.kernels.sparse import take_pattern_rows, take_rows
from xcray.measures import evaluate
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.training import TrainSpec, train
from xcray.training.calibration.fit import split_rows
from xcray.training.edit import blend
from xcray.training.edit.blend import blend_models
from xcray.training.edit.calibrate import calibrate, fit_thresholds


@pytest.fixture(scope="module")
def parts(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return two models of `tiny` by other parameters, and one of random weights."""
    folder = tmp_path_factory.mktemp("blend")
    for name, lam in (("a", 0.01), ("b", 3.0)):
        spec = TrainSpec(str(tiny.path), pool="serial", params={"lam": lam})
        train(spec, run_dir=folder / f"run-{name}", out=folder / name)
    rng = np.random.default_rng(0)
    good = Model.open(folder / "a")
    noise = rng.normal(size=good.W.shape) * (rng.random(good.W.shape) < 0.2)
    write_fields(
        folder / "noise",
        W=csr_from((noise * 50).astype(np.float32)),
        b=np.zeros(good.n_labels, np.float32),
        label_names=good.label_names,
        feature_names=good.feature_names,
        solver="imported",
        params={},
        dataset_hash="",
    )
    return [folder / "a", folder / "b", folder / "noise"]


def test_a_blend_is_the_weighted_sum_of_its_parts(
    tiny: Dataset, parts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["models", "blend", *map(str, parts), "--dataset", str(tiny.path)]
    assert main([*words, "--out", str(tmp_path / "m")]) == 0
    assert "measured on" in capsys.readouterr().out
    model = Model.open(tmp_path / "m", verify=True)
    report = model.manifest["report"]["blend"]
    shares = [each["share"] for each in report["parts"]]
    assert sum(shares) == pytest.approx(1.0)
    assert shares[2] < 0.3
    # each kept weight is the same combination of those of the parts
    W = [Model.open(path).W.to_scipy().toarray() for path in parts]
    kept = model.W.to_scipy().toarray()
    where = np.nonzero(kept)
    columns = np.column_stack([each[where] for each in W]).astype(np.float64)
    factors, *_ = np.linalg.lstsq(columns, kept[where], rcond=None)
    np.testing.assert_allclose(columns @ factors, kept[where], atol=1e-4)
    assert [factor > 1e-6 for factor in factors] == [share > 0 for share in shares]
    # no worse than the best part on the rows it was chosen on, and measured on the others
    test = tiny["test"]
    usable, _, chosen = split_rows(test.X, tiny.train.X, 0)
    found = []
    for half in (usable[chosen], usable[~chosen]):
        X, Y = take_rows(test.X, half), take_pattern_rows(test.Y, half)
        scorers = [SparseScorer(Model.open(path).search) for path in (*parts, model.path)]
        found.append([evaluate(each.top_k(X, 5).top, Y) for each in scorers])
    values = [each["P@1"] + each["nDCG@5"] for each in found[0]]
    assert values[-1] >= max(values[:-1])
    assert {name: found[1][-1][name] for name in model.measures} == model.measures
    assert report["parts"][1]["measures"]["P@1"] == found[1][1]["P@1"]
    assert len(Predictor(model).predict(test.X, 3).labels) == test.n_rows
    # calibration measures on the rows that chose neither the blend nor the curves
    rows = calibrate(model.path, tiny.path, tmp_path / "c").calibration_report["rows"]
    assert [rows["fitted"], rows["measured"]] == [len(usable[chosen]), len(usable[~chosen])]
    assert rows["fitted"] == report["rows"]["chosen"]


def test_models_that_cannot_be_blended_are_refused(
    tiny: Dataset, parts: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(ParameterError, match="at least two"):
        blend_models(parts[:1], tiny.path, tmp_path / "m")
    with pytest.raises(Conflict, match="trained on"):
        blend_models(parts[:2], tiny.path, tmp_path / "m", part="train")
    good = Model.open(parts[0])
    names = good.labels
    for changed, message in (
        ({"label_names": names[::-1]}, "other labels"),
        ({"row_norm": "l2"}, "row_norm"),
        ({"feature_names": good.features[::-1]}, "other features"),
    ):
        values = {"label_names": names, "feature_names": good.features, "params": {}} | changed
        other = tmp_path / f"other-{next(iter(changed))}"
        write_fields(other, W=good.W, b=good.b, solver="imported", dataset_hash="", **values)
        with pytest.raises(ShapeMismatch, match=message):
            blend_models([parts[0], other], tiny.path, tmp_path / "m")


def test_rows_that_a_model_has_seen_are_not_used(
    tiny: Dataset, parts: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "rows").write_text("1 1:1\n2 2:1\n" * 9)
    same = build("svmlight", dict.fromkeys(("train", "test"), tmp_path / "rows"), tmp_path / "same")
    spec = TrainSpec(str(same.path), pool="serial")
    model = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model").model_path
    with pytest.raises(InputError, match="18 others are copies of training rows"):
        blend_models([model, model], same.path, tmp_path / "m")
    with pytest.raises(InputError, match="18 others are copies of training rows"):
        fit_thresholds(model, same.path, tmp_path / "m")
    # a blend remembers the data of its parts
    options = {"synthetic": {"rows": 200, "features": 200, "labels": 40}, "test_fraction": 0.5}
    other = build("synthetic", {}, tmp_path / "other", BuildOptions.from_dict(options))
    blend_models(parts[:2], other.path, tmp_path / "blend")
    with pytest.raises(Conflict, match="trained on"):
        blend_models([tmp_path / "blend", parts[2]], tiny.path, tmp_path / "m", part="train")


def test_scores_of_all_labels_are_bounded_by_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many labels, few rows at once; the scores are the same."""
    rng, n, D, K = np.random.default_rng(0), 200, 4, 20_000
    part = blend.BlendWeights(csr_from(rng.normal(size=(K, D))), np.zeros(K, np.float32))
    X, labels = csr_from(rng.normal(size=(n, D))), np.sort(rng.integers(0, K, (n, 10)), axis=1)
    expected = blend._scores_of(part, X, labels)
    monkeypatch.setattr(blend, "CHUNK_BYTES", 4 << 20)
    tracemalloc.start()
    scores = blend._scores_of(part, X, labels)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(scores, expected)
    assert peak < 8 << 20  # of 200 rows at once 48 MiB
