"""The linker: programs run on the simulator, placement, errors, other tools' opinion, random programs."""

from __future__ import annotations

import dataclasses
import io
import random
import re
import shutil
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from superkernel.codegen.aicore.boot import SHARED, BootSpec, encode_boot
from superkernel.codegen.aicore.linking import Image, Layout, link
from superkernel.codegen.aicore.linking.elf_writer import ObjectSection, OutputSymbol, write_object
from superkernel.codegen.aicore.linking.relocations import NUMBERS
from superkernel.codegen.aicore.lower import compile_rv64
from superkernel.errors import LinkError, MachineError
from superkernel.sim import Machine

CODE, PRIVATE, TOHOST = 0x8000_0000, 0x8020_0000, 0x8040_0000
MASK = (1 << 64) - 1
LD, OBJDUMP, READELF = (shutil.which(f"riscv64-unknown-elf-{tool}") for tool in ("ld", "objdump", "readelf"))
FEW = "define i64 @{0}(i64 %x) {{\n %y = add i64 %x, {1}\n ret i64 %y\n}}\n"


def layout(**options: Any) -> Layout:
    values = {"code_address": CODE, "shared": SHARED, **options}
    values["absolute"] = {"sk_private": PRIVATE, "tohost": TOHOST, **options.get("absolute", {})}
    return Layout(**values)


def build(texts: Sequence[str], harts: int = 1, copy_of: Sequence[int] = (), **options: Any) -> Image:
    spec = BootSpec(copy_of=copy_of or [0] * harts, private_bytes=4096, exit_address=TOHOST)
    return link([encode_boot(spec), *map(compile_rv64, texts)], layout(**options))


def run(image: Image, harts: int = 1) -> Machine:
    machine = Machine(image.elf(), harts=harts, memory_bytes=8 << 20)
    assert (machine.run(5_000_000), machine.exit_code) == ("exited", 0x5555 >> 1), machine.hart(0)
    return machine


def words(machine: Machine, image: Image, symbol: str) -> tuple[int, ...]:
    found = image.symbol(symbol)
    return struct.unpack(f"<{found.size // 8}Q", machine.read(found.address, found.size))


# ---- running


PARTS = [
    """
@out = global [6 x i64] zeroinitializer
@counter = global i64 40
@table = constant [4 x i64] [i64 11, i64 22, i64 33, i64 44]
@pointer = global ptr @twice
declare i64 @twice(i64)
declare double @third(double)
define void @put(i64 %n, i64 %value) noinline {
  %p = getelementptr i64, ptr @out, i64 %n
  store i64 %value, ptr %p
  ret void
}
define void @sk_main(i64 %hart) {
  %a = call i64 @twice(i64 21)
  call void @put(i64 0, i64 %a)
  %c = load i64, ptr @counter
  %c2 = add i64 %c, 2
  store i64 %c2, ptr @counter
  %c3 = load volatile i64, ptr @counter
  call void @put(i64 1, i64 %c3)
  %n = and i64 %c3, 3
  %tp = getelementptr i64, ptr @table, i64 %n
  %t = load i64, ptr %tp
  call void @put(i64 2, i64 %t)
  %f = load volatile ptr, ptr @pointer
  %b = call i64 %f(i64 %t)
  call void @put(i64 3, i64 %b)
  %d = call double @third(double 7.5)
  %bits = bitcast double %d to i64
  call void @put(i64 4, i64 %bits)
  call void @put(i64 5, i64 ptrtoint (ptr @tohost to i64))
  ret void
}
@tohost = external global i64
""",
    """
@counter = external global i64
define i64 @twice(i64 %x) {
  %y = shl i64 %x, 1
  ret i64 %y
}
define double @third(double %x) {
  %y = fmul double %x, 0x3FD5555555555555
  ret double %y
}
""",
]


@pytest.mark.parametrize("data_address", [None, 0x8060_0000, 0x8060_0040])
def test_calls_data_and_constants(data_address: int | None) -> None:
    image = build(PARTS, data_address=data_address)
    machine = run(image)
    third = struct.unpack("<Q", struct.pack("<d", 7.5 * (1 / 3)))[0]
    assert words(machine, image, "out") == (42, 42, 33, 66, third, TOHOST)
    if data_address:
        assert min(row.address for row in image.rows if row.flags != "r-x") == data_address


