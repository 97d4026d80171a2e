"""Tf-idf rows from texts, without a Python object per term.

There are two kinds of texts. Plain texts are tokenized here, by the default pattern: a token is two
or more letters, digits and underscores. If they are not ASCII, they were normalised before. Other
texts were tokenized before, by a regular expression: each word ends with the byte 255, which UTF-8
never uses; then follows the byte 254, then the terms that are not part of n-grams, each ended by
255. Plain texts in a language with stems are read by a table of words. A plain text is marked as
`MISSED` if it has another word, or a character of four bytes.

A row has one text or several, those of its fields. All share terms. The own terms of a field begin
with its prefix, which is written before the words in place of those that were looked up already.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numba
import numpy as np

from xcray.arrays import Float32, Float64, Int32, Int64
from xcray.kernels.inner import inner
from xcray.kernels.vocabulary import Vocabulary, Words, extend_state, find, initial_state
from xcray.kernels.word_rules import (
    OTHER,
    UPPER_A,
    UPPER_Z,
    kind_of,
    letter_width,
    part_end,
    singular_end,
)

BLANK = 32
# in tokenized texts: ends a word; ends all words
WORD_END, WORDS_END = 255, 254
# bits of the form of a text: it is tokenized; its row has another text; it cannot be read as plain;
# the number of its field (six bits); the number of the language of its stems, if any
TOKENIZED, CONTINUED, MISSED, FIELD_SHIFT, LANGUAGE_SHIFT = 1, 2, 4, 3, 9
FIELD_MASK = (1 << (LANGUAGE_SHIFT - FIELD_SHIFT)) - 1
NO_FIELD: Any = np.int64(0)  # texts without own terms
SEPARATOR: Final = 31  # begins terms of characters; ends words that names are searched in


class TextRules(NamedTuple):
    """How plain texts become terms, see `data.text.tokenizer.TextParams`.

    N-grams are made for both kinds of texts. word_characters: (65,536,) uint8, 1 for letters and
    digits of up to three bytes. aliases: tokens to be replaced; read_as: their
    replacements, in the same order. prefixes: of the own terms of each field, empty if it has none;
    ngram_max: (fields,) int64; char_min, char_max: lengths of runs of characters, 0 for none.
    """

    word_characters: Any
    lowercase: bool
    split_identifiers: bool
    fold_plurals: bool
    aliases: Vocabulary
    read_as: Words
    prefixes: Words
    ngram_max: Int64
    char_min: int
    char_max: int


class StemTable(NamedTuple):
    """Known stems. words: the number of a language as a byte and a word; stems: in that order."""

    words: Vocabulary
    stems: Words


class TermWeights(NamedTuple):
    """Weights of terms.

    idf: (D,) float64; tf: weights of the counts 1, 2, ..., float64; empty if a count is its own
    weight.
    """

    idf: Float64
    tf: Float64


class Workspace(NamedTuple):
    """Working memory for one text.

    letters: its words from `base` on, each between blanks; ends: end of each word; terms: numbers
    of the terms of a row.
    """

    letters: Any
    ends: Int64
    terms: Int32
    base: int


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
        end = singular_end(w, at, end)
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
    text: Any,
    start: int,
    stop: int,
    vocabulary: Vocabulary,
    rules: TextRules,
    workspace: Workspace,
    m: int,
) -> tuple[int, int]:
    """Split a plain text into words, and look up the identifiers themselves.

    m: number of terms. Returns the number of words, -1 if it has characters of four bytes, and the
    new number of terms.
    """
    at: Any = workspace.base
    # not 0: literals have their own type, for which callees would be compiled again
    n: Any = np.int64(0)
    p = start
    while p < stop:
        first, inside = p, 0  # bytes inside of characters
        while True:
            while p < stop and kind_of(text[p]) != OTHER:
                p += 1
            if p == stop or text[p] < 0x80:
                break
            width = letter_width(text, p, stop, rules.word_characters)
            if width < 0:
                return -1, m
            if width == 0:
                break
            p, inside = p + width, inside + width - 1
        if p - first - inside < 2:
            p += p == first
            continue
        parts, q = 0, first
        while rules.split_identifiers and q < p and parts < 2:
            end = part_end(text, q, p)
            parts += end > q
            q = max(end, q + 1)
        if parts < 2:
            at = _put_word(text, first, p, rules, workspace, at, n)
            n += 1
            continue
        q = first
        while q < p:
            end = part_end(text, q, p)
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
    text: Any, start: int, stop: int, vocabulary: Vocabulary, workspace: Workspace, m: int
) -> tuple[int, int]:
    """Read the words of a tokenized text; the same as `_tokenize`."""
    n: Any = np.int64(0)
    shift = workspace.base - start
    p = start
    while p < stop and text[p] != WORDS_END:
        c = text[p]
        if c == WORD_END:
            workspace.ends[n] = p + shift
            n += 1
            c = BLANK
        workspace.letters[p + shift] = c
        p += 1
    begin = p + 1 + shift
    for q in range(p + 1, stop):
        workspace.letters[q + shift] = text[q]
        if text[q] == WORD_END:
            m = _look_up(vocabulary, workspace.letters, begin, q + shift, workspace.terms, m)
            begin = q + 1 + shift
    return n, m


@inner()
def _stem_words(n: int, language: int, stems: StemTable, workspace: Workspace) -> bool:
    """Replace n words by their stems, which are not longer; return whether all are known."""
    w, known = workspace.letters, stems.words
    begin: Any = workspace.base
    at: Any = workspace.base
    for i in range(n):
        stop = workspace.ends[i]
        w[begin - 1] = language
        state = extend_state(initial_state(known.seed), w, begin - 1, stop)
        j = find(known, w, begin - 1, stop, state)
        w[begin - 1] = BLANK
        if j < 0:
            return False
        begin = stop + 1
        for p in range(stems.stems.offsets[j], stems.stems.offsets[j + 1]):
            w[at] = stems.stems.letters[p]
            at += 1
        workspace.ends[i] = at
        w[at] = BLANK
        at += 1
    return True


@inner()
def _read_words(
    text: Any,
    starts: Int64,
    form: Any,
    i: int,
    vocabulary: Vocabulary,
    rules: TextRules,
    stems: StemTable,
    workspace: Workspace,
    m: int,
) -> tuple[int, int]:
    """Read the words of text i, or mark it as MISSED; the same as `_tokenize`."""
    start, stop = starts[i], starts[i + 1]
    if form[i] & TOKENIZED:
        return _read_tokens(text, start, stop, vocabulary, workspace, m)
    n, m = _tokenize(text, start, stop, vocabulary, rules, workspace, m)
    language = form[i] >> LANGUAGE_SHIFT
    if n < 0 or (language and not _stem_words(n, language, stems, workspace)):
        form[i] = form[i] | MISSED
        return max(n, 0), m
    return n, m


@inner()
def _look_up_ngrams(
    vocabulary: Vocabulary,
    n: int,
    longest: int,
    prefixes: Words,
    field: int,
    workspace: Workspace,
    m: int,
) -> int:
    """Look up all runs of 1 to `longest` of n words after the prefix of a field.

    Words before a run are overwritten by the prefix. Returns the number of terms.
    """
    w = workspace.letters
    first = prefixes.offsets[field]
    width = prefixes.offsets[field + 1] - first
    start = extend_state(
        initial_state(vocabulary.seed), prefixes.letters, first, prefixes.offsets[field + 1]
    )
    begin: Any = workspace.base
    for i in range(n):
        for p in range(width):
            w[begin - width + p] = prefixes.letters[first + p]
        state, p = start, begin
        for last in range(i, min(i + longest, n)):
            stop = workspace.ends[last]
            state = extend_state(state, w, p, stop)
            j = find(vocabulary, w, begin - width, stop, state)
            if j >= 0:
                workspace.terms[m] = j
                m += 1
            p = stop
        begin = workspace.ends[i] + 1
    return m


@inner()
def _look_up_characters(
    vocabulary: Vocabulary, n: int, low: int, high: int, workspace: Workspace, m: int
) -> int:
    """Look up the runs of low to high characters of n words, with the blanks around each word.

    Returns the number of terms.
    """
    w = workspace.letters
    begin: Any = workspace.base
    for i in range(n):
        stop = workspace.ends[i] + 1
        for p in range(begin - 1, stop):
            if w[p] & 0xC0 == 0x80:
                continue  # inside of a character
            before = w[p - 1]
            w[p - 1] = SEPARATOR
            state = extend_state(initial_state(vocabulary.seed), w, p - 1, p)
            q, length = p, 0
            while q < stop and length < high:
                r = q + 1
                while r < stop and w[r] & 0xC0 == 0x80:
                    r += 1
                state = extend_state(state, w, q, r)
                q, length = r, length + 1
                j = find(vocabulary, w, p - 1, q, state) if length >= low else -1
                if j >= 0:
                    workspace.terms[m] = j
                    m += 1
            w[p - 1] = before
        begin = stop
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


@inner()
def _named(vocabulary: Any, rules: Any, stems: Any) -> tuple[Vocabulary, TextRules, StemTable]:
    """Return plain tuples as named ones."""
    known = Vocabulary(Words(vocabulary[0][0], vocabulary[0][1]), vocabulary[1], vocabulary[2])
    a, r, f = rules[4], rules[5], rules[6]
    aliases = Vocabulary(Words(a[0][0], a[0][1]), a[1], a[2])
    read_as, prefixes = Words(r[0], r[1]), Words(f[0], f[1])
    flags = rules[0], rules[1], rules[2], rules[3]
    how = TextRules(*flags, aliases, read_as, prefixes, rules[7], rules[8], rules[9])
    w, o = stems[0], stems[1]
    known_stems = StemTable(Vocabulary(Words(w[0][0], w[0][1]), w[1], w[2]), Words(o[0], o[1]))
    return known, how, known_stems


@numba.njit(nogil=True, cache=True)
def vectorize_texts(
    text: Any, starts: Int64, form: Any, vocabulary: Any, rules: Any, stems: Any, weighing: Any
) -> tuple[Int64, Int32, Float32, int]:
    """Return the rows of texts (indptr, indices, values) and the largest count of a term.

    Columns ascend, and each row has length 1. text: uint8, all texts concatenated; starts: (n + 1,)
    int64, start of each; form: (n,) writable uint16, see `TOKENIZED`. Counts beyond the tf of
    `weighing` are their own weight; then call again with a longer tf. If the largest count is -1,
    call again with the texts marked as `MISSED` tokenized. vocabulary,
    rules, stems, weighing: `Vocabulary`, `TextRules`, `StemTable` and `TermWeights` converted by
    `as_plain_tuple`: passing NamedTuples costs 6 microseconds per call, plain tuples 1.
    """
    known, how, known_stems = _named(vocabulary, rules, stems)
    weights = TermWeights(weighing[0], weighing[1])
    no_words, no_ends = np.empty(0, np.uint8), np.empty(0, np.int64)
    indptr, indices, values, _, _, most = _vectorize(
        text, starts, form, known, how, known_stems, weights, no_words, no_ends
    )
    return indptr, indices, values, most


@numba.njit(nogil=True, cache=True)
def read_texts(
    text: Any, starts: Int64, form: Any, vocabulary: Any, rules: Any, stems: Any, weighing: Any
) -> tuple[Int64, Int32, Float32, Any, Int64, int]:
    """Return what `vectorize_texts` does, with the words of the rows before the largest count.

    words: uint8, each word followed by SEPARATOR, and a further one between the texts of a row,
    without categories; ends: where each row ends.
    """
    known, how, known_stems = _named(vocabulary, rules, stems)
    weights = TermWeights(weighing[0], weighing[1])
    words, ends = np.empty(len(text) + len(text) // 2 + 16, np.uint8), np.empty(len(form), np.int64)
    return _vectorize(text, starts, form, known, how, known_stems, weights, words, ends)


@inner()
def _keep_words(words: Any, at: int, n: int, begins: bool, workspace: Workspace) -> tuple[Any, int]:
    """Append the n words of a text; return the array, a new one if it has to grow, and the end.

    begins: whether the text is the first of its row.
    """
    base = workspace.base
    size = workspace.ends[n - 1] + 1 - base if n > 0 else 0
    if at + size >= len(words):
        words = _enlarge(words, at, at + size + 1)
    if not begins:
        words[at] = SEPARATOR
        at += 1
    for p in range(size):
        words[at + p] = workspace.letters[base + p]
    for j in range(n):
        words[at + workspace.ends[j] - base] = SEPARATOR
    return words, at + size


@inner()
def _make_workspace(starts: Int64, form: Any, rules: TextRules) -> Workspace:
    """Return working memory for the longest text and the longest row."""
    longest: Any = np.int64(0)
    row: Any = np.int64(0)
    longest_row: Any = np.int64(0)
    for i in range(len(form)):
        size = starts[i + 1] - starts[i] + 1
        longest, row = max(longest, size), row + size
        longest_row = max(longest_row, row)
        if form[i] & CONTINUED == 0:
            row = np.int64(0)
    longest_alias: Any = np.int64(0)
    for j in range(len(rules.read_as.offsets) - 1):
        longest_alias = max(longest_alias, rules.read_as.offsets[j + 1] - rules.read_as.offsets[j])
    base: Any = np.int64(2)
    own, runs = False, rules.ngram_max[0]
    for f in range(len(rules.ngram_max)):
        width = rules.prefixes.offsets[f + 1] - rules.prefixes.offsets[f]
        base, own = max(base, width + 1), own or width > 0
        runs = max(runs, rules.ngram_max[f])
    if own:
        runs *= 2
    # identifiers, runs of words, and runs of characters
    terms = longest_row * (1 + runs)
    if rules.char_max > 0:
        letters = 3 * longest_row + (longest_row // 2 + 1) * longest_alias
        terms += letters * (rules.char_max - rules.char_min + 1)
    workspace = Workspace(
        np.empty(base + 3 * longest + (longest // 2 + 1) * longest_alias, np.uint8),
        np.empty(longest, np.int64),
        np.empty(terms, np.int32),
        base,
    )
    workspace.letters[base - 1] = BLANK
    return workspace


@inner()
def _vectorize(
    text: Any,
    starts: Int64,
    form: Any,
    vocabulary: Vocabulary,
    rules: TextRules,
    stems: StemTable,
    weighing: TermWeights,
    words: Any,
    ends: Int64,
) -> tuple[Int64, Int32, Float32, Any, Int64, int]:
    """Run `read_texts` with NamedTuples. words, ends: memory; without it no words are kept."""
    workspace = _make_workspace(starts, form, rules)
    weights = np.empty(len(workspace.terms), np.float64)
    n_rows = 0
    for i in range(len(form)):
        n_rows += form[i] & CONTINUED == 0
    indptr = np.zeros(n_rows + 1, np.int64)
    columns, values = (
        np.empty(len(text) // 4 + 16, np.int32),
        np.empty(len(text) // 4 + 16, np.float32),
    )
    at, most, row, missed, begins = 0, 0, 0, False, True
    m: Any = np.int64(0)
    end: Any = np.int64(0)  # of the words
    for i in range(len(form)):
        n, m = _read_words(text, starts, form, i, vocabulary, rules, stems, workspace, m)
        missed = missed or form[i] & MISSED != 0
        field: Any = np.int64((form[i] >> FIELD_SHIFT) & FIELD_MASK)
        # the last text of a document has the categories, and the number of no field
        if len(ends) and (begins or field != NO_FIELD):
            words, end = _keep_words(words, end, n, begins, workspace)
        begins = form[i] & CONTINUED == 0
        if rules.char_max > 0:
            m = _look_up_characters(vocabulary, n, rules.char_min, rules.char_max, workspace, m)
        longest = rules.ngram_max[field]
        m = _look_up_ngrams(vocabulary, n, longest, rules.prefixes, NO_FIELD, workspace, m)
        if rules.prefixes.offsets[field + 1] > rules.prefixes.offsets[field]:
            m = _look_up_ngrams(vocabulary, n, longest, rules.prefixes, field, workspace, m)
            workspace.letters[workspace.base - 1] = BLANK
        if not begins:
            continue
        if at + m > len(columns):
            columns, values = _enlarge(columns, at, at + m), _enlarge(values, at, at + m)
        n, count = _weigh(workspace.terms[:m], weighing, columns[at:], weights, values[at:])
        at += n
        most = max(most, count)
        if len(ends):
            ends[row] = end
        row += 1
        indptr[row] = at
        m = np.int64(0)
    return indptr, columns[:at], values[:at], words[:end], ends[:row], -1 if missed else most
