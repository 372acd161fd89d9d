"""In which order sub-operators are issued, and on which of their type's cores each of them runs.

Model: what nothing orders may run side by side: on cores of two types, on disjoint sets of cores of one type, or in
turn on all cores, so that the synchronisation of one branch passes while the other computes. *Streams* are chains that
cover the graph. A node may name its own; the sub-operators of a named stream are issued in the order of the graph.
Others are found: a sub-operator goes on the stream of the last of its producers that nobody goes on from yet, or begins
one.

Each arrangement is played through: cores of a type pass one straight line, a core's start waits for the flag of all
cores that produce for it, and so for all that these issue before. Three are played:

    as given      the order of the grouping, every sub-operator on all cores that it has units for
    in turn       always the one next that can begin first, on all cores that it has units for
    side by side  the same; streams that run at a time have each a share of the cores, in ratio to their work

The fastest one is taken; another than the first must be faster by GAIN. A share of the cores is taken to need at least
so much longer as it is smaller: what kernels hide of their start-up behind others' work on the same cores is in no
estimate. Streams get memory of their own as far as L2 has room, so that the reuse of an address orders nothing that
could run at a time. Sub-operators that others cannot stand beside
(NumPy's, those of an aicpu hart, kernels whose cores meet inside, or divide their work at run time) keep all cores.

Invariants: the order is a topological order of all reads, writes and overwrites, and of named streams; launches and
scopes stay where they are: only what stands between two of their ends is reordered. Which units there are does not
depend on any of it, and so no bit of a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from heapq import heappop, heappush
from operator import or_
from typing import NamedTuple

from superkernel import _core
from superkernel.ir.body import SubOperator
from superkernel.scheduler.aicore.cores import Cores
from superkernel.scheduler.dependences import dependences, issued
from superkernel.scheduler.families.aicore.base import AicoreTiling
from superkernel.scheduler.grouping import Grouping, ValueBuffer, view_chain
from superkernel.scheduler.memory import BufferUse
from superkernel.scheduler.tiling import Tiling
from superkernel.target.aicore import AicoreTarget

AUTO, OFF = "auto", "off"
AS_GIVEN = "as given"
GAIN = 0.97  # another arrangement must come in below this part of the first one's time
SHARES_MAX = 4  # streams that get cores of their own at a time


@dataclass(frozen=True, slots=True)
class SlotRange:
    """Ranges [0, count) of a sub-operator lie in slots `first` + 0, 1, ..."""

    first: int
    count: int


@dataclass(frozen=True)
class Arrangement:
    """`order` of the grouping's sub-operators; `sites` and `notes` by their numbers in the grouping."""

    name: str
    order: tuple[int, ...]
    sites: tuple[SlotRange, ...]
    cycles: float
    notes: tuple[str, ...]
    streams: tuple[int | str, ...]
    before: tuple[frozenset[int], ...]  # data alone, where a flag brings them
    tried: tuple[tuple[str, float], ...] = ()  # names and cycles, the chosen one first

    def touched(self, subops: Sequence[SubOperator], buffers: Mapping[str, ValueBuffer]) -> dict[str, BufferUse] | None:
        """Who uses each buffer, streams in place of cores, by position in the order; `subops` stand in it already. None
        where there are no branches, or nobody asks for them to run at a time."""
        if len(self.tried) < 2:
            return None
        numbers = {stream: n for n, stream in enumerate(dict.fromkeys(self.streams))}
        of = [numbers[self.streams[i]] for i in self.order]
        position = {i: at for at, i in enumerate(self.order)}
        known = _core.VectorClock(len(numbers))
        found: dict[str, BufferUse] = {}
        for at, (i, sub) in enumerate(zip(self.order, subops, strict=True)):
            known.run(at, of[at], [(position[p], of[position[p]]) for p in self.before[i]])
            ready = known.at(at, [of[at]])
            for value in sub.values:
                *_, (name, _, _) = view_chain(buffers, value)
                row = found.setdefault(name, BufferUse({}, ready))
                row.last[of[at]] = at
        return found


