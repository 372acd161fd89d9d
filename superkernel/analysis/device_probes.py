"""Small programs for the simulated accelerator that measure one thing each, as a microbenchmark on a device would.

Model: a `ProbeLoop` is what one kind of core does: a command again and again, its address in global memory walking
on. All cores that take part meet at a cross-core flag, run their loops and drain. Times are the engines' own, first
start to last end, so that boot and exit do not count. Programs run without data and without checks for races.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llvmlite import ir

from superkernel.codegen.aicore.boot import BootSpec, encode_boot
from superkernel.codegen.aicore.linking import LinkLayout, link
from superkernel.codegen.aicore.lower import compile_rv64
from superkernel.codegen.aicore.scalar import I64
from superkernel.codegen.aicore.statements import define, issue, word
from superkernel.core.errors import InputError
from superkernel.sim.device import Device
from superkernel.target.engines import Engine, command

if TYPE_CHECKING:
    from superkernel.core.dtypes import DType
    from superkernel.sim.counters import LaunchResult
    from superkernel.target.aicore import AicoreTarget

DATA_OFFSET = 3 << 29
"""Where the data lie behind the start of memory: behind everything that programs need."""
SMALL_OFFSET = 1 << 26
"""The same on targets with little memory."""


@dataclass(frozen=True, kw_only=True)
class ProbeLoop:
    """`count` times `name` with `operands`; `place` is the operand in global memory, empty where there is none.

    In turn i core c of those that take part uses base + i x `turn_bytes` + c x `core_bytes`. `cores` limits how many
    of the type take part, 0: all.
    """

    name: str
    count: int
    operands: dict[str, int | str] = field(default_factory=dict)
    engine: Engine | None = None
    types: tuple[DType, ...] = ()
    place: str = ""
    turn_bytes: int = 0
    core_bytes: int = 0
    cores: int = 0


@dataclass(frozen=True)
class Probe:
    """What cube cores and vector cores do, and which bytes from the data's start on are in L2 before."""

    cube: tuple[ProbeLoop, ...] = ()
    vector: tuple[ProbeLoop, ...] = ()
    warm_bytes: int = 0
    touched_bytes: int = 0

    def run(self, target: AicoreTarget) -> LaunchResult:
        """Raises InputError where the target's memory is too small for what the probe touches."""
        base = data_address(target, self.touched_bytes)
        device = Device(target, _program(self, target, base), mode="timing", races=False, unwritten=False, flags=False)
        device.warm_l2(target.map.ram_address, 1 << 20)
        if self.warm_bytes:
            device.warm_l2(base, self.warm_bytes)
        return device.launch()


def data_address(target: AicoreTarget, touched_bytes: int) -> int:
    """Where probes have their data. Raises InputError where they do not fit."""
    room = target.map.ram_bytes
    offset = DATA_OFFSET if room > DATA_OFFSET else SMALL_OFFSET
    if offset + touched_bytes > room:
        raise InputError(
            "the memory is too small for this measurement", location="map.ram_bytes",
            expected=f"at least {offset + touched_bytes} bytes", found=room,
        )  # fmt: skip
    return int(target.map.ram_address) + offset


def span_cycles(result: LaunchResult, engine: str) -> int:
    """From the first start of an engine of any core to its last end."""
    counts = [c.engines[engine] for c in result.cores if engine in c.engines and c.engines[engine].commands]
    return max(c.last_cycle for c in counts) - min(c.first_cycle or 0 for c in counts)


def moved_bytes(result: LaunchResult, engine: str) -> int:
    """Bytes of global memory that an engine of all cores read and wrote."""
    return sum(
        c.engines[engine].bytes_read + c.engines[engine].bytes_written for c in result.cores if engine in c.engines
    )


def _program(probe: Probe, target: AicoreTarget, base: int) -> bytes:
    module = ir.Module(name="probe")
    function, b = define(module, "sk_main", 1)
    hart = function.args[0]
    cubes = target.device.cube_cores
    for first, count, loops in ((0, cubes, probe.cube), (cubes, target.device.vector_cores, probe.vector)):
        if loops:
            _part(b, target, hart, first, count, loops, base)
    b.ret_void()
    start = encode_boot(BootSpec.of(target, [0] * (target.cores + target.device.aicpu_harts)))
    return link([start, compile_rv64(str(module))], LinkLayout.of(target)).elf()


def _part(
    b: ir.IRBuilder, target: AicoreTarget, hart: ir.Value, first: int, count: int, loops: Sequence[ProbeLoop], base: int
) -> None:
    """What one type of cores does, for harts `first` and following."""
    core = b.sub(hart, word(first))
    with b.if_then(b.icmp_unsigned("<", core, word(count))):
        issue(b, target, command("cross_set", engine=Engine.CONTROL, flag=0, mode="type"))
        issue(b, target, command("cross_wait", flag=0))
        for loop in loops:
            with b.if_then(b.icmp_unsigned("<", core, word(loop.cores or count))):
                _loop(b, target, core, loop, base)
        issue(b, target, command("drain"))


def _loop(b: ir.IRBuilder, target: AicoreTarget, core: ir.Value, loop: ProbeLoop, base: int) -> None:
    made = command(loop.name, engine=loop.engine, types=loop.types, **loop.operands)
    before, body, after = b.block, b.append_basic_block("turn"), b.append_basic_block("done")
    start = b.add(word(base), b.mul(core, word(loop.core_bytes)))
    b.branch(body)
    b.position_at_end(body)
    turn, place = b.phi(I64), b.phi(I64)
    issue(b, target, made, {loop.place: place} if loop.place else None)
    following = b.add(turn, word(1))
    for phi, at_first, later in (
        (turn, word(0), following),
        (place, start, b.add(place, word(loop.turn_bytes))),
    ):
        phi.add_incoming(at_first, before)
        phi.add_incoming(later, body)
    b.cbranch(b.icmp_unsigned("<", following, word(loop.count)), body, after)
    b.position_at_end(after)
