"""The order among eligible kernels: a tuple of figures, lower wins, no ties.

Order: pinned, role, source of the time, time with transforms and transfers, memory penalty, specificity, feature rank,
workspace, code size, id. With objective "size" the code size, with "memory" the workspace moves ahead of the time.
Better CPU features never win by themselves: time decides, features only break ties.

Invariant: times of one candidate set come from one source, so that a measurement is never weighed against a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from superkernel.registry.eligibility import estimated_time_ns
from superkernel.registry.models import workspace_of
from superkernel.registry.predicates import Facts, matches_any
from superkernel.registry.records import Capability, Policy

MEASURED, MODEL, NO_TIME = 0, 1, 2
SOURCES = ("measured", "model", "none")


class Score(NamedTuple):
    """One candidate's figures. Times in ns, sizes in bytes; negated where more is better."""

    pinned: int
    role: int
    source: int
    time_ns: float
    penalty_ns: float
    specificity: int
    feature_rank: int
    workspace_bytes: int
    code_bytes: int
    id: str


_ORDER: dict[str, tuple[int, ...]] = {
    "latency": tuple(range(len(Score._fields))),
    "size": (0, 1, 8, 2, 3, 4, 5, 6, 7, 9),
    "memory": (0, 1, 7, 2, 3, 4, 5, 6, 8, 9),
}


def sort_key(score: Score, objective: str) -> tuple[float | int | str, ...]:
    """The score in the order of the objective."""
    if objective == "latency":
        return score
    return tuple(score[i] for i in _ORDER[objective])


def deciding_element(winner: Score, loser: Score, objective: str) -> str:
    """The first figure, in the order of the objective, in which the two differ."""
    return next(Score._fields[i] for i in _ORDER[objective] if winner[i] != loser[i])


Times = tuple[int, list[float]]
"""Where the times of a candidate set come from, and one per candidate (0 where there are none)."""


def times_of(rows: Sequence[Capability], facts: Facts, measured_ns: Sequence[float | None]) -> Times:
    """Times of one candidate set from one source: measured for all, else modelled for all, else none."""
    known = [t for t in measured_ns if t is not None]
    if rows and len(known) == len(rows):
        return MEASURED, known
    modelled = [estimated_time_ns(row, facts) for row in rows]
    known = [t for t in modelled if t is not None]
    return (MODEL, known) if len(known) == len(rows) else (NO_TIME, [0.0] * len(rows))


def score_of(row: Capability, clauses: int, facts: Facts, policy: Policy, source: int, time_ns: float) -> Score:
    """The score of one candidate with that many clauses."""
    needed = workspace_of(row, facts) if row.workspace or row.persistent else {}
    near_bytes = facts.get("cpu.l2_bytes")
    beyond = 0 if near_bytes is None else needed.get("scratch", 0) - near_bytes
    return Score(
        pinned=0 if policy.pin and matches_any(policy.pin, row.names) else 1,
        role=row.role.rank,
        source=source,
        time_ns=time_ns,
        penalty_ns=beyond / facts["cpu.l3_bytes_per_ns"] if beyond > 0 else 0.0,
        specificity=-clauses,
        feature_rank=-len(row.features),
        workspace_bytes=sum(needed.values()),
        code_bytes=row.code_bytes,
        id=row.id,
    )


def front_of(rows: Sequence[Capability], times_ns: Sequence[float], facts: Facts, objective: str) -> list[int]:
    """The candidates that no other precedes in the figure the objective weighs first: only these need a whole score.
    Equal in pin, role and source they must be."""
    figures: Sequence[float]
    if objective == "size":
        figures = [row.code_bytes for row in rows]
    elif objective == "memory":
        figures = [sum(workspace_of(row, facts).values()) for row in rows]
    else:
        figures = times_ns
    least = min(figures)
    return [i for i, figure in enumerate(figures) if figure == least]
