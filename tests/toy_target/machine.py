"""The interpreter: cores that take turns at random, each a program of the plan, on one memory.

A step of a core is a set, a wait that passes, or one unit of a task. Memory that no kernel has written holds rubbish.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.errors import InternalError
from superkernel.core.tensor import TensorType
from superkernel.scheduler.schedule import MemoryAddress, Schedule, Space
from superkernel.sync.plan import Plan, Set, TaskStep
from toy_target.kernels.kernel import ToyTiling
from toy_target.target import ToyTarget

RUBBISH = 0xA5


@dataclass(frozen=True)
class ToyImage:
    """What the interpreter runs: constants, and the first slot of each space in the table of a launch."""

    constants: NDArray[np.uint8]
    slots: Mapping[Space, int]
    host_calls: tuple[int, ...] = ()
    ir_texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Counts:
    """Of one run: steps of each core, and steps that it stood still."""

    steps: tuple[int, ...]
    waited: tuple[int, ...]

    @property
    def ticks(self) -> int:
        """Of the run: its busiest core's."""
        return max(s + w for s, w in zip(self.steps, self.waited, strict=True))


class ToyMachine:
    """One compiled program."""

    def __init__(self, image: ToyImage, schedule: Schedule, plan: Plan, target: ToyTarget) -> None:
        self.image, self.schedule, self.plan, self.target = image, schedule, plan, target

    def run(self, io: Sequence[NDArray[Any]], /) -> None:
        """One launch."""
        self.counted(io)

    def counted(self, io: Sequence[NDArray[Any]]) -> Counts:
        """One launch. Raises InternalError where all cores wait."""
        arena = np.full(self.schedule.arena_bytes, RUBBISH, np.uint8)
        counters, turns = [0] * self.plan.cores, random.Random(self.target.seed)
        programs = [self._steps(core, arena, io, counters) for core in range(self.plan.cores)]
        left, steps, waited = set(range(self.plan.cores)), [0] * self.plan.cores, [0] * self.plan.cores
        still: set[int] = set()
        while left:
            core = turns.choice(sorted(left))
            went_on = next(programs[core], None)
            if went_on is None:
                left.discard(core)
                still.discard(core)
            elif went_on:
                steps[core] += 1
                still.clear()
            else:
                waited[core] += 1
                still.add(core)
            if left and still == left:
                raise InternalError("all cores wait", location=f"cores {sorted(left)}")
        return Counts(tuple(steps), tuple(waited))

    def _steps(
        self, core: int, arena: NDArray[np.uint8], io: Sequence[NDArray[Any]], counters: list[int]
    ) -> Iterator[bool]:
        """The steps of a core's program; False: it waits, and tries again."""
        for step in self.plan.programs[core]:
            if isinstance(step, TaskStep):
                task = self.plan.tasks[step.task]
                body, tiling = self.schedule.subops[task.subop].body, self.schedule.tilings[task.subop]
                assert isinstance(tiling, ToyTiling)
                addresses = self.schedule.addresses[task.subop]
                operands = [self._flat(p, o.type, arena, io) for p, o in zip(addresses, body.operands, strict=True)]
                for unit in range(task.begin, task.end):
                    tiling.compute(body, operands, unit)
                    yield True
            elif isinstance(step, Set):
                counters[core] = step.count
                yield True
            else:
                while counters[step.producer] < step.count:
                    yield False
                yield True

    def _flat(
        self, address: MemoryAddress, kind: TensorType, arena: NDArray[np.uint8], io: Sequence[NDArray[Any]]
    ) -> NDArray[Any]:
        """The memory of an operand."""
        if address.space is Space.ARENA:
            raw = arena
        elif address.space is Space.CONSTANT:
            raw = self.image.constants
        else:
            raw = io[self.image.slots[address.space] + address.slot].reshape(-1).view(np.uint8)
        return raw[address.offset : address.offset + kind.nbytes].view(kind.dtype.numpy)
