"""Rows C1 to C20: CSV and other tables."""

from __future__ import annotations

import gzip

from tests.robustness.badinput.case import Bad, Good, tarred, zipped

BAD = [
    Bad("C1", b"text,labels\na,1\nb,2,3\n", "CSV_FIELDS", 3, says="3 fields, 2 are expected"),
    Bad("C2", b'text,labels\n"a,1\nb,2\n', "CSV_QUOTE", 2, 1, says="never closed"),
    Bad("C2-inside", b'text,labels\n5" disk,1\n', "CSV_QUOTE", 2, 2, hint="double"),
    Bad("C2-after", b'text,labels\n"a"b,1\n', "CSV_QUOTE", 2, 4),
    Bad("C4", b"text;labels\na;1\n", "CSV_ONE_COLUMN", 1, hint="';'"),
    Bad("C4-tab", b"text\tlabels\na\t1\n", "CSV_ONE_COLUMN", 1, hint="\\t"),
    Bad("C5", b"a good book,1\nanother,2\n", "CSV_HEADER", 1, hint="header=false"),
    Bad("C5-twice", b"text,labels,text\na,1,b\n", "CSV_HEADER", 1, value="text"),
    Bad("C5-empty", b"text,,labels\na,1,b\n", "CSV_HEADER", 1, value=""),
    Bad("C6", b"text,labels\ncaf\xe9,1\n", "ENCODING", 2, 4, "\\xe9,1", says="offset 15"),
    Bad("C7", b"text,labels\na\x00b,1\n", "BINARY_DATA", 2, 2, says="offset 13"),
    Bad(
        "C9",
        b"text,labels\n" + b"a" * 200 + b",1\n",
        "FIELD_TOO_LONG",
        2,
        options={"max_field_bytes": 100},
    ),
    Bad(
        "C9-quoted",
        b'text,labels\n"' + b"a\n" * 200 + b'",1\n',
        "FIELD_TOO_LONG",
        2,
        1,
        options={"max_field_bytes": 100},
    ),
    Bad(
        "C9-line",
        b"text,labels\n" + b"a" * 200 + b",1\n",
        "FIELD_TOO_LONG",
        2,
        options={"max_line_bytes": 100},
    ),
    Bad("C10", b"text,labels\na,1\n ,2\n", "EMPTY_TEXT", 3),
    Bad(
        "C14",
        b"text,labels\nsome words,x\nmore words,x|z\n",
        "LABEL_UNKNOWN",
        3,
        value="z",
        options={"label_names_file": "labels.txt"},
        more={"labels.txt": b"y\nx\n"},
    ),
    Bad("C14-inside", b'text,labels\nsome words,"x|"\n', "LABEL_EMPTY", 2, hint="separator"),
    Bad(
        "C15",
        b'text,labels\na,"1,000"\n',
        "LABEL_NOT_INT",
        2,
        value="1,000",
        options={"label_ids": True},
    ),
    Bad(
        "C15-point",
        b"text,labels\na,1.5\n",
        "LABEL_NOT_INT",
        2,
        value="1.5",
        options={"label_ids": True},
    ),
    Bad("C16", zipped("[Content_Types].xml", "xl/workbook.xml"), "FORMAT_MISMATCH", says="xlsx"),
    Bad("C17", b"text,labels\ra,1\r", "LINE_ENDING", 1),
    Bad("C17-mixed", b"text,labels\r\na,1\rb,2\n", "LINE_ENDING", 2, 4),
    Bad(
        "C19",
        gzip.compress(b"text,labels\n" + b"a,1\n" * (1 << 18)),
        "DECOMPRESSED_LIMIT",
        options={"max_decompressed": 1 << 19},
        name="train.csv.gz",
    ),
    Bad("C20", zipped("train.csv"), "ARCHIVE_REFUSED"),
    Bad("C20-named", zipped("train.csv"), "ARCHIVE_REFUSED", name="train.zip"),
    Bad("C20-tar", tarred(), "ARCHIVE_REFUSED", says="tar"),
    Bad("C20-tar-gz", gzip.compress(tarred()), "ARCHIVE_REFUSED", name="train.csv.gz"),
    Bad("empty", b"text,labels\n", "EMPTY_FILE"),
    Bad("empty-label", b"text,labels\na,1||2\n", "LABEL_EMPTY", 2),
    Bad("no-labels", b"text,labels\nsome words,\n", "NO_POSITIVES"),
]

GOOD = [
    Good(
        "C3",
        b'text,labels\n"two\r\nlines of ""text""",x\nmore words,y\n',
        labels=["x", "y"],
        warnings={},
    ),
    Good(
        "C8",
        b"\xef\xbb\xbftext,labels\nsome words,x\nmore words,y\n",
        labels=["x", "y"],
        warnings={},
    ),
    Good(
        "C11",
        b"text,labels\n??,x\nmore words,y\n",
        labels=["x", "y"],
        warnings={"rows_without_features": 1},
    ),
    Good(
        "C12",
        b"text,labels\n=cmd()|words,=cmd()\nmore words,y\n",
        labels=["=cmd()", "y"],
        warnings={},
    ),
    Good(
        "C13",
        "text,labels\ncafe\u0301 zero\u200bwidth half,e\u0301\ncaf\u00e9 zerowidth half,\u00e9\n".encode(),
        labels=["\u00e9"],
        warnings={},
    ),
    Good(
        "C17-lines",
        b"text,labels\r\nsome words,x\nmore words,y\r\n",
        labels=["x", "y"],
        warnings={},
    ),
    Good("C18", b"text,labels\nNaN NULL,NA\nnull words,NULL\n", labels=["NA", "NULL"], warnings={}),
    Good(
        "separators and blanks",
        b"text,labels\nsome words, x | y |x\nmore words,\n",
        labels=["x", "y"],
        warnings={"duplicate_labels": 1, "rows_without_labels": 1},
    ),
    Good(
        "blank lines",
        b"text,labels\n\nsome words,x\n\n\nmore words,y\n\n",
        labels=["x", "y"],
        warnings={},
    ),
]
