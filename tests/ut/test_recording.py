"""What the recorder sees, and what it must refuse: code written by hand, and kernels whose tiling does not say all."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace

import numpy as np
import pytest
from anchor_bodies import anchor_case
from kernel_cases import MAKERS, on_tiles
from kernel_check import Recorded, tiers

from superkernel.codegen.host.features import detect_cpu
from superkernel.codegen.host.loader import LoadedCode
from superkernel.codegen.host.lower import compile_ir
from superkernel.codegen.host.recording import (
    READ,
    SPANNED,
    WRITTEN,
    MemoryWindow,
    compile_recorded,
    recorded,
    type_bytes,
)
from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.core.tensor import Region
from superkernel.ir.body import Body
from superkernel.scheduler.families import HOST_KERNELS, family_of
from superkernel.scheduler.families.pool import PoolTiling
from superkernel.scheduler.hostcall import HOST_REFERENCE
from superkernel.scheduler.tiling import Access, pack_bytes
from superkernel.target.cpu import EMULATED_TILES
from superkernel.target.microcontroller import microcontroller_target, typical_profile

CPU = detect_cpu("")


def record(body: str, nbytes: int = 64, head: str = "") -> MemoryWindow:
    """The record of a function of the window's first byte."""
    window = MemoryWindow(nbytes)
    text = f'{head}\ndefine void @f(ptr %p) "no-builtins" {{\n{body}\n  ret void\n}}\n'
    code = LoadedCode([compile_recorded(text, CPU, window)])
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address("f"))(window.memory.ctypes.data)
    return window


def test_a_load_marks_its_ends_and_what_it_spans() -> None:
    window = record(
        "  %a = load <2 x i32>, ptr %p, align 4\n  %q = getelementptr i8, ptr %p, i64 40\n"
        "  store volatile <2 x i32> %a, ptr %q, align 4"
    )
    want = np.zeros(64, np.uint8)
    want[:8], want[40:48] = [READ, *[SPANNED] * 6, READ], WRITTEN
    assert np.array_equal(window.shadow, want)
    assert list(window.touched()) == [(0, 64)]
    window.clear()
    assert not window.shadow.any()
    assert list(window.touched()) == []


def test_what_the_code_itself_wrote_is_no_read() -> None:
    window = record(
        "  store volatile i8 3, ptr %p, align 1\n  %a = load volatile i16, ptr %p, align 1\n"
        "  %q = getelementptr i8, ptr %p, i64 8\n  store volatile i16 %a, ptr %q, align 1"
    )
    assert window.shadow[:3].tolist() == [WRITTEN, READ, 0]


def test_a_store_of_what_was_there_is_seen() -> None:
    window = record("  %a = load volatile i32, ptr %p, align 4\n  store volatile i32 %a, ptr %p, align 4")
    assert window.shadow[:4].tolist() == [READ | WRITTEN, SPANNED | WRITTEN, SPANNED | WRITTEN, READ | WRITTEN]


@pytest.mark.parametrize("offset", [-1, 61, 1 << 40])
def test_an_access_beyond_the_window_is_counted_and_none_made_in_the_shadow(offset: int) -> None:
    window = MemoryWindow(64)
    text = "define void @f(ptr %p) {\n  store i32 1, ptr %p, align 1\n  ret void\n}\n"
    marked = recorded(text, window).replace("  store i32 1, ptr %p, align 1\n", "", 1)  # not the access itself
    code = LoadedCode([compile_ir(marked, CPU)])
    address = window.memory.ctypes.data + offset
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address("f"))(address)
    assert window.outside.tolist() == [1, address, 4]
    assert not window.shadow.any()


@pytest.mark.parametrize(
    "body",
    [
        "  %a = load atomic i32, ptr %p acquire, align 4",
        "  %a = atomicrmw add ptr %p, i32 1 seq_cst, align 4",
        "  %a = cmpxchg ptr %p, i32 0, i32 1 seq_cst seq_cst, align 4",
        "  call void @llvm.memset.p0.i64(ptr %p, i8 0, i64 %n, i1 false)",
        "  call void @other(ptr %p)",
        '  call void asm sideeffect "nop", "~{memory}"()',
        "  %a = load { i32, i32 }, ptr %p, align 4",
    ],
)
def test_what_cannot_be_recorded_is_refused(body: str) -> None:
    with pytest.raises(InternalError):
        recorded(f"define void @f(ptr %p, i64 %n) {{\n{body}\n  ret void\n}}\n", MemoryWindow(64))


