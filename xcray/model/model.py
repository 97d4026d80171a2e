"""A trained model: W, b, names of labels and features, text pipeline, and provenance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from xcray.arrays import CSR, Float32
from xcray.data.dataset import reading_of
from xcray.data.label_texts import LabelTexts
from xcray.data.text.pipeline import TextPipeline
from xcray.errors import NotFound, ParameterError, excerpt, suggestion
from xcray.index.label_groups import LabelGroups
from xcray.index.scorer import Scorer, SparseScorer
from xcray.index.search import SearchIndex
from xcray.index.staged import Stage, StagedScorer
from xcray.kernels.sparse import transpose
from xcray.model.calibration import Calibration
from xcray.model.directory import (
    DUALS,
    TIMELINE,
    LinearPart,
    read_parts,
)
from xcray.model.manifest import LabelRange, ranges_of, require_weights
from xcray.model.ranker import Ranker
from xcray.parameters import require_type
from xcray.storage.arrow import read_csr, read_table
from xcray.storage.names import Names
from xcray.storage.verified import VerifiedFiles

MAX_SEARCHED_LABELS = 100_000  # labels of a model that are searched for a similar name


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A linear model, score = W x + b, or a chain of stages, with provenance.

    It is immutable and memory-mapped. linear: weights, biases and search of a linear model, or
    None, as for one whose weights are in shards; stages: of a chain, otherwise empty. label_names,
    feature_names: K and D strings; text: the pipeline that makes features from text, or None.
    labels: the solver's report, one row per label, or None; manifest: see `directory`; calibration:
    from scores to probabilities, or None; label_texts: names and descriptions of labels, or None;
    ranker: orders candidates of the search and of names in a text, or None; label_thresholds: least
    score of each label of `answer_names` in a decision, or None.
    """

    path: Path
    linear: LinearPart | None
    stages: tuple[Stage, ...]
    label_names: Names
    feature_names: Names
    text: TextPipeline | None
    label_table: pa.Table | None
    manifest: dict[str, Any]
    calibration: Calibration | None = None
    label_texts: LabelTexts | None = None
    ranker: Ranker | None = None
    label_thresholds: Float32 | None = None

    @classmethod
    def open(cls, path: str | Path, verify: bool | VerifiedFiles = True) -> Model:
        """Map a model directory. Raises NotFound, Corrupt.

        verify: compare every file with its checksum and check the structure of all arrays (3 ms and
        0.3 ms of CPU per MB). VerifiedFiles remembers the checksums of files that do not change.
        False only for its report, or for a model that this process wrote: the search reads without
        bounds checks.
        """
        require_type("path", path, (str, Path), "the path of a model directory")
        parts, manifest = read_parts(Path(path), verify)
        names = {
            "label_names": Names(parts.label_names),
            "feature_names": Names(parts.feature_names),
        }
        return cls(path=Path(path), manifest=manifest, **{**parts._asdict(), **names})

    def __repr__(self) -> str:
        """Return what a notebook shows of it."""
        return f"Model({str(self.path)!r}, labels={self.n_labels}, features={self.n_features})"

    @property
    def W(self) -> CSR:
        """Weights of a linear model: (K, D) CSR float32, one row per label.

        Raises ParameterError for a chain of stages, as `b` and `search`.
        """
        return self.require_linear().W

    @property
    def b(self) -> Float32:
        """Biases of a linear model: (K,) float32."""
        return self.require_linear().b

    @property
    def search(self) -> SearchIndex:
        """Exact top-k over the weights of a linear model."""
        return self.require_linear().search

    @property
    def groups(self) -> LabelGroups | None:
        """Groups of similar labels whose scores are part of those of the labels, or None."""
        return None if self.linear is None else self.linear.search.groups

    def scorer(self, threads: int = 1) -> Scorer:
        """Return the scorer. threads: cores per batch, where it can use several.

        Raises ParameterError for a model in shards.
        """
        if self.stages:
            return StagedScorer(self.stages, self.n_features)
        return SparseScorer(self.require_linear().search, threads=threads)

    @cached_property
    def ranges(self) -> tuple[LabelRange, ...]:
        """The label ranges of a model in shards, otherwise empty."""
        return ranges_of(self.manifest)

    @property
    def n_labels(self) -> int:
        """K, the number of labels."""
        return int(self.manifest["shape"][0])

    @property
    def n_features(self) -> int:
        """D, the number of features of a row: the columns of W, or the inputs of the stages."""
        return int(self.manifest["shape"][1])

    @property
    def answer_names(self) -> Names:
        """The names of all labels that an answer can have.

        Those of the model, and after them labels without a training row that a ranker can find.
        """
        return self.label_names if self.ranker is None else self.ranker.labels.label_names

    @cached_property
    def display_names(self) -> Names | None:
        """What people call the labels of `answer_names`; None without label texts.

        A label without texts is called by its id.
        """
        if self.label_texts is None:
            return None
        names = self.label_texts.names
        ids = self.answer_names.to_pylist()
        return Names(pa.array([names.get(each, each) for each in ids], pa.large_string()))

    @property
    def nnz(self) -> int:
        """Number of stored weights."""
        return int(self.manifest["nnz"])

    @property
    def labels(self) -> list[str]:
        """The names of all labels as Python strings."""
        return self.label_names.to_pylist()

    @property
    def features(self) -> list[str]:
        """The names of all features as Python strings."""
        return self.feature_names.to_pylist()

    @cached_property
    def postings(self) -> CSR:
        """The weights by feature, (D, K): the transpose of W, computed in memory on first use."""
        return transpose(self.W)

    @property
    def link(self) -> str:
        """Meaning of scores, one of LINKS.

        "identity": margins; "softmax": logarithms of probabilities that add up to one over
        all labels; "probability": these probabilities.
        """
        return str(self.manifest["link"])

    @property
    def row_norm(self) -> str:
        """Normalisation of the rows of every request: "none", or "l2" for unit length."""
        return "none" if self.linear is None else self.search.row_norm

    @property
    def first_index(self) -> int | None:
        """Index of the first feature in svmlight files for this model: 0 or 1; None: unknown."""
        value = self.reading.get("first_index")
        return value if value in (0, 1) else None

    @property
    def text_fields(self) -> tuple[str, ...]:
        """Fields of the training data that form the text."""
        return tuple(self.reading.get("text_fields", ("text",)))

    @property
    def reading(self) -> dict[str, Any]:
        """How the files of the training data were read, see `Dataset.reading`."""
        return reading_of(self.manifest)

    @property
    def sha256(self) -> str:
        """Content hash over weights, names, training settings and calibration.

        It does not depend on the time or place of training.
        """
        return str(self.manifest["sha256"])

    @property
    def measures(self) -> dict[str, float]:
        """Measures taken after training, as fractions; empty if there are none."""
        return dict(self.manifest["measures"])

    @property
    def provenance(self) -> list[dict[str, Any]]:
        """Edits of earlier models that made this one, oldest first; empty without edits."""
        return list(self.manifest.get("provenance", []))

    @property
    def calibration_report(self) -> dict[str, Any]:
        """How the calibration was fitted and measured; empty if there is none.

        See `xcray.training.edit.calibrate`.
        """
        return dict(self.manifest["stages"][0]["calibration"] or {})

    @property
    def timeline(self) -> pa.Table | None:
        """Worker and times per batch of the training, one row per batch, mapped.

        None if the training did not record it. See `xcray.training.report.timeline`.
        """
        return read_table(self.path / TIMELINE) if TIMELINE in self.manifest["files"] else None

    @cached_property
    def duals(self) -> CSR | None:
        """Dual variables of the labels, (K, N) by training row, mapped; None if not kept."""
        return read_csr(self.path / DUALS) if DUALS in self.manifest["files"] else None

    @property
    def duals_digest(self) -> dict[str, str]:
        """SHA-256 of the file of dual variables, which is not part of the content hash; or {}."""
        entry = self.manifest["files"].get(DUALS)
        return {} if entry is None else {"duals": entry["sha256"]}

    @property
    def n_bytes(self) -> int:
        """Bytes on disk, without the manifest."""
        return sum(int(entry["bytes"]) for entry in self.manifest["files"].values())

    def require_linear(self) -> LinearPart:
        """Return the weights. Raises ParameterError for a chain of stages and a model in shards."""
        require_weights(self.manifest)
        if self.linear is None:
            raise ParameterError(
                f"{self.path.name} is a chain of {len(self.stages)} stages, without one matrix of "
                "weights by label: this needs a linear model",
                code="STAGED_MODEL",
            )
        return self.linear

    def label_name(self, label: int) -> str:
        """Return the name of label number `label`. Raises NotFound if there is no such number."""
        if not 0 <= label < self.n_labels:
            raise NotFound(
                f"there is no label number {label}: the model has labels 0 to {self.n_labels - 1}"
            )
        return self.label_names[label]

    def answer_id(self, label: int | str) -> int:
        """Return the number of a label of an answer, see `answer_names`. Raises NotFound."""
        if isinstance(label, str):
            number = _find_name(self.answer_names, label)
            return self.label_id(label) if number < 0 else number
        return int(label) if 0 <= label < len(self.answer_names) else self.label_id(label)

    def label_id(self, label: int | str) -> int:
        """Return the number of a label given by number or by name. Raises NotFound."""
        if not isinstance(label, str):
            self.label_name(label)
            return int(label)
        number = _find_name(self.label_names, label)
        if number < 0:
            raise NotFound(unknown_label(self, label))
        return number


def _find_name(names: Names, name: str) -> int:
    """Return the number of a name, or -1."""
    return int(pc.index(names.array, pa.scalar(name, pa.large_string())).as_py())


def unknown_label(model: Model, name: str, kind: str = "label") -> str:
    """Return the message for a label name that a model does not have, with a similar name."""
    known = model.label_names if model.n_labels <= MAX_SEARCHED_LABELS else ()
    examples = ", ".join(repr(excerpt(each, 40)) for each in model.label_names[:3])
    similar = suggestion(name, known) or f"; its labels have names like {examples}"
    return f"the model has no {kind} {excerpt(name)!r}{similar}"
