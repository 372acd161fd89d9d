"""From LLVM IR to a bare-metal RV64 executable, for tests: compile with LLVM, link the one object, add a start.

The linker knows what LLVM leaves in an object of a single module, static and without relaxation: sections that are
allocated, and seven kinds of relocation. Everything goes into one segment at CODE; tohost and the results lie at DATA.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import llvmlite.binding as llvm

CODE = 0x8000_0000
DATA = 0x8010_0000
RESULTS = DATA + 64
TRIPLE = "riscv64-unknown-elf"
FEATURES = "+m,+a,+f,+d,+c,+zicbop,+zihintpause"
LAYOUT = "e-m:e-p:64:64-i64:64-i128:128-n32:64-S128"
R_64, R_BRANCH, R_JAL, R_CALL_PLT, R_HI20, R_LO12_I, R_LO12_S = 2, 16, 17, 19, 23, 24, 25


def compile_rv64(ir: str, level: int = 2) -> bytes:
    """The object file of a module; `target datalayout` and `target triple` are added."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(f'target datalayout = "{LAYOUT}"\ntarget triple = "{TRIPLE}"\n{ir}')
    module.verify()
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(
        cpu="generic-rv64", features=FEATURES, opt=level, reloc="static", codemodel="medium", abiname="lp64d"
    )
    if level:
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=level))
        builder.getModulePassManager().run(module, builder)
    return machine.emit_object(module)


@dataclass
class Section:
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    address: int = 0


def read_sections(obj: bytes) -> list[Section]:
    (table,) = struct.unpack_from("<Q", obj, 40)
    count, names_index = struct.unpack_from("<HH", obj, 60)
    rows = [struct.unpack_from("<IIQQQQIIQQ", obj, table + 64 * n) for n in range(count)]
    names = rows[names_index][4]
    return [
        Section(text_at(obj, names + n), kind, flags, offset, size, link, info, max(align, 1))
        for n, kind, flags, _, offset, size, link, info, align, _ in rows
    ]


