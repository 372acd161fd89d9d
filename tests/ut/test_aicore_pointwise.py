"""aicore.pointwise: every operator against its reference, every form of access, streaming, small memories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from aicore_check import check_aicore
from aicore_timing import engine_busy, recorded
from kernel_check import Array, dense_strides, operand
from seeds import seeds

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.tensor import TensorType, row_major_strides
from superkernel.ir.body import Body, Instruction, PointwiseProgram, ProgramInput, ProgramOutput
from superkernel.ir.body import Role as Use
from superkernel.ops.attributes import canonical_attrs
from superkernel.ops.opdef import Family
from superkernel.ops.table import find_op, op_table
from superkernel.registry.vector_ops import STEPS
from superkernel.scheduler.families.aicore import family_of
from superkernel.scheduler.families.aicore.base import AicoreTiling, CoreRole
from superkernel.target.aicore import load_target
from superkernel.target.engines import Engine

SIZE = 77
Case = tuple[str, dict[str, Any], Sequence[Array]]


def check_cases(cases: Sequence[Case], tol: float = 1e-5, shape: tuple[int, ...] | None = None) -> None:
    """One body with all the cases' instructions, each storing its own result."""
    inputs: list[Array] = []
    numbers: dict[int, int] = {}
    for _, _, arrays in cases:
        for array in arrays:
            if array.ndim and id(array) not in numbers:
                numbers[id(array)] = len(inputs)
                inputs.append(array)
    count = len(inputs)
    instructions: list[Instruction] = []
    outputs, expected = [], {}
    operands = [operand(Use.INPUT, DType.of(a.dtype), a.shape) for a in inputs]
    shape = shape or np.broadcast_shapes(*(a.shape for a in inputs))
    for name, attrs, arrays in cases:
        row = find_op(name)
        assert row is not None
        full = canonical_attrs(row, attrs)
        (kind,) = row.infer([TensorType(DType.of(a.dtype), a.shape) for a in arrays], full)
        args = []
        for a in arrays:
            if a.ndim:
                args.append(numbers[id(a)])
                continue
            args.append(count + len(instructions))
            instructions.append(Instruction("constant", (), DType.of(a.dtype), (("value", a.item()),)))
        instructions.append(Instruction(name, tuple(args), kind.dtype, tuple(full.items())))
        index = len(operands)
        outputs.append(ProgramOutput(count + len(instructions) - 1, index, row_major_strides(shape)))
        operands.append(operand(Use.OUTPUT, kind.dtype, shape))
        (want,) = row.reference(arrays, full, (TensorType(kind.dtype, shape),))
        with np.errstate(all="ignore"):
            expected[index] = np.broadcast_to(want, shape).astype(kind.dtype.numpy)
    sources = tuple(ProgramInput(k, DType.of(a.dtype), dense_strides(a.shape, shape)) for k, a in enumerate(inputs))
    program = PointwiseProgram(shape, sources, tuple(instructions), tuple(outputs))
    body = Body(None, (), tuple(operands), (), (), (), program)
    limits = {k: tol if operands[k].type.dtype.is_float else 0.0 for k in expected}
    check_aicore("aicore.pointwise", body, [*inputs, *(None for _ in cases)], expected, tol=limits, splits=1)


