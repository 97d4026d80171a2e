"""Report of the comparison with the peers: one Markdown table per set."""

from __future__ import annotations

from typing import Any

HEAD = (
    "| | ms per label | core-seconds, all labels | P@1 / 3 / 5 | P@1 in the sample | model MB | peak MB | xcray is faster |\n"
    + "|---" * 8
    + "|"
)


def table(rows: list[dict[str, Any]], bars: list[dict[str, Any]]) -> str:
    """Return Markdown with one table per set; ~ marks figures extrapolated from a sample."""
    verdicts = {entry["set"]: entry for entry in bars if entry}
    parts = []
    for name in dict.fromkeys(row["set"] for row in rows):
        against = verdicts.get(name, {}).get("against", {})
        lines = [line(row, against.get(row["peer"])) for row in rows if row["set"] == name]
        memory_ratio = verdicts.get(name, {}).get("memory_beside_model_in_X")
        memory = (
            []
            if memory_ratio is None
            else [
                "",
                f"xcray's peak memory in addition to the finished model: {memory_ratio:.2f} times X.",
            ]
        )
        parts.append("\n".join([f"**{name}**", "", HEAD, *lines, *memory, ""]))
    return "\n".join(parts)


def line(row: dict[str, Any], against: dict[str, Any] | None) -> str:
    """Format one row of Markdown."""
    if "failed" in row:
        return f"| {row['title']} | failed: {row['failed']} |||||||"
    about = "~" if row["extrapolated"] else ""
    cells = [
        row["title"],
        f"{row['ms_a_class']:.3g}",
        f"{about}{row['core_seconds_all_labels']:.3g}",
        " / ".join(f"{row[k]:.2f}" for k in ("P@1", "P@3", "P@5") if k in row),
        f"{row['sample']['P@1']:.2f}" if "sample" in row else "",
        f"{row['model_bytes'] / 1e6:.3g}" if not row["extrapolated"] else "",
        f"{row['peak_bytes'] / 1e6:.0f}",
        f"{against['times_faster']:.3g} x" if against else "",
    ]
    return "| " + " | ".join(cells) + " |"
