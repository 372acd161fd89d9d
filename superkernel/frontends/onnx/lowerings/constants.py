"""Operators whose result is known at compile time: constants, ranges, identity matrices."""

from __future__ import annotations

from math import ceil, isfinite, nan, prod

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.core.errors import FileFormatError
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.registry import lowers
from superkernel.frontends.onnx.types import element_type

_BYTES_MAX = 1 << 32


@lowers("Constant")
def constant(call: OnnxCall) -> Tensor:
    array = call.tensor_attr("value")
    if array is not None:
        return call.constant(array)
    for name, kind in (
        ("value_int", np.int64),
        ("value_ints", np.int64),
        ("value_float", np.float32),
        ("value_floats", np.float32),
    ):
        if name in call.attrs:
            return call.constant(np.array(call.attrs[name], kind))
    if "sparse_value" in call.attrs or "value_string" in call.attrs or "value_strings" in call.attrs:
        raise call.unsupported("only dense numeric constants are supported", found=", ".join(sorted(call.attrs)))
    raise FileFormatError("the constant has no value", location=call.where)


@lowers("ConstantOfShape")
def constant_of_shape(call: OnnxCall) -> Tensor:
    value = call.tensor_attr("value")
    fill = np.zeros(1, np.float32) if value is None else value.reshape(-1)[:1]
    shape = tuple(call.static_ints(0))
    if min(shape, default=0) < 0 or not fill.size:
        raise call.contradiction("not the shape and value of a constant", found=f"{list(shape)}, {fill.size} values")
    _refuse_large(call, prod(shape) * fill.itemsize)
    return call.constant(np.full(shape, fill[0], fill.dtype))


@lowers("Range")
def range_(call: OnnxCall) -> Tensor:
    start, limit, delta = (call.static_scalar(i) for i in range(3))
    dtype = call.input(0).dtype.numpy
    is_whole = np.issubdtype(dtype, np.integer)
    turns = nan if not delta else -((start - limit) // delta) if is_whole else (limit - start) / delta
    if not isfinite(turns):
        raise call.contradiction("not a range", found=f"from {start} to {limit} by {delta}")
    _refuse_large(call, turns * dtype.itemsize)
    count = max(0, ceil(turns))
    if is_whole:
        return call.constant((int(start) + np.arange(count, dtype=np.int64) * int(delta)).astype(dtype))
    values = float(start) + np.arange(count, dtype=np.float64) * float(delta)
    return call.constant(values.astype(dtype))


def _refuse_large(call: OnnxCall, nbytes: float) -> None:
    if nbytes > _BYTES_MAX:
        raise call.unsupported("a constant is too large to be computed ahead", expected=f"at most {_BYTES_MAX} bytes")


@lowers("EyeLike")
def eye_like(call: OnnxCall) -> Tensor:
    x = call.input(0)
    if x.rank != 2:
        raise FileFormatError("EyeLike takes a matrix", location=call.where, found=x.type)
    dtype = element_type(call.attrs["dtype"], call.where) if "dtype" in call.attrs else x.dtype
    return call.constant(np.eye(x.shape[0], x.shape[1], k=call.attr("k", 0)).astype(dtype.numpy))