WHERE = """
@out = global [8 x i64] zeroinitializer
@direct = constant ptr @leaf
@stored = global ptr @leaf
declare i64 @leaf(i64)
define void @sk_main(i64 %hart) {
  %a = call i64 @leaf(i64 0)
  %f = load volatile ptr, ptr @direct
  %b = call i64 %f(i64 0)
  %same = icmp eq i64 %a, %b
  %value = select i1 %same, i64 %a, i64 0
  %p = getelementptr i64, ptr @out, i64 %hart
  store i64 %value, ptr %p
  ret void
}
"""
LEAF = "define i64 @leaf(i64 %x) {\n %y = add i64 %x, ptrtoint (ptr @leaf to i64)\n ret i64 %y\n}\n"


@pytest.mark.parametrize("copies", [2, 4])
def test_calls_and_pointers_stay_in_the_copy(copies: int) -> None:
    """Also through a constant that holds a function's address; data that can be written leads to copy 0."""
    copy_of = [h % copies for h in range(8)]
    image = build([WHERE, LEAF], copy_of=copy_of, copies=copies)
    machine = run(image, 8)
    names = ["leaf", *(f"leaf.copy{c}" for c in range(1, copies))]
    leaves = [image.symbol(name).address for name in names]
    assert list(words(machine, image, "out")) == [leaves[copy] for copy in copy_of]
    assert len(set(leaves)) == copies
    assert words(machine, image, "stored") == (leaves[0],)
    assert [image.symbol(f"direct.copy{c}").size for c in range(1, copies)] == [8] * (copies - 1)


def test_shared_functions_are_there_once() -> None:
    image = build([WHERE, LEAF], copy_of=[0, 1], copies=2, shared=[*SHARED, "leaf"])
    machine = run(image, 2)
    assert words(machine, image, "out")[:2] == (image.symbol("leaf").address,) * 2
    names = {s.name for s in image.symbols}
    assert "sk_main.copy1" in names
    assert "leaf.copy1" not in names


def test_copies_at_given_addresses() -> None:
    addresses = (0x8010_0000, 0x8008_0000)
    image = build([WHERE, LEAF], copy_of=[0, 1], copies=2, copy_addresses=addresses, data_address=0x8060_0000)
    assert words(run(image, 2), image, "out")[:2] == tuple(image.symbol(n).address for n in ("leaf", "leaf.copy1"))
    for address, name in zip(addresses, ("sk_main", "sk_main.copy1"), strict=True):
        assert image.symbol(name).address == address


def test_names_with_a_meaning() -> None:
    """`f.end` lies behind f, `f.copy<c>` in copy c from anywhere."""
    text = """
@out = global [3 x i64] zeroinitializer
declare void @leaf.end()
declare void @leaf.copy0()
declare void @leaf.end.copy1()
define void @sk_main(i64 %hart) {
  store i64 ptrtoint (ptr @leaf.end to i64), ptr @out
  store i64 ptrtoint (ptr @leaf.copy0 to i64), ptr getelementptr (i64, ptr @out, i64 1)
  store i64 ptrtoint (ptr @leaf.end.copy1 to i64), ptr getelementptr (i64, ptr @out, i64 2)
  ret void
}
"""
    image = build([text, LEAF], copy_of=[1], copies=2)
    first, second = image.symbol("leaf"), image.symbol("leaf.copy1")
    assert words(run(image), image, "out") == (
        second.address + second.size,
        first.address,
        second.address + second.size,
    )


# ---- placement


