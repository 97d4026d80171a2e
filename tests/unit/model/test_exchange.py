"""Models of other programs: read, written, and the same after both."""

from __future__ import annotations

import errno
import io
import json
import os
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib import format as npy_format
from scipy.sparse import csr_matrix, load_npz, random
from sklearn.datasets import load_iris
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC

from tests.robustness.badinput.numpy_arrays import HEADERS
from xcray.arrays import csr_from
from xcray.cli.main import main
from xcray.errors import InputError, ShapeMismatch, XcrayError
from xcray.model.exchange import dismec, liblinear, npz
from xcray.model.exchange.formats import FORMATS, export_model, import_model
from xcray.model.exchange.scikit_learn import weights_from
from xcray.model.exchange.weights import ForeignWeights, save_weights
from xcray.model.model import Model
from xcray.model.write import ModelContent, TrainingRecord, write_model
from xcray.predict import Predictor

K, D = 5, 12


def make_model(path: Path, row_norm: str = "none") -> Model:
    """Return a model with numbered names, an empty row of weights and a bias of 0."""
    weights = random(K, D, 0.4, "csr", np.float32, random_state=1).toarray()
    weights[2] = 0
    names = [str(k) for k in range(K)], [str(j) for j in range(D)]
    b = np.array([0.5, -1, 0, 1 / 3, -2e-9])
    content = ModelContent(csr_from(weights), b, *names, row_norm=row_norm)
    return write_model(path, content, TrainingRecord("ppdsparse", {}, ""))


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """Return a model."""
    return make_model(tmp_path / "m")


@pytest.mark.parametrize("name", FORMATS)
def test_a_model_written_and_read_back_has_the_same_bytes(tmp_path: Path, name: str) -> None:
    model = make_model(tmp_path / "m", "l2")
    export_model(model, name, tmp_path / "file")
    back = import_model(name, tmp_path / "file", tmp_path / "back", bias=name == "dismec")
    for file in ("weights.arrow", "bias.arrow", "labels.arrow"):
        assert (back.path / file).read_bytes() == (model.path / file).read_bytes(), file
    assert back.manifest["solver"] == "imported"
    assert back.manifest["params"] == {"format": name}
    assert back.row_norm == ("l2" if name == "npz" else "none")


def test_a_liblinear_file_of_several_classes(tmp_path: Path) -> None:
    X, y = load_iris(return_X_y=True)
    classifier = LinearSVC(random_state=0).fit(X, y)
    vectors = np.column_stack([classifier.coef_, classifier.intercept_]).T
    head = "solver_type L2R_L2LOSS_SVC_DUAL\nnr_class 3\nlabel 7 -1 3\nnr_feature 4\nbias 1\nw\n"
    lines = "".join(" ".join(map(repr, map(float, row))) + " \n" for row in vectors)
    (tmp_path / "file").write_text(head + lines)
    model = import_model("liblinear", tmp_path / "file", tmp_path / "m")
    assert model.labels == ["7", "-1", "3"]
    result = Predictor(model).search(X.astype(np.float32), 3)
    assert result.labels[:, 0].tolist() == classifier.predict(X).tolist()
    want = np.take_along_axis(classifier.decision_function(X), result.labels, 1)
    assert result.scores == pytest.approx(want, abs=1e-5)


def test_two_classes_of_liblinear_share_a_vector(tmp_path: Path) -> None:
    head = "solver_type L2R_LR\nnr_class 2\nlabel 1 -1\nnr_feature 2\nbias 0.5\nw\n"
    (tmp_path / "file").write_text(head + "2 \n0 \n-4 \n")
    weights = liblinear.read(tmp_path / "file")
    assert weights.W.to_scipy().toarray().tolist() == [[2, 0], [-2, 0]]
    assert (weights.b.tolist(), weights.labels) == ([-2, 2], ["1", "-1"])


def test_files_of_dismec_in_every_form(tmp_path: Path) -> None:
    dense = np.array([[1, 0, 2], [0, 0, 0], [0, -3, 0.5]], np.float32)
    np.save(tmp_path / "a.npy", dense[:1])
    (tmp_path / "b").write_text("0 0 0\n")
    (tmp_path / "c").write_text("1:-3 2:0.5 \n")
    kinds = [("c", "SparseTXT"), ("a.npy", "DenseNPY"), ("b", "DenseTXT")]
    files = [
        {"first": first, "count": 1, "file": file, "weight-format": kind}
        for first, (file, kind) in zip((2, 0, 1), kinds, strict=True)
    ]
    header = {"num-features": 3, "num-labels": 3, "files": files}
    (tmp_path / "model").write_text(json.dumps(header))
    weights = dismec.read(tmp_path / "model")
    np.testing.assert_array_equal(weights.W.to_scipy().toarray(), dense)
    model = import_model("dismec", tmp_path / "model", tmp_path / "m", bias=True)
    np.testing.assert_array_equal(model.W.to_scipy().toarray(), dense[:, :2])
    assert model.b.tolist() == [2, 0, 0.5]


