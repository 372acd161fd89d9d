"""Bodies of convolutions as the accelerator gets them: images channels last, epilogues over strided stores.

Model: `conv_case` draws operands, builds the body, and computes what NumPy says the stored operand holds (the operator
table's reference in float64, then the epilogue). Images may be windows of wider ones: more channels per pixel, more
columns per row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from anchor_bodies import random_array
from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType, row_major_strides
from superkernel.ir.body import Body, Instruction, Operand, PointwiseProgram, ProgramInput, ProgramOutput, Role, View
from superkernel.ops.attributes import canonical_attrs
from superkernel.ops.table import op_table

Array = NDArray[Any]
EPILOGUES = ("store", "relu", "leaky", "clip", "scaled", "shifted", "residual", "swish", "twice")


@dataclass
class ConvCase:
    """A body, one array per operand (None: output), what the outputs hold by operand."""

    body: Body
    arrays: list[Array | None]
    expected: dict[int, Array]


def last(shape: Sequence[int]) -> tuple[int, ...]:
    """An image's shape with its channels last."""
    return (shape[0], *shape[2:], shape[1])


def to_last(array: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


def last_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides over [N, C, ...] of a dense channels-last image."""
    steps = row_major_strides(last(shape))
    return (steps[0], steps[-1], *steps[1:-1])


class _Builder:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.operands: list[Operand] = []
        self.arrays: list[Array | None] = []
        self.inputs: list[ProgramInput] = []
        self.steps: list[Instruction] = []

    def add(self, role: Role, dtype: DType, shape: Sequence[int], array: Array | None) -> int:
        self.operands.append(Operand(role, TensorType(dtype, tuple(shape))))
        self.arrays.append(array)
        return len(self.operands) - 1

    def image(self, value: Array, dtype: DType, wider: int, longer: int) -> View:
        """A view of an input that holds `value`; `wider` channels and `longer` columns beside it."""
        shape = value.shape
        stored = to_last(value)
        outer = (*stored.shape[:-2], stored.shape[-2] + longer, stored.shape[-1] + wider)
        whole = random_array(self.rng, outer, dtype)
        whole[..., : stored.shape[-2], wider // 2 : wider // 2 + shape[1]] = stored
        steps = row_major_strides(outer)
        operand = self.add(Role.INPUT, dtype, outer, whole)
        return View(operand, shape, (steps[0], steps[-1], *steps[1:-1]), wider // 2)


def conv_case(
    x: tuple[int, ...],
    w: tuple[int, ...],
    attrs: Mapping[str, Any],
    *,
    dtype: DType = DType.F16,
    bias: bool = False,
    epilogue: str = "store",
    wider: int = 0,
    longer: int = 0,
    out_wider: int = 0,
    seed: int = 0,
) -> ConvCase:
    """See the module docstring. `out_wider`: more channels per pixel of the result (a part of a concatenation)."""
    made, definition = _Builder(seed), op_table()["conv"]
    depth = int(np.prod(w[1:]))
    value = random_array(made.rng, x, dtype)
    weights = (random_array(made.rng, w, DType.F32) / np.sqrt(max(1, depth))).astype(dtype.numpy)
    kinds: list[TensorType | None] = [TensorType(dtype, x), TensorType(dtype, w)]
    sources: list[View | PointwiseProgram | None] = [made.image(value, dtype, wider, longer)]
    sources.append(View(made.add(Role.CONSTANT, dtype, w, weights), w, row_major_strides(w)))
    values: list[Array | None] = [value, weights]
    if bias:
        summand = random_array(made.rng, w[:1], dtype)
        sources.append(View(made.add(Role.CONSTANT, dtype, w[:1], summand), w[:1], (1,)))
        kinds.append(TensorType(dtype, w[:1]))
        values.append(summand)
    full = canonical_attrs(definition, attrs)
    out = definition.infer(kinds, full)[0]
    result = np.asarray(definition.reference(values, full, (out,))[0], np.float64).reshape(out.shape)
    program, expected = _epilogue(made, epilogue, out, result, out_wider)
    body = Body("conv", tuple(full.items()), tuple(made.operands), tuple(sources), tuple(kinds), (out,), program)
    return ConvCase(body, made.arrays, expected)


def _channel_vector(made: _Builder, out: TensorType) -> Array:
    vector = random_array(made.rng, (out.shape[1],), out.dtype)
    operand = made.add(Role.CONSTANT, out.dtype, vector.shape, vector)
    strides = tuple(int(d == 1) for d in range(out.rank))
    made.inputs.append(ProgramInput(operand, out.dtype, strides))
    return vector.astype(np.float64).reshape(-1, *(1,) * (out.rank - 2))


def _epilogue(
    made: _Builder, name: str, out: TensorType, result: Array, wider: int
) -> tuple[PointwiseProgram, dict[int, Array]]:
    made.inputs.append(ProgramInput(-1, out.dtype))
    kind, value = out.dtype, result

    def step(op: str, args: Sequence[int], **attrs: Any) -> None:
        made.steps.append(Instruction(op, tuple(args), kind, tuple(attrs.items())))

    if name == "relu":
        step("relu", (0,))
        value = np.maximum(result, 0)
    elif name == "leaky":
        step("leaky_relu", (0,), alpha=0.25)
        value = np.where(result > 0, result, result * 0.25)
    elif name == "clip":
        step("constant", (), value=0.0)
        step("constant", (), value=1.5)
        step("clip", (0, 1, 2))
        value = np.clip(result, 0, 1.5)
    elif name in ("scaled", "shifted"):
        value = result * _channel_vector(made, out) if name == "scaled" else result + _channel_vector(made, out)
        step("mul" if name == "scaled" else "add", (0, 1))
        step("relu", (2,))
        value = np.maximum(value, 0)
    elif name == "residual":
        other = random_array(made.rng, out.shape, kind)
        operand = made.add(Role.INPUT, kind, last(out.shape), to_last(other))
        made.inputs.append(ProgramInput(operand, kind, last_strides(out.shape)))
        step("add", (0, 1))
        step("relu", (2,))
        value = np.maximum(result + other.astype(np.float64), 0)
    elif name == "swish":
        step("silu", (0,))
        value = result / (1 + np.exp(-result))
    return _stores(made, name, out, value, wider, result)


def _stores(
    made: _Builder, name: str, out: TensorType, value: Array, wider: int, result: Array
) -> tuple[PointwiseProgram, dict[int, Array]]:
    number = len(made.inputs) + len(made.steps) - 1
    shape = (*last(out.shape)[:-1], out.shape[1] + wider)
    steps = row_major_strides(shape)
    strides, offset = (steps[0], steps[-1], *steps[1:-1]), wider // 2
    target = made.add(Role.OUTPUT, out.dtype, shape, None)
    want = np.zeros(shape)
    want[..., offset : offset + out.shape[1]] = np.moveaxis(value, 1, -1)
    stores, expected = [ProgramOutput(number if made.steps else 0, target, strides, offset)], {target: want}
    if name == "twice":
        again = made.add(Role.OUTPUT, out.dtype, last(out.shape), None)
        stores.append(ProgramOutput(0, again, last_strides(out.shape)))
        expected[again] = to_last(result)
    return PointwiseProgram(out.shape, tuple(made.inputs), tuple(made.steps), tuple(stores)), expected
