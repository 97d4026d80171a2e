"""Faults, injected into real processes: `python -m tests.robustness.faults F3 [--runs 5] [--seed 0]
[--json FILE]`.

stage.py        namespaces, a temporary folder, the end of every process      rows_*.py   a function
for each row of the catalogue service.py      `xcray serve` and `xcray runner` as processes; runners
chaos.py    two replicas, two runners, random kills ledger.py       what was acknowledged to
clients, append-only                 table.py    figures as Markdown invariants.py   I1 to I7, from
ledger, store, files and processes             strace.py   the n-th system call fails, or kills

Nothing here is a hook in the product: faults come by signals, full disks, limits, raw sockets,
traced system calls, and by what a job may ask for anyway.
"""
