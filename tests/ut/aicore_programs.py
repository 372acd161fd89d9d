"""Programs for the linker's tests: small modules, a start, random modules with what they compute."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

from superkernel.codegen.aicore.boot import SHARED, BootSpec, encode_boot
from superkernel.codegen.aicore.linking import Image, LinkLayout, link
from superkernel.codegen.aicore.lower import compile_rv64
from superkernel.sim import Machine

CODE, PRIVATE, TOHOST = 0x8000_0000, 0x8020_0000, 0x8040_0000
MASK = (1 << 64) - 1
FEW = "define i64 @{0}(i64 %x) {{\n %y = add i64 %x, {1}\n ret i64 %y\n}}\n"


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


def layout(**options: Any) -> LinkLayout:
    values = {"code_address": CODE, "shared": SHARED, **options}
    values["absolute"] = {"sk_private": PRIVATE, "tohost": TOHOST, **options.get("absolute", {})}
    return LinkLayout(**values)


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


Step = tuple[str, int]  # mul, add, xor with a number; table: add an entry of the module's table; call function n


def random_program(rng: random.Random, functions: int, modules: int) -> tuple[list[str], list[int]]:
    """Texts of modules whose functions call one another and use data; what `f<n>(1)` returns for each n."""
    home = [rng.randrange(modules) for _ in range(functions)]
    steps = [_random_steps(rng, n) for n in range(functions)]
    tables = [[rng.getrandbits(62) for _ in range(16)] for _ in range(modules)]
    texts = []
    for m in range(modules):
        mine = [n for n in range(functions) if home[n] == m]
        called = {number for n in mine for what, number in steps[n] if what == "call"}
        kind = "constant" if m % 2 else "global"
        lines = [f"@table{m} = {kind} [16 x i64] [{', '.join(f'i64 {v}' for v in tables[m])}]"]
        lines += [f"declare i64 @f{n}(i64)" for n in sorted(called) if home[n] != m]
        texts.append("\n".join(lines + [_function_text(n, m, steps[n]) for n in mine]))
    declared = "\n".join(f"declare i64 @f{n}(i64)" for n in range(functions))
    calls = "".join(
        f"%r{n} = call i64 @f{n}(i64 1)\nstore i64 %r{n}, ptr getelementptr (i64, ptr @out, i64 {n})\n"
        for n in range(functions)
    )
    out = f"@out = global [{functions} x i64] zeroinitializer"
    texts.append(f"{out}\n{declared}\ndefine void @sk_main(i64 %hart) {{\n{calls}ret void\n}}\n")

    def value_of(n: int, x: int) -> int:
        for what, number in steps[n]:
            if what == "call":
                x = value_of(number, x)
            elif what == "table":
                x += tables[home[n]][number % 16]
            else:
                x = x * number if what == "mul" else x + number if what == "add" else x ^ number
            x &= MASK
        return x

    return texts, [value_of(n, 1) for n in range(functions)]


def _random_steps(rng: random.Random, n: int) -> list[Step]:
    """What function n does; it calls functions below n only."""
    steps = [(rng.choice(("mul", "add", "xor", "table")), rng.getrandbits(rng.choice((6, 31, 63)))) for _ in range(3)]
    steps += [("call", rng.randrange(n)) for _ in range(rng.randrange(3) if n else 0)]
    rng.shuffle(steps)
    return steps


def _function_text(n: int, module: int, steps: Sequence[Step]) -> str:
    lines, value = [], "%x"
    for step, (what, number) in enumerate(steps):
        new = f"%v{step}"
        if what == "call":
            lines.append(f"{new} = call i64 @f{number}(i64 {value})")
        elif what == "table":
            place = f"getelementptr (i64, ptr @table{module}, i64 {number % 16})"
            lines += [f"%l{step} = load volatile i64, ptr {place}", f"{new} = add i64 {value}, %l{step}"]
        else:
            lines.append(f"{new} = {what} i64 {value}, {number}")
        value = new
    return f"define i64 @f{n}(i64 %x) noinline {{\n" + "\n".join(lines) + f"\nret i64 {value}\n}}"