@pytest.mark.parametrize("align", [2, 64, 128, 4096])
def test_order_and_alignment_are_kept(align: int) -> None:
    names = [f"f{n}" for n in range(20)]
    order = ["f7", "f3", "f19", "f0"]
    objects = [compile_rv64("".join(FEW.format(n, len(n) * 3) for n in names[k : k + 5])) for k in range(0, 20, 5)]
    image = link(objects, Layout(code_address=CODE, func_align=align, order=order, entry="f0"))
    found = [s.name for s in sorted(image.symbols, key=lambda s: s.address)]
    assert found == order + [n for n in names if n not in order]
    at = CODE
    for name in found:
        symbol = image.symbol(name)
        assert symbol.address == -(-at // align) * align
        at = symbol.address + symbol.size
    assert image.code_bytes == at - CODE


def test_copies_are_laid_out_alike() -> None:
    texts = ["".join(FEW.format(f"f{n}", n) for n in range(9)), FEW.format("g", 1 << 40)]
    image = link(
        [compile_rv64(t) for t in texts],
        Layout(code_address=CODE + 128, copies=3, copy_align=1024, shared=["f8"], order=["g"], entry="f0"),
    )
    starts = [image.symbol(name).address for name in ("g", "g.copy1", "g.copy2")]
    assert all(start % 1024 == 0 for start in starts)
    for n in range(8):
        places = [image.symbol(f"f{n}{suffix}").address for suffix in ("", ".copy1", ".copy2")]
        assert len({place - start for place, start in zip(places, starts, strict=True)}) == 1


def test_the_map_tells_what_stands_where() -> None:
    image = build([WHERE, LEAF], copy_of=[0, 1], copies=2)
    text = image.map_text()
    rows = re.findall(r"^ +(0x[0-9a-f]+) +(\d+) +(\d+)  (\S+) +(object \d+)$", text, re.MULTILINE)
    assert len(rows) == len(image.rows)
    at = {name: (int(address, 16), int(size), owner) for address, size, _, name, owner in rows}
    for name in ("sk_start", "leaf", "leaf.copy1", "sk_main.copy1"):
        symbol = image.symbol(name)
        assert at[name] == (symbol.address, symbol.size, symbol.object)
    code = re.search(r"^ +(\d+) +(\d+)  code, (\d+) sections$", text, re.MULTILINE)
    assert code is not None
    assert int(code[1]) + int(code[2]) == image.code_bytes
    assert int(code[3]) == 6


def test_zeroed_data_takes_no_bytes_of_the_file() -> None:
    image = build(["@big = global [100000 x i64] zeroinitializer\ndefine void @sk_main(i64 %h) {\n ret void\n}\n"])
    data = image.segments[-1]
    assert data.memory_bytes - len(data.data) >= 800_000
    assert len(image.elf()) < 40_000
    assert not any(words(run(image), image, "big"))


# ---- errors


def violations(kind: type[LinkError] | type[MachineError], objects: Sequence[bytes], where: Layout) -> list[str]:
    with pytest.raises(kind) as caught:
        link(objects, where)
    assert type(caught.value) is kind
    return [str(v) for v in caught.value.violations]


def test_all_undefined_and_duplicate_symbols_are_named() -> None:
    one = compile_rv64(
        "declare void @no1()\ndeclare void @no2()\n@x = global i64 1\n"
        "define void @sk_start() {\n call void @no1()\n call void @no2()\n ret void\n}\n"
    )
    two = compile_rv64("@x = global i64 2\ndefine void @tohost() {\n ret void\n}\n")
    text = "\n".join(violations(LinkError, [one, two], layout(shared=(), order=["nobody", "x"])))
    for name in ("'no1' is not defined", "'no2' is not defined", "'x' is defined twice", "'tohost' is defined twice"):
        assert name in text
    assert "layout.order: no such function; expected a function of the objects; found 'nobody'" in text
    assert "found 'x'" in text


def test_a_name_like_that_of_a_copy_is_refused() -> None:
    data = compile_rv64(FEW.format("f", 1) + FEW.format("f.copy1", 2))
    assert link([data], Layout(code_address=CODE, entry="f")).symbol("f.copy1").size
    assert (
        "'f.copy1' has the name of a copy of 'f'"
        in violations(LinkError, [data], Layout(code_address=CODE, entry="f", copies=2))[0]
    )


def test_entry_must_be_a_symbol() -> None:
    found = violations(LinkError, [compile_rv64(FEW.format("f", 1))], Layout(code_address=CODE))
    assert found == ["layout.entry 'sk_start': no entry; found no such global symbol"]


def test_weak_symbols_yield() -> None:
    weak = compile_rv64("define weak i64 @f(i64 %x) {\n ret i64 1\n}\n" + FEW.format("sk_start", 1))
    strong = compile_rv64("define i64 @f(i64 %x) {\n ret i64 2\n}\n")
    for objects in ([weak, strong], [strong, weak]):
        image = link(objects, Layout(code_address=CODE))
        assert image.symbol("f").object == f"object {objects.index(strong)}"


def test_limits_and_overlaps() -> None:
    data = compile_rv64("@g = global [2000 x i8] zeroinitializer\n" + "".join(FEW.format(f"f{n}", n) for n in range(9)))
    base = Layout(code_address=CODE, entry="f0")
    last = link([data], base).symbol("f8")
    fits = last.address + last.size
    link([data], dataclasses.replace(base, code_end=fits))
    (text,) = violations(MachineError, [data], dataclasses.replace(base, code_end=fits - 2))
    assert "layout.code_end" in text
    both = dataclasses.replace(base, code_end=CODE + 64, data_end=CODE + 4096, copies=2)
    assert len(violations(MachineError, [data], both)) == 3  # both copies, and the data
    (text,) = violations(LinkError, [data], dataclasses.replace(base, data_address=CODE + 256))
    assert "overlap" in text
    same = dataclasses.replace(base, copies=2, copy_addresses=(CODE, CODE + 512))
    assert "copy 1 overlaps copy 0" in violations(LinkError, [data], same)[0]


def test_impossible_layouts_name_all_that_is_wrong() -> None:
    with pytest.raises(LinkError) as caught:
        Layout(
            code_address=-1, func_align=3, copy_align=1, copies=0, copy_addresses=(5,), order=["a", "a"],
            data_end=1 << 60, absolute={"s": 1 << 64},
        )  # fmt: skip
    text = str(caught.value)
    for name in ("code_address", "func_align", "copy_align", "copies", "copy_addresses", "order", "data_end", "'s'"):
        assert f"layout.{name}" in text or f"absolute[{name}]" in text


def synthetic(
    relocations: Sequence[tuple[int, int, int, int]], symbols: Mapping[str, tuple[int, int | None]], size: int = 64
) -> bytes:
    """An object with one function `f` of `size` bytes, and symbols {name: (value, section)}."""
    rows = [OutputSymbol("f", 0, size, "function", False, 0)]
    rows += [OutputSymbol(name, value, 0, "none", False, section) for name, (value, section) in symbols.items()]
    code = b"\x13\0\0\0" * (size // 4)
    return write_object([ObjectSection(".text.f", code, "r-x", 4, relocations)], rows, flags=5)


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("BRANCH", -4096, 4094),
        ("JAL", -(1 << 20), (1 << 20) - 2),
        ("RVC_BRANCH", -256, 254),
        ("RVC_JUMP", -2048, 2046),
        ("CALL", -(1 << 31) - 0x800, (1 << 31) - 0x802),
        ("CALL_PLT", -(1 << 31) - 0x800, (1 << 31) - 0x802),
        ("PCREL_HI20", -(1 << 31) - 0x800, (1 << 31) - 0x802),
    ],
)
def test_reach_of_relative_relocations(kind: str, low: int, high: int) -> None:
    where = Layout(code_address=1 << 40, entry="f", absolute={"t": 1 << 40})
    for distance in (low, high):
        link([synthetic([(0, NUMBERS[kind], 1, distance)], {"t": (0, -1)})], where)
    for distance in (low - 2, high + 2):
        (text,) = violations(LinkError, [synthetic([(0, NUMBERS[kind], 1, distance)], {"t": (0, -1)})], where)
        assert f"R_RISCV_{kind} is out of reach, to 't'" in text
    if kind != "PCREL_HI20":
        (text,) = violations(LinkError, [synthetic([(0, NUMBERS[kind], 1, 3)], {"t": (0, -1)})], where)
        assert "odd address" in text


