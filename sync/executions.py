"""All executions of a plan: is there one in which two conflicting accesses come in another order than the global one?

Model: *actors* (a core; on the accelerator also the queue of a core) stand in local states and go on by *moves*. A
move needs other actors to be in some of their states. A *fault* is a set of local states, by actor, in which no
execution may ever be all at once: "the reader is about to begin and the writer has not ended". Beside the faults, an
execution is wrong where nobody can go on before all have ended.

It is wrong for two conflicting accesses to come in another order than the global one, whether or not a value shows it:
a race that hits bytes which nobody reads is a race.

Two searches answer the same question. `all_states` goes through every state that any interleaving reaches: sets of
states are numbers of one bit per state, a move shifts all states that allow it at once. `held_back` answers for plans
of any size: for each fault, the one actor that must not have got far is held back, and all others run as far as they
can. That is complete for plans, since nothing that an actor does ever takes away what another one needs, but for the
choices inside a kernel, which nobody outside sees before its end; on small plans the two are held against each other.

This shares nothing with the verifiers but the plan's data types. There are no clocks here, and no sweep over bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice, product
from math import prod
from typing import TypeAlias

from superkernel.scheduler.schedule import MemoryAccess, Space, Task
from superkernel.sync.plan import Plan, Set, TaskStep, Wait

States: TypeAlias = int
"""Some of an actor's local states: bit n is state n."""

Need: TypeAlias = tuple[int, States]
"""An actor is in one of these states."""


@dataclass(frozen=True, slots=True)
class Move:
    """An actor goes from a local state to a higher one, where all needs are met."""

    actor: int
    source: int
    target: int
    needs: tuple[Need, ...] = ()

    @property
    def enabled(self) -> tuple[Need, ...]:
        """Where it can be made."""
        return ((self.actor, 1 << self.source), *self.needs)


@dataclass(frozen=True, slots=True)
class BadState:
    """What must never be so all at once. `held`: the need of the actor that has not got far enough."""

    what: str
    held: Need
    needs: tuple[Need, ...]


@dataclass(frozen=True)
class System:
    """Actor a has `sizes[a]` states, begins in state 0 and ends in the last one. `wrong`: what is wrong in every
    execution; `useless`: what does no harm, but is in vain in every one."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    moves: tuple[Move, ...]
    faults: tuple[BadState, ...]
    wrong: str = ""
    useless: str = ""

    @property
    def states(self) -> int:
        """How many there are, reached or not."""
        return prod(self.sizes)


def held_back(system: System) -> str:
    """The first thing that goes wrong in some execution, or an empty text."""
    if system.wrong:
        return system.wrong
    local = _Local(system)
    free = local.reached(None)
    stuck = [n for n, size in enumerate(system.sizes) if not free[n] >> (size - 1)]
    if stuck:
        return "deadlock: " + ", ".join(f"{system.names[n]} at {free[n].bit_length() - 1}" for n in stuck)
    of_held: dict[Need, list[BadState]] = defaultdict(list)
    for fault in system.faults:
        of_held[fault.held].append(fault)
    for held, faults in of_held.items():
        seen = local.reached(held)
        for fault in faults:
            if all(seen[actor] & states for actor, states in _joined((held, *fault.needs))):
                return fault.what
    return ""


def all_states(system: System) -> str:
    """The same, by a look at every state that is reached. The number of states is the limit."""
    if system.wrong:
        return system.wrong
    strides = [prod(system.sizes[:n]) for n in range(len(system.sizes))]
    full = (1 << system.states) - 1
    masks: dict[Need, int] = {}

    def mask(need: Need) -> int:
        """All global states in which the need is met."""
        if need not in masks:
            actor, states = need
            stride, size = strides[actor], system.sizes[actor]
            line = sum(((1 << stride) - 1) << (n * stride) for n in range(size) if states >> n & 1)
            period = stride * size
            masks[need] = line * (full // ((1 << period) - 1))
        return masks[need]

    def where(needs: Iterable[Need]) -> int:
        found = full
        for need in needs:
            found &= mask(need)
        return found

    steps = [(where(m.enabled), (m.target - m.source) * strides[m.actor]) for m in system.moves]
    reached = frontier = 1
    while frontier:
        ahead = 0
        for enabled, shift in steps:
            ahead |= (frontier & enabled) << shift
        frontier = ahead & ~reached
        reached |= frontier
    for fault in system.faults:
        if reached & where((fault.held, *fault.needs)):
            return fault.what
    alive = 1 << (system.states - 1)
    for enabled, _ in steps:
        alive |= enabled
    return "deadlock" if reached & ~alive else ""


def reached(system: System, held: Need) -> list[States]:
    """By actor, the states that it can be in where one of them leaves the states `held` at no time."""
    return _Local(system).reached(held)


class _Local:
    """Which local states actors can be in, each by itself."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.of_actor: list[list[Move]] = [[] for _ in system.sizes]
        self.waiting: list[set[int]] = [set() for _ in system.sizes]  # actors that need something of an actor
        for move in system.moves:
            self.of_actor[move.actor].append(move)
            for actor, _ in move.needs:
                self.waiting[actor].add(move.actor)
        for moves in self.of_actor:
            moves.sort(key=lambda move: move.source)

    def reached(self, held: Need | None) -> list[States]:
        """By actor. `held`: one that leaves these states at no time."""
        seen = [1] * len(self.system.sizes)
        made = [0] * len(seen)  # by actor: so many of its moves lead nowhere new
        todo = dict.fromkeys(range(len(seen)))
        while todo:
            actor = next(iter(todo))
            del todo[actor]
            before = now = seen[actor]
            limit = held[1] if held is not None and held[0] == actor else -1
            moves, first = self.of_actor[actor], made[actor]
            while first < len(moves) and now >> moves[first].target & 1:
                first += 1
            made[actor] = first
            for move in islice(moves, first, None):  # by source: all go up, so that none behind this one can be made
                if now >> move.source == 0:
                    break
                new = now >> move.source & 1 and limit & ~now & 1 << move.target
                if not new:
                    continue
                for n, states in move.needs:
                    if not (now if n == actor else seen[n]) & states:
                        break
                else:
                    now |= new
            if now != before:
                seen[actor] = now
                todo |= dict.fromkeys(self.waiting[actor])
        return seen


