"""Files of lines: planned in one pass that counts rows, then read a range of bytes at a time by whoever has the chunk.

svmlight and XC go through the readers of data sets, so the same lines are accepted and the same errors are told. A file that is
compressed is unpacked aside first, for nobody can begin in the middle of it. Rows are numbered from 0; blank lines and comments
are none (in format text every line is one).
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
from xcray.batch.plan import Chunk, Plan, changed, input_file, rows_of_part
from xcray.batch.row_schema import DENSE, SPARSE, TEXT, Form, Rows, form_of
from xcray.batch.spec import BulkSpec
from xcray.data.readers.blocks import BOM, OPENERS, Block, Source
from xcray.data.readers.columns import dense_rows, sparse_rows
from xcray.data.readers.error_log import Tally
from xcray.data.readers.lines import TextLine
from xcray.data.readers.options import ReadOptions
from xcray.data.readers.records import has_half_surrogate, json_object
from xcray.data.readers.svmlight import BlockReader, check_svmlight
from xcray.data.readers.svmlight_line import LineParser
from xcray.data.readers.xc import parse_header
from xcray.errors import DataError
from xcray.kernels.parse import Bounds

GRAIN: Final = 1024  # rows between two places where a chunk may begin
HEAVY: Final = 64 << 20  # bytes of a chunk, about
MOST_MARKS: Final = (
    1 << 18
)  # places kept in mind, of 24 bytes: for a terabyte of text, or the smallest parts there may be
NO_ROW: Final = {
    "svmlight": re.compile(rb"[ \t\r]*(?:\n|\Z|#)"),
    "jsonl": re.compile(rb"[ \t\r]*(?:\n|\Z)"),
}
NO_ROW["xc"] = NO_ROW["svmlight"]
MAYBE: Final = np.frombuffer(b"\n\r \t#", np.uint8)  # what a line begins with that may be no row


class _Marks:
    """Places where a chunk may begin, every `grain` rows: row, offset and line of each. Of too many every other goes."""

    def __init__(self, offset: int, line: int, grain: int) -> None:
        self.rows = array("q", [0])
        self.offsets = array("q", [offset])
        self.lines = array("q", [line])
        self.grain = grain

    def add(self, row: int, offset: int, line: int) -> None:
        """One more place, unless it is the last one."""
        if row > self.rows[-1]:
            for values, value in zip(
                (self.rows, self.offsets, self.lines), (row, offset, line), strict=True
            ):
                values.append(value)
        if len(self.rows) > MOST_MARKS:
            self.rows, self.offsets, self.lines = self.rows[::2], self.offsets[::2], self.lines[::2]
            self.grain *= 2


class _LineTally(Tally):
    """A tally that also knows the numbers of all bad lines."""

    def __init__(self, keep: int, skip: bool) -> None:
        super().__init__(keep, skip)
        self.lines = array("q")

    def bad(self, error: DataError) -> None:
        """Count a bad line, and keep its number."""
        self.lines.append(error.line or 0)
        super().bad(error)


class _Piece(Source):
    """Some lines of a file, as if they were all; errors know their lines in the file."""

    def __init__(self, name: str, options: ReadOptions, text: bool) -> None:
        super().__init__(Path(name), options, text)


class _Lines(NamedTuple):
    """The lines of a block that are rows: where each starts and stops, and its number from 1."""

    starts: Int64
    stops: Int64
    numbers: Int64


def plan_lines(
    spec: BulkSpec,
    reads_text: bool,
    width: int,
    aside: Path,
    tick: Callable[[], None] = lambda: None,
) -> Plan:
    """Chunks of a file of lines; reads it once. aside: where a compressed file is unpacked; width: features of the model.

    tick: called now and then. Raises NotFound, DataError for files that are no text or of another format, EMPTY_FILE, XC_ROW_COUNT.
    """
    given, format = Path(spec.input), str(spec.format)
    source = Source(given, _options(spec, width), text=format in ("jsonl", "text"))
    packed = given.suffix.lower() in OPENERS
    marks, form, told = (
        _Marks(0, 1, spec.part_rows or GRAIN),
        Form(TEXT if format == "text" else SPARSE),
        None,
    )
    n_rows, end = 0, 0
    with open(aside, "wb") if packed else nullcontext() as spool:
        for block in source.blocks():
            tick()
            start = 0
            if block.line == 1 and format == "xc":
                told, start = _xc_header(source, block)
                marks = _Marks(start, 2, marks.grain)
            elif block.line == 1 and format == "svmlight":
                check_svmlight(source, block.data)
            found = _rows_of_block(block, format, start)
            if not n_rows and len(found.starts) and format == "jsonl":
                form = _json_form(source, block, found, spec, reads_text)
            _mark(marks, n_rows, block, found)
            n_rows += len(found.starts)
            end = block.offset + len(block.data)
            _spool(spool, block.data)
    if not n_rows:
        raise source.error(
            "EMPTY_FILE", "no rows; the file is empty, or holds only comments and blank lines"
        )
    if told not in (None, n_rows):
        raise source.error(
            "XC_ROW_COUNT", f"the header tells {told} rows, the file has {n_rows}", line=1
        )
    file = input_file(
        aside if packed else given,
        n_rows,
        0,
        base=0 if packed else _mark_of_order(given),
        given=given,
    )
    return Plan(
        (file,),
        tuple(_chunks(marks, n_rows, end, rows_of_part(n_rows, spec.k, spec.part_rows))),
        form,
    )


def read_lines(
    plan: Plan, chunk: Chunk, spec: BulkSpec, width: int, tally: Tally
) -> Iterator[Rows]:
    """The sound rows of a chunk, all at once; `tally` hears of the others. Raises DataErrors when they may not be skipped."""
    file = plan.files[chunk.file]
    with open(file.path, "rb") as handle:
        handle.seek(file.base + chunk.offset)
        data = handle.read(chunk.n_bytes)
    piece = _Piece(file.name, _options(spec, width), text=spec.format in ("jsonl", "text"))
    block = Block(data, chunk.line, chunk.offset, data.endswith(b"\n"))
    heard = _LineTally(tally.keep, tally.skip)
    found = _rows_of_block(block, str(spec.format), 0)
    rows: Any
    with heard.collected():
        if spec.format in ("svmlight", "xc"):
            rows = _feature_rows(piece, block, spec, width, heard)
        elif spec.format == "jsonl":
            rows = _json_rows(piece, block, found, plan.form, width, heard)
        else:
            rows = [
                text
                for i in range(len(found.starts))
                if (text := _decoded(piece, block, found, i, heard)) is not None
            ]
        heard.close()
    ids = rows.ids if isinstance(rows, Rows) else None
    rows = rows.rows if isinstance(rows, Rows) else rows
    good = np.flatnonzero(~np.isin(found.numbers, np.array(heard.lines, np.int64)))
    if len(good) != (len(rows) if isinstance(rows, list) else rows.n_rows):
        raise changed(file.name)
    tally.file, tally.errors = file.name, [*tally.errors, *heard.errors][: tally.keep]
    tally.n_bad += len(found.numbers) - len(good)
    tally.n_rows += len(good)
    yield Rows(rows, pa.array(chunk.first_row + good, pa.int64()) if ids is None else ids)


def parse_one() -> None:
    """Read one line, so that the kernel that does it is compiled or loaded."""
    options, tally = ReadOptions(n_features=1), Tally()
    piece = _Piece("one", options, text=False)
    bounds = Bounds(base=1, n_features=1, n_labels=options.max_labels, labels=True)
    list(
        BlockReader(piece, LineParser(piece, bounds, tally), tally).read(
            Block(b"0 1:1\n", 1, 0, True)
        )
    )


def _options(spec: BulkSpec, width: int) -> ReadOptions:
    """How the readers of data sets are told to read."""
    return ReadOptions(zero_based=spec.zero_based, n_features=width)


def _xc_header(source: Source, block: Block) -> tuple[int, int]:
    """The number of rows that an XC header tells, and where it ends."""
    first, feed, _ = block.data.partition(b"\n")
    return parse_header(source, first.removesuffix(b"\r"))[0], len(first) + len(feed)


def _rows_of_block(block: Block, format: str, start: int) -> _Lines:
    """The rows of a block, from byte `start` on. Only lines whose first byte leaves a doubt are looked at one by one."""
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
    if format in NO_ROW and len(starts):
        is_none = NO_ROW[format].match
        doubtful = np.isin(np.frombuffer(data, np.uint8)[np.minimum(starts, len(data) - 1)], MAYBE)
        none = [i for i in np.flatnonzero(doubtful).tolist() if is_none(data, int(starts[i]))]
        starts, stops, numbers = (np.delete(each, none) for each in (starts, stops, numbers))
    return _Lines(starts, stops, numbers)


def _mark(marks: _Marks, n_rows: int, block: Block, found: _Lines) -> None:
    """Note where chunks may begin in a block: at its first row, and every so many rows.

    A chunk begins where the row before ends, so that blank lines and comments come with the row that follows.
    """
    n = len(found.starts)
    for i in sorted({0, *range(-n_rows % marks.grain, n, marks.grain)} if n else ()):
        if i:
            marks.add(
                n_rows + i,
                block.offset + int(found.stops[i - 1]) + 1,
                int(found.numbers[i - 1]) + 1,
            )
        else:
            marks.add(n_rows, block.offset, block.line)


def _chunks(marks: _Marks, n_rows: int, end: int, size: int) -> Iterator[Chunk]:
    """Chunks of `size` rows, fewer where they would be heavy; the last one has what follows its last row."""
    row, offset, line = marks.rows[0], marks.offsets[0], marks.lines[0]
    number = 0
    for at in range(1, len(marks.rows)):
        if marks.rows[at] - row >= size or marks.offsets[at] - offset >= HEAVY:
            yield Chunk(
                number,
                0,
                row,
                marks.rows[at] - row,
                offset,
                marks.offsets[at] - offset,
                line,
                False,
            )
            number, row, offset, line = (
                number + 1,
                marks.rows[at],
                marks.offsets[at],
                marks.lines[at],
            )
    yield Chunk(number, 0, row, n_rows - row, offset, end - offset, line, True)


def _mark_of_order(path: Path) -> int:
    """Bytes of the byte order mark at the beginning of a file."""
    with open(path, "rb") as handle:
        return len(BOM) if handle.read(len(BOM)) == BOM else 0


def _spool(spool: IO[bytes] | None, data: bytes) -> None:
    """Keep what was unpacked."""
    if spool is not None:
        spool.write(data)


def _feature_rows(piece: Source, block: Block, spec: BulkSpec, width: int, tally: Tally) -> CSR:
    """Rows of svmlight lines, as wide as the model; their labels are read and forgotten."""
    xc = spec.format == "xc"
    base = 0 if spec.zero_based or xc else 1
    bounds = Bounds(base=base, n_features=width, n_labels=piece.options.max_labels, labels=True)
    reader = BlockReader(piece, LineParser(piece, bounds, tally, xc=xc), tally)
    found = [X for X, _ in reader.read(block)]
    return (
        csr(found[0].indptr, found[0].indices, found[0].data, width)
        if found
        else csr([0], [], [], width)
    )


def _decoded(piece: Source, block: Block, found: _Lines, i: int, tally: Tally) -> str | None:
    """The text of a line, or None when it has none."""
    line = block.data[found.starts[i] : found.stops[i]].removesuffix(b"\r")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        column = len(line[: error.start].decode("utf-8")) + 1
        hint = "save the file as UTF-8"
        tally.bad(
            piece.error(
                "ENCODING", "not UTF-8", line=int(found.numbers[i]), column=column, hint=hint
            )
        )
        return None


def _json_form(
    source: Source, block: Block, found: _Lines, spec: BulkSpec, reads_text: bool
) -> Form:
    """How rows lie in JSON lines, by the fields of the first. Raises DataError when it is none."""
    tally = Tally(keep=1)
    text = _decoded(source, block, found, 0, tally) or ""
    first = json_object(source, TextLine(text, int(found.numbers[0])))
    form = form_of(list(first), spec, reads_text, source.name)
    return form if form.id is None else form._replace(id_type="string")


def _json_rows(
    piece: Source, block: Block, found: _Lines, form: Form, width: int, tally: Tally
) -> Rows:
    """Rows of JSON objects with their ids, if they have any."""
    kept: list[tuple[int, list[Any]]] = []
    for i in range(len(found.starts)):
        text = _decoded(piece, block, found, i, tally)
        if text is None:
            continue
        line = int(found.numbers[i])
        try:
            fields = json_object(piece, TextLine(text, line))
            kept.append((line, [_field(piece, line, fields, name, form) for name in form.columns]))
        except DataError as error:
            tally.bad(error)
    place = {name: column for column, name in enumerate(form.columns)}
    lines = [line for line, _ in kept]

    def column(name: str) -> list[Any]:
        return [values[place[name]] for _, values in kept]

    def fault(row: int, code: str, problem: str, value: str | None) -> None:
        tally.bad(piece.error(code, problem, line=lines[row], value=value))

    sound = np.ones(len(kept), np.bool_)
    rows: list[str] | CSR
    if form.kind == TEXT:
        rows = [
            " ".join(parts) for parts in zip(*(column(name) for name in form.text), strict=True)
        ]
    else:
        values = pa.array(column(form.values), pa.list_(pa.float64()))
        if form.kind == DENSE:
            rows, sound = dense_rows(values, width, fault)
        else:
            rows, sound = sparse_rows(
                pa.array(column(form.indices), pa.list_(pa.int64())), values, width, fault
            )
    ids = (
        None
        if form.id is None
        else pa.array([str(each) for each in column(form.id)], pa.string()).filter(pa.array(sound))
    )
    return Rows(rows, ids)


def _field(piece: Source, line: int, fields: dict[str, Any], name: str, form: Form) -> Any:
    """The value of a field, of the type that its part in the row asks for. Raises DataError FIELD_MISSING, FIELD_TYPE."""
    if name not in fields:
        problem = f"there is no field '{name}'; there are: {', '.join(list(fields)[:20])}"
        raise piece.error("FIELD_MISSING", problem, line=line, value=name)
    value = fields[name]
    if name == form.id:
        sound, wanted = (
            isinstance(value, str | int) and not isinstance(value, bool),
            "a string or a whole number",
        )
    elif name in form.text:
        sound, wanted = isinstance(value, str), "a string"
    else:
        whole = name == form.indices
        kinds: Any = int if whole else int | float
        wanted = "a list of whole numbers" if whole else "a list of numbers"
        sound = isinstance(value, list) and all(
            isinstance(each, kinds) and not isinstance(each, bool) and abs(each) < 1 << 62
            for each in value
        )
    if not sound:
        raise piece.error(
            "FIELD_TYPE", f"field '{name}' is not {wanted}", line=line, value=str(value)[:100]
        )
    if name == form.id and has_half_surrogate(str(value)):
        raise piece.error(
            "ENCODING",
            f"field '{name}' holds half of a surrogate pair",
            line=line,
            value=str(value)[:100],
        )
    return value
