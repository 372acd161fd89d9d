"""What products prefetch, and how the cost model weighs the way of the weights beside the arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from anchor_bodies import anchor_case

from superkernel.body import Body
from superkernel.builder import GraphBuilder
from superkernel.codegen.host.standalone import emit_ir
from superkernel.dtypes import DType
from superkernel.scheduler.families import family_of
from superkernel.scheduler.families.matmul import COLUMNS, ROWS, MatmulTiling, make_tiling
from superkernel.scheduler.group import group
from superkernel.scheduler.place import streamed_bytes
from superkernel.target.cpu import AVX2, AVX512, CpuTarget, cpu_target

TARGET = replace(
    cpu_target("x86_64-unknown-linux-gnu", "avx512", AVX2 + AVX512),
    l2_bytes=1 << 20,
    l3_bytes=4 << 20,
    l1_bytes=32 << 10,
)


def product(rows: int, depth: int, columns: int) -> Body:
    return anchor_case("matmul", {}, [((rows, depth), DType.F32), ((depth, columns), DType.F32)], constants=[1]).body


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
        ("host.matmul.packed", (16, 4096, 96), False),  # two panels do not fit
        ("host.matmul.packed", (8, 256, 96), False),  # one row tile
        ("host.matmul.packed", (256, 256, 96), False),  # many row tiles
        ("host.matmul.bf16", (16, 256, 96), False),
        ("host.matmul.bf16", (1, 512, 1088), False),
        ("host.matmul.bf16", (1, 2048, 1600), False),  # 6.5 MB
        ("host.matmul.bf16", (1, 4096, 1600), True),
    ],
)
def test_only_what_the_hardware_does_not_fetch_is_fetched(
    kernel: str, shape: tuple[int, int, int], fetches: bool
) -> None:
    assert (prefetches(kernel, product(*shape)) > 0) == fetches


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
    grouping = group(b.graph(), target=TARGET)
    assert streamed_bytes(grouping) == 16 * 24 * 4


def test_a_small_factor_is_far_where_the_program_is_large() -> None:
    body = product(1, 256, 512)
    large = replace(TARGET, constants_bytes=3 * TARGET.l3_bytes + 1)
    found = [family_of("host.matmul.gemv").tilings("host.matmul.gemv", body, t)[0] for t in (TARGET, large)]
    assert [isinstance(t, MatmulTiling) and t.far for t in found] == [False, True]
