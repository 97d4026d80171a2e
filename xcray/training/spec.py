"""TrainSpec: description of a training, validated before any work.

The command line, jobs and scripts share it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from xcray.errors import ParameterError
from xcray.solvers import make_solver
from xcray.storage.atomic import check_name
from xcray.system.units import parse_bytes
from xcray.training.selection.measure import DEFAULT, parse_measure
from xcray.workers.pool import POOLS


@dataclass(frozen=True)
class TrainSpec:
    """Description of a training. Validated when created; raises ParameterError with a fix.

    dataset: path of a data set directory. solver, params: see `xcray.solvers`. pool: serial,
    threads or ray. workers: 0 for one per core. ray_address: a cluster to join; otherwise a local
    Ray is started for the training. name: the model's name. ks: the k of P@k and similar measures.
    memory_limit: bytes, or text like "4GiB", that the training can take. A training whose estimate
    is larger is refused, and merging stays within the limit (data and finished weights are mapped
    files and do not count).
    max_seconds: time from the start until no new label is started. The labels finished by then,
    most training rows first, are published as a partial model; merging and evaluation take
    additional time. Solvers that train all labels together in epochs publish the whole model after
    the last epoch.
    None: no limit.
    calibrate: fit probabilities on the held-out part, see `xcray.training.calibration.fit`. Models
    of softmax solvers return probabilities without calibration.
    auto: choose the parameters of `xcray.training.selection` that `params` does not name, on rows
    held out of the training part (solver ppdsparse only). select: the measure to maximise.
    """

    dataset: str
    solver: str = "ppdsparse"
    params: Mapping[str, Any] = field(default_factory=dict)
    pool: str = "threads"
    workers: int = 0
    ray_address: str | None = None
    name: str = "model"
    ks: tuple[int, ...] = (1, 3, 5)
    memory_limit: int | str | None = None
    max_seconds: float | None = None
    calibrate: bool = False
    auto: bool = False
    select: str = DEFAULT

    def __post_init__(self) -> None:
        """Validate everything that does not depend on the data."""
        check_name(self.name, "model name")
        make_solver(self.solver, self.params)
        if self.pool not in POOLS:
            raise ParameterError(
                f"pool must be one of {', '.join(POOLS)}, not {str(self.pool)[:80]!r}"
            )
        if type(self.workers) is not int or not 0 <= self.workers <= 4096:
            raise ParameterError(
                "workers must be a whole number from 0 (one per core) to 4096, "
                f"not {str(self.workers)[:80]!r}"
            )
        if self.memory_limit is not None:
            parse_bytes(self.memory_limit)
        if self.max_seconds is not None:
            check_max_seconds(self.max_seconds)
        if type(self.calibrate) is not bool:
            raise ParameterError(
                f"calibrate must be true or false, not {str(self.calibrate)[:80]!r}"
            )
        parse_measure(self.select)
        if type(self.auto) is not bool:
            raise ParameterError(f"auto must be true or false, not {str(self.auto)[:80]!r}")
        if self.auto and self.solver != "ppdsparse":
            raise ParameterError(f"auto chooses parameters of ppdsparse, not of {self.solver}")
        object.__setattr__(self, "ks", tuple(sorted(set(self.ks))))
        if not self.ks or not all(type(k) is int and 1 <= k <= 100 for k in self.ks):
            raise ParameterError(f"ks must be whole numbers from 1 to 100, not {str(self.ks)[:80]}")

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


def check_max_seconds(seconds: Any) -> None:
    """Raise ParameterError unless the value is a positive number of seconds."""
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not (number and math.isfinite(seconds) and seconds > 0):
        raise ParameterError(
            f"max_seconds must be a number above 0, or left out, not {str(seconds)[:80]!r}"
        )
