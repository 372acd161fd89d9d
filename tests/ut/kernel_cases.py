"""A case or more of every kernel of the host: its body, small arrays, and what it should compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from anchor_bodies import Slot, anchor_case
from conv_int8_model import expected_conv
from kernel_check import dense_strides, operand
from narrow_model import expected_product
from numpy.typing import NDArray
from op_cases import op_body

from superkernel.core.dtypes import DType
from superkernel.core.formats import NumberFormat
from superkernel.core.tensor import TensorType, row_major_strides
from superkernel.ir.body import Body, Instruction, PointwiseProgram, ProgramInput, ProgramOutput, Role, View
from superkernel.ops.attributes import canonical_attrs
from superkernel.ops.grouped import GroupTable
from superkernel.ops.table import op_table
from superkernel.scheduler.families import HOST_KERNELS
from superkernel.scheduler.families.matmul import MatmulFamily

Array = NDArray[Any]
Case = tuple[str, Body, list[Array | None], dict[int, Array]]
"""A kernel, a body, an array per operand (None: an output), and the expected outputs by operand."""


def numbers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    values = np.random.default_rng((seed, len(shape))).standard_normal(shape)
    return (values if np.dtype(dtype).kind not in "iu" else values * 9).astype(dtype)


def places(*shape: int, extent: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).integers(-extent, extent, shape)


def case(kernel: str, op: str, inputs: Sequence[Array | None], constants: Sequence[int] = (), /, **attrs: Any) -> Case:
    body, arrays, expected = op_body(op, inputs, attrs, roles=dict.fromkeys(constants, Role.CONSTANT))
    return kernel, body, arrays, expected


def products() -> list[Case]:
    half = numbers(33, 40, dtype=np.float16)
    return [
        case("host.matmul.packed", "matmul", [numbers(19, 37), numbers(37, 45)], [1]),
        case("host.matmul.packed", "matmul", [half, numbers(40, 24, dtype=np.float16)], [1]),
        case("host.matmul.gemv", "matmul", [numbers(2, 130), numbers(130, 70)], [1]),
        case("host.matmul.dynamic", "matmul", [numbers(2, 9, 33), numbers(2, 33, 21)]),
        case("host.matmul.generic", "matmul", [numbers(5, 7, dtype=np.int32), numbers(7, 6, dtype=np.int32)]),
        case("host.conv.igemm", "conv", [numbers(1, 5, 11, 12), numbers(7, 5, 3, 3)], [1], pads=(1, 1, 1, 1)),
        case("host.conv.depthwise", "conv", [numbers(1, 6, 9, 13), numbers(6, 1, 3, 3)], [1], groups=6),
        case("host.conv.generic", "conv", [numbers(1, 3, 5, 6, 7), numbers(4, 3, 2, 2, 2)]),
        case("host.conv.transpose", "conv_transpose", [numbers(1, 3, 5, 6), numbers(3, 4, 2, 2)], strides=(2, 2)),
    ]


def blocks() -> list[Case]:
    """Products with weights quantised in blocks; where x are whole numbers, they are those of 16 or 8 bits already."""
    rng, found = np.random.default_rng(3), []
    for kernel, rows, largest in (("gemv_int8", 2, 127 * 256 + 127), ("int8", 2, 127), ("int8", 13, 127)):
        x = rng.integers(-9, 10, (rows, 37)).astype(np.float32)
        x[:, ::16] = largest
        for bits, kind in ((4, np.uint8), (8, np.int8)):
            codes = rng.integers(0, 256, (45, -(-37 * bits // 8))).astype(np.uint8).view(kind)
            scales = [numbers(45, 3, seed=seed) / np.float32(32 * largest) for seed in (1, 2)]
            inputs: list[Array | None] = [x, codes, *scales]
            found.append(case(f"host.block_matmul.{kernel}", "block_matmul", inputs, [1, 2, 3], bits=bits, block=16))
    for kernel, rows in (("host.block_matmul.gemv", 2), ("host.block_matmul.gemm", 19)):
        for bits, kind in ((4, np.uint8), (8, np.int8)):
            codes = rng.integers(0, 256, (45, -(-37 * bits // 8))).astype(np.uint8).view(kind)
            scales = [numbers(45, 3, dtype=np.float16, seed=seed) / np.float16(99) for seed in (1, 2)]
            inputs = [numbers(rows, 37), codes, *scales]
            found.append(case(kernel, "block_matmul", inputs, [1, 2, 3], bits=bits, block=16, zero=bits))
    return found


def images() -> list[Case]:
    """Kernels of images that lie channels last."""
    f32, found = DType.F32, []
    same = {"pads": (1, 1, 1, 1)}
    for kernel, op, attrs, slots in (
        ("host.conv.nhwc", "conv", {**same, "strides": (2, 1)}, [((1, 6, 10, 13), f32), ((12, 6, 3, 3), f32)]),
        ("host.conv.winograd2", "conv", same, [((2, 7, 9, 11), f32), ((10, 7, 3, 3), f32)]),
        ("host.conv.winograd4", "conv", same, [((1, 7, 13, 12), f32), ((10, 7, 3, 3), f32)]),
        ("host.conv.depthwise_nhwc", "conv", {**same, "groups": 19}, [((1, 19, 9, 8), f32), ((19, 1, 3, 3), f32)]),
        ("host.pool_nhwc", "max_pool", {"kernel": (3, 3), "strides": (2, 2)}, [((2, 21, 9, 10), f32)]),
        ("host.pool_nhwc", "global_avg_pool", {}, [((2, 5, 7, 7), f32)]),
        ("host.pool_nhwc_bytes", "max_pool", {"kernel": (3, 3), **same}, [((2, 70, 9, 10), DType.U8)]),
        ("host.pool_nhwc_bytes", "global_max_pool", {}, [((2, 21, 7, 6), DType.I8)]),
    ):
        made = anchor_case(op, attrs, slots, constants=range(1, len(slots)), layouts={0: (0, 2, 3, 1)})
        found.append((kernel, made.body, made.arrays, made.expected))
    return found


def pixels(kernel: str, number: NumberFormat) -> Case:
    """A 1 x 1 convolution as a product of pixels."""
    image, w = numbers(2, 37, 1, 5), numbers(12, 37, 1, 1)
    name, body, arrays, expected = case(kernel, "conv", [image, w], [1])
    last = np.ascontiguousarray(np.moveaxis(image, 1, -1))
    rows, weights = last.reshape(-1, 37).astype(float), w.reshape(12, 37).T.astype(float)
    want = np.moveaxis(expected_product(rows, weights, number).reshape(2, 1, 5, 12), -1, 1)
    view = View(0, image.shape, (185, 1, 185, 37))
    turned = replace(body, anchor_inputs=(view, *body.anchor_inputs[1:]))
    return name, turned, [last.reshape(image.shape), *arrays[1:]], dict.fromkeys(expected, want)


def window_in_int8(kernel: str) -> Case:
    image, w = numbers(1, 7, 9, 11), numbers(10, 7, 3, 3)
    made = anchor_case("conv", {"pads": (1, 1, 1, 1)}, [image, w], constants=[1], layouts={0: (0, 2, 3, 1)})
    want = expected_conv(image, w, {"pads": (1, 1, 1, 1)})
    return kernel, made.body, made.arrays, dict.fromkeys(made.expected, want)


def reduced_products(native: bool = False) -> list[Case]:
    """Products of reduced precision, which this CPU multiplies as f32 and 16-bit integers; `native`: bytes itself."""
    found = []
    families = {
        kernel: found.family for kernel, found in HOST_KERNELS.kernels.items() if found.ops != ("block_matmul",)
    }
    matrices = {
        k: f.numbers[0 if native else -1] for k, f in families.items() if isinstance(f, MatmulFamily) and f.numbers
    }
    reduced = {k: number for k, number in matrices.items() if not (number.is_integral or number.tiled)}
    found += [pixels(kernel, reduced.pop(kernel)) for kernel in ("host.conv.bf16", "host.conv.int8")]
    for kernel in ("host.conv.nhwc_bf16", "host.conv.winograd2_bf16"):  # of integers: nothing is rounded
        image, w = (np.rint(4 * numbers(*shape)) for shape in ((1, 7, 9, 11), (10, 7, 3, 3)))
        slots = [image.astype(np.float32), 4 * w.astype(np.float32)]
        made = anchor_case("conv", {"pads": (1, 1, 1, 1)}, slots, constants=[1], layouts={0: (0, 2, 3, 1)})
        found.append((kernel, made.body, made.arrays, made.expected))
    image, w = numbers(1, 7, 9, 11), numbers(10, 7, 3, 3)
    found.append(window_in_int8("host.conv.nhwc_int8"))
    for byte in (DType.U8, DType.I8):
        point, layouts = np.array(5, byte.numpy), {0: (0, 2, 3, 1)}
        product: list[Slot] = [((9, 37), byte), ((37, 20), DType.I8), point]
        window: list[Slot] = [((1, 7, 9, 11), byte), ((10, 7, 3, 3), DType.I8), None, point]
        made = anchor_case("matmul_integer", {}, product, constants=[1])
        found.append(("host.matmul.bytes", made.body, made.arrays, made.expected))
        made = anchor_case("conv_integer", {"pads": (1, 1, 1, 1)}, window, constants=[1], layouts=layouts)
        found.append(("host.conv.bytes", made.body, made.arrays, made.expected))
        made = anchor_case("conv_integer", {"pads": (1, 1, 1, 1)}, window, constants=[1])
        found.append(("host.conv.bytes_any", made.body, made.arrays, made.expected))
    factors = [np.rint(4 * numbers(1, 2, 19, 8, seed=i)) for i in range(3)]
    sharp = [64 * factors[0], *factors[1:]]  # probabilities are alike or nothing
    found.append(case("host.attention.bf16", "attention", sharp, causal=True, scale=1.0))
    pairs = [factor.astype(DType.BF16.numpy) for factor in sharp]
    found.append(case("host.attention.pairs", "attention", pairs, causal=True, scale=1.0))
    found += [reduced_product(kernel, form, 3 if "gemv" in kernel else 19) for kernel, form in reduced.items()]
    return found


def bytes_of_all_kinds() -> list[Case]:
    """Products of bytes, signed or not, with a zero point and without, over padding and where they lie."""
    found = []
    for byte in (DType.U8, DType.I8):
        for zero in (None, 5):
            point = None if zero is None else np.array(zero, byte.numpy)
            made = anchor_case("matmul_integer", {}, [((9, 37), byte), ((37, 20), DType.I8), point], constants=[1])
            found.append(("host.matmul.bytes", made.body, made.arrays, made.expected))
            for attrs in ({"pads": (2, 1, 3, 1)}, {"strides": (2, 1)}):
                window: list[Slot] = [((1, 8, 7, 9), byte), ((20, 8, 3, 3), DType.I8), None, point]
                made = anchor_case("conv_integer", attrs, window, constants=[1], layouts={0: (0, 2, 3, 1)})
                found.append(("host.conv.bytes", made.body, made.arrays, made.expected))
    return found


def reduced_product(kernel: str, number: NumberFormat, count: int) -> Case:
    """A product of so many rows, of f32 or, where the kernel rounds nothing, of what it multiplies."""
    x, w = numbers(count, 37), numbers(37, 45)
    if number.precision == "any":
        return case(kernel, "matmul", [x.astype(number.rows.numpy), w.astype(number.weights.numpy)], [1])
    name, body, arrays, expected = case(kernel, "matmul", [x, w], [1])
    return name, body, arrays, dict.fromkeys(expected, expected_product(x, w, number))


def on_tiles() -> list[Case]:
    """Products and convolutions on AMX's tiles, which no CPU of another kind has."""
    found = [window_in_int8("host.conv.nhwc_int8_tiles")]
    image, w = (np.rint(4 * numbers(*shape)).astype(np.float32) for shape in ((1, 6, 9, 11), (10, 6, 3, 3)))
    window: list[Slot] = [((1, 7, 9, 11), DType.U8), ((10, 7, 3, 3), DType.I8), None, np.array(5, np.uint8)]
    for kernel, op, slots in (
        ("host.conv.nhwc_bf16_tiles", "conv", [image, w]),  # of integers: nothing is rounded
        ("host.conv.bytes_tiles", "conv_integer", window),
    ):
        made = anchor_case(op, {"pads": (1, 1, 1, 1)}, slots, constants=[1], layouts={0: (0, 2, 3, 1)})
        found.append((kernel, made.body, made.arrays, made.expected))
    for kernel, declared in HOST_KERNELS.kernels.items():
        family = declared.family
        if not isinstance(family, MatmulFamily) or not family.numbers or not family.numbers[0].tiled:
            continue
        number = family.numbers[0]
        if number.is_integral:
            product: list[Slot] = [((19, 37), DType.I8), ((37, 45), DType.I8), np.array(5, np.int8)]
            made = anchor_case("matmul_integer", {}, product, constants=[1])
            found.append((kernel, made.body, made.arrays, made.expected))
        elif "conv" in declared.ops:
            found.append(pixels(kernel, number))
        else:
            found.append(reduced_product(kernel, number, 19))
    return found


