"""What the proofs of emitted programs have in common, whatever their kind of target."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from superkernel.core.arrays import same_contents
from superkernel.core.errors import Violation
from superkernel.ir.body import Role
from superkernel.scheduler.schedule import MemoryAddress, Schedule, Space
from superkernel.scheduler.tiling import Pack


def digest(parts: Iterable[str]) -> str:
    """SHA-256 of texts, in order, as hexadecimal digits."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part.encode())
        found.update(b"\n")
    return found.hexdigest()


def wrong_constants(
    schedule: Schedule, arrays: Mapping[str, NDArray[Any]], addresses: tuple[tuple[MemoryAddress, ...], ...]
) -> Iterator[Violation]:
    """Constants that do not lie where a kernel was told, packed as its tiling wants them."""
    slots = {slot.offset: slot for slot in schedule.constants}
    packed: dict[tuple[int, int], Mapping[int, Pack]] = {}  # asked once: many sub-operators share body and tiling
    for sub, tiling, row in zip(schedule.subops, schedule.tilings, addresses, strict=True):
        identity = id(sub.body), id(tiling)
        packs = packed.get(identity)
        if packs is None:
            packs = packed[identity] = tiling.packs(sub.body)
        for i, (value, operand, address) in enumerate(zip(sub.values, sub.body.operands, row, strict=True)):
            if operand.role is not Role.CONSTANT or not operand.type.nbytes:
                continue
            slot = slots.get(address.offset) if address.space is Space.CONSTANT else None
            if slot is None or slot.pack != packs.get(i) or not _same(arrays, slot.value, value):
                found = str(address) if slot is None else f"{slot.value!r}, pack {slot.pack}"
                where = f"sub-operator {sub.index} ({sub.name}), operand {i}"
                yield Violation("not its constant", where, f"{value!r}, pack {packs.get(i)}", found)


def _same(arrays: Mapping[str, NDArray[Any]], name: str, other: str) -> bool:
    if name == other:  # those of a saved kernel may not be at hand
        return True
    return same_contents(arrays[name], arrays[other])
