"""toy.uncut: any body in one piece, on one core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superkernel.ir.body import Body, Role, View
from superkernel.ops.table import find_op, op_table
from superkernel.reference import run_reference
from superkernel.registry.requirement import POINTWISE
from superkernel.scheduler.tiling import Access
from toy_target.kernels.kernel import Flat, ToyFamily, ToyKernel, ToyTiling, compute_steps, seen, whole
from toy_target.target import ToyTarget


@dataclass(frozen=True)
class UncutTiling(ToyTiling):
    """See the module docstring. So slow that it is taken where nothing else is."""

    def cost_ns(self, body: Body, begin: int, end: int, target: ToyTarget) -> float:
        return 1000 * sum(o.type.size for o in body.operands) * target.tick_ns

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        found = []
        for i, operand in enumerate(body.operands if begin < end else ()):
            if operand.role is not Role.OUTPUT:
                found.append(whole(i, operand.type, write=False))
            if operand.role in (Role.OUTPUT, Role.INOUT):
                found.append(whole(i, operand.type, write=True))
        return tuple(found)

    def compute(self, body: Body, operands: Sequence[Flat], unit: int) -> None:
        results: Sequence[Flat] = ()
        definition = None if body.op is None else find_op(body.op)
        if definition is not None:
            arrays = [
                seen(operands[v.operand], v.shape, v.strides, v.offset) if isinstance(v, View) else None
                for v in body.anchor_inputs
            ]
            results = run_reference(definition, arrays, body.attr, body.anchor_outputs)
        program = body.epilogue
        values = [
            results[-1 - i.source]
            if i.source < 0
            else seen(operands[i.source], program.shape, i.strides, i.offset).copy()
            for i in program.inputs
        ]
        values += compute_steps(program, values, program.shape)
        for output in program.outputs:
            value = values[output.value]
            seen(operands[output.target], value.shape, output.strides, output.offset)[...] = value


class UncutFamily(ToyFamily):
    """See the module docstring."""

    def tilings(self, kernel: str, body: Body, target: ToyTarget) -> Sequence[UncutTiling]:
        return (UncutTiling(1),)


KERNELS = (ToyKernel(id="toy.uncut", ops=(POINTWISE, *op_table()), family=UncutFamily(), emitter="", micro="uncut"),)
