"""bench/scale.py: what it makes of times, its neighbours, gaps, and plans for machines that are not here."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import reads
import scale
import stats

import superkernel as sk
from superkernel.ir.graph import Graph


def rows(**medians: float) -> scale.Rows:
    return {name: stats.summary([[ns, ns, 2 * ns]] * 8) for name, ns in medians.items()}


def test_ours_is_held_against_the_best_rival() -> None:
    found = rows(superkernel=1000.0, openvino=3000.0, onnxruntime=2000.0)
    assert scale.best_rival(found) == "onnxruntime"
    assert scale.times_faster(found) == 2.0
    text = scale.compared(found)
    assert text == "ours 1.0 us, p99 2.0; onnxruntime 2.0, best p99 4.0; 2.00 times as fast"
    alone = rows(superkernel=1000.0)
    assert scale.times_faster(alone) is None
    assert scale.compared(alone) == "ours 1.0 us, p99 2.0"
    assert scale.times_faster(rows(openvino=1.0)) is None


def test_neighbours_spin_until_they_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def kept(*args: object, **named: object) -> subprocess.Popen[bytes]:
        started.append(popen(*args, **named))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", kept)
    with scale.spinning(2, 1):
        assert [program.poll() for program in started] == [None, None]
        first = frozenset({min(os.sched_getaffinity(0))})
        assert {frozenset(os.sched_getaffinity(p.pid)) for p in started} == {first}
    assert all(program.poll() is not None for program in started)


def test_gaps_are_as_drawn_and_not_part_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "GAPS_S", (1e-4, 1e-3))
    stamps: list[int] = []
    times = scale.timed_with_gaps(lambda: stamps.append(time.perf_counter_ns()), 50, random.Random(1))
    assert len(times) == 50
    gaps = [b - a for a, b in zip(stamps[-51:], stamps[-50:], strict=False)]
    assert min(gaps) >= 1e5
    assert (times > 0).all()


def test_plans_by_the_profiles_of_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "scale.json"
    assert scale.main(["plans", "--workloads", "chain16-w512", "--cores", "2,16,64", "--out", str(out)]) == 0
    found = json.loads(out.read_text())["plans"]
    cores = {name: set(found[name]["chain16-w512"]) for name in ("two-cores", "xeon-16", "sixty-four")}
    assert cores == {"two-cores": {"2"}, "xeon-16": {"2", "16"}, "sixty-four": {"2", "16", "64"}}
    row = found["xeon-16"]["chain16-w512"]["16"]
    assert set(row) == {"times", "shared_times", "mb", "waits", "predicted_us", "sparing_us", "sparing_times"}
    assert 0 < row["predicted_us"] <= row["sparing_us"]
    assert "weights read" in capsys.readouterr().out


def product(rows: int, depth: int, columns: int) -> Graph:
    b = sk.GraphBuilder("product")
    w = np.zeros((depth, columns), np.float32)
    b.output(b.matmul(b.input("x", (rows, depth)), b.constant(w)), name="y")
    return b.graph()


def test_reading_less_is_held_against_the_plan() -> None:
    """A product of many rows, whose weights of 1 MB come by hidden behind the arithmetic: read in bands of rows."""
    target = reads.profile_target(scale.PROFILES / "sixty-four.json")
    found = reads.plan_reads(product(2048, 512, 512), target, 64)
    assert found.constant_bytes == 512 * 512 * 4
    assert found.times > reads.TIMES_MOST
    assert found.sparing_times <= reads.TIMES_MOST
    assert found.sparing_ns > found.predicted_ns
    assert f"at {found.sparing_times:.2f} x" in str(found)
    alone = reads.plan_reads(product(2048, 512, 512), target, 1)
    assert (alone.times, alone.sparing_times, alone.sparing_ns) == (1.0, 1.0, alone.predicted_ns)
    assert "at least" not in str(alone)


def test_what_a_core_keeps_is_not_read_from_what_cores_share() -> None:
    target = reads.profile_target(scale.PROFILES / "sixty-four.json")
    kept = reads.plan_reads(product(1, 1024, 2048), target, 16)  # 8 MB, of which each core has half a MB
    assert (kept.times, kept.shared_times) == (1.0, 0.0)
    passing = reads.plan_reads(product(1, 4096, 8192), target, 16)
    assert passing.times == passing.shared_times == 1.0


def test_predicted_times_are_of_the_machine() -> None:
    import workloads

    graph = workloads.choose("mlp-1024")[0].graph(tiny=True)
    slow, fast = (reads.profile_target(scale.PROFILES / name) for name in ("two-cores.json", "sixty-four.json"))
    assert reads.plan_reads(graph, slow, 1).predicted_ns != reads.plan_reads(graph, fast, 1).predicted_ns


@pytest.mark.parametrize(
    "wrong", [["nonsense"], ["--threads", "9999"], ["--runners", "nobody"], ["--workloads", "no*"]]
)
def test_what_is_not_there_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        scale.parse(wrong)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err
