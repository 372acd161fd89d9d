"""Tiles from the cube core of a group to its vector cores, or back, through the group's workspace.

Model: a channel has `depth` slots in global memory. The sender fills a slot with its last engine (FIX on the cube core,
MTE3 on a vector core), the receivers read it with MTE2. One cross-core flag of mode `group` per channel (`pair` where
the kernel has one of the group's vector cores and leaves the others alone): the sender's
signal, queued behind its stores, says that the slot is full; the receiver's, queued behind its loads, that it is free.
With two vector cores as senders a slot is full when both have signalled; as receivers, it is free when both have.

Both roles declare the same channels in the same order and take the same number of turns. The receiver does not signal
for the last `depth` turns, nor does the sender wait in the first `depth`: flags end at 0 without anyone waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from superkernel.codegen.aicore.commands import Address
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.scalar import Number
from superkernel.scheduler.families.aicore.base import CHANNEL_ALIGN_BYTES
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.target.engines import Engine


class Channel:
    """Tiles of `slot_bytes`, `turns` of them in all. `to_vector`: the cube core sends. Raises InternalError where there
    are more channels than flags for them."""

    def __init__(self, kb: KernelBuilder, slot_bytes: int, turns: Number, *, to_vector: bool, depth: int = 2) -> None:
        self.kb, self.depth, self.turns = kb, depth, turns
        self.stride = ceil_to(slot_bytes, CHANNEL_ALIGN_BYTES)
        self.flag, self.start = kb.take_channel(self.stride * depth)
        self.mode = "group" if len(kb.roles) == 1 + kb.target.device.vector_cores_per_group else "pair"
        self.sends = kb.role.is_cube == to_vector
        self._turn = kb.variable(0)
        self._slot = kb.variable(0)

    @contextmanager
    def turn(self) -> Iterator[Address]:
        """The next slot: as sender, to be filled; as receiver, filled."""
        self.begin()
        yield self.slot
        self.end()

    @property
    def slot(self) -> Address:
        """The slot of the turn."""
        return self.kb.scratch(self._slot.get() * self.stride + self.start)

    def begin(self) -> None:
        """Come to the next turn's slot, where its begin and end do not nest."""
        kb = self.kb
        if self.sends:
            with kb.when(kb.compare(">=", self._turn.get(), self.depth)):
                kb.issue("cross_wait", flag=self.flag)
        else:
            kb.issue("cross_wait", flag=self.flag)

    def end(self) -> None:
        """The turn is over: as sender, the slot is filled; as receiver, it is free."""
        kb, turn = self.kb, self._turn.get()
        if self.sends:
            self._signal(Engine.FIX if kb.role.is_cube else Engine.MTE3)
        else:
            with kb.when(kb.compare("<", turn + self.depth, self.turns)):
                self._signal(Engine.MTE2)
        self._turn.set(turn + 1)
        following = self._slot.get() + 1
        self._slot.set(kb.select(kb.compare("==", following, self.depth), 0, following))

    def await_slot(self) -> None:
        """As a sender that says itself which slots it fills and when: wait until the next one has been read."""
        self.kb.issue("cross_wait", flag=self.flag)

    def send(self) -> None:
        """As such a sender: the next slot is full. Slots are given away in turn."""
        self._signal(Engine.FIX if self.kb.role.is_cube else Engine.MTE3)

    def _signal(self, engine: Engine) -> None:
        self.kb.issue_on(engine, "cross_set", flag=self.flag, mode=self.mode)
