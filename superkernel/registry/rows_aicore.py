"""The accelerator's rows: one per kernel id and, where the code differs, per element type.

Model: as in `rows_host`, with core types for tiers: `aic` runs on cube cores, `aiv` on vector cores, `mix` on a cube
core and its vector cores together (`aic_aiv` in canonical names). The tile of a matrix kernel is the step of the matrix
engine; a row whose tile is not the target's is not eligible there.

`vector_ops` is the one list of pointwise operators that the vector engine computes, composed of its commands; programs
around an anchor draw on the same list. What the engines cannot do is done by a control unit where it is small, else on
the NumPy reference, by policy.

Architecture invariant: as for the host, rows name kernels by id; `scheduler.families.aicore` and `codegen.aicore` serve
those ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from superkernel.core.dtypes import DType
from superkernel.ops.grouped import TILINGS
from superkernel.ops.opdef import Family
from superkernel.ops.table import op_table
from superkernel.registry.facts import MAX_SLOTS
from superkernel.registry.names import KernelName, format_name, make_params
from superkernel.registry.predicates import Among, Clause, Facts, FactValue, Reason, Test, one_of, within
from superkernel.registry.records import Capability, KernelRole, NumericClass
from superkernel.registry.requirement import POINTWISE
from superkernel.registry.rounding import EXACT, PRODUCT_SUMS, ROUNDED, ROW_SUMS, Rounding
from superkernel.registry.rows_host import NAME_DTYPES, accumulator_of
from superkernel.registry.vector_ops import VECTOR_OPS, Computable
from superkernel.target.aicore import AicoreTarget

CORE_TOKENS = {"aic": ("aic",), "aiv": ("aiv",), "mix": ("aic", "aiv"), "aicpu": ("aicpu",)}
"""Tokens of each core type in canonical names."""

_F32, _F16, _BF16, _I8 = DType.F32, DType.F16, DType.BF16, DType.I8
_FLOATS = frozenset({_F32, _F16, _BF16})
_INTEGERS, _BYTES = frozenset({DType.I32, DType.I16}), frozenset({_I8, DType.U8})
_EXTREMES = ("reduce_max", "reduce_min")
_INDICES = frozenset({DType.I32, DType.I64})
_TABLE = frozenset({DType.I32})
_MASKS = frozenset({*_FLOATS, DType.BOOL})
_STEP = 16  # rows and columns of the matrix engine's step
_INTEGERS_MAX, _FLOATS_MAX = 4096, 1024  # elements that a control unit may be given
_DEPTHS = {_F32: 4, _F16: 16, _BF16: 16, _I8: 32}


@dataclass(frozen=True)
class _Kernel:
    """What the rows of a kernel id share: one row per element type in `dtypes`, or one for all types where that is
    None. `others`: types of further input slots, None = the same as the first. `stepped`: works in steps of the matrix
    engine, to the depth of its element type where `deep`."""

    kernel: str
    ops: tuple[str, ...]
    micro: str
    core_type: str
    dtypes: frozenset[DType] | None
    others: tuple[frozenset[DType] | None, ...] = ()
    limits: tuple[Clause, ...] = ()
    stepped: bool = False
    deep: bool = False
    modifier: str = ""
    precision: Rounding = ROUNDED
    cost: str = "vector"
    cost_parameters: tuple[tuple[str, float], ...] = ()
    code_bytes: int = 2048
    role: KernelRole = KernelRole.TUNED


@dataclass(frozen=True, slots=True)
class Few(Test):
    """A number of elements that one control unit gets through: fewer where floats are among them."""

    integers: int
    floats: int

    def _limit(self, facts: Facts) -> int:
        named = ("out0.dtype", *(f"in{slot}.dtype" for slot in range(MAX_SLOTS)))
        dtypes = {facts.get(name) for name in named} | set(facts.get("program.dtypes") or ())
        return self.floats if any(isinstance(d, DType) and d.is_float for d in dtypes) else self.integers

    def holds(self, value: FactValue, facts: Facts) -> bool:
        return value is not None and bool(value <= self._limit(facts))

    def required(self, facts: Facts) -> str:
        return f"<= {self._limit(facts)}"

    def witness(self, value: FactValue, facts: Facts) -> FactValue:
        return self._limit(facts) if value is None else min(value, self._limit(facts))


@dataclass(frozen=True, slots=True)
class AheadOfLast(Test):
    """An axis with others behind it: vectors lie along those."""

    def holds(self, value: FactValue, facts: Facts) -> bool:
        rank = facts["rank"]
        return isinstance(value, int) and isinstance(rank, int) and value % max(1, rank) < rank - 1

    def required(self, facts: Facts) -> str:
        return "an axis ahead of the last"

    def witness(self, value: FactValue, facts: Facts) -> FactValue:
        return 0


def _ops_of(*families: Family) -> tuple[str, ...]:
    return tuple(op.name for op in op_table().values() if op.family in families)


def _cube_kernels() -> Iterable[_Kernel]:
    """Products accumulate in f32 (i8: in i32) in the matrix engine; its vector cores do what stands around them."""
    plane, sums = within(Reason.RANK, "spatial", 1, 2), PRODUCT_SUMS
    yield _Kernel(
        "aicore.matmul", ("matmul",), "gemm", "mix", _FLOATS, (None,), stepped=True, deep=True, cost="cube",
        limits=(within(Reason.SHAPE, "k", 1),), precision=sums,
    )  # fmt: skip
    known = [one_of(Reason.CONSTANT, f"{factor}.constant", True) for factor in ("weight", "bias")]
    yield _Kernel(
        "aicore.conv", ("conv",), "igemm", "mix", _FLOATS, (None, None), stepped=True, deep=True, cost="cube",
        limits=(*known, plane), precision=sums, code_bytes=8192,
    )  # fmt: skip
    yield _Kernel(
        "aicore.attention", ("attention",), "attention", "mix", _FLOATS, (None, None, _MASKS, _INDICES, _TABLE),
        limits=(one_of(Reason.DEVICE, "aicore.group", (1, 1), (1, 2)),), stepped=True, cost="cube",
        cost_parameters=(("efficiency", 0.4),), precision=sums, code_bytes=8192,
    )  # fmt: skip


def _grouped_kernels() -> Iterable[_Kernel]:
    """Products of rows grouped by expert on cube cores, their tilings on an aicpu hart."""
    yield _Kernel(
        "aicore.grouped_matmul", ("grouped_matmul",), "gemm", "aic", _FLOATS, (None, _INDICES, _TABLE), stepped=True,
        deep=True, cost="cube", limits=(within(Reason.SHAPE, "k", 1), one_of(Reason.DTYPE, "in3.dtype", DType.I32)),
        precision=PRODUCT_SUMS, modifier="grouped",
    )  # fmt: skip
    yield _Kernel(
        "aicore.tiling", TILINGS, "index", "aicpu", None, precision=EXACT, modifier="tiling", cost="control",
        limits=(within(Reason.DEVICE, "aicore.aicpu_harts", 1),), code_bytes=1024,
    )  # fmt: skip


def _pointwise_kernels() -> Iterable[_Kernel]:
    """Programs compute in the vector engine's types; a copy is of any type."""
    computed = Clause(Reason.DTYPE, "program.steps", Computable())
    known = Clause(Reason.ACTIVATION, "program", Among(VECTOR_OPS))
    ops = (POINTWISE, *sorted(VECTOR_OPS), *_ops_of(Family.VIEW, Family.RESHAPE))
    yield _Kernel("aicore.pointwise", ops, "vprogram", "aiv", None, limits=(computed, known))


