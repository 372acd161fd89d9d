"""`superkernel ablate` and `report --critical`: their figures are true to the runs that they describe.

Splits sum to times; the critical path covers the run; predictions are held against what a program without the
synchronisation really takes, and a graph that synchronisation cannot slow down says so.
"""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from aicore_systems import fused_model

import superkernel as sk
from superkernel.analysis.ablate import (
    FUSED,
    NO_GAIN,
    ONE_BY_ONE,
    STEPS,
    Ablation,
    Row,
    ablate,
    ablation_target,
)
from superkernel.analysis.ablate_host import HostAblation
from superkernel.analysis.ablation import ablation
from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.backends.aicore.critical import CriticalReport, _Tasks, without_events
from superkernel.backends.aicore.critical_path import critical_path
from superkernel.backends.aicore.timeline import Activity, Timeline
from superkernel.cli import main
from superkernel.core.options import Options
from superkernel.frontends.json_form import save_json
from superkernel.ir.graph import Graph
from superkernel.sync.aicore.plan import awaited


@pytest.fixture(scope="module")
def encoder() -> Ablation:
    return ablate(models.transformer(layers=1), ablation_target("mini"), sensitivity=True)


def _compiled(kernel: sk.Kernel) -> AicoreCompiled:
    compiled = kernel._compiled
    assert isinstance(compiled, AicoreCompiled)
    return compiled


def _timeline(kernel: sk.Kernel) -> Timeline:
    io = kernel._io(list(kernel._random().values()))
    run = _compiled(kernel).executable.simulate(io, mode="timing", races=False, trace=True)
    return Timeline.of(_compiled(kernel), run.launches[0])


# Ablation ---------------------------------------------------------------------------------------------------------


def test_every_row_sums_and_follows_from_those_above(encoder: Ablation) -> None:
    names = [row.name for row in encoder.rows]
    assert names == [ONE_BY_ONE, FUSED, *(step.name for step in STEPS if not step.needs)]
    assert {"minimal sync", "early start", "preload", "split"} <= set(names)
    clock = ablation_target("mini").device.clock_mhz
    for row in encoder.rows:
        assert sum(row.split.values()) == pytest.approx(row.us, rel=1e-9)
        assert row.us == pytest.approx(row.cycles / clock + row.split["launch"])
        assert row.speedup == pytest.approx(encoder.rows[0].us / row.us)
    for above, row in pairwise(encoder.rows):
        assert row.gain is not None
        assert row.gain == pytest.approx(1 - row.us / above.us)


def test_the_last_step_is_a_choice_on_top_of_all_others(encoder: Ablation) -> None:
    last, all_but_one = encoder.rows[-1], encoder.rows[-2]
    assert [choice.option for choice in encoder.choices][-1] == last.name == "locality"
    choice = encoder.choices[-1]
    assert (choice.us_without, choice.gain, choice.predicted) == (all_but_one.us, last.gain, last.predicted)
    assert f"  locality{'':>18}{choice.gain:>8.1%}" in encoder.text()


def test_each_optimisation_gives_something_where_it_should(encoder: Ablation) -> None:
    rows = {row.name: row for row in encoder.rows}
    assert rows["minimal sync"].split["pure"] < rows[FUSED].split["pure"]
    assert rows["preload"].split["misses"] < 0.2 * rows["early start"].split["misses"]
    assert encoder.rows[-1].us < 0.8 * rows[FUSED].us
    ranges, minimal = rows["type-range sync"].gain, rows["minimal sync"].gain
    assert ranges is not None
    assert minimal is not None
    assert 0 < ranges < minimal, "two of nine boundaries lie between kernels of one type"
    assert rows["split"].verdict == "no gain here"
    assert "no gain here" in encoder.text()
    for name in ("minimal sync", "early start", "preload", FUSED):
        row = rows[name]
        assert row.gain is not None
        assert row.predicted is not None
        assert 0.3 * row.gain < row.predicted < 3 * row.gain, name


def test_the_last_row_is_the_default_kernel(encoder: Ablation) -> None:
    """What is taken apart is what `compile` makes."""
    line = _timeline(sk.compile(models.transformer(layers=1), target="mini"))
    assert encoder.rows[-1].cycles == line.end - line.begin


def test_a_chain_on_one_core_gains_nothing_from_narrower_synchronisation() -> None:
    b = sk.GraphBuilder("alone")
    x = b.input("x", (1, 16))
    b.output(b.relu(x), name="y")
    rows = {row.name: row for row in ablate(b.graph(), ablation_target("mini")).rows}
    assert rows["split"].verdict == "no gain here"
    assert rows[FUSED].split["pure"] == rows["minimal sync"].split["pure"] == 0.0


