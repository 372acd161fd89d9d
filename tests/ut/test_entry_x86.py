"""Entries that are written as machine code do what LLVM's do, and what is wrong in them is refused."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel.backends.host.attest import _recorded, sizes_of
from superkernel.codegen.host import entry_x86
from superkernel.codegen.host.entry import emit_entries
from superkernel.codegen.host.entry_spec import BasePointer, Location
from superkernel.codegen.host.entry_x86 import entries_object
from superkernel.codegen.host.features import detect_cpu
from superkernel.codegen.host.image import writes_entries
from superkernel.codegen.host.loader import LoadedCode
from superkernel.codegen.host.lower import compile_ir
from superkernel.codegen.host.x86_code import JB, JE, R10, R12, RAX, RDI, X86Code
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
    image: Any = made.image
    kernels = [data for key, data in image.objects.items() if not key.startswith("entries ")]
    entries = entries_object(image.spec), compile_ir(emit_entries(image.spec, detect_cpu()), detect_cpu(), 0)
    assert entries[0] in image.objects.values()
    assert entries[0] != entries[1]
    planned: Any = made
    sizes = sizes_of(planned, image)
    ours, llvms = (
        _recorded(replace(image, code=LoadedCode([*kernels, data])), made.schedule, sizes) for data in entries
    )
    assert ours is not None
    assert ours == llvms
    assert sum(map(len, ours.program)) >= 4


def _dropped(of: Callable[..., None]) -> Callable[..., None]:
    def written(self: Any) -> None:
        if self.profiled:
            first = self.spec.programs[self.core][1:]
            self.spec = replace(
                self.spec, programs=tuple(first if c == self.core else p for c, p in enumerate(self.spec.programs))
            )
        of(self)

    return written


def _changed(of: Callable[..., None], change: Callable[..., tuple[Any, ...]]) -> Callable[..., None]:
    return lambda self, *args: of(self, *change(*args))


FAULTS: dict[str, tuple[Any, str, Callable[..., Any], str]] = {
    "passes above and below": (
        X86Code, "jump", lambda label, *c: (label, *(JE if each == JB else each for each in c)), "race",
    ),
    "sets another's": (
        X86Code, "store", lambda base, at, value: (base, at + (128 if base == R12 else 0), value), "not its counter",
    ),
    "another task alone": (
        X86Code, "address_of_table", lambda to, numbers: (to, [*numbers[1:], *numbers[:1]]), "run one by one",
    ),
    "another place": (
        X86Code, "address", lambda to, base, at: (to, base, at + 64 * (base == R10)), "behind its memory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_bytes_is_refused(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, name, change, says = FAULTS[fault]
    monkeypatch.setattr(kind, name, _changed(getattr(kind, name), change))
    with pytest.raises(VerificationError, match=says):
        sk.compile(graph(), threads=2, options=FRESH)


def test_a_profiled_entry_that_does_less_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_x86._Core, "write", _dropped(entry_x86._Core.write))
    with pytest.raises(VerificationError, match="when it is profiled"):
        sk.compile(graph(), threads=2, options=FRESH)


@pytest.mark.parametrize("offset", [0, 1, (1 << 31) - 1, 1 << 31, (1 << 33) + 5])
def test_offsets_and_numbers_of_any_size(offset: int) -> None:
    code = X86Code()
    code.begin("address")
    code.address(RAX, RDI, offset)
    code.back()
    code.end("address", seen=True)
    code.begin("sum")
    code.move(RAX, RDI)
    entry_x86._add_offset(code, RAX, offset)
    code.back()
    code.end("sum", seen=True)
    code.begin("number")
    code.number(RAX, -offset)
    code.back()
    code.end("number", seen=True)
    loaded = LoadedCode([code.object()])
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    assert [call(loaded.address(name))(1000) for name in ("address", "sum")] == [1000 + offset] * 2
    assert call(loaded.address("number"))(0) == -offset


def test_an_operand_far_behind_its_base() -> None:
    """An io table whose array is long: the pointer is found through it."""
    code = X86Code()
    code.begin("find")
    entry_x86._locate(code, RAX, RDI, Location(BasePointer.IO, 1 << 32, 2))
    code.back()
    code.end("find", seen=True)
    table = (ctypes.c_int64 * 3)(11, 22, 33)
    context = np.zeros(128, np.uint8)
    context.view(np.int64)[3] = ctypes.addressof(table)
    loaded = LoadedCode([code.object()])
    found = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(loaded.address("find"))(context.ctypes.data)
    assert found == 33 + (1 << 32)
