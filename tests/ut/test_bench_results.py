"""What the benchmark makes of its samples: intervals, ratios, comparison of runs, page and plot, lower bounds."""

from __future__ import annotations

import copy
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import boundary
import compare
import cores
import document
import machine
import numpy as np
import plot
import pytest
import run
import stats
import verdict
import workloads
from worker import time_calls

import superkernel as sk
from superkernel.backends.host.compiled import HostCompiled
from superkernel.builder import GraphBuilder
from superkernel.sync.plan import TaskStep

ROOT = Path(__file__).resolve().parents[2]


def row(slices: list[list[float]], ours: list[float], precision: str = "f32") -> dict[str, Any]:
    found: dict[str, Any] = {"status": "ok", "precision": precision, **stats.summary(slices)}
    times = stats.ratio(found["slice_medians_ns"], ours)
    return {**found, "times_ours": [times.median, times.low, times.high]}


def results(scale: float = 1.0, machine_scale: float = 1.0) -> dict[str, Any]:
    """Two workloads: on one we win, on the other we lose; `scale` changes our time, `machine_scale` everybody's."""
    rng = np.random.default_rng(0)

    def slices(ns: float) -> list[list[float]]:
        return [(ns * machine_scale * rng.uniform(0.99, 1.01, 20)).tolist() for _ in range(15)]

    found = []
    for name, ours_ns, rival_ns in (("win", 1000.0, 2500.0), ("lose", 4000.0, 3000.0)):
        ours = slices(ours_ns * scale)
        medians = [float(np.median(s)) for s in ours]
        runners = {
            "superkernel": row(ours, medians),
            "superkernel-again": row(slices(ours_ns * scale), medians),
            "superkernel-1t": row(slices(1.9 * ours_ns * scale), medians),
            "jax": row(slices(rival_ns), medians),
            "openvino-bf16": row(slices(rival_ns / 8), medians, "bf16"),
            "openvino": {"status": "absent", "precision": "f32", "reason": "openvino is not installed"},
        }
        limit = {"ns": 500.0, "cores": 2, "limited_by": "bytes"}
        found.append(
            {
                "name": name,
                "group": "g",
                "dispatch_bound": name == "win",
                "limit": limit,
                "others_cpu_share": 0.0,
                "runners": runners,
            }
        )
    host = {
        "cpu": "a CPU",
        "vector": ["avx2"],
        "cpus": 2,
        "memory_gb": 8,
        "virtual": True,
        "os": "Linux",
        "python": "3",
    }
    exchange = {
        "boundaries": 64,
        "waits": 128,
        "half_alone_ns": 4.5e3,
        "without_waits_ns": 6e3,
        "two_cores_ns": 9.9e3,
        "round_trip_ns": 100.0,
        "cost_ns": [80.0, 70.0, 90.0],
        "cost_per_round_trip": [0.8, 0.7, 0.9],
        "waiting_ns": [60.0, 50.0, 65.0],
        "waiting_per_round_trip": [0.6, 0.5, 0.65],
    }
    return {
        "schema": run.SCHEMA,
        "command": "python bench/run.py",
        "started_utc": "2000-01-01 00:00",
        "settings": {"threads": 2, "rounds": 15, "seconds": 0.1, "quick": False},
        "machine": host,
        "versions": {"superkernel": "0"},
        "limits": {
            "fma_peak_gflops": 100.0,
            "core_to_core_ns": 50.0,
            "read_gb_per_s": {"L1": {"1": 300.0, "2": 600.0}},
        },
        "boundary": exchange,
        "workloads": [*found, {"name": "minilm", "absent": ["some_package"]}],
    }


@pytest.mark.parametrize(
    ("terms", "dispatch", "kind"),
    [
        ((20.0, 10.0), False, "memory"),
        ((10.0, 20.0), False, "arithmetic"),
        ((19.0, 10.0), False, "both"),
        ((10.0, 19.0), False, "both"),
        ((10.0, 99.0), True, "dispatch"),
    ],
)
def test_kind_is_what_limits(terms: tuple[float, float], dispatch: bool, kind: str) -> None:
    limit = {"terms_ns": {"bytes": terms[0], "flops": terms[1], "exchanges": 0.0}}
    assert verdict.kind_of({"dispatch_bound": dispatch, "limit": limit}) == kind


def judged(
    kind: tuple[float, float], ours_ns: float, flops: float, scaling: float, rival: float, threads: int = 2
) -> verdict.Verdict:
    terms = {"bytes": kind[0], "flops": kind[1]}
    limit = {"ns": 1000.0, "flops": flops, "terms_ns": terms}
    workload = {
        "name": "w",
        "dispatch_bound": False,
        "limit": limit,
        "runners": {"superkernel": {"median_ns": ours_ns}},
    }
    return verdict.judge(workload, {"fma_peak_gflops": 100.0}, threads, scaling, rival)


