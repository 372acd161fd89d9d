"""What the linker refuses, and how it says so: symbols, layouts, reach of relocations, broken objects."""

from __future__ import annotations

import dataclasses
import random
import struct
from collections.abc import Mapping, Sequence

import pytest
from aicore_programs import CODE, FEW, PARTS, layout

from superkernel.codegen.aicore.linking import LinkLayout, link
from superkernel.codegen.aicore.linking.elf_writer import ObjectSection, OutputSymbol, write_object
from superkernel.codegen.aicore.linking.relocations import NUMBERS
from superkernel.codegen.aicore.lower import compile_rv64
from superkernel.core.errors import LinkError, MachineError


def violations(kind: type[LinkError] | type[MachineError], objects: Sequence[bytes], where: LinkLayout) -> list[str]:
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


@pytest.mark.parametrize(
    ("name", "hint"), [("sk_start.copy2", " (hint: the layout has 2 copies)"), ("no.copy7", ""), ("no", "")]
)
def test_an_undefined_symbol_is_told_with_the_first_section_that_names_it(name: str, hint: str) -> None:
    def made(number: int, *relocations: tuple[int, int, int, int]) -> bytes:
        own = "sk_start" if relocations else f"f{number}"
        code = [ObjectSection(f".text.{own}", bytes([0x13, 0, 0, 0] * 4), "r-x", 4, relocations)]
        code.append(ObjectSection(f".text.g{number}", bytes([0x13, 0, 0, 0] * 4), "r-x", 4, relocations))
        rows = [OutputSymbol(own, 0, 16, "function", False, 0), OutputSymbol(name, 0, 0, "none", False, -1)]
        return write_object(code, rows[: 1 + bool(relocations)], flags=5)

    asks, quiet = made(0, (0, NUMBERS["CALL_PLT"], 1, 0)), [made(1), made(2)]
    for objects in ([asks, *quiet], [quiet[0], asks, quiet[1]], [*quiet, asks]):
        place = f"object 'object {objects.index(asks)}', section '.text.sk_start'"
        found = violations(LinkError, objects, LinkLayout(code_address=CODE, copies=2))
        assert found == [f"{place}: symbol {name!r} is not defined{hint}"]


def test_of_two_weak_symbols_the_first_is_meant_and_the_layout_yields_to_neither() -> None:
    both = [compile_rv64(f"define weak i64 @f(i64 %x) {{\n ret i64 {n}\n}}\n") for n in (1, 2)]
    start = compile_rv64(FEW.format("sk_start", 1))
    image = link([*both, start], LinkLayout(code_address=CODE))
    assert image.symbol("f").object == "object 0"
    fixed = link([*both, start], LinkLayout(code_address=CODE, absolute={"f": 64}))
    assert fixed.symbol("f").address == 64


def test_a_name_that_two_objects_have_for_themselves_is_none_in_the_layout() -> None:
    def made(name: str, local: str) -> bytes:
        attributes = "noinline" if local else ""
        own = f"define internal i64 @{local}(i64 %x) {attributes} {{\n %y = mul i64 %x, %x\n ret i64 %y\n}}\n"
        return compile_rv64(f"{own}define i64 @{name}(i64 %x) {{\n %y = call i64 @{local}(i64 %x)\n ret i64 %y\n}}\n")

    objects = [made("sk_start", "own"), made("f", "own"), made("g", "other")]
    assert link(objects, LinkLayout(code_address=CODE, order=("other", "f")))
    found = violations(LinkError, objects, LinkLayout(code_address=CODE, order=("other", "own")))
    assert found == ["layout.order: no such function; expected a function of the objects; found 'own'"]


def test_a_name_like_that_of_a_copy_is_refused() -> None:
    data = compile_rv64(FEW.format("f", 1) + FEW.format("f.copy1", 2))
    assert link([data], LinkLayout(code_address=CODE, entry="f")).symbol("f.copy1").size
    assert (
        "'f.copy1' has the name of a copy of 'f'"
        in violations(LinkError, [data], LinkLayout(code_address=CODE, entry="f", copies=2))[0]
    )


def test_entry_must_be_a_symbol() -> None:
    found = violations(LinkError, [compile_rv64(FEW.format("f", 1))], LinkLayout(code_address=CODE))
    assert found == ["layout.entry 'sk_start': no entry; found no such global symbol"]


def test_weak_symbols_yield() -> None:
    weak = compile_rv64("define weak i64 @f(i64 %x) {\n ret i64 1\n}\n" + FEW.format("sk_start", 1))
    strong = compile_rv64("define i64 @f(i64 %x) {\n ret i64 2\n}\n")
    for objects in ([weak, strong], [strong, weak]):
        image = link(objects, LinkLayout(code_address=CODE))
        assert image.symbol("f").object == f"object {objects.index(strong)}"


