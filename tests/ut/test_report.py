"""Reports: pure cost and imbalance from time stamps, intervals of medians, and the forms they print in."""

from __future__ import annotations

import json

import numpy as np
import pytest

import superkernel as sk
from superkernel.backends.host.profile import read_stamps
from superkernel.backends.host.report import BoundaryReport, MedianInterval, Report, format_ns
from superkernel.scheduler.schedule import Task
from superkernel.sync.plan import Plan, Set, TaskStep, Wait


def two_core_plan() -> Plan:
    """Core 0: body, set. Core 1: body, wait for core 0, body."""
    tasks = (Task(0, 0, 0, 0, 1, ()), Task(1, 0, 1, 1, 2, ()), Task(2, 1, 1, 0, 1, ()))
    programs = ((TaskStep(0), Set(1)), (TaskStep(1), Wait(0, 1, 1, 0), TaskStep(2)))
    return Plan(tasks, programs, (1, 0), (), ())


def events(*rows: list[int]) -> np.ndarray:
    words = max(map(len, rows))
    return np.array([[*row, *[0] * (words - len(row))] for row in rows], np.uint64)


def test_waiting_for_a_slow_producer_is_imbalance() -> None:
    """Core 1 waits from 100 to 260; core 0's set stands at 240: 140 of imbalance, 20 of pure cost."""
    figures = read_stamps(two_core_plan(), events([1000, 1230, 1240], [1010, 1100, 1260, 1300]), 1.0)
    assert figures.imbalance.tolist() == [140]
    assert figures.pure.tolist() == [20]
    assert figures.sets.tolist() == [10, 0]
    assert figures.busy.tolist() == [230, 130]
    assert figures.total == 300


def test_a_wait_that_is_already_met_costs_only_itself() -> None:
    figures = read_stamps(two_core_plan(), events([0, 50, 55], [5, 100, 104, 200]), 1.0)
    assert figures.imbalance.tolist() == [0]
    assert figures.pure.tolist() == [4]


def test_imbalance_never_exceeds_the_wait() -> None:
    """Clocks of two cores may disagree by a few ticks: a set that seems later than the end of the wait."""
    figures = read_stamps(two_core_plan(), events([0, 50, 300], [5, 100, 200, 210]), 1.0)
    assert figures.imbalance.tolist() == [100]
    assert figures.pure.tolist() == [0]


def test_ticks_become_nanoseconds() -> None:
    figures = read_stamps(two_core_plan(), events([0, 100, 110], [0, 50, 120, 130]), 0.5)
    assert figures.total == 65
    assert figures.busy.tolist() == [50, 30]


def test_interval_of_a_median() -> None:
    """Ranks n/2 -+ 0.98 sqrt(n): for 0..99 about the 40th and the 60th."""
    timing = MedianInterval.of(np.arange(100))
    assert timing.median_ns == 49.5
    assert (timing.low_ns, timing.high_ns) == (40, 60)
    assert timing.samples == 100
    assert MedianInterval.of([7.0]) == MedianInterval(7.0, 7.0, 7.0, 1)


def test_interval_covers_the_true_median() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        timing = MedianInterval.of(rng.exponential(size=61))
        hits += timing.low_ns <= np.log(2) <= timing.high_ns
    assert hits >= 0.93 * 400


@pytest.mark.parametrize(
    ("ns", "text"), [(0.4, "0 ns"), (999, "999 ns"), (1500, "1.50 us"), (2.5e6, "2.50 ms"), (3e9, "3.00 s")]
)
def test_units(ns: float, text: str) -> None:
    assert format_ns(ns) == text


def make_report(boundaries: int) -> Report:
    rows = tuple(BoundaryReport(i, f"node{i}", "full", "because", 2, 10.0 * i, 1.0) for i in range(boundaries))
    return Report(
        "g", "host avx512", 2, 9, boundaries, 3, 4, 2, boundaries - 1, 1000.0, (900.0, 800.0), 50.0, 20.0, rows, (),
        MedianInterval(10.0, 9.0, 11.0, 5), MedianInterval(20.0, 19.0, 21.0, 5),
    )  # fmt: skip


def test_text_shows_the_costliest_boundaries() -> None:
    text = make_report(30).text(boundaries_max=3)
    assert "2.00x" in text
    assert "29 node29" in text
    assert "node5 " not in text
    assert "3 costliest of 30" in text
    assert "pure sync 50 ns (5.0 %)" in text


def test_json_has_everything() -> None:
    data = json.loads(make_report(30).json())
    assert data["schema"] == "superkernel.report/1"
    assert len(data["boundaries"]) == 30
    assert data["speedup"] == 2.0
    assert data["boundaries"][3] == {
        "subop": 3, "name": "node3", "form": "full", "reason": "because", "arrivals": 2, "pure_ns": 30.0,
        "imbalance_ns": 1.0,
    }  # fmt: skip


def test_work_names_what_took_longest() -> None:
    b = sk.GraphBuilder("g")
    x = b.input("x", (8, 512), "f32")
    w = b.constant(np.ones((512, 1024), np.float32))
    b.output(b.softmax(b.matmul(x, w)), "y")
    report = sk.compile(b.graph(), threads=1).report(inputs={"x": np.ones((8, 512), np.float32)}, rounds=0)
    product, rows = report.work
    assert product.kernel.startswith("host.matmul")
    assert product.flops == 2 * 8 * 512 * 1024
    assert product.operand_bytes == 4 * (8 * 512 + 512 * 1024 + 8 * 1024)
    assert (product.cores, rows.cores) == (1, 1)
    assert product.busy_ns > rows.busy_ns > 0
    assert product.busy_ns + rows.busy_ns <= 1.05 * report.run_ns
    assert report.text().index(product.name) < report.text().index(f"{rows.subop} {rows.name}")
    assert "(the 1 longest of 2)" in report.text(boundaries_max=1)
