"""Fuzzing of everything that reads what strangers send: python -m tests.robustness.fuzz [--minutes 10] [--target svmlight] [--seed 0]

command    runs targets and prints figures; one JSON line at the end
child      one target in a process of its own, under limits of memory and processor time; engines: random, atheris
mutate     the random engine: flips, splices, and what the grammar knows
targets    what is called with the bytes, and what must hold
models     the targets that read model directories
naive      tiny readers that are plainly right; what xcray accepts must be what they read
shrink     a failing input made smaller
found      inputs that once failed; the tests read each of them again
"""