def _joined(needs: Iterable[Need]) -> Iterable[Need]:
    """Needs of one actor as one."""
    found: dict[int, States] = {}
    for actor, states in needs:
        found[actor] = found.get(actor, -1) & states
    return found.items()


def from_state(first: int, size: int) -> States:
    """State `first` and all behind it."""
    return (1 << size) - (1 << first) if first < size else 0


# Bytes ----------------------------------------------------------------------------------------------------------------

Touched: TypeAlias = Mapping[tuple[Space, int], int]
"""By address space and slot: bit n is byte n."""


def touched(accesses: Iterable[MemoryAccess]) -> Touched:
    """All bytes of some accesses. Inputs and constants, which nobody writes, are left out."""
    found: dict[tuple[Space, int], int] = {}
    for access in accesses:
        if access.space in (Space.INPUT, Space.CONSTANT):
            continue
        bits = found.get((access.space, access.slot), 0)
        for region in access.regions:
            run = (1 << region.length) - 1
            for number in range(region.count):
                bits |= run << (region.start + number * region.stride)
        found[access.space, access.slot] = bits
    return found


def meet(one: Touched, other: Touched) -> bool:
    """Whether they have a byte in common."""
    return any(bits & other.get(place, 0) for place, bits in one.items())


# The host -------------------------------------------------------------------------------------------------------------


def executions(plan: Plan) -> System:
    """A plan for the host. A core is an actor, whose state is the number of steps behind it; a body is one move, which
    begins where all ahead of it on the core is done and has ended in the next state."""
    sizes = tuple(len(program) + 1 for program in plan.programs)
    moves: list[Move] = []
    at: dict[int, list[Move]] = defaultdict(list)
    counters = [_counters(program) for program in plan.programs]

    @cache
    def passed(producer: int, count: int) -> States:
        return sum(1 << n for n, reached in enumerate(counters[producer]) if reached >= count)

    for core, program in enumerate(plan.programs):
        for state, step in enumerate(program):
            needs: tuple[Need, ...] = ()
            if isinstance(step, Wait):
                needs = ((step.producer, passed(step.producer, step.count)),)
            moves.append(Move(core, state, state + 1, needs))
            if isinstance(step, TaskStep):
                at[step.task].append(moves[-1])
    names = tuple(f"core {core}" for core in range(plan.cores))
    return System(names, sizes, tuple(moves), tuple(_races(plan, at)), _wrong(plan, at, counters))


def _counters(program: Sequence[object]) -> list[int]:
    """A core's counter by state. Each launch begins where the one before ended."""
    found = [0]
    for step in program:
        found.append(step.count if isinstance(step, Set) else found[-1])
    return found


def _wrong(plan: Plan, at: Mapping[int, Sequence[Move]], counters: Sequence[Sequence[int]]) -> str:
    for task in plan.tasks:
        if [move.actor for move in at.get(task.index, ())] != [task.core]:
            return f"task {task.index} does not run just once, on core {task.core}"
    for core, counter in enumerate(counters):
        if counter[-1] != plan.sets[core]:
            return f"the counter of core {core} ends at {counter[-1]}, the next launch begins at {plan.sets[core]}"
    return ""


def _races(plan: Plan, at: Mapping[int, Sequence[Move]]) -> Iterator[BadState]:
    for earlier, later in _conflicts(plan.tasks):
        a, b = earlier.index, later.index
        for begun, ended in product(at.get(b, ()), at.get(a, ())):
            if begun.actor != ended.actor or begun.source < ended.target:
                yield BadState(
                    f"task {b} (core {later.core}) begins and task {a} (core {earlier.core}) has not ended",
                    (ended.actor, (1 << ended.target) - 1), begun.enabled,
                )  # fmt: skip


@lru_cache(maxsize=1)  # a plan and its mutants have the same
def _conflicts(tasks: tuple[Task, ...]) -> tuple[tuple[Task, Task], ...]:
    reads, writes = _by_task(tasks, write=False), _by_task(tasks, write=True)
    return tuple(
        (earlier, later)
        for later in tasks
        for earlier in tasks[: later.index]
        if meet(writes[earlier.index], writes[later.index])
        or meet(writes[earlier.index], reads[later.index])
        or meet(reads[earlier.index], writes[later.index])
    )


def _by_task(tasks: Sequence[Task], *, write: bool) -> list[Touched]:
    return [touched(a for a in task.accesses if a.write is write) for task in tasks]
