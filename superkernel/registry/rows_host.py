"""The host's rows: every kernel of the CPU, per instruction-set tier and, where the code differs, per element type.

Model: a `_Kernel` says what is common to the variants of one kernel id; `_variants` spells out one row per tier and
element type, with its canonical name. Operators come from the operator table by family, so a new operator of an old
family has its rows already, and the reference row serves every operator there is.

Architecture invariant: rows name kernels by id. What tiles them (`scheduler.families`) and what writes their code
(`codegen.host`) is found by that id elsewhere; a test compiles a case for every row, so that a row cannot promise what
its emitter does not do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from superkernel.core.dtypes import DType
from superkernel.ops.grouped import TILINGS
from superkernel.ops.opdef import FLOATS, INTS, NUMERIC, Family
from superkernel.ops.table import op_table
from superkernel.registry.names import KernelName, format_name, make_params
from superkernel.registry.predicates import Clause, Reason, one_of, within
from superkernel.registry.records import Capability, KernelRole, NumericClass, Transform
from superkernel.registry.requirement import POINTWISE
from superkernel.registry.rounding import EXACT, PRODUCT_SUMS, ROUNDED, ROW_SUMS, Rounding
from superkernel.target.cpu import AVX2, AVX512

TIER_NAMES = {"avx512": "avx512skx", "avx2": "avx2", "plain": "scalar"}
"""Token of each tier in canonical names; plain code is LLVM's baseline for the architecture."""

TIER_FEATURES = {"avx512": frozenset(AVX2 + AVX512), "avx2": frozenset(AVX2), "plain": frozenset[str]()}
_VECTOR_BYTES = {"avx512": 64, "avx2": 32, "plain": 16}

NAME_DTYPES = {
    **{d: d.value for d in FLOATS},
    **{d: d.value.replace("i", "s") for d in INTS},
    DType.BOOL: "x8",
}
"""Element types as canonical names write them."""

_F32, _F16, _BF16 = DType.F32, DType.F16, DType.BF16
_FACTOR_INTS = frozenset({DType.I8, DType.U8, DType.I32, DType.I64, DType.U32, DType.U64})
_INDICES, _TABLE = frozenset({DType.I32, DType.I64}), frozenset({DType.I32})
ATTENTION_OTHERS = (FLOATS | {DType.BOOL}, _INDICES, _TABLE)
"""Types of attention's mask, length and table."""

_ROW_MAJOR = one_of(Reason.LAYOUT, "layout", "row_major")
_CHANNELS_LAST = one_of(Reason.LAYOUT, "layout", "channels_last")
_CONSTANT_WEIGHT = one_of(Reason.CONSTANT, "weight.constant", True)

# Register tiles of matrix products: rows, vectors of the accumulator.
_GEMM_TILES = {"avx512": (14, 2), "avx2": (6, 2), "plain": (6, 2)}
_GROUPED_TILES = {"avx512": (8, 3), "avx2": (4, 2), "plain": (4, 2)}
_GEMV_VECTORS = 4
_GEMV_ROWS_MAX = 6
_WINOGRAD_CHANNELS_MIN = 8  # transforms of half empty vectors, and of an input that is not channels last, do not pay

WINOGRAD_LIMITS = (
    one_of(Reason.RANK, "spatial", 2),
    _CHANNELS_LAST,
    one_of(Reason.SHAPE, "taps", 9),
    *(one_of(Reason.SHAPE, f"window_{name}", 3) for name in ("rows", "columns")),
    *(one_of(Reason.STRIDE, f"stride_{name}", 1) for name in ("rows", "columns")),
    one_of(Reason.GROUPS, "groups", 1),
    within(Reason.SHAPE, "channels", _WINOGRAD_CHANNELS_MIN),
)
"""What minimal filtering is for."""


@dataclass(frozen=True)
class _Kernel:
    """What the variants of a kernel id share. `typed`: one row per element type in `dtypes`, else one for all of them.

    `others`: the types of further input slots, None = the same as the first. `tiles`: rows and vectors of the register
    tile by tier.
    """

    kernel: str
    ops: tuple[str, ...]
    micro: str
    dtypes: frozenset[DType] | None
    typed: bool = False
    others: tuple[frozenset[DType] | None, ...] = ()
    role: KernelRole = KernelRole.TUNED
    limits: tuple[Clause, ...] = ()
    tiles: tuple[tuple[str, tuple[int, int]], ...] = ()
    modifier: str = ""
    workspace: str = "none"
    persistent: str = "none"
    transforms: tuple[Transform, ...] = ()
    precision: Rounding = ROUNDED
    cost: str = "stream"
    cost_parameters: tuple[tuple[str, float], ...] = ()
    code_bytes: int = 2048


