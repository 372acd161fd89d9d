"""Addresses in the accelerator's global memory for what a schedule placed in spaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superkernel.codegen.aicore.memory_map import ALIGN_BYTES, MemoryMap
from superkernel.core.tensor import TensorType
from superkernel.scheduler.schedule import MemoryAddress, Schedule, Space
from superkernel.target.aicore import AicoreTarget


@dataclass(frozen=True)
class SpaceAddresses:
    """Where each space (and slot) starts; all lie from `begin` to `end`. All bytes, all multiples of an L2 line."""

    starts: dict[tuple[Space, int], int]
    begin: int
    end: int

    def of(self, address: MemoryAddress) -> int:
        """The address of a place."""
        return self.starts[address.space, address.slot] + address.offset

    def start(self, space: Space, slot: int = 0) -> int:
        """Absolute address of a space's slot, bytes; KeyError for a slot that the program has not."""
        return self.starts[space, slot]


def map_addresses(
    schedule: Schedule,
    target: AicoreTarget,
    inputs: Sequence[TensorType],
    outputs: Sequence[TensorType],
    states: Sequence[TensorType],
) -> SpaceAddresses:
    """Constants, inputs, outputs, states, arena, workspaces, one behind the other. Raises UnsupportedError where they
    do not fit into the target's memory."""
    memory = MemoryMap.of(target)
    sizes: list[tuple[Space, int, int]] = [
        (Space.CONSTANT, 0, max((c.offset + c.nbytes for c in schedule.constants), default=0)),
        *((Space.INPUT, i, t.nbytes) for i, t in enumerate(inputs)),
        *((Space.OUTPUT, i, t.nbytes) for i, t in enumerate(outputs)),
        *((Space.STATE, i, t.nbytes) for i, t in enumerate(states)),
        (Space.ARENA, 0, schedule.arena_bytes),
        (Space.SCRATCH, 0, schedule.scratch_bytes),
    ]
    rounded = [-(-nbytes // ALIGN_BYTES) * ALIGN_BYTES for _, _, nbytes in sizes]
    begin = at = memory.place_data(sum(rounded))
    starts = {}
    for (space, slot, _), nbytes in zip(sizes, rounded, strict=True):
        starts[space, slot] = at
        at += nbytes
    return SpaceAddresses(starts, begin, at)
