"""Kernels of the accelerator: one row per element type where the code differs, else one for all.

Model: types of cores stand where the host has tiers: `aic` runs on cube cores, `aiv` on vector cores, `mix` on a cube
core and its vector cores together (`aic_aiv` in canonical names), `aicpu` on a hart beside them. The tile of a matrix
kernel is the step of the matrix engine; a row whose tile is not the target's is not eligible there.

`vector_ops` is the one list of pointwise operators that the vector engine computes, composed of its commands; programs
around an anchor draw on the same list. What the engines cannot do is done by a control unit where it is small, else on
the NumPy reference, by policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from superkernel.core.dtypes import DType
from superkernel.registry.names import CORE_TOKENS, NAME_DTYPES, KernelName, format_name, make_params
from superkernel.registry.predicates import Reason, one_of
from superkernel.registry.records import Capability
from superkernel.registry.rounding import EXACT, Rounding, accumulator_of
from superkernel.scheduler.kerneldef import KernelDef
from superkernel.target.aicore import AicoreTarget

FLOATS = frozenset({DType.F32, DType.F16, DType.BF16})
INTEGERS, BYTES = frozenset({DType.I32, DType.I16}), frozenset({DType.I8, DType.U8})
INDEX_TYPES, TABLE_TYPES = frozenset({DType.I32, DType.I64}), frozenset({DType.I32})
"""Types of indices, and of tables of tilings."""

_STEP = 16  # rows and columns of the matrix engine's step
_DEPTHS = {DType.F32: 4, DType.F16: 16, DType.BF16: 16, DType.I8: 32}


@dataclass(frozen=True, kw_only=True, eq=False)
class AicoreKernelDef(KernelDef[AicoreTarget]):
    """See `KernelDef`. `stepped`: works in steps of the matrix engine, to the depth of its element type where `deep`.
    `exact`: further element types, each with the operators that are served, without rounding, in them."""

    core_type: str = "aiv"
    exact: Mapping[frozenset[DType], tuple[str, ...]] = field(default_factory=dict)
    stepped: bool = False
    deep: bool = False

    def rows(self) -> Iterable[Capability]:
        if self.dtypes is None:
            yield self._row(None, self.ops, self.rounding)
        for dtypes, ops, rounding in (
            (self.dtypes or (), self.ops, self.rounding),
            *((types, ops, EXACT) for types, ops in self.exact.items()),
        ):
            for dtype in sorted(dtypes, key=lambda d: d.value):
                yield self._row(dtype, ops, rounding)

    def _row(self, dtype: DType | None, ops: tuple[str, ...], rounding: Rounding) -> Capability:
        words, accumulator, limits = ["xx"], None, self.demands
        tile: tuple[tuple[str, int], ...] = ()
        if dtype is not None:
            accumulator = accumulator_of(dtype)
            words = [NAME_DTYPES[dtype]] + ["f32acc"] * (accumulator is DType.F32 and dtype is not DType.F32)
            if self.stepped:
                tile = (("mr", _STEP), ("nr", _STEP), *([("kr", _DEPTHS[dtype])] if self.deep else []))
                limits = (*limits, one_of(Reason.ALIGNMENT, "aicore.cube_step", (_STEP, _STEP)))
                if self.deep:
                    limits = (*limits, one_of(Reason.ALIGNMENT, "aicore.cube_depth", _DEPTHS[dtype]))
        params = make_params(self.micro, dict(tile)) if tile else None
        target = (*CORE_TOKENS[self.core_type], *(word for word in self.modifier.split("_") if word))
        return Capability(
            id="/".join([self.id, *([dtype.value] if dtype else [])]),
            kernel=self.id,
            ops=ops,
            name=format_name(KernelName("sk", tuple(words), self.micro, target, params=params)),
            role=self.role,
            input_dtypes=self.inputs_of(None if dtype is None else frozenset({dtype})),
            accumulator=accumulator,
            limits=limits,
            device=AicoreTarget.kind,
            core_type=self.core_type,
            tile=tile,
            numeric=rounding.numeric,
            error_ulps=rounding.error_ulps,
            code_bytes=self.code_bytes,
        )
