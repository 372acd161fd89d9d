"""AMX: emulated tiles held to the manual's words, the real instructions in the code that is made, products of both.

On a machine with AMX the real instructions run beside the emulated ones; for others they are compiled and looked at.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from anchor_bodies import AnchorCase, anchor_case
from kernel_check import check_body, tiers, undefined_symbols
from llvmlite import ir
from narrow_model import expected_product
from numpy.typing import NDArray
from registry_cases import TRIPLE
from tile_model import matmul_bf16, product_of_bf16, product_of_bytes

from superkernel.codegen.host import features
from superkernel.codegen.host.builder import KernelBuilder
from superkernel.codegen.host.constants import aligned_bytes
from superkernel.codegen.host.emitters import emit_ir
from superkernel.codegen.host.features import detect_cpu
from superkernel.codegen.host.loader import LoadedCode
from superkernel.codegen.host.lower import assembly, compile_ir
from superkernel.codegen.host.recording import recordable
from superkernel.codegen.host.standalone import StandaloneKernel
from superkernel.codegen.host.tiles import TileShape, configuration, tiles_of
from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError, UnsupportedError
from superkernel.core.formats import BF16_TILES, INT8_TILES, NumberFormat
from superkernel.ir.body import Role
from superkernel.machine import may_use_tiles
from superkernel.scheduler.families import family_of
from superkernel.scheduler.families.matmul_tiling import MatmulTiling
from superkernel.scheduler.families.nhwc_tiling import NhwcTiling
from superkernel.target.cpu import AVX2, AVX512, EMULATED_TILES, TILES, CpuTarget, cpu_target

Array = NDArray[Any]
HAS_AMX = " amx_tile" in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
EMULATED = [f"{tier}+{EMULATED_TILES}" for tier in tiers() if tier != "plain"]
REAL = [detect_cpu("").tier] if detect_cpu("").has(TILES[0]) else []
F32 = DType.F32
XEON = cpu_target(TRIPLE, "avx512", {*AVX2, *AVX512, *TILES, "avx512bf16", "avx512vnni"})
TILE_RELEASE = bytes.fromhex("c4e27849c0")

pytestmark = pytest.mark.skipif(not EMULATED, reason="emulated tiles need FMA")


# Instructions ---------------------------------------------------------------------------------------------------------


def run_product(cpu: CpuTarget, number: NumberFormat, sums: Array, rows: Array, words: Array) -> Array:
    """sums + rows * words by one product of tiles."""
    module = ir.Module(name="tiles")
    kb = KernelBuilder(module, "kernel", 3, cpu)
    tiles = tiles_of(kb, [TileShape(len(sums)), TileShape(len(rows), 4 * len(words)), TileShape(len(words))])
    tiles.configure()
    for tile, operand in enumerate(kb.operands):
        tiles.load(tile, operand, 128)
    tiles.multiply_add(number, 0, 1, 2)
    tiles.store(0, kb.operands[0], 128)
    tiles.release()
    kb.finish()
    code = LoadedCode([compile_ir(str(module), cpu)])
    buffers = []
    for array in (sums, rows, words):
        buffer = aligned_bytes(128 * len(array)).reshape(-1, 128)
        buffer[:] = 0xA5
        buffer[:, : array[0].nbytes] = array.view(np.uint8)
        buffers.append(buffer)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 2)(code.address("kernel"))
    call(*(b.ctypes.data for b in buffers), 0, 0, 0)
    assert all((b[:, 64:] == 0xA5).all() for b in buffers), "written beside the rows"
    return np.ascontiguousarray(buffers[0][:, :64]).view(sums.dtype)


def f32_bits(rng: np.random.Generator, shape: tuple[int, ...], low: int, high: int) -> Array:
    """f32 of any sign and fraction, their exponents in a range of fields, as bits."""
    sign, fraction = rng.integers(0, 2, shape) << 31, rng.integers(0, 1 << 23, shape)
    return (sign | rng.integers(low, high, shape) << 23 | fraction).astype(np.uint32)


@pytest.mark.parametrize("tier", [*EMULATED, *REAL])
@pytest.mark.parametrize("rows", [16, 5, 1])
@pytest.mark.parametrize(
    "exponents",
    [(120, 134), (60, 68), (0, 70), (180, 255), (0, 256)],
    ids=["ordinary", "results near the smallest", "small", "overflow", "any, NaN too"],
)
def test_a_product_of_bf16_is_the_manuals(exponents: tuple[int, int], rows: int, tier: str) -> None:
    rng = np.random.default_rng(exponents[0] + rows)
    depth = 16 if rows > 1 else 7
    left = f32_bits(rng, (rows, 2 * depth), *exponents) >> 16
    right = f32_bits(rng, (depth, 32), *exponents) >> 16
    left[:, ::7] &= 0x8000
    sums = f32_bits(rng, (rows, 16), 0, exponents[1])
    got = run_product(detect_cpu(tier), BF16_TILES, sums, left.astype(np.uint16), right.astype(np.uint16))
    want = product_of_bf16(sums, left, right)
    is_nan = np.isnan(want.view(np.float32))
    np.testing.assert_array_equal(np.isnan(got.view(np.float32)), is_nan)
    np.testing.assert_array_equal(got[~is_nan], want[~is_nan])


@pytest.mark.parametrize("tier", [*EMULATED, *REAL])
def test_what_rounding_would_make_normal_is_a_zero(tier: str) -> None:
    """A sum of 1 - 2^-24 of the smallest normal number, which a unit that keeps denormal numbers rounds to that."""
    left, right = np.zeros((1, 32), np.float32), np.zeros((16, 32), np.float32)
    left[0, 0], right[0] = 2.0**-63, 2.0**-63  # the product: the smallest normal number
    left[0, 2], right[1] = -(2.0**-75), 2.0**-75  # less by 2^-24 of it
    sums = np.zeros((1, 16), np.uint32)
    bits = [(x.view(np.uint32) >> 16).astype(np.uint16) for x in (left, right)]
    want = product_of_bf16(sums, *bits)
    assert not want.any()
    assert np.float32(2.0**-126) + np.float32(-(2.0**-150)) == np.float32(2.0**-126)
    np.testing.assert_array_equal(run_product(detect_cpu(tier), BF16_TILES, sums, *bits), want)


@pytest.mark.parametrize("tier", [*EMULATED, *REAL])
@pytest.mark.parametrize("rows", [16, 3])
def test_a_product_of_bytes_is_the_manuals(rows: int, tier: str) -> None:
    rng = np.random.default_rng(rows)
    sums = rng.integers(-(2**31), 2**31, (rows, 16)).astype(np.int32)
    depth = 16 if rows > 3 else 5
    left = rng.integers(0, 256, (rows, 4 * depth)).astype(np.uint8)
    right = rng.integers(-128, 128, (depth, 64)).astype(np.int8)
    got = run_product(detect_cpu(tier), INT8_TILES, sums, left, right)
    np.testing.assert_array_equal(got, product_of_bytes(sums, left, right))


def test_a_configuration_says_rows_and_bytes_per_tile() -> None:
    made = configuration([TileShape(16), TileShape(5, 12), TileShape(3)])
    assert made.nbytes == 64
    assert made[0] == 1, "palette"
    assert made[16:32].view(np.uint16).tolist() == [64, 12, 64, 0, 0, 0, 0, 0]
    assert made[48:56].tolist() == [16, 5, 3, 0, 0, 0, 0, 0]
    assert not made[1:16].any()
    assert not made[32:48].any()


def test_what_the_cpu_refuses_is_refused() -> None:
    """More tiles, rows, bytes than there are; factors that do not match."""
    kb = KernelBuilder(ir.Module(name="tiles"), "kernel", 0, XEON)
    for shapes in ([TileShape(16)] * 9, [TileShape(17)], [TileShape(0)], [TileShape(1, 68)], [TileShape(1, 6)]):
        with pytest.raises(AssertionError):
            tiles_of(kb, shapes)
    for cpu in (XEON, recordable(XEON)):
        for shapes in (
            [TileShape(16), TileShape(15), TileShape(16)],
            [TileShape(16), TileShape(16), TileShape(15)],
            [TileShape(16), TileShape(16, 32), TileShape(8, 32)],
        ):
            tiles = tiles_of(KernelBuilder(ir.Module(name="tiles"), "kernel", 0, cpu), shapes)
            with pytest.raises(AssertionError, match="TileShape"):
                tiles.multiply_add(BF16_TILES, 0, 1, 2)


# Products -------------------------------------------------------------------------------------------------------------

KERNELS = {"host.matmul.bf16_tiles": BF16_TILES, "host.matmul.int8_tiles": INT8_TILES}
SHAPES = [
    ((37, 70), (70, 45)),
    ((9, 33), (33, 130)),
    ((70, 130), (130, 100)),
    ((16, 31), (31, 16)),
    ((17, 64), (64, 3)),
    ((2, 20, 40), (2, 40, 33)),
    ((2, 1, 8, 35), (1, 3, 35, 30)),
    ((300, 600), (600, 20)),
]


def product_case(a: tuple[int, ...], b: tuple[int, ...], **attrs: bool) -> tuple[AnchorCase, Array, Array]:
    rng = np.random.default_rng(len(a) + a[-1])
    x, w = rng.standard_normal(a).astype(np.float32), rng.standard_normal(b).astype(np.float32)
    return anchor_case("matmul", attrs, [x, w], constants=[1]), x, w


def tilings_of(kernel: str, case: AnchorCase, cpu: CpuTarget) -> list[MatmulTiling]:
    found = family_of(kernel).tilings(kernel, case.body, cpu)
    return [t for t in found if isinstance(t, MatmulTiling)]


def output_of(case: AnchorCase) -> int:
    return next(i for i, o in enumerate(case.body.operands) if o.role is Role.OUTPUT)


def run(kernel: str, case: AnchorCase, cpu: CpuTarget) -> Array:
    """What the first tiling computes."""
    kind = case.body.operands[output_of(case)].type
    out = np.zeros(kind.shape, kind.dtype.numpy)
    arrays = [out if a is None else a for a in case.arrays]
    StandaloneKernel(kernel, case.body, family_of(kernel).tilings(kernel, case.body, cpu)[0], cpu).run(arrays)
    return out


@pytest.mark.parametrize("tier", [*EMULATED, *REAL])
@pytest.mark.parametrize(("a", "b"), SHAPES, ids=str)
def test_products_of_bf16_have_the_models_bits(a: tuple[int, ...], b: tuple[int, ...], tier: str) -> None:
    """Of all tilings, whatever the cut, against declared accesses."""
    case, x, w = product_case(a, b)
    want = matmul_bf16(x.astype(DType.BF16.numpy).astype(float), w.astype(DType.BF16.numpy).astype(float))
    check_body("host.matmul.bf16_tiles", case.body, case.arrays, {output_of(case): want}, tol=0, tier=tier, splits=2)


@pytest.mark.parametrize("tier", [*EMULATED, *REAL])
@pytest.mark.parametrize(("a", "b"), SHAPES[::2], ids=str)
def test_products_of_int8_are_the_models(a: tuple[int, ...], b: tuple[int, ...], tier: str) -> None:
    """The same sums in i32, scaled in f32."""
    case, x, w = product_case(a, b)
    want, output = expected_product(x.astype(float), w.astype(float), INT8_TILES), output_of(case)
    check_body("host.matmul.int8_tiles", case.body, case.arrays, {output: want}, tol=1e-4, tier=tier, splits=2)


@pytest.mark.parametrize("dtype", [DType.U8, DType.I8])
@pytest.mark.parametrize("zero", [None, 5], ids=str)
@pytest.mark.parametrize("shape", [(7, 33, 50), (30, 130, 17), (40, 64, 70)], ids=str)
def test_products_of_bytes_are_exact(shape: tuple[int, int, int], zero: int | None, dtype: DType) -> None:
    m, k, n = shape
    point = None if zero is None else np.array(zero, dtype.numpy)
    case = anchor_case("matmul_integer", {}, [((m, k), dtype), ((k, n), DType.I8), point], constants=[1])
    for tier in (*EMULATED, *REAL):
        check_body("host.matmul.bytes_tiles", case.body, case.arrays, case.expected, tol=0, tier=tier, splits=2)


def test_int8_on_tiles_has_the_bits_of_int8_without() -> None:
    """Sums are exact, scales the same."""
    case, _, _ = product_case((37, 70), (70, 45))
    found = [run(kernel, case, detect_cpu(EMULATED[0])) for kernel in ("host.matmul.int8", "host.matmul.int8_tiles")]
    np.testing.assert_array_equal(found[0].view(np.uint32), found[1].view(np.uint32))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("a", "b", "attrs"),
    [((9, 33), (65, 33), {"trans_b": True}), ((33, 9), (33, 65), {"trans_a": True})],
    ids=str,
)
def test_turned_factors(kernel: str, a: tuple[int, ...], b: tuple[int, ...], attrs: dict[str, bool]) -> None:
    case, x, w = product_case(a, b, **attrs)
    left, right = (m.swapaxes(-1, -2) if attrs.get(t) else m for m, t in ((x, "trans_a"), (w, "trans_b")))
    want = expected_product(left.astype(float), right.astype(float), KERNELS[kernel])
    output = output_of(case)
    check_body(kernel, case.body, case.arrays, {output: want}, tol=2e-4, tier=EMULATED[0], splits=2)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("store", ["mixed", "sliced"])
def test_prologues_and_epilogues(kernel: str, store: str) -> None:
    """Held to the exact product: a tolerance as wide as the format's error, accesses and splits as strict as ever."""
    case = anchor_case("matmul", {}, [((2, 9, 24), F32), ((24, 37), F32)], constants=[1], prologue=0, epilogue=store)
    check_body(kernel, case.body, case.arrays, case.expected, tol=0.15, tier=EMULATED[0], splits=2)


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_is_no_number_stays_in_its_row(kernel: str) -> None:
    _, x, w = product_case((20, 40), (40, 30))
    want = expected_product(x.astype(float), w.astype(float), KERNELS[kernel])
    x[3, 7], x[5, 1] = np.nan, np.inf
    rows = [i for i in range(20) if i not in (3, 5)]
    out = run(kernel, anchor_case("matmul", {}, [x, w], constants=[1]), detect_cpu(EMULATED[0]))
    assert not np.isfinite(out[[3, 5]]).any()
    np.testing.assert_allclose(out[rows], want[rows], rtol=1e-4, atol=1e-3)