def _move_kernels() -> Iterable[_Kernel]:
    """Copies of bytes, of any element type."""
    yield _Kernel("aicore.movement", ("concat", "pad", "tile"), "move", "aiv", None, modifier="concat", precision=EXACT)
    yield _Kernel(
        "aicore.gather", ("gather",), "move", "aiv", None, modifier="gather", precision=EXACT,
        limits=(one_of(Reason.DTYPE, "in1.dtype", *_INDICES),),
    )  # fmt: skip
    yield _Kernel("aicore.kv_update", ("kv_update",), "kvupdate", "aiv", None, precision=EXACT, code_bytes=1024)


def _row_kernels() -> Iterable[_Kernel]:
    """Statistics over rows or windows: of floats in f32, of integers in their own type, of bytes in f16."""
    sums = ROW_SUMS
    norms = ("layer_norm", "rms_norm", "group_norm", "instance_norm", "batch_norm", "lp_norm")
    yield _Kernel("aicore.norm", norms, "norm", "aiv", _FLOATS, precision=sums, cost_parameters=(("operations", 8.0),))
    yield _Kernel(
        "aicore.softmax", ("softmax", "log_softmax"), "softmax", "aiv", _FLOATS, precision=sums,
        cost_parameters=(("operations", 10.0),),
    )  # fmt: skip
    for ops, dtypes in (
        (tuple(n for n in _ops_of(Family.REDUCE) if n.startswith("reduce_")), _FLOATS),
        (("reduce_sum", "reduce_prod", "reduce_l1", "reduce_sum_square", *_EXTREMES), _INTEGERS),
        (_EXTREMES, _BYTES | {DType.BOOL}),
    ):
        exact = dtypes is not _FLOATS
        yield _Kernel("aicore.reduce", ops, "reduce", "aiv", dtypes, precision=EXACT if exact else sums)
    ahead = Clause(Reason.SHAPE, "attr.axis", AheadOfLast())
    down = one_of(Reason.ATTRIBUTE, "attr.reverse", False)
    yield _Kernel(
        "aicore.scan", ("cumsum",), "cumsum", "aiv", frozenset({DType.I32}), limits=(ahead, down), precision=EXACT
    )  # fmt: skip
    volume = within(Reason.RANK, "spatial", 1, 3)
    windows, whole = ("max_pool", "avg_pool", "lp_pool"), ("global_avg_pool", "global_max_pool")
    for ops, dtypes, limits in (
        ((*windows, *whole), _FLOATS, (volume,)),
        (("max_pool",), _INTEGERS | _BYTES, (volume,)),
    ):
        exact = dtypes is not _FLOATS
        yield _Kernel("aicore.pool", ops, "pool", "aiv", dtypes, limits=limits, precision=EXACT if exact else sums)
    yield _Kernel(
        "aicore.rope", ("rope",), "rope", "aiv", _FLOATS, (None, None, _INDICES),
        cost_parameters=(("operations", 6.0),),
    )  # fmt: skip