def text_at(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode()


def place(sections: list[Section], start: int) -> int:
    """Gives addresses to the sections that are loaded; returns the end."""
    at = start
    for section in sections:
        if section.flags & 2:  # SHF_ALLOC
            at = -(-at // section.align) * section.align
            section.address = at
            at += section.size
    return at


def link(obj: bytes, start: list[int], entry_symbol: str) -> tuple[bytes, dict[str, int]]:
    """The bytes at CODE: `start` (its last word replaced by a jal to the entry symbol), then the object's sections."""
    sections = read_sections(obj)
    end = place(sections, CODE + 4 * len(start))
    image = bytearray(end - CODE)
    for section in sections:
        if section.flags & 2 and section.kind != 8:  # not SHT_NOBITS
            at = section.address - CODE
            image[at : at + section.size] = obj[section.offset : section.offset + section.size]
    addresses, symbols = [], {}
    table = next(section for section in sections if section.kind == 2)
    for at in range(table.offset, table.offset + table.size, 24):
        name, _, _, index, value, _ = struct.unpack_from("<IBBHQQ", obj, at)
        addresses.append(sections[index].address + value if 0 < index < 0xFF00 else value)
        symbols[text_at(obj, sections[table.link].offset + name)] = addresses[-1]
    for section in sections:
        if section.kind != 4:  # SHT_RELA
            continue
        target = sections[section.info]
        if target.flags & 2 and target.name != ".eh_frame":  # nobody unwinds
            relocate(obj, section, target.address, addresses, image)
    struct.pack_into(f"<{len(start)}I", image, 0, *start)
    jump = CODE + 4 * (len(start) - 1)
    patch(image, jump, R_JAL, symbols[entry_symbol] - jump)
    return bytes(image), symbols


def relocate(obj: bytes, section: Section, base: int, addresses: list[int], image: bytearray) -> None:
    rows = [struct.unpack_from("<QQq", obj, at) for at in range(section.offset, section.offset + section.size, 24)]
    high = {
        base + at: addresses[info >> 32] + addend - base - at
        for at, info, addend in rows
        if info & 0xFFFFFFFF == R_HI20
    }
    for at, info, addend in rows:
        kind, target, pc = info & 0xFFFFFFFF, addresses[info >> 32] + addend, base + at
        if kind == R_64:
            struct.pack_into("<Q", image, pc - CODE, target)
        elif kind in (R_LO12_I, R_LO12_S):
            patch(image, pc, kind, high[target])  # the symbol stands at the auipc
        else:
            patch(image, pc, kind, target - pc)


def patch(image: bytearray, pc: int, kind: int, value: int) -> None:
    """Writes a distance into the instruction at pc."""
    at = pc - CODE
    word = struct.unpack_from("<I", image, at)[0]
    upper = (value + 0x800) >> 12 & 0xFFFFF
    if kind == R_CALL_PLT:  # auipc + jalr
        struct.pack_into("<I", image, at, word & 0xFFF | upper << 12)
        patch(image, pc + 4, R_LO12_I, value)
    elif kind == R_HI20:
        struct.pack_into("<I", image, at, word & 0xFFF | upper << 12)
    elif kind == R_LO12_I:
        struct.pack_into("<I", image, at, word & 0xFFFFF | (value & 0xFFF) << 20)
    elif kind == R_LO12_S:
        struct.pack_into("<I", image, at, word & 0x1FFF07F | (value >> 5 & 0x7F) << 25 | (value & 31) << 7)
    elif kind == R_JAL:
        field = (value >> 20 & 1) << 31 | (value >> 1 & 0x3FF) << 21 | (value >> 11 & 1) << 20 | value & 0xFF000
        struct.pack_into("<I", image, at, word & 0xFFF | field)
    elif kind == R_BRANCH:
        field = (value >> 12 & 1) << 31 | (value >> 5 & 0x3F) << 25 | (value >> 1 & 15) << 8 | (value >> 11 & 1) << 7
        struct.pack_into("<I", image, at, word & 0x1FFF07F | field)
    else:
        raise NotImplementedError(f"relocation {kind}")


def executable(ir: str, entry: str = "main", level: int = 2) -> bytes:
    """A program that sets up a stack per hart, the floating-point unit, and calls `void entry(i64 hart, ptr results)`.

    Hart 0 exits with success when the call returns; the others sleep.
    """
    start = [
        0x00200117,  # auipc sp, 0x200: stacks of 64 KiB below CODE + 2 MiB
        0x01051293,  # slli t0, a0, 16
        0x40510133,  # sub sp, sp, t0
        0x000062B7,  # lui t0, 6
        0x3002A073,  # csrs mstatus, t0
        0x00050413,  # mv s0, a0
        0,  # auipc a1, see below
        0,  # addi a1, a1, to the results
        0x01C000EF,  # jal ra, to the last word
        0x00041863,  # bnez s0, wfi
        0x00100293,  # li t0, 1
        0,  # auipc t1, see below
        0,  # sd t0, to tohost
        0x10500073,  # wfi
        0xFFDFF06F,  # j wfi
        0x0000006F,  # j entry
    ]
    start[6], offset = auipc_to(DATA - CODE - 4 * 6, 11)
    start[7] = (offset + RESULTS - DATA & 0xFFF) << 20 | 0x58593
    start[11], offset = auipc_to(DATA - CODE - 4 * 11, 6)
    start[12] = 0x00533023 | (offset >> 5 & 0x7F) << 25 | (offset & 31) << 7
    code, symbols = link(compile_rv64(ir, level), start, entry)
    return write_elf(code, symbols)


def auipc_to(distance: int, rd: int) -> tuple[int, int]:
    """auipc rd towards a distance, and what is left for the 12-bit offset behind it."""
    return (distance + 0x800 >> 12) << 12 | rd << 7 | 0x17, distance & 0xFFF


def write_elf(code: bytes, symbols: dict[str, int]) -> bytes:
    """A static executable with the code, 64 KiB of zeroed data at DATA, and a `tohost` symbol there."""
    assert len(code) < DATA - CODE
    strings = b"\0tohost\0"
    table = bytes(24) + struct.pack("<IBBHQQ", 1, 0x11, 0, 0xFFF1, DATA, 8)
    head = 64 + 112
    symbols_at = head + len(code)
    strings_at = symbols_at + len(table)
    sections_at = strings_at + len(strings)
    header = b"\x7fELF\2\1\1" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 2, 243, 1, CODE, 64, sections_at, 5, 64, 56, 2, 64, 3, 0)
    header += struct.pack("<IIQQQQQQ", 1, 5, head, CODE, CODE, len(code), len(code), 4096)
    header += struct.pack("<IIQQQQQQ", 1, 6, head, DATA, DATA, 0, 1 << 16, 4096)
    sections = bytes(64) + struct.pack("<IIQQQQIIQQ", 0, 2, 0, 0, symbols_at, len(table), 2, 1, 8, 24)
    sections += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, strings_at, len(strings), 0, 0, 1, 0)
    return header + code + table + strings + sections
