"""Rules of single words in UTF-8: kinds of bytes, parts of identifiers, plurals."""

from __future__ import annotations

from typing import Any

from xcray.kernels.inner import inner

UNDERSCORE, ZERO, NINE, UPPER_A, UPPER_Z, LOWER_A, LOWER_Z = 95, 48, 57, 65, 90, 97, 122
_C, _E, _H, _I, _N, _R, _S, _T, _U, _X, _Y = b"cehinrstuxy"
# kinds of bytes
OTHER, LOWER, UPPER, DIGIT, JOINT = 0, 1, 2, 3, 4


@inner(inline="always")
def kind_of(c: int) -> int:
    """Return the kind of a byte in tokens and identifiers."""
    if LOWER_A <= c <= LOWER_Z:
        return LOWER
    if UPPER_A <= c <= UPPER_Z:
        return UPPER
    if ZERO <= c <= NINE:
        return DIGIT
    return JOINT if c == UNDERSCORE else OTHER


@inner()
def part_end(text: Any, p: int, stop: int) -> int:
    """Return the end of the part of an identifier that starts at p, as in HTTP|Error|2.

    Returns p for an underscore.
    """
    kind = kind_of(text[p])
    if kind == JOINT:
        return p
    q = p + 1
    while q < stop and kind_of(text[q]) == kind:
        q += 1
    if kind != UPPER or q == stop or kind_of(text[q]) != LOWER:
        return q
    if q - p > 1:
        return q - 1  # the last capital starts the next word
    while q < stop and kind_of(text[q]) == LOWER:
        q += 1
    return q


@inner()
def singular_end(w: Any, start: int, stop: int) -> int:
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
def letter_width(text: Any, p: int, stop: int, word_characters: Any) -> int:
    """Return the bytes of the letter or digit at p, which is not ASCII; 0 for other characters.

    Returns -1 for characters of four bytes.
    """
    c = text[p]
    if c < 0xC0 or c >= 0xF0:
        return 0 if c < 0xC0 else -1  # inside of a character
    width = 3 if c >= 0xE0 else 2
    point = c & (0xF if width == 3 else 0x1F)
    for q in range(p + 1, p + width):
        point = point << 6 | (text[q] & 0x3F)
    return width if word_characters[point] else 0
