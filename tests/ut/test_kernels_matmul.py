"""Matrix product kernels: results, declared accesses and independence of the split, on every tier, over awkward
shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from anchor_bodies import AnchorCase, anchor_case
from kernel_check import check_body

import superkernel as sk
from superkernel.codegen.host.features import detect_cpu
from superkernel.core.dtypes import DType
from superkernel.ir.body import View
from superkernel.scheduler.families import family_of
from superkernel.scheduler.families.matmul_form import form_of
from superkernel.scheduler.families.matmul_tiling import COLUMNS, IN_PLACE, ROWS, TILES, MatmulTiling, make_tiling
from superkernel.scheduler.families.packing import PackPanels
from superkernel.target.cpu import AVX2, AVX512, CpuTarget, cpu_target

F32, F64, F16, BF16, I8, U8, I32 = (DType.of(n) for n in ("f32", "f64", "f16", "bf16", "i8", "u8", "i32"))

SHAPES = [
    ((1, 1), (1, 1)),
    ((37, 45), (45, 83)),
    ((3, 130), (130, 17)),
    ((2, 3, 19, 33), (33, 65)),
    ((64, 16), (16, 64)),
    ((29, 1), (1, 31)),
    ((47,), (47, 50)),
    ((15, 0), (0, 20)),
]


@pytest.mark.parametrize(("a", "b"), SHAPES, ids=str)
def test_packed(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    anchor_case("matmul", {}, [(a, F32), (b, F32)], constants=[1]).check("host.matmul.packed")


@pytest.mark.slow
@pytest.mark.parametrize(("a", "b"), SHAPES, ids=str)
def test_every_tier(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    anchor_case("matmul", {}, [(a, F32), (b, F32)], constants=[1]).check("host.matmul.packed", every_tier=True)
    anchor_case("matmul", {}, [(a, F32), (b, F32)]).check("host.matmul.dynamic", every_tier=True)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_gemv(rows: int) -> None:
    anchor_case("matmul", {}, [((rows, 300), F32), ((300, 101), F32)], constants=[1]).check("host.matmul.gemv")


@pytest.mark.parametrize(
    ("a", "b", "attrs"),
    [
        ((2, 3, 20, 33), (3, 33, 65), {}),
        ((2, 1, 20, 33), (1, 3, 33, 30), {}),
        ((40, 33), (65, 33), {"trans_b": True}),
        ((33, 40), (33, 65), {"trans_a": True}),
        ((2, 33, 40), (2, 65, 33), {"trans_a": True, "trans_b": True}),
        ((33,), (33, 65), {}),
        ((5, 35, 33), (33,), {}),
        ((65, 33), (33, 1), {}),
        ((33,), (33,), {}),
        ((4, 0, 8), (8, 9), {}),
        ((4, 8), (8, 0), {}),
    ],
    ids=str,
)
def test_dynamic(a: tuple[int, ...], b: tuple[int, ...], attrs: dict[str, bool]) -> None:
    anchor_case("matmul", attrs, [(a, F32), (b, F32)]).check("host.matmul.dynamic")


@pytest.mark.parametrize("rows", [2, 50])
@pytest.mark.parametrize("epilogue", ["mixed", "sliced"])
def test_epilogues(rows: int, epilogue: str) -> None:
    slots = [((2, rows, 24), F32), ((24, 37), F32)]
    anchor_case("matmul", {}, slots, constants=[1], epilogue=epilogue).check("host.matmul.packed")


@pytest.mark.parametrize(("kernel", "constants"), [("host.matmul.packed", [1]), ("host.matmul.dynamic", [])])
@pytest.mark.parametrize("attrs", [{}, {"trans_a": True}])
def test_prologue(kernel: str, constants: list[int], attrs: dict[str, bool]) -> None:
    a = (2, 21, 30) if attrs else (2, 30, 21)
    case = anchor_case("matmul", attrs, [(a, F32), ((21, 40), F32)], constants=constants, prologue=0)
    case.check(kernel)


def test_prologue_before_a_vector() -> None:
    case = anchor_case("matmul", {}, [((30, 21), F32), ((21, 1), F32)], constants=[1], prologue=0)
    case.check("host.matmul.packed")


def test_views_of_heads() -> None:
    """[batch, sequence, head, depth] operands seen as [batch, head, sequence, depth]: no copies."""
    layouts = {0: (0, 2, 1, 3), 1: (0, 2, 1, 3)}
    slots = [((2, 3, 17, 20), F32), ((2, 3, 33, 20), F32)]
    case = anchor_case("matmul", {"trans_b": True}, slots, layouts=layouts)
    family = family_of("host.matmul.dynamic")
    for slot, view in enumerate(case.body.anchor_inputs):
        assert isinstance(view, View)
        assert not view.is_dense
        assert family.accepts_view("host.matmul.dynamic", "matmul", slot, view, F32)
    case.check("host.matmul.dynamic")
    anchor_case("matmul", {}, [((9, 6), F32), ((6, 40), F32)], layouts={1: (1, 0)}, constants=[1]).check(
        "host.matmul.packed"
    )


@pytest.mark.parametrize("constants", [[], [1]])
@pytest.mark.parametrize(("dtype", "tol"), [(F64, 1e-12), (F16, 4e-3), (BF16, 3e-2)])
def test_other_floats(dtype: DType, tol: float, constants: list[int]) -> None:
    slots = [((20, 33), dtype), ((33, 50), dtype)]
    anchor_case("matmul", {}, slots, constants=constants, epilogue="mixed").check("host.matmul.generic", tol)


@pytest.mark.parametrize("constants", [[], [1]])
@pytest.mark.parametrize(("a", "b"), [(I8, I8), (U8, I8), (I8, U8)])
def test_integers(a: DType, b: DType, constants: list[int]) -> None:
    slots = [((21, 33), a), ((33, 50), b)]
    anchor_case("matmul", {}, slots, constants=constants).check("host.matmul.generic", 0)


@pytest.mark.parametrize(
    ("a_zero", "b_zero"),
    [((), ()), ((21,), (50,)), ((1,), None), (None, (1, 50)), ((21, 1), (1, 50))],
    ids=str,
)
@pytest.mark.parametrize("constants", [[], [1]])
def test_zero_points(a_zero: tuple[int, ...] | None, b_zero: tuple[int, ...] | None, constants: list[int]) -> None:
    zeros = [None if s is None else (s, d) for s, d in ((a_zero, U8), (b_zero, I8))]
    case = anchor_case("matmul_integer", {}, [((21, 33), U8), ((33, 50), I8), *zeros], constants=constants)
    case.check("host.matmul.generic", 0)


def test_batched_zero_points() -> None:
    slots = [((2, 9, 13), U8), ((2, 13, 20), I8), ((2, 9, 1), U8), ((2, 1, 20), I8)]
    anchor_case("matmul_integer", {}, slots).check("host.matmul.generic", 0)


def test_pack_panels() -> None:
    weights = np.arange(15, dtype=np.float32).reshape(3, 5)
    packed = PackPanels((), (), 3, 5, 5, 1, 0, 4).apply(weights)
    assert packed.shape == (1, 2, 3, 4)
    np.testing.assert_array_equal(packed[0, 0], weights[:, :4])
    np.testing.assert_array_equal(packed[0, 1], np.pad(weights[:, 4:], ((0, 0), (0, 3))))
    transposed = PackPanels((), (), 5, 3, 1, 5, 0, 4).apply(weights)
    np.testing.assert_array_equal(transposed[0, 0, :, :3], weights.T)


def test_batch_becomes_rows_where_the_left_strides_chain() -> None:
    merged = form_of(anchor_case("matmul", {}, [((4, 3, 8), F32), ((8, 9), F32)]).body)
    assert (merged.batch, merged.rows) == (1, 12)
    kept = form_of(anchor_case("matmul", {}, [((4, 3, 8), F32), ((4, 8, 9), F32)]).body)
    assert (kept.batch, kept.rows) == (4, 3)
    swapped = form_of(anchor_case("matmul", {}, [((4, 3, 8), F32), ((8,), F32)]).body)
    assert (swapped.rows, swapped.columns, swapped.left.slot) == (1, 3, 1)


def cuts(kernel: str, case: AnchorCase, cpu: CpuTarget) -> list[MatmulTiling]:
    return [t for t in family_of(kernel).tilings(kernel, case.body, cpu) if isinstance(t, MatmulTiling)]


@pytest.mark.parametrize(
    ("kernel", "rows", "cores"),
    [
        ("host.matmul.packed", 65, 3),
        ("host.matmul.packed", 130, 32),
        ("host.matmul.bf16", 70, 8),
        ("host.matmul.int8", 70, 8),
    ],
)
@pytest.mark.parametrize("case", [{"epilogue": "mixed"}, {"prologue": 0}], ids=str)
def test_columns_in_bands_of_rows(kernel: str, rows: int, cores: int, case: dict[str, Any]) -> None:
    """What they touch, and the bits of all other cuts."""
    made = anchor_case("matmul", {}, [((rows, 40), F32), ((40, 150), F32)], constants=[1], **case)
    cpu = replace(detect_cpu(), cores=cores)
    found = cuts(kernel, made, cpu)
    bands = {t.bands for t in found}
    assert {1, 2} <= bands <= {1, 2, 4, 8, 16}
    in_place = any(t.left == IN_PLACE and t.row_tiles > 1 for t in found)
    assert any(t.axis == TILES for t in found) == (in_place and cores > 4)
    assert max(bands) < cores
    tol = 2e-5 if kernel == "host.matmul.packed" else 0.25
    check_body(kernel, made.body, made.arrays, made.expected, tilings=found, tol=tol, tier=cpu.tier, splits=2)


def test_bands_whose_last_one_is_shorter_change_no_bit() -> None:
    made = anchor_case("matmul", {}, [((79, 600), F32), ((600, 150), F32)], constants=[1])
    whole = make_tiling(made.body, COLUMNS, 8, 2, "packed", detect_cpu())
    assert whole.row_tiles == 10
    banded = [replace(whole, bands=bands, block=min(whole.block, -(-10 // bands))) for bands in (3, 4)]
    pieces = [replace(t, piece=64, group=2) for t in banded]
    check_body("host.matmul.packed", made.body, made.arrays, made.expected, tilings=[whole, *banded, *pieces], tol=1e-4)


def test_tiles_are_even_shares_and_neighbours_read_one_panel() -> None:
    case = anchor_case("matmul", {}, [((64, 64), F32), ((64, 480), F32)], constants=[1])
    found = [t for t in cuts("host.matmul.packed", case, replace(detect_cpu(), cores=7)) if t.axis == TILES]
    assert found
    for tiling in found:
        assert tiling.units == tiling.row_tiles * tiling.panels
        read = 0
        for core in range(7):
            part = tiling.units * core // 7, tiling.units * (core + 1) // 7
            accesses = [a for a in tiling.accesses(case.body, *part) if a.operand == 1]
            read += sum(region.nbytes for access in accesses for region in access.regions)
        assert tiling.panels < read / (tiling.panel * 64 * 4) <= tiling.panels + 6


def test_bands_read_some_of_the_rows_and_some_of_the_weights() -> None:
    case = anchor_case("matmul", {}, [((128, 64), F32), ((64, 256), F32)], constants=[1])
    found = [t for t in cuts("host.matmul.packed", case, replace(detect_cpu(), cores=8)) if t.bands == 4]
    assert found
    for tiling in found:
        read: dict[int, list[int]] = {0: [], 1: []}
        for core in range(8):
            part = tiling.units * core // 8, tiling.units * (core + 1) // 8
            for access in tiling.accesses(case.body, *part):
                if not access.write:
                    read[access.operand].append(sum(region.nbytes for region in access.regions))
        assert sum(read[1]) == 4 * tiling.panels * tiling.panel * 64 * 4
        assert max(read[0]) == tiling.band_tiles * tiling.tile_rows * 64 * 4


@pytest.mark.parametrize(
    "slots", [[((2, 70, 40), F32), ((2, 40, 150), F32)], [((30, 40), F32), ((40, 16), F32)]], ids=str
)
def test_products_that_are_many_or_would_sum_otherwise_have_no_bands(
    slots: list[tuple[tuple[int, ...], DType]],
) -> None:
    cpu = cpu_target("x86_64-unknown-linux-gnu", "avx512", {*AVX2, *AVX512})
    case = anchor_case("matmul", {}, slots, constants=[1])
    assert {t.bands for t in cuts("host.matmul.packed", case, replace(cpu, cores=16))} == {1}


def test_both_unit_axes_are_offered_and_cost_falls_with_the_share() -> None:
    body = anchor_case("matmul", {}, [((128, 384), F32), ((384, 384), F32)], constants=[1]).body
    cpu = detect_cpu()
    tilings = family_of("host.matmul.packed").tilings("host.matmul.packed", body, cpu)
    assert {t.axis for t in tilings if isinstance(t, MatmulTiling)} == {ROWS, COLUMNS}
    for tiling in tilings:
        whole, half = (tiling.cost_ns(body, 0, n, cpu) for n in (tiling.units, tiling.units // 2))
        assert 0.45 < half / whole < 0.65


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("trans_a", [False, True])
def test_no_rows_times_a_factor_that_is_copied(trans_a: bool, threads: int) -> None:
    b = sk.GraphBuilder("nothing")
    x = b.input("x", (1, 33, 0) if trans_a else (1, 0, 33), "i64")
    b.output(b.matmul(x, b.input("y", (0, 2, 33), "i64"), trans_a=trans_a, trans_b=True))
    made = sk.compile(b.graph(), threads=threads, options={"simplify": False})(
        np.zeros(x.shape, np.int64), np.zeros((0, 2, 33), np.int64)
    )
    assert made.shape == (0, 0, 2)
