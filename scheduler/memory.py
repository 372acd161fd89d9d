"""Addresses: lifetimes in the global order become offsets in one arena; constants become one blob.

Model: a buffer of the arena lives from the first sub-operator that touches it to the last, both inclusive, in the global order. Two buffers whose
lives meet do not share bytes. Placing is greedy, the largest first, each at the lowest offset that is free during its whole life; a pointwise
output may instead take the place of an input that dies right there and is walked alike, element by element.

Reuse of an address is a hazard between cores like any other: the sync planner sees it, because memory is planned before.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from superkernel.body import Role, SubOperator
from superkernel.scheduler.schedule import ConstantSlot, Place, Space
from superkernel.scheduler.tiling import Pack, Tiling
from superkernel.scheduler.workspace import Buffer
from superkernel.tensor import TensorType

ALIGN_BYTES = 64
_SMALL_CONSTANT_BYTES = 1 << 16  # up to this size equal contents are looked for


@dataclass(frozen=True)
class MemoryPlan:
    """`places` per sub-operator and operand; `requested_bytes` is what the arena would take without reuse."""

    places: tuple[tuple[Place, ...], ...]
    constants: tuple[ConstantSlot, ...]
    arena_bytes: int
    requested_bytes: int


def plan_memory(
    subops: Sequence[SubOperator],
    tilings: Sequence[Tiling],
    buffers: Mapping[str, Buffer],
    constants: Mapping[str, NDArray[Any]],
) -> MemoryPlan:
    """Places for every operand; `subops` in global order."""
    lives = _lifetimes(subops, buffers)
    shared = _in_place(subops, buffers, lives)
    offsets, arena = _arena(lives, buffers, shared)
    blob = _Blob(constants, buffers)
    places = []
    for sub, tiling in zip(subops, tilings, strict=True):
        packs = tiling.packs(sub.body)
        row = []
        for i, name in enumerate(sub.values):
            home = buffers[name].home
            if home is None:
                row.append(Place(Space.ARENA, 0, offsets[name]))
            elif home.space is Space.CONSTANT:
                row.append(Place(Space.CONSTANT, 0, blob.offset(name, packs.get(i))))
            else:
                row.append(home)
        places.append(tuple(row))
    requested = sum(_rounded(buffers[name].type.nbytes) for name in lives)
    return MemoryPlan(tuple(places), tuple(blob.slots), arena, requested)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES


def _lifetimes(subops: Sequence[SubOperator], buffers: Mapping[str, Buffer]) -> dict[str, tuple[int, int]]:
    """First and last position at which each arena buffer is touched."""
    lives: dict[str, tuple[int, int]] = {}
    for at, sub in enumerate(subops):
        for name in sub.values:
            if buffers[name].home is None:
                first, _ = lives.get(name, (at, at))
                lives[name] = (first, at)
    return lives


def _in_place(
    subops: Sequence[SubOperator], buffers: Mapping[str, Buffer], lives: Mapping[str, tuple[int, int]]
) -> dict[str, str]:
    """Output buffer -> the input buffer whose bytes it takes over."""
    shared: dict[str, str] = {}
    taken: set[str] = set()
    for at, sub in enumerate(subops):
        if sub.body.op is not None:
            continue
        for i, operand in enumerate(sub.body.operands):
            name = sub.values[i]
            if operand.role is not Role.OUTPUT or name not in lives or lives[name][0] != at:
                continue
            for j, source in enumerate(sub.values):
                fits = source in lives and lives[source][1] == at and source not in taken
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
    lives: Mapping[str, tuple[int, int]], buffers: Mapping[str, Buffer], shared: Mapping[str, str]
) -> tuple[dict[str, int], int]:
    """Offsets of all arena buffers and the arena's size."""
    roots: dict[str, str] = {}
    spans: dict[str, tuple[int, int]] = {}
    for name, (first, last) in sorted(lives.items(), key=lambda item: item[1]):
        root = roots[shared[name]] if name in shared else name
        roots[name] = root
        known = spans.get(root, (first, last))
        spans[root] = (min(known[0], first), max(known[1], last))
    sizes = {root: _rounded(buffers[root].type.nbytes) for root in spans}
    order = sorted(spans, key=lambda r: (-sizes[r], spans[r], r))
    placed: list[tuple[int, int, int, int]] = []  # (offset, end, first, last), sorted by offset
    offsets: dict[str, int] = {}
    size = 0
    for root in order:
        first, last = spans[root]
        at, need = 0, sizes[root]
        for offset, end, other_first, other_last in placed:
            if other_first > last or first > other_last:
                continue
            if offset >= at + need:
                break
            at = max(at, end)
        offsets[root] = at
        insort(placed, (at, at + need, first, last))
        size = max(size, at + need)
    return {name: offsets[roots[name]] for name in lives}, size


class _Blob:
    """The constants in the order of their first use, equal ones once."""

    def __init__(self, constants: Mapping[str, NDArray[Any]], buffers: Mapping[str, Buffer]) -> None:
        self._constants, self._buffers = constants, buffers
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
            self._size += _rounded(nbytes)
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
