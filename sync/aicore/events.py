"""Events while a plan is made: which flag each has, who has yet to take it, and what harts know by those they took.

Model: `known[c, p]` is the last sub-operator that hart c knows hart p to have completed, `after[i]` the same behind
sub-operator i. An event propagates all that its setters knew when they set it. `fenced[c]` is the last sub-operator
whose stores hart c need not fence any more.

Flags are shared out to families (a mode, and a type of setters), to the events of each in rotation. With fewer flags
than modes all belong to events of all cores.

Invariants: awaits of one flag come in the order of its signals; a count never exceeds its limit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from superkernel.core.errors import UnsupportedError
from superkernel.scheduler.families.aicore.base import CHANNEL_FLAGS, AicoreTiling
from superkernel.scheduler.schedule import Schedule
from superkernel.sync.aicore.harts import Harts
from superkernel.sync.aicore.plan import CoreKind, Event, HartKind, Mode, Signal, Step, across, receiver_of
from superkernel.target.aicore import AicoreTarget

NARROW = (Mode.ALL, Mode.TYPE, Mode.GROUP)  # what a plan needs flags for to use anything but events of all cores
MODES = (*NARROW, Mode.ACROSS)

Family = tuple[Mode, HartKind | None]
NOWHERE: Mapping[HartKind, Collection[Event]] = {}
Known = NDArray[np.int32]
_INDEX = attrgetter("index")


def flags_of(schedule: Schedule, target: AicoreTarget) -> int:
    """Cross-core flags of a core that the plan has; there may be none. The kernels' own are theirs where any kernel has
    some. Raises UnsupportedError where not even they are there."""
    tilings = [t for t in schedule.tilings if isinstance(t, AicoreTiling)]
    flags = int(target.sync.flags_per_core) - any(t.barriers for t in tilings)
    if flags >= CHANNEL_FLAGS + len(NARROW):
        return flags - CHANNEL_FLAGS
    if not any(t.crosses for t in tilings):
        return flags
    if flags < CHANNEL_FLAGS:
        raise UnsupportedError(
            "too few cross-core flags for kernels whose cores exchange data",
            location="target field 'sync.flags_per_core'",
            expected=f"at least {CHANNEL_FLAGS}",
            found=flags,
        )
    return flags - CHANNEL_FLAGS


class Events:
    """See the module docstring. `signals`: by type, what is set behind each sub-operator."""

    def __init__(self, harts: Harts, flags: int, count_max: int) -> None:
        self.harts, self.flags, self.count_max = harts, flags, count_max
        self.modes = MODES if flags >= len(MODES) else NARROW if flags == len(NARROW) else MODES[: min(1, flags)]
        self.width = flags // max(1, len(self.modes))  # flags of a family
        self.made: list[Event] = []
        self.words = 0  # in memory
        self.of_family: dict[Family, list[Event]] = {}  # those of `made`
        self.behind: dict[Family, int] = {}  # the last sub-operator that any of them is set behind
        self.signals: dict[HartKind, list[list[Step]]] = {kind: [] for kind in harts.types}
        self.pending: dict[HartKind, dict[int, Event]] = {kind: {} for kind in harts.types}  # by number, in that order
        self.taken: dict[tuple[int, HartKind], int] = {}  # event, receiver -> sub-operator whose boundary takes it
        self.returned: dict[int, NDArray[np.int32]] = {}  # by event: up to where it propagates each hart's own stores
        self.known: Known = np.full((harts.total, harts.total), -1, np.int32)
        self._cores = slice(harts.cores.total)
        self.own = self.known.ravel()[:: harts.total + 1]  # what each hart knows of itself
        self._nothing = np.full(harts.total, -1, np.int32)
        self.fenced = self._nothing.copy()
        self.after: list[Known] = []

    def find(
        self,
        family: Family,
        last: int,
        receivers: set[HartKind],
        here: Mapping[HartKind, Collection[Event]] = NOWHERE,
        latest: int | None = None,
    ) -> Event | None:
        """A pending event of the family that tells enough, if all who need it still have it before them, or take it
        at another operand of the same kernel (`here`). `latest`: the last sub-operator that it may be set behind."""
        first, *others = receivers
        if not self.pending[first] and not here.get(first):
            return None
        near = [e for e in chain(self.pending[first].values(), here.get(first, ())) if e.after >= last]
        for event in sorted([e for e in near if e.family == family], key=_INDEX) if near else ():
            known = all(event.index in self.pending[kind] or event in here.get(kind, ()) for kind in others)
            if known and (latest is None or event.after <= latest):
                return event
        return None

    def ahead(self, event: Event, kind: HartKind, here: Collection[Event] = ()) -> list[Event]:
        """The event and what of its family the receiver must take before it, `here` included."""
        family = event.family
        before = [e for e in (*self.pending[kind].values(), *here) if e.index <= event.index]
        return sorted([e for e in before if e.family == family], key=_INDEX)

    def make(self, family: Family, after: int) -> Event:
        """One more event of the family, set behind a sub-operator."""
        mode, setters = family
        others = self.of_family.setdefault(family, [])
        flag = self.modes.index(mode) * self.width + len(others) % self.width
        event = Event(len(self.made), mode, setters, flag, after)
        # In the order in which events are made, so that a flag's signals come in the order of its awaits.
        behind = max(after, self.behind.get(family, after))
        for kind in CoreKind if setters is None else (setters,):
            self.signals[kind][behind].append(Signal(event.index))
        self.behind[family] = behind
        others.append(event)
        return self._made(event)

    def make_word(self, setter: HartKind, receiver: HartKind, after: int) -> Event:
        """An event of mode `notify`."""
        event = Event(len(self.made), Mode.NOTIFY, setter, self.words, after, receiver)
        self.words += 1
        self.signals[setter][after].append(Signal(event.index))
        return self._made(event)

    def _made(self, event: Event) -> Event:
        self.made.append(event)
        for kind in event.receivers:
            self.pending[kind][event.index] = event
        return event

    def take(self, event: Event, kind: HartKind, subop: int) -> None:
        """A type's cores take an event ahead of a sub-operator: they learn what its setters knew."""
        del self.pending[kind][event.index]
        self.taken[event.index, kind] = subop
        mine = self.harts.of(kind)
        setters = self._cores if event.setters is None else self.harts.of(event.setters)
        knew = self.after[event.after][setters]
        own = self.returned.get(event.index)
        if own is None:
            own = self.returned[event.index] = self._nothing.copy()
        if event.mode is Mode.GROUP:  # what the setters knew, as far as each receiver observes them
            of_group = knew.reshape(self.harts.cores.groups, -1, self.harts.total).max(axis=1)
            learnt = of_group[self.harts.group[mine]]
            own[mine] = learnt[:, mine].diagonal()
        else:
            learnt = np.maximum.reduce(knew)
            own[mine] = learnt[mine]
        known, fenced = self.known[mine], self.fenced[mine]
        np.maximum(known, learnt, out=known)
        np.maximum(fenced, own[mine], out=fenced)  # others saw its stores: they are done

    def has_flags(self, more: int) -> bool:
        """Whether so many more events of any family take no count above its limit."""
        families: list[Family] = [(Mode.ALL, None), *((mode, kind) for mode in self.modes[1:] for kind in CoreKind)]
        return all(self.is_free(family, -1, more) for family in families)

    def is_free(self, family: Family, after: int, more: int = 1) -> bool:
        """Whether one more event of the family (or so many), set behind `after`, takes no count above its limit: each
        receiver has taken what used the flag `count_max` times before when it signals this one. (Group events: see
        `may_run_ahead`.)"""
        mode, setters = family
        if mode not in self.modes:
            return False
        uses = self.of_family.get(family, [])
        back = len(uses) + more - 1 - self.width * self.count_max
        if mode is Mode.GROUP or back < 0:
            return True
        if back >= len(uses):
            return False
        row = max(after, self.behind.get(family, after))
        if mode is Mode.ACROSS:
            assert setters is not None
            return self._knows_taken(setters, uses[back], row)
        kinds = CoreKind if setters is None else (setters,)
        return all(self.taken.get((uses[back].index, kind), row + 1) <= row for kind in kinds)

    def signals_once(self, setter: HartKind) -> bool:
        """Whether a group event of the type is one signal: each cube core of a group adds to the count by itself."""
        return setter is CoreKind.VECTOR or self.harts.cores.cube == self.harts.cores.groups

    def may_run_ahead(self, setter: HartKind, after: int) -> bool:
        """Whether one more group event can overflow no count: the setters know that receivers took the one that used
        the flag `count_max` times before (one type does not listen to the other by itself)."""
        if Mode.GROUP not in self.modes:
            return False
        uses = self.of_family.get((Mode.GROUP, setter), [])
        back = len(uses) - self.width * self.count_max
        if back < 0:
            return True
        return self._knows_taken(setter, uses[back], after)

    def _knows_taken(self, setter: HartKind, event: Event, after: int) -> bool:
        """Whether the setters, behind a sub-operator, know that all of the other type took an event."""
        taken = self.taken.get((event.index, across(setter)))
        if taken is None:
            return False
        knew = self.after[after][self.harts.of(setter), self.harts.of(across(setter))]
        return bool((knew >= taken).all())

    def propagated(self, families: dict[Family, int], receiver: int, setter: int, subop: int) -> bool:
        """Whether events of the families, set behind the given sub-operators, tell a receiver enough of a setter."""
        for (mode, setters), last in families.items():
            assert setters is not None
            if self.harts.kind(receiver) is receiver_of(mode, setters):
                observed = self.harts.observed(mode, setters, receiver)
                if self.after[last][observed, setter].max() >= subop:
                    return True
        return False
