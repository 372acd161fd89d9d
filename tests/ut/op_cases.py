"""Bodies of one operator, made from the operator table: dense inputs, the results stored densely; and their reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from kernel_check import Array, check_body, operand
from numpy.typing import NDArray

from superkernel.body import AnchorInput, Body, PointwiseProgram, ProgramInput, ProgramOutput, Role, View
from superkernel.dtypes import DType
from superkernel.ops.attributes import canonical_attrs
from superkernel.ops.table import find_op
from superkernel.scheduler.tiling import Tiling
from superkernel.tensor import TensorType, row_major_strides


def type_of(array: NDArray[Any]) -> TensorType:
    return TensorType(DType.of(array.dtype), array.shape)


def op_body(
    op: str,
    inputs: Sequence[Array | None],
    attrs: Mapping[str, Any] | None = None,
    views: Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]] | None = None,
    roles: Mapping[int, Role] | None = None,
) -> tuple[Body, list[Array | None], dict[int, Array]]:
    """(body, arrays by operand, expected arrays by operand). `views`: slot -> (buffer shape, permutation of it that is the input)."""
    row = find_op(op)
    assert row is not None, op
    full = canonical_attrs(row, attrs or {})
    types = [None if a is None else type_of(np.asarray(a)) for a in inputs]
    outputs = row.infer(types, full)
    operands, arrays, slots = [], [], []
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
) -> list[Tiling]:
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