def test_verdict_holds_each_kind_to_its_targets() -> None:
    memory, arithmetic = (2.0, 1.0), (1.0, 2.0)
    assert judged(memory, 1300.0, 10.0, 1.0, 1.0).misses == ()
    assert judged(memory, 1310.0, 10.0, 0.97, 0.99).misses == (
        "rival 0.99 < 1.00",
        "bound 1.31 > 1.30",
        "scaling 0.97 < 0.98",
    )
    kept = judged(arithmetic, 2000.0, 300e3, 1.8, 1.0)
    assert (kept.of_peak, kept.misses) == (0.75, ())
    assert judged(arithmetic, 2000.0, 296e3, 1.79, 1.0).misses == ("peak 0.74 < 0.75", "scaling 1.79 < 1.80")
    assert judged(arithmetic, 2000.0, 170e3, 1.0, 1.0, threads=1).misses == ()
    both = judged((1.0, 1.0), 9000.0, 1.0, 1.0, 1.0)
    assert (both.kind, both.misses) == ("both", ())
    assert verdict.summary([kept, both]) == "All targets kept on 2 of 2 workloads."
    assert "missed: w (scaling 0.50 < 0.98)" in verdict.summary([kept, judged((1.0, 1.0), 1.0, 1.0, 0.5, 1.0)])


def test_verdict_shows_what_the_bound_itself_gains() -> None:
    workload: dict[str, Any] = {
        "name": "w",
        "dispatch_bound": False,
        "limit": {"ns": 1000.0, "one_core_ns": 1130.0, "flops": 10.0, "terms_ns": {"bytes": 2.0, "flops": 1.0}},
        "runners": {"superkernel": {"median_ns": 1100.0}},
    }
    place = verdict.HEAD.index("bound 1 -> n")
    assert verdict.judge(workload, {"fma_peak_gflops": 100.0}, 2, 1.1, 1.0).cells()[place] == "1.13"
    del workload["limit"]["one_core_ns"]
    assert verdict.judge(workload, {"fma_peak_gflops": 100.0}, 2, 1.1, 1.0).cells()[place] == "-"


def test_page_and_terminal_show_the_verdict() -> None:
    found = results()
    for text in (document.page(found), document.terminal(found)):
        assert "All targets kept on 1 of 2 workloads; missed: lose (rival 0.75 < 1.00" in text


def test_intervals_cover_the_median(rng: np.random.Generator) -> None:
    assert [stats.interval_rank(n) for n in (1, 5, 6, 15, 100)] == [0, 0, 0, 3, 39]
    covered = 0
    for _ in range(2000):
        found = stats.estimate(rng.exponential(size=15).tolist())
        covered += found.low <= np.log(2) <= found.high
    assert 0.95 <= covered / 2000 <= 0.985
    many = stats.estimate(rng.exponential(size=5000).tolist())
    assert many.low < many.median < many.high
    assert many.high - many.low < 0.1


def test_ratios_take_drift_out() -> None:
    drift = np.linspace(1, 3, 15)
    found = stats.ratio((2 * drift).tolist(), drift.tolist())
    assert found == stats.Estimate(2.0, 2.0, 2.0)
    assert stats.geometric_mean([1.0, 4.0]) == pytest.approx(2.0)


