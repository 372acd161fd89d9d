"""Tiny kernels for the runtime's tests: LLVM text, compiled in the process.

Every kernel here takes part in the real protocol: progress counters with acquire and release, waits that spin
`spin_limit` times and then call `wait_slow`, the arena, scratch, constants and events behind SkContext.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from superkernel import _core
from superkernel.codegen.host.abi import FLAG_STRIDE, OFFSET

STRIDE = FLAG_STRIDE


def _load(name: str, field: str, kind: str) -> str:
    return f"  %{name}.at = getelementptr i8, ptr %ctx, i64 {OFFSET[field]}\n  %{name} = load {kind}, ptr %{name}.at\n"


def _io(name: str, index: int) -> str:
    return f"  %{name}.slot = getelementptr ptr, ptr %io, i64 {index}\n  %{name} = load ptr, ptr %{name}.slot\n"


WAIT = f"""
define internal i32 @wait(ptr %ctx, i32 %core, i32 %producer, i64 %threshold, i32 %wait) {{
entry:
{_load("flags", "flags", "ptr")}{_load("limit", "spin_limit", "i32")}{_load("slow", "wait_slow", "ptr")}
  %p = sext i32 %producer to i64
  %word = mul i64 %p, {STRIDE}
  %flag = getelementptr i64, ptr %flags, i64 %word
  br label %spin
spin:
  %n = phi i32 [0, %entry], [%next, %more], [0, %call]
  %value = load atomic i64, ptr %flag acquire, align 8
  %ready = icmp uge i64 %value, %threshold
  br i1 %ready, label %done, label %more_or_call
more_or_call:
  %next = add i32 %n, 1
  %enough = icmp uge i32 %next, %limit
  br i1 %enough, label %call, label %more
more:
  call void @llvm.x86.sse2.pause()
  br label %spin
call:
  %rc = call i32 %slow(ptr %ctx, i32 %core, i32 %producer, i64 %threshold, i32 %wait)
  %give_up = icmp ne i32 %rc, 0
  br i1 %give_up, label %abort, label %spin
done:
  ret i32 0
abort:
  ret i32 1
}}
declare void @llvm.x86.sse2.pause()

