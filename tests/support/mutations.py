"""Mutations of request bodies for tests of decoders."""

from __future__ import annotations

import random
from collections.abc import Sequence


def mutated(rng: random.Random, body: bytes, pieces: Sequence[bytes]) -> bytes:
    """Return a body of which bytes were cut out, duplicated or inserted, one to three times."""
    for _ in range(rng.randint(1, 3)):
        i, j = sorted(rng.randrange(len(body) + 1) for _ in range(2))
        piece = rng.choice([*pieces, body[i : i + 12]])
        body = rng.choice(
            [
                body[:i] + piece + body[i:],
                body[:i] + body[min(j, i + 8) :],
                body[:i] + piece + body[i + len(piece) :],
            ]
        )
    return body
