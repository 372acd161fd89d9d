"""The emulated machine's memory, and what the firmware keeps in it: the part of `qemu_machine` that only looks.

Model: an anonymous file that this process maps and the emulator shares. Program, firmware, constants, unit ranges and
inputs are written into it, outputs and states read out of it; the firmware's words about each hart, its flags and its
queues lie in it too (`codegen/firmware/memory.py`), while the machine runs and after it has ended.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from superkernel.backends.aicore.qemu_process import shared_memory
from superkernel.codegen.aicore.linking import Image
from superkernel.codegen.firmware.image import Firmware
from superkernel.codegen.firmware.memory import ENGINES, FLAG_IDS, FLAGS, MODES, STATE, USED
from superkernel.core.errors import MachineError
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines.model import Engine

UNWRITTEN = 0xFF
"""What bytes hold that no program wrote: not-a-numbers, so that what nobody loaded shows."""


def group_peers(target: AicoreTarget, core: int) -> range:
    """The cores of the other type in a core's group."""
    device, cubes = target.device, target.device.cube_cores
    per_cube, per_vector = device.cube_cores_per_group, device.vector_cores_per_group
    if core < cubes:
        first = cubes + core // per_cube * per_vector
        return range(first, first + per_vector)
    first = (core - cubes) // per_vector * per_cube
    return range(first, first + per_cube)


def paired(target: AicoreTarget, core: int) -> range:
    """The core that signals a core in mode `pair`, if one does: of a group's first cube core and first vector core each
    signals the other."""
    first = group_peers(target, group_peers(target, core).start).start
    return group_peers(target, core)[: int(core == first)]


@dataclass
class EmulatedMemory:
    """Memory with a program and the firmware in it. `names` are the sub-operators' names, for reports."""

    target: AicoreTarget
    program: Image | None
    firmware: Firmware
    names: Sequence[str] = ()
    _map: mmap.mmap = field(init=False, repr=False)
    _file: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.places = self.firmware.places
        size = self.places.ram_bytes
        try:
            self._file, self._map = shared_memory("superkernel-qemu", size)
        except OSError as error:
            raise MachineError(f"no memory for the emulated machine: {error}", expected=f"{size} bytes") from error
        for image in (self.firmware.image, *((self.program,) if self.program else ())):
            for segment in image.segments:
                self.write(segment.address, segment.data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the memory back."""
        self._map.close()
        os.close(self._file)

    def write(self, address: int, data: bytes | memoryview) -> None:
        """Replace bytes of memory."""
        at = address - self.places.memory.ram_address
        assert 0 <= at <= len(self._map) - len(data), hex(address)
        self._map[at : at + len(data)] = data

    def read(self, address: int, count: int) -> bytes:
        """Bytes of memory."""
        at = address - self.places.memory.ram_address
        assert 0 <= at <= len(self._map) - count, hex(address)
        return self._map[at : at + count]

    def first_unwritten(self, address: int, count: int) -> int | None:
        """None: an emulated machine keeps no account of what was written."""
        return None

    def forget(self, begin: int, end: int) -> None:
        """Fill memory with what no program wrote."""
        self.write(begin, bytes([UNWRITTEN]) * (end - begin))

    def word(self, address: int) -> int:
        """An 8-byte word."""
        value: int = struct.unpack("<Q", self.read(address, 8))[0]
        return value

    def write_word(self, address: int, value: int) -> None:
        """A 64-bit little-endian word; of a larger number its low bits."""
        self.write(address, struct.pack("<Q", value & (1 << 64) - 1))

    def state_word(self, hart: int, name: str) -> int:
        """A word that the firmware keeps of a hart."""
        return self.word(self.places.state(hart) + STATE[name])

    def _counters(self) -> NDArray[np.int64]:
        """What cores have signalled in each mode, to each core alone, and what each has taken; by core and flag."""
        shape = (MODES + 2, self.target.cores, FLAG_IDS)
        return np.frombuffer(self.read(self.places.shared, int(np.prod(shape)) * 8), "<i8").reshape(shape)

    def lacking(self, hart: int, flag: int) -> dict[str, list[int]]:
        """Of the modes in which some core has begun the next signal of a cross-core flag to a core: the cores whose
        signals it lacks. A vector core lacks none in its group: each signal of a cube core counts by itself."""
        cubes, counters = self.target.device.cube_cores, self._counters()
        of_cubes, of_vectors = range(cubes), range(cubes, self.target.cores)
        of_type, of_other = (of_cubes, of_vectors) if hart < cubes else (of_vectors, of_cubes)
        of_group = group_peers(self.target, hart) if hart < cubes else range(0)
        members = {
            "type": of_type,
            "group": of_group,
            "all": range(self.target.cores),
            "across": of_other,
        }  # of pairs as of a cube core: none
        found = {}
        for row, (mode, cores) in enumerate(members.items()):
            signalled = {core: int(counters[row, core, flag]) for core in cores}
            least = min(signalled.values(), default=0)
            if max(signalled.values(), default=0) > least:
                found[mode] = [core for core, count in signalled.items() if count == least]
        return found

    def counts(self, hart: int) -> NDArray[np.int64]:
        """A core's counts of all cross-core flags, from what all cores have counted."""
        cubes, peers = self.target.device.cube_cores, group_peers(self.target, hart)
        counters = self._counters()
        in_group = counters[1, peers.start : peers.stop]
        of_cubes, of_vectors = slice(cubes), slice(cubes, None)
        if hart < cubes:
            own, other, of_group = of_cubes, of_vectors, in_group.min(0)
        else:
            own, other, of_group = of_vectors, of_cubes, in_group.sum(0)
        of_types = counters[0, own].min(0) + counters[3, other].min(0)
        pair = paired(self.target, hart)
        signalled = (
            counters[4, pair.start : pair.stop].sum(0)
            + of_types
            + of_group
            + counters[2].min(0)
            + counters[MODES, hart]
        )
        return np.asarray(signalled - counters[MODES + 1, hart], np.int64)

    def flags_used(self, hart: int) -> list[tuple[Engine, Engine, int]]:
        """The flags between engines that the hart's program sets: setter, waiter, number."""
        return self._flags_at(hart, USED)

    def flags_set(self, hart: int) -> list[tuple[Engine, Engine, int]]:
        """Those that are set now."""
        return self._flags_at(hart, FLAGS)

    def _flags_at(self, hart: int, offset: int) -> list[tuple[Engine, Engine, int]]:
        table = self.read(self.places.state(hart) + offset, ENGINES * ENGINES * FLAG_IDS)
        places = np.flatnonzero(np.frombuffer(table, np.uint8)).tolist()
        return [(Engine(p // FLAG_IDS // ENGINES), Engine(p // FLAG_IDS % ENGINES), p % FLAG_IDS) for p in places]
