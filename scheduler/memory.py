"""Addresses: lifetimes in the global order become offsets in one arena; constants become one blob.

Model: a buffer of the arena lives from the first sub-operator that touches it to the last, both inclusive, in the
global order. Two buffers whose lives meet do not share bytes. Placing is greedy, the largest first, each at the
lowest offset that is free during its whole life; a pointwise output may instead take the place of an input that dies
right there and is walked alike, element by element.

Where several cores share the work, addresses are reused by the core that had them before as far as that can be had
(`owners.py`).

Reuse of an address is a hazard between cores like any other: the sync planner sees it, because memory is planned
before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.tensor import TensorType
from superkernel.ir.body import Role, SubOperator
from superkernel.scheduler.grouping import ValueBuffer
from superkernel.scheduler.owners import Owners, Run
from superkernel.scheduler.schedule import ConstantSlot, MemoryAddress, Space
from superkernel.scheduler.tiling import Pack, Tiling

ALIGN_BYTES = 64
ROOMY_FACTOR = 1.25
_SMALL_CONSTANT_BYTES = 1 << 16  # up to this size equal contents are looked for


@dataclass(frozen=True)
class MemoryPlan:
    """`addresses` per sub-operator and operand; `requested_bytes` is what the arena would take without reuse."""

    addresses: tuple[tuple[MemoryAddress, ...], ...]
    constants: tuple[ConstantSlot, ...]
    arena_bytes: int
    requested_bytes: int


@dataclass(frozen=True, slots=True)
class BufferUse:
    """Who uses a buffer: `last[core]` is the last position at which that core does; `ready[core]` is up to where
    every first writer of the buffer knows that core to be complete, through data dependences alone; `runs`: which core
    writes which of its bytes."""

    last: dict[int, int]
    ready: list[int]
    runs: tuple[Run, ...] = ()


def plan_memory(
    subops: Sequence[SubOperator],
    tilings: Sequence[Tiling],
    buffers: Mapping[str, ValueBuffer],
    constants: Mapping[str, NDArray[Any]],
    touched: Mapping[str, BufferUse] | None = None,
    roomy_bytes: int = 0,
    align: int = ALIGN_BYTES,
) -> MemoryPlan:
    """Places for every operand; `subops` in global order. With `touched`, an arena in which reuse never needs a wait
    of its own is preferred as long as it takes at most `roomy_bytes` or little more than the smallest one. `align`: of
    every buffer, bytes."""
    parents = {name: b.inside for name, b in buffers.items() if b.inside is not None}
    lives = _lifetimes(subops, buffers, parents)
    shared = _in_place(subops, buffers, lives)
    offsets, arena = _arena(lives, buffers, shared, align)
    if touched is not None and lives:
        most = max(roomy_bytes, int(ROOMY_FACTOR * arena))
        easy, size = _arena(lives, buffers, shared, align, touched)
        if size <= most:
            offsets, arena = easy, size
        else:  # waits for reuse cannot be helped; who writes what still counts
            touched = {name: replace(row, last={}) for name, row in touched.items()}
        near, size = _arena(lives, buffers, shared, align, touched, limit=max(arena, roomy_bytes))
        if size <= most:
            offsets, arena = near, size
    blob = _Blob(constants, buffers, align)
    addresses = []
    for sub, tiling in zip(subops, tilings, strict=True):
        packs = tiling.packs(sub.body)
        row = []
        for i, name in enumerate(sub.values):
            root, inner = _root(name, parents)
            address = buffers[root].address
            if address is None:
                row.append(MemoryAddress(Space.ARENA, 0, offsets[root] + inner))
            elif address.space is Space.CONSTANT:
                row.append(MemoryAddress(Space.CONSTANT, 0, blob.offset(name, packs.get(i))))
            else:
                row.append(MemoryAddress(address.space, address.slot, inner))
        addresses.append(tuple(row))
    requested = sum(_rounded(buffers[name].type.nbytes, align) for name in lives)
    return MemoryPlan(tuple(addresses), tuple(blob.slots), arena, requested)


def _rounded(nbytes: int, align: int) -> int:
    return -(-nbytes // align) * align


def _root(name: str, parents: Mapping[str, tuple[str, int]]) -> tuple[str, int]:
    """The buffer that a buffer is a part of in the end, and its byte offset there."""
    offset = 0
    while name in parents:
        name, step = parents[name]
        offset += step
    return name, offset


def _lifetimes(
    subops: Sequence[SubOperator], buffers: Mapping[str, ValueBuffer], parents: Mapping[str, tuple[str, int]]
) -> dict[str, tuple[int, int]]:
    """First and last position at which each arena buffer, or a part of it, is touched."""
    lives: dict[str, tuple[int, int]] = {}
    for at, sub in enumerate(subops):
        for value in sub.values:
            name, _ = _root(value, parents)
            if buffers[name].address is None:
                first, _ = lives.get(name, (at, at))
                lives[name] = (first, at)
    return lives


def _in_place(
    subops: Sequence[SubOperator], buffers: Mapping[str, ValueBuffer], lives: Mapping[str, tuple[int, int]]
) -> dict[str, str]:
    """Output buffer -> the input buffer whose bytes it takes over. Buffers with parts are left alone."""
    whole = {b.inside[0] for b in buffers.values() if b.inside is not None}
    shared: dict[str, str] = {}
    taken: set[str] = set()
    for at, sub in enumerate(subops):
        if sub.body.op is not None:
            continue
        for i, operand in enumerate(sub.body.operands):
            name = sub.values[i]
            if operand.role is not Role.OUTPUT or name not in lives or lives[name][0] != at or name in whole:
                continue
            for j, source in enumerate(sub.values):
                fits = source in lives and lives[source][1] == at and source not in taken and source not in whole
                if fits and sub.body.operands[j].role is Role.INPUT and walks_alike(sub, j, i):
                    shared[name] = source
                    taken.add(source)
                    break
    return shared


def walks_alike(sub: SubOperator, source: int, target: int) -> bool:
    """True where the program reads operand `source` only at the very bytes that it then writes of operand `target`."""
    program = sub.body.epilogue
    left, right = sub.body.operands[source].type, sub.body.operands[target].type
    if left.dtype.itemsize != right.dtype.itemsize or left.nbytes != right.nbytes:
        return False
    stores = [o for o in program.outputs if o.target == target]
    loads = [i for i in program.inputs if i.source == source]
    if len(stores) != 1 or not loads:
        return False
    store = stores[0]
    return all(load.strides == store.strides and load.offset == store.offset for load in loads)


def _arena(
    lives: Mapping[str, tuple[int, int]],
    buffers: Mapping[str, ValueBuffer],
    shared: Mapping[str, str],
    align: int,
    touched: Mapping[str, BufferUse] | None = None,
    limit: int = 0,
) -> tuple[dict[str, int], int]:
    """Offsets of all arena buffers and the arena's size. With `touched`, bytes are reused only by writers that know
    of all earlier users; with a limit, too, by the core that had them before, where that needs no more bytes."""
    roots: dict[str, str] = {}
    spans: dict[str, tuple[int, int]] = {}
    for name, (first, last) in sorted(lives.items(), key=lambda item: item[1]):
        root = roots[shared[name]] if name in shared else name
        roots[name] = root
        known = spans.get(root, (first, last))
        spans[root] = (min(known[0], first), max(known[1], last))
    names = list(spans)
    sizes = [_rounded(buffers[root].type.nbytes, align) for root in names]
    users = _users(roots, names, touched) if touched is not None else []
    meets = _Interference([spans[root] for root in names], users)
    owners = Owners([user.runs for user in users], align, limit) if limit else None
    order = sorted(range(len(names)), key=lambda i: (-sizes[i], spans[names[i]], names[i]))
    starts, ends = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
    done = np.zeros(len(names), np.bool_)
    for i in order:
        row = meets.row(i)
        rivals = np.flatnonzero(row & done)
        starts[i] = _lowest_gap(starts[rivals], ends[rivals], sizes[i])
        if owners is not None:
            starts[i] = owners.choose(i, sizes[i], int(starts[i]), starts[rivals], ends[rivals], ~row)
            owners.place(i, int(starts[i]))
        ends[i] = starts[i] + sizes[i]
        done[i] = True
    place = {root: int(starts[i]) for i, root in enumerate(names)}
    return {name: place[roots[name]] for name in lives}, int(ends.max(initial=0))


def _lowest_gap(starts: NDArray[np.int64], ends: NDArray[np.int64], need: int) -> int:
    """The lowest offset at which `need` bytes lie clear of all the runs."""
    if len(starts) == 0:
        return 0
    by_start = np.argsort(starts, kind="stable")
    starts = starts[by_start]
    free_from = np.concatenate(([0], np.maximum.accumulate(ends[by_start])))
    fits = np.flatnonzero(starts - free_from[:-1] >= need)
    return int(free_from[fits[0] if len(fits) else -1])


class _Interference:
    """Which buffers must not share bytes, one row at a time: those that live together, and, with users given, those
    whose later one does not know that the earlier one's users are done."""

    def __init__(self, spans: Sequence[tuple[int, int]], users: Sequence[BufferUse]) -> None:
        table = np.array(spans, np.int64).reshape(-1, 2)
        self._first, self._last = table[:, 0], table[:, 1]
        cores = range(len(users[0].ready)) if users else range(0)
        self._used = [np.array([u.last.get(c, -1) for u in users]) for c in cores]
        self._ready = [np.array([u.ready[c] for u in users]) for c in cores]

    def row(self, i: int) -> NDArray[np.bool_]:
        """Buffers that interfere with buffer i."""
        before, after = self._last < self._first[i], self._first > self._last[i]
        for used, ready in zip(self._used, self._ready, strict=True):
            before &= used <= ready[i]
            after &= used[i] <= ready
        clear: NDArray[np.bool_] = before | after
        return ~clear