def test_limits() -> None:
    data = compile_rv64("@g = global [2000 x i8] zeroinitializer\n" + "".join(FEW.format(f"f{n}", n) for n in range(9)))
    base = LinkLayout(code_address=CODE, entry="f0")
    last = link([data], base).symbol("f8")
    fits = last.address + last.size
    link([data], dataclasses.replace(base, code_end=fits))
    (text,) = violations(MachineError, [data], dataclasses.replace(base, code_end=fits - 2))
    assert "layout.code_end" in text
    both = dataclasses.replace(base, code_end=CODE + 64, data_end=CODE + 4096, copies=2)
    assert len(violations(MachineError, [data], both)) == 3  # both copies, and the data


def test_impossible_layouts_name_all_that_is_wrong() -> None:
    with pytest.raises(LinkError) as caught:
        LinkLayout(
            code_address=-1, func_align=3, copy_align=1, copies=0, order=["a", "a"], entered_cold=["b", "b"],
            data_end=1 << 60, absolute={"s": 1 << 64},
        )  # fmt: skip
    text = str(caught.value)
    for name in ("code_address", "func_align", "copy_align", "copies", "order", "entered_cold", "data_end", "'s'"):
        assert f"layout.{name}" in text or f"absolute[{name}]" in text


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        *((name, (2, 1 << 20), (1, 0, 3, -2, (1 << 20) - 2, 1 << 21)) for name in ("func_align", "copy_align")),
        ("copies", (1, 1024), (0, 1025)),
        *((name, (0, (1 << 56) - 1), (-1, 1 << 56)) for name in ("code_address", "code_end", "data_end")),
    ],
)
def test_layouts_are_possible_up_to_their_bounds(name: str, good: tuple[int, ...], bad: tuple[int, ...]) -> None:
    made = LinkLayout(code_address=CODE)
    for value in good:
        assert getattr(dataclasses.replace(made, **{name: value}), name) == value  # type: ignore[arg-type]
    for value in bad:
        with pytest.raises(LinkError) as caught:
            dataclasses.replace(made, **{name: value})  # type: ignore[arg-type]
        (wrong,) = caught.value.violations
        assert (wrong.location, wrong.found) == (f"layout.{name}", str(value))


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
        ("CALL", -(1 << 31) - 0x800, (1 << 31) - 0x802),
        ("CALL_PLT", -(1 << 31) - 0x800, (1 << 31) - 0x802),
        ("PCREL_HI20", -(1 << 31) - 0x800, (1 << 31) - 0x802),
    ],
)
def test_reach_of_relative_relocations(kind: str, low: int, high: int) -> None:
    where = LinkLayout(code_address=1 << 40, entry="f", absolute={"t": 1 << 40})
    for distance in (low, high):
        link([synthetic([(0, NUMBERS[kind], 1, distance)], {"t": (0, -1)})], where)
    for distance in (low - 2, high + 2):
        (text,) = violations(LinkError, [synthetic([(0, NUMBERS[kind], 1, distance)], {"t": (0, -1)})], where)
        assert f"R_RISCV_{kind} is out of reach, to 't'" in text
    if kind != "PCREL_HI20":
        (text,) = violations(LinkError, [synthetic([(0, NUMBERS[kind], 1, 3)], {"t": (0, -1)})], where)
        assert "odd address" in text


def test_reach_of_absolute_relocations() -> None:
    data = synthetic([(8, NUMBERS["64"], 1, 0)], {"t": (0, -1)})
    image = link([data], LinkLayout(code_address=CODE, entry="f", absolute={"t": (1 << 63) - 1}))
    place = image.symbol("f").address + 8
    (segment,) = (s for s in image.segments if s.address <= place < s.address + len(s.data))
    begin = place - segment.address
    assert int.from_bytes(segment.data[begin : begin + 8], "little") == (1 << 63) - 1


def test_bad_relocations_are_named_once_each() -> None:
    data = synthetic(
        [
            (0, NUMBERS["GOT_HI20"], 1, 0),
            (4, 200, 1, 0),
            (62, NUMBERS["CALL"], 0, 0),
            (8, NUMBERS["PCREL_LO12_I"], 0, 0),
        ],
        {"t": (0, 0)},
    )
    text = violations(LinkError, [data], LinkLayout(code_address=CODE, entry="f", copies=3))
    assert len(text) == 4
    for part in (
        "R_RISCV_GOT_HI20 is not",
        "R_RISCV_200 is not",
        "R_RISCV_CALL patches bytes outside",
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


def test_a_symbol_table_that_is_longer_than_the_object() -> None:
    data = bytearray(write_object([ObjectSection(".text.f", bytes(4), "r-x", 4, [])], [], flags=5))
    headers, count = int.from_bytes(data[0x28:0x30], "little"), int.from_bytes(data[0x3C:0x3E], "little")
    rows = range(headers, headers + 64 * count, 64)
    (table,) = (at for at in rows if data[at + 4] == 2)
    whole = (len(data) - 24) // 24 * 24
    struct.pack_into("<QQ", data, table + 24, len(data) - whole + 1, whole)
    found = violations(LinkError, [bytes(data)], LinkLayout(code_address=CODE))
    assert any("a table of impossible size" in text and f"{whole} bytes" in text for text in found)