CONVS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "whole steps": ((1, 32, 9, 40), (24, 32, 3, 3), {"pads": (1, 1, 1, 1)}),
    "lines of few": ((2, 32, 7, 7), (40, 32, 3, 3), {"pads": (1, 1, 1, 1)}),
    "lines in a tile": ((1, 16, 5, 4), (40, 16, 3, 3), {"pads": (1, 0, 1, 0)}),
    "a tail": ((1, 16, 9, 9), (40, 16, 3, 3), {"pads": (1, 1, 1, 1)}),
    "wide, odd rest": ((2, 12, 4, 37), (17, 12, 3, 3), {"pads": (1, 1, 1, 1)}),
    "strided": ((1, 4, 20, 20), (16, 4, 3, 3), {"strides": (2, 2), "pads": (0, 1, 1, 0)}),
    "three channels": ((1, 3, 19, 40), (24, 3, 7, 7), {"strides": (2, 2), "pads": (3, 3, 3, 3)}),
    "a channel, dilated": ((1, 1, 8, 9), (8, 1, 3, 3), {"dilations": (1, 2)}),
    "pointwise": ((2, 34, 8, 8), (70, 34, 1, 1), {}),
    "pointwise, strided": ((1, 8, 5, 6), (5, 8, 1, 1), {"strides": (2, 1)}),
    "one dimension": ((1, 8, 70), (8, 4, 3), {"groups": 2, "pads": (2, 0)}),
    "dilated": ((1, 6, 8, 8), (8, 6, 3, 3), {"dilations": (2, 2)}),
}
LAYOUTS = {"rows": (0, 1, 2, 3), "channels": (0, 2, 3, 1)}


