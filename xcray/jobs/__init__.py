"""Durable trainings: what a job is, where it is kept, who runs it.

store        one SQL store: compare-and-set states, attempts, leases, events
supervisor   expire, claim, launch: a thread beside the API, safe in several replicas
launch       starts a runner: as a process of its own, or as a Ray job
runner       the process that runs one attempt: heartbeats, progress, publish, finish
home         the folder of an embedded service
"""
