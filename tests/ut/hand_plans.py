"""Plans of the accelerator made by hand, for one fault each: 2 cube cores (0, 1), 4 vector cores (2 to 5), 2 groups, 4
flags that count to 2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from superkernel.core.errors import Violation
from superkernel.core.tensor import Region
from superkernel.scheduler.schedule import MemoryAccess, Space, Task
from superkernel.sync.aicore.plan import AICPU, AicorePlan, CoreKind, Event, HartKind, Mode, Step

CUBE, VECTOR = CoreKind.CUBE, CoreKind.VECTOR
GROUP, TYPE, ALL, ACROSS, NOTIFY = Mode.GROUP, Mode.TYPE, Mode.ALL, Mode.ACROSS, Mode.NOTIFY
Row = tuple[int, int, tuple[MemoryAccess, ...]]
"""Of a task: sub-operator, core, accesses."""


def write(start: int, length: int, operand: int | None = None, space: Space = Space.ARENA, **form: Any) -> MemoryAccess:
    """`form`: `stride` and `count` of the region, what else is said of the access."""
    region = Region(start, length, form.pop("stride", 0), form.pop("count", 1))
    return MemoryAccess(space, form.pop("slot", 0), form.pop("written", True), (region,), operand, **form)


def read(start: int, length: int, operand: int | None = None, space: Space = Space.ARENA, **form: Any) -> MemoryAccess:
    return write(start, length, operand, space, written=False, **form)


def tasks_of(*rows: Row) -> tuple[Task, ...]:
    """Tasks in order; those of a sub-operator have a unit each."""
    done: dict[int, int] = {}
    made = []
    for index, (subop, core, accesses) in enumerate(rows):
        unit = done.get(subop, 0)
        done[subop] = unit + 1
        made.append(Task(index, subop, core, unit, unit + 1, accesses))
    return tuple(made)


def plan_of(
    tasks: Sequence[Task],
    cube: Iterable[Any] = (),
    vector: Iterable[Any] = (),
    events: Iterable[tuple[Any, ...]] = (),
    aicpu: Iterable[Any] | None = None,
    **more: Any,
) -> AicorePlan:
    """`events`: mode, setters, flag, and to whom."""
    programs: dict[HartKind, tuple[Step, ...]] = {CUBE: tuple(cube), VECTOR: tuple(vector)}
    if aicpu is not None:
        programs[AICPU] = tuple(aicpu)
    made = [Event(n, mode, setters, flag, 0, *to) for n, (mode, setters, flag, *to) in enumerate(events)]
    form: Mapping[str, Any] = {"flags": 4, "flag_count_max": 2} | more
    return AicorePlan(tuple(tasks), 2, 4, 2, programs, tuple(made), (), **form)


def texts(wrong: Iterable[Violation]) -> list[str]:
    return [str(violation) for violation in wrong]
