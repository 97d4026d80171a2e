"""train(spec) -> a published model and its measures: the one use case that the command line and jobs share.

`xcray.train.relabel` changes the labels of a model, `xcray.train.path` chooses hyper-parameters.
"""

from xcray.execution.pool import POOLS
from xcray.execution.progress import Progress
from xcray.train.run import TrainResult, train
from xcray.train.spec import TrainSpec

__all__ = ["POOLS", "Progress", "TrainResult", "TrainSpec", "train"]
