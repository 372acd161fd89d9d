"""Random engine commands that are structurally legal, whatever they touch."""

from __future__ import annotations

import random
import struct

from superkernel.target.engines import Command
from superkernel.target.engines.model import Kind
from superkernel.target.engines.table import command_table

TABLE = command_table()


def random_command(name: str, rng: random.Random) -> Command:
    """Any command that `command` makes: structurally legal, whatever it touches."""
    spec = TABLE[name]
    types = rng.choice(spec.types)
    bits = []
    for operand in spec.operands:
        high = operand.high
        if operand.kind is Kind.ELEMENT:
            high = (1 << 8 * types[operand.element_slot].itemsize) - 1
        value = rng.choice(
            [operand.low, high, rng.randint(operand.low, high), min(high, operand.low + rng.randint(0, 9))]
        )
        if operand.kind is Kind.FLOAT:
            (value,) = struct.unpack("<I", struct.pack("<f", rng.choice([0.0, -1.5, 3e38, float("inf"), rng.random()])))
        bits.append(value)
    return Command(name, rng.choice(spec.engines), types, tuple(bits))
