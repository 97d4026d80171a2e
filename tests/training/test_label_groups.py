"""Label groups end to end: clustering, training, model, edits, export, explanations, estimator."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from tests.naive import search as naive
from xcray.arrays import csr_from, frozen, pattern_from
from xcray.data.dataset import Dataset
from xcray.data.writer import DatasetWriter
from xcray.errors import Conflict, Corrupt, ParameterError, Refused, Stopped
from xcray.estimators import PPDSparse
from xcray.model.card import render_card
from xcray.model.diff import diff
from xcray.model.exchange.weights import weights_of
from xcray.model.label_groups import WEIGHTS
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.predict.label_details import label_details
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.solvers.solved_labels import concatenate
from xcray.training import TrainResult, TrainSpec, train
from xcray.training.edit.labels import add_labels, remove_labels
from xcray.training.finished import find_finished
from xcray.training.label_groups import plan
from xcray.training.label_groups.clustering import (
    add_group_rows,
    choose_sizes,
    cluster_labels,
    k_means,
    unit_rows,
)
from xcray.training.label_groups.data import (
    GROUP_EPS,
    LabelsAndGroups,
    group_solver,
    with_group_labels,
)
from xcray.training.part_training import PartTraining
from xcray.training.run import train_model
from xcray.training.strategies import estimate_training
from xcray.workers.pool import StopFlag

N_TOPICS, LABELS_PER_TOPIC = 6, 5


def rows_of_topics(n_rows: int, seed: int) -> tuple[Any, Any]:
    """Return rows with words of a topic and of a rare label of it, so that labels share words."""
    rng = np.random.default_rng(seed)
    n_labels = N_TOPICS * LABELS_PER_TOPIC
    label = rng.integers(0, n_labels, n_rows)
    topic = label // LABELS_PER_TOPIC
    X = np.zeros((n_rows, 20 * N_TOPICS + 3 * n_labels), np.float32)
    rows = np.arange(n_rows)
    for _ in range(4):
        X[rows, 20 * topic + rng.integers(0, 20, n_rows)] = 1.0
    seen = rng.random(n_rows) < 0.7  # the label's own word is often missing
    own = 20 * N_TOPICS + 3 * label + rng.integers(0, 3, n_rows)
    X[rows[seen], own[seen]] = 1.0
    Y = np.zeros((n_rows, n_labels), np.int64)
    Y[rows, label] = 1
    return sp.csr_matrix(X), sp.csr_matrix(Y)


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Return a data set in which labels of one topic share most of their words."""
    X, Y = rows_of_topics(300, 0)
    test_X, test_Y = rows_of_topics(60, 1)
    path = tmp_path_factory.mktemp("topics") / "data"
    with DatasetWriter(path, name="topics", n_features=X.shape[1], n_labels=Y.shape[1]) as writer:
        writer.add("train", csr_from(X), pattern_from(Y))
        writer.add("test", csr_from(test_X), pattern_from(test_Y))
        return writer.finish(source={}, label_names=[f"label {k}" for k in range(Y.shape[1])])


def spec(data: Dataset, **changes: Any) -> TrainSpec:
    """Return the specification of a serial training with groups of two sizes."""
    return TrainSpec(
        **{"dataset": str(data.path), "pool": "serial", "groups": "3,6", "ks": (1, 5), **changes}
    )


