"""Probabilities of softmax models: the exact normaliser over all labels, and all interfaces."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.special import softmax as scipy_softmax
from sklearn.linear_model import LogisticRegression

from tests.naive import normaliser as naive
from tests.naive import search
from tests.support.flat_models import write_fields
from tests.support.live_service import LABELS, TEXTS, client_of, settings_for
from xcray.arrays import CSR, csr_from, frozen
from xcray.batch import BatchPredictSpec, predict_batch
from xcray.cli import main as cli
from xcray.data.text.pipeline import TextPipeline
from xcray.errors import InputError, NotCalibrated, ParameterError, ShapeMismatch
from xcray.index.log_partition import LogPartition, softmax
from xcray.index.search import SearchIndex
from xcray.kernels.search import logsumexp as kernels
from xcray.model.calibration import Calibration
from xcray.model.linked_copy import with_calibration
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.service.app import create_app
from xcray.solvers.label_weights import sparse_rows

REPORT: dict[str, Any] = {
    "rows": {"fitted": 1, "measured": 1, "left_out": 0},
    "bins": [],
    "places": [],
    "report": {},
}


def random(n: int, d: int, share: float, scale: float, seed: int) -> CSR:
    """Return a matrix with this share of nonzero cells, normal values times `scale`."""
    rng = np.random.default_rng(seed)
    return csr_from(
        np.where(rng.random((n, d)) < share, scale * rng.normal(size=(n, d)), 0).astype(np.float32)
    )


def model(path: Path, W: CSR, b: Any, **more: Any) -> Model:
    """Write a softmax model of these weights."""
    names = {
        "label_names": [f"label-{i}" for i in range(W.n_rows)],
        "feature_names": [f"feature-{j}" for j in range(W.n_cols)],
    }
    fields = {
        "solver": "ds-mlr",
        "params": {},
        "dataset_hash": "d",
        "link": "softmax",
        **names,
        **more,
    }
    return write_fields(path, W=W, b=np.asarray(b, np.float32), **fields)


def check(W: CSR, b: Any, X: CSR) -> None:
    """Compare the normalisers of X with naive ones: lists, plain rows, postings, two threads."""
    b = np.asarray(b, np.float32)
    expected = naive.log_normaliser(search.all_scores(X, W, b))
    for dense in (False, True):
        result = LogPartition(SearchIndex.build(W, b, dense=dense))
        answer = result.compute(X)
        np.testing.assert_allclose(answer, expected, rtol=1e-13, atol=1e-11)
        np.testing.assert_array_equal(result.compute(X, threads=2), answer)
    np.testing.assert_allclose(by_postings(W, b, X), expected, rtol=1e-13, atol=1e-11)


def by_postings(W: CSR, b: Any, X: CSR) -> Any:
    """Return normalisers from weights by feature, as in models of very many labels."""
    out = np.empty(X.n_rows)
    by_feature = csr_from(np.ascontiguousarray(W.to_scipy().toarray().T))
    kernels.by_postings(X, 0, X.n_rows, by_feature, kernels.bias_powers(frozen(b, np.float32)), out)
    return out


def test_exponentials_are_right_to_the_last_bits() -> None:
    values = np.concatenate(
        [[0.0, -0.0], -np.logspace(-18, np.log10(708), 4000), -np.linspace(0, 40, 1000)]
    )
    for value in values.tolist():
        result, expected = kernels.sum_exp(np.array([value]), 0.0), math.exp(value)
        assert abs(result - expected) <= 2 * math.ulp(expected), value
    assert kernels.sum_exp(np.array([-1e300, -709.0, -np.inf]), 0.0) < 1e-306


@pytest.mark.parametrize("n", [0, 1, 2, 255, 256, 257, 1000])
def test_sums_of_every_length(n: int) -> None:
    values = np.random.default_rng(n).normal(size=n) * 10
    top = kernels.largest(values)
    assert top == max(values.tolist(), default=-math.inf)
    assert kernels.sum_exp(values, top) == pytest.approx(
        math.fsum(math.exp(v - top) for v in values.tolist()), rel=1e-14
    )


@pytest.mark.parametrize("n_labels", [1, 2, 7, 63, 300])
@pytest.mark.parametrize("share", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("scale", [0.1, 3.0, 200.0])
def test_the_same_as_one_label_after_the_other(n_labels: int, share: float, scale: float) -> None:
    W, X = random(n_labels, 40, share, scale, 1), random(20, 40, share, 1.0, 2)
    check(W, np.random.default_rng(3).normal(size=n_labels) * scale, X)


def test_rows_without_features_have_the_sum_over_all_biases() -> None:
    b = np.random.default_rng(0).normal(size=500)
    check(random(500, 10, 0.1, 1.0, 0), b, csr_from(np.zeros((3, 10), np.float32)))
    check(csr_from(np.zeros((500, 10), np.float32)), b, random(3, 10, 0.5, 1.0, 0))


def test_a_sum_that_the_weights_of_the_row_almost_cancel() -> None:
    """exp(60) of the sum over all biases belongs to a label whose score is -60."""
    n = 400
    W, b = np.zeros((n, 3), np.float32), np.zeros(n, np.float32)
    b[7] = 60.0
    W[7], W[9, 1] = [-120.0, -60.0, 1.0], 2.0
    rows = csr_from(np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0, 0], [1, 1, 1]], np.float32))
    check(csr_from(W), b, rows)
    exact = LogPartition(SearchIndex.build(csr_from(W), b, dense=False)).compute(rows)[0]
    assert exact == pytest.approx(math.log(399 + math.exp(-60)), rel=1e-15)


def test_numbers_that_float32_can_not_hold() -> None:
    W, X = random(30, 8, 0.8, 1e30, 5), random(6, 8, 0.8, 1e20, 6)
    check(W, np.zeros(30), X)
    check(random(300, 8, 0.02, 1e-38, 5), np.full(300, 3e38), random(6, 8, 0.8, 1e-38, 6))


def test_models_of_very_many_labels() -> None:
    """Wide lists hold only bounds, so the weights are transposed for the sum."""
    n = (1 << 16) + 500
    rng = np.random.default_rng(0)
    labels, features = rng.integers(0, n, 4000), rng.integers(0, 50, 4000)
    dense = np.zeros((n, 50), np.float32)
    dense[labels, features] = rng.normal(size=4000) * 4
    dense[:, 0] = rng.normal(size=n)  # a feature that all labels have
    W, X = csr_from(dense), random(4, 50, 0.3, 1.0, 1)
    b = rng.normal(size=n).astype(np.float32)
    answer = LogPartition(SearchIndex.build(W, b)).compute(X, threads=2)
    np.testing.assert_allclose(answer, naive.log_normaliser(search.all_scores(X, W, b)), rtol=1e-13)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    """Return a predictor of a softmax model with 60 labels and 30 features."""
    W = random(60, 30, 0.4, 1.0, 1)
    return Predictor(
        model(
            tmp_path_factory.mktemp("small") / "model", W, np.random.default_rng(2).normal(size=60)
        ),
        threads=2,
    )


ROWS = random(9, 30, 0.4, 2.0, 7)


def dense_softmax(predictor: Predictor, rows: CSR) -> Any:
    """Return scipy's softmax of all scores, of shape (n, K)."""
    return scipy_softmax(search.all_scores(rows, predictor.model.W, predictor.model.b), axis=1)


