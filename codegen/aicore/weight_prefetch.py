"""Which constants SDMA brings into L2 ahead of their use, and when: a schedule.

Model: SDMA is one queue; a task takes its start-up and its bytes at `sdma.rate_gb_per_s`. Each of its lines waits for
others at its bank of L2 and its channel of HBM, as long as a random arrival waits for a server that is busy for the
part of the time that the sub-operators at hand keep it busy (`weight_demand`); one line is under way at a time. A task
is for one sub-operator, is *released* where the cores come to a sub-operator ahead of it, and must be done where they
begin its own. Candidates are taken one after the other (`choose` tries two orders), as long as all that are taken keep
their times in the order of their use.

L2 is played through as a list of stretches, least recently used out first. A release is as early as can be such that
nothing that would have been there is missed, and nothing that was prefetched has gone out before its use: where L2 is
short, that is the distance that fits.

The service hart issues the tasks (`sync.aicore.plan`): a release is a `Notify` of the cores, behind the stores of
the sub-operator before (control units run ahead of their engines), and an `AwaitCount` of the hart, which comes
`sync.memory_flag_ns` later; what is released with the launch needs neither.

Strength: `none`; `auto`, what gains, if it gains WORTH of the launch in all; `max`, whatever there is time and room
for, in the order of use.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from superkernel.codegen.aicore.weight_demand import Demand, Times, demands_of, launches_of, times_of
from superkernel.scheduler.schedule import Schedule, Space
from superkernel.sync.aicore.plan import (
    AICPU,
    AicorePlan,
    AwaitCount,
    CoreKind,
    LaunchEnd,
    Notify,
    Pause,
    Prefetch,
    Run,
    ServiceProgram,
    ServiceStep,
    Step,
)
from superkernel.target.aicore import AicoreTarget

NONE, AUTO, MAX = "none", "auto", "max"
WORTH: Final = 0.01  # part of the launch's time that all tasks together must gain
WORTH_TASK: Final = 0.001  # ... that each must
SHARE: Final = 0.25  # the least part of its rate that SDMA must get to begin
BUSY_MAX: Final = 0.99
ROOM: Final = 0.9  # part of L2 that is planned with: its sets do not fill evenly
STRETCHES: Final = 256  # that L2 is divided into to play it through
BYTES_MIN: Final = 16384  # smaller constants are there as soon as they are asked for


@dataclass(frozen=True)
class PrefetchTask:
    """A sub-operator's constants, and where it is released: ahead of a sub-operator."""

    demand: Demand
    release: int


