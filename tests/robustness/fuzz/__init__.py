"""Fuzzing of everything that reads untrusted input.

Run it with python -m tests.robustness.fuzz [--minutes 10] [--target svmlight] [--seed 0].

    command    runs targets and prints results; one JSON line at the end
    child      one target in its own process, with limits of memory and processor time;
               engines: random, atheris
    mutate     the random engine: flips, splices, and words of the grammar
    targets    the functions under test, and their invariants
    models     the targets that read model directories
    naive      tiny reference readers; xcray must accept only what they read
    shrink     minimises a failing input
    found      inputs that failed before; the tests read each of them again
"""
