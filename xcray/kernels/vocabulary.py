"""A table of terms that is searched where it lies, in a file or in memory: open addressing over the bytes of Arrow strings.

A slot holds 32 bits of a term's hash and its number + 1; an empty slot is 0. A term is looked for from the place its hash gives
until it is found or a slot is empty; what is found is compared byte by byte, so an answer is never a guess. The table is a
function of the terms alone: the first of the seeds 0, 1, 2, ... under which no term lies `FARTHEST` slots or more from its place.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from xcray.arrays import Int64
from xcray.kernels.random import mix

BUILT_ON = {"random": "bd4614dc"}

FARTHEST = 1024  # slots; chance alone stays below 100 with a million terms, a collection made to collide does not
PRIME = np.uint64(0x100000001B3)  # of the FNV-1a hash
BASIS = np.uint64(0xCBF29CE484222325)
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


class Words(NamedTuple):
    """Strings end to end: word j is letters[offsets[j] : offsets[j + 1]].

    offsets: (n + 1,) int64; letters: uint8, UTF-8.
    """

    offsets: Int64
    letters: Any


class Vocabulary(NamedTuple):
    """Words that can be found. slots: uint64, more than there are words; seed: of the hash."""

    words: Words
    slots: Any
    seed: int


@numba.njit(nogil=True, cache=True, inline="always")
def begun(seed: int) -> np.uint64:
    """The state of a hash before the first byte."""
    return BASIS ^ (np.uint64(seed) * PRIME)


@numba.njit(nogil=True, cache=True, inline="always")
def continued(state: np.uint64, text: Any, start: int, stop: int) -> np.uint64:
    """The state after bytes [start, stop) of a text (uint8): hashing "ab" is hashing "a" and going on with "b"."""
    for p in range(start, stop):
        state = (state ^ np.uint64(text[p])) * PRIME
    return state


@numba.njit(nogil=True, cache=True, inline="always")
def _equal(words: Words, j: int, text: Any, start: int, stop: int) -> bool:
    """Whether word j is bytes [start, stop) of a text; False for a place outside the words, which a damaged file may name."""
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
    """The number of the word that is bytes [start, stop) of a writable text (uint8), -1 when there is none; state: its hash's."""
    n = len(vocabulary.slots)
    key = mix(state)
    tag = key & LOW
    place: Any = np.int64(((key >> HALF) * np.uint64(n)) >> HALF)
    for _ in range(n):
        slot = vocabulary.slots[place]
        if slot == np.uint64(0):
            return -1
        if slot >> HALF == tag:
            j: Any = np.int64(slot & LOW) - 1
            if _equal(vocabulary.words, j, text, start, stop):
                return int(j)
        place += 1
        if place == n:
            place = 0
    return -1


@numba.njit(nogil=True, cache=True)
def fill(words: Words, seed: int, slots: Any) -> bool:
    """Put every word into `slots` (uint64, zeros, writable); False when one would lie too far from its place: try another seed."""
    n = len(slots)
    for j in range(len(words.offsets) - 1):
        key = mix(continued(begun(seed), words.letters, words.offsets[j], words.offsets[j + 1]))
        place: Any = np.int64(((key >> HALF) * np.uint64(n)) >> HALF)
        steps = 0
        while slots[place] != np.uint64(0):
            steps += 1
            if steps >= FARTHEST:
                return False
            place += 1
            if place == n:
                place = 0
        slots[place] = ((key & LOW) << HALF) | np.uint64(j + 1)
    return True


@numba.njit(nogil=True, cache=True)
def first_lost(vocabulary: Vocabulary) -> int:
    """The first word that is not found as itself, -1 when all are: the table is the words' own, and no word is there twice."""
    words, longest = vocabulary.words, 0
    begin: Any = np.int64(0)  # not 0: `find` would be compiled once more for the literal
    for j in range(len(words.offsets) - 1):
        start, stop = words.offsets[j], words.offsets[j + 1]
        if not 0 <= start <= stop <= len(words.letters):
            return j
        longest = max(longest, stop - start)
    word = np.empty(
        longest, np.uint8
    )  # a copy: `find` is compiled once, for texts that can be written to
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
                continued(begun(vocabulary.seed), word, begin, length),
            )
            != j
        ):
            return j
    return -1
