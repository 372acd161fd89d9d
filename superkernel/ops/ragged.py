"""The tiling of attention over a padded batch: whose share of the work is what, by the lengths that the graph computes.

Model: a batch costs as much as the keys of its sequence, and `fixed` keys more for what work takes however few keys it
sees, whatever it is cut into. `tile_lengths` divides the whole evenly among `slots`, as bounds along the batches in
parts of 2^16: a kernel with so many units per batch begins at bound x units / 2^16. The table is i32 words:

    0 status       0 fine, 1 a negative length, 2 one above `keys`
    1 where        of what is wrong: the batch
    2 found        its length, cut to 32 bits
    3              0
    4 bounds       slots + 1 of them, rising, from 0 to batches x 2^16

Invariant: bounds depend on the lengths alone, not on how a kernel cuts its work. Lengths out of range are an error
(DataError).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.errors import DataError
from superkernel.core.tensor import TensorType
from superkernel.ops.common import attr, get, present, require, require_rank, slot
from superkernel.ops.opdef import ArgDef, Array, Arrays, Attrs, Family, OpDef, Outputs, Types

FIXED_KEYS = 256  # what a unit of attention takes beside its keys, on the simulated accelerator: 250 to 500 keys' time
PART_BITS = 16  # of a batch
BOUNDS_WORD = 4
_LENGTHS = frozenset({DType.I64, DType.I32})
_ARGS = (ArgDef("lengths", _LENGTHS, doc="[B], keys of each batch"),)
_BATCHES_MAX, _KEYS_MAX, _SLOTS_MAX = 1 << 14, 1 << 24, 1 << 10


def table_words(slots: int) -> int:
    """Words of the table for so many slots."""
    return BOUNDS_WORD + slots + 1


def slots_of(words: int) -> int:
    """Slots of a table of so many words."""
    return words - BOUNDS_WORD - 1


@dataclass(frozen=True)
class LengthTable:
    """What a table is made from, beside the lengths."""

    batches: int
    keys: int
    slots: int
    fixed: int

    def made(self, lengths: Array) -> Array:
        """The table of some lengths. Raises DataError."""
        check_lengths(lengths, self.keys)
        costs = [self.fixed + length for length in lengths.tolist()]
        whole, slots = sum(costs), self.slots
        words = np.zeros(table_words(slots), np.int32)
        before, place = 0, 0
        for batch, cost in enumerate(costs):
            last = (before + cost) * slots // whole
            for number in range(place, last + 1):
                part = ((number * whole - before * slots) << PART_BITS) // (cost * slots)
                words[BOUNDS_WORD + number] = (batch << PART_BITS) + part
            before, place = before + cost, max(place, last + 1)
        return words


def check_lengths(lengths: Array, keys: int) -> None:
    """Raises DataError unless lengths are 0 to `keys`."""
    for batch, length in enumerate(lengths.reshape(-1).tolist()):
        if not 0 <= length <= keys:
            where = f"lengths[{batch}]"
            raise DataError("a length out of range", location=where, expected=f"0 to {keys}", found=length)


def length_table(lengths: TensorType, attrs: Attrs) -> LengthTable:
    """What the attributes ask for."""
    return LengthTable(lengths.shape[0], get(attrs, "keys", int), get(attrs, "slots", int), get(attrs, "fixed", int))


def _infer(inputs: Types, attrs: Attrs) -> Outputs:
    lengths = present(inputs, 0)
    require_rank(lengths, 1, 1, slot(_ARGS, 0))
    require(0 < lengths.shape[0] <= _BATCHES_MAX, "too few or too many batches", f"1 to {_BATCHES_MAX}", lengths)
    for name, low, high in (("keys", 0, _KEYS_MAX), ("slots", 1, _SLOTS_MAX), ("fixed", 1, _KEYS_MAX)):
        value = get(attrs, name, int)
        require(low <= value <= high, "out of range", f"{low} to {high}", value, f"attribute {name!r}")
    return (TensorType(DType.I32, (table_words(get(attrs, "slots", int)),)),)


def _reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    lengths = present(inputs, 0)
    kind = TensorType(DType.of(lengths.dtype), lengths.shape)
    return (length_table(kind, attrs).made(lengths),)


OPS: tuple[OpDef, ...] = (
    OpDef(
        "tile_lengths",
        Family.OTHER,
        "The tiling of attention over a padded batch as a table: bounds along the batches, by lengths.",
        _ARGS,
        (
            attr("keys", int, "of the attention, Skv: lengths are no larger"),
            attr("slots", 1, "how many shares the work is divided into"),
            attr("fixed", FIXED_KEYS, "what a batch costs beside its keys, in keys"),
        ),
        _infer,
        _reference,
    ),
)
