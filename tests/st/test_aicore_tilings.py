"""Tilings that depend on data, end to end on the accelerator: an aicpu hart computes them beside the cores.

Mixture-of-experts layers and ragged attention against the reference; all options give the same bits; what plans say of
the hart is checked by removing it, piece by piece: the verifier refuses, and the simulator notices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from models import mlp, moe_layer, ragged_attention
from numpy.typing import NDArray

import superkernel as sk
from superkernel.analysis.ablate import ablate
from superkernel.analysis.crosscheck import crosscheck
from superkernel.backends.aicore.qemu_process import find_qemu
from superkernel.backends.aicore.qemu_schedule import EngineSchedule
from superkernel.backends.aicore.variants import unverified_program
from superkernel.builder import GraphBuilder
from superkernel.codegen.aicore.kernels import grouped as grouped_code
from superkernel.core.errors import SimulationError
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate
from superkernel.scheduler.families.aicore.base import AicoreKernelType
from superkernel.sim.device import Device
from superkernel.sync.aicore.plan import AICPU, AicorePlan, Await, Mode, Run, Signal
from superkernel.sync.aicore.verify import check_aicore_plan
from superkernel.target.aicore import load_target

Array = NDArray[Any]
OPTIONS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "tilings on the host": {"tiling": "host"},
    "full sync": {"sync": "full"},
    "type ranges": {"sync": "type-range"},
    "no early start": {"early_start": False},
    "nothing overlaps": {"debug_sync_all": True},
    "no preload, copies": {"preload": "none", "split": 2},
    "a launch each": {"launches": "single"},
}
SMALL: dict[str, Any] = {"tokens": 16, "width": 64, "inner": 64}
COUNTS = {
    "even": [8, 8, 8, 8],
    "one expert": [0, 32, 0, 0],
    "nobody": [0, 0, 0, 0],
    "uneven": [1, 0, 17, 9],
}


def has_qemu() -> bool:
    try:
        find_qemu()
    except sk.MachineError:
        return False
    return True


needs_qemu = pytest.mark.skipif(not has_qemu(), reason="no qemu-system-riscv64")


def grouped(experts: int = 4, rows: int = 32) -> Graph:
    """A product whose counts a control unit computes, between pointwise work."""
    rng = np.random.default_rng(0)
    b = GraphBuilder("grouped")
    x, counts = b.input("x", (rows, 48)), b.input("counts", (experts,), "i64")
    w = b.constant(rng.standard_normal((experts, 48, 80), np.float32) / 7)
    b.output(b.relu(b.grouped_matmul(b.relu(x), w, counts * 1 + 0)), name="y")
    return b.graph()


def grouped_inputs(counts: list[int], rows: int = 32) -> dict[str, Array]:
    x = np.random.default_rng(1).standard_normal((rows, 48), np.float32)
    return {"x": x, "counts": np.array(counts)}


def ragged_inputs(lengths: list[int], tokens: int = 32, width: int = 128) -> dict[str, Array]:
    x = np.random.default_rng(1).standard_normal((len(lengths), tokens, width), np.float32)
    return {"x": x, "present": (np.arange(tokens) < np.array(lengths)[:, None]).astype(np.int32)}


def moe_inputs(tokens: int = 32, width: int = 256) -> dict[str, Array]:
    """Inputs whose routing f16 does not change."""
    return {"x": np.random.default_rng(1).standard_normal((tokens, width), np.float32)}


def compiled(graph: Graph, **options: Any) -> sk.Kernel:
    return sk.compile(graph, "mini", options={"fallback": "forbid", **options})


def plan_of(kernel: sk.Kernel) -> AicorePlan:
    found: Any = kernel._compiled
    plan: AicorePlan = found.plan
    return plan


def near(kernel: sk.Kernel, graph: Graph, inputs: Mapping[str, Array], bound: float = 6e-3) -> Array:
    got, want = kernel.run(inputs).outputs["y"], evaluate(graph, inputs)["y"]
    assert np.abs(got - want).max() <= bound * max(1.0, np.abs(want).max())
    return got


@pytest.fixture(scope="module")
def kernel() -> sk.Kernel:
    return compiled(grouped())


@pytest.mark.parametrize("name", COUNTS)
def test_all_kinds_of_counts(kernel: sk.Kernel, name: str) -> None:
    near(kernel, grouped(), grouped_inputs(COUNTS[name]))


@pytest.mark.parametrize("lengths", [[32, 32, 32, 32], [3, 32, 0, 17], [0, 0, 0, 0], [0, 0, 0, 32]])
@pytest.mark.parametrize("causal", [False, True])
def test_all_kinds_of_lengths(lengths: list[int], causal: bool) -> None:
    graph = ragged_attention(causal=causal, width=32, heads=2)
    near(compiled(graph), graph, ragged_inputs(lengths, width=32))


@pytest.mark.parametrize("gated", [True, False])
def test_a_mixture_of_experts_in_one_launch(gated: bool) -> None:
    graph = moe_layer(gated=gated, **SMALL)
    inputs = moe_inputs(SMALL["tokens"], SMALL["width"])
    kernel = compiled(graph)
    near(kernel, graph, inputs)
    summary, plan = kernel.summary(), plan_of(kernel)
    assert summary["fallbacks"] == []
    assert summary["boundaries"]["notify"] >= 1
    assert AICPU in plan.programs
    tilings = [s for s in kernel._compiled.schedule.subops if s.body.op == "tile_groups"]
    assert len(tilings) == 1, "products with the same counts and the same cut share a table"
    host = sk.compile(graph, threads=2, options={"fallback": "forbid"})
    np.testing.assert_allclose(host.run(inputs).outputs["y"], evaluate(graph, inputs)["y"], atol=2e-5)


@pytest.mark.parametrize(
    ("graph", "inputs"),
    [
        (grouped(), grouped_inputs(COUNTS["uneven"])),
        (ragged_attention(tokens=16, width=32, heads=2), ragged_inputs([3, 16, 0, 7], 16, 32)),
    ],
    ids=["grouped", "ragged"],
)
def test_options_change_no_bit(graph: Graph, inputs: dict[str, Array]) -> None:
    found = {name: compiled(graph, **options).run(inputs).outputs["y"].tobytes() for name, options in OPTIONS.items()}
    assert len(set(found.values())) == 1, [n for n in found if found[n] != found["as it is"]]


def test_numbers_of_cores_change_no_bit() -> None:
    """Other targets cut products otherwise, but not into other sums; attention divides the same units."""
    fields = {"device.groups": 3, "device.cube_cores": 3, "device.vector_cores": 6}
    wider = load_target("mini").replaced(fields)
    small = ragged_attention(tokens=16, width=32, heads=2), ragged_inputs([9, 1, 16, 2], 16, 32)
    for graph, inputs in ((grouped(), grouped_inputs([9, 1, 0, 22])), small):
        got = [
            sk.compile(graph, target, options={"fallback": "forbid"}).run(inputs).outputs["y"].tobytes()
            for target in (load_target("mini"), wider)
        ]
        assert got[0] == got[1]


def test_without_sinking_the_launch_splits() -> None:
    sunk, host = (compiled(moe_layer(**SMALL), tiling=where) for where in ("sunk", "host"))
    assert AICPU not in plan_of(host).programs
    assert host.summary()["fallbacks"] == ["grouped_matmul_0/tile_groups"]
    assert len(plan_of(host).between) == 1
    assert len(plan_of(sunk).between) == 0
    inputs = moe_inputs(SMALL["tokens"], SMALL["width"])
    assert sunk.run(inputs).outputs["y"].tobytes() == host.run(inputs).outputs["y"].tobytes()


def test_ablation_has_a_step_for_it() -> None:
    """Only where there is something to sink: a launch is saved, the hart may be waited for."""
    found = ablate(grouped(), load_target("mini"), inputs=grouped_inputs(COUNTS["uneven"]))
    rows = {row.name: row for row in found.rows}
    sunk = rows["tiling sinking"]
    assert sunk.split["launch"] * 2 == rows["fused, full sync"].split["launch"]
    for row in found.rows:
        assert sum(row.split.values()) == pytest.approx(row.us, rel=1e-6), row.name
    before = found.rows[found.rows.index(sunk) - 1]
    assert sunk.split["numpy"] == 0 < before.split["numpy"]  # measured on this machine: what remains is simulated
    assert -0.5 < 1 - sunk.us / (before.us - before.split["numpy"]) < 0.5
    plain = ablate(mlp((32, 16), 4), load_target("mini"))
    assert "tiling sinking" not in {row.name for row in plain.rows}


def test_explain_tells_of_tilings(kernel: sk.Kernel) -> None:
    tiling = str(kernel.explain("grouped_matmul_0/tile_groups"))
    assert "kernel aicore.tiling" in tiling
    assert "AICPU on 1 harts" in tiling
    assert "beside the cores" in tiling
    product = str(kernel.explain("grouped_matmul_0"))
    assert "partitioned into 2 shares at run time, by the table of 'grouped_matmul_0/tile_groups'" in product
    assert "word 1 to cube" in product
    host = str(compiled(grouped(), tiling="host").explain("grouped_matmul_0/tile_groups"))
    assert "NumPy between two launches (option tiling='host')" in host


BAD = [([3, -1, 20, 5], "negative"), ([8, 8, 8, 9], "more rows"), ([1 << 40, 0, 0, 0], "more rows")]


@pytest.mark.parametrize(("counts", "told"), BAD)
def test_data_out_of_range_is_told(kernel: sk.Kernel, counts: list[int], told: str) -> None:
    bad = grouped_inputs(counts)
    with pytest.raises(sk.DataError, match=told):
        kernel.run(bad)
    with pytest.raises(sk.DataError, match=told):
        compiled(grouped(), tiling="host").run(bad)
    near(kernel, grouped(), grouped_inputs(COUNTS["even"]))


@needs_qemu
def test_data_out_of_range_is_told_on_the_emulator(kernel: sk.Kernel) -> None:
    with pytest.raises(sk.DataError, match="negative"):
        kernel.emulate(grouped_inputs(BAD[0][0]))


def test_a_length_out_of_range_is_told() -> None:
    b = GraphBuilder("ragged")
    q, lengths = b.input("q", (2, 2, 16, 16)), b.input("lengths", (2,), "i64")
    b.output(b.attention(q, q, q, length=lengths + 0, ragged=True), name="y")
    kernel = compiled(b.graph())
    inputs = {"q": np.ones((2, 2, 16, 16), np.float32), "lengths": np.array([16, 17])}
    with pytest.raises(sk.DataError, match=r"lengths\[1\]"):
        kernel.run(inputs)
    assert (kernel.run({**inputs, "lengths": np.array([16, 0])}).outputs["y"][0] == 1).all()


# The hart's part of the plan -----------------------------------------------------------------------------------------


def notify_steps(plan: AicorePlan) -> list[tuple[Any, int]]:
    """(program, position) of all signals and awaits of words."""
    words = {e.index for e in plan.events if e.mode is Mode.NOTIFY}
    return [
        (kind, at)
        for kind, program in plan.programs.items()
        for at, step in enumerate(program)
        if isinstance(step, (Signal, Await)) and step.event in words
    ]


def without(plan: AicorePlan, kind: Any, at: int) -> AicorePlan:
    program = plan.programs[kind]
    return replace(plan, programs={**plan.programs, kind: (*program[:at], *program[at + 1 :])})


def test_each_signal_and_await_is_needed(kernel: sk.Kernel) -> None:
    """Taken out one by one: the verifier refuses the plan, and on the simulator it hangs, races, or reads too early."""
    plan, inputs = plan_of(kernel), grouped_inputs(COUNTS["uneven"])
    made: Any = kernel._compiled
    io = kernel._io(list(kernel._arrays(inputs).values()))
    steps = notify_steps(plan)
    assert len(steps) == 4
    kinds = set()
    for kind, at in steps:
        broken = without(plan, kind, at)
        wrong, certificate = check_aicore_plan(broken)
        assert wrong
        assert certificate is None
        with pytest.raises(SimulationError) as caught:
            unverified_program(made, broken).simulate(io)
        kinds.add((type(plan.programs[kind][at]), caught.value.kind))
    assert (Signal, "deadlock") in kinds
    assert {kind for step, kind in kinds if step is Await} <= {"race", "unwritten_global_read", "program_failed"}


def test_a_tiling_that_is_not_run_is_noticed(kernel: sk.Kernel) -> None:
    plan = plan_of(kernel)
    at = next(i for i, s in enumerate(plan.programs[AICPU]) if isinstance(s, Run))
    broken = without(plan, AICPU, at)
    assert any("is not run" in str(v) for v in check_aicore_plan(broken)[0])
    io = kernel._io(list(kernel._arrays(grouped_inputs(COUNTS["even"])).values()))
    with pytest.raises(SimulationError):
        unverified_program(kernel._compiled, broken).simulate(io)  # type: ignore[arg-type]


def test_shares_that_overlap_are_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verifier takes the kernel's word that what is divided is disjoint; the simulator does not."""
    given = grouped_code._Grouped.slot
    monkeypatch.setattr(grouped_code._Grouped, "slot", lambda self, slot: given(self, 0))
    with pytest.raises(SimulationError) as caught:
        compiled(grouped()).run(grouped_inputs(COUNTS["uneven"]))
    assert caught.value.kind == "race"


