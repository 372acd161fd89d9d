"""Packed constants in memory: small ones in one block of each image, every large one shared by all kernels of the
process that pack the same contents in the same way.

Model: a plan has all constants in one space, each at its offset (`ConstantSlot`). In memory that space lies in blocks:
the image's *own* block has what is smaller than SHARED_BYTES_MIN, in order and without what lay between; of the others
each is a block by itself. Emitted code finds the own block in the context and the others behind the io table, so that a
launch does the same wherever they lie.

A block that is shared is known by what it was made from: type, `Pack`, and contents. These are compared with those of
the array that was packed, as long as it lives and is immutable; else what packing gives is compared with the block
itself. A block lives as long as an image uses it; nothing else holds it. The
blocks that one image is the first to need lie together in *slabs*, large enough for huge pages, and a slab is given
back as a whole.

Invariant: nobody writes to a block that somebody else can find.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from threading import RLock
from typing import Any
from weakref import WeakValueDictionary, ref

import numpy as np
from numpy.typing import NDArray

from superkernel.core.arrays import is_immutable, same_contents, samples
from superkernel.core.errors import InternalError
from superkernel.scheduler.schedule import ConstantSlot, PackedConstants
from superkernel.scheduler.tiling import pack_bytes

Bytes = NDArray[np.uint8]

ALIGN_BYTES = 64
SPARE_BYTES = 64  # behind the last constant: vectors that begin in it may end there
SHARED_BYTES_MIN = 1 << 16
SLAB_BYTES = 1 << 24  # a slab that has as much is not added to


class SharedBlock:
    """A packed constant, and the array that it was packed from."""

    __slots__ = ("__weakref__", "_source", "memory")

    def __init__(self, memory: Bytes, source: NDArray[Any]) -> None:
        self.memory, self._source = memory, ref(source) if is_immutable(source) else None

    def is_of(self, array: NDArray[Any]) -> bool:
        """Whether it is known, without packing, that the array was packed so."""
        source = self._source() if self._source is not None else None
        return source is not None and same_contents(source, array)


_shared: WeakValueDictionary[tuple[object, ...], SharedBlock] = WeakValueDictionary()
_lock = RLock()


def _new_lock() -> None:
    """In a forked child: the thread that held the lock is not there any more."""
    global _lock
    _lock = RLock()


os.register_at_fork(after_in_child=_new_lock)


def aligned_bytes(nbytes: int, alignment: int = ALIGN_BYTES) -> Bytes:
    """Zeroed bytes whose address is a multiple of `alignment`."""
    raw = np.zeros(nbytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + nbytes]


class ConstantPlaces:
    """In which block each constant of a schedule lies. Blocks are numbered as their base pointers stand behind the io
    table; None is the own block."""

    def __init__(self, slots: Sequence[ConstantSlot]) -> None:
        self.slots = slots
        self.shared = tuple(slot for slot in slots if slot.nbytes >= SHARED_BYTES_MIN)
        self.own: list[tuple[ConstantSlot, int]] = []  # with their offsets in the block
        self.own_bytes = 0
        self._blocks: list[tuple[int | None, int]] = []
        numbers = iter(range(len(slots)))
        for slot in slots:
            if slot.nbytes >= SHARED_BYTES_MIN:
                self._blocks.append((next(numbers), 0))
                continue
            self._blocks.append((None, self.own_bytes))
            self.own.append((slot, self.own_bytes))
            self.own_bytes += -(-slot.nbytes // ALIGN_BYTES) * ALIGN_BYTES
        self._starts = [slot.offset for slot in slots]
        self._slots = dict(zip(self._blocks, slots, strict=True))

    @property
    def nbytes(self) -> int:
        """Of the schedule's space."""
        return max((slot.offset + slot.nbytes for slot in self.slots), default=0)

    def find(self, offset: int) -> tuple[int | None, int]:
        """Block, and offset in it, of a byte of the schedule's space."""
        at = bisect_right(self._starts, offset) - 1
        if at < 0:
            return None, offset
        block, start = self._blocks[at]
        return block, start + offset - self._starts[at]

    def offset(self, block: int | None, inner: int) -> int | None:
        """The offset in the schedule's space of the constant that begins there; None: none does."""
        slot = self._slots.get((block, inner))
        return None if slot is None else slot.offset