def conv_case(name: str, layout: str, slots: list[Any], op: str) -> AnchorCase:
    attrs = CONVS[name][2]
    order = tuple(d for d in LAYOUTS[layout] if d < slots[0].ndim)
    return anchor_case(op, attrs, slots, constants=[1], layouts={0: order})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CONVS)
def test_convolutions_in_bf16(name: str, layout: str) -> None:
    """Of integers, so that nothing is rounded: accesses, cuts and every sum."""
    rng, (x, w, _) = np.random.default_rng(len(name)), CONVS[name]
    slots = [rng.integers(-8, 9, shape).astype(np.float32) for shape in (x, w)]
    case = conv_case(name, layout, slots, "conv")
    for tier in (EMULATED[len(name) % len(EMULATED)], *REAL):
        check_body("host.conv.nhwc_bf16_tiles", case.body, case.arrays, case.expected, tol=0, tier=tier, splits=2)


@pytest.mark.parametrize(
    ("dtype", "zero"), [(DType.U8, None), (DType.U8, 5), (DType.I8, None), (DType.I8, -3)], ids=str
)
@pytest.mark.parametrize("name", [*CONVS, "odd depth"])
def test_convolutions_of_bytes_are_exact(name: str, dtype: DType, zero: int | None) -> None:
    x, w, attrs = CONVS.get(name, ((1, 7, 5, 6), (5, 7, 3, 3), {}))
    point = None if zero is None else np.array(zero, dtype.numpy)
    order = tuple(d for d in LAYOUTS["channels"] if d < len(x))
    slots = [(x, dtype), (w, DType.I8), None, point]
    case = anchor_case("conv_integer", attrs, slots, constants=[1], layouts={0: order})
    tier = EMULATED[len(name) % len(EMULATED)]
    check_body("host.conv.bytes_tiles", case.body, case.arrays, case.expected, tol=0, tier=tier, splits=2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [*CONVS, "odd depth"])
