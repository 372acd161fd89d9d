"""Where the emulator's firmware keeps what: every word has a place of its own, inside what the map says there is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import pytest
from llvmlite import ir

from superkernel.codegen.aicore.memory_map import TOP_BYTES, WINDOW_BYTES
from superkernel.codegen.firmware.base import FirmwarePart
from superkernel.codegen.firmware.memory import (
    CONFIG,
    CONFIG_BYTES,
    ENGINES,
    FLAG_IDS,
    FLAGS,
    FRAME_F,
    LOG_BYTES,
    MODES,
    QUEUE_ENDS,
    QUEUES,
    RECORD_BYTES,
    STACK_BYTES,
    STATE,
    USED,
    WINDOWS,
    FirmwareMap,
)
from superkernel.core.errors import UnsupportedError
from superkernel.target.aicore import AicoreTarget, load_target
from superkernel.target.engines.layout import WINDOW_WORDS

MINI, A3 = load_target("mini"), load_target("a3")
ODD = MINI.replaced({"memory.ub_bytes": 96 << 10, "queue.depth_commands": 5})
TARGETS = pytest.mark.parametrize("target", [MINI, A3, ODD], ids=["mini", "a3", "odd"])
Span = tuple[int, int]  # first byte, byte behind the last


def part(target: AicoreTarget) -> FirmwarePart:
    return FirmwarePart(ir.Module(name="none"), FirmwareMap(target))


def spans(place: Callable[..., Any], size: int, *ranges: range) -> list[Span]:
    """Where a word of each combination lies, with the state at 0."""
    code = SimpleNamespace(args=[0])
    return [(at, at + size) for at in (int(place(code, *numbers)) for numbers in product(*ranges))]


def check_apart(found: list[Span], begin: int, end: int) -> None:
    """No two share a byte, and none lies outside."""
    found = sorted(found)
    assert all(a[1] <= b[0] for a, b in pairwise(found)), found
    assert found[0][0] >= begin
    assert found[-1][1] <= end


@TARGETS
def test_words_of_a_state_have_places_of_their_own(target: AicoreTarget) -> None:
    """Frame, named words, windows, ends of queues, flags, queues, positions in the log and the stack."""
    made, places = part(target), FirmwareMap(target)
    engines, depth = range(ENGINES), range(target.queue.depth_commands)
    flags = spans(made._flag, 1, engines, engines, range(FLAG_IDS))
    check_apart(flags, FLAGS, USED)
    assert len(flags) == USED - FLAGS == QUEUES - USED  # those that were ever set lie likewise
    ends = [(at, at + 8) for engine in engines for at in map(int, made._ends(SimpleNamespace(args=[0]), engine))]  # type: ignore[arg-type]
    check_apart(ends, QUEUE_ENDS, FLAGS)
    records = spans(made._record, RECORD_BYTES, engines, depth)
    check_apart(records, QUEUES, places.logged)
    logged = spans(made._queued_log, 8, engines, depth)
    check_apart([*records, *logged], QUEUES, places.state_bytes - STACK_BYTES)
    words = [(at, at + 8) for at in STATE.values()]
    check_apart([(0, FRAME_F), (FRAME_F, FRAME_F + 32 * 8), *words], 0, WINDOWS)
    assert WINDOWS + ENGINES * WINDOW_WORDS * 8 == QUEUE_ENDS
    assert places.state_bytes % 4096 == 0


@TARGETS
def test_queues_are_rings(target: AicoreTarget) -> None:
    made, depth = part(target), target.queue.depth_commands
    for place in (made._record, made._queued_log):
        turns = [spans(place, 1, range(2, 3), range(n * depth, (n + 1) * depth)) for n in (0, 1, 7)]
        assert turns[0] == turns[1] == turns[2]


@TARGETS
def test_what_harts_share_and_keep_lies_apart(target: AicoreTarget) -> None:
    """Counters, SDMA's queue, states, local memories, scratch memories, logs: one behind the other, none in the
    accelerator's memory nor where the device tree is."""
    made, places, harts = part(target), FirmwareMap(target), FirmwareMap(target).memory.harts
    counters = spans(made._shared, 8, range(MODES + 2), range(target.cores), range(FLAG_IDS))
    check_apart(counters, places.shared, places.sdma_ring)
    ring = (places.sdma_ring, places.sdma_ring + target.queue.depth_commands * (RECORD_BYTES + 8))
    states = [(places.state(n), places.state(n) + places.state_bytes) for n in range(harts)]
    local = [(at, at + places.size_of(memory)) for row in places.locals for memory, at in row.items()]
    cubes = range(target.device.cube_cores)
    scratch = [(at, at + places.scratch_bytes) for at in (places.scratch + n * places.scratch_step for n in cubes)]
    logs = [(places.log(n), places.log(n) + LOG_BYTES) for n in range(harts)]
    check_apart([*counters, ring, *states, *local, *scratch, *logs], places.shared, places.end)
    ram, window = places.memory.ram_address, places.memory.ram_address + WINDOW_BYTES
    assert places.shared >= ram + places.memory.ram_bytes
    assert places.end + TOP_BYTES <= window or places.shared >= window
    assert places.end + TOP_BYTES <= ram + places.ram_bytes
    assert len(places.locals) == harts


def test_words_of_the_configuration_have_places_of_their_own() -> None:
    check_apart([(at, at + 8) for at in CONFIG.values()], 0, CONFIG_BYTES)


def test_a_target_with_devices_elsewhere_is_refused() -> None:
    moved = MINI.replaced({"map.exit_address": MINI.map.exit_address + 4096})
    with pytest.raises(UnsupportedError, match=r"map\.exit_address"):
        FirmwareMap(moved)