def rows() -> list[Case]:
    x, scale = numbers(9, 77), numbers(77)
    image = numbers(2, 6, 9, 10)
    return [
        case("host.softmax", "softmax", [x], axis=-1),
        case("host.softmax", "log_softmax", [x], axis=0),
        case("host.norm", "layer_norm", [x, scale, scale], axis=-1),
        case("host.norm", "rms_norm", [x, scale], axis=-1),
        case("host.norm", "group_norm", [image, numbers(6), numbers(6)], groups=3),
        case("host.lrn", "lrn", [image], size=3),
        *(case("host.reduce", f"reduce_{n}", [x], axes=(1,)) for n in ("sum", "mean", "max", "l2", "log_sum_exp")),
        case("host.reduce", "reduce_sum", [x], axes=(0,)),
        case("host.argreduce", "argmax", [x], axis=1),
        case("host.cumsum", "cumsum", [x], axis=1),
        case("host.pool", "max_pool", [image], kernel=(3, 3), strides=(2, 2)),
        case("host.pool", "avg_pool", [image], kernel=(2, 2), pads=(1, 1, 0, 0)),
        case("host.softmax", "softmax", [numbers(5, 40, dtype=np.float16)], axis=-1),
        case("host.softmax", "softmax", [numbers(5, 33, dtype=np.float64)], axis=-1),
    ]