def test_convolutions_in_int8_have_the_bits_of_those_without_tiles(name: str, layout: str) -> None:
    """Sums over a row of the window are exact, all else is done in the same order."""
    x, w, attrs = CONVS.get(name, ((1, 7, 5, 6), (5, 7, 3, 3), {}))
    rng, order = np.random.default_rng(len(name)), tuple(d for d in LAYOUTS[layout] if d < len(x))
    slots = [rng.standard_normal(shape).astype(np.float32) for shape in (x, w)]
    case = anchor_case("conv", attrs, slots, constants=[1], layouts={0: order})
    cpu, output = detect_cpu(EMULATED[0]), output_of(case)
    want = run("host.conv.nhwc_int8", case, cpu)
    assert np.abs(want - case.expected[output]).max() < 0.05 * np.abs(want).max()
    check_body("host.conv.nhwc_int8_tiles", case.body, case.arrays, {output: want}, tol=0, tier=EMULATED[0], splits=2)


@pytest.mark.parametrize(
    ("size", "stride", "lines", "columns"),
    [
        ((7, 7), 1, (4, 2), 32),
        ((7, 7), 2, (4, 1), 16),
        ((14, 14), 1, (2, 1), 32),
        ((28, 28), 1, (1, 1), 32),
        ((2, 6), 1, (2, 2), 32),
        ((1, 9), 1, (1, 1), 64),
    ],
)
def test_lines_of_few_positions_share_register_tiles(
    size: tuple[int, int], stride: int, lines: tuple[int, int], columns: int
) -> None:
    """Weights are loaded once for as many sums as there are tiles for. `size`: of results; `lines`: in a register tile,
    and of them in one of the CPU's."""
    slots = [((1, 32, *(stride * n for n in size)), F32), ((64, 32, 3, 3), F32)]
    case = anchor_case("conv", {"pads": (1, 1, 1, 1), "strides": (stride, stride)}, slots, constants=[1])
    (tiling, *_) = family_of("host.conv.nhwc_bf16_tiles").tilings(
        "host.conv.nhwc_bf16_tiles", case.body, detect_cpu(EMULATED[0])
    )
    assert isinstance(tiling, NhwcTiling)
    assert ((tiling.tile_lines, tiling.joined), tiling.tile_rows) == (lines, columns)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [3, 4, 5])
