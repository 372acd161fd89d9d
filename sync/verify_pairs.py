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

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
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
_BLOCK = 1 << 18  # pairs that are looked at together


RACES_MAX = 20  # listed
AT_ONCE = 1 << 21  # pairs of regions that are compared together, so that memory is bounded
PAIRS_TRIED = 4096  # of two accesses' regions; of more, only those that are near one another


class Accesses:
    """What tasks access, in the global order; inputs and constants, which nobody writes, are left out.

    `blocks()`: the pairs of accesses of different tasks to be ordered. `unwritten`: runs of arena or outputs that a
    task reads and no earlier sub-operator wrote whole, (task, access, low, high). `source`, `tasks`: the accesses by
    number, and whose they are."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.source: list[MemoryAccess] = []
        self.tasks: list[Task] = []
        add_source, add_task = self.source.append, self.tasks.append
        self.unwritten: list[tuple[Task, MemoryAccess, int, int]] = []
        self._links = _Links(self.tasks)
        memory: dict[_Place, _Memory] = {}
        number = 0  # of the next access
        count: list[int] = []  # of each task's accesses
        for _, mine in groupby(tasks, attrgetter("subop")):
            used: dict[_Place, list[int]] = {}
            for task in mine:
                before = number
                for access in task.accesses:
                    if access.regions and access.space not in _READ_ONLY:
                        place = (access.space, access.slot)
                        if place not in used:
                            used[place] = []
                        used[place].append(number)
                        add_source(access)
                        add_task(task)
                        number += 1
                count.append(number - before)
            for place, numbers in used.items():
                block = memory.setdefault(place, _Memory())
                bundles = list(_bundles(self.tasks, self.source, numbers))
                for reader, low, high in block.enter(bundles, numbers[0], self._links):
                    if place[0] in (Space.ARENA, Space.OUTPUT):
                        self.unwritten.append((self.tasks[reader], self.source[reader], low, high))
        numbers_of_tasks = np.fromiter(chain.from_iterable(map(_TASK, tasks)), np.int64).reshape(-1, 3)
        self.task: Column
        self.core: Column
        self.subop: Column
        self.task, self.core, self.subop = np.repeat(numbers_of_tasks, count, axis=0).T.copy()
        self.write = np.fromiter(map(attrgetter("write"), self.source), np.bool_)
        self._regions = _Regions([access.regions for access in self.source])
        self._places = {place: number for number, place in enumerate(memory)}
        places = map(attrgetter("space", "slot"), self.source)
        self._space = np.fromiter(map(self._places.__getitem__, places), np.int64)

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

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._earlier, self._later = array("i"), array("i")
        self._sizes: list[tuple[int, int]] = []  # earlier ones and later ones of each product
        self._pairs = 0
        self._done: list[tuple[Numbers, Numbers, Numbers]] = []

    def add(self, earlier: Sequence[int], later: Sequence[int]) -> None:
        """Each of the later accesses comes after each of the earlier ones."""
        most = max(1, _BLOCK // max(1, len(earlier)))
        for at in range(0, len(later) if earlier else 0, most):
            some = later[at : at + most]
            self._earlier.extend(earlier)
            self._later.extend(some)
            self._sizes.append((len(earlier), len(some)))
            self._pairs += len(earlier) * len(some)
            if self._pairs >= _BLOCK:
                self._close()

    def add_beside(self, one: Sequence[int], other: Sequence[int]) -> None:
        """All pairs of accesses of the two, of different tasks."""
        task = {number: self._tasks[number].index for number in (*one, *other)}
        for number in one:
            self.add([n for n in other if task[n] < task[number]], [number])
        for number in other if one is not other else ():
            self.add([n for n in one if task[n] < task[number]], [number])

    def _close(self) -> None:
        """What was added makes a block."""
        sizes = np.array(self._sizes, np.int32).reshape(-1, 2)
        self._done.append((np.array(self._earlier, np.int32), np.array(self._later, np.int32), sizes))
        self._earlier, self._later, self._sizes, self._pairs = array("i"), array("i"), [], 0

    def blocks(self) -> Iterator[Pairs]:
        """All pairs, in blocks of about `_BLOCK`."""
        if self._sizes:
            self._close()
        for earlier, later, sizes in self._done:
            begin = np.cumsum(sizes[:, 0]) - sizes[:, 0]  # of a product's earlier accesses
            times = np.repeat(sizes[:, 0], sizes[:, 1])  # how many there are for each later one
            shift = np.repeat(begin, sizes[:, 1]) - (np.cumsum(times) - times)
            yield earlier[np.arange(times.sum()) + np.repeat(shift, times)], np.repeat(later, times)


@dataclass(slots=True)
class _Bundle:
    """Regions of one sub-operator's accesses that have the stretch [low, high) in common: one run each, the same for
    all, or several runs which interleave. `whole`: together they leave no byte of it out; `apart`: no two share a byte;
    `union`: what they touch where it is not the whole."""

    low: int
    high: int
    write: bool
    users: list[int]
    keys: list[object]
    regions: list[Region]
    whole: bool = True
    apart: bool = False
    union: Sequence[Region] = ()

    def add(self, user: int, key: object, region: Region) -> None:
        """One more."""
        self.users.append(user)
        self.keys.append(key)
        self.regions.append(region)


def _bundles(tasks: Sequence[Task], source: Sequence[MemoryAccess], numbers: Iterable[int]) -> Iterator[_Bundle]:
    """The regions of one sub-operator's accesses to one space."""
    plain: dict[tuple[int, int, bool], _Bundle] = {}
    strided: dict[tuple[int, int, bool], list[tuple[Region, int, object]]] = {}
    for number in numbers:
        core, access = tasks[number].core, source[number]
        for region in access.regions:
            if region.count == 1 or region.stride <= region.length:
                bounds = (region.start, region.stop, access.write)
                bundle = plain.get(bounds)
                if bundle is None:
                    plain[bounds] = _Bundle(*bounds, [number], [core], [region])
                else:
                    bundle.add(number, core, region)
            else:
                row = strided.setdefault((region.stride, region.count, access.write), [])
                row.append((region, number, (core, region.start, region.length, region.stride, region.count)))
    yield from plain.values()
    for (stride, count, write), row in strided.items():
        row.sort(key=lambda item: item[0].start)
        yield from _interleaved(stride, count, write, row)


