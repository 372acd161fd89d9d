"""What each boundary's synchronisation really costs a run: critical path, slack, and the gain of being free of it.

Model: a task is a sub-operator on one core, as a traced run showed it. It begins when the core is done with what comes
before and with what it loads itself ahead of the first event (its weights: the *lead*, as observed), and the events
that it takes are visible; how much later it ends is its length, as observed (negative where its engines were done
before the core's last work, which overlaps). The cores of a group begin a MIX kernel together, because they exchange
tiles all along. An event is signalled when the last of its setters is done, plus what was observed beyond, and is
visible a fixed latency later (`sync.*_ns`). So the run's end follows from the tasks, exactly as observed, and can be
asked again under other conditions:

    slack      by how much the events of a boundary could come later before the run ended later
    instantly  gain if they were visible at once
    removed    gain without them at all: tasks in between begin as soon as their cores are free

`removed` is also tried out: the program is built again without the events (unverified, for timing only; its results
would be wrong) and simulated. What else the events ordered goes too, so that this is an upper bound of what the
boundary costs. The path itself (`critical_path.py`) is followed command by command, not task by task.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from superkernel.backends.aicore.critical_path import PathPiece, critical_path
from superkernel.backends.aicore.shared import Shared
from superkernel.backends.aicore.timeline import Activity, Timeline
from superkernel.core.errors import SimulationError
from superkernel.display import notebook
from superkernel.display.notebook import Share
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.sync.aicore.plan import AicorePlan, Await, HartKind, Run, Signal, Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superkernel.backends.aicore.compiled import AicoreCompiled

CONFIRMED = 5  # boundaries tried out unless told otherwise
ROWS_SHOWN = 20


@dataclass(frozen=True)
class BoundaryRow:
    """The synchronisation ahead of a sub-operator. Cycles; gains are parts of 1 of the run. `on_path`: pure cycles of
    the critical path in its events; `confirmed`: None where it was not tried, or cannot be simulated."""

    subop: int
    name: str
    form: str
    events: tuple[int, ...]
    on_path: int
    slack: int
    instantly: float
    removed: float
    confirmed: float | None = None


@dataclass(frozen=True)
class CriticalReport:
    """See the module docstring. `path`: cycles of the critical path by activity, which sum to `cycles`; `by_subop`: the
    same by sub-operator; `boundaries` by predicted gain; `instantly`: the gain of all signals visible at once, as part
    of 1."""

    graph: str
    target: str
    cycles: int
    time_us: float
    path: Mapping[str, int]
    by_subop: tuple[tuple[int, str, int], ...]
    boundaries: tuple[BoundaryRow, ...]
    numpy_us: float = 0.0  # of the time, by NumPy between launches: on the path, and not in cycles
    mode: str = "simulated for timing only"  # and where cycles may depend on data
    instantly: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"schema": "superkernel.critical/1", **asdict(self)}

    def text(self) -> str:
        """For a terminal."""
        parts = ", ".join(f"{name} {cycles / self.cycles:.1%}" for name, cycles in self.path.items() if cycles)
        numpy = f", {self.numpy_us:.2f} us of them NumPy between launches" if self.numpy_us else ""
        lines = [
            f"{self.graph} on {self.target} ({self.mode}): {self.cycles} cycles, {self.time_us:.2f} us{numpy}",
            f"critical path: {parts}",
            "longest on it: " + ", ".join(f"{name} {c / self.cycles:.1%}" for _, name, c in self.by_subop[:6]),
            "",
            f"{'boundary ahead of':<32} {'sync':<8} {'on path':>8} {'slack':>8} {'instantly':>10} {'removed':>9} "
            f"{'tried':>7}",
        ]
        for row in self.boundaries[:ROWS_SHOWN]:
            tried = "" if row.confirmed is None else f"{row.confirmed:.1%}"
            lines.append(
                f"{f'{row.subop} {row.name}'[-32:]:<32} {row.form:<8} {row.on_path:>8} {row.slack:>8} "
                f"{row.instantly:>10.1%} {row.removed:>9.1%} {tried:>7}"
            )
        if len(self.boundaries) > ROWS_SHOWN:
            lines.append(f"... and {len(self.boundaries) - ROWS_SHOWN} more")
        lines += ["", "gains of the run's time: events visible at once; without the events, predicted and tried out"]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """For notebooks: activities and boundaries as tables."""
        title, _, longest, *_ = self.text().splitlines()
        path = [(name, cycles, Share(cycles / self.cycles)) for name, cycles in self.path.items() if cycles]
        rows = [
            (
                row.subop, row.name, row.form, row.on_path, row.slack, Share(row.instantly), Share(row.removed),
                None if row.confirmed is None else Share(row.confirmed),
            )
            for row in self.boundaries[:ROWS_SHOWN]
        ]  # fmt: skip
        return notebook.shown(
            title,
            notebook.table(("critical path", "cycles", "of the run"), path),
            notebook.lines([longest]),
            notebook.table(
                ("", "boundary ahead of", "sync", "on path", "slack", "instantly", "removed", "tried"),
                rows,
                "gains of the run's time: events visible at once; without the events, predicted and tried out",
            ),
        )


def critical(compiled: AicoreCompiled, io: Sequence[NDArray[Any]], *, confirm: int = CONFIRMED) -> CriticalReport:
    """Run once for timing and analyse it; the `confirm` boundaries with the largest predicted gain are tried out. Of a
    program in several launches (sub-operators without a kernel), each launch is analysed by itself."""
    run = compiled.executable.simulate(io, mode="timing", races=False, trace=True)
    found = critical_of(compiled, [Timeline.of(compiled, launch) for launch in run.launches], run.numpy_us)
    found = replace(found, mode=run.timed_without_data([sub.name for sub in compiled.schedule.subops]))
    rows, shared = found.boundaries, Shared()
    tried = [replace(row, confirmed=_tried(compiled, io, row, found.cycles, shared)) for row in rows[:confirm]]
    return replace(found, boundaries=(*tried, *rows[confirm:]))


def critical_of(compiled: AicoreCompiled, lines: Sequence[Timeline], numpy_us: float = 0.0) -> CriticalReport:
    """The critical path of launches that were traced, without trying anything out."""
    cycles = sum(line.end - line.begin for line in lines)
    pieces = [piece for line in lines for piece in critical_path(line)]
    models = [_Tasks(compiled, line) for line in lines]
    rows = _rows(compiled, models, pieces, cycles)
    events = range(len(compiled.plan.events))
    instantly = sum(model.end() - model.end(instant=events) for model in models) / cycles
    names = {s.index: s.name for s in compiled.schedule.subops}
    spent: dict[int, int] = {}
    path = dict.fromkeys((a.name.lower() for a in reversed(Activity) if a is not Activity.IMBALANCE), 0)
    for piece in pieces:
        length = piece.end - piece.begin
        path[piece.activity.name.lower()] += length
        spent[piece.subop] = spent.get(piece.subop, 0) + length
    longest = sorted(spent.items(), key=lambda item: (-item[1], item[0]))
    return CriticalReport(
        compiled.graph.name,
        compiled.target.name,
        cycles,
        compiled.target.nanoseconds(cycles) / 1000 + numpy_us,
        path,
        tuple((subop, names.get(subop, "the launch"), length) for subop, length in longest),
        tuple(rows),
        numpy_us,
        instantly=instantly,
    )


def without_events(plan: AicorePlan, events: Collection[int]) -> AicorePlan:
    """The plan without some events: neither signalled nor awaited. It is no plan to be run for its results."""

    def kept(step: Step) -> Step | None:
        if isinstance(step, (Signal, Await)):
            return None if step.event in events else step
        if isinstance(step, Run):
            waits = [replace(w, events=tuple(e for e in w.events if e not in events)) for w in step.waits]
            return replace(step, waits=tuple(w for w in waits if w.events or w.fence))
        return step

    programs: dict[HartKind, tuple[Step, ...]] = {
        kind: tuple(made for step in program if (made := kept(step)) is not None)
        for kind, program in plan.programs.items()
    }
    return replace(plan, programs=programs)


def _tried(
    compiled: AicoreCompiled, io: Sequence[NDArray[Any]], row: BoundaryRow, cycles: int, shared: Shared
) -> float | None:
    """The gain of a run without the boundary's events."""
    from superkernel.backends.aicore.timeline import span_of
    from superkernel.backends.aicore.variants import unverified_program

    program = unverified_program(compiled, without_events(compiled.plan, row.events), shared)
    try:
        run = program.simulate(io, mode="timing", races=False, unwritten=False)
    except SimulationError:
        return None  # its control units read what was not there yet
    return 1 - sum(span_of(compiled, launch)[1] for launch in run.launches) / cycles


