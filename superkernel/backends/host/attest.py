"""The program that runs is what is verified: what the loaded code was seen to do, proved in place of the plan.

Model: the recorder (csrc/runtime/recorder.h) runs the loaded entries and says, worker by worker, which kernels they
call with which addresses and units, and where they wait and set. `sync/verify_program.py` makes that a plan again, with
the accesses that the tilings tell for the units and addresses really passed; the memory's check and the verifier then
judge it as they judge the planner's. The plan at hand says which sub-operator a call is meant to be, and nothing else.

What comes out is as a rule the plan, to the last access: its proof is then the program's, since it reads nothing else.
Else the program is proved anew.

Where the system does not let code be changed, not even for a moment, nothing can be recorded: the certificate is the
plan's then, and says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Any, Protocol

from superkernel import _core
from superkernel.backends.attested import digest, wrong_constants
from superkernel.codegen.host.constants import SPARE_BYTES, HostConstants
from superkernel.codegen.host.image import HOST_CALL, HostImage
from superkernel.compilation.compiled import Planned
from superkernel.core.errors import VerificationError, raise_all
from superkernel.scheduler.memory_check import check_memory
from superkernel.scheduler.schedule import MemoryAddress, Schedule, Space
from superkernel.scheduler.symbols import symbol_of
from superkernel.sync.plan import Plan, Set, Wait
from superkernel.sync.verify import AS_LOADED, Certificate, Emitted, verify
from superkernel.sync.verify_program import Call, Event, HostCall, Program, rebuild

_SCRATCH_ALIGN = 64
_CALL, _HOST_CALL, _WAIT, _SET = range(4)  # kinds of events, csrc/runtime/recorder.h


class Attested(Protocol):
    """What is asked of an image."""

    @property
    def cores(self) -> int: ...
    @property
    def objects(self) -> Mapping[str, bytes]: ...
    @property
    def constants(self) -> HostConstants: ...
    @property
    def arena_bytes(self) -> int: ...
    @property
    def scratch_bytes(self) -> int: ...


@dataclass(frozen=True)
class Recorded:
    """What the workers do, a digest of it, and where that was seen."""

    program: Program
    digest: str
    seen: str = AS_LOADED


def attest(planned: Planned[Plan], image: HostImage, proved: Certificate) -> Certificate:
    """The certificate of an image. `proved`: its plan's. Raises VerificationError with everything that is wrong."""
    schedule = planned.schedule
    recorded = _recorded(image, schedule, sizes_of(planned, image))
    if recorded is None:
        check_memory(schedule.subops, schedule.addresses, planned.grouping.buffers)
        return replace(proved, emitted=Emitted("", "", "", _objects_digest(image)))
    return attested(planned, image, proved, recorded)


def attested(planned: Planned[Plan], image: Attested, proved: Certificate, recorded: Recorded) -> Certificate:
    """The certificate of a program that was seen. Raises VerificationError with everything that is wrong."""
    schedule, sizes = planned.schedule, sizes_of(planned, image)
    symbols = _symbols(schedule)
    rebuilt = rebuild(recorded.program, schedule, planned.plan.tasks, symbols, sizes)
    constants = wrong_constants(schedule, planned.grouping.constants, rebuilt.addresses)
    raise_all(VerificationError, [*rebuilt.wrong, *constants])
    check_memory(schedule.subops, rebuilt.addresses, planned.grouping.buffers)
    found = proved if _same_program(rebuilt.plan, planned.plan) else verify(rebuilt.plan, planned.units)
    emitted = Emitted(
        program=recorded.digest,
        addresses=digest(" ".join(map(str, row)) for row in rebuilt.addresses),
        accesses=digest(map(repr, sorted(rebuilt.touched.items()))),
        objects=_objects_digest(image),
        seen=recorded.seen,
    )
    return replace(found, emitted=emitted)


def _same_program(one: Plan, other: Plan) -> bool:
    """Whether two plans agree in all that a proof reads."""
    return (one.tasks, one.programs, one.sets) == (other.tasks, other.programs, other.sets)


def _objects_digest(image: Attested) -> str:
    """Of all object code, by what it was made from."""
    return digest(
        f"{hashlib.sha256(key.encode()).hexdigest()} {hashlib.sha256(data).hexdigest()}"
        for key, data in sorted(image.objects.items())
    )