def test_reach_of_absolute_relocations() -> None:
    for kind, good, bad in (("32", 0xFFFF_FFFF, 1 << 32), ("HI20", 0x7FFF_F7FF, 0x7FFF_F800), ("LO12_I", 5, 1 << 40)):
        data = synthetic([(8, NUMBERS[kind], 1, 0)], {"t": (0, -1)})
        link([data], Layout(code_address=CODE, entry="f", absolute={"t": good}))
        assert violations(LinkError, [data], Layout(code_address=CODE, entry="f", absolute={"t": bad}))


def test_bad_relocations_are_named_once_each() -> None:
    data = synthetic(
        [
            (0, NUMBERS["GOT_HI20"], 1, 0),
            (4, 200, 1, 0),
            (62, NUMBERS["JAL"], 0, 0),
            (8, NUMBERS["PCREL_LO12_I"], 0, 0),
        ],
        {"t": (0, 0)},
    )
    text = violations(LinkError, [data], Layout(code_address=CODE, entry="f", copies=3))
    assert len(text) == 4
    for part in (
        "R_RISCV_GOT_HI20 is not",
        "R_RISCV_200 is not",
        "R_RISCV_JAL patches bytes outside",
        "has no R_RISCV_",
    ):
        assert any(part in line for line in text), part


