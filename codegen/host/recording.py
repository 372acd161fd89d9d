"""Kernels that record what they touch: the very code that a body compiles to, with a call ahead of each load and store.

Model: a kernel works in a *window*, one stretch of memory that holds all its operands and its scratch. Beside each byte
of the window stands a byte of the shadow that says what became of it:

    READ     a load that begins or ends here found contents from before
    SPANNED  a load that begins before and ends behind found contents from before
    WRITTEN  a store wrote it; loads behind it find what the kernel itself wrote, and are not noted

LLVM's passes run first, so that what is recorded is what runs: registers that the emitter kept on the stack are gone,
and a load that the passes made up is seen. The calls go into the text that LLVM prints, which is then translated as it
stands: better code would take five times as long to make, and runs once. Addresses of window and shadow are constants
in it, so that such code is good for one process and never cached. Kernels contain loads, stores and
prefetches, which touch nothing; on any other instruction that may access memory the pass gives up with an error.
Stack and tables, which no other core can reach, are checked against their own size.

A vector that is picked apart behind its load (every other element of a row) spans bytes that belong to nobody it asked
for. Such bytes lie between two that it did ask for, so they are mapped, and their values are dropped. That is why READ
and SPANNED differ: the first must be declared, the second need not.

Invariant: the recorded kernel computes the same bits as the plain one. One thread at a time may run in a window.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from superkernel.codegen.host.constants import aligned_bytes
from superkernel.codegen.host.lower import machine_of
from superkernel.codegen.llvm import optimised, parsed
from superkernel.core.errors import InternalError
from superkernel.target.cpu import CpuTarget

READ: Final = 1
WRITTEN: Final = 2
SPANNED: Final = 4

PAGE_BYTES: Final = 4096


@dataclass(repr=False)
class MemoryWindow:
    """Memory whose use is recorded. `page_touched` says which pages have anything in `shadow`; `outside` counts
    accesses beyond the window or a stack slot, and holds the first one's address and size."""

    nbytes: int
    memory: NDArray[np.uint8] = field(init=False)
    shadow: NDArray[np.uint8] = field(init=False)
    page_touched: NDArray[np.uint8] = field(init=False)
    outside: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.memory, self.shadow = aligned_bytes(self.nbytes, PAGE_BYTES), np.zeros(self.nbytes, np.uint8)
        self.page_touched, self.outside = np.zeros(-(-self.nbytes // PAGE_BYTES), np.uint8), np.zeros(3, np.int64)

    def clear(self) -> None:
        """Forget what was recorded."""
        for start, stop in self.touched():
            self.shadow[start:stop] = 0
        self.page_touched[:], self.outside[:] = 0, 0

    def touched(self) -> Iterator[tuple[int, int]]:
        """Runs of bytes outside which the shadow is empty."""
        edges = np.flatnonzero(np.diff(self.page_touched, prepend=0, append=0))
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            yield first * PAGE_BYTES, min(last * PAGE_BYTES, self.nbytes)


def recordable(cpu: CpuTarget) -> CpuTarget:
    """The CPU that code which is to be recorded is emitted for: with AMX's tiles emulated, whose loads and stores are
    plain ones."""
    return cpu.emulating_tiles()


def compile_recorded(text: str, cpu: CpuTarget, window: MemoryWindow) -> bytes:
    """As `lower.compile_ir`: object code that records in `window` what it touches there."""
    machine, translating = machine_of(cpu), machine_of(cpu, level=0).open()
    text = recorded(str(optimised(text, machine, machine.open())), window)
    return bytes(translating.emit_object(parsed(text, cpu.triple, translating)))


def recorded(text: str, window: MemoryWindow) -> str:
    """The text of a module as LLVM prints it, with its recorder. Raises InternalError on an instruction that accesses
    memory in a way unknown here."""
    recorder = _Recorder(window, text)
    lines: list[str] = []
    for line in text.splitlines():
        lines += [*recorder.ahead_of(line), line]
    return "\n".join([*lines, *recorder.functions()]) + "\n"


_NAME = r'[%@](?:[\w.$-]+|"[^"]*")'
_DEFINED = re.compile(rf"^define .*?({_NAME})\(", re.MULTILINE)
_TABLE = re.compile(rf"^({_NAME}) = .*?(?:constant|global) (.+)$", re.MULTILINE)
# A plain load or store, and what else accesses memory, in text as LLVM prints it.
ACCESS = re.compile(r"  (?:%\S+ = )?(load|store) (?:volatile )?(.+?), ptr (\S.*?), align \d+(?:, !.*)?$")
OTHER_ACCESS = re.compile(r"= (?:atomicrmw|cmpxchg|va_arg|load|invoke)\b|^  (?:store|fence|invoke)\b")
_CALL = re.compile(rf"\bcall .*?(?:({_NAME})\(|(asm) )")
_POINTER = re.compile(rf"  ({_NAME}) = (getelementptr|select|phi|alloca|freeze) (.*)$")


class _Recorder:
    """Goes through a module line by line; `functions` are what its calls go to."""

    def __init__(self, window: MemoryWindow, text: str) -> None:
        self.window = window
        self.known = set(_DEFINED.findall(text))
        self.sizes = {name: type_bytes(rest) for name, rest in _TABLE.findall(text)}  # of tables and stack slots
        self.sources: dict[str, list[str]] = {}  # of the pointers of this function
        # Phis may name what stands further down: the pointers of a function are gathered when it begins.
        self.bodies = iter(re.findall(r"^define .*?^}", text, re.MULTILINE | re.DOTALL))

    def ahead_of(self, line: str) -> list[str]:
        """The call that belongs ahead of a line of the module."""
        if line.startswith("define "):
            self._enter(next(self.bodies))
        elif found := ACCESS.match(line):
            kind, what, pointer = found.groups()
            return self._call(kind == "store", type_bytes(what), pointer)
        elif OTHER_ACCESS.search(line) or (
            (call := _CALL.search(line)) and not self._is_harmless(line, *call.groups())
        ):
            raise InternalError("this access of memory cannot be recorded", found=line.strip())
        return []

    def _is_harmless(self, line: str, callee: str | None, asm: str | None) -> bool:
        """A call that touches no memory, or goes to code that records what it touches."""
        if asm is not None:
            return 'asm sideeffect "",' in line
        return callee in self.known or callee == "@llvm.prefetch.p0" or "ptr" not in line

    def _enter(self, body: str) -> None:
        self.sources = {}
        for line in body.splitlines():
            if found := _POINTER.match(line):
                name, kind, rest = found.groups()
                if kind == "alloca":
                    self.sizes[name] = type_bytes(rest)
                    self.sources[name] = []
                elif kind == "phi":
                    self.sources[name] = re.findall(rf"\[ ({_NAME}|[^\s,]+), ", rest) if rest.startswith("ptr") else []
                else:
                    self.sources[name] = re.findall(rf"ptr ({_NAME}|\w+)", rest)

    def _roots(self, pointer: str) -> set[str]:
        """What a pointer may be derived from."""
        found, todo, seen = set(), [pointer], set()
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            if self.sources.get(name):
                todo += self.sources[name]
            else:
                found.add(name)
        return found

    def _call(self, is_store: bool, nbytes: int, pointer: str) -> list[str]:
        if inner := re.match(rf"getelementptr .*?ptr ({_NAME})", pointer):
            roots = {inner[1]}
        else:
            roots = self._roots(pointer)
        own = {root for root in roots if root in self.sizes and (root[0] == "@" or root in self.sources)}
        if not own:
            return [f"  call void @sk_{'write' if is_store else 'read'}(ptr {pointer}, i64 {nbytes})"]
        if len(roots) > 1:
            raise InternalError("a pointer leads to the stack or to operands", found=pointer)
        (root,) = roots
        if pointer == root and nbytes <= self.sizes[root]:
            return []
        return [f"  call void @sk_local(ptr {pointer}, ptr {root}, i64 {self.sizes[root] - nbytes}, i64 {nbytes})"]

    def functions(self) -> list[str]:
        """The recorder."""
        window = self.window
        own = f"  %marks = or i8 %old, {WRITTEN}"
        fresh = f"""  %first = icmp eq i64 %i, 0
  %last = icmp eq i64 %next, %bytes
  %edge = or i1 %first, %last
  %kind = select i1 %edge, i8 {READ}, i8 {SPANNED}
  %own = and i8 %old, {WRITTEN}
  %known = icmp ne i8 %own, 0
  %new = select i1 %known, i8 0, i8 %kind
  %marks = or i8 %old, %new"""
        places = {
            "memory": window.memory.ctypes.data,
            "nbytes": window.nbytes,
            "shadow": window.shadow.ctypes.data,
            "pages": window.page_touched.ctypes.data,
            "page_bits": PAGE_BYTES.bit_length() - 1,
        }
        text = _OUTSIDE.format(count=window.outside.ctypes.data)
        text += _MARK.format(name="sk_read", marks=fresh, **places) + _MARK.format(name="sk_write", marks=own, **places)
        return text.splitlines()


def type_bytes(text: str) -> int:
    """Size in memory of the LLVM type that a text begins with. Raises InternalError on one that kernels do not use."""
    if found := re.match(r"[<\[](\d+) x ", text):
        return int(found[1]) * type_bytes(text[found.end() :])
    if found := re.match(r"i(8|16|32|64|128|256|512)\b", text):  # the wide ones: vectors that passes made words of
        return int(found[1]) // 8
    for name, nbytes in (("half", 2), ("bfloat", 2), ("float", 4), ("double", 8), ("ptr", 8)):
        if re.match(rf"{name}\b", text):
            return nbytes
    raise InternalError("a type of unknown size is accessed", found=text)


_OUTSIDE = """
define internal void @sk_outside(i64 %address, i64 %bytes) noinline nounwind {{
  %count.p = inttoptr i64 {count} to ptr
  %count = load i64, ptr %count.p, align 8
  %more = add i64 %count, 1
  store i64 %more, ptr %count.p, align 8
  %first = icmp eq i64 %count, 0
  br i1 %first, label %keep, label %done
keep:
  %address.p = getelementptr i64, ptr %count.p, i64 1
  store i64 %address, ptr %address.p, align 8
  %bytes.p = getelementptr i64, ptr %count.p, i64 2
  store i64 %bytes, ptr %bytes.p, align 8
  br label %done
done:
  ret void
}}
define internal void @sk_local(ptr %at, ptr %root, i64 %limit, i64 %bytes) noinline nounwind {{
  %address = ptrtoint ptr %at to i64
  %start = ptrtoint ptr %root to i64
  %offset = sub i64 %address, %start
  %below = icmp slt i64 %offset, 0
  %above = icmp sgt i64 %offset, %limit
  %bad = or i1 %below, %above
  br i1 %bad, label %tell, label %done
tell:
  call void @sk_outside(i64 %address, i64 %bytes)
  br label %done
done:
  ret void
}}
"""


_MARK = """
define internal void @{name}(ptr %at, i64 %bytes) noinline nounwind {{
start:
  %address = ptrtoint ptr %at to i64
  %offset = sub i64 %address, {memory}
  %limit = sub i64 {nbytes}, %bytes
  %below = icmp slt i64 %offset, 0
  %above = icmp sgt i64 %offset, %limit
  %bad = or i1 %below, %above
  br i1 %bad, label %tell, label %begin
begin:
  %shadow.n = add i64 %offset, {shadow}
  %shadow = inttoptr i64 %shadow.n to ptr
  br label %mark
mark:
  %i = phi i64 [ 0, %begin ], [ %next, %mark ]
  %next = add i64 %i, 1
  %byte = getelementptr i8, ptr %shadow, i64 %i
  %old = load i8, ptr %byte, align 1
{marks}
  store i8 %marks, ptr %byte, align 1
  %more = icmp ult i64 %next, %bytes
  br i1 %more, label %mark, label %pages
pages:
  %end = add i64 %offset, %bytes
  %back = sub i64 %end, 1
  %page.first = lshr i64 %offset, {page_bits}
  %page.last = lshr i64 %back, {page_bits}
  %table = inttoptr i64 {pages} to ptr
  %first.p = getelementptr i8, ptr %table, i64 %page.first
  store i8 1, ptr %first.p, align 1
  %last.p = getelementptr i8, ptr %table, i64 %page.last
  store i8 1, ptr %last.p, align 1
  ret void
tell:
  call void @sk_outside(i64 %address, i64 %bytes)
  ret void
}}
"""