def floats(dtype: Any, seed: int = 0, scale: int = 2) -> Array:
    """Numbers of all sizes, and the special ones."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(SIZE) * 10.0 ** rng.integers(-3, scale, SIZE)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 2.5, 1.5, -2.5, 90.0, -90.0]
    values[3 : 3 + len(special)] = special
    return values.astype(dtype)


def operators(arity: int, dtype: DType) -> list[str]:
    """Operators of so many operands of one element type that the vector engine computes."""
    rows = [row for row in op_table().values() if row.family is Family.POINTWISE and len(row.args) == arity]
    apart = ("cast", "pow", "shift_left", "shift_right")  # of two types, or of counts
    return [r.name for r in rows if r.name not in apart and any(s[:2] == (r.name, dtype) for s in STEPS)]


# Infinity times 0, or less infinity, comes up here in other places than in the reference's formulas.
FINITE = {
    "mish",
    "silu",
    "gelu",
    "hard_swish",
    "celu",
    "softsign",
    "sin",
    "cos",
    "tan",
    "asinh",
    "acosh",
    "sinh",
    "log1p",
}
BOUNDED = {"asin", "acos", "atanh"}


@pytest.mark.parametrize(("dtype", "tol"), [(DType.F32, 1e-5), (DType.F16, 2e-3), (DType.BF16, 8e-3)])
def test_unary_floats(dtype: DType, tol: float) -> None:
    x = floats(dtype.numpy)
    wide = x.astype(np.float64)
    finite = np.where(np.isfinite(wide), wide, 3).astype(dtype.numpy)
    bounded = np.random.default_rng(3).uniform(-1, 1, SIZE).astype(dtype.numpy)
    cases: list[Case] = [
        (n, {}, [finite if n in FINITE else bounded if n in BOUNDED else x]) for n in operators(1, dtype)
    ]
    cases.append(("gelu", {"approximate": "tanh"}, [finite]))
    for start in range(0, len(cases), 9):
        check_cases(cases[start : start + 9], tol)


@pytest.mark.parametrize(("dtype", "tol"), [(DType.F32, 1e-5), (DType.F16, 2e-3)])
def test_binary_floats(dtype: DType, tol: float) -> None:
    a, b = floats(dtype.numpy, 1), floats(dtype.numpy, 2)[::-1].copy()
    names = operators(2, dtype)
    check_cases([(n, {}, [a, b]) for n in names], tol)
    c, d = (np.array(v, dtype.numpy) for v in (0.3, 4.0))
    check_cases([(n, {}, [a, v]) for n in names for v in (c, d)], tol)
    check_cases([(n, {}, [c, a]) for n in names if n != "prelu"], tol)
    positive = np.abs(a)
    powers = [0.0, 1.0, 2.0, 3.0, -2.0, 0.5, -0.5, -1.0, 1.7]
    check_cases([("pow", {}, [positive, np.array(p, dtype.numpy)]) for p in powers], tol)
    lo, hi = (np.array(v, dtype.numpy) for v in (-0.5, 0.7))
    check_cases([("clip", {}, [a, lo, hi]), ("clip", {}, [a, b, hi]), ("where", {}, [a > 0, a, b])], tol)
    check_cases([("where", {}, [a > 0, lo, b]), ("where", {}, [a > 0, a, hi]), ("where", {}, [a > 0, lo, hi])], tol)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16])
def test_angles_of_special_points(dtype: DType) -> None:
    special = np.array([0.0, -0.0, 1.0, -1.5, 1e-7, 6e4, -6e4, np.inf, -np.inf, np.nan])
    y, x = (a.reshape(-1).astype(dtype.numpy) for a in np.meshgrid(special, special))
    tol = 4e-7 if dtype is DType.F32 else 8e-3
    three = np.array(-3.0, dtype.numpy)
    check_cases([("atan2", {}, p) for p in ([y, x], [three, x], [y, three])], tol)


def integers(dtype: DType, seed: int = 0) -> Array:
    info = np.iinfo(dtype.numpy)
    rng = np.random.default_rng(seed)
    values = rng.integers(max(info.min, -40), 40, SIZE).astype(dtype.numpy)
    values[:6] = [0, 1, info.max, info.min, 2, 7]
    return values


@pytest.mark.parametrize("dtype", [DType.I32, DType.I16])
def test_integers(dtype: DType) -> None:
    a, b = integers(dtype, 1), integers(dtype, 2)[::-1].copy()
    five = np.array(5, dtype.numpy)
    names = operators(2, dtype)
    check_cases([(n, {}, [a, b]) for n in names])
    check_cases([(n, {}, [a, five]) for n in (*names, "shift_left", "shift_right")])
    check_cases([(n, {}, [a]) for n in operators(1, dtype)])
    far = np.array(40, dtype.numpy)
    check_cases([(n, {}, [a, far]) for n in ("shift_left", "shift_right")])


def test_bools_and_bytes() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.random(SIZE) > 0.5, rng.random(SIZE) > 0.5
    pairs: list[Case] = [(n, {}, [a, b]) for n in operators(2, DType.BOOL)]
    check_cases([*pairs, *((n, {}, [a]) for n in operators(1, DType.BOOL)), ("where", {}, [a, b, ~b])])
    for dtype in (DType.I8, DType.U8):
        x, y = integers(dtype, 3), integers(dtype, 4)
        check_cases([*((n, {}, [x, y]) for n in operators(2, dtype)), ("where", {}, [a, x, y])])


@pytest.mark.parametrize("source", ["f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool"])
def test_casts(source: str) -> None:
    dtype = DType.of(source)
    if dtype.is_float:
        x = floats(dtype.numpy, 5)
    elif dtype is DType.BOOL:
        x = np.random.default_rng(6).random(SIZE) > 0.5
    else:
        x = integers(dtype, 7)
        if dtype is DType.I64:
            x[6:9] = [2**40 + 12345, -(2**35) - 17, 2**31]
    wanted = sorted((to for op, given, to in STEPS if (op, given) == ("cast", dtype)), key=lambda d: d.value)
    check_cases([("cast", {"dtype": w}, [x]) for w in wanted if w.is_float], 8e-3 if DType.BF16 in wanted else 1e-5)
    check_cases([("cast", {"dtype": w}, [x]) for w in wanted if not w.is_float])


def test_quantization() -> None:
    x = np.random.default_rng(8).uniform(-20, 20, (9, 40)).astype(np.float32)
    scale, scales = np.array(0.25, np.float32), np.geomspace(0.0625, 1, 9).astype(np.float32).reshape(9, 1)
    for dtype, zero in ((DType.I8, 3), (DType.U8, 120)):
        point = np.array(zero, dtype.numpy)
        check_cases([("quantize", {"dtype": dtype}, [x, scale, point])])
        q = np.random.default_rng(9).integers(0, 100, (9, 40)).astype(dtype.numpy)
        points = np.arange(9).astype(dtype.numpy).reshape(9, 1)
        check_cases([("dequantize", {}, [q, scale, point]), ("dequantize", {}, [q, scales, points])])


# Forms of access ----------------------------------------------------------------------------------------------------


def copy_body(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, size: int, offset: int = 0,
    out: tuple[int, ...] | None = None, cast: DType | None = None,
) -> Body:  # fmt: skip
    kind = cast or dtype
    instructions = (Instruction("cast", (0,), kind, (("dtype", kind), ("saturate", True))),) if cast else ()
    program = PointwiseProgram(
        shape, (ProgramInput(0, dtype, strides, offset),), instructions,
        (ProgramOutput(len(instructions), 1, out or row_major_strides(shape)),),
    )  # fmt: skip
    return Body(None, (), (operand(Use.INPUT, dtype, (size,)), operand(Use.OUTPUT, kind, shape)), (), (), (), program)


def check_copy(body: Body, seed: int = 0, tol: float = 0.0) -> None:
    item = body.epilogue.inputs[0]
    out = body.epilogue.outputs[0]
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(body.operands[0].type.shape) * 50).astype(item.dtype.numpy)
    step = x.dtype.itemsize
    view = np.lib.stride_tricks.as_strided(x[item.offset :], body.epilogue.shape, [s * step for s in item.strides])
    want = np.zeros(int(np.prod(body.epilogue.shape)), body.operands[1].type.dtype.numpy)
    place = np.lib.stride_tricks.as_strided(
        want, body.epilogue.shape, [s * want.dtype.itemsize for s in out.strides], writeable=True
    )
    place[...] = view.astype(want.dtype)
    check_aicore("aicore.pointwise", body, [x, None], {1: want}, tol=tol, splits=1)


DTYPES = [DType.F16, DType.F32, DType.I8, DType.I64, DType.BOOL]


@pytest.mark.parametrize("dtype", DTYPES)
def test_copies(dtype: DType) -> None:
    check_copy(copy_body((1000,), (1,), dtype, 1000))
    check_copy(copy_body((7, 33), (40, 1), dtype, 400, 5))
    check_copy(copy_body((40, 70), (1, 40), dtype, 2800))  # transposed
    check_copy(copy_body((3, 4, 5, 16), (320, 16, 64, 1), dtype, 960))  # heads
    check_copy(copy_body((50,), (3,), dtype, 160, 2))  # strided
    check_copy(copy_body((6, 20), (60, 3), dtype, 400))
    check_copy(copy_body((5, 33), (0, 1), dtype, 33))  # broadcast
    check_copy(copy_body((33, 5), (1, 0), dtype, 33))
    check_copy(copy_body((9, 9), (0, 0), dtype, 1))
    check_copy(copy_body((), (), dtype, 1))


@pytest.mark.parametrize("dtype", [DType.F16, DType.F32])
def test_reversed_copies(dtype: DType) -> None:
    check_copy(copy_body((100,), (-1,), dtype, 100, 99))
    check_copy(copy_body((4, 30), (30, -1), dtype, 120, 29))
    check_copy(copy_body((4, 30), (-30, 1), dtype, 120, 90))
    check_copy(copy_body((30,), (-2,), dtype, 60, 59))


@pytest.mark.parametrize(("source", "to"), [(DType.F32, DType.F16), (DType.F16, DType.F32)])
def test_borders(source: DType, to: DType) -> None:
    check_copy(copy_body((3000,), (1,), source, 3000, cast=to), tol=1e-3)
    check_copy(copy_body((48, 36), (1, 48), source, 48 * 36, cast=to), tol=1e-3)
    check_copy(copy_body((2, 30, 17), (510, 1, 30), source, 1020, cast=to), tol=1e-3)


@pytest.mark.parametrize("shapes", [
    ((4, 3, 20), (20,)), ((4, 3, 20), (3, 1)), ((4, 3, 20), (4, 1, 1)), ((130, 70), (130, 1)), ((130, 70), (1, 1)),
    ((130, 1), (1, 70)), ((2, 3, 4, 5), (3, 1, 5)), ((1, 64), (1, 64)), ((64, 1), (64, 1)),
])  # fmt: skip
def test_broadcasts(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in shapes)
    check_cases([("add", {}, [a, b]), ("sub", {}, [b, a]), ("less", {}, [b, a]), ("gelu", {}, [b])],
                2e-3, np.broadcast_shapes(*shapes))  # fmt: skip


# Programs -----------------------------------------------------------------------------------------------------------

RANDOM_OPS = ["add", "sub", "mul", "maximum", "minimum", "relu", "abs", "neg", "tanh", "sigmoid", "less", "where"]


def random_program(rng: np.random.Generator) -> tuple[Body, list[Array | None], dict[int, Array]]:
    """Broadcast inputs, a dozen operators over them, several outputs of which one is transposed; in f16, evaluated in
    float64."""
    shape = tuple(int(d) for d in rng.integers(1, (5, 40, 70)))
    inputs, values, operands, arrays = [], [], [], []
    for k in range(3):
        kept = tuple(d if k == 0 or rng.random() < 0.5 else 1 for d in shape)
        array = rng.uniform(-1, 1, kept).astype(np.float16)
        inputs.append(ProgramInput(k, DType.F16, dense_strides(kept, shape)))
        operands.append(operand(Use.INPUT, DType.F16, kept))
        arrays.append(array)
        values.append(np.broadcast_to(array.astype(np.float64), shape))
    instructions: list[Instruction] = []
    for _ in range(10):
        name = str(rng.choice(RANDOM_OPS))
        floats = [k for k, v in enumerate(values) if v.dtype != bool]
        masks = [k for k, v in enumerate(values) if v.dtype == bool]
        row = find_op(name)
        assert row is not None
        args = [int(rng.choice(floats)) for _ in row.args]
        if name == "where":
            if not masks:
                continue
            args[0] = int(rng.choice(masks))
        kind = DType.BOOL if name == "less" else DType.F16
        instructions.append(Instruction(name, tuple(args), kind))
        types = (TensorType(DType.BOOL if name == "less" else DType.F64, shape),)
        values.append(np.asarray(row.reference([values[a] for a in args], canonical_attrs(row, {}), types)[0]))
    outputs, expected = [], {}
    for k, number in enumerate(rng.choice(len(values) - 3, 3, replace=False) + 3):
        result = values[number]
        kind = DType.BOOL if result.dtype == bool else DType.F16
        order = (2, 0, 1) if k == 2 else (0, 1, 2)
        stored = result.transpose(order)
        strides = row_major_strides(stored.shape)
        outputs.append(ProgramOutput(int(number), 3 + k, tuple(strides[order.index(d)] for d in range(3))))
        operands.append(operand(Use.OUTPUT, kind, stored.shape))
        expected[3 + k] = np.ascontiguousarray(stored).astype(kind.numpy)
    program = PointwiseProgram(shape, tuple(inputs), tuple(instructions), tuple(outputs))
    return Body(None, (), tuple(operands), (), (), (), program), [*arrays, None, None, None], expected


@pytest.mark.parametrize("seed", seeds(12))
def test_random_programs(seed: int) -> None:
    body, arrays, expected = random_program(np.random.default_rng(seed))
    ignored = {k for k, o in enumerate(body.operands) if o.type.dtype is DType.BOOL}  # comparisons of rounded numbers
    wanted = {k: v for k, v in expected.items() if k not in ignored}
    check_aicore("aicore.pointwise", body, arrays, wanted, tol=4e-3, splits=1)


def test_small_memories() -> None:
    """Tiles adapt to the target; where not one element fits, the field is named."""
    device = load_target("mini")
    small = replace(device, memory=replace(device.memory, ub_bytes=4096))
    body, arrays, expected = random_program(np.random.default_rng(3))
    wanted = {k: v for k, v in expected.items() if v.dtype != bool}
    check_aicore("aicore.pointwise", body, arrays, wanted, tol=4e-3, splits=1, target=small)
    least = replace(device, memory=replace(device.memory, ub_bytes=1024 // 4))
    with pytest.raises(UnsupportedError, match=r"memory\.ub_bytes"):
        family_of("aicore.pointwise").tilings("aicore.pointwise", body, least)


# Speed --------------------------------------------------------------------------------------------------------------


def unary_body(op: str, shapes: Sequence[tuple[int, ...]], dtype: DType = DType.F16) -> Body:
    shape = np.broadcast_shapes(*shapes)
    row = find_op(op)
    assert row is not None
    inputs = tuple(ProgramInput(k, dtype, dense_strides(s, shape)) for k, s in enumerate(shapes))
    instruction = Instruction(op, tuple(range(len(shapes))), dtype, tuple(canonical_attrs(row, {}).items()))
    output = ProgramOutput(len(shapes), len(shapes), row_major_strides(shape))
    operands = [*(operand(Use.INPUT, dtype, s) for s in shapes), operand(Use.OUTPUT, dtype, shape)]
    program = PointwiseProgram(shape, inputs, (instruction,), (output,))
    return Body(None, (), tuple(operands), (), (), (), program)


LARGE = 1 << 20


@pytest.mark.parametrize(("body", "engine", "bytes_in", "vector_beats"), [
    (copy_body((LARGE,), (1,), DType.F16, LARGE), Engine.MTE2, 2 * LARGE, 0),
    (copy_body((LARGE,), (1,), DType.F32, LARGE, cast=DType.F16), Engine.MTE2, 4 * LARGE, 0),
    (unary_body("add", [(LARGE,), (LARGE,)]), Engine.MTE2, 4 * LARGE, 0),
    (unary_body("add", [(2048, 768), (768,)]), Engine.MTE2, 2 * 2048 * 768, 0),
    (unary_body("gelu", [(LARGE,)]), Engine.V, 0, LARGE * 15.5 / 64),
    (unary_body("silu", [(LARGE,)]), Engine.V, 0, LARGE * 8 / 64),
    (copy_body((512, 1024), (1, 512), DType.F16, 512 * 1024), Engine.MTE2, 2 * 512 * 1024, 0),
])  # fmt: skip
def test_the_right_engine_is_busy(body: Body, engine: Engine, bytes_in: int, vector_beats: float) -> None:
    """Streaming: the slowest engine is the one that must be, and works little longer than it must."""
    device = load_target("mini")
    (tiling,) = family_of("aicore.pointwise").tilings("aicore.pointwise", body, device)
    assert isinstance(tiling, AicoreTiling)
    commands = recorded("aicore.pointwise", body, tiling, device, 0, tiling.units)[CoreRole.VECTOR0]
    busy = engine_busy(commands, device)
    assert max(busy, key=lambda e: busy[e]) is engine
    ideal = vector_beats
    if bytes_in:
        loads = sum(c.engine is Engine.MTE2 and c.name.startswith("gm_") for c in commands)
        ideal = device.transfer_cycles("rates.gm_to_ub_gb_per_s", bytes_in) + loads * device.dma.startup_cycles
        assert loads * 1 << 14 <= 1.5 * bytes_in  # large ones
    assert busy[engine] <= 1.25 * ideal, (busy[engine], ideal)
    assert tiling.cost_cycles(body, 0, tiling.units, device) == pytest.approx(busy[engine], rel=0.3)


def test_small_tensors_take_few_commands() -> None:
    body = unary_body("add", [(1000,), (1000,)])
    device = load_target("mini")
    (tiling,) = family_of("aicore.pointwise").tilings("aicore.pointwise", body, device)
    assert isinstance(tiling, AicoreTiling)
    commands = recorded("aicore.pointwise", body, tiling, device, 0, tiling.units)[CoreRole.VECTOR0]
    assert sum(c.name not in ("set_flag", "wait_flag") for c in commands) == 4


def test_fills_and_empty_tensors() -> None:
    for dtype, value in ((DType.F16, 1.5), (DType.I32, -7), (DType.BOOL, True)):
        program = PointwiseProgram(
            (300, 9), (), (Instruction("constant", (), dtype, (("value", value),)),), (ProgramOutput(0, 0, (16, 1)),)
        )
        body = Body(None, (), (operand(Use.OUTPUT, dtype, (300, 16)),), (), (), (), program)
        (tiling,) = family_of("aicore.pointwise").tilings("aicore.pointwise", body, load_target("mini"))
        assert tiling.units
        want = np.zeros((300, 16), dtype.numpy)
        want[:, :9] = value
        check_aicore("aicore.pointwise", body, [None], {0: want}, tol=0)
    check_copy(copy_body((0, 5), (5, 1), DType.F16, 0))
