"""predict_bulk(spec) -> a directory of Parquet files with the best labels of every row of a file: resumable, on any pool.

spec        what to answer: model, input, form of the rows, what is asked of each
plan        the input as chunks of rows, cut the same way whoever reads it
columns     rows of Parquet columns
lines       rows of svmlight, XC, JSON lines and lines of text
work        a chunk's rows read, answered and encoded: what a worker does
output      committed parts, the published directory and its manifest
run         the whole of it
"""

from xcray.batch.output import read_manifest
from xcray.batch.run import BulkResult, predict_bulk
from xcray.batch.spec import BulkSpec

__all__ = ["BulkResult", "BulkSpec", "predict_bulk", "read_manifest"]
