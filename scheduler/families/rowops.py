"""Which dimensions each row-wise operator works over: body -> `RowSpace` (see rowspace)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from superkernel.core.errors import InternalError
from superkernel.ir.body import Body, PointwiseProgram
from superkernel.ops.opdef import AttrValue
from superkernel.scheduler.families.rowspace import RowSpace, flip_dim, remap, row_space, slot_program, split_dim

ALONG_AXIS = ("softmax", "log_softmax", "softmax_integer", "lp_norm")
OVER_TAIL = ("layer_norm", "rms_norm")
PER_CHANNEL = ("group_norm", "instance_norm", "batch_norm")
ARG_REDUCTIONS = ("argmax", "argmin")


def integer(value: AttrValue) -> int:
    """An attribute that must be an integer."""
    if not isinstance(value, int):
        raise InternalError("attribute is not an integer", found=value)
    return value


def real(value: AttrValue) -> float:
    """An attribute that must be a number."""
    if not isinstance(value, (int, float)):
        raise InternalError("attribute is not a number", found=value)
    return float(value)


@lru_cache(maxsize=1024)
def space_of(body: Body) -> RowSpace:
    """The row space of a body whose anchor is a row-wise operator, a reduction or a scan. Raises InternalError for
    others."""
    op, kind = str(body.op), body.anchor_input_types[0]
    assert kind is not None
    shape = kind.shape
    slots = [slot_program(body, k) for k in range(len(body.anchor_inputs))]
    if op in ALONG_AXIS:
        return row_space(shape, (integer(body.attr["axis"]) % len(shape),), [*slots, body.epilogue])
    if op in OVER_TAIL:
        first = integer(body.attr["axis"]) % len(shape)
        wide = [_broadcast(p, shape) for p in slots]
        return row_space(shape, range(first, len(shape)), [*wide, body.epilogue])
    if op in PER_CHANNEL:
        return _channel_space(body, shape, slots)
    if op == "lrn":
        return row_space(shape, (1,), [*slots, body.epilogue])
    if op == "topk":  # the epilogue's extent along the axis is k: its coordinates there are ranks
        axis = integer(body.attr["axis"]) % len(shape)
        ranks = remap(body.epilogue, shape, range(len(shape)))
        return row_space(shape, (axis,), [*slots, ranks])
    if op == "cumsum":
        return _scan_space(body, shape, slots[0])
    if op in ARG_REDUCTIONS or op.startswith("reduce_"):
        return _reduced_space(body, shape, slots[0])
    raise InternalError("not a row-wise operator", location=op)


def _broadcast(program: PointwiseProgram | None, shape: tuple[int, ...]) -> PointwiseProgram | None:
    """A slot broadcast to the data's shape by NumPy's rule."""
    if program is None:
        return None
    lead = len(shape) - len(program.shape)
    return remap(program, shape, [None if d < lead else d - lead for d in range(len(shape))])


def _channel_space(body: Body, shape: tuple[int, ...], slots: Sequence[PointwiseProgram | None]) -> RowSpace:
    """Scale, bias, ... of shape [C] lie along dimension 1; a group is part of that dimension and all behind it."""
    channel = [0 if d == 1 else None for d in range(len(shape))]
    programs = [slots[0], *(None if p is None else remap(p, shape, channel) for p in slots[1:]), body.epilogue]
    if body.op == "batch_norm":
        programs = [None if p is None else remap(p, (*shape, 1), [*range(len(shape)), None]) for p in programs]
        return row_space((*shape, 1), (len(shape),), programs)
    if body.op == "instance_norm" and len(shape) > 2:
        return row_space(shape, range(2, len(shape)), programs)
    groups = integer(body.attr["groups"]) if body.op == "group_norm" else shape[1]
    size = max(1, shape[1] // max(1, groups))
    split = [None if p is None else split_dim(p, 1, size) for p in programs]
    return row_space((shape[0], groups, size, *shape[2:]), range(2, len(shape) + 1), split)


def _scan_space(body: Body, shape: tuple[int, ...], data: PointwiseProgram | None) -> RowSpace:
    axis = integer(body.attr["axis"]) % len(shape)
    epilogue = body.epilogue
    if body.attr["reverse"] and data is not None and shape[axis]:
        data, epilogue = flip_dim(data, axis), flip_dim(epilogue, axis)
    return row_space(shape, (axis,), [data, epilogue])


def reduced_dims(body: Body, rank: int) -> tuple[int, ...]:
    """The dimensions a reduction removes."""
    if body.op in ARG_REDUCTIONS:
        return (integer(body.attr["axis"]) % rank,)
    axes = body.attr["axes"]
    if not isinstance(axes, tuple) or not axes:
        return tuple(range(rank))
    return tuple(sorted({int(a) % rank for a in axes}))


def _reduced_space(body: Body, shape: tuple[int, ...], data: PointwiseProgram | None) -> RowSpace:
    """The epilogue has no reduced dimensions (or of extent 1): it is broadcast over them, and run once per row."""
    reduced = reduced_dims(body, len(shape))
    if body.attr["keepdims"]:
        dims: list[int | None] = [None if d in reduced else d for d in range(len(shape))]
    else:
        kept = iter(range(len(shape)))
        dims = [None if d in reduced else next(kept) for d in range(len(shape))]
    epilogue = remap(body.epilogue, shape, dims)
    if not shape:
        epilogue = remap(body.epilogue, (1,), [None])
        return row_space((1,), (0,), [None if data is None else remap(data, (1,), [None]), epilogue])
    return row_space(shape, reduced, [data, epilogue])
