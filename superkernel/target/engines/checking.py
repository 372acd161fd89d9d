"""What a command touches on a target, and whether it may.

`footprint` is the command's accesses as byte ranges; `check` holds them against the target: alignment, memory sizes,
overlap, flag numbers. The simulator checks the same while it runs; this is for who makes commands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from superkernel.core.errors import InputError, Violation, raise_all
from superkernel.target.engines.command import Command
from superkernel.target.engines.formula import evaluate
from superkernel.target.engines.model import ENGINES_OF, CommandAccess, Engine, Kind, Local, Overlap

if TYPE_CHECKING:
    from superkernel.target.aicore import AicoreTarget


@dataclass(frozen=True, slots=True)
class TouchedBytes:
    """`rows` runs of `row_bytes` from `start` on, `stride` apart; `memory` None is global memory."""

    operand: str
    writes: bool
    memory: Local | None
    start: int
    rows: int
    row_bytes: int
    stride: int

    @property
    def end(self) -> int:
        """The byte behind the last one."""
        return self.start + (self.rows - 1) * self.stride + self.row_bytes

    def meets(self, other: TouchedBytes) -> bool:
        """Whether the two share a byte."""
        if self.memory is not other.memory or self.end <= other.start or other.end <= self.start:
            return False
        few, many = sorted((self, other), key=lambda t: t.rows)
        return any(_row_meets(few.start + r * few.stride, few.row_bytes, many) for r in range(few.rows))


def _row_meets(start: int, size: int, other: TouchedBytes) -> bool:
    """Whether the run of `size` bytes at `start` shares a byte with a row of `other`."""
    if not other.stride or other.rows == 1:
        return start < other.start + other.row_bytes and other.start < start + size
    # Row r shares a byte where start - row_bytes < other.start + r x stride < start + size.
    first = max(0, (start - other.row_bytes - other.start) // other.stride + 1)
    last = min(other.rows - 1, -(-(start + size - other.start) // other.stride) - 1)
    return first <= last


def footprint(command: Command, target: AicoreTarget) -> tuple[TouchedBytes, ...]:
    """Every access of a command, in the order of the table."""
    return tuple(t for a in command.spec.accesses if (t := _touched(command, a, target)) is not None)


def _touched(command: Command, access: CommandAccess, target: AicoreTarget) -> TouchedBytes | None:
    spec, numbers = command.spec, command.numbers

    def number(text: str) -> int:
        return evaluate(text, spec, numbers, command.types, target)

    if not number(access.when):
        return None
    rows = number(access.rows)
    operand = spec.operand(access.operand)
    step = number(access.stride) if rows > 1 else 0
    return TouchedBytes(
        access.operand, access.writes, operand.memory, numbers[access.operand], rows, number(access.row_bytes), step
    )


def check(command: Command, target: AicoreTarget) -> None:
    """Raises InputError with everything that makes the command illegal on the target."""
    found = [*_alignments(command, target), *_numbers(command, target)]
    touched = footprint(command, target)
    for one in touched:
        found += _within(command, one, target)
    found += _overlaps(command, touched)
    raise_all(InputError, found)


def _place(command: Command, operand: str) -> str:
    return f"command {command.name!r}, operand {operand!r}"


def _alignments(command: Command, target: AicoreTarget) -> list[Violation]:
    found = []
    spec, numbers = command.spec, command.numbers
    used = {access.operand for access in spec.accesses if _touched(command, access, target)}
    stepped = {access.stride for access in spec.accesses if (t := _touched(command, access, target)) and t.rows > 1}
    for operand in spec.operands:
        address = operand.kind in (Kind.LOCAL, Kind.GLOBAL)
        if not operand.align or (address and operand.name not in used):
            continue
        if operand.kind is Kind.STRIDE and operand.name not in stepped:
            continue
        step = evaluate(operand.align, spec, numbers, command.types, target)
        if numbers[operand.name] % step:
            found.append(
                Violation(
                    "not aligned", _place(command, operand.name), f"a multiple of {step}", str(numbers[operand.name])
                )
            )
    return found


def _within(command: Command, one: TouchedBytes, target: AicoreTarget) -> list[Violation]:
    """The bytes lie in their memory; rows that are written lie apart."""
    found = []
    if one.memory is None:
        low, high, name = target.map.ram_address, target.map.ram_address + target.map.ram_bytes, "global memory"
    else:
        size = target.value(one.memory.size_path)
        assert isinstance(size, int)
        low, high, name = 0, size, one.memory.value
    if one.start < low or one.end > high:
        expected, span = f"{low:#x} to {high:#x}", f"{one.start:#x} to {one.end:#x}"
        found.append(Violation(f"outside {name}", _place(command, one.operand), expected, span))
    if one.writes and one.rows > 1 and one.stride < one.row_bytes:
        expected = f"a stride of at least {one.row_bytes}"
        found.append(Violation("written rows share bytes", _place(command, one.operand), expected, str(one.stride)))
    return found


def _overlaps(command: Command, touched: tuple[TouchedBytes, ...]) -> list[Violation]:
    """Nothing written is read, but for what the command's rule allows."""
    found = []
    rule = command.spec.overlap
    if rule is Overlap.FREE:
        return []
    for written in (t for t in touched if t.writes):
        for read in (t for t in touched if not t.writes):
            shape = ("start", "rows", "row_bytes", "stride")
            same = all(getattr(written, name) == getattr(read, name) for name in shape)
            if read.operand == written.operand or (rule is Overlap.IN_PLACE and same):
                continue
            if written.meets(read):
                found.append(
                    Violation(
                        "illegal overlap", _place(command, written.operand), rule.value, f"meets {read.operand!r}"
                    )
                )
    return found


