"""The plan for the accelerator: events between cores, and per core type one straight line of steps.

Model: an *event* is one completed use of a cross-core flag. Its setters signal it, each behind all it did before
(queued on the engine that stores: nobody stands still); once the setters that a receiver observes have signalled,
the receiver's count of the flag grows by one, and its await takes one away. All cores of a type run the same
steps: which units a core has comes from a table, a core without units does its part of the synchronisation all the
same.

    mode      who sets                    whom a receiver observes
    group     all cores of one type       the cores of the other type in its group
    type      all cores of one type       all of them
    all       all cores                   all of them
    across    all cores of one type       all of them; receivers are the cores of the other type
    notify    all harts of one type       all of them; `to` says who receives

An event of mode `notify` is a word in global memory: each setter adds one to it behind all it did before, a receiver
waits until it has grown by the number of setters, and takes nothing away. That is how cores and aicpu harts, which have
no cross-core flags, learn of one another. A word serves one event; it is never set back, waits count launches.

Flags: those of one mode (and, for `group` and `type`, one type of setters) are used in rotation by its events, in
order, so that the n-th await of a flag on a core belongs to the n-th event that uses the flag.

`Run` may carry awaits: they are passed into the kernel, which waits ahead of its first access of the operand
(Early-Start). `Fence` orders the engines of one core: what its loads are told from then on sees its earlier stores.

What the service hart (the first `aicpu` hart that computes no tilings) does beside a launch is SDMA tasks, tied to the
cores' progress. Per type of core there is one word in global memory, which only grows, over launches too. `Notify` in
the program of a type: its first core counts the word up. The service program of a launch is a straight line of
`AwaitCount` (stand still until a type's first core has notified so often in this launch) and `Prefetch` (SDMA brings
constants into L2). It ends when SDMA is done. Cores never wait for the service hart, and what it does changes no memory
that they read: a launch computes the same without it.

Text form: `str(plan)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache

from superkernel.core.counted import counted
from superkernel.scheduler.schedule import Copies, Task
from superkernel.sync.plan import Witness


class CoreKind(Enum):
    """The two types of cores that run kernels."""

    CUBE = "cube"
    VECTOR = "vector"

    __hash__ = object.__hash__

    @property
    def other(self) -> CoreKind:
        """The type that it shares a group with."""
        return CoreKind.VECTOR if self is CoreKind.CUBE else CoreKind.CUBE


class AicpuKind(Enum):
    """The general-purpose harts beside the cores; a plan uses one, which computes tilings. It stands behind the cores
    in their numbering."""

    AICPU = "aicpu"

    __hash__ = object.__hash__


HartKind = CoreKind | AicpuKind
AICPU = AicpuKind.AICPU
_ALL = tuple(CoreKind)  # who sets and takes an event of mode `all`


def across(kind: HartKind) -> HartKind:
    """The other type of core in a group; an aicpu hart is in none."""
    return kind.other if isinstance(kind, CoreKind) else kind


class Mode(Enum):
    """How a flag is signalled; the values are those of the command `cross_set`, but for `notify`."""

    GROUP = "group"
    TYPE = "type"
    ALL = "all"
    ACROSS = "across"
    PAIR = "pair"  # a group's cube core and its first vector core: inside kernels alone
    NOTIFY = "notify"

    __hash__ = object.__hash__


def receiver_of(mode: Mode, setters: HartKind) -> HartKind:
    """The type that takes events of a mode with setters of one type."""
    return across(setters) if mode in (Mode.GROUP, Mode.ACROSS) else setters


class Form(Enum):
    """The synchronisation ahead of a sub-operator, narrowest first."""

    NONE = "none"  # nothing is missing: program order, or what earlier waits propagated
    FENCE = "fence"  # a core waits for its own stores only
    GROUP = "group"  # cube core and its vector cores
    TYPE = "type"  # all cores of one type
    ACROSS = "across"  # all cores of one type wait for all of the other
    ALL = "all"  # all cores
    NOTIFY = "notify"  # words in memory: to or from an aicpu hart, or where no flag is free
    SEVERAL = "several"  # more than one of these

    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class Event:
    """See the module docstring. `setters`: None in mode `all`. `after`: the sub-operator behind which it is set. `to`:
    in mode `notify`, who waits; `flag` then numbers the words."""

    index: int
    mode: Mode
    setters: HartKind | None
    flag: int
    after: int
    to: HartKind | None = None

    @property
    def family(self) -> tuple[Mode, HartKind | None]:
        """Events of one family use its flags in rotation."""
        return self.mode, self.setters

    @property
    def signallers(self) -> tuple[HartKind, ...]:
        """The types that set it."""
        return _ALL if self.setters is None else (self.setters,)

    @property
    def receivers(self) -> tuple[HartKind, ...]:
        """The types whose counts grow, or that wait for the word."""
        return _receivers(self.mode, self.setters, self.to)

    def __str__(self) -> str:
        who = "all" if self.setters is None else self.setters.value
        what = f"flag {self.flag}" if self.to is None else f"to {self.to.value} word {self.flag}"
        return f"event {self.index} mode {self.mode.value} setters {who} {what} after {self.after}"


@cache
def _receivers(mode: Mode, setters: HartKind | None, to: HartKind | None) -> tuple[HartKind, ...]:
    """As `Event.receivers`; plans have tens of thousands of events, of a few kinds."""
    if to is not None:
        return (to,)
    return _ALL if setters is None else (receiver_of(mode, setters),)


@dataclass(frozen=True, slots=True)
class Signal:
    """Set an event."""

    event: int

    def __str__(self) -> str:
        return f"signal {self.event}"


@dataclass(frozen=True, slots=True)
class Await:
    """Take an event, standing still until it is there. `subop`: whose boundary it belongs to."""

    event: int
    subop: int

    def __str__(self) -> str:
        return f"await {self.event} for {self.subop}"


@dataclass(frozen=True, slots=True)
class OperandWait:
    """Ahead of the first access of an operand: take events, then order the core's own stores before its loads."""

    operand: int
    events: tuple[int, ...]
    fence: bool

    def __str__(self) -> str:
        words = [*map(str, self.events), *(["fence"] if self.fence else [])]
        return f"operand {self.operand}: {' '.join(words)}"


