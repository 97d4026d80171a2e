"""How rows of an input lie in columns: as texts, as two columns of lists, or as one list of all features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from xcray.arrays import CSR
from xcray.batch.spec import BulkSpec
from xcray.errors import DataError

TEXT, SPARSE, DENSE = "text", "sparse", "dense"
LISTED: Final = 20  # names of columns that an error lists


class Rows(NamedTuple):
    """Sound rows, texts or features (n x D), and what their answers are called: (n,) ids, or row numbers."""

    rows: list[str] | CSR
    ids: pa.Array


class Form(NamedTuple):
    """How rows lie in columns: kind TEXT, SPARSE or DENSE, the names of the columns, and the Arrow type of the id's."""

    kind: str
    text: tuple[str, ...] = ()
    indices: str = ""
    values: str = ""
    id: str | None = None
    id_type: str = "int64"

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        named = [*self.text, self.indices, self.values, self.id or ""]
        return list(dict.fromkeys(name for name in named if name))


def form_of(names: Sequence[str], spec: BulkSpec, reads_text: bool, file: str) -> Form:
    """The form that a spec asks for, or that the names of the columns tell. Raises DataError FIELD_MISSING.

    reads_text: whether the model does; else a column called text says nothing where there are others.
    """
    there = set(names)
    if spec.text_columns is not None:
        form = Form(TEXT, text=spec.text_columns)
    elif spec.values_column is not None:
        form = Form(
            SPARSE if spec.indices_column else DENSE,
            indices=spec.indices_column or "",
            values=spec.values_column,
        )
    elif "text" in there and (reads_text or "values" not in there):
        form = Form(TEXT, text=("text",))
    elif {"indices", "values"} <= there:
        form = Form(SPARSE, indices="indices", values="values")
    else:
        form = Form(DENSE, values="values")
    form = form._replace(id=spec.id_column)
    missing = [name for name in form.columns if name not in there]
    if missing:
        shown = ", ".join(list(names)[:LISTED]) or "none"
        hint = "name the columns: text_columns; indices_column and values_column; values_column of dense rows; id_column"
        raise DataError(
            "FIELD_MISSING",
            f"there is no column {missing[0]!r}; there are: {shown}",
            file=file,
            hint=hint,
        )
    return form
