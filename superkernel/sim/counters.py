"""What a launch on the simulated accelerator counted, as frozen dataclasses.

Model: a `LaunchResult` has the cores; a core has its control unit's cycles by cause, its engines, and the same split by
sub-operator and phase (the progress marker that the program stores); beside them the memory system and SDMA.

Invariants: of a control unit, instructions + stalls = cycles, in each `MarkerCounts` and over them all. Every number is
an integer of cycles, bytes or events, and depends on the program and the target alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from superkernel._core import SimDeviceResults

STALLS = (
    "branch",
    "result",
    "load",
    "store",
    "fence",
    "doorbell",
    "queue_full",
    "drain",
    "wait_flag",
    "cross_wait",
    "wait_memory",
    "notify",
    "fetch",
    "prefetch_late",
)
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
    markers: tuple[MarkerCounts, ...]

    def of_sub_operator(self, number: int) -> tuple[MarkerCounts, ...]:
        """The phases of a sub-operator that this core went through."""
        return tuple(m for m in self.markers if m.sub_operator == number)


@dataclass(frozen=True, slots=True)
class MemoryCounts:
    """L2 and HBM. The cycles are what accesses were delayed by, each access by its own delay. `prefetched_*`: lines that
    SDMA was asked to bring into L2, by what became of them."""

    line_reads: int
    line_writes: int
    hits: int
    misses: int
    merged: int
    read_bytes: int
    write_bytes: int
    hbm_read_bytes: int
    hbm_write_bytes: int
    same_line_cycles: int
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
    """One launch, from cycle 0 at the entry to the store to the exit address."""

    cycles: int
    time_ns: float
    cores: tuple[CoreCounts, ...]
    sdma: EngineCounts
    memory: MemoryCounts
    console: str
    trace: bytes = b""

    @property
    def instructions(self) -> int:
        return sum(core.instructions for core in self.cores)

    @property
    def sub_operators(self) -> tuple[int, ...]:
        """The numbers of all sub-operators that any core went through."""
        return tuple(sorted({m.sub_operator for core in self.cores for m in core.markers}))


def launch_result(raw: SimDeviceResults, clock_mhz: int, trace: bytes) -> LaunchResult:
    """The dataclasses of what the extension module returns."""
    return LaunchResult(
        raw["cycles"],
        raw["cycles"] * 1000 / clock_mhz,
        tuple(_core(number, core) for number, core in enumerate(raw["cores"])),
        _engine(raw["sdma"]),
        MemoryCounts(**raw["memory"]),
        raw["console"].decode("utf-8", "replace"),
        trace,
    )


def _first(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {**raw, "first_cycle": None if raw["first_cycle"] == NEVER else raw["first_cycle"]}


def _engine(raw: Mapping[str, Any]) -> EngineCounts:
    return EngineCounts(**_first(raw))


def _control(raw: Mapping[str, Any]) -> ControlCounts:
    return ControlCounts(**_first(raw))


def _engines(raw: Mapping[str, Mapping[str, Any]]) -> dict[str, EngineCounts]:
    return {name: _engine(counts) for name, counts in raw.items()}


def _sum(parts: list[ControlCounts]) -> ControlCounts:
    totals: dict[str, Any] = {
        f.name: sum(getattr(part, f.name) for part in parts)
        for f in fields(ControlCounts)
        if f.name not in ("stalls", "first_cycle", "last_cycle")
    }
    stalls = {name: sum(part.stalls[name] for part in parts) for name in STALLS}
    firsts = [part.first_cycle for part in parts if part.first_cycle is not None]
    last = max((part.last_cycle for part in parts), default=0)
    return ControlCounts(**totals, stalls=stalls, first_cycle=min(firsts, default=None), last_cycle=last)


def _core(number: int, raw: Mapping[str, Any]) -> CoreCounts:
    markers = tuple(
        MarkerCounts(marker // 4, marker % 4, _control(control), _engines(engines))
        for marker, control, engines in raw["markers"]
    )
    return CoreCounts(
        number,
        raw["type"],
        raw["group"],
        raw["cycles"],
        raw["instructions"],
        raw["asleep"],
        _sum([marker.control for marker in markers]),
        tuple(raw["cross_wait_cycles"]),
        _engines(raw["engines"]),
        markers,
    )
