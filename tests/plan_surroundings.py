"""What fusion puts around operators, around those of `plan_cases`: a program in front of an input, another behind the
result, which is stored in another type into a part of a wider tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType, row_major_strides
from superkernel.ir.body import Body, Instruction, PointwiseProgram, ProgramInput, ProgramOutput, Role, View
from superkernel.scheduler.families.aicore import AICORE_KERNELS

BY_FIX = ("aicore.matmul", "aicore.conv")  # a relu; vector cores do a tanh
WIDER = 3  # elements of each line of the wider tensor that others have


def surrounded(kernel: str, body: Body, target: Any) -> Iterator[tuple[str, Body]]:
    """The body of a kernel of the accelerator with what it takes around it, and what that is."""
    family = AICORE_KERNELS.family_of(kernel)
    if family.accepts_epilogue(kernel, target):
        is_float = body.epilogue.dtype_of(body.epilogue.outputs[0].value).is_float
        ops = ("tanh",) * is_float + ("relu",) * (not is_float or kernel.startswith(BY_FIX))
        yield from ((f"{op} behind", _behind(body, op)) for op in ops)
    for slot, source in enumerate(body.anchor_inputs):
        if not isinstance(source, View) or not family.accepts_prologue(kernel, body.op or "", slot):
            continue
        operand = body.operands[source.operand]
        if operand.role is Role.INPUT and operand.type.dtype.is_float:
            yield f"abs ahead of {slot}", _ahead(body, slot, source)


def _behind(body: Body, op: str) -> Body:
    """The first result has the operator behind it."""
    program, store = body.epilogue, body.epilogue.outputs[0]
    dtype, kind = program.dtype_of(store.value), body.operands[store.target].type
    out = dtype if not dtype.is_float else DType.F16 if dtype is DType.F32 else DType.F32
    shape = (*kind.shape[:-1], kind.shape[-1] + WIDER) if kind.rank else (1 + WIDER,)
    moved = dict(zip(row_major_strides(kind.shape), row_major_strides(shape), strict=False))
    strides = tuple(moved.get(stride, stride) for stride in store.strides)
    value = len(program.inputs) + len(program.instructions)
    steps = [Instruction(op, (store.value,), dtype)]
    if out is not dtype:
        steps.append(Instruction("cast", (value,), out, (("dtype", out),)))
    first = replace(store, value=value + len(steps) - 1, strides=strides, offset=store.offset + 1)
    operands = [*body.operands]
    operands[store.target] = replace(operands[store.target], type=TensorType(out, shape))
    behind = replace(program, instructions=(*program.instructions, *steps), outputs=(first, *program.outputs[1:]))
    return replace(body, operands=tuple(operands), epilogue=behind)


def _ahead(body: Body, slot: int, view: View) -> Body:
    """An input is the absolute value of what it was."""
    dtype = body.operands[view.operand].type.dtype
    load = ProgramInput(view.operand, dtype, view.strides, view.offset)
    program = PointwiseProgram(view.shape, (load,), (Instruction("abs", (0,), dtype),), (ProgramOutput(1, -1),))
    sources = [*body.anchor_inputs]
    sources[slot] = program
    return replace(body, anchor_inputs=tuple(sources))