def _numbers(command: Command, target: AicoreTarget) -> list[Violation]:
    """Numbers that depend on the target or on one another."""
    numbers, name = command.numbers, command.name
    found: list[Violation] = []

    def refuse(operand: str, message: str, expected: str) -> None:
        found.append(Violation(message, _place(command, operand), expected, str(command.operand(operand))))

    if name in ("set_flag", "wait_flag"):
        if numbers["flag"] >= target.queue.flag_ids:
            refuse("flag", "no such flag", f"below {target.queue.flag_ids}")
        peer = Engine(numbers["peer"])
        joint = any({peer, command.engine} <= set(engines) for engines in ENGINES_OF.values())
        if peer in (command.engine, Engine.SDMA) or not joint:
            refuse("peer", "not another engine of the same core", "another engine of the core, not sdma")
    if name in ("cross_set", "cross_wait") and numbers["flag"] >= target.sync.flags_per_core:
        refuse("flag", "no such flag", f"below {target.sync.flags_per_core}")
    if name == "cross_set" and command.operand("mode") == "mask":
        if not target.sync.point_to_point:
            refuse("mode", "the target's network has no single targets", "sync.point_to_point = true")
        last = numbers["first_core"] + numbers["mask"].bit_length() - 1
        if not numbers["mask"] or last >= target.cores:
            refuse("mask", "not existing cores", f"at least one bit, cores below {target.cores}")
    if name in ("v_shl", "v_shr") and numbers["shift"] >= 8 * command.types[0].itemsize:
        refuse("shift", "not below the element's width", f"below {8 * command.types[0].itemsize}")
    if name == "l0c_to_gm":
        steps = [o for o in ("scale", "bias", "activation") if numbers[o]]
        if command.types[0] is command.types[1] and command.types[0].is_integer and steps:
            refuse(steps[0], "i32 to i32 is a copy", "none")
        if command.operand("activation") == "clip" and not float(command.operand("low")) <= float(
            command.operand("high")
        ):
            refuse("high", "an empty range", "low <= high")
    return found
