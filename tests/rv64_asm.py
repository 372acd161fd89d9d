"""Hand-made RV64 programs for the simulator's tests: instruction encodings, an ELF writer, operand tables.

The encodings are written down from the fields of the specification's listings (opcode, funct3, funct7, ...), not from
the simulator's table of masks, so that each checks the other.

A program's code stands at CODE, its data at DATA; `tohost` is the first word of the data. x8 points at the data, x9 is
scratch for the ending. Nothing here knows the simulator.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

CODE = 0x8000_0000
DATA = 0x8020_0000
TABLE = 64  # offset of the operand table in the data
MASK64 = (1 << 64) - 1

# name: (opcode, funct3, funct7) of the R format
R_TYPE = {
    "add": (0x33, 0, 0x00), "sub": (0x33, 0, 0x20), "sll": (0x33, 1, 0x00), "slt": (0x33, 2, 0x00),
    "sltu": (0x33, 3, 0x00), "xor": (0x33, 4, 0x00), "srl": (0x33, 5, 0x00), "sra": (0x33, 5, 0x20),
    "or": (0x33, 6, 0x00), "and": (0x33, 7, 0x00),
    "addw": (0x3B, 0, 0x00), "subw": (0x3B, 0, 0x20), "sllw": (0x3B, 1, 0x00), "srlw": (0x3B, 5, 0x00),
    "sraw": (0x3B, 5, 0x20),
    "mul": (0x33, 0, 0x01), "mulh": (0x33, 1, 0x01), "mulhsu": (0x33, 2, 0x01), "mulhu": (0x33, 3, 0x01),
    "div": (0x33, 4, 0x01), "divu": (0x33, 5, 0x01), "rem": (0x33, 6, 0x01), "remu": (0x33, 7, 0x01),
    "mulw": (0x3B, 0, 0x01), "divw": (0x3B, 4, 0x01), "divuw": (0x3B, 5, 0x01), "remw": (0x3B, 6, 0x01),
    "remuw": (0x3B, 7, 0x01),
}  # fmt: skip
I_TYPE = {
    "addi": (0x13, 0), "slti": (0x13, 2), "sltiu": (0x13, 3), "xori": (0x13, 4), "ori": (0x13, 6), "andi": (0x13, 7),
    "addiw": (0x1B, 0), "jalr": (0x67, 0),
    "lb": (0x03, 0), "lh": (0x03, 1), "lw": (0x03, 2), "ld": (0x03, 3), "lbu": (0x03, 4), "lhu": (0x03, 5),
    "lwu": (0x03, 6), "flw": (0x07, 2), "fld": (0x07, 3),
}  # fmt: skip
SHIFTS = {  # name: (opcode, funct3, upper bits, width of the shift amount)
    "slli": (0x13, 1, 0x00, 6), "srli": (0x13, 5, 0x00, 6), "srai": (0x13, 5, 0x10, 6),
    "slliw": (0x1B, 1, 0x00, 5), "srliw": (0x1B, 5, 0x00, 5), "sraiw": (0x1B, 5, 0x20, 5),
}  # fmt: skip
S_TYPE = {
    "sb": (0x23, 0), "sh": (0x23, 1), "sw": (0x23, 2), "sd": (0x23, 3), "fsw": (0x27, 2), "fsd": (0x27, 3),
}  # fmt: skip
BRANCHES = {"beq": 0, "bne": 1, "blt": 4, "bge": 5, "bltu": 6, "bgeu": 7}
CSR_OPS = {"csrrw": 1, "csrrs": 2, "csrrc": 3, "csrrwi": 5, "csrrsi": 6, "csrrci": 7}
AMO = {  # name: funct5
    "lr": 0x02, "sc": 0x03, "amoswap": 0x01, "amoadd": 0x00, "amoxor": 0x04, "amoand": 0x0C, "amoor": 0x08,
    "amomin": 0x10, "amomax": 0x14, "amominu": 0x18, "amomaxu": 0x1C,
}  # fmt: skip
# Floating point, single: name: (funct7, rs2 or None where it is an operand, funct3 or None where it is the rounding
# mode). Double precision adds 1 to funct7, except for the conversions listed with both formats.
FLOAT = {
    "fadd": (0x00, None, None), "fsub": (0x04, None, None), "fmul": (0x08, None, None), "fdiv": (0x0C, None, None),
    "fsqrt": (0x2C, 0, None), "fsgnj": (0x10, None, 0), "fsgnjn": (0x10, None, 1), "fsgnjx": (0x10, None, 2),
    "fmin": (0x14, None, 0), "fmax": (0x14, None, 1), "feq": (0x50, None, 2), "flt": (0x50, None, 1),
    "fle": (0x50, None, 0), "fclass": (0x70, 0, 1),
    "fcvt.w": (0x60, 0, None), "fcvt.wu": (0x60, 1, None), "fcvt.l": (0x60, 2, None), "fcvt.lu": (0x60, 3, None),
    "from.w": (0x68, 0, None), "from.wu": (0x68, 1, None), "from.l": (0x68, 2, None), "from.lu": (0x68, 3, None),
    "fmv.x": (0x70, 0, 0), "fmv.from": (0x78, 0, 0),
}  # fmt: skip
FUSED = {"fmadd": 0x43, "fmsub": 0x47, "fnmsub": 0x4B, "fnmadd": 0x4F}
DYNAMIC = 7

EBREAK, ECALL, MRET, WFI, FENCE, FENCE_I, PAUSE = (
    0x00100073, 0x00000073, 0x30200073, 0x10500073, 0x0FF0000F, 0x0000100F, 0x0100000F,
)  # fmt: skip


def bits(value: int, high: int, low: int) -> int:
    return value >> low & ((1 << (high - low + 1)) - 1)


def r(name: str, rd: int, rs1: int, rs2: int) -> int:
    opcode, funct3, funct7 = R_TYPE[name]
    return funct7 << 25 | rs2 << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | opcode


def i(name: str, rd: int, rs1: int, imm: int) -> int:
    opcode, funct3 = I_TYPE[name]
    assert -2048 <= imm < 2048
    return (imm & 0xFFF) << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | opcode


def shift(name: str, rd: int, rs1: int, amount: int) -> int:
    opcode, funct3, upper, width = SHIFTS[name]
    assert 0 <= amount < 1 << width
    return upper << (20 + width) | amount << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | opcode


def s(name: str, rs2: int, rs1: int, imm: int) -> int:
    opcode, funct3 = S_TYPE[name]
    assert -2048 <= imm < 2048
    return bits(imm, 11, 5) << 25 | rs2 << 20 | rs1 << 15 | funct3 << 12 | bits(imm, 4, 0) << 7 | opcode


def b(name: str, rs1: int, rs2: int, distance: int) -> int:
    assert -4096 <= distance < 4096
    assert distance % 2 == 0
    high = bits(distance, 12, 12) << 31 | bits(distance, 10, 5) << 25
    low = bits(distance, 4, 1) << 8 | bits(distance, 11, 11) << 7
    return high | rs2 << 20 | rs1 << 15 | BRANCHES[name] << 12 | low | 0x63


def lui(rd: int, upper: int) -> int:
    return (upper & 0xFFFFF) << 12 | rd << 7 | 0x37


def auipc(rd: int, upper: int) -> int:
    return (upper & 0xFFFFF) << 12 | rd << 7 | 0x17


def jal(rd: int, distance: int) -> int:
    assert -(1 << 20) <= distance < 1 << 20
    middle = bits(distance, 19, 12) << 12 | bits(distance, 11, 11) << 20
    return bits(distance, 20, 20) << 31 | bits(distance, 10, 1) << 21 | middle | rd << 7 | 0x6F


def csr(name: str, rd: int, number: int, source: int) -> int:
    return number << 20 | source << 15 | CSR_OPS[name] << 12 | rd << 7 | 0x73


def amo(name: str, width: str, rd: int, rs2: int, rs1: int, order: int = 0) -> int:
    return AMO[name] << 27 | order << 25 | rs2 << 20 | rs1 << 15 | {"w": 2, "d": 3}[width] << 12 | rd << 7 | 0x2F


def amocas(width: str, rd: int, rs2: int, rs1: int, order: int = 0) -> int:
    """Zacas; `width` "q" takes pairs of registers."""
    return 0x05 << 27 | order << 25 | rs2 << 20 | rs1 << 15 | {"w": 2, "d": 3, "q": 4}[width] << 12 | rd << 7 | 0x2F


def f(name: str, fmt: str, rd: int, rs1: int, rs2: int = 0, rm: int = DYNAMIC) -> int:
    """A floating-point instruction; `fmt` "s" or "d". "fcvt.d" with fmt "s" is fcvt.s.d, and the other way round."""
    if name in ("fcvt.s", "fcvt.d"):
        assert name[-1] != fmt
        funct7, fixed = (0x20, 1) if fmt == "s" else (0x21, 0)
        return funct7 << 25 | fixed << 20 | rs1 << 15 | rm << 12 | rd << 7 | 0x53
    funct7, fixed_rs2, fixed_rm = FLOAT[name]
    second = rs2 if fixed_rs2 is None else fixed_rs2
    third = rm if fixed_rm is None else fixed_rm
    return (funct7 + (fmt == "d")) << 25 | second << 20 | rs1 << 15 | third << 12 | rd << 7 | 0x53


def fused(name: str, fmt: str, rd: int, rs1: int, rs2: int, rs3: int, rm: int = DYNAMIC) -> int:
    return rs3 << 27 | (fmt == "d") << 25 | rs2 << 20 | rs1 << 15 | rm << 12 | rd << 7 | FUSED[name]


def mv(rd: int, rs: int) -> int:
    return i("addi", rd, rs, 0)


PROLOGUE = [
    auipc(8, (DATA - CODE) >> 12),  # x8: the data
    lui(9, 6),
    csr("csrrs", 0, 0x300, 9),  # mstatus.FS: the floating-point unit on
]
EXIT = [i("addi", 9, 0, 1), s("sd", 9, 8, 0)]  # tohost = 1


def code_bytes(words: Iterable[int | bytes]) -> bytes:
    """Words of 32 bits (16 where the low two bits are not 11), or raw bytes."""
    parts = []
    for word in words:
        if isinstance(word, bytes):
            parts.append(word)
        else:
            parts.append(struct.pack("<I", word) if word & 3 == 3 else struct.pack("<H", word))
    return b"".join(parts)


def elf(code: bytes, data: bytes = bytes(TABLE), *, entry: int = CODE, tohost: bool = True) -> bytes:
    """A static executable with code and data (tohost in front), and a symbol table with `tohost`."""
    names = b"\0tohost\0.symtab\0.strtab\0"
    symbols = bytes(24) + (struct.pack("<IBBHQQ", 1, 0x11, 0, 0xFFF1, DATA, 8) if tohost else b"")
    head = 64 + 2 * 56
    places = [head, head + len(code)]
    symbols_at = places[1] + len(data)
    names_at = symbols_at + len(symbols)
    sections_at = names_at + len(names)
    ident = b"\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 2, 243, 1, entry, 64, sections_at, 5, 64, 56, 2, 64, 3, 2)
    program = struct.pack("<IIQQQQQQ", 1, 5, places[0], CODE, CODE, len(code), len(code), 4096)
    program += struct.pack("<IIQQQQQQ", 1, 6, places[1], DATA, DATA, len(data), len(data) + 4096, 4096)
    sections = bytes(64)
    sections += struct.pack("<IIQQQQIIQQ", 8, 2, 0, 0, symbols_at, len(symbols), 2, 1, 8, 24)
    sections += struct.pack("<IIQQQQIIQQ", 16, 3, 0, 0, names_at, len(names), 0, 0, 1, 0)
    return header + program + code + data + symbols + names + sections


def simple_elf(words: Sequence[int | bytes], data: bytes = b"") -> bytes:
    """PROLOGUE, the words, EXIT; `data` is the operand table."""
    return elf(code_bytes([*PROLOGUE, *words, *EXIT]), bytes(TABLE) + data)


def table_elf(body: Sequence[int], rows: Sequence[Sequence[int]], results: int) -> bytes:
    """Runs `body` once per row, with x10 at the row; the body writes `results` words behind the row's operands.

    x11 is the table's end; the body may use all registers but x8 to x11.
    """
    operands = len(rows[0])
    stride = 8 * (operands + results)
    assert stride < 2048
    table = b"".join(struct.pack(f"<{operands + results}Q", *row, *[0] * results) for row in rows)
    head = [
        i("addi", 10, 8, TABLE),
        i("ld", 11, 8, 8),  # the number of bytes
        r("add", 11, 10, 11),
    ]
    loop = [*body, i("addi", 10, 10, stride)]
    tail = [b("bne", 10, 11, -4 * len(loop))]
    start = bytes(8) + struct.pack("<Q", len(table)) + bytes(TABLE - 16)
    return elf(code_bytes([*PROLOGUE, *head, *loop, *tail, *EXIT]), start + table)


def table_results(data: bytes, rows: Sequence[Sequence[int]], results: int) -> list[tuple[int, ...]]:
    """The words that the bodies of a `table_elf` wrote; `data` from the table's start on."""
    operands = len(rows[0])
    width = operands + results
    words = struct.unpack_from(f"<{width * len(rows)}Q", data)
    return [words[n * width + operands : (n + 1) * width] for n in range(len(rows))]
