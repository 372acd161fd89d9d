"""A lower bound of the pure synchronisation of a program's events: `sync_lower_bound`.

Model: in a chain of events that follow from one another each costs its latency, less what can hide it:

    ahead      what the receiving core does ahead of the operand (weights, set-up), as far as it can come behind the
               signal. A run shows when that work was done, and when the last setter signalled. With the work in equal
               shares the setters could signal earlier: by what the core itself was done ahead of the last one of its
               type, and by what the mean core was ahead of the last one in every sub-operator since. What a core waits
               while others are still at the sub-operator before is imbalance.
    beside     sub-operators that the setter's results do not depend on, that do not depend on the receiver's, and that
               need no flag as wide for something that follows from the setter's: in another order their work could
               stand there. Each can stand in one place only.

A value is the mean over the cores of the type that `timeline` counts. What no core of that type takes within its own
sub-operator costs nothing here, nor do words in memory, which no run counts as pure.

So no plan of the same kernels on the same cores comes to less as long as no core puts off what it could do. The bound
is of the kernels as they are: cold code or cold weights would make them longer, and hide more. It is of the forms that
plans have: flags to named cores (`sync.point_to_point`) are none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from superkernel.backends.aicore.timeline import Timeline
from superkernel.codegen.aicore.program_spec import PHASE_BODY
from superkernel.sim.trace import COMMAND, MARKER
from superkernel.sync.aicore.plan import AicorePlan, CoreKind, Event, HartKind, Mode, Run, awaited
from superkernel.sync.hazards import find_conflicts
from superkernel.sync.plan import Hazard
from superkernel.target.aicore import AicoreTarget

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superkernel.backends.aicore.compiled import AicoreCompiled

Take = tuple[int, int]
"""An event, and the sub-operator ahead of which it is taken."""


@dataclass(frozen=True)
class ChainLink:
    """A take of a chain, and what nothing ahead of the operand can hide of it."""

    event: int
    subop: int
    left_ns: float


@dataclass(frozen=True)
class Chain:
    """Events that follow from one another: how many, their latency, and what of it nothing can hide; ns. `wide`: how
    many of them are of all cores. `beside_ns`: what work beside the chain could hide of it, which is taken off."""

    events: int = 0
    latency_ns: float = 0.0
    bound_ns: float = 0.0
    wide: int = field(default=0, compare=False)
    beside_ns: float = field(default=0.0, compare=False)
    links: tuple[ChainLink, ...] = field(default=(), compare=False)


def sync_lower_bound(compiled: AicoreCompiled, lines: Sequence[Timeline]) -> Chain:
    """The chain with the largest lower bound. `lines`: of a traced run."""
    target, plan = compiled.target, compiled.plan
    cycle_ns = target.nanoseconds(1)
    hidden = {take: cycle_ns * cycles for take, cycles in hidden_cycles(plan, target, lines).items()}
    chain = longest_chain(plan, target, hidden)
    work = {subop: cycle_ns * cycles for subop, cycles in work_cycles(lines).items()}
    beside_ns = beside(
        chain.links, Dependences.of(plan, len(compiled.schedule.subops)), plan, work, left_ns(plan, target, hidden)
    )
    return replace(chain, bound_ns=max(0.0, chain.bound_ns - beside_ns), beside_ns=beside_ns)


def longest_chain(plan: AicorePlan, target: AicoreTarget, hidden_ns: Mapping[Take, float]) -> Chain:
    """The chain with the largest lower bound, nothing beside it taken off. `hidden_ns`: what can hide of each take;
    where it says nothing, all of it."""
    lefts = left_ns(plan, target, hidden_ns)
    behind: dict[int, Chain] = {}  # up to the sub-operator's end
    latest: dict[HartKind, Chain] = {}
    taken: dict[int, set[int]] = {}
    for program in plan.programs.values():
        pending: set[int] = set()
        for step in program:
            pending |= set(awaited(step))
            if isinstance(step, Run):  # what stands ahead of a kernel belongs to it
                taken.setdefault(step.subop, set()).update(pending)
                pending = set()
    runs: dict[int, list[HartKind]] = {}
    for kind, program in plan.programs.items():
        for step in program:
            if isinstance(step, Run):
                runs.setdefault(step.subop, []).append(kind)
    for subop in sorted(runs):
        ways = [latest.get(kind, Chain()) for kind in runs[subop]]
        for number in sorted(taken.get(subop, ())):
            event = plan.events[number]
            before = behind.get(event.after, Chain())
            latency, left = latency_ns(target, event), lefts.get((number, subop), 0.0)
            ways.append(
                Chain(
                    before.events + 1,
                    before.latency_ns + latency,
                    before.bound_ns + left,
                    before.wide + (event.mode is Mode.ALL),
                    links=(*before.links, ChainLink(number, subop, left)),
                )
            )
        behind[subop] = max(ways, key=lambda chain: (chain.bound_ns, chain.latency_ns))
        latest |= dict.fromkeys(runs[subop], behind[subop])
    return max(behind.values(), key=lambda chain: (chain.bound_ns, chain.latency_ns), default=Chain())


def left_ns(plan: AicorePlan, target: AicoreTarget, hidden_ns: Mapping[Take, float]) -> dict[Take, float]:
    """What nothing ahead of the operands can hide of each take; of those that are not named, nothing is left."""
    return {
        take: max(0.0, latency_ns(target, event) - hidden)
        for take, hidden in hidden_ns.items()
        if (event := plan.events[take[0]]).mode is not Mode.NOTIFY
    }


def latency_ns(target: AicoreTarget, event: Event) -> float:
    """From the last signal to where the event is visible."""
    return target.nanoseconds(latency_cycles(target, event))


def latency_cycles(target: AicoreTarget, event: Event) -> int:
    """The same as the device counts it."""
    return target.flag_cycles(event.mode.value)


# What stands ahead of an operand --------------------------------------------------------------------------------------


def hidden_cycles(plan: AicorePlan, target: AicoreTarget, lines: Sequence[Timeline]) -> dict[Take, float]:
    """The most that the receivers' own work can hide of each take: see the module docstring."""
    found: dict[Take, list[float]] = {}
    for line in lines:
        early, last = _Earlier(line), line.ends.max(axis=0, initial=0)
        commands = [rows[rows["kind"] == COMMAND] for rows in line.of_core]
        spans = [(rows["begin"].astype(np.int64), rows["end"].astype(np.int64)) for rows in commands]
        for take in line.takes:
            is_counted = plan.kind(take.core) is line.counted.get(take.subop) and line.ends[take.core, take.subop]
            if take.event is None or not is_counted:
                continue
            begins, ends = spans[take.core]
            done = min(take.end, int(ends[begins < take.end].max(initial=take.begin)))
            latency = latency_cycles(target, plan.events[take.event])
            after = plan.events[take.event].after
            earliest = take.fired - early.by(take.core, after)
            hidden = float(min(latency, max(0, done - earliest, int(last[after]) - take.fired)))
            found.setdefault((take.event, take.subop), []).append(hidden)
    return {take: float(np.mean(rows)) for take, rows in found.items()}


