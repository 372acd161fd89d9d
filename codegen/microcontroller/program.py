"""A program as a table, in LLVM IR: what a core without an operating system runs in place of the host's entries.

Model: one core does its tasks one after the other and waits for nobody, so a program is a list of calls, and stands in
constant memory as one: words of 32 bits, the first the offset of working memory in the arena, then for each call

    the kernel's address, first unit, the one behind the last, the number of its operands,
    and for each operand the number of its base and an offset in bytes;

a word 0 ends it. Bases are the arena (0), the constants (1), then inputs, outputs and states in the order of the
graph. `sk_run` puts the addresses of the bases in a row, takes the table call by call, adds offsets to bases and calls
the kernels. It checks what it is given first: every address aligned and not null, outputs and states apart from
everything else. `sk_reset` puts states back to what they began as.

Invariants: the table holds all that the program does, and nothing else does anything: who reads it back knows the
program. Nothing here allocates, and no other function is called but the kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from superkernel.core.tensor import TensorType
from superkernel.scheduler.schedule import MemoryAddress, Space

RUN, RESET, CONSTANTS, INITIAL, TABLE = "sk_run", "sk_reset", "sk_constants", "sk_initial", "sk_table"
"""Symbols of a program: its functions, packed constants, what states begin as, its table."""
ARENA_ALIGN_BYTES = 64
OK, BAD_ARGUMENT = 0, 6  # SkStatus, csrc/include/superkernel_library.h
_ARENA, _CONSTANTS = 0, 1


@dataclass(frozen=True)
class TableCall:
    """A call of a kernel: its symbol, where its operands lie, its units."""

    symbol: str
    operands: tuple[MemoryAddress, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class TableSpec:
    """What a program is made from. `scratch_offset`: of working memory in the caller's arena, behind the values."""

    calls: tuple[TableCall, ...]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    states: tuple[TensorType, ...]
    arena_bytes: int
    scratch_offset: int

    @property
    def caller(self) -> tuple[TensorType, ...]:
        """What belongs to the caller, in the order of bases."""
        return (*self.inputs, *self.outputs, *self.states)

    def base(self, space: Space, slot: int) -> int:
        """The number of a base."""
        behind = {
            Space.ARENA: 0,
            Space.CONSTANT: 1,
            Space.INPUT: 2,
            Space.OUTPUT: 2 + len(self.inputs),
            Space.STATE: 2 + len(self.inputs) + len(self.outputs),
        }
        return behind[space] + slot


def emit_program(spec: TableSpec) -> str:
    """The IR of a program's module."""
    symbols = sorted({call.symbol for call in spec.calls})
    rows = [word for call in spec.calls for word in _row(spec, call)]
    words = [f"i32 {spec.scratch_offset}", *rows, "i32 0"]
    lines = [
        *(f"declare void @{symbol}()" for symbol in symbols),
        f"@{CONSTANTS} = external constant i8, align 64",
        f"@{INITIAL} = external constant i8, align 64",
        f"@{TABLE} = constant [{len(words)} x i32] [{', '.join(words)}], align 4",
        *_run(spec),
        *_reset(spec),
    ]
    return "\n".join([*lines, 'attributes #0 = { nounwind "no-builtins" }', ""])


def emit_data(name: str, data: bytes) -> str:
    """The IR of a module with constant bytes."""
    text = "".join(f"\\{byte:02x}" for byte in data)
    return f'@{name} = constant [{len(data)} x i8] c"{text}", align 64\n'


