"""Counting on the emulator: instructions of each hart and the lines of code that its instruction cache misses.

Model: a plugin of the emulator (csrc/qemu/counts.cpp) counts what the program executes, not the firmware, with the
cache geometry of the target, into memory shared with this process. Waits do not count: they trap, and `wfi` is left
out. A plugin cannot see registers: this one is given the instructions and computes what `prefetch.i` asks for along
with the program, which makes those addresses from constants.

Invariant: the simulator's counts of the same launch are the same (`simulated_counts`).
"""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from superkernel import _core
from superkernel.backends.aicore.qemu_process import find_qemu, shared_memory
from superkernel.codegen.aicore.boot import START
from superkernel.codegen.aicore.linking import ElfSegment, Image
from superkernel.core.errors import MachineError
from superkernel.core.files import exists
from superkernel.sim.counters import LaunchResult
from superkernel.target.aicore import AicoreTarget

PLUGIN: Final = "_qemu_counts.so"
_HEADER, _HART, _ROW, _PAGE = 8, 8, 3, 4096
_SKIP, _ENTER = (1 << 64) - 1, 1 << 63
_WFI, _AMO, _BRANCH = 0x10500073, 0x2F, 0x63
_TRAP_VECTOR = 4  # instructions that the start code leaves out where a firmware takes the traps


@dataclass(frozen=True)
class HartCounts:
    """What one hart executed up to where it counts itself as ended: instructions, lines of code missed, lines that
    `prefetch.i` fetched; None where the plugin could not follow an address."""

    instructions: int
    misses: int | None
    prefetches: int | None


@cache
def plugin_path() -> Path | None:
    """The plugin, or None where it was not built or the emulator does not load it."""
    path = Path(_core.__file__).with_name(PLUGIN)
    if not exists(path):
        return None
    with _Words(_HEADER) as words:
        try:
            done = subprocess.run(
                [find_qemu(), "-M", "none", "-S", "-nodefaults", "-display", "none", "-monitor", "stdio",
                 *words.arguments(path)],
                input="quit\n", capture_output=True, encoding="utf-8", timeout=20, check=False, pass_fds=[words.file],
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired, MachineError):
            return None
    return path if done.returncode == 0 else None


class _Words:
    """64-bit words that the plugin shares."""

    def __init__(self, count: int) -> None:
        self.file, self.map = shared_memory("superkernel-counts", 8 * count)

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
        code = _code(self.image)
        special = dict(_ending(self.image, code).special)
        rows = [(pc, word, special.get(pc, _SKIP if word == _WFI else 0)) for pc, word in _instructions(code)]
        icache = self.target.icache
        self._words = _Words(_HEADER + self.harts * _HART + _ROW * len(rows))
        begin = code.address // _PAGE * _PAGE
        end, shift = code.address + len(code.data), icache.line_bytes.bit_length() - 1
        self._words.put(0, begin, end, shift, icache.ways, self.harts, len(rows))
        for hart in range(self.harts):
            size = icache.aicpu_bytes if hart >= self.target.cores else icache.vector_bytes
            size = icache.cube_bytes if hart < self.target.device.cube_cores else size
            self._words.put(_HEADER + hart * _HART, size // (icache.line_bytes * icache.ways))
        self._words.put(_HEADER + self.harts * _HART, *(value for row in rows for value in row))

    @property
    def file(self) -> int:
        """Descriptor of the memory that the plugin writes its counts to."""
        return self._words.file

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the emulator's command line gets, to load the plugin."""
        return self._words.arguments(self.plugin)

    def take(self) -> tuple[HartCounts, ...]:
        """The counts since the last time."""
        found = []
        for hart in range(self.harts):
            at = _HEADER + hart * _HART + 1
            instructions, _, misses, prefetches, unknown = self._words.get(at, 5)
            self._words.put(at, *[0] * 5)
            found.append(HartCounts(instructions, None if unknown else misses, None if unknown else prefetches))
        return tuple(found)

    def __enter__(self) -> Counting:
        return self

    def __exit__(self, *_: object) -> None:
        self._words.__exit__()


def simulated_counts(launch: LaunchResult, image: Image) -> tuple[HartCounts, ...]:
    """The same of a simulated launch: less the set-up of a trap vector, and what is behind the counting of harts that
    have ended: the end of the program on the last of them, or the branch and `wfi`."""
    ending = _ending(image, _code(image))
    last = max(range(len(launch.cores)), key=lambda n: launch.cores[n].cycles)
    return tuple(
        HartCounts(
            core.instructions - _TRAP_VECTOR - (ending.last if n == last else ending.others),
            core.control.misses,
            core.control.prefetches,
        )
        for n, core in enumerate(launch.cores)
    )


def _code(image: Image) -> ElfSegment:
    return next(s for s in image.segments if image.entry in range(s.address, s.address + len(s.data)))


@dataclass(frozen=True)
class _Ending:
    """Behind the instruction with which a hart counts itself as ended, nothing is counted: the launch may be over, and
    the counts taken, before the hart gets there. The lines up to the `wfi` are entered with that instruction. `last`,
    `others`: instructions left out on the last hart and on the others."""

    special: tuple[tuple[int, int], ...]
    last: int
    others: int


def _ending(image: Image, code: ElfSegment) -> _Ending:
    start = image.symbol(START)
    at = start.address - code.address
    words = np.frombuffer(bytes(code.data[at : at + start.size]), "<u4").tolist()
    counted = next(n for n, word in enumerate(words) if word & 0x7F == _AMO)
    branch = next(n for n in range(counted, len(words)) if words[n] & 0x7F == _BRANCH)  # which the last does not take
    sleep = next(n for n in range(branch, len(words)) if words[n] == _WFI)
    pcs = [start.address + 4 * n for n in range(len(words))]
    special = (pcs[counted], _ENTER | pcs[sleep]), *((pc, _SKIP) for pc in pcs[counted + 1 : sleep])
    return _Ending(special, last=sleep - counted - 1, others=branch - counted + 1)


def _instructions(code: ElfSegment) -> Iterator[tuple[int, int]]:
    """Each instruction's pc and word, compressed ones expanded."""
    data = bytes(code.data)
    at = 0
    while at < len(data):
        half = int.from_bytes(data[at : at + 2], "little")
        size = 4 if half & 3 == 3 else 2
        word = int.from_bytes(data[at : at + 4], "little") if size == 4 else _core.sim_expand_compressed(half)
        yield code.address + at, word
        at += size
