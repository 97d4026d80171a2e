"""Line files: planned in one pass that counts rows, then read one byte range per chunk.

svmlight and XC use the readers of data sets, so the same lines are accepted and the same errors are
reported. A compressed file is unpacked first, because reading cannot start in the middle of it.
Rows are numbered from 0. Blank lines and comments are not rows, except in format text, in which
every line is a row.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from xcray.arrays import CSR, Int64, csr
from xcray.batch.plan import BatchPlan, Chunk, changed_error, make_input_file, rows_per_part
from xcray.batch.row_schema import (
    DENSE,
    SPARSE,
    TEXT,
    RowBatch,
    RowSchema,
    TextColumns,
    infer_schema,
)
from xcray.batch.spec import BatchPredictSpec
from xcray.batch.tables import DELIMITERS, row_error, write_json_lines
from xcray.data.readers.blocks import BOM, OPENERS, LineBlock, Source
from xcray.data.readers.columns import dense_rows, sparse_rows
from xcray.data.readers.error_log import ErrorCollector
from xcray.data.readers.labels import has_half_surrogate
from xcray.data.readers.lines import TextLine
from xcray.data.readers.options import ReadOptions
from xcray.data.readers.records import json_object, split_fasttext
from xcray.data.readers.svmlight import BlockReader
from xcray.data.readers.svmlight_line import LineParser
from xcray.data.readers.xc import parse_header
from xcray.data.text.fields import cell_text, join_fields
from xcray.errors import DataError
from xcray.kernels.parse import LineBounds

TEXT_FORMATS: Final = ("jsonl", "fasttext", "text")
ROWS_PER_OFFSET: Final = 1024  # rows between two possible chunk starts
MAX_CHUNK_BYTES: Final = 64 << 20  # approximate
# Recorded chunk starts of 24 bytes: enough for a terabyte of text, or for the smallest parts.
MAX_OFFSETS: Final = 1 << 18
BLANK_LINES: Final = {
    "svmlight": re.compile(rb"[ \t\r]*(?:\n|\Z|#)"),
    "jsonl": re.compile(rb"[ \t\r]*(?:\n|\Z)"),
}
# a blank line is a row without features
BLANK_LINES["fasttext"] = BLANK_LINES["jsonl"]
BLANK_LINES["xc"] = re.compile(rb"[ \t\r]*#")
# First bytes of lines that are possibly not rows.
DOUBTFUL_BYTES: Final = np.frombuffer(b"\n\r \t#", np.uint8)


class _ChunkOffsets:
    """Possible chunk starts, every `grain` rows: row, offset and line of each.

    Every second one is dropped if there are too many.
    """

    def __init__(self, offset: int, line: int, grain: int) -> None:
        self.rows = array("q", [0])
        self.offsets = array("q", [offset])
        self.lines = array("q", [line])
        self.grain = grain

    def add(self, row: int, offset: int, line: int) -> None:
        """Add a start, unless it equals the last one."""
        if row > self.rows[-1]:
            for values, value in zip(
                (self.rows, self.offsets, self.lines), (row, offset, line), strict=True
            ):
                values.append(value)
        if len(self.rows) > MAX_OFFSETS:
            self.rows, self.offsets, self.lines = self.rows[::2], self.offsets[::2], self.lines[::2]
            self.grain *= 2


class _LineErrorCollector(ErrorCollector):
    """An error collector that also records the numbers of all invalid lines."""

    def __init__(self, keep: int, skip: bool) -> None:
        super().__init__(keep, skip)
        self.lines = array("q")

    def add(self, error: DataError) -> None:
        """Count an invalid line, and record its number."""
        self.lines.append(error.line or 0)
        super().add(error)


class _ChunkSource(Source):
    """Some lines of a file, read like a whole file; errors have the line numbers of the file."""

    def __init__(self, name: str, options: ReadOptions, text: bool) -> None:
        super().__init__(Path(name), options, text)


class _RowLines(NamedTuple):
    """The lines of a block that are rows: start, stop, and number from 1."""

    starts: Int64
    stops: Int64
    numbers: Int64


def plan_lines(
    spec: BatchPredictSpec,
    text_fields: TextColumns | None,
    width: int,
    unpack_path: Path,
    tick: Callable[[], None] = lambda: None,
) -> BatchPlan:
    """Return the chunks of a line file; reads it once.

    unpack_path: where a compressed file is unpacked. width: features of the model. tick: called
    regularly. text_fields: see `infer_schema`. Raises NotFound; DataError for files that are not
    text or have another format, EMPTY_FILE, XC_ROW_COUNT.
    """
    path, format = Path(spec.input), line_format(spec)
    is_table = spec.format in DELIMITERS
    header = (
        write_json_lines(path, str(spec.format), spec.delimiter, unpack_path, tick)
        if is_table
        else []
    )
    read_path = unpack_path if is_table else path
    source = Source(
        read_path,
        _read_options(spec, width),
        text=format in TEXT_FORMATS,
        format=None if is_table else format,
    )
    is_packed = path.suffix.lower() in OPENERS
    source.name = path.stem if is_table and is_packed else path.name
    compressed = is_packed and not is_table
    offsets, schema, header_rows = (
        _ChunkOffsets(0, 1, spec.part_rows or ROWS_PER_OFFSET),
        RowSchema(SPARSE if format in ("svmlight", "xc") else TEXT),
        None,
    )
    if header:
        schema = _text_ids(infer_schema(header, spec, text_fields, source.name))
    n_rows, end = 0, 0
    with open(unpack_path, "wb") if compressed else nullcontext() as spool:
        for block in source.blocks():
            tick()
            start = 0
            if block.line == 1 and format == "xc":
                (header_rows, *widths), start = _parse_xc_header(source, block)
                schema = schema._replace(has_labels=len(widths) > 1)
                offsets = _ChunkOffsets(start, 2, offsets.grain)
            lines = _find_row_lines(block, format, start)
            if header_rows is not None:
                lines = _without_blank_end(block, lines, max(0, header_rows - n_rows))
            if not n_rows and len(lines.starts) and format == "jsonl" and not is_table:
                schema = _infer_json_schema(source, block, lines, spec, text_fields)
            _add_offsets(offsets, n_rows, block, lines)
            n_rows += len(lines.starts)
            if len(lines.starts):
                end = block.offset + min(int(lines.stops[-1]) + 1, len(block.data))
            _write_spool(spool, block.data)
    if not n_rows:
        raise source.error(
            "EMPTY_FILE", "no rows; the file is empty, or holds only comments and blank lines"
        )
    if header_rows not in (None, n_rows):
        raise source.error(
            "XC_ROW_COUNT", f"the header states {header_rows} rows, the file has {n_rows}", line=1
        )
    file = make_input_file(
        unpack_path if compressed else read_path,
        n_rows,
        0,
        base=0 if compressed else _bom_length(read_path),
        source=path,
    )
    per_part = rows_per_part(n_rows, spec.top_k, spec.part_rows)
    return BatchPlan(
        (file,),
        tuple(_make_chunks(offsets, n_rows, end, per_part)),
        schema,
    )


def line_format(spec: BatchPredictSpec) -> str:
    """Return the format of the lines that are read: tables are converted to JSON lines."""
    return "jsonl" if spec.format in DELIMITERS else str(spec.format)


def read_lines(
    plan: BatchPlan, chunk: Chunk, spec: BatchPredictSpec, width: int, tally: ErrorCollector
) -> Iterator[RowBatch]:
    """Yield the valid rows of a chunk, all at once; `tally` collects errors of the others.

    Raises DataErrors if invalid rows are not skipped.
    """
    file = plan.files[chunk.file]
    with open(file.path, "rb") as handle:
        handle.seek(file.base + chunk.offset)
        data = handle.read(chunk.n_bytes)
    source = _ChunkSource(
        file.name, _read_options(spec, width), text=line_format(spec) in TEXT_FORMATS
    )
    block = LineBlock(data, chunk.line, chunk.offset, data.endswith(b"\n"))
    collector = _LineErrorCollector(tally.max_errors, tally.skip_bad)
    lines = _find_row_lines(block, line_format(spec), 0)
    rows: Any
    with collector.reading():
        if spec.format in ("svmlight", "xc"):
            rows = _parse_features(source, block, spec, plan.schema, len(lines.starts), collector)
        elif line_format(spec) == "jsonl":
            is_table = spec.format in DELIMITERS
            rows = _parse_json_rows(source, block, lines, plan.schema, width, is_table, collector)
        else:
            rows = [
                split_fasttext(text)[0] if spec.format == "fasttext" else text
                for i in range(len(lines.starts))
                if (text := _decode_line(source, block, lines, i, collector)) is not None
            ]
        collector.raise_errors()
    ids = rows.ids if isinstance(rows, RowBatch) else None
    rows = rows.rows if isinstance(rows, RowBatch) else rows
    good = np.flatnonzero(~np.isin(lines.numbers, np.array(collector.lines, np.int64)))
    if len(good) != (len(rows) if isinstance(rows, list) else rows.n_rows):
        raise changed_error(file.name)
    tally.file, tally.errors = file.name, [*tally.errors, *collector.errors][: tally.max_errors]
    tally.n_bad += len(lines.numbers) - len(good)
    tally.n_rows += len(good)
    yield RowBatch(rows, pa.array(chunk.first_row + good, pa.int64()) if ids is None else ids)


def warm_parser() -> None:
    """Parse one line, so that the parser's kernel is compiled or loaded."""
    options, tally = ReadOptions(n_features=1), ErrorCollector()
    source = _ChunkSource("one", options, text=False)
    bounds = LineBounds(base=1, n_features=1, n_labels=options.max_labels, labels=True)
    list(
        BlockReader(source, LineParser(source, bounds, tally), tally).read(
            LineBlock(b"0 1:1\n", 1, 0, True)
        )
    )


