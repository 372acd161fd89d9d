"""Grouping for the accelerator: its rows choose, its families are asked, and the meaning of every graph is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from grouped_on import grouped_on
from image_nets import NETS, Net, copies
from interpret import interpret_grouping
from models import decode_step, light_model, mlp, transformer
from random_graphs import GraphMaker, random_graph

import superkernel as sk
from superkernel.backends.page_parts import flops_of
from superkernel.core.dtypes import DType
from superkernel.frontends.onnx import load_onnx
from superkernel.ir.body import Body, PointwiseProgram, View
from superkernel.ir.graph import Graph
from superkernel.ops.opdef import Array
from superkernel.reference import evaluate
from superkernel.scheduler.families.aicore import AICORE_KERNELS
from superkernel.scheduler.grouping import Grouping
from superkernel.scheduler.hostcall import HOST_REFERENCE, HostCallTiling
from superkernel.scheduler.storage import IMAGE_OPS, StoragePolicy, channels_inside
from superkernel.scheduler.tiling import KernelFamily
from superkernel.target.aicore import load_target
from superkernel.target.base import Target
from superkernel.transforms import simplify
from superkernel.transforms.precision import error_bound, lower_precision

A3 = load_target("a3")


def test_counts_of_shifts_that_are_known_are_immediates() -> None:
    """Of tensors too long for the scalar units, which compute those that are not known."""
    b = sk.GraphBuilder("shift")
    b.output(b.shift_right(b.input("x", (97, 100), "i16"), b.constant(np.array(3, np.int16))), "y")
    kernel = sk.compile(b.graph(), target="mini", options={"fallback": "forbid"})
    assert set(kernel.manifest().kernels) == {"aicore.pointwise"}
    x = np.arange(-4850, 4850, dtype=np.int16).reshape(97, 100)
    np.testing.assert_array_equal(kernel.run({"x": x}).outputs["y"], x >> 3)


class CoreFamily(KernelFamily[Target]):
    """The answers of the accelerator's families: products read matrices with dense rows, images channels last."""

    def __init__(self, *, dense_stores: bool = False, storing: bool = True) -> None:
        self.dense_stores, self.storing = dense_stores, storing
        self.asked: set[tuple[str, str]] = set()

    def tilings(self, kernel: str, body: Body, target: Target) -> Sequence[HostCallTiling]:
        return (HostCallTiling(),)

    def accepts_view(self, kernel: str, op: str, slot: int, view: View, dtype: DType) -> bool:
        self.asked.add(("accepts_view", kernel))
        if op in IMAGE_OPS:
            return slot == 0 and channels_inside(view.shape, view.strides)
        return kernel in ("aicore.matmul", "aicore.attention") and view.strides[-1] == 1

    def accepts_prologue(self, kernel: str, op: str, slot: int) -> bool:
        self.asked.add(("accepts_prologue", kernel))
        return kernel in ("aicore.norm", "aicore.softmax") and slot == 0

    def prologue_may_store(self, kernel: str, op: str, slot: int) -> bool:
        self.asked.add(("prologue_may_store", kernel))
        return self.storing

    def accepts_store(self, kernel: str, op: str, view: View, dtype: DType) -> bool:
        self.asked.add(("accepts_store", kernel))
        return op in IMAGE_OPS or not self.dense_stores or view.is_dense


def grouped(graph: Graph, family: CoreFamily | None = None, **options: Any) -> Grouping:
    """Grouped by the accelerator's own rows."""
    return grouped_on(graph, A3, AICORE_KERNELS, family or CoreFamily(), **options)


def inputs_of(graph: Graph, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(t.shape).astype(t.dtype.numpy) for n, t in graph.inputs.items()}


def check_meaning(graph: Graph, grouping: Grouping, tolerance: float = 1e-4) -> None:
    inputs = inputs_of(graph)
    want = evaluate(graph, inputs)
    outputs, states = interpret_grouping(grouping, graph, inputs)
    pairs = [*zip(outputs, (want[n] for n in graph.outputs), strict=True)]
    pairs += [(states[n], want.states[n]) for n in graph.states]
    for found, wanted in pairs:
        found, wanted = found.astype(np.float64), wanted.astype(np.float64)
        assert np.max(np.abs(found - wanted), initial=0) <= tolerance * (1 + np.max(np.abs(wanted), initial=0))


