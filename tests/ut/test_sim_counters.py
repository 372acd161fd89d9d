"""A launch's counters: rows made from the device's tables, the sums that are taken of the tables without making them,
and the measured time of control code, which changes none of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_programs import DATA, DONE, Body, link

from superkernel.core.errors import InputError
from superkernel.sim.counters import CONTROL_COLUMNS, ENGINE_COLUMNS, NEVER, STALLS, LaunchResult, MarkerTable
from superkernel.sim.device import Device
from superkernel.target.aicore import load_target

MINI = load_target("mini")
BLOCK = 4096
CORES = (2, 3, 4)


def launched(**options: Any) -> tuple[Device, LaunchResult]:
    """Three vector cores copy blocks to and fro under a few markers, out of order."""
    bodies = {}
    for core in CORES:
        body = Body()
        for number in (5, 1, 3, 1):
            body.marker(number)
            body.do("gm_to_ub", src=DATA, dst=0, bytes=BLOCK).drain()
            body.do("ub_to_gm", src=0, dst=DATA + BLOCK * (core + 1), bytes=BLOCK).drain()
            body.marker(number, 3)
        bodies[core] = body
    device = Device(MINI, link(bodies), **options)
    device.write(DATA, bytes(BLOCK))
    return device, device.launch()


def test_rows_come_in_the_order_of_markers_and_sum_up() -> None:
    _, result = launched()
    for core in CORES:
        counts = result.cores[core]
        numbers = [4 * m.sub_operator + m.phase for m in counts.markers]
        assert numbers == sorted(set(numbers))
        assert {6, 7, 14, 15, 22, 23} <= set(numbers)
        for name in ("cycles", "instructions", "lines_entered", "misses_cold", "misses_capacity", "prefetches"):
            assert getattr(counts.control, name) == sum(getattr(m.control, name) for m in counts.markers), name
        for name in STALLS:
            assert counts.control.stalls[name] == sum(m.control.stalls[name] for m in counts.markers), name
        assert counts.control.first_cycle == 0
        assert counts.control.last_cycle == max(m.control.last_cycle for m in counts.markers) > 0
        assert counts.control.cycles == counts.control.instructions + counts.control.stalled == counts.cycles
        for engine in ("mte2", "mte3"):
            for field in ("busy", "commands", "bytes_read", "bytes_written", "waits_memory"):
                of_markers = sum(getattr(m.engines[engine], field) for m in counts.markers if engine in m.engines)
                assert getattr(counts.engines[engine], field) == of_markers, (engine, field)
        assert sum(m.engines["mte3"].bytes_written for m in counts.markers if "mte3" in m.engines) == 4 * BLOCK


def test_what_is_asked_of_the_table_is_what_its_rows_say() -> None:
    _, result = launched()
    for counts in result.cores:
        for number in range(7):
            assert counts.of_sub_operator(number) == tuple(m for m in counts.markers if m.sub_operator == number)
        for phase in range(4):
            rows = [m for m in counts.markers if m.phase == phase]
            expected = {m.sub_operator: sum(e.bytes_written for e in m.engines.values()) for m in rows}
            assert counts.table.bytes_written(phase) == expected
    assert result.cores[CORES[0]].table.bytes_written(2) == {1: 2 * BLOCK, 3: BLOCK, 5: BLOCK}
    assert set(result.sub_operators) == {m.sub_operator for c in result.cores for m in c.markers} >= {1, 3, 5}


def test_a_cycle_that_never_came_is_none() -> None:
    control = np.zeros((1, 1 + len(CONTROL_COLUMNS) + len(STALLS)), np.uint64)
    control[0, 1 + CONTROL_COLUMNS.index("first_cycle")] = NEVER
    engines = np.zeros((1, 2 + len(ENGINE_COLUMNS)), np.uint64)
    engines[0, 1], engines[0, 2 + ENGINE_COLUMNS.index("first_cycle")] = 5, NEVER
    table = MarkerTable(control, engines)
    (row,) = table.rows()
    assert (row.control.first_cycle, row.engines["v"].first_cycle) == (None, None)
    assert table.total().first_cycle is None
    empty = MarkerTable(control[:0], engines[:0])
    assert (empty.rows(), empty.of_sub_operator(0), empty.bytes_written(2)) == ((), (), {})
    assert empty.total().cycles == 0


def test_results_of_equal_launches_are_equal() -> None:
    first, second = launched()[1], launched()[1]
    assert first == second
    device, _ = launched()
    device.write(DONE, bytes(8))
    assert device.launch(cold=False) != first


@pytest.mark.parametrize("races", [False, True])
def test_measuring_control_code_changes_nothing(races: bool) -> None:
    device, measured = launched(time_control=True, trace=True, races=races)
    silent, plain = launched(trace=True, races=races)
    assert measured == plain
    assert measured.trace == plain.trace
    assert 0 < device.control_slices < measured.instructions
    assert device.control_ns >= 0
    assert (silent.control_ns, silent.control_slices) == (0, 0)


def test_declarations_are_checked_all_at_once() -> None:
    device = Device(MINI, link({2: Body()}))
    ranges = [(DATA, DATA + 8), (DATA + 16, DATA + 16)]
    device.declare(0, 2, reads=ranges, writes=iter(ranges))
    for wrong in ((DATA, DATA - 8), (0, 8), (DATA, 1 << 40)):
        with pytest.raises(InputError, match="outside the device's global memory"):
            device.declare(0, 2, reads=[*ranges, wrong])
