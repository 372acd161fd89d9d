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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from superkernel.scheduler.schedule import MemoryAccess, Space, Task
from superkernel.sync.plan import Plan, Set, TaskStep, Wait

Memory = dict[tuple[Space, int], NDArray[np.int32]]
NOBODY = -1


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


class _World:
    """The plan as events per core, and what a run in global order reads and leaves behind."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.events = [list(_events(program)) for program in plan.programs]
        self.sizes: dict[tuple[Space, int], int] = {}
        for task in plan.tasks:
            for access in task.accesses:
                key = (access.space, access.slot)
                top = max((r.stop for r in access.regions), default=0)
                self.sizes[key] = max(self.sizes.get(key, 0), top)
        memory = self.blank()
        self.expected: list[list[NDArray[np.int32]]] = []
        for task in plan.tasks:
            self.expected.append(self.load(memory, task))
            self.store(memory, task)
        self.final = memory

    def blank(self) -> Memory:
        return {key: np.full(size, NOBODY, np.int32) for key, size in self.sizes.items()}

    def load(self, memory: Memory, task: Task) -> list[NDArray[np.int32]]:
        return [_bytes_of(memory, a) for a in task.accesses if not a.write]

    def store(self, memory: Memory, task: Task) -> None:
        for access in task.accesses:
            if access.write:
                block = memory[access.space, access.slot]
                for region in access.regions:
                    for i in range(region.count):
                        start = region.start + i * region.stride
                        block[start : start + region.length] = task.index

    def run(self, choose: Callable[[int], int]) -> str:
        """One interleaving; what went wrong, or an empty text."""
        memory = self.blank()
        at = [0] * len(self.events)
        counters = [0] * len(self.events)
        while True:
            able = [c for c in range(len(at)) if at[c] < len(self.events[c]) and self._passes(c, at[c], counters)]
            if not able:
                break
            core = able[choose(len(able))] if len(able) > 1 else able[0]
            event = self.events[core][at[core]]
            at[core] += 1
            if event.kind == "set":
                counters[core] = event.count
            elif event.kind == "store":
                self.store(memory, self.plan.tasks[event.task])
            elif event.kind == "load":
                seen = self.load(memory, self.plan.tasks[event.task])
                if any(not np.array_equal(a, b) for a, b in zip(seen, self.expected[event.task], strict=True)):
                    return f"task {event.task} on core {core} reads what another task than in the global order wrote"
        if any(a < len(e) for a, e in zip(at, self.events, strict=True)):
            return "deadlock: " + ", ".join(
                f"core {c} at event {a}" for c, a in enumerate(at) if a < len(self.events[c])
            )
        if any(not np.array_equal(memory[key], self.final[key]) for key in memory):
            return "the final memory differs from that of the global order"
        return ""

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


def _bytes_of(memory: Memory, access: MemoryAccess) -> NDArray[np.int32]:
    block = memory[access.space, access.slot]
    parts = [
        block[r.start + i * r.stride : r.start + i * r.stride + r.length]
        for r in access.regions
        for i in range(r.count)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)