def test_sensitivity_says_what_depends_on_uncertain_figures(encoder: Ablation) -> None:
    sweeps = {sweep.path: sweep for sweep in encoder.sweeps}
    assert set(sweeps) == {"icache.miss_latency_cycles", "sync.core_full_ns", "dispatch.launch_ns"}
    for sweep in sweeps.values():
        assert list(sweep.values) == sorted(sweep.values)
        for name, gains in sweep.gains.items():
            assert (name in sweep.changed) == (len({g >= NO_GAIN for g in gains}) == 2)
    launch = sweeps["dispatch.launch_ns"].gains[FUSED]
    assert list(launch) == sorted(launch)  # the more expensive a launch, the more fusion gives
    assert FUSED in sweeps["dispatch.launch_ns"].changed
    misses = sweeps["icache.miss_latency_cycles"].gains["preload"]
    assert misses[-1] > misses[0]


def test_steps_are_data() -> None:
    assert len({step.name for step in STEPS}) == len(STEPS)
    for step in STEPS:
        (name,) = step.on
        assert step.off.keys() == {name}
        assert step.on[name] != step.off[name]
        assert Options(**step.off) != Options(**step.on)
        assert name not in Options(**step.on).given() or step.name == "type-range sync"  # on is what one gets
    row = Row("x", 1, 1.0, 0.004, None, None, 1.0, {})
    assert row.verdict
    assert not dataclasses.replace(row, gain=0.006).verdict


def test_a_graph_that_computes_nothing_is_refused() -> None:
    b = sk.GraphBuilder("empty")
    b.output(b.relu(b.matmul(b.input("x", (0, 16), "f32"), b.constant(np.ones((16, 16), np.float32)))))
    with pytest.raises(sk.InputError, match="computes nothing"):
        ablate(b.graph(), sk.load_target("mini"))


def test_the_host_is_no_accelerator() -> None:
    with pytest.raises(sk.UnsupportedError, match="no program of an accelerator"):
        ablation_target("host")


def test_on_the_host() -> None:
    """Measured, the kernel that one gets last; its bits are those of all rows."""
    graph = models.transformer(layers=1)
    found = ablation(graph, "host", threads=2, rounds=6)
    assert isinstance(found, HostAblation)
    names = [row.name for row in found.rows]
    assert names == [ONE_BY_ONE, FUSED, "minimal sync", "early start", "weight prefetch", "cost placement"]
    waits = [row.waits for row in found.rows]
    assert waits[1] == 2 * (found.subops - 1)
    assert waits[-1] == sk.compile(graph, threads=2)._compiled.plan.waits < waits[1]
    for above, row in pairwise(found.rows):
        assert row.low_us <= row.us <= row.high_us
        assert row.gain is not None
        assert row.gain == pytest.approx(1 - row.us / above.us)
        assert row.speedup == pytest.approx(found.rows[0].us / row.us)
        assert bool(row.verdict) == (not row.beyond_noise or abs(row.gain) < NO_GAIN or row.gain < 0)
    assert [bar.name for bar in found.chart().bars] == names
    assert all(name in found.text() for name in names)
    data = json.loads(json.dumps(found.to_json()))
    assert data["schema"] == "superkernel.host_ablation/1"
    for row in found.rows:
        assert not row.split or sum(row.split.values()) == pytest.approx(row.us), row.name
    assert [row["name"] for row in data["rows"]] == names


def test_what_the_host_cannot_ablate() -> None:
    with pytest.raises(sk.InputError, match="no sensitivity"):
        ablation(models.mlp((8, 8)), "host", sensitivity=True)
    with pytest.raises(sk.InputError, match="no rounds"):
        ablation(models.mlp((8, 8)), "host", rounds=0)
    b = sk.GraphBuilder("empty")
    b.output(b.relu(b.input("x", (0, 16), "f32")))
    with pytest.raises(sk.InputError, match="computes nothing"):
        ablation(b.graph(), "host", threads=1)


def test_an_accelerator_has_no_threads() -> None:
    with pytest.raises(sk.InputError, match="cores, not threads"):
        ablation(models.mlp((8, 8)), "mini", threads=2)


def test_on_the_large_target() -> None:
    found = ablate(models.decode_step(layers=1), ablation_target("a3"))
    rows = {row.name: row for row in found.rows}
    assert rows[FUSED].speedup < rows["minimal sync"].speedup < rows["early start"].speedup
    assert rows[ONE_BY_ONE].split["launch"] > rows[FUSED].split["launch"]