def accumulator_of(dtype: DType) -> DType:
    """The type in which sums of a type are kept: f16 and bf16 in f32, small integers in i32."""
    if dtype.is_float:
        return DType.F64 if dtype is DType.F64 else DType.F32
    return dtype if dtype.itemsize >= 4 else DType.I32


def _ops_of(*families: Family) -> tuple[str, ...]:
    return tuple(op.name for op in op_table().values() if op.family in families)


def _matmul_kernels() -> Iterable[_Kernel]:
    op, same, sums = ("matmul",), (None,), PRODUCT_SUMS
    tiles = tuple(_GEMM_TILES.items())
    pack, copy = Transform("pack", 1, True, "weight_panels"), Transform("pack", 1, False, "product_scratch")
    few_rows = within(Reason.SHAPE, "m", 1, _GEMV_ROWS_MAX)
    yield _Kernel(
        "host.matmul.packed", op, "gemm", FLOATS, True, same, limits=(_CONSTANT_WEIGHT,), tiles=tiles, cost="gemm",
        workspace="product_scratch", persistent="weight_panels", transforms=(pack,), precision=sums, code_bytes=8192,
    )  # fmt: skip
    yield _Kernel(
        "host.matmul.gemv", op, "gemv", FLOATS, True, same, limits=(_CONSTANT_WEIGHT, few_rows), cost="gemv",
        tiles=tuple((tier, (1, _GEMV_VECTORS)) for tier in TIER_NAMES),
        workspace="product_scratch", persistent="weight_panels", transforms=(pack,), precision=sums, code_bytes=4096,
    )  # fmt: skip
    yield _Kernel(
        "host.matmul.dynamic", op, "bmm", FLOATS, True, same, tiles=tiles, cost="gemm",
        cost_parameters=(("efficiency", 0.75),), workspace="product_scratch", transforms=(copy,), precision=sums,
        code_bytes=8192,
    )  # fmt: skip
    anything = FLOATS | _FACTOR_INTS
    yield _Kernel(
        "host.matmul.generic", ("matmul", "matmul_integer"), "gemm", anything, others=(anything,),
        role=KernelRole.GENERIC, tiles=tiles, modifier="generic", cost="gemm",
        cost_parameters=(("efficiency", 0.4),), workspace="product_scratch", transforms=(copy,), precision=sums,
        code_bytes=8192,
    )  # fmt: skip


def _grouped_kernels() -> Iterable[_Kernel]:
    """Products of rows grouped by expert, and what computes their tilings."""
    tiled = one_of(Reason.DTYPE, "in3.dtype", DType.I32)
    yield _Kernel(
        "host.grouped_matmul", ("grouped_matmul",), "gemm", FLOATS, True, (None, _INDICES, _TABLE),
        limits=(tiled,), tiles=tuple(_GROUPED_TILES.items()), modifier="grouped", cost="gemm",
        workspace="product_scratch", precision=PRODUCT_SUMS, code_bytes=8192,
    )  # fmt: skip
    yield _Kernel("host.tiling", TILINGS, "index", None, modifier="tiling", precision=EXACT, code_bytes=1024)


def _conv_kernels() -> Iterable[_Kernel]:
    """The direct form packs filters in f32, so it takes what f32 holds; the generic one takes any rank, type and
    direction."""
    same, sums, narrow = (None, None), PRODUCT_SUMS, frozenset({_F32, _F16, _BF16})
    any_float, slow = (FLOATS, FLOATS), (("efficiency", 0.08),)
    pack, patch = Transform("pack", 1, True, "filter_panels"), Transform("reorder", 0, False, "patch")
    plane, volume = within(Reason.RANK, "spatial", 1, 2), within(Reason.RANK, "spatial", 1, 3)
    yield _Kernel(
        "host.conv.igemm", ("conv",), "igemm", narrow, True, same, tiles=tuple(_GEMM_TILES.items()),
        limits=(_CONSTANT_WEIGHT, plane, _ROW_MAJOR), workspace="patch", persistent="filter_panels",
        transforms=(pack, patch), cost="gemm", code_bytes=12288, precision=sums,
    )  # fmt: skip
    yield _Kernel(
        "host.conv.depthwise", ("conv",), "dwconv2d_chw", narrow, True, same,
        limits=(one_of(Reason.GROUPS, "depthwise", True), plane, _ROW_MAJOR), workspace="patch", transforms=(patch,),
        cost="depthwise", code_bytes=6144, precision=sums,
    )  # fmt: skip
    for kernel, op, micro in (("generic", "conv", "conv"), ("transpose", "conv_transpose", "convtranspose")):
        yield _Kernel(
            f"host.conv.{kernel}", (op,), micro, FLOATS, False, any_float, KernelRole.GENERIC, limits=(volume,),
            workspace="lines", cost="depthwise", cost_parameters=slow, precision=sums,
        )  # fmt: skip


