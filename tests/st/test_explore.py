"""`superkernel explore`: a program that minds delays is found, cut down to the smallest graph that does, and shown
again by the command that is printed; programs that are right mind none."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
import soak
from firmware_bench import needs_qemu
from host_changes import X, chain, without
from random_models import random_graph
from seeds import seeds

import superkernel as sk
from superkernel.analysis.exploration import explore
from superkernel.analysis.shrinking import part_of, resized, shrunk
from superkernel.backends.aicore.executable import SimExecutable
from superkernel.backends.aicore.kernel import AicoreKernel
from superkernel.backends.aicore.qemu_schedule import PAUSES_US, EngineSchedule, Fault
from superkernel.backends.host.backend import HostBackend
from superkernel.cli import main
from superkernel.codegen.host.image import HostImage, ImageBuilder
from superkernel.core.errors import SimulationError, SuperKernelError
from superkernel.core.tensor import TensorType
from superkernel.frontends.json_form import load_json, save_json
from superkernel.reference.random_inputs import random_inputs
from superkernel.sync.plan import Hazard

pytestmark = pytest.mark.filterwarnings("ignore::superkernel._core.OversubscriptionWarning")


def net(depth: int = 2) -> sk.Graph:
    """`chain` with more around it, of which some has no part in the fault."""
    b = sk.GraphBuilder("net")
    rng = np.random.default_rng(0)
    x, other = b.input("x", X.shape), b.input("other", (8, 16))
    w = b.constant(rng.standard_normal((64, 64)).astype(np.float32) / 8)
    y = x
    for _ in range(depth):
        y = b.relu((b.softmax(b.gelu(y @ w), axis=1) + y) @ w)
    b.output(y, "y")
    b.output(b.exp(other), "aside")
    return b.graph()


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code generation leaves out the first wait for a softmax's result, and nobody proves what was emitted."""
    build = ImageBuilder.build

    def careless(self: ImageBuilder, values: Any) -> HostImage:
        for reason in self.plan.reasons:
            w = reason.witness
            if w is not None and w.hazard is Hazard.RAW:
                made = self.schedule.subops[self.plan.tasks[w.producer].subop].body
                if made.op == "softmax":
                    self.plan = without(self.plan, reason.wait.index)
                    break
        return build(self, values)

    monkeypatch.setattr(ImageBuilder, "build", careless)
    monkeypatch.setattr(HostBackend, "attest", lambda self, job, planned, image, proved: proved)


