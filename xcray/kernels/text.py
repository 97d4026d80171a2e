"""Tf-idf rows from texts, without a Python object per term.

There are two kinds of texts. Plain texts are ASCII and are tokenized here, by the default pattern:
a token is two or more letters, digits and underscores. Other texts were tokenized before, by a
regular expression: each word ends with the byte 255, which UTF-8 never uses; then follows the byte
254, then the terms that are not part of n-grams, each ended by 255.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from xcray.arrays import Float32, Float64, Int32, Int64
from xcray.kernels.inner import inner
from xcray.kernels.vocabulary import Vocabulary, Words, extend_state, find, initial_state

BLANK, UNDERSCORE, ZERO, NINE, UPPER_A, UPPER_Z, LOWER_A, LOWER_Z = 32, 95, 48, 57, 65, 90, 97, 122
_C, _E, _H, _I, _N, _R, _S, _T, _U, _X, _Y = b"cehinrstuxy"
# in tokenized texts: ends a word; ends all words
WORD_END, WORDS_END = 255, 254
# kinds of bytes
OTHER, LOWER, UPPER, DIGIT, JOINT = 0, 1, 2, 3, 4


class TextRules(NamedTuple):
    """How plain texts become terms, see `data.text.tokenizer.TextParams`.

    N-grams are made for both kinds of texts. aliases: tokens to be replaced; read_as: their
    replacements, in the same order.
    """

    lowercase: bool
    split_identifiers: bool
    fold_plurals: bool
    ngram_max: int
    aliases: Vocabulary
    read_as: Words


class TermWeights(NamedTuple):
    """Weights of terms.

    idf: (D,) float64; tf: weights of the counts 1, 2, ..., float64; empty if a count is its own
    weight.
    """

    idf: Float64
    tf: Float64


class Workspace(NamedTuple):
    """Working memory for one text.

    letters: its words, each followed by a blank; ends: end of each word; terms: numbers of terms.
    """

    letters: Any
    ends: Int64
    terms: Int32


@inner(inline="always")
def _kind(c: int) -> int:
    """Return the kind of a byte in tokens and identifiers."""
    if LOWER_A <= c <= LOWER_Z:
        return LOWER
    if UPPER_A <= c <= UPPER_Z:
        return UPPER
    if ZERO <= c <= NINE:
        return DIGIT
    return JOINT if c == UNDERSCORE else OTHER


@inner()
def _part_end(text: Any, p: int, stop: int) -> int:
    """Return the end of the part of an identifier that starts at p, as in HTTP|Error|2.

    Returns p for an underscore.
    """
    kind = _kind(text[p])
    if kind == JOINT:
        return p
    q = p + 1
    while q < stop and _kind(text[q]) == kind:
        q += 1
    if kind != UPPER or q == stop or _kind(text[q]) != LOWER:
        return q
    if q - p > 1:
        return q - 1  # the last capital starts the next word
    while q < stop and _kind(text[q]) == LOWER:
        q += 1
    return q


@inner()
def _singular_end(w: Any, start: int, stop: int) -> int:
    """Return the end of the singular of a word; "ies" becomes "y" in place.

    The rules are those of `data.text.tokenizer.singular`.
    """
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


@inner()
def _put(text: Any, start: int, stop: int, lowercase: bool, letters: Any, at: int) -> int:
    """Copy a token to letters[at:], in lower case if requested; return its end."""
    for p in range(start, stop):
        c = text[p]
        if lowercase and UPPER_A <= c <= UPPER_Z:
            c += 32
        letters[at] = c
        at += 1
    return at


@inner()
def _put_word(
    text: Any, start: int, stop: int, rules: TextRules, workspace: Workspace, at: int, n: int
) -> int:
    """Copy a token as word number n to letters[at:], normalised by the rules.

    Returns the start of the next word.
    """
    w = workspace.letters
    end = _put(text, start, stop, rules.lowercase, w, at)
    if rules.fold_plurals:
        end = _singular_end(w, at, end)
    if len(rules.read_as.offsets) > 1:
        state = extend_state(initial_state(rules.aliases.seed), w, at, end)
        alias = find(rules.aliases, w, at, end, state)
        if alias >= 0:
            first, last = rules.read_as.offsets[alias], rules.read_as.offsets[alias + 1]
            end = at
            for p in range(first, last):
                w[end] = rules.read_as.letters[p]
                end += 1
    workspace.ends[n] = end
    w[end] = BLANK
    return end + 1


@inner()
def _look_up(vocabulary: Vocabulary, w: Any, start: int, stop: int, terms: Int32, m: int) -> int:
    """Append a term if it is in the vocabulary; return the number of terms."""
    j = find(
        vocabulary, w, start, stop, extend_state(initial_state(vocabulary.seed), w, start, stop)
    )
    if j >= 0:
        terms[m] = j
        m += 1
    return m


@inner()
def _tokenize(
    text: Any, start: int, stop: int, vocabulary: Vocabulary, rules: TextRules, workspace: Workspace
) -> tuple[int, int]:
    """Split an ASCII text into words.

    Returns the number of words, and the number of terms among the identifiers themselves.
    """
    # not 0: literals have their own type, for which callees would be compiled again
    at: Any = np.int64(0)
    n: Any = np.int64(0)
    m: Any = np.int64(0)
    p = start
    while p < stop:
        first = p
        while p < stop and _kind(text[p]) != OTHER:
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
            at = _put_word(text, first, p, rules, workspace, at, n)
            n += 1
            continue
        q = first
        while q < p:
            end = _part_end(text, q, p)
            if end - q > 1:
                at = _put_word(text, q, end, rules, workspace, at, n)
                n += 1
            q = max(end, q + 1)
        # not a word: the next word overwrites it
        end = _put(text, first, p, rules.lowercase, workspace.letters, at)
        m = _look_up(vocabulary, workspace.letters, at, end, workspace.terms, m)
    return n, m


@inner()
def _read_tokens(
    text: Any, start: int, stop: int, vocabulary: Vocabulary, workspace: Workspace
) -> tuple[int, int]:
    """Read the words of a tokenized text; return the same as `_tokenize`."""
    n: Any = np.int64(0)
    m: Any = np.int64(0)
    p = start
    while p < stop and text[p] != WORDS_END:
        c = text[p]
        if c == WORD_END:
            workspace.ends[n] = p - start
            n += 1
            c = BLANK
        workspace.letters[p - start] = c
        p += 1
    begin = p + 1 - start
    for q in range(p + 1, stop):
        workspace.letters[q - start] = text[q]
        if text[q] == WORD_END:
            m = _look_up(vocabulary, workspace.letters, begin, q - start, workspace.terms, m)
            begin = q + 1 - start
    return n, m


@inner()
def _look_up_ngrams(
    vocabulary: Vocabulary, n: int, longest: int, workspace: Workspace, m: int
) -> int:
    """Look up all runs of 1 to `longest` of n words; return the number of terms."""
    w = workspace.letters
    begin: Any = np.int64(0)
    for i in range(n):
        state, p = initial_state(vocabulary.seed), begin
        for last in range(i, min(i + longest, n)):
            stop = workspace.ends[last]
            state = extend_state(state, w, p, stop)
            j = find(vocabulary, w, begin, stop, state)
            if j >= 0:
                workspace.terms[m] = j
                m += 1
            p = stop
        begin = workspace.ends[i] + 1
    return m


@inner()
def _weigh(
    terms: Int32, weighing: TermWeights, columns: Int32, weights: Float64, values: Float32
) -> tuple[int, int]:
    """Count and weigh the terms as a row of length 1.

    Returns the number of entries, and the largest count.
    """
    terms.sort()
    n, most, i, total = 0, 0, 0, 0.0
    while i < len(terms):
        j, count = terms[i], 1
        while i + count < len(terms) and terms[i + count] == j:
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
def _enlarge(items: Any, n: int, least: int) -> Any:
    """Return the first n items in an array at least twice as long."""
    out = np.empty(max(2 * len(items), least), items.dtype)
    # a loop: for a slice assignment numba would also compile its error message, which takes seconds
    for i in range(n):
        out[i] = items[i]
    return out


def as_plain_tuple(value: Any) -> Any:
    """Convert nested NamedTuples to plain tuples."""
    return tuple(map(as_plain_tuple, value)) if isinstance(value, tuple) else value


@numba.njit(nogil=True, cache=True)
def vectorize_texts(
    text: Any, starts: Int64, cut: Any, vocabulary: Any, rules: Any, weighing: Any
) -> tuple[Int64, Int32, Float32, int]:
    """Return the rows of texts (indptr, indices, values) and the largest count of a term.

    Columns ascend, and each row has length 1. text: uint8, all texts concatenated; starts: (n + 1,)
    int64, start of each; cut: (n,) uint8, 1 for a tokenized text. Counts beyond the tf of
    `weighing` are their own weight; then call again with a longer tf. vocabulary, rules, weighing:
    `Vocabulary`, `TextRules` and `TermWeights` converted by `as_plain_tuple`: passing NamedTuples
    costs 6 microseconds per call, plain tuples 1.
    """
    known = Vocabulary(Words(vocabulary[0][0], vocabulary[0][1]), vocabulary[1], vocabulary[2])
    a, r = rules[4], rules[5]
    aliases = Vocabulary(Words(a[0][0], a[0][1]), a[1], a[2])
    how = TextRules(rules[0], rules[1], rules[2], rules[3], aliases, Words(r[0], r[1]))
    return _vectorize(text, starts, cut, known, how, TermWeights(weighing[0], weighing[1]))


@inner()
def _vectorize(
    text: Any,
    starts: Int64,
    cut: Any,
    vocabulary: Vocabulary,
    rules: TextRules,
    weighing: TermWeights,
) -> tuple[Int64, Int32, Float32, int]:
    """Run `vectorize_texts` with NamedTuples."""
    longest = 0
    for i in range(len(cut)):
        longest = max(longest, starts[i + 1] - starts[i])
    longest_alias = 0
    for j in range(len(rules.read_as.offsets) - 1):
        longest_alias = max(longest_alias, rules.read_as.offsets[j + 1] - rules.read_as.offsets[j])
    words = longest + 1
    workspace = Workspace(
        np.empty(3 * words + (words // 2 + 1) * longest_alias, np.uint8),
        np.empty(words, np.int64),
        np.empty(words * (rules.ngram_max + 1), np.int32),
    )
    weights = np.empty(len(workspace.terms), np.float64)
    indptr = np.zeros(len(cut) + 1, np.int64)
    columns, values = (
        np.empty(len(text) // 4 + 16, np.int32),
        np.empty(len(text) // 4 + 16, np.float32),
    )
    at, most = 0, 0
    for i in range(len(cut)):
        if cut[i]:
            n, m = _read_tokens(text, starts[i], starts[i + 1], vocabulary, workspace)
        else:
            n, m = _tokenize(text, starts[i], starts[i + 1], vocabulary, rules, workspace)
        m = _look_up_ngrams(vocabulary, n, rules.ngram_max, workspace, m)
        if at + m > len(columns):
            columns, values = _enlarge(columns, at, at + m), _enlarge(values, at, at + m)
        n, count = _weigh(workspace.terms[:m], weighing, columns[at:], weights, values[at:])
        at += n
        most = max(most, count)
        indptr[i + 1] = at
    return indptr, columns[:at], values[:at], most