def _channels_last_kernels() -> Iterable[_Kernel]:
    """Convolutions and pools of images that lie channels last. Minimal filtering (Winograd) is f32 only: its error
    grows with the rounding of transformed inputs."""
    same, sums, narrow = (None, None), PRODUCT_SUMS, frozenset({_F32, _F16, _BF16})
    plane = within(Reason.RANK, "spatial", 1, 2)
    pack, patch = Transform("pack", 1, True, "filter_panels"), Transform("reorder", 0, False, "patch")
    yield _Kernel(
        "host.conv.nhwc", ("conv",), "conv", narrow, True, same, limits=(_CONSTANT_WEIGHT, plane, _CHANNELS_LAST),
        modifier="nhwc", workspace="patch_nhwc", persistent="channel_panels", transforms=(pack, patch),
        cost="conv_nhwc", code_bytes=12288, precision=sums,
    )  # fmt: skip
    for m in (2, 4):
        yield _Kernel(
            f"host.conv.winograd{m}", ("conv",), "conv", frozenset({_F32}), True, same,
            limits=(_CONSTANT_WEIGHT, *WINOGRAD_LIMITS),
            modifier=f"winograd{m}", workspace="squares", persistent="squares_filters", transforms=(pack, patch),
            cost="winograd", cost_parameters=(("m", float(m)),), code_bytes=16384, precision=sums,
        )  # fmt: skip
    depthwise = (one_of(Reason.GROUPS, "depthwise", True), one_of(Reason.GROUPS, "multiplier", 1), _CONSTANT_WEIGHT)
    yield _Kernel(
        "host.conv.depthwise_nhwc", ("conv",), "conv", narrow, True, same,
        limits=(*depthwise, plane, _CHANNELS_LAST), modifier="depthwise", transforms=(pack,), cost="depthwise",
        cost_parameters=(("efficiency", 0.5),), code_bytes=6144, precision=sums,
    )  # fmt: skip
    pools = ("max_pool", "avg_pool", "global_avg_pool", "global_max_pool")
    yield _Kernel(
        "host.pool_nhwc", pools, "pool", narrow, True, limits=(plane, _CHANNELS_LAST), modifier="nhwc", cost="window",
        precision=ROW_SUMS,
    )  # fmt: skip


def _pointwise_kernels() -> Iterable[_Kernel]:
    """Pointwise programs (which take views in, so they copy too) and the blocked form for copies that change the last
    dimension."""
    pointwise = (POINTWISE, *_ops_of(Family.POINTWISE), *_ops_of(Family.VIEW, Family.RESHAPE))
    turned = (one_of(Reason.LAYOUT, "copy", True), within(Reason.STRIDE, "inner_stride", 2))
    yield _Kernel("host.pointwise", pointwise, "vprogram", None)
    yield _Kernel(
        "host.transpose", (POINTWISE, "transpose"), "transposec", None, limits=turned,
        cost_parameters=(("strided_ns", 0.05),), precision=EXACT,
    )  # fmt: skip


def _move_kernels() -> Iterable[_Kernel]:
    """Copies that are no single affine view; they work on bytes, so element types do not matter."""
    yield _Kernel("host.concat", ("concat",), "move", None, modifier="concat", precision=EXACT)
    yield _Kernel("host.pad", ("pad", "trilu"), "move", None, modifier="pad", precision=EXACT)
    yield _Kernel("host.tile", ("tile",), "move", None, modifier="tile", precision=EXACT)
    yield _Kernel("host.gather", ("gather",), "move", None, modifier="gather", precision=EXACT)
    indexing = ("gather_elements", "gather_nd", "scatter_elements", "scatter_nd", "one_hot", "topk", "resize")
    yield _Kernel("host.index", indexing, "index", None, cost_parameters=(("operations", 12.0),))
    yield _Kernel("host.kv_update", ("kv_update",), "kvupdate", None, precision=EXACT, code_bytes=1024)


def _row_kernels() -> Iterable[_Kernel]:
    """Reductions, scans, softmax, norms and pools: statistics over rows or windows."""
    slow = (("operations", 12.0),)
    reductions = tuple(n for n in _ops_of(Family.REDUCE) if n.startswith("reduce_"))
    yield _Kernel("host.reduce", reductions, "reduce", NUMERIC, precision=ROW_SUMS)
    yield _Kernel("host.argreduce", ("argmax", "argmin"), "argreduce", NUMERIC, precision=EXACT)
    scan = (("operations", 8.0),)
    yield _Kernel("host.cumsum", ("cumsum",), "cumsum", NUMERIC, cost_parameters=scan, precision=ROW_SUMS)
    softmax = ("softmax", "log_softmax")
    norms = ("layer_norm", "rms_norm", "group_norm", "instance_norm", "lp_norm", "batch_norm")
    yield _Kernel(
        "host.softmax", softmax, "softmax", FLOATS, True, workspace="one_row", cost_parameters=slow, precision=ROW_SUMS
    )
    yield _Kernel("host.norm", norms, "norm", FLOATS, True, cost_parameters=slow, precision=ROW_SUMS)
    slower = (("operations", 24.0),)
    yield _Kernel(
        "host.lrn", ("lrn",), "lrn", FLOATS, True, workspace="one_row", cost_parameters=slower, precision=ROW_SUMS
    )
    pools = _ops_of(Family.POOL)
    yield _Kernel(
        "host.pool", pools, "pool", NUMERIC, limits=(within(Reason.RANK, "spatial", 1, 3),), workspace="lines",
        cost="window", cost_parameters=(("turned", 8.0),), precision=ROW_SUMS,
    )  # fmt: skip