def _rows(
    compiled: AicoreCompiled, models: Sequence[_Tasks], pieces: Sequence[PathPiece], cycles: int
) -> list[BoundaryRow]:
    names = {s.index: s.name for s in compiled.schedule.subops}
    found = []
    for boundary in compiled.plan.boundaries:
        events = frozenset(boundary.events)
        if not events:
            continue
        instantly = sum(model.end(instant=events) for model in models)
        removed = sum(model.end(gone=events) for model in models)
        base = sum(model.end() for model in models)
        on_path = sum(p.end - p.begin for p in pieces if p.event in events and p.activity is Activity.PURE)
        slack = min((s for model in models if (s := model.slack(boundary.subop)) is not None), default=0)
        found.append(
            BoundaryRow(
                boundary.subop,
                names[boundary.subop],
                boundary.form.value,
                boundary.events,
                on_path,
                slack,
                (base - instantly) / cycles,
                (base - removed) / cycles,
            )
        )
    return sorted(found, key=lambda row: (-row.removed, -row.instantly, row.slack, row.subop))


@dataclass(frozen=True, slots=True)
class _Task:
    """A sub-operator on a core: the events that it takes, how long behind the core's last work it loads what needs none
    of them, and how long it goes on behind its begin. `team`: number of the tasks that begin together."""

    subop: int
    core: int
    events: tuple[int, ...]
    team: int
    lead: int = 0
    length: int = 0


