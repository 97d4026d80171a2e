"""Catalogue of data error codes, each with its meaning and a default fix.

docs/error_codes.py makes a page of it.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class ErrorCode(NamedTuple):
    """Meaning of a code, and how to fix the error."""

    meaning: str
    fix: str


FILES: Final = {
    "ARCHIVE_REFUSED": ErrorCode("the file is an archive", "unpack it and give one file"),
    "BINARY_DATA": ErrorCode(
        "a zero byte in a text file", "check that it is a text file; give its actual format"
    ),
    "CHANGED": ErrorCode(
        "the file was changed while it was read", "try again when no process writes to it"
    ),
    "COMPRESSED": ErrorCode(
        "the file is compressed, but its name lacks the suffix",
        "decompress it, or use .gz, .xz or .bz2",
    ),
    "COMPRESSED_CORRUPT": ErrorCode(
        "the file can't be decompressed", "send it again, or decompress it"
    ),
    "DECOMPRESSED_LIMIT": ErrorCode(
        "the file grows too much when unpacked",
        "unpack it yourself, or raise max_decompressed and max_expansion",
    ),
    "EMPTY_FILE": ErrorCode("the file has no rows", "give a file with at least one row"),
    "ENCODING": ErrorCode("text that is not UTF-8", "save the file as UTF-8"),
    "FORMAT_MISMATCH": ErrorCode("the file looks like another format", "give its actual format"),
    "LINE_ENDING": ErrorCode(
        "a CR where a line should end", "convert line ends to LF: tr '\\r' '\\n'"
    ),
    "LINE_TOO_LONG": ErrorCode(
        "a line longer than max_line_bytes",
        "check the line ends; if this is intended, raise max_line_bytes",
    ),
    "UPLOAD_TRUNCATED": ErrorCode(
        "the upload has not its declared SHA-256, or the file ends inside a value",
        "send the file again",
    ),
}
LINES: Final = {
    "DIM_LIMIT": ErrorCode(
        "an id beyond max_features or max_labels",
        "if this is intended, raise max_features or max_labels",
    ),
    "LABEL_EMPTY": ErrorCode(
        "an empty label", "write a label between separators, and no separator after the last label"
    ),
    "LABEL_INDICATORS": ErrorCode(
        "a list of 0 and 1 in place of labels",
        "write the numbers or names of the labels that are 1; for columns of 0 and 1, use "
        "label_columns",
    ),
    "LABEL_MISSING": ErrorCode(
        "a line begins with a feature", "if the line has no labels, begin it with a blank"
    ),
    "LABEL_NOT_INT": ErrorCode(
        "a label is not a whole number", "write labels as whole numbers 0, 1, ... separated by ','"
    ),
    "LABEL_RANGE": ErrorCode(
        "a label is below 0, or not below K; or a cell of a label matrix is neither 0 nor 1",
        "use labels 0, 1, ..., K - 1, or set K with n_labels; in a matrix, write 1 and 0",
    ),
    "SVM_BAD_INDEX": ErrorCode(
        "an index is not a whole number", "write features as index:value, the index in ASCII digits"
    ),
    "SVM_BAD_VALUE": ErrorCode(
        "a value is not a number", "write decimal numbers such as 1, -0.5 or 2e-3"
    ),
    "SVM_BLANK_LINE": ErrorCode(
        "a blank line between rows",
        "remove it; after a header 'N D K' (format=xc) it is a row without labels and features",
    ),
    "SVM_DUP_INDEX": ErrorCode("an index occurs twice in a row", "write each index once per row"),
    "SVM_INDEX_RANGE": ErrorCode(
        "an index is below the first feature, or above the last", "correct it, or set n_features"
    ),
    "SVM_NOT_FINITE": ErrorCode(
        "a value is nan, inf, or too large for float32",
        "leave the feature out, or write a finite number",
    ),
    "SVM_NO_COLON": ErrorCode(
        "a feature without a colon",
        "write features as index:value, labels first and separated by ','",
    ),
    "SVM_QID": ErrorCode("ranking data (qid)", "remove the qid fields"),
}
XC: Final = {
    "ROW_MISMATCH": ErrorCode(
        "two files with different numbers of rows", "give the two files of the same rows"
    ),
    "SPLIT_RANGE": ErrorCode(
        "a split file has an invalid or repeated row number",
        "write each row number from 1 to N at most once, one per line",
    ),
    "XC_HEADER_FIELDS": ErrorCode(
        "a header with too many or too few numbers",
        "begin the file with one line 'N D K': rows, features, labels",
    ),
    "XC_HEADER_LIMIT": ErrorCode(
        "a header with numbers beyond the limits",
        "correct it, or raise max_rows, max_features, max_labels",
    ),
    "XC_HEADER_NOT_INT": ErrorCode(
        "a header with a field that is not a whole number",
        "write the counts in digits: 1000 500 20",
    ),
    "XC_HEADER_RANGE": ErrorCode(
        "a header with a count below 1",
        "write the counts of rows, features and labels, each at least 1",
    ),
    "XC_HEADER_TWICE": ErrorCode(
        "a second header",
        "if two files were joined, give them separately, or remove the inner header",
    ),
    "XC_NO_HEADER": ErrorCode(
        "the header is missing", "read it with format=svmlight, or add the header"
    ),
    "XC_ROW_COUNT": ErrorCode(
        "the number of rows differs from the header",
        "check that the file is complete, or correct the header 'N D K'",
    ),
}
TEXTS: Final = {
    "CSV_FIELDS": ErrorCode(
        "a row with more or fewer fields than the header",
        "put a field that contains the delimiter in quotes",
    ),
    "CSV_HEADER": ErrorCode(
        "a header with an empty, repeated or missing name",
        "give each field a unique name, and add the required fields",
    ),
    "CSV_ONE_COLUMN": ErrorCode(
        "a file with another delimiter", "read it with delimiter=';', or its actual delimiter"
    ),
    "CSV_QUOTE": ErrorCode(
        "a quote that is not closed, or in a wrong place",
        'quote the field and double quotes inside: "5"" disk"',
    ),
    "EMPTY_TEXT": ErrorCode("an empty text", "remove the record, or skip bad records"),
    "FIELD_MISSING": ErrorCode(
        "a missing field or column",
        "name the fields with text_fields and label_field, or columns of 0 and 1 with "
        "label_columns",
    ),
    "FIELD_TOO_LONG": ErrorCode(
        "a field longer than max_field_bytes",
        "close its opening quote if it has one; or raise max_field_bytes",
    ),
    "FIELD_TYPE": ErrorCode(
        "a field of a wrong type", "write texts as strings, labels as a list of strings"
    ),
    "JSON_DEPTH": ErrorCode("JSON that is nested too deeply", "write one flat object per line"),
    "JSON_DUP_KEY": ErrorCode("a name occurs twice in an object", "write each name once"),
    "JSON_INVALID": ErrorCode(
        "a line that is not valid JSON", "write one object per line, with a JSON library"
    ),
    "LABEL_DUPLICATE": ErrorCode("a label occurs twice in the names file", "write each name once"),
    "LABEL_UNKNOWN": ErrorCode("a label that the names file lacks", "add it to that file"),
}
PARQUET: Final = {
    "DIM": ErrorCode(
        "a dense row of another length",
        "write a value for every feature, or add a column of indices",
    ),
    "DUP_INDEX": ErrorCode("an index occurs twice in a row", "write each index once per row"),
    "INDEX_RANGE": ErrorCode(
        "an index is below 0, or not below D",
        "use indices 0, 1, ..., D - 1, or set D with n_features",
    ),
    "NOT_FINITE": ErrorCode(
        "a value is nan, inf, or too large for float32",
        "leave the entry out, or write a finite number",
    ),
    "NULL_VALUE": ErrorCode("a null value", "leave the row out, or write an empty list"),
    "PARQUET_CODEC": ErrorCode("an unsupported compression", "write it with zstd, snappy or none"),
    "PARQUET_COLUMN": ErrorCode(
        "a missing or repeated column",
        "name columns with text_fields and label_field, or columns of 0 and 1 with label_columns",
    ),
    "PARQUET_CORRUPT": ErrorCode(
        "a page that can't be read, or has a wrong checksum",
        "write the file again, and send the complete file",
    ),
    "PARQUET_ENCRYPTED": ErrorCode("an encrypted file", "write it without encryption"),
    "PARQUET_INVALID": ErrorCode(
        "a file that is too small, or has an invalid footer",
        "write the file again, and send the complete file",
    ),
    "PARQUET_LIMIT": ErrorCode(
        "a footer, schema or nesting beyond the limits",
        "write only the needed columns, in row groups of some ten thousand rows",
    ),
    "PARQUET_TRUNCATED": ErrorCode(
        "no footer at the end", "write the file again, and send the complete file"
    ),
    "PARQUET_TYPE": ErrorCode(
        "a column of an unsupported type", "cast the column to the expected type"
    ),
    "ROW_LENGTHS": ErrorCode(
        "different numbers of indices and values in a row", "write one value per index"
    ),
    "SCHEMA_MISMATCH": ErrorCode(
        "two files with different column layouts", "give both files the same columns and types"
    ),
}
NUMPY: Final = {
    "NPY_INVALID": ErrorCode(
        "a file that is not of NumPy, or with an array of objects",
        "write it with numpy.save or numpy.savez, in C order",
    ),
    "NPY_SHAPE": ErrorCode(
        "a missing array, or one of the wrong shape or type",
        "give X (rows, features), and y (rows,) or (rows, labels) of whole numbers",
    ),
}
SETS: Final = {
    "DIM_MISMATCH": ErrorCode(
        "two parts of different widths", "read both with the same n_features and n_labels"
    ),
    "NO_POSITIVES": ErrorCode("no row has a label", "give at least one row a label"),
}
GROUPS: Final = {
    "Files": FILES,
    "svmlight and XC": LINES,
    "XC": XC,
    "Text": TEXTS,
    "Parquet": PARQUET,
    "NumPy": NUMPY,
    "Whole sets": SETS,
}
CODES: Final = {code: entry for group in GROUPS.values() for code, entry in group.items()}


def default_fix(code: str) -> str | None:
    """Return the default fix of a code; None for codes that are not in this table."""
    return CODES[code].fix if code in CODES else None
