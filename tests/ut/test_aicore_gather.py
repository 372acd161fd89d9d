"""aicore.gather: embedding rows and other slices by index, with indices from the end and out of range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from aicore_check import CompiledKernel, check_aicore
from aicore_timing import engine_busy
from anchor_bodies import anchor_case

from superkernel.core.dtypes import DType
from superkernel.scheduler.families.aicore import family_of
from superkernel.scheduler.families.aicore.gather import GatherTiling
from superkernel.target.aicore import load_target
from superkernel.target.engines import Engine

F16, F32, I64, BOOL = DType.F16, DType.F32, DType.I64, DType.BOOL


def check(op: str, attrs: dict[str, Any], slots: list[Any], **options: Any) -> None:
    case = anchor_case(op, attrs, slots, **options)
    check_aicore("aicore.gather", case.body, case.arrays, case.expected, tol=2e-3)


def places(*shape: int, extent: int = 9, dtype: str = "i8") -> Any:
    found = np.random.default_rng(7).integers(-extent, extent, shape).astype(dtype)
    found.reshape(-1)[:2] = [-1, extent - 1][: found.size]
    return found


@pytest.mark.parametrize("dtype", [F16, F32, I64, BOOL])
@pytest.mark.parametrize("index", ["i4", "i8"])
def test_embedding(dtype: DType, index: str) -> None:
    check("gather", {"axis": 0}, [((9, 33), dtype), places(4, 5, dtype=index)])


def test_axes() -> None:
    check("gather", {"axis": 1}, [((3, 9, 20), F16), places(4)])
    check("gather", {"axis": 1}, [((9, 9), F16), places(12)])
    check("gather", {"axis": 0}, [((9, 40), F16), np.array(-2)])
    check("gather", {"axis": 0}, [((9,), F16), places(20)])
    check("gather_nd", {}, [((9, 9, 20), F16), places(6, 2)])
    check("gather_elements", {"axis": 0}, [((9, 8), F16), places(9, 8)])


def test_surroundings() -> None:
    check("gather", {"axis": 0}, [((9, 33), F16), places(4, 5)], epilogue="mixed")
    check("gather", {"axis": 0}, [((9, 32), F32), places(7)], epilogue="sliced")


def test_long_rows_and_many() -> None:
    check("gather", {"axis": 0}, [((5, 70000), F16), places(3, extent=5)])
    check("gather", {"axis": 0}, [((9, 16), F16), places(600)])


def test_empty() -> None:
    case = anchor_case("gather", {"axis": 0}, [((9, 5), F16), places(1)[:0]])
    check_aicore("aicore.gather", case.body, case.arrays, case.expected)


def test_one_transfer_per_row() -> None:
    case = anchor_case("gather", {"axis": 0}, [((1000, 768), F16), places(128, extent=1000)])
    device = load_target("mini")
    (tiling,) = family_of("aicore.gather").tilings("aicore.gather", case.body, device)
    assert isinstance(tiling, GatherTiling)
    compiled = CompiledKernel("aicore.gather", case.body, tiling, device)
    compiled.run(bytearray(1 << 21), [compiled.base + o for o in (0, 1 << 20, 1 << 20)], compiled.base, 0, tiling.units)
    busy = engine_busy(next(iter(compiled.commands.values())), device)
    row = device.dma.startup_cycles + device.transfer_cycles("rates.gm_to_ub_gb_per_s", 768 * 2)
    assert busy[Engine.MTE2] == 128 * row
    assert busy[Engine.MTE3] <= 0.1 * busy[Engine.MTE2]
    assert tiling.cost_cycles(case.body, 0, tiling.units, device) == pytest.approx(busy[Engine.MTE2], rel=0.15)