def test_two_harts_that_wait_for_one_another_are_refused(kernel: sk.Kernel) -> None:
    """The cube cores wait for the table before they signal what it is made from."""
    plan = plan_of(kernel)
    first, second = (e.index for e in plan.events if e.mode is Mode.NOTIFY)
    (kind,) = plan.events[first].signallers
    program = [s for s in plan.programs[kind] if s != Signal(first)]
    crossed = replace(plan.events[second], to=kind)
    events = tuple(crossed if e.index == second else e for e in plan.events)
    waits = next(s for p in plan.programs.values() for s in p if isinstance(s, Await) and s.event == second)
    programs = {k: tuple(s for s in p if s != waits) for k, p in plan.programs.items()}
    programs[kind] = (waits, *program, Signal(first))
    wrong, _ = check_aicore_plan(replace(plan, programs=programs, events=events))
    assert any("deadlock" in str(v) for v in wrong)


def test_cross_core_flags_are_refused_to_the_hart(kernel: sk.Kernel) -> None:
    plan = plan_of(kernel)
    words = [e for e in plan.events if e.mode is Mode.NOTIFY]
    flagged = replace(plan, events=tuple(replace(e, mode=Mode.TYPE, to=None) if e in words else e for e in plan.events))
    assert any("no cross-core flags" in str(v) for v in check_aicore_plan(flagged)[0])
    shared = replace(plan, events=tuple(replace(e, flag=0) if e in words else e for e in plan.events))
    assert any("one word" in str(v) for v in check_aicore_plan(shared)[0])


