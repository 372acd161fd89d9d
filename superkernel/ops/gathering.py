"""Gathers and scatters: moves whose path is in an index input.

Model: indices count from the end where negative. An index out of range is clamped to the nearest legal one, in the
reference and in every kernel, so that no input can make a read or write leave its tensor. Scatters apply their updates
in row-major order: without a reduction the last update of an element wins.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType
from superkernel.ops.common import attr, axis_of, get, present, require, require_rank, require_shape, slot, widen
from superkernel.ops.opdef import ANY, MOVED, ArgDef, Array, Arrays, AttrDef, Attrs, Family, OpDef, Outputs, Types

INDEX = frozenset({DType.I64, DType.I32})


def wrap_indices(indices: Array, extent: int | Array) -> Array:
    """Indices as i64, negative ones counted from the end, then clamped into 0 .. extent - 1."""
    wide = indices.astype(np.int64)
    result: Array = np.clip(np.where(wide < 0, wide + extent, wide), 0, np.asarray(extent) - 1)
    return result


def _not_empty(extent: int, entries: int, what: str) -> None:
    require(extent > 0 or entries == 0, f"{what} is empty, so no index is legal", "at least one element", extent)


# gather

_GATHER_ARGS = (ArgDef("x", MOVED), ArgDef("indices", INDEX))


def _gather_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, indices = present(inputs, 0), present(inputs, 1)
    axis = axis_of(get(attrs, "axis", int), x.rank)
    _not_empty(x.shape[axis], indices.size, "the gathered axis")
    return (TensorType(x.dtype, x.shape[:axis] + indices.shape + x.shape[axis + 1 :]),)


def _gather_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x, indices = present(inputs, 0), present(inputs, 1)
    axis = axis_of(get(attrs, "axis", int), x.ndim)
    if indices.size == 0:
        return (np.zeros(outputs[0].shape, x.dtype),)
    return (x.take(wrap_indices(indices, x.shape[axis]), axis=axis),)


# gather_elements


def _elements_fit(x: TensorType, indices: TensorType, axis: int, where: str) -> None:
    """Off the axis, `indices` is no larger than `x`; on it, an index has something to point at."""
    require_rank(indices, x.rank, x.rank, where)
    fits = all(i == axis or n <= d for i, (n, d) in enumerate(zip(indices.shape, x.shape, strict=True)))
    wanted = f"at most {list(x.shape)} but for axis {axis}"
    require(fits, "indices reach over the edge of x", wanted, list(indices.shape), where)
    _not_empty(x.shape[axis], indices.size, "the indexed axis")


def _gather_elements_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, indices = present(inputs, 0), present(inputs, 1)
    _elements_fit(x, indices, axis_of(get(attrs, "axis", int), x.rank), slot(_GATHER_ARGS, 1))
    return (TensorType(x.dtype, indices.shape),)


def _element_positions(indices: Array, axis: int, extent: int) -> tuple[Array, ...]:
    """Index arrays of the elements that `indices` point at along `axis`."""
    positions: list[Array] = list(np.indices(indices.shape, sparse=True))
    positions[axis] = wrap_indices(indices, extent)
    return tuple(positions)


def _gather_elements_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x, indices = present(inputs, 0), present(inputs, 1)
    if indices.size == 0:
        return (np.zeros(outputs[0].shape, x.dtype),)
    axis = axis_of(get(attrs, "axis", int), x.ndim)
    return (x[_element_positions(indices, axis, x.shape[axis])],)


# gather_nd


def _tuple_width(x: TensorType, indices: TensorType, batch: int, where: str) -> int:
    """Length of one index tuple: the last axis of `indices`."""
    require_rank(indices, 1, None, where)
    width = indices.shape[-1]
    require(batch + width <= x.rank, "index tuples are longer than x has dimensions", x.rank - batch, width, where)
    return width


def _gather_nd_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, indices, batch = present(inputs, 0), present(inputs, 1), get(attrs, "batch_dims", int)
    where = slot(_GATHER_ARGS, 1)
    require_rank(indices, 1, None, where)
    most = min(x.rank, indices.rank - 1)
    require(0 <= batch <= most, "batch_dims is out of range", f"0 to {most}", batch)
    width = _tuple_width(x, indices, batch, where)
    require(x.shape[:batch] == indices.shape[:batch], "batch dimensions differ", x.shape[:batch], indices.shape, where)
    for extent in x.shape[batch : batch + width]:
        _not_empty(extent, indices.size, "an indexed axis")
    return (TensorType(x.dtype, indices.shape[:-1] + x.shape[batch + width :]),)


def _gather_nd_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    x, indices, batch = present(inputs, 0), present(inputs, 1), get(attrs, "batch_dims", int)
    width, lead = indices.shape[-1], indices.shape[:-1]
    if outputs[0].size == 0:
        return (np.zeros(outputs[0].shape, x.dtype),)
    grid = np.indices(lead, sparse=True)[:batch]
    named = tuple(wrap_indices(indices[..., i], x.shape[batch + i]) for i in range(width))
    where: tuple[Any, ...] = (*grid, *named)
    return (np.broadcast_to(x[where], outputs[0].shape),)


# Scatters

_SCATTER_ARGS = (ArgDef("x", ANY), ArgDef("indices", INDEX), ArgDef("updates", ANY, doc="of x's type"))
_REDUCTION = attr(
    "reduction", "none", "how an update joins what is there", choices=("none", "add", "mul", "max", "min")
)


def _scatter_dtype(inputs: Types, attrs: Attrs) -> None:
    x, updates = present(inputs, 0), present(inputs, 2)
    require(updates.dtype is x.dtype, "element types differ", x.dtype, updates.dtype, slot(_SCATTER_ARGS, 2))
    plain = x.dtype is not DType.BOOL or get(attrs, "reduction", str) == "none"
    require(plain, "a reduction needs numbers", "a numeric type", x.dtype, "attribute 'reduction'")


def _apply_updates(result: Array, positions: tuple[Any, ...], updates: Array, reduction: str) -> None:
    """Join the updates into `result` in row-major order."""
    if reduction == "none":
        # Assignment through repeated indices keeps the last value.
        result[positions] = updates
        return
    join: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
    join[reduction].at(result, positions, updates)


def _scatter_elements_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, indices = present(inputs, 0), present(inputs, 1)
    _scatter_dtype(inputs, attrs)
    _elements_fit(x, indices, axis_of(get(attrs, "axis", int), x.rank), slot(_SCATTER_ARGS, 1))
    require_shape(present(inputs, 2), indices.shape, slot(_SCATTER_ARGS, 2))
    return (x,)


def _scatter_elements_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    result, indices = widen(present(inputs, 0)).copy(), present(inputs, 1)
    if indices.size:
        axis = axis_of(get(attrs, "axis", int), result.ndim)
        positions = np.broadcast_arrays(*_element_positions(indices, axis, result.shape[axis]))
        _apply_updates(result, tuple(positions), widen(present(inputs, 2)), get(attrs, "reduction", str))
    return (result,)


def _scatter_nd_infer(inputs: Types, attrs: Attrs) -> Outputs:
    x, indices = present(inputs, 0), present(inputs, 1)
    _scatter_dtype(inputs, attrs)
    width = _tuple_width(x, indices, 0, slot(_SCATTER_ARGS, 1))
    for extent in x.shape[:width]:
        _not_empty(extent, indices.size, "an indexed axis")
    require_shape(present(inputs, 2), indices.shape[:-1] + x.shape[width:], slot(_SCATTER_ARGS, 2))
    return (x,)


def _scatter_nd_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    result, indices, updates = widen(present(inputs, 0)).copy(), present(inputs, 1), widen(present(inputs, 2))
    width, reduction = indices.shape[-1], get(attrs, "reduction", str)
    if updates.size == 0:
        return (result,)
    rows = indices.reshape(-1, width) if width else np.zeros((int(np.prod(indices.shape[:-1])), 0), np.int64)
    blocks = updates.reshape(len(rows), *result.shape[width:])
    if width:
        positions = tuple(wrap_indices(rows[:, i], result.shape[i]) for i in range(width))
        _apply_updates(result, positions, blocks, reduction)
    else:
        for block in blocks:  # empty index tuples: every update covers the whole of x
            _apply_updates(result, (...,), block, reduction)
    return (result,)


def _scatter_flops(inputs: Types, outputs: Outputs, attrs: Attrs) -> int:
    return 0 if get(attrs, "reduction", str) == "none" else present(inputs, 2).size


_AXIS: tuple[AttrDef, ...] = (attr("axis", 0),)

OPS: tuple[OpDef, ...] = (
    OpDef(
        "gather",
        Family.MOVE,
        "x.take(indices, axis): the indexed slices; the shape of indices stands in the axis's place.",
        _GATHER_ARGS,
        _AXIS,
        _gather_infer,
        _gather_reference,
    ),
    OpDef(
        "gather_elements",
        Family.MOVE,
        "out[i][j] = x[indices[i][j]][j] (axis 0): one index per element.",
        _GATHER_ARGS,
        _AXIS,
        _gather_elements_infer,
        _gather_elements_reference,
    ),
    OpDef(
        "gather_nd",
        Family.MOVE,
        "out[i] = x[indices[i, 0], indices[i, 1], ...]: slices picked by index tuples.",
        _GATHER_ARGS,
        (attr("batch_dims", 0, "leading dimensions that x and indices share"),),
        _gather_nd_infer,
        _gather_nd_reference,
    ),
    OpDef(
        "scatter_elements",
        Family.MOVE,
        "x with x[indices[i][j]][j] (axis 0) replaced by, or joined with, updates[i][j].",
        _SCATTER_ARGS,
        (*_AXIS, _REDUCTION),
        _scatter_elements_infer,
        _scatter_elements_reference,
        _scatter_flops,
    ),
    OpDef(
        "scatter_nd",
        Family.MOVE,
        "x with x[indices[i, 0], indices[i, 1], ...] replaced by, or joined with, updates[i].",
        _SCATTER_ARGS,
        (_REDUCTION,),
        _scatter_nd_infer,
        _scatter_nd_reference,
        _scatter_flops,
    ),
)