def _interleaved(stride: int, count: int, write: bool, row: Sequence[tuple[Region, int, object]]) -> Iterator[_Bundle]:
    """Regions of as many runs that are as far apart, in the order of their first runs: those that begin within one
    stride make a bundle."""
    first = row[0][0]
    bundle, union = _Bundle(first.start, first.stop, write, [], [], [], apart=True), list[Region]()
    begin = reach = first.start  # of the first runs since the last gap
    for region, user, key in row:
        if region.start >= bundle.low + stride:
            yield _closed(bundle, [*union, Region(begin, reach - begin, stride, count)])
            bundle, union = _Bundle(region.start, region.stop, write, [], [], [], apart=True), []
            begin = reach = region.start
        if region.start > reach:
            union.append(Region(begin, reach - begin, stride, count))
            begin = reach = region.start
        bundle.apart = bundle.apart and region.start == reach
        reach = max(reach, region.start + region.length)
        bundle.high = max(bundle.high, region.stop)
        bundle.add(user, key, region)
    yield _closed(bundle, [*union, Region(begin, reach - begin, stride, count)])


def _closed(bundle: _Bundle, union: Sequence[Region]) -> _Bundle:
    last = union[-1]
    bundle.union = union
    bundle.whole = last.start == bundle.low and last.length >= last.stride
    bundle.apart = bundle.apart and last.start + last.length <= bundle.low + last.stride
    return bundle