def test_a_window_sees_no_neighbours(channels: int, layout: str) -> None:
    """What is no number reaches the windows over it alone, whatever the CPU loads behind a run."""
    rng = np.random.default_rng(1)
    sizes = (1, channels, 6, 40), (8, channels, 3, 3)
    x, w = (rng.integers(-8, 9, shape).astype(np.float32) for shape in sizes)
    x[0, 0, 3, 20] = np.nan
    case = anchor_case("conv", {}, [x, w], constants=[1], layouts={0: LAYOUTS[layout]})
    check_body("host.conv.nhwc_bf16_tiles", case.body, case.arrays, case.expected, tol=0, tier=EMULATED[0], splits=2)
    (want,) = case.expected.values()
    assert np.isnan(want).sum() == 8 * 3 * 3


# Code -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("rows", "products"), [(70, 4), (12, 4), (7, 4)])
def test_the_real_instructions_stand_in_the_object(kernel: str, rows: int, products: int) -> None:
    case, _, _ = product_case((rows, 130), (130, 100))
    text = emit_ir(kernel, case.body, tilings_of(kernel, case, XEON)[0], XEON)
    name = "tdpbf16ps" if KERNELS[kernel].rows is DType.BF16 else "tdpbusd"
    words = [line.split()[0] for line in assembly(text, XEON).splitlines() if line.startswith("\t")]
    assert words.count(name) == words.count("tilezero") == words.count("tilestored") == products
    assert words.index("ldtilecfg") < words.index("tilezero") < words.index(name) < words.index("tilestored")
    assert words.count("tilerelease") == words.count("ldtilecfg") == words.count("retq") == 1
    data = compile_ir(text, XEON)
    assert data.count(TILE_RELEASE) == 1
    assert not undefined_symbols(data)


