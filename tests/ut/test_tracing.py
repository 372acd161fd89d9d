"""Traces: the two forms that they are written in. What the page does in a browser stands in test_page.py."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import superkernel as sk
from superkernel.display.spans import SignalFlow, Span, SpanKind, Track
from superkernel.display.tracing import Trace

TRACKS = (Track(0, 0, "control"), Track(0, 3, "m"), Track(2, 0, "control"))


def _trace(*spans: Span, flows: tuple[SignalFlow, ...] = ()) -> Trace:
    return Trace("a <b> & c", {0: "AIC 0", 2: "AIV 2"}, TRACKS, spans, flows, {0: "x<y", 1: "norm"})


def _small() -> Trace:
    return _trace(
        Span(0, 0.0, 2.0, "x<y body", SpanKind.WORK, 0),
        Span(1, 0.5, 1.5, "mmad", SpanKind.COMPUTE, 0, {"cycles": 1850}),
        Span(2, 1.0, 1.5, "cross_wait", SpanKind.IMBALANCE, 1),
        Span(2, 1.5, 1.75, "cross_wait", SpanKind.WAIT, 1),
        Span(2, 1.75, 4.0, "norm body", SpanKind.WORK, 1),
        flows=(SignalFlow(0, 1.5, "cross flag 3", 7, taken=False), SignalFlow(2, 1.75, "cross flag 3", 7, taken=True)),
    )


def test_json_has_names_spans_and_flows() -> None:
    events = json.loads(_small().chrome())["traceEvents"]
    names = {
        (e["pid"], e.get("tid")): e["args"]["name"] for e in events if e["name"] in ("process_name", "thread_name")
    }
    assert names == {(0, None): "AIC 0", (2, None): "AIV 2", (0, 0): "control", (0, 3): "m", (2, 0): "control"}
    spans = [e for e in events if e["ph"] == "X"]
    assert [(e["pid"], e["tid"], e["ts"], e["dur"], e["name"], e["cat"]) for e in spans][:2] == [
        (0, 0, 0.0, 2.0, "x<y body", "work"),
        (0, 3, 0.5, 1.0, "mmad", "compute"),
    ]
    assert spans[1]["args"] == {"sub_operator": 0, "cycles": 1850}
    flows = [(e["ph"], e["pid"], e["id"], e["name"]) for e in events if e.get("cat") == "sync"]
    assert flows == [("s", 0, 7, "cross flag 3"), ("f", 2, 7, "cross flag 3")]


def test_a_trace_without_spans() -> None:
    empty = _trace()
    assert empty.duration_us == 0
    assert json.loads(empty.chrome())["traceEvents"]
    assert "0 ns on 2 cores" in empty.html()


def test_saving(tmp_path: Path) -> None:
    trace = _small()
    trace.save(tmp_path / "t.JSON")
    assert (tmp_path / "t.JSON").read_text() == trace.chrome()
    trace.save(str(tmp_path / "t.html"))
    assert (tmp_path / "t.html").read_text() == trace.html()
    for name in ("t", "t.svg", "html", ""):
        with pytest.raises(sk.InputError):
            trace.save(tmp_path / name if name else "")
    with pytest.raises(sk.MachineError, match="cannot write the trace"):
        trace.save(tmp_path / "nowhere" / "t.html")
    assert re.fullmatch(r"<superkernel.Trace a <b> & c: 4.00 us, 5 spans on 3 tracks of 2 cores>", repr(trace))
