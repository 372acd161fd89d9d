"""Which lines of code to prefetch where: the instruction caches of a straight-line program, planned.

Model: a core runs *segments*, one behind the other: a stretch of the launch function, the kernel it calls, the stretch
behind it. Which lines a segment enters, and in which order, is known when the program is linked; so is the cache
(sets, ways, least recently used out first). Ahead of each segment is a *point* where a stub may stand: one
`prefetch.i` per line, fetched in the background while execution goes on.

    strength    a stub fetches
    none        nothing
    per-func    the whole next segment, whatever the cache holds
    max         all that would miss, as far ahead as it fits beside what is needed sooner
    auto        what would miss in this segment and the next `distance` ones, for the distance with the least time

Fetching within the running segment pays too: misses are served one at a time, prefetches overlap.

Invariant (auto and max): a stub never displaces a line that is used at or before the line it brings in: neither what
runs nor what is needed sooner. `replay` gives the time of a program with stubs; it knows no waits for
other cores, during which fetches would be hidden: it is the time of a control unit that is the bottleneck.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from superkernel.target.aicore import AicoreTarget

DISTANCES: Final = (0, 1, 2, 4)
WORTH: Final = 0.02  # part of the time that stubs must gain: loops and waits, which `replay` leaves out, dilute it
STUB_OVERHEAD: Final = 2  # instructions that form the address of a function in a stub
INSTRUCTION_BYTES: Final = 4

Stub = tuple[int, ...]


class Strength(Enum):
    """The option `preload`."""

    NONE = "none"
    PER_FUNC = "per-func"
    MAX = "max"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class CacheShape:
    """An instruction cache, and how long it waits for a line (`latency_cycles`) from L2."""

    sets: int
    ways: int
    line_bytes: int
    latency_cycles: int

    @classmethod
    def of(cls, target: AicoreTarget, *, cube: bool) -> CacheShape:
        """The cache of a type of core."""
        cache = target.icache
        size = cache.cube_bytes if cube else cache.vector_bytes
        latency = cache.miss_latency_cycles + target.icache_fill_cycles
        return cls(size // (cache.line_bytes * cache.ways), cache.ways, cache.line_bytes, latency)


@dataclass(frozen=True, slots=True)
class CodeSegment:
    """What runs from one point to the next: the lines in the order in which they are entered (a line may come again:
    behind a loop, behind a call), and the cycles without any miss."""

    lines: tuple[int, ...]
    cycles: int


@dataclass(frozen=True, slots=True)
class PreloadReplay:
    """A program's time, and the lines of each segment's misses."""

    cycles: int
    missed: tuple[tuple[int, ...], ...]

    @property
    def misses(self) -> int:
        """Of all segments."""
        return sum(map(len, self.missed))


@dataclass(frozen=True, slots=True)
class Preload:
    """A plan: a stub per segment, why it is so, and the times of a run without and with it."""

    stubs: tuple[Stub, ...]
    reason: str
    before: PreloadReplay
    after: PreloadReplay

    @property
    def lines(self) -> int:
        """Prefetches in all stubs."""
        return sum(map(len, self.stubs))


class Lru:
    """The lines of a cache, least recently used first in each set."""

    def __init__(self, shape: CacheShape) -> None:
        self.shape = shape
        self._sets: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(shape.sets)]

    def __contains__(self, line: int) -> bool:
        return line in self._sets[line % self.shape.sets]

    def victim(self, line: int) -> int | None:
        """What goes out when a line comes in that is not here; None: there is room."""
        held = self._sets[line % self.shape.sets]
        return next(iter(held)) if len(held) == self.shape.ways else None

    def use(self, line: int) -> bool:
        """Enter a line: True where it is here; else it is brought in."""
        held = self._sets[line % self.shape.sets]
        if line in held:
            held.move_to_end(line)
            return True
        self.bring(line)
        return False

    def bring(self, line: int) -> int | None:
        """Bring in a line that is not here; what went out."""
        out = self.victim(line)
        held = self._sets[line % self.shape.sets]
        if out is not None:
            del held[out]
        held[line] = None
        return out


def plan_preload(segments: Sequence[CodeSegment], shape: CacheShape, strength: Strength) -> Preload:
    """The stubs of a program. `auto` compares distances, and none at all, by the time that `replay` gives."""
    nothing: tuple[Stub, ...] = ((),) * len(segments)
    before = replay(segments, nothing, shape)
    if strength is Strength.NONE:
        return Preload(nothing, "switched off", before, before)
    if strength is Strength.PER_FUNC:
        stubs = _whole(segments)
        return Preload(stubs, "the whole next function, always", before, replay(segments, stubs, shape))
    if strength is Strength.MAX:
        stubs = _stubs(segments, shape, len(segments))
        return Preload(stubs, "as far ahead as fits", before, replay(segments, stubs, shape))
    best: Preload | None = None
    for distance in DISTANCES:
        stubs = _stubs(segments, shape, distance)
        after = replay(segments, stubs, shape)
        if best is None or after.cycles < best.after.cycles:
            reason = f"distance {distance}: {before.cycles} cycles of control work become {after.cycles}"
            best = Preload(stubs, reason, before, after)
    assert best is not None
    if best.after.cycles > before.cycles * (1 - WORTH):
        reason = f"off: {best.lines} prefetches would make {best.after.cycles} of {before.cycles} cycles"
        return Preload(nothing, reason, before, before)
    return best


def _whole(segments: Sequence[CodeSegment]) -> tuple[Stub, ...]:
    """Ahead of each segment all lines of the next one; ahead of the first one its own, too."""
    found = []
    for number in range(len(segments)):
        ahead = [*(segments[0].lines if number == 0 else ())]
        ahead += segments[number + 1].lines if number + 1 < len(segments) else ()
        found.append(tuple(dict.fromkeys(ahead)))
    return tuple(found)


def _stubs(segments: Sequence[CodeSegment], shape: CacheShape, distance: int) -> tuple[Stub, ...]:
    """What would miss in a segment and the `distance` next ones, in the order of use, as far as the window admits."""
    cache = Lru(shape)
    found: list[Stub] = []
    room = shape.sets * shape.ways
    for number, segment in enumerate(segments):
        if segment.lines:
            cache.use(segment.lines[0])  # the stub's own line
        live: dict[int, set[int]] = {}  # by set: what is used from here on, up to the line that is looked at
        stub: list[int] = []
        for later in segments[number : number + distance + 1]:
            for line in later.lines:
                used = live.setdefault(line % shape.sets, set())
                if line in used:
                    continue
                used.add(line)
                # Brought in now, it stays until its use, and displaces nothing that is used before it.
                if line not in cache and len(used) <= shape.ways and cache.victim(line) not in used:
                    cache.bring(line)
                    stub.append(line)
            if sum(map(len, live.values())) > room:
                break
        found.append(tuple(stub))
        for line in segment.lines:
            cache.use(line)
    return tuple(found)


def replay(segments: Sequence[CodeSegment], stubs: Sequence[Stub], shape: CacheShape) -> PreloadReplay:
    """Run the lines through the cache: one instruction at a time, misses one by one, prefetches side by side."""
    cache = Lru(shape)
    ready: dict[int, int] = {}  # prefetched, not used yet: when it is there
    time = 0
    missed: list[tuple[int, ...]] = []
    for segment, stub in zip(segments, stubs, strict=True):
        misses: list[int] = []
        steps = len(segment.lines)
        for number, line in enumerate(segment.lines):
            if cache.use(line):
                time = max(time, ready.pop(line, time))
            else:
                misses.append(line)
                ready.pop(line, None)
                time += shape.latency_cycles
            if number == 0:
                for ahead in stub:
                    time += 1
                    if ahead not in cache:
                        cache.bring(ahead)
                        ready[ahead] = time + shape.latency_cycles
                time += STUB_OVERHEAD if stub else 0
            time += segment.cycles * (number + 1) // steps - segment.cycles * number // steps
        missed.append(tuple(misses))
    return PreloadReplay(time, tuple(missed))
