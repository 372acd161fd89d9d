"""Random schedules made of nothing but byte accesses, for planner, verifier and explorer."""

from __future__ import annotations

import random

from superkernel.core.tensor import Region
from superkernel.ir.body import Body, PointwiseProgram, SubOperator
from superkernel.scheduler.hostcall import HostCallTiling
from superkernel.scheduler.schedule import MemoryAccess, Schedule, Space, Task
from superkernel.sync.plan import Plan
from superkernel.sync.planner import plan_sync
from superkernel.sync.verify import check

EMPTY = Body(None, (), (), (), (), (), PointwiseProgram((), (), (), ()))


def sub_operator(index: int) -> SubOperator:
    return SubOperator(index, f"op{index}", EMPTY, (), (), "host.pointwise")


def schedule_of(cores: int, tasks: list[Task]) -> Schedule:
    """A schedule with these tasks; places and tilings are of no interest to sync."""
    count = max((t.subop for t in tasks), default=-1) + 1
    subops = tuple(map(sub_operator, range(count)))
    return Schedule(cores, subops, (HostCallTiling(),) * count, ((),) * count, tuple(tasks), (), 1 << 12, 0, ())


def write(start: int, length: int, stride: int = 0, count: int = 1, space: Space = Space.ARENA) -> MemoryAccess:
    return MemoryAccess(space, 0, True, (Region(start, length, stride, count),))


def read(start: int, length: int, stride: int = 0, count: int = 1, space: Space = Space.ARENA) -> MemoryAccess:
    return MemoryAccess(space, 0, False, (Region(start, length, stride, count),))


def random_schedule(seed: int, cores: int = 3, subops: int = 10) -> Schedule:
    """Buffers of 16 to 64 bytes in a small arena that is reused all the time. Sub-operators are cut by rows or
    columns over some of the cores; each reads one or two buffers that were written before, whole, by rows or by
    columns."""
    rng = random.Random(seed)
    tasks: list[Task] = []
    live: list[tuple[int, int]] = []  # (offset, rows of 8 bytes)
    for index in range(subops):
        chosen = sorted(rng.sample(range(cores), rng.randint(1, cores)))
        rows = rng.choice([2, 4, 6, 8])
        sources = rng.sample(live, min(len(live), rng.randint(0, 2)))
        for _ in range(20):
            offset = 8 * rng.randrange(24)
            if all(offset + 8 * rows <= o or o + 8 * r <= offset for o, r in sources):
                break
        else:
            continue
        live = [(o, r) for o, r in live if offset + 8 * rows <= o or o + 8 * r <= offset]
        live.append((offset, rows))
        by_columns = rng.random() < 0.3
        parts = [(8 * i // len(chosen), 8 * (i + 1) // len(chosen)) for i in range(len(chosen))]
        for number, core in enumerate(chosen):
            begin, end = parts[number]
            accesses = [_source(rng, offset_, rows_, begin, end) for offset_, rows_ in sources]
            if by_columns:
                accesses.append(write(offset + begin, end - begin, 8, rows))
            else:
                first, last = rows * number // len(chosen), rows * (number + 1) // len(chosen)
                if first == last:
                    continue
                accesses.append(write(offset + 8 * first, 8 * (last - first)))
            tasks.append(Task(len(tasks), index, core, begin, end, tuple(accesses)))
    return schedule_of(cores, tasks)


def _source(rng: random.Random, offset: int, rows: int, begin: int, end: int) -> MemoryAccess:
    kind = rng.randrange(3)
    if kind == 0:
        return read(offset, 8 * rows)
    if kind == 1:
        return read(offset + begin, end - begin, 8, rows)
    first, last = rows * begin // 8, max(rows * begin // 8 + 1, rows * end // 8)
    return read(offset + 8 * first, 8 * (last - first))


def random_accesses(seed: int) -> Schedule:
    """Tasks with accesses of any bytes, as no tiling makes them: regions that overlap within a sub-operator and within
    an access, runs that touch or overlap, several tasks of a sub-operator on one core. All memory is written first."""
    rng = random.Random(seed)
    cores = rng.randint(1, 5)
    places = [(space, slot) for space in (Space.ARENA, Space.OUTPUT, Space.STATE) for slot in (0, 1)]
    whole = tuple(MemoryAccess(space, slot, True, (Region(0, 100),)) for space, slot in places)
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


def bytes_of(access: MemoryAccess) -> set[int]:
    """The bytes that an access touches."""
    return {r.start + i * r.stride + j for r in access.regions for i in range(r.count) for j in range(r.length)}


def is_accepted(plan: Plan) -> bool:
    return not check(plan)[0]


def minimal(schedule: Schedule) -> Plan:
    return plan_sync(schedule)
