"""Control code against a scoreboard in Python: registers, memory, cycles, what is waited for.

Programs are random: constants, sums, shifts, products, stores and loads, 2 and 4 bytes long, with jumps over a few of
them. What the result of a load or product costs whoever names it too early shows in the cycles, and so does a wait that
is forgotten, or one for a register that nobody names.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
import rv64_asm as asm
from device_programs import DATA, DONE, NOP, S0, S1, T1, Body, link
from seeds import seeds

from superkernel.sim.device import Device
from superkernel.target.aicore import load_target
from superkernel.target.engines import Engine
from superkernel.target.engines.layout import word_offset

MINI = load_target("mini")
VECTOR = 2
SP = 2
POOL = (12, 13, 14, 15, 20, 21)
STACK, WORDS = 256, 16  # offset in private memory; words that programs store to and load from
MASK = (1 << 64) - 1


class Costs(NamedTuple):
    """What decides about the time of such code, in cycles."""

    private_load: int
    multiply: int = 3
    taken_branch: int = 2
    doorbell_store: int = 1


@dataclass
class Unit:
    """The model: registers, when they are there, memory, the clock."""

    costs: Costs
    x: dict[int, int] = field(default_factory=lambda: dict.fromkeys((0, *POOL), 0))
    memory: list[int] = field(default_factory=lambda: [0] * WORDS)
    ready: dict[int, int] = field(default_factory=dict)
    now: int = 0
    waited: int = 0

    def issue(self, *named: int) -> None:
        until = max([self.now, *(self.ready.get(r, 0) for r in named)])
        self.waited += until - self.now
        self.now = until + 1

    def set(self, rd: int, value: int, latency: int = 1) -> None:
        self.x[rd] = value & MASK
        self.ready[rd] = self.now - 1 + latency


class Item(NamedTuple):
    """An instruction: its bits, its bytes, what it does; `skips` items follow that a jump leaves out."""

    bits: int
    bytes: int
    does: Callable[[Unit], None]
    skips: int = 0


def affine(rd: int, rs: int, value: Callable[[int], int]) -> Callable[[Unit], None]:
    def does(unit: Unit) -> None:
        unit.issue(rd, rs)
        unit.set(rd, value(unit.x[rs]))

    return does


def summed(rd: int, a: int, b: int) -> Callable[[Unit], None]:
    def does(unit: Unit) -> None:
        unit.issue(rd, a, b)
        unit.set(rd, unit.x[a] + unit.x[b])

    return does


def product(rd: int, a: int, b: int) -> Callable[[Unit], None]:
    def does(unit: Unit) -> None:
        unit.issue(rd, a, b)
        unit.set(rd, unit.x[a] * unit.x[b], unit.costs.multiply)

    return does


def loaded(rd: int, word: int) -> Callable[[Unit], None]:
    def does(unit: Unit) -> None:
        unit.issue(rd)
        unit.set(rd, unit.memory[word], unit.costs.private_load)

    return does


def stored(rs: int, word: int) -> Callable[[Unit], None]:
    def does(unit: Unit) -> None:
        unit.issue(rs)
        unit.memory[word] = unit.x[rs]

    return does


def told(rs: int) -> Callable[[Unit], None]:
    def does(unit: Unit) -> None:
        unit.issue(rs)
        unit.now += unit.costs.doorbell_store - 1

    return does


def jumped(unit: Unit) -> None:
    unit.issue()
    unit.now += unit.costs.taken_branch


def _compressed(rng: random.Random) -> Item:
    rd, rs, value, word = rng.choice(POOL), rng.choice(POOL), rng.randrange(-32, 32), rng.randrange(WORDS)
    low, high = (value & 31) << 2, (value >> 5 & 1) << 12
    amount = rng.randrange(1, 32)
    offset = word * 8
    return rng.choice(
        [
            Item(0x4001 | high | rd << 7 | low, 2, affine(rd, 0, lambda _: value)),  # c.li
            Item(0x0001 | high | rd << 7 | low, 2, affine(rd, rd, lambda x: x + value)),  # c.addi; c.nop for 0
            Item(0x0002 | rd << 7 | amount << 2, 2, affine(rd, rd, lambda x: x << amount)),  # c.slli
            Item(0x8002 | rd << 7 | rs << 2, 2, affine(rd, rs, lambda x: x)),  # c.mv
            Item(0x9002 | rd << 7 | rs << 2, 2, summed(rd, rd, rs)),  # c.add
            Item(0x6002 | (offset >> 5 & 1) << 12 | rd << 7 | (offset >> 3 & 3) << 5 | (offset >> 6) << 2, 2,
                 loaded(rd, word)),  # c.ldsp
            Item(0xE002 | (offset >> 3 & 7) << 10 | (offset >> 6) << 7 | rs << 2, 2, stored(rs, word)),  # c.sdsp
        ]
    )  # fmt: skip


def _wide(rng: random.Random) -> Item:
    rd, a, b = (rng.choice(POOL) for _ in range(3))
    value, word, amount = rng.randrange(-2048, 2048), rng.randrange(WORDS), rng.randrange(64)
    upper = rng.randrange(1 << 20)
    signed = (upper << 12) - (1 << 32 if upper >> 19 else 0)
    window = word_offset(Engine.MTE2, rng.randrange(8))
    return rng.choice(
        [
            Item(asm.i("addi", rd, a, value), 4, affine(rd, a, lambda x: x + value)),
            Item(asm.lui(rd, upper), 4, affine(rd, 0, lambda _: signed)),
            Item(asm.shift("slli", rd, a, amount), 4, affine(rd, a, lambda x: x << amount)),
            Item(asm.r("add", rd, 0, b), 4, affine(rd, b, lambda x: x)),
            Item(asm.r("add", rd, a, 0), 4, affine(rd, a, lambda x: x)),
            Item(asm.r("add", rd, a, b), 4, summed(rd, a, b)),
            Item(asm.r("mul", rd, a, b), 4, product(rd, a, b)),
            Item(asm.i("ld", rd, S1, STACK + word * 8), 4, loaded(rd, word)),
            Item(asm.i("ld", 0, S1, STACK + word * 8), 4, lambda unit: unit.issue()),
            Item(asm.s("sd", b, S1, STACK + word * 8), 4, stored(b, word)),
            Item(asm.s("sd", b, S0, window), 4, told(b)),
            Item(asm.b("bne", 0, 0, 64), 4, lambda unit: unit.issue()),
        ]
    )


def program(rng: random.Random, count: int) -> list[Item]:
    """Random items; one in twelve is a jump over up to four others."""
    items: list[Item] = []
    while len(items) < count:
        if rng.random() < 1 / 12:
            over = [rng.choice((_compressed, _wide))(rng) for _ in range(rng.randrange(5))]
            distance = 4 + sum(item.bytes for item in over)
            bits = rng.choice((asm.jal(0, distance), asm.b("beq", 0, 0, distance)))
            items += [Item(bits, 4, jumped, len(over)), *over]
        else:
            items.append(rng.choice((_compressed, _wide))(rng))
    return items


def executed(items: list[Item]) -> Iterator[Item]:
    at = 0
    while at < len(items):
        yield items[at]
        at += 1 + items[at].skips


def words_of(items: list[Item]) -> list[int]:
    code = b"".join(item.bits.to_bytes(item.bytes, "little") for item in items)
    if len(code) % 4:
        code += (0x0001).to_bytes(2, "little")  # c.nop
    return list(struct.unpack(f"<{len(code) // 4}I", code))


LATENCIES = (1, 2, 3, 5)


@pytest.mark.parametrize("seed", seeds(12))
def test_random_programs_against_the_model(seed: int) -> None:
    rng = random.Random(seed)
    costs = Costs(LATENCIES[seed % 4], rng.randrange(1, 6), rng.randrange(4), rng.choice((1, 1, 4)))
    target = MINI.replaced({f"control.{name}_cycles": value for name, value in costs._asdict().items()})
    items = program(rng, 400)
    body = Body(target).emit(asm.i("addi", SP, S1, STACK)).li(T1, DATA)
    for word in range(WORDS):
        body.emit(asm.s("sd", 0, S1, STACK + word * 8))
    body.emit(*[asm.i("addi", register, 0, 0) for register in POOL]).emit(*[NOP] * 8)
    body.marker(1).emit(*words_of(items)).marker(2)
    for place, register in enumerate(POOL):
        body.emit(asm.s("sd", register, T1, 8 * place))
    for word in range(WORDS):
        body.emit(asm.i("ld", POOL[0], S1, STACK + word * 8), asm.s("sd", POOL[0], T1, 8 * (len(POOL) + word)))
    device = Device(target, link({VECTOR: body}), mode="timing", races=False, flags=False)
    for _ in range(2):  # the second finds its instructions in the cache
        device.write(DATA, bytes(8 * (len(POOL) + WORDS)))
        device.write(DONE, bytes(8))
        result = device.launch(cold=False)
    unit, count = Unit(costs), 0
    for item in executed(items):
        item.does(unit)
        count += 1
    padding = len(words_of(items)) * 4 // 2 - sum(item.bytes for item in items) // 2
    control = next(m.control for m in result.cores[VECTOR].markers if m.sub_operator == 1)
    assert control.instructions == count + padding + 2
    assert control.cycles == unit.now + padding + 2  # li and sd of the next marker
    assert control.stalls["result"] == unit.waited
    found = struct.unpack(f"<{len(POOL) + WORDS}Q", device.read(DATA, 8 * (len(POOL) + WORDS)))
    assert list(found) == [unit.x[r] for r in POOL] + unit.memory
