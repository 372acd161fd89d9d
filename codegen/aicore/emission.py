"""From an emitter to a kernel function: recorded once, emitted with its flags.

An emitter is run twice: on a builder that records what commands touch, from which `rings` plans the flags, and on one
that issues them. Where flags do not suffice for the slots of the rings, rings are left with one slot until they do:
less overlap, fewer flags. `KernelCode` is what the program around the kernels needs to know of the outcome.

Invariant: an emitter takes the same path both times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TypeAlias

from llvmlite import ir

from superkernel.codegen.aicore.layer import RESERVED_FLAGS, KernelBuilder
from superkernel.codegen.aicore.rings import Buffer, FlagsExhausted, plan_flags
from superkernel.codegen.outside import outside
from superkernel.core.errors import InternalError, UnsupportedError
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore import AICORE_KERNELS
from superkernel.scheduler.families.aicore.base import AicoreTiling, CoreRole
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines import Engine, Local

Emitter: TypeAlias = Callable[[KernelBuilder, Body, AicoreTiling], None]


def emitter_of(kernel: str) -> Emitter:
    """Of a kernel id: `emit` of the module that its declaration names, imported on first use, which writes the whole
    function of the role `kb.role`. Raises InternalError on an unknown id."""
    emitter = AICORE_KERNELS[kernel].emitter
    if not isinstance(emitter, str):
        return outside(kernel, emitter)
    emit: Emitter = import_module(f"superkernel.codegen.aicore.kernels.{emitter}").emit
    return emit


@dataclass(frozen=True)
class LocalUse:
    """Bytes [begin, end) of a local memory: who touches them, and who first."""

    memory: Local
    begin: int
    end: int
    first: Engine
    engines: tuple[Engine, ...]


@dataclass(frozen=True)
class KernelCode:
    """What the program needs to know of an emitted kernel: which operands it waits for, which of them the control unit
    reads itself, its local memory, the flags (source, target, number) that must stand at 1 when it begins, and which
    engine commands it issues."""

    symbol: str
    waits: tuple[int, ...]
    scalar: frozenset[int]
    operands: int
    uses: tuple[LocalUse, ...]
    credits: tuple[tuple[Engine, Engine, int], ...]
    commands: frozenset[str]


def emit_kernel(
    module: ir.Module,
    symbol: str,
    emitter: Emitter,
    body: Body,
    tiling: AicoreTiling,
    role: CoreRole,
    target: AicoreTarget,
    builder: type[KernelBuilder] | None = None,
) -> KernelCode:
    """Add the kernel function of one role to a module. Where flags do not suffice for the slots of its rings, rings are
    left with one slot: less overlap, fewer flags. `builder`: another maker of its stores, for tests."""
    make, write = builder or KernelBuilder, emitter if tiling.units else _write_nothing
    single: set[int] = set()
    while True:
        dry = make(ir.Module(name="record"), symbol, body, tiling, role, target, None, single)
        write(dry, body, tiling)
        dry.finish()
        if target.queue.flag_ids < RESERVED_FLAGS:
            raise _too_few_flags(dry, target)
        try:
            plan = plan_flags(dry.touches, dry.turns, target.queue.flag_ids - RESERVED_FLAGS, dry.streams)
        except FlagsExhausted as short:
            if short.ring is None:
                raise _too_few_flags(dry, target) from short
            single.add(short.ring)
            continue
        break
    kb = make(module, symbol, body, tiling, role, target, plan, single)
    if dry.scalar:
        kb.order_loads()
    write(kb, body, tiling)
    kb.finish()
    if (kb.nodes, len(kb.turns)) != (dry.nodes, len(dry.turns)):
        raise InternalError("the emitter took another path the second time", location=symbol)
    return KernelCode(
        symbol,
        kb.wait_operands,
        frozenset(dry.scalar),
        len(body.operands),
        tuple(_local_uses(dry)),
        tuple((c.source, c.target, c.base + slot + RESERVED_FLAGS) for c in plan.credits for slot in range(c.depth)),
        frozenset(kb.issued),
    )


def _write_nothing(kb: KernelBuilder, body: Body, tiling: AicoreTiling) -> None:
    """The inside of a kernel without units."""


def _too_few_flags(dry: KernelBuilder, target: AicoreTarget) -> UnsupportedError:
    """What a recorded kernel, whose rings have one slot each, needs of the target."""
    need = plan_flags(dry.touches, dry.turns, 1 << 30, dry.streams).needed + RESERVED_FLAGS
    return UnsupportedError(
        f"too few flags between engines for {dry.symbol}",
        location="target field 'queue.flag_ids'",
        expected=f"at least {need}",
        found=target.queue.flag_ids,
        hint="a target file with more flags",
    )


def _local_uses(dry: KernelBuilder) -> Iterator[LocalUse]:
    """Each buffer with its engines."""
    touched: dict[Buffer, dict[Engine, None]] = {}
    for touch in dry.touches:
        touched.setdefault(touch.buffer, {}).setdefault(touch.engine)
    for buffer, engines in touched.items():
        yield LocalUse(buffer.memory, buffer.start, buffer.end, next(iter(engines)), tuple(engines))
