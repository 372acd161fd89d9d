"""What the entries of a fused kernel are made from: the plan stripped to what their code needs (`entry.py` writes it).

Model: tasks (a kernel symbol, where its operands are, a unit range) and per core a straight line of steps: run a task,
wait for a count of another core, set one's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from superkernel.core.frozen import frozen

LINES_PER_SPIN = 2
"""Cache lines of constants that a wait asks for each time it looks at a counter."""
WAITS_IN_A_TABLE = 4
"""So many waits that follow one another are rows of a table, not code."""


class BasePointer(Enum):
    """Which base pointer of the context an operand hangs on."""

    ARENA = "arena"
    CONSTANTS = "constants"
    IO = "io"

    __hash__ = object.__hash__  # asked for every operand; Enum's own hashes the name each time


_NAMES = {space: space.value for space in BasePointer}  # which an enumeration is slow to tell


@frozen()
class Location:
    """Address of an operand: base pointer, byte offset; `slot` is the index into the io table, behind whose inputs,
    outputs and states the shared constants stand."""

    space: BasePointer
    offset: int
    slot: int = 0


@frozen()
class TaskSpec:
    """One call of a kernel function on one core. `symbol` None: a host call of sub-operator `subop`. `checked`: an
    operand whose first 32 bits are 0 behind the call, else the data is out of the operator's range: the host call of
    the sub-operator says how."""

    subop: int
    core: int
    symbol: str | None
    operands: tuple[Location, ...]
    begin: int
    end: int
    checked: int | None = None

    @property
    def may_fail(self) -> bool:
        """Whether the launch may end here."""
        return self.symbol is None or self.checked is not None


@frozen()
class RunTask:
    """Step: execute a task."""

    task: int


@frozen()
class WaitFor:
    """Step: wait until `producer` has done its `count`-th set of this launch; meanwhile prefetch constants,
    `weight_bytes` from `weights` on, and ahead of them `data`, lines that the producer hands over (`handover.py`).
    `wait` is the index that the watchdog reports."""

    producer: int
    count: int
    wait: int
    weights: Location = Location(BasePointer.CONSTANTS, 0)
    weight_bytes: int = 0
    data: tuple[Location, ...] = ()


@frozen()
class SetCount:
    """Step: this core's `count`-th set of the launch."""

    count: int


Step = RunTask | WaitFor | SetCount


@dataclass(frozen=True)
class EntrySpec:
    """Everything the entries' code depends on; its text, which tells all of it, is the cache key."""

    tasks: tuple[TaskSpec, ...]
    programs: tuple[tuple[Step, ...], ...]  # one per core
    sets: tuple[int, ...]  # sets per core and launch
    subops: int

    @property
    def events_words(self) -> int:
        """Time stamps that a profiled core writes at most."""
        return 1 + max((len(p) for p in self.programs), default=0)

    def __str__(self) -> str:
        known: dict[int, str] = {}  # sub-operators' tasks share their operands

        def operands(of: TaskSpec) -> str:
            found = known.get(id(of.operands))
            if found is None:
                found = known[id(of.operands)] = _places(of.operands)
            return found

        lines = [f"{self.subops} {self.sets}"]
        lines += [f"{t.subop} {t.core} {t.symbol} {t.begin} {t.end} {t.checked}{operands(t)}" for t in self.tasks]
        for core, steps in enumerate(self.programs):
            lines.append(f"core {core}")
            for step in steps:
                if isinstance(step, RunTask):
                    lines.append(f"run {step.task}")
                elif isinstance(step, SetCount):
                    lines.append(f"set {step.count}")
                else:
                    places = _places((step.weights, *step.data))
                    lines.append(f"wait {step.producer} {step.count} {step.wait} {step.weight_bytes}{places}")
        return "\n".join(lines)


def _places(locations: Iterable[Location]) -> str:
    return "".join([f" {_NAMES[place.space]}{place.slot}@{place.offset}" for place in locations])
