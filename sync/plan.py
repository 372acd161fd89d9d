"""The plan: per core a straight line of steps, and why each wait stands there. Plain data, shared by planner,
verifier and code generation.

Model (csrc/include/superkernel_abi.h): core p owns a progress counter. `Set(k)` on core p stores k (k = 1, 2, ... in
program order), release; `Wait(p, k)` passes once p's counter is >= k, acquire. Counters grow over launches
(generation * sets + k); within one launch the plan speaks of k only.

Text form: `str(plan)` prints the tasks and, per core, its steps; `parse_plan` reads that back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from superkernel.core.errors import UserError
from superkernel.core.frozen import frozen
from superkernel.core.tensor import Region
from superkernel.scheduler.schedule import Task, parse_tasks


class SyncForm(Enum):
    """How a boundary is synchronised, narrowest first."""

    NONE = "none"  # no core waits: program order is enough
    POINT_TO_POINT = "point-to-point"  # some cores wait for single others
    SUBSET = "subset"  # all cores of a part of the machine wait for one another
    FULL = "full"  # every core waits for every other


class Hazard(Enum):
    """Why two tasks must be ordered."""

    RAW = "read-after-write"
    WAR = "write-after-read"
    WAW = "write-after-write"
    BARRIER = "barrier asked for"  # no conflict: the option sync="full"


@dataclass(frozen=True, slots=True)
class Witness:
    """A pair of conflicting accesses that a wait is there for: bytes `earlier` of task `producer`, `later` of task
    `consumer`."""

    hazard: Hazard
    producer: int
    consumer: int
    place: str
    earlier: Region
    later: Region

    def __str__(self) -> str:
        return (
            f"{self.hazard.value}: task {self.producer} bytes {self.earlier} and task {self.consumer} "
            f"bytes {self.later} of {self.place}"
        )


@frozen()
class TaskStep:
    """Run a task."""

    task: int

    def __str__(self) -> str:
        return f"body {self.task}"


@frozen()
class Set:
    """This core's counter becomes `count`."""

    count: int

    def __str__(self) -> str:
        return f"set {self.count}"


@frozen()
class Wait:
    """Until `producer`'s counter is at least `count`. `subop` is the boundary it belongs to; `index` numbers all
    waits of the plan."""

    producer: int
    count: int
    subop: int
    index: int

    def __str__(self) -> str:
        return f"wait core {self.producer} count {self.count} subop {self.subop} index {self.index}"


Step = TaskStep | Set | Wait
BODY, SET, WAIT = range(3)  # kinds of steps in columns
FEW_STEPS = 1024


@dataclass(frozen=True, eq=False)
class StepRows(Sequence[Step]):
    """One core's steps, of which there may be millions: each is made when somebody asks for it; few, which are gone
    through a handful of times, stay. `rows`: a kind and the step's numbers in the order of its fields, zeros behind
    them. Raises ValueError on rows that are none."""

    rows: NDArray[np.signedinteger[Any]]

    def __post_init__(self) -> None:
        if self.rows.dtype not in (np.int32, np.int64) or self.rows.shape[1:] != (5,):
            raise ValueError(f"rows of {self.rows.dtype}, {self.rows.shape}")
        if len(self.rows) and not BODY <= self.rows[:, 0].min() <= self.rows[:, 0].max() <= WAIT:
            raise ValueError("steps of no kind")

    @staticmethod
    def of(steps: Iterable[Step]) -> StepRows:
        """These; they may be in columns already."""
        if isinstance(steps, StepRows):
            return steps
        rows = []
        for step in steps:
            if isinstance(step, Wait):
                rows.append((WAIT, step.producer, step.count, step.subop, step.index))
            elif isinstance(step, Set):
                rows.append((SET, step.count, 0, 0, 0))
            else:
                rows.append((BODY, step.task, 0, 0, 0))
        return StepRows(np.array(rows, np.int64).reshape(-1, 5))

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> Step: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Step, ...]: ...
    def __getitem__(self, at: int | slice) -> Step | tuple[Step, ...]:
        if isinstance(at, slice):
            return tuple(_step(*row) for row in self.rows[at].tolist())
        return _step(*self.rows[at].tolist())

    def __iter__(self) -> Iterator[Step]:
        return iter(self._few) if len(self.rows) <= FEW_STEPS else self._made()

    @cached_property
    def _few(self) -> tuple[Step, ...]:
        return self[:]

    def _made(self) -> Iterator[Step]:
        for at in range(0, len(self.rows), FEW_STEPS):
            yield from self[at : at + FEW_STEPS]

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, StepRows | tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def _step(kind: int, first: int, count: int, subop: int, index: int) -> Step:
    if kind == WAIT:
        return Wait(first, count, subop, index)
    return TaskStep(first) if kind == BODY else Set(first)


@dataclass(frozen=True, slots=True)
class WaitReason:
    """What a kept wait is for; `implied` says how many further conflicts it orders too."""

    core: int
    wait: Wait
    witness: Witness | None
    conflicts: int


