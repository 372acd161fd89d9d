"""A sub-operator computed by NumPy on flat operands, where a target has no kernel for it: inside a launch of the host,
between two launches of the accelerator.

Model: operands are flat arrays, which programs and anchors see through views (offset, strides). A body is an anchor on
views, or a program alone, where a kernel was chosen that then could not be cut (`KernelChooser.refuse`); a prologue is
never joined to a fallback. Each instruction is the operator's reference, rounded to its type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.errors import InternalError
from superkernel.core.tensor import TensorType, strided_view
from superkernel.ir.body import Body, PointwiseProgram
from superkernel.ops.attributes import canonical_attrs
from superkernel.ops.opdef import OpDef
from superkernel.ops.table import find_op
from superkernel.reference import run_reference

Flat = NDArray[Any]


def compute(body: Body, operands: Sequence[Flat], where: str) -> None:
    """Run a body; its outputs are written into the operands."""
    results: Sequence[Flat] = ()
    if body.op is not None:
        arrays: list[Flat | None] = []
        for source, kind in zip(body.anchor_inputs, body.anchor_input_types, strict=True):
            if isinstance(source, PointwiseProgram):
                raise InternalError("a fallback with a prologue", location=where)
            if source is None or kind is None:
                arrays.append(None)
            else:
                arrays.append(strided_view(operands[source.operand], source.shape, source.strides, source.offset))
        results = run_reference(_definition(body.op, where), arrays, body.attr, body.anchor_outputs, where=where)
    _run(body.epilogue, operands, results, where)


def _run(program: PointwiseProgram, operands: Sequence[Flat], results: Sequence[Flat], where: str) -> None:
    """All inputs are read before anything is written."""
    values: list[Flat] = []
    for item in program.inputs:
        if item.source < 0:
            values.append(results[-1 - item.source])
        else:
            values.append(strided_view(operands[item.source], program.shape, item.strides, item.offset).copy())
    for step in program.instructions:
        if step.op == "constant":
            values.append(np.full(program.shape, step.attr("value"), step.dtype.numpy))
            continue
        definition = _definition(step.op, where)
        attrs = canonical_attrs(definition, dict(step.attrs))
        kind = TensorType(step.dtype, program.shape)
        values += run_reference(definition, [values[a] for a in step.args], attrs, (kind,), where=where)
    for output in program.outputs:
        value = values[output.value]
        target = operands[output.target]
        strided_view(target, value.shape, output.strides, output.offset, writeable=True)[...] = value


def _definition(op: str, where: str) -> OpDef:
    definition = find_op(op)
    if definition is None:
        raise InternalError("a fallback of an unknown operator", location=where, found=op)
    return definition
