"""Random schedules for the host that are made of nothing but byte accesses: for planner, verifier and explorers."""

from __future__ import annotations

import random
from collections.abc import Sequence

from superkernel.core.tensor import Region
from superkernel.ir.body import Body, PointwiseProgram, SubOperator
from superkernel.scheduler.hostcall import HostCallTiling
from superkernel.scheduler.schedule import MemoryAccess, Schedule, Space, Task

EMPTY = Body(None, (), (), (), (), (), PointwiseProgram((), (), (), ()))


def sub_operator(index: int) -> SubOperator:
    """One that computes nothing."""
    return SubOperator(index, f"op{index}", EMPTY, (), (), "host.pointwise")


def schedule_of(cores: int, tasks: Sequence[Task]) -> Schedule:
    """A schedule with these tasks; places and tilings are of no interest to sync."""
    count = max((t.subop for t in tasks), default=-1) + 1
    subops = tuple(map(sub_operator, range(count)))
    return Schedule(cores, subops, (HostCallTiling(),) * count, ((),) * count, tuple(tasks), (), 1 << 12, 0, ())


def write(start: int, length: int, stride: int = 0, count: int = 1, space: Space = Space.ARENA) -> MemoryAccess:
    """A write of one region."""
    return MemoryAccess(space, 0, True, (Region(start, length, stride, count),))


def read(start: int, length: int, stride: int = 0, count: int = 1, space: Space = Space.ARENA) -> MemoryAccess:
    """A read of one region."""
    return MemoryAccess(space, 0, False, (Region(start, length, stride, count),))


def random_schedule(seed: int, cores: int = 3, subops: int = 10, columns: int = 8) -> Schedule:
    """Buffers of some rows of `columns` bytes in a small arena that is reused all the time. Sub-operators are cut by
    rows or columns over some of the cores, as many as there are columns at the most; each reads up to two buffers that
    were written before, whole, by rows or by columns."""
    rng = random.Random(seed)
    tasks: list[Task] = []
    live: list[tuple[int, int]] = []  # (offset, rows)
    for index in range(subops):
        chosen = sorted(rng.sample(range(cores), rng.randint(1, min(cores, columns))))
        rows = rng.choice([2, 4, 6, 8]) * columns // 8
        sources = rng.sample(live, min(len(live), rng.randint(0, 2)))
        for _ in range(20):
            offset = columns * rng.randrange(3 * columns)
            if all(offset + columns * rows <= o or o + columns * r <= offset for o, r in sources):
                break
        else:
            continue
        live = [(o, r) for o, r in live if offset + columns * rows <= o or o + columns * r <= offset]
        live.append((offset, rows))
        by_columns = rng.random() < 0.3
        parts = [(columns * i // len(chosen), columns * (i + 1) // len(chosen)) for i in range(len(chosen))]
        for number, core in enumerate(chosen):
            begin, end = parts[number]
            accesses = [_source(rng, offset_, rows_, begin, end, columns) for offset_, rows_ in sources]
            if by_columns:
                accesses.append(write(offset + begin, end - begin, columns, rows))
            else:
                first, last = rows * number // len(chosen), rows * (number + 1) // len(chosen)
                if first == last:
                    continue
                accesses.append(write(offset + columns * first, columns * (last - first)))
            tasks.append(Task(len(tasks), index, core, begin, end, tuple(accesses)))
    return schedule_of(cores, tasks)


def _source(rng: random.Random, offset: int, rows: int, begin: int, end: int, columns: int) -> MemoryAccess:
    kind = rng.randrange(3)
    if kind == 0:
        return read(offset, columns * rows)
    if kind == 1:
        return read(offset + begin, end - begin, columns, rows)
    first, last = rows * begin // columns, max(rows * begin // columns + 1, rows * end // columns)
    return read(offset + columns * first, columns * (last - first))


def random_accesses(seed: int) -> Schedule:
    """Tasks with accesses of any bytes, as no tiling makes them: regions that overlap within a sub-operator and within
    an access, runs that touch or overlap, several tasks of a sub-operator on one core. All memory is written first."""
    rng = random.Random(seed)
    cores = rng.randint(1, 5)
    places = [(space, slot) for space in (Space.ARENA, Space.OUTPUT, Space.STATE) for slot in (0, 1)]
    whole = tuple(MemoryAccess(space, slot, True, (Region(0, 128),)) for space, slot in places)
    tasks = [Task(0, 0, 0, 0, 1, whole)]
    for subop in range(1, rng.randint(2, 9)):
        for part in range(rng.randint(1, 4)):
            accesses = []
            for _ in range(rng.randint(1, 3)):
                space, slot = rng.choice(places[:2] + places)
                regions = tuple(_any_region(rng) for _ in range(rng.choice([1, 1, 1, 2])))
                accesses.append(MemoryAccess(space, slot, rng.random() < 0.5, regions))
            tasks.append(Task(len(tasks), subop, rng.randrange(cores), part, part + 1, tuple(accesses)))
    return schedule_of(cores, tasks)


def _any_region(rng: random.Random) -> Region:
    length, count = rng.randint(1, 12), rng.choice([1, 1, 2, 3, 5])
    stride = rng.choice([3, length, length + 1, 8, 8, 12]) if count > 1 else 0
    return Region(rng.randrange(40), length, stride, count)