@dataclass(frozen=True, eq=False)
class WaitReasons(Sequence[WaitReason]):
    """Those of millions of waits, which are numbered in the order of cores and programs: each is made when somebody
    asks for it. `rows`: the accesses of the witness by number, the earlier one, which belongs to the producer, and the
    later one, then conflicts, then a region of each by number. `accesses`: task, core, sub-operator, count of the set
    behind the task, place by number, and whether it is a write. `regions`: start, length, stride, count. Raises
    ValueError on rows that are none."""

    rows: NDArray[np.int32]
    accesses: NDArray[np.int32]
    places: tuple[str, ...]
    regions: NDArray[np.int64]

    def __post_init__(self) -> None:
        for name, table, kind, width in (
            ("rows", self.rows, np.int32, 5),
            ("accesses", self.accesses, np.int32, 6),
            ("regions", self.regions, np.int64, 4),
        ):
            if table.dtype != kind or table.shape[1:] != (width,):
                raise ValueError(f"{name} of {table.dtype}, {table.shape}")
        self._check("rows", self.rows, (0, 1), len(self.accesses))
        self._check("rows", self.rows, (3, 4), len(self.regions))
        self._check("accesses", self.accesses, (4,), len(self.places))
        self._check("accesses", self.accesses, (5,), 2)
        if not self.accesses[self.rows[:, :2], 5].any(axis=1).all():
            raise ValueError("two reads, which nobody orders")

    def _check(self, name: str, table: NDArray[np.int32], columns: tuple[int, ...], count: int) -> None:
        for numbers in (table[:, column] for column in columns if len(table)):
            if not 0 <= numbers.min() <= numbers.max() < count:
                raise ValueError(f"a number in {name} that stands for nothing")

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> WaitReason: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[WaitReason, ...]: ...
    def __getitem__(self, at: int | slice) -> WaitReason | tuple[WaitReason, ...]:
        numbers = range(len(self))[at]
        return self._made(numbers) if isinstance(numbers, int) else tuple(map(self._made, numbers))

    def __iter__(self) -> Iterator[WaitReason]:
        return map(self._made, range(len(self)))

    def _made(self, number: int) -> WaitReason:
        earlier, later, conflicts, *regions = self.rows[number].tolist()
        before, producer, _, count, _, wrote = self.accesses[earlier].tolist()
        task, core, subop, _, place, writes = self.accesses[later].tolist()
        left, right = (Region(*self.regions[region].tolist()) for region in regions)
        witness = Witness(_HAZARDS[wrote, writes], before, task, self.places[place], left, right)
        return WaitReason(core, Wait(producer, count, subop, number), witness, conflicts)


_HAZARDS = {(1, 0): Hazard.RAW, (0, 1): Hazard.WAR, (1, 1): Hazard.WAW}


@dataclass(frozen=True, slots=True)
class Boundary:
    """The synchronisation in front of one sub-operator's tasks."""

    subop: int
    form: SyncForm
    reason: str
    implied: int  # ordering constraints that earlier waits or program order already give
    cost_ns: float
    alternatives: tuple[tuple[SyncForm, float], ...]  # wider legal forms with their estimated cost


@dataclass(frozen=True)
class Plan:
    """See the module docstring. `programs[c]` are core c's steps, `sets[c]` the count of its last set."""

    tasks: tuple[Task, ...]
    programs: tuple[tuple[Step, ...] | StepRows, ...]
    sets: tuple[int, ...]
    reasons: tuple[WaitReason, ...] | WaitReasons
    boundaries: tuple[Boundary, ...]

    @property
    def cores(self) -> int:
        """Number of cores, with work or without."""
        return len(self.programs)

    @property
    def waits(self) -> int:
        """Number of waits, all cores."""
        return len(self.reasons)

    def waits_ahead(self) -> dict[int, list[int]]:
        """The indices of waits by the sub-operator of each boundary."""
        found: dict[int, list[int]] = {boundary.subop: [] for boundary in self.boundaries}
        for reason in self.reasons:
            found[reason.wait.subop].append(reason.wait.index)
        return found

    def __str__(self) -> str:
        lines = [f"plan cores {self.cores}", *map(str, self.tasks)]
        for core, steps in enumerate(self.programs):
            lines.append(f"core {core} sets {self.sets[core]}")
            lines += [f"  {step}" for step in steps]
        for b in self.boundaries:
            if b.form is not SyncForm.NONE:
                lines.append(f"# boundary {b.subop} {b.form.value}: {b.reason}")
        lines += [f"# wait {r.wait.index} on core {r.core}: {r.witness}" for r in self.reasons]
        return "\n".join(lines)


def parse_plan(text: str) -> Plan:
    """Tasks and programs of a plan's text; reasons and boundaries, which are comments there, are empty. Raises
    UserError."""
    lines = text.splitlines()
    programs: list[list[Step]] = []
    sets: list[int] = []
    for line in lines:
        words = line.split()
        try:
            if line.startswith("core "):
                programs.append([])
                sets.append(int(words[3]))
            elif line.startswith("  "):
                programs[-1].append(_parse_step(words))
        except (IndexError, ValueError) as error:
            raise UserError("not a plan line", found=line) from error
    return Plan(parse_tasks(lines), tuple(map(tuple, programs)), tuple(sets), (), ())


def _parse_step(words: list[str]) -> Step:
    if words[0] == "body":
        return TaskStep(int(words[1]))
    if words[0] == "set":
        return Set(int(words[1]))
    if words[0] == "wait":
        return Wait(int(words[2]), int(words[4]), int(words[6]), int(words[8]))
    raise ValueError(words[0])
