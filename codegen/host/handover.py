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

from superkernel.scheduler.schedule import MemoryAccess, Space, Task
from superkernel.sync.plan import Plan, Set, TaskStep, Wait

LINE_BYTES = 64
LINES_MAX = 4  # per wait
_PIECES_MAX = 16  # of an access

Line = tuple[Space, int, int]
"""Space, slot and the offset of a byte of it."""


@dataclass
class Handovers:
    """What the waits of one plan hand over."""

    plan: Plan
    _awaited: list[dict[int, tuple[Task, ...]]] = field(init=False)  # per core: count -> bodies since the set before
    _known: dict[int, list[tuple[int, int]]] = field(default_factory=dict, init=False)  # pieces of accesses

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

    def _passed_on(self, producer: Task, consumer: Task) -> Iterator[tuple[tuple[Space, int], int, int]]:
        """Runs of bytes, with their place, that the one writes and the other reads."""
        for written in (a for a in producer.accesses if a.write):
            space, slot = written.space, written.slot
            for read in consumer.accesses:
                if read.write or read.space is not space or read.slot != slot or space is Space.CONSTANT:
                    continue
                for (start, stop), (begin, end) in product(self._pieces(written), self._pieces(read)):
                    if max(start, begin) < min(stop, end):
                        yield (space, slot), max(start, begin), min(stop, end)

    def _pieces(self, access: MemoryAccess) -> list[tuple[int, int]]:
        """(first byte, byte behind the last) of each piece; none where they are many."""
        known = self._known.get(id(access))  # of the plan, which is held
        if known is None:
            many = sum(region.count for region in access.regions) > _PIECES_MAX
            starts = ((r.start + i * r.stride, r.length) for r in access.regions for i in range(r.count) if not many)
            known = self._known[id(access)] = [(start, start + length) for start, length in starts]
        return known
