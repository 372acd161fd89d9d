"""What both sides of attention share: the channels, and where in the sequence of steps a side is.

Model: steps are the blocks of keys of all units of a range, one after the other. A `Cursor` walks them; what it knows
of its unit (rows, visible keys, coordinates) is computed when it comes to the unit. A unit that sees no key still has
one step, with one key of zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from llvmlite import ir

from superkernel.codegen.aicore.channel import Channel
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.scalar import Number, Variable
from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.attention_tiling import (
    SUM_SLOTS,
    WEIGHT_SLOTS,
    AttentionTiling,
    Stack,
)
from superkernel.scheduler.families.attention import AttentionForm, attention_form


@dataclass(frozen=True)
class UnitCoordinates:
    """Coordinates of a unit: batch, key/value head, first query head, first position."""

    batch: Number
    kv_head: Number
    head: Number
    position: Number


class UnitSteps:
    """A range of units as steps."""

    def __init__(self, kb: KernelBuilder, body: Body, tiling: AttentionTiling) -> None:
        self.kb, self.body, self.tiling = kb, body, tiling
        self.form: AttentionForm = attention_form(body)
        form = self.form
        self._length: Number | None = None
        if form.length is not None and not form.has_lengths:
            self._length = self._load_length(0)
        self.steps = self._count_steps()

    @property
    def by_position(self) -> bool:
        """Whether visible keys differ between the units of a head."""
        return self.form.causal and self.tiling.stack is Stack.ROWS

    @property
    def is_even(self) -> bool:
        """Whether all units have the same number of blocks."""
        return self.tiling.blocks == 1 or not (self.by_position or self.form.length is not None)

    def place(self, unit: Number) -> UnitCoordinates:
        """Where a unit lies; positions count fastest, then blocks of heads, key/value heads, batches."""
        t = self.tiling
        position, rest = unit % t.position_blocks * t.positions, unit // t.position_blocks
        block, rest = rest % t.head_blocks, rest // t.head_blocks
        kv_head, batch = rest % t.kv_heads, rest // t.kv_heads
        return UnitCoordinates(batch, kv_head, kv_head * self.form.group + block * t.heads, position)

    def rows(self, place: UnitCoordinates) -> Number:
        """Rows of a unit."""
        t, form, kb = self.tiling, self.form, self.kb
        if t.stack is Stack.ROWS:
            ragged = form.queries % t.positions
            return kb.minimum(t.positions, form.queries - place.position) if ragged else t.positions
        if t.stack is Stack.PAIR or form.group % t.heads == 0:
            return t.rows
        return kb.minimum(t.heads, form.group * (place.kv_head + 1) - place.head)

    def length(self, place: UnitCoordinates) -> Number:
        """Keys that are stored."""
        if self.form.length is None:
            return self.form.keys
        return self._load_length(place.batch) if self._length is None else self._length

    def _load_length(self, batch: Number) -> Number:
        view, kb = self.form.length, self.kb
        assert view is not None
        dtype = self.body.operands[view.operand].type.dtype
        step = view.strides[0] if view.shape and view.shape[0] > 1 else 0
        value = kb.load(kb.operand(view.operand, (batch * step + view.offset) * dtype.itemsize), dtype)
        return kb.minimum(kb.maximum(value, 0), self.form.keys)

    def visible(self, place: UnitCoordinates, length: Number) -> Number:
        """Keys that a unit may see."""
        if not self.by_position:
            return length
        last = place.position + self.rows(place) + length - self.form.queries
        return self.kb.minimum(self.kb.maximum(last, 0), length)

    def blocks(self, visible: Number) -> Number:
        """Blocks of keys of a unit, at least one."""
        t = self.tiling
        if t.blocks == 1:
            return 1
        return self.kb.maximum((visible + (t.keys - 1)) // t.keys, 1)

    def _count_steps(self) -> Number:
        kb = self.kb
        if self.is_even:
            return (kb.end - kb.begin) * self.tiling.blocks
        total = kb.variable(0)
        with kb.loop(kb.begin, kb.end) as unit:
            place = self.place(unit)
            total.add(self.blocks(self.visible(place, self.length(place))))
        return total.get()


Note: TypeAlias = Callable[[UnitCoordinates, Number], dict[str, Number]]
"""What a side wants to know of a unit of a length, by name."""


class Cursor:
    """A place in the steps, and what `note` says of its unit. `piece`: how many keys it takes at a time, a block's by
    default."""

    def __init__(self, walk: UnitSteps, note: Note, piece: int | None = None) -> None:
        kb = walk.kb
        self.walk, self.kb, self.note = walk, kb, note
        self._whole = walk.tiling.keys
        self._step = min(piece or self._whole, self._whole)
        self._unit, self._block, self._piece = kb.variable(kb.begin), kb.variable(0), kb.variable(0)
        self._kept: dict[str, Variable] = {}
        self._static: dict[str, Number] = {}

    def start(self) -> None:
        """Come to the first unit."""
        with self.kb.when(self.kb.compare("<", self.kb.begin, self.kb.end)):
            self._come()

    def _come(self) -> None:
        walk = self.walk
        place = walk.place(self._unit.get())
        length = walk.length(place)
        visible = walk.visible(place, length)
        known = {"rows": walk.rows(place), "visible": visible, "blocks": walk.blocks(visible)}
        known |= self.note(place, length)
        for name, value in known.items():
            if isinstance(value, int):
                self._static[name] = value
                continue
            if name not in self._kept:
                self._kept[name] = self.kb.variable(0)
            self._kept[name].set(value)

    def __getitem__(self, name: str) -> Number:
        return self._static[name] if name in self._static else self._kept[name].get()

    @property
    def block(self) -> Number:
        """Number of the block of keys."""
        return 0 if self.walk.tiling.blocks == 1 else self._block.get()

    @property
    def piece(self) -> Number:
        """Number of the piece within its block."""
        return 0 if self._step == self._whole else self._piece.get()

    @property
    def first_key(self) -> Number:
        """Of the piece, within its block."""
        return self.piece * self._step

    @property
    def _block_keys(self) -> Number:
        """Keys of the block, at least one."""
        whole, kb, visible = self._whole, self.kb, self["visible"]
        if isinstance(visible, int) and visible and visible % whole == 0:
            return whole
        return kb.maximum(kb.minimum(visible - self.block * whole, whole), 1)

    @property
    def keys(self) -> Number:
        """Keys of the piece, at least one."""
        keys = self._block_keys
        if self._step == self._whole:
            return keys
        if isinstance(keys, int) and keys % self._step == 0:
            return self._step
        return self.kb.minimum(keys - self.first_key, self._step)

    @property
    def pieces(self) -> Number:
        """Of the block."""
        return 1 if self._step == self._whole else (self._block_keys + (self._step - 1)) // self._step

    @property
    def is_first(self) -> ir.Value | bool:
        """Whether the block is its unit's first."""
        return self.kb.compare("==", self.block, 0)

    @property
    def is_last(self) -> ir.Value | bool:
        """Whether the block is its unit's last."""
        return True if self.walk.tiling.blocks == 1 else self.kb.compare("==", self.block + 1, self["blocks"])

    @property
    def opens(self) -> ir.Value | bool:
        """Whether the piece is its block's first."""
        return self.kb.compare("==", self.piece, 0)

    @property
    def closes(self) -> ir.Value | bool:
        """Whether the piece is its block's last."""
        return self.kb.compare("==", self.piece + 1, self.pieces)

    def advance(self) -> None:
        """To the next piece; behind the last one, nowhere."""
        kb = self.kb
        if self._step == self._whole:
            self._next_block()
            return
        pieces = self.pieces
        self._piece.add(1)
        with kb.when(kb.compare(">=", self._piece.get(), pieces)):
            self._piece.set(0)
            self._next_block()

    def _next_block(self) -> None:
        kb = self.kb
        if self.walk.tiling.blocks > 1:
            self._block.add(1)
            with kb.when(kb.compare(">=", self._block.get(), self["blocks"])):
                self._block.set(0)
                self._next()
        else:
            self._next()

    def _next(self) -> None:
        self._unit.add(1)
        with self.kb.when(self.kb.compare("<", self._unit.get(), self.kb.end)):
            self._come()


@dataclass(frozen=True)
class Channels:
    """Scores and sums go to the vector cores, weights come back."""

    scores: Channel
    weights: Channel
    sums: Channel

    @staticmethod
    def of(kb: KernelBuilder, t: AttentionTiling, steps: Number) -> Channels:
        """The same on every role."""
        return Channels(
            Channel(kb, t.rows * t.score_pitch, steps, to_vector=True, depth=t.skew + 1),
            Channel(kb, t.rows * t.weight_pitch, steps, to_vector=False, depth=WEIGHT_SLOTS),
            Channel(kb, t.rows * t.sum_pitch, steps, to_vector=True, depth=SUM_SLOTS),
        )
