"""Single engine commands on the emulator, thousands in one start: `run_commands`."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Mapping, Sequence

import pytest

from superkernel.backends.aicore.qemu import firmware_of
from superkernel.backends.aicore.qemu_machine import Emulator
from superkernel.backends.aicore.qemu_process import PROGRAM
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines import Command, encode, footprint
from superkernel.target.engines.model import Local

RECORD_BYTES, ENTRY_BYTES = 64, 128

needs_qemu = pytest.mark.skipif(
    shutil.which(PROGRAM) is None and os.environ.get("SK_REQUIRE_QEMU") != "1",
    reason=f"{PROGRAM} is not installed (SK_REQUIRE_QEMU=1 makes this a failure)",
)


def run_commands(
    target: AicoreTarget, commands: Sequence[Command], memories: Mapping[str, bytes], gm: bytes
) -> list[bytes]:
    """What each command has written, row after row; they run one after the other on memories that start like this.
    `gm` stands behind the program's code: addresses in the commands count from map.ram_address and are moved there."""
    with Emulator(target, None, firmware_of(target)) as machine:
        addresses = machine.prepare_bench()
        places = machine.places.memory
        base = places.data_address
        for name, data in memories.items():
            machine.write(addresses[Local(name)], data)
        machine.write(base, gm)
        table = base + (len(gm) + 4095) // 4096 * 4096
        out = table + ENTRY_BYTES * len(commands)
        found = []
        for n, command in enumerate(commands):
            written = next(t for t in footprint(command, target) if t.writes)
            where = written.start - target.map.ram_address + base
            start = addresses[written.memory] + written.start if written.memory else where
            *words, doorbell = encode(moved(command, base - target.map.ram_address))
            entry = struct.pack(f"<{len(words) + 1}Q", doorbell, *words).ljust(RECORD_BYTES, b"\0")
            entry += struct.pack("<5Q", start, written.rows, written.row_bytes, written.stride, out)
            machine.write(table + ENTRY_BYTES * n, entry.ljust(ENTRY_BYTES, b"\0"))
            found.append((out, written.rows * written.row_bytes))
            out += written.rows * written.row_bytes
        assert out <= places.data_address + places.data_bytes
        machine.execute(table, len(commands))
        return [machine.read(address, size) for address, size in found]


def moved(command: Command, distance: int) -> Command:
    """The command with its global addresses further up."""
    spec = command.spec
    numbers = [
        n + distance if o.kind.name == "GLOBAL" else n for o, n in zip(spec.operands, command.operands, strict=True)
    ]
    return Command(command.name, command.engine, command.types, tuple(numbers))