@dataclass(frozen=True)
class WeightPrefetch:
    """What was decided, and why. `gain_cycles`: predicted, in all; `notes` by sub-operator."""

    strength: str
    tasks: tuple[PrefetchTask, ...]
    gain_cycles: float
    reason: str
    notes: Mapping[int, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """What SDMA moves in all."""
        return sum(task.demand.nbytes for task in self.tasks)

    def note_of(self, subop: int) -> str:
        """What was decided about a sub-operator's constants."""
        return self.notes.get(subop, "" if self.tasks else self.reason)


NO_PREFETCH: Final = WeightPrefetch(NONE, (), 0.0, "off: as asked for")


def plan_weight_prefetch(
    schedule: Schedule, plan: AicorePlan, target: AicoreTarget, strength: str = AUTO
) -> WeightPrefetch:
    """Decide for a schedule and the plan of its synchronisation."""
    if strength == NONE:
        return NO_PREFETCH
    if not target.device.sdma_engines or target.cores + target.device.aicpu_harts <= plan.harts:
        lacking = "SDMA engine" if not target.device.sdma_engines else "aicpu hart left to issue its tasks"
        return WeightPrefetch(NONE, (), 0.0, f"off: the device has no {lacking}")
    if AICPU in plan.programs:
        return WeightPrefetch(NONE, (), 0.0, "off: the aicpu hart computes tilings")
    demands = demands_of(schedule, plan, target)
    if not any(demand.ranges for demand in demands):
        return WeightPrefetch(NONE, (), 0.0, "off: nothing reads constants")
    return _Chooser(schedule, demands, plan, target, strength).choose()


def with_prefetch(plan: AicorePlan, prefetch: WeightPrefetch) -> AicorePlan:
    """The plan with the service programs, and the cores' notifications for them."""
    if not prefetch.tasks:
        return plan
    launch_of = launches_of(plan)
    kind_of = {s.subop: kind for kind in CoreKind for s in plan.programs[kind] if isinstance(s, Run)}
    before = _before(launch_of, kind_of)
    counts: dict[tuple[int, CoreKind], list[int]] = {}  # the sub-operators behind which a type notifies
    for task in prefetch.tasks:
        behind = before[task.release]
        if behind is not None:
            row = counts.setdefault((launch_of[behind], kind_of[behind]), [])
            row += [behind] if behind not in row else []
    for row in counts.values():
        row.sort()
    services: list[list[ServiceStep]] = [[] for _ in range(max(launch_of.values(), default=0) + 1)]
    for task in sorted(prefetch.tasks, key=lambda t: (launch_of[t.demand.subop], t.release, t.demand.subop)):
        launch, behind = launch_of[task.demand.subop], before[task.release]
        steps = services[launch]
        if behind is not None:
            wait = AwaitCount(kind_of[behind], counts[launch, kind_of[behind]].index(behind) + 1)
            steps += [wait] if wait not in steps else []
        steps += [Prefetch(task.demand.subop, begin, end - begin) for begin, end in task.demand.ranges]
    programs = {
        kind: tuple(_notifying(program, {at: row for (at, its), row in counts.items() if its is kind}))
        for kind, program in plan.programs.items()
    }
    service: tuple[ServiceProgram, ...] = tuple(map(tuple, services))
    return replace(plan, programs=programs, service=service)


def _before(launch_of: Mapping[int, int], kind_of: Mapping[int, CoreKind]) -> dict[int, int | None]:
    """The sub-operator on cores ahead of each in its launch."""
    last: dict[int, int] = {}
    found: dict[int, int | None] = {}
    for subop, launch in sorted(launch_of.items()):
        found[subop] = last.get(launch)
        if subop in kind_of:
            last[launch] = subop
    return found


def _notifying(program: Sequence[Step], counts: Mapping[int, Sequence[int]]) -> Iterable[Step]:
    launch = 0
    for step in program:
        yield step
        if isinstance(step, Run) and step.subop in counts.get(launch, ()):
            yield Notify(counts[launch].index(step.subop) + 1)
        launch += isinstance(step, (Pause, LaunchEnd))


class _Chooser:
    def __init__(
        self, schedule: Schedule, demands: Sequence[Demand], plan: AicorePlan, target: AicoreTarget, strength: str
    ) -> None:
        self.schedule, self.demands, self.plan, self.target, self.strength = schedule, demands, plan, target, strength
        self.launch_of = launches_of(plan)
        self.first: dict[int, int] = {}  # sub-operator of each launch
        for subop, launch in sorted(self.launch_of.items()):
            self.first.setdefault(launch, subop)
        on_cores = {d.subop: CoreKind.CUBE for d in demands if set(d.kinds) & set(CoreKind)}
        self.before = _before(self.launch_of, on_cores)
        self.of = {demand.subop: demand for demand in demands}
        self.names = [sub.name for sub in schedule.subops]
        self.startup = target.cycles(target.sdma.startup_ns) + target.cycles(target.hbm.latency_ns)
        self.rate = target.bytes_per_cycle(target.sdma.rate_gb_per_s)
        self.flag = target.cycles(target.sync.memory_flag_ns)
        self.cold = times_of(demands, plan, target)
        self.l2 = target.bytes_per_cycle(target.l2.aggregate_gb_per_s)
        self.hbm = target.bytes_per_cycle(target.hbm_gb_per_s)
        self.cache = _Cache(schedule, target)
        self.notes: dict[int, str] = {}

    def choose(self) -> WeightPrefetch:
        """`auto` takes candidates by gain per cycle of SDMA, and from the last one on, whose times what is taken then
        does not change, and keeps what ends first."""
        candidates = [d for d in self.demands if d.ranges and self._eligible(d)]
        orders = [candidates]
        if self.strength == AUTO:
            by_gain = sorted(candidates, key=lambda d: (-self.cold.gain[d.subop] / self._work(d), d.subop))
            orders = [by_gain, candidates[::-1]]
        tried = [self._taken(order) for order in orders]
        taken, times, notes = min(tried, key=lambda one: one[1].total)
        self.notes |= notes
        return self._result(taken, times)

    def _taken(self, candidates: Sequence[Demand]) -> tuple[list[PrefetchTask], Times, dict[int, str]]:
        """Tasks for as many candidates as there is time and room for, one after the other; what is to be said."""
        taken: list[PrefetchTask] = []
        times, notes = self.cold, dict[int, str]()
        for demand in candidates:
            prefetched = [*(t.demand.subop for t in taken), demand.subop]
            after = times_of(self.demands, self.plan, self.target, prefetched)
            task, notes[demand.subop] = self._try(demand, taken, times.gain[demand.subop], after)
            if task is not None:
                taken = sorted([*taken, task], key=lambda t: (t.demand.subop, t.release))
                times = after
        return taken, times, notes

    def _result(self, taken: Sequence[PrefetchTask], times: Times) -> WeightPrefetch:
        gain = self.cold.total - times.total
        share = gain / max(1.0, self.cold.total)
        if self.strength == AUTO and (not taken or share < WORTH):
            why = self._why_not(taken, gain)
            notes = {**self.notes, **{t.demand.subop: f"not prefetched: {why}" for t in taken}}
            return WeightPrefetch(NONE, (), 0.0, f"off: {why}", notes)
        said = f"{len(taken)} sub-operators' constants, about {gain:.0f} of {self.cold.total:.0f} cycles to gain"
        return WeightPrefetch(self.strength if taken else NONE, tuple(taken), gain, said, self.notes)

    def _why_not(self, taken: Sequence[PrefetchTask], gain: float) -> str:
        if taken:
            return f"{gain:.0f} of {self.cold.total:.0f} cycles to gain is not worth it"
        reasons = [note.removeprefix("not prefetched: ") for note in self.notes.values()]
        common = max(dict.fromkeys(reasons), key=reasons.count) if reasons else "no constants to prefetch"
        return f"nothing to gain: {common}"

    def _eligible(self, demand: Demand) -> bool:
        """Whether having the constants in L2 would make the sub-operator faster."""
        why = ""
        if demand.nbytes < BYTES_MIN:
            why = "few bytes"
        elif not demand.whole:
            why = "the kernel reads parts that depend on data"
        elif self.strength == AUTO and self.cold.gain[demand.subop] < WORTH_TASK * self.cold.total:
            why = "its constants come as fast as it works them off"
        if why:
            self.notes[demand.subop] = f"not prefetched: {why}"
        return not why

    def _work(self, demand: Demand) -> float:
        """Cycles of SDMA at its full rate."""
        return len(demand.ranges) * self.startup + demand.nbytes / self.rate

    def _try(
        self, demand: Demand, taken: Sequence[PrefetchTask], gain_cycles: float, times: Times
    ) -> tuple[PrefetchTask | None, str]:
        """The task with the earliest release that keeps everybody's time and place, and why it, or none. `times`: with
        it, when sub-operators come sooner."""
        said = ""
        for release in self._releases(demand):
            task = PrefetchTask(demand, release)
            others = sorted([*taken, task], key=lambda t: (t.demand.subop, t.release))
            if self.strength == AUTO and self._share(release, times) < SHARE:
                said = said or "HBM is busy all the time ahead of it"
            elif not self._in_time(others, times):
                said = "there is not enough time ahead of it in which SDMA has nothing to do and HBM is not busy"
                break
            elif not self.cache.holds([(t.release, t.demand) for t in others]):
                said = "L2 has no room for it beside what is needed sooner"
            else:
                where = f"{self.names[release]!r} ({demand.subop - release} sub-operators ahead)"
                gain = f"about {gain_cycles:.0f} cycles sooner"
                return task, f"prefetched from {where} on: {demand.nbytes} bytes, {gain}"
        return None, f"not prefetched: {said or 'nothing runs ahead of it in its launch'}"

    def _releases(self, demand: Demand) -> list[int]:
        """Sub-operators of the launch that stand ahead, the first one first, then nearer and nearer."""
        launch = self.launch_of[demand.subop]
        ahead = [
            d.subop
            for d in self.demands
            if d.subop < demand.subop and self.launch_of[d.subop] == launch and set(d.kinds) & set(CoreKind)
        ]
        if len(ahead) <= 8:
            return ahead
        steps = sorted({len(ahead) * n // 8 for n in range(8)} | {len(ahead) - 1, len(ahead) - 2})
        return [ahead[n] for n in steps]

    def _in_time(self, tasks: Sequence[PrefetchTask], times: Times) -> bool:
        """Whether every task of one queue is done where its sub-operator begins."""
        at, launch = 0.0, -1
        for task in tasks:
            its = self.launch_of[task.demand.subop]
            if its != launch:
                at, launch = times.entry[self.first[its]], its
            behind = self.before[task.release]
            at = max(at, times.end[behind] + self.flag if behind is not None else 0.0)
            at = self._done(at, self._work(task.demand), task.release, times)
            if at > times.start[task.demand.subop]:
                return False
        return True

    def _done(self, at: float, work: float, release: int, times: Times) -> float:
        """When a task that begins at a time ends, HBM being shared with the sub-operators that run then."""
        for demand in self.demands:
            begin, end = times.start[demand.subop], times.end[demand.subop]
            if demand.subop < release or end <= at:
                continue
            if begin > at:
                work -= min(work, begin - at)
                at = max(at, begin) if work else at
            share = self._share(demand.subop, times)
            if work <= (end - at) * share:
                return at + work / share if work else at
            work -= (end - at) * share
            at = end
        return at + work

    def _share(self, subop: int, times: Times) -> float:
        """The part of its rate that SDMA gets beside a sub-operator."""
        demand, line = self.of[subop], int(self.target.l2.line_bytes)
        cycles = max(1.0, times.end[subop] - times.start[subop])
        waits = 0.0
        for nbytes, rate, servers in (
            (demand.hbm_bytes, self.hbm, int(self.target.hbm.channels)),
            (demand.l2_bytes, self.l2, int(self.target.l2.banks)),
        ):
            busy = min(BUSY_MAX, nbytes / cycles / rate)
            waits += busy / (2 * (1 - busy)) * line * servers / rate
        own = line / self.rate
        return own / (own + waits)


class _Cache:
    """L2 as a list of stretches of memory."""

    def __init__(self, schedule: Schedule, target: AicoreTarget) -> None:
        self.room = int(STRETCHES * ROOM)
        self.nbytes = max(1, target.l2_room_bytes // STRETCHES)
        self.touches: list[list[tuple[object, ...]]] = [[] for _ in schedule.subops]
        for task in schedule.tasks:
            row: dict[tuple[object, ...], None] = dict.fromkeys(self.touches[task.subop])
            for access in task.accesses:
                for region in access.regions:
                    row.update(dict.fromkeys(self._stretches((access.space, access.slot), region.start, region.stop)))
            self.touches[task.subop] = list(row)
        self.fits = len({key for row in self.touches for key in row}) <= self.room
        self.before = frozenset() if self.fits else self._play({})

    def _stretches(self, space: tuple[object, ...], start: int, stop: int) -> list[tuple[object, ...]]:
        return [(*space, n) for n in range(start // self.nbytes, (max(stop, start + 1) - 1) // self.nbytes + 1)]

    def holds(self, tasks: Sequence[tuple[int, Demand]]) -> bool:
        """Whether tasks, each at its release, cost nobody anything and are there when they are used."""
        if self.fits:
            return True
        added: dict[int, list[tuple[object, ...]]] = {}
        wanted = set()
        for release, demand in tasks:
            for begin, end in demand.ranges:
                keys = self._stretches((Space.CONSTANT, 0), begin, end)
                added.setdefault(release, []).extend(keys)
                wanted |= {(demand.subop, key) for key in keys}
        misses = self._play(added)
        return not (misses - self.before) and not (misses & wanted)

    def _play(self, added: Mapping[int, Sequence[tuple[object, ...]]]) -> frozenset[tuple[int, object]]:
        """(sub-operator, stretch) of every miss."""
        held: OrderedDict[tuple[object, ...], None] = OrderedDict()
        misses: set[tuple[int, object]] = set()
        for subop, row in enumerate(self.touches):
            for key in added.get(subop, ()):
                held[key] = None
                held.move_to_end(key)
            for key in row:
                if key not in held:
                    misses.add((subop, key))
                held[key] = None
                held.move_to_end(key)
            while len(held) > self.room:
                held.popitem(last=False)
        return frozenset(misses)
