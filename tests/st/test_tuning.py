"""Measured times decide: what `tune` measures, keeps and changes, and what selection makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import superkernel
from superkernel import GraphBuilder, machine
from superkernel.analysis import tuning
from superkernel.analysis.tuning import Tuned, TuningCandidate, tune
from superkernel.cli import main
from superkernel.codegen.host.features import detect_cpu, forget_cpu
from superkernel.core.errors import FileFormatError, InputError, MachineError
from superkernel.ir.graph import Graph
from superkernel.registry.records import Estimate
from superkernel.registry.score import MEASURED, MODEL, times_of
from superkernel.target.cpu import CpuTarget
from superkernel.target.timings import NO_TIMINGS, Timings, load_timings, settled_ns, timing_key, timings_text


@pytest.fixture
def own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data directory in which nothing was measured; the profile is the default."""
    monkeypatch.setenv("SK_MACHINE", "default")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    forget_cpu()
    yield tmp_path
    monkeypatch.undo()
    forget_cpu()


def small_graph() -> Graph:
    """A product of which several kernels compete, and a program."""
    builder = GraphBuilder("small")
    rng = np.random.default_rng(3)
    x = builder.input("x", (4, 32, 32))
    y = builder.input("y", (4, 32, 32))
    weight = builder.constant(rng.standard_normal((32, 48)).astype(np.float32))
    builder.output(builder.relu(x @ y) @ weight)
    return builder.graph()


def invented(monkeypatch: pytest.MonkeyPatch, slow: str = "") -> list[TuningCandidate]:
    """Measuring that takes no time: every candidate takes what is predicted, those of a kernel `slow` ten times that.
    The candidates that were measured."""
    asked: list[TuningCandidate] = []

    def measured_ns(group: list[TuningCandidate]) -> list[float | None]:
        asked.extend(group)
        return [c.tiling.cost_ns(c.body, 0, c.tiling.units, c.target) * (10 if c.kernel == slow else 1) for c in group]

    monkeypatch.setattr(tuning, "measured_ns", measured_ns)
    return asked


def test_a_second_run_measures_nothing_new(own_machine: Path) -> None:
    first = tune(small_graph(), threads=1, budget_s=120)
    assert first.measured > 0
    assert first.left == first.known == 0
    second = tune(small_graph(), threads=1)
    assert (second.measured, second.left, second.changes) == (0, 0, ())
    assert 0 < second.known <= first.measured, "what is not chosen any more has no candidates"
    assert second.comparison is None
    kept = machine.kept_timings()
    assert len(kept.ns) == first.measured
    assert all(ns >= 1 for ns in kept.ns.values())
    assert detect_cpu().timings == kept


def _rivals(kernel: Any, subop: int) -> int:
    """Kernels that compete for a sub-operator."""
    selection = kernel.explain(subop).selection
    return len({c.row.kernel for c in selection.eligible if c.row.role is selection.chosen.role})


