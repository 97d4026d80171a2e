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


def rival(W, x, own, number, solver):
    """Return the rival of a sample; -1 without rivals."""
    scores, others = W @ x, ~own
    if solver.oracle == "random":
        return random_class(number, others)
    scored = (W[:, x != 0.0] != 0.0).any(axis=1)
    candidates = np.where(scored & others, scores, -np.inf)
    r = int(candidates.argmax())
    if candidates[r] < 0.0:
        unscored = random_class(number, others & ~scored)
        return unscored if unscored >= 0 else r if candidates[r] > -np.inf else -1
    return r


def train(X, Y, rows, classes, rounds, solver):
    """Return W (K, D) after the rounds, (draws, numbers) each: the paper's Algorithms 1 and 2.

    With groups of one sample they are line by line as printed. An approximate search that misses
    nothing gives the same.
    """
    W = np.zeros((Y.shape[1], X.shape[1]))
    for t, (draws, numbers) in enumerate(rounds, 1):
        eta = solver.eta0 / (1.0 + solver.eta_step * t)
        step = eta / len(draws) if solver.step == "batch" else eta
        if solver.penalty == "l2":
            W *= 1.0 - eta * solver.lam
        size, touched = solver.group or len(draws), set()
        for lo in range(0, len(draws), size):
            group = range(lo, min(lo + size, len(draws)))
            found, searched = [], W.copy()
            for j in group:
                i = rows[draws[j]]
                found.append(rival(W, X[i], Y[i], int(numbers[j]), solver))
            for j, r in zip(group, found, strict=True):
                x, y = X[rows[draws[j]]], classes[draws[j]]
                tested = W if solver.margin_at == "step" else searched
                if r >= 0 and (tested[y] - tested[r]) @ x < solver.margin:
                    W[y] += step * x
                    W[r] -= step * x
                touched |= {int(y)} | ({r} if r >= 0 else set())
        if solver.penalty == "l1" and solver.truncate == "touched":
            R = sorted(touched)
            cut = len(W) / len(R) * solver.lam * eta
            W[R] = np.sign(W[R]) * np.maximum(np.abs(W[R]) - cut, 0.0)
        elif solver.penalty == "l1":
            W = np.sign(W) * np.maximum(np.abs(W) - eta * solver.lam / 2.0, 0.0)
        elif (W * W).sum() * solver.lam > 1.0:
            W /= math.sqrt((W * W).sum() * solver.lam)
    return W
