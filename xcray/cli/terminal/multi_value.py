"""Options that take several values: `--lam 0.1 0.01` beside `--lam 0.1 --lam 0.01`."""

from __future__ import annotations

from typing import Any, ClassVar

from typer.core import TyperCommand


class Spreading(TyperCommand):
    """A command some of whose options take all the words that follow them, up to the next option.

    SPREAD: the names of these options. `--` ends them.
    """

    SPREAD: ClassVar[frozenset[str]] = frozenset()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat such an option before each of its words, which is how the parser knows it."""
        return super().parse_args(ctx, spread(args, self.SPREAD))


def spread(words: list[str], options: frozenset[str]) -> list[str]:
    """`--lam 0.1 0.01` as `--lam 0.1 --lam 0.01` for each of `options`; negative numbers are values."""
    out: list[str] = []
    current: str | None = None
    for place, word in enumerate(words):
        if word == "--":
            return [*out, *words[place:]]
        if word.startswith("-") and not _is_number(word):
            current = word if word in options else None
            out.append(word)
        elif current is not None and out[-1] != current:
            out += [current, word]
        else:
            out.append(word)
    return out


def _is_number(word: str) -> bool:
    """Whether a word that starts with a dash is a number."""
    return word[1:2].isdigit() or word[1:2] == "."
