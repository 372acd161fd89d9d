"""An accelerator plan executed on abstract memory, in many interleavings: does every access find what it finds when
tasks run one after another?

Model: what the hardware does, and nothing else. A core walks its program; what it stores, signals and counts up stands
in a queue behind it, which moves at its own time and in order, so that a load may overtake the core's own stores unless
a fence or a drain lets the queue run empty first. A kernel comes to its operands in any order; ahead of an operand it
executes those of the operand's waits that it has not executed yet, and at its end the rest. A *take* of a flag waits
until the flag's count at this core is above zero and takes one away; which event somebody had in mind plays no part.
The count rises by one whenever each setter that the core observes has signalled the flag once more. A word in memory
is waited for until all setters have counted it up. A launch ends when all cores stand there, all queues are empty and
all counts are zero.

Memory holds, per byte, the task that wrote it last. An interleaving is wrong where a load sees anything else than in
the global order, where the final memory differs, where a count passes its limit or is left over, or where nobody can go
on. Meetings inside kernels and the service hart are left out: plans with them are not explored.

This shares nothing with the verifier but the plan's data types: it runs what the verifier argues about.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np

from superkernel.core.errors import InternalError
from superkernel.scheduler.schedule import MemoryAccess, Task
from superkernel.sync.aicore.plan import (
    AicorePlan,
    Await,
    Drain,
    Event,
    HartKind,
    LaunchEnd,
    Mode,
    OperandWait,
    Pause,
    Run,
    Signal,
)
from superkernel.sync.explore import Choices, Exploration, InOrder, Writers, interleavings

_Counted = tuple[HartKind | None, Mode, int]
"""What a setter's signals are counted by: type of setters, mode, flag (of a word: its event)."""


def explore_aicore(plan: AicorePlan, *, limit: int = 100, seed: int | None = None) -> Exploration:
    """Run up to `limit` interleavings: systematically without a seed; with one at random, by priorities that are drawn
    anew for each, so that cores and queues fall far behind one another. Raises InternalError for a plan with barriers
    or a service program."""
    if plan.barriers or any(plan.service):
        raise InternalError("only plans without barriers and service programs are explored")
    world = _World(plan)
    if seed is None:
        return interleavings(world.run, limit)
    rng = random.Random(seed)
    for number in range(limit):
        if wrong := world.run(_Priorities(random.Random(rng.getrandbits(64)))):
            return Exploration(number + 1, False, wrong)
    return Exploration(limit, False)


