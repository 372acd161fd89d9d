"""Rows of a declared kernel: one for each tier and element type, with the register tile in elements of what sums are
kept in."""

from __future__ import annotations

import pytest

from superkernel.core.dtypes import DType
from superkernel.scheduler.families.kernel import TIER_FEATURES, HostKernelDef
from superkernel.scheduler.families.pool import PoolFamily

TYPES = frozenset({DType.F64, DType.F32, DType.F16, DType.BF16, DType.I8, DType.I32})


TILES = {"avx512": (8, 3), "avx2": (4, 3), "plain": (2, 2)}


def declared(*, typed: bool) -> HostKernelDef:
    return HostKernelDef(
        id="host.test", ops=("matmul",), family=PoolFamily(), emitter="test", micro="gemm", dtypes=TYPES, typed=typed,
        tiles=TILES,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "columns", "sums"),
    [
        (DType.F64, 24, DType.F64),
        (DType.F32, 48, DType.F32),
        (DType.F16, 48, DType.F32),
        (DType.BF16, 48, DType.F32),
        (DType.I8, 48, DType.I32),
        (DType.I32, 48, DType.I32),
    ],
)
def test_tiles_are_as_wide_as_vectors_of_sums(dtype: DType, columns: int, sums: DType) -> None:
    """Whose type names say where it is f32 and the elements' is another."""
    rows = declared(typed=True).rows()
    found = {row.tier: row for row in rows if row.id.split("/")[1] == dtype.value}
    assert found.keys() == TIER_FEATURES.keys()
    row = found["avx512"]
    assert (row.tile, row.accumulator) == ((("mr", 8), ("nr", columns)), sums)
    assert row.id == f"host.test/{dtype.value}/avx512"
    assert ("f32acc" in row.name) == (sums is DType.F32 and dtype is not DType.F32)
    assert f"8x{columns}" in row.name


def test_kernels_of_any_type_have_a_row_for_each_tier_with_tiles_as_of_f32() -> None:
    rows = {row.tier: row for row in declared(typed=False).rows()}
    assert rows.keys() == TIER_FEATURES.keys()
    assert [rows[tier].tile for tier in ("avx2", "plain", "avx512")] == [
        (("mr", 4), ("nr", 24)), (("mr", 2), ("nr", 8)), (("mr", 8), ("nr", 48)),
    ]  # fmt: skip
    assert all(row.accumulator is None and "f32acc" not in row.name for row in rows.values())
    assert rows["avx2"].id == "host.test/avx2"
