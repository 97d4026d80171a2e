"""Training: `train(spec)` returns a published model and its measures.

The command line and jobs share it. `xcray.training.edit.labels` changes the labels of a model,
`xcray.training.tuning.search` chooses hyper-parameters.
"""

from xcray.api.options import POOLS
from xcray.telemetry.progress import Progress
from xcray.training.run import TrainResult, train
from xcray.training.spec import TrainSpec

__all__ = ["POOLS", "Progress", "TrainResult", "TrainSpec", "train"]
