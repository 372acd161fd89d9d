"""A launch that hangs ends in bounded time and says who waits for whom, for what, and where the chain of waits ends: on
the host and on the simulator (the emulator: test_qemu.py)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from host_changes import X, chain, image_of

import superkernel as sk
from superkernel.backends import fallback
from superkernel.backends.host.compiled import HostCompiled
from superkernel.backends.host.executable import HostExecutable
from superkernel.backends.host.hang import Waiting, who_waits
from superkernel.core.errors import SimulationError, Violation, WatchdogError
from superkernel.sync.plan import Plan, Set, Step, Wait

SURELY_LATER_MS = 2000.0  # than a core that runs at all comes to its wait, however busy the machine
pytestmark = pytest.mark.filterwarnings("ignore::superkernel._core.OversubscriptionWarning")


def compiled_for(threads: int, **options: object) -> HostCompiled:
    compiled = sk.compile(chain(), threads=threads, options={"cost_placement": False, **options})._compiled
    assert isinstance(compiled, HostCompiled)
    return compiled


def but(plan: Plan, core: int, keep: Callable[[Step], bool]) -> Plan:
    """The plan, of one core's steps only those to keep."""
    programs = list(plan.programs)
    programs[core] = tuple(filter(keep, programs[core]))
    return replace(plan, programs=tuple(programs))


def hang(compiled: HostCompiled, plan: Plan, seed: int = 0, watchdog_ms: float = 0.0) -> list[Violation]:
    executable = HostExecutable(image_of(compiled, plan), compiled.schedule, compiled.plan, watchdog_ms)
    with pytest.raises(WatchdogError) as caught:
        executable.run_late([X, np.zeros_like(X)], seed) if seed else executable.run([X, np.zeros_like(X)])
    return list(caught.value.violations)


def tensors(compiled: HostCompiled) -> set[str]:
    return {value for sub in compiled.schedule.subops for value in sub.values}


@pytest.mark.parametrize("seed", [0, 1])
def test_all_cores_that_wait_are_named_and_the_core_that_does_not(seed: int) -> None:
    """A core that makes no sets comes to its end; whoever waits for it, or for those, is told with the reason."""
    compiled = compiled_for(3)
    plan = compiled.plan
    silent = max(range(3), key=lambda core: sum(r.wait.producer == core for r in plan.reasons))
    broken = but(plan, silent, lambda step: not isinstance(step, (Set, Wait)))
    waiters = {r.core for r in plan.reasons if r.wait.producer == silent}
    *found, last = hang(compiled, broken, seed)
    assert found[0].message == "no core can go on"
    assert {v.location.partition(",")[0] for v in found} >= {f"core {core}" for core in waiters}
    assert silent not in waiters
    assert f"core {silent}" == last.location
    assert last.message == "does not wait itself"
    assert f"waits for core {silent}; behind its set 0 stands sub-operator 0 (" in last.found
    first = next(v for v in found if v.expected.startswith(f"core {silent} at set 1, behind sub-operator "))
    assert first.found == f"core {silent} at set 0"
    assert any(f"of {name!r}" in first.hint for name in tensors(compiled))
    assert "read-after-write" in first.hint or "write-after" in first.hint
    assert "comes first" in first.hint


@pytest.mark.parametrize("seed", [0, 1])
def test_a_circle_of_waits_is_named(seed: int) -> None:
    """Full barriers, and core 1 makes no set: it waits at the second barrier for core 0, which waits at the first."""
    compiled = compiled_for(2, sync="full")
    *found, last = hang(compiled, but(compiled.plan, 1, lambda step: not isinstance(step, Set)), seed)
    assert {v.location.partition(",")[0] for v in found} == {"core 0", "core 1"}
    assert all(v.hint == "barrier asked for" for v in found)
    assert last.message == "deadlock: a circle of waits"
    assert last.location == "cores [0, 1]"
    assert last.found in ("core 0 waits for core 1 waits for core 0", "core 1 waits for core 0 waits for core 1")


def test_a_core_at_work_is_told_from_one_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's part of core 0 takes longer than the watchdog allows: it is what the others wait for."""
    compiled = compiled_for(2, deny=("host.softmax",), fallback="allow", sync="full")
    compute = fallback.compute

    def slowly(*arguments: object) -> None:
        time.sleep(1.5 * SURELY_LATER_MS / 1000)
        compute(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(fallback, "compute", slowly)
    *found, last = hang(compiled, compiled.plan, watchdog_ms=SURELY_LATER_MS)
    assert "did not finish within the watchdog time of 2000 ms" in found[0].message
    assert [v.location.partition(",")[0] for v in found] == ["core 1"]
    assert last.location == "core 0"
    softmax = next(s for s in compiled.schedule.subops if s.body.op == "softmax")
    assert last.found.startswith("core 1 waits for core 0; ")
    assert f"stands sub-operator {softmax.index} ('{softmax.name}')" in last.found


def test_chains_are_followed_to_their_ends() -> None:
    compiled = compiled_for(3, sync="full")
    plan, schedule = compiled.plan, compiled.schedule
    waits = [Waiting(0, 0, 1, 1, 0), Waiting(1, 1, 2, 1, 0), Waiting(2, 2, 1, 2, 0)]
    *_, last = who_waits("it hangs", waits, plan, schedule)
    assert last.location == "cores [1, 2]"
    assert last.found == "core 1 waits for core 2 waits for core 1"
    *_, last = who_waits("it hangs", waits[:2], plan, schedule)
    assert last.found.startswith("core 0 waits for core 1 waits for core 2; behind its set 0 stands")
    (alone,) = who_waits("it hangs", [], plan, schedule)
    assert alone == Violation("it hangs")


def test_launches_on_the_emulator_have_the_limit_that_is_given() -> None:
    b = sk.GraphBuilder("short")
    b.output(b.relu(b.input("x", (16, 16))), "y")
    graph = b.graph()
    for options, limit_s in (({}, 120), ({"watchdog_ms": 5000}, 5)):
        kernel = sk.compile(graph, target="mini", options=options)
        assert [kernel._emulated(seed).watchdog_s for seed in (0, 7)] == [limit_s] * 2


def test_a_run_on_the_simulator_has_a_limit() -> None:
    """What takes seconds is stopped at the first look at the clock."""
    b = sk.GraphBuilder("long")
    x = b.input("x", (1024, 1024))
    b.output(x @ x, "y")
    graph = b.graph()
    kernels = [sk.compile(graph, target="mini", options={"watchdog_ms": ms}) for ms in (0, 0.001)]
    limits = [kernel._compiled.executable.limit_s for kernel in kernels]
    assert limits == [600, 1e-6]
    with pytest.raises(SimulationError, match="core 0") as caught:
        kernels[1].run([np.zeros((1024, 1024), np.float32)])
    assert caught.value.kind == "time_limit"
