"""Elements of an SVG picture as text.

There are presentation attributes only, because the console's Content-Security-Policy forbids
inline styles.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import Final
from xml.sax.saxutils import escape, quoteattr

FONT_SIZE: Final = 12
CHARACTER: Final = 6.4  # pixels per character at FONT_SIZE, a little more than usual
LINE: Final = 16  # pixels per line of text
# characters that XML does not allow
_FORBIDDEN: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def element(name: str, content: str | Iterable[str] = "", **attributes: object) -> str:
    """Return an element; `_` in the names of attributes stands for `-`, None leaves one out.

    content: markup.
    """
    shown = "".join(
        f" {key.strip('_').replace('_', '-')}={quoteattr(_attribute(value))}"
        for key, value in attributes.items()
        if value is not None
    )
    inner = content if isinstance(content, str) else "".join(content)
    return f"<{name}{shown}>{inner}</{name}>" if inner else f"<{name}{shown}/>"


def markup(text: str) -> str:
    """Return text as markup, with a replacement for characters that XML does not allow."""
    return escape(_FORBIDDEN.sub("\ufffd", text))


def text_at(x: float, y: float, text: str, **attributes: object) -> str:
    """Return a line of text whose baseline begins at (x, y)."""
    return element("text", markup(text), x=x, y=y, **attributes)


def text_width(text: str) -> float:
    """Return about how many pixels a text takes."""
    return CHARACTER * len(text)


def wrapped(text: str, width: float) -> list[str]:
    """Return a text as lines that fit into `width` pixels."""
    return textwrap.wrap(text, max(8, int(width / CHARACTER)))


def path_through(points: Iterable[tuple[float, float]], is_stepped: bool = False) -> str:
    """Return the data of a path through points in pixels."""
    parts: list[str] = []
    for x, y in points:
        if is_stepped and parts:
            parts.append(f"H{x:.1f}")
        parts.append(f"{'L' if parts else 'M'}{x:.1f} {y:.1f}")
    return "".join(parts)


def _attribute(value: object) -> str:
    """Return the text of an attribute; numbers with one digit after the point."""
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return _FORBIDDEN.sub("\ufffd", str(value))
