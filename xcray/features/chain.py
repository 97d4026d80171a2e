"""Feature pipelines applied one after the other."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Self

from xcray.errors import Corrupt, ParameterError, ShapeMismatch
from xcray.features.pipeline import (
    SETTINGS_FILE,
    FeaturePipeline,
    Rows,
    load_pipeline,
    read_document,
)
from xcray.storage.atomic import write_json

MAX_STEPS: Final = 8


@dataclass(frozen=True)
class Chain:
    """Pipelines applied in order; the outputs of each are the inputs of the next.

    Raises ParameterError for 0 or more than MAX_STEPS steps or for a chain as a step, and
    ShapeMismatch for widths that do not fit.
    """

    kind: ClassVar[str] = "chain"
    steps: tuple[FeaturePipeline, ...]

    def __post_init__(self) -> None:
        """Check the steps."""
        if not 1 <= len(self.steps) <= MAX_STEPS:
            raise ParameterError(f"a chain has 1 to {MAX_STEPS} steps, not {len(self.steps)}")
        if any(isinstance(step, Chain) for step in self.steps):
            raise ParameterError("a chain is not a step of a chain: list its steps instead")
        for before, after in zip(self.steps, self.steps[1:], strict=False):
            if before.n_outputs != after.n_inputs:
                raise ShapeMismatch(
                    f"a step with {after.n_inputs} inputs follows one "
                    f"with {before.n_outputs} outputs"
                )

    @property
    def n_inputs(self) -> int:
        """Return the number of columns of the input."""
        return self.steps[0].n_inputs

    @property
    def n_outputs(self) -> int:
        """Return the number of columns of the output."""
        return self.steps[-1].n_outputs

    @property
    def fingerprint(self) -> str:
        """Return the SHA-256 of the fingerprints of the steps, in hexadecimal."""
        text = " ".join([self.kind, *(step.fingerprint for step in self.steps)])
        return hashlib.sha256(text.encode()).hexdigest()

    def transform(self, rows: Rows) -> Rows:
        """Return the features (n, n_outputs). Raises ShapeMismatch."""
        for step in self.steps:
            rows = step.transform(rows)
        return rows

    def save(self, folder: Path) -> None:
        """Write each step into a sub-folder, and `pipeline.json`, which is written last."""
        for number, step in enumerate(self.steps):
            (folder / f"step-{number}").mkdir(exist_ok=True)
            step.save(folder / f"step-{number}")
        document = {"kind": self.kind, "steps": len(self.steps), "fingerprint": self.fingerprint}
        write_json(folder / SETTINGS_FILE, document)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a chain. Raises NotFound, or Corrupt for invalid files."""
        document = read_document(folder)
        count = document.get("steps")
        if type(count) is not int or not 1 <= count <= MAX_STEPS:
            raise Corrupt(f"{folder.name} is a chain with an invalid number of steps")
        folders = [folder / f"step-{number}" for number in range(count)]
        if any(read_document(each).get("kind") == cls.kind for each in folders):
            raise Corrupt(f"{folder.name} is a chain with a chain as a step")
        try:
            chain = cls(tuple(load_pipeline(each) for each in folders))
        except ShapeMismatch as error:
            raise Corrupt(f"{folder.name} is not a valid chain: {error}") from None
        if chain.fingerprint != document.get("fingerprint"):
            raise Corrupt(f"{folder.name} does not have the stored fingerprint")
        return chain
