"""Which earlier tasks a task must come after: conflicts of byte regions, found in one pass over the global order.

The search itself, its model and its invariant are csrc/sync/conflicts.h; here tasks become its columns, and pairs of
accesses what plans and people read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from operator import attrgetter
from typing import NamedTuple, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from superkernel import _core
from superkernel.core.tensor import Region, any_overlap
from superkernel.scheduler.schedule import MemoryAccess, Space, Task
from superkernel.sync.plan import Hazard, Witness

_RUNS = 256  # of tasks of one sub-operator, whose pairs are looked at together
READ_ONLY = (Space.CONSTANT, Space.INPUT)

Key = tuple[Space, int]
Pairs: TypeAlias = NDArray[np.int32]
"""Rows (earlier, later) of numbers of accesses."""


class Conflict(NamedTuple):
    """Task `later` must come after task `earlier`: the regions `left` and `right` of the address space meet."""

    earlier: int
    later: int
    hazard: Hazard
    key: Key
    left: Region
    right: Region
    operand: int | None = None  # of the later task, where accesses say it

    @property
    def witness(self) -> Witness:
        """The pair of accesses, as plans keep it."""
        return Witness(self.hazard, self.earlier, self.later, _place(self.key), self.left, self.right)


@cache
def _place(key: Key) -> str:
    """One text for all who name the place: plans have millions of them."""
    return f"{key[0].value}{key[1]}"


class AccessColumns:
    """The accesses of tasks that may conflict, as columns, in the order of tasks. `operand`: -1 is a workspace; what
    names none is taken for the first; `place`: by number in `places`; `regions`: of one after the other, rows of start,
    length, stride, count."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        used = [[access for access in task.accesses if _counts(access)] for task in tasks]
        self._source = list(chain.from_iterable(used))
        self._number = list(map(len, map(attrgetter("regions"), self._source)))  # of regions
        regions = map(_REGION, chain.from_iterable(map(attrgetter("regions"), self._source)))
        self.regions = np.fromiter(chain.from_iterable(regions), np.int64, 4 * sum(self._number)).reshape(-1, 4)
        count = list(map(len, used))
        of_task = np.array([_TASK(task) for task in tasks], np.int32).reshape(-1, 3)
        self.task, self.subop, self.core = np.repeat(of_task, count, axis=0).T.copy()
        run = np.cumsum(np.diff(of_task[:, 1], prepend=0) != 0)  # of tasks of one sub-operator
        self._run = np.repeat(run, count)
        self.write = np.fromiter(map(attrgetter("write"), self._source), np.bool_, len(self._source))
        operands = (access.operand or 0 for access in self._source)
        self.operand = np.fromiter(operands, np.int32, len(self._source))
        keys = list(map(_PLACE, self._source))
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        self.place = np.fromiter(map(numbers.__getitem__, keys), np.int32, len(keys))
        self.places = tuple(map(_place, numbers))

    def search(self) -> _core.Conflicts:
        """Yields the conflicts of tasks, sub-operator by sub-operator and task by task, as rows (earlier, later)."""
        columns = (self._run, self.task, self.place, self.operand, self.write, self._number)
        return _core.Conflicts(np.array(columns, np.int64).T, self.regions)

    def conflict(self, earlier: int, later: int) -> Conflict:
        """Of two accesses."""
        before, access = self._source[earlier], self._source[later]
        tasks = self.task.item(earlier), self.task.item(later)
        hazard, pair = _HAZARDS[before.write, access.write], _pair(before, access)
        return Conflict(*tasks, hazard, (access.space, access.slot), *pair, access.operand)

    def witness(self, earlier: int, later: int) -> Witness:
        """Of two accesses that conflict."""
        before, access = self._source[earlier], self._source[later]
        tasks, place = (self.task.item(earlier), self.task.item(later)), _place((access.space, access.slot))
        return Witness(_HAZARDS[before.write, access.write], *tasks, place, *_pair(before, access))


