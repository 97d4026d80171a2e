"""TrainSpec: description of a training, validated before any work.

The command line, jobs and scripts share it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from xcray.api.options import TrainingOptions
from xcray.errors import ParameterError
from xcray.parameters import check_parameters, require_type
from xcray.solvers import SOLVERS, make_solver
from xcray.storage.atomic import check_name
from xcray.training.selection.measure import parse_measure


@dataclass(frozen=True)
class TrainSpec(TrainingOptions):
    """Description of a training. Validated when created; raises ParameterError with a fix.

    dataset: path of a data set directory. solver, params: see `xcray.solvers`. ray_address: a
    cluster to join; otherwise the pool "ray" starts a local Ray for the training. name: the model's
    name. ks: the k of P@k and similar measures. Further options are those of
    `xcray.api.options.TrainingOptions`.

    memory_limit can be text like "4GiB". Merging stays within it too; data and finished weights are
    mapped files and do not count. After max_seconds, merging and evaluation take additional time.
    calibrate: see `xcray.training.calibration.fit`; models of softmax solvers return probabilities
    without it. auto: see `xcray.training.selection`; groups: see `xcray.training.label_groups`;
    rank: see `xcray.training.ranking`.
    """

    dataset: str
    solver: str = "ppdsparse"
    params: Mapping[str, Any] = field(default_factory=dict)
    _: KW_ONLY
    ray_address: str | None = None
    name: str = "model"
    ks: tuple[int, ...] = (1, 3, 5)

    def __post_init__(self) -> None:
        """Validate everything that does not depend on the data."""
        require_type("dataset", self.dataset, (str, Path), "the path of a data set directory")
        require_type("params", self.params, Mapping, "a mapping of solver parameters")
        object.__setattr__(self, "dataset", str(self.dataset))
        check_name(self.name, "model name")
        make_solver(self.solver, self.params)
        check_parameters(self)
        if self.auto is not None:
            parse_measure(self.auto)
            if SOLVERS[self.solver].tuning is None:
                raise ParameterError(f"auto chooses parameters of ppdsparse, not of {self.solver}")
        if parse_group_sizes(self.groups) != ():
            self._check_groups()
        if self.rank:
            self._check_rank()
        if self.keep_duals:
            self._check_keep_duals()
        object.__setattr__(self, "ks", tuple(sorted(set(self.ks))))
        if not self.ks or not all(type(k) is int and 1 <= k <= 100 for k in self.ks):
            raise ParameterError(f"ks must be whole numbers from 1 to 100, not {str(self.ks)[:80]}")

    def _check_groups(self) -> None:
        """Raise ParameterError if a training of this solver and time limit cannot have groups."""
        solver = make_solver(self.solver, self.params)
        if not solver.solves_alone or solver.exports != "weights" or solver.link != "identity":
            raise ParameterError(
                "groups needs a solver that trains each label alone, such as ppdsparse, not "
                f"{self.solver}: leave groups out, or choose another solver"
            )
        if self.max_seconds is not None:
            raise ParameterError(
                "groups needs all labels of two trainings, which a time limit can cut short: "
                "leave max_seconds or groups out"
            )

    def _check_rank(self) -> None:
        """Raise ParameterError for a solver whose models cannot have a ranker."""
        if getattr(SOLVERS[self.solver], "exports", "weights") == "stages":
            raise ParameterError(
                f"rank needs one score per label and its weights; {self.solver} makes a chain of "
                "stages"
            )

    def _check_keep_duals(self) -> None:
        """Raise ParameterError for trainings whose dual variables no update can use."""
        make_solver(self.solver, self.params).check_updatable()
        if self.groups != "none" or self.rank:
            raise ParameterError(
                "keep_duals is for models of labels alone: leave out groups and rank"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainSpec:
        """Return a spec from plain JSON.

        Raises ParameterError for unknown keys, a missing `dataset` and invalid values.
        """
        known = {f.name for f in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ParameterError(
                f"unknown key {unknown[0][:80]!r} in the training spec; "
                f"valid keys: {', '.join(sorted(known))}"
            )
        if not isinstance(values.get("dataset"), str):
            raise ParameterError(
                "the training spec needs `dataset`, the path of a data set directory"
            )
        ks, params = values.get("ks", (1, 3, 5)), values.get("params", {})
        if not isinstance(ks, (list, tuple)) or not isinstance(params, Mapping):
            raise ParameterError(
                "the training spec has a value of the wrong type: ks is a list, params an object"
            )
        return cls(**{**values, "ks": tuple(ks), "params": dict(params)})

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {**dataclasses.asdict(self), "params": dict(self.params), "ks": list(self.ks)}


def parse_group_sizes(text: str) -> tuple[int, ...] | None:
    """Return the sizes in "100,400", ascending; () for "none", None for "auto".

    Raises ParameterError.
    """
    if text in ("none", "auto"):
        return () if text == "none" else None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and 2 <= int(part) <= 10**6 for part in parts):
        raise ParameterError(
            f"groups is {text[:80]!r}: use none, auto, or numbers of groups from 2 such as 100,400"
        )
    return tuple(sorted({int(part) for part in parts}))
