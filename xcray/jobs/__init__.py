"""Durable jobs: the records, the store that keeps them, and the processes that run them.

store        one SQL store: compare-and-set states, attempts, leases, events
database     engine, schema, migrations and backups of that store
supervision  leases expired, jobs claimed and launched, leaders elected, old files removed
runner       the process that runs one attempt: heartbeat, progress, publishing, final status
home         the directory of an embedded service
"""
