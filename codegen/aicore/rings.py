"""Local memory as rings of buffers, and the engine flags that follow from how they are used.

Model: a `Ring` has `depth` slots; each *turn* of it uses one slot, in rotation. Its `Buffer`s are parts of every slot.
Within a turn the commands that touch a buffer come in *phases*: runs of commands of one engine (a load by MTE2, work
by V, a store by MTE3). Between one phase and the next stands a flag from the first engine to the second; between the
last phase of a turn and the first phase of the turn `depth` later, a flag back: the slot is free again. With two
slots or more, loads of the next turn so overlap the work of this one: double buffering is the number of slots.

A kernel is emitted twice: the first time to record which node of its structure (command, loop, condition) touches
which buffer, the second time with the flags that `plan_flags` derives from the record. Both times it takes the same
path, so nodes are known by their number.

Invariants: a kernel leaves every flag as it found it: at 0, the *credits* (that a slot is free) at 1. Credits are
never taken back between kernels: to set them anew, a queue would have to know that the other has taken the old ones.
A node that lies inside a turn touches a buffer by one engine only (a loop with two engines on one buffer needs the
turn inside the loop; it is refused).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from superkernel.codegen.aicore.scalar import Number, Variable
from superkernel.core.errors import InternalError
from superkernel.target.engines import Engine, Local


@dataclass(eq=False)
class Ring:
    """`depth` slots of every buffer in it, used in rotation. Made by `KernelBuilder.ring`."""

    name: str
    number: int
    depth: int
    buffers: list[Buffer] = field(default_factory=list)
    slot: Variable | None = None  # number of the current slot; None where depth is 1
    open: bool = False
    engines: tuple[Engine, Engine] | None = None  # of a stream: producer and consumer


@dataclass(eq=False)
class Buffer:
    """Bytes in one local memory, once per slot of its ring; `start` is where slot 0 lies, slots follow one another."""

    ring: Ring
    name: str
    memory: Local
    start: int
    nbytes: int
    stride: int  # from slot to slot
    alias: Buffer | None = None  # the outlet of a stream: its inlet

    def at(self, offset: Number) -> Part:
        """A place inside the current slot."""
        return Part(self, offset)

    def rows(self, pitch: Number) -> Part:
        """The current slot as a matrix whose rows are `pitch` bytes apart."""
        return Part(self, 0, pitch)

    @property
    def end(self) -> int:
        """The byte behind the last slot."""
        return self.start + self.stride * (self.ring.depth - 1) + self.nbytes


@dataclass(frozen=True, eq=False)
class Part:
    """A place inside the current slot of a buffer. `pitch`: bytes from row to row of the matrix that begins there; None
    where nothing is said of rows."""

    buffer: Buffer
    offset: Number
    pitch: Number | None = None

    def at(self, offset: Number) -> Part:
        """Further on."""
        return Part(self.buffer, self.offset + offset, self.pitch)

    def rows(self, pitch: Number) -> Part:
        """The same place, rows being so far apart."""
        return Part(self.buffer, self.offset, pitch)

    @property
    def flat(self) -> Part:
        """The same place, nothing being said of rows."""
        return Part(self.buffer, self.offset)


@dataclass(frozen=True)
class Touch:
    """A command of `engine` touches a buffer. `node` is the node directly inside the turn that the command lies in."""

    turn: int
    buffer: Buffer
    engine: Engine
    node: int


@dataclass(frozen=True)
class FlagUse:
    """A flag at a node: ids `base` + slot of the pair (source, target), slot being that of ring number `ring`."""

    ring: int
    depth: int
    source: Engine
    target: Engine
    base: int


@dataclass
class FlagPlan:
    """Waits ahead of nodes and sets behind them; `credits` are set when a kernel begins, and when it ends. `streams`:
    that a slot is full, and that it is free, by number of the filling end's ring. `needed`: flags of the pair of
    engines with the most."""

    waits: dict[int, list[FlagUse]] = field(default_factory=lambda: defaultdict(list))
    sets: dict[int, list[FlagUse]] = field(default_factory=lambda: defaultdict(list))
    credits: list[FlagUse] = field(default_factory=list)
    streams: dict[int, tuple[FlagUse, FlagUse]] = field(default_factory=dict)
    needed: int = 0


@dataclass
class _Hop:
    """A transition between phases at one site: set behind node `leave`, wait ahead of node `enter`."""

    source: Engine
    target: Engine
    leave: int
    enter: int


@dataclass
class _Phase:
    engine: Engine
    first: int
    last: int


def plan_flags(touches: list[Touch], turns: list[Ring], ids: int, streams: Sequence[Ring] = ()) -> FlagPlan:
    """The flags of a kernel. `turns[t]` is the ring of the turn site t; `ids` flags are free per pair of engines;
    `streams`: the rings of their filling ends."""
    plan, free = FlagPlan(), _FreeFlags(ids)
    for ring in streams:
        _plan_stream(plan, ring, free)
    sites: dict[Ring, list[int]] = defaultdict(list)
    for number, ring in enumerate(turns):
        sites[ring].append(number)
    by_turn: dict[int, list[Touch]] = defaultdict(list)
    for touch in touches:
        by_turn[touch.turn].append(touch)
    for ring, numbers in sites.items():
        _plan_ring(plan, ring, [by_turn[n] for n in numbers if by_turn[n]], free)
    plan.needed = free.needed
    return plan


class FlagsExhausted(InternalError):
    """A kernel wants more flags than there are: a step of planning, never its end. `ring`: the number of a ring that
    can do with one slot, if any."""

    ring: int | None = None


class _FreeFlags:
    """Numbers of flags per pair of engines: those within a turn from the lowest up, credits from the highest down, so
    that no number is one thing in one kernel and the other in the next."""

    def __init__(self, ids: int) -> None:
        self.ids = ids
        self._low: dict[tuple[Engine, Engine], int] = defaultdict(int)
        self._high: dict[tuple[Engine, Engine], int] = defaultdict(int)
        self._deep: dict[tuple[Engine, Engine], list[Ring]] = defaultdict(list)

    @property
    def needed(self) -> int:
        """What the pair with the most has given out."""
        return max((self._low[pair] + self._high[pair] for pair in {*self._low, *self._high}), default=0)

    def take(self, source: Engine, target: Engine, ring: Ring, *, credit: bool) -> int:
        """A flag per slot; the first one's number. Raises FlagsExhausted where there are no more."""
        pair = (source, target)
        taken = self._high if credit else self._low
        taken[pair] += ring.depth
        if ring.depth > 1 and ring.engines is None:
            self._deep[pair].append(ring)
        if self._low[pair] + self._high[pair] > self.ids:
            error = FlagsExhausted(
                f"more than {self.ids} flags from {source.title} to {target.title}",
                location=f"ring {ring.name!r}",
                hint="put buffers that are used together into one ring",
            )
            error.ring = self._deep[pair][-1].number if self._deep[pair] else None
            raise error
        return self.ids - self._high[pair] if credit else self._low[pair] - ring.depth


