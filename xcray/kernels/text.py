"""Texts to tf-idf rows without a Python object per term: cut, folded, looked up, counted, weighed.

Two kinds of texts come in. Plain ones are ASCII and cut here, by the default pattern: a token is two and more letters, digits and
underscores. The others were cut before, by a regular expression: each word is ended by the byte 255, which UTF-8 never uses,
then comes the byte 254, then the terms that stay outside n-grams, each ended by 255.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from xcray.arrays import Float32, Float64, Int32, Int64
from xcray.kernels.vocabulary import Vocabulary, Words, begun, continued, find

BUILT_ON = {"vocabulary": "272cfe3e"}

BLANK, UNDERSCORE, ZERO, NINE, UPPER_A, UPPER_Z, LOWER_A, LOWER_Z = 32, 95, 48, 57, 65, 90, 97, 122
_C, _E, _H, _I, _N, _R, _S, _T, _U, _X, _Y = b"cehinrstuxy"
END, OUTSIDE = 255, 254  # of a word that was cut before; of all words
NOT, LOWER, UPPER, DIGIT, JOINT = 0, 1, 2, 3, 4  # kinds of bytes


class Rules(NamedTuple):
    """How plain texts become terms, see `data.terms.TextParams`; n-grams are made for both kinds.

    aliases: tokens to be read as others; read_as: what to read each of them as, in the same order.
    """

    lowercase: bool
    split_identifiers: bool
    fold_plurals: bool
    ngram_max: int
    aliases: Vocabulary
    read_as: Words


class Weighing(NamedTuple):
    """idf: (D,) float64; tf: what a count of 1, 2, ... weighs, float64; empty when a count weighs what it is."""

    idf: Float64
    tf: Float64


class Room(NamedTuple):
    """Working memory for one text. letters: its words, each followed by a blank; ends: where each ends; found: numbers of terms."""

    letters: Any
    ends: Int64
    found: Int32


@numba.njit(nogil=True, cache=True, inline="always")
def _kind(c: int) -> int:
    """What a byte is for tokens and identifiers."""
    if LOWER_A <= c <= LOWER_Z:
        return LOWER
    if UPPER_A <= c <= UPPER_Z:
        return UPPER
    if ZERO <= c <= NINE:
        return DIGIT
    return JOINT if c == UNDERSCORE else NOT


@numba.njit(nogil=True, cache=True)
def _part_end(text: Any, p: int, stop: int) -> int:
    """Where the part of an identifier that starts at p ends: HTTP|Error|2; p itself for an underscore."""
    kind = _kind(text[p])
    if kind == JOINT:
        return p
    q = p + 1
    while q < stop and _kind(text[q]) == kind:
        q += 1
    if kind != UPPER or q == stop or _kind(text[q]) != LOWER:
        return q
    if q - p > 1:
        return q - 1  # the last capital begins the next word
    while q < stop and _kind(text[q]) == LOWER:
        q += 1
    return q


@numba.njit(nogil=True, cache=True)
def _singular_end(w: Any, start: int, stop: int) -> int:
    """Where the singular of a word ends, by the rules of `data.terms.singular`; "ies" becomes "y" in place."""
    n = stop - start
    if n < 4 or w[stop - 1] != _S:
        return stop
    c = w[stop - 2]
    if c in (_U, _S, _I):
        return stop
    if c == _E and w[stop - 3] == _I and n > 4:
        w[stop - 3] = _Y
        return stop - 2
    if c != _E:
        return stop - 1
    a, b = w[stop - 4], w[stop - 3]
    sibilant = b == _X or (a == _S and b in (_S, _H))
    if a == _C and b == _H and n > 4:
        sibilant = w[stop - 5] in (_T, _N, _R)
    return stop - 2 if sibilant else stop - 1


@numba.njit(nogil=True, cache=True)
def _put(text: Any, start: int, stop: int, lowercase: bool, letters: Any, at: int) -> int:
    """Copy a token to letters[at:], folding case when asked to; where it ends."""
    for p in range(start, stop):
        c = text[p]
        if lowercase and UPPER_A <= c <= UPPER_Z:
            c += 32
        letters[at] = c
        at += 1
    return at


@numba.njit(nogil=True, cache=True)
def _put_word(text: Any, start: int, stop: int, rules: Rules, room: Room, at: int, n: int) -> int:
    """Copy a token as word number n to letters[at:], folded by the rules, and a blank; where the next begins."""
    w = room.letters
    end = _put(text, start, stop, rules.lowercase, w, at)
    if rules.fold_plurals:
        end = _singular_end(w, at, end)
    if len(rules.read_as.offsets) > 1:
        state = continued(begun(rules.aliases.seed), w, at, end)
        alias = find(rules.aliases, w, at, end, state)
        if alias >= 0:
            first, last = rules.read_as.offsets[alias], rules.read_as.offsets[alias + 1]
            end = at
            for p in range(first, last):
                w[end] = rules.read_as.letters[p]
                end += 1
    room.ends[n] = end
    w[end] = BLANK
    return end + 1


@numba.njit(nogil=True, cache=True)
def _look_up(vocabulary: Vocabulary, w: Any, start: int, stop: int, found: Int32, m: int) -> int:
    """Add a term to those found when it is known; how many there are."""
    j = find(vocabulary, w, start, stop, continued(begun(vocabulary.seed), w, start, stop))
    if j >= 0:
        found[m] = j
        m += 1
    return m


@numba.njit(nogil=True, cache=True)
def _plain(
    text: Any, start: int, stop: int, vocabulary: Vocabulary, rules: Rules, room: Room
) -> tuple[int, int]:
    """Cut an ASCII text into words; how many, and how many terms were found among the identifiers themselves."""
    at: Any = np.int64(
        0
    )  # not 0: a literal has a type of its own, and what it is handed to is compiled once more for it
    n: Any = np.int64(0)
    m: Any = np.int64(0)
    p = start
    while p < stop:
        first = p
        while p < stop and _kind(text[p]) != NOT:
            p += 1
        if p - first < 2:
            p += p == first
            continue
        parts, q = 0, first
        while rules.split_identifiers and q < p and parts < 2:
            end = _part_end(text, q, p)
            parts += end > q
            q = max(end, q + 1)
        if parts < 2:
            at = _put_word(text, first, p, rules, room, at, n)
            n += 1
            continue
        q = first
        while q < p:
            end = _part_end(text, q, p)
            if end - q > 1:
                at = _put_word(text, q, end, rules, room, at, n)
                n += 1
            q = max(end, q + 1)
        end = _put(
            text, first, p, rules.lowercase, room.letters, at
        )  # not a word: the next one overwrites it
        m = _look_up(vocabulary, room.letters, at, end, room.found, m)
    return n, m


@numba.njit(nogil=True, cache=True)
def _cut_before(
    text: Any, start: int, stop: int, vocabulary: Vocabulary, room: Room
) -> tuple[int, int]:
    """The words of a text that was cut before; results as `_plain`."""
    n: Any = np.int64(0)
    m: Any = np.int64(0)
    p = start
    while p < stop and text[p] != OUTSIDE:
        c = text[p]
        if c == END:
            room.ends[n] = p - start
            n += 1
            c = BLANK
        room.letters[p - start] = c
        p += 1
    begin = p + 1 - start
    for q in range(p + 1, stop):
        room.letters[q - start] = text[q]
        if text[q] == END:
            m = _look_up(vocabulary, room.letters, begin, q - start, room.found, m)
            begin = q + 1 - start
    return n, m


@numba.njit(nogil=True, cache=True)
def _runs(vocabulary: Vocabulary, n: int, longest: int, room: Room, m: int) -> int:
    """Look up all runs of 1 to `longest` of n words; how many terms are found now."""
    w = room.letters
    begin: Any = np.int64(0)
    for i in range(n):
        state, p = begun(vocabulary.seed), begin
        for last in range(i, min(i + longest, n)):
            stop = room.ends[last]
            state = continued(state, w, p, stop)
            j = find(vocabulary, w, begin, stop, state)
            if j >= 0:
                room.found[m] = j
                m += 1
            p = stop
        begin = room.ends[i] + 1
    return m


@numba.njit(nogil=True, cache=True)
def _weigh(
    found: Int32, weighing: Weighing, columns: Int32, weights: Float64, values: Float32
) -> tuple[int, int]:
    """Count the terms found and weigh them, a row of length 1; how many entries, and the largest count."""
    found.sort()
    n, most, i, total = 0, 0, 0, 0.0
    while i < len(found):
        j, count = found[i], 1
        while i + count < len(found) and found[i + count] == j:
            count += 1
        i += count
        most = max(most, count)
        weight = np.float64(count)
        if 0 < len(weighing.tf) and count <= len(weighing.tf):
            weight = weighing.tf[count - 1]
        weight *= weighing.idf[j]
        total += weight * weight
        columns[n], weights[n] = j, weight
        n += 1
    length = np.sqrt(total)
    for e in range(n):
        values[e] = weights[e] / length
    return n, most


@numba.njit(nogil=True, cache=True, inline="always")
def _longer(items: Any, n: int, least: int) -> Any:
    """The first n items in an array at least twice as long."""
    out = np.empty(max(2 * len(items), least), items.dtype)
    for i in range(
        n
    ):  # a loop: assigning a slice makes numba compile the words of its error too, which takes seconds
        out[i] = items[i]
    return out


def unnamed(value: Any) -> Any:
    """NamedTuples as plain tuples, also within: their fields in order."""
    return tuple(map(unnamed, value)) if isinstance(value, tuple) else value


@numba.njit(nogil=True, cache=True)
def rows_of_texts(
    text: Any, starts: Int64, cut: Any, vocabulary: Any, rules: Any, weighing: Any
) -> tuple[Int64, Int32, Float32, int]:
    """The rows (indptr, indices, values) of texts, columns ascending, each of length 1, and the largest count of a term.

    text: uint8, all texts end to end; starts: (n + 1,) int64, where each begins; cut: (n,) uint8, 1 for a text that was cut
    before. A count that `weighing` does not reach with its tf is weighed as it is: then call again with a longer one.
    vocabulary, rules, weighing: `Vocabulary`, `Rules` and `Weighing` as `unnamed` gives them: to hand these over by name costs 6
    microseconds a call, without names 1.
    """
    known = Vocabulary(Words(vocabulary[0][0], vocabulary[0][1]), vocabulary[1], vocabulary[2])
    a, r = rules[4], rules[5]
    aliases = Vocabulary(Words(a[0][0], a[0][1]), a[1], a[2])
    how = Rules(rules[0], rules[1], rules[2], rules[3], aliases, Words(r[0], r[1]))
    return _rows(text, starts, cut, known, how, Weighing(weighing[0], weighing[1]))


@numba.njit(nogil=True, cache=True)
def _rows(
    text: Any, starts: Int64, cut: Any, vocabulary: Vocabulary, rules: Rules, weighing: Weighing
) -> tuple[Int64, Int32, Float32, int]:
    """What `rows_of_texts` gives."""
    longest = 0
    for i in range(len(cut)):
        longest = max(longest, starts[i + 1] - starts[i])
    spelt = 0
    for j in range(len(rules.read_as.offsets) - 1):
        spelt = max(spelt, rules.read_as.offsets[j + 1] - rules.read_as.offsets[j])
    words = longest + 1
    room = Room(
        np.empty(3 * words + (words // 2 + 1) * spelt, np.uint8),
        np.empty(words, np.int64),
        np.empty(words * (rules.ngram_max + 1), np.int32),
    )
    weights = np.empty(len(room.found), np.float64)
    indptr = np.zeros(len(cut) + 1, np.int64)
    columns, values = (
        np.empty(len(text) // 4 + 16, np.int32),
        np.empty(len(text) // 4 + 16, np.float32),
    )
    at, most = 0, 0
    for i in range(len(cut)):
        if cut[i]:
            n, m = _cut_before(text, starts[i], starts[i + 1], vocabulary, room)
        else:
            n, m = _plain(text, starts[i], starts[i + 1], vocabulary, rules, room)
        m = _runs(vocabulary, n, rules.ngram_max, room, m)
        if at + m > len(columns):
            columns, values = _longer(columns, at, at + m), _longer(values, at, at + m)
        n, count = _weigh(room.found[:m], weighing, columns[at:], weights, values[at:])
        at += n
        most = max(most, count)
        indptr[i + 1] = at
    return indptr, columns[:at], values[:at], most