class _Earlier:
    """By how much setters could signal earlier if their work and that of those they waited for were in equal shares."""

    def __init__(self, line: Timeline) -> None:
        self.line, self.busy = line, line.ends > 0
        self.last: list[HartKind | None] = []  # the type that is done last
        spread = [0.0]
        for subop in range(line.subops):
            rows = {kind: ends for kind in CoreKind if len(ends := self._ends(kind, subop))}
            kind = max(rows, key=lambda k: int(rows[k].max()), default=None)
            self.last.append(kind)
            spread.append(0.0 if kind is None else float(rows[kind].max() - rows[kind].mean()))
        self.spread = np.array(spread[1:])
        self.total = np.cumsum(spread)

    def _ends(self, kind: HartKind, subop: int) -> NDArray[np.int64]:
        ends = self.line.ends[list(self.line.plan.cores(kind)), subop]
        return ends[ends > 0]

    def by(self, core: int, after: int) -> float:
        """Since what the core itself did last."""
        own = np.flatnonzero(self.busy[core, : after + 1])
        if not len(own):
            return float(self.total[after + 1])
        subop, kind = int(own[-1]), self.line.plan.kind(core)
        behind = float(self._ends(kind, subop).max() - self.line.ends[core, subop])
        if self.last[subop] is not kind:  # the cores of the other type go on, tile by tile
            behind += float(self.spread[subop])
        return behind + float(self.total[after + 1] - self.total[subop + 1])


