"""A worker task that sleeps, so that two cores can simulate many."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from xcray.arrays import Int32
from xcray.errors import Stopped

SLEEP = 0.1  # seconds between two checks of the stop flag
LABEL = 0.05  # seconds per label


@dataclass(frozen=True)
class Sleeping:
    """Worker task that sleeps instead of computing.

    longest: seconds of label 0, if positive. The sleep ends early when the file `gate` exists.
    """

    longest: float
    gate: str = ""
    counter: ClassVar[tuple[str, str]] = (
        "xcray_labels_slept",
        "Labels processed by this worker",
    )

    def warm_up(self, local: Any = None) -> None:
        """Do nothing: there are no kernels to compile."""

    def open(self) -> Any:
        """Do nothing: no data are needed."""
        return self

    def load(self, *shared: Any) -> Any:
        """Do nothing: no arrays are shared."""
        return self

    def decode_result(self, result: Any) -> Any:
        """Return the labels unchanged."""
        return result

    def solve(self, local: Any, labels: Int32, stopped: Callable[[], bool] = lambda: False) -> Any:
        """Sleep as long as the labels take."""
        ends = time.monotonic() + sum(
            self.longest if label == 0 and self.longest else LABEL for label in labels.tolist()
        )
        while (left := ends - time.monotonic()) > 0.0:
            if stopped():
                raise Stopped("called off")
            if self.gate and 0 in labels and Path(self.gate).exists():
                break
            time.sleep(min(SLEEP, left))
        return labels.tolist()
