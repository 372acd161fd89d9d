"""Which events and awaits a schedule needs on the accelerator, and the cheapest that are enough.

Model: `known[c, p]` is the last sub-operator that core c knows core p to have completed. A conflict between a task of
core p in sub-operator i and a later one of core c needs known[c, p] >= i. What is missing ahead of a sub-operator is
propagated by events set behind the last sub-operator that is needed: `group` where only cores of one group are missing,
`type` where only cores of the own type are, `all` else (by the rule of `type-range` `across`, where one type waits for
the other). An event propagates everything that its setters knew when they
set it. Receivers that did not need an event take it later, when that costs nothing (`pending`): counts must not add
up. Between cores and the aicpu hart, which computes tilings, events are words in memory (`notify`).

Where flags run out, ranges get wider, and then words in memory take their place. With fewer flags than modes there are
events of all cores only. With none, or where one more use of a flag could take its count above the limit (what used it
`flag_count_max` times before is not known as taken), each pair of types gets a word (mode `notify`): more expensive,
unlimited.

Levels: `full` puts an event of all cores between any two sub-operators, `type-range` the narrowest event that the
types of the two kernels allow, whatever their data; `minimal` looks at the bytes.

Operands that were made one after the other are served in rounds, with an event for each, so that a kernel can begin
with those that were made first: `unsatisfied`.

Here is the walk over the schedule and the choice of events; `events` keeps the books of them, `notes` says why.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain
from typing import TypeAlias

from superkernel.core.collection import paused
from superkernel.scheduler.aicore.cores import Cores
from superkernel.scheduler.aicore.schedule import AicoreSchedule
from superkernel.scheduler.families.aicore.base import AicoreKernelType, AicoreTiling
from superkernel.sync.aicore.events import NARROW, Events, Family, Known, flags_of
from superkernel.sync.aicore.harts import Harts
from superkernel.sync.aicore.notes import Notes
from superkernel.sync.aicore.plan import (
    AICPU,
    AicoreBoundary,
    AicorePlan,
    Await,
    CoreKind,
    Drain,
    Event,
    Form,
    HartKind,
    LaunchEnd,
    Mode,
    OperandWait,
    Pause,
    Run,
    Step,
    receiver_of,
)
from superkernel.sync.aicore.unsatisfied import FEW, Conflicts, FewConflicts, Unsatisfied
from superkernel.sync.hazards import FoundConflicts, Witnesses, find_all
from superkernel.target.aicore import AicoreTarget

Families: TypeAlias = Mapping[Family, tuple[list[tuple[HartKind, HartKind]], int]]
"""Of the events that bring what is missing: for which pairs of types, behind which sub-operator."""

_WITNESSES = 4  # kept per boundary
_AT_ONCE = 1 << 16  # conflicts


@paused()
def plan_aicore(
    schedule: AicoreSchedule,
    target: AicoreTarget,
    *,
    sync: str = "minimal",
    early_start: bool = True,
    cuts: Collection[int] = (),
    conflicts: FoundConflicts | None = None,
) -> AicorePlan:
    """The plan of a schedule made by `place_aicore`. `cuts`: sub-operators that begin another launch; `conflicts`:
    those of the schedule's tasks, where they are known. Raises UnsupportedError where the target has too few flags."""
    known = find_all(schedule.tasks) if conflicts is None else conflicts
    return _Planner(schedule, target, sync, early_start, cuts, known).run()


