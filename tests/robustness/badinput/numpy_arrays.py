"""Rows N1 to N17: arrays of NumPy (npz)."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import numpy as np

from tests.robustness.badinput.case import LFS, Bad, Good

X, Y = [[1, 0, 2], [0, 3, 0]], [[1, 0], [0, 1]]
ROWS = np.array(X, np.float32)
CLASSES = np.array([0, 1])


def saved(**arrays: Any) -> bytes:
    """Return an npz file of arrays."""
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def packed(**members: bytes) -> bytes:
    """Return a zip file with the bytes of members of an npz file."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return out.getvalue()


def one(array: Any) -> bytes:
    """Return an npy file."""
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def claimed(shape: tuple[int, ...]) -> bytes:
    """Return an npy file whose header has a shape without the numbers."""
    out = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, header)
    return out.getvalue()


def headed(text: str) -> bytes:
    """Return an npy file with the text as its header."""
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode()


# What NumPy answers with an error of the tokenizer, of the parser, and of an index.
HEADERS = {
    "tokens": headed("{'descr': '<f8"),
    "syntax": headed("{'descr': ',', 'fortran_order': True, 'shape': (), }"),
    "index": headed("{'descr': (), 'fortran_order': True, 'shape': (), }"),
}


def flipped() -> bytes:
    """Return a file with one flipped bit in the numbers, so that its checksum is wrong."""
    data = bytearray(packed(X=one(ROWS), y=one(CLASSES)))
    data[data.index(ROWS.tobytes())] ^= 1
    return bytes(data)


BAD = [
    Bad("N1", b"1 1:1\n", "NPY_INVALID", says="not a file of numpy.savez"),
    Bad("N1-lfs", LFS, "NPY_INVALID", says="Git LFS", hint="git lfs pull"),
    Bad("N1-npy", one(ROWS), "NPY_INVALID", hint="format=npy"),
    Bad("N2", saved(X=ROWS), "NPY_SHAPE", says="no array X or y"),
    Bad("N3", packed(X=b"1 1:1\n", y=one(CLASSES)), "NPY_INVALID", says="not an array"),
    *(
        Bad(f"N3-{name}", packed(X=data, y=one(CLASSES)), "NPY_INVALID", says="not an array")
        for name, data in HEADERS.items()
    ),
    Bad("N4", saved(X=np.array([[{}]]), y=CLASSES[:1]), "NPY_INVALID", says="object"),
    Bad("N4-text", saved(X=np.array([["a"]]), y=CLASSES[:1]), "NPY_INVALID", says="not of numbers"),
    Bad("N5", packed(X=claimed((1 << 40, 9)), y=one(CLASSES)), "NPY_INVALID", says="bytes"),
    Bad("N5-below", packed(X=claimed((-1, -1)), y=one(CLASSES)), "NPY_INVALID", says="shape"),
    Bad("N6", flipped(), "NPY_INVALID", says="Bad CRC-32"),
    Bad("N7", saved(X=np.asfortranarray(ROWS), y=CLASSES), "NPY_INVALID", says="Fortran"),
    Bad("N8", saved(X=ROWS[0], y=CLASSES), "NPY_SHAPE", says="(rows, features)"),
    Bad("N8-y", saved(X=ROWS, y=CLASSES / 1.0), "NPY_SHAPE", says="whole numbers"),
    Bad("N9", saved(X=ROWS, y=CLASSES[:1]), "ROW_MISMATCH", says="X has 2 rows, y has 1"),
    Bad("N10", saved(X=[[1, 2], [np.nan, 1]], y=CLASSES), "NOT_FINITE", row=1, value="nan"),
    Bad("N10-large", saved(X=[[1, 2], [0, 1e300]], y=CLASSES), "NOT_FINITE", row=1),
    Bad("N11", saved(X=ROWS, y=[0, -1]), "LABEL_RANGE", row=1, value="-1"),
    Bad("N11-K", saved(X=ROWS, y=CLASSES), "LABEL_RANGE", row=1, options={"n_labels": 1}),
    Bad("N12", saved(X=ROWS, y=CLASSES), "DIM_LIMIT", options={"max_features": 2}),
    Bad("N13", saved(X=ROWS[:0], y=CLASSES[:0]), "EMPTY_FILE"),
    Bad("N14", saved(X=ROWS, y=np.zeros((2, 2), int)), "NO_POSITIVES"),
]
GOOD = [
    Good("N15", saved(X=ROWS, y=CLASSES), X, Y),
    Good("N15-wide", saved(X=ROWS.astype(">f8"), y=np.array(Y, bool)), X, Y),
    Good("N15-bytes", saved(X=ROWS.astype(np.uint8), y=np.array(Y, np.int8)), X, Y),
    Good(
        "N16",
        saved(X=[[1, np.inf, 2], [0, 3, 0]], y=CLASSES),
        [[0, 3, 0]],
        [[0, 1]],
        options={"skip_bad": True},
    ),
    Good(
        "N17",
        saved(X=ROWS * 0, y=CLASSES),
        [[0, 0, 0]] * 2,
        Y,
        warnings={"rows_without_features": 2},
    ),
]
