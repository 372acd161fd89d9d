"""An accelerator plan as the system whose executions `sync.executions` searches.

Model: what the hardware does, as in `explore`, but in states that can all be gone through. A hart is two actors: its
control walks the program; its queue carries out, in order and behind it, what control has told it to store, to signal
and to count up. A kernel comes to its operands in any order: while it is in it, control's state is the set of those
that it has come to. Operands with the same waits, and the waits of one operand, are one move, since nobody else sees
what is between. A wait takes the next count of a flag, whichever event it names. Cores that meet inside a kernel have
let their queues run empty; the plan does not say where in the kernel they meet.

Beside the order of accesses: no flag counts above its limit; what is signalled is taken in the same launch, words and
notifications of the service hart too, each by its own count; a prefetch is in the launch of its use (one that comes
late is of no use, and does no harm); who reads a value that groups compute each for itself finds what was computed for
it.

This shares nothing with the verifier but the plan's data types.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from superkernel.scheduler.schedule import Space, Task
from superkernel.sync.aicore.plan import (
    AicorePlan,
    Await,
    AwaitCount,
    Drain,
    Event,
    HartKind,
    LaunchEnd,
    Mode,
    Notify,
    OperandWait,
    Pause,
    Prefetch,
    Run,
    Signal,
)
from superkernel.sync.executions import BadState, Move, Need, States, System, Touched, meet, reached, touched

_Word: TypeAlias = tuple[HartKind | None, Mode, int]
"""What signals are counted by: type of setters, mode, flag; of a word in memory its event."""

_Needs: TypeAlias = Callable[[], Iterable[Need]]
"""Of a move: asked for when all harts are known."""


@dataclass(frozen=True)
class _Touch:
    """Some bytes that a task touches in one go. `begins`: numbers of moves; `undone`: where it has not happened yet."""

    task: Task
    write: bool
    shared: bool  # the kernel divides them among its cores
    bytes: Touched
    begins: tuple[int, ...]
    undone: Need


@dataclass(frozen=True)
class _Part:
    """Operands of a kernel with the same waits; or a meeting of its cores."""

    events: tuple[int, ...] = ()
    fence: bool = False
    operands: frozenset[int] = frozenset()
    meets: bool = False


@dataclass(frozen=True)
class _End:
    """Where a hart stands at the end of a launch; how often it has taken each flag and signalled each word until
    then."""

    step: object
    control: int
    queue: int
    taken: Counter[int]
    signals: Counter[_Word]


@dataclass
class _Hart:
    """A hart while its moves are made: the last state of its control and of its queue so far."""

    core: int
    kind: HartKind
    control: int = 0
    queue: int = 0
    taken: Counter[int] = field(default_factory=Counter)  # by flag
    taken_at: list[Counter[int]] = field(default_factory=lambda: [Counter()])  # the same by state of control
    signals: dict[_Word, list[int]] = field(default_factory=lambda: defaultdict(list))  # state of the queue behind each
    notified: list[list[int]] = field(default_factory=lambda: [[]])  # the same of notifications, by launch
    ends: list[_End] = field(default_factory=list)
    entered: dict[int, tuple[int, int]] = field(default_factory=dict)  # sub-operator -> control and queue there
    launch_of: dict[int, int] = field(default_factory=dict)

    def end(self, step: object) -> None:
        """A launch ends here."""
        signals = Counter({word: len(row) for word, row in self.signals.items()})
        self.ends.append(_End(step, self.control, self.queue, self.taken.copy(), signals))

    def go(self) -> None:
        """Control has one more state."""
        self.control += 1
        self.taken_at.append(self.taken.copy())


def executions(plan: AicorePlan) -> System:
    """The system of a plan. Actor 2n is the control of hart n, actor 2n + 1 its queue; behind them is the service hart,
    where it has something to do."""
    return _Builder(plan).system()


class _Builder:
    def __init__(self, plan: AicorePlan) -> None:
        self.plan = plan
        self.task_of = {(t.subop, t.core): t for t in plan.tasks}
        self.harts = [_Hart(core, kind) for kind in plan.programs for core in plan.cores(kind)]
        self.number = {hart.core: n for n, hart in enumerate(self.harts)}
        self.drafts: list[tuple[int, int, int, _Needs]] = []
        self.touches: list[_Touch] = []
        self.service: list[tuple[int, object]] = []  # launch and step, None: the end of the launch

    def system(self) -> System:
        """See `executions`."""
        for n, hart in enumerate(self.harts):
            for step in self.plan.programs[hart.kind]:
                self._step(n, hart, step)
            hart.end(None)
        self._serve()
        wrong = next(self._wrong(), "")
        if wrong:
            return System((), (), (), (), wrong)
        moves = tuple(Move(actor, source, to, tuple(needs())) for actor, source, to, needs in self.drafts)
        names = [f"{what} of core {hart.core}" for hart in self.harts for what in ("control", "queue")]
        sizes = [size for hart in self.harts for size in (hart.control + 1, hart.queue + 1)]
        if self.service:
            names, sizes = [*names, "service hart"], [*sizes, len(self.service) + 1]
        system = System(tuple(names), tuple(sizes), moves, (*self._races(moves), *self._overflows()))
        return replace(system, useless=self._useless(system)) if self.service else system

    # One hart ---------------------------------------------------------------------------------------------------------

    def _draft(self, actor: int, source: int, target: int, needs: _Needs) -> int:
        self.drafts.append((actor, source, target, needs))
        return len(self.drafts) - 1

    def _step(self, n: int, hart: _Hart, step: object) -> None:
        if isinstance(step, Signal):
            hart.signals[_word(self.plan.events[step.event])].append(self._queued(n, hart))
        elif isinstance(step, Notify):
            if hart.core == self.plan.cores(hart.kind)[0]:
                hart.notified[-1].append(self._queued(n, hart))
        elif isinstance(step, Run):
            hart.launch_of[step.subop] = len(hart.ends)
            self._run(n, hart, step)
        else:
            if isinstance(step, Drain):
                need = (2 * n + 1, _from(hart.queue))
                self._draft(2 * n, hart.control, hart.control + 1, lambda: (need,))
            elif isinstance(step, Await):
                self._draft(2 * n, hart.control, hart.control + 1, self._counted(hart, (step.event,)))
                self._take(hart, (step.event,))
            else:
                assert isinstance(step, (Pause, LaunchEnd))
                launch = len(hart.ends)
                hart.end(step)
                hart.notified.append([])
                self._draft(2 * n, hart.control, hart.control + 1, lambda: self._all_ended(launch))
            hart.go()

    def _queued(self, n: int, hart: _Hart) -> int:
        """One more thing in the queue, which is told of it in the state that control is in. Its state behind that."""
        need = (2 * n, _from(hart.control))
        self._draft(2 * n + 1, hart.queue, hart.queue + 1, lambda: (need,))
        hart.queue += 1
        return hart.queue

    def _flag(self, event: int) -> int:
        """A word in memory counts by itself, and below all flags."""
        made = self.plan.events[event]
        return -1 - event if made.mode is Mode.NOTIFY else made.flag

    def _take(self, hart: _Hart, events: Iterable[int]) -> None:
        hart.taken.update(self._flag(e) for e in dict.fromkeys(events))

    def _counted(self, hart: _Hart, events: Iterable[int], before: Iterable[int] = ()) -> _Needs:
        """What must have been signalled where a hart takes events, those `before` taken already."""
        done = dict.fromkeys(before)
        nth = hart.taken.copy()
        nth.update(map(self._flag, done))
        wanted: dict[int, tuple[Event, int]] = {}
        for e in dict.fromkeys(events):
            if e not in done:
                nth[self._flag(e)] += 1
                wanted[self._flag(e)] = (self.plan.events[e], nth[self._flag(e)])
        core = hart.core
        return lambda: (need for event, count in wanted.values() for need in self._signalled(event, core, count))

    def _signalled(self, event: Event, core: int, count: int) -> Iterator[Need]:
        """All setters that a core observes have signalled so often."""
        for setter in self.plan.observed(event, core):
            n = self.number[setter]
            row = self.harts[n].signals.get(_word(event), [])
            yield 2 * n + 1, _from(row[count - 1]) if count <= len(row) else 0

    def _all_ended(self, launch: int) -> Iterator[Need]:
        """All harts stand at the end of a launch, with nothing left to do."""
        for n, hart in enumerate(self.harts):
            yield 2 * n, _from(hart.ends[launch].control)
            yield 2 * n + 1, _from(hart.ends[launch].queue)
        if self.service:
            yield 2 * len(self.harts), _from(self.service.index((launch, None)))

    def _run(self, n: int, hart: _Hart, step: Run) -> None:
        task = self.task_of.get((step.subop, hart.core))
        parts = self._parts(step, task)
        hart.entered[step.subop] = (hart.control, hart.queue)
        begin, full = hart.control, (1 << len(parts)) - 1
        stores = [p for p, part in enumerate(parts) if task is not None and any(_bytes(task, part, write=True))]
        visits: list[list[int]] = [[] for _ in parts]
        for done in range(full + 1):
            before = [e for p, part in enumerate(parts) if done >> p & 1 for e in part.events]
            if done:
                hart.go()
                hart.taken_at[-1].update(self._flag(e) for e in dict.fromkeys(before))
            for p, part in enumerate(parts):
                if not done >> p & 1:
                    needs = self._counted(hart, part.events, before)
                    if part.fence:
                        needs = _with((2 * n + 1, _stored(hart.queue, stores, done)), needs)
                    elif part.meets:
                        needs = self._met(hart.kind, step.subop)
                    visits[p].append(self._draft(2 * n, begin + done, begin + (done | 1 << p), needs))
        every = [e for wait in step.waits for e in wait.events]
        own = [e for part in parts for e in part.events]
        if set(every) - set(own):
            self._draft(2 * n, hart.control, hart.control + 1, self._counted(hart, every, own))
            self._take(hart, every)
            hart.go()
        else:
            self._take(hart, every)
        if task is not None:
            for p, part in enumerate(parts):
                self._touch(n, hart, task, part, begin, p, full, visits[p], stores)
        hart.queue += (1 << len(stores)) - 1

    def _touch(
        self, n: int, hart: _Hart, task: Task, part: _Part, begin: int, p: int, full: int, visits: Sequence[int],
        stores: Sequence[int],
    ) -> None:  # fmt: skip
        """What a kernel touches when it comes to some operands: it loads at once, and the queue is told to store."""
        visited = _from(begin + full) | _some(begin, full, 1 << p)
        for shared, found in _bytes(task, part, write=False):
            self.touches.append(_Touch(task, False, shared, found, tuple(visits), (2 * n, ~visited)))
        if p not in stores:
            return
        queue, mine, every = hart.queue, 1 << stores.index(p), (1 << len(stores)) - 1
        without = [done for done in range(every) if not done & mine]
        moves = [self._draft(2 * n + 1, queue + d, queue + (d | mine), lambda: ((2 * n, visited),)) for d in without]
        undone = ~(_from(queue + every) | _some(queue, every, mine))
        for shared, found in _bytes(task, part, write=True):
            self.touches.append(_Touch(task, True, shared, found, tuple(moves), (2 * n + 1, undone)))

    def _parts(self, step: Run, task: Task | None) -> list[_Part]:
        waits = {wait.operand: wait for wait in step.waits}
        rows: dict[tuple[tuple[int, ...], bool], set[int]] = {}
        for operand in sorted({a.operand or 0 for a in task.accesses}) if task is not None else ():
            wait = waits.get(operand, OperandWait(operand, (), False))
            rows.setdefault((tuple(dict.fromkeys(wait.events)), wait.fence), set()).add(operand)
        parts = [_Part(events, fence, frozenset(operands)) for (events, fence), operands in rows.items()]
        return [*parts, _Part(meets=True)] if self._joined(step, task) else parts

    def _joined(self, step: Run, task: Task | None) -> int:
        return self.plan.barriers.get(step.subop, 0) if task is not None else step.barriers

    def _met(self, kind: HartKind, subop: int) -> _Needs:
        """All cores of the type have come to a kernel, with nothing left to store or signal."""

        def needs() -> Iterator[Need]:
            for core in self.plan.cores(kind):
                control, queue = self.harts[self.number[core]].entered[subop]
                yield 2 * self.number[core], _from(control)
                yield 2 * self.number[core] + 1, _from(queue)

        return needs

    # The service hart -------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        if not any(self.plan.service):
            return
        launches = max(len(hart.ends) for hart in self.harts)
        for launch, program in enumerate(self.plan.service):
            self.service += [(launch, step) for step in program]
            self.service += [(launch, None)] if launch < launches - 1 else []
        for launch in range(len(self.plan.service), launches - 1):
            self.service.append((launch, None))
        for state, (launch, step) in enumerate(self.service):
            self._draft(2 * len(self.harts), state, state + 1, self._served(launch, step))

    def _served(self, launch: int, step: object) -> _Needs:
        if step is None:
            return lambda: self._all_ended(launch)
        if isinstance(step, AwaitCount):
            n = self.number[self.plan.cores(step.kind)[0]]
            rows = self.harts[n].notified
            row = rows[launch] if launch < len(rows) else []
            need = (2 * n + 1, _from(row[step.count - 1]) if 1 <= step.count <= len(row) else 0)
            return lambda: (need,)
        return tuple

    def _useless(self, system: System) -> str:
        """A prefetch that comes behind its use in every execution."""
        for state, (_, step) in enumerate(self.service):
            if isinstance(step, Prefetch):
                users = [n for n, hart in enumerate(self.harts) if (step.subop, hart.core) in self.task_of]
                held = [(2 * n, ~_from(self.harts[n].entered[step.subop][0] + 1)) for n in users]
                if not any(reached(system, one)[-1] >> (state + 1) & 1 for one in held):
                    return f"{step} comes behind its use"
        return ""

    # What is wrong ----------------------------------------------------------------------------------------------------

    def _wrong(self) -> Iterator[str]:
        """What is wrong whatever the execution."""
        paused = {s.subop for program in self.plan.programs.values() for s in program if isinstance(s, Pause)}
        for task in self.plan.tasks:
            if task.subop not in paused and task.subop not in self.harts[self.number[task.core]].entered:
                yield f"sub-operator {task.subop} does not run on core {task.core}"
        if len({tuple(end.step for end in hart.ends) for hart in self.harts}) > 1:
            yield "deadlock: harts end their launches in different ways"
            return
        for hart in self.harts:
            for step in self.plan.programs[hart.kind]:
                if isinstance(step, Run):
                    joins = {self._joined(step, self.task_of.get((step.subop, c))) for c in self.plan.cores(hart.kind)}
                    if len(joins) > 1:
                        yield f"deadlock: cores meet in sub-operator {step.subop} and others do not come as often"
        yield from self._left_over()
        yield from self._strange()
        rows = [(launch, hart.kind, len(row)) for hart in self.harts for launch, row in enumerate(hart.notified)]
        for launch, kind, count in rows:
            waits = [wait for at, wait in self.service if at == launch and isinstance(wait, AwaitCount)]
            if missing := {*range(1, count + 1)} - {wait.count for wait in waits if wait.kind is kind}:
                yield f"notifications {missing} of {kind.value} cores in launch {launch} release nothing"
        for launch, order in self.service:
            if isinstance(order, Prefetch) and launch not in {h.launch_of.get(order.subop) for h in self.harts}:
                yield f"{order} in launch {launch}"

    def _left_over(self) -> Iterator[str]:
        """At the end of a launch all that was signalled is taken."""
        for event in self.plan.events:
            receivers = (hart for hart in self.harts if hart.kind in event.receivers)
            for hart in receivers:
                for launch, end in enumerate(hart.ends):
                    for setter in self.plan.observed(event, hart.core):
                        signals = self.harts[self.number[setter]].ends[launch].signals[_word(event)]
                        if signals != end.taken[self._flag(event.index)]:
                            yield (
                                f"launch {launch} ends: core {setter} has signalled {event} {signals} times, core "
                                f"{hart.core} has taken {end.taken[self._flag(event.index)]}"
                            )

    def _strange(self) -> Iterator[str]:
        """In the global order, a core reads bytes of a copy that were not computed for it."""
        for copies in self.plan.copies:
            written: dict[tuple[Space, int, int], int] = {}
            for task in self.plan.tasks:
                if task.subop < copies.subop:
                    continue
                for access in sorted(task.accesses, key=lambda a: a.write):
                    found = [
                        (access.space, access.slot, region.start + run * region.stride + byte)
                        for region in access.regions for run in range(region.count) for byte in range(region.length)
                    ]  # fmt: skip
                    if access.write:
                        written.update(dict.fromkeys(found, task.subop))
                        continue
                    used = (task.subop, access.operand) in copies.uses
                    if used and any(written.get(byte) != copies.subop for byte in found):
                        yield f"task {task.index} reads what was not computed for it"

    def _races(self, moves: Sequence[Move]) -> Iterator[BadState]:
        for later in self.touches:
            for earlier in self.touches:
                one, other = earlier.task, later.task
                if one.index >= other.index or not (earlier.write or later.write):
                    continue
                if one.subop == other.subop and (one.core == other.core or (earlier.shared and later.shared)):
                    continue
                if one.core == other.core and (later.write or not earlier.write):
                    continue  # the control and the queue of one core each work in order
                if meet(earlier.bytes, later.bytes):
                    what = f"task {other.index} (core {other.core}) {'stores' if later.write else 'loads'}, "
                    what += f"task {one.index} (core {one.core}) has not yet"
                    for begin in later.begins:
                        yield BadState(what, earlier.undone, moves[begin].enabled)

    def _overflows(self) -> Iterator[BadState]:
        for hart in self.harts:
            flags = {e.flag: e for e in self.plan.events if hart.kind in e.receivers and e.mode is not Mode.NOTIFY}
            for flag, event in flags.items():
                setters = [self.harts[self.number[s]] for s in self.plan.observed(event, hart.core)]
                most = min(len(setter.signals.get(_word(event), ())) for setter in setters)
                for count in range(self.plan.flag_count_max + 1, most + 1):
                    few = [n for n, t in enumerate(hart.taken_at) if t[flag] < count - self.plan.flag_count_max]
                    held = (2 * self.number[hart.core], sum(1 << n for n in few))
                    what = f"flag {flag} counts above {self.plan.flag_count_max} on core {hart.core}"
                    yield BadState(what, held, tuple(self._signalled(event, hart.core, count)))


def _from(state: int) -> States:
    """A state and all behind it."""
    return -1 << state


def _some(first: int, full: int, wanted: int) -> States:
    """Of the states `first` + m, where m is a set of parts: those that have the wanted ones."""
    return sum(1 << (first + m) for m in range(full + 1) if m & wanted == wanted)


def _stored(queue: int, stores: Sequence[int], done: int) -> States:
    """The queue is done with all ahead of a kernel, and with what parts of it have told it."""
    full = (1 << len(stores)) - 1
    return _from(queue + full) | _some(queue, full, sum(1 << i for i, p in enumerate(stores) if done >> p & 1))


def _with(need: Need, needs: _Needs) -> _Needs:
    return lambda: (need, *needs())


def _word(event: Event) -> _Word:
    return (event.setters, event.mode, event.index if event.mode is Mode.NOTIFY else event.flag)


def _bytes(task: Task, part: _Part, *, write: bool) -> Iterator[tuple[bool, Touched]]:
    """What a task reads or writes of a part's operands: what its kernel divides among its cores, and the rest."""
    mine = [a for a in task.accesses if a.write is write and (a.operand or 0) in part.operands]
    for shared in (False, True):
        chosen = [a for a in mine if (a.space is Space.SCRATCH or a.dynamically_partitioned) is shared]
        if found := touched(chosen):
            yield shared, found
