"""One run as a timeline: what every core, and every engine of it, did when.

`chrome` is the JSON that Perfetto and Chrome's tracing page read; `html` a page for a browser, with nothing to install;
`save` writes either, as the name of the file says. Both are functions of the trace alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

from superkernel.core.counted import counted
from superkernel.core.errors import InputError
from superkernel.core.files import file_name, replacing
from superkernel.display import notebook
from superkernel.display.page import Page
from superkernel.display.spans import Recording, SignalFlow, Span, SpanKind, Track
from superkernel.display.units import format_us

FORMS = (".html", ".json")
_CORES = 1 << 20  # more than any run has


def form_of(path: str | PathLike[str]) -> str:
    """The form that a file's name asks for, one of `FORMS`. Raises InputError."""
    form = file_name(path).suffix.lower()
    if form not in FORMS:
        hint = ".html is a page for a browser, .json is for Perfetto"
        raise InputError("no such form of a trace", expected=" or ".join(FORMS), found=repr(str(path)), hint=hint)
    return form


def save_page(path: str | PathLike[str], page: str) -> None:
    """Write a page, atomically. Raises InputError on what is no file name, MachineError where it cannot be written."""
    with replacing(file_name(path), "the page") as file:
        file.write(page.encode())


def side_by_side(traces: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Recording:
    """Traces in Chrome's format as one recording: the cores of the first, then those of the next, on one axis of time.
    Raises KeyError, TypeError, ValueError where one is not of the form that `Trace.chrome` writes."""
    cores: dict[int, str] = {}
    tracks: list[Track] = []
    spans: list[Span] = []
    flows: list[SignalFlow] = []
    for run, (trace, name) in enumerate(zip(traces, names, strict=True)):
        events = trace["traceEvents"]
        drawn = [event for event in events if event["ph"] in ("X", "s", "f")]
        labels = {(e["name"], e["pid"], e.get("tid")): e["args"].get("name", "") for e in events if e["ph"] == "M"}
        number: dict[tuple[int, int], int] = {}
        for core, lane in sorted({(event["pid"], event["tid"]) for event in drawn}):
            number[core, lane] = len(tracks)
            tracks.append(Track(run * _CORES + core, lane, str(labels.get(("thread_name", core, lane), lane))))
            cores[run * _CORES + core] = f"{name}: {labels.get(('process_name', core, None), core)}"
        for event in drawn:
            track, begin, details = number[event["pid"], event["tid"]], event["ts"], event.get("args", {})
            if event["ph"] == "X":
                kind, subop = SpanKind(event["cat"]), details.get("sub_operator")
                spans.append(Span(track, begin, begin + event["dur"], event["name"], kind, subop, details))
            else:
                flow = run + len(traces) * event["id"]
                flows.append(SignalFlow(track, begin, event["name"], flow, event["ph"] == "f"))
    return Recording(" and ".join(names), cores, tuple(tracks), tuple(spans), tuple(flows))


class Trace(Recording):
    """A recording that can be written. See the module docstring."""

    def chrome(self) -> str:
        """Chrome's trace event format: cores are processes, tracks threads. `otherData`: what was run, and whether its
        times were measured or simulated."""
        events = [*self._names(), *map(self._complete, self.spans), *map(self._step, self.flows)]
        about = {"title": self.title, "times": "measured" if self.measured else "simulated"}
        return json.dumps({"displayTimeUnit": "ns", "otherData": about, "traceEvents": events}, separators=(",", ":"))

    def html(self) -> str:
        """A page of its own: rows of cores and engines to zoom into, and what the time went into."""
        return Page(self).html()

    def save(self, path: str | PathLike[str]) -> None:
        """Write the page (.html) or the JSON (.json), atomically. Raises InputError on another suffix, MachineError
        where the file cannot be written."""
        writer = {".html": self.html, ".json": self.chrome}[form_of(path)]
        with replacing(file_name(path), "the trace") as file:
            file.write(writer().encode())

    def __str__(self) -> str:
        counts = f"{counted(len(self.spans), 'span')} on {counted(len(self.tracks), 'track')}"
        counts += f" of {counted(len(self.cores), 'core')}"
        return "; ".join([f"{self.title}: {format_us(self.duration_us)}, {counts}", *self.notes])

    def _repr_html_(self) -> str:
        """For notebooks: the page, in a frame."""
        return notebook.framed(self.html())

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

    def _step(self, flow: SignalFlow) -> dict[str, Any]:
        shape = {"ph": "f", "bp": "e"} if flow.taken else {"ph": "s"}
        return {**shape, **self._place(flow.track, flow.at_us), "name": flow.name, "cat": "sync", "id": flow.number}
