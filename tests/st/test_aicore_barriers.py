"""Kernels whose cores meet inside: on all cores, on fewer than the program has (idle ones join the barriers), without
them; and cores without work, which do their part of the synchronisation all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from firmware_bench import needs_qemu

import superkernel as sk
from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.backends.aicore.kernel import AicoreKernel
from superkernel.backends.aicore.variants import unverified_program
from superkernel.core.errors import SimulationError
from superkernel.scheduler.families.aicore import barrier_reduce
from superkernel.scheduler.families.aicore.barrier_reduce import BarrierReduceTiling
from superkernel.sync.aicore.plan import AicorePlan, CoreKind, Run
from superkernel.sync.aicore.verify import check_aicore_plan
from superkernel.target.aicore import load_target

MINI = load_target("mini")
RNG = np.random.default_rng(0)


def graph_of(kind: str, shape: tuple[int, int]) -> sk.Graph:
    """A softmax, its elements reduced to one number, and all of it scaled by that: everybody needs the result."""
    b = sk.GraphBuilder("whole")
    y = b.softmax(b.input("x", shape), axis=1)
    number = getattr(b, f"reduce_{kind}")(y, axes=[0, 1])
    b.output(number, "number")
    b.output(y * number, "scaled")
    return b.graph()


def inputs_of(shape: tuple[int, int]) -> dict[str, Any]:
    return {"x": RNG.standard_normal(shape).astype(np.float32)}


def compiled(graph: sk.Graph, target: Any = MINI, **options: Any) -> tuple[sk.Kernel, AicoreCompiled]:
    kernel = sk.compile(graph, target=target, options=options)
    assert isinstance(kernel._compiled, AicoreCompiled)
    return kernel, kernel._compiled


def barrier_reduction_of(made: AicoreCompiled) -> int:
    (found,) = [i for i, t in enumerate(made.schedule.tilings) if isinstance(t, BarrierReduceTiling)]
    return found


def working(made: AicoreCompiled, subop: int) -> set[int]:
    return {t.core for t in made.plan.tasks if t.subop == subop}


def same(kernel: sk.Kernel, inputs: dict[str, Any], rounding: float = 2e-3) -> None:
    got, want = kernel.run(inputs).outputs, kernel.run(inputs, executor="reference").outputs
    for name in want:
        scale = np.abs(want[name]).max()
        assert np.abs(got[name] - want[name]).max() <= rounding * scale, name


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min", "l1", "sum_square"])
def test_on_all_cores(kind: str) -> None:
    shape = (617, 211)
    kernel, made = compiled(graph_of(kind, shape))
    subop = barrier_reduction_of(made)
    assert working(made, subop) == set(made.plan.cores(CoreKind.VECTOR))
    assert made.plan.barriers == {subop: 1}
    assert all(s.barriers == 0 for p in made.plan.programs.values() for s in p if isinstance(s, Run))
    same(kernel, inputs_of(shape))


FEW = (96, 256)  # three chunks for four cores


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(barrier_reduce, "CHUNK_ELEMENTS_MIN", 8192)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("options", [{}, {"early_start": False}, {"sync": "full"}, {"debug_sync_all": True}])
def test_on_fewer_cores_the_idle_ones_join_the_barrier(options: dict[str, Any]) -> None:
    kernel, made = compiled(graph_of("sum", FEW), **options)
    subop = barrier_reduction_of(made)
    idle = set(made.plan.cores(CoreKind.VECTOR)) - working(made, subop)
    assert len(idle) == 1
    (run,) = [s for s in made.plan.programs[CoreKind.VECTOR] if isinstance(s, Run) and s.subop == subop]
    assert run.barriers == 1
    assert f"run {subop} barriers 1" in str(made.plan)
    same(kernel, inputs_of(FEW))
    kernel.report(inputs_of(FEW))  # the baseline launches it alone, on the same cores


@pytest.mark.usefixtures("few")
def test_bits_do_not_depend_on_options() -> None:
    inputs = inputs_of(FEW)
    options: tuple[dict[str, Any], ...] = ({}, {"early_start": False}, {"sync": "full"}, {"launches": "single"})
    runs = [compiled(graph_of("sum", FEW), **chosen)[0].run(inputs).outputs for chosen in options]
    for other in runs[1:]:
        assert all(np.array_equal(runs[0][name], other[name]) for name in runs[0])


def without_idle_cores(plan: AicorePlan) -> AicorePlan:
    programs = {
        kind: tuple(replace(step, barriers=0) if isinstance(step, Run) else step for step in program)
        for kind, program in plan.programs.items()
    }
    return replace(plan, programs=programs)


@pytest.mark.usefixtures("few")
def test_without_idle_cores_the_verifier_refuses_and_the_simulator_sees_a_deadlock() -> None:
    _, made = compiled(graph_of("sum", FEW))
    faulty = without_idle_cores(made.plan)
    wrong, certificate = check_aicore_plan(faulty)
    assert certificate is None
    assert ["others never come" in v.message for v in wrong] == [True]
    kernel = AicoreKernel(made)
    io = kernel._io(list(kernel._arrays(inputs_of(FEW)).values()))
    with pytest.raises(SimulationError) as caught:
        unverified_program(made, faulty).run(io)
    assert caught.value.kind == "deadlock"


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("joined", [0, 2])
def test_the_verifier_counts_barriers(joined: int) -> None:
    _, made = compiled(graph_of("sum", FEW))
    programs = {
        kind: tuple(replace(s, barriers=joined) if isinstance(s, Run) and s.barriers else s for s in program)
        for kind, program in made.plan.programs.items()
    }
    assert check_aicore_plan(replace(made.plan, programs=programs))[1] is None
    assert check_aicore_plan(made.plan)[1] is not None


def test_two_barriers_and_a_mix_kernel_between_them() -> None:
    """A cube core ahead of its vector cores uses the flags of its channels while they still wait at a barrier."""
    rng = np.random.default_rng(1)
    b = sk.GraphBuilder("twice")
    x = b.input("x", (256, 256))
    weight = b.constant(rng.standard_normal((256, 256)).astype(np.float32) / 16)
    y = b.softmax(x, axis=1)
    first = b.reduce_sum_square(y, axes=[0, 1])
    z = b.gelu(x @ weight)
    second = b.reduce_max(b.tanh(z * first), axes=[0, 1])
    b.output(b.relu(z @ weight) * second, "y")
    kernel, made = compiled(b.graph())
    assert sum(isinstance(t, BarrierReduceTiling) for t in made.schedule.tilings) >= 1
    assert any(t.kernel_type.is_mix for t in made.schedule.tilings)  # type: ignore[attr-defined]
    same(kernel, inputs_of((256, 256)), 1e-2)


def test_cores_without_work_do_their_part() -> None:
    """A matrix on all vector cores, sums of its columns on one, a matrix again: whoever has no unit of the sums still
    signals and waits."""
    b = sk.GraphBuilder("narrow")
    y = b.softmax(b.input("x", (256, 128)), axis=1)
    row = b.softmax(b.reduce_sum(y, axes=[0]), axis=1)
    b.output(b.softmax(y * row, axis=1), "y")
    kernel, made = compiled(b.graph())
    counts = [len(working(made, sub.index)) for sub in made.schedule.subops]
    assert min(counts) < max(counts) == made.plan.vector_cores
    assert any(event.setters is not None or event.mode.value == "all" for event in made.plan.events)
    report = kernel.run(inputs_of((256, 128))).report
    waited = [row.stalls.get("cross_wait", 0) for row in report.cores if row.kind == "vector"]
    assert all(waited), "every vector core waits for others, with work or without"
    same(kernel, inputs_of((256, 128)))


@needs_qemu
@pytest.mark.usefixtures("few")
def test_the_emulator_meets_too() -> None:
    kernel, _ = compiled(graph_of("sum", FEW))
    inputs = inputs_of(FEW)
    want = kernel.run(inputs).outputs
    got, _ = kernel.emulate(inputs)
    assert np.array_equal(got["number"], want["number"])