# Timelines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"sync": "full", "early_start": False}, {"preload": "none"}])
@pytest.mark.parametrize("graph", [models.transformer(layers=1), fused_model(), models.decode_step(layers=1)])
def test_timelines_and_paths_cover_the_launch(graph: Graph, options: dict[str, Any]) -> None:
    kernel = sk.compile(graph, target="mini", options=options)
    line, plan = _timeline(kernel), _compiled(kernel).plan
    cycles = line.end - line.begin
    assert sum(sum(row.values()) for row in line.split().values()) == pytest.approx(cycles)
    path = critical_path(line)
    assert (path[0].begin, path[-1].end) == (line.begin, line.end)
    assert all(a.end == b.begin for a, b in pairwise(path))
    assert Activity.IMBALANCE not in {piece.activity for piece in path}  # there, somebody works
    takes = sum(
        len(set(awaited(step))) * len(plan.cores(kind)) for kind, program in plan.programs.items() for step in program
    )
    assert sum(take.event is not None for take in line.takes) == takes
    for take in line.takes:
        assert take.begin <= take.end
        assert take.fired < take.end
        if take.event is not None:
            assert take.setter in plan.observed(plan.events[take.event], take.core)
            assert take.subop > plan.events[take.event].after, "nobody waits ahead of what he signals himself"
    assert _Tasks(_compiled(kernel), line).end() == line.end


def test_misses_are_told_apart() -> None:
    """Without preloading, the control units' misses stand in the split."""
    graph = fused_model()
    with_preload, without = (
        _timeline(sk.compile(graph, target="mini", options={"preload": p})) for p in ("auto", "none")
    )
    spent = [sum(row[Activity.MISSES] for row in line.split().values()) for line in (with_preload, without)]
    assert spent[0] < 0.5 * spent[1]


# Critical paths ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report() -> CriticalReport:
    return sk.compile(models.transformer(layers=1), target="mini").critical(confirm=6)


def test_slack_and_path_agree(report: CriticalReport) -> None:
    assert sum(report.path.values()) == report.cycles == sum(c for _, _, c in report.by_subop)
    assert report.boundaries
    for row in report.boundaries:
        assert 0 <= row.instantly <= row.removed + 1e-12
        assert row.slack == 0 or row.instantly == 0.0
        assert row.on_path == 0 or row.slack == 0
    assert any(row.on_path for row in report.boundaries)


def test_predictions_hold_against_a_run_without_the_wait(report: CriticalReport) -> None:
    """Removing a boundary's events never costs time, and gives at least half and at most three times what was
    predicted, give or take a few per cent of the run."""
    tried = [row for row in report.boundaries if row.confirmed is not None]
    assert len(tried) >= 4
    for row in tried:
        assert row.confirmed is not None
        assert row.confirmed > -0.01
        assert 0.5 * row.removed - 0.03 <= row.confirmed <= 3 * row.removed + 0.03, row
    assert max(row.confirmed or 0.0 for row in tried) > 0.05


def test_an_experiment_leaves_no_trace() -> None:
    kernel = sk.compile(models.transformer(layers=1), target="mini")
    before = kernel(*kernel._random().values())
    plan = _compiled(kernel).plan
    first = plan.events[0].index
    edited = without_events(plan, [first])
    assert str(first) not in [w for p in edited.programs.values() for s in p for w in map(str, awaited(s))]
    assert sum(map(len, edited.programs.values())) < sum(map(len, plan.programs.values()))
    kernel.critical(confirm=1)
    assert np.array_equal(before, kernel(*kernel._random().values()))
    with pytest.raises(sk.UnsupportedError, match="only an accelerator"):
        sk.compile(models.mlp()).critical()


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.json"
    save_json(models.mlp((64, 128, 32), batch=4), path)
    assert main(["ablate", str(path), "--target", "mini", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["rows"]][:2] == [ONE_BY_ONE, FUSED]
    assert all({"cycles", "us", "split", "verdict"} <= row.keys() for row in found["rows"])
    words = ["report", str(path), "--target", "mini", "--random-inputs", "0", "--critical", "--confirm", "1"]
    assert main(words) == 0
    assert "critical path:" in capsys.readouterr().out
    page = tmp_path / "rows.html"
    assert main(["ablate", str(path), "--target", "host", "--threads", "2", "--rounds", "3", "--html", str(page)]) == 0
    assert "cost placement" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert "What each optimisation gives" in text
    assert "<canvas" not in text
    assert main(["ablate", str(path), "--target", "host", "--sensitivity"]) == 2
    words = ["report", str(path), "--threads", "2", "--random-inputs", "0", "--rounds", "2", "--ablate"]
    assert main(words) == 2
    assert main([*words, "--html", str(page)]) == 0
    assert "What each optimisation gives" in page.read_text(encoding="utf-8")
