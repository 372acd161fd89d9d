"""The simulator as a whole: programs that LLVM compiled, the command line, and QEMU on the same bytes."""

from __future__ import annotations

import ctypes
import json
import math
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import llvmlite.binding as llvm
import pytest
from rv64_link import CODE, RESULTS, executable
from seeds import seeds

from superkernel.sim import CacheGeometry, Machine, run_program

PRIMES = """
@flags = internal global [4096 x i8] zeroinitializer
define void @main(i64 %hart, ptr %out) {
entry:
  br label %outer
outer:
  %p = phi i64 [2, %entry], [%p1, %next]
  %count = phi i64 [0, %entry], [%count1, %next]
  %fp = getelementptr [4096 x i8], ptr @flags, i64 0, i64 %p
  %f = load i8, ptr %fp
  %composite = icmp ne i8 %f, 0
  br i1 %composite, label %next, label %mark
mark:
  %m = phi i64 [%p, %outer], [%m1, %mark]
  %mp = getelementptr [4096 x i8], ptr @flags, i64 0, i64 %m
  store i8 1, ptr %mp
  %m1 = add i64 %m, %p
  %more = icmp ult i64 %m1, 4096
  br i1 %more, label %mark, label %next
next:
  %add = phi i64 [0, %outer], [1, %mark]
  %count1 = add i64 %count, %add
  %p1 = add i64 %p, 1
  %again = icmp ult i64 %p1, 4096
  br i1 %again, label %outer, label %done
done:
  store i64 %count1, ptr %out
  ret void
}
"""

SERIES = """
define double @series(i64 %n) {
entry:
  %end = icmp eq i64 %n, 0
  br i1 %end, label %base, label %recurse
base:
  ret double 1.0
recurse:
  %m = sub i64 %n, 1
  %rest = call double @series(i64 %m)
  %d = uitofp i64 %n to double
  %q = fdiv double %rest, %d
  %s = fadd double %q, 1.0
  ret double %s
}
declare double @llvm.sqrt.f64(double)
define void @main(i64 %hart, ptr %out) {
  %e = call double @series(i64 20)
  store double %e, ptr %out
  %r = call double @llvm.sqrt.f64(double %e)
  %p = getelementptr double, ptr %out, i64 1
  store double %r, ptr %p
  ret void
}
"""

PARALLEL = """
@turn = internal global i64 0
define void @main(i64 %hart, ptr %out) {
entry:
  br label %loop
loop:
  %k = phi i64 [0, %entry], [%k1, %loop]
  %v = mul i64 %k, %hart
  %old = atomicrmw add ptr %out, i64 %v seq_cst
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, 100
  br i1 %more, label %loop, label %meet
meet:
  %arrived = atomicrmw add ptr @turn, i64 1 acq_rel
  br label %wait
wait:
  %seen = load atomic i64, ptr @turn acquire, align 8
  %all = icmp eq i64 %seen, 4
  br i1 %all, label %done, label %wait
done:
  ret void
}
"""


def run(ir: str, words: int, *, level: int = 2, harts: int = 1, quantum: int = 10_000) -> tuple[int, ...]:
    machine = Machine(executable(ir, level=level), harts=harts, quantum=quantum)
    end = machine.run(20_000_000)
    assert (end, machine.exit_code) == ("exited", 0), (end, machine.hart(0))
    return struct.unpack(f"<{words}Q", machine.read(RESULTS, 8 * words))


@pytest.mark.parametrize("level", [0, 1, 2])
def test_compiled_sieve(level: int) -> None:
    primes = [n for n in range(2, 4096) if all(n % d for d in range(2, math.isqrt(n) + 1))]
    assert run(PRIMES, 1, level=level) == (len(primes),)


@pytest.mark.parametrize("level", [0, 2])
def test_compiled_floating_point(level: int) -> None:
    value = 1.0
    for n in range(1, 21):
        value = value / n + 1.0
    assert struct.pack("<2Q", *run(SERIES, 2, level=level)) == struct.pack("<2d", value, math.sqrt(value))


@pytest.mark.parametrize("quantum", [1, 13, 10_000])
def test_compiled_atomics_on_four_harts(quantum: int) -> None:
    assert run(PARALLEL, 1, harts=4, quantum=quantum) == (4950 * 6,)


# ---- random functions, compiled for the host as well

INTEGER_OPS = ("add", "sub", "mul", "and", "or", "xor", "udiv", "urem", "sdiv", "srem", "shl", "lshr", "ashr")
PREDICATES = ("eq", "ne", "slt", "sle", "ult", "uge", "sgt")