class HostConstants:
    """The constants of an image: its own block, and those that it shares. `fresh`: of these, the ones that no image
    had before."""

    def __init__(self, slots: Sequence[ConstantSlot], values: Mapping[str, NDArray[Any]]) -> None:
        """Packed, or found, by the graph's constants by name; where they lie packed already, there."""
        self.places = places = ConstantPlaces(slots)
        self.own = aligned_bytes(places.own_bytes + SPARE_BYTES)
        self._kept: Sequence[SharedBlock] = ()
        if isinstance(values, PackedConstants):
            blob = _aligned(values.blob)
            if len(blob) < places.nbytes:
                raise InternalError("packed constants are not whole", expected=places.nbytes, found=len(blob))
            for slot, start in places.own:
                self.own[start : start + slot.nbytes] = blob[slot.offset : slot.offset + slot.nbytes]
            self.shared = self.fresh = tuple(blob[s.offset : s.offset + s.nbytes] for s in places.shared)
        else:
            for slot, start in places.own:
                self.own[start : start + slot.nbytes] = pack_bytes(slot.pack, values[slot.value])
            self._kept, packed = _found_or_packed(places.shared, values)
            self.shared = tuple(block.memory for block in self._kept)
            self.fresh = tuple(self.shared[number] for number in packed)

    def at(self, offset: int) -> Bytes:
        """From a byte of the schedule's space on, as far as its block goes."""
        block, inner = self.places.find(offset)
        return (self.own if block is None else self.shared[block])[inner:]

    def image(self) -> Iterator[memoryview]:
        """The bytes of the schedule's whole space, and SPARE_BYTES behind it, piece by piece."""
        at = 0
        for slot in self.places.slots:
            yield memoryview(bytes(slot.offset - at))
            yield self.at(slot.offset)[: slot.nbytes].data
            at = slot.offset + slot.nbytes
        yield memoryview(bytes(SPARE_BYTES))


def _found_or_packed(
    slots: Sequence[ConstantSlot], values: Mapping[str, NDArray[Any]]
) -> tuple[Sequence[SharedBlock], Sequence[int]]:
    """The block of each slot, and which of them were packed."""
    found: list[SharedBlock | None] = []
    packed: list[int] = []
    with _lock:  # two kernels of one model that are compiled at the same time pack once
        keys = [_key(values[slot.value], slot) for slot in slots]
        for key, slot in zip(keys, slots, strict=True):
            block, array = _shared.get(key), values[slot.value]
            if block is not None and not block.is_of(array):
                block = block if same_contents(block.memory, pack_bytes(slot.pack, array)) else None
            found.append(block)
        for slab in _slabs([slot for slot, block in zip(slots, found, strict=True) if block is None]):
            at, memory = 0, aligned_bytes(sum(map(_room, slab)))
            for slot in slab:
                number = slots.index(slot)
                part = memory[at : at + slot.nbytes]
                part[:] = pack_bytes(slot.pack, values[slot.value])
                part.flags.writeable = False
                found[number] = _shared[keys[number]] = SharedBlock(part, values[slot.value])
                packed.append(number)
                at += _room(slot)
    return [block for block in found if block is not None], packed


def _key(array: NDArray[Any], slot: ConstantSlot) -> tuple[object, ...]:
    """What equal blocks have in common, and few others."""
    return array.dtype, array.shape, slot.pack, samples(array)


def _slabs(slots: Iterable[ConstantSlot]) -> Iterator[list[ConstantSlot]]:
    """What lies together."""
    slab: list[ConstantSlot] = []
    for slot in slots:
        slab.append(slot)
        if sum(map(_room, slab)) >= SLAB_BYTES:
            yield slab
            slab = []
    if slab:
        yield slab


def _room(slot: ConstantSlot) -> int:
    """A slot's bytes in a slab, with what vectors may read behind them."""
    return -(-slot.nbytes // ALIGN_BYTES) * ALIGN_BYTES + SPARE_BYTES


def _aligned(blob: Bytes) -> Bytes:
    """The bytes where kernels may read them: where they lie, if that does."""
    if blob.ctypes.data % ALIGN_BYTES == 0:
        return blob
    copy = aligned_bytes(len(blob))
    copy[:] = blob
    return copy