@pytest.mark.parametrize("net", NETS)
def test_image_networks_are_lowered_and_channels_last(net: str) -> None:
    graph = lower_precision(NETS[net](2))
    grouping = grouped(graph)
    check_meaning(graph, grouping, error_bound(graph))  # type: ignore[arg-type]
    assert {s.kernel for s in grouping.subops} <= set(AICORE_KERNELS.kernels) - {HOST_REFERENCE}
    assert not copies(grouping), "the input's cast converts its layout"
    first = grouping.subops[0].body
    assert [i.op for i in first.epilogue.instructions] == ["cast"]
    assert first.epilogue.outputs[0].strides[1] == 1


@pytest.mark.parametrize("name", ["squeezenet", "densenet121", "inception_v2"])
def test_nothing_is_copied_inside_real_networks(name: str) -> None:
    graph = simplify(lower_precision(simplify(load_onnx(light_model(name)))))
    grouping = grouped(graph)
    assert not copies(grouping)
    assert {s.kernel for s in grouping.subops} <= set(AICORE_KERNELS.kernels) - {HOST_REFERENCE}


@pytest.mark.parametrize("fuse", [True, False])
def test_an_encoder_runs_on_the_accelerators_kernels(fuse: bool) -> None:
    graph = simplify(lower_precision(transformer(tokens=8, width=32, heads=2)))
    grouping = grouped(graph, fuse=fuse)
    check_meaning(graph, grouping, error_bound(graph))  # type: ignore[arg-type]
    kernels = {s.kernel for s in grouping.subops}
    assert kernels == {"aicore.pointwise", "aicore.matmul", "aicore.attention", "aicore.norm"} or fuse
    assert kernels <= set(AICORE_KERNELS.kernels) - {HOST_REFERENCE}


def test_a_decoder_runs_on_the_accelerators_kernels() -> None:
    graph = simplify(lower_precision(decode_step()))
    inputs = {"token": np.array([5]), "position": np.array([3])}
    grouping = grouped(graph)
    (logits,), states = interpret_grouping(grouping, graph, inputs)
    want = evaluate(graph, inputs)
    assert np.max(np.abs(logits - want["logits"])) <= error_bound(graph) * np.max(np.abs(want["logits"]))
    for name, found in states.items():
        np.testing.assert_allclose(found, want.states[name], rtol=0.02, atol=0.02)
    assert not any(s.kernel == HOST_REFERENCE for s in grouping.subops)
    (control,) = (s.nodes for s in grouping.subops if s.kernel == "aicore.scalar")
    assert {n.op for n in graph.nodes if n.name in control} == {"add"}, "the position plus one, an i64"
    assert sum("in place" in str(n) for n in grouping.notes) == 4


def test_random_graphs_keep_their_meaning() -> None:
    for seed in range(25):
        graph = random_graph(seed, 8 + seed)
        check_meaning(graph, grouped(graph))
        check_meaning(graph, grouped(graph, CoreFamily(dense_stores=True, storing=False)))


def residual() -> Graph:
    g = GraphMaker()
    total = g.op("add", g.input("x", 4, 8), g.input("y", 4, 8))
    scale = g.constant(np.ones(8, np.float32))
    normed = g.op("layer_norm", total, scale, scale, axis=-1, epsilon=1e-5)
    return g.graph(g.op("add", g.op("matmul", normed, g.constant(np.eye(8, dtype=np.float32))), total))


@pytest.mark.parametrize("storing", [True, False])
def test_families_say_whether_a_prologue_may_store(storing: bool) -> None:
    family = CoreFamily(storing=storing)
    grouping = grouped(residual(), family)
    assert ("prologue_may_store", "aicore.norm") in family.asked
    assert any(isinstance(f, PointwiseProgram) for s in grouping.subops for f in s.body.anchor_inputs) == storing
    check_meaning(residual(), grouping)


@pytest.mark.parametrize("dense", [True, False])
def test_families_say_what_they_can_store(dense: bool) -> None:
    g = GraphMaker()
    product = g.op("matmul", g.input("x", 4, 6), g.constant(np.ones((6, 8), np.float32)))
    graph = g.graph(g.op("softmax", g.op("transpose", product, perm=(1, 0)), axis=-1))
    grouping = grouped(graph, CoreFamily(dense_stores=dense))
    assert [s.body.op for s in grouping.subops] == ["matmul", *([None] if dense else []), "softmax"]
    check_meaning(graph, grouping)


