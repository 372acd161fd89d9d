"""Pointwise and transpose kernels: every operator of the family against its reference, every form of access, on all
tiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from kernel_check import Array, check_body, dense_strides, operand, tiers

import superkernel as sk
from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType, row_major_strides
from superkernel.ir.body import Body, Instruction, PointwiseProgram, ProgramInput, ProgramOutput, Role
from superkernel.ops.attributes import canonical_attrs
from superkernel.ops.opdef import Family
from superkernel.ops.table import find_op, op_table
from superkernel.scheduler.families.pointwise import PointwiseTiling
from superkernel.scheduler.tiling import Access

SIZE = 77
Case = tuple[str, dict[str, Any], Sequence[Array]]


def check_cases(cases: Sequence[Case], tier: str | None = None, tol: float = 2e-6) -> None:
    """One body with all the cases' instructions, each storing its own result."""
    inputs: list[Array] = []
    numbers: dict[int, int] = {}
    for _, _, arrays in cases:
        for array in arrays:
            if id(array) not in numbers:
                numbers[id(array)] = len(inputs)
                inputs.append(array)
    instructions, outputs, expected = [], [], {}
    operands = [operand(Role.INPUT, DType.of(a.dtype), a.shape) for a in inputs]
    shape = np.broadcast_shapes(*(a.shape for a in inputs))
    for k, (name, attrs, arrays) in enumerate(cases):
        row = find_op(name)
        assert row is not None
        full = canonical_attrs(row, attrs)
        (kind,) = row.infer([TensorType(DType.of(a.dtype), a.shape) for a in arrays], full)
        args = tuple(numbers[id(a)] for a in arrays)
        instructions.append(Instruction(name, args, kind.dtype, tuple(full.items())))
        index = len(inputs) + k
        outputs.append(ProgramOutput(index, index, row_major_strides(shape)))
        operands.append(operand(Role.OUTPUT, kind.dtype, shape))
        (want,) = row.reference(arrays, full, (TensorType(kind.dtype, shape),))
        with np.errstate(all="ignore"):
            expected[index] = np.broadcast_to(want, shape).astype(kind.dtype.numpy)
    sources = tuple(ProgramInput(k, DType.of(a.dtype), dense_strides(a.shape, shape)) for k, a in enumerate(inputs))
    program = PointwiseProgram(shape, sources, tuple(instructions), tuple(outputs))
    body = Body(None, (), tuple(operands), (), (), (), program)
    limits = {k: tol if operands[k].type.dtype.is_float else 0.0 for k in expected}
    check_body("host.pointwise", body, [*inputs, *(None for _ in cases)], expected, tol=limits, tier=tier, splits=1)