def moves() -> list[Case]:
    x = numbers(9, 33)
    return [
        case("host.concat", "concat", [x, numbers(9, 4)], axis=1),
        case("host.pad", "pad", [x], pads=(1, 2, 0, 3)),
        case("host.tile", "tile", [x], repeats=(2, 3)),
        case("host.gather", "gather", [x, places(4, 5, extent=9)], axis=0),
        case("host.index", "gather_elements", [x, places(4, 33, extent=9)], axis=0),
        case("host.index", "topk", [x], k=5),
        case("host.index", "scatter_nd", [x, places(4, 1, extent=9), numbers(4, 33)]),
        case("host.index", "resize", [numbers(1, 2, 5, 7)], sizes=(1, 2, 9, 11), mode="linear"),
    ]


def sequences() -> list[Case]:
    q, k, v = numbers(1, 4, 9, 16), numbers(1, 2, 21, 16, seed=1), numbers(1, 2, 21, 16, seed=2)
    angles = np.arange(32 * 4).reshape(32, 4) / 9
    turning = [numbers(1, 2, 6, 8), np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]
    counts = np.array([3, 0, 5, 1])
    rows = [numbers(11, 13), numbers(4, 13, 19, seed=1), counts, GroupTable(4, 11, 4, 1, 1).made(counts)]
    return [
        case("host.grouped_matmul", "grouped_matmul", rows, [1], cut=(4, 1, 1)),
        case("host.tiling", "tile_groups", [counts], rows=11, tile=2, columns=3, slots=2),
        case("host.tiling", "tile_lengths", [np.array([3, 0, 7], np.int32)], keys=7, slots=4),
        case("host.nonzero", "nonzero", [np.round(numbers(3, 37))], size=111),
        case("host.non_max_suppression", "non_max_suppression", [numbers(2, 9, 4), numbers(2, 3, 9)], size=9, limit=4),
        case("host.attention", "attention", [q, k, v]),
        case("host.attention", "attention", [x.astype(np.float16) for x in (q, k, v)]),
        case("host.rope", "rope", [*turning, np.array([3])]),
        case("host.kv_update", "kv_update", [numbers(1, 2, 11, 6), numbers(1, 2, 3, 6, seed=1), np.array([4])]),
    ]


