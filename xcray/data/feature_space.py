"""Features of something that exists: a model's or a data set's, for building a data set that can be used with it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from xcray.data.dataset import FEATURES, MANIFEST, TEXT, default_names
from xcray.data.text.pipeline import TextPipeline
from xcray.errors import Corrupt, ParameterError
from xcray.storage.arrow import read_names
from xcray.storage.atomic import read_json


class Like(NamedTuple):
    """A feature space: the pipeline that makes it from text, or None; the names of its D features, None where numbers do."""

    text: TextPipeline | None
    n_features: int
    names: pa.LargeStringArray | None

    @classmethod
    def read(cls, path: Path | str | None) -> Like | None:
        """The feature space of a model or data set directory, or None without one.

        Raises NotFound when there is none at `path`, Corrupt when its files do not fit together.
        """
        if path is None:
            return None
        path = Path(path)
        manifest = read_json(path / MANIFEST)
        try:
            n_features = int(
                manifest["n_features"] if "n_features" in manifest else manifest["shape"][1]
            )
        except (KeyError, TypeError, IndexError, ValueError):
            raise Corrupt(
                f"{path.name} is no model and no data set: its {MANIFEST} does not say how many features it has"
            ) from None
        names = read_names(path / FEATURES) if (path / FEATURES).exists() else None
        text = TextPipeline.load(path / TEXT) if (path / TEXT).is_dir() else None
        for found in (
            n_features if names is None else len(names),
            n_features if text is None else text.n_features,
        ):
            if found != n_features:
                raise Corrupt(
                    f"{path.name} has {found} names of features, its {MANIFEST} says {n_features}"
                )
        plain = names is None or names.equals(default_names(n_features))
        return cls(text, n_features, None if plain else names)

    def pipeline(self) -> TextPipeline:
        """The text pipeline. Raises ParameterError when there is none."""
        if self.text is None:
            raise ParameterError(
                "like names something that was not made from text; give features as it has them: svmlight or xc"
            )
        return self.text
