"""From a row to its clauses: every field of a `Capability` that can exclude a problem becomes a clause here, and
nowhere else.

Invariant: a kernel is eligible iff all clauses of `clauses_of(row)` hold and no pattern of the policy excludes it. Rows
share equal clauses, so selection evaluates each distinct one once per requirement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from superkernel.core.dtypes import DType
from superkernel.registry.facts import MAX_SLOTS, Problem
from superkernel.registry.predicates import Clause, Facts, FactValue, Includes, OneOf, Reason, Test
from superkernel.registry.records import ALL_CORES, Capability, Determinism, KernelRole

_EVERY_LAYOUT = frozenset({"dense", "view", "program"})

EPSILON: dict[DType, float] = {
    DType.F64: 2.0**-52,
    DType.F32: 2.0**-23,
    DType.F16: 2.0**-10,
    DType.BF16: 2.0**-7,
}
"""Distance from 1 to the next number; integers and bool have none, their kernels are exact."""


def relative_error(row: Capability, dtype: DType | None) -> float:
    """The relative error a row may show on outputs of a type."""
    return row.error_ulps * EPSILON.get(dtype, 0.0) if dtype is not None else 0.0


@dataclass(frozen=True, slots=True)
class Promised(Test):
    """The policy asks for no more determinism than the row promises."""

    level: Determinism

    def holds(self, value: FactValue, facts: Facts) -> bool:
        return bool(Determinism(value).rank <= self.level.rank)

    def required(self, facts: Facts) -> str:
        return " | ".join(level.value for level in Determinism if level.rank <= self.level.rank)


@dataclass(frozen=True, slots=True)
class Tolerated(Test):
    """The policy's tolerance, where it has one, is not below the row's error on the output's type."""

    passes_absent: ClassVar[bool] = True

    row: Capability

    def holds(self, value: FactValue, facts: Facts) -> bool:
        return value is None or value >= relative_error(self.row, facts.get("out0.dtype"))

    def required(self, facts: Facts) -> str:
        return f">= {relative_error(self.row, facts.get('out0.dtype')):.3g} ({self.row.error_ulps:g} ulp)"


@dataclass(frozen=True, slots=True)
class Fits(Test):
    """A limit in bytes, where there is one, is not below what the kernel needs: while it runs, or for `constants`, as
    it packs them."""

    passes_absent: ClassVar[bool] = True
    asks_kernel: ClassVar[bool] = True

    kernel: str
    constants: bool = False

    def _needed(self, facts: Facts) -> int:
        estimate = facts.estimate_of(self.kernel) if isinstance(facts, Problem) else None
        if estimate is None:
            return 0
        return estimate.constant_bytes if self.constants else estimate.temporary_bytes

    def holds(self, value: FactValue, facts: Facts) -> bool:
        return value is None or bool(value >= self._needed(facts))

    def required(self, facts: Facts) -> str:
        return f">= {self._needed(facts)} bytes"


def clauses_of(row: Capability) -> tuple[Clause, ...]:
    """All clauses of a row, problem first, then platform, then policy."""
    clauses: list[Clause] = []
    for slot, dtypes in enumerate(row.input_dtypes[:MAX_SLOTS]):
        clauses.append(Clause(Reason.DTYPE, f"in{slot}.dtype", OneOf(dtypes | {None})))
    if row.layouts != _EVERY_LAYOUT:
        slots = range(max(1, len(row.input_dtypes)))
        clauses += [Clause(Reason.LAYOUT, f"in{slot}.source", OneOf(row.layouts | {None})) for slot in slots]
    clauses += row.limits
    if row.tier is not None:
        clauses.append(Clause(Reason.CPU_FEATURE, "cpu.tier", OneOf(frozenset({row.tier}))))
    if row.features:
        clauses.append(Clause(Reason.CPU_FEATURE, "cpu.features", Includes(row.features)))
    if row.device is not None:
        clauses.append(Clause(Reason.DEVICE, "device", OneOf(frozenset({row.device}))))
    if row.core_type is not None:
        clauses.append(Clause(Reason.CORE_TYPE, "core_type", OneOf(frozenset({row.core_type, ALL_CORES}))))
    clauses.append(Clause(Reason.DETERMINISM, "policy.determinism", Promised(row.determinism)))
    if row.error_ulps:
        clauses.append(Clause(Reason.TOLERANCE, "policy.tolerance", Tolerated(row)))
    clauses.append(Clause(Reason.WORKSPACE, "policy.max_workspace_bytes", Fits(row.kernel)))
    clauses.append(Clause(Reason.WORKSPACE, "region.tcm", Fits(row.kernel)))
    clauses.append(Clause(Reason.WORKSPACE, "region.flash", Fits(row.kernel, constants=True)))
    if row.role is KernelRole.REFERENCE:
        clauses.append(Clause(Reason.DEVICE, "region.flash", OneOf(frozenset({None}))))  # which holds no NumPy
        clauses.append(Clause(Reason.FALLBACK, "policy.fallback", OneOf(frozenset({"warn", "allow"}))))
    return tuple(clauses)