define internal void @set(ptr %ctx, i32 %core, i64 %value) {{
{_load("flags", "flags", "ptr")}
  %c = sext i32 %core to i64
  %word = mul i64 %c, {STRIDE}
  %flag = getelementptr i64, ptr %flags, i64 %word
  store atomic i64 %value, ptr %flag release, align 8
  ret void
}}
"""

# io[0]: i64 per core (one line each), raised by one; io[1]: i64 per core: the sum all cores see behind the exchange;
# io[2]: one i64: where 1, core 1 never sets its counter; constants: i64 number of cores.
EXCHANGE = f"""
define i32 @exchange(ptr %ctx, i32 %core) {{
entry:
{_load("epoch", "epoch", "i64")}{_load("io", "io", "ptr")}{_load("constants", "constants", "ptr")}
{_io("values", 0)}{_io("sums", 1)}{_io("mode", 2)}
  %cores = load i64, ptr %constants
  %c = sext i32 %core to i64
  %mine.word = mul i64 %c, {STRIDE}
  %mine = getelementptr i64, ptr %values, i64 %mine.word
  %old = load i64, ptr %mine
  %new = add i64 %old, 1
  store i64 %new, ptr %mine
  %threshold = add i64 %epoch, 1
  %mode.value = load i64, ptr %mode
  %is1 = icmp eq i32 %core, 1
  %special = select i1 %is1, i64 %mode.value, i64 0
  switch i64 %special, label %publish [
    i64 1, label %at.work
    i64 2, label %loop
  ]
at.work:
  %abort.at = getelementptr i8, ptr %ctx, i64 {OFFSET["abort"]}
  %given.up = load atomic i32, ptr %abort.at monotonic, align 4
  %stays = icmp eq i32 %given.up, 0
  br i1 %stays, label %at.work, label %loop
publish:
  call void @set(ptr %ctx, i32 %core, i64 %threshold)
  br label %loop
loop:
  %p = phi i64 [0, %entry], [0, %at.work], [0, %publish], [%p.next, %add]
  %sum = phi i64 [0, %entry], [0, %at.work], [0, %publish], [%sum.next, %add]
  %end = icmp uge i64 %p, %cores
  br i1 %end, label %finish, label %body
body:
  %p32 = trunc i64 %p to i32
  %wait.id = add i32 %p32, 100
  %rc = call i32 @wait(ptr %ctx, i32 %core, i32 %p32, i64 %threshold, i32 %wait.id)
  %bad = icmp ne i32 %rc, 0
  br i1 %bad, label %abort, label %add
add:
  %word = mul i64 %p, {STRIDE}
  %at = getelementptr i64, ptr %values, i64 %word
  %value = load i64, ptr %at
  %sum.next = add i64 %sum, %value
  %p.next = add i64 %p, 1
  br label %loop
finish:
  %out = getelementptr i64, ptr %sums, i64 %c
  store i64 %sum, ptr %out
  ret i32 0
abort:
  ret i32 1
}}
"""

# Core 0 calls the host with sub-operator 7, then sets its counter; the others wait for it.
HOST = f"""
define i32 @host(ptr %ctx, i32 %core) {{
entry:
{_load("epoch", "epoch", "i64")}{_load("call", "host_call", "ptr")}
  %threshold = add i64 %epoch, 1
  %is0 = icmp eq i32 %core, 0
  br i1 %is0, label %first, label %other
first:
  %rc0 = call i32 %call(ptr %ctx, i32 7)
  %bad = icmp ne i32 %rc0, 0
  br i1 %bad, label %abort, label %publish
publish:
  call void @set(ptr %ctx, i32 0, i64 %threshold)
  ret i32 0
other:
  %rc = call i32 @wait(ptr %ctx, i32 %core, i32 0, i64 %threshold, i32 3)
  ret i32 %rc
abort:
  ret i32 1
}}
"""

# Core 1 asks for the host call of sub-operator 9 and fails, as a kernel that finds data out of range; the others wait.
REFUSE = f"""
define i32 @refuse(ptr %ctx, i32 %core) {{
entry:
{_load("epoch", "epoch", "i64")}{_load("call", "host_call", "ptr")}
  %threshold = add i64 %epoch, 1
  %is1 = icmp eq i32 %core, 1
  br i1 %is1, label %asks, label %other
asks:
  call i32 %call(ptr %ctx, i32 9)
  ret i32 1
other:
  %rc = call i32 @wait(ptr %ctx, i32 %core, i32 1, i64 %threshold, i32 3)
  ret i32 %rc
}}
"""

# Adds subop + 1 to io[0][core * STRIDE].
SINGLE = f"""
define i32 @single(ptr %ctx, i32 %core, i32 %subop) {{
{_load("io", "io", "ptr")}{_io("values", 0)}
  %c = sext i32 %core to i64
  %word = mul i64 %c, {STRIDE}
  %at = getelementptr i64, ptr %values, i64 %word
  %old = load i64, ptr %at
  %s = sext i32 %subop to i64
  %s1 = add i64 %s, 1
  %new = add i64 %old, %s1
  store i64 %new, ptr %at
  ret i32 0
}}
"""

# Writes 1000 * (core + 1) + i into the first three event words of its core, then sets its counter once; scratch and
# arena get a byte each, so that wrong strides crash or collide.
PROFILED = f"""
define i32 @profiled(ptr %ctx, i32 %core) {{
{_load("epoch", "epoch", "i64")}{_load("events", "events", "ptr")}{_load("stride", "events_stride", "i64")}
{_load("scratch", "scratch", "ptr")}{_load("scratch_stride", "scratch_stride", "i64")}
  %c = sext i32 %core to i64
  %word = mul i64 %c, %stride
  %row = getelementptr i64, ptr %events, i64 %word
  %c1 = add i64 %c, 1
  %v0 = mul i64 %c1, 1000
  %v1 = add i64 %v0, 1
  %v2 = add i64 %v0, 2
  store i64 %v0, ptr %row
  %row1 = getelementptr i64, ptr %row, i64 1
  store i64 %v1, ptr %row1
  %row2 = getelementptr i64, ptr %row, i64 2
  store i64 %v2, ptr %row2
  %off = mul i64 %c, %scratch_stride
  %mine = getelementptr i8, ptr %scratch, i64 %off
  store i64 %c, ptr %mine
  %threshold = add i64 %epoch, 1
  call void @set(ptr %ctx, i32 %core, i64 %threshold)
  ret i32 0
}}
"""

# io[0][0] = the quotient 1/3 as the core's rounding mode gives it, per core one i32.
ROUNDING = f"""
define i32 @rounding(ptr %ctx, i32 %core) {{
{_load("io", "io", "ptr")}{_io("values", 0)}{_io("inputs", 1)}
  %c = sext i32 %core to i64
  %a = load volatile float, ptr %inputs
  %b.at = getelementptr float, ptr %inputs, i64 1
  %b = load volatile float, ptr %b.at
  %q = fmul float %a, %b
  %at = getelementptr float, ptr %values, i64 %c
  store float %q, ptr %at
  ret i32 0
}}
"""

# Waits for what only itself could set.
SELF_WAIT = f"""
define i32 @self_wait(ptr %ctx, i32 %core) {{
{_load("epoch", "epoch", "i64")}
  %threshold = add i64 %epoch, 1
  %rc = call i32 @wait(ptr %ctx, i32 %core, i32 %core, i64 %threshold, i32 9)
  ret i32 %rc
}}
"""

# Raises io[0], an i64 per core (one line each), by one.
COUNT = """
define i32 @count(ptr %ctx, i32 %core) {
  %rc = call i32 @single(ptr %ctx, i32 %core, i32 0)
  ret i32 %rc
}
"""

NOTHING = "define i32 @nothing(ptr %ctx, i32 %core) {\n  ret i32 0\n}\n"
FAILS = "define i32 @fails(ptr %ctx, i32 %core) {\n  ret i32 1\n}\n"

_engines: list[Any] = []


def _compile() -> dict[str, int]:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = "\n".join([WAIT, EXCHANGE, HOST, REFUSE, SINGLE, PROFILED, ROUNDING, SELF_WAIT, COUNT, NOTHING, FAILS])
    module = llvm.parse_assembly(text)
    module.triple = llvm.get_process_triple()
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2, codemodel="default", reloc="pic")
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _engines.append(engine)
    names = ("exchange", "host", "refuse", "single", "profiled", "rounding", "self_wait", "count", "nothing", "fails")
    return {name: engine.get_function_address(name) for name in names}


ADDRESS = _compile()


@dataclass
class Exchange:
    """The exchange kernel with its arrays; `run()` checks what every core saw."""

    cores: int
    kernel: _core.Kernel
    values: np.ndarray
    sums: np.ndarray
    mode: np.ndarray
    runs: int = 0

    @property
    def io(self) -> list[np.ndarray]:
        return [self.values, self.sums, self.mode]

    def run(self, **options: int) -> None:
        self.kernel.run(self.io, **options)
        self.runs += 1
        assert self.sums.tolist() == [self.cores * self.runs] * self.cores


def make_kernel(cores: int = 2, io_count: int = 0, **changes: Any) -> _core.Kernel:
    """A kernel that does nothing, changed as told."""
    arguments: dict[str, Any] = {
        "entry": ADDRESS["nothing"],
        "single": ADDRESS["single"],
        "profiled": ADDRESS["profiled"],
        "cores": cores,
        "arena_bytes": 4096,
        "scratch_bytes": 100,
        "constants": None,
        "io_count": io_count,
        "sets": [],
        "subops": 0,
        "events_words": 5,
    }
    return _core.Kernel(**(arguments | changes))


def make_exchange(cores: int = 2, **changes: Any) -> Exchange:
    constants = np.array([cores], np.int64)
    options: dict[str, Any] = {"entry": ADDRESS["exchange"], "constants": constants, "sets": [1] * cores}
    kernel = make_kernel(cores, 3, **(options | changes))
    zeros = np.zeros(cores * STRIDE, np.int64)
    return Exchange(cores, kernel, zeros, np.zeros(cores, np.int64), np.zeros(1, np.int64))
