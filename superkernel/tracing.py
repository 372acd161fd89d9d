"""One run as a timeline: what every core, and every engine of it, did when.

Model: a *track* is a row of a picture, of one core: its thread on the host, its control unit or one of its engines on
an accelerator. A *span* is a stretch of time on a track with the reason why it is there; a *flow* leads from a signal
to whoever took it. Times are in us from the start of the run.

`chrome` is the JSON that Perfetto and Chrome's tracing page read; `html` a page for a browser, with nothing to install;
`save` writes either, as the name of the file says. Both are functions of the trace alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from os import PathLike
from typing import Any

from superkernel.errors import InputError
from superkernel.files import file_name, replacing


class Activity(Enum):
    """What a span is."""

    WORK = "work"  # instructions of a sub-operator: a core of the host, or a control unit
    COMPUTE = "compute"  # a cube or vector engine executes a command
    MOVEMENT = "movement"  # another engine does: copies
    SIGNAL = "signal"  # telling others
    WAIT = "wait"  # for other cores, as long as the synchronisation itself takes
    IMBALANCE = "imbalance"  # for other cores that still have work to do
    FETCH = "fetch"  # for lines of instructions
    STALL = "stall"  # of a control unit, from another cause
    FLAG = "flag"  # of an engine, for another engine of its core


FORMS = (".html", ".json")


def form_of(path: str | PathLike[str]) -> str:
    """The form that a file's name asks for, one of `FORMS`. Raises InputError."""
    form = file_name(path).suffix.lower()
    if form not in FORMS:
        hint = ".html is a page for a browser, .json is for Perfetto"
        raise InputError("no such form of a trace", expected=" or ".join(FORMS), found=repr(str(path)), hint=hint)
    return form


@dataclass(frozen=True, slots=True)
class Track:
    """A row: `name` says what of the core it is; `lane` orders the rows of a core, and is unique within it."""

    core: int
    lane: int
    name: str


@dataclass(frozen=True, slots=True)
class Span:
    """[begin_us, end_us) on a track, numbered as in `Trace.tracks`. `subop` is None outside of all sub-operators."""

    track: int
    begin_us: float
    end_us: float
    name: str
    activity: Activity
    subop: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Flow:
    """A signal on its way. `taken` False: this is its start, on the setter's track; True: an end, on a taker's. Starts
    and ends with equal numbers belong together."""

    track: int
    at_us: float
    name: str
    number: int
    taken: bool


@dataclass(frozen=True)
class Trace:
    """See the module docstring. `cores`: the names of all cores that have tracks; `subops`: names by number."""

    title: str
    cores: Mapping[int, str]
    tracks: tuple[Track, ...]
    spans: tuple[Span, ...]
    flows: tuple[Flow, ...] = ()
    subops: Mapping[int, str] = field(default_factory=dict)

    @property
    def duration_us(self) -> float:
        """From the start of the run to the end of its last span."""
        return max((span.end_us for span in self.spans), default=0.0)

    def chrome(self) -> str:
        """Chrome's trace event format: cores are processes, tracks threads."""
        events = [*self._names(), *map(self._complete, self.spans), *map(self._step, self.flows)]
        return json.dumps({"displayTimeUnit": "ns", "traceEvents": events}, separators=(",", ":"))

    def html(self) -> str:
        """A page of its own: rows of cores and engines to zoom into, and what the time went into."""
        from superkernel.tracing_page import page

        return page(self)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the page (.html) or the JSON (.json), atomically. Raises InputError on another suffix, MachineError
        where the file cannot be written."""
        writer = {".html": self.html, ".json": self.chrome}[form_of(path)]
        with replacing(file_name(path), "the trace") as file:
            file.write(writer().encode())

    def __str__(self) -> str:
        counts = f"{len(self.spans)} spans on {len(self.tracks)} tracks of {len(self.cores)} cores"
        return f"{self.title}: {self.duration_us:.2f} us, {counts}"

    def __repr__(self) -> str:
        return f"<superkernel.Trace {self}>"

    def _names(self) -> Iterator[dict[str, Any]]:
        for core, name in sorted(self.cores.items()):
            yield {"ph": "M", "name": "process_name", "pid": core, "args": {"name": name}}
            yield {"ph": "M", "name": "process_sort_index", "pid": core, "args": {"sort_index": core}}
        for track in self.tracks:
            place = {"pid": track.core, "tid": track.lane}
            yield {"ph": "M", "name": "thread_name", **place, "args": {"name": track.name}}
            yield {"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": track.lane}}

    def _place(self, number: int, at_us: float) -> dict[str, Any]:
        track = self.tracks[number]
        return {"pid": track.core, "tid": track.lane, "ts": round(at_us, 6)}

    def _complete(self, span: Span) -> dict[str, Any]:
        details: dict[str, Any] = {} if span.subop is None else {"sub_operator": span.subop}
        return {
            "ph": "X",
            **self._place(span.track, span.begin_us),
            "dur": round(span.end_us - span.begin_us, 6),
            "name": span.name,
            "cat": span.activity.value,
            "args": {**details, **span.details},
        }

    def _step(self, flow: Flow) -> dict[str, Any]:
        shape = {"ph": "f", "bp": "e"} if flow.taken else {"ph": "s"}
        return {**shape, **self._place(flow.track, flow.at_us), "name": flow.name, "cat": "sync", "id": flow.number}
