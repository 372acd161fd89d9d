"""The event trace of launches as a `superkernel.display.tracing.Trace`: for Perfetto, for a browser.

Model: the device hands over records of 32 bytes (csrc/sim/device/trace.h), track by track. A core's control unit, its
stalls and each engine become tracks; a cross-core flag's set and the waits that took it become a flow. Times are
microseconds of the device's clock. NumPy, where it computes sub-operators between launches, has a track of its own.

Whose time it is: what stands ahead of the first sub-operator's entry (a record's phase 0) belongs to none, and so do
rows of harts that run no sub-operators. A wait for other cores behind a sub-operator's body belongs to the one that the
core enters next: it is that one's boundary.

Invariant: the trace is a function of the records and the target alone: the same launch gives the same bytes of JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from superkernel.display.spans import SignalFlow, Span, SpanKind, Track
from superkernel.display.tracing import Trace
from superkernel.sim.counters import PHASES, STALLS
from superkernel.target.engines import Engine
from superkernel.target.engines.table import by_opcode

if TYPE_CHECKING:
    from superkernel.target.aicore import AicoreTarget

RECORD = np.dtype(
    [
        ("begin", "<u8"),
        ("end", "<u8"),
        ("marker", "<u4"),
        ("detail", "<u4"),
        ("core", "<u2"),
        ("track", "u1"),
        ("kind", "u1"),
        ("extra", "<u4"),
    ]
)
ENTRY, BODY, BEHIND = (PHASES.index(name) for name in ("entry", "body", "behind"))
MARKER, STALL, COMMAND, WAIT, FLOW_OUT, FLOW_IN = range(1, 7)
COMPUTE_ENGINES = (Engine.M.value, Engine.V.value)
CROSS_STALLS = ("cross_wait", "wait_memory")
FETCH_STALLS = ("fetch", "prefetch_late")
_STALL_LANE = 15  # beside the numbers of the engines' windows

Rows = np.ndarray[Any, np.dtype[np.void]]


def records(trace: bytes) -> Rows:
    """The records as a structured array."""
    return np.frombuffer(trace, RECORD)


def to_chrome(trace: bytes, target: AicoreTarget, names: Mapping[int, str] | None = None) -> str:
    """One launch's trace as JSON. `names`: sub-operators by number."""
    return trace_of([records(trace)], target, names or {}, target.name).chrome()


def trace_of(
    launches: Sequence[Rows],
    target: AicoreTarget,
    names: Mapping[int, str],
    title: str,
    between: Mapping[int, Sequence[tuple[int, float]]] | None = None,
    path: Sequence[tuple[int, float, float]] = (),
    read: Mapping[tuple[int, int], str] | None = None,
) -> Trace:
    """Launches, one behind the other, as one trace. `names`: sub-operators by number; other numbers are the program's
    own start and end. `between`: by launch, what NumPy computed behind it: sub-operators with their us;
    `path`: the critical one, as `Recording` has it. `read`: by writer and reader, which value."""
    seen = sorted({(int(row["core"]), _lane_of(row)) for rows in launches for row in rows})
    numbers = {place: number for number, place in enumerate(seen)}
    spans: list[Span] = []
    flows: list[SignalFlow] = []
    start = 0.0
    first_flow = 0
    for number, rows in enumerate(launches):
        spans += _spans(rows, target, names, numbers, start, read or {})
        flows += _flows(rows, target, numbers, start, first_flow)
        start += int(rows["end"].max(initial=0))
        first_flow = 1 + max((flow.number for flow in flows), default=first_flow - 1)
        for subop, us in (between or {}).get(number, ()):
            begin, start = start, start + us * target.device.clock_mhz
            begin_us, end_us = begin / target.device.clock_mhz, start / target.device.clock_mhz
            spans.append(Span(len(seen), begin_us, end_us, names[subop], SpanKind.NUMPY, subop))
    cores = {core: _core_name(core, target) for core, _ in seen}
    tracks = [Track(core, lane, _lane_name(lane)) for core, lane in seen]
    if between:
        host = 1 + max(cores, default=-1)
        cores[host] = "host"
        tracks.append(Track(host, 0, "NumPy"))
    return Trace(
        title,
        cores,
        tuple(tracks),
        tuple(spans),
        tuple(flows),
        dict(names),
        path=tuple(path),
    )


def _core_name(core: int, target: AicoreTarget) -> str:
    if core < target.cores:
        return f"{'AIC' if target.is_cube(core) else 'AIV'} {core} (group {target.group_of(core)})"
    return "SDMA" if core == target.cores + target.device.aicpu_harts else f"AICPU {core}"


