"""Slots that one engine fills and another drains, in whatever order the program writes the two.

Model: a `Ring` ties its phases to turns: load, use, next turn. A `Stream` is for kernels in which the two ends do not
nest: a load issued one step ahead of its use, a tile that stays over several steps. It is a queue of `depth` slots
between two engines, `producer` and `consumer`. Each end has a place of its own: `begin_fill` takes the next free slot,
`end_fill` hands it over; `begin_drain` waits for the next full slot, `end_drain` frees it. Each buffer of a stream has
an `inlet`, the slot being filled, and an `outlet`, the slot being drained.

The flags: one per slot each way, given out with those of the rings (`plan_flags`); a slot's first fill finds it free.

Slots are used in turn; a kernel that works on several at a time names them (`select`).

Invariants: of each slot, fills and drains alternate, and there are as many of one as of the other; in the order of the
program, a slot is drained behind its fill and filled again behind its drain.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.rings import Buffer
from superkernel.codegen.aicore.scalar import Number
from superkernel.target.engines import Engine, Local


@dataclass(frozen=True, eq=False)
class StreamBuffer:
    """A buffer of a stream as its two ends see it."""

    inlet: Buffer
    outlet: Buffer


class Stream:
    """See the module docstring."""

    def __init__(self, kb: KernelBuilder, name: str, producer: Engine, consumer: Engine, depth: int = 2) -> None:
        self._kb = kb
        self._in, self._out = kb.ends(name, (producer, consumer), depth)

    def buffer(self, memory: Local, nbytes: int, name: str = "", *, top: bool = False) -> StreamBuffer:
        """Bytes of a local memory in every slot, as `KernelBuilder.buffer`."""
        inlet = self._kb.buffer(self._in, memory, nbytes, name, top=top)
        return StreamBuffer(inlet, replace(inlet, ring=self._out, alias=inlet))

    def lasting(self, memory: Local, nbytes: int, name: str = "") -> StreamBuffer:
        """Bytes that no slot has to itself: what one fill brings, later drains may use too. A fill may overwrite what
        the drain that freed its slot, and those ahead of it, were the last to use; which bytes these are is for the
        kernel to know."""
        room = self._kb.buffer(self._kb.ring(name, 1), memory, nbytes, name)
        inlet = replace(room, ring=self._in, stride=0)
        return StreamBuffer(inlet, replace(inlet, ring=self._out, alias=inlet))

    def begin_fill(self) -> None:
        """What the producer is told from here on starts when the slot is free."""
        self._kb.stream_flag("wait_flag", self._in, self._in, full=False)

    def end_fill(self) -> None:
        """The slot is full when what the producer was told so far is done."""
        self._kb.stream_flag("set_flag", self._in, self._in, full=True)
        self._kb.advance(self._in)

    def begin_drain(self) -> None:
        """What the consumer is told from here on starts when the slot is full."""
        self._kb.stream_flag("wait_flag", self._in, self._out, full=True)

    def end_drain(self) -> None:
        """The slot is free when what the consumer was told so far is done."""
        self._kb.stream_flag("set_flag", self._in, self._out, full=False)
        self._kb.advance(self._out)

    def select(self, slot: Number) -> None:
        """The slot of the next fill and drain, for kernels that have several slots in work at a time."""
        for end in (self._in, self._out):
            if end.slot is not None:
                end.slot.set(slot)

    @contextmanager
    def fill(self) -> Iterator[None]:
        """One slot from free to full."""
        self.begin_fill()
        yield
        self.end_fill()

    @contextmanager
    def drain(self) -> Iterator[None]:
        """One slot from full to free."""
        self.begin_drain()
        yield
        self.end_drain()
