"""Models on the simulated accelerator: outputs within the declared tolerance of the float64 reference, free of races
and of undeclared accesses, on a large target and a small one.

The tolerance is `error_bound` of the lowered graph: values are f16 in memory, sums f32. It is relative to the largest
value of an output. A run draws one of the networks of images and some of the random graphs; a soak run has all.
"""

from __future__ import annotations

import itertools
import random
import warnings
from functools import cache
from typing import Any

import models
import numpy as np
import pytest
import soak
from numpy.typing import NDArray
from option_sets import Variants
from random_models import random_graph
from seeds import seeds

import superkernel as sk
from superkernel.backends.aicore.report import SimReport
from superkernel.core.dtypes import DType
from superkernel.frontends import load_graph
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate
from superkernel.reference.random_inputs import random_inputs
from superkernel.transforms.precision import error_bound

TARGETS = ("mini", "a3")
Inputs = dict[str, NDArray[Any]]


def encoder_layer() -> tuple[Graph, Inputs]:
    """One layer of MiniLM's size, 128 tokens."""
    graph = models.transformer(layers=1, tokens=128, width=384, heads=12)
    return graph, random_inputs(graph.inputs, 0)


def decode() -> tuple[Graph, Inputs]:
    """A step of an 8-layer decoder, width 512, 128 positions of which 127 are filled."""
    graph = models.decode_step(layers=8, width=512, heads=8, kv_heads=8, inner=1408, vocabulary=1024, positions=128)
    rng = np.random.default_rng(3)
    states = {n: rng.standard_normal(a.shape).astype(a.dtype) * a.dtype.type(0.5) for n, a in graph.states.items()}
    filled = Graph(
        graph.name, graph.inputs, graph.constants, states, graph.updates, graph.nodes, graph.outputs, graph.types
    )
    return filled, {"token": np.array([3]), "position": np.array([127])}


def squeezenet() -> tuple[Graph, Inputs]:
    model = models.light_model("squeezenet")
    return load_graph(model), models.light_input(model)


def resnet50() -> tuple[Graph, Inputs]:
    model = models.light_model("resnet50", gain=0.75)
    return load_graph(model), models.light_input(model)


@cache
def decode_on_a3() -> sk.Kernel:
    return sk.compile(decode()[0], target="a3")


MODELS = {f.__name__: f for f in (encoder_layer, decode, squeezenet, resnet50)}


@pytest.mark.parametrize("name", ["encoder_layer", "decode", *soak.drawn(("squeezenet", "resnet50"), 1)])
def test_model_within_the_declared_tolerance(name: str) -> None:
    graph, inputs = MODELS[name]()
    expected = evaluate(graph, inputs, wide=True)
    for target in TARGETS:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no sub-operator may fall back
            kernel = decode_on_a3() if (name, target) == ("decode", "a3") else sk.compile(graph, target=target)
        kernel.reset_states()
        result = kernel.run(inputs)
        assert isinstance(result.report, SimReport)
        assert not result.report.fallbacks
        bound = error_bound(graph, DType.F16)
        assert bound is not None
        for output, got in result.outputs.items():
            want = expected[output]
            scale = float(np.abs(want).max())
            error = float(np.abs(got.astype(np.float64) - want).max())
            assert error <= bound * scale, f"{output} on {target}: {error / scale:.2e}, bound {bound:.2e}"


def test_states_are_kept_and_updated() -> None:
    """Two steps of a small decoder equal two steps of the reference; caches are f16."""
    graph = models.decode_step(layers=1)
    kernel = sk.compile(graph, target="mini")
    for position in (0, 1):
        inputs = {"token": np.array([5]), "position": np.array([position])}
        expected = evaluate(graph, inputs, states={n: a.astype(np.float32) for n, a in kernel.states.items()})
        got = kernel.run(inputs).outputs["logits"]
        assert (
            np.abs(got - expected["logits"]).max() <= error_bound(graph, DType.F16) * np.abs(expected["logits"]).max()
        )
    assert {a.dtype for a in kernel.states.values()} == {np.dtype(np.float16)}
    assert all(np.abs(a[..., :2, :]).max() > 0 for a in kernel.states.values())
    kernel.reset_states()
    assert not any(a.any() for a in kernel.states.values())