def test_scipy_reads_an_archive(model: Model, tmp_path: Path) -> None:
    export_model(model, "npz", tmp_path / "w.npz")
    np.testing.assert_array_equal(
        load_npz(tmp_path / "w.npz").toarray(), model.W.to_scipy().toarray()
    )


@pytest.mark.parametrize("classifier", [LinearSVC(), OneVsRestClassifier(LinearSVC())])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_classifiers_of_scikit_learn(tmp_path: Path, classifier: Any, n_classes: int) -> None:
    X, y = load_iris(return_X_y=True)
    X, y = X[y < n_classes], np.array(["a", "b", "c"])[y[y < n_classes]]
    classifier.fit(X, y)
    model = save_weights(tmp_path / "m", weights_from(classifier), {})
    best = Predictor(model).search(X.astype(np.float32), 1).labels[:, 0]
    assert [model.labels[j] for j in best] == classifier.predict(X).tolist()


def test_a_folder_of_dismec_has_ranges_of_labels(tmp_path: Path) -> None:
    head = "solver_type L2R_L2LOSS_SVC\nnr_class {}\nlabel {}\nnr_feature 2\nbias 1\nw\n"
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "1.model").write_text(head.format(3, "1 2 3") + "1 0 3 \n0 5 0 \n7 8 9 \n")
    (folder / "10.model").write_text(head.format(1, "4") + "-1 \n-2 \n-3 \n")
    model = import_model("liblinear", folder, tmp_path / "m")
    assert model.labels == ["1", "2", "3", "4"]
    assert model.W.to_scipy().toarray().tolist() == [[1, 0], [0, 5], [3, 0], [-1, -2]]
    assert model.b.tolist() == [7, 8, 9, -3]
    (folder / "2.model").write_text(head.format(1, "4") + "-1 \n-2 \n-3 \n")
    with pytest.raises(InputError, match="labels in common"):
        liblinear.read(folder)
    (folder / "2.model").write_text(head.format(1, "x") + "-1 \n-2 \n-3 \n")
    with pytest.raises(InputError, match="not a number"):
        liblinear.read(folder)


def text(path: Path, content: str) -> Path:
    """Write a file and return its path."""
    path.write_text(content)
    return path


HEAD = "solver_type L2R_LR\nnr_class 3\nlabel 1 2 3\nnr_feature 2\nbias -1\nw\n"
BROKEN = [
    (liblinear.read, "not a model", "no solver_type"),
    (liblinear.read, HEAD + "1 2 3\n", "feature 2"),
    (liblinear.read, HEAD + "1 2\n3 4 5\n", "feature 1"),
    (dismec.read, "{}", "num-features"),
    (dismec.read, "[1]", "not a JSON object"),
    (dismec.read, '{"num-features": 2, "num-labels": 3, "files": []}', "do not have the 3 labels"),
    (lambda path: npz.read(path, path.parent), "PK", "not an archive"),
]


