"""Hand-made programs for the simulated accelerator: one straight or looping body per hart, as an ELF image.

A `Body` collects instructions: stores of engine commands from the Python encoder, markers, fences, waits. `link` puts
bodies behind an entry that sends each hart to its own; harts without a body sleep at once. Encodings come from
`rv64_asm`; nothing here knows the simulator.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import rv64_asm as asm

from superkernel.target.aicore import AicoreTarget, load_target
from superkernel.target.engines import Engine, command, encode
from superkernel.target.engines.formula import evaluate
from superkernel.target.engines.layout import DOORBELL, word_offset

if TYPE_CHECKING:
    from superkernel.core.dtypes import DType
    from superkernel.target.engines import Command

T0, T1, T2, A0, A1, A2, S0, S1, S2 = 5, 6, 7, 10, 11, 12, 8, 9, 18  # x registers; S0: page, S1: private memory
FENCE_WO = 0x0140000F  # fence w, o
FENCE_IR = 0x0820000F  # fence i, r
FENCE_ALL = asm.FENCE
NOP = 0x00000013
DATA = 0x8040_0000  # free for tests, behind code and private memories
PRIVATE = 0x8018_0000
CODE = 0x8000_0000
DONE = 0x8030_0000  # a word in a writable segment: how many harts are done


class Price(NamedTuple):
    """The closed form of a command's time, in cycles."""

    startup: int
    beats: int
    visible: int


def price_of(what: Command, target: AicoreTarget) -> Price:
    spec = what.spec
    texts = (spec.start_up, spec.beats, spec.visible)
    return Price(*(evaluate(text, spec, what.numbers, what.types, target) for text in texts))


def load_immediate(register: int, value: int) -> list[int]:
    """`li`: the value as the sign-extended 64-bit number that it is modulo 2^64."""
    value = (value + (1 << 63)) % (1 << 64) - (1 << 63)
    if -2048 <= value < 2048:
        return [asm.i("addi", register, 0, value)]
    low = (value + 2048) % 4096 - 2048
    if -(1 << 31) <= value < 1 << 31:
        words = [asm.lui(register, (value - low) >> 12 & 0xFFFFF)]
        return [*words, asm.i("addiw", register, register, low)]
    high = load_immediate(register, (value - low) >> 12)
    return [
        *high,
        asm.shift("slli", register, register, 12),
        *([asm.i("addi", register, register, low)] if low else []),
    ]


class Body:
    """The instructions of one hart. Methods append; they return the body, so that calls chain."""

    def __init__(self, target: AicoreTarget | None = None) -> None:
        self.target = target or load_target("mini")
        self.words: list[int] = []

    def emit(self, *words: int) -> Body:
        self.words += words
        return self

    def li(self, register: int, value: int) -> Body:
        return self.emit(*load_immediate(register, value))

    def issue(self, what: Command) -> Body:
        """Stores the words of a command and its doorbell."""
        *operands, doorbell = encode(what)
        for index, word in [*enumerate(operands), (DOORBELL, doorbell)]:
            self.li(T0, word)
            self.emit(asm.s("sd", T0, S0, word_offset(what.engine, index)))
        return self

    def do(self, name: str, engine: Engine | None = None, types: tuple[DType, ...] = (), **operands: int | str) -> Body:
        return self.issue(command(name, engine=engine, types=types, **operands))

    def set_flag(self, engine: Engine, peer: str, flag: int = 0) -> Body:
        return self.do("set_flag", engine, peer=peer, flag=flag)

    def wait_flag(self, engine: Engine, peer: str, flag: int = 0) -> Body:
        return self.do("wait_flag", engine, peer=peer, flag=flag)

    def drain(self) -> Body:
        return self.do("drain")

    def marker(self, sub_operator: int, phase: int = 2) -> Body:
        return self.li(T0, sub_operator * 4 + phase).emit(asm.s("sd", T0, S1, 0))

    def store(self, address: int, value: int, width: str = "sd") -> Body:
        return self.li(T1, address).li(T0, value).emit(asm.s(width, T0, T1, 0))

    def load(self, register: int, address: int, width: str = "ld") -> Body:
        return self.li(T1, address).emit(asm.i(width, register, T1, 0))

    def nops(self, count: int) -> Body:
        return self.emit(*[NOP] * count)

    def loop(self, register: int, count: int, inner: Body) -> Body:
        """`inner`, count times."""
        self.li(register, count)
        self.emit(*inner.words, asm.i("addi", register, register, -1))
        return self.emit(asm.b("bne", register, 0, -4 * (len(inner.words) + 1)))


