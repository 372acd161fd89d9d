"""Random legal engine commands for a target: small shapes with ragged edges, repeated rows, operations in place."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError
from superkernel.target.aicore import AicoreTarget, load_target
from superkernel.target.engines import Command, check
from superkernel.target.engines.formula import evaluate
from superkernel.target.engines.model import CommandSpec, Engine, Kind, Local, Overlap
from superkernel.target.engines.table import command_table
from superkernel.target.sections import all_fields

TABLE = command_table()
GM_BYTES = 1 << 16  # of global memory in tests

# By operand: numbers that small tests look at. Others are drawn from what the operand's bits allow.
_NUMBERS: dict[str, tuple[int, ...]] = {
    "rows": (1, 1, 2, 3, 5, 17),
    "cols": (1, 3, 16, 33, 65, 530),
    "m": (1, 3, 16, 17, 40),
    "n": (1, 7, 16, 20, 49, 70),
    "k": (1, 5, 16, 33, 48),
    "left": (0, 0, 1, 7),
    "right": (0, 0, 2, 5),
    "count": (1, 5, 64, 999),
    "bytes": (1, 31, 512, 1000, 4096),
    "row_bytes": (1, 32, 77),
    "table_bytes": (64, 1000),
    "shift": (0, 1, 7, 15),
    "height": (1, 4, 6),
    "width": (1, 5, 7),
    "channels": (1, 3, 16, 20),
    "out_width": (1, 3, 5),
    "kernel_h": (1, 2, 3),
    "kernel_w": (1, 3),
    "stride_h": (1, 2),
    "stride_w": (1, 2, 3),
    "dilation_h": (1, 2),
    "dilation_w": (1, 3),
    "pad_top": (0, 1, 2),
    "pad_left": (0, 1, 3),
    "m_first": (0, 1, 9),
    "k_first": (0, 2, 16),
}
_FLOATS = (0.0, -0.0, 1.0, -1.5, 0.25, 3e38, -1e-40, float("inf"), 100.0, -7.0)


def fields_of(target: AicoreTarget) -> dict[str, Any]:
    """Every field by path, as the C++ side takes a target."""
    return {path: target.value(path) for path in all_fields()}


def element_bits(rng: random.Random, dtype: DType) -> int:
    """The bits of any element, of a plain one half of the time."""
    if rng.random() < 0.5 and dtype in (DType.F32, DType.F16):
        return int.from_bytes(struct.pack("<f" if dtype is DType.F32 else "<e", rng.choice((-3.5, 0.0, 2.0))), "little")
    return rng.getrandbits(8 * dtype.itemsize)


def _number(spec: CommandSpec, name: str, types: tuple[DType, ...], rng: random.Random) -> int:
    operand = spec.operand(name)
    if operand.kind is Kind.ELEMENT:
        return element_bits(rng, types[operand.element_slot])
    if operand.kind is Kind.FLOAT:
        bits: int = struct.unpack("<I", struct.pack("<f", rng.choice(_FLOATS)))[0]
        return bits
    if operand.kind in (Kind.COUNT, Kind.BYTES) or name == "shift":
        return rng.choice([n for n in _NUMBERS[name] if operand.low <= n <= operand.high])
    if operand.kind in (Kind.CHOICE, Kind.NUMBER):
        return rng.randint(operand.low, min(operand.high, operand.low + 7))
    return 0


def _attempt(spec: CommandSpec, rng: random.Random, target: AicoreTarget, types: tuple[DType, ...]) -> Command:
    numbers = {o.name: _number(spec, o.name, types, rng) for o in spec.operands}
    if spec.name.endswith("_raw"):
        numbers["bytes"] = rng.choice((1, 2, 5)) * target.memory.fractal_bytes

    def figure(text: str) -> int:
        return evaluate(text, spec, numbers, types, target)

    for access in spec.accesses:
        if access.stride != "0":
            step = figure(spec.operand(access.stride).align or "1")
            least = -(-figure(access.row_bytes) // step) * step
            wider = least + step * rng.choice((0, 0, 1, 3))
            repeats = not access.writes and rng.random() < 0.2
            numbers[access.stride] = 0 if repeats else wider
    _place(spec, numbers, rng, target, figure)
    if spec.overlap is Overlap.IN_PLACE and rng.random() < 0.4:
        source = rng.choice([a for a in spec.accesses if not a.writes])
        if figure(source.row_bytes) == figure(spec.accesses[-1].row_bytes):
            numbers["dst"], numbers["dst_stride"] = numbers[source.operand], numbers[source.stride]
    engine = rng.choice(spec.engines)
    command = Command(spec.name, engine, types, tuple(numbers[o.name] for o in spec.operands))
    check(command, target)
    return command


def _place(spec: CommandSpec, numbers: dict[str, int], rng: random.Random, target: AicoreTarget, figure: Any) -> None:
    """Addresses one behind the other in each memory, with gaps."""
    cursors: dict[object, int] = {}
    accesses = list(spec.accesses)
    rng.shuffle(accesses)
    placed: set[str] = set()
    for access in accesses:
        if access.operand in placed:
            continue
        placed.add(access.operand)
        operand = spec.operand(access.operand)
        span = (figure(access.rows) - 1) * figure(access.stride) + figure(access.row_bytes)
        step = figure(operand.align or "1")
        start = -(-(cursors.get(operand.memory, 0) + rng.randint(0, 99)) // step) * step
        base = target.map.ram_address if operand.kind is Kind.GLOBAL else 0
        numbers[access.operand] = base + start
        cursors[operand.memory] = start + span


def legal_command(
    name: str, rng: random.Random, target: AicoreTarget, types: tuple[DType, ...] | None = None
) -> Command:
    """A random legal command whose accesses to global memory lie in its first GM_BYTES."""
    spec = TABLE[name]
    for _ in range(1000):
        try:
            command = _attempt(spec, rng, target, types if types is not None else rng.choice(spec.types))
        except InputError:
            continue
        return command
    raise AssertionError(f"no legal {name} found")


def core_of(command: Command) -> str:
    """The name of a core type that may be told the command."""
    cores = [core.value for core in command.spec.cores]
    if command.name in ("set_flag", "wait_flag"):
        vector = {Engine.V, Engine.MTE3}
        peers = {Engine(command.numbers["peer"]), command.engine}
        return "aiv" if peers & vector else "aic"
    if command.engine in (Engine.MTE1, Engine.M, Engine.FIX):
        return "aic"
    return "aiv" if command.engine in (Engine.V, Engine.MTE3) else cores[0]


MINI = load_target("mini")

SIZES = {m.value: int(str(MINI.value(m.size_path))) for m in Local}

SILENT = (
    "set_flag",
    "wait_flag",
    "barrier",
    "drain",
    "cross_set",
    "cross_wait",
    "notify",
    "wait_memory",
    "sdma_prefetch",
)

WITH_A_BOUND = ("v_exp", "v_ln")  # within an ulp, not to the bit: tests of their own

_SPECIAL = {
    4: (0, 1 << 31, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFA00001, 1, 0x80000001, 0x7F7FFFFF),
    2: (0, 1 << 15, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 0xFD01, 1, 0x8001, 0x7BFF, 0x3800, 0x3F80, 0x7F80),
    1: (0, 1, 0x7F, 0x80, 0xFF),
}


def random_bytes(rng: np.random.Generator, count: int, item: int) -> bytes:
    """Elements of `item` bytes: moderate floats or any bits, special ones among them."""
    bits = np.frombuffer(rng.bytes(count // item * item), f"<u{item}").copy()
    if item > 1 and rng.random() < 0.7:
        kind = "<f4" if item == 4 else "<f2"
        bits = rng.normal(0, 4, bits.size).astype(kind).view(bits.dtype)
    odd = rng.random(bits.size) < rng.choice([0.0, 0.0, 0.01, 0.3])
    bits[odd] = rng.choice(np.array(_SPECIAL[item], bits.dtype), int(odd.sum()))
    return bits.tobytes()
