"""Bodies of one operator, made from the operator table: dense inputs, the results stored densely; and their
reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from kernel_check import Array, check_body, dense_strides, operand
from numpy.typing import NDArray

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
from superkernel.ops.attributes import canonical_attrs
from superkernel.ops.table import find_op
from superkernel.scheduler.tiling import CostedTiling
from superkernel.target.cpu import CpuTarget


def type_of(array: NDArray[Any]) -> TensorType:
    return TensorType(DType.of(array.dtype), array.shape)


def op_body(
    op: str,
    inputs: Sequence[Array | None],
    attrs: Mapping[str, Any] | None = None,
    views: Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]] | None = None,
    roles: Mapping[int, Role] | None = None,
) -> tuple[Body, list[Array | None], dict[int, Array]]:
    """(body, arrays by operand, expected arrays by operand). `views`: slot -> (buffer shape, permutation of it that
    is the input)."""
    row = find_op(op)
    assert row is not None, op
    full = canonical_attrs(row, attrs or {})
    types = [None if a is None else type_of(np.asarray(a)) for a in inputs]
    outputs = row.infer(types, full)
    operands: list[Operand] = []
    arrays: list[Array | None] = []
    slots: list[View | None] = []
    for k, (array, kind) in enumerate(zip(inputs, types, strict=True)):
        if array is None or kind is None:
            slots.append(None)
            continue
        strides = kind.strides
        buffer = np.asarray(array)
        if views and k in views:
            shape, perm = views[k]
            strides = tuple(row_major_strides(shape)[p] for p in perm)
            buffer = np.ascontiguousarray(buffer.transpose(np.argsort(perm)))
            assert buffer.shape == tuple(shape)
        slots.append(View(len(operands), kind.shape, strides))
        operands.append(operand((roles or {}).get(k, Role.INPUT), kind.dtype, buffer.shape))
        arrays.append(buffer)
    first = len(operands)
    for kind in outputs:
        operands.append(operand(Role.OUTPUT, kind.dtype, kind.shape))
        arrays.append(None)
    epilogue = PointwiseProgram(
        outputs[0].shape,
        tuple(ProgramInput(-1 - k, t.dtype) for k, t in enumerate(outputs)),
        (),
        tuple(ProgramOutput(k, first + k, t.strides) for k, t in enumerate(outputs)),
    )
    order = tuple((a.name, full[a.name]) for a in row.attrs)
    body = Body(op, order, tuple(operands), tuple(slots), tuple(types), tuple(outputs), epilogue)
    wanted = row.reference(inputs, full, outputs)
    return body, arrays, {first + k: w for k, w in enumerate(wanted)}


def check_op(
    kernel: str,
    op: str,
    inputs: Sequence[Array | None],
    attrs: Mapping[str, Any] | None = None,
    *,
    tol: float = 2e-6,
    views: Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]] | None = None,
    roles: Mapping[int, Role] | None = None,
    **options: Any,
) -> list[CostedTiling[CpuTarget]]:
    """`check_body` of one operator against its reference in the operator table."""
    body, arrays, expected = op_body(op, inputs, attrs, views, roles)
    return check_body(kernel, body, arrays, expected, tol=tol, **options)


def with_slot(body: Body, slot: int, source: AnchorInput) -> Body:
    """The body with one input slot fed otherwise."""
    slots = list(body.anchor_inputs)
    slots[slot] = source
    return Body(
        body.op, body.attrs, body.operands, tuple(slots), body.anchor_input_types, body.anchor_outputs, body.epilogue
    )


def with_epilogue(body: Body, arrays: list[Array | None], op: str, extra: Array) -> tuple[Body, list[Array | None]]:
    """The body with its first result joined with `extra` (broadcast to it) by a binary operator before the store, and
    stored transposed into a wider buffer as well: operands of its own behind the others. The joined result replaces
    the first output."""
    shape, kind = body.anchor_outputs[0].shape, body.anchor_outputs[0]
    count = len(body.operands)
    first = next(o.target for o in body.epilogue.outputs)
    inputs = (
        *body.epilogue.inputs,
        ProgramInput(count, DType.of(extra.dtype), dense_strides(extra.shape, shape)),
    )
    result = len(inputs)
    wide = (*reversed(shape), 2)
    backwards = tuple(reversed(row_major_strides(wide)[:-1]))
    outputs = (
        ProgramOutput(result, first, kind.strides),
        ProgramOutput(0, count + 1, backwards, 1),
        *body.epilogue.outputs[1:],
    )
    program = PointwiseProgram(shape, inputs, (Instruction(op, (0, result - 1), kind.dtype),), outputs)
    operands = (
        *body.operands,
        operand(Role.INPUT, DType.of(extra.dtype), extra.shape),
        operand(Role.OUTPUT, kind.dtype, wide),
    )
    joined = Body(
        body.op, body.attrs, operands, body.anchor_inputs, body.anchor_input_types, body.anchor_outputs, program
    )
    return joined, [*arrays, extra, None]


def check_op_with_epilogue(
    kernel: str,
    op: str,
    inputs: Sequence[Array | None],
    attrs: Mapping[str, Any] | None = None,
    *,
    tol: float = 4e-6,
    tier: str | None = None,
) -> None:
    """An operator followed by `add` of a broadcast row, stored densely, and its plain result stored backwards into
    every second element."""
    body, arrays, expected = op_body(op, inputs, attrs)
    kind = body.anchor_outputs[0]
    extra = (np.random.default_rng(11).standard_normal(kind.shape[-1:]) * 5).astype(kind.dtype.numpy)
    joined, given = with_epilogue(body, arrays, "add", extra)
    first = len(body.operands) - len(body.anchor_outputs)
    wide = np.zeros(joined.operands[-1].type.shape, kind.dtype.numpy)
    wide[..., 1] = np.asarray(expected[first]).transpose()
    wanted = {**expected, first: np.asarray(expected[first]) + extra, len(joined.operands) - 1: wide}
    check_body(kernel, joined, given, wanted, tol=tol, tier=tier, splits=1)


def check_op_with_prologue(
    kernel: str, op: str, inputs: Sequence[Array | None], attrs: Mapping[str, Any] | None = None, *, tol: float = 4e-6
) -> None:
    """An operator whose data is the sum of its input and another tensor, the sum stored as well."""
    x = np.asarray(inputs[0])
    other = np.random.default_rng(12).standard_normal(x.shape).astype(x.dtype)
    body, arrays, expected = op_body(op, [x + other, *inputs[1:]], attrs)
    kind = type_of(x)
    arrays[0] = x
    count = len(body.operands)
    operands = (*body.operands, operand(Role.INPUT, kind.dtype, x.shape), operand(Role.OUTPUT, kind.dtype, x.shape))
    prologue = PointwiseProgram(
        x.shape,
        (ProgramInput(0, kind.dtype, kind.strides), ProgramInput(count, kind.dtype, kind.strides)),
        (Instruction("add", (0, 1), kind.dtype),),
        (ProgramOutput(2, -1), ProgramOutput(2, count + 1, kind.strides)),
    )
    wider = Body(
        body.op, body.attrs, operands, body.anchor_inputs, body.anchor_input_types, body.anchor_outputs, body.epilogue
    )
    expected = {**expected, count + 1: x + other}
    check_body(kernel, with_slot(wider, 0, prologue), [*arrays, other, None], expected, tol=tol, splits=1)
