"""In-place updates of a state.

Model: `kv_update` is a pure function like every operator; that the output takes the cache's place in memory is
the graph's `updates` and the compiler's business. The position is data: it is clamped so that no input can write out of
bounds.
"""

from __future__ import annotations

from superkernel.core.dtypes import DType
from superkernel.ops.common import present, require, require_rank, require_shape, slot, widen
from superkernel.ops.opdef import MOVED, ArgDef, Array, Arrays, Attrs, Family, OpDef, Outputs, Types

_ARGS = (
    ArgDef("cache", MOVED, doc="[B, H, Smax, D]"),
    ArgDef("new", MOVED, doc="[B, H, T, D], T <= Smax, of the cache's type"),
    ArgDef("position", frozenset({DType.I64, DType.I32}), doc="scalar or [1]; clamped to 0 .. Smax - T"),
)


def _infer(inputs: Types, attrs: Attrs) -> Outputs:
    cache, new, position = (present(inputs, i) for i in range(3))
    require_rank(cache, 4, 4, slot(_ARGS, 0))
    require_rank(new, 4, 4, slot(_ARGS, 1))
    require(new.dtype is cache.dtype, "element types differ", cache.dtype, new.dtype, slot(_ARGS, 1))
    batch, heads, most, depth = cache.shape
    require_shape(new, (batch, heads, new.shape[2], depth), slot(_ARGS, 1))
    require(new.shape[2] <= most, "more new rows than the cache holds", f"at most {most}", new.shape[2], slot(_ARGS, 1))
    scalar = position.shape in ((), (1,))
    require(scalar, "position has the wrong shape", "a scalar or [1]", list(position.shape), slot(_ARGS, 2))
    return (cache,)


def _reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    cache, new = widen(present(inputs, 0)).copy(), widen(present(inputs, 1))
    rows = new.shape[2]
    start = min(max(int(present(inputs, 2).reshape(-1)[0]), 0), cache.shape[2] - rows)
    cache[:, :, start : start + rows] = new
    return (cache,)


OPS: tuple[OpDef, ...] = (
    OpDef(
        "kv_update",
        Family.UPDATE,
        "cache with rows position .. position + T of its third axis replaced by new.",
        _ARGS,
        (),
        _infer,
        _reference,
    ),
)
