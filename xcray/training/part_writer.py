"""Task of workers in other processes that write large blocks into the run directory themselves.

All weights that pass the driver would limit a training on many workers. A worker that sees the run
directory, on the same machine or through a shared file system, writes its part durably and sends
the name, without the weights. Small blocks go to the driver, which writes many of them together.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from xcray.arrays import Int32
from xcray.errors import XcrayError
from xcray.index.packed import ENTRY_BYTES
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.atomic import read_json, write_json
from xcray.storage.run_directory import TOKEN_FILE
from xcray.training.block_store import write_part
from xcray.workers.solver_task import SolverTask

# Divided by the workers, this is the least size of a part that a worker writes. So it has at most
# one for each of these bytes of all weights, and the driver gets at most these bytes per batch of
# every worker.
SHARED_BYTES: Final = 128 << 20


@dataclass(frozen=True)
class PartWriter(SolverTask):
    """Solves labels of a data set directory, and writes large blocks into a run directory.

    directory: of the run. token: content of its TOKEN_FILE. least: bytes of weights of a block.
    """

    directory: str = ""
    token: str = ""
    least: int = 0

    def solve(
        self, local: Any, labels: Int32, stopped: Callable[[], bool] = lambda: False
    ) -> SolvedLabels:
        """Solve labels; a block that is written here is returned with its part, without weights."""
        block = super().solve(local, labels, stopped)
        with suppress(XcrayError, OSError):  # otherwise the driver writes it, and reports errors
            path = Path(self.directory)
            if (
                ENTRY_BYTES * block.W.nnz >= self.least
                and read_json(path / TOKEN_FILE) == self.token
            ):
                return without_weights(block, write_part(path, [block]))
        return block

    def decode_result(self, result: SolvedLabels) -> SolvedLabels:
        """Return the block with the array types that xcray's own code expects."""
        return result if result.part else super().decode_result(result)


def without_weights(block: SolvedLabels, part: str) -> SolvedLabels:
    """Return what the driver needs of a block whose weights are in a part file."""
    W = block.W._replace(indices=block.W.indices[:0], data=block.W.data[:0])
    return block._replace(W=W, duals=None, part=part)


def writing_task(task: SolverTask, run_dir: Path, workers: int) -> PartWriter:
    """Return the task with the run directory, which gets a token. workers: the maximum number."""
    token = uuid.uuid4().hex
    write_json(run_dir / TOKEN_FILE, token)
    return PartWriter(
        **vars(task), directory=str(run_dir.resolve()), token=token, least=SHARED_BYTES // workers
    )
