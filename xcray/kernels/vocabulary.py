"""Hash table of terms, searchable in place in a file or in memory.

Open addressing over the bytes of Arrow strings. A slot holds 32 bits of the hash of a term and its
number + 1; an empty slot is 0. A lookup probes from the position given by the hash until the term
or an empty slot is found, and compares candidates byte by byte, so results are always exact. The
table is a function of the terms only: it uses the first of the seeds 0, 1, 2, ... for which every
term is fewer than `MAX_PROBES` slots from its position.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from xcray.arrays import Int64
from xcray.kernels.inner import inner
from xcray.kernels.random import mix

# random terms need fewer than 100 probes in a table of a million; adversarial terms can need more
MAX_PROBES = 1024
PRIME = np.uint64(0x100000001B3)  # of the FNV-1a hash
BASIS = np.uint64(0xCBF29CE484222325)
LOW_MASK = np.uint64(0xFFFFFFFF)
HALF_BITS = np.uint64(32)


class Words(NamedTuple):
    """Concatenated strings: word j is letters[offsets[j] : offsets[j + 1]].

    offsets: (n + 1,) int64; letters: uint8, UTF-8.
    """

    offsets: Int64
    letters: Any


class Vocabulary(NamedTuple):
    """Searchable words.

    slots: uint64, more slots than words; seed: of the hash function.
    """

    words: Words
    slots: Any
    seed: int


@inner(inline="always")
def initial_state(seed: int) -> np.uint64:
    """Return the state of a hash before the first byte."""
    return BASIS ^ (np.uint64(seed) * PRIME)


@inner(inline="always")
def extend_state(state: np.uint64, text: Any, start: int, stop: int) -> np.uint64:
    """Return the state after bytes [start, stop) of a text (uint8).

    Hashing "ab" equals hashing "a" and continuing with "b".
    """
    for p in range(start, stop):
        state = (state ^ np.uint64(text[p])) * PRIME
    return state


@inner(inline="always")
def slot_of(vocabulary: Vocabulary, state: np.uint64) -> int:
    """Return the first slot in which a word of this state can be."""
    place: Any = ((mix(state) >> HALF_BITS) * np.uint64(len(vocabulary.slots))) >> HALF_BITS
    return int(np.int64(place))


@inner(inline="always")
def _equal(words: Words, j: int, text: Any, start: int, stop: int) -> bool:
    """Return whether word j equals bytes [start, stop) of a text.

    Returns False for positions outside the words, which a damaged file can contain.
    """
    if j >= len(words.offsets) - 1:
        return False
    first, last = words.offsets[j], words.offsets[j + 1]
    if last - first != stop - start or first < 0 or last > len(words.letters):
        return False
    p, n = 0, stop - start
    while p < n and words.letters[first + p] == text[start + p]:
        p += 1
    return p == n


@numba.njit(nogil=True, cache=True)
def find(vocabulary: Vocabulary, text: Any, start: int, stop: int, state: np.uint64) -> int:
    """Return the number of the word that equals bytes [start, stop) of a text, or -1.

    text: writable uint8; state: its hash state.
    """
    n = len(vocabulary.slots)
    key = mix(state)
    tag = key & LOW_MASK
    position: Any = np.int64(((key >> HALF_BITS) * np.uint64(n)) >> HALF_BITS)
    for _ in range(n):
        slot = vocabulary.slots[position]
        if slot == np.uint64(0):
            return -1
        if slot >> HALF_BITS == tag:
            j: Any = np.int64(slot & LOW_MASK) - 1
            if _equal(vocabulary.words, j, text, start, stop):
                return int(j)
        position += 1
        if position == n:
            position = 0
    return -1


@numba.njit(nogil=True, cache=True)
def fill(words: Words, seed: int, slots: Any) -> bool:
    """Insert every word into `slots` (uint64, zeros, writable).

    Returns False if a word would be MAX_PROBES slots from its position; then try another seed.
    """
    n = len(slots)
    for j in range(len(words.offsets) - 1):
        key = mix(
            extend_state(initial_state(seed), words.letters, words.offsets[j], words.offsets[j + 1])
        )
        position: Any = np.int64(((key >> HALF_BITS) * np.uint64(n)) >> HALF_BITS)
        steps = 0
        while slots[position] != np.uint64(0):
            steps += 1
            if steps >= MAX_PROBES:
                return False
            position += 1
            if position == n:
                position = 0
        slots[position] = ((key & LOW_MASK) << HALF_BITS) | np.uint64(j + 1)
    return True


@numba.njit(nogil=True, cache=True)
def first_unreachable(vocabulary: Vocabulary) -> int:
    """Return the first word that `find` does not return as itself, or -1.

    -1 means that the table belongs to these words and that all words are distinct.
    """
    words, longest = vocabulary.words, 0
    # not 0: `find` would be compiled again for the literal
    begin: Any = np.int64(0)
    for j in range(len(words.offsets) - 1):
        start, stop = words.offsets[j], words.offsets[j + 1]
        if not 0 <= start <= stop <= len(words.letters):
            return j
        longest = max(longest, stop - start)
    # a copy: `find` is compiled once, for writable texts
    word = np.empty(longest, np.uint8)
    for j in range(len(words.offsets) - 1):
        start, length = words.offsets[j], words.offsets[j + 1] - words.offsets[j]
        for p in range(length):
            word[p] = words.letters[start + p]
        if (
            find(
                vocabulary,
                word,
                begin,
                length,
                extend_state(initial_state(vocabulary.seed), word, begin, length),
            )
            != j
        ):
            return j
    return -1
