"""Schema of the input rows: texts, two columns of lists (sparse), or one list of all features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from xcray.arrays import CSR
from xcray.batch.spec import BatchPredictSpec
from xcray.errors import DataError

TEXT, SPARSE, DENSE = "text", "sparse", "dense"
MAX_LISTED_COLUMNS: Final = 20  # column names listed in an error


class TextColumns(NamedTuple):
    """Columns that form the text of a model: names; those of them that can be empty or numbers."""

    names: tuple[str, ...]
    values: tuple[str, ...] = ()


class RowBatch(NamedTuple):
    """Valid rows, texts or features (n x D), and the ids (n,) of their answers (or row numbers)."""

    rows: list[str] | CSR
    ids: pa.Array


class RowSchema(NamedTuple):
    """Columns of the rows.

    kind: TEXT, SPARSE or DENSE. text, indices, values, id, error: names of the columns;
    value_fields: those of `text` that can be empty or numbers. id_type: Arrow type of the id
    column. error: of files that `lines.py` writes, why a row is null.
    """

    kind: str
    text: tuple[str, ...] = ()
    value_fields: tuple[str, ...] = ()
    indices: str = ""
    values: str = ""
    id: str | None = None
    id_type: str = "int64"
    error: str = ""

    @property
    def columns(self) -> list[str]:
        """Return the columns to read."""
        named = [*self.text, self.indices, self.values, self.id or "", self.error]
        return list(dict.fromkeys(name for name in named if name))


def infer_schema(
    names: Sequence[str],
    spec: BatchPredictSpec,
    text_fields: TextColumns | None,
    file: str,
) -> RowSchema:
    """Return the schema that a spec requests, or that the column names imply.

    text_fields: those of the model's data; None if it reads no text. Then a column called text is
    ignored if there are feature columns. Raises DataError for a missing or repeated column.
    """
    present = set(names)
    own = () if text_fields is None else text_fields.names
    if spec.text_fields is not None:
        schema = RowSchema(TEXT, text=spec.text_fields)
    elif spec.values_field is not None:
        schema = RowSchema(
            SPARSE if spec.indices_field else DENSE,
            indices=spec.indices_field or "",
            values=spec.values_field,
        )
    elif own and (set(own) <= present or not present & {"text", "values"}):
        schema = RowSchema(TEXT, text=own)
    elif "text" in present and (own or "values" not in present):
        schema = RowSchema(TEXT, text=("text",))
    elif {"indices", "values"} <= present:
        schema = RowSchema(SPARSE, indices="indices", values="values")
    else:
        schema = RowSchema(DENSE, values="values")
    schema = schema._replace(id=spec.id_field)
    if text_fields is not None:
        values = tuple(name for name in text_fields.values if name in schema.text)
        schema = schema._replace(value_fields=values)
    missing = [name for name in schema.columns if name not in present]
    if missing:
        listed = ", ".join(list(names)[:MAX_LISTED_COLUMNS]) or "none"
        hint = (
            "name the fields: text_fields; indices_field and values_field; "
            "values_field of dense rows; id_field; of csv also delimiter"
        )
        raise DataError(
            "FIELD_MISSING",
            f"there is no column {missing[0]!r}; there are: {listed}",
            file=file,
            hint=hint,
        )
    twice = next((name for name in schema.columns if list(names).count(name) > 1), None)
    if twice is not None:
        raise DataError(
            "PARQUET_COLUMN" if spec.format == "parquet" else "CSV_HEADER",
            f"two columns are called {twice!r}",
            file=file,
            value=twice,
            hint="rename one of them",
        )
    return schema
