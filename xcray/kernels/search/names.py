"""Names of labels in texts: the longest match at each position, through a hash table of prefixes.

A name is a sequence of words. The table holds every name and every beginning of a name, so a
position is left after the first word that continues no name: time is linear in the words of a text,
whatever the number of names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from xcray.arrays import Int32, Int64
from xcray.kernels.vocabulary import Vocabulary, Words, extend_state, find, initial_state

SEPARATOR = 31  # between the words of a text or name: a control character that no word has


class LabelNameTable(NamedTuple):
    """Names as sequences of words.

    prefixes: every name and every beginning of one, words joined by SEPARATOR; starts: (P + 1,)
    int64 and labels: int32, the labels that have prefix p as a name are
    labels[starts[p] : starts[p + 1]].
    """

    prefixes: Vocabulary
    starts: Int64
    labels: Int32


@numba.njit(nogil=True, cache=True)
def find_names(
    text: Any, word_starts: Int64, rows: Int64, vocabulary: Any, starts: Int64
) -> tuple[Int64, Int32, Int32, Int32]:
    """Return the names in texts: row pointers (n + 1,), and prefix, first word and words of each.

    Matches of a text do not overlap; words count from 0 in each text. text: writable uint8, the
    words of all texts, each followed by SEPARATOR; word_starts: (m + 1,) int64; rows: (n + 1,)
    int64, the first word of each text. vocabulary: plain tuple of `LabelNameTable.prefixes`.
    """
    table = Vocabulary(Words(vocabulary[0][0], vocabulary[0][1]), vocabulary[1], vocabulary[2])
    n_words = len(word_starts) - 1
    names, first, length = (
        np.empty(n_words, np.int32),
        np.empty(n_words, np.int32),
        np.empty(n_words, np.int32),
    )
    indptr = np.zeros(len(rows), np.int64)
    n_matches = 0
    for row in range(len(rows) - 1):
        word = rows[row]
        while word < rows[row + 1]:
            begin, best, end = word_starts[word], -1, word
            state = initial_state(table.seed)
            position = begin
            for last in range(word, rows[row + 1]):
                stop = word_starts[last + 1] - 1
                state = extend_state(state, text, position, stop)
                position = stop
                prefix = find(table, text, begin, stop, state)
                if prefix < 0:
                    break
                if starts[prefix] < starts[prefix + 1]:
                    best, end = prefix, last + 1
            if best < 0:
                word += 1
                continue
            names[n_matches], first[n_matches] = best, word - rows[row]
            length[n_matches] = end - word
            n_matches += 1
            word = end
        indptr[row + 1] = n_matches
    return indptr, names[:n_matches], first[:n_matches], length[:n_matches]
