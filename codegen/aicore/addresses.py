"""Addresses in the accelerator's global memory for what a schedule placed in spaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superkernel.codegen.aicore.memory_map import ALIGN_BYTES, MemoryMap
from superkernel.scheduler.schedule import Place, Schedule, Space
from superkernel.target.aicore import AicoreTarget
from superkernel.tensor import TensorType


@dataclass(frozen=True)
class AddressMap:
    """Where each space (and slot) starts; `end` is the first free address. All bytes, all multiples of an L2 line."""

    starts: dict[tuple[Space, int], int]
    end: int

    def of(self, place: Place) -> int:
        """The address of a place."""
        return self.starts[place.space, place.slot] + place.offset

    def start(self, space: Space, slot: int = 0) -> int:
        return self.starts[space, slot]


def map_addresses(
    schedule: Schedule,
    target: AicoreTarget,
    inputs: Sequence[TensorType],
    outputs: Sequence[TensorType],
    states: Sequence[TensorType],
) -> AddressMap:
    """Constants, inputs, outputs, states, arena, workspaces, one behind the other. Raises MachineError where they do
    not fit into the target's memory."""
    memory = MemoryMap.of(target)
    sizes: list[tuple[Space, int, int]] = [
        (Space.CONSTANT, 0, max((c.offset + c.nbytes for c in schedule.constants), default=0)),
        *((Space.INPUT, i, t.nbytes) for i, t in enumerate(inputs)),
        *((Space.OUTPUT, i, t.nbytes) for i, t in enumerate(outputs)),
        *((Space.STATE, i, t.nbytes) for i, t in enumerate(states)),
        (Space.ARENA, 0, schedule.arena_bytes),
        (Space.SCRATCH, 0, schedule.scratch_bytes),
    ]
    at = memory.data_address
    starts = {}
    for space, slot, nbytes in sizes:
        starts[space, slot] = at
        at += -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES
    memory.check_data(at - memory.data_address)
    return AddressMap(starts, at)
