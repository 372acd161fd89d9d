"""Weights brought into L2 by SDMA ahead of their use: where HBM is idle it makes a program faster, by about what was
predicted; where there is nothing to gain `auto` leaves it off and says why; no bit of a result depends on it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from device_programs import DATA, Body, link
from option_sets import Variants

import superkernel as sk
from superkernel.analysis.ablate import ablate, ablation_target
from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.backends.aicore.report import SimReport
from superkernel.codegen.aicore.weight_demand import demands_of, times_of
from superkernel.codegen.aicore.weight_prefetch import _Chooser, plan_weight_prefetch, with_prefetch
from superkernel.core.errors import VerificationError
from superkernel.ir.graph import Graph
from superkernel.reference.random_inputs import random_inputs
from superkernel.runtime.kernel import Kernel
from superkernel.scheduler.families.aicore.conv_form import cube_conv
from superkernel.scheduler.families.aicore.conv_tiling import ConvTiling, range_cycles
from superkernel.sim.device import Device
from superkernel.sync.aicore.mutate import edits
from superkernel.sync.aicore.plan import AicorePlan, AwaitCount, CoreKind, Notify, Prefetch
from superkernel.sync.aicore.verify import check_aicore_plan, verify_aicore
from superkernel.target.aicore import AicoreTarget, load_target
from superkernel.target.engines import Engine

WORD = DATA + 0x20_0000


@cache
def idle_then_weights(rows: int = 256, products: int = 3, width: int = 1024) -> Graph:
    """Vector work on activations, beside which HBM is idle, then products whose weights it has."""
    rng = np.random.default_rng(0)
    b = sk.GraphBuilder("idle_then_weights")
    x = b.input("x", (rows, width))
    for _ in range(3):
        x = b.softmax(x * 2.0)
    h = x[0:16]
    for number in range(products):
        h = h @ b.constant(rng.standard_normal((width, width), np.float32) * 0.03, name=f"w{number}")
    b.output(h, "h")
    b.output(x, "soft")
    return b.graph()


@cache
def weights_all_the_time() -> Graph:
    """Products of one row after the other: all that there is to do is to bring weights."""
    rng = np.random.default_rng(0)
    b = sk.GraphBuilder("weights_all_the_time")
    h = b.input("x", (16, 1024))
    for number in range(3):
        h = h @ b.constant(rng.standard_normal((1024, 1024), np.float32) * 0.03, name=f"w{number}")
    b.output(h, "h")
    return b.graph()


def made(graph: Graph, target: Any = "mini", **options: Any) -> tuple[Kernel, AicoreCompiled]:
    kernel = sk.compile(graph, target=target, options=options)
    compiled = kernel._compiled
    assert isinstance(compiled, AicoreCompiled)
    return kernel, compiled


def run(kernel: Kernel) -> tuple[SimReport, dict[str, bytes]]:
    result = kernel.run(random_inputs(kernel.inputs, 0))
    assert isinstance(result.report, SimReport)
    return result.report, {name: array.tobytes() for name, array in result.outputs.items()}


def lines(report: SimReport) -> dict[str, int]:
    return {fate: report.memory[f"prefetched_{fate}"] for fate in ("timely", "late", "useless", "present")}


def small_l2(nbytes: int) -> AicoreTarget:
    return load_target("mini").replaced({"l2.capacity_bytes": nbytes})


# What it is for -------------------------------------------------------------------------------------------------------


def test_weights_that_come_beside_other_work_make_the_program_faster() -> None:
    plain, without = run(made(idle_then_weights(), weight_prefetch="none")[0])
    kernel, compiled = made(idle_then_weights())
    report, outputs = run(kernel)
    assert outputs == without
    assert report.cycles < 0.75 * plain.cycles
    gained = plain.cycles - report.cycles
    assert 0.5 * gained < compiled.weights.gain_cycles < 1.5 * gained
    found = lines(report)
    asked = compiled.weights.nbytes // 512
    assert found["timely"] > 0.8 * asked
    assert found["useless"] == 0
    assert sum(found.values()) == asked == 3 * 4096
    assert lines(plain) == dict.fromkeys(found, 0)
    assert f"{found['timely']} timely" in report.text()
    assert "prefetched from 'softmax_0'" in kernel.explain("h").text()
    assert kernel.summary()["weight_prefetch"] == "auto"


def test_the_ablation_shows_it_with_its_prediction() -> None:
    rows = {row.name: row for row in ablate(idle_then_weights(), ablation_target("mini")).rows}
    row = rows["weight prefetch"]
    assert row.gain is not None
    assert row.predicted is not None
    assert row.gain > 0.25
    assert row.verdict == ""
    assert 0.6 * row.gain < row.predicted < 1.4 * row.gain


def test_where_l2_is_short_it_comes_no_sooner_than_fits() -> None:
    """The cores tell the service hart how far they are; what is needed sooner is not driven out."""
    graph, target = idle_then_weights(512, 2), small_l2(6 << 20)
    plain, without = run(made(graph, target, weight_prefetch="none")[0])
    kernel, compiled = made(graph, target)
    report, outputs = run(kernel)
    notifies = [s for program in compiled.plan.programs.values() for s in program if isinstance(s, Notify)]
    waits = [s for s in compiled.plan.service[0] if isinstance(s, AwaitCount)]
    assert len(notifies) == len(waits) > 0
    assert outputs == without
    assert lines(report)["useless"] <= 0.02 * sum(lines(report).values())
    assert report.memory["misses"] <= 1.02 * plain.memory["misses"]
    assert report.cycles < plain.cycles


def test_what_is_taken_is_in_time_for_sub_operators_that_come_sooner() -> None:
    """Constants in L2 make a sub-operator faster, and all behind it come sooner: tasks are in time for that."""
    b = sk.GraphBuilder("products")
    widths = (256, 256, 2048, 2048, 2048, 1024, 2048, 512)
    x = b.input("x", (64, widths[0]), "f16")
    for depth, columns in pairwise(widths):
        x = x @ b.constant(np.ones((depth, columns), np.float16))
    b.output(x)
    compiled = made(b.graph(), weight_prefetch="none")[1]
    demands = demands_of(compiled.schedule, compiled.plan, compiled.target)
    chooser = _Chooser(compiled.schedule, demands, compiled.plan, compiled.target, "auto")
    for order in (demands, demands[::-1]):
        taken, times, _ = chooser._taken(order)
        assert len(taken) > 1
        assert chooser._in_time(taken, times)
        sooner = times_of(demands, compiled.plan, compiled.target, [t.demand.subop for t in taken])
        assert times == sooner


def test_a_convolution_gains_what_its_weights_cost_it() -> None:
    """Its image is in L2 by its cost: all that could miss are the weights."""
    b = sk.GraphBuilder("convolution")
    x = b.input("x", (1, 256, 14, 14), "f16")
    b.output(b.conv(x, b.constant(np.ones((256, 256, 3, 3), np.float16)), pads=(1, 1, 1, 1)))
    compiled = made(b.graph(), weight_prefetch="none")[1]
    schedule, target = compiled.schedule, compiled.target
    (index,) = (i for i, t in enumerate(schedule.tilings) if isinstance(t, ConvTiling))
    tiling, body = schedule.tilings[index], schedule.subops[index].body
    assert isinstance(tiling, ConvTiling)
    units = max(t.end - t.begin for t in schedule.tasks if t.subop == index)
    (demand,) = (d for d in demands_of(schedule, compiled.plan, target) if d.subop == index)
    assert demand.cold_cycles == pytest.approx(tiling.cost_cycles(body, 0, units, target))
    assert demand.hit_cycles == pytest.approx(range_cycles(tiling, cube_conv(body), units, target, cold=False))
    assert demand.hit_cycles < 0.9 * demand.cold_cycles


def test_a_program_that_is_launched_again_counts_on() -> None:
    """Words are never set back: a second launch waits for counts of its own."""
    kernel, compiled = made(idle_then_weights(512, 2), small_l2(6 << 20))
    assert any(isinstance(s, AwaitCount) for s in compiled.plan.service[0])
    io = kernel._io(list(kernel._random().values()))
    device = compiled.executable.simulate(io, mode="timing", races=False).device
    cycles = []
    for _ in range(3):
        device.forget_l2()
        result = device.launch(number=0)
        cycles.append((result.cycles, result.memory.prefetched_timely))
    assert cycles.count(cycles[0]) == 3
    assert cycles[0][1] > 0


# Where there is nothing to gain ---------------------------------------------------------------------------------------


def without_constants() -> Graph:
    b = sk.GraphBuilder("none")
    x = b.input("x", (64, 64))
    b.output(b.softmax(x @ x), "y")
    return b.graph()


def resident() -> Graph:
    """A product brings the weights, and others use them again."""
    rng = np.random.default_rng(0)
    b = sk.GraphBuilder("resident")
    h = b.input("x", (16, 1024))
    w = b.constant(rng.standard_normal((1024, 1024), np.float32) * 0.03, name="w")
    for _ in range(3):
        h = h @ w
    b.output(h, "h")
    return b.graph()


@pytest.mark.parametrize(
    ("graph", "fields", "reason"),
    [
        (without_constants, {}, "nothing reads constants"),
        (weights_all_the_time, {"hbm.rate_gb_per_s": 120.0}, "HBM is busy all the time ahead of it"),
        (resident, {}, "there is not enough time ahead of it"),
        (idle_then_weights, {"device.sdma_engines": 0}, "no SDMA engine"),
        (idle_then_weights, {"device.aicpu_harts": 0}, "no aicpu hart left"),
        (idle_then_weights, {"hbm.core_bytes_per_cycle": 256, "hbm.latency_ns": 1}, "come as fast as"),
    ],
)
def test_auto_leaves_it_off_and_says_why(graph: Any, fields: dict[str, Any], reason: str) -> None:
    kernel, compiled = made(graph(), load_target("mini").replaced(fields))
    assert compiled.weights.strength == "none"
    assert reason in compiled.weights.reason
    assert compiled.plan.service == ()
    assert not any(isinstance(s, Notify) for program in compiled.plan.programs.values() for s in program)
    io = kernel._io(list(kernel._random().values()))
    run_ = compiled.executable.simulate(io, mode="timing", races=False)
    assert run_.launches[0].sdma.commands == 0
    off = made(graph(), load_target("mini").replaced(fields), weight_prefetch="none")[1]
    assert off.image.elf == compiled.image.elf


def test_what_an_earlier_sub_operator_brought_is_not_asked_for() -> None:
    _, compiled = made(resident(), weight_prefetch="max")
    products = [s.index for s in compiled.schedule.subops if s.kernel.startswith("aicore.matmul")]
    assert len(products) == 3
    assert set(compiled.weights.notes) == {products[0]}


def test_no_setting_changes_a_bit() -> None:
    variants = Variants(idle_then_weights(64, 2, 256), "mini")
    found = {
        (sync, strength): variants.results(
            variants.made({"weight_prefetch": strength, "sync": sync, "early_start": sync == "minimal"})
        )
        for sync in ("minimal", "full")
        for strength in ("none", "auto", "max")
    }
    assert all(outputs == found["minimal", "none"] for outputs in found.values())
    kernel, _ = made(idle_then_weights(64, 2, 256), weight_prefetch="none")
    assert run(kernel)[1] == found["minimal", "none"], "the shortcut computes what a compilation does"


@pytest.mark.skipif(shutil.which("qemu-system-riscv64") is None, reason="no qemu-system-riscv64")
def test_the_emulator_runs_the_same_bytes() -> None:
    kernel, compiled = made(idle_then_weights(512, 2), small_l2(6 << 20))
    assert compiled.weights.tasks
    inputs = random_inputs(kernel.inputs, 0)
    simulated = kernel.run(inputs)
    emulated = kernel.run(inputs, executor="qemu")
    for name, array in simulated.outputs.items():
        assert array.tobytes() == emulated.outputs[name].tobytes()


# The verifier ---------------------------------------------------------------------------------------------------------


@cache
def _plan() -> AicorePlan:
    return made(idle_then_weights(512, 2), small_l2(6 << 20))[1].plan


def _service(plan: AicorePlan, change: Any) -> AicorePlan:
    return replace(plan, service=(tuple(change(list(plan.service[0]))), *plan.service[1:]))


def _programs(plan: AicorePlan, change: Any) -> AicorePlan:
    return replace(plan, programs={kind: tuple(change(list(p))) for kind, p in plan.programs.items()})


def test_the_verifier_accepts_it() -> None:
    verify_aicore(_plan())


def _drop_notify(steps: list[Any]) -> list[Any]:
    return [s for s in steps if not isinstance(s, Notify)]


def _drop_await(steps: list[Any]) -> list[Any]:
    first = next(s for s in steps if isinstance(s, AwaitCount))
    return [s for s in steps if s is not first]


def _twice(steps: list[Any]) -> list[Any]:
    return [s for step in steps for s in ((step, step) if isinstance(step, Notify) else (step,))]


def _prefetches(**fields: Any) -> Any:
    return lambda steps: [replace(s, **fields) if isinstance(s, Prefetch) else s for s in steps]


FAULTY: dict[str, tuple[Any, str]] = {
    "nobody notifies": (lambda p: _programs(p, _drop_notify), "deadlock: nobody notifies so often"),
    "a count too high": (lambda p: _service(p, lambda s: [AwaitCount(CoreKind.CUBE, 9), *s]), "deadlock: nobody"),
    "an await left out": (lambda p: _service(p, _drop_await), "a notification that nobody awaits"),
    "no service": (lambda p: replace(p, service=()), "a notification that nobody awaits"),
    "notified twice": (lambda p: _programs(p, _twice), "notifications are not counted from 1"),
    "of no constants": (lambda p: _service(p, _prefetches(offset=1 << 30)), "does not read"),
    "of nothing": (lambda p: _service(p, _prefetches(nbytes=0)), "does not read"),
    "for nobody": (lambda p: _service(p, _prefetches(subop=999)), "a prefetch for another launch"),
    "too late": (lambda p: _service(p, _prefetches(subop=0)), "a prefetch waits until its use is over"),
    "backwards": (lambda p: _service(p, lambda s: [*s, *(replace(a, count=0) for a in s[:1])]), "deadlock: nobody"),
    "no launch": (lambda p: replace(p, service=(*p.service, p.service[0])), "service programs without a launch"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_the_verifier_refuses(name: str) -> None:
    inject, message = FAULTY[name]
    with pytest.raises(VerificationError, match=message):
        verify_aicore(inject(_plan()))


def test_no_step_can_be_left_out() -> None:
    plan = _plan()
    tried = list(edits(plan))
    assert any("notify" in name for name, _ in tried)
    assert any("service" in name for name, _ in tried)
    assert [name for name, faulty in tried if check_aicore_plan(faulty)[1] is not None] == []


def test_planning_twice_gives_the_same() -> None:
    _, compiled = made(idle_then_weights())
    bare = made(idle_then_weights(), weight_prefetch="none")[1].plan
    again = plan_weight_prefetch(compiled.schedule, bare, compiled.target)
    assert str(with_prefetch(bare, again)) == str(compiled.plan)


def test_the_order_in_which_tasks_were_chosen_does_not_matter() -> None:
    _, compiled = made(idle_then_weights(products=4))
    bare = made(idle_then_weights(products=4), weight_prefetch="none")[1].plan
    chosen = plan_weight_prefetch(compiled.schedule, bare, compiled.target, "max")
    releases = [7, 5, 6]  # behind different sub-operators, the last ones first
    tasks = tuple(
        replace(task, release=min(at, task.demand.subop)) for task, at in zip(chosen.tasks, releases, strict=False)
    )
    assert len({task.release for task in tasks}) > 1
    plans = [with_prefetch(bare, replace(chosen, tasks=order)) for order in (tasks, tasks[::-1])]
    assert str(plans[0]) == str(plans[1])
    for plan in plans:
        assert check_aicore_plan(plan)[1] is not None


# Counters -------------------------------------------------------------------------------------------------------------


def test_every_line_has_one_fate() -> None:
    """A device program: lines that are there in time, on their way, there before, overwritten, never used."""
    mini = load_target("mini")
    sdma = Body().do("sdma_prefetch", address=DATA, bytes=8192)
    sdma.do("sdma_prefetch", address=DATA, bytes=512)  # there already
    sdma.do("sdma_prefetch", address=DATA + 65536, bytes=4096)  # for nobody
    sdma.do("sdma_prefetch", address=DATA + 81920, bytes=2048)  # to be overwritten
    sdma.do("notify", Engine.SDMA, address=WORD, value=1, mode="store").do("wait_memory", address=WORD, value=1)
    sdma.do("sdma_prefetch", address=DATA + 131072, bytes=65536)
    sdma.do("notify", Engine.SDMA, address=WORD, value=2, mode="store").do("wait_memory", address=WORD, value=2)
    reader = Body().do("wait_memory", address=WORD, value=1).do("gm_to_ub", src=DATA, dst=0, bytes=8192).drain()
    reader.do("ub_to_gm", src=0, dst=DATA + 81920, bytes=2048)
    reader.do("gm_to_ub", src=DATA + 131072, dst=8192, bytes=65536).drain()
    device = Device(mini, link({6: sdma, 3: reader}))
    device.write(DATA, bytes(1 << 20))
    device.write(WORD, bytes(8))
    memory = device.launch().memory
    assert memory.prefetched_useless == (4096 + 2048) // 512
    assert memory.prefetched_timely >= 8192 // 512
    used = memory.prefetched_timely + memory.prefetched_late
    assert used + memory.prefetched_present == (8192 + 512 + 65536) // 512
    assert memory.prefetched_present >= 1


# The host -------------------------------------------------------------------------------------------------------------


def test_on_the_host_workers_prefetch_while_they_wait() -> None:
    rng = np.random.default_rng(0)
    b = sk.GraphBuilder("host")
    h = b.input("x", (2, 512))
    for number in range(3):
        h = b.relu(h @ b.constant(rng.standard_normal((512, 512), np.float32) * 0.03, name=f"w{number}"))
    b.output(h, "h")
    found = {}
    for strength in ("none", "auto"):
        kernel = sk.compile(b.graph(), threads=2, options={"weight_prefetch": strength, "cost_placement": False})
        found[strength] = (
            kernel.run(random_inputs(kernel.inputs, 0)).outputs["h"].tobytes(),
            kernel.explain("h").prefetch,
        )
    assert found["none"][0] == found["auto"][0]
    assert found["none"][1] == "not prefetched: off"
    assert found["auto"][1].startswith("prefetched while waiting: core ")