@pytest.mark.parametrize(("read", "content", "reason"), BROKEN)
def test_broken_files_are_refused(tmp_path: Path, read: Any, content: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read(text(tmp_path / "file", content))


def write_archive(path: Path, **changes: Any) -> Path:
    """Write an archive of two labels over three features with changed arrays; None: left out."""
    arrays: dict[str, Any] = {
        "data": np.array([1, 2], np.float32),
        "indices": np.array([0, 2], np.int32),
        "indptr": np.array([0, 1, 2]),
        "shape": np.array([2, 3]),
        **changes,
    }
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def npy_of(shape: tuple[int, ...], data: bytes) -> bytes:
    """Return an array file whose header states this shape of float32."""
    out = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    npy_format.write_array_header_1_0(out, header)
    return out.getvalue() + data


ARCHIVES = [
    ({"indices": np.array([0, 2**40])}, "column index"),
    ({"indices": np.array([0, -1])}, "column index"),
    ({"indices": np.array([0, 1.5])}, "whole numbers"),
    ({"indptr": np.array([0, 2, 1])}, "row offsets"),
    ({"indptr": np.array([0, 1, 9])}, "9 entries"),
    ({"indptr": np.array([1, 1, 2])}, "row offsets"),
    ({"data": np.array([[1.0, 2.0]])}, "data has the shape"),
    ({"indptr": np.array([0, 2])}, "for 2 rows"),
    ({"data": np.array([1, np.nan])}, "label 1: a value is not finite"),
    ({"data": np.array([1, 1e300])}, "label 1: a value is not finite"),
    ({"data": np.array([1, 2j])}, "complex128"),
    ({"data": np.array([b"1", b"2"])}, "numbers were expected"),
    ({"shape": np.array([2, 2**62])}, "4,611,686,018,427,387,904 features"),
    ({"shape": np.array([2, -3])}, "-3 features"),
    ({"shape": np.array([0, 3]), "indptr": np.array([0])}, "0 labels"),
    ({"shape": np.array([2, 3, 4])}, "shape"),
    ({"shape": np.array([2.5, 3])}, "whole numbers"),
    ({"bias": np.array([0, np.inf])}, "bias of label 1"),
    ({"bias": np.array(["a", "b"])}, "numbers were expected"),
    ({"bias": np.array([1.0])}, "biases for 2 labels"),
    ({"labels": np.array([0.5, np.nan])}, "float64"),
    ({"labels": np.array(["a"])}, "1 names for 2 labels"),
    ({"row_norm": np.array("l7")}, "row_norm"),
    ({"row_norm": np.array(3)}, "row_norm"),
    ({"indptr": None}, "indptr"),
]


@pytest.mark.parametrize(("changes", "reason"), ARCHIVES)
def test_invalid_archives_are_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    path = write_archive(tmp_path / "w.npz", **changes)
    with pytest.raises(InputError, match=reason):
        import_model("npz", path, tmp_path / "m")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("labels", [np.array([7, 8]), np.array([b"7", b"8"]), np.array(["7", "8"])])
def test_names_of_an_archive_are_texts_bytes_or_numbers(tmp_path: Path, labels: Any) -> None:
    path = write_archive(tmp_path / "w.npz", labels=labels)
    assert import_model("npz", path, tmp_path / "m").labels == ["7", "8"]


def test_rows_of_an_archive_in_any_order_are_sorted(tmp_path: Path) -> None:
    changes = {"indices": np.array([2, 0]), "indptr": np.array([0, 2, 2])}
    model = import_model("npz", write_archive(tmp_path / "w.npz", **changes), tmp_path / "m")
    assert model.W.to_scipy().toarray().tolist() == [[2, 0, 1], [0, 0, 0]]


def test_an_archive_is_read_in_blocks_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is that of a block, for unsorted rows of the largest types, too."""
    rng = np.random.default_rng(1)
    n_rows, per_row = 1000, 1500
    dense = rng.permuted(np.tile(np.arange(1600), (n_rows, 1)), axis=1)[:, :per_row]
    values = rng.normal(size=dense.size)
    path = write_archive(
        tmp_path / "w.npz",
        data=values,
        indices=dense.ravel(),
        indptr=np.arange(n_rows + 1) * per_row,
        shape=np.array([n_rows, 1600]),
    )
    monkeypatch.setattr(npz, "BLOCK_ENTRIES", 20_000)
    folder = tmp_path / "folder"
    folder.mkdir()
    tracemalloc.start()
    weights = npz.read(path, folder)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000 < path.stat().st_size // 5
    expected = csr_matrix((values, dense.ravel(), np.arange(n_rows + 1) * per_row))
    expected.sort_indices()
    np.testing.assert_array_equal(weights.W.indices, expected.indices)
    np.testing.assert_array_equal(weights.W.data, expected.data.astype(np.float32))


def test_a_full_disk_is_not_the_fault_of_an_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(npz.MatrixWriter, "write", write)
    with pytest.raises(OSError, match="No space left"):
        import_model("npz", write_archive(tmp_path / "w.npz"), tmp_path / "m")
    assert [each.name for each in tmp_path.iterdir()] == ["w.npz"]


@pytest.mark.parametrize("name", ["data.npy", "indptr.npy"])
def test_an_archive_that_states_more_than_it_has_is_refused(tmp_path: Path, name: str) -> None:
    path = write_archive(tmp_path / "w.npz", **{name.removesuffix(".npy"): None})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, npy_of((2**40,), b"12345678"))
    with pytest.raises(InputError, match=r"not the size|whole numbers"):
        import_model("npz", path, tmp_path / "m")


@pytest.mark.parametrize("header", HEADERS)
def test_an_archive_with_a_damaged_header_is_refused(tmp_path: Path, header: str) -> None:
    path = write_archive(tmp_path / "w.npz", bias=None)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("bias.npy", HEADERS[header])
    with pytest.raises(InputError, match="bias: not an array of NumPy"):
        import_model("npz", path, tmp_path / "m")


def test_an_archive_that_grows_too_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("data.npy", "w", force_zip64=True) as member:
            for _ in range(300):
                member.write(bytes(1 << 20))
    with pytest.raises(InputError, match="grow to more than"):
        import_model("npz", path, tmp_path / "m")


ONE = '"num-labels": 1, "files": [{"first": 0, "count": 1, "file": %s, "weight-format": "%s"}]}'
MODELS = [
    ('{"num-features": 1e18, ' + ONE % ('"w"', "SparseTXT"), "number of features is 1e"),
    ('{"num-features": 1000000000000000000, ' + ONE % ('"w"', "SparseTXT"), "features, but"),
    ('{"num-features": -3, ' + ONE % ('"w"', "SparseTXT"), "-3 features"),
    ('{"num-features": "3", ' + ONE % ('"w"', "SparseTXT"), "'3'"),
    ('{"num-features": 3, ' + ONE % ('"/dev/zero"', "DenseTXT"), "not in its folder"),
    ('{"num-features": 3, ' + ONE % ('"../w"', "DenseTXT"), "not in its folder"),
    ('{"num-features": 3, ' + ONE % ('"pipe"', "SparseTXT"), "not a regular file"),
    ('{"num-features": 3, ' + ONE % ("7", "SparseTXT"), "not a regular file"),
    ('{"num-features": 3, ' + ONE % ('"large.npy"', "DenseNPY"), "not a complete model"),
    ('{"num-features": 3, ' + ONE % ('"complex.npy"', "DenseNPY"), "complex128"),
    ('{"num-features": 3, ' + ONE % ('"text.npy"', "DenseNPY"), "numbers were expected"),
    ('{"num-features": 3, ' + ONE % ('"w"', "SparseTXT"), "label 0: column indices"),
    ('{"num-features": 3, "num-labels": 0, "files": []}', "0 labels"),
    ("[" * 100_000, "can't be read as JSON"),
]


@pytest.mark.parametrize(("content", "reason"), MODELS)
def test_invalid_models_of_dismec_are_refused(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "w").write_text("1:2 1:3\n")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large.npy").write_bytes(npy_of((1 << 40, 3), b"1234"))
    np.save(tmp_path / "complex.npy", np.array([[1, 2j, 3]]))
    np.save(tmp_path / "text.npy", np.array([["1", "2", "3"]]))
    with pytest.raises(InputError, match=reason):
        import_model("dismec", text(tmp_path / "model", content), tmp_path / "m")


@pytest.mark.parametrize("name", ["liblinear", "dismec", "npz"])
def test_a_device_and_a_pipe_are_not_read(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    for source in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(InputError, match="not a regular file"):
            import_model(name, source, tmp_path / "m")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("nr_feature 2", "nr_feature 99999999999", "features, but"),
        ("nr_feature 2", "nr_feature -1", "-1 features"),
        ("nr_feature 2", "nr_feature two", "header"),
        ("label 1 2 3", "label", "0 labels"),
        ("bias -1", "bias x", "header"),
        ("1 2 3\n4", "1 nan 3\n4", "not finite"),
        ("1 2 3\n4", "1 1e300 3\n4", "not finite"),
    ],
)
def test_invalid_files_of_liblinear_are_refused(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    content = (HEAD + "1 2 3\n4 5 6\n").replace(old, new)
    with pytest.raises(InputError, match=reason):
        import_model("liblinear", text(tmp_path / "file", content), tmp_path / "m")


def test_names_must_fit(model: Model, tmp_path: Path) -> None:
    weights = ForeignWeights(model.W, model.b, ["a", "b", "c", "d", "a"])
    with pytest.raises(InputError, match="'a'"):
        save_weights(tmp_path / "n", weights, {})
    with pytest.raises(ShapeMismatch, match="5 labels, but there are 1"):
        save_weights(tmp_path / "n", weights, {}, labels=["x"])
    with pytest.raises(XcrayError, match="did you mean"):
        import_model("liblinaer", tmp_path / "x", tmp_path / "n")
    assert not (tmp_path / "n").exists()


def test_commands(model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, names = tmp_path / "w.npz", text(tmp_path / "names", "a\nb\nc\nd\ne\n")
    assert main(["models", "export", str(model.path), "npz", str(target)]) == 0
    assert main(["models", "export", str(model.path), "npz", str(target)]) != 0
    assert "exists already" in capsys.readouterr().err
    out = tmp_path / "named"
    line = ["models", "import", "npz", str(target), str(out), "--labels", str(names), "--json"]
    assert main(line) == 0
    assert json.loads(capsys.readouterr().out)["n_labels"] == K
    assert Model.open(out).labels == list("abcde")
    assert main(["predict", str(out), "--file", str(text(tmp_path / "r.svm", "0 1:1\n"))]) == 0
