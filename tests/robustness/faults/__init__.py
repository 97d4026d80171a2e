r"""Faults injected into real processes.

Usage: `python -m tests.robustness.faults F3 [--runs 5] [--seed 0] [--json FILE]`.

    stage.py        namespaces, a temporary folder, the end of every process
    rows_*.py       one function per row of the catalogue
    service.py      `xcray serve` and `xcray runner` as processes, and their runners
    chaos.py        two replicas, two runners, random kills
    ledger.py       operations acknowledged to clients, append-only
    invariants.py   I1 to I7, from ledger, store, files and processes
    strace.py       makes the n-th system call fail or kill the process

The product has no hooks for these tests. Faults are injected by signals, full disks, limits, raw
sockets, traced system calls, and by job parameters that any client can set.
"""
