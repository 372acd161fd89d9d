"""What kernels of the interpreter have in common: their declaration, their tilings, and how programs are computed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.tensor import Region, TensorType, regions_of_box
from superkernel.ir.body import Body, PointwiseProgram
from superkernel.ops.attributes import canonical_attrs
from superkernel.ops.table import find_op
from superkernel.reference import run_reference
from superkernel.registry.records import Capability
from superkernel.scheduler.kerneldef import KernelDef
from superkernel.scheduler.tiling import Access, CostedTiling, KernelFamily
from toy_target.target import ToyTarget

Flat = NDArray[Any]


@dataclass(frozen=True)
class ToyTiling(CostedTiling[ToyTarget]):
    """A unit is a row: one index of the first dimension of a body's space."""

    rows: int

    @property
    def units(self) -> int:
        return self.rows

    @abstractmethod
    def compute(self, body: Body, operands: Sequence[Flat], unit: int) -> None:
        """One unit, on flat operands."""

    def cost_ns(self, body: Body, begin: int, end: int, target: ToyTarget) -> float:
        return (end - begin) * target.tick_ns


@dataclass(frozen=True, kw_only=True, eq=False)
class ToyKernel(KernelDef[ToyTarget]):
    """One row, for all types."""

    def rows(self) -> Iterable[Capability]:
        yield Capability(
            id=self.id, kernel=self.id, ops=self.ops, name=f"toy_{self.micro}", role=self.role, limits=self.demands,
            device=ToyTarget.kind, numeric=self.rounding.numeric, error_ulps=self.rounding.error_ulps,
            code_bytes=self.code_bytes,
        )  # fmt: skip


class ToyFamily(KernelFamily[ToyTarget]):
    """An interpreter walks any strides."""

    any_view = True


def row_accesses(body: Body, program: PointwiseProgram, begin: int, end: int) -> list[Access]:
    """What a program reads and writes for rows [begin, end)."""
    box = ((begin, end), *((0, d) for d in program.shape[1:]))
    ends = [(i.source, False, i.strides, i.offset) for i in program.inputs if i.source >= 0]
    ends += [(o.target, True, o.strides, o.offset) for o in program.outputs]
    return [
        Access(operand, write, regions_of_box(box, strides, body.operands[operand].type.dtype.itemsize, offset))
        for operand, write, strides, offset in ends
    ]


def whole(operand: int, kind: TensorType, *, write: bool) -> Access:
    """All of an operand."""
    return Access(operand, write, (Region(0, kind.nbytes),))


def seen(flat: Flat, shape: Sequence[int], strides: Sequence[int], offset: int) -> Flat:
    """A flat operand through a view."""
    if 0 in shape:
        return np.zeros(shape, flat.dtype)
    return np.lib.stride_tricks.as_strided(flat[offset:], shape, [s * flat.itemsize for s in strides])


def run_row(program: PointwiseProgram, operands: Sequence[Flat], results: Sequence[Flat], row: int) -> None:
    """A program on one row of its space; `results`: of the anchor, in that row."""

    def at(flat: Flat, strides: Sequence[int], offset: int) -> Flat:
        return seen(flat, program.shape[1:], strides[1:], offset + row * strides[0])

    values = [
        results[-1 - i.source] if i.source < 0 else at(operands[i.source], i.strides, i.offset).copy()
        for i in program.inputs
    ]
    values += compute_steps(program, values, program.shape[1:])
    for output in program.outputs:
        at(operands[output.target], output.strides, output.offset)[...] = values[output.value]


def compute_steps(program: PointwiseProgram, inputs: Sequence[Flat], shape: tuple[int, ...]) -> list[Flat]:
    """The values of a program's instructions."""
    values = list(inputs)
    for step in program.instructions:
        if step.op == "constant":
            values.append(np.full(shape, step.attr("value"), step.dtype.numpy))
            continue
        definition = find_op(step.op)
        assert definition is not None
        attrs = canonical_attrs(definition, dict(step.attrs))
        values += run_reference(definition, [values[a] for a in step.args], attrs, (TensorType(step.dtype, shape),))
    return values[len(inputs) :]