def verdicts(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [c.verdict for c in compare.compare(before, after, "superkernel")]


def test_compare_finds_changes_and_only_those() -> None:
    assert verdicts(results(), results()) == ["same", "same"]
    assert verdicts(results(), results(scale=0.8)) == ["faster", "faster"]
    assert verdicts(results(), results(scale=1.2)) == ["slower", "slower"]
    assert verdicts(results(), results(machine_scale=1.3)) == ["same", "same"], "a slow machine is not our change"
    assert verdicts(results(), results(scale=1.3, machine_scale=1 / 1.3)) == ["same", "same"], "hidden by the machine"


def test_compare_refuses_what_it_cannot_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = results()
    other["settings"]["threads"] = 1
    paths = []
    for i, content in enumerate((results(), other, {"schema": "?"}, results(scale=1.2))):
        paths.append(str(tmp_path / f"{i}.json"))
        Path(paths[-1]).write_text(json.dumps(content))
    assert compare.main(paths[:2]) == 2
    assert compare.main([paths[0], paths[2]]) == 2
    assert "cannot compare" in capsys.readouterr().err
    assert compare.main([paths[0], paths[3]]) == 0
    assert compare.main([paths[0], paths[3], "--fail-slower"]) == 1
    assert "2 slower" in capsys.readouterr().out


def test_the_page_shows_wins_losses_and_gaps() -> None:
    found = results()
    page = document.page(found)
    assert "on 1 of 2 workloads" in page
    assert "Slower than the best rival: lose (0.75, jax)" in page
    assert "minilm: needs some_package" in page
    assert "openvino: openvino is not installed" in page
    assert "0.80 [0.70, 0.90] of the core-to-core round trip" in page
    assert "Noisy" not in page
    assert document.speedups(document.measured(found)) == pytest.approx([2.5, 0.75], rel=0.02), "bf16 is no f32 rival"


@pytest.mark.parametrize("kind", ["busy", "control", "quick"])
def test_noise_is_said_first(kind: str) -> None:
    noisy = copy.deepcopy(results())
    if kind == "busy":
        noisy["workloads"][0]["others_cpu_share"] = 0.3
    elif kind == "control":
        noisy["workloads"][0]["runners"]["superkernel-again"]["times_ours"] = [0.7, 0.6, 0.8]
    else:
        noisy["settings"]["quick"] = True
    assert len(document.noise(noisy)) == 1
    assert document.page(noisy).index("Noisy") < document.page(noisy).index("## Result")
    assert "NOISY" in document.terminal(noisy)


def test_what_was_measured_on_a_shared_core_is_measured_again_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([False, True, False, True, True])  # shared at first; shared behind the first attempt; apart
    monkeypatch.setattr(cores, "are_apart", lambda threads: next(looks))
    own, found = cores.OwnCores(2), iter("ab")
    assert own.measure(lambda: next(found)) == "b"
    assert (own.taken, own.repeated) == (1, 1)
    assert next(looks, None) is None


def test_cores_that_are_never_apart_end_the_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "are_apart", lambda threads: False)
    monkeypatch.setattr(cores, "LOOK_GAP_S", 0.0)
    own, calls = cores.OwnCores(2), iter(range(100))
    assert own.measure(lambda: next(calls)) == cores.ATTEMPTS - 1
    assert own.repeated == cores.ATTEMPTS - 1


