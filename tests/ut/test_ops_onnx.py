"""The operators' references against the onnx package's evaluator.

Each row of `onnx_rows` maps one of our operators to an ONNX one; at least one case per row must remain.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_rows import ROWS, Array
from operator_cases import cases

from superkernel.core.dtypes import DType
from superkernel.reference import apply

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

OPSET = 21


def evaluate(kind: str, inputs: list[Array | None], attrs: dict[str, Any], outputs: int) -> list[Array]:
    """One ONNX node through the onnx package's evaluator."""
    names = ["" if x is None else f"i{k}" for k, x in enumerate(inputs)]
    node = helper.make_node(kind, names, [f"o{k}" for k in range(outputs)], **attrs)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in zip(names, inputs, strict=True)
        if x is not None
    ]
    results = [helper.make_tensor_value_info(f"o{k}", TensorProto.UNDEFINED, None) for k in range(outputs)]
    graph = helper.make_graph([node], "one", infos, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    feeds = {n: x for n, x in zip(names, inputs, strict=True) if x is not None}
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(model).run(None, feeds))


@pytest.mark.parametrize("op", ROWS)
def test_onnx_evaluator_agrees(op: str) -> None:
    checked = 0
    for case in cases(op, seed=4):
        leading = case.inputs[1 if op == "where" else 0]
        assert leading is not None
        if DType.of(leading.dtype) in (DType.F16, DType.BF16):
            continue  # the evaluator computes in the narrow type
        mapped = ROWS[op](case)
        if mapped is None:
            continue
        ours = apply(*case)
        kind, inputs, attrs = mapped
        theirs = evaluate(kind, inputs, attrs or {}, len(ours))
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.shape == np.shape(other), case
            assert mine.dtype == other.dtype or kind == "Pow", case
            np.testing.assert_allclose(mine, other, rtol=3e-5, atol=3e-6, err_msg=str(case))
        checked += 1
    assert checked > 0