@pytest.mark.usefixtures("forgetful")
def test_a_difference_is_found_cut_down_and_shown_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SK_CACHE_DIR", "off")
    graph = net()
    save_json(graph, "net.json")
    words = ["explore", "net.json", "--threads", "3", "--seeds", "60", "--random-inputs", "3", "--json"]
    assert main([*words, "--option", "cost_placement=off"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["difference"]["problem"].startswith("y differ")
    small = load_json("explored.json")
    assert told["difference"]["smallest"]["nodes"] == len(small.nodes) <= 3 < len(graph.nodes)
    assert any(node.op == "softmax" for node in small.nodes)
    assert sum(kind.size for kind in small.inputs.values()) < X.size
    assert main(["run", "explored.json", "--threads", "1", "--random-inputs", "0", "--delays", "5"]) == 0
    capsys.readouterr()
    program, *again = shlex.split(told["again"])
    assert program == "superkernel"
    assert "explored.json" in again
    for _ in range(2):
        assert main(again) == 1
        said = capsys.readouterr().out
        assert f"seed {told['difference']['smallest']['seed']} gives another result" in said
        assert "show it again: superkernel explore explored.json" in said


@pytest.mark.parametrize("target", ["host", "mini"])
@pytest.mark.parametrize("seed", seeds(1, past=(2025960835,)))
def test_right_programs_mind_no_seed(target: str, seed: int) -> None:
    first, graphs, count = 1 + seed % 1_000_000_007, [chain()], 3
    if soak.enabled:
        graphs += [models.decode_step(layers=1), *(random_graph(random.Random(seed + n)) for n in range(20))]
        count = 30
    for graph in graphs:
        seeds = range(first, first + count)
        done = explore(graph, target, threads=3 if target == "host" else None, seeds=seeds)
        assert done.difference is None, done.text()
        assert f"{count} seeds from" in done.text()
        assert done.to_json()["difference"] is None


def test_an_error_of_a_delayed_run_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator's diagnosis is told; the smallest graph has what it is about."""
    simulate = SimExecutable.simulate

    def failing(self: SimExecutable, io: Any, *, delays: int = 0, **options: Any) -> Any:
        if delays >= 2 and any(sub.body.op == "softmax" for sub in self.schedule.subops):
            raise SimulationError("two conflicting accesses that nothing orders", kind="race")
        return simulate(self, io, delays=delays, **options)

    monkeypatch.setattr(SimExecutable, "simulate", failing)
    b = sk.GraphBuilder("late")
    b.output(b.softmax(b.relu(b.input("x", (16, 16)))), "y")
    found = explore(b.graph(), "mini", seeds=range(1, 4)).difference
    assert found is not None
    assert (found.seed, found.problem) == (2, "two conflicting accesses that nothing orders")
    assert found.smallest is not None
    assert [node.op for node in found.smallest.nodes] == ["softmax"]
    assert found.smallest_seed == 2


def small() -> sk.Graph:
    b = sk.GraphBuilder("small")
    x = b.input("x", (64, 64))
    b.output(b.relu(x @ x) + x, "y")
    return b.graph()


@needs_qemu
def test_delays_on_the_emulator_change_nothing() -> None:
    done = explore(small(), "mini", executor="qemu", seeds=range(1, 6))
    assert done.difference is None, done.text()


@needs_qemu
def test_a_flag_that_is_forgotten_shows_on_the_emulator_with_some_seed() -> None:
    """Between the engines of one hart, which nobody else's pace can hide."""
    kernel = sk.compile(small(), target="mini")
    assert isinstance(kernel, AicoreKernel)
    executable, io = kernel.emulation(random_inputs(kernel.inputs, 0))
    target = kernel._compiled.target
    harts = target.cores + target.device.aicpu_harts
    flags = executable.run(io, EngineSchedule.delayed(1, harts)).flags
    want = io[-1].tobytes()
    hart, found = next((hart, found) for hart, found in enumerate(flags) if found)

    def shows(seed: int, fault: Fault) -> bool:
        try:
            executable.run(io, replace(EngineSchedule.delayed(seed, harts, watchdog_s=60), fault=fault))
        except SuperKernelError:
            return True
        return io[-1].tobytes() != want

    assert any(shows(seed, Fault(hart, forget=flag)) for flag in found for seed in range(1, 6))


def test_schedules_of_the_emulator_are_drawn_by_seed() -> None:
    drawn = [EngineSchedule.delayed(seed, 5) for seed in range(1, 60)]
    assert drawn == [EngineSchedule.delayed(seed, 5) for seed in range(1, 60)]
    assert {schedule.timing for schedule in drawn} == {"late", "random"}
    for field in ("eager", "slow", "patient"):
        sizes = {len(getattr(schedule, field)) for schedule in drawn}
        assert 0 in sizes
        assert max(sizes) >= 4, field
    assert {schedule.pause_us for schedule in drawn} == set(PAUSES_US)


def by_op(*ops: str) -> Callable[[sk.Graph], bool]:
    return lambda graph: set(ops) <= {node.op for node in graph.nodes}


def test_graphs_shrink_to_what_shows_it() -> None:
    graph = net(4)
    tries = []

    def shows(part: sk.Graph) -> bool:
        tries.append(part)
        return by_op("gelu", "softmax")(part)

    small = shrunk(graph, shows)
    assert sorted(node.op for node in small.nodes) == ["gelu", "softmax"]
    assert {size for kind in small.inputs.values() for size in kind.shape} == {1}
    assert len(tries) < 200
    few = shrunk(graph, by_op("exp"), tries_max=1)
    assert len(few.nodes) in (len(graph.nodes), len(graph.nodes) - len(graph.nodes) // 2)
    assert shrunk(graph, lambda part: part is graph) is graph


def test_parts_and_sizes_hold_together() -> None:
    graph = net()
    matmul = next(node for node in graph.nodes if node.op == "matmul")
    part = part_of(graph, [matmul])
    assert part is not None
    assert part.outputs == matmul.outputs
    assert set(part.inputs) | set(part.constants) == set(matmul.inputs)
    assert part_of(graph, []) is None
    smaller = resized(graph, 64, 3)
    assert smaller is not None
    assert smaller.inputs["x"] == TensorType(graph.inputs["x"].dtype, (40, 3))
    b = sk.GraphBuilder("state")
    s = b.state("s", np.zeros((4,), np.float32))
    b.update(s, s + b.input("x", (4,)))
    b.output(b.reshape(b.input("z", (4, 6)), shape=(24,)), "flat")
    stateful = b.graph()
    kept = part_of(stateful, [node for node in stateful.nodes if node.op == "add"])
    assert kept is not None
    assert list(kept.states) == ["s"]
    assert set(kept.updates) == {"s"}
    assert resized(stateful, 6, 5) is None  # the reshape's 24 is not 6
    cut = resized(kept, 4, 2)
    assert cut is not None
    assert cut.states["s"].shape == (2,)
