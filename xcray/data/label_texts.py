"""Label texts: a name, other names, a description and broader labels per label id.

They come from a vocabulary: a JSON lines, TSV or SKOS file. A data set and the models trained on it
have them as `label_texts.arrow`. They are not part of the content hash of a data set, because no
solver reads them. Entries that are not labels of the data set are kept: a label without a training
row can be found by its name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from xcray.data.dataset import LABEL_TEXTS, MANIFEST, Dataset
from xcray.data.readers.blocks import SUFFIX_OF_KIND, Source
from xcray.data.readers.error_log import ErrorCollector
from xcray.data.readers.labels import has_half_surrogate, type_name
from xcray.data.readers.lines import text_lines
from xcray.data.readers.options import ReadOptions
from xcray.data.readers.records import json_object
from xcray.data.readers.skos import SUFFIXES as SKOS_SUFFIXES
from xcray.data.readers.skos import read_skos
from xcray.errors import Corrupt, DataError, InputError
from xcray.storage.arrow import read_table, write_table
from xcray.storage.atomic import file_entry, read_json, write_json

STRINGS: Final = pa.large_list(pa.large_string())
SCHEMA: Final = pa.schema(
    {
        "id": pa.large_string(),
        "name": pa.large_string(),
        "other_names": STRINGS,
        "description": pa.large_string(),
        "broader": STRINGS,
    }
)
OPTIONAL: Final[Mapping[str, Any]] = {"other_names": [], "description": "", "broader": []}


class LabelText(NamedTuple):
    """The texts of one label. id: as in the data; broader: ids of labels that contain it."""

    id: str
    name: str
    other_names: tuple[str, ...] = ()
    description: str = ""
    broader: tuple[str, ...] = ()


class LabelTexts:
    """The texts of labels, by id. Immutable."""

    def __init__(self, table: pa.Table) -> None:
        """Initialise. table: one row per label, with the columns of `SCHEMA` and distinct ids."""
        self.table = table

    def __len__(self) -> int:
        """Return the number of labels that have texts."""
        return int(self.table.num_rows)

    @classmethod
    def of(cls, entries: Iterable[LabelText]) -> LabelTexts:
        """Return the texts of these labels, whose ids are distinct."""
        rows = [entry._asdict() for entry in entries]
        return cls(pa.Table.from_pylist(rows, schema=SCHEMA))

    @cached_property
    def sha256(self) -> str:
        """SHA-256 over all texts."""
        lines = "\n".join(json.dumps(each) for each in self.table.to_pylist())
        return hashlib.sha256(lines.encode()).hexdigest()

    @cached_property
    def ids(self) -> list[str]:
        """The ids, in the order of the table."""
        return list(self.table.column("id").to_pylist())

    @cached_property
    def names(self) -> dict[str, str]:
        """The name of each id."""
        return dict(zip(self.ids, self.table.column("name").to_pylist(), strict=True))

    def entries(self) -> Iterator[LabelText]:
        """Yield the texts label by label."""
        for row in self.table.to_pylist():
            lists = {name: tuple(row[name]) for name in ("other_names", "broader")}
            yield LabelText(**{**row, **lists})

    def save(self, path: Path) -> None:
        """Write the table durably."""
        write_table(path, self.table)

    @classmethod
    def load(cls, path: Path) -> LabelTexts:
        """Map a table that `save` wrote. Raises NotFound, Corrupt."""
        table = read_table(path)
        if table.schema.remove_metadata() != SCHEMA or any(
            column.null_count for column in table.columns
        ):
            raise Corrupt(f"{path.name} is not a table of label texts", file=path.name)
        return cls(table)


def set_label_texts(data: Dataset, texts: LabelTexts) -> Dataset:
    """Store label texts in the directory of a data set, and return it opened.

    Earlier texts are replaced. Rows, features and the content hash stay. Raises InputError if no
    id is a label of the data set.
    """
    known = set(data.label_names.to_pylist())
    n_known = sum(each in known for each in texts.ids)
    if not n_known:
        raise InputError(
            f"none of the {len(texts):,} ids is a label of {data.name}: its labels are called "
            f"{', '.join(data.label_names[:3].to_pylist())}; the vocabulary has "
            f"{', '.join(texts.ids[:3])}",
            code="NO_KNOWN_LABEL",
        )
    # The manifest follows the file, so that an interrupted call can be repeated.
    texts.save(data.path / LABEL_TEXTS)
    manifest = read_json(data.path / MANIFEST)
    manifest["files"][LABEL_TEXTS] = file_entry(data.path / LABEL_TEXTS)
    manifest["label_texts"] = {"labels": n_known, "others": len(texts) - n_known}
    write_json(data.path / MANIFEST, manifest)
    return Dataset.open(data.path)


def open_label_texts(data: Dataset) -> LabelTexts | None:
    """Map the label texts of a data set; None if it has none. Raises Corrupt."""
    if LABEL_TEXTS not in data.manifest["files"]:
        return None
    return LabelTexts.load(data.path / LABEL_TEXTS)


def read_label_texts(path: Path | str) -> LabelTexts:
    """Read a vocabulary.

    Its suffix decides: .jsonl has one object per label with `id`, `name` and optionally
    `other_names`, `description` and `broader`; .tsv has an id and a name per line; .ttl, .rdf
    and .nt are SKOS (needs rdflib). Without a suffix, a file whose lines begin with { has JSON
    lines, another one is read as TSV. .gz, .xz and .bz2 are decompressed.
    Raises NotFound, DataError with the line of the first problem, InputError for other suffixes.
    """
    source = Source(path, ReadOptions(), text=True)
    suffixes = [each.lower() for each in source.path.suffixes]
    kind = next((each for each in reversed(suffixes) if each in READERS), None)
    if kind is None and set(suffixes) <= set(SUFFIX_OF_KIND.values()):
        first = next(source.blocks(), None)
        kind = ".jsonl" if first is not None and first.data.lstrip().startswith(b"{") else ".tsv"
    if kind is None:
        raise InputError(
            f"{source.name}: label texts are read from {', '.join(sorted(READERS))}, also "
            "compressed (.gz, .xz, .bz2)",
            code="LABEL_TEXTS_FORMAT",
        )
    table = LabelTexts.of(_distinct(source, READERS[kind](source)))
    if not len(table):
        raise source.error("EMPTY_FILE", "no label texts; the file is empty")
    return table


def _distinct(
    source: Source, entries: Iterable[tuple[int | None, LabelText]]
) -> Iterator[LabelText]:
    """Yield entries. Raises DataError for an empty id or name, and for an id that repeats."""
    lines: dict[str, int | None] = {}
    for line, entry in entries:
        if not entry.id or not entry.name.strip():
            what = "name" if entry.id else "id"
            raise source.error("LABEL_EMPTY", f"the {what} is empty", line=line)
        texts = (entry.id, entry.name, entry.description, *entry.other_names, *entry.broader)
        if any(map(has_half_surrogate, texts)):
            raise source.error("ENCODING", "half of a surrogate pair", line=line)
        if entry.id in lines:
            where = f", as in line {lines[entry.id]}" if lines[entry.id] else ""
            raise source.error(
                "LABEL_DUPLICATE", f"the id '{entry.id[:60]}' is listed twice{where}", line=line
            )
        lines[entry.id] = line
        yield entry


def _read_tsv(source: Source) -> Iterator[tuple[int, LabelText]]:
    """Yield the first line and the texts of each id. A line is an id, a tab and a name.

    Further lines of an id are its other names.
    """
    names = dict[str, list[tuple[int, str]]]()
    for line in text_lines(source, ErrorCollector(max_errors=1)):
        if not line.text.strip():
            continue
        fields = line.text.split("\t")
        if len(fields) != 2:
            raise source.error(
                "CSV_FIELDS",
                f"the line has {len(fields)} fields, an id and a name are expected",
                line=line.number,
                hint="separate them with one tab; give further names in lines of their own",
            )
        label, name = map(str.strip, fields)
        if not name:
            raise source.error("LABEL_EMPTY", "the name is empty", line=line.number)
        names.setdefault(label, []).append((line.number, name))
    for label, ((first, name), *others) in names.items():
        different = dict.fromkeys(each for _, each in others if each != name)
        yield first, LabelText(label, name, tuple(different))


def _read_jsonl(source: Source) -> Iterator[tuple[int, LabelText]]:
    """Yield the line number and the texts of each object."""
    for line in text_lines(source, ErrorCollector(max_errors=1)):
        if line.text.strip():
            yield line.number, _label_text(source, line.number, json_object(source, line))


def _label_text(source: Source, line: int, fields: Mapping[str, Any]) -> LabelText:
    """Return the texts in an object. Raises DataError for missing, unknown and wrong fields."""
    unknown = sorted(set(fields) - set(LabelText._fields))
    if unknown:
        problem = f"there is no field '{unknown[0][:60]}'; there are {', '.join(LabelText._fields)}"
        raise source.error("FIELD_TYPE", problem, line=line, hint="rename it or leave it out")
    for name in ("id", "name"):
        if name not in fields:
            raise source.error("FIELD_MISSING", f"there is no field '{name}'", line=line)
    values = {**OPTIONAL, **fields}
    for name, value in values.items():
        expected = list if isinstance(OPTIONAL.get(name), list) else str
        if not isinstance(value, expected):
            raise _type_error(
                source, line, name, value, "a list" if expected is list else "a string"
            )
        if expected is list:
            wrong = next((each for each in value if not isinstance(each, str)), None)
            if wrong is not None:
                raise _type_error(source, line, name, wrong, "a list of strings")
            values[name] = tuple(value)
    return LabelText(**values)


def _type_error(source: Source, line: int, name: str, value: Any, expected: str) -> DataError:
    """Return the error for a field of another type."""
    problem = f"field '{name}' has {type_name(value)} where {expected} is expected"
    return source.error("FIELD_TYPE", problem, line=line)


def _read_skos(source: Source) -> Iterator[tuple[None, LabelText]]:
    """Yield the texts of the concepts of a SKOS file."""
    for concept in read_skos(source):
        yield None, LabelText(*concept)


READERS: Final[Mapping[str, Any]] = {
    ".jsonl": _read_jsonl,
    ".tsv": _read_tsv,
    **dict.fromkeys(SKOS_SUFFIXES, _read_skos),
}
