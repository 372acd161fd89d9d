"""Which accesses a proof of order must look at, for all targets: as few pairs as imply all others.

Model: tasks are gone through in the global order, those of one sub-operator together. Per address space two interval
maps remember who wrote each byte last, and who has read it since. An access is paired with the writers that it finds, a
write with the readers too. If every such pair is ordered, every pair of conflicting accesses is: on each byte they are
the links of a chain, and order is transitive. The pairs depend on tasks alone, not on any plan.

Regions of several runs lie in the maps with all bytes between their ends, so that pairs may share no byte (`racing`
tells exactly). They retire what is older only where those of one sub-operator together leave no gap, as the columns of
a matrix do.

Architecture invariant: imports plain data types only, nothing of the planners; finds conflicts by its own sweep.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from operator import attrgetter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from superkernel.core.errors import Violation
from superkernel.core.tensor import Region
from superkernel.scheduler.schedule import MemoryAccess, Space, Task
from superkernel.sync.verify_tasks import overlapping_regions, race

Column: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[np.int32]
Pairs: TypeAlias = tuple[Numbers, Numbers]
"""(earlier, later), as numbers of accesses."""

_READ_ONLY = (Space.INPUT, Space.CONSTANT)
_Place: TypeAlias = tuple[Space, int]
_Users: TypeAlias = dict[object, int]
"""Accesses of a stretch of bytes. Of one core, those of the same bytes have one key: the last one stands for all."""

_TASK = attrgetter("index", "core", "subop")
_LOW = attrgetter("low")
_BLOCK = 1 << 16  # pairs that are looked at together
_REGIONS = 1 << 13  # that bundles are made of together


RACES_MAX = 20  # listed
AT_ONCE = 1 << 21  # pairs of regions that are compared together, so that memory is bounded
PAIRS_TRIED = 4096  # of two accesses' regions; of more, only those that are near one another


class Accesses:
    """What tasks access, in the global order; inputs and constants, which nobody writes, are left out.

    `blocks()`: the pairs of accesses of different tasks to be ordered. `unwritten`: runs of arena or outputs that a
    task reads and no earlier sub-operator wrote whole, (task, access, low, high). `source`, `tasks`: the accesses by
    number, and whose they are."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        used = [[a for a in task.accesses if a.regions and a.space not in _READ_ONLY] for task in tasks]
        count = list(map(len, used))
        self.source: list[MemoryAccess] = list(chain.from_iterable(used))
        self.tasks: list[Task] = list(chain.from_iterable(map(repeat, tasks, count)))
        numbers_of_tasks = np.fromiter(chain.from_iterable(map(_TASK, tasks)), np.int64).reshape(-1, 3)
        self.task: Column
        self.core: Column
        self.subop: Column
        self.task, self.core, self.subop = np.repeat(numbers_of_tasks, count, axis=0).T.copy()
        self.write = np.fromiter(map(attrgetter("write"), self.source), np.bool_)
        self._regions = _Regions([access.regions for access in self.source])
        places = list(map(attrgetter("space", "slot"), self.source))
        self._places = {place: number for number, place in enumerate(dict.fromkeys(places))}
        self._space = np.fromiter(map(self._places.__getitem__, places), np.int64)
        self.unwritten: list[tuple[Task, MemoryAccess, int, int]] = []
        self._links = _Links(self.task.tolist())
        run = np.cumsum(np.diff(numbers_of_tasks[:, 2], prepend=0) != 0)  # of tasks of one sub-operator
        self._sweep(np.repeat(run, count))

    def _sweep(self, run: Column) -> None:
        """Finds the pairs, and what is unwritten: the accesses of one run after the other. `run`: of each access."""
        memory = [_Memory(self._regions) for _ in self._places]
        told = [place[0] in (Space.ARENA, Space.OUTPUT) for place in self._places]
        access = np.repeat(np.arange(len(self.source)), self._regions.number)  # of each region
        begin = begun = stop = 0  # of a run; of the columns
        for end in (np.flatnonzero(np.diff(run[access], append=-1)) + 1).tolist():
            if end > stop:
                begun, stop = begin, max(end, begin + _REGIONS)
                some = slice(begun, stop)
                columns = _BundleColumns(self._regions, some, access[some], self._space, self.write, self.core)
            first = columns.number[begin - begun]
            for place, bundles in columns.bundles(begin - begun, end - begun).items():
                for reader, low, high in memory[place].enter(bundles, first, self._links):
                    if told[place]:
                        self.unwritten.append((self.tasks[reader], self.source[reader], low, high))
            begin = end

    def count_overlaps(self, *apart: Column) -> int:
        """The number of pairs of accesses whose address ranges meet, at least one of them a write, and that agree in
        each of the columns."""
        low, high, reads = self._regions.low, self._regions.high, ~self.write
        span = int(high.max(initial=0) - low.min(initial=0)) + 1
        same, groups = self._space, len(self._places)
        for column in apart:
            many = int(column.max(initial=0)) + 1
            same, groups = same * many + column, groups * many
        if span * groups > 1 << 62:  # then only groups that there are have a number
            _, same = np.unique(same, return_inverse=True)
        return _count_overlaps(low, high, same) - _count_overlaps(low[reads], high[reads], same[reads])

    def blocks(self) -> Iterator[Pairs]:
        """All pairs, some at a time: those of a large program would be too much at once."""
        return self._links.blocks()

    def share(self, earlier: Numbers, later: Numbers) -> NDArray[np.bool_]:
        """Which pairs share a byte."""
        return self._regions.share(earlier, later)

    def racing(self, late: Callable[[Numbers, Numbers], NDArray[np.bool_]]) -> Iterator[tuple[int, int]]:
        """Pairs that share a byte and of which `late` says that nothing orders them; the first one per pair of
        tasks."""
        seen: set[tuple[int, int]] = set()
        for earlier, later in self.blocks():
            wrong = late(earlier, later)
            earlier, later = earlier[wrong], later[wrong]
            shared = self.share(earlier, later)
            for a, b in zip(earlier[shared].tolist(), later[shared].tolist(), strict=True):
                tasks = (self.tasks[a].index, self.tasks[b].index)
                if tasks not in seen and len(seen) < RACES_MAX:
                    seen.add(tasks)
                    yield a, b

    def race(self, earlier: int, later: int, where: str, expected: str) -> Violation:
        """Two accesses that nothing orders; the others as in `verify_tasks.race`."""
        access = self.source[later]
        pair = overlapping_regions(self.source[earlier].regions, access.regions)
        assert pair is not None
        return race(self.tasks[earlier], self.tasks[later], access, pair, where, expected)


