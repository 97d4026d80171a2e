"""`python -m deploy.dashboards`: write the dashboards' JSON into the chart (compose mounts it)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from deploy.dashboards import cluster, jobs, ray_training, serving, training
from deploy.dashboards.board import Board, written

FOLDER: Final = Path(__file__).parents[2] / "helm" / "xcray" / "monitoring" / "dashboards"
BOARDS: Final[tuple[Board, ...]] = (
    jobs.BOARD,
    training.BOARD,
    ray_training.BOARD,
    serving.BOARD,
    cluster.BOARD,
)


def path_of(board: Board) -> Path:
    """Return the path of a dashboard's JSON."""
    return FOLDER / f"{board.uid}.json"


def main() -> None:
    """Write all dashboards."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for board in BOARDS:
        path_of(board).write_text(written(board), encoding="utf-8")


if __name__ == "__main__":
    main()
