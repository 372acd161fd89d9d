"""Kernels of the host: one row per instruction-set tier and, where the code differs, per element type.

A kernel of reduced precision computes f32 problems where the policy allows its precision. The f32 rows stay eligible,
so that what is taken is the faster by estimate and a problem without such a kernel is computed in f32. A CPU that
multiplies the number format itself has two rows of its tier, with and without that; kernels on tiles of a matrix unit
are rows of CPUs that have one only.

Operators come from the operator table by family where a kernel serves all of it, so a new operator of an old family has
its rows already, and the reference row serves every operator there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from superkernel.core.dtypes import DType
from superkernel.core.formats import F32, NumberFormat, choose
from superkernel.ops.opdef import BYTES
from superkernel.registry.names import FEATURE_TOKENS, NAME_DTYPES, TIER_TOKENS, KernelName, format_name, make_params
from superkernel.registry.predicates import Clause, Reason, one_of, within
from superkernel.registry.records import Capability, NumericClass, Transform
from superkernel.registry.rounding import EXACT, PRODUCT_SUMS, Rounding, accumulator_of
from superkernel.scheduler.kerneldef import KernelDef
from superkernel.scheduler.tiling import CostedTiling, KernelFamily
from superkernel.target.cpu import AVX2, AVX512, CpuTarget

TIER_FEATURES = {"avx512": frozenset(AVX2 + AVX512), "avx2": frozenset(AVX2), "plain": frozenset[str]()}
"""CPU features that code of a tier needs."""

VECTOR_BYTES = {"avx512": 64, "avx2": 32, "plain": 16}

INDEX_TYPES, TABLE_TYPES = frozenset({DType.I32, DType.I64}), frozenset({DType.I32})
"""Types of indices, and of tables of tilings."""

CONSTANT_WEIGHT = one_of(Reason.CONSTANT, "weight.constant", True)
PLANE, VOLUME = within(Reason.RANK, "spatial", 1, 2), within(Reason.RANK, "spatial", 1, 3)


@dataclass(frozen=True)
class HostTiling(CostedTiling[CpuTarget]):
    """One way to cut a body for the host's cores."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HostKernelDef(KernelDef[CpuTarget]):
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
        target = tuple(word for word in (TIER_TOKENS[tier], *self.modifier.split("_")) if word)
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

    def runs_on(self, row: Capability, target: CpuTarget) -> bool:
        return row.tier in (None, target.tier) and all(map(target.has, row.features - TIER_FEATURES[target.tier]))

    def with_feature(self, row: Capability, words: tuple[str, ...], feature: str) -> Capability:
        """The row of CPUs that have a feature, "" for none; `words`: of its name, for its types."""
        assert row.tier is not None
        params = make_params(self.micro, dict(row.tile)) if row.tile else None
        target = _target_words(row.tier, self.modifier, feature)
        return replace(
            row,
            id="/".join([row.id, *([feature] if feature else [])]),
            name=format_name(KernelName("sk", words, self.micro, target, params=params)),
            features=row.features | ({feature} if feature else frozenset()),
        )

    def _tile(self, tier: str, accumulator: DType) -> tuple[tuple[str, int], ...]:
        if tier not in self.tiles:
            return ()
        rows, vectors = self.tiles[tier]
        return (("mr", rows), ("nr", vectors * VECTOR_BYTES[tier] // accumulator.itemsize))


class FormatFamily(KernelFamily[CpuTarget]):
    """Kernels of products in elements as they are or, of f32 values, in a reduced precision. `numbers`: the format that
    a CPU multiplies itself, and what others take (one for both); none: elements as they are."""

    def __init__(self, *numbers: NumberFormat) -> None:
        self.numbers = numbers

    def format_on(self, target: CpuTarget) -> NumberFormat:
        """The number format on a CPU."""
        found = choose(self.numbers, target.has) if self.numbers else F32
        return found.paced(target.dots_of(found.feature))


@dataclass(frozen=True, kw_only=True, eq=False)
class ReducedKernelDef(HostKernelDef):
    """A kernel of reduced precision, which its family's formats name. `magnified`: its error, of the format's.
    `weights_as`: how names write the weights, where not as the format has them. `allowed_by`: the fact that says which
    precision is allowed."""

    family: FormatFamily = field(repr=False)
    dtypes: frozenset[DType] | None = frozenset({DType.F32})
    magnified: float = 1.0
    layouts: frozenset[str] = frozenset({"dense", "view", "program"})
    weights: bool = True  # the second factor must be constant
    weights_as: str = ""
    allowed_by: str = "policy.precision"

    def rows(self) -> Iterable[Capability]:
        for tier in TIER_FEATURES:
            if not self.family.numbers[0].tiled:
                yield self._variant(tier, "")
            for feature in _native_on(self.family.numbers[0], tier):
                yield self._variant(tier, feature)

    @property
    def demands(self) -> tuple[Clause, ...]:
        precision = one_of(Reason.PRECISION, self.allowed_by, self.family.numbers[0].precision)
        return (precision, *([CONSTANT_WEIGHT] if self.weights else ()), *super().demands)

    def _variant(self, tier: str, feature: str) -> Capability:
        number, own = self.family.numbers[0], self.family.numbers[-1]
        weights = self.weights_as or ("qc8w" if own.scales_weights else own.weights.value)
        words = ("f32", *(["qd8"] if own.scales_rows else ()), weights)
        return replace(
            self.with_feature(self._row(tier, DType.F32), words, feature),
            layouts=self.layouts,
            transforms=(Transform("quantise", 1, True),) if self.weights else (),
            numeric=NumericClass.ACCUMULATED,
            error_ulps=number.error_ulps * self.magnified,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class PairedKernelDef(HostKernelDef):
    """A kernel of factors that come in its format, of CPUs that multiply this themselves. It loses nothing, so that no
    policy is asked; other CPUs have nothing to gain by it."""

    family: FormatFamily = field(repr=False)
    dtypes: frozenset[DType] | None = frozenset({DType.BF16})
    others: tuple[frozenset[DType] | None, ...] = (None,)
    weights: bool = True  # the second factor must be constant
    rounding: Rounding = PRODUCT_SUMS
    transforms: tuple[Transform, ...] = (Transform("pack", 1, True), Transform("pack", 0, False))

    def rows(self) -> Iterable[Capability]:
        number = self.family.numbers[0]
        words = (NAME_DTYPES[number.rows], "f32acc")
        yield self.with_feature(self._row("avx512", number.rows), words, number.feature)

    @property
    def demands(self) -> tuple[Clause, ...]:
        return (*([CONSTANT_WEIGHT] if self.weights else ()), *super().demands)


def _native_on(number: NumberFormat, tier: str) -> tuple[str, ...]:
    """The features by which CPUs of a tier multiply a format themselves: x86-64's are of AVX-512, Arm has but the plain
    tier."""
    return {"avx512": (number.feature,) if number.feature else (), "plain": number.arm_features}.get(tier, ())


def _target_words(tier: str, modifier: str, feature: str) -> tuple[str, ...]:
    """What a name says of where a kernel runs."""
    if feature in FEATURE_TOKENS:
        words = [FEATURE_TOKENS[feature], *modifier.split("_")]
    else:
        words = [TIER_TOKENS[tier], *modifier.split("_"), feature.removeprefix("avx512") + "dot" if feature else ""]
    return tuple(word for word in words if word)


@dataclass(frozen=True, kw_only=True, eq=False)
class ByteKernelDef(HostKernelDef):
    """A kernel of products of bytes with constant signed weights, exact in i32: one row per tier, and one more where
    CPUs of the tier multiply bytes themselves."""

    family: FormatFamily = field(repr=False)
    dtypes: frozenset[DType] | None = BYTES
    others: tuple[frozenset[DType] | None, ...] = (frozenset({DType.I8}),)
    rounding: Rounding = EXACT
    transforms: tuple[Transform, ...] = (Transform("pack", 1, True), Transform("pack", 0, False))

    def rows(self) -> Iterable[Capability]:
        number = self.family.numbers[0]
        for tier in TIER_FEATURES:
            if not number.tiled:
                yield self._variant(tier, "")
            for feature in _native_on(number, tier):
                yield self._variant(tier, feature)

    @property
    def demands(self) -> tuple[Clause, ...]:
        return (CONSTANT_WEIGHT, *super().demands)

    def _variant(self, tier: str, feature: str) -> Capability:
        row = replace(self._row(tier, None), accumulator=DType.I32, tile=self._tile(tier, DType.I32))
        return self.with_feature(row, ("xx", "q8", "qc8w", "s32"), feature)
