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


class RowBatch(NamedTuple):
    """Valid rows, texts or features (n x D), and the ids (n,) of their answers (or row numbers)."""

    rows: list[str] | CSR
    ids: pa.Array


class RowSchema(NamedTuple):
    """Columns of the rows.

    kind: TEXT, SPARSE or DENSE. text, indices, values, id: names of the columns. id_type: Arrow
    type of the id column.
    """

    kind: str
    text: tuple[str, ...] = ()
    indices: str = ""
    values: str = ""
    id: str | None = None
    id_type: str = "int64"

    @property
    def columns(self) -> list[str]:
        """Return the columns to read."""
        named = [*self.text, self.indices, self.values, self.id or ""]
        return list(dict.fromkeys(name for name in named if name))


def infer_schema(
    names: Sequence[str], spec: BatchPredictSpec, reads_text: bool, file: str
) -> RowSchema:
    """Return the schema that a spec requests, or that the column names imply.

    reads_text: whether the model does. Otherwise a column called text is ignored if there are
    feature columns. Raises DataError FIELD_MISSING.
    """
    present = set(names)
    if spec.text_columns is not None:
        schema = RowSchema(TEXT, text=spec.text_columns)
    elif spec.values_column is not None:
        schema = RowSchema(
            SPARSE if spec.indices_column else DENSE,
            indices=spec.indices_column or "",
            values=spec.values_column,
        )
    elif "text" in present and (reads_text or "values" not in present):
        schema = RowSchema(TEXT, text=("text",))
    elif {"indices", "values"} <= present:
        schema = RowSchema(SPARSE, indices="indices", values="values")
    else:
        schema = RowSchema(DENSE, values="values")
    schema = schema._replace(id=spec.id_column)
    missing = [name for name in schema.columns if name not in present]
    if missing:
        listed = ", ".join(list(names)[:MAX_LISTED_COLUMNS]) or "none"
        hint = (
            "name the columns: text_columns; indices_column and values_column; "
            "values_column of dense rows; id_column"
        )
        raise DataError(
            "FIELD_MISSING",
            f"there is no column {missing[0]!r}; there are: {listed}",
            file=file,
            hint=hint,
        )
    return schema
