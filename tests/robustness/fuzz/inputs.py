"""Inputs for a target, drawn by hypothesis: seeds with some ranges replaced."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

LONGEST = 1 << 16  # bytes of an input
NUMBERS = (
    *(b"0", b"-1", b"1", b"2147483647", b"2147483648", b"4294967296", b"9223372036854775808"),
    *(b"1e400", b"1e-400", b"1e39", b"nan", b"inf", b"-0", b"00", b"0x1p3", b"1_0", b"1,5"),
    *(b".5", b"5.", b"9" * 40, b"33554431", b"33554432", "١".encode()),
)


@st.composite
def mutated(draw: st.DrawFn, seeds: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """Draw a seed with up to six ranges replaced: by words, bytes, or a piece of a seed."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(data)))
        stop = start + draw(st.sampled_from((0, 0, 1, 1, 2, 4, 8, 16, 64, 4096)))
        added = draw(
            st.one_of(
                st.sampled_from((*words, *NUMBERS)),
                st.binary(max_size=3),
                st.just(data[start:stop]),
                pieces(seeds),
            )
        )
        times = draw(st.sampled_from((1, 1, 1, 1, 2, 100, 1000)))
        data = (data[:start] + added * times + data[stop:])[:LONGEST]
    return data


@st.composite
def pieces(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """Draw a range of a seed, mostly short."""
    data = draw(st.sampled_from(seeds))
    start = draw(st.integers(0, len(data)))
    return data[start : start + draw(st.sampled_from((1, 4, 16, 64, 4096)))]
