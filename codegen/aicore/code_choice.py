"""How the code of a program is laid out and fetched: `preload` and `split`, decided on its footprints.

Stubs of a launch serve all cores of a type: a line is prefetched where any of its lanes asks for it, and lines of a
function that one lane runs alone are for that lane only.

`split`: cores of a type that a wait releases together, into a kernel that is not there, ask for the same line in the
same cycle; it is given out to one at a time. The last of c cores then is (c - 1) intervals behind, once per wait
(behind it the cores are apart). Copies of the code divide c, and cost that every copy comes from HBM once. `auto` takes
the smallest number near the best, and 1 unless the gain is worth a percent of the time: control work, and the waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from superkernel.codegen.aicore.footprint import Footprint
from superkernel.codegen.aicore.preload import CacheShape, Preload, Strength, plan_preload
from superkernel.codegen.aicore.program_spec import CodeLine
from superkernel.sync.aicore.plan import CoreKind
from superkernel.target.aicore import AicoreTarget

AUTO: Final = "auto"
COPIES: Final = (1, 2, 4, 8, 16, 32, 64)
WORTH: Final = 0.01  # part of the time that copies must gain
ROUNDS_MAX: Final = 4  # a plan that is not settled then is a little off: harmless, prefetches are hints
NEAR: Final = 0.9  # part of the best gain that fewer copies must reach

Stubs = Mapping[str, tuple[tuple[CodeLine, ...], ...]]


@dataclass(frozen=True)
class CodeOptions:
    """What the user asks for: alignment of functions (0: a line of the instruction cache), number of copies or "auto",
    and how much code is prefetched."""

    func_align: int = 0
    copies: int | str = AUTO
    preload: str = AUTO


@dataclass(frozen=True)
class CodeChoice:
    """What was decided, and why."""

    copies: int
    strength: str
    stubs: Stubs
    reasons: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def first(cls, options: CodeOptions) -> CodeChoice:
        """Before anything is known: no stubs, and the copies that were asked for."""
        return cls(options.copies if isinstance(options.copies, int) else 1, Strength.NONE.value, {})

    def settled(self, before: CodeChoice) -> bool:
        """The program that was planned for is the one that this plan makes."""
        return self.copies == before.copies and self.stubs == before.stubs

    @property
    def lines(self) -> int:
        """Prefetches in the code of all launches."""
        return sum(len(stub) for stubs in self.stubs.values() for stub in stubs)


def settle(measure: Callable[[Stubs], Sequence[Footprint]], options: CodeOptions, target: AicoreTarget) -> CodeChoice:
    """Decide, measure what the decision itself does to the launches, and decide again, until nothing changes."""
    choice = CodeChoice.first(options)
    for _ in range(ROUNDS_MAX):
        before = choice
        choice = choose(measure(before.stubs), options, target)
        if choice.settled(before):
            break
    return choice


def choose(found: Sequence[Footprint], options: CodeOptions, target: AicoreTarget) -> CodeChoice:
    """Decide on the footprints of a linked program."""
    plans = [
        plan_preload(f.segments, CacheShape.of(target, cube=f.kind is CoreKind.CUBE), Strength(options.preload))
        for f in found
    ]
    stubs: dict[str, tuple[tuple[CodeLine, ...], ...]] = {}
    for launch in dict.fromkeys(f.launch for f in found):
        lanes = [(f, p) for f, p in zip(found, plans, strict=True) if f.launch == launch]
        merged = _merged(lanes)
        if any(merged):
            stubs[launch] = merged
    reasons = [f"preload of {f.launch}, lane {f.lane}: {p.reason}" for f, p in zip(found, plans, strict=True)]
    copies, reason = _copies(found, plans, options, target)
    strength = options.preload if stubs else Strength.NONE.value
    return CodeChoice(copies, strength, stubs, (*reasons, f"split {copies}: {reason}"))


def _merged(lanes: Sequence[tuple[Footprint, Preload]]) -> tuple[tuple[CodeLine, ...], ...]:
    """One stub per kernel call for all lanes of a launch: the nearest lines of each first."""
    merged = []
    for number in range(len(lanes[0][0].segments)):
        lines: dict[CodeLine, int] = {}
        for footprint, plan in lanes:
            for rank, line in enumerate(plan.stubs[number]):
                place = footprint.places[line]
                lines[place] = min(rank, lines.get(place, rank))
        merged.append(tuple(sorted(lines, key=lambda p: (lines[p], p.symbol, p.offset))))
    return tuple(merged)


def _copies(
    found: Sequence[Footprint], plans: Sequence[Preload], options: CodeOptions, target: AicoreTarget
) -> tuple[int, str]:
    """The number of copies, and why."""
    if isinstance(options.copies, int):
        return options.copies, "as asked for"
    device = target.device
    cores = {CoreKind.CUBE: device.cube_cores, CoreKind.VECTOR: device.vector_cores}
    most_together: dict[CoreKind, int] = {}
    for footprint, plan in zip(found, plans, strict=True):
        rows = zip(footprint.released, plan.after.missed, strict=True)
        together = sum(released and footprint.enters_kernel(missed) for released, missed in rows)
        most_together[footprint.kind] = max(most_together.get(footprint.kind, 0), together)
    sync = target.cycles(target.sync.core_full_ns)
    time = max((p.after.cycles + sync * sum(f.released) for f, p in zip(found, plans, strict=True)), default=0)
    lines = len({line for footprint in found for segment in footprint.segments for line in segment.lines})
    channel = target.hbm_channel_line_cycles
    extra = -(-lines * target.icache.line_bytes // target.l2.line_bytes) * channel // target.hbm.channels

    def gain(copies: int) -> int:
        apart = max((n * (cores[kind] - -(-cores[kind] // copies)) for kind, n in most_together.items()), default=0)
        return int(apart * target.icache.same_line_interval_cycles - (copies - 1) * extra)

    best = max(gain(n) for n in COPIES)
    waits = max(most_together.values(), default=0)
    if best <= WORTH * time:
        return 1, f"{waits} waits release cores into a cold kernel: {best} cycles at most to gain in {time}"
    chosen = next(n for n in COPIES if gain(n) >= NEAR * best)
    return chosen, f"{waits} waits release cores into a cold kernel: {gain(chosen)} cycles to gain in {time}"
