"""Limits and intervals of the service that are the same for every operator.

They are read as attributes of this module when they are used, so that tests can shorten them.
"""

import os

MB = 1_000_000
GB = 1_000_000_000

# Connections and requests
HEADER_BYTES = 16_384  # total size of the headers of a request
HEADER_TIMEOUT_SECONDS = 15.0  # until they are complete
BODY_IDLE_SECONDS = 60.0  # pause within a body, and of a client that does not read a response
MIN_BODY_BYTES_PER_SECOND = 1000  # of a body, averaged over ten seconds
JSON_BODY_BYTES = 1 * MB  # of requests other than predictions
FAILED_KEYS_PER_MINUTE = 60  # answered with 401 per address, further ones with 429; 0: unlimited
EVENT_POLL_SECONDS = 0.25  # of an event stream
EVENT_HEARTBEAT_SECONDS = 15.0  # comments in an event stream without events

# Data sets
MAX_CONCURRENT_UPLOADS = 4
UPLOADS_PER_TENANT = 5  # times `upload_bytes`: uploads of a tenant that no data set uses yet
MAX_CONCURRENT_BUILDS = 1
DATASET_URI_SECONDS = 300.0  # until a file has been fetched
# Disk that uploads leave free for running jobs and the store: the smaller of both.
DISK_RESERVE_BYTES = 2 * GB
DISK_RESERVE_SHARE = 0.05
DISK_FULL = "the disk is full: delete data sets or jobs"  # the message to users

# Models and predictions
SWITCH_TIMEOUT_SECONDS = 300.0  # the old version serves while a new one loads; then requests wait
UNLOAD_DELAY_SECONDS = 10.0  # a version stays loaded after nothing refers to it any more
# Predictions estimated to take at most this long run immediately; also the duration of one batch.
PREDICT_BATCH_SECONDS = 2e-3
QUEUED_REQUESTS = 2  # times `max_instances`: queued or running instances, further ones get 503

# Jobs
STOP_GRACE_SECONDS = 3.0  # that a training has to stop before its process is terminated
RUNNER_STALE_SECONDS = 60.0  # without a poll of a queue with jobs until readiness reports RUNNER
JOB_LOG_BYTES = 50 * MB  # a longer log keeps only its head and tail
KEEP_JOBS = 100_000  # ended jobs; older ones are deleted
KEEP_RUNS_HOURS = 24.0  # after which the run folder of a published job loses its parts
# Under process 1, of a container or a machine, all processes end together: after SIGTERM local
# runners release their jobs, which are queued again. Elsewhere runners continue.
RELEASE_JOBS = 1 in (os.getpid(), os.getppid())

# Store
KEYS_GRACE_SECONDS = 60.0  # cached keys stay valid while the store is unavailable
AUDIT_ENTRIES = 100_000  # older ones are deleted


def disk_reserve(total: int) -> int:
    """Return the bytes that uploads leave free on a disk of this size."""
    return min(DISK_RESERVE_BYTES, int(DISK_RESERVE_SHARE * total))
