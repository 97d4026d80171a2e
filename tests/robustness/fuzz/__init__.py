"""Fuzzing of everything that reads untrusted input.

Run it with python -m tests.robustness.fuzz [--inputs 2000] [--target svmlight] [--seed 0].

    __main__    runs each target in a child process, with limits of memory and processor time
    inputs      hypothesis draws inputs: seeds with changes, and words of the grammar
    targets     the functions under test, and their invariants
    models      the targets that read model directories
    naive       tiny reference readers; xcray must accept only what they read
    found       inputs that failed before; the tests read each of them again
"""
