"""The model directory: round trips, and detection of every damaged byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

from tests.support.flat_models import write_fields
from xcray.arrays import CSR, csr, csr_from, frozen
from xcray.data.text.pipeline import TextPipeline
from xcray.errors import Conflict, Corrupt, NotFound, ParameterError, ShapeMismatch, XcrayError
from xcray.index import packed
from xcray.index.search import SearchIndex
from xcray.model.diff import diff
from xcray.model.manifest import read_manifest, seal_manifest
from xcray.model.model import Model
from xcray.storage.arrow import write_matrix, write_table
from xcray.storage.atomic import file_digests, sha256_file

TEXTS = ["read rows of a csv file", "write rows to a file", "parse a date"]


def parts(**changes: Any) -> dict[str, Any]:
    """Return the arguments of `write_model` for a model of 3 labels and 4 features."""
    W = csr([0, 2, 2, 4], [0, 2, 1, 3], [0.5, -1, 2, 0.25], 4)
    return {
        "W": W,
        "b": np.array([0.5, -1, 0], np.float32),
        "label_names": ["csv", "ünï", ""],
        "feature_names": ["a", "b", "c", "d"],
        "solver": "ppdsparse",
        "params": {"C": 1.0, "grow": np.int64(3)},
        "dataset_hash": "d" * 64,
        "seed": 7,
        "measures": {"P@1": 0.625},
        **changes,
    }


def text_model(path: Path) -> Model:
    """Write a model with a text pipeline and a label table."""
    text = TextPipeline.fit(TEXTS)
    W = csr_from(np.linspace(-1, 1, 8 * len(text.terms), dtype=np.float32).reshape(8, -1))
    labels, classes = [f"label-{i}" for i in range(8)], pa.table({"gap": np.arange(8) / 8})
    return write_fields(
        path,
        **parts(
            W=W,
            b=np.arange(8),
            label_names=labels,
            feature_names=text.terms,
            text=text,
            label_table=classes,
            report={"seconds": 1.5},
        ),
    )


def same_matrix(a: CSR, b: CSR) -> bool:
    return a.shape == b.shape and all(
        x.tobytes() == y.tobytes() for x, y in zip(a[:3], b[:3], strict=True)
    )


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    inputs = parts()
    write_fields(tmp_path / "m", **inputs)
    model = Model.open(tmp_path / "m")
    assert same_matrix(model.W, inputs["W"])
    assert same_matrix(model.postings, csr_from(inputs["W"].to_scipy().T.tocsr()))
    assert model.b.tolist() == [0.5, -1, 0]
    assert model.label_names.to_pylist() == ["csv", "ünï", ""]
    assert model.feature_names.to_pylist() == list("abcd")
    assert (model.n_labels, model.n_features, model.nnz, model.text, model.label_table) == (
        3,
        4,
        4,
        None,
        None,
    )
    assert model.measures == {"P@1": 0.625}
    manifest = model.manifest
    assert manifest["stages"] == [
        {"features": "input", "weights": "weights.arrow", "bias": "bias.arrow", "calibration": None}
    ]
    assert (manifest["schema_version"], manifest["solver"], manifest["params"]) == (
        2,
        "ppdsparse",
        {"C": 1.0, "grow": 3},
    )
    assert (manifest["seed"], manifest["dataset_hash"], manifest["link"]) == (
        7,
        "d" * 64,
        "identity",
    )
    assert (manifest["shape"], manifest["nnz"]) == ([3, 4], 4)
    assert {"xcray", "numpy", "python"} <= set(manifest["versions"])
    assert manifest["created"].endswith("+00:00")
    on_disk = {
        path.relative_to(tmp_path / "m").as_posix()
        for path in (tmp_path / "m").rglob("*")
        if path.is_file()
    }
    assert on_disk == {*manifest["files"], "manifest.json"}
    assert model.n_bytes == sum(
        (tmp_path / "m" / name).stat().st_size for name in manifest["files"]
    )
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


def test_the_text_pipeline_and_the_class_report_come_along(tmp_path: Path) -> None:
    text_model(tmp_path / "m")
    model = Model.open(tmp_path / "m")
    assert model.text is not None
    assert model.label_table is not None
    row = model.text.transform(["csv rows"]).row(0)[0].tolist()
    assert [model.feature_names[j] for j in row] == ["csv", "rows"]
    assert model.manifest["text"] == {"fingerprint": model.text.fingerprint}
    assert model.label_table.column("gap").to_pylist()[:3] == [0, 0.125, 0.25]
    assert model.manifest["report"] == {"seconds": 1.5}


def test_labels_by_name_and_number(tmp_path: Path) -> None:
    model = write_fields(tmp_path / "m", **parts())
    assert [model.label_id(label) for label in ("csv", "ünï", "", 2, np.int32(1))] == [
        0,
        1,
        2,
        2,
        1,
    ]
    assert model.label_name(1) == "ünï"
    for missing in (-1, 3, "sys"):
        with pytest.raises(NotFound):
            model.label_id(missing)


def test_the_content_hash_is_of_content_alone(tmp_path: Path) -> None:
    first = write_fields(tmp_path / "first", **parts()).sha256
    W = parts()["W"]
    padded = CSR(
        W.indptr + 1,
        np.concatenate(([9], W.indices)).astype(np.int32),
        np.concatenate(([9], W.data)).astype(np.float32),
        4,
    )
    same: list[dict[str, Any]] = [
        {"measures": {"P@1": 0.1}},
        {"report": {"seconds": 3}},
        {"W": padded},
        {"params": {"grow": 3, "C": 1.0}},
    ]
    for i, change in enumerate(same):
        assert write_fields(tmp_path / f"same{i}", **parts(**change)).sha256 == first
    changes: list[dict[str, Any]] = [
        {"W": csr([0, 2, 2, 4], [0, 2, 1, 3], [0.5, -1, 2, 0.5], 4)},
        {"W": csr([0, 2, 2, 4], [0, 2, 0, 3], [0.5, -1, 2, 0.25], 4)},
        {"W": csr([0, 2, 3, 4], [0, 2, 1, 3], [0.5, -1, 2, 0.25], 4)},
        {"b": [0.5, -1, 0.5]},
        {"label_names": ["csvü", "nï", ""]},
        {"solver": "other"},
        {"params": {"C": 2.0}},
        {"dataset_hash": "e" * 64},
    ]
    hashes = [
        write_fields(tmp_path / f"other{i}", **parts(**change)).sha256
        for i, change in enumerate(changes)
    ]
    assert len({first, *hashes}) == 1 + len(changes)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"b": [0, 1]}, ShapeMismatch, "2 biases; give 3"),
        ({"label_names": ["a"]}, ShapeMismatch, "1 label names; give 3"),
        ({"feature_names": ["a"]}, ShapeMismatch, "1 feature names; give 4"),
        ({"text": TextPipeline.fit(TEXTS)}, ShapeMismatch, "terms"),
        ({"label_table": pa.table({"gap": [1]})}, ShapeMismatch, "label table"),
        ({"W": csr([0, 1, 1, 1], [0], [np.nan], 4)}, ParameterError, "label 0 is not finite"),
        ({"W": csr([0, 0, 1, 1], [4], [1], 4)}, Corrupt, "row 1: a column index lies outside"),
        ({"b": [0, np.inf, 0]}, ParameterError, "label 1 is not finite: feature values"),
        ({"params": {"loss": object()}}, (ParameterError, TypeError), "JSON"),
    ],
)
def test_invalid_models_are_not_written(
    tmp_path: Path, change: dict[str, Any], error: type[XcrayError], says: str
) -> None:
    with pytest.raises(error, match=says):
        write_fields(tmp_path / "m", **parts(**change))
    assert list(tmp_path.iterdir()) == []


def test_a_published_model_is_never_overwritten(tmp_path: Path) -> None:
    write_fields(tmp_path / "m", **parts())
    before = file_digests(tmp_path / "m")
    with pytest.raises(Conflict):
        write_fields(tmp_path / "m", **parts(b=[0, 0, 0]))
    assert file_digests(tmp_path / "m") == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_models_of_edge_sizes(tmp_path: Path) -> None:
    for name, shape in {"no-features": (2, 0), "no-labels": (0, 3), "empty": (0, 0)}.items():
        W = (
            csr_from(np.zeros(shape, np.float32))
            if all(shape)
            else csr([0] * (shape[0] + 1), [], [], shape[1])
        )
        names = {"label_names": ["l"] * shape[0], "feature_names": ["f"] * shape[1]}
        write_fields(tmp_path / name, **parts(W=W, b=np.zeros(shape[0]), **names))
        assert Model.open(tmp_path / name).W.shape == shape


def refused(path: Path, name: str) -> bool:
    """Return whether a model is refused as corrupt because of the named file."""
    try:
        Model.open(path)
    except Corrupt as error:
        return name in error.message
    except NotFound:
        return False
    return False


def test_every_truncated_or_missing_file_is_detected_without_verifying(tmp_path: Path) -> None:
    text_model(tmp_path / "m")
    for path in sorted(p for p in (tmp_path / "m").rglob("*") if p.is_file()):
        content = path.read_bytes()
        for length in (0, 1, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:length])
            with pytest.raises(Corrupt, match=path.name):
                Model.open(tmp_path / "m", verify=False)
        path.unlink()
        with pytest.raises(NotFound if path.name == "manifest.json" else Corrupt, match=path.name):
            Model.open(tmp_path / "m", verify=False)
        path.write_bytes(content)


def test_a_seal_is_compared_without_writing_the_manifest_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_fields(tmp_path / "m", **parts())
    file = tmp_path / "m" / "manifest.json"
    raw = file.read_bytes()
    (seal,) = (line for line in raw.splitlines(keepends=True) if b'"seal"' in line)
    # lists of models read a thousand manifests, and writing one takes longer than all the rest
    monkeypatch.setattr("xcray.model.manifest._text", None)
    assert read_manifest(tmp_path / "m")["seal"] in seal.decode()
    rest = raw.replace(seal, b"")
    for changed in (
        rest[:2] + seal + rest[2:],
        raw.replace(seal, b" " + seal),
        raw.replace(b"0.625", b"0.626"),
    ):
        file.write_bytes(changed)
        with pytest.raises(Corrupt):
            read_manifest(tmp_path / "m")


def resealed(path: Path, **changes: Any) -> None:
    """Change a manifest as its owner could: valid checksums, invalid content."""
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["seal"]
    manifest.update(changes)
    manifest["files"] = (
        changes["files"] if "files" in changes else file_digests(path, skip=["manifest.json"])
    )
    (path / "manifest.json").write_text(seal_manifest(manifest))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schema_version": 3}, "schema version 3"),
        ({"schema_version": 1}, "schema version 1"),
        ({"schema_version": "2"}, "schema version 2"),
        ({"shape": [3, 5]}, r"\(3, 4\)"),
        ({"shape": [2**40, 4]}, "claims"),
        ({"shape": [-3, 4]}, "claims"),
        ({"shape": [3]}, "lacks"),
        ({"shape": [3.0, 4]}, "claims"),
        ({"nnz": 3}, "with 4 weights"),
        ({"nnz": 10**15}, "claims"),
        ({"files": {}}, "lacks"),
        ({"files": {"../a": {"bytes": 1, "sha256": ""}}}, "lacks"),
    ],
)
def test_wrong_claims_about_files_are_refused(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    write_fields(tmp_path / "m", **parts())
    resealed(tmp_path / "m", **changes)
    with pytest.raises(Corrupt, match=says):
        Model.open(tmp_path / "m")


def test_a_file_outside_of_the_directory_is_refused(tmp_path: Path) -> None:
    model = write_fields(tmp_path / "m", **parts())
    (tmp_path / "secret").write_text("x")
    entry = {"bytes": 1, "sha256": sha256_file(tmp_path / "secret")}
    resealed(tmp_path / "m", files={**model.manifest["files"], "../secret": entry})
    with pytest.raises(Corrupt, match="claims"):
        Model.open(tmp_path / "m")


@pytest.mark.parametrize(
    ("W", "says"),
    [
        (
            csr([0, 2, 2, 4], [0, 2, 1, 3], [0.5, np.nan, 2, 0.25], 4),
            "weights.arrow, row 0: a value is not finite",
        ),
        (
            csr([0, 2, 2, 4], [0, 2, 1, 4], [0.5, -1, 2, 0.25], 4),
            "weights.arrow, row 2: a column index lies outside",
        ),
        (
            csr([0, 2, 2, 4], [2, 0, 1, 3], [0.5, -1, 2, 0.25], 4),
            "weights.arrow, row 0: column indices do not ascend",
        ),
        (csr([0, 3, 2, 4], [0, 2, 1, 3], [0.5, -1, 2, 0.25], 4), "weights.arrow"),
        (csr([0, 2, 2, 4], [0, 2, 1, 3], [0.5, -1, 2, 0.25], 5), r"\(3, 5\)"),
    ],
)
def test_invalid_weights_are_refused_despite_valid_checksums(
    tmp_path: Path, W: CSR, says: str
) -> None:
    write_fields(tmp_path / "m", **parts())
    write_matrix(tmp_path / "m" / "weights.arrow", W)
    resealed(tmp_path / "m")
    with pytest.raises(Corrupt, match=says):
        Model.open(tmp_path / "m")


def test_columns_of_other_types_are_refused(tmp_path: Path) -> None:
    for name, table in {
        "bias.arrow": pa.table({"bias": pa.array([0.0, 0, 0], pa.float64())}),
        "labels.arrow": pa.table({"name": pa.array(["a", None, "c"], pa.large_string())}),
        "features.arrow": pa.table({"term": pa.array(list("abcd"), pa.large_string())}),
        "index/lists.arrow": pa.table(
            {"starts": pa.array([[0] * 5], pa.large_list(pa.int64()))}
        ).replace_schema_metadata({"layout": packed.LAYOUT_VERSION}),
    }.items():
        path = tmp_path / name.replace("/", "-")
        write_fields(path, **parts())
        write_table(path / name, table)
        resealed(path)
        with pytest.raises(Corrupt, match=name):
            Model.open(path)


def test_directories_that_are_not_models(tmp_path: Path) -> None:
    for content in (
        b"",
        b"[]",
        b"{}",
        b"null",
        b'{"schema_version": 1}',
        b"\xff\xfe",
        b"[" * 100_000,
    ):
        (tmp_path / "manifest.json").write_bytes(content)
        with pytest.raises(Corrupt, match=r"manifest\.json"):
            Model.open(tmp_path)
    for nowhere in (tmp_path / "nowhere", tmp_path / "manifest.json"):
        with pytest.raises(NotFound, match=r"manifest\.json"):
            Model.open(nowhere)


def test_the_file_of_the_card_begins_with_metadata_for_the_hugging_face_hub(tmp_path: Path) -> None:
    text_model(tmp_path / "m")
    _, head, card = (tmp_path / "m" / "card.md").read_text().split("---\n", 2)
    metadata = yaml.safe_load(head)
    assert metadata["pipeline_tag"] == "text-classification"
    (result,) = metadata["model-index"][0]["results"]
    assert {"type": "P@1", "value": 0.625} in result["metrics"]
    assert result["dataset"]["revision"] == "d" * 64
    assert card.strip().startswith("# Model card")
    write_fields(tmp_path / "bare", **parts(measures=None))
    assert "model-index" not in (tmp_path / "bare" / "card.md").read_text()


def test_the_card_says_what_the_model_is(tmp_path: Path) -> None:
    text_model(tmp_path / "m")
    card = (tmp_path / "m" / "card.md").read_text()
    for words in (
        "`ppdsparse`",
        "d" * 64,
        "| P@1 | 62.50 % |",
        "| C | 1.0 |",
        "text, by the pipeline",
        "## Limits",
        'predict(["some text"]',
    ):
        assert words in card
    write_fields(tmp_path / "bare", **parts(measures=None, params={"a|b": "x\ny"}))
    bare = (tmp_path / "bare" / "card.md").read_text()
    assert "(not measured)" in bare
    assert "| a\\|b | x y |" in bare


def test_the_difference_between_models(tmp_path: Path) -> None:
    a = write_fields(tmp_path / "a", **parts(label_names=["x", "y", "z"]))
    # the same features in another order; x as before, y with another bias, z gone, w new
    W = csr([0, 2, 2, 3], [1, 3, 0], [-1, 0.5, 4], 5)
    b = write_fields(
        tmp_path / "b",
        **parts(
            W=W,
            b=[0.5, 2, 0],
            label_names=["x", "y", "w"],
            feature_names=["b", "c", "d", "a", "e"],
            measures={"P@1": 0.75, "P@3": 0.5},
        ),
    )
    result = diff(a, b)
    assert (result.added, result.removed, result.identical, result.changed) == (
        ("w",),
        ("z",),
        ("x",),
        ("y",),
    )
    assert (result.nnz, result.n_features, result.same_content) == ((4, 3), (4, 5), False)
    assert result.measures == {"P@1": (0.625, 0.75), "P@3": (None, 0.5)}
    same = diff(a, a)
    assert (same.identical, same.changed, same.same_content) == (("x", "y", "z"), (), True)


def test_the_card_reports_the_certificates(tmp_path: Path) -> None:
    report = {"labels": 1200, "labels_certified": 1199, "largest_gap": 0.01234}
    write_fields(tmp_path / "m", **parts(report=report, params={"eps": 0.01}))
    card = (tmp_path / "m" / "card.md").read_text()
    assert (
        "| labels certified by their duality gap | 1,199 of 1,200 |\n| largest gap | 0.012 of"
        in card
    )
    write_fields(tmp_path / "bare", **parts(params={"eps": 0.01}))
    assert "certified" not in (tmp_path / "bare" / "card.md").read_text()


def test_the_card_of_a_partial_model_says_so(tmp_path: Path) -> None:
    model = write_fields(tmp_path / "m", **parts(missing=2))
    assert model.manifest["partial"] == {"missing": 2}
    card = (tmp_path / "m" / "card.md").read_text()
    assert "A partial model" in card
    assert "before 2 of 3\n> labels" in card
    whole = write_fields(tmp_path / "whole", **parts())
    assert "partial" not in whole.manifest
    assert "partial" not in (tmp_path / "whole" / "card.md").read_text()
    # The hash covers the content, not the reason for it.
    assert whole.sha256 == model.sha256


def test_lists_of_another_version_are_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_fields(tmp_path / "m", **parts())
    X = csr([0, 2, 3, 3], [0, 2, 3], [1.0, -0.5, 2.0], 4)
    today = model.search.query(X, 3)
    monkeypatch.setattr(packed, "LAYOUT_VERSION", "another")
    assert not packed.is_current(model.path / "index/lists.arrow")
    for ours, expected in zip(Model.open(model.path).search.query(X, 3), today, strict=True):
        assert np.array_equal(ours, expected)


@pytest.mark.parametrize("n_labels", [5, 70_000])
def test_lists_that_point_outside_are_refused_despite_valid_checksums(
    tmp_path: Path, n_labels: int
) -> None:
    """Set every byte of the lists to 0 or 255, one after the other.

    The model is refused, or the change is as harmless as a smaller or larger weight.
    """
    rng = np.random.default_rng(n_labels)
    labels = np.sort(rng.choice(n_labels, 5, replace=False))
    lengths = np.zeros(n_labels, np.int64)
    lengths[labels] = 2
    W = csr(np.concatenate([[0], np.cumsum(lengths)]), np.tile([0, 1], 5), rng.normal(size=10), 2)
    lists, order = packed.read_lists(_written(tmp_path / "l.arrow", W), W)
    refused = 0
    for place in range(int(lists.starts[-1]) * 4):
        for value in (0, 255):
            blocks = lists.blocks.copy()
            blocks[place] = value
            try:
                packed.check_lists(
                    lists._replace(blocks=frozen(blocks, np.uint8)), W, order, "lists.arrow"
                )
            except Corrupt:
                refused += 1
                continue
            search = SearchIndex(
                lists._replace(blocks=frozen(blocks, np.uint8)),
                W,
                np.zeros(n_labels, np.float32),
                order,
            )
            assert search.query(csr([0, 2], [0, 1], [1.0, 1.0], 2), 5).labels.shape == (1, 5)
    assert refused > 20
    with pytest.raises(Corrupt, match="order"):
        packed.check_lists(lists, W, frozen(np.zeros(n_labels), np.int32), "lists.arrow")


def _written(path: Path, W: CSR) -> Path:
    """Write packed lists to disk."""
    packed.write_lists(path, W, np.zeros(W.n_rows, np.float32))
    return path
