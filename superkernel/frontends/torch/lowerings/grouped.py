"""Products of rows grouped by expert, as mixtures of experts have them, and the histogram that counts the rows."""

from __future__ import annotations

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.torch.call import TorchCall
from superkernel.frontends.torch.registry import lowers


@lowers("histc")
def histogram(call: TorchCall) -> Tensor:
    """Counts of the elements in bins of equal width; the last one includes the upper limit, what lies outside of the
    limits, or is no number, is not counted."""
    x, bins = call.tensor("self"), int(call.get("bins", 100))
    low, high = float(call.get("min", 0)), float(call.get("max", 0))
    if low >= high:
        hint = "give min and max"
        raise call.unsupported("a histogram between limits that are the data's own", found=f"{low}, {high}", hint=hint)
    x = call.reshape(x, (x.type.size, 1))
    place = call.emit("div", call.emit("mul", call.emit("sub", x, call.like(low, x)), call.like(bins, x)),
                      call.like(high - low, x))  # fmt: skip
    place = call.emit("minimum", call.emit("floor", place), call.like(bins - 1, x))
    inside = call.emit(
        "logical_and", call.emit("greater_equal", x, call.like(low, x)), call.emit("less_equal", x, call.like(high, x))
    )
    each = call.constant(np.arange(bins).astype(x.dtype.numpy), x.dtype)
    hit = call.emit("logical_and", call.emit("equal", place, each), inside)
    return call.emit("reduce_sum", call.cast(hit, x.dtype), axes=(0,), keepdims=False)


@lowers("_grouped_mm", "transformers.grouped_mm_fallback")
def grouped_mm(call: TorchCall) -> Tensor:
    """Rows up to each offset by the matrix of its group; rows behind the last offset, which torch leaves as they are in
    memory, become 0."""
    named = "self" in call.args
    x, weight = call.tensor("self" if named else "input"), call.tensor("mat2" if named else "weight")
    ends = call.optional("offs")
    if ends is None or x.rank != 2 or weight.rank != 3:
        found = f"{x.type} by {weight.type}" + ("" if ends is not None else ", without offsets")
        raise call.unsupported(
            "this form of a grouped product", expected="[T, K] by [E, K, N], with offsets", found=found
        )
    if call.optional("bias") is not None:
        raise call.unsupported("a grouped product with a bias", hint="add it behind the product")
    ends = call.cast(ends, DType.I64)
    first = call.constant(np.zeros(1, np.int64))
    starts = call.concat([first, call.slice(ends, 0, 0, weight.shape[0] - 1)], 0) if weight.shape[0] > 1 else first
    product = call.emit("grouped_matmul", x, weight, call.emit("sub", ends, starts), None)
    return call.cast(product, call.dtype)
