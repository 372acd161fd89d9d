"""Lowering to RV64: what stands in the objects, what is refused, cache and processes."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from superkernel._core import sim_disassemble, sim_expand_compressed
from superkernel.codegen.aicore.lower import cache_key, compile_modules, compile_rv64
from superkernel.codegen.cache import ObjectCache
from superkernel.core.errors import InternalError

SQUARE = "define i64 @square(i64 %x) {\n %y = mul i64 %x, %x\n ret i64 %y\n}\n"


def sections(data: bytes) -> dict[str, bytes]:
    """Loaded sections that are not empty."""
    elf = ELFFile(io.BytesIO(data))
    return {s.name: s.data() for s in elf.iter_sections() if s["sh_flags"] & 2 and s["sh_size"]}


def undefined(data: bytes) -> set[str]:
    table = ELFFile(io.BytesIO(data)).get_section_by_name(".symtab")
    return {s.name for s in table.iter_symbols() if s["st_shndx"] == "SHN_UNDEF" and s.name}


def instructions(code: bytes) -> list[str]:
    found, at = [], 0
    while at < len(code):
        half = int.from_bytes(code[at : at + 2], "little")
        word = int.from_bytes(code[at : at + 4], "little") if half & 3 == 3 else sim_expand_compressed(half)
        found.append(sim_disassemble(word))
        at += 4 if half & 3 == 3 else 2
    return found


def test_every_function_has_a_section_of_its_own() -> None:
    text = (
        SQUARE
        + 'define void @"odd (name) #1"(ptr %"a)b") unnamed_addr align 16 { store i64 1, ptr %"a)b"\n ret void }\n'
        + 'define internal i64 @kept(i64 %x) noinline section ".elsewhere" { %y = add i64 %x, 7\n ret i64 %y }\n'
        + "define i64 @caller(i64 %x) { %y = call i64 @kept(i64 %x)\n ret i64 %y }\n"
    )
    found = {name for name in sections(compile_rv64(text)) if name.startswith((".text", ".else"))}
    assert found == {".text.square", ".text.odd (name) #1", ".text.kept", ".text.caller"}


def test_attributes_that_are_there_already_do_not_disturb() -> None:
    text = (
        "$f = comdat any\n"
        'define weak_odr i64 @f(i64 noundef %x) local_unnamed_addr #0 section ".text.x" comdat align 64 {\n'
        " ret i64 %x\n}\n"
        'attributes #0 = { nounwind noinline "no-builtins" "no-jump-tables"="true" }\n'
    )
    assert set(sections(compile_rv64(text))) == {".text.f"}


def test_an_object_is_what_the_linker_expects() -> None:
    elf = ELFFile(io.BytesIO(compile_rv64(SQUARE)))
    assert (elf["e_machine"], elf["e_type"], elf["e_flags"]) == ("EM_RISCV", "ET_REL", 5)
    assert not [s.name for s in elf.iter_sections() if s.name.startswith(".eh_frame")]


def test_code_is_optimised_and_the_same_every_time() -> None:
    loop = """
define i64 @sum(i64 %n) {
entry:
  %slot = alloca i64
  store i64 0, ptr %slot
  %v = load i64, ptr %slot
  %w = add i64 %v, %n
  ret i64 %w
}
"""
    data = compile_rv64(loop)
    assert instructions(sections(data)[".text.sum"]) == ["jalr x0,0(x1)"]
    assert compile_rv64(loop) == data


def test_a_volatile_store_of_8_bytes_is_one_store() -> None:
    text = (
        "define void @doorbell(i64 %x) {\n store volatile i64 %x, ptr inttoptr (i64 134217728 to ptr)\n ret void\n}\n"
    )
    stores = [line for line in instructions(sections(compile_rv64(text))[".text.doorbell"]) if line[0] == "s"]
    assert stores == ["sd x10,0(x11)"]


def test_prefetch_and_pause_are_instructions() -> None:
    text = """
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
declare void @llvm.riscv.pause()
define void @f(ptr %p) {
  call void @llvm.prefetch.p0(ptr %p, i32 0, i32 3, i32 0)
  call void @llvm.riscv.pause()
  ret void
}
"""
    assert instructions(sections(compile_rv64(text))[".text.f"])[:2] == ["prefetch.i 0(x10)", "pause"]


def test_loops_do_not_become_calls_of_a_library() -> None:
    text = """
