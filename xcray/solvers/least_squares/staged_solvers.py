"""Solvers whose models are chains of stages: calibrated least squares and stagewise regression."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, ClassVar, Final, Literal

import numpy as np

from xcray.arrays import CSR, Int64, frozen
from xcray.errors import ParameterError
from xcray.features.chain import Chain
from xcray.features.columns import Columns, column_blocks
from xcray.features.fourier import median_distance, random_fourier
from xcray.features.image_masks import POOLS, image_masks, parse_shape
from xcray.features.pca import fit_pca
from xcray.features.pipeline import FeaturePipeline, Rows
from xcray.features.random_maps import RandomCubics, RandomLogits, random_map
from xcray.kernels.sparse import take_rows
from xcray.solvers.declarations import CompileCase
from xcray.solvers.least_squares.solver import MAX_FEATURES
from xcray.solvers.least_squares.stages_solver import Blocks, StagesSolver
from xcray.solvers.least_squares.stagewise import StageFitter
from xcray.solvers.parameters import Parameters, parameter

FOURIER, COLUMNS, INPUT = "fourier", "columns", "input"
# other random features, and their default bandwidth; measured on MNIST
MAPS: Final = {"logits": (RandomLogits, 0.3), "polynomial": (RandomCubics, 0.7)}
MASKS: Final[dict[str, Literal["random", "kmeans"]]] = {
    "random-masks": "random",
    "kmeans-masks": "kmeans",
}
# ridge of one block and of several, times the root of the number of rows; measured on MNIST
ONE_RIDGE, STAGE_RIDGE, MASK_RIDGE = 0.05, 0.2, 0.0005
RANDOM_BLOCK, COLUMN_BLOCK = 2000, 4096  # features of a stage by default
BANDWIDTH: Final = 0.7  # of the median distance; measured on MNIST
MAX_CENTRES: Final = 1000  # rows at which logits and polynomials are centred
SAMPLE_ROWS: Final = 4000  # rows of which the median distance is computed
ROWS_AT_A_TIME: Final = 256  # of this sample
MAX_PREDICTIONS: Final = 1 << 27  # more predictions of rows are not kept if that is possible


@dataclass(frozen=True)
class StagewiseSolver(Parameters, StagesSolver):
    """Stagewise regression: a chain of least-squares fits, each on a block of other features.

        z_t = yhat_{t-1} + F_t(x)' W_t

    The rule "linear" fits the residual of the predictions yhat by least squares; "previous" does so
    with yhat as further features; "logistic" takes `inner_steps` accelerated steps of multinomial
    logistic regression, with yhat as logits. F_t are random features, or columns of the input,
    those with the largest gradient first; when all of them had their turn, they are ordered again.
    Only blocks of second moments (block_size squared) and of weights travel; sums over row shards
    are added in their order, so that models are equal bit by bit for any number of workers.

    For sparse text: features=columns, rule=linear. Several labels per row are targets of 1 each;
    rule=logistic shares one between them. With rule=linear and columns of many labels (N K above
    2^27), gradients are computed from moments of columns, no predictions are kept, and columns are
    ordered once.

        Example:
            >>> StagewiseSolver(blocks=2).n_stages
            2

    Source: Agarwal, Kakade, Karampatziakis, Song, Valiant, "Least squares revisited: scalable
    approaches for multi-class prediction", ICML 2014, algorithm 3; see `StageFitter` for
    what differs.
    """

    rule: str = parameter(
        "logistic",
        "how a stage follows the one before",
        choices=("linear", "previous", "logistic"),
    )
    features: str = parameter(
        FOURIER,
        "features of a stage: random Fourier features, logits or polynomials of degree 3; masks "
        "moved over images, random or by k-means; columns of the input by gradient",
        choices=(FOURIER, *MAPS, *MASKS, COLUMNS),
    )
    stages: int = parameter(4, "number of stages", low=1, high=1024)
    block_size: int = parameter(
        0,
        "features of a stage; 0: 2,000, of columns at most 4,096",
        low=0,
        high=MAX_FEATURES,
    )
    lam: float = parameter(
        0.0,
        "ridge of a stage, relative to the mean loss; 0: 0.2 / sqrt(rows), for columns "
        "0.05 / sqrt(rows), for masks 0.0005 / sqrt(rows)",
        low=0.0,
    )
    components: int = parameter(
        0, "principal components that random features are made of; 0: the rows", low=0
    )
    bandwidth: float = parameter(
        0.0,
        "bandwidth of random features, as a share of the median distance of rows; 0: 0.7, of "
        "logits 0.3",
        low=0.0,
    )
    image: str = parameter(
        "", "masks: shape of the images, such as 28x28 or, with channels, 32x32x3", high=20
    )
    patch: int = parameter(8, "masks: height and width of a mask in pixels", low=2, high=64)
    models: int = parameter(
        1, "chains on other random features, whose scores are averaged", low=1, high=1024
    )
    inner_steps: int = parameter(4, "logistic: steps of a stage", low=1)
    shards: int = parameter(8, "number of row shards, part of the result's bits", low=1, high=4096)
    seed: int = parameter(0, "seed of the features", low=0)

    compile_cases: ClassVar[tuple[CompileCase, ...]] = (
        CompileCase({"stages": 1, "block_size": 16}, "single"),
    )

    @property
    def n_stages(self) -> int:
        """Return the number of stages of all chains."""
        return self.stages * self.models

    def n_weights(self, n_inputs: int) -> int:
        """Return the features of a stage."""
        if self.features == COLUMNS:
            return min(self.block_size or COLUMN_BLOCK, n_inputs)
        size = self.block_size or RANDOM_BLOCK
        return max(size // POOLS, 1) * POOLS if self.features in MASKS else size

    def products(self, n_inputs: int) -> int:
        """Return the products that a random feature of a row takes, of masks at most."""
        return n_inputs * self.patch**2 // POOLS if self.features in MASKS else n_inputs

    def method(self, n_rows: int, simplex: bool) -> StageFitter:
        """Return how the stages are fitted."""
        ridge = {COLUMNS: ONE_RIDGE, **dict.fromkeys(MASKS, MASK_RIDGE)}.get(
            self.features, STAGE_RIDGE
        )
        lam = self.lam or ridge / math.sqrt(max(n_rows, 1))
        return StageFitter(
            self.rule, lam, self.shards, self.inner_steps, simplex, chain=self.stages
        )

    def by_moments(self, n_rows: int, n_labels: int) -> bool:
        """Return whether to compute gradients from moments, without predictions (N, K)."""
        few = n_rows * n_labels <= MAX_PREDICTIONS
        return self.rule == "linear" and self.features == COLUMNS and not few

    def blocks(self, X: CSR, order: Callable[[int], Int64]) -> Blocks:
        """Yield the features of each stage; columns are ordered again after the last one.

        Raises ParameterError for several chains on columns, which would be equal.
        """
        if self.features == COLUMNS:
            if self.models > 1:
                raise ParameterError("models above 1 needs random features: choose fourier")
            yield from islice(self._column_blocks(X.n_cols, order), self.stages)
            return
        if self.features in MASKS:
            yield from self._mask_blocks(X)
            return
        kind, bandwidth = MAPS.get(self.features, (None, BANDWIDTH))
        options = (self.components, self.bandwidth or bandwidth, self.seed)
        random, size = _RandomFeatures(X, *options, kind), self.n_weights(X.n_cols)
        yield from (random.block(number, size) for number in range(self.n_stages))

    def _mask_blocks(self, X: CSR) -> Blocks:
        """Yield blocks of masks."""
        shape = parse_shape(self.image, X.n_cols)
        sample = take_rows(X, _sample(X.n_rows, self.seed))
        for number in range(self.n_stages):
            n, place = self.n_weights(X.n_cols) // POOLS, {"seed": self.seed, "block": number}
            yield image_masks(sample, shape, self.patch, n, MASKS[self.features], **place)

    def _column_blocks(self, D: int, order: Callable[[int], Int64]) -> Iterator[Columns]:
        """Yield blocks of columns, pass after pass without end."""
        for number in count():
            columns = order(number)
            if not len(columns):  # nothing is left to fit
                columns = frozen(np.arange(D), np.int64)
            yield from column_blocks(D, columns, self.n_weights(len(columns)))


@dataclass(frozen=True)
class CalibratedLeastSquaresSolver(Parameters, StagesSolver):
    """Calibrated least squares: least squares and a cubic map of its scores, again and again.

    Each stage fits the residual of the predictions by least squares on the same features, and then
    the targets to the first three powers of the scores. With one label per row, and at most 1,024
    labels, these are the powers of all scores, and predictions are projected on the probability
    simplex. Otherwise each label has its own map, and predictions are clipped to [0, 1]. The share
    `held_out` of the training rows is left out; the training ends when their squared error has not
    fallen for two stages, and the model has the stages with the smallest one. Second moments and
    their Cholesky factor are computed once. Everything else is as in `stagewise`.

        Example:
            >>> CalibratedLeastSquaresSolver(rounds=3).n_stages
            3

    Source: Agarwal et al., "Least squares revisited", ICML 2014, algorithm 2, and section 4 for
    several labels per row; see `StageFitter` for what differs.
    """

    features: str = parameter(
        INPUT,
        "features: those of the data, or random Fourier features",
        choices=(INPUT, FOURIER),
    )
    rounds: int = parameter(
        10, "maximum number of stages; 5 are enough for fourier", low=1, high=1024
    )
    held_out: float = parameter(
        0.1,
        "share of the training rows that is left out to choose the number of stages; 0: all stages",
        low=0.0,
        high=0.5,
    )
    block_size: int = parameter(
        4000, "fourier: number of random features", low=1, high=MAX_FEATURES
    )
    lam: float = parameter(
        0.0, "ridge of a stage, relative to the mean loss; 0: 0.05 / sqrt(rows)", low=0.0
    )
    components: int = parameter(
        0, "fourier: principal components that the features are made of; 0: the rows", low=0
    )
    bandwidth: float = parameter(
        1.0, "fourier: bandwidth, as a share of the median distance of rows", above=0.0
    )
    shards: int = parameter(8, "number of row shards, part of the result's bits", low=1, high=4096)
    seed: int = parameter(0, "seed of the features", low=0)

    compile_cases: ClassVar[tuple[CompileCase, ...]] = (CompileCase({"rounds": 1}, "single"),)

    @property
    def n_stages(self) -> int:
        """Return the number of stages."""
        return self.rounds

    def n_weights(self, n_inputs: int) -> int:
        """Return the features of a stage."""
        return self.block_size if self.features == FOURIER else n_inputs

    def method(self, n_rows: int, simplex: bool) -> StageFitter:
        """Return how the stages are fitted."""
        lam = self.lam or ONE_RIDGE / math.sqrt(max(n_rows, 1))
        return StageFitter("calibrated", lam, self.shards, simplex=simplex)

    @property
    def held_out_share(self) -> float:
        """Return the share of the training rows that are left out."""
        return self.held_out

    def blocks(self, X: CSR, order: Callable[[int], Int64]) -> Blocks:
        """Yield the same features for each stage."""
        features: FeaturePipeline | None = None
        if self.features == FOURIER:
            random = _RandomFeatures(X, self.components, self.bandwidth, self.seed)
            features = random.block(0, self.block_size)
        for _ in range(self.rounds):
            yield features


class _RandomFeatures:
    """Random features of rows X (N, D), or of their principal components; kind None: Fourier."""

    def __init__(
        self,
        X: CSR,
        components: int,
        bandwidth: float,
        seed: int,
        kind: type[RandomLogits] | None = None,
    ) -> None:
        """Fit the components, if there are any, and scale `bandwidth` by the median distance.

        Raises ParameterError for more components than features, or too many features.
        """
        if components > min(X.shape) or (components and X.n_cols > MAX_FEATURES):
            raise ParameterError(
                f"components={components} needs as many rows and features, and at most "
                f"{MAX_FEATURES} features; the data have {X.n_rows} rows and {X.n_cols} features"
            )
        self._pca = fit_pca(X, components, centred=False) if components else None
        self._n_inputs, self._seed = components or X.n_cols, seed
        sample = self._transform(X, _sample(X.n_rows, seed))
        self._bandwidth = bandwidth * _median_distance(sample, seed)
        self._kind, self._centres = kind, np.zeros((0, 0), np.float32)
        if kind is not None:
            rows: Any = sample.to_scipy().toarray() if isinstance(sample, CSR) else sample
            self._centres = np.asarray(rows[:MAX_CENTRES], np.float32)

    def _transform(self, X: CSR, numbers: Int64) -> Rows:
        """Return rows of X or of their components, which are computed some rows at a time."""
        if self._pca is None:
            return take_rows(X, numbers)
        parts = np.array_split(numbers, max(1, -(-len(numbers) // ROWS_AT_A_TIME)))
        transform = self._pca.transform
        return np.concatenate([transform(take_rows(X, frozen(p, np.int64))) for p in parts])

    def block(self, number: int, n_outputs: int) -> FeaturePipeline:
        """Return features number `number`."""
        place = {"seed": self._seed, "block": number}
        features: FeaturePipeline
        if self._kind is None:
            features = random_fourier(self._n_inputs, n_outputs, self._bandwidth, **place)
        else:
            features = random_map(self._kind, self._centres, n_outputs, self._bandwidth, **place)
        return features if self._pca is None else Chain((self._pca, features))


def _sample(n_rows: int, seed: int) -> Int64:
    """Return the numbers of some rows, in ascending order."""
    chosen = np.random.default_rng(seed).permutation(n_rows)[:SAMPLE_ROWS]
    return frozen(np.sort(chosen), np.int64)


def _median_distance(rows: Rows, seed: int) -> float:
    """Return the median distance of random pairs of rows; 1 if most rows are equal."""
    distance = median_distance(rows, seed=seed) if rows.shape[0] > 1 else 0.0
    return distance if np.isfinite(distance) and distance > 0.0 else 1.0
