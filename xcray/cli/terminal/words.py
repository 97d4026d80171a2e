"""Error messages in the words of the command line: options and commands instead of fields."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

FIELD_ALIASES: Final = {"top_k": "k", "max_features": "n_features"}
READING_FIELDS: Final = ("text_fields", "label_field", "label_columns", "max_field_bytes")
COMMANDS: Final = {
    "GET /v1/jobs": "`xcray jobs list`",
    "GET /v1/datasets": "`xcray data list`",
    "GET /v1/keys": "`xcray keys list`",
    "calibrate=true": "--calibrate",
    "send it as `Authorization: Bearer xck_...`": "set XCRAY_KEY or XCRAY_KEY_FILE",
}
COMMAND_TERM: Final = re.compile(
    "|".join(rf"{re.escape(term)}(?![\w/])" for term in sorted(COMMANDS))
)
QUOTED_FIELD: Final = re.compile(r"`(\w+)`")
LEADING_FIELD: Final = re.compile(r"^(\w+)(?:\[\d+\])?(?=: | must be | is '?-?\d| is ')")
ASSIGNED_FIELD: Final = re.compile(r"(?<![\w.`-])([a-z_]+)=(\w+|'[^']*')(?![\w.])")
LONG_FIELD: Final = re.compile(r"(?<![\w.'`/-])([a-z]+(?:_[a-z]+)+)(?![\w.'=(/])")


def in_command_words(
    problem: Mapping[str, Any], command: Any, words: Sequence[str]
) -> dict[str, Any]:
    """Return an error whose sentences name options of the command that was run.

    problem: code, message, hint and errors. command: the root of the command tree. words: the
    arguments of the command line, which choose the command below it.
    """
    names = _parameter_names(_find_command(command, words))
    out = dict(problem)
    for key in ("message", "hint"):
        if isinstance(out.get(key), str):
            out[key] = _rewrite(out[key], names)
    if isinstance(out.get("errors"), list):
        out["errors"] = [
            {**each, "message": _rewrite(each["message"], names)}
            if isinstance(each, Mapping) and isinstance(each.get("message"), str)
            else each
            for each in out["errors"]
        ]
    return out


def _find_command(command: Any, words: Sequence[str]) -> Any:
    """Return the command that the words choose, as far as they are names of commands."""
    for word in words:
        inner = getattr(command, "commands", {}).get(word)
        if inner is None:
            break
        command = inner
    return command


def _parameter_names(command: Any) -> dict[str, str]:
    """Return how each parameter of a command is written: --name, -k, or NAME of an argument."""
    names = {}
    for each in command.params:
        is_option = each.opts[0].startswith("-")
        written = max(each.opts, key=len) if is_option else each.name.upper()
        names[each.name] = written
    for field, parameter in FIELD_ALIASES.items():
        if parameter in names:
            names.setdefault(field, names[parameter])
    if "option" in names:  # takes every field of reading, also without an option of its own
        for field in READING_FIELDS:
            names.setdefault(field, f"{names['option']} {field}=...")
    return names


def _rewrite(text: str, names: Mapping[str, str]) -> str:
    """Return a sentence with the fields that are parameters of the command as its options."""

    def assigned(found: re.Match[str]) -> str:
        option = names.get(found[1])
        if option is None:
            return f"{names['option']} {found[0]}" if "option" in names else found[0]
        return option if found[2] == "true" else f"{option} {found[2]}"

    def named(found: re.Match[str]) -> str:
        return names.get(found[1], found[0])

    text = COMMAND_TERM.sub(lambda found: COMMANDS[found[0]], text)
    text = ASSIGNED_FIELD.sub(assigned, text)
    for pattern in (QUOTED_FIELD, LEADING_FIELD, LONG_FIELD):
        text = pattern.sub(named, text)
    return text
