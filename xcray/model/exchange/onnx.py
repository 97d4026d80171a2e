"""The k best labels of a linear model as an ONNX graph of standard operators; needs `onnx`.

Inputs: `X` (n, D) float32, dense rows; `k` (1,) int64. Outputs: `labels` (n, k) int64, `names`
(n, k) and `scores` (n, k) float32, best first, equal scores by label number. The graph keeps the
weights sparse: it gathers the feature of each weight, multiplies, and adds the products by label.
A row costs time and memory in proportion to all weights, while xcray's search visits only lists of
the features that the row has.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from xcray.errors import InputError, missing_extra
from xcray.model.exchange.weights import ForeignWeights, row_numbers

MAX_WEIGHTS: Final = 50_000_000  # 20 bytes each; a file of protobuf is limited to 2 GiB
OPSET, IR_VERSION = 18, 8  # with ScatterElements that adds; read by onnxruntime from 1.14


def write(weights: ForeignWeights, path: Path) -> None:
    """Write the graph. Raises InputError for a model that is too large, Unavailable."""
    if weights.W.nnz > MAX_WEIGHTS:
        raise InputError(
            f"the model has {weights.W.nnz:,} weights, and a graph at most {MAX_WEIGHTS:,}: "
            "write npz, or serve the model with xcray"
        )
    try:
        onnx = import_module("onnx")
    except ModuleNotFoundError as error:
        raise missing_extra(error) from None
    h, types = onnx.helper, onnx.TensorProto
    graph = h.make_graph(
        _nodes(h, weights.row_norm),
        "top_k",
        [
            h.make_tensor_value_info("X", types.FLOAT, ["n", weights.W.n_cols]),
            h.make_tensor_value_info("k", types.INT64, [1]),
        ],
        [
            h.make_tensor_value_info("labels", types.INT64, ["n", "top"]),
            h.make_tensor_value_info("names", types.STRING, ["n", "top"]),
            h.make_tensor_value_info("scores", types.FLOAT, ["n", "top"]),
        ],
        [onnx.numpy_helper.from_array(*each[::-1]) for each in _constants(weights).items()],
    )
    opset = h.make_opsetid("", OPSET)
    model = h.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION)
    path.write_bytes(model.SerializeToString())


def _constants(weights: ForeignWeights) -> dict[str, Any]:
    """Return the constant tensors by name."""
    W = weights.W
    return {
        "feature": W.indices.astype(np.int64),
        "weight": W.data,
        "label": row_numbers(W)[None, :],
        "bias": weights.b[None, :],
        "all_names": np.array(weights.labels, object),
        "one": np.array([1], np.int64),
    }


def _nodes(h: Any, row_norm: str) -> list[Any]:
    """Return the operators from rows to answers."""
    normed = [h.make_node("LpNormalization", ["X"], ["rows"], axis=1, p=2)]
    node = h.make_node
    return [
        *(normed if row_norm == "l2" else [node("Identity", ["X"], ["rows"])]),
        node("Gather", ["rows", "feature"], ["values"], axis=1),
        node("Mul", ["values", "weight"], ["products"]),
        node("Shape", ["X"], ["n"], start=0, end=1),
        node("Concat", ["n", "one"], ["repeats"], axis=0),
        node("Tile", ["label", "repeats"], ["targets"]),
        node("Tile", ["bias", "repeats"], ["begin"]),
        node("ScatterElements", ["begin", "targets", "products"], ["all"], axis=1, reduction="add"),
        node("TopK", ["all", "k"], ["scores", "labels"], axis=1),
        node("Gather", ["all_names", "labels"], ["names"], axis=0),
    ]
