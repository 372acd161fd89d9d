"""Which cores run a sub-operator so that its readers need nothing from outside their group: `rematerialise`.

Model: a flag of all cores of a type takes long (`sync.core_full_ns`), one within a group little (`sync.group_ns`), one
from all of a type to the other both, and what a core wrote itself needs none. So a sub-operator may be taken from where
it was placed, and each group be given the units that its own cores read: as they are, where no two groups need the same
unit (heads of a state, rows); else each group *computes them for itself*, the same bits, into a copy of its own (a norm
of one row in front of a product).

It is decided from the last sub-operator to the first, since what a group needs depends on where the readers run. Time
is estimated backwards: `tail` of a core, from the begin of what it runs next to the end; `behind` of a sub-operator,
the same from its own begin. Units that a core may run are tried on each lane of the group, and split over them; what
ends up sooner, latency of the flag included, is taken. Nothing is taken that makes cores wait for stores of a producer
that they read from their own core, or from their own group, before. A reader is *late* where its cores learn of all
cores anyway, by a flag set behind the one at hand: what it reads may lie anywhere, and costs it no wait.

Invariants: units and kernels stay what they are, and so does every bit of a result; each unit is computed by
somebody; a core has one range of a sub-operator; a copy is written and read by one group. Only sub-operators that run
on cores of one type, keep no workspace and follow no table take part, between others on cores of the same scope.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType
from superkernel.ir.body import Role, SubOperator
from superkernel.scheduler.aicore.cores import Cores
from superkernel.scheduler.families.aicore.base import AicoreKernelType, AicoreTiling, CoreRole
from superkernel.scheduler.grouping import ValueBuffer
from superkernel.scheduler.schedule import Copies
from superkernel.scheduler.tiling import Tiling
from superkernel.target.aicore import AicoreTarget

AUTO, OFF = "auto", "off"
UNITS_MAX = 1024  # of a sub-operator that is looked at
PARTS_TRIED = 8  # of what moved: each takes a decision of everything
MARGIN = 0.1  # of a flag of all cores: what must be gained at least
COPY_ALIGN_BYTES = 512

Span = tuple[int, int, int, CoreRole]  # core, first unit, end, role
Hull = tuple[int, int]  # first and end
_NOTHING: Hull = (0, 0)


@dataclass(frozen=True)
class Rematerialised:
    """The sub-operators with their ranges. `copies`: values that groups compute each for itself, which have buffers of
    their own; `notes` by sub-operator."""

    subops: tuple[SubOperator, ...]
    buffers: Mapping[str, ValueBuffer]
    spans: tuple[tuple[Span, ...], ...]
    copies: tuple[Copies, ...]
    notes: Mapping[int, str]


@dataclass(frozen=True)
class _Attempt:
    """Ranges; by how many cycles each changed sub-operator is ahead; the cycles of the whole, by estimate."""

    spans: list[list[Span]]
    gains: dict[int, float]
    cycles: float


def rematerialise(
    subops: Sequence[SubOperator],
    tilings: Sequence[Tiling],
    spans: Sequence[Sequence[Span]],
    buffers: Mapping[str, ValueBuffer],
    cores: Cores,
    target: AicoreTarget,
    fixed: Collection[int] = (),
) -> Rematerialised:
    """Better ranges than the ones given. Sub-operators in global order; those `fixed` run in launches of their own, and
    stay where they are."""
    state = _LocalityState(subops, tilings, spans, buffers, cores, target)
    settled = state.settle(fixed)
    found = settled.spans
    new, copies, whole = _with_copies(state, found)
    notes = {}
    for i, gain in settled.gains.items():
        what = f"about {gain:.0f} cycles sooner, by estimate"
        if any(c.subop == i for c in copies):
            count = len({state.group[core] for core, *_ in found[i]})
            notes[i] = f"computed by {count} groups, each for itself what it reads: {what}"
        else:
            notes[i] = f"each group computes what it reads: {what}"
    return Rematerialised(new, {**buffers, **whole}, tuple(map(tuple, found)), copies, notes)


def _joined(a: Hull, b: Hull) -> Hull:
    """The bounds of both; empty ones count for nothing."""
    if a[0] >= a[1] or b[0] >= b[1]:
        return b if a[0] >= a[1] else a
    return min(a[0], b[0]), max(a[1], b[1])


def _meet(a: Hull, b: Hull) -> bool:
    return max(a[0], b[0]) < min(a[1], b[1])


class _LocalityState:
    """One schedule, before memory is planned."""

    def __init__(
        self,
        subops: Sequence[SubOperator],
        tilings: Sequence[Tiling],
        spans: Sequence[Sequence[Span]],
        buffers: Mapping[str, ValueBuffer],
        cores: Cores,
        target: AicoreTarget,
    ) -> None:
        self.subops, self.tilings, self.buffers, self.cores, self.target = subops, tilings, buffers, cores, target
        self.given = [list(row) for row in spans]
        per_cube, per_vector = cores.cube // cores.groups, cores.vector // cores.groups
        self.group = [*(c // per_cube for c in range(cores.cube)), *(v // per_vector for v in range(cores.vector))]
        self.far, self.near, self.across = (float(target.flag_cycles(mode)) for mode in ("type", "group", "across"))
        self.readers: dict[str, list[tuple[int, int]]] = {}  # value -> sub-operators and operands
        self.writers: dict[str, list[int]] = {}  # several of a concatenation
        for i, sub in enumerate(subops):
            for k, (value, operand) in enumerate(zip(sub.values, sub.body.operands, strict=True)):
                if operand.role in (Role.OUTPUT, Role.INOUT):
                    self.writers.setdefault(value, []).append(i)
                elif operand.role is Role.INPUT:
                    self.readers.setdefault(value, []).append((i, k))
        self.tangled = {b.inside[0] for b in buffers.values() if b.inside is not None}
        self.tangled |= {b.previous for b in buffers.values() if b.previous is not None}
        self.cost, self.hull = cache(self._cost), cache(self._hull)
        self.wide: dict[int, int] = {}  # sub-operator -> the last one that it needs a flag of more than a group for

    # What there is ----------------------------------------------------------------------------------------------------

    def _cost(self, i: int, units: int) -> float:
        """Cycles of so many units."""
        tiling = self.tilings[i]
        if not isinstance(tiling, AicoreTiling) or not units:
            return 0.0
        return tiling.contended_cycles(self.subops[i].body, 0, units, self.target)

    def _hull(self, i: int, begin: int, end: int, role: CoreRole, *, write: bool) -> dict[int, Hull]:
        """Bounds of the bytes of each operand that a range touches."""
        tiling = self.tilings[i]
        found: dict[int, Hull] = {}
        assert isinstance(tiling, AicoreTiling)
        for access in tiling.role_accesses(self.subops[i].body, begin, end, role):
            if access.write is write and access.regions:
                bounds = min(r.start for r in access.regions), max(r.stop for r in access.regions)
                found[access.operand] = _joined(found.get(access.operand, _NOTHING), bounds)
        return found

    def results(self, i: int) -> list[tuple[int, str]]:
        """Operands that it writes, with their values."""
        sub = self.subops[i]
        written = (Role.OUTPUT, Role.INOUT)
        return [(k, sub.values[k]) for k, o in enumerate(sub.body.operands) if o.role in written]

    def is_candidate(self, i: int) -> bool:
        """Whether its ranges may be others: see the module docstring."""
        tiling, sub = self.tilings[i], self.subops[i]
        if not isinstance(tiling, AicoreTiling) or tiling.kernel_type not in (
            AicoreKernelType.CUBE,
            AicoreKernelType.VECTOR,
        ):
            return False
        if tiling.barriers or tiling.dynamically_partitioned or tiling.scratch_bytes or sub.kernel_type is not None:
            return False
        readers = [j for _, value in self.results(i) for j, _ in self.readers.get(value, ())]
        if not readers or not 0 < tiling.units <= UNITS_MAX:
            return False
        for _, value in self.results(i):
            alone = self.writers[value] == [i] and self.buffers[value].inside is None
            if value in self.tangled or not alone:
                return False
        return all(self.subops[j].scope == sub.scope and self._on_cores(j) for j in readers)

    def _on_cores(self, i: int) -> bool:
        tiling = self.tilings[i]
        return isinstance(tiling, AicoreTiling) and not tiling.kernel_type.on_aicpu

    # Who needs what ---------------------------------------------------------------------------------------------------

    def needs(self, i: int, spans: Sequence[Sequence[Span]], of: Collection[int]) -> dict[int, Hull]:
        """The units that each core reads the results of, in some of the sub-operators that read them."""
        found: dict[int, Hull] = {}
        tiling = self.tilings[i]
        assert isinstance(tiling, AicoreTiling)
        role = tiling.roles()[0]
        for operand, value in self.results(i):
            readers = [(j, k) for j, k in self.readers.get(value, ()) if j in of]
            if not readers:
                continue
            rows = [self.hull(i, u, u + 1, role, write=True).get(operand, _NOTHING) for u in range(tiling.units)]
            low, high = np.array(rows, np.int64).reshape(-1, 2).T
            for j, k in readers:
                for core, begin, end, reader in spans[j]:
                    first, last = self.hull(j, begin, end, reader, write=False).get(k, _NOTHING)
                    units = np.flatnonzero((low < last) & (high > first))
                    if first < last and len(units):
                        found[core] = _joined(found.get(core, _NOTHING), (int(units[0]), int(units[-1]) + 1))
        return found

    def is_late(self, i: int, j: int) -> bool:
        """Whether the cores of a reader learn of all cores, by what runs on them ahead of it or by itself, for results
        of what comes behind i: that flag says that i is done as well, so that it costs nothing where i runs."""
        kinds = self._kinds(j)
        return any(q > i and kinds <= self._kinds(m) for m, q in self.wide.items() if i < m <= j)

    def _kinds(self, i: int) -> set[AicoreKernelType]:
        """The types of cores that it runs on."""
        tiling = self.tilings[i]
        assert isinstance(tiling, AicoreTiling)
        kernel = tiling.kernel_type
        uses = ((AicoreKernelType.CUBE, kernel.uses_cube), (AicoreKernelType.VECTOR, kernel.uses_vector))
        return {kind for kind, used in uses if used}

    def _note_wide(self, q: int, spans: Sequence[Sequence[Span]]) -> None:
        """Which readers of q need a flag of more than a group, now that both have their ranges."""
        readers = {m for _, value in self.results(q) for m, _ in self.readers.get(value, ()) if m > q}
        for m in sorted(readers - set(self.wide)):
            if self._on_cores(m) and (not self._on_cores(q) or self.width(q, m, spans[q], spans[m]) == 2):
                self.wide[m] = q

    def latency(self, spans: Sequence[Span], needs: Mapping[int, Hull]) -> float:
        """Of the widest flag that readers wait for."""
        widest = 0.0
        for core, begin, end, _ in spans:
            for reader, need in needs.items():
                if reader != core and _meet(need, (begin, end)):
                    if not self._across(reader, core):
                        widest = max(widest, self.far)
                    else:
                        widest = max(widest, self.near if self.group[reader] == self.group[core] else self.across)
        return widest

    def _across(self, a: int, b: int) -> bool:
        """Whether two cores are of different types."""
        return (a < self.cores.cube) is not (b < self.cores.cube)

    def width(self, p: int, i: int, of_p: Sequence[Span], of_i: Sequence[Span]) -> int:
        """How far the stores of p travel that i reads: 0 within cores, 1 within groups, 2 further."""
        widest = 0
        shared = [(k, value) for k, value in self.results(p) if value in self.subops[i].values]
        for core, begin, end, role in of_i:
            reads = self.hull(i, begin, end, role, write=False)
            for other, first, last, its in of_p:
                if other == core:
                    continue
                wrote = self.hull(p, first, last, its, write=True)
                for k, value in shared:
                    need = reads.get(self.subops[i].values.index(value), _NOTHING)
                    if _meet(wrote.get(k, _NOTHING), need):
                        near = self.group[other] == self.group[core] and self._across(other, core)
                        widest = max(widest, 1 if near else 2)
            if widest == 2:
                break
        return widest

    # Decision ---------------------------------------------------------------------------------------------------------

    def settle(self, fixed: Collection[int]) -> _Attempt:
        """What ends first by estimate. A sub-operator that is ahead by itself may have put off others, so the whole
        decides: all that moved, none of it, and then part by part, those that gained least first."""
        best, still = self._unparted(set(fixed)), self._attempt(set(range(len(self.subops))))
        moved, gains = set(best.gains), best.gains
        parts = sorted(self._parts_moved(moved), key=lambda part: sum(gains[i] for i in part))[:PARTS_TRIED]
        if still.cycles <= best.cycles:
            best = still
        for part in parts:
            now = set(best.gains)
            other = self._unparted(set(fixed) | (moved - (now - part if now & part else now | part)))
            if other.cycles < best.cycles:
                best = other
        return best

    def _parts_moved(self, moved: set[int]) -> list[set[int]]:
        """What moved, divided into what reads one another."""
        parts: list[set[int]] = []
        for i in sorted(moved, reverse=True):
            readers = {j for _, value in self.results(i) for j, _ in self.readers.get(value, ())}
            joined = [part for part in parts if part & readers]
            parts = [part for part in parts if part not in joined] + [{i}.union(*joined)]
        return parts

    def _unparted(self, kept: set[int]) -> _Attempt:
        """What would part a sub-operator from a producer on its own cores is left where it is, and all is decided
        again."""
        while True:
            found = self._attempt(kept)
            parted = {i for i in found.gains if self._parts(i, found.spans)}
            if not parted:
                return found
            kept |= parted

    def _parts(self, i: int, spans: Sequence[Sequence[Span]]) -> bool:
        makers = {p for value in self.subops[i].values for p in self.writers.get(value, ())} - {i}
        for p in sorted(makers):
            if not self._on_cores(p) or self.is_late(p, i):
                continue
            before = self.width(p, i, self.given[p], self.given[i])
            if before < 2 and self.width(p, i, spans[p], spans[i]) > before:
                return True
        return False

    def _attempt(self, kept: set[int]) -> _Attempt:
        spans = [list(row) for row in self.given]
        self.wide.clear()
        tail = [0.0] * self.cores.harts
        behind = [0.0] * len(self.subops)
        gains: dict[int, float] = {}
        for i in range(len(self.subops) - 1, -1, -1):
            readers = {j for _, value in self.results(i) for j, _ in self.readers.get(value, ()) if j > i}
            after = max((behind[j] for j in readers), default=0.0)
            wait = self.far if readers else 0.0
            if self.is_candidate(i):
                late = {j for j in readers if self._on_cores(j) and self.is_late(i, j)}
                needs, others = self.needs(i, spans, readers - late), self.needs(i, spans, late)
                wait = self.latency(spans[i], needs)
                now = self._length(i, spans[i], tail, after + wait)
                other = self._by_groups(i, needs, others, tail, after) if wait > self.near and i not in kept else None
                if other is not None:
                    near = self.latency(other, needs) if not self._overlap(other) else self._inside(other, needs)
                    then = self._length(i, other, tail, after + near)
                    if then < now - MARGIN * self.far:
                        spans[i], wait, gains[i] = other, near, now - then
            self._note_wide(i, spans)
            if not self._on_cores(i):
                continue
            length = self._length(i, spans[i], tail, after + wait)
            for core, begin, end, _ in spans[i]:
                tail[core] = max(tail[core], after + wait) + self.cost(i, end - begin)
            behind[i] = length
        return _Attempt(spans, gains, max(tail, default=0.0))

    def _length(self, i: int, spans: Sequence[Span], tail: Sequence[float], after: float) -> float:
        """From the begin of a sub-operator to the end."""
        return max((max(tail[c], after) + self.cost(i, end - begin) for c, begin, end, _ in spans), default=after)

    def _inside(self, spans: Sequence[Span], needs: Mapping[int, Hull]) -> float:
        """The latency where groups read their own copies."""
        mine = {core: (begin, end) for core, begin, end, _ in spans}
        own = all(core in mine and mine[core][0] <= a and b <= mine[core][1] for core, (a, b) in needs.items())
        return 0.0 if own else self.near

    @staticmethod
    def _overlap(spans: Sequence[Span]) -> bool:
        rows = sorted((begin, end) for _, begin, end, _ in spans)
        return any(a[1] > b[0] for a, b in pairwise(rows))

    def _by_groups(
        self, i: int, needs: Mapping[int, Hull], late: Mapping[int, Hull], tail: Sequence[float], after: float
    ) -> list[Span] | None:
        """Ranges that bring each group what it reads; None where there are none. What is read `late` may lie anywhere,
        unless groups have copies of their own."""
        tiling = self.tilings[i]
        assert isinstance(tiling, AicoreTiling)
        found = self._split_units(i, needs, {}, tail, after)
        if found is None or not self._overlap(found):
            return found and self._complete(found, tiling.units)
        copied = all(self.buffers[value].is_temporary for _, value in self.results(i))
        return self._split_units(i, needs, late, tail, after) if copied else None

    def _split_units(
        self, i: int, needs: Mapping[int, Hull], late: Mapping[int, Hull], tail: Sequence[float], after: float
    ) -> list[Span] | None:
        """What each group reads, on the cores of it that are done with it first."""
        tiling = self.tilings[i]
        assert isinstance(tiling, AicoreTiling)
        role, on_cube = tiling.roles()[0], tiling.kernel_type is AicoreKernelType.CUBE
        found: list[Span] = []
        for group in sorted({self.group[core] for core in (*needs, *late)}):
            kind = range(self.cores.cube) if on_cube else range(self.cores.cube, self.cores.total)
            lanes = [core for core in kind if self.group[core] == group]
            here, more = ({c: n for c, n in row.items() if self.group[c] == group} for row in (needs, late))
            ways = self._ways(lanes, here, more)
            if not ways:
                return None
            rows: list[list[Span]] = [[(c, a, b, role) for c, (a, b) in sorted(way.items())] for way in ways]
            best: list[Span] = min(rows, key=lambda row: self._length(i, row, tail, after + self.near))
            found += best
        return found

    def _ways(self, lanes: Sequence[int], needs: Mapping[int, Hull], late: Mapping[int, Hull]) -> list[dict[int, Hull]]:
        """How a group can compute what its cores need: what cores of the own type read they compute themselves, unless
        they read it late."""
        own = {core: need for core, need in needs.items() if core in lanes}
        other = _NOTHING
        for need in late.values():
            other = _joined(other, need)
        for core, need in needs.items():
            if core not in own:
                other = _joined(other, need)
        if own:
            whole = _NOTHING
            for need in own.values():
                whole = _joined(whole, need)
            if _joined(whole, other) != whole:
                if len(own) > 1:
                    return []
                own = dict.fromkeys(own, _joined(whole, other))
            rows = sorted(own.values())
            disjoint = all(a[1] <= b[0] for a, b in pairwise(rows))
            dense = other == _NOTHING or all(a[1] == b[0] for a, b in pairwise(rows))
            return [own] if disjoint and dense else []
        ways = [{lane: other} for lane in lanes]
        first, end = other
        if len(lanes) <= end - first and len(lanes) > 1:
            cuts = [first + n * (end - first) // len(lanes) for n in range(len(lanes) + 1)]
            ways.append({lane: (cuts[n], cuts[n + 1]) for n, lane in enumerate(lanes)})
        return ways

    @staticmethod
    def _complete(spans: Iterable[Span], units: int) -> list[Span]:
        """With the units that nobody reads."""
        rows = sorted(spans, key=lambda span: span[1])
        ends = [*(row[1] for row in rows[1:]), units]
        starts = [0, *(row[1] for row in rows[1:])]
        return [(c, a, b, role) for (c, _, _, role), a, b in zip(rows, starts, ends, strict=True)]


def _with_copies(
    state: _LocalityState, spans: Sequence[Sequence[Span]]
) -> tuple[tuple[SubOperator, ...], tuple[Copies, ...], dict[str, ValueBuffer]]:
    """Sub-operators with other names for values that groups compute each for itself, the copies, and their buffers:
    one for all copies of a value, and the first copy as a part of it (which memory planning gives to nobody else)."""
    names: dict[str, str] = {}
    copies: list[Copies] = []
    buffers: dict[str, ValueBuffer] = {}
    groups = state.cores.groups
    for i in range(len(state.subops)):
        if not (state.is_candidate(i) and state._overlap(spans[i])):
            continue
        for k, value in state.results(i):
            kind = state.buffers[value].type
            stride = -(-kind.nbytes // COPY_ALIGN_BYTES) * COPY_ALIGN_BYTES
            names[value], whole = f"{value}@group", f"{value}@groups"
            buffers[whole] = ValueBuffer(TensorType(DType.U8, (groups * stride,)))
            buffers[names[value]] = ValueBuffer(kind, inside=(whole, 0))
            copies.append(Copies(i, ((i, k), *state.readers[value]), stride, groups))
    renamed = (replace(s, values=tuple(names.get(v, v) for v in s.values)) for s in state.subops)
    return tuple(renamed), tuple(copies), buffers
