"""What harts of an accelerator were seen to do, made by hand: 2 cube cores (0, 1), 4 vector cores (2 to 5), 2 groups,
4 flags, and where asked for the aicpu hart (6); behind them the service hart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from hand_plans import plan_of

from superkernel.scheduler.schedule import MemoryAccess, Task
from superkernel.sync.aicore.plan import AicorePlan, Mode
from superkernel.sync.aicore.verify_program import rebuild
from superkernel.sync.aicore.verify_seen import (
    AwaitWord,
    Called,
    Count,
    Fetch,
    Returned,
    Seen,
    SetFlag,
    Shape,
    TakeFlag,
    Use,
)

_ALL = -1  # of a signal: it tells of all calls ahead of it
SHAPE = Shape(cube_cores=2, vector_cores=4, groups=2, aicpu=False, flags=4, flag_count_max=2)
MEANT = plan_of(())


@dataclass(frozen=True)
class Kernel:
    """A call of a sub-operator. `inside`: what it does before it returns."""

    subop: int
    inside: tuple[Seen, ...]
    uses: Mapping[int, Use]
    told: Mapping[int, Sequence[int]]
    accesses: tuple[MemoryAccess, ...]


Steps: TypeAlias = Sequence[Any]
"""Of kernels and events."""


def kernel(
    subop: int,
    *inside: Seen,
    uses: Mapping[int, tuple[int | None, int | None]] | None = None,
    told: Mapping[int, Sequence[int]] | None = None,
    accesses: tuple[MemoryAccess, ...] = (),
) -> Kernel:
    """`uses`: by operand, how many waits had been passed, and behind how many calls' stores its loads come."""
    return Kernel(subop, inside, {k: Use(*use) for k, use in (uses or {}).items()}, told or {}, accesses)


def set_flag(flag: int, mode: Mode = Mode.GROUP, complete: int = _ALL) -> SetFlag:
    return SetFlag(flag, mode, complete)


def add(word: int, value: int = 1, complete: int = _ALL) -> Count:
    return Count(word, value, True, complete)


def store(word: int, value: int, complete: int = _ALL) -> Count:
    return Count(word, value, False, complete)


take, until, fetch = TakeFlag, AwaitWord, Fetch


def line(core: int, steps: Steps) -> Iterator[Seen]:
    """What a core was seen to do in a launch. Each of its tasks has the unit of its own number."""
    calls = 0
    for step in steps:
        if isinstance(step, Kernel):
            task = Task(0, step.subop, core, core, core + 1, step.accesses)
            yield Called(task, calls, step.uses, step.told)
            calls += 1
            yield from (_completed(event, calls) for event in step.inside)
            yield Returned()
        else:
            yield _completed(step, calls)


def _completed(event: Seen, calls: int) -> Seen:
    if isinstance(event, (SetFlag, Count)) and event.complete == _ALL:
        return replace(event, complete=calls)
    return event


@dataclass(frozen=True)
class Launch:
    """The steps of all cores of a type, but for those in `own`; `behind`: of the harts behind the cores."""

    cube: Steps = ()
    vector: Steps = ()
    own: Mapping[int, Steps] = field(default_factory=dict)
    behind: Sequence[Steps] = ()

    def lines(self, shape: Shape) -> list[list[Seen]]:
        """By hart."""
        steps = [*[self.cube] * shape.cube_cores, *[self.vector] * shape.vector_cores, *self.behind]
        return [list(line(core, self.own.get(core, its))) for core, its in enumerate(steps)]


def rebuilt(
    *launches: Launch,
    shape: Shape = SHAPE,
    meant: AicorePlan = MEANT,
    run: int = 1,
    words: dict[int, int] | None = None,
) -> tuple[AicorePlan, list[str]]:
    """The plan that was seen, and what is wrong with it."""
    lines = [launch.lines(shape) for launch in launches]
    calls = [event.task for harts in lines for events in harts for event in events if isinstance(event, Called)]
    plan, wrong = rebuild(lines, calls, shape, meant, run, {} if words is None else words)
    return plan, [str(violation) for violation in wrong]


def steps_of(*launches: Launch, **more: Any) -> str:
    """The plan's text without its first line. Nothing may be wrong."""
    plan, wrong = rebuilt(*launches, **more)
    assert wrong == []
    return str(plan).split("\n", 1)[1]


def lines(*rows: str) -> str:
    """A plan's text: what is not a program's head or an event is a step."""
    heads = ("event", "program", "service")
    return "\n".join(row if row.startswith(heads) else f"  {row}" for row in rows)


def refused(*launches: Launch, **more: Any) -> list[str]:
    """What is wrong. A plan that was not understood is no plan."""
    _, wrong = rebuilt(*launches, **more)
    assert wrong
    return wrong