define void @clear(ptr %p, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%j, %loop]
  %q = getelementptr i8, ptr %p, i64 %i
  store i8 0, ptr %q
  %j = add i64 %i, 1
  %more = icmp ult i64 %j, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""
    assert undefined(compile_rv64(text)) == set()


def test_switches_need_no_tables() -> None:
    cases = "\n".join(f"  i64 {n}, label %c{n}" for n in range(12))
    blocks = "\n".join(f"c{n}:\n store volatile i64 {n * n + 3}, ptr %p\n br label %end" for n in range(12))
    text = (
        f"define void @f(i64 %x, ptr %p) {{\n switch i64 %x, label %end [\n{cases}\n]\n{blocks}\nend:\n ret void\n}}\n"
    )
    assert set(sections(compile_rv64(text))) == {".text.f"}


@pytest.mark.parametrize(
    "text",
    [
        "define i64 @f( {",
        "define i64 @f(i64 %x) {\n %y = add i32 %x, 1\n ret i64 %y\n}",
        "define i64 @f(i64 %x) {\n ret i32 0\n}",
        "define void @f() {\n br label %a\na:\n %y = add i64 %z, 1\n %z = add i64 1, 1\n ret void\n}",
    ],
)
def test_invalid_ir_is_refused(text: str) -> None:
    with pytest.raises(InternalError, match="not valid LLVM IR"):
        compile_rv64(text)


@pytest.mark.parametrize(
    "text",
    [
        'define void @f() {\n call void asm sideeffect "nop", ""()\n ret void\n}',
        'define i64 @f(i64 %x) {\n %y = tail call i64 asm "mv $0, $1", "=r,r"(i64 %x)\n ret i64 %y\n}',
        'module asm "nop"\n' + SQUARE,
    ],
)
def test_inline_assembly_is_refused(text: str) -> None:
    with pytest.raises(InternalError, match="inline assembly"):
        compile_rv64(text)


def test_the_word_asm_alone_is_no_assembly() -> None:
    text = (
        '@s = constant [22 x i8] c"call void asm side \\22\\0A)"\n'
        "declare void @asm(ptr)\n"
        "define void @f(ptr %asm) {\n call void @asm(ptr @s)\n call void %asm(i64 1)\n ret void\n}\n"
    )
    assert undefined(compile_rv64(text)) == {"asm"}


def module(n: int) -> str:
    return f"define i64 @f{n}(i64 %x) {{\n %y = mul i64 %x, {3 * n + 1}\n ret i64 %y\n}}\n"


def test_modules_come_from_the_cache_the_second_time(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    told: list[tuple[int, int]] = []
    texts = [module(0), module(1), module(0)]
    first = compile_modules(texts, cache, lambda done, total: told.append((done, total)))
    assert first == [compile_rv64(text) for text in texts]
    assert told[-1] == (2, 2)
    told.clear()
    again = compile_modules([*texts, module(2)], ObjectCache(tmp_path), lambda done, total: told.append((done, total)))
    assert again[:3] == first
    assert told == [(1, 1)]
    assert compile_modules(texts, ObjectCache(None)) == first


def test_the_key_names_what_matters() -> None:
    key = cache_key(SQUARE)
    assert cache_key(SQUARE + "; other") != key
    for part in (SQUARE, "riscv64-unknown-elf", "+zicbop", "lp64d", "LLVM", "medium", "O2"):
        assert part in key


def test_processes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [module(n) for n in range(4)]
    alone = [compile_rv64(text) for text in texts]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert compile_modules(texts, ObjectCache(None)) == alone


def test_an_error_in_another_process_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    with pytest.raises(InternalError, match="not valid LLVM IR"):
        compile_modules([module(0), "nonsense", module(2), module(3)], ObjectCache(None))


def test_numbers_are_made_of_instructions_and_not_loaded() -> None:
    numbers = (0x123456789ABCDEF0, -0x7EDCBA987654321F, (1 << 63) - 0x5555_5555_5555)
    terms = "".join(f" %y{n + 1} = xor i64 %y{n}, {number}\n" for n, number in enumerate(numbers))
    text = f"define i64 @f(i64 %y0) {{\n{terms} ret i64 %y{len(numbers)}\n}}\n"
    text += "define float @g(float %x) {\n %y = fmul float %x, 0x3FF1234560000000\n ret float %y\n}\n"
    found = sections(compile_rv64(text))
    assert set(found) == {".text.f", ".text.g"}
    used = {line.split()[0] for code in found.values() for line in instructions(code)}
    assert not used & {"ld", "lw", "fld", "flw"}
