"""Rows to evaluate on: a data set directory, or a file that is read as the data of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from xcray.batch.spec import guess_format
from xcray.data.build import BuildOptions, build
from xcray.data.readers.error_log import ErrorCollector
from xcray.data.readers.formats import FORMATS_OF
from xcray.data.readers.options import ReadOptions
from xcray.data.readers.parquet import parquet_layout, parquet_records
from xcray.data.readers.records import FORMATS, read_records
from xcray.data.text.fields import SEPARATOR
from xcray.data.writer import name_of
from xcray.errors import InputError


class EvaluationRows(NamedTuple):
    """A data set directory, and the texts of its training part if it was built without a model.

    by: the value of a field of each row, if one was named.
    """

    path: Path
    texts: list[str] | None = None
    by: list[str] | None = None


@contextmanager
def evaluation_rows(
    data: Path,
    format: str | None,
    reading: Mapping[str, Any],
    like: Path | None,
    usual: Mapping[str, Any],
    by: str | None = None,
) -> Iterator[EvaluationRows]:
    """Yield the data set `data`, or a temporary one that is built from the file `data`.

    format: None for that of the file's name. reading: reading options that were given; usual: how
    the data of the model were read, see `Dataset.reading`. like: model whose features the rows get;
    None: the server has the model, which makes features of the texts. by: a field of the rows of a
    text file. Raises InputError and the
    errors of builds.
    """
    if not data.is_file():
        if format is not None or reading or by is not None:
            raise InputError(
                f"{data} is not a file: --format, --by and the options of reading are for files",
                code="USAGE",
            )
        yield EvaluationRows(data)
        return
    format = format or guess_format(str(data))
    options = replace(
        BuildOptions.from_dict(reading).with_reading(format, usual),
        like=None if like is None else str(like),
        name=name_of(data.name.partition(".")[0]),
    )
    with TemporaryDirectory(prefix="xcray-evaluate-") as folder:
        built = build(format, {"train": data}, Path(folder) / "data", options)
        texts = _texts_of(format, data, options.read) if like is None else None
        values = None if by is None else _values_of(format, data, options.read, by)
        yield EvaluationRows(built.path, texts, values)


def _values_of(format: str, path: Path, read: ReadOptions, field: str) -> list[str]:
    """Return the value of a field of each row. Raises InputError for rows of features."""
    names, values = (*read.text_fields, field), (*read.value_fields, field)
    texts = None
    if format in FORMATS_OF["text_fields"]:
        texts = _texts_of(format, path, replace(read, text_fields=names, value_fields=values))
    if texts is None:
        raise InputError(f"--by is for texts: rows of {format} have no fields", code="USAGE")
    return [text.rpartition(SEPARATOR)[2] for text in texts]


def _texts_of(format: str, path: Path, read: ReadOptions) -> list[str] | None:
    """Return the texts of a file, in the order of the rows; None for rows of features."""
    collector = ErrorCollector()
    if format in FORMATS:
        return [record.text for record in read_records(format, path, read, collector)]
    if format == "parquet" and parquet_layout(path, read).text:
        return [record.text for record in parquet_records(path, read, collector)]
    return None
