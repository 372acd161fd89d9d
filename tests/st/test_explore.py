"""`superkernel explore`: a program that minds delays is found, cut down to the smallest graph that does, and shown
again by the command that is printed; programs that are right mind none."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_changes import X, chain, without
from seeds import seeds

import superkernel as sk
from superkernel.analysis.exploration import explore
from superkernel.analysis.shrinking import part_of, resized, shrunk
from superkernel.backends.aicore import qemu_process
from superkernel.backends.aicore.executable import SimExecutable
from superkernel.backends.host.backend import HostBackend
from superkernel.cli import main
from superkernel.codegen.host.image import HostImage, ImageBuilder
from superkernel.core.errors import MachineError, SimulationError
from superkernel.core.tensor import TensorType
from superkernel.frontends.json_form import load_json, save_json
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
    program, *again = shlex.split(told["again"])
    assert program == "superkernel"
    assert "explored.json" in again
    for _ in range(2):
        assert main(again) == 1
        said = capsys.readouterr().out
        assert f"seed {told['difference']['smallest']['seed']} gives another result" in said
        assert "show it again: superkernel explore explored.json" in said


@pytest.mark.parametrize("target", ["host", "mini"])
@pytest.mark.parametrize("seed", seeds(1))
def test_right_programs_mind_no_seed(target: str, seed: int) -> None:
    first = 1 + seed % 1_000_000_007
    done = explore(chain(), target, threads=3 if target == "host" else None, seeds=range(first, first + 3))
    assert done.difference is None, done.text()
    assert "3 seeds from" in done.text()
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


def test_delays_on_the_emulator_change_nothing() -> None:
    try:
        qemu_process.find_qemu()
    except MachineError as error:
        pytest.skip(str(error))
    b = sk.GraphBuilder("small")
    x = b.input("x", (64, 64))
    b.output(b.relu(x @ x) + x, "y")
    done = explore(b.graph(), "mini", executor="qemu", seeds=range(1, 6))
    assert done.difference is None, done.text()


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
    cut = resized(stateful, 4, 2)
    assert cut is None or cut.states["s"].shape == (2,)
