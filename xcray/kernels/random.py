"""Counter-based random stream: the n-th number of stream s is a pure function of (s, n).

SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014,
figure 15. The only state is a counter, so a class draws the same numbers in any process, at any
time and however often.
"""

import numba
import numpy as np

from xcray.kernels.inner import inner

GAMMA = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


@numba.njit(nogil=True, cache=True)
def mix(z: np.uint64) -> np.uint64:
    """Return the output function of the counter: a bijection of uint64."""
    z = (z ^ (z >> np.uint64(30))) * MIX_1
    z = (z ^ (z >> np.uint64(27))) * MIX_2
    return z ^ (z >> np.uint64(31))


@numba.njit(nogil=True, cache=True)
def stream(seed: int, number: int) -> np.uint64:
    """Return the first counter of stream `number` under `seed`, both integers; uint64."""
    return mix(mix(np.uint64(seed) + GAMMA) ^ (np.uint64(number) * GAMMA))


@numba.njit(nogil=True, cache=True)
def below(counter: np.uint64, bound: int) -> np.int64:
    """Return a number in 0 .. bound - 1 (int64) from a uint64 counter.

    The bias is below bound / 2^64.
    """
    return np.int64(mix(counter) % np.uint64(bound))


@inner()
def shuffle(items: np.ndarray, counter: np.uint64) -> np.uint64:
    """Shuffle (n,) items in place (Fisher-Yates); return the counter after n - 1 draws."""
    for a in range(len(items) - 1, 0, -1):
        counter += GAMMA
        r = below(counter, a + 1)
        items[a], items[r] = items[r], items[a]
    return counter
