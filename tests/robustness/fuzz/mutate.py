"""The random engine: mutates bytes deterministically by seed."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

LONGEST = 1 << 16  # bytes of an input
NUMBERS = (
    b"0",
    b"-1",
    b"1",
    b"2147483647",
    b"2147483648",
    b"4294967296",
    b"9223372036854775808",
    b"1e400",
    b"1e-400",
    b"1e39",
)
NUMBERS += (
    b"nan",
    b"inf",
    b"-0",
    b"00",
    b"0x1p3",
    b"1_0",
    b"1,5",
    b".5",
    b"5.",
    b"9" * 40,
    b"33554431",
    b"33554432",
    "١".encode(),
)
BYTES = (
    0,
    1,
    9,
    10,
    13,
    32,
    34,
    35,
    44,
    45,
    46,
    48,
    58,
    91,
    92,
    93,
    123,
    125,
    127,
    128,
    192,
    237,
    239,
    254,
    255,
)


class Mutator:
    """Makes inputs from a pool of them. words: what the grammar of the target knows."""

    def __init__(self, seed: int, pool: Sequence[bytes], words: Sequence[bytes]) -> None:
        self.rng = random.Random(seed)
        self.pool = [data[:LONGEST] for data in pool]
        self.words = [*words, *NUMBERS]

    def keep(self, data: bytes) -> None:
        """Take an input that did something new into the pool."""
        self.pool.append(data)

    def __call__(self) -> bytes:
        """An input: one of the pool with 1 to 6 changes."""
        data = self.rng.choice(self.pool)
        for _ in range(self.rng.choice((1, 1, 1, 2, 2, 3, 4, 6))):
            data = self.rng.choice(CHANGES)(self, data)
        return data[:LONGEST]

    def place(self, data: bytes) -> int:
        """Somewhere in an input, its end too."""
        return self.rng.randint(0, len(data))

    def span(self, data: bytes) -> tuple[int, int]:
        """A range, mostly short."""
        first = self.place(data)
        return first, min(len(data), first + self.rng.choice((1, 1, 2, 4, 8, 16, 64, 4096)))


def flip(by: Mutator, data: bytes) -> bytes:
    """One bit is another."""
    if not data:
        return b"\n"
    out = bytearray(data)
    out[by.rng.randrange(len(out))] ^= 1 << by.rng.randrange(8)
    return bytes(out)


def put(by: Mutator, data: bytes) -> bytes:
    """One byte is another, or one more."""
    at = by.place(data)
    return data[:at] + bytes([by.rng.choice(BYTES)]) + data[at + by.rng.randrange(2) :]


def insert(by: Mutator, data: bytes) -> bytes:
    """A word of the grammar comes in."""
    at = by.place(data)
    return data[:at] + by.rng.choice(by.words) + data[at:]


def number(by: Mutator, data: bytes) -> bytes:
    """A number is another number."""
    found = list(re.finditer(rb"[0-9]+", data[:LONGEST]))
    if not found:
        return insert(by, data)
    one = by.rng.choice(found)
    return data[: one.start()] + by.rng.choice(by.words) + data[one.end() :]


def remove(by: Mutator, data: bytes) -> bytes:
    """A range goes."""
    first, last = by.span(data)
    return data[:first] + data[last:]


def repeat(by: Mutator, data: bytes) -> bytes:
    """A range comes again, sometimes very often."""
    first, last = by.span(data)
    return data[:last] + data[first:last] * by.rng.choice((1, 1, 2, 3, 100, 1000)) + data[last:]


def splice(by: Mutator, data: bytes) -> bytes:
    """The beginning of one, the end of another."""
    other = by.rng.choice(by.pool)
    return data[: by.place(data)] + other[by.place(other) :]


def lines(by: Mutator, data: bytes) -> bytes:
    """Lines change places, come twice, or go."""
    parts = data.split(b"\n")
    i, j = by.rng.randrange(len(parts)), by.rng.randrange(len(parts))
    how = by.rng.randrange(3)
    if how == 0:
        parts[i], parts[j] = parts[j], parts[i]
    elif how == 1:
        parts.insert(i, parts[j])
    elif len(parts) > 1:
        del parts[i]
    return b"\n".join(parts)


def cut(by: Mutator, data: bytes) -> bytes:
    """The end is missing."""
    return data[: by.place(data)]


CHANGES = (flip, flip, put, put, insert, insert, number, number, remove, repeat, splice, lines, cut)