def test_words_count_launches(kernel: sk.Kernel) -> None:
    """On one device, time after time, with other counts: words are never set back."""
    made: Any = kernel._compiled
    program = made.executable
    device = Device(program.target, program.image.elf)
    for name in ("even", "uneven", "nobody"):
        inputs = grouped_inputs(COUNTS[name])
        io = kernel._io(list(kernel._arrays(inputs).values()))
        program.fill(device, io)
        device.launch(number=0)
        program.collect(device, io)
        want = evaluate(grouped(), inputs)["y"]
        assert np.abs(io[2] - want).max() <= 6e-3 * max(1.0, np.abs(want).max())


def test_the_hart_is_an_aicpu_hart(kernel: sk.Kernel) -> None:
    schedule: Any = kernel._compiled.schedule
    tiling = next(t for t in schedule.tilings if t.kernel_type is AicoreKernelType.AICPU)
    tasks = [t for t in plan_of(kernel).tasks if schedule.tilings[t.subop] is tiling]
    assert [t.core for t in tasks] == [load_target("mini").cores]
    bare = load_target("mini").replaced({"device.aicpu_harts": 0})
    with pytest.warns(sk.FallbackWarning, match="tile_groups"):
        without_hart = sk.compile(grouped(), bare)
    inputs = grouped_inputs(COUNTS["uneven"])
    assert without_hart.run(inputs).outputs["y"].tobytes() == kernel.run(inputs).outputs["y"].tobytes()


# The emulator --------------------------------------------------------------------------------------------------------


@needs_qemu
@pytest.mark.parametrize("name", ["moe", "ragged"])
def test_all_executors_agree(name: str) -> None:
    graph, inputs = {
        "moe": (moe_layer(), moe_inputs()),
        "ragged": (ragged_attention(), ragged_inputs([3, 32, 0, 17])),
    }[name]
    found = crosscheck(graph, inputs)
    assert found.ok, found.text()


@needs_qemu
def test_four_and_twenty_harts() -> None:
    many = {"device.groups": 8, "device.cube_cores": 8, "device.vector_cores": 16}
    kernel = sk.compile(grouped(8, 64), load_target("mini").replaced(many), options={"fallback": "forbid"})
    inputs = grouped_inputs([9, 0, 20, 3, 3, 1, 0, 28], 64)
    expected = kernel.run(inputs).outputs["y"]
    outputs, run = kernel.emulate(inputs, EngineSchedule("late"))
    assert len(run.commands) == 25
    assert outputs["y"].tobytes() == expected.tobytes()
