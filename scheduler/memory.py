"""Addresses: lifetimes in the global order become offsets in one arena; constants become one blob.

Model: a buffer of the arena lives from the first sub-operator that touches it to the last, both inclusive, in the
global order. Two buffers whose lives meet do not share bytes. Placing is greedy, the largest first, each at the
lowest offset that is free during its whole life; a pointwise output may instead take the place of an input that dies
right there and is walked alike, element by element.

Where several cores share the work, addresses are reused by the core that had them before as far as that can be had
(csrc/scheduler/arena.h). Bytes that one core alone has used, of two buffers, it may write again when it likes: of a
chain that each core computes for its own rows, two buffers are all there is.

Reuse of an address is a hazard between cores like any other: the sync planner sees it, because memory is planned
before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel import _core
from superkernel.core.frozen import frozen
from superkernel.core.tensor import TensorType
from superkernel.ir.body import Role, SubOperator
from superkernel.scheduler.grouping import ValueBuffer
from superkernel.scheduler.schedule import ConstantSlot, MemoryAddress, Space
from superkernel.scheduler.tiling import Pack, Tiling

ALIGN_BYTES = 64
ROOMY_FACTOR = 1.25
_SMALL_CONSTANT_BYTES = 1 << 16  # up to this size equal contents are looked for
_TABLE_MOST = 1024  # buffers of which all rows of interference are made at once: a bit of a megabyte


Run = tuple[int, int, int]
"""First byte, byte behind the last, and the core that writes them or `MIXED`."""

FREE, MEETS, OTHER_CORES = range(3)
"""Two buffers may share bytes; they may not; they may where the same core uses these of both."""

MIXED = -1  # in place of the core, of bytes that several write in strided pieces


@dataclass(frozen=True)
class MemoryPlan:
    """`addresses` per sub-operator and operand; `requested_bytes` is what the arena would take without reuse."""

    addresses: tuple[tuple[MemoryAddress, ...], ...]
    constants: tuple[ConstantSlot, ...]
    arena_bytes: int
    requested_bytes: int


@frozen()
class BufferUse:
    """Who uses a buffer: `last[core]` is the last position at which that core does; `ready[core]` is up to where
    every first writer of the buffer knows that core to be complete, through data dependences alone; `runs`: which core
    writes which of its bytes; `apart`: nobody else uses these, and the runs are in order."""

    last: dict[int, int]
    ready: list[int]
    runs: tuple[Run, ...] = ()
    apart: bool = False


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
    places = _Places(lives, buffers, _in_place(subops, lives, parents), align)
    offsets, arena = _offsets(places, touched, roomy_bytes) if touched is not None and lives else places.smallest
    blob = _Blob(constants, buffers, align)
    addresses = []
    packed: dict[tuple[int, int], Mapping[int, Pack]] = {}  # asked once: many sub-operators share body and tiling
    for sub, tiling in zip(subops, tilings, strict=True):
        identity = id(sub.body), id(tiling)
        packs = packed.get(identity)
        if packs is None:
            packs = packed[identity] = tiling.packs(sub.body)
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
    subops: Sequence[SubOperator], lives: Mapping[str, tuple[int, int]], parents: Mapping[str, tuple[str, int]]
) -> dict[str, str]:
    """Output buffer -> the input buffer whose bytes it takes over: one that no other operand has a part of."""
    shared: dict[str, str] = {}
    taken: set[str] = set()
    for at, sub in enumerate(subops):
        if sub.body.op is not None:
            continue
        roots = [_root(value, parents)[0] for value in sub.values]
        for i, operand in enumerate(sub.body.operands):
            name = sub.values[i]
            if operand.role is not Role.OUTPUT or name not in lives or lives[name][0] != at:
                continue
            for j, source in enumerate(sub.values):
                fits = source in lives and lives[source][1] == at and source not in taken and roots.count(source) == 1
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


Offsets = tuple[dict[str, int], int]
"""Offsets of all arena buffers, and the arena's size."""


def _offsets(places: _Places, touched: Mapping[str, BufferUse], roomy_bytes: int) -> Offsets:
    """An arena in which reuse never needs a wait of its own, where that is small enough, and in which addresses are
    reused by the core that had them before, where that is."""

    def fits(size: int) -> bool:
        """Whether it is at most `roomy_bytes`, or little more than the smallest arena: of that, what lives together
        often says enough."""
        return size <= max(roomy_bytes, int(ROOMY_FACTOR * places.together)) or size <= max(
            roomy_bytes, int(ROOMY_FACTOR * places.smallest[1])
        )

    meets = places.interference(touched)
    offsets, arena = places.arena(meets)
    if not fits(arena):  # waits for reuse cannot be helped; who writes what still counts
        offsets, arena = places.smallest
        meets = places.interference(
            {name: BufferUse({}, row.ready, row.runs, row.apart) for name, row in touched.items()}
        )
    near, size = places.arena(meets, limit=max(arena, roomy_bytes))
    return (near, size) if fits(size) else (offsets, arena)


