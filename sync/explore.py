"""A plan executed on abstract memory, in many interleavings: does every task read what it reads when tasks run one
after another?

Model: memory holds, per byte, the number of the task that wrote it last. A body is two events, load (it notes the
writers of all bytes it reads) and store (it becomes the writer of all bytes it writes), so that bodies of two cores
overlap. Running the tasks in the global order gives what each must read. An interleaving is wrong where a load sees
anything else, where the final memory differs, or where no core can go on.

This shares nothing with the verifier but the plan's data types: it runs what the verifier argues about. Small plans
are explored exhaustively (depth first, up to a limit), larger ones by seeded random schedules.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from superkernel.scheduler.schedule import MemoryAccess, Space, Task
from superkernel.sync.plan import Plan, Set, TaskStep, Wait

NO_TASK = -1


@dataclass(frozen=True, slots=True)
class CoreAction:
    """One indivisible move of a core: load or store of a task's body, a set, or a wait that is passed."""

    kind: str  # "load", "store", "set", "wait"
    task: int = -1
    count: int = 0
    producer: int = -1


@dataclass(frozen=True, slots=True)
class Exploration:
    """`wrong` describes the first faulty interleaving, empty where there is none; `complete`: every interleaving was
    run."""

    interleavings: int
    complete: bool
    wrong: str = ""


def explore(plan: Plan, *, limit: int = 1000, seed: int | None = None) -> Exploration:
    """Run up to `limit` interleavings: systematically without a seed, at random with one."""
    world = _World(plan)
    if seed is None:
        return interleavings(world.run, limit)
    rng = random.Random(seed)
    for n in range(limit):
        wrong = world.run(rng.randrange)
        if wrong:
            return Exploration(n + 1, False, wrong)
    return Exploration(limit, False)


def interleavings(run: Callable[[Choices], str], limit: int) -> Exploration:
    """Up to `limit` runs, depth first over the choices that they make, each run until it ends. `run` says what went
    wrong."""
    prefix: list[int] = []
    for n in range(limit):
        choices = Choices(prefix)
        wrong = run(choices)
        if wrong:
            return Exploration(n + 1, False, wrong)
        following = choices.next_prefix()
        if following is None:
            return Exploration(n + 1, True)
        prefix = following
    return Exploration(limit, False)


class Choices:
    """Chooses like `prefix` first, then always the first possibility, and remembers where another choice was
    possible."""

    def __init__(self, prefix: Sequence[int]) -> None:
        self._prefix = prefix
        self._taken: list[tuple[int, int]] = []  # (choice, possibilities)

    def __call__(self, possibilities: int) -> int:
        at = len(self._taken)
        choice = self._prefix[at] if at < len(self._prefix) else 0
        self._taken.append((choice, possibilities))
        return choice

    def next_prefix(self) -> list[int] | None:
        """The next run in depth-first order, None after the last."""
        taken = list(self._taken)
        while taken:
            choice, possibilities = taken.pop()
            if choice + 1 < possibilities:
                return [c for c, _ in taken] + [choice + 1]
        return None


class Writers:
    """The memory that tasks share: per byte the number of the task that wrote it last, `NO_TASK` where none has."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        sizes: dict[tuple[Space, int], int] = {}
        for access in (access for task in tasks for access in task.accesses):
            key = (access.space, access.slot)
            sizes[key] = max(sizes.get(key, 0), max((r.stop for r in access.regions), default=0))
        self.blocks = {key: np.full(size, NO_TASK, np.int32) for key, size in sizes.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Writers) and all(np.array_equal(b, other.blocks[k]) for k, b in self.blocks.items())

    __hash__ = None  # type: ignore[assignment]

    def of(self, access: MemoryAccess) -> NDArray[np.int32]:
        """Who wrote each byte of an access."""
        block = self.blocks[access.space, access.slot]
        parts = [block[run] for run in _runs(access)]
        return np.concatenate(parts) if parts else np.zeros(0, np.int32)

    def write(self, task: Task, access: MemoryAccess) -> None:
        """The task writes the bytes of one access."""
        for run in _runs(access):
            self.blocks[access.space, access.slot][run] = task.index

    def load(self, task: Task) -> list[NDArray[np.int32]]:
        """Who wrote what a task reads, by access."""
        return [self.of(access) for access in task.accesses if not access.write]

    def store(self, task: Task) -> None:
        """The task writes all that it writes."""
        for access in task.accesses:
            if access.write:
                self.write(task, access)


def _runs(access: MemoryAccess) -> Iterator[slice]:
    for region in access.regions:
        for number in range(region.count):
            start = region.start + number * region.stride
            yield slice(start, start + region.length)


class InOrder:
    """What tasks read (`loads`, in their order) and leave behind (`final`) that run one after another."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.final = Writers(tasks)
        self.loads: list[list[NDArray[np.int32]]] = []
        for task in tasks:
            self.loads.append(self.final.load(task))
            self.final.store(task)


class _World:
    """The plan as events per core, and what a run in global order reads and leaves behind."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.right, self.blank = plan, InOrder(plan.tasks), Writers(plan.tasks)
        self.events = [list(_events(program)) for program in plan.programs]

    def run(self, choose: Callable[[int], int]) -> str:
        """One interleaving; what went wrong, or an empty text."""
        memory = deepcopy(self.blank)
        at = [0] * len(self.events)
        counters = [0] * len(self.events)
        while True:
            able = [c for c in range(len(at)) if at[c] < len(self.events[c]) and self._passes(c, at[c], counters)]
            if not able:
                break
            core = able[choose(len(able))]
            event = self.events[core][at[core]]
            at[core] += 1
            if event.kind == "set":
                counters[core] = event.count
            elif event.kind == "store":
                memory.store(self.plan.tasks[event.task])
            elif event.kind == "load":
                seen = memory.load(self.plan.tasks[event.task])
                if any(not np.array_equal(a, b) for a, b in zip(seen, self.right.loads[event.task], strict=True)):
                    return f"task {event.task} on core {core} reads what another task than in the global order wrote"
        if any(a < len(e) for a, e in zip(at, self.events, strict=True)):
            return "deadlock: " + ", ".join(
                f"core {c} at event {a}" for c, a in enumerate(at) if a < len(self.events[c])
            )
        return "" if memory == self.right.final else "the final memory differs from that of the global order"

    def _passes(self, core: int, at: int, counters: Sequence[int]) -> bool:
        event = self.events[core][at]
        return event.kind != "wait" or counters[event.producer] >= event.count


def _events(program: Sequence[object]) -> Iterator[CoreAction]:
    for step in program:
        if isinstance(step, TaskStep):
            yield CoreAction("load", task=step.task)
            yield CoreAction("store", task=step.task)
        elif isinstance(step, Set):
            yield CoreAction("set", count=step.count)
        else:
            assert isinstance(step, Wait)
            yield CoreAction("wait", count=step.count, producer=step.producer)