class _Priorities:
    """Chooses among actors by priorities that change now and then, other things at random."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.rank: dict[object, float] = {}
        self.restless = rng.choice((0.0, 0.02, 0.3))

    def __call__(self, possibilities: int) -> int:
        return self.rng.randrange(possibilities)

    def actor(self, able: Sequence[object]) -> int:
        """The one of highest rank; it may lose its rank over it."""
        for one in able:
            if one not in self.rank:
                self.rank[one] = self.rng.random()
        best = max(range(len(able)), key=lambda n: self.rank[able[n]])
        if self.rng.random() < self.restless:
            self.rank[able[best]] = self.rng.random() - 1
        return best


@dataclass
class _Core:
    """One hart: its program, the queue behind it, and the kernel that it is in."""

    number: int
    kind: HartKind
    steps: Sequence[object]
    at: int = 0
    queue: deque[Event | tuple[Task, MemoryAccess]] = field(default_factory=deque)
    kernel: _Kernel | None = None
    taken: dict[int, int] = field(default_factory=dict)  # by flag

    @property
    def ended(self) -> bool:
        return self.at >= len(self.steps)


@dataclass
class _Kernel:
    """What is left of a kernel: operands that it has not come to, and waits that it has not executed."""

    task: Task | None
    operands: list[int]
    waits: dict[int, OperandWait]
    executed: set[int] = field(default_factory=set)
    pending: list[int | None] = field(default_factory=list)  # of the operand it stands at: events, None a fence
    here: int | None = None


class _World:
    def __init__(self, plan: AicorePlan) -> None:
        self.plan, self.right, self.blank = plan, InOrder(plan.tasks), Writers(plan.tasks)
        self.tasks: dict[tuple[int, int], Task] = {(t.subop, t.core): t for t in plan.tasks}
        self.of_subop: dict[int, list[Task]] = {}
        for task in plan.tasks:
            self.of_subop.setdefault(task.subop, []).append(task)

    def run(self, choose: Choices | _Priorities) -> str:
        """One interleaving; what went wrong, or an empty text."""
        return _Interleaving(self, choose).run()


class _Interleaving:
    def __init__(self, world: _World, choose: Choices | _Priorities) -> None:
        self.world, self.plan, self.choose = world, world.plan, choose
        self.memory = deepcopy(world.blank)
        harts = [(core, kind) for kind in self.plan.programs for core in self.plan.cores(kind)]
        self.cores = [_Core(core, kind, self.plan.programs[kind]) for core, kind in harts]
        self.signalled: dict[tuple[_Counted, int], int] = {}  # by setter
        self.wrong = ""

    def run(self) -> str:
        while not self.wrong:
            able = [(c, part) for c in self.cores for part in ("control", "queue") if self._is_able(c, part)]
            if not able:
                if self._next_launch():
                    continue
                break
            if isinstance(self.choose, _Priorities):
                core, part = able[self.choose.actor([(c.number, part) for c, part in able])]
            else:
                core, part = able[self.choose(len(able))]
            self._move_queue(core) if part == "queue" else self._move_control(core)
        return self.wrong or self._end()

    def _end(self) -> str:
        stuck = [c for c in self.cores if not c.ended]
        if stuck:
            return "deadlock: " + ", ".join(f"core {c.number} at step {c.at}: {c.steps[c.at]}" for c in stuck)
        if left := self._left_over():
            return left
        return "" if self.memory == self.world.right.final else "the final memory differs from that of the global order"

    # Flags and words --------------------------------------------------------------------------------------------------

    def _count(self, event: Event, core: int) -> int:
        """How often all setters that a core observes have signalled what the event uses."""
        key = _counted(event)
        return min(self.signalled.get((key, setter), 0) for setter in self.plan.observed(event, core))

    def _is_there(self, event: Event, core: _Core) -> bool:
        taken = 0 if event.mode is Mode.NOTIFY else core.taken.get(event.flag, 0)
        return self._count(event, core.number) > taken

    def _take(self, event: Event, core: _Core) -> None:
        if event.mode is not Mode.NOTIFY:
            core.taken[event.flag] = core.taken.get(event.flag, 0) + 1

    def _signal(self, event: Event, core: _Core) -> None:
        key = (_counted(event), core.number)
        self.signalled[key] = self.signalled.get(key, 0) + 1
        if event.mode is Mode.NOTIFY:
            return
        for other in self.cores:
            if other.kind in event.receivers:
                count = self._count(event, other.number) - other.taken.get(event.flag, 0)
                if count > self.plan.flag_count_max:
                    self.wrong = f"flag {event.flag} counts to {count} on core {other.number}"

    def _left_over(self) -> str:
        for event in self.plan.events:
            for core in self.cores:
                if event.mode is not Mode.NOTIFY and core.kind in event.receivers:
                    count = self._count(event, core.number) - core.taken.get(event.flag, 0)
                    if count:
                        return f"flag {event.flag} still counts {count} on core {core.number} where a launch ends"
        return ""

    # Moves ------------------------------------------------------------------------------------------------------------

    def _is_able(self, core: _Core, part: str) -> bool:
        if part == "queue":
            return bool(core.queue)
        if core.ended:
            return False
        step = core.steps[core.at]
        if isinstance(step, (Pause, LaunchEnd)):
            return False
        if isinstance(step, Drain):
            return not core.queue
        if isinstance(step, Await):
            return self._is_there(self.plan.events[step.event], core)
        if core.kernel is not None and core.kernel.pending:
            wait = core.kernel.pending[0]
            return not core.queue if wait is None else self._is_there(self.plan.events[wait], core)
        return True

    def _move_queue(self, core: _Core) -> None:
        first = core.queue.popleft()
        if isinstance(first, Event):
            self._signal(first, core)
        else:
            task, access = first
            self.memory.write(task, access)

    def _move_control(self, core: _Core) -> None:
        step = core.steps[core.at]
        if isinstance(step, Run):
            self._move_kernel(core, step)
            return
        if isinstance(step, Signal):
            core.queue.append(self.plan.events[step.event])
        elif isinstance(step, Await):
            self._take(self.plan.events[step.event], core)
        core.at += 1

    def _move_kernel(self, core: _Core, step: Run) -> None:
        """One move: the kernel begins, comes to an operand, executes a wait, touches the operand, or ends."""
        kernel = core.kernel
        if kernel is None:
            task = self.world.tasks.get((step.subop, core.number))
            used = sorted({a.operand or 0 for a in task.accesses}) if task else []
            core.kernel = _Kernel(task, used, {w.operand: w for w in step.waits})
        elif kernel.pending:
            wait = kernel.pending.pop(0)
            if wait is not None:
                self._take(self.plan.events[wait], core)
                kernel.executed.add(wait)
        elif kernel.here is not None:
            assert kernel.task is not None
            self._touch(core, kernel.task, kernel.here)
            kernel.here = None
        elif kernel.operands:
            kernel.here = kernel.operands.pop(self.choose(len(kernel.operands)))
            kernel.pending = _left(kernel, kernel.waits.get(kernel.here))
        else:
            rest = [e for w in kernel.waits.values() for e in w.events if e not in kernel.executed]
            if rest:
                kernel.pending = list(dict.fromkeys(rest))
            else:
                core.kernel = None
                core.at += 1

    def _touch(self, core: _Core, task: Task, operand: int) -> None:
        reads = [a for a in task.accesses if not a.write]
        for access, right in zip(reads, self.world.right.loads[task.index], strict=True):
            if (access.operand or 0) == operand and not np.array_equal(self.memory.of(access), right):
                self.wrong = (
                    f"task {task.index} (sub-operator {task.subop}, core {core.number}) reads at operand {operand} "
                    "what another task than in the global order wrote"
                )
        core.queue.extend((task, a) for a in task.accesses if a.write and (a.operand or 0) == operand)

    def _next_launch(self) -> bool:
        """All cores stand at the end of a launch, and all queues are empty: on to the next."""
        steps = [c.steps[c.at] for c in self.cores if not c.ended]
        if len(steps) < len(self.cores) or not all(isinstance(s, (Pause, LaunchEnd)) and s == steps[0] for s in steps):
            return False
        if left := self._left_over():
            self.wrong = left
            return True
        if isinstance(steps[0], Pause):
            for task in self.world.of_subop.get(steps[0].subop, []):
                self.memory.store(task)
        for core in self.cores:
            core.at += 1
        return True


def _counted(event: Event) -> _Counted:
    if event.mode is Mode.NOTIFY:
        return (event.setters, event.mode, event.index)
    return (event.setters, event.mode, event.flag)


def _left(kernel: _Kernel, wait: OperandWait | None) -> list[int | None]:
    """What stands ahead of an operand and has not been executed: events, and a fence at the end."""
    if wait is None:
        return []
    events: list[int | None] = [e for e in dict.fromkeys(wait.events) if e not in kernel.executed]
    return [*events, None] if wait.fence else events
