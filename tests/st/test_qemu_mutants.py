"""Synchronisation on the emulator, one thing left out at a time: what is needed is missed at once, what is not has a
reason, and the program as it is raises no alarm. `pytest --mutants N --plain N` for more than a glance."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from firmware_bench import needs_qemu

import superkernel as sk
from superkernel import cli
from superkernel.analysis.crosscheck import crosscheck
from superkernel.analysis.mutation import KINDS, UNNOTICED, MutationTest
from superkernel.backends.aicore.qemu_events import EventOrder
from superkernel.backends.aicore.qemu_order import LaunchOrder
from superkernel.backends.aicore.qemu_schedule import EngineSchedule, Fault
from superkernel.core.errors import InputError, SimulationError, UnsupportedError, WatchdogError
from superkernel.frontends.json_form import save_json
from superkernel.reference.random_inputs import random_inputs
from superkernel.runtime.kernel import Kernel
from superkernel.sim.trace import COMMAND, FLOW_IN, records
from superkernel.target.engines import Engine

pytestmark = needs_qemu


@cache
def encoder() -> tuple[Any, dict[str, Any], MutationTest]:
    graph = models.transformer(layers=1, tokens=16, width=64, heads=4)
    kernel, inputs = sk.compile(graph, target="mini"), random_inputs(graph.inputs, 0)
    return kernel, inputs, MutationTest(kernel, inputs)


@pytest.mark.timeout(3600)
def test_mutants_are_noticed_and_right_programs_are_not(request: pytest.FixtureRequest, capsys: Any) -> None:
    mutants, plain = (int(request.config.getoption(o)) for o in ("--mutants", "--plain"))
    table = encoder()[2].table(mutants, plain, seed=3)
    with capsys.disabled():
        print(f"\n{table.text()}")
    assert table.ok, table.text()
    assert len(table.needed) == mutants
    assert {t.mutant.kind for t in table.needed} >= set(KINDS) - {"drain"}
    assert {"numbers", "watchdog", "flags"} <= {t.noticed for t in table.needed}
    assert all(t.mutant.equivalent in table.text() for t in table.tried)


def test_a_run_alone_is_no_alarm_and_a_mutant_is() -> None:
    """The canary: a table of mutants that nobody notices would not pass."""
    test = encoder()[2]
    assert test.outcome(EngineSchedule("late")) == UNNOTICED
    first = next(m for m in test.draw(40, 0) if m.kind == "cross order" and not m.equivalent)
    assert [test.outcome(s) for s in first.attempts].count(UNNOTICED) < len(first.attempts)


def test_mutants_by_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_json(models.mlp(), tmp_path / "m.json")
    words = ["crosscheck", str(tmp_path / "m.json"), "--timings", "late", "--mutants", "6", "--plain", "2", "--json"]
    status = cli.main(words)
    result = json.loads(capsys.readouterr().out)
    assert status == 0, result
    assert result["mutants"]["mutants"] == 6
    assert result["mutants"]["runs"] == 2
    assert result["mutants"]["false_alarms"] == []


# ---- order of events


def test_links_are_needed_or_implied() -> None:
    """With all links every conflict is ordered; without those of one core between its engines many are not."""
    order = encoder()[2].order
    assert len(order.conflicts) > 1000
    assert order.without([]) == []
    own = [link for link in order.links if link.kind == "flag" and link.commands[0].hart == 0]
    assert len(order.without(own)) > 100
    needed = [link for link in own if order.without([link])]
    assert 0 < len(needed) < len(own)
    assert not any(order.implied(link) for link in needed)


def test_a_log_without_a_wait_is_a_race() -> None:
    """The order finds what the compiler would have left out."""
    test = encoder()[2]
    log = [[c for c in test.order.commands if c.hart == hart] for hart in range(test.target.cores)]
    kept = [[c for c in row if not (c.hart == 2 and c.engine is Engine.V and c.command.name == "wait_flag")]
            for row in log]  # fmt: skip
    with pytest.raises(SimulationError, match="nothing orders"):
        _ = LaunchOrder(kept, test.target).conflicts


def test_events_agree_with_the_simulator_and_changed_ones_do_not() -> None:
    kernel, inputs, test = encoder()
    executable, io = kernel.emulation(inputs)
    trace = records(executable.program.simulate(io, trace=True).launches[0].trace)
    _, run = kernel.emulate(inputs, EngineSchedule("random", 4), log=True)
    assert EventOrder(test.order, trace).pairs > 1000
    assert EventOrder(test.order, trace).disagreements(run.logs[0]) == []

    data = np.flatnonzero(trace["kind"] == COMMAND)
    gone = np.delete(trace, data[len(data) // 2])
    assert any("other commands" in text for text in EventOrder(test.order, gone).disagreements(run.logs[0]))
    late = trace.copy()
    late["end"][data] += 1_000_000
    assert any("other way round" in text for text in EventOrder(test.order, late).disagreements(run.logs[0]))
    waits = trace.copy()
    waits["detail"][np.flatnonzero(trace["kind"] == FLOW_IN)[0]] ^= 1
    assert any("flags waited for" in text for text in EventOrder(test.order, waits).disagreements(run.logs[0]))
    short = [row[:-1] for row in run.logs[0]]
    assert EventOrder(test.order, trace).disagreements(short) == ["a hart issues other commands than in another run"]


# ---- reports


def test_a_report_for_every_hart_at_once() -> None:
    """Without one signal others wait for ever: seen in a fraction of the watchdog's time, said of every hart."""
    kernel, inputs, test = encoder()
    signal = next(c for c in test.order.commands if c.command.name == "cross_set")
    with pytest.raises(WatchdogError, match="nothing can wake one") as caught:
        kernel.emulate(inputs, EngineSchedule("now", watchdog_s=60.0, fault=Fault(signal.hart, (signal.order,))))
    harts = kernel._executable.target.cores + kernel._executable.target.device.aicpu_harts
    assert len(caught.value.violations) == 1 + harts
    for hart in range(harts):
        mine = [v for v in caught.value.violations if (v.location or "").startswith(f"core {hart} ")]
        assert len(mine) == 1
        assert "sub-operator" in mine[0].location
        assert ", pc 0x" in mine[0].location
        assert "wait" in mine[0].message
    flag = signal.command.numbers["flag"]
    messages = [v.message for v in caught.value.violations]
    assert f"waits for cross-core flag {flag}, of which no core has begun another signal" in messages
    assert any(f"which in mode all lacks core {signal.hart} (" in message for message in messages)


