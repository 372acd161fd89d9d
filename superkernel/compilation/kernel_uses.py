"""Which kernel computes each sub-operator of a compilation, why, and at what price: what reports and profiles say of
kernels, the same on every target.

Model: a `KernelUse` is plain data. What depends on the cut that was taken (working memory) is the schedule's, the rest
is the registry's: the row with its promises, what decided for it, and which better role it stands in for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from superkernel.compilation.compiled import AnyCompilation
    from superkernel.ir.body import SubOperator
    from superkernel.registry.explanation import KernelExplanation
    from superkernel.scheduler.tiling import Tiling


@dataclass(frozen=True)
class KernelUse:
    """A sub-operator's kernel. `kernel`: its family's id; `row`: the variant; `canonical`: its name; `why`: what put it
    first; `fallback`: why no better role; `workspace_bytes`: of one core, as it was cut; `transfer_bytes`: to and from
    NumPy per call; `error_ulps`: the bound of its error; `computed_in`: the format of its products, or the type of its
    result."""

    subop: int
    name: str
    op: str
    kernel: str
    row: str
    canonical: str
    role: str
    why: str
    fallback: str | None
    workspace_bytes: int
    transfer_bytes: int
    determinism: str
    error_ulps: float
    computed_in: str


class KernelUses(Sequence[KernelUse]):
    """One per sub-operator, in their order; made when somebody reads one, as it takes an estimate of each kernel that
    was not taken. A copy is a tuple."""

    def __init__(self, compiled: AnyCompilation) -> None:
        self._compiled = compiled

    @cached_property
    def _made(self) -> tuple[KernelUse, ...]:
        schedule, chooser = self._compiled.schedule, self._compiled.chooser
        pairs = zip(schedule.subops, schedule.tilings, strict=True)
        return tuple(_use(sub, tiling, chooser.selection_of(sub).explanation) for sub, tiling in pairs)

    def __len__(self) -> int:
        return len(self._compiled.schedule.subops)

    def __getitem__(self, index: Any) -> Any:
        return self._made[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._made == tuple(other)

    def __repr__(self) -> str:
        return repr(self._made)

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self._made,)


def _use(sub: SubOperator, tiling: Tiling, choice: KernelExplanation) -> KernelUse:
    row, fallback = choice.chosen, choice.fallback
    return KernelUse(
        sub.index,
        sub.name,
        choice.requirement.op,
        sub.kernel,
        row.id,
        row.name,
        row.role.value,
        reason_of(choice),
        None if fallback is None else fallback.reason,
        tiling.scratch_bytes,
        choice.transfer_bytes,
        row.determinism.value,
        row.error_ulps,
        computed_in(sub, tiling),
    )


def reason_of(choice: KernelExplanation) -> str:
    """What put a kernel before the second-best."""
    second, what = choice.runner_up, choice.decided_by
    if second is None or second.score is None or what is None:
        return "the only one that is eligible"
    if what == "pinned":
        return f"pinned, ahead of {second.row.id}"
    if what == "role":
        return f"{choice.chosen.role.value} against {second.row.role.value} of {second.row.id}"
    ours, theirs = (_figure(what, getattr(score, what)) for score in (choice.score, second.score))
    return f"{FIGURES.get(what, what)} {ours} against {theirs} of {second.row.id}"


FIGURES = {
    "time_ns": "estimated time",
    "error_ulps": "error",
    "joins": "kinds of inputs that it joins:",
    "specificity": "conditions of its own:",
    "feature_rank": "CPU features that it uses:",
    "workspace_bytes": "working memory",
    "code_bytes": "code",
}
"""Of `registry.score.Score`, as a reader is told them; those that count down are negated there."""
_UNITS = {"time_ns": " ns", "error_ulps": " ulp", "workspace_bytes": " bytes", "code_bytes": " bytes"}
_NEGATED = ("joins", "specificity", "feature_rank")


def _figure(what: str, value: Any) -> str:
    shown = -value if what in _NEGATED else value
    return (f"{shown:.0f}" if isinstance(shown, float) else str(shown)) + _UNITS.get(what, "")


def computed_in(sub: SubOperator, tiling: Tiling) -> str:
    """The format of a sub-operator's products, or the type of its first result."""
    if tiling.format is not None and tiling.format.is_reduced:
        return tiling.format.name
    kinds = sub.body.anchor_outputs or tuple(o.type for o in sub.body.operands[-1:])
    return kinds[0].dtype.value


def use_lines(uses: Sequence[KernelUse], rows_max: int = 12) -> list[str]:
    """For a terminal: the kernels in order of their first use, each with what was said of it there."""
    rows: dict[str, list[KernelUse]] = {}
    for use in uses:
        rows.setdefault(use.row, []).append(use)
    lines = [f"{'kernel':<44} {'uses':>4} {'workspace':>10} {'computed in':<12} promise; why"] if rows else []
    for row, found in list(rows.items())[:rows_max]:
        first, space = found[0], max(use.workspace_bytes for use in found)
        said = f"{first.determinism}, {first.error_ulps:g} ulp; {first.why}"
        if first.transfer_bytes:
            said += f"; {sum(use.transfer_bytes for use in found)} bytes to and from NumPy"
        if first.fallback is not None:
            said += f"; {first.role}, for {first.fallback}"
        lines.append(f"{row:<44} {len(found):>4} {space:>10} {first.computed_in:<12} {said}")
    if len(rows) > rows_max:
        lines.append(f"({rows_max} of {len(rows)} kernels; all of them in the JSON form)")
    return lines