def test_what_was_measured_slow_is_not_chosen(own_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = small_graph()
    before = superkernel.compile(graph, threads=1)
    at = next(i for i in range(2) if _rivals(before, i) > 1)
    chosen = before.explain(at)
    assert "(model)" in chosen.selection.text
    asked = invented(monkeypatch, slow=chosen.kernel)
    tuned = tune(graph, threads=1)
    after = superkernel.compile(graph, threads=1)
    assert after.explain(at).kernel != chosen.kernel
    assert "(measured)" in after.explain(at).selection.text
    assert after.explain(at).selection.to_json()["time_source"] == "measured"
    assert tuned.changes
    assert tuned.comparison is not None
    assert after.explain(at).kernel in {c.kernel for c in asked}, "what is chosen was measured"
    inputs = [np.random.default_rng(1).standard_normal((4, 32, 32)).astype(np.float32) for _ in range(2)]
    np.testing.assert_allclose(after(*inputs), before(*inputs), rtol=1e-5, atol=1e-4)


def test_measured_tilings_decide_among_themselves_only(own_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ten times as slow: nothing is chosen otherwise, also not the number of cores."""
    builder = GraphBuilder("wide")
    x = builder.input("x", (256, 256))
    builder.output(x @ builder.constant(np.ones((256, 256), np.float32)))
    graph = builder.graph()
    invented(monkeypatch)
    plain = tuning.measured_ns

    def slower(group: list[TuningCandidate]) -> list[float | None]:
        return [None if ns is None else 10 * ns for ns in plain(group)]

    monkeypatch.setattr(tuning, "measured_ns", slower)
    tuned = tune(graph, threads=2)
    assert tuned.measured > 0
    assert tuned.changes == ()


def test_a_budget_ends_it_and_the_rest_is_measured_later(own_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = invented(monkeypatch)
    none = tune(small_graph(), threads=1, budget_s=0)
    assert none.measured == 0
    assert none.left > 0
    assert not asked
    assert "run it again" in none.text()
    rest = tune(small_graph(), threads=1)
    assert rest.measured >= none.left
    assert rest.left == 0


def test_what_was_measured_before_an_interruption_is_kept(own_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def measured_ns(group: list[TuningCandidate]) -> list[float | None]:
        calls.append(group)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return [100.0] * len(group)

    monkeypatch.setattr(tuning, "measured_ns", measured_ns)
    with pytest.raises(KeyboardInterrupt):
        tune(small_graph(), threads=1)
    assert set(machine.kept_timings().ns) == {c.key for c in calls[0]}


@pytest.mark.parametrize("threads", [0, -1, 65, 1.5])
def test_numbers_of_threads_that_are_none(own_machine: Path, threads: Any) -> None:
    with pytest.raises(InputError, match="bad number of threads"):
        tune(small_graph(), threads=threads)


def test_measuring_again_replaces(own_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    invented(monkeypatch)
    first = tune(small_graph(), threads=1)
    before = machine.kept_timings()
    monkeypatch.setattr(tuning, "measured_ns", lambda group: [5.0] * len(group))
    assert tune(small_graph(), threads=1).measured == 0
    again = tune(small_graph(), threads=1, again=True)
    assert again.measured >= first.measured
    assert set(before.ns) <= set(machine.kept_timings().ns)
    assert set(machine.kept_timings().ns.values()) == {5.0}


def test_the_profile_of_another_machine_has_no_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tests/conftest.py` names one."""
    assert machine.timings_path() is None
    assert machine.kept_timings() == NO_TIMINGS
    with pytest.raises(MachineError, match="cannot be kept"):
        tune(small_graph(), threads=1)


def test_times_are_part_of_what_a_target_is() -> None:
    cpu = CpuTarget("x86_64", "avx512", "", 64, 32)
    one = replace(cpu, timings=Timings({"a": 1.0}))
    assert one == replace(cpu, timings=Timings({"a": 1.0}))
    assert hash(one) == hash(replace(cpu, timings=Timings({"a": 1.0})))
    assert one != cpu
    assert repr(one) != repr(cpu)
    assert repr(one) != repr(replace(cpu, timings=Timings({"a": 2.0})))


def test_what_is_not_clearly_faster_changes_nothing() -> None:
    assert settled_ns(94.0, 100.0) == 94.0
    assert settled_ns(130.0, 100.0) == 130.0
    assert all(100.0 < settled_ns(ns, 100.0) < 100.001 for ns in (95.0, 99.0, 100.0))
    slow, fast = (Estimate(ns, measured=True, modelled_ns=liked) for ns, liked in ((100.0, 50.0), (97.0, 60.0)))
    source, times = times_of([fast, slow])
    assert source == MEASURED
    assert times[1] == 100.0 < times[0]
    assert times_of([replace(fast, time_ns=80.0), slow]) == (MEASURED, [80.0, 100.0])
    assert times_of([replace(fast, measured=False), slow]) == (MODEL, [97.0, 100.0])


def test_a_time_is_of_where_constants_come_from() -> None:
    cpu = CpuTarget("x86_64", "avx512", "", 64, 32, l2_bytes=100, l3_bytes=1000)
    near = replace(cpu, timings=Timings({timing_key("code", "l2"): 7.0}))
    assert near.measured_ns(lambda: "code", 100) == 7.0
    assert near.measured_ns(lambda: "code", 101) is None
    assert near.measured_ns(lambda: "other", 100) is None
    assert replace(near, constants_bytes=2000).measured_ns(lambda: "code", 100) is None
    assert [cpu.constants_from(n) for n in (100, 101, 1001)] == ["l2", "l3", "memory"]


def test_files_of_times(tmp_path: Path) -> None:
    path = tmp_path / "x.timings"
    times = Timings({"b": 2.5, "a": 1.0})
    path.write_text(timings_text(times, "me", "these"))
    assert load_timings(path, "me", "these") == times
    assert load_timings(path, "other", "these") == load_timings(path, "me", "others") == NO_TIMINGS
    data = json.loads(path.read_text())
    wrong: list[Any] = [[], {**data, "schema": 2}, {**data, "more": 1}, {**data, "kind": "machine"}]
    wrong += [{**data, "ns": {"a": value}} for value in (0, -1.0, True, "1", None)] + [{**data, "ns": []}]
    for value in [*map(json.dumps, wrong), "no JSON", '{"kind"']:
        path.write_text(value)
        with pytest.raises(FileFormatError):
            load_timings(path, "me", "these")


def test_a_broken_file_is_passed_over_with_a_warning(own_machine: Path) -> None:
    path = machine.timings_path()
    assert path is not None
    path.parent.mkdir(parents=True)
    path.write_text("broken")
    with pytest.warns(machine.MachineWarning, match="no measured times are used"):
        assert machine.kept_timings() == NO_TIMINGS


def test_command(own_machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from superkernel.frontends.json_form import save_json

    model = own_machine / "small.json"
    save_json(small_graph(), model)
    invented(monkeypatch)
    assert main(["tune", str(model), "--threads", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "superkernel.tuned/1"
    assert found["measured"] > 0
    assert set(found) - {"schema"} == set(Tuned.__dataclass_fields__)
    assert main(["tune", str(model), "--threads", "1"]) == 0
    assert "0 candidates measured" in capsys.readouterr().out
    assert main(["tune", str(model), "--target", "a3"]) == 2
    assert "tuning is of the host" in capsys.readouterr().err
    for budget in ("-1", "nan", "inf"):
        assert main(["tune", str(model), f"--budget={budget}"]) == 2
        assert "seconds >= 0" in capsys.readouterr().err
