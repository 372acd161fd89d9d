"""A command with its values: `command(name, types=..., operand=...)` makes a checked one.

What is checked here needs no target: names, element types, engine, ranges of numbers. `check` looks at the rest.
"""

from __future__ import annotations

import difflib
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError, Violation, raise_all
from superkernel.target.engines.model import CommandOperand, CommandSpec, Engine, Kind
from superkernel.target.engines.table import spec_of


@dataclass(frozen=True, slots=True)
class Command:
    """One command. `operands` holds every operand's bits in the order of the table; use `operand` or `numbers`."""

    name: str
    engine: Engine
    types: tuple[DType, ...]
    operands: tuple[int, ...]

    @property
    def spec(self) -> CommandSpec:
        """Its row of the command table."""
        return spec_of(self.name)

    @property
    def numbers(self) -> dict[str, int]:
        """Every operand's bits by name."""
        return dict(zip((o.name for o in self.spec.operands), self.operands, strict=True))

    def operand(self, name: str) -> int | float | str:
        """An operand as a caller writes it: a choice by its word, an f32 as float, all else as number."""
        spec, bits = self.spec.operand(name), self.numbers[name]
        if spec.kind is Kind.CHOICE:
            return spec.choices[bits]
        if spec.kind is Kind.FLOAT:
            value: float = struct.unpack("<f", struct.pack("<I", bits))[0]
            return value
        return bits

    def __str__(self) -> str:
        words = [f"{o.name}={_shown(o, self.operand(o.name))}" for o in self.spec.operands]
        types = "".join(f".{t}" for t in self.types)
        return f"{self.engine.title}: {self.name}{types} {', '.join(words)}".rstrip()


def _shown(spec: CommandOperand, value: int | float | str) -> str:
    if spec.kind in (Kind.GLOBAL, Kind.LOCAL, Kind.ELEMENT) and isinstance(value, int):
        return f"{value:#x}"
    return str(value)


def command(
    name: str, /, *, engine: Engine | None = None, types: tuple[DType, ...] = (), **operands: int | float | str
) -> Command:
    """A command of the table. Operands with a default may be left out; `engine` too where only one executes it.

    f32 operands are rounded to the nearest f32. Raises InputError with everything that is wrong.
    """
    spec = spec_of(name)
    found: list[Violation] = []
    where = f"command {name!r}"
    if engine is None and len(spec.engines) == 1:
        engine = spec.engines[0]
    if engine is None or engine not in spec.engines:
        expected = ", ".join(e.title for e in spec.engines)
        found.append(Violation("wrong engine", where, expected, engine.title if engine else "none"))
    if tuple(types) not in spec.types:
        expected = "; ".join(" to ".join(map(str, combination)) or "none" for combination in spec.types)
        found.append(Violation("wrong element types", where, expected, " to ".join(map(str, types)) or "none"))
        types = spec.types[0]
    known = [o.name for o in spec.operands]
    for word in operands:
        if word not in known:
            near = difflib.get_close_matches(word, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"operands: {', '.join(known)}"
            found.append(Violation("unknown operand", where, found=repr(word), hint=hint))
    bits = [_bits(spec, operand, operands, types, found) for operand in spec.operands]
    raise_all(InputError, found)
    assert engine is not None
    return Command(name, engine, tuple(types), tuple(bits))


def _bits(
    spec: CommandSpec,
    operand: CommandOperand,
    given: Mapping[str, int | float | str],
    types: tuple[DType, ...],
    found: list[Violation],
) -> int:
    """An operand's bits; 0 with a violation where there are none."""
    where = f"command {spec.name!r}, operand {operand.name!r}"
    if operand.name not in given:
        if operand.default is None:
            found.append(Violation("missing", where, expected=range_text(operand)))
        return operand.default or 0
    value = given[operand.name]
    if operand.kind is Kind.CHOICE:
        if value in operand.choices:
            return operand.choices.index(str(value))
        found.append(Violation("unknown choice", where, ", ".join(operand.choices), repr(value)))
        return 0
    if operand.kind is Kind.FLOAT:
        return _float_bits(value, where, found)
    if isinstance(value, bool) or not isinstance(value, int):
        found.append(Violation("not an integer", where, range_text(operand), repr(value)))
        return 0
    high = operand.high
    if operand.kind is Kind.ELEMENT and types:
        high = (1 << 8 * types[operand.element_slot].itemsize) - 1
    if not operand.low <= value <= high:
        found.append(Violation("out of range", where, f"{operand.low} to {high}", str(value)))
        return 0
    return value


def _float_bits(value: int | float | str, where: str, found: list[Violation]) -> int:
    if isinstance(value, str | bool) or value != value:
        found.append(Violation("not a number", where, "an f32, not NaN", repr(value)))
        return 0
    try:
        packed = struct.pack("<f", float(value))
    except OverflowError:
        found.append(Violation("out of range", where, "an f32", repr(value)))
        return 0
    bits: int = struct.unpack("<I", packed)[0]
    return bits


def range_text(operand: CommandOperand) -> str:
    """What an operand takes, in words."""
    if operand.kind is Kind.CHOICE:
        return ", ".join(operand.choices)
    if operand.kind is Kind.FLOAT:
        return "an f32, not NaN"
    if operand.kind is Kind.ELEMENT:
        return "the bits of an element"
    if operand.kind is Kind.GLOBAL:
        return "an address below 2^48"
    return f"{operand.low} to {operand.high}"