def test_two_cpus_on_one_core_read_no_faster_together(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {1: 100.0, 2: 104.0}
    monkeypatch.setattr(cores.machine, "read_gb_per_s", lambda nbytes, threads: speeds[threads])
    assert not cores.are_apart(2)
    speeds[2] = 190.0
    assert cores.are_apart(2)
    assert cores.are_apart(1)


def test_repeated_slices_are_on_the_page() -> None:
    found = results()
    assert "taken again" not in document.page(found)
    found["workloads"][0]["slices"] = {"taken": 90, "repeated": 10}
    found["workloads"][1]["slices"] = {"taken": 100, "repeated": 0}
    assert "10 of 200 slices were taken again" in document.page(found)


def test_the_plot_is_svg_with_every_mark() -> None:
    marks = ET.fromstring(plot.svg(document.plotted(results()))).iter("{http://www.w3.org/2000/svg}title")
    texts = [m.text for m in marks]
    assert sum(": " in str(t) for t in texts) == 4, "two rivals on two workloads"


def test_the_committed_page_is_what_its_data_gives() -> None:
    data = json.loads((ROOT / "docs" / "performance.json").read_text())
    assert (ROOT / "docs" / "performance.md").read_text() == document.page(data)
    assert (ROOT / "docs" / "performance.svg").read_text() == plot.svg(document.plotted(data))


def test_lower_bounds_count_what_must_be_done() -> None:
    limits = machine.Limits(2, 100.0, 50.0)
    graph = workloads.mlp(64, 3)
    inputs = workloads.make_inputs(graph)
    bound = machine.lower_bound(graph, inputs, limits, {1: 100.0, 2: 200.0})
    assert bound["bytes"] == machine.bytes_moved(graph, inputs)
    assert bound["bytes"] == 4 * (3 * 64 * 64 + 3 * 64 + 2 * 64)
    assert 2 * 3 * 64 * 64 <= bound["flops"] <= 2.1 * 3 * 64 * 64
    assert bound["exchanges"] == 2
    assert bound["one_core_ns"] >= bound["ns"] == max(bound["terms_ns"].values()) > 0
    starved = machine.lower_bound(graph, inputs, limits, {1: 0.1, 2: 0.2})
    assert (starved["limited_by"], starved["cores"]) == ("bytes", 2)
    assert starved["ns"] == bound["bytes"] / 0.2
    b = GraphBuilder("table")
    b.output(b.gather(np.ones((1000, 4), np.float32), b.input("i", (2,), "i64"), axis=0))
    assert machine.traffic_bytes(b.graph(), 1.0) == 2 * 8 + 2 * 4 * 4 * 2, "two rows are read, not the table"


def test_a_decoder_step_reads_only_visible_keys() -> None:
    graph = workloads.WORKLOADS["decode-small"].graph(tiny=True)
    half = machine.traffic_bytes(graph, 0.5)
    states = sum(a.nbytes for a in graph.states.values())
    assert machine.traffic_bytes(graph, 1.0) - half == states // 2


def test_calls_are_timed_one_by_one() -> None:
    calls = []
    times = time_calls(lambda: calls.append(0), 10.0, 7)
    assert len(times) == 7 < len(calls), "warm-up calls do not count"
    assert (times >= 0).all()
    assert len(time_calls(lambda: None, 0.0, 100)) == 1


def test_errors_of_outputs_are_found(tmp_path: Path) -> None:
    graph = workloads.mlp(16, 1)
    exact = {"y": np.linspace(-2.0, 2.0, 16).reshape(1, 16)}
    for change, low, high in ((0.0, 0.0, 1e-6), (0.2, 0.09, 0.11), (np.nan, np.inf, np.inf)):
        found = exact["y"].astype(np.float32)
        found[0, 3] += np.float32(change)
        np.savez(tmp_path / "out.npz", output_0=found)
        assert low <= run.largest_error(tmp_path / "out.npz", graph, exact) <= high
    np.savez(tmp_path / "out.npz", output_0=np.zeros((1, 15), np.float32))
    assert run.largest_error(tmp_path / "out.npz", graph, exact) == np.inf


def test_one_workload_end_to_end(tmp_path: Path) -> None:
    """Ours and NumPy, in processes of their own; the JSON holds a checked, timed row of each."""
    out = tmp_path / "results.json"
    given = ["--quick", "--workloads", "mlp-64", "--runners", "numpy", "--rounds", "2", "--seconds", "0.01"]
    args = run.parse([*given, "--out", str(out)])
    found = run.run(args, "test")
    assert json.loads(out.read_text()) == json.loads(json.dumps(found))
    rows = found["workloads"][0]["runners"]
    assert [rows[n]["status"] for n in ("superkernel", "numpy")] == ["ok", "ok"], rows
    assert all(rows[n]["error"] <= 1e-4 and rows[n]["median_ns"] > 0 for n in rows)
    assert "mlp-64" in document.terminal(found)


def test_a_boundary_is_compared_with_the_same_work_in_the_same_place() -> None:
    kernel = sk.compile(boundary.chain(), threads=2, options={"cost_placement": False})
    compiled = kernel._compiled
    assert isinstance(compiled, HostCompiled)
    plan = compiled.plan
    assert plan.waits >= boundary.BOUNDARIES
    free, halves = boundary.without_waits(plan), [boundary.alone(plan, core) for core in range(2)]
    bodies = [[s for s in program if isinstance(s, TaskStep)] for program in plan.programs]
    assert [list(program) for program in free.programs] == bodies, "nothing but tasks, all of them, in their order"
    for core, half in enumerate(halves):
        done = [half.tasks[s.task] for s in half.programs[0] if isinstance(s, TaskStep)]
        theirs = [plan.tasks[s.task] for s in bodies[core]]
        assert [(t.subop, t.begin, t.end) for t in done] == [(t.subop, t.begin, t.end) for t in theirs]
        assert {t.core for t in done} == {0}
    assert all(boundary.runner(compiled, p)(3) > 0 for p in (plan, free, *halves))


def test_rounds_in_which_cores_moved_apart_are_left_out() -> None:
    near, far, moved = (80.0, 82.0, 9.0, 5.0, 3.0), (350.0, 330.0, 40.0, 20.0, 3.0), (80.0, 340.0, 40.0, 20.0, 3.0)
    assert boundary.steady([near, moved, far]) == [(81.0, 9.0, 5.0, 3.0), (340.0, 40.0, 20.0, 3.0)]
    assert boundary.steady([moved]) == [(210.0, 40.0, 20.0, 3.0)]


def test_figures_of_a_boundary_reach_the_page() -> None:
    text = "\n".join(document.boundary_lines(results()))
    assert "80 ns [70, 90], that is 0.80 [0.70, 0.90]" in text
    assert "waits are taken out: 60 ns [50, 65], that is 0.60 [0.50, 0.65]" in text
    assert "Measured apart" not in text
    apart = {**results()["boundary"], "command": "python bench/boundary.py --docs", "started_utc": "2000-01-02 00:00"}
    assert "Measured apart, 2000-01-02 00:00 UTC" in "\n".join(document.boundary_lines({"boundary": apart}))
    assert document.boundary_lines({"boundary": {}}) == ["Not measured: one CPU."]
