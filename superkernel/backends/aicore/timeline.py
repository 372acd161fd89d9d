"""What the cores of a simulated launch did when, from its event trace: `Timeline`, and the split of its time.

Model: at any moment a core is in one activity, the first of these that holds:

    compute     its cube or vector engine executes a command
    movement    another engine does: copies between memories, the way out of the accumulators
    misses      its control unit waits for a line of instructions
    pure        its control unit waits for a cross-core flag, and the last of the flag's setters has signalled
    imbalance   it waits for a flag that somebody has yet to signal: others have more to do
    control     else: the control unit executes instructions, or waits for its own engines' start-up and ends

The *frontier* passes from sub-operator to sub-operator: sub-operator i has it from when all earlier ones are done until
its own last core is done. For that time, the activities are those of the cores that take part in it, of the type whose
engines are busier (the *critical* type); the mean over them. A core that is done with i ahead of the others and has no
work of later ones is in imbalance. Waits that other work hides are therefore not counted, and nothing is counted twice.

Invariant: the activities of all sub-operators sum to the launch's cycles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from superkernel.codegen.aicore.program_spec import PHASE_BEHIND, PHASE_BODY, PHASE_ENTRY
from superkernel.sim.counters import STALLS, LaunchResult
from superkernel.sim.trace import COMMAND, FLOW_IN, FLOW_OUT, MARKER, STALL, records
from superkernel.sync.aicore.plan import AicorePlan, CoreKind, HartKind, Mode, Run, awaited
from superkernel.target.engines import Engine

if TYPE_CHECKING:
    from superkernel.backends.aicore.compiled import AicoreCompiled

Ints = NDArray[np.int64]


class Activity(IntEnum):
    """See the module docstring; a larger number goes first."""

    CONTROL = 0
    IMBALANCE = 1
    PURE = 2
    MISSES = 3
    MOVEMENT = 4
    COMPUTE = 5


PART_NAMES = {
    Activity.COMPUTE: "compute",
    Activity.MOVEMENT: "movement",
    Activity.MISSES: "misses",
    Activity.PURE: "pure sync",
    Activity.IMBALANCE: "imbalance",
    Activity.CONTROL: "control",
}
"""As reports and pages have them."""
COMPUTE_ENGINES = (Engine.M.value, Engine.V.value)
_CROSS, _WORD = STALLS.index("cross_wait"), STALLS.index("wait_memory")
_FETCHES = (STALLS.index("fetch"), STALLS.index("prefetch_late"))


@dataclass(frozen=True, slots=True)
class Take:
    """A core takes a cross-core flag. It stood still from `begin` to `end`; `setter` signalled last, at `fired`.
    `event` of the plan, None for flags inside a kernel; `subop`: in whose kernel, or ahead of whose kernel; as many as
    there are, where nothing stands behind it."""

    core: int
    event: int | None
    subop: int
    begin: int
    end: int
    fired: int
    setter: int


def span_of(compiled: AicoreCompiled, launch: LaunchResult) -> tuple[int, int]:
    """When a launch begins, and its cycles."""
    outside = len(compiled.schedule.subops)
    markers = [m for core in launch.cores for m in core.of_sub_operator(outside)]
    begin = min((m.control.first_cycle or 0 for m in markers if m.phase == PHASE_ENTRY), default=0)
    end = max((m.control.first_cycle or 0 for m in markers if m.phase == PHASE_BEHIND), default=launch.cycles)
    return begin, end - begin


@dataclass(frozen=True)
class Timeline:
    """One launch. `rows`: the trace's records; `events`: for each type of core the events that it takes, by flag."""

    rows: NDArray[np.void]
    begin: int
    end: int
    subops: int
    plan: AicorePlan
    single: bool = False

    @staticmethod
    def of(compiled: AicoreCompiled, launch: LaunchResult, *, single: bool = False) -> Timeline:
        """The timeline of a launch that was traced; `single`: of one sub-operator alone."""
        begin, cycles = span_of(compiled, launch)
        return Timeline(
            records(launch.trace), begin, begin + cycles, len(compiled.schedule.subops), compiled.plan, single
        )

    @cached_property
    def of_core(self) -> tuple[NDArray[np.void], ...]:
        """Records by core, in time."""
        order = np.lexsort((self.rows["begin"], self.rows["core"]))
        rows = self.rows[order]
        edges = np.searchsorted(rows["core"], np.arange(self.plan.total + 1))
        return tuple(rows[edges[c] : edges[c + 1]] for c in range(self.plan.total))

    @cached_property
    def ends(self) -> Ints:
        """When a core is done with a sub-operator, [core, sub-operator]; 0 where it has no part. Its engines' work and
        its control unit's, without signals and what stands behind."""
        found = np.zeros((self.plan.total, self.subops + 1), np.int64)
        subop, phase = self.rows["marker"] // 4, self.rows["marker"] % 4
        work = (phase == PHASE_BODY) & ((self.rows["kind"] == COMMAND) | (self.rows["kind"] == MARKER))
        work &= (subop <= self.subops) & (self.rows["core"] < self.plan.total)
        np.maximum.at(found, (self.rows["core"][work], subop[work]), self.rows["end"][work].astype(np.int64))
        return found[:, : self.subops]

    def loaded_by(self, core: int, subop: int, time: int) -> int:
        """When a core's loads that it began for a sub-operator before a time are done; 0: there are none."""
        rows = self._loads[core]
        mine = rows[(rows["marker"] // 4 == subop) & (rows["begin"] < time)]
        return int(mine["end"].max(initial=0))

    @cached_property
    def _loads(self) -> tuple[NDArray[np.void], ...]:
        """By core, loads from global memory inside kernels."""
        return tuple(
            rows[(rows["kind"] == COMMAND) & (rows["marker"] % 4 == PHASE_BODY) & (rows["track"] == Engine.MTE2.value)]
            for rows in self.of_core
        )

    @cached_property
    def takes(self) -> tuple[Take, ...]:
        """All flags that cores took, by core and time. Awaits and signals of a flag come in the same order on every
        core, which tells the event of each."""
        sets = self.rows[self.rows["kind"] == FLOW_OUT]
        flows = {int(r["extra"]): (int(r["core"]), int(r["begin"])) for r in sets}
        found: list[Take] = []
        for core, rows in enumerate(self.of_core):
            kind = self.plan.kind(core)
            queues = {flag: list(events) for flag, events in self._events[kind].items()}
            stalls = {end: begin for begin, end in _spans(rows, (_CROSS,))}
            behind = self._next[kind]
            for row in rows[rows["kind"] == FLOW_IN]:
                end, marker = int(row["end"]), int(row["marker"])
                setter, fired = flows.get(int(row["extra"]), (core, end))
                queue = queues.get(int(row["detail"]))
                event = queue.pop(0) if queue else None
                subop = marker // 4
                if marker % 4 == PHASE_BEHIND or subop == self.subops:  # it stands ahead of what comes next
                    subop = behind.get(subop, self.subops)
                found.append(Take(core, event, subop, stalls.get(end, end), end, fired, setter))
        return tuple(found)

    @cached_property
    def _events(self) -> dict[HartKind, dict[int, list[int]]]:
        """By type of core, for each flag the events that it takes, in order; words in memory are no flags."""
        found: dict[HartKind, dict[int, list[int]]] = {kind: {} for kind in self.plan.programs}
        if self.single:
            return found
        for kind, program in self.plan.programs.items():
            for step in program:
                for event in dict.fromkeys(awaited(step)):
                    if self.plan.events[event].mode is not Mode.NOTIFY:
                        found[kind].setdefault(self.plan.events[event].flag, []).append(event)
        return found

    @cached_property
    def _next(self) -> dict[HartKind, dict[int, int]]:
        """By type of core, the sub-operator that it runs behind another; `subops` stands for the launch's start."""
        found: dict[HartKind, dict[int, int]] = {}
        for kind, program in self.plan.programs.items():
            runs = [step.subop for step in program if isinstance(step, Run)]
            found[kind] = dict(zip([self.subops, *runs], runs, strict=False))
        return found

    # The split --------------------------------------------------------------------------------------------------------

    @cached_property
    def frontier(self) -> tuple[tuple[int, int, int], ...]:
        """(sub-operator, begin, end) of each that has the frontier, in time; together the launch."""
        done = self.ends.max(axis=0, initial=0)
        found: list[tuple[int, int, int]] = []
        at = self.begin
        for subop in range(self.subops):
            end = min(int(done[subop]), self.end)
            if end > at:
                found.append((subop, at, end))
                at = end
        if not found:
            return ((0, self.begin, self.end),)
        last, begin, _ = found[-1]
        return (*found[:-1], (last, begin, self.end))

    def split(self) -> dict[int, dict[Activity, float]]:
        """Cycles by sub-operator and activity: see the module docstring."""
        found: dict[int, dict[Activity, float]] = {}
        for number, (subop, _, _) in enumerate(self.frontier):
            if subop in self.counted:
                best = self._means(number)[self.counted[subop]]
            else:  # nobody has units in it: the launch's own instructions
                best = np.mean([row[number] for row in self._spent_by_core], axis=0)
            found[subop] = {activity: float(best[activity]) for activity in Activity}
        return found

    @cached_property
    def counted(self) -> dict[int, HartKind]:
        """The critical type of each sub-operator that has the frontier."""
        found: dict[int, HartKind] = {}
        for number, (subop, _, _) in enumerate(self.frontier):
            means = self._means(number)
            if means:
                found[subop] = max(means, key=lambda kind: float(means[kind][Activity.MOVEMENT :].sum()))
        return found

    def _means(self, number: int) -> dict[HartKind, NDArray[np.float64]]:
        """Of a part of the frontier, the mean over the cores of each type that have units."""
        subop = self.frontier[number][0]
        found: dict[HartKind, NDArray[np.float64]] = {}
        for kind in CoreKind:
            mine = [c for c in self.plan.cores(kind) if self.ends[c, subop]]
            if mine:
                found[kind] = np.mean([self._spent_by_core[c][number] for c in mine], axis=0)
        return found

    @cached_property
    def _spent_by_core(self) -> tuple[NDArray[np.float64], ...]:
        return tuple(self._spent(core) for core in range(self.plan.total))

    def _spent(self, core: int) -> NDArray[np.float64]:
        """Cycles of a core by sub-operator of the frontier and activity."""
        rows, ends = self.of_core[core], self.ends[core]
        pieces = [*self._waits(core), *((s, e, Activity.MISSES) for s, e in _spans(rows, _FETCHES))]
        pieces += [(int(ends[i]), e, Activity.IMBALANCE) for i, _, e in self.frontier if 0 < ends[i] < e]
        commands = rows[rows["kind"] == COMMAND]
        is_compute = np.isin(commands["track"], COMPUTE_ENGINES)
        for activity, chosen in ((Activity.MOVEMENT, ~is_compute), (Activity.COMPUTE, is_compute)):
            its = commands[chosen]
            pieces += [(s, e, activity) for s, e in zip(its["begin"].tolist(), its["end"].tolist(), strict=True)]
        edges = [self.begin, *(end for _, _, end in self.frontier)]
        return _painted(pieces, edges)

    def _waits(self, core: int) -> Iterable[tuple[int, int, Activity]]:
        for take in self.takes_of[core]:
            middle = min(max(take.begin, take.fired), take.end)
            yield take.begin, middle, Activity.IMBALANCE
            yield middle, take.end, Activity.PURE
        for begin, end in _spans(self.of_core[core], (_WORD,)):
            yield begin, end, Activity.IMBALANCE

    @cached_property
    def takes_of(self) -> tuple[tuple[Take, ...], ...]:
        """Takes by core."""
        found: list[list[Take]] = [[] for _ in range(self.plan.total)]
        for take in self.takes:
            found[take.core].append(take)
        return tuple(map(tuple, found))


def summed(splits: Iterable[Mapping[int, Mapping[Activity, float]]]) -> dict[Activity, float]:
    """Cycles by activity over sub-operators and launches."""
    total = dict.fromkeys(Activity, 0.0)
    for split in splits:
        for row in split.values():
            for activity, cycles in row.items():
                total[activity] += cycles
    return total


def _spans(rows: NDArray[np.void], causes: Sequence[int]) -> list[tuple[int, int]]:
    its = rows[(rows["kind"] == STALL) & np.isin(rows["detail"], causes)]
    return list(zip(its["begin"].tolist(), its["end"].tolist(), strict=True))


def _painted(pieces: Sequence[tuple[int, int, Activity]], edges: Sequence[int]) -> NDArray[np.float64]:
    """Pieces of time painted over one another in order, measured between the edges: [interval, activity]."""
    points = np.unique(np.array([*edges, *(p for s, e, _ in pieces for p in (s, e))], np.int64))
    state = np.full(len(points), int(Activity.CONTROL), np.int8)
    table: Any = np.array([(s, e) for s, e, _ in pieces], np.int64).reshape(-1, 2)
    first, last = np.searchsorted(points, table[:, 0]), np.searchsorted(points, table[:, 1])
    for (_, _, activity), a, b in zip(pieces, first.tolist(), last.tolist(), strict=True):
        state[a:b] = activity
    length = np.diff(points, append=points[-1])
    interval = np.searchsorted(np.asarray(edges), points, side="right") - 1
    inside = (interval >= 0) & (interval < len(edges) - 1)
    found = np.zeros((len(edges) - 1, len(Activity)))
    np.add.at(found, (interval[inside], state[inside]), length[inside])
    return found