def _read_options(spec: BatchPredictSpec, width: int) -> ReadOptions:
    """Return the options of the data set readers."""
    return ReadOptions(zero_based=spec.zero_based, n_features=width)


def _parse_xc_header(source: Source, block: LineBlock) -> tuple[tuple[int, ...], int]:
    """Return the numbers in an XC header, and the position of its end.

    Features alone, whose labels are in another file, have a header of two numbers.
    """
    first, feed, _ = block.data.partition(b"\n")
    content = "features" if len(first.split()) == 2 else "rows"
    return parse_header(source, first.removesuffix(b"\r"), content), len(first) + len(feed)


def _without_blank_end(block: LineBlock, lines: _RowLines, n_rows: int) -> _RowLines:
    """Return the first lines, which are the rows that a header gives, if the others are blank."""
    starts, stops = lines.starts[n_rows:].tolist(), lines.stops[n_rows:].tolist()
    if any(block.data[start:stop].strip() for start, stop in zip(starts, stops, strict=True)):
        return lines
    return _RowLines(*(each[:n_rows] for each in lines))


def _find_row_lines(block: LineBlock, format: str, start: int) -> _RowLines:
    """Return the rows of a block, from byte `start` on.

    Only lines whose first byte is ambiguous are checked one by one.
    """
    data = block.data
    feeds = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    starts = np.concatenate([[0], feeds + 1]).astype(np.int64)
    stops = np.concatenate([feeds, [len(data)]]).astype(np.int64)
    if block.ended:
        starts, stops = starts[:-1], stops[:-1]
    numbers = block.line + np.arange(len(starts))
    if start:
        starts, stops, numbers = (
            each[np.searchsorted(starts, start) :] for each in (starts, stops, numbers)
        )
    if format in BLANK_LINES and len(starts):
        match_blank = BLANK_LINES[format].match
        doubtful = np.isin(
            np.frombuffer(data, np.uint8)[np.minimum(starts, len(data) - 1)], DOUBTFUL_BYTES
        )
        blank = [i for i in np.flatnonzero(doubtful).tolist() if match_blank(data, int(starts[i]))]
        starts, stops, numbers = (np.delete(each, blank) for each in (starts, stops, numbers))
    return _RowLines(starts, stops, numbers)


