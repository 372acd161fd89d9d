"""What the verifiers of all targets ask of tasks alone, whatever orders them: their numbers, units, and bytes.

Architecture invariant: imports plain data types only, nothing of the planners; decides by itself whether bytes meet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from superkernel.core.errors import Violation
from superkernel.core.tensor import Region
from superkernel.scheduler.schedule import MemoryAccess, Space, Task


def check_tasks(
    tasks: Sequence[Task], units: Mapping[int, int], *, shared: bool = False, copied: Collection[int] = ()
) -> Iterator[Violation]:
    """Tasks are numbered in the global order, write no inputs or constants, and those of a sub-operator tile its
    `units` (number of units by sub-operator; those of others nobody knows). `shared`: tasks of one range, on
    several cores, count as one. `copied`: sub-operators whose units may be computed several times."""
    ranges: dict[int, list[tuple[int, int]]] = {subop: [] for subop in units}
    for index, task in enumerate(tasks):
        if task.index != index:
            yield Violation("task indices are not the global order", expected=str(index), found=str(task.index))
        for access in task.accesses:
            if access.write and access.space in (Space.INPUT, Space.CONSTANT):
                yield Violation(f"writes to {access.space.value}{access.slot}", _at(task))
        if task.begin >= task.end:
            yield Violation("empty unit range", _at(task), found=f"{task.begin}..{task.end}")
        if task.subop in ranges:
            ranges[task.subop].append((task.begin, task.end))
    for subop, parts in ranges.items():
        if subop in copied:
            continue
        at = 0
        for begin, end in sorted(set(parts) if shared else parts):
            if begin != at:
                yield Violation("units are left out or done twice", f"sub-operator {subop}", str(at), f"{begin}..{end}")
            at = max(at, end)
        if at != units[subop]:
            yield Violation("units are left out or invented", f"sub-operator {subop}", str(units[subop]), str(at))


def _at(task: Task) -> str:
    return f"core {task.core}, task {task.index}"


def overlapping_regions(left: Sequence[Region], right: Sequence[Region]) -> tuple[Region, Region] | None:
    """The first pair of regions that share a byte."""
    return next(((a, b) for a in left for b in right if _share_byte(a, b)), None)


def _share_byte(a: Region, b: Region) -> bool:
    """Whether two strided byte sets meet: for each run of the one, the first run of the other that ends behind its
    start."""
    starts = a.start + np.arange(a.count, dtype=np.int64) * a.stride
    stride = max(1, b.stride)
    first = np.maximum(0, (starts - b.start - b.length) // stride + 1)
    return bool(((first < b.count) & (b.start + first * stride < starts + a.length)).any())


def race(a: Task, b: Task, access: MemoryAccess, pair: tuple[Region, Region], where: str, expected: str) -> Violation:
    """Two tasks, the later one with its access, touch the same bytes, and nothing orders them. `where`: of the core
    that comes too early."""
    return Violation(
        f"race: tasks {a.index} (sub-operator {a.subop}, core {a.core}) and {b.index} (sub-operator {b.subop}, core "
        f"{b.core}) touch the same bytes of {access.space.value}{access.slot} and are not ordered",
        f"core {b.core}, {where}",
        expected=expected,
        found=f"bytes {pair[0]} and {pair[1]}",
    )
