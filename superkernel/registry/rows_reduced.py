"""The host's rows of reduced precision: f32 problems computed in narrow formats where the policy allows it.

Model: a row is eligible only where `policy.precision` names its precision; the f32 rows stay eligible, so that what is
taken is the faster by estimate and a problem without a narrow kernel is computed in f32. A CPU that has the
instructions of a format has two rows of its tier, with and without them.

Of few rows only the weights are bytes: more exact, and what streams past decides the time anyway.

The numbers of `error_ulps` are relative to the largest sum of |x| |w|; docs/numerics.md has the bounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from superkernel.core.dtypes import DType
from superkernel.ops.opdef import FLOATS
from superkernel.registry.names import TIER_TOKENS, KernelName, format_name, make_params
from superkernel.registry.predicates import Clause, Reason, one_of, within
from superkernel.registry.records import Capability, KernelRole, NumericClass, Transform
from superkernel.target.cpu import AVX2, AVX512

TIER_FEATURES = {"avx512": frozenset(AVX2 + AVX512), "avx2": frozenset(AVX2), "plain": frozenset[str]()}
_CHANNELS_LAST = one_of(Reason.LAYOUT, "layout", "channels_last")
_WINOGRAD_LIMITS = (
    _CHANNELS_LAST,
    one_of(Reason.RANK, "spatial", 2),
    one_of(Reason.SHAPE, "taps", 9),
    *(one_of(Reason.SHAPE, f"window_{name}", 3) for name in ("rows", "columns")),
    *(one_of(Reason.STRIDE, f"stride_{name}", 1) for name in ("rows", "columns")),
    one_of(Reason.GROUPS, "groups", 1),
    within(Reason.SHAPE, "channels", 8),
)
_ATTENTION_OTHERS = (
    FLOATS | {DType.BOOL},
    frozenset({DType.I32, DType.I64}),
    frozenset({DType.I32}),
)

REDUCED = ("bf16", "int8", "tf32-like")
"""Precisions that a policy may allow."""

_TILES = {"avx512": (14, 32), "avx2": (6, 16), "plain": (6, 8)}
_STREAM_TILES = {"avx512": (1, 64), "avx2": (1, 32), "plain": (1, 16)}
_F32 = frozenset({DType.F32})
_FEW_ROWS = within(Reason.SHAPE, "m", 1, 6)
_MANY_ROWS = within(Reason.SHAPE, "m", 7)
_POINTWISE = (
    one_of(Reason.LAYOUT, "layout", "channels_last"),
    within(Reason.RANK, "spatial", 1, 2),
    one_of(Reason.SHAPE, "taps", 1),
    *(one_of(Reason.STRIDE, f"stride_{name}", 1) for name in ("rows", "columns")),
    one_of(Reason.GROUPS, "groups", 1),
    one_of(Reason.PADDING, "attr.pads", None, (), (0, 0), (0, 0, 0, 0)),
)
_MANY_PIXELS = within(Reason.SHAPE, "n", 7)
_INT8_DEPTHS = within(Reason.SHAPE, "k", 1, 1 << 16)


@dataclass(frozen=True)
class _Narrow:
    """What the variants of a kernel share."""

    kernel: str
    precision: str
    words: tuple[str, ...]  # of the canonical name, behind f32
    micro: str
    error_ulps: float
    instruction: str = ""  # LLVM's feature that computes it, "" where none does
    modifier: str = ""
    limits: tuple[Clause, ...] = ()
    op: str = "matmul"
    layouts: tuple[str, ...] = ("dense", "view")


_EVERY_LAYOUT = ("dense", "view", "program")
_IMAGES = (_CHANNELS_LAST, within(Reason.RANK, "spatial", 1, 2))
_KERNELS = (
    _Narrow("host.matmul.bf16", "bf16", ("bf16",), "gemm", 2.0**16, "avx512bf16"),
    _Narrow("host.matmul.gemv_bf16", "bf16", ("bf16",), "gemv", 2.0**16, "avx512bf16", limits=(_FEW_ROWS,)),
    _Narrow("host.matmul.tf32", "tf32-like", ("bf16",), "gemm", 2.0**9, "avx512bf16", "x3"),
    _Narrow(
        "host.matmul.int8", "int8", ("qd8", "qc8w"), "gemm", 2.0**18, "avx512vnni", limits=(_MANY_ROWS, _INT8_DEPTHS)
    ),
    _Narrow(
        "host.matmul.gemv_int8", "int8", ("qc8w",), "gemv", 2.0**17, "avx512vnni", limits=(_FEW_ROWS, _INT8_DEPTHS)
    ),
    _Narrow("host.conv.bf16", "bf16", ("bf16",), "conv", 2.0**16, "avx512bf16", limits=_POINTWISE, op="conv"),
    _Narrow(
        "host.conv.int8", "int8", ("qd8", "qc8w"), "conv", 2.0**18, "avx512vnni",
        limits=(*_POINTWISE, _MANY_PIXELS, _INT8_DEPTHS), op="conv",
    ),
    _Narrow(
        "host.conv.nhwc_bf16", "bf16", ("bf16",), "conv", 2.0**16, "avx512bf16", "nhwc", _IMAGES, "conv", _EVERY_LAYOUT
    ),
    _Narrow(
        "host.conv.nhwc_int8", "int8", ("qd8", "qc8w"), "conv", 2.0**18, "avx512vnni", "nhwc",
        (*_IMAGES, _INT8_DEPTHS), "conv", _EVERY_LAYOUT,
    ),
    _Narrow(
        "host.conv.winograd2_bf16", "bf16", ("bf16",), "conv", 2.0**17, "avx512bf16", "winograd2", _WINOGRAD_LIMITS,
        "conv", _EVERY_LAYOUT,
    ),
    _Narrow(
        "host.attention.bf16", "bf16", ("bf16",), "attention", 2.0**16, "avx512bf16",
        limits=(within(Reason.SHAPE, "queries", 7),), op="attention",
    ),
)  # fmt: skip


def _variants(kernel: _Narrow) -> Iterable[Capability]:
    for tier in TIER_TOKENS:
        yield _row(kernel, tier, native=False)
        if tier == "avx512" and kernel.instruction:
            yield _row(kernel, tier, native=True)


def _row(kernel: _Narrow, tier: str, *, native: bool) -> Capability:
    rows, columns = (_STREAM_TILES if kernel.micro == "gemv" else _TILES)[tier]
    weights = kernel.op != "attention"  # whose factors are all computed
    tile = (("mr", rows), ("nr", columns)) if kernel.op != "conv" else ()
    words = [kernel.modifier, kernel.instruction.removeprefix("avx512") + "dot" if native else ""]
    name = KernelName(
        "sk",
        ("f32", *kernel.words),
        kernel.micro,
        (TIER_TOKENS[tier], *(w for w in words if w)),
        params=make_params(kernel.micro, dict(tile)) if tile else None,
    )
    return Capability(
        id="/".join([kernel.kernel, "f32", tier, *([kernel.instruction] if native else [])]),
        kernel=kernel.kernel,
        ops=(kernel.op,),
        name=format_name(name),
        role=KernelRole.TUNED,
        input_dtypes=(_F32,) if weights else (_F32, _F32, _F32, *_ATTENTION_OTHERS),
        accumulator=DType.F32,
        limits=(
            one_of(Reason.PRECISION, "policy.precision", kernel.precision),
            *([one_of(Reason.CONSTANT, "weight.constant", True)] if weights else []),
            *kernel.limits,
        ),
        layouts=frozenset({"dense", "view", "program"} if kernel.op == "matmul" else kernel.layouts),
        tier=tier,
        features=TIER_FEATURES[tier] | ({kernel.instruction} if native else frozenset()),
        tile=tile,
        transforms=(Transform("quantise", 1, True),) if weights else (),
        numeric=NumericClass.ACCUMULATED,
        error_ulps=kernel.error_ulps,
        code_bytes={"gemm": 12288, "attention": 16384}.get(kernel.micro, 6144),
    )


@cache
def reduced_rows() -> tuple[Capability, ...]:
    """All rows of reduced precision."""
    return tuple(row for kernel in _KERNELS for row in _variants(kernel))