def _add_offsets(offsets: _ChunkOffsets, n_rows: int, block: LineBlock, lines: _RowLines) -> None:
    """Record the possible chunk starts in a block: at its first row, and every `grain` rows.

    A chunk starts where the previous row ends, so blank lines and comments belong to the next row.
    """
    n = len(lines.starts)
    for i in sorted({0, *range(-n_rows % offsets.grain, n, offsets.grain)} if n else ()):
        if i:
            offsets.add(
                n_rows + i,
                block.offset + int(lines.stops[i - 1]) + 1,
                int(lines.numbers[i - 1]) + 1,
            )
        else:
            offsets.add(n_rows, block.offset, block.line)


def _make_chunks(offsets: _ChunkOffsets, n_rows: int, end: int, size: int) -> Iterator[Chunk]:
    """Yield chunks of `size` rows, fewer if they are heavy.

    The last one extends to the end of the file.
    """
    row, offset, line = offsets.rows[0], offsets.offsets[0], offsets.lines[0]
    number = 0
    for at in range(1, len(offsets.rows)):
        if offsets.rows[at] - row >= size or offsets.offsets[at] - offset >= MAX_CHUNK_BYTES:
            yield Chunk(
                number,
                0,
                row,
                offsets.rows[at] - row,
                offset,
                offsets.offsets[at] - offset,
                line,
                False,
            )
            number, row, offset, line = (
                number + 1,
                offsets.rows[at],
                offsets.offsets[at],
                offsets.lines[at],
            )
    yield Chunk(number, 0, row, n_rows - row, offset, end - offset, line, True)