FUNCTIONS = (
    *("exp", "expm1", "log", "log1p", "erf", "tanh", "sigmoid", "gelu", "silu", "mish", "softplus", "sqrt", "rsqrt"),
    *("sin", "cos", "tan", "sinh", "cosh", "asinh", "atan", "floor", "ceil", "round", "trunc", "sign", "hard_swish"),
)
INTEGER_WORK = ("add", "sub", "mul", "div", "mod", "minimum", "maximum", "bitwise_xor", "shift_left", "shift_right")


def pointwise(
    names: Sequence[str], inputs: Sequence[Array], casts: Sequence[DType] = (), attrs: Mapping[str, Any] | None = None
) -> Case:
    """One program with an instruction and a result per name, and per type that the first input is cast to."""
    shape, count = inputs[0].shape, len(inputs)
    kinds = [DType.of(x.dtype) for x in inputs]
    steps, operands = [], [operand(Role.INPUT, k, x.shape) for k, x in zip(kinds, inputs, strict=True)]
    expected: dict[int, Array] = {}
    for name, to in [*((n, None) for n in names), *(("cast", t) for t in casts)]:
        row = op_table()[name]
        full = canonical_attrs(row, (attrs or {}) if to is None else {"dtype": to})
        used = inputs[: len(row.args)]
        (kind,) = row.infer([TensorType(DType.of(x.dtype), x.shape) for x in used], full)
        steps.append(Instruction(name, tuple(range(len(used))), kind.dtype, tuple(full.items())))
        with np.errstate(all="ignore"):
            (want,) = row.reference(list(used), full, (kind,))
            expected[len(operands)] = np.asarray(want).astype(kind.dtype.numpy)
        operands.append(operand(Role.OUTPUT, kind.dtype, shape))
    sources = tuple(ProgramInput(i, k, dense_strides(shape, shape)) for i, k in enumerate(kinds))
    stores = tuple(ProgramOutput(count + n, count + n, row_major_strides(shape)) for n in range(len(steps)))
    body = Body(None, (), tuple(operands), (), (), (), PointwiseProgram(shape, sources, tuple(steps), stores))
    return "host.pointwise", body, [*inputs, *(None for _ in steps)], expected


