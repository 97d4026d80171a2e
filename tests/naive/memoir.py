"""Naive MEMOIR: dense W in float64, the same draws and random numbers as the kernel."""

from __future__ import annotations

import math

import numpy as np

MASK = (1 << 64) - 1


def random_class(number, allowed):
    """Return the first of 64 random classes that is allowed, else the next allowed; -1 if none."""
    c = 0
    for _ in range(64):
        number = (number * 6364136223846793005 + 1442695040888963407) & MASK
        c = (number >> 33) % len(allowed)
        if allowed[c]:
            return c
    ordered = [(c + shift) % len(allowed) for shift in range(len(allowed))]
    return next((each for each in ordered if allowed[each]), -1)


def rival(W, x, own, y, number, solver):
    """Return the rival of a sample of class y; -1 if the margin is met or without rivals."""
    scores, others = W @ x, ~own
    if solver.oracle == "random":
        r = random_class(number, others)
    else:
        scored = (W[:, x != 0.0] != 0.0).any(axis=1)
        candidates = np.where(scored & others, scores, -np.inf)
        r = int(candidates.argmax())
        if candidates[r] < 0.0:
            unscored = random_class(number, others & ~scored)
            r = unscored if unscored >= 0 else r if candidates[r] > -np.inf else -1
    return r if r >= 0 and scores[y] - scores[r] < solver.margin else -1


def train(X, Y, rows, classes, rounds, solver):
    """Return W (K, D) after the rounds: (draws, numbers) each."""
    W = np.zeros((Y.shape[1], X.shape[1]))
    for t, (draws, numbers) in enumerate(rounds, 1):
        eta = solver.eta0 / (1.0 + solver.eta_step * t)
        step = eta / len(draws) if solver.step == "batch" else eta
        if solver.penalty == "l2":
            W *= 1.0 - eta * solver.lam
        for lo in range(0, len(draws), solver.group):
            group = range(lo, min(lo + solver.group, len(draws)))
            found = [
                rival(
                    W,
                    X[rows[draws[j]]],
                    Y[rows[draws[j]]],
                    classes[draws[j]],
                    int(numbers[j]),
                    solver,
                )
                for j in group
            ]
            for j, r in zip(group, found, strict=True):
                if r >= 0:
                    W[classes[draws[j]]] += step * X[rows[draws[j]]]
                    W[r] -= step * X[rows[draws[j]]]
        if solver.penalty == "l1":
            W = np.sign(W) * np.maximum(np.abs(W) - eta * solver.lam / 2.0, 0.0)
        elif (W * W).sum() * solver.lam > 1.0:
            W /= math.sqrt((W * W).sum() * solver.lam)
    return W