def test_impossible_faults_are_refused() -> None:
    for wrong in ({"hart": -1}, {"hart": 0, "leave_out": (1, 2, 3)}, {"hart": 0, "unwaited": -1}):
        with pytest.raises(InputError):
            Fault(**wrong)
    with pytest.raises(InputError):
        EngineSchedule("now", eager=((0, Engine.V),))
    with pytest.raises(InputError):
        EngineSchedule("late", pause_us=-1)


def two_launches() -> sk.Graph:
    b = sk.GraphBuilder("two")
    b.output(b.relu(b.lrn(b.relu(b.input("x", (1, 16, 8, 8))), size=3)), "y")
    return b.graph()


def test_mutants_of_several_launches_are_refused() -> None:
    with pytest.warns(sk.FallbackWarning):
        kernel = sk.compile(two_launches(), target="mini")
    with pytest.raises(UnsupportedError, match="more than one launch") as caught:
        MutationTest(kernel, random_inputs(kernel.inputs, 0))
    assert caught.value.violations[0].location == "kernel 'two'"
    assert "2 launches: " in caught.value.violations[0].found


@pytest.mark.parametrize("asked", ["mutants", "plain"])
def test_they_are_refused_ahead_of_any_run(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where none are asked for, several launches are no reason to refuse."""

    def run(*_: Any, **__: Any) -> Any:
        raise AssertionError("something ran")

    for where in ("crosscheck._Checker", "crosscheck.evaluate", "mutation.LaunchOrder"):
        monkeypatch.setattr(f"superkernel.analysis.{where}", run)
    monkeypatch.setattr(Kernel, "run", run)
    options: Any = {"fallback": "allow"}
    with pytest.raises(UnsupportedError, match="more than one launch"):
        crosscheck(two_launches(), {}, options=options, **{asked: 1})  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="something ran"):
        crosscheck(two_launches(), {}, options=options)