def _lane_name(lane: int) -> str:
    if lane == _STALL_LANE:
        return "stalls"
    return Engine(lane).title if lane else "control"


def _lane_of(row: np.void) -> int:
    return _STALL_LANE if row["kind"] == STALL else int(row["track"])


def _spans(
    rows: Rows,
    target: AicoreTarget,
    names: Mapping[int, str],
    numbers: Mapping[tuple[int, int], int],
    start: float,
    read: Mapping[tuple[int, int], str],
) -> Iterator[Span]:
    us = 1 / target.device.clock_mhz
    commands, signalled, entries = by_opcode(), _signalled(rows), _entries(rows)
    for row in rows:
        begin, end, marker, detail, core, track, kind, extra = row.tolist()
        if kind in (FLOW_OUT, FLOW_IN):
            continue
        number, phase = divmod(marker, 4)
        subop = number if phase and core < target.cores + target.device.aicpu_harts else None
        details: dict[str, Any] = {"cycles": end - begin}
        if kind == MARKER:
            name = f"{names.get(number, 'program')} {PHASES[phase]}" if phase else PHASES[phase]
            activity = SpanKind.WORK if phase == BODY else SpanKind.BETWEEN
        elif kind == STALL:
            name, activity = STALLS[detail], _stall(STALLS[detail])
            if activity is SpanKind.WAIT and phase == BEHIND:
                at, whose = entries[core]
                place = int(np.searchsorted(at, end))
                subop = whose[place] if place < len(at) else subop
            late = begin
            if activity is SpanKind.WAIT and (core, end) in signalled:
                fired, setter, behind_of = signalled[core, end]
                late = min(max(fired, begin), end)
                behind = f", which computed {names[behind_of]}" if behind_of in names else ""
                why = f"{_core_name(core, target)} waits for {_core_name(setter, target)}{behind}"
                if subop is not None and (behind_of, subop) in read:
                    why += f": {names[subop]} reads {read[behind_of, subop]!r}"
                details["why"] = why
            if late > begin:
                lost = {**details, "cycles": late - begin}
                yield Span(
                    numbers[core, _STALL_LANE], (start + begin) * us, (start + late) * us, name, SpanKind.IMBALANCE,
                    subop, lost,
                )  # fmt: skip
                begin, details = late, {**details, "cycles": end - late}
        elif kind == COMMAND:
            name = commands[detail].name
            activity = SpanKind.COMPUTE if track in COMPUTE_ENGINES else SpanKind.MOVEMENT
            details["global_bytes"] = extra
        else:
            name, activity = f"wait_flag {detail & 0xFF} from {Engine(detail >> 8).title}", SpanKind.FLAG
        place_of = numbers[core, _STALL_LANE if kind == STALL else track]
        yield Span(place_of, (start + begin) * us, (start + end) * us, name, activity, subop, details)


def _entries(rows: Rows) -> dict[int, tuple[NDArray[np.int64], list[int]]]:
    """By core: when it enters sub-operators, and which."""
    found: dict[int, tuple[NDArray[np.int64], list[int]]] = {}
    chosen = np.sort(rows[(rows["kind"] == MARKER) & (rows["marker"] % 4 == ENTRY)], order="begin")
    for core in np.unique(rows["core"]).tolist():
        its = chosen[chosen["core"] == core]
        found[core] = its["begin"].astype(np.int64), (its["marker"] // 4).tolist()
    return found


def _signalled(rows: Rows) -> dict[tuple[int, int], tuple[int, int, int]]:
    """For waits, by core and end: when the last of those waited for signalled, its core, and its sub-operator."""
    sets = {
        int(row["extra"]): (int(row["begin"]), int(row["core"]), int(row["marker"]) // 4)
        for row in rows[rows["kind"] == FLOW_OUT]
    }
    return {
        (int(row["core"]), int(row["end"])): sets[int(row["extra"])]
        for row in rows[rows["kind"] == FLOW_IN]
        if int(row["extra"]) in sets
    }


def _stall(cause: str) -> SpanKind:
    if cause in CROSS_STALLS:
        return SpanKind.WAIT
    return SpanKind.FETCH if cause in FETCH_STALLS else SpanKind.STALL


def _flows(
    rows: Rows, target: AicoreTarget, numbers: Mapping[tuple[int, int], int], start: float, first: int
) -> Iterator[SignalFlow]:
    us = 1 / target.device.clock_mhz
    for row in rows[(rows["kind"] == FLOW_OUT) | (rows["kind"] == FLOW_IN)]:
        begin, _, _, detail, core, track, kind, extra = row.tolist()
        number = numbers[core, track]
        yield SignalFlow(number, (start + begin) * us, f"cross flag {detail}", first + extra, kind == FLOW_IN)
