"""Files of named numeric arrays, for checkpoints: durable, mapped when read, with a SHA-256."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from xcray.errors import Corrupt, XcrayError
from xcray.storage.arrow import list_row, read_table, write_table
from xcray.storage.atomic import sha256_arrays

Arrays: TypeAlias = dict[str, np.ndarray]


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """Write numeric arrays durably and return the SHA-256 of their content.

    Each array is a list in a table of one row. Contiguous arrays are not copied. The file holds the
    SHA-256, too.
    """
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    flat = {name: pa.array(array.reshape(-1)) for name, array in contiguous.items()}
    shapes = {name: list(array.shape) for name, array in contiguous.items()}
    digest = sha256_arrays(contiguous)
    metadata = {"shapes": json.dumps(shapes), "sha256": digest}
    write_table(path, list_row(flat).replace_schema_metadata(metadata))
    return digest


def read_arrays(path: Path, digest: str | None = None) -> Arrays:
    """Map the arrays of `write_arrays` as read-only views. Raises Corrupt if missing or changed.

    digest: the result of `write_arrays`; None for that in the file, which finds damage, but not
    another file.
    """
    try:
        table = read_table(path)
        shapes = json.loads(table.schema.metadata[b"shapes"])
        arrays = {
            name: table.column(name).chunk(0).values.to_numpy().reshape(shapes[name])
            for name in table.column_names
        }
        expected = digest or table.schema.metadata[b"sha256"].decode()
        valid = sha256_arrays(arrays) == expected
    except (
        XcrayError,
        pa.ArrowException,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        IndexError,
        RecursionError,
    ):
        valid = False
    if not valid:
        raise Corrupt(f"{path.parent.name}/{path.name} is not what was written", file=path.name)
    return arrays