def test_fused_is_faster_than_one_by_one_and_says_where_time_goes() -> None:
    kernel = decode_on_a3()
    report = kernel.report({"token": np.array([3]), "position": np.array([127])})
    assert isinstance(report, SimReport)
    assert report.baseline is not None
    assert report.speedup is not None
    assert report.speedup >= 2.0, f"{report.speedup:.2f}x"
    assert all(row.single_cycles for row in report.subops)
    assert 0 < report.pure_cycles < report.cycles * len(report.subops)
    assert "one by one" in report.text()
    assert report.to_json()["schema"] == "superkernel.sim_report/2"


def test_every_option_gives_the_same_bits() -> None:
    graph = models.transformer(layers=1, tokens=16, width=64, heads=4)
    variants = Variants(graph, "mini")
    expected = variants.results(variants.made({}))
    (y,) = expected
    assert np.array_equal(
        np.frombuffer(expected[y], graph.types[y].dtype.numpy),
        sk.compile(graph, target="mini").run(variants.inputs).outputs[y].ravel(),
    )
    for sync, early_start, split in itertools.product(("minimal", "type-range", "full"), (True, False), (1, 3)):
        row = {"sync": sync, "early_start": early_start, "split": split}
        assert variants.results(variants.made(row)) == expected, row


def test_fallbacks_split_the_launch() -> None:
    b = sk.GraphBuilder("fallback")
    x = b.input("x", (1, 16, 8, 8))
    b.output(b.relu(b.lrn(b.relu(x), size=3)), "y")
    graph = b.graph()
    inputs = random_inputs(graph.inputs, 0)
    with pytest.warns(sk.FallbackWarning, match="between two launches"):
        kernel = sk.compile(graph, target="mini")
    result = kernel.run(inputs)
    assert isinstance(result.report, SimReport)
    assert result.report.launches == 2
    assert result.report.fallbacks
    want = evaluate(graph, inputs)["y"]
    assert np.abs(result.outputs["y"] - want).max() <= error_bound(graph, DType.F16) * np.abs(want).max()
    with pytest.raises(sk.UnsupportedError):
        sk.compile(graph, target="mini", options={"fallback": "forbid"})


def test_totals_include_what_numpy_does_between_launches() -> None:
    """With a clock on which every look takes 5 us."""
    b = sk.GraphBuilder("fallback")
    b.output(b.relu(b.lrn(b.relu(b.input("x", (1, 16, 8, 8))), size=3)), "y")
    with pytest.warns(sk.FallbackWarning):
        kernel = sk.compile(b.graph(), target="mini")
    ticks = itertools.count(step=5000)
    kernel._compiled.executable.clock_ns = lambda: next(ticks)
    report = kernel.report()
    assert report.baseline is not None
    calls = 5.0 * len(report.fallbacks)
    launch_us = report.baseline.launch_ns / 1000
    us_per_cycle = 1 / report.clock_mhz
    assert report.numpy_us == calls > 0
    assert report.time_us == pytest.approx(report.cycles * us_per_cycle + report.launches * launch_us + calls)
    base = report.baseline
    assert base.time_us == pytest.approx(base.cycles * us_per_cycle + base.launches * launch_us + calls)
    assert f"{calls:.2f} us of the total" in report.text()
    assert base.launch_range_ns == (350, 3000)
    ratios = []
    for other_us in (0.35, 3.0):  # launches of another cost, on both sides
        alone, fused = (t + n * (other_us - launch_us) for t, n in ((base.time_us, base.launches),
                                                                     (report.time_us, report.launches)))  # fmt: skip
        ratios.append(alone / fused)
    steady, first = ratios
    assert f"0.35 us (steady stream) {steady:.2f}x, of 3.00 us (first one) {first:.2f}x" in report.text()
    trace = kernel.trace()
    (track,) = [i for i, t in enumerate(trace.tracks) if t.name == "NumPy"]
    drawn = [s for s in trace.spans if s.track == track]
    assert sum(s.end_us - s.begin_us for s in drawn) == pytest.approx(calls)
    others = [s for s in trace.spans if s.track != track]
    assert all(s.end_us <= d.begin_us + 1e-9 or s.begin_us >= d.end_us - 1e-9 for s in others for d in drawn)
    critical = kernel.critical(confirm=0)
    assert critical.time_us == pytest.approx(critical.cycles * us_per_cycle + calls)
    assert "NumPy between launches" in critical.text()


