"""Whether groups that compute a value each for itself read what they computed: A10 of `verify`.

Model: tasks are gone through in the global order, which A5 proves to be what happens. Each byte of the stretch in which
the copies lie remembers the sub-operator that wrote it last, and nobody where the value's own computation begins. A
core may read bytes of a copy only where that computation wrote them; by whichever core, since A5 orders the two. Every
unit of the sub-operator is computed by somebody or left out because nobody reads it.

Architecture invariant: imports plain data types only, nothing of the planner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from superkernel.core.errors import Violation
from superkernel.core.tensor import Region
from superkernel.scheduler.schedule import Copies, MemoryAccess, Task
from superkernel.sync.aicore.plan import AicorePlan

_UNWRITTEN = -1


def check_copies(plan: AicorePlan, units: Mapping[int, int]) -> Iterator[Violation]:
    """What is wrong with the values that groups compute each for itself. `units`: by sub-operator."""
    of_subop: dict[int, list[Task]] = {}
    for task in plan.tasks if plan.copies else ():
        of_subop.setdefault(task.subop, []).append(task)
    for copies in plan.copies:
        for task in of_subop.get(copies.subop, ()):
            limit = units.get(copies.subop, task.end)
            if not 0 <= task.begin < task.end <= limit:
                yield Violation(
                    "units are invented", f"sub-operator {copies.subop}, core {task.core}",
                    f"0..{limit}", f"{task.begin}..{task.end}",
                )  # fmt: skip
        yield from _check_reads(copies, of_subop)


def _check_reads(copies: Copies, of_subop: Mapping[int, list[Task]]) -> Iterator[Violation]:
    uses = set(copies.uses)
    own = [(t, a) for i, k in sorted(uses) for t in of_subop.get(i, ()) for a in t.accesses if a.operand == k]
    if not own:
        return
    spaces = {(a.space, a.slot) for _, a in own}
    if len(spaces) > 1:
        yield Violation("copies lie in several spaces", f"sub-operator {copies.subop}", "one", str(len(spaces)))
        return
    space = spaces.pop()
    low = min((r.start for _, a in own for r in a.regions), default=0)
    high = max((r.stop for _, a in own for r in a.regions), default=0)
    written: NDArray[np.int64] = np.full(high - low, _UNWRITTEN, np.int64)
    for subop in range(copies.subop, max(i for i, _ in uses) + 1):
        mine = [(t, a) for t in of_subop.get(subop, ()) for a in t.accesses if (a.space, a.slot) == space]
        for task, access in mine:
            if not access.write and (subop, access.operand) in uses:
                yield from _check_read(copies, task, access, written, low)
        for _, access in mine:
            for region in access.regions if access.write else ():
                for at in _runs(region, low):
                    written[at] = subop


def _check_read(
    copies: Copies, task: Task, access: MemoryAccess, written: NDArray[np.int64], low: int
) -> Iterator[Violation]:
    for region in access.regions:
        for at in _runs(region, low):
            strange = np.flatnonzero(written[at] != copies.subop)
            if len(strange):
                byte, who = low + at.start + int(strange[0]), int(written[at][strange[0]])
                yield Violation(
                    "a core reads a copy that was not computed for it",
                    f"core {task.core}, sub-operator {task.subop}, operand {access.operand}",
                    f"byte {byte} of sub-operator {copies.subop}",
                    "written by nobody" if who == _UNWRITTEN else f"written by sub-operator {who}",
                )
                return


def _runs(region: Region, low: int) -> Iterator[slice]:
    """A region's runs from byte `low` on, relative to it."""
    for n in range(region.count):
        start = region.start + n * region.stride - low
        yield slice(max(start, 0), max(start + region.length, 0))