class _Memory:
    """One address space: see the module docstring."""

    def __init__(self) -> None:
        self.writers, self.readers, self.written = _Stretches(), _Stretches(), _Runs()

    def enter(self, bundles: Sequence[_Bundle], first: int, links: _Links) -> Iterator[tuple[int, int, int]]:
        """The accesses of one sub-operator, from number `first` on: pair them with those that are there, then with one
        another, then let them take their place. Yields runs that are read and not written: access, low, high."""
        for bundle in bundles:
            earlier = self.writers.users_of(bundle.low, bundle.high)
            if bundle.write:
                earlier += self.readers.users_of(bundle.low, bundle.high)
            links.add(earlier, bundle.users)
            if not bundle.write and not self.written.cover(bundle.low, bundle.high):
                for user, region in zip(bundle.users, bundle.regions, strict=True):
                    missing = next((run for run in _runs(region) if not self.written.cover(*run)), None)
                    if missing is not None:
                        yield (user, *missing)
        for one, other in _beside(bundles):
            links.add_beside(one.users, other.users)
        for bundle in bundles:
            if bundle.write:
                self._write(bundle, first)
        for bundle in bundles:
            if not bundle.write:
                self.readers.add(bundle)

    def _write(self, bundle: _Bundle, first: int) -> None:
        if bundle.whole:
            self.writers.replace(bundle, first)
            self.readers.clear(bundle.low, bundle.high)
            self.written.add(bundle.low, bundle.high)
            return
        self.writers.add(bundle)
        if not self.written.cover(bundle.low, bundle.high):
            for run in (run for region in bundle.union for run in _runs(region)):
                self.written.add(*run)


def _runs(region: Region) -> Iterator[tuple[int, int]]:
    for n in range(region.count):
        low = region.start + n * region.stride
        yield low, low + region.length


def _beside(bundles: Sequence[_Bundle]) -> Iterator[tuple[_Bundle, _Bundle]]:
    """Bundles of one sub-operator that meet, one of which writes; a bundle with itself where its users may meet."""
    reads: list[_Bundle] = []
    writes: list[_Bundle] = []
    for bundle in sorted(bundles, key=attrgetter("low")) if any(bundle.write for bundle in bundles) else ():
        writes = [other for other in writes if other.high > bundle.low]
        for other in writes:
            yield other, bundle
        if bundle.write:
            reads = [other for other in reads if other.high > bundle.low]
            for other in reads:
                yield other, bundle
            if len(bundle.users) > 1 and not bundle.apart:
                yield bundle, bundle
        (writes if bundle.write else reads).append(bundle)


class _Stretches:
    """An interval map: stretch n begins at `starts[n]`, ends where the next one begins, and has users."""

    def __init__(self) -> None:
        self.starts = [-(1 << 62), 1 << 62]
        self.users: list[_Users] = [{}, {}]

    def users_of(self, low: int, high: int) -> list[int]:
        """Those of all stretches that meet [low, high)."""
        at = bisect_right(self.starts, low) - 1
        stop = bisect_left(self.starts, high, at + 1)
        if stop == at + 1:
            return list(self.users[at].values())
        return [*set().union(*map(_Users.values, self.users[at:stop]))]

    def add(self, bundle: _Bundle) -> None:
        """More users of a stretch."""
        new = dict(zip(bundle.keys, bundle.users, strict=True))
        at, stop = self._stretches(bundle.low, bundle.high)
        for users in self.users[at:stop]:
            users.update(new)

    def replace(self, bundle: _Bundle, first: int) -> None:
        """Other users of a stretch; of those who were there, the ones from access `first` on stay."""
        at, stop = self._stretches(bundle.low, bundle.high)
        new = dict(zip(bundle.keys, bundle.users, strict=True))
        if any(max(users.values(), default=-1) >= first for users in self.users[at:stop]):
            for n in range(at, stop):
                self.users[n] = {key: number for key, number in self.users[n].items() if number >= first} | new
        else:
            self.starts[at:stop] = [bundle.low]
            self.users[at:stop] = [new]

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
        if self.starts[at] == low and self.starts[at + 1] == high:  # nothing is cut
            return at, at + 1
        return self._cut(low), self._cut(high)

    def _cut(self, at: int) -> int:
        n = bisect_left(self.starts, at)
        if self.starts[n] != at:
            self.starts.insert(n, at)
            self.users.insert(n, dict(self.users[n - 1]))
        return n


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
