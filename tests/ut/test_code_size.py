"""The code of a kernel has a bound, whatever window, stride and dilation: LLVM takes seconds over what is unrolled."""

from __future__ import annotations

from typing import Any

import pytest
from anchor_bodies import anchor_case
from odd_shapes import odd_shapes

import superkernel as sk
from superkernel.codegen.host.emitters import emit_ir
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.scheduler.families import family_of
from superkernel.target.cpu import AVX2, AVX512, cpu_target

MOST = 3000
"""Instructions of LLVM's IR ahead of optimisation; a 3 x 3 convolution has 170 to 700."""

WINDOWS = [
    (11, 4, 1, 2), (16, 16, 1, 0), (20, 10, 1, 5), (31, 1, 1, 15), (5, 7, 3, 2), (9, 1, 6, 8), (9, 1, 6, 24),
    (47, 1, 1, 23), (64, 64, 1, 0),
]  # fmt: skip
TIERS = {
    "avx512": cpu_target("x86_64-unknown-linux-gnu", "avx512", (*AVX2, *AVX512)),
    "avx2": cpu_target("x86_64-unknown-linux-gnu", "avx2", AVX2),
    "plain": cpu_target("aarch64-unknown-linux-gnu", "plain", ()),
}
FILTERS: dict[str, tuple[str, tuple[int, int], dict[str, int]]] = {
    "host.conv.igemm": ("conv", (12, 8), {}),
    "host.conv.generic": ("conv", (12, 8), {}),
    "host.conv.depthwise": ("conv", (8, 1), {"groups": 8}),
    "host.conv.transpose": ("conv_transpose", (8, 12), {}),
    "host.conv.nhwc": ("conv", (16, 8), {}),
    "host.conv.depthwise_nhwc": ("conv", (8, 1), {"groups": 8}),
    "host.pool": ("max_pool", (0, 0), {}),
}


def instructions(kernel: str, body: Body) -> int:
    """Of the longest candidate on any tier."""
    family = family_of(kernel)
    texts = [
        emit_ir(kernel, body, tiling, cpu) for cpu in TIERS.values() for tiling in family.tilings(kernel, body, cpu)
    ]
    return max(sum(line.startswith("  ") for line in text.splitlines()) for text in texts)


@pytest.mark.parametrize("kernel", FILTERS)
@pytest.mark.parametrize(("size", "stride", "dilation", "pad"), WINDOWS)
def test_windows(kernel: str, size: int, stride: int, dilation: int, pad: int) -> None:
    op, channels, more = FILTERS[kernel]
    attrs: dict[str, Any] = {"strides": (stride,) * 2, "dilations": (dilation,) * 2, "pads": (pad,) * 4, **more}
    extent = 5 if op == "conv_transpose" else 70
    slots = [((1, 8, extent, extent), DType.F32)]
    if op == "max_pool":
        attrs["kernel"] = (size, size)
    else:
        slots.append(((*channels, size, size), DType.F32))
    layouts = {0: (0, 2, 3, 1)} if kernel.endswith("nhwc") else {}
    body = anchor_case(op, attrs, slots, constants=[1][: len(slots) - 1], layouts=layouts).body
    assert instructions(kernel, body) <= MOST


def test_concatenations() -> None:
    """Two addresses per input are all that grows."""
    few, many = (
        instructions("host.concat", anchor_case("concat", {"axis": 1}, [((4, 10), DType.F32)] * count).body)
        for count in (20, 200)
    )
    assert many - few <= 180 * 5


CODE_BYTES = 64 << 10
"""Of a kernel's object; a 3 x 3 convolution takes 4 to 11 KB, and a resize to 1,000 columns a table of 48."""
ODD = {name: make for name, make in odd_shapes().items() if "1,000,000 columns" not in name}  # a table of 48 MB


@pytest.mark.parametrize("name", ODD)
def test_odd_shapes(name: str) -> None:
    """Every kind of operator: none that LLVM would take long over, none left to NumPy."""
    summary = sk.compile(ODD[name](), threads=2).summary()
    assert summary["code_bytes"] <= CODE_BYTES * summary["distinct_kernels"]
    assert not summary["fallbacks"]
