"""Grouped products and their tilings on the accelerator: kernels alone, over all kinds of counts."""

from __future__ import annotations

import numpy as np
import pytest
from aicore_check import check_aicore
from grouped_cases import COUNTS
from op_cases import op_body

from superkernel import UnsupportedError
from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType
from superkernel.ir.body import Role
from superkernel.ops.grouped import GroupTable
from superkernel.scheduler.families.aicore.base import AicoreKernelType
from superkernel.scheduler.families.aicore.grouped import FAMILY, grouped_cut
from superkernel.target.aicore import load_target

MINI = load_target("mini")


def check(
    counts: list[int], depth: int = 48, columns: int = 80, *, dtype: str = "f2", packed: bool = True,
    cut: tuple[int, int, int] = (16, 1, 2), rows: int = 32, target: str = "mini",
) -> None:  # fmt: skip
    rng = np.random.default_rng(depth + columns)
    x = rng.standard_normal((rows, depth)).astype(dtype)
    w = rng.standard_normal((len(counts), depth, columns)).astype(dtype)
    given = np.array(counts, np.int64)
    table = GroupTable(len(counts), rows, *cut).made(given)
    roles = {1: Role.CONSTANT} if packed else {}
    body, arrays, expected = op_body("grouped_matmul", [x, w, given, table], {"cut": cut}, roles=roles)
    tol = {"f2": 8e-3, "f4": 2e-5}[dtype]
    check_aicore("aicore.grouped_matmul", body, arrays, expected, tol=tol, target=target, splits=1)


@pytest.mark.parametrize("name", COUNTS)
def test_all_kinds_of_counts(name: str) -> None:
    check(COUNTS[name])


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("dtype", ["f2", "f4"])
@pytest.mark.parametrize("cut", [(16, 2, 2), (32, 1, 3), (7, 5, 1)])
def test_all_cuts(dtype: str, packed: bool, cut: tuple[int, int, int]) -> None:
    check(COUNTS["uneven"], dtype=dtype, packed=packed, cut=cut)


@pytest.mark.parametrize(("depth", "columns"), [(1, 16), (600, 40), (33, 17), (64, 1)])
def test_odd_extents(depth: int, columns: int) -> None:
    for packed in (True, False):
        check(COUNTS["uneven"], depth, columns, packed=packed)


def test_a_depth_of_several_chunks() -> None:
    check(COUNTS["even"], 2500, 64, cut=(32, 1, 2))


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_the_table(name: str, dtype: str) -> None:
    for attrs in ({"rows": 32, "tile": 8}, {"rows": 40, "tile": 5, "columns": 3, "slots": 7}):
        body, arrays, expected = op_body("tile_groups", [np.array(COUNTS[name], dtype)], attrs)
        (tiling,) = check_aicore("aicore.tiling", body, arrays, expected, tol=0, splits=1)
        assert tiling.kernel_type is AicoreKernelType.AICPU


def test_cuts_give_every_core_work() -> None:
    for target in (MINI, load_target("a3")):
        cores = target.device.cube_cores
        for rows, depth, columns, experts in (
            (64, 256, 512, 8),
            (256, 512, 1024, 8),
            (1, 16, 16, 1),
            (4096, 64, 64, 64),
        ):
            x, w = TensorType(DType.F16, (rows, depth)), TensorType(DType.F16, (experts, depth, columns))
            tile, blocks, slots = grouped_cut(x, w, target)
            assert slots == cores
            assert 4 * tile * -(-columns // blocks // 16) * 16 <= target.memory.l0c_bytes
            assert blocks * experts >= cores or blocks == -(-columns // 64)
            assert tile % 16 == 0


def test_memories_too_small_are_told() -> None:
    small = MINI.replaced({"memory.l0a_bytes": 512})
    body, _, _ = op_body(
        "grouped_matmul",
        [np.zeros((32, 64), "f2"), np.zeros((2, 64, 64), "f2"), np.zeros(2, np.int64), np.zeros(24, np.int32)],
        {"cut": (16, 1, 2)},
    )
    with pytest.raises(UnsupportedError, match="no step of a grouped product"):
        FAMILY.tilings("aicore.grouped_matmul", body, small)