def arrange(
    grouping: Grouping, tilings: Sequence[Tiling], target: AicoreTarget, cores: Cores, streams: str = AUTO
) -> Arrangement:
    """Decide for a grouping, whose order is one that is legal."""
    state = _StreamState(grouping, tilings, target, cores)
    tried = [state.play(AS_GIVEN, lanes=False, reorder=False)]
    if streams == AUTO and state.has_branches:
        tried += [
            state.play("in turn", lanes=False, reorder=True),
            state.play("side by side", lanes=True, reorder=True),
        ]
    best = min(tried[1:], key=lambda a: a.cycles, default=tried[0])
    chosen = best if best.cycles < GAIN * tried[0].cycles else tried[0]
    return state.noted(chosen, tried)


def streams_of(grouping: Grouping, before: Sequence[set[int]]) -> list[int | str]:
    """The stream of each sub-operator: the one that it names, or a number that nobody names."""
    named = {sub.stream for sub in grouping.subops if sub.stream is not None}
    unused = (n for n in range(len(grouping.subops) + len(named) + 1) if n not in named)
    tails: dict[int, int | str] = {}
    found: list[int | str] = []
    for index, sub in enumerate(grouping.subops):
        ends = [p for p in sorted(before[index], reverse=True) if p in tails and tails[p] not in named]
        if sub.stream is not None:
            stream: int | str = sub.stream
        else:
            stream = tails.pop(ends[0]) if ends else next(unused)
        tails[index] = stream
        found.append(stream)
    return found


def _bits(numbers: Iterable[int]) -> int:
    """A set of numbers as bits."""
    return reduce(or_, (1 << n for n in numbers), 0)


