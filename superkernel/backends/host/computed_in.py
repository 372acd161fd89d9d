"""What each sub-operator on the host is computed in, and why it is not what option `precision` allows.

Model: a tiling names the number format of its products; everything else is computed in its element types. The reasons
are the registry's own: the rows of the precision that were eligible but slower by estimate, else what they failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from superkernel.compilation.kernel_uses import computed_in
from superkernel.core.formats import REDUCED
from superkernel.registry.predicates import Reason

if TYPE_CHECKING:
    from superkernel.ir.body import SubOperator
    from superkernel.registry.explanation import Candidate, KernelExplanation
    from superkernel.scheduler.schedule import Schedule
    from superkernel.scheduler.tiling import Tiling

_PRODUCTS = frozenset(
    {
        *("matmul", "matmul_integer", "grouped_matmul", "block_matmul"),
        *("conv", "conv_integer", "conv_transpose", "attention"),
    }
)


def formats_in_force(schedule: Schedule) -> dict[str, int]:
    """How many sub-operators are computed in what."""
    pairs = zip(schedule.subops, schedule.tilings, strict=True)
    return dict(sorted(Counter(computed_in(sub, tiling) for sub, tiling in pairs).items()))


def precision_text(asked: str, sub: SubOperator, tiling: Tiling, explanation: KernelExplanation) -> str:
    """One line about a sub-operator under a reduced precision; "" where neither the options nor the graph ask for one.
    `explanation`: the choice of its kernel."""
    number = tiling.format
    if asked not in REDUCED and (number is None or number.precision not in REDUCED):
        return ""
    if number is not None and number.rounds_factors:
        how = "by the CPU's own instructions" if number.native else "the CPU has no instructions for it"
        return f"{asked if asked in REDUCED else number.precision} allowed: {number.title}; {how}"
    words = computed_in(sub, tiling)
    if sub.body.op not in _PRODUCTS:
        return f"{asked} allowed: {words}, no product of matrices"
    return f"{asked} allowed: {words}, {_why_not(asked, explanation)}"


def _why_not(asked: str, explanation: KernelExplanation) -> str:
    """Why no kernel of reduced precision was taken."""
    faster = [c for c in explanation.eligible if _allows(c, asked)]
    if faster and faster[0].score is not None:
        best = faster[0].score.time_ns
        return (
            f"{faster[0].row.kernel} gains nothing on this CPU: {best:.0f} ns by estimate, "
            f"{explanation.chosen.kernel} {explanation.score.time_ns:.0f} ns"
        )
    failed = [c for c in explanation.rejected if _allows(c, asked)]
    if not failed:
        return f"no {asked} kernel computes {explanation.requirement.op}"
    nearest = min(failed, key=lambda c: len(c.failures))
    return f"{nearest.row.kernel} does not fit: {'; '.join(map(str, nearest.failures))}"


def _allows(candidate: Candidate, asked: str) -> bool:
    """Whether a row is one of the precision asked for."""
    own = [c for c in candidate.row.limits if c.reason is Reason.PRECISION]
    return bool(own) and all(c.test.holds(asked, {}) for c in own)


def formats_text(asked: str, formats: Sequence[tuple[str, int]]) -> str:
    """One line for a report; "" where no reduced precision was asked for."""
    if asked not in REDUCED:
        return ""
    return f"precision {asked} allowed; sub-operators computed in " + ", ".join(f"{name}: {n}" for name, n in formats)


def idle_precision(asked: str, schedule: Schedule) -> tuple[str, ...]:
    """What is said where a reduced precision is allowed, and no kernel makes use of it."""
    if asked not in REDUCED or any(t.format is not None and t.format.rounds_factors for t in schedule.tilings):
        return ()
    return (
        f"precision={asked!r} has no effect on this graph: no product is computed in it (`explain` of one says why)",
    )