def _plan_stream(plan: FlagPlan, ring: Ring, free: _FreeFlags) -> None:
    assert ring.engines is not None
    full, empty = (
        FlagUse(ring.number, ring.depth, source, target, free.take(source, target, ring, credit=credit))
        for source, target, credit in ((*ring.engines, False), (*ring.engines[::-1], True))
    )
    plan.streams[ring.number] = full, empty
    plan.credits.append(empty)


def _plan_ring(plan: FlagPlan, ring: Ring, sites: list[list[Touch]], free: _FreeFlags) -> None:
    hops: list[list[_Hop]] = []
    wraps: list[list[_Hop]] = []
    for touches in sites:
        forward, back = _site_hops(ring, touches)
        hops.append(_merged(forward))
        wraps.append(_merged_wraps(back))
    for kind, found in (("within", hops), ("wrap", wraps)):
        keys = [[(h.source, h.target) for h in site] for site in found]
        order = max(keys, key=len, default=[])
        if any(k != order for k in keys):
            raise InternalError(
                f"the turns of ring {ring.name!r} use its buffers in different ways",
                location=ring.name,
                found="; ".join(str([f"{a.title}->{b.title}" for a, b in k]) for k in keys),
            )
        for position, (source, target) in enumerate(order):
            base = free.take(source, target, ring, credit=kind == "wrap")
            use = FlagUse(ring.number, ring.depth, source, target, base)
            for site in found:
                plan.sets[site[position].leave].append(use)
                plan.waits[site[position].enter].append(use)
            if kind == "wrap":
                plan.credits.append(use)


def _site_hops(ring: Ring, touches: list[Touch]) -> tuple[list[_Hop], list[_Hop]]:
    """What one turn needs: between its phases, and back to the turn that uses the slot next."""
    forward: list[_Hop] = []
    back: list[_Hop] = []
    for buffer in ring.buffers:
        phases = _phases(buffer, [t for t in touches if t.buffer is buffer])
        for a, b in pairwise(phases):
            forward.append(_Hop(a.engine, b.engine, a.last, b.first))
        if phases and phases[0].engine is not phases[-1].engine:
            back.append(_Hop(phases[-1].engine, phases[0].engine, phases[-1].last, phases[0].first))
    return forward, back


def _phases(buffer: Buffer, touches: list[Touch]) -> list[_Phase]:
    phases: list[_Phase] = []
    owner: dict[int, Engine] = {}
    for touch in touches:
        if owner.setdefault(touch.node, touch.engine) is not touch.engine:
            raise InternalError(
                f"two engines use buffer {buffer.name!r} inside one loop",
                location=f"ring {buffer.ring.name!r}",
                found=f"{owner[touch.node].title} and {touch.engine.title}",
                hint="open the ring's turn inside the loop",
            )
        if phases and phases[-1].engine is touch.engine:
            phases[-1].last = touch.node
        else:
            phases.append(_Phase(touch.engine, touch.node, touch.node))
    return phases


def _merged(hops: list[_Hop]) -> list[_Hop]:
    """One flag for several buffers where the last set comes before the first wait."""
    found: list[_Hop] = []
    for hop in sorted(hops, key=lambda h: (h.leave, h.enter)):
        for other in found:
            if (other.source, other.target) == (hop.source, hop.target):
                leave, enter = max(other.leave, hop.leave), min(other.enter, hop.enter)
                if leave < enter:
                    other.leave, other.enter = leave, enter
                    break
        else:
            found.append(hop)
    return found


def _merged_wraps(hops: list[_Hop]) -> list[_Hop]:
    """A slot is free when its last buffer is, and is taken when its first one is."""
    found: dict[tuple[Engine, Engine], _Hop] = {}
    for hop in hops:
        other = found.setdefault((hop.source, hop.target), hop)
        other.leave, other.enter = max(other.leave, hop.leave), min(other.enter, hop.enter)
    return [found[key] for key in sorted(found, key=lambda k: (k[0].value, k[1].value))]
