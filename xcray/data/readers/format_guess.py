"""The format that the first bytes of a file look like, for files given as another format."""

from __future__ import annotations

import re
from typing import Final

from xcray.storage.git_lfs import LFS_FIX, LFS_POINTER, LFS_PROBLEM

FASTTEXT_PREFIX: Final = "__label__"
HEAD_LINES: Final = 4
JSON_OBJECT = re.compile(rb'[ \t]*\{[ \t]*["}]')
JSON_ARRAY = re.compile(rb'[ \t]*\[[ \t]*([\[{"]|$)')
SVMLIGHT_ROW = re.compile(rb"[0-9,.+-]*([ \t]+[0-9]+:[0-9.eE+-]+)+[ \t]*(#.*)?")
FEATURE = re.compile(rb"[ \t]*[0-9]+:")
XC_HEADER = re.compile(rb"[ \t]*[0-9]+([ \t]+[0-9]+){1,2}[ \t]*")
FIXES: Final = {
    "jsonl": "format=jsonl?",
    "json": "write one object per line: jq -c '.[]' file.json",
    "fasttext": "format=fasttext?",
    "xc": "format=xc, the XC repository format?",
    "xc features": "format=xc, and labels_file for the labels?",
    "svmlight": "format=svmlight, and zero_based if indices start at 0?",
    "csv": "format=csv?",
    "tsv": "format=tsv?",
    "parquet": "format=parquet?",
    "npz": "build a data set of it: format=npz",
    "npy": "build a data set of it: format=npy",
    "git-lfs": LFS_FIX,
}
LOOKS: Final = {
    "json": "looks like JSON",
    "jsonl": "looks like JSON",
    "fasttext": "looks like fastText",
    "xc": "begins with an XC header 'N D K'",
    "xc features": "begins with an XC header 'N D' of features or labels alone",
    "svmlight": "looks like svmlight",
    "csv": "looks like CSV",
    "tsv": "looks like a table with tabs",
    "parquet": "looks like Parquet",
    "npz": "looks like arrays of numpy.savez",
    "npy": "looks like an array of numpy.save",
    "git-lfs": LFS_PROBLEM,
}


# formats of lines -> what a file of this format cannot look like
REFUSED: Final = {
    "svmlight": ("json", "jsonl", "fasttext", "xc", "xc features", "csv", "tsv"),
    "jsonl": ("json", "fasttext", "xc", "xc features", "svmlight", "csv", "tsv"),
    "csv": ("json", "jsonl", "fasttext", "xc", "xc features", "svmlight"),
    "tsv": ("json", "jsonl", "fasttext", "xc", "xc features", "svmlight"),
    "fasttext": ("json", "jsonl", "xc", "xc features", "svmlight"),
    "text": ("fasttext",),
    "label names": ("jsonl", "fasttext"),
}


def guess_format(head: bytes) -> str | None:
    """Return the format that the first bytes of a file look like: a key of FIXES, or None."""
    if head.startswith(LFS_POINTER):
        return "git-lfs"
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(b"\x93NUMPY"):
        return "npy"
    if head.startswith(b"PK\x03\x04"):
        return "npz" if b".npy" in head[:100] else None
    return None if b"\0" in head else _guess_text(head)


def _guess_text(head: bytes) -> str | None:
    """Return the format that the first lines of a text file look like."""
    lines = [
        line.rstrip(b"\r") for line in head[: 1 << 16].removeprefix(b"\xef\xbb\xbf").split(b"\n")
    ]
    lines = [line for line in lines[:HEAD_LINES] if line.strip() and not line.startswith(b"#")]
    if not lines:
        return None
    first = lines[0]
    if JSON_OBJECT.match(first):
        return "jsonl"
    if JSON_ARRAY.match(first):
        return "json"
    if any(line.startswith(FASTTEXT_PREFIX.encode()) for line in lines):
        return "fasttext"
    if XC_HEADER.fullmatch(first) and len(first.split()) == 3:
        return "xc"
    if XC_HEADER.fullmatch(first) and len(lines) > 1 and FEATURE.match(lines[1]):
        return "xc features"
    if SVMLIGHT_ROW.fullmatch(first):
        return "svmlight"
    if looks_like_table(lines):
        return "tsv" if b"\t" in first and b"," not in first else "csv"
    return None


def looks_like_table(lines: list[bytes]) -> bool:
    """Whether lines look like CSV.

    They have no colon, and either a header of words or the same number of commas, semicolons or
    tabs.
    """
    first = lines[0] if lines else b""
    for mark in (b",", b";", b"\t"):
        counts = [line.count(mark) for line in lines]
        if counts and counts[0] and not any(b":" in line for line in lines):
            words = any(c.isalpha() for c in first.decode("utf-8", "replace"))
            if words or (
                len(lines) > 2
                and len(set(counts[:3])) == 1
                and not any(b" " in line for line in lines)
            ):
                return True
    return False
