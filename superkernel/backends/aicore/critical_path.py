"""The chain of activities that a simulated launch's time consists of: its critical path.

Model: from the end of the launch backwards. At each moment one thing held up the place at hand: a control unit's
instructions; a line of instructions; its own engine that it waited for; a cross-core flag, which leads to the core
that signalled last; of an engine, the command ahead, the flag of another engine that it waited for, or the doorbell.
The path follows it. Where the trace does not say what a gap was (start-up between engines, a doorbell), it counts as
control.

Invariant: the pieces join without gap or overlap; their lengths sum to the launch's cycles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.backends.aicore.timeline import COMPUTE_ENGINES, Activity, Take, Timeline
from superkernel.sim.counters import STALLS
from superkernel.sim.trace import COMMAND, FLOW_OUT, MARKER, STALL, WAIT

_CONTROL = 0  # the control unit's track
_FETCHES = (STALLS.index("fetch"), STALLS.index("prefetch_late"))
_CROSS = STALLS.index("cross_wait")
_OWN_ENGINE = tuple(STALLS.index(name) for name in ("queue_full", "drain", "wait_flag"))
_VISIBLE = 512  # cycles at most from an engine's end to what its flag lets go on


@dataclass(frozen=True, slots=True)
class PathPiece:
    """A stretch of the path: on which core, for which sub-operator, in what activity. `event`: of a `pure` piece."""

    core: int
    subop: int
    activity: Activity
    begin: int
    end: int
    event: int | None = None


@dataclass(frozen=True)
class _Track:
    """Spans of a control unit or an engine, by their ends."""

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    markers: NDArray[np.int64]
    details: NDArray[np.int64]

    @staticmethod
    def of(rows: NDArray[np.void]) -> _Track:
        its = rows[rows["end"] > rows["begin"]]
        its = its[np.argsort(its["end"], kind="stable")]
        columns = [its[name].astype(np.int64) for name in ("begin", "end", "marker", "detail")]
        return _Track(*columns)

    def last(self, time: int) -> int:
        """The number of the last span that ends by a time; -1: there is none."""
        return int(np.searchsorted(self.ends, time, side="right")) - 1


def critical_path(line: Timeline) -> tuple[PathPiece, ...]:
    """The pieces of the path, in time."""
    return _Walk(line).run()


class _Walk:
    def __init__(self, line: Timeline) -> None:
        self.line = line
        self.stalls: dict[int, _Track] = {}
        self.commands: dict[tuple[int, int], _Track] = {}
        self.waits: dict[tuple[int, int], _Track] = {}
        self.marks: dict[int, _Track] = {}
        for core, rows in enumerate(line.of_core):
            kind, track = rows["kind"], rows["track"]
            self.stalls[core] = _Track.of(rows[kind == STALL])
            self.marks[core] = _Track.of(rows[kind == MARKER])
            for number in np.unique(track).tolist():
                mine = rows[track == number]
                self.commands[core, number] = _Track.of(mine[mine["kind"] == COMMAND])
                self.waits[core, number] = _Track.of(mine[mine["kind"] == WAIT])
        self.takes: dict[tuple[int, int], Take] = {(t.core, t.end): t for t in line.takes}
        sets = line.rows[line.rows["kind"] == FLOW_OUT]
        self.signals = {(int(r["core"]), int(r["begin"])): int(r["track"]) for r in sets}
        self.pieces: list[PathPiece] = []
        self.core, self.track, self.time = self._last_core(), _CONTROL, line.end

    def run(self) -> tuple[PathPiece, ...]:
        for _ in range(2 * len(self.line.rows) + 1):
            if self.time <= self.line.begin:
                break
            if self.track == _CONTROL:
                self._control()
            else:
                self._engine()
        self._add(Activity.CONTROL, self.line.begin)
        return tuple(reversed(self.pieces))

    def _last_core(self) -> int:
        behind = self.line.subops * 4 + 3
        rows = self.line.rows
        found = rows[(rows["kind"] == MARKER) & (rows["marker"] == behind) & (rows["begin"] == self.line.end)]
        return int(found["core"][0]) if len(found) else 0

    def _add(self, activity: Activity, begin: int, marker: int | None = None, event: int | None = None) -> None:
        """The path back to `begin`."""
        begin = max(begin, self.line.begin)
        if begin < self.time:
            subop = self._subop() if marker is None else marker // 4
            self.pieces.append(PathPiece(self.core, subop, activity, begin, self.time, event))
            self.time = begin

    def _subop(self) -> int:
        marks = self.marks[self.core]
        at = int(np.searchsorted(marks.ends, self.time, side="left"))
        return int(marks.markers[min(at, len(marks.markers) - 1)]) // 4

    def _control(self) -> None:
        stalls = self.stalls[self.core]
        at = stalls.last(self.time)
        if at < 0 or stalls.ends[at] <= self.line.begin:
            self._add(Activity.CONTROL, self.line.begin)
            return
        begin, end, cause = int(stalls.begins[at]), int(stalls.ends[at]), int(stalls.details[at])
        self._add(Activity.CONTROL, end)
        if cause in _FETCHES:
            self._add(Activity.MISSES, begin, int(stalls.markers[at]))
        elif cause == _CROSS and (take := self.takes.get((self.core, end))) is not None and take.fired < end:
            self._add(Activity.PURE, take.fired, take.subop * 4, take.event)
            self.core, self.track = take.setter, self.signals.get((take.setter, take.fired), _CONTROL)
        elif cause in _OWN_ENGINE and (engine := self._ended_last(begin, end)) is not None:
            self._add(Activity.CONTROL, engine[1])
            self.track = engine[0]
        else:
            self._add(Activity.CONTROL, begin)

    def _ended_last(self, begin: int, end: int) -> tuple[int, int] | None:
        """The engine of this core whose command ended last while the control unit stood still, and when."""
        found: tuple[int, int] | None = None
        for (core, number), track in self.commands.items():
            if core == self.core and number != _CONTROL and (at := track.last(end)) >= 0:
                ended = int(track.ends[at])
                if ended > begin and (found is None or ended > found[1]):
                    found = (number, ended)
        return found

    def _engine(self) -> None:
        commands, waits = self.commands[self.core, self.track], self.waits[self.core, self.track]
        at, wait = commands.last(self.time), waits.last(self.time)
        ended = int(commands.ends[at]) if at >= 0 else -1
        released = int(waits.ends[wait]) if wait >= 0 else -1
        if max(ended, released) < self.time - _VISIBLE:
            self.track = _CONTROL  # it had nothing to do: the doorbell
        elif released > ended:
            self._add(Activity.CONTROL, released, int(waits.markers[wait]))
            peer = int(waits.details[wait]) >> 8
            self.track = peer if (self.core, peer) in self.commands else _CONTROL
            self._add(Activity.CONTROL, self._end_of(self.track, released), int(waits.markers[wait]))
        else:
            self._add(Activity.CONTROL, ended, int(commands.markers[at]))
            activity: Any = Activity.COMPUTE if self.track in COMPUTE_ENGINES else Activity.MOVEMENT
            self._add(activity, int(commands.begins[at]), int(commands.markers[at]))

    def _end_of(self, track: int, time: int) -> int:
        """When an engine's last work by a time ended; that time itself where it is long ago."""
        if track == _CONTROL:
            return time
        at = self.commands[self.core, track].last(time)
        ended = int(self.commands[self.core, track].ends[at]) if at >= 0 else -1
        return ended if ended >= time - _VISIBLE else time
