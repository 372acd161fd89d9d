"""What each sub-operator on the host is computed in, and why it is not what option `precision` allows.

Model: a kernel of a narrow format has a tiling that names it; everything else is computed in its element types. The
reasons are the registry's own: the narrow rows that were eligible but slower by estimate, else what they failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from superkernel.registry.predicates import Reason
from superkernel.registry.rows_reduced import REDUCED
from superkernel.scheduler.families.attention_reduced import NarrowAttentionTiling
from superkernel.scheduler.families.conv_nhwc_int8 import Int8NhwcTiling
from superkernel.scheduler.families.conv_nhwc_reduced import NarrowNhwcTiling
from superkernel.scheduler.families.matmul_reduced import NarrowTiling
from superkernel.scheduler.families.winograd_reduced import NarrowWinogradTiling

if TYPE_CHECKING:
    from superkernel.ir.body import SubOperator
    from superkernel.registry.explanation import Candidate, Explanation
    from superkernel.scheduler.schedule import Schedule
    from superkernel.scheduler.tiling import Tiling

_PRODUCTS = frozenset({"matmul", "matmul_integer", "grouped_matmul", "conv", "conv_transpose", "attention"})

_NARROW = NarrowTiling | NarrowNhwcTiling | Int8NhwcTiling | NarrowWinogradTiling | NarrowAttentionTiling
"""Tilings that name a format."""

_WORDS = {
    "bf16": "bf16, sums in f32",
    "bf16x3": "f32 in two bf16 parts, three products, sums in f32",
    "int8": "8-bit rows and weights, sums in i32",
    "int8x2": "16-bit rows, 8-bit weights, sums in i32",
    "weights8": "f32 rows, 8-bit weights, sums in f32",
}


def computed_in(sub: SubOperator, tiling: Tiling) -> str:
    """The format of a sub-operator's products, or the type of its first result."""
    if isinstance(tiling, _NARROW):
        return tiling.format
    kinds = sub.body.anchor_outputs or tuple(o.type for o in sub.body.operands[-1:])
    return kinds[0].dtype.value


def is_narrow(tiling: Tiling) -> bool:
    """Whether a kernel computes in a narrow format."""
    return isinstance(tiling, _NARROW)


def formats_in_force(schedule: Schedule) -> dict[str, int]:
    """How many sub-operators are computed in what."""
    pairs = zip(schedule.subops, schedule.tilings, strict=True)
    return dict(sorted(Counter(computed_in(sub, tiling) for sub, tiling in pairs).items()))


def precision_text(asked: str, sub: SubOperator, tiling: Tiling, explanation: Explanation) -> str:
    """One line about a sub-operator under a reduced precision; "" where none was asked for. `explanation`: the choice
    of its kernel."""
    if asked not in REDUCED:
        return ""
    if isinstance(tiling, _NARROW):
        how = "by the CPU's own instructions" if tiling.native else "the CPU has no instructions for it"
        return f"{asked} allowed: {_WORDS[tiling.format]}; {how}"
    words = computed_in(sub, tiling)
    if sub.body.op not in _PRODUCTS:
        return f"{asked} allowed: {words}, no product of matrices"
    return f"{asked} allowed: {words}, {_why_not(asked, explanation)}"


def _why_not(asked: str, explanation: Explanation) -> str:
    """Why no narrow kernel was taken."""
    faster = [c for c in explanation.eligible if _is_narrow(c, asked)]
    if faster and faster[0].score is not None:
        best = faster[0].score.time_ns
        return (
            f"{faster[0].row.kernel} gains nothing on this CPU: {best:.0f} ns by estimate, "
            f"{explanation.chosen.kernel} {explanation.score.time_ns:.0f} ns"
        )
    failed = [c for c in explanation.rejected if _is_narrow(c, asked)]
    if not failed:
        return f"no {asked} kernel computes {explanation.requirement.op}"
    nearest = min(failed, key=lambda c: len(c.failures))
    return f"{nearest.row.kernel} does not fit: {'; '.join(map(str, nearest.failures))}"


def _is_narrow(candidate: Candidate, asked: str) -> bool:
    """Whether a row is one of the precision asked for."""
    own = [c for c in candidate.row.limits if c.reason is Reason.PRECISION]
    return bool(own) and all(c.test.holds(asked, {}) for c in own)


def formats_text(asked: str, formats: Sequence[tuple[str, int]]) -> str:
    """One line for a report; "" where no reduced precision was asked for."""
    if asked not in REDUCED:
        return ""
    return f"precision {asked} allowed; sub-operators computed in " + ", ".join(f"{name}: {n}" for name, n in formats)