def test_emulated_code_has_none_of_them() -> None:
    case, _, _ = product_case((70, 130), (130, 100))
    for cpu in (detect_cpu(EMULATED[0]), recordable(XEON)):
        tiling = tilings_of("host.matmul.bf16_tiles", case, cpu)[0]
        text = assembly(emit_ir("host.matmul.bf16_tiles", case.body, tiling, cpu), cpu)
        assert "tdpbf16ps" not in text
        assert "tmm" not in text
        assert "vfmadd" in text


# Who has them ---------------------------------------------------------------------------------------------------------


def test_the_system_is_asked_for_tiles() -> None:
    """It may refuse them where the CPU has them, and never gives them where it has none."""
    assert may_use_tiles() <= HAS_AMX
    assert may_use_tiles() == may_use_tiles()


def test_tiles_that_the_system_refuses_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    had = dict.fromkeys((*AVX2, *AVX512, *TILES, "avx512bf16"), True)
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: had)
    for granted in (True, False):
        features._detect.cache_clear()
        monkeypatch.setattr(features, "may_use_tiles", lambda granted=granted: granted)
        found = features.detect_cpu("avx512")
        assert {found.has(name) for name in TILES} == {granted}
        assert not found.emulates_tiles
    features._detect.cache_clear()


def test_a_record_with_tiles_holds_only_where_they_are_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    record = {"mark": features._mark(), "triple": TRIPLE, "tier": "avx512", "features": XEON.features}
    for granted in (True, False):
        monkeypatch.setattr(features, "may_use_tiles", lambda granted=granted: granted)
        found = features.recalled(json.loads(json.dumps(record)))
        assert (found is not None) == granted
        assert found is None or found.identity() == XEON.identity()


@pytest.mark.parametrize("text", [f"plain+{EMULATED_TILES}", "avx2+tiles", "avx2+", "amx"])
def test_other_words_behind_a_tier_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="unknown CPU tier"):
        detect_cpu(text)


def test_emulated_tiles_are_told_apart_and_stay() -> None:
    cpu = detect_cpu(EMULATED[0])
    assert cpu.emulates_tiles
    assert cpu.identity() != detect_cpu(cpu.tier).identity()
    assert cpu_target(cpu.triple, cpu.tier, cpu.extensions()).features == cpu.features
    assert recordable(XEON).emulates_tiles
    assert recordable(XEON).emulating_tiles() == recordable(XEON)
    assert not recordable(detect_cpu("plain")).emulates_tiles


def test_without_tiles_there_is_no_tiling() -> None:
    case, _, _ = product_case((70, 130), (130, 100))
    with pytest.raises(UnsupportedError, match="no tiles"):
        tilings_of("host.matmul.bf16_tiles", case, cpu_target(TRIPLE, "avx512", {*AVX2, *AVX512, "avx512bf16"}))