def _sequence_kernels() -> Iterable[_Kernel]:
    """Attention and rotary embeddings."""
    types = frozenset({_F32, _F16, _BF16})
    yield _Kernel(
        "host.attention", ("attention",), "attention", types, True, (None, None, *ATTENTION_OTHERS),
        cost="attention",
        tiles=tuple(_GEMM_TILES.items()), workspace="score_block", precision=PRODUCT_SUMS,
        code_bytes=16384,
    )  # fmt: skip
    yield _Kernel("host.rope", ("rope",), "rope", types, True, (None, None, _INDICES))


def _variants(kernel: _Kernel) -> Iterable[Capability]:
    for tier, token in TIER_NAMES.items():
        if not kernel.typed:
            yield _row(kernel, tier, token, None)
            continue
        assert kernel.dtypes is not None, kernel.kernel
        for dtype in sorted(kernel.dtypes, key=lambda d: d.value):
            yield _row(kernel, tier, token, dtype)


def _row(kernel: _Kernel, tier: str, token: str, dtype: DType | None) -> Capability:
    first = kernel.dtypes if dtype is None else frozenset({dtype})
    inputs: tuple[frozenset[DType], ...] = ()
    if first is not None:
        inputs = (first, *(first if other is None else other for other in kernel.others))
    accumulator = None if dtype is None else accumulator_of(dtype)
    tile = _tile_of(kernel, tier, accumulator or _F32)
    words = [NAME_DTYPES[dtype] if dtype else "xx"]
    if dtype is not None and accumulator is not dtype and accumulator is _F32:
        words.append("f32acc")
    params = make_params(kernel.micro, dict(tile)) if tile else None
    target = (token, kernel.modifier) if kernel.modifier else (token,)
    name = format_name(KernelName("sk", tuple(words), kernel.micro, target, params=params))
    return Capability(
        id="/".join([kernel.kernel, *([dtype.value] if dtype else []), tier]),
        kernel=kernel.kernel,
        ops=kernel.ops,
        name=name,
        role=kernel.role,
        input_dtypes=inputs,
        accumulator=accumulator,
        limits=kernel.limits,
        tier=tier,
        features=TIER_FEATURES[tier],
        tile=tile,
        transforms=kernel.transforms,
        workspace=kernel.workspace,
        persistent=kernel.persistent,
        numeric=kernel.precision.numeric,
        error_ulps=kernel.precision.error_ulps,
        cost=kernel.cost,
        cost_parameters=kernel.cost_parameters,
        code_bytes=kernel.code_bytes,
    )


def _tile_of(kernel: _Kernel, tier: str, accumulator: DType) -> tuple[tuple[str, int], ...]:
    sizes = dict(kernel.tiles).get(tier)
    if sizes is None:
        return ()
    rows, vectors = sizes
    return (("mr", rows), ("nr", vectors * _VECTOR_BYTES[tier] // accumulator.itemsize))


def _reference_row() -> Capability:
    """NumPy, for every operator: correct, slow, and taken only where nothing else is eligible."""
    return Capability(
        id="host.reference",
        kernel="host.reference",
        ops=(POINTWISE, *op_table()),
        name=format_name(KernelName("sk", ("xx",), "reference", ("scalar", "numpy"))),
        role=KernelRole.REFERENCE,
        layouts=frozenset({"dense", "view", "program"}),
        workspace="all_operands",
        numeric=NumericClass.ROUNDED,
        error_ulps=1.0,
        cost="reference",
        code_bytes=256,
    )


@cache
def host_rows() -> tuple[Capability, ...]:
    """All rows of the host."""
    products = (_matmul_kernels, _grouped_kernels, _conv_kernels, _channels_last_kernels)
    groups = (_pointwise_kernels, _move_kernels, _row_kernels, *products, _sequence_kernels)
    kernels = [kernel for group in groups for kernel in group()]
    return (*(row for kernel in kernels for row in _variants(kernel)), _reference_row())
