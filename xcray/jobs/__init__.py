"""Durable trainings: what a job is, where it is kept, who runs it.

store        one SQL store: compare-and-set states, attempts, leases, events
supervisor   expire, claim, launch: a thread beside the API, safe in several replicas
launch       starts a runner: as a process of its own, or as a Ray job
runner       the process that runs one attempt: heartbeats, progress, publish, finish
home         the folder of an embedded service
figures      the queue in figures, in one look; tally: what is counted for good, with the change itself
logs         log lines as JSON or text; tracing: spans of whatever takes time, off without an endpoint
"""
