"""Bodies with an anchor for kernel tests: any operator of the table, with strided inputs, prologues and several kinds
of epilogue.

Model: `anchor_case` builds the body, random operand arrays, and what NumPy says the output operand must hold (the
operator table's reference in float64, then the epilogue in NumPy).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import soak
from kernel_check import check_body, tiers
from numpy.typing import NDArray

from superkernel.codegen.host.features import detect_cpu
from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType, row_major_strides
from superkernel.ir.body import (
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
from superkernel.ops.table import op_table
from superkernel.scheduler.families import family_of
from superkernel.scheduler.tiling import CostedTiling
from superkernel.target.cpu import CpuTarget

Array = NDArray[Any]
Slot = tuple[tuple[int, ...], DType] | Array | None


@dataclass
class AnchorCase:
    """A body, one array per operand (None: output), and the expected outputs by operand."""

    body: Body
    arrays: list[Array | None]
    expected: dict[int, Array]

    def check(self, kernel: str, tol: float = 2e-5, every_tier: bool = False) -> None:
        """The kernel against the expectation, see kernel_check: on every tier with every tiling, as in a soak run, or
        (to be quick) on a tier and with one tiling per unit axis that the case's own numbers pick."""
        every_tier |= soak.enabled
        names = tiers()
        pick = crc32(repr((kernel, self.body)).encode())
        for name in names if every_tier else [names[pick % len(names)]]:
            found: dict[object, CostedTiling[CpuTarget]] = {}
            for tiling in family_of(kernel).tilings(kernel, self.body, detect_cpu(name)):
                found.setdefault(tiling if every_tier else getattr(tiling, "axis", None), tiling)
            tilings = list(found.values())
            check_body(kernel, self.body, self.arrays, self.expected, tilings=tilings, tol=tol, tier=name, splits=2)


class _Operands:
    def __init__(self) -> None:
        self.rows: list[Operand] = []
        self.arrays: list[Array | None] = []

    def add(self, role: Role, dtype: DType, shape: Sequence[int], array: Array | None) -> int:
        self.rows.append(Operand(role, TensorType(dtype, tuple(shape))))
        self.arrays.append(array)
        return len(self.rows) - 1


def random_array(rng: np.random.Generator, shape: Sequence[int], dtype: DType) -> Array:
    """Normal floats, or small integers over the type's sign."""
    if dtype is DType.BOOL:
        return rng.random(shape) < 0.7
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    low = -100 if dtype.is_signed else 0
    return rng.integers(low, 120, shape).astype(dtype.numpy)


def anchor_case(
    op: str,
    attrs: Mapping[str, Any],
    slots: Sequence[Slot],
    *,
    constants: Sequence[int] = (),
    layouts: Mapping[int, Sequence[int]] | None = None,
    prologue: int | None = None,
    epilogue: str = "store",
    bias_axis: int = -1,
    seed: int = 0,
) -> AnchorCase:
    """`layouts`: slot -> order of its dimensions in memory. `prologue`: the slot that reads relu(x + y). `epilogue`:
    "store", "mixed" (tanh(r + bias) * other, stored densely, and r itself stored with its dimensions reversed) or
    "sliced" (stored into the middle of a wider operand)."""
    rng = np.random.default_rng(seed)
    definition = op_table()[op]
    operands = _Operands()
    values: list[Array | None] = []
    sources: list[View | PointwiseProgram | None] = []
    types: list[TensorType | None] = []
    for i, slot in enumerate(slots):
        if slot is None:
            values.append(None)
            sources.append(None)
            types.append(None)
            continue
        value = slot if isinstance(slot, np.ndarray) else random_array(rng, *slot)
        kind = TensorType(DType.of(value.dtype), value.shape)
        role = Role.CONSTANT if i in constants else Role.INPUT
        types.append(kind)
        if prologue == i:
            other = random_array(rng, kind.shape, kind.dtype)
            sources.append(_relu_of_sum(operands, kind, value, other))
            values.append(np.maximum(value.astype(np.float64) + other.astype(np.float64), 0).astype(kind.dtype.numpy))
            continue
        order = tuple((layouts or {}).get(i, range(kind.rank)))
        stored = np.ascontiguousarray(value.transpose(order))
        index = operands.add(role, kind.dtype, stored.shape, stored)
        strides = [0] * kind.rank
        for place, dim in enumerate(order):
            strides[dim] = row_major_strides(stored.shape)[place]
        sources.append(View(index, kind.shape, tuple(strides)))
        values.append(value)
    full = canonical_attrs(definition, attrs)
    out = definition.infer(types, full)[0]
    result = np.asarray(definition.reference(values, full, (out,))[0], np.float64).reshape(out.shape)
    program, expected = _EPILOGUES[epilogue](operands, out, result, rng, bias_axis)
    body = Body(op, tuple(full.items()), tuple(operands.rows), tuple(sources), tuple(types), (out,), program)
    return AnchorCase(body, operands.arrays, expected)


