"""Batch prediction: predict_batch(spec) writes Parquet files with the best labels of every row.

It is resumable and runs on any pool.

spec        what to predict: model, input, schema of the rows, options
plan        the input as chunks of rows, independent of the workers
row_schema  columns of the input that hold the rows
parquet     rows of Parquet files
lines       copies rows of lines into a Parquet file
chunk_task  work on a chunk: read, predict, encode
output      committed parts, the published directory and its manifest
run         the complete run
"""

from xcray.batch.output import read_manifest
from xcray.batch.run import BatchPredictResult, predict_batch
from xcray.batch.spec import BatchPredictSpec

__all__ = ["BatchPredictResult", "BatchPredictSpec", "predict_batch", "read_manifest"]
