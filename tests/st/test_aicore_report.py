"""An accelerator's report has one account of its time: text, JSON form, page and differences say the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import models
import numpy as np
import pytest

import superkernel as sk
from superkernel.backends.aicore.report import SimReport
from superkernel.display.difference import difference
from superkernel.display.page import Page
from superkernel.display.spans import SpanKind


@cache
def with_a_fallback() -> tuple[SimReport, Page]:
    """A chain with a sub-operator in it that the accelerator has no kernel for."""
    rng = np.random.default_rng(0)
    b = sk.GraphBuilder("chain")
    w = b.constant(rng.standard_normal((64, 64), dtype=np.float32) / 8)
    h = b.reshape(b.gelu(b.input("x", (64, 64), "f32") @ w), (1, 64, 8, 8))
    h = b.reshape(b.lrn(h, size=5), (64, 64)) @ w
    b.output(b.softmax(h, axis=-1), name="y")
    return reported(b.graph())


@cache
def whole() -> tuple[SimReport, Page]:
    return reported(models.transformer(layers=1))


def reported(graph: sk.Graph) -> tuple[SimReport, Page]:
    report = sk.compile(graph, target="a3", options={"fallback": "allow"}).report()
    assert report.source is not None
    return report, report.source.page(report)


@pytest.mark.parametrize("made", [whole, with_a_fallback])
def test_parts_are_the_time_of_a_launch(made: Callable[[], tuple[SimReport, Page]]) -> None:
    report, page = made()
    assert sum(report.split.values()) == pytest.approx(report.time_us)
    assert min(report.split.values()) >= 0
    chosen = page.bars[-1]
    assert (chosen.name, chosen.us, dict(chosen.parts)) == ("as chosen", report.time_us, report.split)
    for name, us in report.split.items():
        if us > 0.001 * report.time_us:
            assert f"{name} {us / report.time_us:.1%}" in report.text()
    found = difference(report.to_json(), report.to_json()).whole.before
    assert found is not None
    assert found.us == pytest.approx(report.time_us)
    share = max(report.split.values()) / report.time_us
    assert f"limits this kernel: {share:.0%} of a launch." in page.headline


def test_what_would_help_is_a_part_of_the_same_time() -> None:
    for report, page in (whole(), with_a_fallback()):
        shares = {gain.what: gain.share for gain in page.gains}
        assert shares["launching for free"] == pytest.approx(report.split["launch"] / report.time_us)
        assert max(shares.values()) < 1
        device = 1 - (report.numpy_us + report.split["launch"]) / report.time_us
        halved = [share for what, share in shares.items() if what.endswith("twice as fast")]
        assert halved
        assert sum(halved) <= device / 2 + 1e-9
        assert not any("the launch" in what for what in shares)
        waited = report.split["pure sync"] + report.split["imbalance"]  # for cores that waited for signals themselves
        assert 0 < shares["every signal visible at once"] <= waited / report.time_us


def test_what_numpy_computes_is_told_everywhere() -> None:
    report, page = with_a_fallback()
    (row,) = (row for row in report.subops if row.name.startswith("lrn"))
    assert row.numpy_us == report.numpy_us > 0
    assert report.split["NumPy"] == report.numpy_us
    assert page.headline.startswith("What NumPy computes on the host limits this kernel")
    assert page.gains[0].what == "kernels for what NumPy computes"
    assert all(dict(bar.parts)["NumPy"] == report.numpy_us for bar in page.bars)
    kernels = next(table for table in page.tables if table.title == "Kernels")
    assert next(cells[2] for cells in kernels.rows if cells[1] == row.name) == pytest.approx(row.numpy_us)
    assert page.recording is not None
    spans = [span for span in page.recording.spans if span.subop == row.subop]
    assert sum(span.end_us - span.begin_us for span in spans) == pytest.approx(row.numpy_us)
    assert page.recording.duration_us > row.numpy_us
    assert {span.activity for span in spans} == {SpanKind.NUMPY}, "no colour that means something else"
    assert '["numpy","NumPy: computes on the host"]' in page.html()
    assert "NumPy computes" not in whole()[1].html()


def test_tables_have_the_time_of_numpy() -> None:
    """Shares are parts of a launch, as the line of its parts has them; cycles are the simulator's alone."""
    report, _ = with_a_fallback()
    (row,) = (row for row in report.subops if row.numpy_us)
    (line,) = (line for line in report.text().splitlines() if line.startswith(row.name) and " host " in line)
    assert line.split()[1:4] == ["host", f"{row.numpy_us:.2f}", "us"]
    shown = re.findall(r"<tr>(.*?)</tr>", report._repr_html_())
    cells = {row[1]: row for row in (re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", row) for row in shown)}
    share = cells["sub-operator"].index("of the run")
    assert cells[row.name][3:5] == ["", ""], "it has no cycles"
    for each in report.subops:
        us = each.numpy_us or (each.last - each.first) / report.clock_mhz
        assert cells[each.name][share] == f"{100 * us / report.time_us:.1f} %"
    assert cells[row.name][share] == f"{100 * report.split['NumPy'] / report.time_us:.1f} %"


def test_what_numpy_runs_has_one_name() -> None:
    report, page = with_a_fallback()
    (use,) = (use for use in report.kernels if use.role == "reference")
    assert use.kernel == use.row == "host.reference"
    assert "aicore.reference" not in report.text() + page.html()


def test_the_tables_of_a_page_agree() -> None:
    for report, page in (whole(), with_a_fallback()):
        kernels = next(table for table in page.tables if table.title == "Kernels")
        html = page.html()
        (body,) = re.findall(r'<table aria-label="Sub-operators in time">.*?<tbody>(.*?)</tbody>', html)
        times = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in re.findall(r"<tr.*?</tr>", body)]
        took = {cells[0]: (float(cells[5].replace(",", "")), int(cells[2])) for cells in times}
        assert all(float(cell) < report.time_us for cells in times for cell in cells[6:])
        for number, _, us, _, kind, cores, *_ in kernels.rows:
            assert took[str(number)][0] == pytest.approx(us, abs=6e-4)
            assert kind == "host" or took[str(number)][1] == cores, (number, report.subops)


def test_calls_of_numpy_are_timed_several_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the first, which finds cold caches, does not decide. What it computes is computed once more each time, from
    the same operands."""
    rng = np.random.default_rng(1)
    b = sk.GraphBuilder("lrn")
    b.output(b.lrn(b.input("x", (1, 16, 4, 4), "f32"), size=3), name="y")
    kernel = sk.compile(b.graph(), target="mini", options={"fallback": "allow"})
    moments = iter([0, 9_000_000, *(at for n in range(10, 20) for at in (n * 10**9, n * 10**9 + 1000 * n))])
    monkeypatch.setattr(kernel._executable, "clock_ns", lambda: next(moments))
    x = rng.standard_normal((1, 16, 4, 4), dtype=np.float32)
    assert kernel.report({"x": x}).numpy_us == 12.0
    monkeypatch.undo()
    np.testing.assert_array_equal(kernel(x), sk.compile(b.graph(), target="mini", options={"fallback": "allow"})(x))