def test_stack_and_tables_are_held_to_their_size() -> None:
    table = "@t = internal constant [4 x i32] [i32 1, i32 2, i32 3, i32 4]"
    body = "  %q = getelementptr i8, ptr {}, i64 %n\n  %a = load volatile i32, ptr %q, align 4"
    for root, slot in (("@t", ""), ("%s", "  %s = alloca [4 x i32], align 4\n")):
        text = f"{table}\ndefine void @f(i64 %n) {{\n{slot}{body.format(root)}\n  ret void\n}}\n"
        for offset, outside in ((0, 0), (12, 0), (13, 1), (-1, 1)):
            window = MemoryWindow(64)
            code = LoadedCode([compile_recorded(text, CPU, window)])
            ctypes.CFUNCTYPE(None, ctypes.c_int64)(code.address("f"))(offset)
            assert window.outside[0] == outside, (root, offset)
            assert not window.shadow.any()


def test_sizes_of_types() -> None:
    sizes = {"i8": 1, "half": 2, "<3 x float> %v": 12, "[2 x <4 x i16>]": 16, "ptr": 8, "double 1.0": 8, "i256 %0": 32}
    assert {text: type_bytes(text) for text in sizes} == sizes


@dataclass(frozen=True)
class Narrow(PoolTiling):
    """A tiling that leaves out the last byte that it reads, or writes."""

    hidden_write: bool = False

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        return tuple(self._narrow(access) for access in super().accesses(body, begin, end))

    def _narrow(self, access: Access) -> Access:
        if access.write is not self.hidden_write or not access.regions:
            return access
        *others, last = access.regions
        shorter = Region(last.start, last.length - 1, last.stride, last.count)
        return Access(access.operand, access.write, (*others, shorter))


@pytest.mark.parametrize(("hidden_write", "told"), [(False, "loads from operand 0"), (True, "stores to operand 1")])
def test_a_tiling_that_does_not_say_all_is_found(hidden_write: bool, told: str) -> None:
    case = anchor_case("max_pool", {"kernel": (2, 2), "strides": (2, 2)}, [((1, 3, 8, 8), DType.of("f32"))])
    (tiling, *_) = family_of("host.pool").tilings("host.pool", case.body, CPU)
    arrays = [np.zeros(o.type.shape, o.type.dtype.numpy) for o in case.body.operands]
    Recorded("host.pool", case.body, tiling, arrays, CPU).check([(0, tiling.units)])
    narrow = Narrow(**vars(tiling), hidden_write=hidden_write)
    with pytest.raises(AssertionError, match=told):
        Recorded("host.pool", case.body, narrow, arrays, CPU).check([(0, tiling.units)])


@pytest.mark.parametrize("tier", [*tiers(), "microcontroller"])
def test_every_kernel_touches_what_its_tiling_declares(tier: str) -> None:
    """A microcontroller's tilings and its arithmetic of bytes, with this machine's instructions."""
    tiled = on_tiles()
    cases = [case for make in MAKERS for case in make()]
    if tier == "microcontroller":
        small = microcontroller_target(typical_profile("cortex-m55"))
        cpu = replace(detect_cpu("plain"), features="+mve", vector_registers=small.vector_registers)
        assert cpu.register_tier == small.register_tier != "plain"
        without = {HOST_REFERENCE, *(kernel for kernel, *_ in tiled)}
    elif tier == "plain":  # tiles are emulated beside FMA alone
        cpu, without = detect_cpu(tier), {HOST_REFERENCE, *(kernel for kernel, *_ in tiled)}
    else:
        cpu, without = detect_cpu(f"{tier}+{EMULATED_TILES}"), {HOST_REFERENCE}
        cases += tiled
    recorded_kernels: set[str] = set()
    for kernel, body, arrays, _ in cases:
        if kernel in recorded_kernels:
            continue
        recorded_kernels.add(kernel)
        tiling = family_of(kernel).tilings(kernel, body, cpu)[0]
        packs = tiling.packs(body)
        given = [
            np.zeros(o.type.shape, o.type.dtype.numpy) if a is None else a
            for a, o in zip(arrays, body.operands, strict=True)
        ]
        packed = [pack_bytes(packs.get(k), a) for k, a in enumerate(given)]
        middle = tiling.units // 2
        Recorded(kernel, body, tiling, packed, cpu).check([(0, middle), (middle, tiling.units)])
    assert recorded_kernels == set(HOST_KERNELS.kernels) - without
