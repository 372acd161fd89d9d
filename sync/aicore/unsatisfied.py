"""Dependences of a sub-operator that no earlier event satisfies, and in which rounds events do.

Model: a dependence is unsatisfied where the later task's core does not know the earlier one's as complete. Rows are by
the types of the two cores; `last` is the sub-operator that must be known. Operands whose producers are not equally far
back are served in *rounds*, those that need least first: a kernel then begins with the operands that were
made first while the others, or the flags behind them, are still on their way.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from superkernel.sync.aicore.events import Known
from superkernel.sync.aicore.harts import Harts
from superkernel.sync.aicore.plan import HartKind
from superkernel.sync.hazards import AccessColumns, Pairs

ROUNDS_MAX = 3  # a kernel has four wait entries; one may be a fence
Use = tuple[HartKind, int]  # a type of cores, and the operand that they come to


@dataclass(frozen=True)
class Dependence:
    """What lacks between harts of two types: `pairs` are rows (receiver, setter, sub-operator); `last` is the
    sub-operator needed."""

    last: int
    own_group: bool
    operands: frozenset[int]
    pairs: NDArray[np.int32]


Unsatisfied = dict[tuple[HartKind, HartKind], Dependence]
"""By (type of the setter, type of the receiver)."""


@dataclass(frozen=True)
class Conflicts:
    """Of one sub-operator's tasks."""

    accesses: AccessColumns
    harts: Harts
    found: Pairs

    def unsatisfied(self, known: Known, uses: Collection[Use] | None = None) -> tuple[Unsatisfied, Pairs, int]:
        """What is missing at some uses, or at all; the conflicts that show it; the number of those implied."""
        earlier, later = self.found.T
        setter, receiver = self.accesses.core[earlier], self.accesses.core[later]
        behind = self.accesses.subop[earlier]
        between = setter != receiver
        missing = between & (known[receiver, setter] < behind)
        implied = int(np.count_nonzero(between) - np.count_nonzero(missing))
        if uses is not None:
            types = self.harts.types
            wanted = [types.index(kind) + len(types) * operand for kind, operand in uses]
            missing &= np.isin(self._uses(self.found), wanted)
        at = np.flatnonzero(missing)
        rows: Unsatisfied = {}
        if len(at):
            pairs = np.stack((receiver[at], setter[at], behind[at]), axis=1)
            operands = self._operands(self.found[at])
            own = self.harts.group[pairs[:, 0]] == self.harts.group[pairs[:, 1]]
            receivers, setters = self.harts.type[pairs[:, 0]], self.harts.type[pairs[:, 1]]
            types_of = setters * len(self.harts.types) + receivers
            found, first = np.unique(types_of, return_index=True)
            for number in found[np.argsort(first)].tolist():
                mine = types_of == number
                one, other = divmod(number, len(self.harts.types))
                rows[self.harts.types[one], self.harts.types[other]] = Dependence(
                    int(pairs[mine, 2].max()), bool(own[mine].all()), frozenset(operands[mine].tolist()), pairs[mine]
                )
        return rows, self.found[at], implied

    def rounds(self, shown: Pairs) -> list[set[Use]]:
        """The uses by the sub-operator that they need, the first one first; of more than `ROUNDS_MAX`, the first ones
        together."""
        uses, which = np.unique(self._uses(shown), return_inverse=True)
        last = np.full(len(uses), -1, np.int32)
        np.maximum.at(last, which, self.accesses.subop[shown[:, 0]])
        levels = np.unique(last)[-ROUNDS_MAX:].tolist()
        rounds: list[set[Use]] = [set() for _ in levels]
        for use, number in zip(uses.tolist(), np.searchsorted(levels, last).tolist(), strict=True):
            operand, kind = divmod(use, len(self.harts.types))
            rounds[number].add((self.harts.types[kind], operand))
        return rounds

    def _operands(self, found: Pairs) -> NDArray[np.int32]:
        """Of the later accesses."""
        operands: NDArray[np.int32] = self.accesses.operand[found[:, 1]]
        return operands

    def _uses(self, found: Pairs) -> NDArray[np.int64]:
        """A number for each: operand, then type of core."""
        types: NDArray[np.int64] = self.harts.type[self.accesses.core[found[:, 1]]]
        return self._operands(found) * len(self.harts.types) + types