@dataclass(frozen=True, eq=False, slots=True)
class Witnesses(Sequence[Witness]):
    """Of pairs of accesses that conflict, by number: plans have many, and few of them are ever looked at. Each is made
    when somebody asks for it."""

    accesses: AccessColumns
    pairs: Sequence[Sequence[int]]

    def __len__(self) -> int:
        return len(self.pairs)

    @overload
    def __getitem__(self, at: int) -> Witness: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Witness, ...]: ...
    def __getitem__(self, at: int | slice) -> Witness | tuple[Witness, ...]:
        if isinstance(at, slice):
            return tuple(self.accesses.witness(*pair) for pair in self.pairs[at])
        return self.accesses.witness(*self.pairs[at])

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, Witnesses | tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


@dataclass(frozen=True)
class FoundConflicts:
    """Of tasks of different sub-operators: within one, its kernel keeps order. Those of later tasks of sub-operator n
    are `pairs[begin[n] : begin[n + 1]]`, in the order of these tasks."""

    accesses: AccessColumns
    pairs: Pairs
    begin: Sequence[int]

    def of(self, subop: int) -> slice:
        """Where those of a sub-operator's tasks stand."""
        end = len(self.pairs)
        return slice(*self.begin[subop : subop + 2]) if subop + 1 < len(self.begin) else slice(end, end)


def find_all(tasks: Sequence[Task]) -> FoundConflicts:
    """The conflicts of all tasks."""
    accesses = AccessColumns(tasks)
    number = np.zeros(accesses.subop.max(initial=-1) + 1, np.int64)  # by sub-operator of the later task
    parts: list[Pairs] = []
    search = iter(accesses.search())
    while some := list(islice(search, _RUNS)):
        part = np.concatenate(some)
        earlier, later = accesses.subop[part].T
        parts.append(part[earlier != later])
        number += np.bincount(later[earlier != later], minlength=len(number))
    pairs = _joined(parts)
    if (np.diff(accesses.subop) < 0).any():  # sub-operators come in another order than their numbers, or in turns
        pairs = pairs[np.argsort(accesses.subop[pairs[:, 1]], kind="stable")]
    return FoundConflicts(accesses, pairs, [0, *np.cumsum(number).tolist()])


def _joined(parts: list[Pairs]) -> Pairs:
    """All of them, which are taken out of the list one by one: there may be millions of pairs, never all of them
    twice."""
    pairs, at = np.empty((sum(map(len, parts)), 2), np.int32), 0
    parts.reverse()
    while parts:
        part = parts.pop()
        pairs[at : at + len(part)] = part
        at += len(part)
    return pairs


def find_conflicts(tasks: Sequence[Task]) -> Iterator[list[Conflict]]:
    """For each task in order, its conflicts with earlier tasks (of any core), at most one per earlier task and operand
    of the later one (accesses that name no operand count as one)."""
    accesses = AccessColumns(tasks)
    rows: list[list[Conflict]] = [[] for _ in tasks]
    for pairs in accesses.search():
        for earlier, later in pairs.tolist():
            rows[accesses.task[later]].append(accesses.conflict(earlier, later))
    yield from rows


_TASK = attrgetter("index", "subop", "core")
_PLACE = attrgetter("space", "slot")
_REGION = attrgetter("start", "length", "stride", "count")
_HAZARDS = {(True, False): Hazard.RAW, (False, True): Hazard.WAR, (True, True): Hazard.WAW}


def _pair(before: MemoryAccess, access: MemoryAccess) -> tuple[Region, Region]:
    """The first regions that meet, of two accesses that conflict."""
    if len(before.regions) == len(access.regions) == 1:
        return before.regions[0], access.regions[0]
    pair = any_overlap(before.regions, access.regions)
    assert pair is not None
    return pair


def _counts(access: MemoryAccess) -> bool:
    return bool(access.regions) and access.space not in READ_ONLY