def link(
    bodies: Mapping[int, Body],
    *,
    private: bool = True,
    exits: bool = True,
    harts: int | None = None,
    align: int = 128,
) -> bytes:
    """An ELF image. With `exits`, a body is followed by the end: the last hart that has one ends the launch."""
    target = next(iter(bodies.values())).target
    count = harts or target.cores + target.device.aicpu_harts
    distinct: dict[int, int] = {}  # id of a body -> index
    order: list[Body] = []
    for body in bodies.values():
        if id(body) not in distinct:
            distinct[id(body)] = len(order)
            order.append(body)
    head = _head(target, private)
    tail = _tail(target, len(bodies)) if exits else []
    entry_words = len(head) + 3 * count + 2
    starts, at = [], -(-4 * entry_words // align) * align
    for body in order:
        starts.append(at)
        at = -(-(at + 4 * (len(body.words) + len(tail))) // align) * align
    image = bytearray(at)
    entry = list(head)
    for hart in range(count):
        body_of = bodies.get(hart)
        place = 4 * (len(entry) + 2)
        goal = starts[distinct[id(body_of)]] if body_of is not None else 4 * (entry_words - 2)
        entry += [asm.i("addi", T0, 0, hart), asm.b("bne", A0, T0, 8), asm.jal(0, goal - place)]
    entry += [asm.WFI, asm.jal(0, -4)]
    struct.pack_into(f"<{len(entry)}I", image, 0, *entry)
    for body, start in zip(order, starts, strict=True):
        words = [*body.words, *tail]
        struct.pack_into(f"<{len(words)}I", image, start, *words)
    symbols = {"sk_start": (CODE, 2)} | {f"body{i}": (CODE + s, 2) for i, s in enumerate(starts)}
    if private:
        symbols["sk_private"] = (PRIVATE, 1)
    return elf(bytes(image), symbols)


def _head(target: AicoreTarget, private: bool) -> list[int]:
    words = load_immediate(S0, target.map.page_address)
    if private:
        words += load_immediate(S1, PRIVATE) + load_immediate(T0, target.control.private_bytes)
        words += [asm.r("mul", T0, T0, A0), asm.r("add", S1, S1, T0)]
    return words


def _tail(target: AicoreTarget, harts: int) -> list[int]:
    """amoadd 1 to DONE; the last of `harts` writes 0x5555 to the exit address."""
    words = [asm.FENCE, *load_immediate(T1, DONE), *load_immediate(T0, 1), asm.amo("amoadd", "d", T2, T0, T1, 3)]
    words += load_immediate(T0, harts - 1)
    last = [*load_immediate(T0, 0x5555), *load_immediate(T1, target.map.exit_address), asm.s("sw", T0, T1, 0)]
    words += [asm.b("bne", T2, T0, 4 * (len(last) + 1)), *last]
    return [*words, asm.WFI, asm.jal(0, -4)]


def elf(code: bytes, symbols: Mapping[str, tuple[int, int]], data: bytes = bytes(64)) -> bytes:
    """A static executable: code at CODE (r-x), data at DONE (rw-), symbols as (address, type: 1 object, 2 function)."""
    names = bytearray(b"\0")
    table = bytearray(24)
    for name, (address, kind) in symbols.items():
        table += struct.pack("<IBBHQQ", len(names), 0x10 | kind, 0, 0xFFF1, address, 8)
        names += name.encode() + b"\0"
    section_names = b"\0.symtab\0.strtab\0"
    head = 64 + 2 * 56
    places = [head, head + len(code)]
    symbols_at = places[1] + len(data)
    names_at = symbols_at + len(table)
    section_names_at = names_at + len(names)
    sections_at = section_names_at + len(section_names)
    ident = b"\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 2, 243, 1, CODE, 64, sections_at, 5, 64, 56, 2, 64, 4, 3)
    program = struct.pack("<IIQQQQQQ", 1, 5, places[0], CODE, CODE, len(code), len(code), 4096)
    program += struct.pack("<IIQQQQQQ", 1, 6, places[1], DONE, DONE, len(data), len(data), 4096)
    sections = bytes(64)
    sections += struct.pack("<IIQQQQIIQQ", 1, 2, 0, 0, symbols_at, len(table), 2, 1, 8, 24)
    sections += struct.pack("<IIQQQQIIQQ", 9, 3, 0, 0, names_at, len(names), 0, 0, 1, 0)
    sections += struct.pack("<IIQQQQIIQQ", 9, 3, 0, 0, section_names_at, len(section_names), 0, 0, 1, 0)
    return header + program + code + data + bytes(table) + bytes(names) + section_names + sections