class _Places:
    """What is to be placed: buffers, or several that take one place over from each other."""

    def __init__(
        self,
        lives: Mapping[str, tuple[int, int]],
        buffers: Mapping[str, ValueBuffer],
        shared: Mapping[str, str],
        align: int,
    ) -> None:
        self.roots: dict[str, str] = {}
        spans: dict[str, tuple[int, int]] = {}
        for name, (first, last) in sorted(lives.items(), key=lambda item: item[1]):
            root = self.roots[shared[name]] if name in shared else name
            self.roots[name] = root
            known = spans.get(root, (first, last))
            spans[root] = (min(known[0], first), max(known[1], last))
        self.names, self.spans, self.align = list(spans), list(spans.values()), align
        self.sizes = [_rounded(buffers[root].type.nbytes, align) for root in self.names]
        self._order = sorted(range(len(spans)), key=lambda i: (-self.sizes[i], self.spans[i], self.names[i]))

    @cached_property
    def smallest(self) -> Offsets:
        """Bytes are reused as soon as nobody needs what they hold."""
        return self.arena(_Interference(self.spans, []))

    @cached_property
    def together(self) -> int:
        """The most bytes that live at one time: no arena is smaller."""
        change: dict[int, int] = {}
        for (first, last), size in zip(self.spans, self.sizes, strict=True):
            change[first] = change.get(first, 0) + size
            change[last + 1] = change.get(last + 1, 0) - size
        return max(accumulate(change[at] for at in sorted(change)), default=0)

    def interference(self, touched: Mapping[str, BufferUse]) -> _Interference:
        """That of writers that know of all earlier users."""
        return _Interference(self.spans, _users(self.roots, self.names, touched))

    def arena(self, meets: _Interference, limit: int = 0) -> Offsets:
        """Offsets where what interferes shares no bytes. With a limit, bytes are reused, too, by the core that had them
        before, where that needs no more bytes than it."""
        count = len(self.names)
        arena = _core.Arena(self.sizes, meets.runs or [()] * count, self.align, limit)
        starts = [0] * count
        for i in self._order:
            starts[i] = arena.place(i, meets.row(i))
        place = dict(zip(self.names, starts, strict=True))
        size = max(map(sum, zip(starts, self.sizes, strict=True)), default=0)
        return {name: place[root] for name, root in self.roots.items()}, size


class _Interference:
    """Which buffers must not share bytes: those that live together, and, with users given, those whose later one does
    not know that the earlier one's users are done, but for bytes that one core uses of both. `runs`: which core writes
    which bytes of each."""

    def __init__(self, spans: Sequence[tuple[int, int]], users: Sequence[BufferUse]) -> None:
        table = np.array(spans, np.int64).reshape(-1, 2)
        self._first, self._last = table[:, 0], table[:, 1]
        cores = range(len(users[0].ready)) if users else range(0)
        self._used = [np.array([u.last.get(c, -1) for u in users]) for c in cores]
        self._ready = [np.array([u.ready[c] for u in users]) for c in cores]
        self.runs = [user.runs for user in users]
        self._apart = np.array([u.apart for u in users] if users else [False] * len(spans), np.bool_)
        self._rows = self._of(np.s_[:, None]) if len(spans) <= _TABLE_MOST else None

    def row(self, i: int) -> NDArray[np.uint8]:
        """How each buffer interferes with buffer i."""
        found: NDArray[np.uint8] = self._of(i) if self._rows is None else self._rows[i]
        return found

    def _of(self, at: Any) -> NDArray[np.uint8]:
        """The row of one buffer, or of all."""
        before, after = self._last < self._first[at], self._first > self._last[at]
        in_order = (before | after) & self._apart & self._apart[at]
        for used, ready in zip(self._used, self._ready, strict=True):
            before &= used <= ready[at]
            after &= used[at] <= ready
        return np.where(before | after, FREE, np.where(in_order, OTHER_CORES, MEETS)).astype(np.uint8)


def _users(roots: Mapping[str, str], names: Sequence[str], touched: Mapping[str, BufferUse]) -> list[BufferUse]:
    """Users of each place: of its first buffer and of those that take it over."""
    found: dict[str, BufferUse] = {}
    for name, root in roots.items():
        row = touched[name]
        old = found.get(root)
        if old is None:
            found[root] = BufferUse(dict(row.last), row.ready, row.runs, row.apart)
            continue
        for core, position in row.last.items():
            old.last[core] = max(position, old.last.get(core, -1))
        apart = old.apart and row.apart and old.runs == row.runs
        found[root] = BufferUse(old.last, list(map(min, old.ready, row.ready)), old.runs, apart)
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