def initial_offsets(states: Sequence[TensorType]) -> list[int]:
    """Where each state lies in what they begin as, and the end of all."""
    return [0, *accumulate(-(-kind.nbytes // 8) * 8 for kind in states)]


def _row(spec: TableSpec, call: TableCall) -> Iterator[str]:
    yield f"i32 ptrtoint (ptr @{call.symbol} to i32)"
    yield from (f"i32 {number}" for number in (call.begin, call.end, len(call.operands)))
    for at in call.operands:
        yield from (f"i32 {spec.base(at.space, at.slot)}", f"i32 {at.offset}")


def _run(spec: TableSpec) -> Iterator[str]:
    """`i32 sk_run(arena, inputs, outputs, states)`: of the last three, tables of addresses."""
    count = len(spec.caller)
    yield f"define i32 @{RUN}(ptr %arena, ptr %inputs, ptr %outputs, ptr %states) #0 {{"
    yield "start:"
    yield f"  %bases = alloca [{count + 2} x ptr], align 8"
    number, places = 0, dict[int, str]()
    for table, kinds in (("inputs", spec.inputs), ("outputs", spec.outputs), ("states", spec.states)):
        for k, _ in enumerate(kinds):
            yield f"  %from{number} = getelementptr ptr, ptr %{table}, i32 {k}"
            yield f"  %given{number} = load ptr, ptr %from{number}, align 4"
            places[number] = f"%given{number}"
            number += 1
    yield from _store(_ARENA, "%arena")
    yield from _store(_CONSTANTS, f"@{CONSTANTS}")
    for k, value in places.items():
        yield from _store(2 + k, value)
    yield f"  %working = load i32, ptr @{TABLE}, align 4"
    yield "  %scratch = getelementptr i8, ptr %arena, i32 %working"
    yield f"  %calls = getelementptr i32, ptr @{TABLE}, i32 1"
    yield from _checks(spec)
    yield from _walk(sorted({len(call.operands) for call in spec.calls}))
    yield "}"


def _store(number: int, value: str) -> Iterator[str]:
    yield f"  %base{number} = getelementptr ptr, ptr %bases, i32 {number}"
    yield f"  store ptr {value}, ptr %base{number}, align 4"


def _checks(spec: TableSpec) -> Iterator[str]:
    """From the block at hand to `walk`, or to `bad`."""
    memories = [("%arena", spec.arena_bytes, ARENA_ALIGN_BYTES)]
    memories += [(f"%given{k}", kind.nbytes, kind.dtype.itemsize) for k, kind in enumerate(spec.caller)]
    wrong: list[str] = []
    for k, (value, nbytes, alignment) in enumerate(memories):
        yield f"  %low{k} = ptrtoint ptr {value} to i32"
        yield f"  %high{k} = add i32 %low{k}, {nbytes}"
        yield f"  %off{k} = and i32 %low{k}, {alignment - 1}"
        yield f"  %crooked{k} = icmp ne i32 %off{k}, 0"
        yield f"  %null{k} = icmp eq i32 %low{k}, 0"
        wrong += [f"%crooked{k}", f"%null{k}"]
    first_written = 1 + len(spec.inputs)
    for k in range(len(memories)):
        for other in range(k + 1, len(memories)):
            if k == 0 or other >= first_written:
                yield f"  %ahead{k}.{other} = icmp ult i32 %low{k}, %high{other}"
                yield f"  %behind{k}.{other} = icmp ult i32 %low{other}, %high{k}"
                yield f"  %meet{k}.{other} = and i1 %ahead{k}.{other}, %behind{k}.{other}"
                wrong.append(f"%meet{k}.{other}")
    found = "false"
    for k, each in enumerate(wrong):
        yield f"  %wrong{k} = or i1 {found}, {each}"
        found = f"%wrong{k}"
    yield f"  br i1 {found}, label %bad, label %walk"
    yield "bad:"
    yield f"  ret i32 {BAD_ARGUMENT}"


def _walk(counts: Sequence[int]) -> Iterator[str]:
    """The loop over the table, with a call for each number of operands that occurs."""
    yield "walk:"
    nexts = "".join(f", [ %next{count}, %call{count} ]" for count in counts)
    yield f"  %row = phi ptr [ %calls, %start ]{nexts}"
    yield "  %kernel = load i32, ptr %row, align 4"
    yield "  %over = icmp eq i32 %kernel, 0"
    yield "  br i1 %over, label %done, label %on"
    yield "on:"
    for k, name in enumerate(("begin", "end", "count"), 1):
        yield f"  %{name}.at = getelementptr i32, ptr %row, i32 {k}"
        yield f"  %{name} = load i32, ptr %{name}.at, align 4"
    yield "  %first = zext i32 %begin to i64"
    yield "  %last = zext i32 %end to i64"
    yield "  %code = inttoptr i32 %kernel to ptr"
    cases = " ".join(f"i32 {count}, label %call{count}" for count in counts)
    yield f"  switch i32 %count, label %done [ {cases} ]"
    for count in counts:
        yield f"call{count}:"
        for k in range(count):
            at = f"{count}.{k}"
            yield f"  %numberat{at} = getelementptr i32, ptr %row, i32 {4 + 2 * k}"
            yield f"  %number{at} = load i32, ptr %numberat{at}, align 4"
            yield f"  %offsetat{at} = getelementptr i32, ptr %row, i32 {5 + 2 * k}"
            yield f"  %offset{at} = load i32, ptr %offsetat{at}, align 4"
            yield f"  %baseat{at} = getelementptr ptr, ptr %bases, i32 %number{at}"
            yield f"  %basis{at} = load ptr, ptr %baseat{at}, align 4"
            yield f"  %operand{at} = getelementptr i8, ptr %basis{at}, i32 %offset{at}"
        operands = "".join(f"ptr %operand{count}.{k}, " for k in range(count))
        yield f"  call void %code({operands}ptr %scratch, i64 %first, i64 %last)"
        yield f"  %next{count} = getelementptr i32, ptr %row, i32 {4 + 2 * count}"
        yield "  br label %walk"
    yield "done:"
    yield f"  ret i32 {OK}"


def _reset(spec: TableSpec) -> Iterator[str]:
    """`void sk_reset(states)`: their first contents, byte by byte."""
    yield f"define void @{RESET}(ptr %states) #0 {{"
    yield "start:"
    yield "  br label %state0"
    for k, (kind, offset) in enumerate(zip(spec.states, initial_offsets(spec.states), strict=False)):
        yield f"state{k}:"
        yield f"  %from{k} = getelementptr i8, ptr @{INITIAL}, i32 {offset}"
        yield f"  %at{k} = getelementptr ptr, ptr %states, i32 {k}"
        yield f"  %to{k} = load ptr, ptr %at{k}, align 4"
        yield f"  br label %{f'copy{k}' if kind.nbytes else f'state{k + 1}'}"
        if kind.nbytes == 0:
            continue
        yield f"copy{k}:"
        yield f"  %i{k} = phi i32 [ 0, %state{k} ], [ %n{k}, %copy{k} ]"
        yield f"  %s{k} = getelementptr i8, ptr %from{k}, i32 %i{k}"
        yield f"  %d{k} = getelementptr i8, ptr %to{k}, i32 %i{k}"
        yield f"  %b{k} = load volatile i8, ptr %s{k}, align 1"  # not to become a call of memcpy
        yield f"  store i8 %b{k}, ptr %d{k}, align 1"
        yield f"  %n{k} = add i32 %i{k}, 1"
        yield f"  %e{k} = icmp uge i32 %n{k}, {kind.nbytes}"
        yield f"  br i1 %e{k}, label %state{k + 1}, label %copy{k}"
    yield f"state{len(spec.states)}:"
    yield "  ret void"
    yield "}"
