"""What a timeline consists of: spans on tracks, flows between them.

Model: a *track* is a row of a picture, of one core: its thread on the host, its control unit or one of its engines on
an accelerator. A *span* is a stretch of time on a track with the reason why it is there; a *flow* leads from a signal
to whoever took it. Times are in us from the start of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any


class SpanKind(Enum):
    """What a span is."""

    WORK = "work"  # instructions of a sub-operator: a core of the host, or a control unit
    COMPUTE = "compute"  # a cube or vector engine executes a command
    MOVEMENT = "movement"  # another engine does: copies
    BETWEEN = "between"  # instructions ahead of a sub-operator's body and behind it: what starts it, waits, signals
    SIGNAL = "signal"  # telling others
    WAIT = "wait"  # for other cores, as long as the synchronisation itself takes
    IMBALANCE = "imbalance"  # for other cores that still have work to do
    FETCH = "fetch"  # for lines of instructions
    STALL = "stall"  # of a control unit, from another cause
    FLAG = "flag"  # of an engine, for another engine of its core
    NUMPY = "numpy"  # the host computes a sub-operator between launches

    @property
    def part(self) -> str:
        """The part of the time that it belongs to, in the words of reports and bars; it has that part's colour."""
        return _PARTS.get(self, self.value)


_PARTS = {
    SpanKind.NUMPY: "NumPy",
    SpanKind.WAIT: "pure sync",
    SpanKind.SIGNAL: "pure sync",
    SpanKind.FETCH: "misses",
    SpanKind.BETWEEN: "control",
}
"""Where it is called otherwise than the kind."""

WORKING = (SpanKind.WORK, SpanKind.COMPUTE, SpanKind.MOVEMENT, SpanKind.NUMPY)
"""What spans of a sub-operator's own work are."""


@dataclass(frozen=True, slots=True)
class Track:
    """A row: `name` says what of the core it is; `lane` orders the rows of a core, and is unique within it."""

    core: int
    lane: int
    name: str


@dataclass(frozen=True, slots=True)
class Span:
    """[begin_us, end_us) on a track, numbered as in `Recording.tracks`. `subop` is None outside of sub-operators."""

    track: int
    begin_us: float
    end_us: float
    name: str
    activity: SpanKind
    subop: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SignalFlow:
    """A signal on its way. `taken` False: this is its start, on the setter's track; True: an end, on a taker's. Starts
    and ends with equal numbers belong together."""

    track: int
    at_us: float
    name: str
    number: int
    taken: bool


@dataclass(frozen=True)
class Recording:
    """One run. `cores`: the names of all cores that have tracks; `subops`: names by number. `measured`: on a machine,
    where the next run takes another time; what is not was simulated, and is the same in every run."""

    title: str
    cores: Mapping[int, str]
    tracks: tuple[Track, ...]
    spans: tuple[Span, ...]
    flows: tuple[SignalFlow, ...] = ()
    subops: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what a reader must know of how it was recorded
    path: tuple[tuple[int, float, float], ...] = ()  # the critical path: cores, begins and ends in us
    measured: bool = False

    def part_of(self, kind: SpanKind) -> str:
        """The part that spans of a kind belong to: where engines compute, a control unit inside a sub-operator only
        steers them."""
        steers = kind is SpanKind.WORK and any(span.activity is SpanKind.COMPUTE for span in self.spans)
        return (SpanKind.BETWEEN if steers else kind).part

    @property
    def duration_us(self) -> float:
        """From the start of the run to the end of its last span."""
        return max((span.end_us for span in self.spans), default=0.0)


def with_symbols(spans: Iterable[Span], symbols: Sequence[Sequence[str]]) -> tuple[Span, ...]:
    """The spans, those in which a sub-operator's functions work or move data with the symbols of these as a detail."""
    return tuple(
        replace(span, details={**span.details, "symbols": list(symbols[span.subop])})
        if span.activity in (SpanKind.WORK, SpanKind.MOVEMENT) and span.subop is not None and span.subop < len(symbols)
        else span
        for span in spans
    )
