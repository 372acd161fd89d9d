"""Counting on the emulator: instructions of each hart and the lines of code that its instruction cache misses.

Model: a plugin of the emulator (csrc/qemu/counts.cpp) counts what the program executes, not the firmware, with the
cache geometry of the target, into memory shared with this process. Waits do not count: they trap, and `wfi` is left
out. The plugin cannot see registers, so that the lines that `prefetch.i` asks for are found in the code: an address is
made by `auipc` and `addi` ahead of its use.

Invariant: the simulator's counts of the same launch are the same (`simulated_counts`), where it starts as the emulator
does: with the firmware's word set, which leaves out the set-up of a trap vector.
"""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from superkernel import _core
from superkernel.codegen.aicore.linking import Image
from superkernel.errors import InternalError, MachineError
from superkernel.executors.qemu_process import find_qemu
from superkernel.sim.counters import LaunchResult
from superkernel.target.aicore import AicoreTarget

PLUGIN: Final = "_qemu_counts.so"
_HEADER, _HART, _PAGE = 8, 8, 4096
_SKIP = (1 << 64) - 1
_WFI, _PREFETCH, _PREFETCH_MASK = 0x10500073, 0x6013, 0x01F07FFF
_AUIPC, _ADDI = 0x17, 0x13
_CALLS, _WRITE_NONE = (0x67, 0x6F), (0x23, 0x27, 0x63)  # jalr, jal; stores and branches
_SAVED = (8, 9, *range(18, 28))  # registers that calls keep


@dataclass(frozen=True)
class HartCounts:
    """What one hart executed: instructions but `wfi`, lines of code missed, lines that `prefetch.i` fetched."""

    instructions: int
    misses: int
    prefetches: int


@cache
def plugin_path() -> Path | None:
    """The plugin, or None where it was not built or the emulator does not load it."""
    path = Path(_core.__file__).with_name(PLUGIN)
    if not path.exists():
        return None
    with _Words(_HEADER) as words:
        try:
            done = subprocess.run(
                [find_qemu(), "-M", "none", "-S", "-nodefaults", "-display", "none", "-monitor", "stdio",
                 *words.arguments(path)],
                input="quit\n", capture_output=True, text=True, timeout=20, check=False, pass_fds=[words.file],
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired, MachineError):
            return None
    return path if done.returncode == 0 else None


class _Words:
    """64-bit words that the plugin shares."""

    def __init__(self, count: int) -> None:
        self.file = os.memfd_create("superkernel-counts", os.MFD_CLOEXEC)
        os.ftruncate(self.file, 8 * count)
        self.map = mmap.mmap(self.file, 8 * count)

    def __enter__(self) -> _Words:
        return self

    def __exit__(self, *_: object) -> None:
        self.map.close()
        os.close(self.file)

    def put(self, at: int, *values: int) -> None:
        struct.pack_into(f"<{len(values)}Q", self.map, 8 * at, *values)

    def get(self, at: int, count: int) -> tuple[int, ...]:
        return struct.unpack_from(f"<{count}Q", self.map, 8 * at)

    def arguments(self, plugin: Path) -> tuple[str, ...]:
        return ("-plugin", f"file={plugin},counts=/proc/self/fd/{self.file}")


@dataclass
class Counting:
    """The shared words of a program's launches, from which `Emulator` takes `arguments` and `file`."""

    image: Image
    target: AicoreTarget
    harts: int
    plugin: Path
    _words: _Words = field(init=False, repr=False)

    def __post_init__(self) -> None:
        code = next(s for s in self.image.segments if self.image.entry in range(s.address, s.address + len(s.data)))
        specials = list(_specials(code.address, bytes(code.data)))
        icache = self.target.icache
        self._words = _Words(_HEADER + self.harts * _HART + 2 * len(specials))
        begin = code.address // _PAGE * _PAGE
        end, shift = code.address + len(code.data), icache.line_bytes.bit_length() - 1
        self._words.put(0, begin, end, shift, icache.ways, self.harts, len(specials))
        for hart in range(self.harts):
            size = icache.aicpu_bytes if hart >= self.target.cores else icache.vector_bytes
            size = icache.cube_bytes if hart < self.target.device.cube_cores else size
            self._words.put(_HEADER + hart * _HART, size // (icache.line_bytes * icache.ways))
        for n, row in enumerate(specials):
            self._words.put(_HEADER + self.harts * _HART + 2 * n, *row)

    @property
    def file(self) -> int:
        return self._words.file

    @property
    def arguments(self) -> tuple[str, ...]:
        return self._words.arguments(self.plugin)

    def take(self) -> tuple[HartCounts, ...]:
        """The counts since the last time."""
        found = []
        for hart in range(self.harts):
            at = _HEADER + hart * _HART + 1
            instructions, _, misses, prefetches = self._words.get(at, 4)
            self._words.put(at, 0, 0, 0, 0)
            found.append(HartCounts(instructions, misses, prefetches))
        return tuple(found)

    def __enter__(self) -> Counting:
        return self

    def __exit__(self, *_: object) -> None:
        self._words.__exit__()


def simulated_counts(launch: LaunchResult) -> tuple[HartCounts, ...]:
    """The same of a simulated launch."""
    return tuple(HartCounts(core.instructions, core.control.misses, core.control.prefetches) for core in launch.cores)


def _specials(address: int, code: bytes) -> Iterator[tuple[int, int]]:
    """The instructions that are not simply counted: (pc, line that a prefetch asks for, or that it is left out)."""
    known: dict[int, int] = {}
    at = 0
    while at < len(code):
        half = int.from_bytes(code[at : at + 2], "little")
        pc, size = address + at, 4 if half & 3 == 3 else 2
        word = int.from_bytes(code[at : at + 4], "little") if size == 4 else _core.sim_expand_compressed(half)
        at += size
        opcode, rd, rs1 = word & 0x7F, word >> 7 & 31, word >> 15 & 31
        immediate = (word >> 20 ^ 0x800) - 0x800
        if word == _WFI:
            yield pc, _SKIP
        elif word & _PREFETCH_MASK == _PREFETCH:
            if rs1 not in known:
                raise InternalError("a prefetch whose address is not made ahead of it", location=f"pc {pc:#x}")
            yield pc, known[rs1] + immediate
        elif opcode == _AUIPC:
            known[rd] = pc + ((word & 0xFFFFF000 ^ 0x80000000) - 0x80000000)
        elif opcode == _ADDI and word >> 12 & 7 == 0 and rs1 in known:
            known[rd] = known[rs1] + immediate
        elif opcode in _CALLS:
            known = {register: value for register, value in known.items() if register in _SAVED}
        elif opcode not in _WRITE_NONE:
            known.pop(rd, None)


__all__ = ["Counting", "HartCounts", "plugin_path", "simulated_counts"]
