"""Models of the oldest opsets that are taken: every operator whose form has changed since, against onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import superkernel as sk

CASES: tuple[tuple[str, tuple[tuple[int, ...], ...], dict[str, Any]], ...] = (
    ("BatchNormalization", ((2, 3, 4, 4), (3,), (3,), (3,), (3,)), {}),
    ("MaxPool", ((1, 2, 6, 6),), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("AveragePool", ((1, 2, 6, 6),), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    ("LpPool", ((1, 2, 6, 6),), {"kernel_shape": [2, 2]}),
    ("Upsample", ((1, 2, 3, 3),), {"scales": [1.0, 1.0, 2.0, 2.0], "mode": "nearest"}),
    ("Upsample", ((1, 2, 3, 3),), {"scales": [1.0, 1.0, 2.0, 2.0], "mode": "linear"}),
    ("Sum", ((2, 3), (2, 3), (2, 3)), {}),
    ("Max", ((2, 3), (2, 3)), {}),
    ("Mean", ((2, 3), (2, 3)), {}),
    ("Gemm", ((3, 4), (4, 5), (5,)), {"alpha": 0.5, "beta": 2.0}),
    ("Dropout", ((3, 4),), {}),
    ("Flatten", ((2, 3, 4),), {}),
    ("PRelu", ((2, 3, 4), (3, 1)), {}),
    ("Clip", ((3, 4),), {"min": -0.5, "max": 0.5}),
    ("Pad", ((2, 3),), {"pads": [1, 0, 0, 2], "value": 1.5}),
    ("Slice", ((4, 5),), {"axes": [0, 1], "starts": [1, 0], "ends": [3, 4]}),
    ("Split", ((4, 6),), {"axis": 1, "split": [2, 4]}),
    ("Squeeze", ((1, 3, 1),), {"axes": [0]}),
    ("Unsqueeze", ((3, 2),), {"axes": [0, 3]}),
    ("ReduceSum", ((2, 3, 4),), {"axes": [1], "keepdims": 0}),
    ("TopK", ((3, 6),), {"k": 2, "axis": 1}),
    ("Softmax", ((2, 3, 4),), {"axis": 1}),
    ("LogSoftmax", ((2, 3, 4),), {}),
    ("Hardmax", ((2, 3, 4),), {}),
    ("ArgMax", ((3, 4),), {"axis": 1}),
    ("LRN", ((1, 4, 3, 3),), {"size": 3}),
    ("InstanceNormalization", ((2, 3, 4, 4), (3,), (3,)), {}),
    ("ConvTranspose", ((1, 2, 4, 4), (2, 3, 3, 3)), {"strides": [2, 2]}),
    ("Conv", ((1, 2, 5, 5), (3, 2, 3, 3)), {"auto_pad": "SAME_UPPER"}),
    ("Cast", ((2, 3),), {"to": TensorProto.INT32}),
    ("LSTM", ((3, 2, 4), (1, 12, 4), (1, 12, 3)), {"hidden_size": 3}),
    ("GRU", ((3, 2, 4), (1, 9, 4), (1, 9, 3)), {"hidden_size": 3}),
    ("Less", ((2, 3), (3,)), {}),
    ("Elu", ((3,),), {"alpha": 0.5}),
    ("GlobalMaxPool", ((1, 2, 3, 3),), {}),
    ("DepthToSpace", ((1, 8, 2, 2),), {"blocksize": 2}),
)
TWO_OUTPUTS = ("Split", "TopK")


def model_of(opset: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """All cases side by side; the first operand of each is an input, the others are constants."""
    rng = np.random.default_rng(opset)
    nodes, inputs, outputs, constants, feeds = [], [], [], [], {}
    for number, (op, shapes, attrs) in enumerate(CASES):
        names = [f"{op}{number}.{i}" for i in range(len(shapes))]
        arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        if op == "BatchNormalization":
            arrays[-1] = np.abs(arrays[-1])
        made = [f"{op}{number}.out{i}" for i in range(1 + (op in TWO_OUTPUTS))]
        nodes.append(helper.make_node(op, names, made, **attrs))
        inputs.append(helper.make_tensor_value_info(names[0], TensorProto.FLOAT, shapes[0]))
        constants += [numpy_helper.from_array(a, name) for a, name in zip(arrays[1:], names[1:], strict=True)]
        outputs += [helper.make_empty_tensor_value_info(name) for name in made]
        feeds[names[0]] = arrays[0]
    graph = helper.make_graph(nodes, "old", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=6), feeds


@pytest.mark.parametrize("opset", [7, 8])
def test_old_opsets_mean_what_they_meant(opset: int, tmp_path: Path) -> None:
    model, feeds = model_of(opset)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    path = tmp_path / "old.onnx"
    onnx.save(model, path)
    found = sk.compile(str(path)).run(feeds).outputs
    for output, array in zip(model.graph.output, expected, strict=True):
        np.testing.assert_allclose(found[output.name], array, rtol=1e-4, atol=1e-5, err_msg=output.name)


def test_older_ones_are_refused(tmp_path: Path) -> None:
    model, _ = model_of(7)
    model.opset_import[0].version = 6
    path = tmp_path / "older.onnx"
    onnx.save(model, path)
    with pytest.raises(sk.UnsupportedError, match="too old; expected >= 7; found 6"):
        sk.compile(str(path))
