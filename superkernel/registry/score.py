"""The order among eligible kernels: a tuple of figures, lower wins, no ties.

Order: pinned, role, source of the time, whether it is slower than the fastest, error, what it joins, time, specificity,
feature rank, workspace, code size, id. With objective "size" the code size, with "memory" the workspace moves ahead of
the time. Better CPU features never win by themselves: time decides, features only break ties.

Estimates are not exact, and they are of the operator alone: among kernels that by estimate are about as fast as the
fastest, the one with the smallest error goes first, since precision is given up for a gain only, then the one that more
can be joined to, since each joined program saves a pass over memory that no estimate counts.

Invariant: an estimate is never weighed against nothing. A measured time may be weighed against an estimate, for
`superkernel tune` measures until the shortest of a set is a measured one; the set's times are called as that one is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from superkernel.registry.predicates import matches_any
from superkernel.registry.records import Capability, Estimate, Policy
from superkernel.target.timings import settled_ns

MODEL, NO_TIME, MEASURED = 0, 1, 2
SOURCES = ("model", "none", "measured")
LEVEL = {MODEL: 1.06, NO_TIME: 1.0, MEASURED: 1.06}
"""Times up to so many times the shortest are as good as it: a share that tells no two kernels apart (`bench/kernels.py
regret` prints estimates beside measured times)."""


class Score(NamedTuple):
    """One candidate's figures. Times in ns, sizes in bytes; negated where more is better. `error_ulps` and `joins`
    (kinds of inputs) count among the fastest only."""

    pinned: int
    role: int
    source: int
    slower: int
    error_ulps: float
    joins: int
    time_ns: float
    specificity: int
    feature_rank: int
    workspace_bytes: int
    code_bytes: int
    id: str


_ORDER: dict[str, tuple[int, ...]] = {
    "latency": tuple(range(len(Score._fields))),
    "size": (0, 1, 10, 2, 3, 4, 5, 6, 7, 8, 9, 11),
    "memory": (0, 1, 9, 2, 3, 4, 5, 6, 7, 8, 10, 11),
}


def sort_key(score: Score, objective: str) -> tuple[float | int | str, ...]:
    """The score in the order of the objective."""
    if objective == "latency":
        return score
    return tuple(score[i] for i in _ORDER[objective])


def deciding_element(winner: Score, loser: Score, objective: str) -> str:
    """The first figure, in the order of the objective, in which the two differ."""
    name = next(Score._fields[i] for i in _ORDER[objective] if winner[i] != loser[i])
    return "time_ns" if name == "slower" else name


Times = tuple[int, list[float]]
"""Where the times of a candidate set come from, and one per candidate (0 where there are none)."""


def times_of(estimates: Sequence[Estimate | None]) -> Times:
    """Times of one candidate set: for all, else none."""
    known = [e for e in estimates if e is not None]
    if len(known) < len(estimates) or not known:
        return NO_TIME, [0.0] * len(estimates)
    shortest = min(known, key=lambda e: e.time_ns)
    if not shortest.measured:
        return MODEL, [e.time_ns for e in known]
    usual = min(known, key=lambda e: e.modelled_ns)
    return MEASURED, [e.time_ns if e == usual else settled_ns(e.time_ns, usual.time_ns) for e in known]


def score_of(
    row: Capability, clauses: int, policy: Policy, source: int, time_ns: float, slower: bool, estimate: Estimate | None
) -> Score:
    """The score of one candidate with that many clauses. `slower`: than the fastest of its set (see `LEVEL`)."""
    return Score(
        pinned=0 if policy.pin and matches_any(policy.pin, row.names) else 1,
        role=row.role.rank,
        source=source,
        slower=int(slower),
        error_ulps=0.0 if slower else row.error_ulps,
        joins=0 if slower else -len(row.layouts),
        time_ns=time_ns,
        specificity=-clauses,
        feature_rank=-len(row.features),
        workspace_bytes=sum(estimate.workspace.values()) if estimate is not None else 0,
        code_bytes=row.code_bytes,
        id=row.id,
    )