def test_broken_objects_are_refused() -> None:
    good = compile_rv64(PARTS[0])
    rng = random.Random(3)
    assert "not a readable object" in violations(LinkError, [b"", b"x" * 900], layout())[0]
    foreign = bytearray(good)
    struct.pack_into("<H", foreign, 18, 62)
    soft = bytearray(good)
    struct.pack_into("<I", soft, 48, 1)
    assert len(violations(LinkError, [bytes(foreign), bytes(soft)], layout())) == 2
    for _ in range(300):
        data = bytearray(good[: rng.choice((len(good), rng.randrange(len(good))))])
        for _ in range(rng.randrange(1, 4)):
            if data:
                data[rng.choice((rng.randrange(len(data)), rng.randrange(min(64, len(data)))))] = rng.randrange(256)
        try:
            link([bytes(data)], layout(shared=(), entry="sk_main"))
        except (LinkError, MachineError):
            continue


# ---- what other tools say


def test_elf_read_back() -> None:
    image = build(PARTS, copy_of=[0, 1], copies=2)
    elf = ELFFile(io.BytesIO(image.elf()))
    assert (elf["e_type"], elf["e_machine"], elf["e_flags"], elf["e_entry"]) == ("ET_EXEC", "EM_RISCV", 5, image.entry)
    loaded = [s for s in elf.iter_segments() if s["p_type"] == "PT_LOAD"]
    assert [(s["p_vaddr"], s.data(), s["p_memsz"]) for s in loaded] == [
        (s.address, s.data, s.memory_bytes) for s in image.segments
    ]
    assert [s["p_flags"] for s in loaded] == [5, 4, 6]
    table = elf.get_section_by_name(".symtab")
    found = {s.name: (s["st_value"], s["st_size"], s["st_shndx"]) for s in table.iter_symbols() if s.name}
    assert set(found) == {s.name for s in image.symbols}
    for symbol in image.symbols:
        address, size, section = found[symbol.name]
        assert (address, size) == (symbol.address, symbol.size)
        if section == "SHN_ABS":
            assert symbol.name in ("tohost", "sk_private")
            continue
        header = elf.get_section(section)
        assert header["sh_addr"] <= address <= address + size <= header["sh_addr"] + header["sh_size"]
        if symbol.kind == "function":
            assert header.name == f".text.{symbol.name}"


def test_so_many_functions_that_sections_cannot_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from superkernel.codegen.aicore.linking import image as module

    monkeypatch.setattr(module, "SECTIONS_MAX", 5)
    image = build(PARTS, copy_of=[0, 1], copies=2)
    elf = ELFFile(io.BytesIO(image.elf()))
    names = [s.name for s in elf.iter_sections() if s["sh_flags"] & 2]
    assert names == [".text.shared", ".text.copy0", ".text.copy1", ".rodata.constants", ".data.data", ".data.zeros"]
    run(image, 2)


