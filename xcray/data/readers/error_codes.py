"""Every code that reading data can end with: what it means, and how to mend it where the place says nothing better.

The table of docs/formats.md is this one, which a test compares.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Code(NamedTuple):
    """What a code means, and the mend, both for people."""

    meaning: str
    mend: str


FILES: Final = {
    "ARCHIVE_REFUSED": Code("an archive of files", "unpack it and give one file"),
    "BINARY_DATA": Code(
        "a zero byte in a text file", "is this a text file? name the format that it has"
    ),
    "CHANGED": Code(
        "the file was written to while it was read", "begin again when nobody writes to it"
    ),
    "COMPRESSED": Code(
        "looks compressed, and its name does not say so", "decompress it, or use .gz, .xz or .bz2"
    ),
    "COMPRESSED_CORRUPT": Code("can't be decompressed", "send it again, or decompress it"),
    "DECOMPRESSED_LIMIT": Code(
        "grows too much when unpacked",
        "unpack it yourself, or raise max_decompressed and max_expansion",
    ),
    "EMPTY_FILE": Code("no row in it", "give a file with at least one row"),
    "ENCODING": Code("not UTF-8", "save the file as UTF-8"),
    "FORMAT_MISMATCH": Code("looks like another format", "name the format that it has"),
    "LINE_ENDING": Code("a CR where a line should end", "convert line ends to LF: tr '\\r' '\\n'"),
    "LINE_TOO_LONG": Code(
        "a line beyond max_line_bytes",
        "is the file one line? if lines may be so long, raise max_line_bytes",
    ),
    "UPLOAD_TRUNCATED": Code(
        "not the bytes that were declared, or cut inside a value", "send the file again"
    ),
}
LINES: Final = {
    "DIM_LIMIT": Code(
        "an id beyond max_features or max_labels", "if that is meant, raise the limit"
    ),
    "LABEL_EMPTY": Code(
        "an empty label", "give a label between separators, and none after the last one"
    ),
    "LABEL_MISSING": Code(
        "a line begins with a feature", "begin the line with a blank when it has no labels"
    ),
    "LABEL_NOT_INT": Code(
        "a label that is no whole number", "labels are whole numbers 0, 1, ... separated by ','"
    ),
    "LABEL_RANGE": Code(
        "a label below 0, or not below K", "labels are 0, 1, ..., K - 1; n_labels tells K"
    ),
    "SVM_BAD_INDEX": Code(
        "an index that is no whole number",
        "write features as index:value, the index in ASCII digits",
    ),
    "SVM_BAD_VALUE": Code("a value that is no number", "write decimal numbers as 1, -0.5 or 2e-3"),
    "SVM_BLANK_LINE": Code(
        "a blank line between rows", "remove it; a row without labels and features is not kept"
    ),
    "SVM_DUP_INDEX": Code("an index twice in a row", "give each index once in a row"),
    "SVM_INDEX_RANGE": Code(
        "an index below the first feature, or above the last", "correct it, or tell n_features"
    ),
    "SVM_NOT_FINITE": Code(
        "nan, inf, or beyond float32", "leave the feature out, or write a finite number"
    ),
    "SVM_NO_COLON": Code(
        "a feature without colon",
        "write features as index:value, labels first and separated by ','",
    ),
    "SVM_QID": Code("ranking data (qid)", "remove the qid fields"),
}
XC: Final = {
    "ROW_MISMATCH": Code(
        "two files with other numbers of rows", "give the two files of the same rows"
    ),
    "SPLIT_RANGE": Code(
        "a split file names no row, or one twice",
        "give each row number from 1 to N at most once, one a line",
    ),
    "XC_HEADER_FIELDS": Code(
        "a header of more or fewer numbers",
        "begin the file with one line 'N D K': rows, features, labels",
    ),
    "XC_HEADER_LIMIT": Code(
        "a header that claims more than the limits",
        "correct it, or raise max_rows, max_features, max_labels",
    ),
    "XC_HEADER_NOT_INT": Code(
        "a header with something else than whole numbers", "write the counts in digits: 1000 500 20"
    ),
    "XC_HEADER_RANGE": Code(
        "a header with a count below 1",
        "write the counts of rows, features and labels, each at least 1",
    ),
    "XC_HEADER_TWICE": Code(
        "a second header", "two files joined? give them apart, or remove the inner header"
    ),
    "XC_NO_HEADER": Code("no header", "read it with format=svmlight, or add the header"),
    "XC_ROW_COUNT": Code(
        "other rows than the header tells", "is the file cut short? else correct the header 'N D K'"
    ),
}
TEXTS: Final = {
    "CSV_FIELDS": Code(
        "a row with other fields than the header", "put a field with a delimiter inside in quotes"
    ),
    "CSV_HEADER": Code(
        "a header with an empty, repeated or missing name",
        "give each field a name, and those that are asked for",
    ),
    "CSV_ONE_COLUMN": Code(
        "another delimiter", "read it with delimiter=';', or whatever stands between fields"
    ),
    "CSV_QUOTE": Code(
        "a quote that is not closed, or in a wrong place",
        'quote the field and double quotes inside: "5"" disk"',
    ),
    "EMPTY_TEXT": Code("a text of nothing", "remove the record, or skip bad ones"),
    "FIELD_MISSING": Code(
        "a field or column that is not there", "name the fields with text_fields and label_field"
    ),
    "FIELD_TOO_LONG": Code(
        "a field beyond max_field_bytes",
        "is the quote that opens it closed? else raise max_field_bytes",
    ),
    "FIELD_TYPE": Code(
        "a field of another type", "write texts as strings, labels as a list of strings"
    ),
    "JSON_DEPTH": Code("nested too deeply", "write one flat object a line"),
    "JSON_DUP_KEY": Code("a name twice in an object", "give each name once"),
    "JSON_INVALID": Code("not JSON", "write one object a line, as a JSON library writes it"),
    "LABEL_DUPLICATE": Code("a label named twice in the file of names", "give each name once"),
    "LABEL_UNKNOWN": Code("a label that the file of names lacks", "add it there"),
}
PARQUET: Final = {
    "DIM": Code(
        "a dense row of another length",
        "give a value for every feature, or indices with the values",
    ),
    "DUP_INDEX": Code("an index twice in a row", "give each index once in a row"),
    "INDEX_RANGE": Code(
        "an index below 0, or not below D", "indices are 0, 1, ..., D - 1; n_features tells D"
    ),
    "NOT_FINITE": Code(
        "nan, inf, or beyond float32", "leave the entry out, or write a finite number"
    ),
    "NULL_VALUE": Code("a null", "leave the row out, or write an empty list"),
    "PARQUET_CODEC": Code("compressed in an unknown way", "write it with zstd, snappy or none"),
    "PARQUET_COLUMN": Code(
        "a column that is not there, or twice", "name columns by text_fields, label_field"
    ),
    "PARQUET_CORRUPT": Code(
        "a page that can't be read, or has another checksum",
        "write the file again, and send it whole",
    ),
    "PARQUET_ENCRYPTED": Code("encrypted", "write it without encryption"),
    "PARQUET_INVALID": Code(
        "too small, or a footer that does not fit", "write the file again, and send it whole"
    ),
    "PARQUET_LIMIT": Code(
        "a footer, schema or nesting beyond the limits",
        "write the columns that are needed alone, in row groups of some ten thousand rows",
    ),
    "PARQUET_TRUNCATED": Code("no footer at the end", "write the file again, and send it whole"),
    "PARQUET_TYPE": Code(
        "a column of another type", "cast the column to the type that is expected"
    ),
    "ROW_LENGTHS": Code("other numbers of indices and of values", "give as many indices as values"),
    "SCHEMA_MISMATCH": Code(
        "two files whose columns are read otherwise", "give both files the same columns and types"
    ),
}
SETS: Final = {
    "DIM_MISMATCH": Code(
        "two parts of other widths", "read both with the same n_features and n_labels"
    ),
    "NO_POSITIVES": Code("no row has a label", "give at least one row a label"),
}
GROUPS: Final = {
    "Files": FILES,
    "svmlight and XC": LINES,
    "XC": XC,
    "Text": TEXTS,
    "Parquet": PARQUET,
    "Whole sets": SETS,
}
CODES: Final = {code: told for group in GROUPS.values() for code, told in group.items()}


def mend(code: str) -> str | None:
    """How to mend what a code stands for; None for codes that are not of this table."""
    return CODES[code].mend if code in CODES else None
