"""Feature space of an existing model or data set, for building a data set that fits it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from xcray.data.dataset import FEATURES, MANIFEST, TEXT, default_names
from xcray.data.text.pipeline import TextPipeline
from xcray.errors import Corrupt, NotFound, ParameterError, excerpt
from xcray.storage.arrow import read_names
from xcray.storage.atomic import read_json


class FeatureSpace(NamedTuple):
    """The features of a model or data set.

    text: the pipeline that makes features from text, or None. names: names of the D features;
    None if they are the numbers 0 to D - 1.
    """

    text: TextPipeline | None
    n_features: int
    names: pa.LargeStringArray | None

    @classmethod
    def read(cls, path: Path | str | None) -> FeatureSpace | None:
        """Return the feature space of a model or data set directory; None if `path` is None.

        Raises NotFound if there is none at `path`, Corrupt if its files do not fit
        together.
        """
        if path is None:
            return None
        path = Path(path)
        if not (path / MANIFEST).is_file():
            raise NotFound(f"like: there is no model or data set directory {excerpt(str(path))}")
        manifest = read_json(path / MANIFEST)
        try:
            n_features = int(
                manifest["n_features"] if "n_features" in manifest else manifest["shape"][1]
            )
        except (KeyError, TypeError, IndexError, ValueError):
            raise Corrupt(
                f"{path.name} is not a model or data set: "
                f"its {MANIFEST} lacks the number of features"
            ) from None
        names = read_names(path / FEATURES) if (path / FEATURES).exists() else None
        text = TextPipeline.load(path / TEXT) if (path / TEXT).is_dir() else None
        for size in (
            n_features if names is None else len(names),
            n_features if text is None else text.n_features,
        ):
            if size != n_features:
                raise Corrupt(
                    f"{path.name} has {size} feature names, "
                    f"its {MANIFEST} has n_features={n_features}"
                )
        plain = names is None or names.equals(default_names(n_features))
        return cls(text, n_features, None if plain else names)

    def require_pipeline(self) -> TextPipeline:
        """Return the text pipeline. Raises ParameterError if there is none."""
        if self.text is None:
            raise ParameterError(
                "like was not built from text; give features as well: svmlight or xc"
            )
        return self.text


def reads_zero_based(zero_based: bool, first_index: int | None) -> bool:
    """Return whether rows for an existing feature space have indices from 0.

    zero_based: what the caller says; first_index: what the feature space was read with. Without a
    word of the caller the rows are read like the rows of the feature space. Raises ParameterError
    if the two differ: each feature would be its neighbour.
    """
    if zero_based and first_index == 1:
        raise ParameterError(
            "zero_based: the model or data set was built from indices that start at 1, so each "
            "feature would be its neighbour; leave the option out"
        )
    return zero_based or first_index == 0