def floats(dtype: Any, seed: int = 0) -> Array:
    """Numbers of all sizes, and the special ones."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(SIZE) * 10.0 ** rng.integers(-3, 3, SIZE)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 2.5, 1.5, -2.5, 100.0, -100.0]
    values[3 : 3 + len(special)] = special
    return values.astype(dtype)


def integers(dtype: Any, seed: int = 0) -> Array:
    info = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    values = rng.integers(max(info.min, -40), 40, SIZE).astype(dtype)
    values[:8] = [0, 1, info.max, info.min, info.max, info.min, 2, 7]
    return values


def operators(arity: int, dtype: DType) -> list[str]:
    """Pointwise operators of so many operands, all of one element type."""
    rows = [row for row in op_table().values() if row.family is Family.POINTWISE and len(row.args) == arity]
    apart = ("cast", "bitcast", "pow", "shift_left", "shift_right")  # of two types, or of counts
    return [r.name for r in rows if r.name not in apart and all(dtype in a.dtypes for a in r.args)]


# Infinity times 0 comes up in these in the kernel's order of operations, in the reference's for others: not compared at
# infinity.
FINITE = ("mish", "silu", "gelu", "hard_swish", "celu", "softsign")


@pytest.mark.parametrize(
    ("dtype", "tier", "tol"),
    [(DType.F32, None, 2e-6), (DType.F64, "avx2", 1e-14), (DType.F16, "plain", 1e-3), (DType.BF16, "avx2", 8e-3)],
)
def test_unary_floats(dtype: DType, tier: str | None, tol: float) -> None:
    x = floats(dtype.numpy)
    finite = np.where(np.isinf(x.astype(np.float64)), 3, x.astype(np.float64)).astype(dtype.numpy)
    cases: list[Case] = [(n, {}, [finite if n in FINITE else x]) for n in operators(1, dtype)]
    cases.append(("gelu", {"approximate": "tanh"}, [finite]))
    for start in range(0, len(cases), 12):
        check_cases(cases[start : start + 12], tier, tol)


@pytest.mark.parametrize("tier", [None])
def test_binary_floats(tier: str | None) -> None:
    a, b = floats(np.float32, 1), floats(np.float32, 2)[::-1].copy()
    check_cases([(n, {}, [a, b]) for n in operators(2, DType.F32) if n != "mod"], tier)
    small = np.random.default_rng(5).uniform(-9, 9, SIZE).astype(np.float32)
    divisor = np.random.default_rng(6).uniform(0.3, 4, SIZE).astype(np.float32) * np.where(np.arange(SIZE) % 2, 1, -1)
    check_cases([("mod", {"fmod": f}, [small, divisor.astype(np.float32)]) for f in (False, True)], tier)


@pytest.mark.parametrize("dtype", [DType.F64, DType.F32, DType.F16, DType.BF16])
def test_bounds_that_are_no_numbers(dtype: DType) -> None:
    x = np.array([0.0, -0.0, 1.0, -2.0, np.inf, -np.inf, np.nan] * 3).astype(dtype.numpy)
    low = np.repeat([np.nan, -1.0, -1.0], 7).astype(dtype.numpy)
    high = np.repeat([1.0, np.nan, 1.0], 7).astype(dtype.numpy)
    check_cases([("clip", {}, [x, low, high])], tol=0)


@pytest.mark.parametrize("dtype", [DType.F64, DType.F32, DType.F16])
def test_the_sign_of_a_negative_zero_is_zero(dtype: DType) -> None:
    b = sk.GraphBuilder("signs")
    b.output(b.sign(b.input("x", (4,), dtype)), name="y")
    found = sk.compile(b.graph(), threads=1)(np.array([0.0, -0.0, -3.0, 2.0]).astype(dtype.numpy))
    assert np.array_equal(found, [0, 0, -1, 1])
    assert not np.signbit(found[:2]).any()


@pytest.mark.parametrize("dtype", [DType.F64, DType.F32, DType.F16, DType.BF16])
def test_angles_of_special_points(dtype: DType) -> None:
    special = np.array([0.0, -0.0, 1.0, -1.5, 1e-7, 6e4, -6e4, np.inf, -np.inf, np.nan])
    y, x = (a.reshape(-1).astype(dtype.numpy) for a in np.meshgrid(special, special))
    check_cases([("atan2", {}, [y, x])], tol=2e-7 if dtype.itemsize > 2 else 8e-3)


def test_float_remainder_of_a_huge_quotient() -> None:
    a = np.array([1e20, -3e18, 2.0**60, 7.5], np.float32)
    b = np.array([3.0, 7.0, 5.0, -2.0], np.float32)
    check_cases([("mod", {"fmod": True}, [a, b])], "avx2", 0)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u4", "i4", "i8"])
def test_integers(dtype: str) -> None:
    a, b = integers(dtype, 1), integers(dtype, 2)[::-1].copy()
    b[5] = b[3] = np.array(-1 if dtype[0] == "i" else 0).astype(dtype)
    counts = (np.arange(SIZE) % (8 * np.dtype(dtype).itemsize + 3)).astype(dtype)
    names = [n for n in operators(2, DType.of(np.dtype(dtype))) if n != "prelu"]
    check_cases([*((n, {}, [a, b]) for n in names), ("mod", {"fmod": True}, [a, b])], "avx2")
    rest: list[Case] = [(n, {}, [a, counts]) for n in ("shift_left", "shift_right", "pow")]
    rest += [(n, {}, [a]) for n in operators(1, DType.of(np.dtype(dtype)))]
    check_cases(rest)


def test_bools() -> None:
    a, b = (np.random.default_rng(s).random(SIZE) > 0.5 for s in (1, 2))
    x, y = floats(np.float32, 3), floats(np.float32, 4)
    pairs: list[Case] = [(n, {}, [a, b]) for n in operators(2, DType.BOOL)]
    check_cases([*pairs, *((n, {}, [a]) for n in operators(1, DType.BOOL)), ("where", {}, [a, x, y])])


CASTS = [DType.F64, DType.F32, DType.F16, DType.BF16, DType.I64, DType.I32, DType.I8, DType.U64, DType.U8, DType.BOOL]


@pytest.mark.parametrize("source", CASTS)
def test_casts(source: DType) -> None:
    if source.is_float:
        x = floats(np.float64) * 1e3
        x[20:27] = [255.9, -1.5, 65519.99, 2.0**-25 * 1.0000001, 3e9, -3e9, 1e30]
        with np.errstate(all="ignore"):
            x = x.astype(source.numpy)
    elif source is DType.BOOL:
        x = np.arange(SIZE) % 3 == 0
    else:
        x = integers(source.numpy)
    check_cases([("cast", {"dtype": t}, [x]) for t in CASTS], tol=0)


@pytest.mark.parametrize("source", [DType.F64, DType.F32, DType.F16, DType.BF16])
def test_casts_that_wrap(source: DType) -> None:
    with np.errstate(all="ignore"):
        x = (floats(np.float64) * 1e3).astype(source.numpy)
        x[20:27] = [-1, 300, -129, 7e4, 3e9, 1e19, np.nan]
    integers = [t for t in DType if t.is_integer]
    check_cases([("cast", {"dtype": t, "saturate": False}, [x]) for t in integers], tol=0)


@pytest.mark.parametrize("tier", tiers())
@pytest.mark.parametrize("small", [d for d in DType if d.is_small])
def test_casts_of_small_types(small: DType, tier: str) -> None:
    """To each from all others, from each, code by code, to all others."""
    short = np.arange(1 << 12, dtype=np.uint32) << 20
    low = np.array([0, 1, 0x7FFFF, 0x80000, 0x80001, 0xFFFFF], np.uint32)
    x = (short[:, None] | low).reshape(-1).view(np.float32)
    with np.errstate(all="ignore"):
        for saturate in (True, False):
            check_cases([("cast", {"dtype": small, "saturate": saturate}, [x])], tier, tol=0)
            sources = [np.resize(x[::97], SIZE).astype(d.numpy) for d in DType if d is not small]
            check_cases([("cast", {"dtype": small, "saturate": saturate}, [s]) for s in sources], tier, tol=0)
            codes = np.arange(1 << small.bits, dtype=np.uint8).view(small.numpy)
            targets = [d for d in DType if d is not small]
            check_cases([("cast", {"dtype": d, "saturate": saturate}, [codes]) for d in targets], tier, tol=0)


def test_powers() -> None:
    rng = np.random.default_rng(0)
    base = np.concatenate([rng.uniform(0, 9, 40), rng.uniform(-9, 0, 10), [0, -0.0, np.inf, -np.inf, np.nan, 1, -1]])
    base = base.astype(np.float32)
    exponents = np.concatenate([rng.uniform(-5, 5, 40), rng.integers(-5, 5, 17)]).astype(np.float32)
    exponents[-7:] = [-3, -3, -3, -3, 0, np.inf, np.inf]
    check_cases([("pow", {}, [base, exponents])])
    check_cases([("pow", {}, [np.arange(-9, 10, dtype=np.int32), np.array([5], np.int64)])], "avx2")


@pytest.mark.parametrize("exponent", [np.float64, np.int64, np.int32, np.uint32])
def test_exponents_of_f32_bases_keep_their_digits(exponent: Any) -> None:
    """Odd numbers that f32 rounds to even ones, and fractions; bases near 1 tell their last bits."""
    exponents = np.array([16777217, 16777219, 33554435, 3, 0.1, 1 / 3]).astype(exponent)
    for base in (-1.0, 1.0 + 2.0**-23, 0.3):
        check_cases([("pow", {}, [np.full(6, base, np.float32), exponents])], tol=2e-7)


@pytest.mark.parametrize(("dtype", "ulp"), [(DType.F32, 2.0**-23), (DType.F64, 2.0**-52)])
def test_hard_swish_is_exact_where_it_reaches_zero(dtype: DType, ulp: float) -> None:
    x = np.array([-3, -3 * (1 - ulp), -2.9999, -2.99, -1e-3, 3, 7.1, 1e30]).astype(dtype.numpy)
    b = sk.GraphBuilder("hard")
    b.output(b.hard_swish(b.input("x", x.shape, dtype)), name="y")
    kernel, wide = sk.compile(b.graph(), threads=1), x.astype(np.longdouble)
    want = wide * (np.clip(wide + 3, 0, 6) / 6)
    for found in (kernel(x), kernel.run({"x": x}, executor="reference").outputs["y"]):
        np.testing.assert_allclose(found, want.astype(dtype.numpy), rtol=4 * ulp, atol=0)


def test_what_is_no_number_is_above_no_threshold() -> None:
    x = np.array([np.nan, 0.4, 2.0, -2.0, np.inf, -np.inf], np.float32)
    cases: list[Case] = [("thresholded_relu", {"alpha": 0.5}, [x]), ("shrink", {"bias": 0.25, "lambd": 0.5}, [x])]
    check_cases(cases, tol=0)
    for name, attrs, arrays in cases:
        b = sk.GraphBuilder("nan")
        b.output(b.apply(name, (b.input("x", x.shape),), attrs)[0], name="y")
        assert sk.compile(b.graph(), threads=1)(*arrays)[0] == 0


@pytest.mark.parametrize("exponent", [-2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0, 4.0, 2.5])
def test_constant_powers(exponent: float) -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -3, 0.25, 1e-3], np.float32)
    operands = (operand(Role.INPUT, DType.F32, x.shape), operand(Role.OUTPUT, DType.F32, x.shape))
    constant = Instruction("constant", (), DType.F32, (("value", exponent),))
    program = PointwiseProgram(
        x.shape,
        (ProgramInput(0, DType.F32, (1,)),),
        (constant, Instruction("pow", (0, 1), DType.F32)),
        (ProgramOutput(2, 1, (1,)),),
    )
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), np.full(x.shape, exponent))
    check_body("host.pointwise", Body(None, (), operands, (), (), (), program), [x, None], {1: want}, tier="avx2")


def test_quantisation() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.standard_normal(60) * 20, [np.inf, -np.inf, 0.05, 0.15, 0.25]]).astype(np.float32)
    scale = np.full(1, 0.1, np.float32)
    for dtype in (np.int8, np.uint8):
        zero = np.array([3], dtype)
        q = rng.integers(0, 100, len(x)).astype(dtype)
        check_cases(
            [
                ("quantize", {"dtype": DType.of(np.dtype(dtype))}, [x, scale, zero]),
                ("dequantize", {}, [q, scale, zero]),
                ("dequantize", {}, [q, scale]),
            ]
        )


def test_clip_with_absent_bounds() -> None:
    x = floats(np.float32)
    operands = [operand(Role.INPUT, DType.F32, x.shape), operand(Role.INPUT, DType.F32, ())]
    programs = []
    for args in ((0, 1), (0, -1, 1), (0, -1), (0,)):
        programs.append(
            PointwiseProgram(
                x.shape,
                (ProgramInput(0, DType.F32, (1,)), ProgramInput(1, DType.F32, (0,))),
                (Instruction("clip", args, DType.F32),),
                (ProgramOutput(2, 2, (1,)),),
            )
        )
    limit = np.array(0.75, np.float32)
    wanted = [np.where(x < 0.75, 0.75, x), np.where(x > 0.75, 0.75, x), x, x]
    for program, want in zip(programs, wanted, strict=True):
        body = Body(None, (), (*operands, operand(Role.OUTPUT, DType.F32, x.shape)), (), (), (), program)
        check_body("host.pointwise", body, [x, limit, None], {2: want}, tol=0, tier="avx2")


def copy_body(shape: Sequence[int], perm: Sequence[int], dtype: DType, op: str = "identity") -> Body:
    out = tuple(shape[p] for p in perm)
    strides = row_major_strides(shape)
    return Body(
        None,
        (),
        (operand(Role.INPUT, dtype, shape), operand(Role.OUTPUT, dtype, out)),
        (),
        (),
        (),
        PointwiseProgram(
            out,
            (ProgramInput(0, dtype, tuple(strides[p] for p in perm)),),
            () if op == "identity" else (Instruction(op, (0,), dtype),),
            (ProgramOutput(0 if op == "identity" else 1, 1, row_major_strides(out)),),
        ),
    )


SHAPES = [(), (1,), (7,), (513,), (5000,), (3, 5), (40, 33), (2, 3000), (3, 1, 5, 6), (0, 4), (4, 0)]


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(shape), rng.standard_normal(shape[-1:])
    check_cases([("add", {}, [a.astype(np.float32), b.astype(np.float32)])] if shape else [("neg", {}, [a])])


VECTOR_BYTES = {"avx512": 64, "avx2": 32, "plain": 16}
PERMUTATIONS = [
    ((33, 70), (1, 0)),
    ((2, 16, 48, 3), (0, 3, 1, 2)),
    ((3, 20, 17, 5), (0, 2, 1, 3)),
    ((8, 9, 10), (2, 1, 0)),
    ((1, 64, 64), (0, 2, 1)),
    ((3, 130), (1, 0)),
]


@pytest.mark.parametrize("dtype", [DType.F32, DType.U8, DType.F16, DType.I64, DType.BOOL])
@pytest.mark.parametrize(("shape", "perm"), PERMUTATIONS)
def test_transposes(shape: tuple[int, ...], perm: tuple[int, ...], dtype: DType) -> None:
    tier = None if dtype is DType.F32 else "avx2"
    x = (np.random.default_rng(1).integers(0, 100, shape) % (2 if dtype is DType.BOOL else 100)).astype(dtype.numpy)
    check_body("host.transpose", copy_body(shape, perm, dtype), [x, None], {1: x.transpose(perm)}, tol=0, tier=tier)
    if dtype is DType.F32:
        body = copy_body(shape, perm, dtype, "neg")
        (tiling,) = check_body("host.transpose", body, [x, None], {1: -x.transpose(perm)}, tol=0)
        assert isinstance(tiling, PointwiseTiling)


@pytest.mark.parametrize("tier", tiers())
@pytest.mark.parametrize(("dtype", "width"), [(DType.F32, 4), (DType.U8, 1), (DType.BF16, 4), (DType.F64, 8)])
@pytest.mark.parametrize("inner", range(2, 9))
def test_short_last_dimensions_are_interleaved(inner: int, dtype: DType, width: int, tier: str) -> None:
    for extent in (4, 15, 16, 34, 257, 271, 513):
        x = np.random.default_rng(extent).integers(0, 100, (2, inner, extent)).astype(dtype.numpy)
        body = copy_body(x.shape, (0, 2, 1), dtype)
        (tiling,) = check_body("host.transpose", body, [x, None], {1: x.transpose(0, 2, 1)}, tol=0, tier=tier)
        assert isinstance(tiling, PointwiseTiling)
        assert bool(tiling.narrow) == (inner < min(16, VECTOR_BYTES[tier] // width))


def test_strided_and_backward_views() -> None:
    """Every second row backwards, written into part of a wider buffer."""
    x = np.random.default_rng(0).standard_normal((20, 33)).astype(np.float32)
    shape = (10, 33)
    operands = (operand(Role.INPUT, DType.F32, (20, 33)), operand(Role.OUTPUT, DType.F32, (10, 50)))
    program = PointwiseProgram(
        shape,
        (ProgramInput(0, DType.F32, (66, -1), 32),),
        (Instruction("add", (0, 0), DType.F32),),
        (ProgramOutput(1, 1, (50, 1), 9),),
    )
    body = Body(None, (), operands, (), (), (), program)

    def reference(arrays: list[Array]) -> dict[int, Array]:
        want = np.zeros((10, 50), np.float32)
        want[:, 9:42] = 2 * x[::2, ::-1]
        return {1: want}

    check_body("host.pointwise", body, [x, None], reference, tol=0)


def test_small_strides_read_nothing_beyond_the_view() -> None:
    x = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    for step in (2, 3, -2, 5):
        count = 20
        offset = 0 if step > 0 else 99
        body = Body(
            None,
            (),
            (operand(Role.INPUT, DType.F32, (100,)), operand(Role.OUTPUT, DType.F32, (count,))),
            (),
            (),
            (),
            PointwiseProgram(
                (count,), (ProgramInput(0, DType.F32, (step,), offset),), (), (ProgramOutput(0, 1, (1,)),)
            ),
        )
        want = x[offset : offset + step * count if offset + step * count >= 0 else None : step][:count]
        check_body("host.pointwise", body, [x, None], {1: want}, tol=0)


def test_check_body_rejects_a_wrong_declaration() -> None:
    """The canary: a tiling that hides a write, or a read, must be caught."""
    body = copy_body((4000,), (0,), DType.F32)
    x = np.arange(4000, dtype=np.float32)

    class Liar(PointwiseTiling):
        def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
            return super().accesses(body, begin, max(begin, end - 1))

    honest = PointwiseTiling(1, 4000, 1, 512)
    check_body("host.pointwise", body, [x, None], {1: x}, tilings=[honest], tol=0, tier="avx2")
    with pytest.raises(AssertionError):
        check_body("host.pointwise", body, [x, None], {1: x}, tilings=[Liar(1, 4000, 1, 512)], tol=0, tier="avx2")
    with pytest.raises(AssertionError, match="differ"):
        check_body("host.pointwise", body, [x, None], {1: x + 1}, tilings=[honest], tol=0, tier="avx2")
