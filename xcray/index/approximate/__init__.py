"""Indexes for maximum inner products that can miss the best row, behind one contract.

`ExactIndex` never misses it. The others are for comparisons: on sparse weights they are slower than
the exact search (see docs/measurements.md).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from xcray.arrays import CSR
from xcray.errors import ParameterError
from xcray.index.approximate.contract import InnerProductIndex
from xcray.index.approximate.exact import ExactIndex
from xcray.index.approximate.lsh import HashIndex
from xcray.index.approximate.nmslib_graph import NmslibIndex

INDEXES: Final[Mapping[str, Callable[..., InnerProductIndex]]] = {
    "exact": ExactIndex,
    "nmslib": NmslibIndex,
    "lsh": HashIndex,
}


def build_index(name: str, W: CSR, **settings: Any) -> InnerProductIndex:
    """Return an index of the rows of W (K, D); settings: of its class.

    Raises ParameterError for an unknown name, and Unavailable if a library is missing.
    """
    if name not in INDEXES:
        raise ParameterError(f"index must be one of {', '.join(INDEXES)}, not {name[:80]!r}")
    return INDEXES[name](W, **settings)
