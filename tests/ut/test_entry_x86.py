"""Entries that are written as machine code do what LLVM's do, and what is wrong in them is refused."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel import _core
from superkernel.backends.host.attest import _recorded, sizes_of
from superkernel.codegen.host import image
from superkernel.codegen.host.entry import emit_entries, emit_waits
from superkernel.codegen.host.entry_spec import BasePointer, EntrySpec, Location, RunTask, SetCount, TaskSpec
from superkernel.codegen.host.entry_x86 import entries_object
from superkernel.codegen.host.features import detect_cpu
from superkernel.codegen.host.image import writes_entries
from superkernel.codegen.host.loader import LoadedCode, _read
from superkernel.codegen.host.lower import compile_ir
from superkernel.core.errors import VerificationError

pytestmark = pytest.mark.skipif(not writes_entries(detect_cpu()), reason="another CPU: LLVM writes its entries")
GRAPH_ROWS = 96
FRESH = sk.Options(cost_placement=False, cache=False)


def graph() -> sk.GraphBuilder:
    """Products, rows, pointwise work with many operands, and results in other orders."""
    rng = np.random.default_rng(2)
    b = sk.GraphBuilder("written")
    x = b.input("x", (GRAPH_ROWS, 64))
    y = b.softmax(x @ b.constant(rng.standard_normal((64, 64), np.float32)))
    parts = [b.input(f"p{i}", (GRAPH_ROWS, 64)) for i in range(7)]
    total = y
    for part in parts:
        total = total * part + y
    b.output(b.transpose(total, perm=(1, 0)) @ y, name="crossed")
    b.output(b.reduce_sum(total, axes=(1,)), name="sums")
    return b


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("threads", "options"),
    [
        (1, {}),
        (2, {}),
        (3, {"cost_placement": False}),
        (6, {"cost_placement": False, "sync": "full"}),  # tables of waits
        (2, {"deny": ("host.softmax*",), "fallback": "allow"}),  # calls of the runtime
    ],
)
def test_they_do_what_llvms_do(threads: int, options: dict[str, Any]) -> None:
    made = sk.compile(graph(), threads=threads, options=sk.Options(**options))._compiled
    found: Any = made.image
    kernels = [data for key, data in found.objects.items() if not key.startswith("entries ")]
    entries = entries_object(found.spec), compile_ir(emit_entries(found.spec, detect_cpu()), detect_cpu(), 0)
    assert entries[0] in found.objects.values()
    assert entries[0] != entries[1]
    planned: Any = made
    sizes = sizes_of(planned, found)
    ours, llvms = (
        _recorded(replace(found, code=LoadedCode([*kernels, data])), made.schedule, sizes) for data in entries
    )
    assert ours is not None
    assert ours == llvms
    assert sum(map(len, ours.program)) >= 4


def _text(data: bytes) -> slice:
    """Where an object has its code."""
    (code,) = (section for section in _read(data).sections if section.flags & 4)
    return slice(code.offset, code.offset + code.size)


def _in_code(pattern: bytes, change: Callable[[re.Match[bytes]], bytes], count: int = 0) -> Callable[[bytes], bytes]:
    """An object in whose code instructions are others."""

    def changed(data: bytes) -> bytes:
        at = _text(data)
        found, number = re.subn(pattern, change, data[at], count=count, flags=re.DOTALL)
        assert number
        return data[: at.start] + found + data[at.stop :]

    return changed


def _moved(by: int) -> Callable[[re.Match[bytes]], bytes]:
    return lambda found: found[1] + struct.pack("<i", struct.unpack("<i", found[2])[0] + by)


def _turned(data: bytes) -> bytes:
    """The table of tasks begins with its second row."""
    (table,) = (section for section in _read(data).sections if section.flags == 2)
    begin, end = table.offset, table.offset + table.size
    return data[:begin] + data[begin + 4 : end] + data[begin : begin + 4] + data[end:]


FAULTS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "passes above and below": (_in_code(rb"\x0f\x82", lambda _: b"\x0f\x84"), "race"),
    "sets another's": (_in_code(rb"(\x49\x89\x84\x24)(....)", _moved(128)), "not its counter"),
    "another task alone": (_turned, "run one by one"),
    "another place": (
        _in_code(rb"([\x49\x4d]\x8d[\x82\x8a\x92\x9a\xaa\xb2\xba])(....)", _moved(64)),
        "behind its memory",
    ),
    "less where it is profiled": (
        _in_code(rb"(\x0f\x31.*?\x48\x89\xdf)\xe8....", lambda found: found[1] + b"\x0f\x1f\x44\x00\x00", 1),
        "when it is profiled",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_bytes_is_refused(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, says = FAULTS[fault]
    monkeypatch.setattr(image, "entries_object", lambda spec: change(entries_object(spec)))
    with pytest.raises(VerificationError, match=says):
        sk.compile(graph(), threads=2, options=FRESH)


@pytest.mark.parametrize("offset", [0, 1, (1 << 31) - 1, 1 << 31, (1 << 33) + 5])
def test_offsets_and_units_of_any_size(offset: int) -> None:
    places = Location(BasePointer.ARENA, offset), Location(BasePointer.CONSTANTS, offset)
    task = TaskSpec(0, 0, "kernel", (*places, Location(BasePointer.IO, offset, 1)), offset, offset + 1)
    spec, cpu = EntrySpec((task,), ((RunTask(0),),), (0,), 1), detect_cpu()
    kernel = compile_ir("define void @kernel() {\n  ret void\n}\n", cpu, 0)
    waits, llvms = compile_ir(emit_waits(cpu), cpu), compile_ir(emit_entries(spec, cpu), cpu, 0)
    for entries in entries_object(spec), llvms:
        code = LoadedCode([kernel, waits, entries])
        rows = _core.record_program(
            entry=code.address("sk_entry"),
            profiled=code.address("sk_profiled"),
            single=code.address("sk_single"),
            cores=1,
            subops=1,
            kernels=[(code.address("kernel"), 3)],
            regions=[1 << 34, 1 << 34, 64, 64, 1 << 34],
            scratch_stride=64,
            events_words=spec.events_words,
        )
        assert rows == [[(0, 0, offset, offset + 1, 0, offset, 1, offset, 4, offset, 2, 0)]]


def test_numbers_without_room_and_strange_parts_are_refused() -> None:
    steps = (SetCount(1 << 40),)
    with pytest.raises(OverflowError, match="no room"):
        entries_object(EntrySpec((), (steps,), (1 << 40,), 0))
    with pytest.raises(TypeError, match="not a step"):
        entries_object(EntrySpec((), (("set",),), (0,), 0))  # type: ignore[arg-type]
    wrong: Any = Location("arena", 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not a base pointer"):
        entries_object(EntrySpec((TaskSpec(0, 0, "kernel", (wrong,), 0, 1),), ((),), (0,), 1))
    with pytest.raises(IndexError):
        entries_object(EntrySpec((), ((RunTask(0),),), (0,), 0))
