"""Names of labels in texts: the longest match at each position, through a hash table of prefixes.

A name is a sequence of words. The table holds every name and every beginning of a name, so a
position is left after the first word that continues no name: time is linear in the words of a text,
whatever the number of names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from xcray.arrays import Int32, Int64
from xcray.kernels.inner import inner
from xcray.kernels.prefetch import prefetch
from xcray.kernels.text import SEPARATOR
from xcray.kernels.vocabulary import (
    LOW_MASK,
    Vocabulary,
    extend_state,
    find,
    initial_state,
    slot_of,
)


class LabelNameTable(NamedTuple):
    """Names as sequences of words.

    prefixes: every name and every beginning of one, words joined by SEPARATOR; starts: (P + 1,)
    int64 and labels: int32, the labels that have prefix p as a name are
    labels[starts[p] : starts[p + 1]].
    """

    prefixes: Vocabulary
    starts: Int64
    labels: Int32


class NameMatches(NamedTuple):
    """Working memory for the names in one text: prefix, first word and words of each."""

    names: Int32
    first: Int32
    length: Int32


@inner(inline="always")
def _word_end(text: Any, position: int) -> int:
    """Return the position of the separator that ends the word at a position."""
    while text[position] != SEPARATOR:
        position += 1
    return position


@inner(allocates=False)
def _prefetch_names(
    text: Any, begin: int, end: int, table: LabelNameTable, slots: Int32, next_slots: Int32
) -> None:
    """Prefetch what is read of the names that begin with each word, and with it and the next one.

    A table of many names is not in the caches when a text comes, and a walk would wait for it word
    by word. slots, next_slots: working memory.
    """
    words, n, start = table.prefixes, 0, begin
    last: Any = np.uint64(0)
    while start < end:
        stop = _word_end(text, start)
        if n:
            # the state of the word before, continued by this one
            next_slots[n - 1] = slot_of(words, extend_state(last, text, start - 1, stop))
            prefetch(words.slots, np.int64(next_slots[n - 1]))
        last = extend_state(initial_state(words.seed), text, start, stop)
        slots[n] = next_slots[n] = slot_of(words, last)
        prefetch(words.slots, np.int64(slots[n]))
        n, start = n + 1, stop + 1
    for w in range(n):
        for slot in (words.slots[slots[w]], words.slots[next_slots[w]]):
            name = np.int64(slot & LOW_MASK) - 1
            if 0 <= name < len(table.starts) - 1:
                prefetch(words.words.offsets, name)
                prefetch(table.starts, name)
    for w in range(n):
        for slot in (words.slots[slots[w]], words.slots[next_slots[w]]):
            name = np.int64(slot & LOW_MASK) - 1
            if 0 <= name < len(table.starts) - 1:
                prefetch(words.words.letters, words.words.offsets[name])


@inner()
def find_names(
    text: Any, begin: int, end: int, table: LabelNameTable, matches: NameMatches
) -> tuple[int, int]:
    """Write the names in a text to `matches`; return how many there are, and the number of words.

    Matches do not overlap. text: writable uint8; the words in bytes [begin, end) are each followed
    by SEPARATOR, and their number is at most the length of `matches`.
    """
    _prefetch_names(text, begin, end, table, matches.first, matches.length)
    n_matches, word, start = 0, 0, begin
    while start < end:
        first_end = _word_end(text, start)
        best, best_words, best_end = -1, 0, first_end
        state = initial_state(table.prefixes.seed)
        position, stop, words = start, first_end, 0
        while True:
            state = extend_state(state, text, position, stop)
            prefix = find(table.prefixes, text, start, stop, state)
            if prefix < 0:
                break
            words += 1
            if table.starts[prefix] < table.starts[prefix + 1]:
                best, best_words, best_end = prefix, words, stop
            if stop + 1 >= end:
                break
            position, stop = stop, _word_end(text, stop + 1)
        if best >= 0:
            matches.names[n_matches] = best
            matches.first[n_matches] = word
            matches.length[n_matches] = best_words
            n_matches += 1
        word += max(1, best_words)
        start = best_end + 1
    return n_matches, word


@inner()
def match_memory(longest: int) -> NameMatches:
    """Return working memory for texts of at most `longest` bytes."""
    return NameMatches(
        np.empty(longest, np.int32), np.empty(longest, np.int32), np.empty(longest, np.int32)
    )
