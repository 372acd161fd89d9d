"""A third kind of target, in a folder of its own: what the protocol of backends has to carry, it carries."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from toy_target import ToyTarget
from toy_target.compiled import ToyCompiled
from toy_target.machine import ToyMachine

import superkernel as sk
from superkernel.backends import backend_of
from superkernel.backends.saved import save
from superkernel.core.errors import InputError, UnsupportedError, VerificationError
from superkernel.ir.graph import Graph
from superkernel.sync.plan import Wait

ROOT = Path(__file__).resolve().parents[2]


def network() -> Graph:
    """Products with something ahead and behind, rows, and pointwise work that other rows read transposed."""
    rng = np.random.default_rng(1)
    b = sk.GraphBuilder("network")
    x = b.input("x", (7, 16), "f32")
    weights, bias = rng.standard_normal((16, 24), dtype=np.float32), np.ones(24, np.float32)
    h = b.relu(b.add(b.matmul(x, b.constant(weights)), b.constant(bias)))
    h = b.layer_norm(h, b.constant(np.ones(24, np.float32)), b.constant(np.zeros(24, np.float32)), axis=-1)
    scores = b.softmax(b.matmul(h, b.transpose(h)), axis=-1)
    b.output(b.matmul(scores, h), name="y")
    b.output(b.sigmoid(b.transpose(scores)), name="z")
    return b.graph()


def images() -> Graph:
    """Branches of convolutions that a concatenation joins in place."""
    rng = np.random.default_rng(2)
    b = sk.GraphBuilder("images")
    x = b.input("x", (1, 3, 8, 8), "f32")
    wide, narrow = (rng.standard_normal(shape, dtype=np.float32) for shape in ((4, 3, 3, 3), (2, 3, 1, 1)))
    left = b.relu(b.conv(x, b.constant(wide), pads=(1, 1, 1, 1)))
    right = b.max_pool(b.conv(x, b.constant(narrow)), kernel=(3, 3), pads=(1, 1, 1, 1))
    b.output(b.mul(b.concat(left, right, axis=1), b.constant(np.float32(0.5))), name="y")
    return b.graph()


def running_sum() -> Graph:
    """A state that each run adds to."""
    b = sk.GraphBuilder("running sum")
    x, total = b.input("x", (5, 4), "f32"), b.state("total", np.zeros((5, 4), np.float32))
    after = b.add(total, b.exp(x))
    b.update(total, after)
    b.output(b.matmul(after, b.constant(np.eye(4, dtype=np.float32))), name="y")
    return b.graph()


GRAPHS = {"network": network, "images": images, "running sum": running_sum}


def inputs_of(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {name: rng.standard_normal(kind.shape, dtype=np.float32) for name, kind in graph.inputs.items()}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("options", [{}, {"fuse": False}, {"sync": "full", "simplify": False}], ids=str)
def test_results_are_the_references(name: str, seed: int, options: dict[str, object]) -> None:
    graph = GRAPHS[name]()
    kernel = sk.compile(graph, ToyTarget(seed=seed), options=options)
    given = inputs_of(graph)
    for _ in range(2):  # states go on
        other = copy.copy(kernel)
        got, want = kernel.run(given).outputs, other.run(given, executor="reference").outputs
        for output in want:
            np.testing.assert_allclose(got[output], want[output], rtol=1e-5, atol=1e-5)


def test_work_is_shared_and_waited_for() -> None:
    kernel = sk.compile(network(), "toy")
    compiled = kernel._compiled
    assert isinstance(compiled, ToyCompiled)
    assert {sub.kernel for sub in compiled.schedule.subops} == {"toy.matmul", "toy.uncut"}
    single = sk.compile(network(), "toy", options={"fuse": False})._compiled.schedule
    assert {sub.kernel for sub in single.subops} == {"toy.matmul", "toy.pointwise", "toy.uncut"}
    assert {task.core for task in compiled.schedule.tasks} == {0, 1, 2}
    assert compiled.plan.waits > 0
    assert "certificate" in str(kernel.certificate)


def test_without_its_waits_a_plan_is_refused_and_wrong() -> None:
    graph = network()
    kernel = sk.compile(graph, "toy")
    made = kernel._compiled
    assert isinstance(made, ToyCompiled)
    programs = tuple(tuple(s for s in p if not isinstance(s, Wait)) for p in made.plan.programs)
    planned = replace(made, plan=replace(made.plan, programs=programs))
    with pytest.raises(VerificationError):
        backend_of(made.target).verify(planned)
    want = kernel.run(inputs_of(graph)).outputs["y"]
    outputs = kernel._new_outputs()
    ToyMachine(made.image, made.schedule, planned.plan, made.target).run([*inputs_of(graph).values(), *outputs])
    assert not np.allclose(outputs[0], want, equal_nan=False)


def test_a_saved_kernel_leads_to_the_backend_of_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = sk.compile(network(), "toy")
    save(kernel._compiled, {}, tmp_path / "k.skm")
    with pytest.raises(sk.FileFormatError, match="whose kernels are not saved; found toy"):
        sk.load(tmp_path / "k.skm")
    monkeypatch.setattr(type(backend_of("toy")), "local_target", lambda *_: ToyTarget())
    again, inputs = sk.load(tmp_path / "k.skm"), inputs_of(network())
    assert type(again) is type(kernel)
    np.testing.assert_array_equal(again.run(inputs).outputs["y"], kernel.run(inputs).outputs["y"])


def test_it_answers_what_kernels_are_asked() -> None:
    kernel = sk.compile(network(), "toy")
    assert kernel.executors == ("toy", "reference")
    assert "ticks" in kernel.report().text()
    assert kernel.time(rounds=3).tolist() == [kernel.time(rounds=1)[0]] * 3
    assert "toy.matmul" in str(kernel.explain("y")) or "toy" in str(kernel.explain(0))
    assert kernel.summary()["options_without_effect"] == []
    assert kernel.stage_text("plan").startswith("plan cores 3")
    assert "for toy, 3 cores" in kernel._repr_html_()
    dumped = sk.compile(network(), "toy", options={"dump": ["softmax*"]})
    assert dumped.run(inputs_of(network())).dumps


def test_what_it_has_not_is_refused(tmp_path: Path) -> None:
    kernel = sk.compile(network(), "toy")
    for ask in (
        lambda: kernel.save(tmp_path / "kernel.skm"),
        lambda: pickle.dumps(kernel),
        lambda: kernel.trace(),
        lambda: kernel.bind(),
        lambda: kernel.emulate(),
        lambda: kernel.critical(),
        lambda: sk.compile(network(), "toy", options={"precision": "bf16"}),
    ):
        with pytest.raises(UnsupportedError):
            ask()
    with pytest.raises(InputError, match=r"host, .*toy"):
        sk.compile(network(), "tin")


def test_nobody_else_knows_of_it() -> None:
    folders = ("superkernel", "scheduler", "sync", "codegen")
    sources = [p for folder in folders for p in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 400
    assert not [p for p in sources if "toy" in p.read_text().lower().replace("tests/toy_target", "")]