class Writer:
    """Random straight-line IR over pools of i64, i32, double and float values; NaNs become 1.0 before they are kept."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.pools: dict[str, list[str]] = {
            "i64": [str(self.random.getrandbits(63)), "%k", "-1", "%hart"],
            "i32": [str(self.random.getrandbits(31)), "-7"],
            "double": ["1.5", "-0.0", "0x7FE0000000000001", "0x3FD5555555555555"],
            "float": ["3.0", "-0.0", "0x47EFFFFFE0000000"],
        }

    def pick(self, kind: str) -> str:
        return self.random.choice(self.pools[kind])

    def emit(self, kind: str, text: str) -> str:
        name = f"%t{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        self.pools[kind].append(name)
        return name

    def emit_float(self, kind: str, text: str) -> None:
        raw = f"%r{len(self.lines)}"
        self.lines.append(f"{raw} = {text}")
        test = f"%n{len(self.lines)}"
        self.lines.append(f"{test} = fcmp uno {kind} {raw}, {raw}")
        self.emit(kind, f"select i1 {test}, {kind} 1.0, {kind} {raw}")

    def step(self) -> None:
        self.random.choice([self.integer, self.integer, self.floating, self.conversion, self.selection])()

    def integer(self) -> None:
        kind = self.random.choice(["i64", "i32"])
        op, a, b = self.random.choice(INTEGER_OPS), self.pick(kind), self.pick(kind)
        if op in ("shl", "lshr", "ashr"):
            b = self.emit(kind, f"and {kind} {b}, {int(kind[1:]) - 1}")
        if op in ("udiv", "urem", "sdiv", "srem"):
            b = self.emit(kind, f"or {kind} {b}, 1")
        if op in ("sdiv", "srem"):
            a = self.emit(kind, f"lshr {kind} {a}, 1")  # never the one quotient that overflows
        self.emit(kind, f"{op} {kind} {a}, {b}")

    def floating(self) -> None:
        kind = self.random.choice(["double", "float"])
        short = "f64" if kind == "double" else "f32"
        a, b, c = (self.pick(kind) for _ in range(3))
        form = self.random.choice(["fadd", "fsub", "fmul", "fdiv", "fma", "sqrt"])
        if form == "fma":
            self.emit_float(kind, f"call {kind} @llvm.fma.{short}({kind} {a}, {kind} {b}, {kind} {c})")
        elif form == "sqrt":
            self.emit_float(kind, f"call {kind} @llvm.sqrt.{short}({kind} {a})")
        else:
            self.emit_float(kind, f"{form} {kind} {a}, {b}")

    def conversion(self) -> None:
        real, whole = self.random.choice(["double", "float"]), self.random.choice(["i64", "i32"])
        short = "f64" if real == "double" else "f32"
        form = self.random.randint(0, 6)
        if form == 0:
            self.emit_float(real, f"{self.random.choice(['sitofp', 'uitofp'])} {whole} {self.pick(whole)} to {real}")
        elif form == 1:
            sign = self.random.choice("su")
            self.emit(whole, f"call {whole} @llvm.fpto{sign}i.sat.{whole}.{short}({real} {self.pick(real)})")
        elif form == 2:
            self.emit_float("double", f"fpext float {self.pick('float')} to double")
        elif form == 3:
            self.emit_float("float", f"fptrunc double {self.pick('double')} to float")
        elif form == 4:
            self.emit("i64", f"{self.random.choice(['sext', 'zext'])} i32 {self.pick('i32')} to i64")
        elif form == 5:
            self.emit("i32", f"trunc i64 {self.pick('i64')} to i32")
        else:
            self.emit("i64", f"bitcast double {self.pick('double')} to i64")

    def selection(self) -> None:
        kind = self.random.choice(list(self.pools))
        test = f"%c{len(self.lines)}"
        if kind[0] == "i":
            text = f"icmp {self.random.choice(PREDICATES)} {kind} {self.pick(kind)}, {self.pick(kind)}"
        else:
            predicate = self.random.choice(["olt", "ole", "ogt", "oeq", "une"])
            text = f"fcmp {predicate} {kind} {self.pick(kind)}, {self.pick(kind)}"
        self.lines.append(f"{test} = {text}")
        self.emit(kind, f"select i1 {test}, {kind} {self.pick(kind)}, {kind} {self.pick(kind)}")


DECLARATIONS = "\n".join(
    f"declare {kind} @llvm.fma.{short}({kind}, {kind}, {kind})\ndeclare {kind} @llvm.sqrt.{short}({kind})\n"
    + "\n".join(
        f"declare {whole} @llvm.fpto{sign}i.sat.{whole}.{short}({kind})" for sign in "su" for whole in ("i32", "i64")
    )
    for kind, short in (("double", "f64"), ("float", "f32"))
)
KEPT = 24
ROUNDS = 8


def random_function(seed: int) -> str:
    """A loop of ROUNDS rounds over random operations; each round stores the last KEPT values of all kinds."""
    writer = Writer(seed)
    for _ in range(90):
        writer.step()
    stores = []
    values = [(kind, name) for kind in writer.pools for name in writer.pools[kind][-KEPT // 4 :]]
    for n, (kind, name) in enumerate(values):
        stores += [f"%p{n} = getelementptr i64, ptr %row, i64 {n}", f"store {kind} {name}, ptr %p{n}"]
    body = "\n  ".join([*writer.lines, *stores])
    return f"""{DECLARATIONS}