@pytest.mark.skipif(OBJDUMP is None or READELF is None, reason="binutils for RISC-V are not installed")
def test_binutils_read_the_image(tmp_path: Path) -> None:
    file = tmp_path / "image.elf"
    image = build(PARTS, copy_of=[0, 1], copies=2)
    file.write_bytes(image.elf())
    header = subprocess.run([str(READELF), "-aW", str(file)], capture_output=True, text=True, check=True)
    assert "RVC, double-float ABI" in header.stdout
    assert header.stderr == ""
    listing = subprocess.run([str(OBJDUMP), "-d", str(file)], capture_output=True, text=True, check=True).stdout
    assert re.search(r"<sk_main.copy1>:\n(?:.*\n)+?.*<twice.copy1>\n", listing)
    assert "unknown" not in listing


@pytest.mark.skipif(LD is None, reason="binutils for RISC-V are not installed")
def test_binutils_link_the_same_bytes(tmp_path: Path) -> None:
    """Their linker, told our addresses by a script, must come to our bytes."""
    rng = random.Random(8)
    spec = BootSpec(copy_of=[0], private_bytes=4096, exit_address=TOHOST)
    texts, _ = random_program(rng, functions=40, modules=3)
    objects = [encode_boot(spec), *map(compile_rv64, [*texts, PARTS[1].replace("@counter = external global i64", "")])]
    # binutils know no copies: `sk_main.copy0` is a name for them
    image = link(objects, layout(order=["f3", "f1"]))
    script = [f"sk_private = {PRIVATE:#x}; tohost = {TOHOST:#x}; sk_main.copy0 = sk_main; SECTIONS {{"]
    for number, row in enumerate(image.rows):
        owner = int(row.object.split()[1])
        script.append(f'.s{number} {row.address:#x} : {{ {tmp_path}/{owner}.o("{row.section}") }}')
    script.append("/DISCARD/ : { *(*) } }")
    for number, data in enumerate(objects):
        (tmp_path / f"{number}.o").write_bytes(data)
    (tmp_path / "script").write_text("\n".join(script))
    files = [str(tmp_path / f"{n}.o") for n in range(len(objects))]
    command = [str(LD), "--no-relax", "-T", str(tmp_path / "script"), "-o", str(tmp_path / "out.elf"), *files]
    subprocess.run(command, check=True, capture_output=True)
    elf = ELFFile(io.BytesIO((tmp_path / "out.elf").read_bytes()))
    theirs = {s["sh_addr"]: s.data() for s in elf.iter_sections() if s["sh_flags"] & 2 and s["sh_type"] != "SHT_NOBITS"}
    compared = 0
    for row in image.rows:
        if not row.zeros and row.size:
            segment = next(s for s in image.segments if s.address <= row.address < s.address + len(s.data))
            at = row.address - segment.address
            assert segment.data[at : at + row.size] == theirs[row.address], row
            compared += 1
    assert compared > 40


# ---- random programs


