"""Operators that the table has as ONNX has them, but for names."""

from __future__ import annotations

from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.registry import MICROSOFT, lowers
from superkernel.frontends.onnx.values import EMPTY, Result, TensorSequence
from superkernel.ops.opdef import Family
from superkernel.ops.table import op_table

_NAMES = {
    "ArgMax": "argmax",
    "ArgMin": "argmin",
    "Gather": "gather",
    "GatherElements": "gather_elements",
    "GatherND": "gather_nd",
    "Gemm": "gemm",
    "GlobalAveragePool": "global_avg_pool",
    "GlobalMaxPool": "global_max_pool",
    "InstanceNormalization": "instance_norm",
    "LRN": "lrn",
    "LpNormalization": "lp_norm",
    "RMSNormalization": "rms_norm",
    "Scatter": "scatter_elements",
    "ScatterElements": "scatter_elements",
    "ScatterND": "scatter_nd",
    **{row.onnx: row.name for row in op_table().values() if row.onnx},
}
_ATTRIBUTES = {"trans_a": "transA", "trans_b": "transB"}  # those of other names


@lowers(*_NAMES)
@lowers("Gelu", domain=MICROSOFT)
def plain(call: OnnxCall) -> Result:
    if call.op == "Identity" and (isinstance(call.values[0], TensorSequence) or call.values[0] is EMPTY):
        return call.values[0]
    row = op_table()[_NAMES[call.op]]
    if row.family is Family.POINTWISE and len(row.args) == 2 and (call.attr("broadcast") or "axis" in call.attrs):
        raise call.unsupported("the broadcast attribute of operator sets before 7 is not supported")
    given = {a.name: call.attr(_ATTRIBUTES.get(a.name, a.name)) for a in row.attrs}
    operands = (call.optional(i) if arg.optional else call.input(i) for i, arg in enumerate(row.args))
    return call.emit(row.name, *operands, **given)