@pytest.fixture(scope="module")
def trained(topics: Dataset, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """Return a serial training."""
    folder = tmp_path_factory.mktemp("grouped")
    return train(spec(topics), run_dir=folder / "run", out=folder / "model")


def test_sizes() -> None:
    assert choose_sizes("none", 1000) == ()
    assert choose_sizes("auto", 3000) == (75, 200, 500, 1000)
    assert choose_sizes("auto", 36_828) == (93, 375, 1500, 6000)
    assert choose_sizes("auto", 5) == ()
    assert choose_sizes("20, 5", 30) == (5, 20)
    for text, message in (("some", "use none, auto"), ("1,5", "from 2"), ("40", "use fewer")):
        with pytest.raises(ParameterError, match=message):
            choose_sizes(text, 30)


def test_k_means_finds_separate_clusters() -> None:
    rng = np.random.default_rng(0)
    topic = np.arange(40) % 4
    vectors = unit_rows((np.eye(8)[topic] + 0.01 * rng.normal(size=(40, 8))).astype(np.float32))
    groups = k_means(np.vstack([vectors, np.zeros((1, 8), np.float32)]), 12)
    assert all(len(set(topic[groups[:40] == group])) == 1 for group in set(groups[:40].tolist()))
    assert set(groups.tolist()) == set(range(groups.max() + 1))


def test_clusters_follow_topics_and_groups_have_rows_of_their_labels(topics: Dataset) -> None:
    clusters = cluster_labels(topics.train.X, topics.train.YT, (6,))
    topic = np.arange(topics.n_labels) // LABELS_PER_TOPIC
    agreeing = [len(set(topic[clusters.members[:, 0] == g].tolist())) for g in range(6)]
    assert np.mean(agreeing) < 2
    rows = add_group_rows(topics.train.YT, clusters)
    for group in range(clusters.n_groups):
        labels = np.flatnonzero(clusters.members[:, 0] == group)
        expected = np.unique(np.concatenate([topics.train.YT.row(label) for label in labels]))
        assert rows.row(topics.n_labels + group).tolist() == expected.tolist()


def test_model_has_certified_groups_and_better_measures(
    topics: Dataset, trained: TrainResult, tmp_path: Path
) -> None:
    plain = train(spec(topics, groups="none"), run_dir=tmp_path / "run", out=tmp_path / "model")
    model, entry = Model.open(trained.model_path), trained.report["groups"]
    groups = model.groups
    assert groups is not None
    assert groups.weight == entry["weight"] > 0.0
    assert groups.n_groups == entry["labels"] == entry["labels_certified"] == sum(entry["sizes"])
    assert trained.report["labels_certified"] == topics.n_labels
    assert trained.measures["nDCG@5"] > plain.measures["nDCG@5"]
    assert "label groups certified | 9 of 9" in render_card(model.manifest)
    without = Model.open(plain.model_path)
    assert np.array_equal(model.W.data, without.W.data)
    assert np.array_equal(model.b, without.b)
    assert "groups" not in without.manifest["stages"][0]
    assert diff(model, without).identical == ()
    assert diff(model, model).changed == ()


def test_groups_are_solved_to_a_larger_gap(topics: Dataset, trained: TrainResult) -> None:
    K = topics.n_labels
    clusters = cluster_labels(topics.train.X, topics.train.YT, (3, 6))
    solver = PPDSparseSolver()
    local = solver.load_dataset(with_group_labels(topics, clusters))
    mixed, labels, groups = (
        frozen(numbers, np.int32) for numbers in ([K, 0, K + 2], [0], [K, K + 2])
    )
    solved = LabelsAndGroups(solver, K).solve(local, mixed)
    loose = replace(solver, eps=GROUP_EPS).solve(local, groups)
    expected = concatenate([solver.solve(local, labels), loose])
    assert solved.digest() == expected.digest()
    assert loose.digest() != solver.solve(local, groups).digest()
    assert group_solver(replace(solver, eps=0.2)).eps == 0.2
    assert trained.report["groups"]["largest_gap"] <= GROUP_EPS


def test_weight_is_the_best_of_those_tried(trained: TrainResult) -> None:
    entry = trained.report["groups"]
    values = {each["weight"]: each["P@1"] + each["nDCG@5"] for each in entry["tried"]}
    assert entry["weight"] == max(sorted(values), key=lambda weight: values[weight])
    assert {0.0, 0.1, 0.2, 0.4, 0.8, 1.2} < set(values)


def test_bits_do_not_depend_on_threads_or_stops(
    topics: Dataset, trained: TrainResult, tmp_path: Path
) -> None:
    stop, phases = StopFlag(), set[str]()

    def progress(step: Any) -> None:
        phases.add(step.phase)
        if step.phase == "TRAINING" and step.done > 3:
            stop.set()

    threads = replace(spec(topics), pool="threads", workers=2)
    paths = {"run_dir": tmp_path / "run", "out": tmp_path / "model"}
    with pytest.raises(Stopped):
        train(threads, **paths, progress=progress, stop=stop)
    assert "SELECTING" in phases
    assert not (tmp_path / "run" / "groups").exists()  # the rows are not needed again
    result = train(threads, **paths)
    assert result.sha256 == trained.sha256
    found = find_finished(spec(topics), result.model_path)
    assert found is not None
    with pytest.raises(Conflict):
        find_finished(spec(topics, groups="none"), result.model_path)


def test_ray_gives_the_same_bits(
    topics: Dataset, trained: TrainResult, tmp_path: Path, ray: str
) -> None:
    own = spec(topics, pool="ray", workers=2, ray_address=ray)
    result = train(own, run_dir=tmp_path / "run", out=tmp_path / "model")
    assert result.sha256 == trained.sha256


def test_groups_that_gain_nothing_are_left_out(
    topics: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = "xcray.training.label_groups.plan.choose_weight"
    monkeypatch.setattr(plan, lambda *_: (0.0, {"tried": []}))
    result = train(spec(topics), run_dir=tmp_path / "run", out=tmp_path / "model")
    assert Model.open(result.model_path).groups is None
    assert result.report["groups"]["weight"] == 0.0


def test_four_labels_can_have_groups() -> None:
    """The measure of the weight has the first five labels, of four the first four."""
    X, Y = rows_of_topics(200, 0)
    four = np.eye(4)[np.asarray(Y.argmax(axis=1)).ravel() % 4]
    assert PPDSparse(groups="2").fit(X, four).coef_.shape[0] == 4


def test_estimate_includes_groups(topics: Dataset) -> None:
    plain = estimate_training(spec(topics, groups="none"), 0.0)
    grouped = estimate_training(spec(topics), 0.0)
    assert grouped.core_seconds > 1.8 * plain.core_seconds
    assert grouped.weights > plain.weights
    # the rows of the part, and its model, are on the disk, too
    rows = sum(each["bytes"] for name, each in topics.files.items() if name.startswith("train/"))
    assert grouped.disk > 1.8 * plain.disk + 0.7 * rows


def test_groups_of_other_sizes_are_weighed_from_the_start(
    topics: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with the model of a part that the run directory has of an earlier call."""
    begun = []

    def weigh(spec: TrainSpec, data: Dataset, sizes: Any, folder: Path, training: Any) -> Any:
        begun.append((sizes, folder.exists()))
        folder.mkdir(exist_ok=True)
        if len(begun) == 1:
            raise Stopped("in between")
        return 0.0, {}

    monkeypatch.setattr(plan, "_weigh", weigh)
    training = PartTraining(train_model, lambda _: None, StopFlag(), "job")
    with pytest.raises(Stopped):
        plan.plan_groups(spec(topics), tmp_path, training)
    for groups in ("3,6", "3,6", "5"):
        plan.plan_groups(spec(topics, groups=groups, rank=True), tmp_path, training)
    assert begun == [((3, 6), False), ((3, 6), True), ((5,), False)]


def test_refused_settings(topics: Dataset) -> None:
    with pytest.raises(ParameterError, match="leave max_seconds or groups out"):
        spec(topics, max_seconds=5.0)
    with pytest.raises(ParameterError, match="not lbfgs: leave groups out"):
        spec(topics, solver="lbfgs")
    with pytest.raises(ParameterError, match="use none, auto"):
        spec(topics, groups="few")


def test_clustering_that_does_not_fit_is_refused(
    topics: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xcray.training.label_groups.plan.cluster_bytes", lambda *_: 1 << 60)
    with pytest.raises(Refused, match="or train without groups"):
        train(spec(topics), run_dir=tmp_path / "run", out=tmp_path / "model")


def test_explanation_adds_up(topics: Dataset, trained: TrainResult) -> None:
    predictor = Predictor(trained.model_path)
    row = topics["test"].take(0, 1)[0]
    best = int(predictor.predict(row, 1).labels[0, 0])
    found = predictor.explain(row, best, top=2)
    parts = [part.contribution for part in (*found.contributions, *found.groups)]
    assert sum(parts) + found.bias + found.rest == pytest.approx(found.score)
    assert found.rank == 1
    assert len(found.groups) == 2
    assert len(found.as_dict()["groups"][0]["contributions"]) <= 2
    details = label_details(predictor.model, best)
    sizes = [group["n_labels"] for group in details["groups"]]
    assert sizes == [group.n_labels for group in found.groups]


def test_export_folds_groups(topics: Dataset, trained: TrainResult) -> None:
    model, X = Model.open(trained.model_path), topics["test"].X
    folded = weights_of(model)
    scores = naive.all_scores(X, folded.W, folded.b)
    found = model.search.query(X, model.n_labels)
    assert np.allclose(np.take_along_axis(scores, found.labels, axis=1), found.scores, atol=1e-5)


def test_edits_keep_groups_and_new_labels_join_them(
    topics: Dataset, trained: TrainResult, tmp_path: Path
) -> None:
    old = Model.open(trained.model_path)
    fewer = remove_labels(old.path, tmp_path / "fewer", ["label 7", "label 20"])
    less = Model.open(fewer.model_path)
    assert old.groups is not None
    assert less.groups is not None
    kept = np.delete(np.arange(old.n_labels), [7, 20])
    assert np.array_equal(less.groups.members, old.groups.members[kept])
    added = add_labels(less.path, topics.path, tmp_path / "more")
    model = Model.open(added.model_path)
    assert model.groups is not None
    assert np.array_equal(model.groups.postings.data, old.groups.postings.data)
    assert model.manifest["report"]["groups"]["joined_later"] == 2
    assert "joined groups after their training | 2" in render_card(model.manifest)
    new = {model.label_names[k]: model.groups.members[k] for k in range(model.n_labels)}
    own = [np.mean(new[f"label {k}"] == old.groups.members[k]) for k in (7, 20)]
    assert np.mean(own) >= 0.5


def test_changed_files_are_refused(trained: TrainResult, tmp_path: Path) -> None:
    path = tmp_path / "model"
    shutil.copytree(trained.model_path, path)
    raw = bytearray((path / WEIGHTS).read_bytes())
    raw[len(raw) // 2] ^= 1
    (path / WEIGHTS).write_bytes(bytes(raw))
    with pytest.raises(Corrupt, match="groups/weights"):
        Model.open(path)
    (path / WEIGHTS).unlink()
    with pytest.raises(Corrupt, match="missing"):
        Model.open(path, verify=False)


def test_estimator_has_the_groups_of_a_training(
    topics: Dataset, trained: TrainResult, tmp_path: Path
) -> None:
    X, Y = topics.train.X.to_scipy(), topics.train.Y.to_scipy()
    estimator = PPDSparse(groups="3,6").fit(X, Y)
    model = Model.open(trained.model_path)
    assert estimator.groups_ is not None
    assert model.groups is not None
    assert estimator.groups_.weight == model.groups.weight
    assert np.array_equal(estimator.groups_.members, model.groups.members)
    rows = topics["test"].X.to_scipy()
    top = estimator.predict_top_k(rows, 5)
    expected = Predictor(model).predict(rows, 5)
    assert np.array_equal(top.labels, expected.labels)
    assert np.array_equal(top.scores, expected.scores)
    dense = estimator.decision_function(rows)
    assert np.allclose(np.take_along_axis(dense, top.labels, axis=1), top.scores)
    loaded = PPDSparse.load(estimator.save(tmp_path / "model"))
    for other in (loaded, pickle.loads(pickle.dumps(estimator))):
        assert np.array_equal(other.predict_top_k(rows, 5).scores, top.scores)
    assert PPDSparse(groups="none").fit(X, Y).groups_ is None