# What stands beside a chain -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dependences:
    """What each sub-operator depends on, and what depends on it, as sets of bits."""

    needs: tuple[int, ...]
    needed: tuple[int, ...]
    far: tuple[int, ...]  # what depends on it by way of a flag of more than a group
    direct: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(plan: AicorePlan, subops: int) -> Dependences:
        """By what tasks read of one another's results, whatever memory is used again."""
        direct: list[set[int]] = [set() for _ in range(subops)]
        wide: set[tuple[int, int]] = set()
        for conflicts in find_conflicts(plan.tasks):
            for conflict in conflicts:
                a, b = plan.tasks[conflict.earlier], plan.tasks[conflict.later]
                if conflict.hazard is Hazard.RAW and a.subop != b.subop:
                    direct[b.subop].add(a.subop)
                    if a.core != b.core and not _one_group(plan, a.core, b.core):
                        wide.add((a.subop, b.subop))
        needs, distant = [0] * subops, [0] * subops
        for subop in range(subops):
            for maker in direct[subop]:
                needs[subop] |= needs[maker] | 1 << maker
                distant[subop] |= distant[maker]
                if (maker, subop) in wide:
                    distant[subop] |= needs[maker] | 1 << maker
        return Dependences(tuple(needs), _turned(needs), _turned(distant), tuple(tuple(sorted(row)) for row in direct))

    def beside(self, after: int, subop: int) -> list[int]:
        """The sub-operators that may be done between the last maker of a sub-operator's operands by `after`, and it."""
        makers = [maker for maker in self.direct[subop] if maker <= after]
        maker = max(makers, default=after)
        fixed = self.needs[maker] | 1 << maker | self.far[maker] | self.needed[subop] | 1 << subop
        return [k for k in range(len(self.needs)) if not fixed >> k & 1]


def _one_group(plan: AicorePlan, a: int, b: int) -> bool:
    """Whether a flag within a group reaches from one core to another."""
    return max(a, b) < plan.total and plan.group(a) == plan.group(b) and plan.kind(a) is not plan.kind(b)


def _turned(rows: Sequence[int]) -> tuple[int, ...]:
    """Bit a of row b for bit b of row a."""
    return tuple(sum(1 << b for b, row in enumerate(rows) if row >> a & 1) for a in range(len(rows)))


def beside(
    links: Sequence[ChainLink],
    order: Dependences,
    plan: AicorePlan,
    work_ns: Mapping[int, float],
    left: Mapping[Take, float],
) -> float:
    """The most that sub-operators beside a chain can hide of it: of each take what may stand there, of each such
    sub-operator its work once. One whose results the receiver needs as well would be the last one to signal then, so
    that it hides no more than what is left less of its own event."""
    rooms: list[tuple[float, float, set[int], set[int]]] = []  # of a take: left, of it to makers; they, and others
    for link in links:
        found = set(order.beside(plan.events[link.event].after, link.subop))
        makers = {k for k in found if order.far[k] >> link.subop & 1}
        others = [_of_maker(k, link.subop, order, plan, left) for k in makers]
        gained = link.left_ns - min([link.left_ns, *others])
        rooms.append((link.left_ns, gained, makers, found - makers))

    def most(apart: set[int]) -> float:
        """With some sub-operators that hide all that they can, wherever that is: a cut of what may hide what."""

        def work(subops: set[int]) -> float:
            return sum(work_ns.get(k, 0.0) for k in subops - apart)

        each = (min(room, min(gained, work(makers)) + work(rest)) for room, gained, makers, rest in rooms)
        return sum(work_ns.get(k, 0.0) for k in apart) + sum(each)

    anywhere = sorted({k for *_, makers, rest in rooms for k in makers | rest}, key=lambda k: work_ns.get(k, 0.0))
    return min(most(set(anywhere[:count])) for count in range(len(anywhere) + 1))


def _of_maker(maker: int, subop: int, order: Dependences, plan: AicorePlan, left: Mapping[Take, float]) -> float:
    """What is left of the event that tells a sub-operator of a maker's results; 0 where none of them is its own."""
    found = [
        its
        for (event, taker), its in left.items()
        if taker == subop and ((after := plan.events[event].after) == maker or order.needs[after] >> maker & 1)
    ]
    return min(found, default=0.0)


def work_cycles(lines: Sequence[Timeline]) -> dict[int, float]:
    """How long each sub-operator keeps a core at most, without what it waits for others."""
    found: dict[int, float] = {}
    for line in lines:
        for core, rows in enumerate(line.of_core):
            mine = rows[(rows["marker"] % 4 == PHASE_BODY) & np.isin(rows["kind"], (COMMAND, MARKER))]
            for subop in np.flatnonzero(line.ends[core]).tolist():
                begin = int(mine["begin"][mine["marker"] // 4 == subop].min(initial=line.ends[core, subop]))
                waits = sum(t.end - t.begin for t in line.takes_of[core] if t.subop == subop)
                found[subop] = max(found.get(subop, 0.0), float(line.ends[core, subop]) - begin - waits)
    return found
