"""The Python half of the contract in csrc/include/superkernel_abi.h: what generated code needs to know of `SkContext`.

Model: `FIELDS` lists the struct's fields in the order of the header, each with its LLVM type; byte offsets follow from
the C layout rule (every field here is aligned to its own size). Emitters take `OFFSET["flags"]` and never count bytes
themselves.

Invariant: equal to what the C++ compiler says. `tests/ut/test_runtime_abi.py` compares every figure with
`_core.abi_layout()`; change both sides together and raise the version on both.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

ABI_VERSION: Final = 2

FLAG_STRIDE: Final = 16
"""64-bit words between the progress counters of two cores: core p owns flags[p * FLAG_STRIDE]."""

FIELDS: Final[tuple[tuple[str, str], ...]] = (
    ("epoch", "i64"),  # launches done before this one
    ("arena", "ptr"),  # intermediate values
    ("constants", "ptr"),  # packed constants of this kernel alone
    ("io", "ptr"),  # table of base pointers: inputs, outputs, states, shared constants
    ("flags", "ptr"),  # progress counters
    ("scratch", "ptr"),  # core c owns [c * scratch_stride, (c + 1) * scratch_stride)
    ("scratch_stride", "i64"),  # bytes
    ("events", "ptr"),  # time stamps, profiled entry only
    ("events_stride", "i64"),  # 64-bit words
    ("abort", "i32"),  # 1: every core leaves at its next slow wait
    ("spin_limit", "i32"),  # advice: spins before wait_slow is called
    ("wait_slow", "ptr"),  # i32 (ptr ctx, i32 core, i32 producer, i64 threshold, i32 wait)
    ("host_call", "ptr"),  # i32 (ptr ctx, i32 subop)
    ("clock", "ptr"),  # i64 (): ticks, where the CPU has no counter of its own
)

_SIZE: Final = {"i32": 4, "i64": 8, "ptr": 8}


def _offsets() -> dict[str, int]:
    offsets: dict[str, int] = {}
    at = 0
    for name, kind in FIELDS:
        size = _SIZE[kind]
        at = -(-at // size) * size
        offsets[name] = at
        at += size
    return offsets


OFFSET: Final[Mapping[str, int]] = MappingProxyType(_offsets())
"""Byte offset of each field of SkContext."""

CONTEXT_BYTES: Final = -(-(OFFSET[FIELDS[-1][0]] + _SIZE[FIELDS[-1][1]]) // 8) * 8
"""sizeof(SkContext)."""
