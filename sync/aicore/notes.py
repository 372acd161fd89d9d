"""What is said of a boundary: its form, its cost, and the reason for it.

Only words and figures: nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from superkernel.sync.aicore.plan import AICPU, AicoreBoundary, Event, Form, HartKind, Mode
from superkernel.sync.plan import Witness
from superkernel.target.aicore import AicoreTarget

_FORMS = {
    Mode.GROUP: Form.GROUP,
    Mode.TYPE: Form.TYPE,
    Mode.ACROSS: Form.ACROSS,
    Mode.ALL: Form.ALL,
    Mode.NOTIFY: Form.NOTIFY,
}
_Kind: TypeAlias = tuple[Mode, HartKind | None, HartKind | None]
"""Mode, setters and receivers of an event, as `Event` has them."""
_ORDER = (Form.GROUP, Form.TYPE, Form.ACROSS, Form.ALL)  # narrowest first


@dataclass(frozen=True)
class Notes:
    """For one plan. `sync`: the level; `flags`, `count_max`: what the plan has of cross-core flags; `narrow`: whether
    they are enough for events of fewer than all cores."""

    target: AicoreTarget
    sync: str
    flags: int
    count_max: int
    narrow: bool
    _told: dict[frozenset[_Kind], tuple[Form, float, tuple[tuple[Form, float], ...], str]] = field(default_factory=dict)

    def boundary(
        self,
        subop: int,
        events: Sequence[Event],
        fences: tuple[HartKind, ...],
        witnesses: Sequence[Witness],
        implied: int,
        *,
        begins: bool,
    ) -> AicoreBoundary:
        """Ahead of a sub-operator. `events`: those awaited there; `fences`: types whose cores wait for their own
        stores; `witnesses`: examples of what forbids less; `implied`: conflicts that earlier events order; `begins`:
        another launch, but not the first."""
        form, cost, wider, shortage = self._of_events(frozenset((e.mode, e.setters, e.to) for e in events))
        if not events and fences:
            form = Form.FENCE
        if witnesses:
            remark = ""
        elif events:
            remark = f"the level of synchronisation is {self.sync!r}"
        elif begins:
            remark = "another launch: all before it is complete"
        elif fences:
            remark = "every core reads only what it wrote itself"
        else:
            remark = "nothing is read or overwritten that earlier synchronisation does not order"
        numbers = tuple([e.index for e in events])
        return AicoreBoundary(subop, form, remark + shortage, numbers, fences, witnesses, implied, cost, wider)

    def _of_events(self, kinds: frozenset[_Kind]) -> tuple[Form, float, tuple[tuple[Form, float], ...], str]:
        """What events of some kinds have in common, wherever they stand: form, cost, wider forms with theirs, and what
        a lack of flags has done."""
        found = self._told.get(kinds)
        if found is None:
            used = {_FORMS[mode] for mode, _, _ in kinds}
            form = next(iter(used)) if len(used) == 1 else Form.SEVERAL if used else Form.NONE
            widest = max((_ORDER.index(u) for u in used if u is not Form.NOTIFY), default=-1)
            wider = () if Form.NOTIFY in used else tuple((f, self._costs_ns[f]) for f in _ORDER[widest + 1 :])
            cost = max((self._costs_ns[f] for f in used), default=0.0)
            found = self._told[kinds] = form, cost, wider, self._shortage(kinds)
        return found

    @cached_property
    def _costs_ns(self) -> dict[Form, float]:
        """Where nothing hides them."""
        return {f: self.target.nanoseconds(self.target.flag_cycles(f.value)) for f in (*_ORDER, Form.NOTIFY)}

    def _shortage(self, kinds: frozenset[_Kind]) -> str:
        """What a lack of flags has done to a boundary."""
        if any(mode is Mode.NOTIFY and AICPU not in (setters, to) for mode, setters, to in kinds):
            flags = f"{self.flags} for the plan, counts to {self.count_max}"
            return f"; words in memory: no cross-core flag is free ({flags})"
        if not self.narrow and any(mode is Mode.ALL for mode, _, _ in kinds):
            return f"; of all cores: {self.flags} cross-core flags for the plan are too few for narrower ranges"
        return ""
