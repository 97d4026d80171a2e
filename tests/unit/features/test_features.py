"""Feature pipelines against textbook float64 formulas, and their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xcray.arrays import CSR, csr_from
from xcray.errors import Corrupt, NotFound, ParameterError, ShapeMismatch
from xcray.features.chain import Chain
from xcray.features.columns import column_blocks, select_columns
from xcray.features.fourier import median_distance, random_fourier
from xcray.features.image_masks import (
    ImageMasks,
    ImageShape,
    cluster_centres,
    image_masks,
    parse_shape,
)
from xcray.features.pca import PCA, fit_pca
from xcray.features.pipeline import FeaturePipeline, load_pipeline
from xcray.features.random_maps import RandomCubics, RandomLogits, random_map
from xcray.kernels.cosine import add_phase_and_cosine


def rows_of(n: int = 60, d: int = 7, share: float = 1.0) -> Any:
    """Return random dense rows (n, d) float32, of whose entries about `share` are not 0."""
    random = np.random.default_rng(5)
    X = random.normal(1.0, 2.0, (n, d)) * np.arange(1, d + 1)
    return (X * (random.random((n, d)) < share)).astype(np.float32)


SHAPE = ImageShape(4, 3, 2)


def some_masks(source: Any, size: int = 2) -> ImageMasks:
    """Return 5 masks for images of SHAPE."""
    images = random_fourier(7, 24, 4.0, seed=2).transform(rows_of())
    return image_masks(images, SHAPE, size, 5, source, seed=3, block=1)


PIPELINES: dict[str, FeaturePipeline] = {
    "pca": fit_pca(rows_of(), 3),
    "fourier": random_fourier(7, 5, 4.0, seed=1),
    "logits": random_map(RandomLogits, rows_of(), 5, 4.0, seed=1, block=0),
    "cubics": random_map(RandomCubics, rows_of(), 5, 9.0, seed=1, block=0),
    "masks": Chain((random_fourier(7, 24, 4.0, seed=2), some_masks("random"))),
    "columns": select_columns(7, np.array([5, 0, 2])),
    "chain": Chain((fit_pca(rows_of(), 3), random_fourier(3, 4, 9.0, seed=2, block=1))),
}


def test_cosine_has_error_1e_6_on_the_range_of_projections() -> None:
    z = np.linspace(-40.0, 40.0, 200_001).astype(np.float32)[:, None]
    out = z.copy()
    add_phase_and_cosine(out, np.array([0.75], np.float32))
    exact = np.cos(z.astype(np.float64) + 0.75)
    # 40 + 0.75 rounds by 2e-6, which is an error of the argument, not of the polynomial
    assert np.abs(out - exact).max() < 6e-6
    near = np.abs(z) < 3.0
    assert np.abs(out - exact)[near].max() < 1e-6


def test_random_fourier_is_the_cosine_of_the_projection() -> None:
    X, pipeline = rows_of(), random_fourier(7, 5, 4.0, seed=1)
    exact = np.cos(X.astype(np.float64) @ pipeline.frequencies + pipeline.phase)
    assert pipeline.transform(X) == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize("name", ["logits", "cubics"])
def test_random_maps_are_functions_of_projections_centred_at_rows(name: str) -> None:
    X, pipeline = rows_of(), PIPELINES[name]
    assert isinstance(pipeline, RandomLogits)
    u = X.astype(np.float64) @ pipeline.frequencies + pipeline.phase
    exact = 1.0 / (1.0 + np.exp(-u)) if name == "logits" else (u / 2.0) ** 3
    assert pipeline.transform(X) == pytest.approx(exact, rel=1e-3, abs=1e-4)
    assert np.abs(u).min(axis=0) == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("source", ["random", "kmeans"])
def test_masks_are_moved_over_images_and_pooled_by_quadrant(source: str) -> None:
    pipeline = some_masks(source)
    images = np.random.default_rng(0).normal(size=(3, *SHAPE))
    sums = np.zeros((3, 2, 2, 5))
    for y in range(3):
        for x in range(2):
            patch = images[:, y : y + 2, x : x + 2].reshape(3, -1)
            products = np.maximum(patch @ pipeline.masks + pipeline.offset, 0.0)
            sums[:, int(y >= 3 // 2), int(x >= 2 // 2)] += products
    exact = sums.reshape(3, -1) * 4 / 6
    rows = images.reshape(3, -1).astype(np.float32)
    assert pipeline.transform(rows) == pytest.approx(exact, abs=1e-4)


def test_centres_of_clusters_are_the_means_of_the_patches_nearest_to_them() -> None:
    random = np.random.default_rng(0)
    patches = np.repeat(np.eye(3), 40, axis=0) + random.normal(0.0, 0.1, (120, 3))
    centres = cluster_centres(patches, 6, random)
    nearest = np.square(patches[:, None] - centres).sum(axis=2).argmin(axis=1)
    for k in np.unique(nearest):
        assert centres[k] == pytest.approx(patches[nearest == k].mean(axis=0), abs=0.02)
    assert np.square(patches - centres[nearest]).sum() < 120 * 3 * 0.1**2


@pytest.mark.parametrize("text", ["", "28", "4x4", "4x3x2x1", "4x-6"])
def test_shapes_that_are_not_those_of_the_rows_are_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="24 features: give HEIGHTxWIDTH"):
        parse_shape(text, 24)


def test_images_without_patches_are_refused() -> None:
    assert parse_shape("4x3x2", 24) == SHAPE
    with pytest.raises(ParameterError, match="patch=3 is not from 2"):
        some_masks("random", 3)
    with pytest.raises(ParameterError, match="one value"):
        image_masks(np.ones((9, 24), np.float32), SHAPE, 2, 5, "random", seed=0, block=0)


def test_random_fourier_approximates_the_gaussian_kernel() -> None:
    X, bandwidth = rows_of(20) / 5, 3.0
    Z = random_fourier(7, 40_000, bandwidth, seed=3).transform(X)
    distances = np.square(X[:, None] - X[None]).sum(axis=2)
    kernel = np.exp(-distances / (2 * bandwidth**2))
    assert 2.0 * Z @ Z.T / 40_000 == pytest.approx(kernel, abs=0.03)


def test_random_numbers_depend_on_seed_and_block_only() -> None:
    first, second = (random_fourier(7, 5, 4.0, seed=1, block=2) for _ in range(2))
    assert first.fingerprint == second.fingerprint
    for other in (
        random_fourier(7, 5, 4.0, seed=1, block=3),
        random_fourier(7, 5, 4.0, seed=2, block=2),
        random_fourier(7, 5, 4.5, seed=1, block=2),
    ):
        assert other.fingerprint != first.fingerprint


@pytest.mark.parametrize("centred", [True, False])
def test_pca_gives_the_best_approximation_of_the_rank(centred: bool) -> None:
    X = rows_of().astype(np.float64)
    pca = fit_pca(rows_of(), 3, centred=centred)
    M = X - X.mean(axis=0) if centred else X
    # Eckart and Young: no projection of rank 3 leaves less than the other singular values
    residual = M - M @ pca.components.astype(np.float64) @ pca.components.T
    assert np.square(residual).sum() == pytest.approx(
        np.square(np.linalg.svd(M, compute_uv=False)[3:]).sum(), rel=1e-5
    )
    assert pca.components.T @ pca.components == pytest.approx(np.eye(3), abs=1e-6)
    assert pca.transform(rows_of()) == pytest.approx(M @ pca.components, abs=1e-4)


@pytest.mark.parametrize("share", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("name", PIPELINES)
def test_sparse_rows_have_the_features_of_the_same_dense_rows(name: str, share: float) -> None:
    X, pipeline = rows_of(share=share), PIPELINES[name]
    dense, sparse = pipeline.transform(X), pipeline.transform(csr_from(X))
    if isinstance(sparse, CSR):
        sparse = sparse.to_scipy().toarray()
    assert sparse.shape == (60, pipeline.n_outputs)
    assert sparse.dtype == np.float32
    assert sparse == pytest.approx(dense, abs=2e-4)


def test_columns_are_those_of_the_input_in_ascending_order() -> None:
    X = rows_of(share=0.3)
    assert np.array_equal(PIPELINES["columns"].transform(X), X[:, [0, 2, 5]])


def test_blocks_of_columns_keep_the_order_of_blocks_and_contain_each_column_once() -> None:
    blocks = column_blocks(7, np.array([6, 1, 4, 0, 3, 5, 2]), 3)
    assert [block.numbers.tolist() for block in blocks] == [[1, 4, 6], [0, 3, 5], [2]]
    assert column_blocks(7, np.array([], np.int64), 3) == []


@pytest.mark.parametrize("numbers", [[], [-1], [7], [1, 3, 1]])
def test_invalid_columns_are_refused(numbers: list[int]) -> None:
    with pytest.raises(ParameterError, match="columns must be"):
        select_columns(7, np.array(numbers, np.int64))


@pytest.mark.parametrize("numbers", [[7], [1, 1], "13"])
def test_forged_columns_are_refused(numbers: Any, tmp_path: Path) -> None:
    PIPELINES["columns"].save(tmp_path)
    path = tmp_path / "pipeline.json"
    document = json.loads(path.read_text())
    document["settings"]["numbers"] = numbers
    path.write_text(json.dumps(document))
    with pytest.raises(Corrupt):
        load_pipeline(tmp_path)


def test_pca_of_sparse_rows_equals_that_of_dense_rows() -> None:
    X = rows_of(share=0.3)
    assert fit_pca(csr_from(X), 2).fingerprint == fit_pca(X, 2).fingerprint


def test_median_distance_is_that_of_all_pairs() -> None:
    X = rows_of(200)
    pairs = np.sqrt(np.square(X[:, None] - X[None]).sum(axis=2))[np.triu_indices(200, 1)]
    assert median_distance(X, seed=0, pairs=20_000) == pytest.approx(np.median(pairs), rel=0.03)
    sparse = median_distance(csr_from(X), seed=0)
    assert sparse == pytest.approx(median_distance(X, seed=0), rel=1e-5)


@pytest.mark.parametrize("name", PIPELINES)
def test_a_stored_pipeline_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    pipeline = PIPELINES[name]
    pipeline.save(tmp_path)
    loaded = load_pipeline(tmp_path)
    assert type(loaded) is type(pipeline)
    assert loaded.fingerprint == pipeline.fingerprint
    assert (loaded.n_inputs, loaded.n_outputs) == (pipeline.n_inputs, pipeline.n_outputs)
    assert np.array_equal(loaded.transform(rows_of()), pipeline.transform(rows_of()))


@pytest.mark.parametrize("name", PIPELINES)
def test_rows_of_another_width_are_refused(name: str) -> None:
    with pytest.raises(ShapeMismatch, match="7 inputs"):
        PIPELINES[name].transform(rows_of(d=6))


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "pickle"},
        {"kind": "random-fourier"},
        {"shapes": {"components": [7, -3], "offset": [3]}},
        {"shapes": {"components": [3, 7], "offset": [3]}},
        {"shapes": {"components": [1 << 40, 3], "offset": [3]}},
        {"shapes": {"components": "73", "offset": [3]}},
        {"shapes": 1},
        {"shapes": {}},
        {"fingerprint": "0" * 64},
    ],
)
def test_forged_files_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    PIPELINES["pca"].save(tmp_path)
    path = tmp_path / "pipeline.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(Corrupt):
        load_pipeline(tmp_path)


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    offset = np.array([np.nan], np.float32)
    PCA(np.ones((1, 1), np.float32), offset).save(tmp_path)
    with pytest.raises(Corrupt, match="not finite"):
        load_pipeline(tmp_path)


def test_a_missing_file_and_a_nested_chain_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        load_pipeline(tmp_path)
    PIPELINES["chain"].save(tmp_path)
    (tmp_path / "step-1" / "pipeline.arrow").unlink()
    with pytest.raises(NotFound):
        load_pipeline(tmp_path)
    (tmp_path / "step-1" / "pipeline.json").write_text('{"kind": "chain", "steps": 1}')
    with pytest.raises(Corrupt, match="chain as a step"):
        load_pipeline(tmp_path)


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="follows"):
        Chain((PIPELINES["pca"], PIPELINES["fourier"]))
    with pytest.raises(ParameterError, match="components"):
        fit_pca(rows_of(), 8)
    with pytest.raises(ParameterError, match="bandwidth"):
        random_fourier(7, 5, 0.0, seed=1)
    with pytest.raises(ParameterError, match="1 to 8 steps"):
        Chain(())
