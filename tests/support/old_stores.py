"""Job stores as earlier versions wrote them."""

import json
import sqlite3
from pathlib import Path

# the file that xcray 0.1 made, word for word
OLD = """
CREATE TABLE schema_version (version INTEGER NOT NULL);
CREATE TABLE jobs (seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, tenant TEXT NOT NULL, name TEXT NOT NULL,
  spec JSON NOT NULL, digest TEXT NOT NULL, idempotency_key TEXT, status TEXT NOT NULL, phase TEXT NOT NULL, reason TEXT,
  message TEXT, attempt INTEGER NOT NULL, priority INTEGER NOT NULL, progress JSON NOT NULL, result JSON,
  stop_requested BOOLEAN NOT NULL, owner TEXT, lease_until FLOAT, not_before FLOAT NOT NULL, losses INTEGER NOT NULL,
  advanced BOOLEAN NOT NULL, events INTEGER NOT NULL, created TEXT NOT NULL, started TEXT, finished TEXT{kind},
  UNIQUE (tenant, idempotency_key), UNIQUE (id));
CREATE INDEX jobs_queue ON jobs (status, priority DESC, seq);
CREATE INDEX jobs_tenant ON jobs (tenant, seq);
CREATE INDEX jobs_tenant_status ON jobs (tenant, status, seq);
CREATE TABLE events (job_id TEXT NOT NULL, seq INTEGER NOT NULL, time TEXT NOT NULL, kind TEXT NOT NULL, data JSON NOT NULL,
  PRIMARY KEY (job_id, seq));
CREATE TABLE datasets (seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, tenant TEXT NOT NULL, name TEXT NOT NULL,
  path TEXT NOT NULL, status TEXT NOT NULL, stats JSON NOT NULL, created TEXT NOT NULL, UNIQUE (id));
CREATE INDEX datasets_tenant ON datasets (tenant, seq);
"""


KINDS = ", kind TEXT DEFAULT 'train' NOT NULL"


TIME = "2023-11-14T22:13:20.000Z"


SPEC = json.dumps({"name": "pydocs", "dataset_id": "ds_1"})


def old_file(path: Path, version: int) -> str:
    """Write a store as xcray 0.1 left it and return its URL.

    It has a pending job, a running one and a data set.
    """
    with sqlite3.connect(path) as file:
        file.executescript(OLD.format(kind=KINDS if version == 2 else ""))
        file.execute("INSERT INTO schema_version VALUES (?)", [version])
        fill(file.execute)
    file.close()
    return f"sqlite:///{path}"


def fill(execute):
    """Insert two jobs, their events and a data set."""
    columns = "id, tenant, name, spec, digest, idempotency_key, status, phase, attempt, priority, progress, stop_requested, owner,"
    columns += " lease_until, not_before, losses, advanced, events, created"
    false = "false"
    waits = f"'job_waits', 'default', 'a', '{SPEC}', 'd', 'k', 'PENDING', 'QUEUED', 0, 0, '{{}}', {false}, NULL, NULL"
    runs = f"'job_runs', 'default', 'b', '{SPEC}', 'd', NULL, 'RUNNING', 'TRAINING', 2, 0, '{{}}', {false}, 'me', 1700000020.0"
    for values in (waits, runs):
        execute(f"INSERT INTO jobs ({columns}) VALUES ({values}, 0, 0, {false}, 1, '{TIME}')")
    execute(
        f"INSERT INTO events VALUES ('job_waits', 1, '{TIME}', 'status', '{{\"status\": \"PENDING\"}}')"
    )
    insert = "INSERT INTO datasets (id, tenant, name, path, status, stats, created) VALUES"
    execute(f"{insert} ('ds_1', 'default', 'pydocs', '/d', 'READY', '{{}}', '{TIME}')")
