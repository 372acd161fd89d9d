"""Estimates that all families share, worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from plan_cases import TARGETS

from superkernel.core.dtypes import DType
from superkernel.ir.body import Instruction, PointwiseProgram, ProgramInput, ProgramOutput
from superkernel.ops.table import traits_of
from superkernel.scheduler.families import costing

_MACHINE: Any = TARGETS["avx512"]()
CPU: Any = replace(
    _MACHINE,
    cores=16,
    readers=16,
    l2_bytes=1 << 20,
    l3_bytes=1 << 26,
    l2_bytes_per_ns=32.0,
    l3_bytes_per_ns=16.0,
    dram_bytes_per_ns=8.0,
    l3_same_bytes_per_ns=24.0,
    dram_same_bytes_per_ns=10.0,
    flops_per_ns=64.0,
)


@dataclass(frozen=True)
class Cut:
    """Costs `fixed` and `each` per unit."""

    units: int
    fixed: float
    each: float

    def cost_ns(self, body: object, begin: int, end: int, target: object) -> float:
        return self.fixed + self.each * (end - begin)


def test_the_fastest_on_one_core_and_the_one_that_many_share_best() -> None:
    fine, coarse = Cut(1000, 5.0, 1.0), Cut(2, 0.0, 500.0)
    found: Any = [fine, coarse]
    body: Any = None
    assert costing.best_whole_and_shared(body, found, CPU) == [coarse, fine]
    few = replace(CPU, cores=costing.MANY_CORES)
    assert costing.best_whole_and_shared(body, found, few) == [coarse]
    assert costing.best_whole_and_shared(body, found[:1], CPU) == [fine]
    assert costing.best_whole_and_shared(body, [], CPU) == []


def test_bands_are_fewer_than_cores_and_no_more_than_rows() -> None:
    assert list(costing.band_counts(10**6, CPU)) == [2, 4, 8]
    assert list(costing.band_counts(10**6, replace(CPU, cores=17))) == [2, 4, 8, 16]
    assert list(costing.band_counts(4, CPU)) == [2, 4]
    assert list(costing.band_counts(3, CPU)) == [2]
    assert list(costing.band_counts(1, CPU)) == []


def program(*steps: Instruction) -> PointwiseProgram:
    inputs = (ProgramInput(0, DType.F32, (6, 1)), ProgramInput(1, DType.F32, (0, 1)), ProgramInput(-1, DType.F32))
    value = 2 + len(steps) if steps else 0
    return PointwiseProgram((5, 6), inputs, steps, (ProgramOutput(value, 2, (6, 1)), ProgramOutput(0, -1, ())))


def test_traffic_counts_what_is_broadcast_once_and_results_of_anchors_not() -> None:
    assert costing.program_traffic(program(), [4, 2, 8]) == 4 * 30 + 2 * 6 + 8 * 30


def test_weights_of_programs() -> None:
    """A load for each input, a store, which rounds to bf16 by several instructions; f64 takes two vectors for one."""
    add, own = Instruction("add", (0, 1), DType.F32), traits_of("add").weight
    assert own > 0
    assert costing.program_weight(program(add)) == 3 + 1 + own
    assert costing.program_weight(program(replace(add, dtype=DType.F64))) == 3 + 1 + 2 * own
    assert costing.program_weight(program(replace(add, dtype=DType.BF16))) == 3 + 1 + own + costing.BF16_WEIGHT


def test_time_of_vectors_and_bytes() -> None:
    assert costing.vector_ns(CPU) == 2 * 16 / 64
    assert costing.elements_ns(320, 3.0, CPU) == 320 / 16 * 3 * 0.5
    assert costing.elements_ns(320, 3.0, CPU, 8) == 320 / 8 * 3 * 0.5
    for footprint, rate in ((1 << 20, 32), ((1 << 20) + 1, 16), (1 << 26, 16), ((1 << 26) + 1, 8)):
        assert costing.memory_ns(640, footprint, CPU) == 640 / rate


@pytest.mark.parametrize(
    ("size", "sharers", "rate"),
    [(1 << 18, 1e9, 32), (1 << 22, 1, 32), (1 << 22, 2, 24), (1 << 24, 1, 16), (1 << 26, 1, 8), (1 << 26, 2, 10)],
)
def test_constants_come_from_the_nearest_memory_that_keeps_them(size: int, sharers: float, rate: float) -> None:
    """Read a second time they come from there, and from the second level where half of it holds them."""
    again = 32 if size < 1 << 19 else rate
    cpu = replace(CPU, constants_bytes=0)
    assert costing.constants_ns(1000, 0, size, sharers, cpu) == pytest.approx(1000 / rate)
    assert costing.constants_ns(0, 1000, size, sharers, cpu) == pytest.approx(1000 / again)
