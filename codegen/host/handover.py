"""What a wait hands over: the cache lines that the awaited core wrote last and that the coming body reads.

Model: a wait for the k-th set of a core stands for the bodies between that core's sets k - 1 and k. What they write and
the body behind the wait reads moves from one core's cache to the other's, and it moves after the counter's line: two
transfers one after the other. A wait that finds the counter too low asks for these lines at once, so that they are on
their way while the counter is.

It asks once, and with the non-temporal hint, which leaves the second-level cache out. A line that comes before its
producer wrote it is no use and has to be taken back; asking again at each look takes lines away from a producer that is
about to write them, and costs more than it gains.

Only hand-overs of few lines are followed. Where cores exchange more they have worked longer, are further apart when
they meet, and the lines come too soon: eight of them made a small perceptron slower. Accesses of many pieces are left
out: their lines would be many, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from superkernel.core.tensor import Region
from superkernel.scheduler.schedule import Space, Task
from superkernel.sync.plan import Plan, Set, TaskStep, Wait

LINE_BYTES = 64
LINES_MAX = 4  # per wait
_PIECES_MAX = 16  # of an access

Line = tuple[Space, int, int]
"""Space, slot and the offset of a byte of it."""
Place = tuple[Space, int]
Pieces = list[tuple[int, int]]
"""(first byte, byte behind the last) of each run of an access."""


@dataclass
class Handovers:
    """What the waits of one plan hand over."""

    plan: Plan
    _awaited: list[dict[int, tuple[Task, ...]]] = field(init=False)  # per core: count -> bodies since the set before
    _known: dict[tuple[int, bool], list[tuple[Place, Pieces]]] = field(default_factory=dict, init=False)
    """By task, and whether they are what it writes."""

    def __post_init__(self) -> None:
        self._awaited = []
        for program in self.plan.programs:
            bodies: list[Task] = []
            by_count: dict[int, tuple[Task, ...]] = {}
            for step in program:
                if isinstance(step, TaskStep):
                    bodies.append(self.plan.tasks[step.task])
                elif isinstance(step, Set):
                    by_count[step.count] = tuple(bodies)
                    bodies.clear()
            self._awaited.append(by_count)

    def lines(self, wait: Wait, coming: int) -> tuple[Line, ...]:
        """What `wait`, ahead of task `coming`, hands over; nothing where that is too much to follow."""
        found: dict[Line, None] = {}
        for producer in self._awaited[wait.producer].get(wait.count, ()):
            for place, start, stop in self._passed_on(producer, self.plan.tasks[coming]):
                if (stop - start) // LINE_BYTES > LINES_MAX:
                    return ()
                first = start // LINE_BYTES * LINE_BYTES
                found.update(dict.fromkeys((*place, at) for at in range(first, stop, LINE_BYTES)))
                if len(found) > LINES_MAX:
                    return ()
        return tuple(found)

    def _passed_on(self, producer: Task, consumer: Task) -> Iterator[tuple[Place, int, int]]:
        """Runs of bytes, with their place, that the one writes and the other reads."""
        reads = self._pieces(consumer, write=False)
        for place, written in self._pieces(producer, write=True):
            for _, read in (row for row in reads if row[0] == place):
                for (start, stop), (begin, end) in product(written, read):
                    if max(start, begin) < min(stop, end):
                        yield place, max(start, begin), min(stop, end)

    def _pieces(self, task: Task, *, write: bool) -> list[tuple[Place, Pieces]]:
        """Those of each access that a task writes, or reads, but for constants and accesses of many."""
        found = self._known.get((task.index, write))
        if found is None:
            found = self._known[task.index, write] = [
                ((access.space, access.slot), [run for region in access.regions for run in _runs(region)])
                for access in task.accesses
                if access.write is write
                and access.space is not Space.CONSTANT
                and sum(region.count for region in access.regions) <= _PIECES_MAX
            ]
        return found


def _runs(region: Region) -> Iterator[tuple[int, int]]:
    starts = (region.start + i * region.stride for i in range(region.count))
    return ((start, start + region.length) for start in starts)