def _relu_of_sum(operands: _Operands, kind: TensorType, x: Array, y: Array) -> PointwiseProgram:
    inputs = tuple(
        ProgramInput(operands.add(Role.INPUT, kind.dtype, kind.shape, a), kind.dtype, kind.strides) for a in (x, y)
    )
    steps = (Instruction("add", (0, 1), kind.dtype), Instruction("relu", (2,), kind.dtype))
    return PointwiseProgram(kind.shape, inputs, steps, (ProgramOutput(3, -1),))


def _store(
    operands: _Operands, out: TensorType, result: Array, rng: np.random.Generator, axis: int
) -> tuple[PointwiseProgram, dict[int, Array]]:
    index = operands.add(Role.OUTPUT, out.dtype, out.shape, None)
    program = PointwiseProgram(out.shape, (ProgramInput(-1, out.dtype),), (), (ProgramOutput(0, index, out.strides),))
    return program, {index: result}


def _mixed(
    operands: _Operands, out: TensorType, result: Array, rng: np.random.Generator, axis: int
) -> tuple[PointwiseProgram, dict[int, Array]]:
    extent = out.shape[axis]
    bias, other = random_array(rng, (extent,), out.dtype), random_array(rng, out.shape, out.dtype)
    at_bias = operands.add(Role.CONSTANT, out.dtype, (extent,), bias)
    at_other = operands.add(Role.INPUT, out.dtype, out.shape, other)
    dense = operands.add(Role.OUTPUT, out.dtype, out.shape, None)
    backwards = operands.add(Role.OUTPUT, out.dtype, out.shape[::-1], None)
    along = tuple(int(i == axis % out.rank) for i in range(out.rank))
    program = PointwiseProgram(
        out.shape,
        (
            ProgramInput(-1, out.dtype),
            ProgramInput(at_bias, out.dtype, along),
            ProgramInput(at_other, out.dtype, out.strides),
        ),
        (
            Instruction("add", (0, 1), out.dtype),
            Instruction("tanh", (3,), out.dtype),
            Instruction("mul", (4, 2), out.dtype),
        ),
        (
            ProgramOutput(5, dense, out.strides),
            ProgramOutput(0, backwards, row_major_strides(out.shape[::-1])[::-1]),
        ),
    )
    shaped = bias.astype(np.float64).reshape([extent if i == axis % out.rank else 1 for i in range(out.rank)])
    value = np.tanh(result + shaped) * other.astype(np.float64)
    return program, {dense: value, backwards: result.transpose()}


def _sliced(
    operands: _Operands, out: TensorType, result: Array, rng: np.random.Generator, axis: int
) -> tuple[PointwiseProgram, dict[int, Array]]:
    """The result in columns 3.. of an operand that is 5 wider; the rest is nobody's (so only `check_ranges` looks at
    it)."""
    wide = (*out.shape[:-1], out.shape[-1] + 5)
    index = operands.add(Role.OUTPUT, out.dtype, wide, None)
    strides = row_major_strides(wide)
    program = PointwiseProgram(out.shape, (ProgramInput(-1, out.dtype),), (), (ProgramOutput(0, index, strides, 3),))
    expected = np.zeros(wide)
    expected[..., 3 : 3 + out.shape[-1]] = result
    return program, {index: expected}


_EPILOGUES = {"store": _store, "mixed": _mixed, "sliced": _sliced}
