"""Label edits: trained labels equal a training from scratch, all others keep their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.flat_models import write_fields
from xcray.arrays import csr, pattern
from xcray.data.dataset import Dataset
from xcray.data.writer import DatasetWriter
from xcray.errors import Conflict, InputError, NotFound, ShapeMismatch, Stopped, XcrayError
from xcray.kernels.sparse import take_pattern_rows, take_rows, transpose_pattern
from xcray.model.calibration import Calibration
from xcray.model.linked_copy import with_calibration
from xcray.model.model import Model
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.training import Progress, TrainSpec, train
from xcray.training.edit.apply import EditOptions
from xcray.training.edit.labels import (
    add_labels,
    merge_labels,
    remove_labels,
    rename_labels,
    retrain_labels,
)
from xcray.workers.pool import StopFlag

SERIAL = EditOptions(pool="serial")
EMPTY = 38  # a label of the tiny set without a training row


def with_labels(
    source: Dataset, sets: list[tuple[str, list[int]]], path: Path, rows: int | None = None
) -> Dataset:
    """Write a data set with other labels and return it.

    Each entry of `sets` is a name and the labels of `source` whose rows it has. Only the first
    `rows` training rows are used.
    """
    with DatasetWriter(
        path, name="other", n_features=source.n_features, n_labels=len(sets)
    ) as writer:
        for part, split in source.splits.items():
            n = split.n_rows if rows is None or part == "test" else rows
            cells = [np.unique(np.concatenate([split.YT.row(k) for k in old])) for _, old in sets]
            YT = pattern(np.cumsum([0, *map(len, cells)]), np.concatenate(cells), split.n_rows)
            X, Y = (
                take_rows(split.X, np.arange(n)),
                take_pattern_rows(transpose_pattern(YT), np.arange(n)),
            )
            writer.add(part, X, Y)
        return writer.finish(source={}, label_names=[name for name, _ in sets])


def trained(data: Dataset, folder: Path) -> Model:
    """Train on a data set and return the model."""
    return Model.open(
        train(
            TrainSpec(str(data.path), pool="serial"), run_dir=folder / "run", out=folder / "model"
        ).model_path
    )


def same_labels(a: Model, i: Any, b: Model, j: Any, leave_out: Sequence[str] = ("label",)) -> bool:
    """Return whether labels i of a are labels j of b, to the byte.

    Weights, biases and report rows are compared, except the columns in `leave_out`.
    """
    i, j = np.asarray(i), np.asarray(j)
    weights = [take_rows(model.W, rows) for model, rows in ((a, i), (b, j))]
    assert a.label_table is not None
    assert b.label_table is not None
    rows = [
        model.label_table.drop_columns(list(leave_out)).take(list(map(int, at)))
        for model, at in ((a, i), (b, j))
    ]
    same = all(
        x.tobytes() == y.tobytes() for x, y in zip(weights[0][:3], weights[1][:3], strict=True)
    )
    return same and a.b[i].tobytes() == b.b[j].tobytes() and rows[0].equals(rows[1])


def solved_alike(a: Model, i: Any, b: Model, j: Any) -> bool:
    """Return whether labels are the same, except for the seconds and workers of the training."""
    return same_labels(a, i, b, j, ("label", "seconds", "worker"))


@pytest.fixture(scope="module")
def complete_model(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Return the model of all 40 labels."""
    return trained(tiny, tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def some(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Return the model of the first 30 labels."""
    folder = tmp_path_factory.mktemp("some")
    return trained(with_labels(tiny, [(str(k), [k]) for k in range(30)], folder / "data"), folder)


@pytest.mark.parametrize("how", [SERIAL, EditOptions(workers=3)], ids=["serial", "threads"])
def test_adding_the_missing_labels_gives_the_whole_model(
    tiny: Dataset, complete_model: Model, some: Model, tmp_path: Path, how: EditOptions
) -> None:
    result = add_labels(some.path, tiny.path, tmp_path / "new", options=how)
    new, names = Model.open(result.model_path), [str(k) for k in range(30, 40) if k != EMPTY]
    expected = remove_labels(
        complete_model.path, tmp_path / "expected", [str(EMPTY)], dataset=tiny.path
    )
    assert new.sha256 == result.sha256 == expected.sha256
    assert new.measures == expected.measures
    assert same_labels(new, range(30), some, range(30))
    assert solved_alike(new, range(30, 39), complete_model, [int(name) for name in names])
    assert new.provenance == [
        {
            "operation": "add",
            "parent": some.sha256,
            "labels": names,
            "n_labels": 9,
            "dataset_hash": tiny.content_hash,
            "revision": new.provenance[0]["revision"],
        }
    ]
    assert new.label_table is not None
    assert new.label_table.column("label").to_pylist() == list(range(39))
    assert None not in new.label_table.column("worker").to_pylist()
    assert (
        result.report["labels_trained"],
        result.report["labels_kept"],
        result.report["labels"],
    ) == (9, 30, 39)
    assert (result.report["labels_certified"], result.report["trained"]["labels_certified"]) == (
        39,
        9,
    )
    assert 0.0 < result.report["largest_gap"] <= 0.01
    assert tiny.test is not None
    present = int((tiny.label_counts[tiny.test.Y.indices] > 0).sum())
    assert sum(group["true"] for group in result.report["by_frequency"]["labels"]) == present


def test_adding_named_labels_appends_them_in_the_order_given(
    tiny: Dataset, complete_model: Model, some: Model, tmp_path: Path
) -> None:
    new = Model.open(
        add_labels(some.path, tiny.path, tmp_path / "new", ["37", "31"], SERIAL).model_path
    )
    assert new.label_names.to_pylist()[30:] == ["37", "31"]
    assert solved_alike(new, [30, 31], complete_model, [37, 31])
    assert same_labels(new, range(30), some, range(30))


def test_labels_without_a_training_row_are_not_added(
    tiny: Dataset, some: Model, tmp_path: Path
) -> None:
    first = int(tiny.train.YT.row(39)[0])  # with only the rows before it, label 39 is empty
    data = with_labels(tiny, [(str(k), [k]) for k in range(40)], tmp_path / "data", rows=first)
    missing = [str(k) for k in range(30, 40) if data.label_counts[k] == 0]
    assert "39" in missing
    assert len(missing) < 10
    new = Model.open(add_labels(some.path, data.path, tmp_path / "new", options=SERIAL).model_path)
    assert new.label_names.to_pylist()[30:] == [
        str(k) for k in range(30, 40) if str(k) not in missing
    ]


def test_removing_keeps_every_other_byte(
    tiny: Dataset, complete_model: Model, tmp_path: Path
) -> None:
    gone = [0, 7, 8, 39]
    left = [k for k in range(40) if k not in gone]
    result = remove_labels(complete_model.path, tmp_path / "new", [str(k) for k in gone])
    new = Model.open(result.model_path)
    assert new.label_names.to_pylist() == [str(k) for k in left]
    assert same_labels(new, range(36), complete_model, left)
    assert new.measures == {}  # measures of 40 labels are not valid for 36
    assert new.manifest["dataset_hash"] == complete_model.manifest["dataset_hash"]
    measured = remove_labels(
        complete_model.path, tmp_path / "measured", [str(k) for k in gone], dataset=tiny.path
    )
    assert measured.sha256 == result.sha256  # measures are not part of the content
    # The removed labels still count as true labels of the test rows.
    assert 0.2 < measured.measures["P@1"] < complete_model.measures["P@1"]


def test_removing_and_adding_again_comes_back(
    tiny: Dataset, complete_model: Model, tmp_path: Path
) -> None:
    names = ["35", "36", "39"]
    less = remove_labels(complete_model.path, tmp_path / "less", names)
    again = Model.open(add_labels(less.model_path, tiny.path, tmp_path / "again", names).model_path)
    assert solved_alike(
        again, [*range(35), 35, 36, 37, 38, 39], complete_model, [*range(35), 37, 38, 35, 36, 39]
    )
    assert [step["operation"] for step in again.provenance] == ["remove", "add"]
    assert [step["parent"] for step in again.provenance] == [complete_model.sha256, less.sha256]


def test_retraining_on_the_same_rows_changes_no_byte(
    tiny: Dataset, complete_model: Model, tmp_path: Path
) -> None:
    result = retrain_labels(complete_model.path, tiny.path, tmp_path / "new", ["3", "17"], SERIAL)
    assert result.sha256 == complete_model.sha256
    assert solved_alike(Model.open(result.model_path), range(40), complete_model, range(40))


def test_retraining_on_other_rows_changes_those_labels_alone(
    tiny: Dataset, complete_model: Model, tmp_path: Path
) -> None:
    # Other numbers, because labels are found by name.
    order = [
        5,
        3,
        1,
        *(k for k in range(40) if k not in (5, 3, 1)),
    ]
    data = with_labels(tiny, [(str(k), [k]) for k in order], tmp_path / "data", rows=200)
    new = Model.open(
        retrain_labels(
            complete_model.path, data.path, tmp_path / "new", ["3", "1"], SERIAL
        ).model_path
    )
    fresh = trained(data, tmp_path)
    rest = [k for k in range(40) if k not in (1, 3)]
    assert new.label_names == complete_model.label_names
    assert same_labels(new, rest, complete_model, rest)
    assert solved_alike(new, [3, 1], fresh, [1, 2])
    assert not solved_alike(new, [3], complete_model, [3])
    assert new.manifest["dataset_hash"] == data.content_hash
    assert new.measures.keys() == complete_model.measures.keys()


def test_merging_trains_on_the_rows_of_all(
    tiny: Dataset, complete_model: Model, tmp_path: Path
) -> None:
    merged = with_labels(
        tiny,
        [("both" if k == 4 else str(k), [4, 39, 20] if k == 4 else [k]) for k in range(39)],
        tmp_path / "data",
    )
    fresh = trained(merged, tmp_path)
    new = Model.open(
        merge_labels(
            complete_model.path, tiny.path, tmp_path / "new", ["4", "39", "20"], "both", SERIAL
        ).model_path
    )
    left = [k for k in range(40) if k not in (39, 20)]
    assert new.label_names.to_pylist() == ["both" if k == 4 else str(k) for k in left]
    assert solved_alike(new, [4], fresh, [4])
    rest = [i for i in range(38) if i != 4]
    assert same_labels(new, rest, complete_model, [left[i] for i in rest])
    assert new.provenance[0]["into"] == "both"


def test_a_merged_label_can_keep_a_name_of_the_group(
    tiny: Dataset, complete_model: Model, tmp_path: Path
) -> None:
    names = [str(k) for k in range(40)]
    every = Model.open(
        merge_labels(
            complete_model.path,
            tiny.path,
            tmp_path / "new",
            ["1", *names[:1], *names[2:]],
            "0",
            SERIAL,
        ).model_path
    )
    assert every.label_names.to_pylist() == ["0"]
    assert every.measures["P@1"] == 1.0  # all labels in one, which every test row has


def test_renaming_changes_names_alone(complete_model: Model, tmp_path: Path) -> None:
    result = rename_labels(
        complete_model.path, tmp_path / "new", {"3": "three", "1": "2", "2": "1"}
    )
    new = Model.open(result.model_path)
    assert new.label_names.to_pylist()[:4] == ["0", "2", "1", "three"]
    assert same_labels(new, range(40), complete_model, range(40))
    assert new.measures == complete_model.measures
    assert new.sha256 != complete_model.sha256


def test_a_change_of_scores_says_that_probabilities_are_gone(
    complete_model: Model, tmp_path: Path
) -> None:
    parts = [np.array(each) for each in ([1], [0, 2, 4], [-1.0, 1, -1, 1], [0.1, 0.9, 0.1, 0.9])]
    report = {
        "rows": {"fitted": 1, "measured": 1, "left_out": 0},
        "bins": [],
        "places": [1],
        "report": {},
        "measures": {},
    }
    curves = Calibration(np.zeros(40, np.int32), *parts)
    with_calibration(complete_model, tmp_path / "calibrated", curves, report)
    renamed = rename_labels(tmp_path / "calibrated", tmp_path / "renamed", {"3": "three"})
    assert "not_calibrated" not in renamed.report
    assert Model.open(renamed.model_path).calibration is not None
    removed = remove_labels(tmp_path / "calibrated", tmp_path / "removed", ["3"])
    assert "xcray calibrate" in removed.report["not_calibrated"]
    bare = remove_labels(complete_model.path, tmp_path / "bare", ["3"])
    assert "not_calibrated" not in bare.report


def test_labels_of_an_unknown_solver_can_be_removed_and_renamed(
    some: Model, tmp_path: Path
) -> None:
    fields = {
        "params": {"depth": 3},
        "solver": "forest",
        "dataset_hash": "0" * 64,
        "feature_names": some.feature_names,
    }
    model = write_fields(
        tmp_path / "model", W=some.W, b=some.b, label_names=some.label_names, **fields
    )
    less = remove_labels(model.path, tmp_path / "less", ["3"])
    new = Model.open(rename_labels(less.model_path, tmp_path / "new", {"4": "four"}).model_path)
    assert (new.n_labels, new.manifest["solver"], new.manifest["params"]) == (
        29,
        "forest",
        {"depth": 3},
    )


def test_a_model_without_a_class_report_stays_without(
    tiny: Dataset, some: Model, tmp_path: Path
) -> None:
    entries = {name: some.manifest[name] for name in ("solver", "params", "seed", "dataset_hash")}
    names = {"label_names": some.label_names, "feature_names": some.feature_names}
    bare = write_fields(tmp_path / "bare", W=some.W, b=some.b, **names, **entries)
    new = Model.open(add_labels(bare.path, tiny.path, tmp_path / "new", ["39"], SERIAL).model_path)
    assert new.label_table is None
    assert new.n_labels == 31


BAD: list[tuple[Any, list[Any], type[XcrayError], str]] = [
    (add_labels, [["nine"]], NotFound, "data set .* has no label 'nine'"),
    (add_labels, [["31", "3"]], Conflict, "has label '3' already; train it again with"),
    (add_labels, [["31", "31"]], InputError, "'31' is named twice"),
    (remove_labels, [["35"]], NotFound, "the model has no label '35'"),
    (remove_labels, [[]], InputError, "at least one label"),
    (remove_labels, [[str(k) for k in range(30)]], InputError, "no label would remain"),
    (retrain_labels, [[]], InputError, "at least one label"),
    (retrain_labels, [["35"]], NotFound, "the model has no label '35'"),
    (retrain_labels, [["x"]], NotFound, "the model has no label 'x'"),
    (merge_labels, [["1"], "x"], InputError, "at least two labels"),
    (merge_labels, [["1", "1"], "x"], InputError, "named twice"),
    (merge_labels, [["1", "35"], "x"], NotFound, "the model has no label '35'"),
    (merge_labels, [["1", "2"], "3"], Conflict, "the model has another label '3'"),
    (merge_labels, [["1", "2"], "35"], Conflict, "data set .* '35'"),
    (merge_labels, [["1", "2"], " "], InputError, "not empty"),
    (rename_labels, [{"35": "x"}], NotFound, "the model has no label '35'"),
    (rename_labels, [{"1": "2"}], Conflict, "would name two labels .*'1' and '2'"),
    (rename_labels, [{"1": "x", "2": "x"}], Conflict, "would name two labels"),
    (rename_labels, [{"1": ""}], InputError, "not empty"),
    (rename_labels, [{"1": "1"}], InputError, "OLD=NEW"),
    (add_labels, [None, EditOptions(pool="ray")], XcrayError, "serial, threads"),
]


@pytest.mark.parametrize(("edit", "arguments", "error", "message"), BAD)
def test_bad_input_names_the_fix_and_leaves_nothing(
    tiny: Dataset,
    some: Model,
    tmp_path: Path,
    edit: Any,
    arguments: list[Any],
    error: type[XcrayError],
    message: str,
) -> None:
    data = [] if edit in (remove_labels, rename_labels) else [tiny.path]
    with pytest.raises(error, match=message):
        edit(some.path, *data, tmp_path / "out", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_missing_directories_are_named(tiny: Dataset, some: Model, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no data set"):
        add_labels(some.path, tiny.path / "x", tmp_path / "out")
    with pytest.raises(NotFound, match="no model"):
        remove_labels(some.path / "x", tmp_path / "out", ["1"])


def test_nothing_to_add(tiny: Dataset, complete_model: Model, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to add"):
        add_labels(complete_model.path, tiny.path, tmp_path / "out")


def test_a_label_without_rows_can_not_be_trained(
    tiny: Dataset, some: Model, tmp_path: Path
) -> None:
    data = with_labels(
        tiny,
        [(str(k), [k]) for k in range(40)],
        tmp_path / "data",
        rows=int(tiny.train.YT.row(39)[0]),
    )
    empty = next(str(k) for k in range(30) if data.label_counts[k] == 0)
    with pytest.raises(InputError, match="no training row"):
        add_labels(some.path, data.path, tmp_path / "out", ["39"])
    with pytest.raises(InputError, match="no training row"):
        retrain_labels(some.path, data.path, tmp_path / "out", [empty])
    assert not (tmp_path / "out").exists()


def test_a_name_of_several_labels_is_not_guessed(some: Model, tmp_path: Path) -> None:
    names = ["twice", "twice", *map(str, range(28))]
    entries = {name: some.manifest[name] for name in ("solver", "params", "dataset_hash")}
    model = write_fields(
        tmp_path / "model",
        W=some.W,
        b=some.b,
        label_names=names,
        feature_names=some.feature_names,
        **entries,
    )
    with pytest.raises(InputError, match="several labels 'twice'"):
        remove_labels(model.path, tmp_path / "out", ["twice"])


def test_labels_of_a_solver_that_trains_all_together_are_not_trained_alone(
    tiny: Dataset, some: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PPDSparseSolver, "family", "joint")
    with pytest.raises(
        InputError, match=r"trains all labels together.*train the whole model again"
    ):
        retrain_labels(some.path, tiny.path, tmp_path / "out", ["1"], SERIAL)
    assert list(tmp_path.iterdir()) == []
    assert Model.open(remove_labels(some.path, tmp_path / "less", ["1"]).model_path).n_labels == 29


def test_an_existing_directory_is_never_touched(tiny: Dataset, some: Model, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for change in (
        lambda: add_labels(some.path, tiny.path, tmp_path / "out"),
        lambda: remove_labels(some.path, tmp_path / "out", ["1"]),
        lambda: rename_labels(some.path, tmp_path / "out", {"1": "x"}),
    ):
        with pytest.raises(Conflict, match="exists already"):
            change()
    assert list((tmp_path / "out").iterdir()) == []


def test_other_features_are_refused(tiny: Dataset, some: Model, tmp_path: Path) -> None:
    wider = csr(tiny.train.X.indptr, tiny.train.X.indices, tiny.train.X.data, tiny.n_features + 1)
    for name, X, features, message in (
        ("wider", wider, None, "has 201 features, the model 200; .*--like"),
        (
            "named",
            tiny.train.X,
            [f"f{j}" for j in range(200)],
            "other names than the model; .*--like",
        ),
    ):
        with DatasetWriter(tmp_path / name, name=name) as writer:
            writer.add("train", X, tiny.train.Y)
            data = writer.finish(source={}, feature_names=features)
        with pytest.raises(ShapeMismatch, match=message):
            add_labels(some.path, data.path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_stopped_edit_is_resumed(tiny: Dataset, some: Model, tmp_path: Path) -> None:
    stop, steps = StopFlag(), list[Progress]()
    first = EditOptions("serial", run_dir=tmp_path / "run")

    def look(step: Progress) -> None:
        steps.append(step)
        if step.done > 2 and not stop.is_set():
            stop.set()

    with pytest.raises(Stopped, match="finished batches are kept"):
        add_labels(
            some.path, tiny.path, tmp_path / "out", options=replace(first, progress=look, stop=stop)
        )
    assert not (tmp_path / "out").exists()
    selection = steps[-1].done
    steps.clear()
    complete_model = add_labels(
        some.path, tiny.path, tmp_path / "out", options=replace(first, progress=steps.append)
    )
    assert selection <= min(step.done for step in steps if step.phase == "TRAINING" and step.done)
    assert (
        complete_model.sha256
        == add_labels(some.path, tiny.path, tmp_path / "again", options=SERIAL).sha256
    )


def test_a_stop_leaves_nothing(tiny: Dataset, some: Model, tmp_path: Path) -> None:
    stop = StopFlag()
    how = EditOptions(
        pool="serial", stop=stop, progress=lambda p: stop.set() if p.done > 2 else None
    )
    with pytest.raises(Stopped):
        add_labels(some.path, tiny.path, tmp_path / "out", options=how)
    assert list(tmp_path.iterdir()) == []
    assert Model.open(some.path).sha256 == some.sha256


def test_the_card_lists_the_history(tiny: Dataset, complete_model: Model, tmp_path: Path) -> None:
    less = remove_labels(complete_model.path, tmp_path / "less", ["3"])
    model = merge_labels(
        less.model_path, tiny.path, tmp_path / "model", ["1", "2"], "one|two", SERIAL
    ).model_path
    card = (model / "card.md").read_text()
    assert f"1. remove 1 label (`3`), from `{complete_model.sha256[:16]}`" in card
    assert (
        f"2. merge 2 labels (`1`, `2`) into `one\\|two`, from `{less.sha256[:16]}`, on data `{tiny.content_hash[:16]}`"
        in card
    )
    assert "History" not in (complete_model.path / "card.md").read_text()
