"""A counter-based random stream: the n-th number of stream s is a pure function of (s, n).

SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, figure 15.
No state but a counter, so a class draws the same numbers whoever solves it, whenever, and however often.
"""

import numba
import numpy as np

GAMMA = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


@numba.njit(nogil=True, cache=True)
def mix(z: np.uint64) -> np.uint64:
    """The output function: a bijection of uint64 that scatters neighbouring numbers."""
    z = (z ^ (z >> np.uint64(30))) * MIX_1
    z = (z ^ (z >> np.uint64(27))) * MIX_2
    return z ^ (z >> np.uint64(31))


@numba.njit(nogil=True, cache=True)
def stream(seed: int, number: int) -> np.uint64:
    """The first counter of stream `number` under `seed`, both integers; uint64."""
    return mix(mix(np.uint64(seed) + GAMMA) ^ (np.uint64(number) * GAMMA))


@numba.njit(nogil=True, cache=True)
def below(counter: np.uint64, bound: int) -> np.int64:
    """A number in 0 .. bound - 1 (int64) from a uint64 counter; the bias is below bound / 2^64."""
    return np.int64(mix(counter) % np.uint64(bound))


@numba.njit(nogil=True, cache=True)
def shuffle(items: np.ndarray, counter: np.uint64) -> np.uint64:
    """Shuffle (n,) items in place, by Fisher and Yates; returns the counter after the n - 1 numbers drawn."""
    for a in range(len(items) - 1, 0, -1):
        counter += GAMMA
        r = below(counter, a + 1)
        items[a], items[r] = items[r], items[a]
    return counter
