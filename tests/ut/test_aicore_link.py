"""The linker: programs run on the simulator, placement, errors, other tools' opinion, random programs."""

from __future__ import annotations

import io
import random
import re
import shutil
import struct
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from aicore_programs import CODE, FEW, PARTS, PRIVATE, TOHOST, build, layout, random_program, run, words
from elftools.elf.elffile import ELFFile
from seeds import seeds

from superkernel.codegen.aicore.boot import SHARED, BootSpec, encode_boot
from superkernel.codegen.aicore.linking import LinkLayout, link
from superkernel.codegen.aicore.linking.elf_writer import ObjectSection, OutputSymbol, write_object
from superkernel.codegen.aicore.linking.relocations import NUMBERS
from superkernel.codegen.aicore.lower import compile_rv64
from superkernel.core.collection import paused

LD, OBJDUMP, READELF = (shutil.which(f"riscv64-unknown-elf-{tool}") for tool in ("ld", "objdump", "readelf"))


# ---- running


def test_calls_data_and_constants() -> None:
    image = build(PARTS)
    machine = run(image)
    third = struct.unpack("<Q", struct.pack("<d", 7.5 * (1 / 3)))[0]
    assert words(machine, image, "out") == (42, 42, 33, 66, third, TOHOST)


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


def test_names_with_a_meaning() -> None:
    """`f.copy<c>` lies in copy c from anywhere."""
    text = """
@out = global [2 x i64] zeroinitializer
declare void @leaf.copy0()
declare void @leaf.copy1()
define void @sk_main(i64 %hart) {
  store i64 ptrtoint (ptr @leaf.copy0 to i64), ptr @out
  store i64 ptrtoint (ptr @leaf.copy1 to i64), ptr getelementptr (i64, ptr @out, i64 1)
  ret void
}
"""
    image = build([text, LEAF], copy_of=[1], copies=2)
    assert words(run(image), image, "out") == tuple(image.symbol(n).address for n in ("leaf", "leaf.copy1"))


# ---- placement


@pytest.mark.parametrize("align", [2, 64, 128, 4096])
def test_order_and_alignment_are_kept(align: int) -> None:
    names = [f"f{n}" for n in range(20)]
    order = ["f7", "f3", "f19", "f0"]
    objects = [compile_rv64("".join(FEW.format(n, len(n) * 3) for n in names[k : k + 5])) for k in range(0, 20, 5)]
    image = link(objects, LinkLayout(code_address=CODE, func_align=align, order=order, entry="f0"))
    found = [s.name for s in sorted(image.symbols, key=lambda s: s.address)]
    assert found == order + [n for n in names if n not in order]
    at = CODE
    for name in found:
        symbol = image.symbol(name)
        assert symbol.address == -(-at // align) * align
        at = symbol.address + symbol.size
    assert image.code_bytes == at - CODE


@pytest.mark.parametrize("align", [2, 64, 1024])
def test_functions_that_are_entered_cold_start_a_line_of_l2(align: int) -> None:
    names = [f"f{n}" for n in range(9)]
    cold = ["f4", "f7"]
    where = LinkLayout(code_address=CODE, copies=2, func_align=align, order=names, entered_cold=cold, entry="f0")
    image = link([compile_rv64("".join(FEW.format(n, 7) for n in names))], where)
    for copy in ("", ".copy1"):
        at = image.symbol(f"f0{copy}").address
        for name in names:
            symbol = image.symbol(name + copy)
            aligned = max(align, where.copy_align) if name in cold else align
            assert symbol.address == -(-at // aligned) * aligned
            at = symbol.address + symbol.size


def test_copies_are_laid_out_alike() -> None:
    texts = ["".join(FEW.format(f"f{n}", n) for n in range(9)), FEW.format("g", 1 << 40)]
    image = link(
        [compile_rv64(t) for t in texts],
        LinkLayout(code_address=CODE + 128, copies=3, copy_align=1024, shared=["f8"], order=["g"], entry="f0"),
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
    assert int(code[3]) == 7


def test_zeroed_data_takes_no_bytes_of_the_file() -> None:
    image = build(["@big = global [100000 x i64] zeroinitializer\ndefine void @sk_main(i64 %h) {\n ret void\n}\n"])
    data = image.segments[-1]
    assert data.memory_bytes - len(data.data) >= 800_000
    assert len(image.elf()) < 40_000
    assert not any(words(run(image), image, "big"))


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
    assert [s["sh_flags"] for s in elf.iter_sections() if s.name.endswith("tab")] == [0, 0, 0]
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


def test_notes_are_in_the_file_and_not_loaded() -> None:
    image = build(PARTS, copy_of=[0, 1], copies=2)
    notes = (".note.one", b"12345"), (".note.two", b"678")
    elf = ELFFile(io.BytesIO(replace(image, notes=notes).elf()))
    found = [s for s in elf.iter_sections() if s.name.startswith(".note")]
    assert [(s.name, s.data(), s["sh_addr"], s["sh_flags"], s["sh_offset"] % 4) for s in found] == [
        (name, contents, 0, 0, 0) for name, contents in notes
    ]
    plain = ELFFile(io.BytesIO(image.elf()))
    assert [s.data() for s in elf.iter_segments()] == [s.data() for s in plain.iter_segments()]


def test_sections_of_objects_lie_as_they_are_aligned() -> None:
    sections = [ObjectSection(f".text.{n}", bytes([n] * n), "r-x", align) for n, align in ((3, 4), (5, 16), (1, 64))]
    elf = ELFFile(io.BytesIO(write_object(sections, [], flags=5)))
    found = [s for s in elf.iter_sections() if s.name.startswith(".text")]
    assert [s.data() for s in found] == [s.data for s in sections]
    assert [(s["sh_offset"], s["sh_addralign"]) for s in found] == [(64, 4), (80, 16), (128, 64)]


def test_sections_of_programs_are_aligned_as_far_as_a_page() -> None:
    elf = ELFFile(io.BytesIO(build(PARTS, copy_of=[0, 1], copies=2).elf()))
    aligned = {s["sh_addr"]: s["sh_addralign"] for s in elf.iter_sections() if s["sh_addr"]}
    assert aligned == {at: min(4096, at & -at) for at in aligned}
    assert 4096 in aligned.values()


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


@pytest.mark.parametrize("seed", seeds(4))
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
            relocations += [(4 * k, NUMBERS["PCREL_HI20"], n, 0) for k in range(8)]
            sections.append(ObjectSection(f".text.f{part * 1000 + n}", bytes(64), "r-x", 4, relocations))
        objects.append(write_object(sections, rows, flags=5))
    start = time.process_time()
    with paused():  # as compilations do: else what other tests have left is looked through again and again
        image = link(objects, LinkLayout(code_address=CODE, entry="f0"))
        assert len(image.elf()) > 640_000
    assert time.process_time() - start < 4
    assert image.code_bytes == count * 128 - 64
