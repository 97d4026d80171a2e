"""Write the pictures of docs/how_it_works.md: `python -m docs.drawings`."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent / "pictures"
BLUE, GREEN, RED, GREY = "#e8eef7", "#eef3ea", "#f7e8e8", "#f6f7f9"
STYLE = """\
  <style>
    rect { stroke: #5b6b82; } .name { font-weight: 600; fill: #1d2733; } .what { fill: #4b5868; font-size: 12px; }
    .line { stroke: #5b6b82; stroke-width: 1.4; fill: none; } .arrow { marker-end: url(#tip); } .dash { stroke-dasharray: 5 4; }
  </style>
  <defs><marker id="tip" markerWidth="8" markerHeight="8" refX="6" refY="4" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#5b6b82"/></marker></defs>
"""


def box(place: tuple[int, int, int, int], fill: str, words: str = "") -> str:
    """Return a rectangle. place: left, top, width, height. words: a name, and lines about it."""
    x, y, width, height = place
    lines = [f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="{fill}"/>']
    for i, each in enumerate(words.splitlines()):
        lines.append(text(x + 10, y + 20 + 17 * i, each, "what" if i else "name"))
    return "\n".join(lines)


def text(x: int, y: int, words: str, style: str = "what") -> str:
    """Return a line of text."""
    return f'<text class="{style}" x="{x}" y="{y}">{escape(words)}</text>'


def line(path: str, style: str = "arrow") -> str:
    """Return a line along an SVG path; style: "arrow", "dash" or ""."""
    return f'<path class="line {style}" d="{path}"/>'


def picture(title: str, height: int, parts: Sequence[str]) -> str:
    """Return an SVG of 860 units of width."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 {height}" font-family="system-ui, '
        f'sans-serif" font-size="13">\n  <title>{escape(title)}</title>\n{STYLE}'
        f'<rect width="860" height="{height}" fill="#ffffff" stroke="none"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def training() -> str:
    """Draw how labels are solved by workers and committed."""
    parts = [
        box(
            (16, 30, 150, 130),
            GREY,
            "labels\nmost expensive first,\nin batches of 0.25\nto 4 seconds",
        ),
        box((360, 180, 150, 60), BLUE, "rows\nmapped, read by all"),
        box(
            (570, 30, 130, 130),
            GREEN,
            "commits\nweights and the\ncertificate of each\nlabel, on disk",
        ),
        box((740, 30, 104, 130), GREEN, "model\nmerged, with\nlists for the\nsearch; one\nSHA-256"),
    ]
    for i in range(3):
        y = 30 + 48 * i
        parts.append(box((240, y, 270, 36), BLUE, f"worker {i + 1}: one label after the other"))
        parts += [line(f"M166 95 L236 {y + 18}"), line(f"M510 {y + 18} L566 95")]
    parts += [line("M700 95 H736"), line("M435 180 V166", "arrow")]
    return picture("Labels are solved by workers, committed and merged into a model", 256, parts)


def certificate() -> str:
    """Draw the objective, its bound and the gap over the rounds of a label."""
    primal = [(60, 40), (170, 96), (280, 128), (390, 142), (500, 148), (610, 150)]
    dual = [(60, 250), (170, 206), (280, 178), (390, 164), (500, 158), (610, 156)]

    def path(points: Sequence[tuple[int, int]]) -> str:
        return "M" + " L".join(f"{x} {y}" for x, y in points)

    parts = [
        line("M60 20 V270 H660", ""),
        line(path(primal), ""),
        line(path(dual), ""),
        line("M60 153 H660", "dash"),
        line("M170 100 V202", "arrow"),
        text(180, 190, "gap"),
        text(250, 110, "objective of the weights: what is published", "name"),
        text(250, 214, "lower bound, from the dual variables", "name"),
        text(670, 148, "the optimum, which"),
        text(670, 164, "is not known"),
        text(480, 186, "gap at most 1 %: the label is done"),
        text(610, 290, "rounds of a label"),
    ]
    return picture("The objective and its lower bound enclose the optimum of a label", 304, parts)


def search() -> str:
    """Draw bounds of labels and the threshold of the k-th score."""
    bounds = (212, 196, 188, 150, 141, 133, 120, 104, 97, 90, 82, 70, 61, 50, 40, 31)
    parts = [
        box(
            (16, 20, 190, 74),
            BLUE,
            "1. words of the text\nread their lists of labels,\nlargest weights first",
        ),
        box(
            (16, 110, 190, 74), BLUE, "2. a bound per label\nwhat it can have at most,\nrounded up"
        ),
        box((16, 200, 190, 60), BLUE, "3. exact scores\nonly above the threshold"),
        line("M111 94 V106"),
        line("M111 184 V196"),
        line("M250 90 H840", "dash"),
        text(600, 82, "threshold: k-th exact score so far"),
        text(600, 30, "scored in full: 3 labels of 16", "name"),
        text(250, 276, "labels, by their bound"),
    ]
    for i, bound in enumerate(bounds):
        fill = GREEN if 250 - bound < 90 else GREY
        parts.append(box((254 + 36 * i, 250 - bound, 26, bound), fill))
    return picture("Labels whose bound is below the threshold cannot be in the answer", 290, parts)


def recovery() -> str:
    """Draw a kill, and what the next attempt repeats."""
    parts = [text(16, 50, "attempt 1", "name"), text(16, 150, "attempt 2", "name")]
    for row, first, last in ((0, 0, 5), (1, 5, 10)):
        for i in range(first, last):
            parts.append(box((110 + 70 * i, 30 + 100 * row, 64, 32), GREEN))
            parts.append(text(118 + 70 * i, 51 + 100 * row, f"batch {i + 1}"))
    parts += [
        box((460, 30, 34, 32), RED),
        text(472, 51, "6"),
        line("M500 20 V76", "dash"),
        text(510, 40, "kill -9, a lost node, a full disk:"),
        text(510, 56, "only the batch in progress is lost"),
        line("M280 66 V92 H450 V126"),
        text(130, 116, "commits are found by the hash of their content"),
        text(110, 196, "The model has the same SHA-256 as one that was never interrupted."),
    ]
    return picture("Finished batches survive a kill; the next attempt does the rest", 212, parts)


def update() -> str:
    """Draw which labels an update solves again."""
    parts = [
        box((16, 30, 170, 92), GREY, "changed rows\nadded, removed,\nrelabelled\nxcray data delta"),
        box(
            (240, 30, 190, 92),
            BLUE,
            "is the gap still small?\nfor every label, with the\nchanged rows, from its\nold weights and duals",
        ),
        box((500, 16, 200, 50), GREEN, "yes: nearly all labels\nevery byte stays"),
        box((500, 86, 200, 50), BLUE, "no: some labels\nsolved from where they were"),
        box((740, 40, 104, 72), GREEN, "new model\nall certified\non all rows"),
        *(line(each) for each in ("M186 76 H236", "M430 60 L496 42", "M430 92 L496 110")),
        *(line(each) for each in ("M700 42 L736 62", "M700 110 L736 90")),
    ]
    return picture("An update solves only the labels that the change affects", 152, parts)


PICTURES = {
    "how_training.svg": training,
    "how_certificate.svg": certificate,
    "how_search.svg": search,
    "how_recovery.svg": recovery,
    "how_update.svg": update,
}


def main() -> None:
    """Write all pictures."""
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
