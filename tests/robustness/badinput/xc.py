"""Rows X1 to X16: the format of the Extreme Classification repository."""

from __future__ import annotations

from tests.robustness.badinput.case import LFS, Bad, Good

BAD = [
    Bad("X1", b"1 0:1\n2 0:1\n", "XC_NO_HEADER", 1, 1, hint="svmlight"),
    Bad("X1-comment", b"# made by hand\n1 0:1\n", "XC_NO_HEADER", 1, hint="svmlight"),
    Bad("X1-json", b'{"text": "a", "labels": ["x"]}\n', "XC_NO_HEADER", 1, hint="jsonl"),
    Bad("X1-fasttext", b"__label__a some words\n", "XC_NO_HEADER", 1, hint="fasttext"),
    Bad("X1-tsv", b"text\tlabels\nwords\tx\n", "XC_NO_HEADER", 1, hint="tsv"),
    Bad("X1-lfs", LFS, "FORMAT_MISMATCH", hint="git lfs pull"),
    Bad("X2", b"2 5\n1 0:1\n", "XC_HEADER_FIELDS", 1, says="2 fields", hint="labels_file"),
    Bad("X2-four", b"2 5 5 5\n1 0:1\n", "XC_HEADER_FIELDS", 1, says="4 fields"),
    Bad("X3", b"0 5 5\n", "XC_HEADER_RANGE", 1, 1, "0"),
    Bad("X3-minus", b"-1 5 5\n", "XC_HEADER_RANGE", 1, 1, "-1"),
    Bad("X3-labels", b"5 5 0\n", "XC_HEADER_RANGE", 1, 5, "0"),
    Bad("X4", b"2.0 5 5\n", "XC_HEADER_NOT_INT", 1, 1, "2.0"),
    Bad("X4-e", b"2e3 5 5\n", "XC_HEADER_NOT_INT", 1, 1, "2e3"),
    Bad("X4-word", b"two 5 5\n", "XC_HEADER_NOT_INT", 1, 1, "two"),
    Bad("X5-rows", b"1000000000000 5 5\n1 0:1\n", "XC_HEADER_LIMIT", 1, 1),
    Bad("X5-features", b"1 1000000000000 5\n1 0:1\n", "XC_HEADER_LIMIT", 1, 3),
    Bad("X5-labels", b"1 5 1000000000000\n1 0:1\n", "XC_HEADER_LIMIT", 1, 5),
    Bad("X6", b"9223372036854775808 5 5\n", "XC_HEADER_LIMIT", 1, 1),
    Bad("X6-20", b"5 99999999999999999999 5\n", "XC_HEADER_LIMIT", 1, 3),
    Bad("X6-5000", b"5 5 " + b"9" * 5000 + b"\n", "XC_HEADER_LIMIT", 1, 5),
    Bad("X7", b"3 5 5\n1 0:1\n2 0:1\n", "XC_ROW_COUNT", says="3 rows, the file has 2"),
    Bad("X8", b"1 5 5\n1 0:1\n2 0:1\n", "XC_ROW_COUNT", 3, says="more rows than the 1"),
    Bad("X8-comments", b"2 5 5\n# a\n1 0:1\n1 0:1 # b\n# c\n2 0:1\n", "XC_ROW_COUNT", 6),
    Bad("X8-blank", b"2 5 5\n1 0:1\n\n2 0:1\n", "XC_ROW_COUNT", 4, hint="count as rows"),
    Bad(
        "X15-three",
        b"1 5 5\n1 0:1\n",
        "XC_HEADER_FIELDS",
        1,
        hint="leave labels_file out",
        options={"labels_file": "labels.txt"},
        more={"labels.txt": b"1 2\n0:1\n"},
    ),
    Bad("X9", b"1 5 5\n1 5:1\n", "SVM_INDEX_RANGE", 2, 3, "5", hint="start at 0"),
    Bad("X10", b"1 5 5\n5 0:1\n", "LABEL_RANGE", 2, 1, "5", says="labels, 5"),
    Bad("X11", b"2 5 5\n", "XC_ROW_COUNT", says="2 rows, the file has 0"),
    Bad("X11-no-newline", b"2 5 5", "XC_ROW_COUNT"),
    Bad("X13", b"2 5 5\n1 0:1\n2 5 5\n1 0:1\n", "XC_HEADER_TWICE", 3, 1, hint="joined"),
    *(
        Bad(
            f"X15-{n}-{m}",
            b"%d 4\n" % n + b"0:1\n" * n,
            "ROW_MISMATCH",
            says=f"{n} rows of features, but {m} rows of labels",
            options={"labels_file": "labels.txt"},
            more={"labels.txt": b"%d 2\n" % m + b"1:1\n" * m},
        )
        for n, m in ((3, 2), (2, 3))
    ),
    *(
        Bad(
            f"X15-split-{name}",
            b"3 4 2\n0 0:1\n0 1:1\n0 2:1\n",
            "SPLIT_RANGE",
            line,
            options={"test_rows_file": "split.txt"},
            more={"split.txt": data},
            file="split.txt",
        )
        for name, data, line in (
            ("range", b"1\n5\n", 2),
            ("zero", b"0\n", 1),
            ("twice", b"1\n2\n1\n", 3),
            ("word", b"1\n2.5\n", 2),
            ("long", b"9" * 30, 1),
        )
    ),
    Bad("X16", b"1 5 5\n1, 3 2:4\n", "LABEL_EMPTY", 2, 3, hint="comma"),
    Bad(
        "S46-xc-features",
        b"1 5 2\n0 0:1\n",
        "DIM_MISMATCH",
        test=b"1 6 2\n0 1:1\n",
        file="test.txt",
        says="6 features, 5",
    ),
    Bad(
        "S46-xc-labels",
        b"1 5 2\n0 0:1\n",
        "DIM_MISMATCH",
        test=b"1 5 3\n0 1:1\n",
        file="test.txt",
        says="3 labels, 2",
    ),
    Bad("X-empty", b"", "EMPTY_FILE"),
    Bad(
        "X-fields-asked", b"1 5 5\n1 0:1\n", "DIM_MISMATCH", 1, says="4", options={"n_features": 4}
    ),
]

GOOD = [
    Good(
        "X17 empty rows",
        b"4 3 2\n1 0:1\n\n \n0,1\n\n",
        [[1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]],
        [[0, 1], [0, 0], [0, 0], [1, 1]],
        warnings={"rows_without_features": 3, "rows_without_labels": 2},
    ),
    Good("X12", b"1 \t3 2 \t\r\n1 0:1 2:2\n", [[1, 0, 2]], [[0, 1]]),
]
