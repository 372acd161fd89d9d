"""What orders the sub-operators of a grouping: the values that they share, and the streams that nodes name; and what
tasks on one core know of those on others by that alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from superkernel.ir.body import Role
from superkernel.scheduler.grouping import Grouping, view_chain


def dependences(grouping: Grouping) -> list[set[int]]:
    """For each sub-operator those that must come before it: readers after writers, overwriters after everybody else."""
    before: list[set[int]] = [set() for _ in grouping.subops]
    writers: dict[object, list[int]] = {}
    readers: dict[object, list[int]] = {}
    for at, sub in enumerate(grouping.subops):
        for name, operand in zip(sub.values, sub.body.operands, strict=True):
            if operand.role is Role.CONSTANT:
                continue
            buffer = grouping.buffers[name]
            key, *wholes = (n if b.address is None else b.address for n, b, _ in view_chain(grouping.buffers, name))
            if operand.role is Role.INPUT:
                before[at].update(writers.get(key, ()))
                readers.setdefault(key, []).append(at)
            elif operand.role is Role.INOUT or buffer.previous is not None:  # takes over bytes that others used
                before[at].update(writers.get(key, ()))
                before[at].update(readers.get(key, ()))
                writers.setdefault(key, []).append(at)
            else:  # several may write different parts of one buffer
                for whole in (key, *wholes):
                    writers.setdefault(whole, []).append(at)
        before[at].discard(at)
    return before


def issued(grouping: Grouping) -> list[set[int]]:
    """`dependences`, and the order of streams that nodes name: each sub-operator of one behind the one before it."""
    before = dependences(grouping)
    last: dict[int | str, int] = {}
    for index, sub in enumerate(grouping.subops):
        if sub.stream is not None:
            before[index] |= {last[sub.stream]} if sub.stream in last else set()
            last[sub.stream] = index
    return before


class VectorClock:
    """What each core knows of the others' progress through true dependences alone: vector clocks over positions in
    the global order."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._now = [[-1] * cores for _ in range(cores)]
        self._start: dict[tuple[int, int], list[int]] = {}
        self._finish: dict[tuple[int, int], list[int]] = {}

    def run(self, position: int, core: int, sources: Iterable[tuple[int, int]]) -> None:
        """A task at `position` on `core` starts after its sources, and completes."""
        now = self._now[core]
        for source in dict.fromkeys(sources):
            if now[source[1]] < source[0]:
                now = list(map(max, now, self._finish[source]))
        self._start[position, core] = now
        finish = now.copy()
        finish[core] = position
        self._now[core] = self._finish[position, core] = finish

    def at(self, position: int, cores: Sequence[int]) -> list[int]:
        """Up to which position every core is known to be complete by all the tasks at `position`."""
        rows = [self._start[position, core] for core in cores]
        return list(map(min, *rows)) if len(rows) > 1 else rows[0] if rows else [position] * self._cores