def programs() -> list[Case]:
    turned = PointwiseProgram((45, 37), (ProgramInput(0, DType.F32, (1, 45)),), (), (ProgramOutput(0, 1, (37, 1)),))
    kinds = (operand(Role.INPUT, DType.F32, (37, 45)), operand(Role.OUTPUT, DType.F32, (45, 37)))
    x = numbers(37, 45)
    integers = [numbers(3, 29, dtype=np.int64), places(3, 29, extent=9)]
    types = (DType.F16, DType.BF16, DType.F64, DType.I64, DType.I8, DType.U8, DType.BOOL)
    return [
        pointwise(FUNCTIONS, [np.abs(numbers(5, 83)) + np.float32(0.1)], types),
        pointwise(FUNCTIONS, [(np.abs(numbers(71)) + 0.1).astype(np.float16)], (DType.F32, DType.I32)),
        pointwise(("exp", "erf", "tanh", "log"), [np.abs(numbers(70, dtype=np.float64)) + 0.1], (DType.F16,)),
        pointwise(("add", "mul", "maximum"), [numbers(50).astype(DType.BF16.numpy)] * 2, (DType.F32,)),
        pointwise(INTEGER_WORK, integers, (DType.F16, DType.F32, DType.I16)),
        ("host.transpose", Body(None, (), kinds, (), (), (), turned), [x, None], {1: x.T}),
    ]


MAKERS: tuple[Callable[[], list[Case]], ...] = (
    products,
    blocks,
    images,
    reduced_products,
    rows,
    moves,
    sequences,
    programs,
)