def _bom_length(path: Path) -> int:
    """Return the bytes of the byte order mark at the start of a file."""
    with open(path, "rb") as handle:
        return len(BOM) if handle.read(len(BOM)) == BOM else 0


def _write_spool(spool: IO[bytes] | None, data: bytes) -> None:
    """Write unpacked data, if the input is compressed."""
    if spool is not None:
        spool.write(data)


def _parse_features(
    source: Source,
    block: LineBlock,
    spec: BatchPredictSpec,
    schema: RowSchema,
    n_rows: int,
    tally: ErrorCollector,
) -> CSR:
    """Return the rows of svmlight lines, as wide as the model; their labels are ignored."""
    xc, width = spec.format == "xc", int(source.options.n_features or 0)
    base = 0 if spec.zero_based or xc else 1
    bounds = LineBounds(
        base=base,
        n_features=width,
        n_labels=source.options.max_labels,
        labels=schema.has_labels,
    )
    parser = LineParser(source, bounds, tally, xc=xc)
    reader = BlockReader(source, parser, tally, expected=n_rows if xc else None)
    matrices = [X for X, _ in reader.read(block)]
    return (
        csr(matrices[0].indptr, matrices[0].indices, matrices[0].data, width)
        if matrices
        else csr([0], [], [], width)
    )


def _decode_line(
    source: Source, block: LineBlock, lines: _RowLines, i: int, tally: ErrorCollector
) -> str | None:
    """Return the text of a line, or None if it is invalid."""
    line = block.data[lines.starts[i] : lines.stops[i]].removesuffix(b"\r")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        column = len(line[: error.start].decode("utf-8")) + 1
        hint = "save the file as UTF-8"
        tally.add(
            source.error(
                "ENCODING", "not UTF-8", line=int(lines.numbers[i]), column=column, hint=hint
            )
        )
        return None


