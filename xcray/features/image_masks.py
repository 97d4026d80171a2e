"""Masks that are moved over images: what is left of their products above 0, pooled by quadrant.

Source: Agarwal et al., "Least squares revisited", ICML 2014, section 3.2; masks by k-means as in
Coates, Lee and Ng, "An analysis of single-layer networks in unsupervised feature learning",
AISTATS 2011. Differs: the threshold of a mask is drawn, and patches are not whitened.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple, Self

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from xcray.arrays import CSR, Float32, Float64, Int64, frozen
from xcray.errors import ParameterError, ShapeMismatch
from xcray.features.fourier import random_stream
from xcray.features.pipeline import Rows, StoredPipeline, check_width

POOLS: Final = 4  # features of a mask: one for each quadrant of the image
PATCHES: Final = 20_000  # of which masks are made
ITERATIONS: Final = 10  # of k-means
CHUNK_CELLS: Final = 1 << 22  # products in memory at a time: 16 MB


class ImageShape(NamedTuple):
    """Shape of the images that rows are: pixel by pixel, the channels of a pixel side by side."""

    height: int
    width: int
    channels: int

    @property
    def n_inputs(self) -> int:
        """Return the number of columns of a row."""
        return self.height * self.width * self.channels


def parse_shape(text: str, n_inputs: int) -> ImageShape:
    """Return the shape "28x28" or "32x32x3" of rows of n_inputs columns. Raises ParameterError."""
    found = re.fullmatch(r"(\d{1,5})x(\d{1,5})(?:x(\d{1,5}))?", text)
    shape = ImageShape(*(int(each or 1) for each in found.groups())) if found else None
    if shape is None or shape.n_inputs != n_inputs:
        raise ParameterError(
            f"image={text!r} is not the shape of rows of {n_inputs} features: give HEIGHTxWIDTH or "
            "HEIGHTxWIDTHxCHANNELS, such as image=28x28"
        )
    return shape


@dataclass(frozen=True)
class ImageMasks(StoredPipeline):
    """Means of max(0, patch' mask + offset) over the patches of each quadrant of an image.

    masks: (size^2 channels, m) float32; offset: (m,) float32. Outputs: those of the m masks at the
    upper left, the upper right, the lower left and the lower right.
    """

    kind: ClassVar[str] = "image-masks"
    shape: ImageShape
    masks: Float32
    offset: Float32

    @property
    def n_inputs(self) -> int:
        """Return the number of columns of the input."""
        return self.shape.n_inputs

    @property
    def n_outputs(self) -> int:
        """Return the number of features."""
        return POOLS * len(self.offset)

    @property
    def size(self) -> int:
        """Return the height and width of a mask."""
        return math.isqrt(len(self.masks) // self.shape.channels)

    def transform(self, rows: Rows) -> Float32:
        """Return the features (n, n_outputs) float32. Raises ShapeMismatch."""
        check_width(rows, self.n_inputs)
        out = np.empty((rows.shape[0], self.n_outputs), np.float32)
        X: Any = rows.to_scipy() if isinstance(rows, CSR) else rows
        height, width = (n - self.size + 1 for n in self.shape[:2])
        chunk = max(1, CHUNK_CELLS // (height * width * max(self.masks.shape)))
        for lo in range(0, len(out), chunk):
            images = X[lo : lo + chunk]
            images = images.toarray() if isinstance(rows, CSR) else images
            products = _patches(images, self.shape, self.size).reshape(-1, len(self.masks))
            products = products @ self.masks
            products += self.offset
            np.maximum(products, np.float32(0), out=products)
            at = products.reshape(len(images), height, width, -1)
            middle = [np.array([0, n // 2]) for n in (height, width)]
            pooled = np.add.reduceat(np.add.reduceat(at, middle[0], axis=1), middle[1], axis=2)
            out[lo : lo + chunk] = pooled.reshape(len(images), -1)
        out *= np.float32(POOLS / (height * width))
        return out

    def fields(self) -> tuple[dict[str, Any], dict[str, Float32]]:
        """Return the settings and the arrays."""
        return {"shape": list(self.shape)}, {"masks": self.masks, "offset": self.offset}

    @classmethod
    def from_fields(cls, settings: Mapping[str, Any], arrays: Mapping[str, Float32]) -> Self:
        """Return the pipeline with these fields.

        Raises ShapeMismatch, KeyError, TypeError or ValueError.
        """
        shape, masks, offset = ImageShape(*settings["shape"]), arrays["masks"], arrays["offset"]
        if not all(type(n) is int and n > 0 for n in shape):
            raise ValueError("the shape of images has whole numbers above 0")
        if masks.ndim != 2 or offset.shape != (masks.shape[1],):
            raise ShapeMismatch("masks have one offset each")
        made = cls(shape, masks, offset)
        if made.size**2 * shape.channels != len(masks) or not _fits(made.size, shape):
            raise ShapeMismatch("masks do not have the shape of patches of the images")
        return made


def image_masks(
    images: Rows,
    shape: ImageShape,
    size: int,
    n_masks: int,
    source: Literal["random", "kmeans"],
    *,
    seed: int,
    block: int,
) -> ImageMasks:
    """Draw masks of size x size pixels, or take the centres of clusters of patches.

    images: (n, n_inputs) some rows. Products with patches, some of which are drawn from the images,
    have variance 1; the offset of a mask makes that with a random patch 0. The numbers depend on
    the images and on (seed, block) only. Raises ParameterError for a size below 2 or above that of
    the images, and for images without patches of different pixels.
    """
    if not _fits(size, shape):
        raise ParameterError(f"patch={size} is not from 2 to the {min(shape[:2])} pixels of images")
    stream = random_stream(seed, block)
    dense: Any = images.to_scipy().toarray() if isinstance(images, CSR) else images
    views = _patches(dense, shape, size)
    at = (stream.integers(0, n, 4 * PATCHES) for n in views.shape[:3])
    drawn = views[tuple(at)].reshape(4 * PATCHES, -1)
    # patches of one value, such as those of an empty background, would be most of them
    patches: Float64 = drawn[np.ptp(drawn, axis=1) > 0.0][:PATCHES].astype(np.float64)
    if not len(patches):
        raise ParameterError("all patches of the images have pixels of one value")
    if source == "random":
        masks = stream.standard_normal((n_masks, patches.shape[1]))
    else:
        masks = cluster_centres(patches, n_masks, stream)
        masks = masks - masks.mean(axis=1, keepdims=True)
    deviation = (patches @ masks.T).std(axis=0)
    masks /= np.where(deviation > 0.0, deviation, 1.0)[:, None]
    centres = patches[stream.integers(0, len(patches), n_masks)]
    offset = -np.einsum("md,md->m", centres, masks)
    return ImageMasks(shape, frozen(masks.T, np.float32), frozen(offset, np.float32))


def _fits(size: int, shape: ImageShape) -> bool:
    """Return whether masks of this size can be moved over images."""
    return 2 <= size < min(shape[:2])


def _patches(images: Float32, shape: ImageShape, size: int) -> Any:
    """Return a view of the patches (n, rows, columns, size, size, channels) of images."""
    pixels = images.reshape(-1, *shape)
    views = sliding_window_view(pixels, (size, size), axis=(1, 2))
    return np.moveaxis(views, 3, -1)


def cluster_centres(patches: Float64, n: int, stream: np.random.Generator) -> Float64:
    """Return n centres of patches by k-means; one that loses all patches stays."""
    centres = patches[stream.integers(0, len(patches), n)]
    for _ in range(ITERATIONS):
        scores = patches @ centres.T - 0.5 * np.square(centres).sum(axis=1)
        nearest: Int64 = scores.argmax(axis=1)
        counts = np.bincount(nearest, minlength=n)
        order = np.argsort(nearest, kind="stable")
        kept = np.flatnonzero(counts)
        starts = np.concatenate(([0], np.cumsum(counts[kept])[:-1]))
        sums = np.add.reduceat(patches[order], starts, axis=0)
        centres[kept] = sums / counts[kept, None]
    return centres
