"""Timelines of whole kernels: what they say agrees with what the plan and the reports say."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest

import superkernel as sk
from superkernel.cli import main
from superkernel.display.spans import SpanKind
from superkernel.frontends.json_form import save_json
from superkernel.sync.plan import TaskStep

WAITS = (SpanKind.WAIT, SpanKind.IMBALANCE)


def _lengths(trace: sk.Trace, *activities: SpanKind) -> float:
    return sum(s.end_us - s.begin_us for s in trace.spans if s.activity in activities)


def _no_overlaps(trace: sk.Trace) -> None:
    by_track: dict[int, list[Any]] = {}
    for span in trace.spans:
        assert 0 <= span.begin_us <= span.end_us
        by_track.setdefault(span.track, []).append(span)
    for spans in by_track.values():
        spans.sort(key=lambda s: (s.begin_us, s.end_us))
        assert all(a.end_us <= b.begin_us + 1e-6 for a, b in pairwise(spans))


def _signals_precede_waits(trace: sk.Trace) -> bool:
    """Two cores' clocks, read one behind the other."""
    starts = {f.number: f.at_us for f in trace.flows if not f.taken}
    return all(starts[f.number] <= f.at_us + 0.2 for f in trace.flows if f.taken)


def _accounts_for(trace: sk.Trace, report: sk.SimReport) -> None:
    """The trace lasts as long as the report says, from the first thing in it on."""
    assert trace.duration_us == pytest.approx(report.cycles / report.clock_mhz)
    assert min(span.begin_us for span in trace.spans) == 0
    assert all(0 <= flow.at_us <= trace.duration_us for flow in trace.flows)


def test_a_host_kernel(tmp_path: Path) -> None:
    kernel = sk.compile(models.transformer(layers=1), threads=2)
    trace = kernel.trace()
    _no_overlaps(trace)
    plan = kernel._compiled.plan
    assert set(trace.cores) == set(range(kernel.threads))
    bodies = Counter(s.subop for s in trace.spans if s.activity is SpanKind.WORK)
    planned = Counter(plan.tasks[s.task].subop for p in plan.programs for s in p if isinstance(s, TaskStep))
    assert bodies == planned
    assert sum(s.activity is SpanKind.SIGNAL for s in trace.spans) == sum(plan.sets)
    assert sum(s.activity is SpanKind.WAIT for s in trace.spans) == plan.waits
    assert sum(f.taken for f in trace.flows) == plan.waits
    # A core that is interrupted between its signal and its look at the clock says a later time: one run is without.
    assert any(_signals_precede_waits(t) for t in (trace, kernel.trace(), kernel.trace()))
    trace.save(tmp_path / "t.html")
    assert (tmp_path / "t.html").stat().st_size < 1 << 20


def test_states_stay_as_they_are() -> None:
    kernel = sk.compile(models.decode_step(layers=1), threads=2)
    before = {name: array.copy() for name, array in kernel.states.items()}
    kernel.trace()
    assert all(np.array_equal(kernel.states[name], array) for name, array in before.items())


@pytest.mark.parametrize("make", [models.transformer, models.decode_step])
def test_an_accelerator_kernel(make: Any) -> None:
    kernel = sk.compile(make(layers=1), target="mini")
    trace = kernel.trace()
    _no_overlaps(trace)
    report = kernel.report(rounds=0)
    assert isinstance(report, sk.SimReport)
    assert trace.duration_us >= report.time_us * (1 - 1e-12)  # the end of a span is a sum, rounded
    assert {s.subop for s in trace.spans if s.subop in trace.subops} == {row.subop for row in report.subops}
    for engine in ("m", "v", "mte2"):
        lanes = [i for i, t in enumerate(trace.tracks) if t.name == engine]
        drawn = sum(s.details["cycles"] for s in trace.spans if s.track in lanes and s.activity is not SpanKind.FLAG)
        assert drawn >= 0.99 * sum(row.busy.get(engine, 0) for row in report.cores) > 0
    stood = sum(row.stalls.get("cross_wait", 0) + row.stalls.get("wait_memory", 0) for row in report.cores)
    assert _lengths(trace, *WAITS) * report.clock_mhz == pytest.approx(stood, rel=0.05)
    assert _lengths(trace, SpanKind.IMBALANCE) > 0
    assert trace.chrome() == kernel.trace().chrome()  # the simulator gives the same again
    assert {f.number for f in trace.flows if f.taken} <= {f.number for f in trace.flows if not f.taken}


def test_time_is_of_the_sub_operator_that_it_was_spent_for() -> None:
    """Bodies lie where the report says; what stands ahead of the first entry is nobody's, nor are other harts' rows."""
    kernel = sk.compile(models.decode_step(layers=1), target="mini")
    trace, report = kernel.trace(), kernel.report(rounds=0)
    assert isinstance(report, sk.SimReport)
    us = 1 / report.clock_mhz
    _accounts_for(trace, report)
    bodies = [s for s in trace.spans if s.activity is SpanKind.WORK]
    control = {row.subop: [s for s in bodies if s.subop == row.subop] for row in report.subops}
    for row in report.subops:
        begin, end = row.first * us - 1e-9, row.last * us + 1e-9
        for span in control[row.subop]:
            assert begin <= span.begin_us <= span.end_us <= end, (row, span, begin, end)
    starts = [s for s in trace.spans if s.name == "start"]
    assert starts
    assert all(s.subop is None for s in starts)
    owners = {trace.cores[trace.tracks[s.track].core].split()[0] for s in trace.spans if s.subop is not None}
    assert owners <= {"AIC", "AIV", "AICPU"}
    at_entry = {(s.track, s.end_us): s.subop for s in trace.spans if s.activity is SpanKind.WAIT}
    lanes = {trace.tracks[i].core: i for i in {track for track, _ in at_entry}}
    for core, lane in lanes.items():
        control_lane = next(i for i, t in enumerate(trace.tracks) if t.core == core and t.name == "control")
        entries = sorted((s.begin_us, s.subop) for s in trace.spans if s.track == control_lane and "entry" in s.name)
        behinds = [s for s in trace.spans if s.track == control_lane and "behind" in s.name]
        for (track, end), subop in at_entry.items():
            if track == lane and any(b.begin_us <= end <= b.end_us for b in behinds):
                after = [number for at, number in entries if at >= end - 1e-9]
                assert not after or subop == after[0]


def test_launches_stand_one_behind_the_other() -> None:
    kernel = sk.compile(models.transformer(layers=1), target="mini", options={"launches": "single"})
    trace = kernel.trace()
    _no_overlaps(trace)
    report = kernel.report(rounds=0)
    assert isinstance(report, sk.SimReport)
    assert report.launches > 1
    _accounts_for(trace, report)
    assert trace.duration_us >= report.cycles / report.clock_mhz


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_json(models.transformer(layers=1), Path("m.json"))
    assert main(["trace", "m.json", "--target", "mini", "--out", "run.json", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["file"] == "run.json"
    events = json.loads(Path("run.json").read_text())["traceEvents"]
    assert sum(e["ph"] == "X" for e in events) == figures["spans"]
    assert main(["trace", "m.json", "--threads", "1"]) == 0
    assert "trace.html written" in capsys.readouterr().out
    assert Path("trace.html").read_text().startswith("<!doctype html>")
    assert main(["trace", "m.json", "--out", "run.txt"]) == 2
    assert ".html is a page" in capsys.readouterr().err
