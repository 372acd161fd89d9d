"""What a launch on the simulated accelerator counted, as frozen dataclasses.

Model: a `LaunchResult` has the cores; a core has its control unit's cycles by cause, its engines, and the same split by
sub-operator and phase (the progress marker that the program stores); beside them the memory system and SDMA.

A launch of a large program has tens of thousands of rows, and most callers want sums: so a core keeps its rows as
arrays (`MarkerTable`), and makes dataclasses of them when it is asked for them.

Invariants: of a control unit, instructions + stalls = cycles, in each `MarkerCounts` and over them all. Every number is
an integer of cycles, bytes or events, and depends on the program and the target alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from superkernel.target.engines import Engine

if TYPE_CHECKING:
    from superkernel._core import SimDeviceResults

STALLS = (
    "branch", "result", "load", "store", "fence", "doorbell", "queue_full", "drain", "wait_flag", "cross_wait",
    "wait_memory", "notify", "fetch", "prefetch_late",
)  # fmt: skip
"""What a control unit stands still for: see `docs/simulator.md`. In the order of the device's numbers."""

PHASES = ("start", "entry", "body", "behind")
"""Phases of a progress marker: before the first marker (number 0 only), synchronising at the entry of a
sub-operator, in it, behind it."""

NEVER = 2**64 - 1


@dataclass(frozen=True, slots=True)
class ControlCounts:
    """A control unit: cycles with their causes, instruction lines."""

    cycles: int = 0
    instructions: int = 0
    stalls: Mapping[str, int] = field(default_factory=dict)
    first_cycle: int | None = None
    last_cycle: int = 0
    lines_entered: int = 0
    misses_cold: int = 0
    misses_capacity: int = 0
    prefetches: int = 0
    prefetched_timely: int = 0
    prefetched_late: int = 0
    prefetched_useless: int = 0

    @property
    def misses(self) -> int:
        """Lines of instructions that it waited for, cold or lost for want of room."""
        return self.misses_cold + self.misses_capacity

    @property
    def stalled(self) -> int:
        """Cycles beyond one per instruction."""
        return sum(self.stalls.values())


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """An engine. `busy` is from a command's start to its end; `waits_memory` is the part beyond the closed form."""

    busy: int = 0
    commands: int = 0
    flags: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    waits_empty: int = 0
    waits_flag: int = 0
    waits_memory: int = 0
    first_cycle: int | None = None
    last_cycle: int = 0


@dataclass(frozen=True, slots=True)
class MarkerCounts:
    """What belongs to one progress marker on one core. Commands belong to the marker of their doorbell."""

    sub_operator: int
    phase: int
    control: ControlCounts
    engines: Mapping[str, EngineCounts]