def _infer_json_schema(
    source: Source,
    block: LineBlock,
    lines: _RowLines,
    spec: BatchPredictSpec,
    text_fields: TextColumns | None,
) -> RowSchema:
    """Return the schema of JSON lines from the fields of the first one.

    Raises DataError if it is invalid.
    """
    tally = ErrorCollector(max_errors=1)
    text = _decode_line(source, block, lines, 0, tally) or ""
    first = json_object(source, TextLine(text, int(lines.numbers[0])))
    return _text_ids(infer_schema(list(first), spec, text_fields, source.name))


def _text_ids(schema: RowSchema) -> RowSchema:
    """Return the schema with ids as strings, if it has ids."""
    return schema if schema.id is None else schema._replace(id_type="string")


def _parse_json_rows(
    source: Source,
    block: LineBlock,
    row_lines: _RowLines,
    schema: RowSchema,
    width: int,
    is_table: bool,
    tally: ErrorCollector,
) -> RowBatch:
    """Return the rows of JSON objects with their ids, if any."""
    records: list[tuple[int, list[Any]]] = []
    for i in range(len(row_lines.starts)):
        text = _decode_line(source, block, row_lines, i, tally)
        if text is None:
            continue
        line = int(row_lines.numbers[i])
        if is_table and (error := row_error(source, text, line)) is not None:
            tally.add(error)
            continue
        try:
            fields = json_object(source, TextLine(text, line))
            records.append(
                (
                    line,
                    [_check_field(source, line, fields, name, schema) for name in schema.columns],
                )
            )
        except DataError as invalid:
            tally.add(invalid)
    position = {name: column for column, name in enumerate(schema.columns)}
    lines = [line for line, _ in records]

    def column(name: str) -> list[Any]:
        return [values[position[name]] for _, values in records]

    def fault(row: int, code: str, problem: str, value: str | None) -> None:
        tally.add(source.error(code, problem, line=lines[row], value=value))

    valid = np.ones(len(records), np.bool_)
    rows: list[str] | CSR
    if schema.kind == TEXT:
        texts = (column(name) for name in schema.text)
        rows = [join_fields(parts) for parts in zip(*texts, strict=True)]
    else:
        values = pa.array(column(schema.values), pa.list_(pa.float64()))
        if schema.kind == DENSE:
            rows, valid = dense_rows(values, width, fault)
        else:
            rows, valid = sparse_rows(
                pa.array(column(schema.indices), pa.list_(pa.int64())), values, width, fault
            )
    ids = (
        None
        if schema.id is None
        else pa.array([str(each) for each in column(schema.id)], pa.string()).filter(
            pa.array(valid)
        )
    )
    return RowBatch(rows, ids)


def _check_field(
    source: Source, line: int, fields: dict[str, Any], name: str, schema: RowSchema
) -> Any:
    """Return the value of a field, which must have the type that the schema requires.

    Raises DataError FIELD_MISSING, FIELD_TYPE.
    """
    if name in schema.value_fields:
        value = cell_text(fields.get(name))
        if value is not None:
            return value
    if name not in fields:
        problem = f"there is no field '{name}'; there are: {', '.join(list(fields)[:20])}"
        raise source.error("FIELD_MISSING", problem, line=line, value=name)
    value = fields[name]
    if name == schema.id:
        valid, expected = (
            isinstance(value, str | int) and not isinstance(value, bool),
            "a string or a whole number",
        )
    elif name in schema.text:
        valid, expected = isinstance(value, str), "a string"
    else:
        integers = name == schema.indices
        kinds: Any = int if integers else int | float
        expected = "a list of whole numbers" if integers else "a list of numbers"
        valid = isinstance(value, list) and all(
            isinstance(each, kinds) and not isinstance(each, bool) and abs(each) < 1 << 62
            for each in value
        )
    if not valid:
        raise source.error(
            "FIELD_TYPE", f"field '{name}' is not {expected}", line=line, value=str(value)[:100]
        )
    if name == schema.id and has_half_surrogate(str(value)):
        raise source.error(
            "ENCODING",
            f"field '{name}' holds half of a surrogate pair",
            line=line,
            value=str(value)[:100],
        )
    return value
