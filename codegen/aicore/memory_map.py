"""Where everything lies in the accelerator's global memory.

    ram_address   firmware of an emulator (nothing on the simulator)        FIRMWARE_BYTES
    code_address  code, then read-only and other data of the program         up to CODE_BYTES
    data_address  constants, inputs, outputs, states, arena, workspace       what the model needs
    private       one private memory per hart (map symbol `sk_private`)      harts x control.private_bytes
    top           an emulator's device tree                                  TOP_BYTES
    far_address   data of a model for which there is no room below           all the rest

Everything down to `top` lies in the first WINDOW_BYTES of memory, or in all of it where there is less: code reaches
`sk_private` relative to itself (2 GiB at most), and the emulator puts its device tree at the end of that window. A
model's data is never divided: it lies in the window, or behind it.

`SpaceAddresses` says where in it what a schedule placed in spaces lies.

Invariant: addresses are known before code is generated, so that kernels take them as constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superkernel.core.errors import UnsupportedError
from superkernel.core.tensor import TensorType
from superkernel.scheduler.schedule import MemoryAddress, Schedule, Space
from superkernel.target.aicore import AicoreTarget

FIRMWARE_BYTES = 1 << 18
CODE_BYTES = 8 << 20
TOP_BYTES = 2 << 20
WINDOW_BYTES = 1 << 30
ALIGN_BYTES = 512  # lines of L2; transfers at less alignment are slower

# Words of a hart's private memory (8 bytes each). The stack grows down from its end.
MARKER_WORD = 0  # sub-operator * 4 + phase: where the hart is
CAUSE_WORD = 1  # of a trap
LAUNCH_WORD = 2  # which launch the hart is to run (`program`)
WORDS_WORD = 3  # and the next two: how far the words have come that this hart notifies, or waits for
RUNS_WORD = 6  # how often the program has run to its end
PARAMETERS_BYTE = 64  # from here on: the hart's unit ranges
STACK_BYTES = 4096


@dataclass(frozen=True)
class MemoryMap:
    """The map of one target. Addresses and sizes in bytes."""

    ram_address: int
    ram_bytes: int
    harts: int
    private_bytes: int

    @staticmethod
    def of(target: AicoreTarget) -> MemoryMap:
        """The map for all cores and aicpu harts of a target."""
        device = target.device
        harts = device.cube_cores + device.vector_cores + device.aicpu_harts
        return MemoryMap(target.map.ram_address, target.map.ram_bytes, harts, target.control.private_bytes)

    @property
    def code_address(self) -> int:
        """Where code begins, behind the firmware."""
        return self.ram_address + FIRMWARE_BYTES

    @property
    def data_address(self) -> int:
        """Where values begin, behind the room for code and what is linked with it, which must not reach it."""
        return self.code_address + CODE_BYTES

    @property
    def private_address(self) -> int:
        """Where the harts' private stretches begin, one behind another up to the top of what code addresses
        directly."""
        end = self.ram_address + min(self.ram_bytes, WINDOW_BYTES) - TOP_BYTES
        return (end - self.harts * self.private_bytes) // ALIGN_BYTES * ALIGN_BYTES

    def private(self, hart: int) -> int:
        """A hart's private memory."""
        return self.private_address + hart * self.private_bytes

    @property
    def data_bytes(self) -> int:
        """What is there for data in the window; 0 where private memories and code leave nothing."""
        return max(0, self.private_address - self.data_address)

    @property
    def far_address(self) -> int:
        """Where memory begins that data takes once what lies ahead of it is full."""
        return self.ram_address + WINDOW_BYTES

    @property
    def far_bytes(self) -> int:
        """What is there for data behind the window."""
        return max(0, self.ram_bytes - TOP_BYTES - WINDOW_BYTES)

    def place_data(self, need: int) -> int:
        """The address of `need` bytes of data. Raises UnsupportedError where the target has no room for them, or none
        for code and private memories."""
        if self.private_address < self.data_address:
            private = f"{self.harts} private memories of {self.private_bytes} bytes"
            raise UnsupportedError(
                "the target's global memory is too small for any program",
                location="map.ram_bytes",
                expected=f"at least {self.ram_bytes + self.data_address - self.private_address} bytes: {CODE_BYTES} of "
                f"code, {private}, {FIRMWARE_BYTES + TOP_BYTES} for an emulator",
                found=f"{self.ram_bytes} bytes",
                hint="a target file with a larger map.ram_bytes, or a smaller control.private_bytes",
            )
        if need <= self.data_bytes:
            return self.data_address
        if need <= self.far_bytes:
            return self.far_address
        raise UnsupportedError(
            "the model does not fit into the target's global memory",
            location="map.ram_bytes",
            expected=f"at most {max(self.data_bytes, self.far_bytes)} bytes of data",
            found=f"{need} bytes",
            hint="a target file with a larger map.ram_bytes",
        )


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