def test_all_labels_add_up_to_one_and_agree_with_scipy(small: Predictor) -> None:
    assert small.probability_source == "softmax"
    answer = small.search(ROWS, 60, probabilities=True)
    prediction = small.probabilities(answer)
    np.testing.assert_allclose(prediction.sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_allclose(
        prediction,
        np.take_along_axis(dense_softmax(small, ROWS), answer.labels.astype(int), 1),
        atol=1e-12,
    )
    assert (np.diff(prediction, axis=1) <= 0).all()
    five = small.search(ROWS, 5, probabilities=True)
    np.testing.assert_array_equal(small.probabilities(five), prediction[:, :5])
    np.testing.assert_array_equal(five.scores, small.predict(ROWS, 5).scores)


def test_the_whole_is_all_labels_also_where_some_are_not_allowed(small: Predictor) -> None:
    some = [3, 8, 20]
    answer = small.search(ROWS, 5, allow=some, probabilities=True)
    expected = np.take_along_axis(dense_softmax(small, ROWS), answer.labels.astype(int), 1)
    assert set(answer.labels.ravel().tolist()) == set(some)
    np.testing.assert_allclose(small.probabilities(answer, filtered=True), expected, atol=1e-12)
    assert (small.probabilities(answer, filtered=True).sum(axis=1) < 0.9).all()
    denied = small.search(ROWS, 60, deny=some, probabilities=True)
    together = small.probabilities(denied).sum(axis=1) + small.probabilities(answer).sum(axis=1)
    np.testing.assert_allclose(together, 1.0, atol=1e-12)


def test_a_deadline_bounds_the_search_and_not_the_normaliser(small: Predictor) -> None:
    with pytest.raises(ParameterError, match="deadline_ms is -1"):
        small.search(ROWS, 5, deadline_ms=-1, probabilities=True)
    answer = small.search(ROWS, 5, deadline_ms=0, probabilities=True)
    np.testing.assert_array_equal(answer.log_normaliser, small.log_normaliser(ROWS))
    np.testing.assert_allclose(
        small.probabilities(answer), np.exp(answer.scores - answer.log_normaliser[:, None])
    )


def test_a_model_of_scikit_learn_gives_the_same_probabilities(tmp_path: Path) -> None:
    """Weights exported as sparse rows give the probabilities of scikit-learn."""
    rng = np.random.default_rng(4)
    X, classes = rng.normal(size=(300, 25)).astype(np.float32), rng.integers(0, 12, 300)
    X[np.arange(300), classes] += 2
    other = LogisticRegression(C=0.3, max_iter=300).fit(X, classes)
    W, lost = sparse_rows(other.coef_.T.astype(np.float32))
    assert not lost.any()
    predictor = Predictor(model(tmp_path / "model", W, other.intercept_))
    answer = predictor.search(X, 12, probabilities=True)
    expected = np.take_along_axis(other.predict_proba(X), answer.labels.astype(int), 1)
    np.testing.assert_allclose(predictor.probabilities(answer), expected, rtol=1e-5, atol=1e-7)


def test_normalisers_are_computed_only_on_request(
    small: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("normalisers were not asked for")

    monkeypatch.setattr(LogPartition, "compute", never)
    answer = small.search(ROWS, 5)
    assert len(answer.log_normaliser) == 0
    assert small.table(answer).column_names[:2] == ["labels", "scores"]
    assert "probabilities" not in small.table(answer).column_names
    assert small.explain(ROWS._replace(indptr=ROWS.indptr[:2]), 3).label == 3
    with pytest.raises(AssertionError):
        small.search(ROWS, 5, probabilities=True)
    for bare in (answer, small.predict(ROWS, 5)):
        with pytest.raises(ParameterError, match="probabilities=True"):
            small.probabilities(bare)


def test_answers_in_arrow(small: Predictor) -> None:
    answer = small.search(ROWS, 4, probabilities=True)
    assert (
        small.table(answer).column("probabilities").to_pylist()
        == small.probabilities(answer).tolist()
    )
    none = small.search(random(0, 30, 0, 1, 0), 4, probabilities=True)
    assert small.probabilities(none).shape == (0, 4)


def test_calibration_curves_have_priority_over_softmax(small: Predictor, tmp_path: Path) -> None:
    curve = (
        np.zeros(60, np.int32),
        np.ones(1, np.int64),
        np.array([0, 2, 4]),
        np.array([-9.0, 9.0] * 2),
        np.array([0.1, 0.4] * 2),
    )
    both = Predictor(
        with_calibration(small.model, tmp_path / "curves", Calibration(*curve), REPORT)
    )
    assert (both.probability_source, both.model.link) == ("curves", "softmax")
    answer = both.search(ROWS, 3, probabilities=True)
    assert len(answer.log_normaliser) == 0
    np.testing.assert_allclose(
        both.probabilities(answer), 0.25 + np.clip(answer.scores, -9, 9) / 60
    )
    np.testing.assert_array_equal(both.log_normaliser(ROWS), small.log_normaliser(ROWS))
    assert "## Probabilities" in (both.model.path / "card.md").read_text()
    assert "Softmax" not in (both.model.path / "card.md").read_text()


def test_models_of_margins_refuse(tmp_path: Path) -> None:
    plain = Predictor(
        model(tmp_path / "plain", random(5, 30, 0.5, 1, 0), np.zeros(5), link="identity")
    )
    with pytest.raises(NotCalibrated, match="xcray calibrate"):
        plain.search(ROWS, 2, probabilities=True)
    with pytest.raises(ParameterError, match="identity"):
        plain.log_normaliser(ROWS)
    assert "margins" in (plain.model.path / "card.md").read_text()


def test_rows_that_do_not_fit_are_refused(small: Predictor) -> None:
    with pytest.raises(ShapeMismatch, match="30"):
        small.log_normaliser(random(2, 7, 0.5, 1, 0))
    with pytest.raises(InputError, match="NaN"):
        small.log_normaliser([[float("nan")] + [1.0] * 29])
    with pytest.raises(ParameterError, match="threads"):
        LogPartition(small.model.search).compute(ROWS, threads=0)


def test_the_link_is_part_of_what_a_model_is(tmp_path: Path) -> None:
    W = random(5, 6, 0.5, 1, 0)
    one, two = (
        model(tmp_path / link, W, np.zeros(5), link=link) for link in ("identity", "softmax")
    )
    assert one.sha256 != two.sha256
    assert (one.link, two.link) == ("identity", "softmax")
    assert "all 5 labels" in " ".join((two.path / "card.md").read_text().split())
    with pytest.raises(ParameterError, match="one of identity, softmax"):
        model(tmp_path / "other", W, np.zeros(5), link="logit")


def test_a_share_is_never_above_one() -> None:
    report = softmax(
        np.array([[0.0, -800.0], [1e300, -1e300]]),
        np.array([np.nextafter(0.0, -1.0) - 1e-16, 1e300]),
    )
    assert report.tolist() == [[1.0, 0.0], [1.0, 0.0]]


def test_one_signature_each(small: Predictor) -> None:
    small.log_normaliser(ROWS)
    small.log_normaliser(csr_from(np.ones((1, 30))))
    for kernel in (
        kernels.by_lists,
        kernels.by_postings,
        kernels.logsumexp,
        kernels.logsumexp_all,
        kernels.sum_exp,
        kernels.largest,
    ):
        assert len(kernel.signatures) <= 1, kernel


@pytest.fixture
def reader(tmp_path: Path) -> Model:
    """Write a softmax model that reads text."""
    text = TextPipeline.fit(TEXTS)
    W = random(len(LABELS), text.n_features, 0.7, 1.0, 1)
    more = {"label_names": LABELS, "feature_names": text.terms, "text": text}
    return model(tmp_path / "reader", W, [0.1, 0.2, 0.3, 0.4], **more)


def test_the_command_line_prints_probabilities(
    reader: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        cli.main(["predict", str(reader.path), *TEXTS, "-k", "4", "--probabilities", "--json"]) == 0
    )
    for result in json.loads(capsys.readouterr().out)["predictions"]:
        assert math.fsum(one["probability"] for one in result["labels"]) == pytest.approx(
            1.0, abs=1e-12
        )


def test_batch_predictions_include_probabilities(reader: Model, tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("\n".join(TEXTS) + "\n")
    spec = BatchPredictSpec(
        str(reader.path),
        str(tmp_path / "rows.txt"),
        format="text",
        top_k=4,
        probabilities=True,
        pool="serial",
    )
    result = predict_batch(spec, run_dir=tmp_path / "run", out=tmp_path / "out")
    report = pq.read_table(result.path / "part-00000.parquet").column("probabilities").to_pylist()
    predictor = Predictor(reader)
    assert (
        report
        == predictor.probabilities(predictor.search(list(TEXTS), 4, probabilities=True)).tolist()
    )


@pytest.mark.parametrize(
    "more", [{}, {"allow": ["io", "csv"]}, {"deadline_ms": 1000.0}, {"top_k": 100}]
)
def test_the_service_returns_probabilities(
    reader: Model, tmp_path: Path, more: dict[str, Any]
) -> None:
    predictor = Predictor(Model.open(reader.path))
    app = create_app(settings_for(tmp_path / "home"))
    app.state.app_state.registry.publish("docs", reader.path)
    body = {"instances": [{"text": text} for text in TEXTS], **more}
    with client_of(app) as http:
        plain = http.post("/v1/models/docs:predict", json=body).json()["predictions"]
        response = http.post("/v1/models/docs:predict", json={**body, "probabilities": True})
        assert response.status_code == 200, response.text
        assert http.get("/v1/models/docs/versions/1").json()["calibrated"] is True
    answer = predictor.search(
        list(TEXTS), more.get("top_k", 5), allow=more.get("allow"), probabilities=True
    )
    result = response.json()["predictions"]
    assert [one.pop("probabilities") for one in result] == predictor.probabilities(answer).tolist()
    assert result == plain
