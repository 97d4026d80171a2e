"""Rows F1 to F4: lines of fastText."""

from __future__ import annotations

from tests.robustness.badinput.case import Bad, Good

BAD = [
    Bad("F1", b"__label__ some words\n", "LABEL_EMPTY", 1),
    Bad("F1-text", b"__label__a some words\n__label__a\n", "EMPTY_TEXT", 2),
    Bad("F2", b'{"text": "a", "labels": ["x"]}\n', "FORMAT_MISMATCH", 1, 1, hint="jsonl"),
    Bad("F2-svmlight", b"1,2 3:4\n", "FORMAT_MISMATCH", 1, hint="svmlight"),
    Bad("F3", b"some words\nmore words\n", "NO_POSITIVES"),
]
GOOD = [
    Good(
        "F4",
        b"__label__sauce __label__cheese how much starch\nmore words\nwords __label__sauce\n\n",
        labels=["cheese", "sauce"],
        Y=[[1, 1], [0, 0], [0, 1]],
        warnings={"rows_without_labels": 1},
    ),
]