class _Links:
    """Pairs, as they are found: all of some earlier accesses with all of some later ones. Columns of a matrix on many
    cores make so many that they are never all written out."""

    def __init__(self, task: Sequence[int]) -> None:
        self._task = task  # of each access
        self._earlier: list[int] = []  # of one product behind the other
        self._later: list[int] = []
        self._sizes: list[int] = []  # of each product, the number of earlier ones, and of later ones
        self._pairs = 0  # of all products
        self._done: list[tuple[Numbers, Numbers, Numbers]] = []

    def add(self, earlier: Sequence[int], later: Sequence[int]) -> None:
        """Each of the later accesses comes after each of the earlier ones."""
        many, more = len(earlier), len(later)
        if not many:
            return
        if many * more > _BLOCK and more > 1:
            most = max(1, _BLOCK // many)
            for at in range(0, more, most):
                self.add(earlier, later[at : at + most])
            return
        self._earlier += earlier
        self._later += later
        self._sizes += many, more
        self._pairs += many * more
        if self._pairs >= _BLOCK:
            self._close()

    def add_beside(self, one: Sequence[int], other: Sequence[int]) -> None:
        """All pairs of accesses of the two, of different tasks."""
        task = self._task
        for number in one:
            self.add([n for n in other if task[n] < task[number]], [number])
        for number in other if one is not other else ():
            self.add([n for n in one if task[n] < task[number]], [number])

    def _close(self) -> None:
        """What was added makes a block."""
        earlier, later, sizes = (np.array(row, np.int32) for row in (self._earlier, self._later, self._sizes))
        self._done.append((earlier, later, sizes.reshape(-1, 2)))
        self._earlier, self._later, self._sizes, self._pairs = [], [], [], 0

    def blocks(self) -> Iterator[Pairs]:
        """All pairs, in blocks of about `_BLOCK`."""
        if self._pairs:
            self._close()
        for earlier, later, sizes in self._done:
            begin = np.cumsum(sizes[:, 0]) - sizes[:, 0]  # of a product's earlier accesses
            times = np.repeat(sizes[:, 0], sizes[:, 1])  # how many there are for each later one
            shift = np.repeat(begin, sizes[:, 1]) - (np.cumsum(times) - times)
            yield earlier[np.arange(times.sum()) + np.repeat(shift, times)], np.repeat(later, times)


@dataclass(slots=True)
class _Bundle:
    """Regions of one sub-operator's accesses that have the stretch [low, high) in common: one run each, the same for
    all, or several runs which interleave. `users`: the accesses, `regions` by number, `latest`: the last user by key;
    `whole`: together they leave no byte of it out; `apart`: no two share a byte; `union`: begin and end of what they
    touch together in the first of `count` lines, which are `stride` bytes apart."""

    low: int
    high: int
    write: bool
    users: list[int]
    latest: _Users
    regions: list[int]
    whole: bool = True
    apart: bool = False
    stride: int = 0
    count: int = 1
    union: Sequence[tuple[int, int]] = ()

    def add(self, user: int, key: object, region: int) -> None:
        """One more."""
        self.users.append(user)
        self.latest[key] = user
        self.regions.append(region)

    def close(self, union: Sequence[tuple[int, int]]) -> None:
        """No more are to come; this is what they touch of the first line."""
        self.union = union
        begin, end = union[-1]
        self.whole = begin == self.low and end - begin >= self.stride
        self.apart = self.apart and end <= self.low + self.stride


class _BundleColumns:
    """What bundles are made of, as columns, which are faster to go through than accesses; of `some` regions at a time,
    so that they take little memory. Of each region: the `number` of its access; whether it is one run, or several
    without gaps; what it has in common with the others of its bundle, which is place, bounds and whether it is written,
    or with gaps place, stride, count and whether it is written; and the key of its user."""

    def __init__(
        self, regions: _Regions, some: slice, access: Column, place: Column, write: NDArray[np.bool_], core: Column
    ) -> None:
        columns = (regions.start, regions.length, regions.stride, regions.count, regions.stop)
        start, length, stride, count, stop = (column[some] for column in columns)
        self._first = some.start
        self.number: list[int] = access.tolist()
        self._place: list[int] = place[access].tolist()
        self._start: list[int] = start.tolist()
        self._length: list[int] = length.tolist()
        self._stop: list[int] = stop.tolist()
        plain = (count == 1) | (stride <= length)
        self._plain: list[bool] = plain.tolist()
        common = np.where(plain, start, stride), np.where(plain, stop, count)
        self._common = list(zip(self._place, *(c.tolist() for c in (*common, write[access])), strict=True))
        self._keys: list[object] = core[access].tolist()
        strided = np.flatnonzero(~plain)
        keys = zip(*(column[strided].tolist() for column in (core[access], start, length, stride, count)), strict=True)
        for at, key in zip(strided.tolist(), keys, strict=True):
            self._keys[at] = key

    def bundles(self, begin: int, end: int) -> dict[int, list[_Bundle]]:
        """By place, those of the regions [begin, end) of these, which are one sub-operator's."""
        plain: dict[tuple[int, int, int, bool], _Bundle] = {}
        strided: dict[tuple[int, int, int, bool], list[int]] = {}
        commons, is_plain, numbers, keys, first = self._common, self._plain, self.number, self._keys, self._first
        for at in range(begin, end):
            common = commons[at]
            if is_plain[at]:
                bundle = plain.get(common)
                if bundle is None:
                    _, low, high, write = common
                    number = numbers[at]
                    plain[common] = _Bundle(low, high, write, [number], {keys[at]: number}, [first + at])
                else:
                    bundle.add(numbers[at], keys[at], first + at)
            else:
                strided.setdefault(common, []).append(at)
        found: dict[int, list[_Bundle]] = {place: [] for place in self._place[begin:end]}
        for (place, _, _, _), bundle in plain.items():
            found[place].append(bundle)
        for (place, stride, count, write), row in strided.items():
            found[place] += self._interleaved(stride, count, write, row)
        return found

    def _interleaved(self, stride: int, count: int, write: bool, row: list[int]) -> Iterator[_Bundle]:
        """Regions of as many runs that are as far apart: those that begin within one stride make a bundle."""
        row.sort(key=self._start.__getitem__)
        begin = reach = low = self._start[row[0]]  # of the first runs since the last gap; of the bundle
        union: list[tuple[int, int]] = []
        bundle = _Bundle(low, low, write, [], {}, [], apart=True, stride=stride, count=count)
        for at in row:
            start = self._start[at]
            if start >= low + stride:
                bundle.close([*union, (begin, reach)])
                yield bundle
                begin = reach = low = start
                union = []
                bundle = _Bundle(low, low, write, [], {}, [], apart=True, stride=stride, count=count)
            if start > reach:
                union.append((begin, reach))
                begin = reach = start
            bundle.apart = bundle.apart and start == reach
            reach = max(reach, start + self._length[at])
            bundle.high = max(bundle.high, self._stop[at])
            bundle.add(self.number[at], self._keys[at], self._first + at)
        bundle.close([*union, (begin, reach)])
        yield bundle


class _Memory:
    """One address space: see the module docstring."""

    def __init__(self, regions: _Regions) -> None:
        self._regions = regions
        self.writers, self.readers, self.written = _Stretches(), _Stretches(), _Runs()

    def enter(self, bundles: Sequence[_Bundle], first: int, links: _Links) -> Iterator[tuple[int, int, int]]:
        """The accesses of one sub-operator, from number `first` on: pair them with those that are there, then with one
        another, then let them take their place. Yields runs that are read and not written: access, low, high."""
        for bundle in bundles:
            low, high = bundle.low, bundle.high
            earlier = self.writers.users_of(low, high)
            if bundle.write:
                earlier += self.readers.users_of(low, high)
            links.add(earlier, bundle.users)
            if not bundle.write and not self.written.cover(low, high):
                for user, region in zip(bundle.users, bundle.regions, strict=True):
                    runs = self._regions.runs(region)
                    missing = next((run for run in runs if not self.written.cover(*run)), None)
                    if missing is not None:
                        yield (user, *missing)
        meet = False
        for one, other in _beside(bundles):
            links.add_beside(one.users, other.users)
            meet = True
        for bundle in bundles:
            if bundle.write:
                self._write(bundle, first if meet else None)
        for bundle in bundles:
            if not bundle.write:
                self.readers.add(bundle)

    def _write(self, bundle: _Bundle, first: int | None) -> None:
        """`first`: see `_Stretches.replace`."""
        if bundle.whole:
            self.writers.replace(bundle, first)
            self.readers.clear(bundle.low, bundle.high)
            self.written.add(bundle.low, bundle.high)
            return
        self.writers.add(bundle)
        if not self.written.cover(bundle.low, bundle.high):
            for line in range(0, bundle.count * bundle.stride, bundle.stride):
                for begin, end in bundle.union:
                    self.written.add(begin + line, end + line)


def _beside(bundles: Sequence[_Bundle]) -> Iterator[tuple[_Bundle, _Bundle]]:
    """Bundles of one sub-operator that meet, one of which writes; a bundle with itself where its users may meet."""
    reads: list[_Bundle] = []
    writes: list[_Bundle] = []
    reach = bundles[0].low  # of those that were looked at
    for bundle in sorted(bundles, key=_LOW):
        low = bundle.low
        if low >= reach:
            reads, writes = [], []
        else:
            writes = [other for other in writes if other.high > low]
            for other in writes:
                yield other, bundle
            if bundle.write:
                reads = [other for other in reads if other.high > low]
                for other in reads:
                    yield other, bundle
        if bundle.write and len(bundle.users) > 1 and not bundle.apart:
            yield bundle, bundle
        (writes if bundle.write else reads).append(bundle)
        reach = max(reach, bundle.high)


class _Stretches:
    """An interval map: stretch n begins at `starts[n]`, ends where the next one begins, and has users."""

    def __init__(self) -> None:
        self.starts = [-(1 << 62), 1 << 62]
        self.users: list[_Users] = [{}, {}]

    def users_of(self, low: int, high: int) -> list[int]:
        """Those of all stretches that meet [low, high)."""
        at = bisect_right(self.starts, low) - 1
        if self.starts[at + 1] >= high:
            return [*self.users[at].values()]
        stop = bisect_left(self.starts, high, at + 1)
        return [*set().union(*map(_Users.values, self.users[at:stop]))]

    def add(self, bundle: _Bundle) -> None:
        """More users of a stretch."""
        at, stop = self._stretches(bundle.low, bundle.high)
        for users in self.users[at:stop]:
            users.update(bundle.latest)

    def replace(self, bundle: _Bundle, first: int | None) -> None:
        """Other users of a stretch; of those who were there, the ones from access `first` on stay. None: there are
        none."""
        at, stop = self._stretches(bundle.low, bundle.high)
        if first is not None:
            for n, users in enumerate(self.users[at:stop], at):
                stay = {key: number for key, number in users.items() if number >= first}
                self.users[n] = stay | bundle.latest
        else:
            self.starts[at:stop] = [bundle.low]
            self.users[at:stop] = [bundle.latest]

    def clear(self, low: int, high: int) -> None:
        """[low, high) has no users, and is one with neighbours that have none."""
        at = bisect_right(self.starts, low) - 1
        if self.starts[at + 1] >= high and not self.users[at]:
            return
        at, stop = self._stretches(low, high)
        at -= not self.users[at - 1]
        stop += not self.users[stop]
        self.starts[at:stop] = [self.starts[at]]
        self.users[at:stop] = [{}]

    def _stretches(self, low: int, high: int) -> tuple[int, int]:
        """The numbers of those that make [low, high), from the first one up to behind the last one; others are cut."""
        at = bisect_left(self.starts, low)
        if self.starts[at] != low:
            self._cut(at, low)
        if self.starts[at + 1] == high:
            return at, at + 1
        stop = bisect_left(self.starts, high, at + 1)
        if self.starts[stop] != high:
            self._cut(stop, high)
        return at, stop

    def _cut(self, n: int, at: int) -> None:
        """Stretch n begins there: a part of the one ahead of it."""
        self.starts.insert(n, at)
        self.users.insert(n, dict(self.users[n - 1]))


class _Runs:
    """A set of bytes, as runs that do not touch."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.stops: list[int] = []

    def cover(self, low: int, high: int) -> bool:
        """Whether all of [low, high) is in it."""
        at = bisect_right(self.starts, low) - 1
        return at >= 0 and self.stops[at] >= high

    def add(self, low: int, high: int) -> None:
        """[low, high) is in it."""
        at, stop = bisect_left(self.stops, low), bisect_right(self.starts, high)
        if stop == at + 1 and self.starts[at] <= low and high <= self.stops[at]:
            return
        if at < stop:
            low, high = min(low, self.starts[at]), max(high, self.stops[stop - 1])
        self.starts[at:stop] = [low]
        self.stops[at:stop] = [high]


class _Regions:
    """Regions of accesses as columns; those of access n begin at `first[n]`, there are `number[n]` of them. `low` and
    `high`: bounds by access."""

    def __init__(self, of_access: Sequence[Sequence[Region]]) -> None:
        rows = map(attrgetter("start", "length", "stride", "count"), chain.from_iterable(of_access))
        columns = np.fromiter(chain.from_iterable(rows), np.int64).reshape(-1, 4)
        self.start, self.length, self.stride, self.count = columns.T.copy()
        self.number = np.fromiter(map(len, of_access), np.int64)
        self.first = np.cumsum(self.number) - self.number
        self.stop = self.start + (self.count - 1) * self.stride + self.length
        self.low = np.minimum.reduceat(self.start, self.first) if len(columns) else self.start
        self.high = np.maximum.reduceat(self.stop, self.first) if len(columns) else self.stop

    def share(self, earlier: Numbers, later: Numbers) -> NDArray[np.bool_]:
        """Which pairs of accesses share a byte."""
        many = self.number[earlier] * self.number[later]
        found = np.zeros(len(earlier), np.bool_)
        few = np.flatnonzero(many <= PAIRS_TRIED)
        ends = np.cumsum(many[few])
        for part in np.split(few, np.flatnonzero(np.diff(ends // AT_ONCE)) + 1):
            found[part] = self._share_few(earlier[part], later[part], many[part])
        for n in np.flatnonzero(many > PAIRS_TRIED):
            found[n] = self._share_many(int(earlier[n]), int(later[n]))
        return found

    def _share_few(self, earlier: Numbers, later: Numbers, many: Numbers) -> NDArray[np.bool_]:
        """Each region against each."""
        pair = np.repeat(np.arange(len(earlier)), many)
        nth = np.arange(len(pair)) - np.repeat(np.cumsum(many) - many, many)
        a = self.first[earlier][pair] + nth // self.number[later][pair]
        b = self.first[later][pair] + nth % self.number[later][pair]
        found = np.zeros(len(earlier), np.bool_)
        found[pair[self._meet(a, b)]] = True
        return found

    def _share_many(self, earlier: int, later: int) -> bool:
        """Each region of one access against those of the other whose bounds may meet its own: in the order of their
        beginnings these are a range, from the first up to which one has ended behind the region's begin."""
        a, b = (np.arange(self.first[n], self.first[n] + self.number[n]) for n in (earlier, later))
        b = b[np.argsort(self.start[b], kind="stable")]
        begin = np.searchsorted(np.maximum.accumulate(self.stop[b]), self.start[a], "right")
        end = np.maximum(begin, np.searchsorted(self.start[b], self.stop[a], "left"))
        each = np.cumsum(end - begin)
        for part in np.split(np.arange(len(a)), np.flatnonzero(np.diff(each // AT_ONCE)) + 1):
            counts = (end - begin)[part]
            nth = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            others = b[np.repeat(begin[part], counts) + nth]
            if self._meet(np.repeat(a[part], counts), others).any():
                return True
        return False

    def _meet(self, a: Column, b: Column) -> NDArray[np.bool_]:
        """Which regions meet: run i of `a` and run i + k of `b` do where -length of b < distance + k * stride < length
        of a. Pairs that have two strides are compared run by run."""
        one = (self.count[a] == 1) | (self.count[b] == 1)
        stride = np.maximum(np.where(self.count[a] == 1, self.stride[b], self.stride[a]), 1)
        distance = self.start[b] - self.start[a]
        least = np.maximum(-((distance + self.length[b] - 1) // stride), 1 - self.count[a])
        most = np.minimum((self.length[a] - 1 - distance) // stride, self.count[b] - 1)
        meet: NDArray[np.bool_] = least <= most
        for n in np.flatnonzero(~one & (self.stride[a] != self.stride[b])):
            meet[n] = overlapping_regions([self._region(a[n])], [self._region(b[n])]) is not None
        return meet

    def runs(self, n: int) -> Iterator[tuple[int, int]]:
        """Begin and end of each run of a region."""
        region = self._region(n)
        for nth in range(region.count):
            low = region.start + nth * region.stride
            yield low, low + region.length

    def _region(self, n: int) -> Region:
        return Region(int(self.start[n]), int(self.length[n]), int(self.stride[n]), int(self.count[n]))


def _count_overlaps(low: Column, high: Column, group: Column) -> int:
    """The number of pairs of one group whose ranges meet: each group far away from the others, whoever begins before
    one ends and does not end before it begins."""
    span = high.max(initial=0) - low.min(initial=0) + 1
    low, high = np.sort(low + span * group), np.sort(high + span * group)
    begun = np.searchsorted(low, high, "left")
    ended = np.searchsorted(high, low, "right")
    return int((begun - ended).sum() - len(low)) // 2
