"""Which sub-operators share a launch: scopes, what splits them, and whether sharing pays.

Model: a *scope* is a set of nodes that the user wants in one launch. Without any, the whole graph is one scope; with
some, a sub-operator outside all of them is launched alone. Sub-operators of one scope are brought next to one another
as far as dependences allow (`by_scope`); where another sub-operator must run between them, or one without a kernel
(NumPy computes it between two launches), the scope is split, and the split has a reason.

The *cost model* predicts each part both ways:

    fused     launch + sum of work + instruction misses of each distinct kernel once + boundaries beyond what hides them
    single    sum of (launch + work + instruction misses of the kernel)

`work` is the estimate of the longest range; a miss costs `icache.miss_latency_cycles`; a run goes through about
CODE_SHARE of the code that a kernel's row states at most. Early-Start hides of a boundary what precedes a kernel's
first access: the misses on its way there. A part whose fused prediction is the greater is launched one by one
("declined"), unless the user decides (`launches`).

Invariant: order and cuts change no result. A sub-operator alone in its launch has nothing to gain or lose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from superkernel.core.errors import UnsupportedError, Violation, raise_all
from superkernel.ir.body import SubOperator
from superkernel.scheduler.dependences import dependences
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.grouping import Grouping
from superkernel.scheduler.hostcall import HOST_REFERENCE
from superkernel.scheduler.schedule import Schedule
from superkernel.target.aicore import AicoreTarget

WHOLE = "the whole graph"
CODE_SHARE = 0.25  # measured: 0.15 to 0.4 on the models of the tests


@dataclass(frozen=True, slots=True)
class Prediction:
    """Times in ns of a part, fused and in single launches; `work_ns` is in both."""

    fused_ns: float
    single_ns: float
    launch_ns: float  # of one launch
    work_ns: float
    sync_ns: float  # boundaries, beyond what hides them
    misses_ns: float  # fused

    @property
    def pays(self) -> bool:
        """Whether the fused part is predicted to be no slower."""
        return self.fused_ns <= self.single_ns

    def __str__(self) -> str:
        return (
            f"fused {self.fused_ns / 1000:.2f} us (work {self.work_ns / 1000:.2f}, synchronisation "
            f"{self.sync_ns / 1000:.2f}, code {self.misses_ns / 1000:.2f}, launch {self.launch_ns / 1000:.2f}), "
            f"one by one {self.single_ns / 1000:.2f} us"
        )


@dataclass(frozen=True)
class ScopePart:
    """Sub-operators [first, last] that may share a launch. `scope`: None outside all scopes. `split`: why the part does
    not go on where its scope does. `fused`: they do share one; `decision` says why, or why not."""

    scope: str | None
    first: int
    last: int
    split: str = ""
    fused: bool = True
    decision: str = ""
    predicted: Prediction | None = None

    @property
    def subops(self) -> range:
        """Indices of its sub-operators."""
        return range(self.first, self.last + 1)

    @property
    def name(self) -> str:
        """Scope, where there is one, and sub-operators."""
        several = self.last > self.first
        numbers = f"sub-operators {self.first} to {self.last}" if several else f"sub-operator {self.first}"
        scope = "outside all scopes" if self.scope is None else f"scope {self.scope!r}" if self.scope else ""
        return f"{scope}, {numbers}" if scope else numbers

    def __str__(self) -> str:
        return f"{self.name}: {self.decision}" + (f"; split: {self.split}" if self.split else "")


def effective_scopes(subops: Sequence[SubOperator]) -> list[str | None]:
    """Each sub-operator's scope: "" for all of them where no node has one. A copy, which computes no node, belongs to
    whoever wrote what it copies."""
    if not any(sub.scope for sub in subops):
        return [""] * len(subops)
    writer: dict[str, str | None] = {}
    found: list[str | None] = []
    for sub in subops:
        scope = sub.scope if sub.nodes else next((writer[v] for v in sub.values if v in writer), None)
        writer.update(dict.fromkeys(sub.values, scope))
        found.append(scope)
    return found


def by_scope(grouping: Grouping) -> Grouping:
    """The sub-operators in an order that keeps scopes together, the given one as far as that leaves it. Of those that
    can be next: one of the scope at hand, else one outside all scopes, else of a scope that waits for nothing outside
    itself, else the first."""
    scopes = effective_scopes(grouping.subops)
    if len(set(scopes)) == 1 and scopes[0] is not None:
        return grouping
    before = dependences(grouping)
    done: list[int] = []
    left = set(range(len(scopes)))
    current: str | None = None
    while left:
        ready = sorted(i for i in left if not before[i] & left)
        chosen = min(ready, key=lambda i: (_rank(i, scopes, before, left, current), i))
        current = scopes[chosen]
        done.append(chosen)
        left.remove(chosen)
    return replace(grouping, subops=tuple(replace(grouping.subops[i], index=n) for n, i in enumerate(done)))


def _rank(
    index: int, scopes: Sequence[str | None], before: Sequence[set[int]], left: set[int], current: str | None
) -> int:
    scope = scopes[index]
    if scope is not None and scope == current:
        return 0
    if scope is None:
        return 1
    outside = {p for i in left if scopes[i] == scope for p in before[i] & left if scopes[p] != scope}
    return 3 if outside else 2


def parts_of(schedule: Schedule, strict: str = "split") -> tuple[ScopePart, ...]:
    """The parts in order. `strict="abort"`: a scope with an operator that has no kernel is refused: UnsupportedError
    naming both."""
    scopes = effective_scopes(schedule.subops)
    calls = {s.index for s in schedule.subops if s.kernel == HOST_REFERENCE}
    if strict == "abort":
        raise_all(UnsupportedError, [_refusal(schedule.subops[i], scopes[i]) for i in sorted(calls)])
    rows: list[list[int]] = []
    for index, scope in enumerate(scopes):
        if index in calls:
            continue
        if rows and scope is not None and rows[-1][-1] == index - 1 and scopes[rows[-1][-1]] == scope:
            rows[-1].append(index)
        else:
            rows.append([index])
    found = []
    for row in rows:
        scope = scopes[row[0]]
        more = scope is not None and any(s == scope for i, s in enumerate(scopes) if i > row[-1] and i not in calls)
        found.append(ScopePart(scope, row[0], row[-1], _why_split(schedule, row[-1] + 1, calls) if more else ""))
    return tuple(found)


def _refusal(sub: SubOperator, scope: str | None) -> Violation:
    where = WHOLE if scope == "" else "no scope" if scope is None else f"scope {scope!r}"
    return Violation(
        "an operator without a kernel splits its scope",
        f"node {sub.name!r} ({sub.body.op}), {where}",
        "a kernel, because strict_scope is 'abort'",
        "NumPy between two launches",
        "leave the node out of the scope, or strict_scope='split'",
    )


def _why_split(schedule: Schedule, index: int, calls: set[int]) -> str:
    sub = schedule.subops[index]
    if index in calls:
        return f"{sub.name!r} ({sub.body.op}) has no kernel: NumPy computes it between two launches"
    return f"{sub.name!r}, which is not in the scope, must run between"


def predict(
    part: ScopePart,
    schedule: Schedule,
    target: AicoreTarget,
    boundary_ns: Callable[[int], float],
    code_bytes: Callable[[int], int],
    early_start: bool,
) -> Prediction:
    """See the module docstring. `boundary_ns`, `code_bytes`: of a sub-operator's boundary and kernel."""
    ns = 1000 / float(target.device.clock_mhz)
    launch = float(target.dispatch.launch_ns)
    line, latency = target.icache.line_bytes, float(target.icache.miss_latency_cycles)
    work = sync = misses_single = 0.0
    distinct: dict[tuple[object, ...], float] = {}
    for index in part.subops:
        work += work_ns(schedule, index, target)
        sub = schedule.subops[index]
        misses = CODE_SHARE * -(-code_bytes(index) // line) * latency * ns
        misses_single += misses
        first = distinct.setdefault((sub.kernel, sub.body, schedule.tilings[index]), misses) is misses
        if index > part.first:
            sync += max(0.0, boundary_ns(index) - (misses if first and early_start else 0.0))
    once = sum(distinct.values())
    fused_ns = launch + work + once + sync
    single_ns = len(part.subops) * launch + work + misses_single
    return Prediction(fused_ns, single_ns, launch, work, sync, once)


def work_ns(schedule: Schedule, index: int, target: AicoreTarget) -> float:
    """Estimated time of a sub-operator's longest range."""
    tiling = schedule.tilings[index]
    if not isinstance(tiling, AicoreTiling):
        return 0.0
    body = schedule.subops[index].body
    spans = {(t.begin, t.end) for t in schedule.tasks if t.subop == index}
    return max((tiling.cost_ns(body, begin, end, target) for begin, end in spans), default=0.0)


def decide(part: ScopePart, launches: str, predicted: Prediction) -> ScopePart:
    """The part with its decision. `launches`: "auto", or what the user wants."""
    if part.scope is None or part.first == part.last:
        why = "outside all scopes" if part.scope is None else "nothing to fuse it with"
        return replace(part, decision=f"one sub-operator, one launch ({why})", predicted=predicted)
    if launches == "auto":
        fused = predicted.pays
        what = "fused" if fused else "declined, launched one by one: fusion is predicted to lose"
    else:
        fused = launches == "fused"
        what = f"{'fused' if fused else 'launched one by one'}, as launches={launches!r} asks"
    return replace(part, fused=fused, decision=f"{what}; predicted: {predicted}", predicted=predicted)


def cuts_of(parts: Sequence[ScopePart]) -> frozenset[int]:
    """Sub-operators that begin a launch (the planner leaves out those that do so anyway)."""
    return frozenset(i for part in parts for i in (part.subops if not part.fused else (part.first,)))