def _control_kernels() -> Iterable[_Kernel]:
    """What the engines have no commands for, where it is small: behind every kernel that uses them."""
    reductions = tuple(n for n in _ops_of(Family.REDUCE) if n.startswith("reduce_"))
    moves = ("concat", "pad", "trilu", "tile", "gather", "gather_elements", "gather_nd", "scatter_elements")
    others = ("scatter_nd", "one_hot", "topk", "argmax", "argmin", "cumsum")
    ops = (POINTWISE, *_ops_of(Family.POINTWISE, Family.VIEW, Family.RESHAPE), *reductions, *moves, *others)
    few = Clause(Reason.SHAPE, "elements", Few(_INTEGERS_MAX, _FLOATS_MAX))
    yield _Kernel(
        "aicore.scalar", ops, "vprogram", "aiv", None, modifier="control", limits=(few,), precision=ROW_SUMS,
        cost="control", role=KernelRole.GENERIC,
    )  # fmt: skip


def _rows_of(kernel: _Kernel) -> Iterable[Capability]:
    if kernel.dtypes is None:
        yield _row(kernel, None)
    else:
        for dtype in sorted(kernel.dtypes, key=lambda d: d.value):
            yield _row(kernel, dtype)


def _row(kernel: _Kernel, dtype: DType | None) -> Capability:
    inputs: tuple[frozenset[DType], ...] = ()
    words, accumulator = ["xx"], None
    tile: tuple[tuple[str, int], ...] = ()
    limits = kernel.limits
    if dtype is not None:
        first = frozenset({dtype})
        inputs = (first, *(first if other is None else other for other in kernel.others))
        accumulator = accumulator_of(dtype)
        words = [NAME_DTYPES[dtype]] + ["f32acc"] * (accumulator is _F32 and dtype is not _F32)
        if kernel.stepped:
            tile = (("mr", _STEP), ("nr", _STEP), *([("kr", _DEPTHS[dtype])] if kernel.deep else []))
            limits = (*limits, one_of(Reason.ALIGNMENT, "aicore.cube_step", (_STEP, _STEP)))
            if kernel.deep:
                limits = (*limits, one_of(Reason.ALIGNMENT, "aicore.cube_depth", _DEPTHS[dtype]))
    params = make_params(kernel.micro, dict(tile)) if tile else None
    target = (*CORE_TOKENS[kernel.core_type], *([kernel.modifier] if kernel.modifier else []))
    return Capability(
        id="/".join([kernel.kernel, *([dtype.value] if dtype else [])]),
        kernel=kernel.kernel,
        ops=kernel.ops,
        name=format_name(KernelName("sk", tuple(words), kernel.micro, target, params=params)),
        role=kernel.role,
        input_dtypes=inputs,
        accumulator=accumulator,
        limits=limits,
        device=AicoreTarget.kind,
        core_type=kernel.core_type,
        tile=tile,
        numeric=kernel.precision.numeric,
        error_ulps=kernel.precision.error_ulps,
        cost=kernel.cost,
        cost_parameters=kernel.cost_parameters,
        code_bytes=kernel.code_bytes,
    )


def _reference_row() -> Capability:
    """NumPy on the machine that drives the device, for every operator: taken only where nothing else is eligible."""
    return Capability(
        id="aicore.reference",
        kernel="host.reference",
        ops=(POINTWISE, *op_table()),
        name=format_name(KernelName("sk", ("xx",), "reference", ("scalar", "numpy", "aicore"))),
        role=KernelRole.REFERENCE,
        device=AicoreTarget.kind,
        workspace="all_operands",
        numeric=NumericClass.ROUNDED,
        error_ulps=1.0,
        cost="device_reference",
        code_bytes=256,
    )


@cache
def aicore_rows() -> tuple[Capability, ...]:
    """All rows of the accelerator."""
    groups = (_cube_kernels, _grouped_kernels, _pointwise_kernels, _move_kernels, _row_kernels, _control_kernels)
    return (*(row for group in groups for kernel in group() for row in _rows_of(kernel)), _reference_row())
