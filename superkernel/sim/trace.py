"""The event trace of a launch as JSON that Chrome's tracing page and Perfetto read.

Model: the device hands over records of 32 bytes (csrc/sim/device/trace.h), track by track. Each core becomes a process;
its control unit, its stalls and each engine become threads; a cross-core flag's set and the waits that took it become a
flow. Times are microseconds of the device's clock.

Invariant: the JSON is a function of the records and the target alone: the same launch gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

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
MARKER, STALL, COMMAND, WAIT, FLOW_OUT, FLOW_IN = range(1, 7)
_STALL_TRACK = 15  # beside the numbers of the engines' windows


def records(trace: bytes) -> np.ndarray[Any, np.dtype[np.void]]:
    """The records as a structured array."""
    return np.frombuffer(trace, RECORD)


def to_chrome(trace: bytes, target: AicoreTarget, names: dict[int, str] | None = None) -> str:
    """The trace as JSON. `names`: sub-operators by number."""
    us_per_cycle = 1 / target.device.clock_mhz
    rows = records(trace)
    events = [*_tracks(rows, target), *(_event(row, us_per_cycle, names or {}) for row in rows)]
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": events}, separators=(",", ":"))


def _track_name(number: int) -> str:
    if number == _STALL_TRACK:
        return "stalls"
    return Engine(number).title if number else "control"


def _track_of(row: np.void) -> int:
    return _STALL_TRACK if row["kind"] == STALL else int(row["track"])


def _tracks(rows: np.ndarray[Any, np.dtype[np.void]], target: AicoreTarget) -> Iterator[dict[str, Any]]:
    """Names of processes and threads, in order."""
    seen = sorted({(int(row["core"]), _track_of(row)) for row in rows})
    for core in sorted({core for core, _ in seen}):
        if core < target.cores:
            name = f"{'AIC' if target.is_cube(core) else 'AIV'} {core} (group {target.group_of(core)})"
        else:
            name = "SDMA" if core == target.cores + target.device.aicpu_harts else f"AICPU {core}"
        yield {"ph": "M", "name": "process_name", "pid": core, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": core, "args": {"sort_index": core}}
    for core, track in seen:
        yield {"ph": "M", "name": "thread_name", "pid": core, "tid": track, "args": {"name": _track_name(track)}}


def _event(row: np.void, us_per_cycle: float, names: dict[int, str]) -> dict[str, Any]:
    begin, end, marker, detail, core, _, kind, extra = row.tolist()
    sub_operator, phase = divmod(marker, 4)
    place = {"pid": core, "tid": _track_of(row), "ts": round(begin * us_per_cycle, 6)}
    if kind in (FLOW_OUT, FLOW_IN):
        shape = {"ph": "s"} if kind == FLOW_OUT else {"ph": "f", "bp": "e"}
        return {**shape, **place, "name": f"cross flag {detail}", "cat": "sync", "id": extra}
    args: dict[str, Any] = {"sub_operator": sub_operator, "cycles": end - begin}
    if kind == MARKER:
        name = f"{names.get(sub_operator, f'sub-operator {sub_operator}')} {PHASES[phase]}"
    elif kind == STALL:
        name = STALLS[detail]
    elif kind == COMMAND:
        name = by_opcode()[detail].name
        args["global_bytes"] = extra
    else:
        name = f"wait_flag {detail & 0xFF} from {Engine(detail >> 8).title}"
    return {"ph": "X", **place, "dur": round((end - begin) * us_per_cycle, 6), "name": name, "args": args}