@pytest.mark.parametrize("target", TARGETS)
def test_symmetrically_quantised_layers_stay_on_the_cores(target: str) -> None:
    """Two QLinearMatMul, scales powers of two: one launch, nothing for the reference, every bit as it should be."""
    onnx = pytest.importorskip("onnx")
    helper, rng = onnx.helper, np.random.default_rng(4)
    constants = {
        "w0": rng.integers(-128, 128, (200, 300)).astype(np.int8), "w1": rng.integers(-9, 9, (300, 96)).astype(np.int8),
        "zero": np.int8(0), "s": np.float32(2.0**-6), "t": np.float32(2.0**-3),
    }  # fmt: skip
    nodes = [
        helper.make_node("QLinearMatMul", [a, "s", "zero", w, "s", "zero", "t", "zero"], [y])
        for a, w, y in (("x", "w0", "h"), ("h", "w1", "y"))
    ]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "quantised",
            [helper.make_tensor_value_info("x", onnx.TensorProto.INT8, [70, 200])],
            [helper.make_tensor_value_info("y", onnx.TensorProto.INT8, [70, 96])],
            [onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
        )
    )
    graph = load_graph(model)
    inputs = {"x": rng.integers(-128, 128, (70, 200)).astype(np.int8)}
    kernel = sk.compile(graph, target=target, options={"fallback": "forbid"})
    result = kernel.run(inputs)
    assert isinstance(result.report, SimReport)
    assert result.report.launches == 1
    assert [s.kernel for s in kernel._compiled.schedule.subops] == ["aicore.matmul.i8"] * 2
    assert np.array_equal(result.outputs["y"], evaluate(graph, inputs)["y"])
    assert len(np.unique(result.outputs["y"])) > 100


def test_what_an_accelerator_cannot_do_is_said() -> None:
    graph = models.mlp()
    with pytest.raises(sk.UnsupportedError, match="cores, not threads"):
        sk.compile(graph, target="mini", threads=2)
    with pytest.raises(sk.InputError, match="unknown target"):
        sk.compile(graph, target="a4")
    with pytest.raises(sk.UnsupportedError, match="not on the host"):
        sk.compile(graph, options={"precision": "f16"})
    with pytest.raises(sk.UnsupportedError, match="one type of cores"):
        sk.compile(graph, options={"sync": "type-range"})
    with pytest.raises(sk.UnsupportedError, match="unknown executor"):
        sk.compile(graph, target="mini").run(random_inputs(graph.inputs, 0), executor="host")


def test_explanations_name_events_and_witnesses() -> None:
    kernel = sk.compile(models.mlp((64, 128, 32), batch=4), target="mini")
    text = str(kernel.explain("matmul_1"))
    assert "boundary: type" in text
    assert "read-after-write" in text
    assert "aicore.matmul" in text


@pytest.mark.parametrize("seed", seeds(soak.drawn(range(25), 8)))
def test_random_graphs_agree_with_the_reference_in_f32(seed: int) -> None:
    graph = random_graph(random.Random(seed))
    inputs = random_inputs(graph.inputs, 1)
    expected = evaluate(graph, inputs, wide=True)
    kernel = sk.compile(graph, target="mini", options={"precision": "f32", "fallback": "allow"})
    for name, got in kernel.run(inputs).outputs.items():
        scale = max(1.0, float(np.abs(expected[name]).max(initial=0)))
        error = float(np.abs(got.astype(np.float64) - expected[name]).max(initial=0))
        assert error <= 1e-4 * scale, f"{name}: {error}"


def test_two_events_of_one_flag_are_two_waits() -> None:
    """Transposed factors need the vector cores of all groups; nobody reads on a vector core until the end."""
    rng, b, count = np.random.default_rng(0), sk.GraphBuilder("fan"), 7
    for i in range(count):
        s = b.softmax(b.input(f"x{i}", (64, 64), "f16"), axis=-1)
        m = b.transpose(s, perm=(1, 0)) @ b.constant((rng.standard_normal((64, 64)) / 8).astype(np.float16))
        b.output(s, f"s{i}")
        b.output(m, f"m{i}")
    b.output(b.softmax(m, axis=0), "y")
    graph = b.graph()
    inputs = random_inputs(graph.inputs, 0)
    expected = evaluate(graph, inputs, wide=True)
    for name, got in sk.compile(graph, target="mini").run(inputs).outputs.items():
        assert np.abs(got - expected[name]).max() <= 1e-2 * max(1.0, np.abs(expected[name]).max()), name
