"""Reductions along axes, argmax and argmin."""

from __future__ import annotations

from collections.abc import Sequence

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.lowerings.shape import given_axes
from superkernel.frontends.onnx.registry import lowers

REDUCTIONS = {
    "ReduceL1": "reduce_l1",
    "ReduceL2": "reduce_l2",
    "ReduceLogSum": "reduce_log_sum",
    "ReduceLogSumExp": "reduce_log_sum_exp",
    "ReduceMax": "reduce_max",
    "ReduceMean": "reduce_mean",
    "ReduceMin": "reduce_min",
    "ReduceProd": "reduce_prod",
    "ReduceSum": "reduce_sum",
    "ReduceSumSquare": "reduce_sum_square",
}
_OF_FLOATS = ("reduce_mean", "reduce_l2", "reduce_log_sum", "reduce_log_sum_exp")
"""Of integers, the fraction of the result is dropped."""


@lowers(*REDUCTIONS)
def reduction(call: OnnxCall) -> Tensor:
    x = call.input(0)
    axes = given_axes(call, 13 if call.op == "ReduceSum" else 18)
    keepdims = bool(call.attr("keepdims", 1))
    op = REDUCTIONS[call.op]
    if x.dtype.is_integer and op in _OF_FLOATS:
        return call.cast(_reduced(call, op, call.cast(x, DType.F64), axes, keepdims=keepdims), x.dtype)
    return _reduced(call, op, x, axes, keepdims=keepdims)


def _reduced(call: OnnxCall, op: str, x: Tensor, axes: Sequence[int] | None, *, keepdims: bool) -> Tensor:
    if not axes and call.attr("noop_with_empty_axes", 0):
        # No axis is reduced, but what the reduction does to each element (absolute value, square, logarithm) is done:
        # as over an axis of one.
        single = call.reshape(x, (*x.shape, 1))
        return call.emit(op, single, axes=(-1,), keepdims=False)
    return call.emit(op, x, axes=tuple(axes or ()), keepdims=keepdims)
