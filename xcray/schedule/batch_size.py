"""Seconds of work in a batch of labels."""

from __future__ import annotations

GUIDED_FACTOR = 4  # A batch is at most the remaining work / (GUIDED_FACTOR * total speed).
# Smaller batches cost more in messages than they save in waiting,
MIN_BATCH_SECONDS = 0.02
MIN_BATCH_SHARE = 0.05  # except in short jobs, where it is this share of the whole.
# Of all workers together, so that the driver needs a few percent of a core: with more workers
# batches grow, up to the maximum. Near the end there can be more.
MAX_BATCHES_PER_SECOND, MAX_LAST_BATCHES_PER_SECOND = 100.0, 2000.0
# Range of the seconds of a full batch, and its share of a worker's remaining work in between. So a
# worker has about 500 (1 + ln(left / 125 s)) batches, until they have the maximum.
MIN_FULL_BATCH_SECONDS, MAX_FULL_BATCH_SECONDS = 0.25, 4.0
FULL_BATCH_SHARE = 1 / 500
MAX_VALUED_BATCH_SECONDS = 1.0  # maximum if values give the order


def full_batch_seconds(workers: int, horizon: float, by_value: bool) -> float:
    """Return the seconds of a full batch.

    horizon: seconds until `workers` have done what is not assigned yet. by_value: the batches stay
    short, because values come with a time limit, which stops running batches.
    """
    least = max(workers / MAX_BATCHES_PER_SECOND, MIN_FULL_BATCH_SECONDS)
    if by_value:
        return min(least, MAX_VALUED_BATCH_SECONDS)
    return min(max(least, FULL_BATCH_SHARE * horizon), MAX_FULL_BATCH_SECONDS)


def guided_seconds(full: float, horizon: float, workers: int, whole: float) -> float:
    """Return the seconds of the next batch: at most `full`, less near the end.

    workers: present ones. whole: seconds of the whole job for all workers.
    """
    least = max(MIN_BATCH_SECONDS, workers / MAX_LAST_BATCHES_PER_SECOND)
    return max(min(full, horizon / GUIDED_FACTOR), min(least, MIN_BATCH_SHARE * whole))
