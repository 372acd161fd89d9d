"""What products prefetch, and how the cost model weighs the way of the weights beside the arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from anchor_bodies import anchor_case
from grouped_on import host_group
from kernel_check import check_body, tiers

from superkernel.builder import GraphBuilder
from superkernel.codegen.host import streaming
from superkernel.codegen.host.emitters import emit_ir
from superkernel.codegen.host.features import detect_cpu
from superkernel.codegen.host.streaming import Panel, prefetch
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.machine import machine_profile
from superkernel.scheduler.families import family_of
from superkernel.scheduler.families.matmul import _shared_vectors, tall_shape
from superkernel.scheduler.families.matmul_form import form_of
from superkernel.scheduler.families.matmul_tiling import COLUMNS, COPY, IN_PLACE, ROWS, MatmulTiling, make_tiling
from superkernel.scheduler.place import streamed_bytes
from superkernel.target.cpu import AVX2, AVX512, CpuTarget, cpu_target

TARGET = replace(
    cpu_target("x86_64-unknown-linux-gnu", "avx512", AVX2 + AVX512, machine_profile()),
    l2_bytes=1 << 20,
    l3_bytes=4 << 20,
    l1_bytes=32 << 10,
)


PACKED = "host.matmul.packed"


def product(rows: int, depth: int, columns: int) -> Body:
    return anchor_case("matmul", {}, [((rows, depth), DType.F32), ((depth, columns), DType.F32)], constants=[1]).body


def test_the_depth_is_walked_in_pieces_where_weights_are_packed() -> None:
    """The panels of a computed factor are copied whole."""
    computed = anchor_case("matmul", {}, [((64, 3072), DType.F32), ((3072, 96), DType.F32)]).body
    for kernel, body in ((PACKED, product(64, 3072, 96)), ("host.matmul.dynamic", computed)):
        found = [t for t in family_of(kernel).tilings(kernel, body, TARGET) if isinstance(t, MatmulTiling)]
        assert {t.piece > 0 for t in found} == {kernel == PACKED}


@pytest.mark.parametrize(
    ("rows", "columns", "tall"),
    [(16, 1600, True), (30, 1600, True), (32, 1600, True), (14, 1600, False), (20, 1600, False), (48, 1600, False),
     (32, 32, False)],
)  # fmt: skip
def test_rows_that_fill_tall_tiles_take_those_where_weights_come_from_afar(rows: int, columns: int, tall: bool) -> None:
    """One or two of 16 rows, of which one at the most is missing."""
    body = product(rows, 2048, columns)
    assert tall_shape(form_of(body), TARGET) == ((16, 1) if tall else None)
    found = [t for t in family_of(PACKED).tilings(PACKED, body, TARGET) if isinstance(t, MatmulTiling)]
    even = -(-rows // -(-rows // 16))
    assert all((t.tile_rows, t.vectors) == (even, 1) for t in found) == tall


def test_one_vector_of_columns_has_no_tall_tiles() -> None:
    """However large the weights."""
    target = replace(TARGET, l3_bytes=1)
    found = [tall_shape(form_of(product(32, 2048, columns)), target) for columns in (16, 17)]
    assert found == [None, (16, 1)]


def prefetches(kernel: str, body: Body) -> int:
    """How many prefetches stand in the code of its first tiling."""
    tiling = family_of(kernel).tilings(kernel, body, TARGET)[0]
    return emit_ir(kernel, body, tiling, TARGET).count('call void @"llvm.prefetch')


@pytest.mark.parametrize(
    ("kernel", "shape", "fetches"),
    [
        ("host.matmul.gemv", (1, 256, 512), False),  # stays in a cache
        ("host.matmul.gemv", (1, 512, 1088), False),  # 2.2 MB: the last-level cache keeps some of it
        ("host.matmul.gemv", (1, 2048, 1600), True),  # 13 MB, more than three times the last-level cache
        ("host.matmul.packed", (16, 256, 96), True),  # two row tiles fetch the next panel
        ("host.matmul.packed", (16, 2560, 96), True),  # two panels do not fit: pieces of them
        ("host.matmul.packed", (8, 256, 96), False),  # one row tile
        ("host.matmul.packed", (256, 256, 96), True),  # 32 row tiles
        ("host.matmul.packed", (4096, 64, 96), False),  # more than hide the way from memory by themselves
        ("host.matmul.packed", (16, 512, 1088), True),  # one row tile, more than the second-level caches keep
        ("host.matmul.packed", (8, 512, 1088), True),
        ("host.matmul.packed", (64, 3072, 96), True),  # the next piece of the depth
        ("host.matmul.gemv", (6, 512, 1088), False),  # few rows: as fast as the hardware fetches
        ("host.matmul.bf16", (16, 256, 96), True),
        ("host.matmul.bf16", (8, 256, 96), False),
        ("host.matmul.bf16", (1, 512, 1088), False),
        ("host.matmul.bf16", (1, 2048, 1600), False),  # 6.5 MB
        ("host.matmul.bf16", (1, 4096, 1600), True),
    ],
)
def test_only_what_the_hardware_does_not_fetch_is_fetched(
    kernel: str, shape: tuple[int, int, int], fetches: bool
) -> None:
    assert (prefetches(kernel, product(*shape)) > 0) == fetches


@pytest.mark.parametrize(
    ("bits", "rows", "columns", "fetches"),
    [
        (4, 1, 2048, True),  # 2 MB
        (4, 3, 2048, True),  # one row tile
        (4, 4, 2048, False),  # the second one finds them near
        (4, 1, 512, False),  # the second-level cache keeps them
        (8, 1, 2048, False),  # as fast as the hardware fetches
    ],
)
def test_codes_of_four_bits_are_fetched(bits: int, rows: int, columns: int, fetches: bool) -> None:
    codes, scales = ((columns, 2048 * bits // 8), DType.U8), ((columns, 64), DType.F16)
    attrs = {"bits": bits, "block": 32, "zero": 1 << (bits - 1)}
    body = anchor_case("block_matmul", attrs, [((rows, 2048), DType.F32), codes, scales], constants=[1, 2]).body
    assert (prefetches("host.block_matmul.int8", body) > 0) == fetches


@pytest.mark.parametrize(
    ("rows", "tall"), [(7, 0), (14, 0), (15, 15), (16, 16), (17, 0), (28, 0), (29, 15), (32, 16), (48, 0), (64, 0)]
)
def test_streamed_factors_take_tall_tiles_where_these_are_full(rows: int, tall: int) -> None:
    body = product(rows, 512, 1088)
    tilings = family_of(PACKED).tilings(PACKED, body, TARGET)
    found = {(t.tile_rows, t.vectors) for t in tilings if isinstance(t, MatmulTiling)}
    assert found == {(tall, 1)} if tall else all(vectors > 1 for _, vectors in found)


def test_constants_that_caches_keep_take_no_tall_tiles() -> None:
    found = family_of(PACKED).tilings(PACKED, product(16, 256, 96), TARGET)
    assert all(isinstance(t, MatmulTiling) and t.vectors > 1 and not t.streamed for t in found)


@pytest.mark.parametrize(("depth", "left"), [(1024, COPY), (2048, COPY), (1536, IN_PLACE), (1040, IN_PLACE)])
def test_tall_tiles_copy_rows_that_would_lie_in_one_set(depth: int, left: str) -> None:
    tiling = family_of(PACKED).tilings(PACKED, product(16, depth, 1088), TARGET)[0]
    assert isinstance(tiling, MatmulTiling)
    assert (tiling.tile_rows, tiling.vectors, tiling.left) == (16, 1, left)


@pytest.mark.parametrize("rows", [8, 15, 16, 31])
@pytest.mark.parametrize("depth", [40, 1024])
def test_streamed_products_are_right(rows: int, depth: int) -> None:
    """As parts of a large program: every candidate on every tier."""
    rng, body = np.random.default_rng(0), product(rows, depth, 50)
    x, w = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((rows, depth), (depth, 50)))  # sums are exact
    for tier in tiers():
        large = replace(detect_cpu(tier), constants_bytes=1 << 40)
        for tiling in family_of(PACKED).tilings(PACKED, body, large):
            assert isinstance(tiling, MatmulTiling)
            assert tiling.streamed == (tiling.row_tiles <= 4)
            check_body(PACKED, body, [x, w, None], {2: x @ w}, tilings=[tiling], tier=tier, splits=2)


@pytest.mark.parametrize(
    ("rows", "depth", "whole"),
    [(64, 768, True), (64, 3072, False), (256, 256, True), (256, 2048, False), (4096, 768, False), (16, 3072, True)],
)
def test_rows_too_deep_for_the_second_level_cache_are_walked_in_pieces(rows: int, depth: int, whole: bool) -> None:
    for tiling in family_of(PACKED).tilings(PACKED, product(rows, depth, 768), TARGET):
        assert isinstance(tiling, MatmulTiling)
        assert (tiling.piece == 0) == whole
        if not whole:
            near = 4 * tiling.block * tiling.tile_rows * tiling.piece
            assert near <= 0.42 * TARGET.l2_bytes
            assert tiling.scratch_bytes <= 0.21 * TARGET.l2_bytes
            assert 256 <= tiling.piece < depth


@pytest.mark.parametrize(("rows", "depth", "columns"), [(37, 70, 100), (16, 64, 33), (64, 129, 260)])
def test_pieces_of_the_depth_change_no_bit(rows: int, depth: int, columns: int) -> None:
    body, rng = product(rows, depth, columns), np.random.default_rng(0)
    x, w = rng.standard_normal((rows, depth), np.float32), rng.standard_normal((depth, columns), np.float32)
    for tier in tiers():
        for axis in (COLUMNS, ROWS):
            made = make_tiling(body, axis, 8, 2, "packed", detect_cpu(tier))
            whole = replace(made, piece=0, group=1, block=made.row_tiles)
            cut = [
                replace(whole, piece=piece, group=group, block=block)
                for piece, group, block in ((16, 1, 1), (48, 2, made.row_tiles), (32, 3, 2), (depth, 2, 3))
            ]
            check_body(PACKED, body, [x, w, None], {2: x @ w}, tilings=[whole, *cut], tier=tier, tol=1e-5, splits=2)


def half(axis: str, target: CpuTarget, rows: int = 16) -> float:
    """Estimate for one of two cores."""
    body = product(rows, 768, 768)
    tiling = make_tiling(body, axis, 8, 3, "packed", target)
    assert isinstance(tiling, MatmulTiling)
    return tiling.cost_ns(body, 0, tiling.units // 2, target)


def test_weights_from_memory_are_better_split_than_read_by_every_core() -> None:
    large = replace(TARGET, l3_bytes=32 << 20)
    far = replace(large, constants_bytes=64 << 20)
    assert half(ROWS, large) == pytest.approx(half(COLUMNS, large))
    assert half(ROWS, far) > 1.05 * half(COLUMNS, far) > 1.05 * half(COLUMNS, large)
    assert half(ROWS, far, rows=512) == pytest.approx(half(COLUMNS, far, rows=512), rel=0.02)  # arithmetic hides it


def test_tables_of_gathers_are_no_streamed_constants() -> None:
    b = GraphBuilder("table")
    token = b.input("token", (1,), "i64")
    rng = np.random.default_rng(0)
    table, weight = (b.constant(rng.standard_normal(shape, np.float32)) for shape in ((1000, 16), (16, 24)))
    b.output(b.gather(table, token, axis=0) @ weight, name="y")
    grouping = host_group(b.graph())
    assert streamed_bytes(grouping) == 16 * 24 * 4


def test_a_small_factor_is_far_where_the_program_is_large() -> None:
    body = product(1, 256, 512)
    large = replace(TARGET, constants_bytes=3 * TARGET.l3_bytes + 1)
    found = [family_of("host.matmul.gemv").tilings("host.matmul.gemv", body, t)[0] for t in (TARGET, large)]
    assert [isinstance(t, MatmulTiling) and t.far for t in found] == [False, True]


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16], ids=str)
def test_kernels_of_few_rows_and_of_many_share_what_is_packed(dtype: DType) -> None:
    """Where constants are many, so that a model in several sizes holds its weights once; few may differ."""
    native = cpu_target("x86_64-unknown-linux-gnu", "avx512", {*AVX2, *AVX512, "avx512bf16"}, machine_profile())
    cpu = replace(native, l2_bytes=1 << 20, l3_bytes=4 << 20)
    kernels = ("host.matmul.gemv", PACKED) if dtype is DType.F32 else ("host.matmul.gemv_pairs", "host.matmul.pairs")

    def packs(shape: tuple[int, int]) -> set[object]:
        found: set[object] = set()
        for rows in (1, 4, 8, 64, 250):
            case = anchor_case("matmul", {}, [((rows, shape[0]), dtype), (shape, dtype)], constants=[1])
            kernel = kernels[rows > 6]
            found |= {family_of(kernel).tilings(kernel, case.body, cpu)[0].packs(case.body)[1]}
        return found

    assert len(packs((1024, 1088))) == 1
    assert len(packs((128, 96))) > 1


class Written:
    """Addresses and sizes as text."""

    def offset(self, base: str, nbytes: int) -> str:
        return f"{base} + {nbytes}"

    def size(self, name: str, nbytes: int) -> str:
        return f"{name} {nbytes}"


@dataclass
class Walked:
    """What `prefetch` asks of a tiling."""

    tile_rows: int = 8
    vectors: int = 2
    phases: int = 1
    streamed: bool = False
    far: bool = False
    band_tiles: int = 1

    def part_step_bytes(self, row: int) -> int:
        return row // 4

    def part_lines(self, row: int) -> int:
        return row // 256


@pytest.mark.parametrize(
    ("walked", "row", "ahead", "fetched"),
    [
        (Walked(), 128, None, None),
        (Walked(streamed=True), 128, None, ("base + 16384", 128, 2, 2)),  # 128 steps of 16 multiply-adds
        (Walked(streamed=True), 128, "next", ("base + 16384", 128, 2, 2)),
        (Walked(streamed=True, tile_rows=6, vectors=3), 96, None, ("base + 10880", 96, 2, 2)),  # 113 of 18, whole lines
        (Walked(streamed=True, tile_rows=16, vectors=1, phases=2), 64, None, ("base + 8192", 64, 2, 2)),
        (Walked(streamed=True, phases=3), 65, None, ("base + 8320", 65, 4, 2)),
        (Walked(far=True), 512, "next", ("next", "part_step 128", 2, 2)),
        (Walked(far=True), 128, None, ("base + 4096", 128, 2, 3)),
        (Walked(far=True), 129, None, ("base + 4096", 129, 3, 3)),
        (Walked(far=True, phases=4), 32, None, ("base + 4096", 32, 2, 3)),
        (Walked(far=True, band_tiles=2), 128, None, None),
    ],
)
def test_what_each_step_fetches_and_how_far_ahead(
    walked: Any, row: int, ahead: Any, fetched: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Address, bytes from step to step, lines, cache."""
    kb: Any = Written()
    base: Any = "base"
    monkeypatch.setattr(streaming, "_lines", lambda _, at, step, lines, locality: (at, step, lines, locality))
    assert prefetch(kb, walked, Panel(base, 1, False, ahead), row) == fetched


@pytest.mark.parametrize(
    ("columns", "vectors"), [(48, 3), (47, 2), (1000, 3), (700, 2), (4705, 3), (4609, 2), (4608, 3)]
)
def test_panels_of_many_constants_are_wide_where_that_pads_by_a_hundredth_at_most(columns: int, vectors: int) -> None:
    form = form_of(product(16, 8, columns))
    assert _shared_vectors(form, 16, TARGET) == vectors
    assert _shared_vectors(form, 16, replace(TARGET, tier="avx2")) == 2