@dataclass(frozen=True, slots=True)
class Run:
    """Run a sub-operator's kernel for the core's units, if it has any. `barriers`: a core without units joins so many
    barriers of those that have some."""

    subop: int
    waits: tuple[OperandWait, ...] = ()
    barriers: int = 0

    def __str__(self) -> str:
        joined = f" barriers {self.barriers}" if self.barriers else ""
        return f"run {self.subop}{joined}" + "".join(f" [{w}]" for w in self.waits)


@dataclass(frozen=True, slots=True)
class Drain:
    """Stand still until all engines of the core are done: Early-Start is off."""

    def __str__(self) -> str:
        return "drain"


@dataclass(frozen=True, slots=True)
class Pause:
    """The launch ends; a sub-operator without a kernel is computed by NumPy; the next launch goes on from here."""

    subop: int

    def __str__(self) -> str:
        return f"pause for {self.subop}"


@dataclass(frozen=True, slots=True)
class LaunchEnd:
    """The launch ends; the next one begins with a sub-operator."""

    subop: int

    def __str__(self) -> str:
        return f"cut ahead of {self.subop}"


@dataclass(frozen=True, slots=True)
class Notify:
    """The first core of the type counts the type's word up, behind all its stores so far: queued on the engine that
    stores. `count`: how often it has in this launch then."""

    count: int

    def __str__(self) -> str:
        return f"notify {self.count}"


@dataclass(frozen=True, slots=True)
class AwaitCount:
    """Stand still until a type's first core has notified `count` times in this launch."""

    kind: CoreKind
    count: int

    def __str__(self) -> str:
        return f"await {self.kind.value} count {self.count}"


@dataclass(frozen=True, slots=True)
class Prefetch:
    """SDMA brings `nbytes` of the constants from `offset` on into L2, for a sub-operator."""

    subop: int
    offset: int
    nbytes: int

    def __str__(self) -> str:
        return f"prefetch {self.nbytes} bytes at {self.offset} for {self.subop}"


Step = Signal | Await | Run | Drain | Pause | LaunchEnd | Notify
ServiceStep = AwaitCount | Prefetch
ServiceProgram = tuple[ServiceStep, ...]


@dataclass(frozen=True, slots=True)
class AicoreBoundary:
    """What stands ahead of a sub-operator, and why: `witnesses` are conflicts that nothing earlier orders, and `remark`
    is what else there is to say."""

    subop: int
    form: Form
    remark: str
    events: tuple[int, ...]
    fences: tuple[HartKind, ...]
    witnesses: Sequence[Witness]
    implied: int
    cost_ns: float
    alternatives: tuple[tuple[Form, float], ...]

    @property
    def reason(self) -> str:
        """In words."""
        told = f"{counted(len(self.events), 'event')}: {self.witnesses[0]}" if self.witnesses else ""
        return told + self.remark


