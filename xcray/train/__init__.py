"""train(spec) -> a published model and its measures: the one use case that the command line and jobs share."""

from xcray.train.progress import Progress
from xcray.train.run import TrainResult, train
from xcray.train.spec import POOLS, TrainSpec

__all__ = ["POOLS", "Progress", "TrainResult", "TrainSpec", "train"]
