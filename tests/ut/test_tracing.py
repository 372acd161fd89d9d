"""Traces: the two forms that they are written in, and what the page leaves out."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import superkernel as sk
from superkernel.display.spans import SignalFlow, Span, SpanKind, Track
from superkernel.display.tracing import Trace
from superkernel.display.tracing_page import DETAIL, merged

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


class _Page(HTMLParser):
    """Open elements, rectangles and table rows of a page."""

    VOID = frozenset({"meta", "rect", "link", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.bars: list[dict[str, str | None]] = []
        self.links: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        row = dict(attrs)
        self.links += [str(row[name]) for name in ("src", "href") if name in row]
        if tag == "rect":
            self.bars.append(row)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


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


def test_the_page_is_whole_and_fetches_nothing() -> None:
    page = _Page()
    page.feed(_small().html())
    assert page.open == []
    assert page.links == []
    assert len(page.bars) == 5
    assert [(b["class"], b["x"], b["width"]) for b in page.bars][1:4] == [
        ("compute s0", "500", "1000"),
        ("imbalance", "1000", "500"),
        ("wait", "1500", "250"),
    ]
    tops = [int(str(b["y"])) for b in page.bars]
    assert tops[0] < tops[1] < tops[2] == tops[3] == tops[4]
    text = "".join(page.texts)
    assert "a <b> & c" in text  # escaped in the page, itself again when it is read
    assert "x<y" in text
    assert "4.00 us on 2 cores" in text
    assert "they still work" in text
    assert "waiting for instructions" not in text  # nobody does here


def test_what_no_screen_shows_is_drawn_as_one() -> None:
    step = 1000 / (4 * DETAIL)
    many = [Span(0, i * 2 * step, (i * 2 + 1) * step, f"c{i}", SpanKind.MOVEMENT, 0) for i in range(2 * DETAIL)]
    other = Span(0, 1500, 1600, "body", SpanKind.WORK, 0)
    apart = Span(0, 1900, 2000, "late", SpanKind.MOVEMENT, 0)
    bars = list(merged(_trace(*many, other, apart)))
    assert [(b.begin, b.name) for b in bars] == [(0, "c0"), (1_500_000, "body"), (1_900_000, "late")]
    assert bars[0].end == 999_969


def test_a_trace_without_spans() -> None:
    empty = _trace()
    assert empty.duration_us == 0
    assert json.loads(empty.chrome())["traceEvents"]
    page = _Page()
    page.feed(empty.html())
    assert page.bars == []


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