def random_program(rng: random.Random, functions: int, modules: int) -> tuple[list[str], list[int]]:
    """Texts of modules whose functions call one another and use data; what `f<n>(1)` returns for each n."""
    home = [rng.randrange(modules) for _ in range(functions)]
    bodies: list[list[str]] = [[] for _ in range(modules)]
    uses: list[set[int]] = [set() for _ in range(modules)]
    plans: list[list[tuple[str, int]]] = []
    for n in range(functions):
        plan = [
            (rng.choice(("mul", "add", "xor", "table")), rng.getrandbits(rng.choice((6, 31, 63)))) for _ in range(3)
        ]
        plan += [("call", rng.randrange(n)) for _ in range(rng.randrange(3) if n else 0)]
        rng.shuffle(plan)
        plans.append(plan)
        lines, value = [], "%x"
        for step, (what, number) in enumerate(plan):
            new = f"%v{step}"
            if what == "call":
                uses[home[n]].add(number)
                lines.append(f"{new} = call i64 @f{number}(i64 {value})")
            elif what == "table":
                place = f"getelementptr (i64, ptr @table{home[n]}, i64 {number % 16})"
                lines += [f"%l{step} = load volatile i64, ptr {place}", f"{new} = add i64 {value}, %l{step}"]
            else:
                lines.append(f"{new} = {what} i64 {value}, {number}")
            value = new
        bodies[home[n]].append(f"define i64 @f{n}(i64 %x) noinline {{\n" + "\n".join(lines) + f"\nret i64 {value}\n}}")
    tables = [[rng.getrandbits(62) for _ in range(16)] for _ in range(modules)]
    rows = [[f"i64 {value}" for value in table] for table in tables]
    texts = [
        "\n".join(
            [
                f"@table{m} = {'constant' if m % 2 else 'global'} [16 x i64] [{', '.join(rows[m])}]",
                *(f"declare i64 @f{n}(i64)" for n in sorted(uses[m]) if home[n] != m),
                *bodies[m],
            ]
        )
        for m in range(modules)
    ]
    calls = "".join(
        f"%r{n} = call i64 @f{n}(i64 1)\nstore i64 %r{n}, ptr getelementptr (i64, ptr @out, i64 {n})\n"
        for n in range(functions)
    )
    declared = "\n".join(f"declare i64 @f{n}(i64)" for n in range(functions))
    texts.append(
        f"@out = global [{functions} x i64] zeroinitializer\n{declared}\n"
        f"define void @sk_main(i64 %hart) {{\n{calls}ret void\n}}\n"
    )

    def value_of(n: int, x: int) -> int:
        for what, number in plans[n]:
            if what == "call":
                x = value_of(number, x)
            elif what == "table":
                x += tables[home[n]][number % 16]
            else:
                x = x * number if what == "mul" else x + number if what == "add" else x ^ number
            x &= MASK
        return x

    return texts, [value_of(n, 1) for n in range(functions)]


@pytest.mark.parametrize("seed", range(4))
def test_random_programs_in_any_order_give_the_same(seed: int) -> None:
    rng = random.Random(seed)
    functions = 24
    texts, expected = random_program(rng, functions, modules=3)
    objects = [compile_rv64(text) for text in texts]
    for _ in range(6):
        copies = rng.choice((1, 1, 2, 3))
        copy = rng.randrange(copies)
        spec = BootSpec(copy_of=[copy], private_bytes=4096, exit_address=TOHOST)
        order = rng.sample([f"f{n}" for n in range(functions)], rng.randrange(functions))
        shuffled = rng.sample([encode_boot(spec), *objects], len(objects) + 1)
        shared = [*SHARED, *rng.sample([f"f{n}" for n in range(functions)], rng.choice((0, 3)))]
        where = layout(order=order, copies=copies, func_align=1 << rng.randrange(1, 13), shared=shared)
        image = link(shuffled, where)
        assert list(words(run(image), image, "out")) == expected


def test_large_programs_link_fast() -> None:
    """5,000 functions and 75,000 relocations; the bound is ten times what it takes."""
    calls = 7
    count, parts = 5000, 5
    objects = []
    for part in range(parts):
        rows = [
            OutputSymbol(f"f{n}", 0, 64, "function", False, n - part * 1000)
            for n in range(part * 1000, part * 1000 + 1000)
        ]
        others = [n for n in range(count) if n // 1000 != part][:: parts - 1]
        first = len(rows)
        rows += [OutputSymbol(f"f{n}", 0, 0, "none", False, -1) for n in others]
        sections = []
        for n in range(1000):
            relocations = [(8 * k, NUMBERS["CALL_PLT"], first + (n + k) % len(others), 0) for k in range(calls)]
            relocations += [(4 * k, NUMBERS["JAL"], n, 0) for k in range(8)]
            sections.append(ObjectSection(f".text.f{part * 1000 + n}", bytes(64), "r-x", 4, relocations))
        objects.append(write_object(sections, rows, flags=5))
    start = time.process_time()
    image = link(objects, Layout(code_address=CODE, entry="f0"))
    assert len(image.elf()) > 640_000
    assert time.process_time() - start < 4
    assert image.code_bytes == count * 128 - 64
