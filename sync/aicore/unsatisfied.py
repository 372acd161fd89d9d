"""Dependences of a sub-operator that no earlier event satisfies, and in which rounds events do.

Model: a dependence is unsatisfied where the later task's core does not know the earlier one's as complete. Rows are by
the types of the two cores; `last` is the sub-operator that must be known. Operands whose producers are not equally far
back are served in *rounds*, those that need least first: a kernel then begins with the operands that were
made first while the others, or the flags behind them, are still on their way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from superkernel.scheduler.schedule import Task
from superkernel.sync.aicore.events import Known
from superkernel.sync.aicore.harts import Harts
from superkernel.sync.aicore.plan import HartKind
from superkernel.sync.hazards import Conflict

ROUNDS_MAX = 3  # a kernel has four wait entries; one may be a fence
Use = tuple[HartKind, int]  # a type of cores, and the operand that they come to


@dataclass
class Dependence:
    """Pairs (receiver, setter) that lack something, by the types of the two; `last` is the sub-operator needed."""

    last: int = -1
    own_group: bool = True
    operands: set[int] = field(default_factory=set)
    pairs: list[tuple[int, int, int]] = field(default_factory=list)  # receiver, setter, sub-operator


Unsatisfied = dict[tuple[HartKind, HartKind], Dependence]
"""By (type of the setter, type of the receiver)."""


@dataclass(frozen=True)
class Conflicts:
    """Of one sub-operator's tasks."""

    tasks: Sequence[Task]
    harts: Harts
    found: Sequence[Conflict]

    def unsatisfied(self, known: Known, uses: Collection[Use] | None = None) -> tuple[Unsatisfied, list[Conflict], int]:
        """What is missing at some uses, or at all; the conflicts that show it; the number of those implied."""
        rows: Unsatisfied = {}
        shown: list[Conflict] = []
        implied = 0
        for conflict in self.found:
            setter, receiver = self.tasks[conflict.earlier], self.tasks[conflict.later]
            if setter.core == receiver.core:
                continue
            if known[receiver.core, setter.core] >= setter.subop:
                implied += 1
                continue
            key = (self.harts.kind(setter.core), self.harts.kind(receiver.core))
            operand = conflict.operand or 0
            if uses is not None and (key[1], operand) not in uses:
                continue
            row = rows.setdefault(key, Dependence())
            row.last = max(row.last, setter.subop)
            row.own_group = row.own_group and bool(self.harts.group[setter.core] == self.harts.group[receiver.core])
            row.operands.add(operand)
            row.pairs.append((receiver.core, setter.core, setter.subop))
            shown.append(conflict)
        return rows, shown, implied

    def rounds(self, shown: Iterable[Conflict]) -> list[set[Use]]:
        """The uses by the sub-operator that they need, the first one first; of more than `ROUNDS_MAX`, the first ones
        together."""
        last: dict[Use, int] = {}
        for conflict in shown:
            use = (self.harts.kind(self.tasks[conflict.later].core), conflict.operand or 0)
            last[use] = max(last.get(use, -1), self.tasks[conflict.earlier].subop)
        levels = sorted(set(last.values()))[-ROUNDS_MAX:]
        return [
            {use for use, its in last.items() if its <= level and (number == 0 or its > levels[number - 1])}
            for number, level in enumerate(levels)
        ]
