"""Kernels of the host: one row per instruction-set tier and, where the code differs, per element type.

Operators come from the operator table by family where a kernel serves all of it, so a new operator of an old family has
its rows already, and the reference row serves every operator there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from superkernel.core.dtypes import DType
from superkernel.registry.names import NAME_DTYPES, TIER_TOKENS, KernelName, format_name, make_params
from superkernel.registry.predicates import Reason, one_of
from superkernel.registry.records import Capability
from superkernel.registry.rounding import accumulator_of
from superkernel.scheduler.kerneldef import KernelDef
from superkernel.target.cpu import AVX2, AVX512

TIER_FEATURES = {"avx512": frozenset(AVX2 + AVX512), "avx2": frozenset(AVX2), "plain": frozenset[str]()}
"""CPU features that code of a tier needs."""

VECTOR_BYTES = {"avx512": 64, "avx2": 32, "plain": 16}

INDEX_TYPES, TABLE_TYPES = frozenset({DType.I32, DType.I64}), frozenset({DType.I32})
"""Types of indices, and of tables of tilings."""

CONSTANT_WEIGHT = one_of(Reason.CONSTANT, "weight.constant", True)


@dataclass(frozen=True, kw_only=True, eq=False)
class HostKernelDef(KernelDef):
    """See `KernelDef`. `typed`: one row per element type in `dtypes`, else one for all of them. `tiles`: rows and
    vectors of the register tile by tier."""

    typed: bool = False
    tiles: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def rows(self) -> Iterable[Capability]:
        types = sorted(self.dtypes or (), key=lambda d: d.value) if self.typed else [None]
        for tier in TIER_FEATURES:
            for dtype in types:
                yield self._row(tier, dtype)

    def _row(self, tier: str, dtype: DType | None) -> Capability:
        accumulator = None if dtype is None else accumulator_of(dtype)
        tile = self._tile(tier, accumulator or DType.F32)
        words = [NAME_DTYPES[dtype] if dtype else "xx"]
        if accumulator is DType.F32 and dtype is not DType.F32:
            words.append("f32acc")
        params = make_params(self.micro, dict(tile)) if tile else None
        target = tuple(word for word in (TIER_TOKENS[tier], self.modifier) if word)
        return Capability(
            id="/".join([self.id, *([dtype.value] if dtype else []), tier]),
            kernel=self.id,
            ops=self.ops,
            name=format_name(KernelName("sk", tuple(words), self.micro, target, params=params)),
            role=self.role,
            input_dtypes=self.inputs_of(self.dtypes if dtype is None else frozenset({dtype})),
            accumulator=accumulator,
            limits=self.demands,
            tier=tier,
            features=TIER_FEATURES[tier],
            tile=tile,
            transforms=self.transforms,
            numeric=self.rounding.numeric,
            error_ulps=self.rounding.error_ulps,
            code_bytes=self.code_bytes,
        )

    def _tile(self, tier: str, accumulator: DType) -> tuple[tuple[str, int], ...]:
        if tier not in self.tiles:
            return ()
        rows, vectors = self.tiles[tier]
        return (("mr", rows), ("nr", vectors * VECTOR_BYTES[tier] // accumulator.itemsize))