class _StreamState:
    """One grouping, to be played in several ways."""

    def __init__(self, grouping: Grouping, tilings: Sequence[Tiling], target: AicoreTarget, cores: Cores) -> None:
        self.subops, self.tilings, self.target, self.cores = grouping.subops, tilings, target, cores
        self.data = dependences(grouping)
        self.before = issued(grouping)
        self.streams = streams_of(grouping, self.before)
        self.members = dict.fromkeys(self.streams, 0)
        for i, stream in enumerate(self.streams):
            self.members[stream] |= 1 << i
        self.segments = self._segments()
        self.kinds = [self._kinds(i) for i in range(len(tilings))]
        self.movable = [self._movable(i) for i in range(len(tilings))]
        self.work, self.own, self.cores_at = cache(self._work), cache(self._own), cache(self._cores_at)
        self.sync = float(target.flag_cycles("type" if len(frozenset().union(*self.kinds)) == 1 else "all"))
        self.rank = self._ranks()
        self.beside = self._beside()
        self.shares = self._shares()

    @property
    def has_branches(self) -> bool:
        return any(self.beside)

    # Properties of the graph ------------------------------------------------------------------------------------------

    def _segments(self) -> list[list[int]]:
        """What may be reordered: neighbours of one scope, between sub-operators that run on no core."""
        found: list[list[int]] = []
        for index, sub in enumerate(self.subops):
            last = found[-1][-1] if found else -1
            on_cores = last >= 0 and all(isinstance(self.tilings[i], AicoreTiling) for i in (last, index))
            if on_cores and self.subops[last].scope == sub.scope:
                found[-1].append(index)
            else:
                found.append([index])
        return found

    def full(self, index: int) -> int:
        """How many ranges a sub-operator has at most."""
        tiling = self.tilings[index]
        if not isinstance(tiling, AicoreTiling):
            return tiling.units
        return min(self.cores.slots(tiling.launch_type), tiling.units)

    def _work(self, index: int, count: int) -> float:
        """Cycles of the longest of so many ranges."""
        tiling, full = self.tilings[index], self.full(index)
        if not isinstance(tiling, AicoreTiling) or not count:
            return 0.0
        cycles = tiling.contended_cycles(self.subops[index].body, 0, -(-tiling.units // count), self.target)
        return max(cycles, self.work(index, full) * full / count) if count < full else cycles

    def _cores_at(self, index: int, site: SlotRange) -> tuple[int, ...]:
        """The cores of a site."""
        tiling = self.tilings[index]
        if not isinstance(tiling, AicoreTiling):
            return ()
        slots = range(site.first, site.first + site.count)
        return tuple(self.cores.core(tiling.launch_type, s, role) for s in slots for role in tiling.roles())

    def wait(self, index: int, count: int) -> float:
        """What is left of a flag's latency beside the constants that Early-Start brings meanwhile."""
        tiling, body = self.tilings[index], self.subops[index].body
        if not isinstance(tiling, AicoreTiling):
            return self.sync
        return max(0.0, self.sync - tiling.lead_cycles(body, 0, -(-tiling.units // max(1, count)), self.target))

    def _own(self, p: int, i: int, count: int) -> bool:
        """Whether a core that has a range of both reads of the first what it wrote itself: seen at the last range; not
        where there is none."""
        if not count:
            return False
        hulls: list[dict[str, tuple[int, int]]] = []
        for index, writes in ((p, True), (i, False)):
            sub, tiling = self.subops[index], self.tilings[index]
            span = ((count - 1) * tiling.units // count, tiling.units)
            found: dict[str, tuple[int, int]] = {}
            for access in tiling.accesses(sub.body, *span):
                if access.write is writes and access.regions:
                    low, high = min(r.start for r in access.regions), max(r.stop for r in access.regions)
                    name = sub.values[access.operand]
                    low, high = min(low, found.get(name, (low, high))[0]), max(high, found.get(name, (low, high))[1])
                    found[name] = (low, high)
            hulls.append(found)
        wrote, reads = hulls
        shared = wrote.keys() & reads.keys()
        return bool(shared) and all(wrote[n][0] <= reads[n][0] and reads[n][1] <= wrote[n][1] for n in shared)

    def _movable(self, index: int) -> bool:
        """Whether a sub-operator may have fewer cores than it has units for, and stand beside others."""
        tiling = self.tilings[index]
        if not isinstance(tiling, AicoreTiling) or tiling.kernel_type.on_aicpu:
            return False
        return not tiling.dynamically_partitioned and not tiling.barriers and tiling.units > 0

    def _ranks(self) -> list[float]:
        """Longest path to the end."""
        rank = [self.work(i, self.full(i)) for i in range(len(self.subops))]
        tail = [0.0] * len(rank)
        for i in range(len(rank) - 1, -1, -1):
            for p in self.before[i]:
                tail[p] = max(tail[p], rank[i] + tail[i] + self.sync)
        return [own + rest for own, rest in zip(rank, tail, strict=True)]

    def _beside(self) -> list[int]:
        """For each sub-operator those of other streams in its segment that nothing orders before or behind it: bit j
        stands for sub-operator j."""
        count = len(self.subops)
        before, behind = [0] * count, [0] * count
        for i, row in enumerate(self.before):
            for p in row:
                before[i] |= before[p] | 1 << p
        for i in range(count - 1, -1, -1):
            for p in self.before[i]:
                behind[p] |= behind[i] | 1 << i
        found = [0] * count
        for segment in self.segments:
            movable = [i for i in segment if self.movable[i]]
            inside = _bits(movable)
            for i in movable:
                found[i] = inside & ~(self.members[self.streams[i]] | before[i] | behind[i])
        return found

    def _shares(self) -> list[tuple[float, float]]:
        """The part of the machine (from, to) of each sub-operator when streams run side by side. Streams that have
        something beside one another get different shares, in ratio to their work there."""
        kinds: frozenset[str] = frozenset().union(*self.kinds)
        users = {kind: _bits(i for i, own in enumerate(self.kinds) if kind in own) for kind in kinds}
        here = [others & reduce(or_, (users[k] for k in self.kinds[i]), 0) for i, others in enumerate(self.beside)]
        rows: dict[int | str, int] = {}
        work: dict[int | str, float] = {}
        for i, others in enumerate(here):
            if others:
                stream = self.streams[i]
                rows[stream] = rows.get(stream, 0) | others
                work[stream] = work.get(stream, 0.0) + self.work(i, self.full(i))
        lane: dict[int | str, int] = {}
        inside = [0] * SHARES_MAX
        for stream in sorted(rows, key=lambda s: (-work[s], str(s))):
            lane[stream] = next((n for n, others in enumerate(inside) if not rows[stream] & others), 0)
            inside[lane[stream]] |= self.members[stream]
        weights = [0.0] * (1 + max(lane.values(), default=0))
        for stream, number in lane.items():
            weights[number] = max(weights[number], work[stream])
        total = sum(weights) or 1.0
        ends = [sum(weights[: n + 1]) / total for n in range(len(weights))]
        found = []
        for i, others in enumerate(here):
            place = lane.get(self.streams[i])
            if place is None or not others:
                found.append((0.0, 1.0))
            else:
                found.append((ends[place - 1] if place else 0.0, ends[place]))
        return found

    def _kinds(self, index: int) -> frozenset[str]:
        """The types of cores that a sub-operator runs on."""
        tiling = self.tilings[index]
        if not isinstance(tiling, AicoreTiling):
            return frozenset()
        if tiling.kernel_type.on_aicpu:
            return frozenset({"aicpu"})
        return frozenset("cube" if role.is_cube else "vector" for role in tiling.roles())

    # Playing ----------------------------------------------------------------------------------------------------------

    def play(self, name: str, *, lanes: bool, reorder: bool) -> Arrangement:
        """The order, the sites, and the cycles that they take."""
        state = _State(self)
        sites: dict[int, SlotRange] = {}  # in the order
        for segment in self.segments:
            given = ((i, self._places(i, state, lanes)) for i in segment)
            for i, places in self._in_turn(segment, state, lanes) if reorder else given:
                place = state.first_to_end(i, places)
                state.take(i, place)
                sites[i] = place.site
        found = tuple(sites[i] for i in range(len(self.subops)))
        before = tuple(
            frozenset(p for p in row if not state.reads_own(p, i, found[i])) for i, row in enumerate(self.data)
        )
        return Arrangement(name, tuple(sites), found, state.now, ("",) * len(found), tuple(self.streams), before)

    def _in_turn(self, segment: list[int], state: _State, lanes: bool) -> Iterator[tuple[int, tuple[_Place, ...]]]:
        """Always what can begin first, with its places; who asks for the next one has run it."""
        inside = set(segment)
        after: dict[int, list[int]] = {i: [] for i in segment}
        for i in segment:
            for p in self.before[i] & inside:
                after[p].append(i)
        missing = {i: len(self.before[i] & inside) for i in segment}
        queue = _Queue(state)
        ready = [i for i in segment if not missing[i]]
        while ready or queue:
            for i in ready:
                queue.add(i, self.rank[i], self._places(i, state, lanes))
            first, places = queue.pop()
            yield first, places
            for later in after[first]:
                missing[later] -= 1
            ready = [later for later in after[first] if not missing[later]]

    def _places(self, index: int, state: _State, lanes: bool) -> tuple[_Place, ...]:
        return tuple(state.place(index, site) for site in self._sites(index, lanes))

    def _sites(self, index: int, lanes: bool) -> list[SlotRange]:
        tiling, count = self.tilings[index], self.full(index)
        if not isinstance(tiling, AicoreTiling) or not count:
            return [SlotRange(0, count)]
        slots = self.cores.slots(tiling.launch_type)
        if lanes and self.shares[index] != (0.0, 1.0):
            low, high = (round(part * slots) for part in self.shares[index])
            low = min(low, slots - 1)
            return [SlotRange(low, min(count, max(1, high - low)))]
        if tiling.barriers or tiling.dynamically_partitioned:
            return [SlotRange(0, count)]
        return [SlotRange(first, count) for first in range(0, slots - count + 1, count)]

    def noted(self, chosen: Arrangement, tried: Sequence[Arrangement]) -> Arrangement:
        """With what is to be said of each sub-operator."""
        others = [a for a in tried if a is not chosen]
        chosen = replace(chosen, tried=tuple((a.name, a.cycles) for a in (chosen, *others)))
        if len(tried) == 1:
            return chosen
        said = ", ".join(f"{a.name} {a.cycles:.0f} cycles" for a in tried)
        notes = []
        for i, beside in enumerate(self.beside):
            if not beside:
                notes.append("")
                continue
            site = chosen.sites[i]
            where = f", {site.count} from {site.first} on" if chosen.name == "side by side" else ""
            notes.append(f"stream {self.streams[i]}: {chosen.name}{where} (estimated: {said})")
        return replace(chosen, notes=tuple(notes))


class _Place(NamedTuple):
    """A site of a sub-operator, its cores, and when what others write for it is there, all of whom have run."""

    site: SlotRange
    cores: tuple[int, ...]
    ready: float


class _Queue:
    """Sub-operators that could begin: who begins first comes first, and of these who has the longest way to the end.

    Cores are never free earlier than before, so that nothing begins earlier than when it was last looked at; and what
    waits for the same cores until the same time begins together, so that only the first of it is looked at."""

    def __init__(self, state: _State) -> None:
        self._state = state
        self._places: dict[int, tuple[_Place, ...]] = {}
        self._rows: dict[tuple[_Place, ...], list[tuple[float, int]]] = {}  # what begins together, as a heap
        self._firsts: list[tuple[float, float, int]] = []  # a heap of their first, by when they begin at the earliest

    def __bool__(self) -> bool:
        return bool(self._places)

    def add(self, index: int, rank: float, places: tuple[_Place, ...]) -> None:
        """`rank`: the way to the end, in cycles."""
        self._places[index] = places
        row = self._rows.setdefault(places, [])
        heappush(row, (-rank, index))
        if row[0][1] == index:
            heappush(self._firsts, (0.0, -rank, index))

    def pop(self) -> tuple[int, tuple[_Place, ...]]:
        """The next one, and its places."""
        while True:
            seen, rank, index = heappop(self._firsts)
            places = self._places.get(index)
            if places is None:  # another was first in between, so that this one was entered twice
                continue
            begin = self._state.begins(places)
            if begin > seen:
                heappush(self._firsts, (begin, rank, index))
                continue
            del self._places[index]
            row = self._rows[places]
            heappop(row)
            if row:
                heappush(self._firsts, (begin, *row[0]))
            return index, places


class _State:
    """How far cores are. Times in cycles."""

    def __init__(self, state: _StreamState) -> None:
        self.state = state
        self.free = [0.0] * state.cores.harts
        self.reached: dict[
            int, tuple[float, float, float]
        ] = {}  # by sub-operator: cube, vector, all cores are behind it
        self.used: dict[int, tuple[int, ...]] = {}
        self.now = 0.0

    def reads_own(self, p: int, index: int, site: SlotRange) -> bool:
        """Whether cores at a site read of p what they wrote themselves: no flag says then what others have done."""
        return self.used.get(p) == self.state.cores_at(index, site) and self.state.own(p, index, site.count)

    def ready(self, index: int, site: SlotRange) -> float:
        """When what others write for it is there: a core that reads what it wrote itself waits for no flag."""
        kinds = self.state.kinds[index]
        latest, waits = 0.0, False
        for p in self.state.data[index]:
            if p not in self.used or self.reads_own(p, index, site):
                continue
            same = self.state.kinds[p] == kinds and len(kinds) == 1 and "aicpu" not in kinds
            cube, vector, everybody = self.reached[p]
            latest = max(latest, ((cube if "cube" in kinds else vector) if same else everybody))
            waits = True
        return latest + self.state.wait(index, site.count) if waits else 0.0

    def place(self, index: int, site: SlotRange) -> _Place:
        return _Place(site, self.state.cores_at(index, site), self.ready(index, site))

    def begin(self, place: _Place) -> float:
        free = self.free
        return max([place.ready, *[free[core] for core in place.cores]])

    def begins(self, places: Sequence[_Place]) -> float:
        return min(map(self.begin, places))

    def first_to_end(self, index: int, places: Sequence[_Place]) -> _Place:
        return min(places, key=lambda p: (self.begin(p) + self.state.work(index, p.site.count), p.site.first))

    def take(self, index: int, place: _Place) -> None:
        """It runs there. All cores of its types stand still until what it waits for is there."""
        state, mine, ready = self.state, place.cores, place.ready
        end = self.begin(place) + state.work(index, place.site.count)
        if not mine:  # NumPy, or nothing at all: everybody is done before
            top = max([*self.free, self.now])
            self.free = [top] * len(self.free)
        cube, total = state.cores.cube, state.cores.total
        if ready:
            for kind, its in (("cube", range(cube)), ("vector", range(cube, total))):
                for core in its if kind in state.kinds[index] else ():
                    self.free[core] = max(self.free[core], ready)
        for core in mine:
            self.free[core] = end
        self.used[index] = mine
        levels = max(self.free[:cube], default=0.0), max(self.free[cube:total], default=0.0)
        self.reached[index] = (*levels, max(*levels, *self.free[total:]) if self.free[total:] else max(levels))
        self.now = max(self.now, *self.free) if self.free else self.now