class _Clock:
    """When each core is done with what, as tasks come in order."""

    def __init__(self, begin: int, cores: int) -> None:
        self.done = [begin] * cores
        self._subops: list[list[int]] = [[-1] for _ in range(cores)]
        self._times: list[list[int]] = [[begin] for _ in range(cores)]

    def add(self, core: int, subop: int, end: int) -> None:
        """A core has carried out a sub-operator."""
        self.done[core] = max(self.done[core], end)
        self._subops[core].append(subop)
        self._times[core].append(self.done[core])

    def after(self, core: int, subop: int) -> int:
        """When a core was done with everything up to a sub-operator."""
        return self._times[core][bisect_right(self._subops[core], subop) - 1]


class _Tasks:
    """The tasks of a launch in the order of the schedule, and what follows from them: when the run ends."""

    def __init__(self, compiled: AicoreCompiled, line: Timeline) -> None:
        self.line, self.plan = line, compiled.plan
        self.latency = {e.index: compiled.target.flag_cycles(e.mode.value) for e in self.plan.events}
        self.fired = {(t.event, t.core): t.fired for t in line.takes if t.event is not None}
        self.observed = {(e, core): self.plan.observed(self.plan.events[e], core) for e, core in self.fired}
        self.teams = self._teams(compiled)
        self.beyond: dict[tuple[int, int], int] = {}  # of an event's signal: behind its setters' last work
        clock = _Clock(line.begin, self.plan.total)
        for team in self.teams:
            for task in team:
                for event in task.events:
                    ready = self._ready(clock, event, task.core)
                    self.beyond[event, task.core] = self.fired[event, task.core] - ready
            visible = min((self._visible(clock, e, t.core) for t in team for e in t.events), default=0)
            for number, task in enumerate(team):
                moved = line.loaded_by(task.core, task.subop, visible)
                team[number] = replace(task, lead=max(0, moved - clock.done[task.core]))
            start = self._start(clock, team, (), ())
            for number, task in enumerate(team):
                ended = int(line.ends[task.core, task.subop]) or start
                team[number] = replace(task, length=ended - start)
                clock.add(task.core, task.subop, ended)
        self.tail = line.end - max(clock.done)

    def _teams(self, compiled: AicoreCompiled) -> list[list[_Task]]:
        """The tasks that begin together, in order."""
        taken: dict[tuple[int, int], list[int]] = {}
        for take in self.line.takes:
            if take.event is not None:
                taken.setdefault((take.subop, take.core), []).append(take.event)
        found: dict[tuple[int, int], list[_Task]] = {}
        for subop in range(self.line.subops):
            tiling = compiled.schedule.tilings[subop]
            is_mix = isinstance(tiling, AicoreTiling) and tiling.kernel_type.is_mix
            for core in range(self.plan.total):
                events = tuple(taken.get((subop, core), ()))
                if self.line.ends[core, subop] or events:
                    key = (subop, -1 - self.plan.group(core) if is_mix else core)
                    team = found.setdefault(key, [])
                    team.append(_Task(subop, core, events, len(found) - 1))
        return list(found.values())

    def _ready(self, clock: _Clock, event: int, core: int) -> int:
        """When those that a receiver observes are done with what they signal."""
        after = self.plan.events[event].after
        return max(clock.after(setter, after) for setter in self.observed[event, core])

    def _visible(self, clock: _Clock, event: int, core: int, instant: Collection[int] = ()) -> int:
        fired = self._ready(clock, event, core) + self.beyond[event, core]
        return fired if event in instant else fired + self.latency[event]

    def _start(self, clock: _Clock, team: Sequence[_Task], instant: Collection[int], gone: Collection[int]) -> int:
        found = max(clock.done[task.core] + task.lead for task in team)
        for task in team:
            for event in task.events:
                if event not in gone:
                    found = max(found, self._visible(clock, event, task.core, instant))
        return found

    def end(self, *, instant: Collection[int] = (), gone: Collection[int] = ()) -> int:
        """When the launch ends, with some events visible at once, or absent."""
        return max(self._replay(instant, gone).done) + self.tail

    def _replay(self, instant: Collection[int] = (), gone: Collection[int] = ()) -> _Clock:
        clock = _Clock(self.line.begin, self.plan.total)
        for team in self.teams:
            start = self._start(clock, team, instant, gone)
            for task in team:
                clock.add(task.core, task.subop, start + task.length)
        return clock

    def slack(self, subop: int) -> int | None:
        """By how much the events of a sub-operator's boundary could be later; None: it is not in this launch."""
        clock = self._observed
        rooms = [
            self.latest[task.team] - self._visible(clock, event, task.core)
            for team in self.teams
            for task in team
            if task.subop == subop
            for event in task.events
        ]
        return max(0, min(rooms)) if rooms else None

    @cached_property
    def _observed(self) -> _Clock:
        return self._replay()

    @cached_property
    def latest(self) -> list[int]:
        """When each team may begin at the latest, the launch's end unchanged: backwards over cores and events."""
        limit = self.line.end - self.tail
        found = [limit] * len(self.teams)
        due: list[list[tuple[int, int]]] = [[] for _ in range(self.plan.total)]  # by core: (up to sub-operator, time)
        following = [limit] * self.plan.total
        for number in range(len(self.teams) - 1, -1, -1):
            team = self.teams[number]
            for task in team:
                ends = [following[task.core], *(t for after, t in due[task.core] if task.subop <= after)]
                found[number] = min(found[number], min(ends) - task.length)
            for task in team:
                following[task.core] = min(following[task.core], found[number] - task.lead)
                for event in task.events:
                    time = found[number] - self.latency[event] - self.beyond[event, task.core]
                    for setter in self.observed[event, task.core]:
                        due[setter].append((self.plan.events[event].after, time))
        return found