def _symbols(schedule: Schedule) -> tuple[str | None, ...]:
    """The kernel of each sub-operator: its name says what it was made from."""
    known: dict[tuple[Any, ...], str] = {}
    symbols: list[str | None] = []
    for sub, tiling in zip(schedule.subops, schedule.tilings, strict=True):
        if sub.kernel == HOST_CALL or tiling.units == 0:
            symbols.append(None)
            continue
        key = (sub.kernel, sub.body, tiling)
        if key not in known:
            known[key] = symbol_of(sub, tiling)
        symbols.append(known[key])
    return tuple(symbols)


def sizes_of(planned: Planned[Plan], image: Attested) -> dict[tuple[Space, int], int]:
    """Bytes of each space and slot; of scratch memory those of each worker."""
    graph = planned.graph
    sizes = {(Space.ARENA, 0): image.arena_bytes, (Space.CONSTANT, 0): image.constants.places.nbytes + SPARE_BYTES}
    sizes |= {(Space.SCRATCH, core): image.scratch_bytes for core in range(image.cores)}
    sizes |= {(Space.INPUT, i): kind.nbytes for i, kind in enumerate(graph.inputs.values())}
    sizes |= {(Space.OUTPUT, i): graph.types[value].nbytes for i, value in enumerate(graph.outputs)}
    return sizes | {(Space.STATE, i): graph.types[value].nbytes for i, value in enumerate(graph.states)}


def _recorded(image: HostImage, schedule: Schedule, sizes: Mapping[tuple[Space, int], int]) -> Recorded | None:
    """What the workers do, by the loaded code; None: it cannot be recorded here."""
    operands = {
        symbol: len(sub.body.operands)
        for symbol, sub in zip(image.symbols, schedule.subops, strict=True)
        if symbol is not None
    }
    kernels = list(operands)
    stride = -(-image.scratch_bytes // _SCRATCH_ALIGN) * _SCRATCH_ALIGN
    constants = image.constants
    io = [key for key in sizes if key[0] in (Space.INPUT, Space.OUTPUT, Space.STATE)]
    blocks = [(Space.CONSTANT, block) for block in range(len(constants.shared))]
    places = [(Space.ARENA, 0), (Space.CONSTANT, None), (Space.SCRATCH, 0), *io, *blocks]
    nbytes = [stride * image.cores, *(sizes[key] for key in io), *(len(memory) for memory in constants.shared)]
    code = image.code
    rows = _core.record_program(
        entry=code.address("sk_entry"),
        profiled=code.address("sk_profiled"),
        single=code.address("sk_single"),
        cores=image.cores,
        subops=len(schedule.subops),
        kernels=[(code.address(symbol), count) for symbol, count in operands.items()],
        regions=[image.arena_bytes, len(constants.own), *nbytes],
        scratch_stride=stride,
        events_words=image.spec.events_words,
    )
    if rows is None:
        return None

    def address(region: int, offset: int) -> MemoryAddress | None:
        if region < 0:
            return None
        space, slot = places[region]
        if space is Space.CONSTANT:
            found = constants.places.offset(slot, offset)
            return None if found is None else MemoryAddress(space, 0, found)
        if space is Space.SCRATCH:
            slot, offset = divmod(offset, stride)
        return MemoryAddress(space, slot or 0, offset)

    @cache
    def addresses(pairs: tuple[int, ...]) -> tuple[MemoryAddress | None, ...]:
        """Equal ones are one, so that they are soon found equal."""
        return tuple(map(address, pairs[::2], pairs[1::2]))

    def event(row: tuple[int, ...]) -> Event:
        if row[0] == _CALL:
            (scratch,) = addresses(row[-2:])
            return Call(kernels[row[1]], addresses(row[4:-2]), scratch, row[2], row[3])
        if row[0] == _WAIT:
            return Wait(row[1], row[2], -1, row[3])
        return HostCall(row[1]) if row[0] == _HOST_CALL else Set(row[1])

    text = digest(chain(kernels, map(repr, places), map(repr, rows)))
    return Recorded(tuple(tuple(map(event, core)) for core in rows), text)
