"""Running results along an axis by any associative function, for which the table has no operator.

Model: after a step of distance d every element holds the result over the 2d elements that end at it; log2(n) steps over
whole slices do the work of a loop over the axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.emitter import Emitter

Parts = Sequence[Tensor]


def scanned(call: Emitter, parts: Parts, axis: int, combine: Callable[[Parts, Parts], Parts]) -> Parts:
    """The scan of tuples of tensors by an associative function of (what is before, what is behind)."""
    extent, step = parts[0].shape[axis], 1
    while step < extent:
        before = [call.slice(p, axis, 0, extent - step) for p in parts]
        behind = [call.slice(p, axis, step, extent) for p in parts]
        joined = combine(before, behind)
        parts = [call.concat([call.slice(p, axis, 0, step), j], axis) for p, j in zip(parts, joined, strict=True)]
        step *= 2
    return parts


def running_product(call: Emitter, x: Tensor, axis: int) -> Tensor:
    """In a wider type: factors between that lie beyond the range of the own one count."""
    wider = {DType.F32: DType.F64, DType.F16: DType.F32, DType.BF16: DType.F32}
    parts = [call.cast(x, wider.get(x.dtype, x.dtype))]
    (y,) = scanned(call, parts, axis, lambda a, b: [call.emit("mul", a[0], b[0])])
    return call.cast(y, x.dtype)