define void @main(i64 %hart, ptr %out) {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i1, %loop]
  %k = mul i64 %i, 7046029254386353131
  %offset = mul i64 %i, {KEPT}
  %row = getelementptr i64, ptr %out, i64 %offset
  {body}
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, {ROUNDS}
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


def on_host(ir: str, words: int) -> tuple[int, ...]:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(ir)
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=1, features="+fma")
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    memory = (ctypes.c_uint64 * words)()
    ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_void_p)(engine.get_function_address("main"))(
        0, ctypes.addressof(memory)
    )
    return tuple(memory)


@pytest.mark.parametrize("seed", seeds(12))
def test_random_functions_agree_with_the_host(seed: int) -> None:
    ir = random_function(seed)
    expected = on_host(ir, KEPT * ROUNDS)
    for level in (0, 2):
        assert run(ir, KEPT * ROUNDS, level=level) == expected


# ---- the command line


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "superkernel", "sim", *words], capture_output=True, text=True, timeout=120
    )


def test_the_command_runs_a_program(tmp_path: Path) -> None:
    path = tmp_path / "primes.elf"
    path.write_bytes(executable(PRIMES))
    done = command("run", str(path), "--icache", "32768,128,4,150")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("PASS")
    assert "line fetches missed" in done.stdout
    done = command("run", str(path), "--max-instructions", "100", "--json", "--harts", "2")
    assert done.returncode == 11
    data = json.loads(done.stdout)
    assert (data["end"], data["succeeded"], len(data["harts"])) == ("limit", False, 2)


def test_the_command_tells_bad_programs_and_arguments(tmp_path: Path) -> None:
    path = tmp_path / "broken.elf"
    path.write_bytes(executable(PRIMES)[:100])
    done = command("run", str(path))
    assert done.returncode == 2
    assert "broken.elf" in done.stderr
    path.write_bytes(executable(PRIMES))
    for words in (
        ["--memory-base", "low"],
        ["--memory-base", "0x90000000"],
        ["--harts", "0"],
        ["--icache", "big"],
        ["--quantum", "0"],
        ["--max-instructions", "0"],
        ["--memory", "-1"],
    ):
        done = command("run", str(path), *words, "--json")
        assert done.returncode == 2, words
        assert json.loads(done.stdout)["category"] == "user"


def test_a_result_says_what_happened() -> None:
    result = run_program(executable(SERIES), icache=CacheGeometry(16384))
    assert result.succeeded
    assert result.exit_status == 0
    assert result.harts[0].icache is not None
    assert result.harts[0].cycles == result.harts[0].instructions + 150 * result.harts[0].icache["misses"]


@pytest.mark.serial
def test_speed() -> None:
    """A tight compiled loop runs at hundreds of millions of instructions a second (a loose floor: machines differ)."""
    ir = """
define void @main(i64 %hart, ptr %out) {
entry:
  br label %loop
loop:
  %k = phi i64 [0, %entry], [%k1, %loop]
  %h = phi i64 [0, %entry], [%h3, %loop]
  %h1 = xor i64 %h, %k
  %h2 = mul i64 %h1, 31
  %h3 = add i64 %h2, %k
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, 10000000
  br i1 %more, label %loop, label %done
done:
  store i64 %h3, ptr %out
  ret void
}
"""
    machine = Machine(executable(ir))
    start = time.process_time()
    assert machine.run() == "exited"
    rate = machine.executed / (time.process_time() - start)
    assert machine.executed > 50_000_000
    assert rate > 100e6, f"{rate / 1e6:.0f} million instructions per second"
    assert machine.read(CODE, 1)
