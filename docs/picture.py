"""A terminal's output as a picture: `python docs/picture.py OUTPUT.txt PICTURE.svg TITLE`; fonts
are the reader's own.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 100


def main(source: Path, target: Path, title: str) -> None:
    """Draw the text, and leave out the fonts that the drawing would fetch from elsewhere."""
    # lives as long as the process
    console = Console(record=True, width=WIDTH, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(Text.from_ansi(source.read_text()))
    drawn = console.export_svg(title=title)
    target.write_text(
        re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.S).replace("Fira Code,", "")
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