@dataclass(frozen=True)
class AicorePlan:
    """See the module docstring. `tasks` as in the schedule; cores are numbered as harts."""

    tasks: tuple[Task, ...]
    cube_cores: int
    vector_cores: int
    groups: int
    programs: Mapping[HartKind, tuple[Step, ...]]
    events: tuple[Event, ...]
    boundaries: tuple[AicoreBoundary, ...]
    flags: int  # per core, of the plan; the kernels have the ones above
    flag_count_max: int
    service: tuple[ServiceProgram, ...] = ()  # of the service hart, by launch
    barriers: Mapping[int, int] = field(default_factory=dict)  # sub-operator -> of all cores of its type, inside it
    copies: tuple[Copies, ...] = ()  # values that groups compute each for itself

    def cores(self, kind: HartKind) -> range:
        """The cores of a type, or the hart that stands behind them."""
        if kind is AICPU:
            return range(self.total, self.total + 1)
        return range(self.cube_cores) if kind is CoreKind.CUBE else range(self.cube_cores, self.total)

    @property
    def total(self) -> int:
        """Cube and vector cores."""
        return self.cube_cores + self.vector_cores

    @property
    def harts(self) -> int:
        """Cores, and the aicpu hart where the plan uses one."""
        return self.total + (AICPU in self.programs)

    def kind(self, core: int) -> HartKind:
        """Type of a core by its number: cube cores first, then vector cores, then the aicpu hart."""
        if core >= self.total:
            return AICPU
        return CoreKind.CUBE if core < self.cube_cores else CoreKind.VECTOR

    def group(self, core: int) -> int:
        """Group of a cube or vector core; groups share out both types evenly and in order."""
        if core < self.cube_cores:
            return core // (self.cube_cores // self.groups)
        return (core - self.cube_cores) // (self.vector_cores // self.groups)

    def observed(self, event: Event, core: int) -> tuple[int, ...]:
        """The setters that a receiver observes."""
        if event.setters is None:
            return tuple(range(self.total))
        setters = self.cores(event.setters)
        if event.mode is not Mode.GROUP:
            return tuple(setters)
        return tuple(c for c in setters if self.group(c) == self.group(core))

    @property
    def between(self) -> tuple[int | None, ...]:
        """Behind each launch but the last: the sub-operator that NumPy computes there; None: nothing."""
        steps = self.programs[CoreKind.CUBE]
        return tuple(s.subop if isinstance(s, Pause) else None for s in steps if isinstance(s, (Pause, LaunchEnd)))

    @property
    def launch_of(self) -> dict[int, int]:
        """Sub-operator -> number of the launch that it runs in; NumPy's are in none."""
        found: dict[int, int] = {}
        for program in self.programs.values():
            number = 0
            for step in program:
                if isinstance(step, (Pause, LaunchEnd)):
                    number += 1
                elif isinstance(step, Run):
                    found[step.subop] = number
        return dict(sorted(found.items()))

    @property
    def waits(self) -> int:
        """Awaits, over both types' programs."""
        return sum(len(awaited(step)) for program in self.programs.values() for step in program)

    def __str__(self) -> str:
        lines = [f"plan cube {self.cube_cores} vector {self.vector_cores} groups {self.groups}"]
        lines += map(str, self.events)
        lines += [f"# {copies}" for copies in self.copies]
        for kind, program in self.programs.items():
            lines.append(f"program {kind.value}")
            lines += [f"  {step}" for step in program]
        for launch, service in enumerate(self.service):
            lines += [f"service {launch}", *(f"  {step}" for step in service)] if service else []
        for b in self.boundaries:
            if b.form is not Form.NONE:
                lines.append(f"# boundary {b.subop} {b.form.value}: {b.reason}")
                lines += [f"#   {w}" for w in b.witnesses]
        return "\n".join(lines)


def awaited(step: Step) -> tuple[int, ...]:
    """The events that a step takes, in order."""
    if isinstance(step, Run):
        waits = step.waits
        return waits[0].events if len(waits) == 1 else tuple([e for w in waits for e in w.events])
    return (step.event,) if isinstance(step, Await) else ()