def _users(roots: Mapping[str, str], names: Sequence[str], touched: Mapping[str, BufferUse]) -> list[BufferUse]:
    """Users of each place: of its first buffer and of those that take it over."""
    found: dict[str, BufferUse] = {}
    for name, root in roots.items():
        row = touched[name]
        old = found.get(root)
        if old is None:
            found[root] = BufferUse(dict(row.last), row.ready, row.runs)
            continue
        for core, position in row.last.items():
            old.last[core] = max(position, old.last.get(core, -1))
        found[root] = BufferUse(old.last, list(map(min, old.ready, row.ready)), old.runs)
    return [found[root] for root in names]


class _Blob:
    """The constants in the order of their first use, equal ones once."""

    def __init__(self, constants: Mapping[str, NDArray[Any]], buffers: Mapping[str, ValueBuffer], align: int) -> None:
        self._constants, self._buffers, self._align = constants, buffers, align
        self._offsets: dict[object, int] = {}
        self.slots: list[ConstantSlot] = []
        self._size = 0

    def offset(self, name: str, pack: Pack | None) -> int:
        """Where the constant, packed so, lies."""
        key = (self._content(name), pack)
        found = self._offsets.get(key)
        if found is None:
            kind = self._buffers[name].type
            nbytes = kind.nbytes if pack is None else _packed_bytes(pack, kind)
            found = self._offsets[key] = self._size
            self.slots.append(ConstantSlot(name, pack, found, nbytes))
            self._size += _rounded(nbytes, self._align)
        return found

    def _content(self, name: str) -> object:
        """What equal constants share: small ones their bytes, large ones the array itself."""
        array = self._constants[name]
        if array.nbytes <= _SMALL_CONSTANT_BYTES:
            return (self._buffers[name].type, array.tobytes())
        return (id(array), array.shape)


@lru_cache(maxsize=1024)
def _packed_bytes(pack: Pack, kind: TensorType) -> int:
    return pack.packed_bytes(kind)
