"""What fusion puts around operators, around those of `plan_cases`: a program in front of an input, or part of a wider
tensor for one; a program behind the result, which is stored in another type into a part of a wider tensor, or the other
way round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType, row_major_strides
from superkernel.ir.body import (
    AnchorInput,
    Body,
    Instruction,
    Operand,
    PointwiseProgram,
    ProgramInput,
    ProgramOutput,
    Role,
    View,
)
from superkernel.scheduler.families import HOST_KERNELS
from superkernel.scheduler.families.aicore import AICORE_KERNELS

BY_FIX = ("aicore.matmul", "aicore.conv")  # a relu; vector cores do a tanh
WIDER = 3  # elements of each line of the wider tensor that others have


def surrounded(kernel: str, body: Body, target: Any) -> Iterator[tuple[str, Body]]:
    """The body of a kernel with what it takes around it, and what that is."""
    table: Any = AICORE_KERNELS if target.core_types else HOST_KERNELS
    family = table.family_of(kernel)
    if family.accepts_epilogue(kernel, target):
        is_float = body.epilogue.dtype_of(body.epilogue.outputs[0].value).is_float
        ops = ("tanh",) * is_float + ("relu",) * (not is_float or kernel.startswith(BY_FIX))
        yield from ((f"{op} behind", _behind(body, op)) for op in ops)
    around = _turned(body)
    if family.accepts_store(kernel, body.op or "", *around[1]):
        yield "turned", around[0]
    parts = body
    for slot, source in enumerate(body.anchor_inputs):
        if not isinstance(source, View) or body.operands[source.operand].role is not Role.INPUT:
            continue
        dtype = body.operands[source.operand].type.dtype
        if dtype.is_float and family.accepts_prologue(kernel, body.op or "", slot):
            yield f"abs ahead of {slot}", _ahead(body, slot, source)
        part, operands = _part(parts, source)
        if source.shape and family.accepts_view(kernel, body.op or "", slot, part, dtype):
            parts = replace(_with_slot(parts, slot, part), operands=operands)
    if parts is not body:
        yield "parts of wider ones", parts


def turned(kernel: str, body: Body) -> Iterator[tuple[str, Body]]:
    """The body of a kernel of the host with one input after the other laid out in another order of its dimensions, as
    far as it reads that."""
    family = HOST_KERNELS.family_of(kernel)
    for slot, view in enumerate(body.anchor_inputs):
        if not isinstance(view, View) or len(view.shape) < 2 or body.operands[view.operand].role is not Role.INPUT:
            continue
        dtype = body.operands[view.operand].type.dtype
        for order in _orders(len(view.shape)):
            moved = replace(view, strides=_strides(view.shape, order))
            if moved != view and family.accepts_view(kernel, body.op or "", slot, moved, dtype):
                yield f"{slot} as {order}", _with_slot(body, slot, moved)
    program = body.epilogue
    if body.op is None and len(program.shape) > 1:
        for order in _orders(len(program.shape)):
            first = replace(program.inputs[0], strides=_strides(program.shape, order))
            if first != program.inputs[0]:
                yield f"as {order}", replace(body, epilogue=replace(program, inputs=(first, *program.inputs[1:])))


def _orders(rank: int) -> tuple[tuple[int, ...], ...]:
    """Of dimensions in memory: the first two exchanged, and the second one last."""
    return (1, 0, *range(2, rank)), (0, *range(2, rank), 1)


def _strides(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    dense = row_major_strides(tuple(shape[d] for d in order))
    return tuple(dense[order.index(d)] for d in range(len(order)))


def _behind(body: Body, op: str) -> Body:
    """The first result has the operator behind it."""
    program, store = body.epilogue, body.epilogue.outputs[0]
    dtype, kind = program.dtype_of(store.value), body.operands[store.target].type
    out = dtype if not dtype.is_float else DType.F16 if dtype is DType.F32 else DType.F32
    wide, strides = _widened(kind, store.strides)
    value = len(program.inputs) + len(program.instructions)
    steps = [Instruction(op, (store.value,), dtype)]
    if out is not dtype:
        steps.append(Instruction("cast", (value,), out, (("dtype", out),)))
    first = replace(store, value=value + len(steps) - 1, strides=strides, offset=store.offset + 1)
    operands = [*body.operands]
    operands[store.target] = replace(operands[store.target], type=TensorType(out, wide))
    behind = replace(program, instructions=(*program.instructions, *steps), outputs=(first, *program.outputs[1:]))
    return replace(body, operands=tuple(operands), epilogue=behind)


def _turned(body: Body) -> tuple[Body, tuple[View, DType]]:
    """The first result is stored with its dimensions the other way round; the view of what it is stored into."""
    program, store = body.epilogue, body.epilogue.outputs[0]
    kind = body.operands[store.target].type
    shape = kind.shape[::-1]
    first = replace(
        store, strides=row_major_strides(shape)[::-1] if len(shape) == len(program.shape) else store.strides
    )
    operands = [*body.operands]
    operands[store.target] = replace(operands[store.target], type=TensorType(kind.dtype, shape))
    turned = replace(program, outputs=(first, *program.outputs[1:]))
    view = View(store.target, program.shape, first.strides)
    return replace(body, operands=tuple(operands), epilogue=turned), (view, kind.dtype)


def _ahead(body: Body, slot: int, view: View) -> Body:
    """An input is the absolute value of what it was."""
    dtype = body.operands[view.operand].type.dtype
    load = ProgramInput(view.operand, dtype, view.strides, view.offset)
    program = PointwiseProgram(view.shape, (load,), (Instruction("abs", (0,), dtype),), (ProgramOutput(1, -1),))
    return _with_slot(body, slot, program)


def _part(body: Body, view: View) -> tuple[View, tuple[Operand, ...]]:
    """The view of a wider tensor, and the operands with that."""
    operands = [*body.operands]
    wide, strides = _widened(operands[view.operand].type, view.strides)
    operands[view.operand] = replace(operands[view.operand], type=TensorType(operands[view.operand].type.dtype, wide))
    return replace(view, strides=strides, offset=view.offset + 1), tuple(operands)


def _with_slot(body: Body, slot: int, source: AnchorInput) -> Body:
    sources = [*body.anchor_inputs]
    sources[slot] = source
    return replace(body, anchor_inputs=tuple(sources))


def _widened(kind: TensorType, strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of a tensor whose lines are longer, and which has more of them; the strides of what was all of it."""
    if not kind.rank:
        return (1 + WIDER,), strides
    longer = (0,) * (kind.rank - 2) + (1, WIDER)[-kind.rank :]
    shape = tuple(a + b for a, b in zip(kind.shape, longer, strict=True))
    moved = dict(zip(row_major_strides(kind.shape), row_major_strides(shape), strict=False))
    return shape, tuple(moved.get(stride, stride) for stride in strides)