def test_a_concatenation_of_what_cannot_be_stored_in_parts_is_copied() -> None:
    g = GraphMaker()
    w = g.constant(np.ones((6, 3), np.float32))
    parts = [g.op("matmul", g.input("x", 4, 6), w), g.op("matmul", g.input("y", 4, 6), w)]
    graph = g.graph(g.op("softmax", g.op("concat", *parts, axis=1), axis=-1))
    check_meaning(graph, grouped(graph, CoreFamily(dense_stores=True)))


def test_the_storage_policy_follows_the_target_and_can_be_set() -> None:
    graph = NETS["resnet"](1)
    rows = grouped(graph, storage=StoragePolicy.ROW_MAJOR)
    check_meaning(graph, rows)

    def inner(grouping: Grouping) -> set[bool]:
        convs = [s.body.epilogue for s in grouping.subops if s.body.op == "conv"]
        return {channels_inside(p.shape, o.strides) for p in convs for o in p.outputs}

    assert inner(rows) == {False}
    assert inner(grouped(graph)) == {True}


def test_a_fallback_reads_and_writes_dense() -> None:
    n = Net()
    y = n.conv(n.input("x", 1, 3, 18, 18), 3, 4)
    graph = n.graph(n.conv(n.op("mod", y, n.constant(np.float32(100))), 4, 4))
    grouping = grouped(graph)
    (host,) = (s.body for s in grouping.subops if s.kernel == HOST_REFERENCE)
    feed = host.anchor_inputs[0]
    assert isinstance(feed, View)
    assert feed.is_dense
    check_meaning(graph, grouping)


def test_a_copy_has_a_name_of_its_own_and_no_operations() -> None:
    """What NumPy computed densely is copied for a convolution that wants channels inside."""
    n = Net()
    graph = n.graph(n.conv(n.op("lrn", n.conv(n.input("x", 1, 3, 18, 18), 3, 16), size=3), 16, 4))
    grouping = grouped(graph)
    names = [sub.name for sub in grouping.subops]
    assert len(set(names)) == len(names)
    (lrn,) = (sub.name for sub in grouping.subops if sub.kernel == HOST_REFERENCE)
    assert f"{lrn}/copy" in names
    flops = dict(zip(names, flops_of(graph, grouping), strict=True))
    assert flops[lrn] > 0
    assert {flops[name] for name in names if name.endswith(("/copy", "/cast"))} == {0.0}
    nodes = ((graph.definition(node), node) for node in graph.nodes)
    whole = sum(d.flops(graph.input_types(node), graph.output_types(node), node.attrs) for d, node in nodes)
    assert sum(flops.values()) == whole


def test_small_models_without_fusion() -> None:
    for graph in (mlp(), residual()):
        check_meaning(graph, grouped(graph, fuse=False))


@pytest.mark.parametrize("net", NETS)
def test_without_fusion_images_lie_channels_last_too(net: str) -> None:
    """A baseline that copied every image from one layout to the other would flatter fusion."""
    graph = NETS[net](1)
    grouping = grouped(graph, fuse=False)
    given, returned = {*graph.inputs}, {*graph.outputs}
    inside = [
        s for s in copies(grouping) if s.body.op is None and not given & {*s.values} and not returned & {*s.values}
    ]
    assert not inside
    stores = [s.body.epilogue for s in grouping.subops if s.body.op in IMAGE_OPS]
    assert stores
    assert all(channels_inside(program.shape, out.strides) for program in stores for out in program.outputs)
    check_meaning(graph, grouping)


def test_a_convolution_gives_the_same_bits_with_and_without_fusion() -> None:
    rng, b = np.random.default_rng(0), sk.GraphBuilder("image")
    x = b.input("x", (1, 16, 9, 9), "f16")
    first, second = ((rng.standard_normal(s) / 8).astype(np.float16) for s in ((32, 16, 3, 3), (16, 32, 1, 1)))
    y = b.relu(b.conv(x, b.constant(first), pads=(1, 1, 1, 1)))
    b.output(b.conv(y, b.constant(second)), "y")
    graph = b.graph()
    inputs = inputs_of(graph)
    fused, apart = (sk.compile(graph, target="mini", options={"fuse": fuse}) for fuse in (True, False))
    assert len(apart._compiled.schedule.subops) == len(fused._compiled.schedule.subops) + 1
    assert np.array_equal(fused.run(inputs).outputs["y"], apart.run(inputs).outputs["y"])
