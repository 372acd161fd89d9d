"""Dependences of a sub-operator that no earlier event satisfies, and in which rounds events do.

Model: a dependence is unsatisfied where the later task's core does not know the earlier one's as complete. Rows are by
the types of the two cores; `last` is the sub-operator that must be known. Operands whose producers are not equally far
back are served in *rounds*, those that need least first: a kernel then begins with the operands that were
made first while the others, or the flags behind them, are still on their way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from superkernel.sync.aicore.events import Known
from superkernel.sync.aicore.harts import Harts
from superkernel.sync.aicore.plan import HartKind
from superkernel.sync.hazards import AccessColumns, Pairs

ROUNDS_MAX = 3  # a kernel has four wait entries; one may be a fence
FEW = 48  # conflicts that are looked at one by one, which takes less time than columns of so few


@dataclass(slots=True)
class Dependence:
    """What lacks between harts of two types: its conflicts, the last sub-operator that must be known, whether all are
    between harts of one group, and the operands."""

    conflicts: Conflicts | FewConflicts
    last: int
    own_group: bool
    operands: frozenset[int]


Unsatisfied = dict[tuple[HartKind, HartKind], Dependence]
"""By (type of the setter, type of the receiver)."""


@dataclass(slots=True)
class Conflicts:
    """Between tasks of different sub-operators. `columns`, from first to last: the accesses by number, the earlier one
    and the later one; the hart of the earlier one's task, `setter`, and of the later one's, `receiver`; `behind`: the
    earlier one's sub-operator, what must be `known` to be complete, and what must be `fenced`, -1 where nothing must;
    the later one's operand, and its use; the place of the two harts in `Known`; their types; whether they are of one
    group. A boundary of two cores has few of them, of which there are tens of thousands: nothing is computed there that
    can be computed of all at once."""

    harts: Harts
    columns: NDArray[np.int32]

    @staticmethod
    def of(accesses: AccessColumns, pairs: Pairs, harts: Harts) -> Conflicts:
        """Between so many pairs of accesses."""
        types = len(harts.types)
        earlier, later = pairs.T
        setter, receiver = accesses.core[earlier], accesses.core[later]
        behind, operand = accesses.subop[earlier], accesses.operand[later]
        own = (setter == receiver) & accesses.write[earlier] & ~accesses.write[later]
        columns = (
            earlier, later, setter, receiver, behind, np.where(setter != receiver, behind, -1),
            np.where(own, behind, -1), operand, (operand + 1) * types + harts.type[receiver],
            receiver * harts.total + setter, harts.type[setter] * types + harts.type[receiver],
            harts.group[setter] == harts.group[receiver],
        )  # fmt: skip
        return Conflicts(harts, np.stack(columns, dtype=np.int32, casting="same_kind"))

    def __getitem__(self, some: slice | NDArray[np.int64]) -> Conflicts:
        return Conflicts(self.harts, self.columns[:, some])

    @property
    def accesses(self) -> tuple[tuple[int, int], ...]:
        """Pairs by number."""
        return tuple(zip(*self.columns[:2].tolist(), strict=True))

    @property
    def needs(self) -> set[tuple[int, int, int]]:
        """Receiver, setter and the sub-operator that it must know."""
        return set(zip(*self.columns[[3, 2, 4]].tolist(), strict=True))

    def unfenced(self, fenced: NDArray[np.int32]) -> Iterator[tuple[int, int, int]]:
        """Hart, sub-operator and operand where a hart reads what it wrote itself and is not known to have fenced."""
        receiver, written, operand = self.columns[3], self.columns[6], self.columns[7]
        at = np.flatnonzero(fenced.take(receiver) < written)
        return zip(receiver[at].tolist(), written[at].tolist(), operand[at].tolist(), strict=True)

    def unsatisfied(self, known: Known, uses: Collection[int] | None = None) -> tuple[Unsatisfied, Conflicts, int]:
        """What is missing at some uses, or at all; the conflicts that show it; the number of those implied."""
        needed = self.columns[5]
        at = np.flatnonzero(known.take(self.columns[9]) < needed)
        implied = int(np.count_nonzero(needed >= 0)) - len(at)
        if uses is not None:
            at = at[np.isin(self.columns[8, at], [*uses])]
        rows: Unsatisfied = {}
        missing = self[at]
        types = missing.columns[10]
        for number in dict.fromkeys(types.tolist()):
            one, other = divmod(number, len(self.harts.types))
            mine = missing[np.flatnonzero(types == number)]
            rows[self.harts.types[one], self.harts.types[other]] = Dependence(
                mine, int(mine.columns[4].max()), bool(mine.columns[11].all()), frozenset(mine.columns[7].tolist())
            )
        return rows, missing, implied

    def rounds(self) -> list[Collection[int]]:
        """The uses by the sub-operator that they need, the first one first; of more than `ROUNDS_MAX`, the first ones
        together. A use is a type of cores and the operand that they come to, by number."""
        behind, use = self.columns[4], self.columns[8]
        last = np.full(use.max(initial=-1) + 1, -1, np.int32)
        np.maximum.at(last, use, behind)
        uses = np.flatnonzero(last >= 0)
        levels = sorted({*last[uses].tolist()})[-ROUNDS_MAX:]
        number = np.searchsorted(levels, last[uses])
        return [uses[number == n].tolist() for n in range(len(levels))]


@dataclass(slots=True)
class FewConflicts:
    """The same of `FEW` conflicts at the most: `rows` has a row of `Conflicts.columns` for each."""

    harts: Harts
    rows: list[list[int]]

    def __getitem__(self, some: slice) -> FewConflicts:
        return FewConflicts(self.harts, self.rows[some])

    @property
    def accesses(self) -> tuple[tuple[int, int], ...]:
        """Pairs by number."""
        return tuple([(row[0], row[1]) for row in self.rows])

    @property
    def needs(self) -> set[tuple[int, int, int]]:
        """Receiver, setter and the sub-operator that it must know."""
        return {(row[3], row[2], row[4]) for row in self.rows}

    def unfenced(self, fenced: NDArray[np.int32]) -> Iterator[tuple[int, int, int]]:
        """Hart, sub-operator and operand where a hart reads what it wrote itself and is not known to have fenced."""
        return ((row[3], row[6], row[7]) for row in self.rows if row[6] >= 0 and fenced.item(row[3]) < row[6])

    def unsatisfied(self, known: Known, uses: Collection[int] | None = None) -> tuple[Unsatisfied, FewConflicts, int]:
        """What is missing at some uses, or at all; the conflicts that show it; the number of those implied."""
        at = known.item
        missing = [row for row in self.rows if at(row[9]) < row[5]]  # -1 is known of everybody
        implied = len(self.rows) - [row[5] for row in self.rows].count(-1) - len(missing)
        if uses is not None:
            missing = [row for row in missing if row[8] in uses]
        of_types: dict[int, list[list[int]]] = {}
        for row in missing:
            of_types.setdefault(row[10], []).append(row)
        rows: Unsatisfied = {}
        for number, mine in of_types.items():
            one, other = divmod(number, len(self.harts.types))
            rows[self.harts.types[one], self.harts.types[other]] = Dependence(
                FewConflicts(self.harts, mine),
                max([row[4] for row in mine]),
                0 not in [row[11] for row in mine],
                frozenset([row[7] for row in mine]),
            )
        return rows, FewConflicts(self.harts, missing), implied

    def rounds(self) -> list[Collection[int]]:
        """As `Conflicts.rounds`."""
        last: dict[int, int] = {}
        for row in self.rows:
            use, behind = row[8], row[4]
            if last.get(use, -1) < behind:
                last[use] = behind
        levels = sorted({*last.values()})[-ROUNDS_MAX:]
        found: list[list[int]] = [[] for _ in levels]
        for use in sorted(last):
            found[bisect_left(levels, last[use])].append(use)
        return [*found]