class _Planner:
    def __init__(
        self,
        schedule: AicoreSchedule,
        target: AicoreTarget,
        sync: str,
        early_start: bool,
        cuts: Collection[int],
        conflicts: FoundConflicts,
    ) -> None:
        self.schedule, self.sync, self.early_start, self.cuts = schedule, sync, early_start, cuts
        self.found = conflicts
        self.cores = Cores(target)
        tiled = any(isinstance(t, AicoreTiling) and t.kernel_type.on_aicpu for t in schedule.tilings)
        self.harts = Harts(self.cores, tiled)
        self.block, self.conflicts = slice(0, 0), Conflicts.of(conflicts.accesses, conflicts.pairs[:0], self.harts)
        self.rows: list[list[int]] = []  # of the block, where sub-operators have few
        flags, count_max = flags_of(schedule, target), int(target.sync.flag_count_max)
        self.events = Events(self.harts, flags, count_max)
        self.notes = Notes(target, sync, flags, count_max, len(self.events.modes) >= len(NARROW))
        self.busy: list[set[int]] = [set() for _ in schedule.subops]  # cores with units
        self.steps: dict[HartKind, list[list[Step]]] = {kind: [] for kind in self.harts.types}  # per sub-operator
        self.boundaries: list[AicoreBoundary] = []
        self.start = 0  # of the launch
        tilings = enumerate(schedule.tilings)
        self.barriers = {i: t.barriers for i, t in tilings if isinstance(t, AicoreTiling) and t.barriers}
        of_type = {kernel: self._types_of(kernel) for kernel in AicoreKernelType}
        # The types of cores that a sub-operator runs on; none runs what NumPy computes.
        self.kinds = [of_type[t.kernel_type] if isinstance(t, AicoreTiling) else () for t in schedule.tilings]

    def _types_of(self, kernel: AicoreKernelType) -> tuple[HartKind, ...]:
        uses = {CoreKind.CUBE: kernel.uses_cube, CoreKind.VECTOR: kernel.uses_vector, AICPU: kernel.on_aicpu}
        return tuple(kind for kind in self.harts.types if uses[kind])

    # The walk ---------------------------------------------------------------------------------------------------------

    def run(self) -> AicorePlan:
        tasks = self.schedule.tasks
        for task in tasks:
            self.busy[task.subop].add(task.core)
        for sub in self.schedule.subops:
            self._open()
            if not self.kinds[sub.index]:
                self._pause(sub.index)
            else:
                if sub.index in self.cuts and sub.index > self.start:
                    self._end_launch(sub.index, LaunchEnd(sub.index), sub.index - 1)
                self._boundary(sub.index)
                for kind in self.kinds[sub.index]:
                    if not self.early_start:
                        self.steps[kind][-1].append(Drain())
            self.events.own[:] = sub.index
            self.events.after.append(self.events.known.copy())
        self._open()
        self._flush_all(len(self.schedule.subops))
        programs = {
            kind: tuple(
                step
                for row, behind in zip(self.steps[kind], self.events.signals[kind], strict=True)
                for step in (*row, *behind)
            )
            for kind in self.harts.types
        }
        cores = self.cores
        return AicorePlan(
            tasks, cores.cube, cores.vector, cores.groups, programs, tuple(self.events.made), tuple(self.boundaries),
            self.events.flags, self.events.count_max, barriers=self.barriers, copies=self.schedule.copies,
        )  # fmt: skip

    def _open(self) -> None:
        for kind in self.harts.types:
            self.steps[kind].append([])
            self.events.signals[kind].append([])

    def _pause(self, subop: int) -> None:
        """A fallback: the launch ends, NumPy works, another launch begins. Everything is known then."""
        self._end_launch(subop, Pause(subop), subop)
        self.boundaries.append(
            AicoreBoundary(subop, Form.ALL, "computed by NumPy between two launches", (), (), (), 0, 0.0, ())
        )

    def _end_launch(self, subop: int, step: Pause | LaunchEnd, last: int) -> None:
        """Ahead of a sub-operator. Another launch begins behind `last`, which everybody knows to be complete."""
        self._flush_all(subop)
        for kind in self.harts.types:
            self.steps[kind][-1].append(step)
        self.events.known[:] = last
        self.events.fenced[:] = last
        self.start = last + 1

    # One boundary -----------------------------------------------------------------------------------------------------

    def _boundary(self, subop: int) -> None:
        # Awaits ahead of the kernel, by type.
        before: dict[HartKind, list[int]] = {kind: [] for kind in self.harts.types}
        if self.sync != "minimal" and subop > self.start:
            for event, kind in self._by_rule(subop):
                for earlier in self.events.ahead(event, kind):
                    before[kind].append(earlier.index)
                    self.events.take(earlier, kind, subop)
        here = self._conflicts(subop)
        needs, missing, implied = here.unsatisfied(self.events.known)
        witnesses = Witnesses(self.found.accesses, missing[:_WITNESSES].accesses)
        words, families = self._notified(needs)
        for event in words:
            before[event.receivers[0]].append(event.index)
            self.events.take(event, event.receivers[0], subop)
        if any(before.values()):  # the hart has told what it knew of others
            needs, missing, _ = here.unsatisfied(self.events.known)
            families = {}
        fenced = self.events.fenced.copy()  # what events at operands bring counts for these operands only
        waits: dict[HartKind, dict[int, list[int]]] = {kind: {} for kind in self.harts.types}
        for part in self._rounds(needs, missing):
            known = families if part is needs else {}
            latest = max([row.last for row in needs.values()])
            self._add_events(subop, part, known or self._families(part), waits, latest)
        fences = self._fences(subop, here, waits, fenced)
        for kind in self.harts.types:
            row = self.steps[kind][subop]
            behind: list[Await] = []  # what takes earlier counts of their flags
            if drained := self._drain_pending(subop, kind):
                taken = {self.events.made[e].family for es in (before[kind], *waits[kind].values()) for e in es}
                row += [Await(e.index, subop) for e in drained if e.family not in taken]
                behind = [Await(e.index, subop) for e in drained if e.family in taken]
            if before[kind]:
                row += [Await(e, subop) for e in before[kind]]
            if kind in self.kinds[subop]:
                self._add_run(row, subop, kind, waits[kind], fences.get(kind, set()))
            else:
                assert not waits[kind]
            row += behind
        events = dict.fromkeys(chain(*before.values(), *(es for row in waits.values() for es in row.values())))
        made = list(map(self.events.made.__getitem__, events))
        begins = subop > 0 and subop == self.start
        self.boundaries.append(self.notes.boundary(subop, made, tuple(fences), witnesses, implied, begins=begins))

    def _conflicts(self, subop: int) -> Conflicts | FewConflicts:
        """Those of its tasks. Columns are made for as many sub-operators at once as have `_AT_ONCE` of them."""
        mine = self.found.of(subop)
        if mine.stop > self.block.stop:
            self.block = slice(mine.start, max(mine.stop, mine.start + _AT_ONCE))
            self.conflicts = Conflicts.of(self.found.accesses, self.found.pairs[self.block], self.harts)
            self.rows = []
        at = slice(mine.start - self.block.start, mine.stop - self.block.start)
        if at.stop - at.start > FEW:
            return self.conflicts[at]
        if not self.rows:
            self.rows = self.conflicts.columns.T.tolist()
        return FewConflicts(self.harts, self.rows[at])

    def _add_run(
        self, row: list[Step], subop: int, kind: HartKind, waits: dict[int, list[int]], fences: set[int]
    ) -> None:
        joined = self.barriers.get(subop, 0)
        if joined and self.busy[subop].issuperset(range(self.harts.total)[self.harts.of(kind)]):
            joined = 0
        if self.early_start:
            operands = sorted({*waits, *fences})
            entries = [OperandWait(o, tuple(waits.get(o, ())), o in fences) for o in operands]
            row.append(Run(subop, tuple(entries), joined))
            return
        row += [Await(e, subop) for e in sorted({e for es in waits.values() for e in es})]
        row.append(Run(subop, barriers=joined))

    def _rounds(self, needs: Unsatisfied, missing: Conflicts | FewConflicts) -> list[Unsatisfied]:
        """What is missing, in the rounds in which it is propagated: one where all waits stand ahead of the kernel, or
        where flags are short."""
        rounds = missing.rounds() if self.early_start and needs else []
        if len(rounds) < 2 or not self.events.has_flags(len(rounds)):
            return [needs] if needs else []
        return [missing.unsatisfied(self.events.known, uses)[0] for uses in rounds]

    def _add_events(
        self,
        subop: int,
        needs: Unsatisfied,
        families: Families,
        waits: dict[HartKind, dict[int, list[int]]],
        latest: int,
    ) -> None:
        """Events that bring what is missing, to the operands that need it. What other operands of the kernel wait for
        may serve; what of it has the same flags is taken first, whichever operand the kernel comes to first. `latest`:
        what some operand of the kernel needs, so that an event of all cores behind no more comes early enough."""
        for family, (keys, last) in families.items():
            here = {k: {self.events.made[e] for es in row.values() for e in es} for k, row in waits.items() if row}
            receivers = {receiver for _, receiver in keys}
            event = (
                self.events.find(family, last, receivers, here)
                or self.events.find((Mode.ALL, None), last, receivers, here, latest)
                or self.events.make(family, last)
            )
            operands: dict[HartKind, set[int]] = {}
            for key in keys:
                operands.setdefault(key[1], set()).update(needs[key].operands)
            for receiver, needing in operands.items():
                mine = here.get(receiver, ())
                ahead = self.events.ahead(event, receiver, mine)
                for operand in needing:
                    row = waits[receiver].setdefault(operand, [])
                    row += [e.index for e in ahead if e.index not in row]
                for earlier in ahead:
                    if earlier not in mine:
                        self.events.take(earlier, receiver, subop)

    def _families(self, needs: Unsatisfied) -> Families:
        """The families of events that bring what is missing: for which pairs of types, behind which sub-operator."""
        families: dict[Family, list[tuple[HartKind, HartKind]]] = {}
        if not needs:
            return {}
        for (setter, receiver), row in needs.items():
            if setter is receiver:
                family: Family = (Mode.TYPE, setter)
            elif row.own_group and self.events.signals_once(setter) and self.events.may_run_ahead(setter, row.last):
                family = (Mode.GROUP, setter)
            else:
                family = (Mode.ALL, None)
            if family[0] not in self.events.modes:
                family = (Mode.ALL, None)
            families.setdefault(family, []).append((setter, receiver))
        if len(needs) == 1:
            return {family: ([(setter, receiver)], row.last)}
        lasts = {family: max(needs[key].last for key in keys) for family, keys in families.items()}
        widest = max((row.last for row in needs.values()), default=0)
        chosen = self._fewest(families, needs)
        return {f: (keys, widest if f[1] is None else lasts[f]) for f, keys in chosen.items()}

    def _notified(self, needs: Unsatisfied) -> tuple[list[Event], Families]:
        """Words for what no flag can bring: an aicpu hart has none, or none is free. What they bring is taken out of
        `needs`. Waits stand ahead of the kernel: what it does before its first access is no work where all depends on a
        tiling. And the families of events for all that needs no aicpu hart."""
        pairs = [pair for pair in needs if AICPU in pair]
        families = self._families({p: row for p, row in needs.items() if AICPU not in p} if pairs else needs)
        for family, (keys, last) in families.items():
            found = self.events.find(family, last, {receiver for _, receiver in keys})
            if found is None and not self.events.is_free(family, last):
                pairs += keys
        if not pairs:
            return [], families
        pairs.sort(key=lambda pair: (pair[0].value, pair[1].value))
        return [self.events.make_word(*pair, needs.pop(pair).last) for pair in pairs], families

    def _fewest(
        self,
        families: dict[Family, list[tuple[HartKind, HartKind]]],
        needs: Unsatisfied,
    ) -> dict[Family, list[tuple[HartKind, HartKind]]]:
        """Without the families whose events bring nothing that the others do not bring anyway, the widest left out
        last (an event of all cores propagates everything)."""
        if (Mode.ALL, None) in families:
            return {(Mode.ALL, None): list(needs)}
        pairs = set().union(*(row.conflicts.needs for row in needs.values())) if len(families) > 1 else ()
        for family in sorted(families, key=lambda f: f[0] is not Mode.TYPE):
            others = {f: max(needs[k].last for k in keys) for f, keys in families.items() if f != family}
            if others and all(self.events.propagated(others, *pair) for pair in pairs):
                gone = families.pop(family)
                for (mode, setters), keys in families.items():
                    observes = setters if setters is None else receiver_of(mode, setters)
                    keys += [k for k in gone if k not in keys and k[1] is observes]
        return families

    def _drain_pending(self, subop: int, kind: HartKind) -> list[Event]:
        """Take pending events before their counts come near the limit: those that all setters have passed."""
        limit = max(1, self.events.width * self.events.count_max // 2)
        drained: list[Event] = []
        if len(self.events.pending[kind]) < limit:
            return drained
        pending = list(self.events.pending[kind].values())
        for family in dict.fromkeys(e.family for e in pending):
            waiting = [e for e in pending if e.family == family]
            if len(waiting) >= limit:
                drained += waiting[: max(1, len(waiting) // 2)]
        for event in drained:
            self.events.take(event, kind, subop)
        return drained

    def _flush_all(self, subop: int) -> None:
        """At the end of a launch all counts are 0."""
        for kind in self.harts.types:
            for event in self.events.pending[kind]:
                self.steps[kind][-1].append(Await(event, subop))
                self.events.taken[event, kind] = subop
            self.events.pending[kind].clear()

    def _fences(
        self, subop: int, here: Conflicts | FewConflicts, waits: dict[HartKind, dict[int, list[int]]], fenced: Known
    ) -> dict[HartKind, set[int]]:
        """Operands by type that a core reads after having written them itself, its stores not fenced since."""
        found: dict[HartKind, set[int]] = {}
        for hart, wanted, at in here.unfenced(fenced) if self.early_start else ():
            kind = self.harts.kinds[hart]
            if all(self.events.returned[e].item(hart) < wanted for e in waits[kind].get(at, ())):
                found.setdefault(kind, set()).add(at)
        for core in self.busy[subop] if found else ():  # a core without units passes no fence
            if self.harts.kinds[core] in found:
                self.events.fenced[core] = subop - 1
        return found

    # Rules ------------------------------------------------------------------------------------------------------------

    def _by_rule(self, subop: int) -> list[tuple[Event, HartKind]]:
        """The events between a sub-operator and the one before it, by the level, and who waits for them here. At level
        `type-range` that is who runs the sub-operator: the others take the event when their counts ask for it."""
        if AICPU in (*self.kinds[subop], *self.kinds[subop - 1]):
            return self._by_rule_with_aicpu(subop)
        here, there = self.kinds[subop], self.kinds[subop - 1]
        if self.sync == "full":
            family: Family = (Mode.ALL, None)
            who: tuple[HartKind, ...] = tuple(CoreKind)
        elif len(here) == len(there) == 1:
            family, who = (Mode.TYPE if here == there else Mode.ACROSS, there[0]), here
        else:
            family, who = (Mode.ALL, None), here
        setters = CoreKind if family[1] is None else (family[1],)
        if family[0] not in self.events.modes:
            family = (Mode.ALL, None)
        if self.events.is_free(family, subop - 1):
            event = self.events.make(family, subop - 1)
            return [(event, kind) for kind in who]
        return [(self.events.make_word(setter, kind, subop - 1), kind) for kind in who for setter in setters]

    def _by_rule_with_aicpu(self, subop: int) -> list[tuple[Event, HartKind]]:
        """All cores -> aicpu hart -> all cores, whatever the level: nothing narrower is a rule of types."""
        if self.kinds[subop] == self.kinds[subop - 1]:
            return []
        if AICPU in self.kinds[subop]:
            return [(self.events.make_word(kind, AICPU, subop - 1), AICPU) for kind in CoreKind]
        return [(self.events.make_word(AICPU, kind, subop - 1), kind) for kind in CoreKind]
