"""Options that take several values: `--labels a b` as well as `--labels a --labels b`."""

from __future__ import annotations

from typing import Any, ClassVar

from typer.core import TyperCommand


class MultiValueCommand(TyperCommand):
    """A command with options that take all following words, up to the next option.

    MULTI_VALUE_OPTIONS: the names of these options. `--` ends them.
    """

    MULTI_VALUE_OPTIONS: ClassVar[frozenset[str]] = frozenset()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat these options before each of their values, then parse."""
        return super().parse_args(ctx, repeat_options(args, self.MULTI_VALUE_OPTIONS))


def repeat_options(words: list[str], options: frozenset[str]) -> list[str]:
    """Expand `--labels a b` to `--labels a --labels b` for each of `options`.

    Negative numbers are values.
    """
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
    """Return whether a word that starts with a dash is a number."""
    return word[1:2].isdigit() or word[1:2] == "."
