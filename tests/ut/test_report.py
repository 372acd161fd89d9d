"""Reports: pure cost and imbalance from time stamps, intervals of medians, and the forms they print in."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path

import models
import numpy as np
import pytest
from seeds import seeds

import superkernel as sk
from superkernel.backends.host.compiled import HostCompiled
from superkernel.backends.host.conditions import Conditions, Watch, frequencies, handover_between, kept_launches
from superkernel.backends.host.estimates import MedianInterval, RatioInterval, middle_half, middle_means
from superkernel.backends.host.profile import Rounds, faster, report_of, run_rounds
from superkernel.backends.host.report import (
    BoundaryReport,
    HardwareCounts,
    Report,
    TimePart,
    Variant,
    Work,
)
from superkernel.backends.host.stamps import read_single_stamps, read_stamps
from superkernel.backends.host.variants import with_other_sync
from superkernel.display.page import Gain
from superkernel.display.units import format_ns
from superkernel.scheduler.schedule import Task
from superkernel.sync.plan import Plan, Set, TaskStep, Wait

OTHER_PARTS = ("pure sync", "imbalance", "end", "launch", "rest")


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


def make_report(boundaries: int, conditions: Conditions | None = None) -> Report:
    rows = tuple(BoundaryReport(i, f"node{i}", "full", "because", 2, 10.0 * i, 1.0) for i in range(boundaries))
    return Report(
        "g", "host avx512", 2, 9, boundaries, 3, 4, 2, boundaries - 1, 1000.0, (900.0, 800.0), 50.0, 20.0, rows, (),
        MedianInterval(10.0, 9.0, 11.0, 9), MedianInterval(20.0, 19.0, 21.0, 9), RatioInterval(2.0, 1.9, 2.1, 9),
        profiled_ns=1000.0,
        parts=(TimePart("work", 950.0, 0.95, 940.0, 960.0), TimePart("pure sync", 50.0, 0.05, 40.0, 60.0)),
        conditions=conditions,
    )  # fmt: skip


def other_variant() -> Variant:
    return Variant("full barriers", MedianInterval(15.0, 14.0, 16.0, 9), 1, 1, (), RatioInterval(1.5, 1.4, 1.6, 9))


def test_text_shows_the_costliest_boundaries() -> None:
    text = make_report(30).text(boundaries_max=3)
    assert "2.00x" in text
    assert "29 node29" in text
    assert "node5 " not in text
    assert "3 costliest of 30" in text
    assert "pure sync 50 ns (5.0 %)" in text


def test_json_has_everything() -> None:
    data = json.loads(make_report(30).json())
    assert data["schema"] == "superkernel.report/2"
    assert len(data["boundaries"]) == 30
    assert data["speedup"] == 2.0
    assert data["boundaries"][3] == {
        "subop": 3, "name": "node3", "form": "full", "reason": "because", "arrivals": 2, "pure_ns": 30.0,
        "imbalance_ns": 1.0, "why": "",
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
    assert product.busy_ns + rows.busy_ns <= report.profiled_ns
    assert report.text().index(product.name) < report.text().index(f"{rows.subop} {rows.name}")
    assert "(the 1 longest of 2)" in report.text(boundaries_max=1)


STAT = "cpu0 {user} 0 0 {idle} 0 0 0 {steal} 0 0\n"


def watched(monkeypatch: pytest.MonkeyPatch, own_seconds: float, **spent: int) -> Conditions:
    """What a watch says of 100 launches, 5 of them disturbed, over the ticks spent on the only CPU."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    texts = [STAT.format(user=1000, idle=50, steal=7)]
    texts.append(STAT.format(user=1000 + spent["user"], idle=50 + spent["idle"], steal=7 + spent["steal"]))
    seconds = [10.0, 10.0 + own_seconds]
    watch = Watch(lambda: texts.pop(0), lambda: seconds.pop(0))
    return watch.conditions(np.arange(100) // 95, 1)


def test_what_others_take_of_the_cpus_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = watched(monkeypatch, own_seconds=0.5, user=80, idle=10, steal=10)
    assert (found.launches, found.left_out, found.trusted) == (100, 5, True)
    assert found.others_share == pytest.approx(0.3)
    assert found.stolen_share == pytest.approx(0.1)
    said = "; ".join(found.sentences())
    assert "5 of 100 launches left out" in said
    assert "other processes took 30% of the CPUs" in said
    assert "the hypervisor took 10% of the CPUs" in said


def test_a_quiet_machine_is_not_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    found = watched(monkeypatch, own_seconds=0.8, user=80, idle=20, steal=0)
    assert (found.others_share, found.stolen_share) == (0.0, 0.0)
    assert list(Conditions(10, 0, 0, 0.0, 0.0).sentences()) == []


def test_a_frequency_that_moved_is_said() -> None:
    """A tenth of the time at 2.8 GHz is; one launch that an interrupt met, and steps of a percent, are not."""
    watch, launches = Watch(lambda: "", lambda: 0.0, lambda cpus: None), np.zeros(100, np.int64)
    moved = watch.conditions(launches, 1, [2.8] * 10 + [3.5] * 90)
    assert moved.ghz_low == pytest.approx(2.8)
    assert moved.ghz_high == pytest.approx(3.5)
    assert list(moved.sentences()) == ["the CPUs ran at 2.80 to 3.50 GHz: times differ by that too"]
    assert list(watch.conditions(launches, 1, [0.5] + [3.49] * 40 + [3.5] * 59).sentences()) == []
    unknown = watch.conditions(launches, 1)
    assert (unknown.ghz_low, unknown.ghz_high) == (None, None)


def test_cpus_that_lie_elsewhere_are_said() -> None:
    """Than when the machine was measured; of one core nobody hands anything over."""
    watch, launches = Watch(lambda: "", lambda: 0.0, lambda cpus: 156.0), np.zeros(100, np.int64)
    (said,) = watch.conditions(launches, 2, planned_handover_ns=50.0).sentences()
    assert "a flag takes 156 ns from CPU to CPU, and the plan is for 50 ns" in said
    assert list(watch.conditions(launches, 2, planned_handover_ns=150.0).sentences()) == []
    alone = watch.conditions(launches, 1, planned_handover_ns=50.0)
    assert (alone.handover_ns, list(alone.sentences())) == (None, [])
    assert handover_between([0]) is None
    cpus = sk._core.allowed_cpus()
    assert len(cpus) < 2 or 0 < (handover_between(cpus) or 0.0) < 1e6


def test_frequencies_are_those_of_chains_of_additions() -> None:
    ticks = np.array([[sk._core.CHAIN_CYCLES, 2 * sk._core.CHAIN_CYCLES], [0, sk._core.CHAIN_CYCLES]])
    assert frequencies(ticks, 0.5).tolist() == [2.0, 1.0, 2.0]
    assert frequencies(np.zeros((3, 2), np.int64), 0.5).size == 0


def test_shares_of_too_short_a_time_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    found = watched(monkeypatch, own_seconds=0.0, user=5, idle=0, steal=0)
    assert (found.others_share, found.stolen_share) == (None, None)


@pytest.mark.parametrize(
    ("quiet", "disturbed", "kept", "trusted"),
    [(8, 2, 8, True), (20, 100, 20, True), (3, 7, 10, False), (0, 1, 1, False)],
)
def test_disturbed_launches_are_left_out_while_enough_remain(
    quiet: int, disturbed: int, kept: int, trusted: bool
) -> None:
    rows, trust = kept_launches(np.array([0] * quiet + [1] * disturbed))
    assert (int(rows.sum()), trust) == (kept, trusted)


def test_what_a_disturbed_report_withholds_no_form_for_readers_tells() -> None:
    """Times of whole launches it tells; the JSON form keeps the rest beside `trusted`."""
    work = tuple(Work(i, f"s{i}", "k", 1, 137.0 + i, 1e3, 64) for i in range(2))
    trusted = dataclasses.replace(make_report(3), work=work, variants=(other_variant(),))
    busy = dataclasses.replace(trusted, conditions=Conditions(10, 8, 9, trusted=False))
    for told, text in ((trusted.text(), busy.text()), (trusted._repr_html_(), busy._repr_html_())):
        for time in ("137 ns", "13.7", "2.00x", "1.50x", "pure", "imbalance", "of launch", "GFLOP/s"):
            assert time in told, time
            assert time not in text, time
        assert "threads lost their CPU in 8 of 10 launches" in text
        assert "fused 10 ns [9 ns, 11 ns], one by one 20 ns [19 ns, 21 ns]: the machine was too busy to tell" in text
        assert "node2" in text
    data = busy.to_json()
    assert (data["speedup"], data["ratio"]["median"], data["conditions"]["trusted"]) == (None, 2.0, False)
    assert data["work"][0]["busy_ns"] == 137.0


@pytest.mark.parametrize(
    ("over", "under", "said", "told"),
    [
        ([20.0] * 9, [10.0] * 9, "2.00x [2.00x, 2.00x]", True),
        ([20.0] * 5, [10.0] * 5, "too few launches to tell, 2.00x", False),
        ([9.9, 10.1] * 20, [10.0] * 40, "no difference beyond noise, 1.00x [0.99x, 1.01x]", False),
        ([5.0, 150.0] * 20, [10.0] * 40, "too noisy to tell, 7.75x [0.50x, 15.00x]", False),
        ([10.01, 10.09] * 20, [10.0] * 40, "no difference beyond noise, 1.00x [1.00x, 1.01x]", False),
        ([9.91, 9.99] * 20, [10.0] * 40, "no difference beyond noise, 0.99x [0.99x, 1.00x]", False),
    ],
)
def test_a_ratio_is_told_where_it_can_be(over: list[float], under: list[float], said: str, told: bool) -> None:
    ratio = RatioInterval.of(over, under)
    assert (str(ratio), ratio.told) == (said, told)
    report = dataclasses.replace(make_report(2), ratio=ratio)
    assert f": {said} (medians" in report.text()
    assert report.speedup == (2.0 if told else None)


def test_medians_differ_where_their_intervals_are_disjoint_and_mean_something() -> None:
    low, high = MedianInterval(1.0, 0.9, 1.1, 9), MedianInterval(2.0, 1.9, 2.1, 9)
    assert low.apart(high)
    assert high.apart(low)
    assert not low.apart(dataclasses.replace(high, low_ns=1.05))
    assert not low.apart(dataclasses.replace(high, samples=5))


def test_a_ratio_is_that_of_launches_beside_one_another() -> None:
    """On a machine that becomes ten times slower and fast again, medians alone tell nothing, rounds do."""
    drift = np.repeat([1.0, 10.0, 1.0], [15, 30, 15])
    one, other = MedianInterval.of(200 * drift), MedianInterval.of(100 * drift)
    ratio = RatioInterval.of(200 * drift, 100 * drift)
    assert one.low_ns <= other.high_ns, "the intervals overlap"
    assert ratio.told
    assert (ratio.low, ratio.median, ratio.high) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize("seed", seeds(20))
def test_every_estimate_lies_within_its_interval_and_parts_add_up(seed: int) -> None:
    """Of skewed figures with rare spikes, whose medians and middle means are far apart."""
    rng = np.random.default_rng(seed)
    shape = int(rng.integers(1, 60)), int(rng.integers(1, 8))
    values = rng.lognormal(0, rng.uniform(0, 2), shape) * rng.choice([0.0, 1.0, 50.0], shape)
    totals = values.sum(axis=1)
    means, low, high = middle_means(values, totals)
    assert np.all(low <= means)
    assert np.all(means <= high)
    assert means == pytest.approx(values[middle_half(totals)].mean(axis=0))
    assert means.sum() == pytest.approx(middle_means(totals[:, None], totals)[0][0])
    for samples in (values[:, 0], totals):
        one = MedianInterval.of(samples)
        assert one.low_ns <= one.median_ns <= one.high_ns


def test_the_interval_of_a_middle_mean_covers_what_many_launches_give() -> None:
    """Both parts of a launch, one skewed, against the middle mean of a hundred thousand launches."""
    rng = np.random.default_rng(5)

    def launches(count: int) -> np.ndarray:
        return np.stack([rng.exponential(1.0, count), rng.normal(5.0, 0.5, count)], axis=1)

    many = launches(100_000)
    true = many[middle_half(many.sum(axis=1))].mean(axis=0)
    hits = np.zeros(2)
    for _ in range(200):
        values = launches(60)
        _, low, high = middle_means(values, values.sum(axis=1))
        hits += (low <= true) & (true <= high)
    assert hits.min() >= 0.89 * 200
    assert hits.max() < 200, "an interval that is never missed is too wide"


def test_counters_that_cannot_be_had_are_absent() -> None:
    assert HardwareCounts.of(np.full((2, 3), -1.0)) is None
    found = HardwareCounts.of(np.array([[1000.0, 2000.0, -1.0], [500.0, 700.0, -1.0]]))
    assert found == HardwareCounts(1500.0, 2700.0, None)
    assert str(found) == "1,500 cycles, 2,700 instructions"


def test_parts_of_a_launch_are_all_of_it() -> None:
    """Stamps of six launches on two cores, some disturbed: the report goes by the rest, and its parts sum to 100 %."""
    b = sk.GraphBuilder("g")
    x = b.input("x", (8, 512), "f32")
    y = b.matmul(x, b.constant(np.ones((512, 1024), np.float32)))
    b.output(b.matmul(y, b.constant(np.ones((1024, 64), np.float32))), "y")
    compiled = sk.compile(b.graph(), threads=2, options={"cost_placement": False, "sync": "full"})._compiled
    plan, rng = compiled.plan, np.random.default_rng(3)
    words = 1 + max(map(len, plan.programs))
    assert plan.waits > 0
    steps = rng.integers(1, 50, (6, plan.cores, words)).cumsum(axis=2).astype(np.uint64) + np.uint64(1000)
    edges = np.array([[900, 5000]] * 6, np.uint64)
    edges[4] = (0, 90_000)
    preemptions = np.zeros((6, 4), np.int64)
    preemptions[4, 1] = 3
    plain = np.array([4000, 4010, 4020, 4030, 99_999, 4040])
    rounds = Rounds(plain, plain + 7, plain * 2, edges, steps, preemptions, Conditions(6, 1, 3))
    report = report_of(compiled, rounds, 1.0)
    assert report.run_ns == 4020
    assert report.fused == report.run
    assert report.stamps == MedianInterval(7.0, 7.0, 7.0, 5)
    assert report.profiled_ns == 4100
    assert [part.name for part in report.parts] == ["work", "movement", *OTHER_PARTS]
    assert sum(part.ns for part in report.parts[:-1]) == pytest.approx(report.profiled_ns)
    assert sum(part.ns for part in report.parts) == pytest.approx(report.run_ns)
    assert sum(part.share for part in report.parts) == pytest.approx(1.0)
    assert report.parts[-1].ns == pytest.approx(4020 - 4100), "what the stamps cost is taken off"
    assert "its parts are of launches with time stamps, 80 ns longer" in report.html()
    assert sum(report.busy_ns) / plan.cores == pytest.approx(report.parts[0].ns + report.parts[1].ns)
    assert report.pure_ns == pytest.approx(report.parts[2].ns)
    assert report.parts[1].ns == 0, "nothing is only moved"
    for part in report.parts:
        assert part.low_ns <= part.ns <= part.high_ns, part.name
    for work in report.work:
        assert work.low_ns <= work.busy_ns <= work.high_ns, work.name


def test_one_by_one_on_fewer_cores_than_the_kernel_has_leaves_no_rest() -> None:
    """Two small products, for which one of two cores is enough: parts are means over the cores that are there."""
    report = sk.compile(models.mlp((32, 32, 16), batch=4), threads=2).report(rounds=8)
    assert (report.cores, len(report.busy_ns)) == (2, 1)
    assert "1 of 2 cores works: by estimate more would take longer" in report.text()
    assert "1 of 2 cores works" in report.html()
    if report.trusted:
        parts = {part.name: part for part in report.one_by_one_parts}
        assert report.one_by_one is not None
        assert sum(part.ns for part in parts.values()) == pytest.approx(report.one_by_one.median_ns)
        assert sum(part.share for part in parts.values()) == pytest.approx(1.0)


@pytest.mark.serial
def test_the_clock_is_in_no_launch() -> None:
    """A launch of some ten ns: its time is between the same two readings of the counter that its stamps lie in."""
    b = sk.GraphBuilder("g")
    b.output(b.relu(b.input("x", (16,), "f32")), "y")
    compiled = sk.compile(b.graph(), threads=1)._compiled
    assert isinstance(compiled, HostCompiled)
    io = [np.zeros(16, np.float32), np.zeros(16, np.float32)]
    rounds, _ = run_rounds(compiled, io, 50, single=True)
    spans = (rounds.edges[:, 1] - rounds.edges[:, 0]) * (1e9 / sk._core.tsc_hz())
    assert rounds.profiled == pytest.approx(spans, abs=0.6)
    report = report_of(compiled, rounds, 1e9 / sk._core.tsc_hz())
    if report.parts:
        assert sum(part.ns for part in report.parts) == pytest.approx(report.run_ns)
    for variant_parts, run in ((report.one_by_one_parts, report.one_by_one), (report.parts, report.run)):
        assert run is not None
        assert not variant_parts or sum(p.ns for p in variant_parts) == pytest.approx(run.median_ns)


def test_one_sample_has_no_interval() -> None:
    assert str(MedianInterval.of([1860.0])) == "1.86 us"
    assert str(MedianInterval.of([1000.0] * 6)) == "1.00 us [1.00 us, 1.00 us]"
    kernel = sk.compile(models.mlp((8, 8)), threads=1)
    said = kernel.report(rounds=1).text()
    assert "95 %" not in said
    assert "for the stamps" not in said, "one difference is no cost"
    assert re.search(r"a launch takes [\d.]+ \w+$", said, re.MULTILINE)
    assert "95 % intervals, " in make_report(2).text()


def test_a_sub_operator_s_share_is_that_of_the_launch() -> None:
    """Two sub-operators on different cores at a time: their times sum to more than the launch."""
    work = tuple(Work(i, f"s{i}", "k", 1, 750.0, 1e3, 64) for i in range(2))
    text = dataclasses.replace(make_report(2), work=work).text()
    assert "of launch" in text
    assert text.count("75.0 %") == 2


def test_what_only_moves_data_is_told_apart() -> None:
    """The body of sub-operator 1 computes nothing."""
    figures = read_stamps(two_core_plan(), events([0, 50, 55], [5, 100, 104, 200]), 1.0, moving={1})
    assert figures.movement.tolist() == [0, 96]
    assert figures.busy.tolist() == [50, 191]
    b = sk.GraphBuilder("g")
    x = b.input("x", (64, 96), "f32")
    b.output(b.matmul(b.transpose(b.softmax(x), perm=(1, 0)), b.constant(np.ones((64, 8), np.float32))), "y")
    b.output(b.concat(x, b.input("z", (64, 96), "f32"), axis=1), "both")
    report = sk.compile(b.graph(), threads=1).report(rounds=0)
    moved = [work for work in report.work if not work.flops]
    assert len(report.work) > len(moved) > 0
    if report.parts:
        parts = {part.name: part.ns for part in report.parts}
        assert parts["movement"] == pytest.approx(sum(work.busy_ns for work in moved))
        assert parts["work"] + parts["movement"] == pytest.approx(report.busy_ns[0])


def test_one_by_one_is_work_waiting_for_the_last_core_and_launching() -> None:
    """Two cores, three sub-operators, the second of which computes nothing and has no share on core 1."""
    stamps = np.array([[[110, 150], [170, 190], [205, 240]], [[112, 130], [172, 172], [210, 250]]], np.uint64)
    figures = read_single_stamps(stamps, (100, 260), 0.5, moving={1})
    assert figures.total == 80
    assert figures.busy.tolist() == [47.5, 29]
    assert figures.movement.tolist() == [10, 0]
    assert figures.imbalance.tolist() == [0, 10 + 9]
    assert figures.end.tolist() == [5, 0]
    assert figures.launch.tolist() == [5 + 10 + 7.5 + 5, 6 + 11 + 10 + 5]
    assert figures.subop == {0: 20, 1: 10, 2: 20}
    whole = figures.busy + figures.imbalance + figures.end + figures.launch
    assert whole.tolist() == [80, 80]
    assert (figures.pure.sum(), figures.sets.sum()) == (0, 0)


def test_one_by_one_has_parts_beside_those_of_the_kernel() -> None:
    kernel = sk.compile(models.transformer(layers=1), threads=2)
    report = kernel.report(rounds=30)
    assert not kernel.report(rounds=0).one_by_one_parts
    if not report.trusted:
        assert not report.one_by_one_parts
        return
    parts = {part.name: part for part in report.one_by_one_parts}
    assert list(parts) == [part.name for part in report.parts]
    assert sum(part.share for part in parts.values()) == pytest.approx(1.0)
    assert report.one_by_one is not None
    assert sum(part.ns for part in parts.values()) == pytest.approx(report.one_by_one.median_ns)
    assert parts["pure sync"].ns == 0, "cores meet where a launch ends"
    assert min(parts["work"].ns, parts["launch"].ns) > 0
    assert "one by one, mean over cores: work " in report.text()
    page = report.html()
    assert re.search(r'aria-label="one by one: [\d.,]+ us: work [\d.]+ %, .*launch [\d.]+ %(, rest [\d.]+ %)?"', page)


def test_a_sub_operator_at_its_roof_is_no_remedy() -> None:
    """Nothing is told to be faster than the cores can be, as far as that is known."""
    assert faster(0.0) == faster(0.2) == (0.5, "twice as fast")
    assert faster(0.8) == (0.8, "as fast as the cores can be, 1.2 times")
    assert faster(1.2)[0] == 1.0
    b = sk.GraphBuilder("g")
    y = b.matmul(b.input("x", (8, 512), "f32"), b.constant(np.ones((512, 1024), np.float32)))
    b.output(b.matmul(y, b.constant(np.ones((1024, 64), np.float32))), "y")
    compiled = sk.compile(b.graph(), threads=2, options={"cost_placement": False})._compiled
    assert isinstance(compiled, HostCompiled)

    def remedies(flops_per_ns: float) -> list[str]:
        target = dataclasses.replace(compiled.target, flops_per_ns=flops_per_ns, l2_bytes_per_ns=1e9)
        report = report_of(dataclasses.replace(compiled, target=target), recorded(compiled, 100), 1.0)
        waited = [boundary for boundary in report.boundaries if boundary.arrivals]
        assert len(waited) == 1
        assert not any(gain.what == "no core ever waits" for gain in report.gains), (
            "the same is said of its sub-operator"
        )
        return [gain.what for gain in report.gains if "as fast" in gain.what]

    assert all("twice" in what for what in remedies(1e9))
    assert len(remedies(1e9)) == 2
    assert remedies(1e-9) == []
    told = [what for flops_per_ns in np.geomspace(1e-2, 1e3, 40) for what in remedies(flops_per_ns)]
    assert any("as fast as the cores can be, 1." in what for what in told)
    assert not any(" 1.0 times" in what for what in told)


def recorded(compiled: HostCompiled, rounds: int, lost: Sequence[int] = ()) -> Rounds:
    """Launches whose steps take what they always take, within 2 %. In rounds `lost` a core's CPU is taken from it for
    4 ms in the middle: everything behind that is late, and the operating system counted it."""
    plan, rng = compiled.plan, np.random.default_rng(11)
    words = 1 + max(map(len, plan.programs))
    usual = rng.integers(200, 2000, (plan.cores, words))
    steps = (usual * rng.uniform(0.98, 1.02, (rounds, plan.cores, words))).cumsum(axis=2).astype(np.uint64)
    events = steps + np.uint64(10_000)
    preemptions = np.zeros((rounds, 4), np.int64)
    for row in lost:
        events[row, :, words // 2 :] += np.uint64(4_000_000)
        preemptions[row, 1] = 1
    edges = np.stack([np.full(rounds, 9_000, np.uint64), events.max(axis=(1, 2)) + np.uint64(500)], axis=1)
    plain = (edges[:, 1] - edges[:, 0]).astype(np.int64)
    watch = Watch(lambda: "", lambda: 0.0, lambda cpus: None)
    conditions = watch.conditions(preemptions.sum(axis=1), plan.cores)
    return Rounds(plain, plain, np.zeros(0, np.int64), edges, events, preemptions, conditions)


def test_a_report_from_a_busy_machine_is_that_of_a_quiet_one_or_withholds_its_shares() -> None:
    b = sk.GraphBuilder("g")
    y = b.matmul(b.input("x", (8, 512), "f32"), b.constant(np.ones((512, 1024), np.float32)))
    b.output(b.matmul(y, b.constant(np.ones((1024, 64), np.float32))), "y")
    compiled = sk.compile(b.graph(), threads=2, options={"cost_placement": False, "sync": "full"})._compiled
    assert isinstance(compiled, HostCompiled)
    quiet = report_of(compiled, recorded(compiled, 100), 1.0)
    assert {part.name for part in quiet.parts if part.share > 0.05} >= {"work", "pure sync"}
    for lost in (10, 49, 75):
        busy = report_of(compiled, recorded(compiled, 100, range(lost)), 1.0)
        assert f"{lost} of 100 launches left out" in busy.text()
        assert busy.run_ns == pytest.approx(quiet.run_ns, rel=0.02)
        for ours, theirs in zip(busy.parts[:-1], quiet.parts[:-1], strict=True):
            assert ours.share == pytest.approx(theirs.share, rel=0.1, abs=0.001), ours.name
        assert abs(busy.parts[-1].share) < 0.005, "these stamps cost nothing: a median less a mean of the middle"
    worst = report_of(compiled, recorded(compiled, 100, range(90)), 1.0)
    assert "the machine was busy: threads lost their CPU in 90 of 100 launches" in worst.text()
    assert (worst.parts, worst.gains) == ((), ())
    page, whole = worst.html(), quiet.html()
    assert "too busy to say what limits" in page
    assert "pure sync" not in page.partition("<script")[0]
    for time in ("pure us", "busy us", "GFLOP/s", "takes longest", "% of the sum"):
        assert time in whole, time
        assert time not in page, time


def test_full_barriers_are_measured_beside_the_kernel() -> None:
    kernel = sk.compile(models.transformer(layers=1), threads=2)
    report = kernel.report(rounds=8)
    (full,) = report.variants
    compiled = kernel._compiled
    assert full.name == "full barriers"
    assert full.waits == 2 * (report.subops - 1) > report.waits
    if full.parts:
        assert sum(part.share for part in full.parts) == pytest.approx(1.0)
    assert f"with full barriers {full.run}" in report.text()
    assert report.to_json()["variants"][0]["name"] == "full barriers"
    assert not kernel.report(rounds=0).variants, "nothing is compared"
    assert not sk.compile(models.transformer(layers=1), threads=1).report(rounds=2).variants
    assert not sk.compile(models.transformer(layers=1), threads=2, options={"sync": "full"}).report(rounds=2).variants
    assert isinstance(compiled, HostCompiled)
    other = with_other_sync(compiled, {"sync": "full"})
    assert (other.plan.waits, other.certificate.waits) == (full.waits, full.waits)


def test_every_field_of_a_report_s_json_form_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs/json.md").read_text(encoding="utf-8")
    table = text.split("`superkernel.report/2`, by")[1].split("## ")[0]
    documented = set(re.findall(r"`(\w+)`", table))
    report = make_report(1, Conditions(10, 0, 0))
    data = dataclasses.replace(
        report,
        work=(Work(0, "s", "k", 1, 1.0, 1.0, 1),),
        counters=HardwareCounts(1.0, 1.0, 1.0),
        gains=(Gain("less", 0.5),),
        variants=(other_variant(),),
    ).to_json()
    fields = set(data) - {"schema"}
    for value in data.values():
        rows = value if isinstance(value, (list, tuple)) else [value]
        fields |= {key for row in rows if isinstance(row, dict) for key in row}
    assert fields <= documented, fields - documented