class MarkerTable:
    """A core's rows by marker, ascending: in `control`, columns marker and `CONTROL_COLUMNS`, then the stalls; in
    `engines` the number of the row in `control`, the engine, and `ENGINE_COLUMNS`."""

    def __init__(self, control: NDArray[np.uint64], engines: NDArray[np.uint64]) -> None:
        self.control, self.engines = control, engines
        self._markers: list[int] = control[:, 0].tolist()
        self._rows: tuple[MarkerCounts, ...] | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MarkerTable):
            return NotImplemented
        return np.array_equal(self.control, other.control) and np.array_equal(self.engines, other.engines)

    __hash__ = None  # type: ignore[assignment]

    def rows(self) -> tuple[MarkerCounts, ...]:
        """All of them, made at the first call."""
        if self._rows is None:
            engines: list[dict[str, EngineCounts]] = [{} for _ in range(len(self.control))]
            for row, engine, *counts in self.engines.tolist():
                engines[row][_ENGINE_NAMES[engine]] = _engine(counts)
            self._rows = tuple(
                MarkerCounts(marker // 4, marker % 4, _control(counts), engines[row])
                for row, (marker, *counts) in enumerate(self.control.tolist())
            )
        return self._rows

    def of_sub_operator(self, number: int) -> tuple[MarkerCounts, ...]:
        """Counts of the phases of one sub-operator."""
        begin, end = bisect_left(self._markers, 4 * number), bisect_left(self._markers, 4 * number + 4)
        return self.rows()[begin:end]

    def sub_operators(self) -> set[int]:
        """Those that have a row."""
        return {marker // 4 for marker in self._markers}

    def bytes_written(self, phase: int) -> dict[int, int]:
        """To global memory, by sub-operator, of those that have a row of the phase."""
        markers = self.control[:, 0]
        column = 2 + ENGINE_COLUMNS.index("bytes_written")
        counts = np.zeros(len(markers), np.uint64)
        np.add.at(counts, self.engines[:, 0].astype(np.intp), self.engines[:, column])
        chosen = markers % np.uint64(4) == phase
        return dict(zip((markers[chosen] // np.uint64(4)).tolist(), counts[chosen].tolist(), strict=True))

    def total(self) -> ControlCounts:
        """Of the control unit, over all markers."""
        counts = self.control[:, 1:].sum(axis=0, dtype=np.uint64)
        if len(self.control):
            counts[_FIRST] = self.control[:, 1 + _FIRST].min()
            counts[_LAST] = self.control[:, 1 + _LAST].max()
        return _control(counts.tolist())


@dataclass(frozen=True, slots=True)
class CoreCounts:
    """A core. `cycles` is when its control unit ended (wfi), or how far it had come at the program's end."""

    core: int
    type: str
    group: int
    cycles: int
    instructions: int
    asleep: bool
    control: ControlCounts
    cross_wait_cycles: tuple[int, ...]
    engines: Mapping[str, EngineCounts]
    table: MarkerTable

    @property
    def markers(self) -> tuple[MarkerCounts, ...]:
        """What belongs to each marker that this core set, in ascending order."""
        return self.table.rows()

    def of_sub_operator(self, number: int) -> tuple[MarkerCounts, ...]:
        """The phases of a sub-operator that this core went through."""
        return self.table.of_sub_operator(number)


@dataclass(frozen=True, slots=True)
class MemoryCounts:
    """L2 and HBM. The cycles are how long pieces of lines waited for what serves them, which need not delay a transfer
    as much. `shared`: pieces of lines that several cores asked for at about the same time. `prefetched_*`: lines
    that SDMA was asked to bring into L2, by what became of them."""

    line_reads: int
    line_writes: int
    hits: int
    misses: int
    merged: int
    read_bytes: int
    write_bytes: int
    hbm_read_bytes: int
    hbm_write_bytes: int
    shared: int
    limit_cycles: int
    bank_cycles: int
    channel_cycles: int
    core_rate_cycles: int
    fetches: int
    fetch_same_line_cycles: int
    prefetched_present: int
    prefetched_timely: int
    prefetched_late: int
    prefetched_useless: int


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """One launch, from cycle 0 at the entry to the store to the exit address. `data_dependent`: sub-operators whose
    control units read what no engine computed, in mode "timing": with data their cycles may be others."""

    cycles: int
    time_ns: float
    cores: tuple[CoreCounts, ...]
    sdma: EngineCounts
    memory: MemoryCounts
    console: str
    trace: bytes = b""
    data_dependent: tuple[int, ...] = ()

    @property
    def instructions(self) -> int:
        """Instructions of all control units."""
        return sum(core.instructions for core in self.cores)

    @property
    def sub_operators(self) -> tuple[int, ...]:
        """The numbers of all sub-operators that any core went through."""
        return tuple(sorted({n for core in self.cores for n in core.table.sub_operators()}))


CONTROL_COLUMNS = tuple(f.name for f in fields(ControlCounts) if f.name != "stalls")
ENGINE_COLUMNS = tuple(f.name for f in fields(EngineCounts))
"""The columns of the device's numbers, in its order."""

_FIRST, _LAST = CONTROL_COLUMNS.index("first_cycle"), CONTROL_COLUMNS.index("last_cycle")
_ENGINE_NAMES = {engine.value: engine.title for engine in Engine}


def launch_result(raw: SimDeviceResults, clock_mhz: int, trace: bytes) -> LaunchResult:
    """The dataclasses of what the extension module returns."""
    return LaunchResult(
        raw["cycles"],
        raw["cycles"] * 1000 / clock_mhz,
        tuple(_core(number, core) for number, core in enumerate(raw["cores"])),
        _engine([raw["sdma"][name] for name in ENGINE_COLUMNS]),
        MemoryCounts(**raw["memory"]),
        raw["console"].decode("utf-8", "replace"),
        trace,
        tuple(sorted(raw["data_dependent"])),
    )


def _first(cycle: int) -> int | None:
    return None if cycle == NEVER else cycle


def _engine(counts: Sequence[int]) -> EngineCounts:
    busy, commands, flags, read, written, empty, flag, memory, first, last = counts
    return EngineCounts(busy, commands, flags, read, written, empty, flag, memory, _first(first), last)


def _control(counts: Sequence[int]) -> ControlCounts:
    """Of `CONTROL_COLUMNS` and the stalls."""
    cycles, instructions, first, *others = counts[: len(CONTROL_COLUMNS)]
    stalls = dict(zip(STALLS, counts[len(CONTROL_COLUMNS) :], strict=True))
    return ControlCounts(cycles, instructions, stalls, _first(first), *others)


def _rows(data: bytes, columns: int) -> NDArray[np.uint64]:
    return np.frombuffer(data, "<u8").reshape(-1, columns)


def _core(number: int, raw: Mapping[str, Any]) -> CoreCounts:
    table = MarkerTable(
        _rows(raw["control_rows"], 1 + len(CONTROL_COLUMNS) + len(STALLS)),
        _rows(raw["engine_rows"], 2 + len(ENGINE_COLUMNS)),
    )
    return CoreCounts(
        number,
        raw["type"],
        raw["group"],
        raw["cycles"],
        raw["instructions"],
        raw["asleep"],
        table.total(),
        tuple(raw["cross_wait_cycles"]),
        {name: _engine([counts[column] for column in ENGINE_COLUMNS]) for name, counts in raw["engines"].items()},
        table,
    )
