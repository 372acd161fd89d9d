"""Channels-last storage: networks of images keep their meaning, and nothing is copied inside them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import random_models
from grouped_on import host_group
from image_nets import NETS, RNG, Net, copies, densenet
from interpret import interpret_grouping, interpret_schedule
from random_graphs import random_graph, random_inputs
from seeds import seeds

from superkernel.core.dtypes import DType
from superkernel.core.options import Options
from superkernel.ir.body import Body, PointwiseProgram, View
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate
from superkernel.scheduler.grouping import Grouping
from superkernel.scheduler.hostcall import HostCallTiling
from superkernel.scheduler.layout import graph_flops
from superkernel.scheduler.place import place
from superkernel.scheduler.storage import IMAGE_OPS, StoragePolicy, channels_inside
from superkernel.scheduler.tiling import KernelFamily
from superkernel.target.base import Target
from superkernel.target.cpu import cpu_target

CPU = cpu_target("x86_64-unknown-linux-gnu", "avx2", ())


class ImageFamily(KernelFamily[Target]):
    """Convolutions and pools as the accelerator has them: images channels last, in and out; the rest dense."""

    def tilings(self, kernel: str, body: Body, target: Target) -> Sequence[HostCallTiling]:
        return (HostCallTiling(),)

    def accepts_view(self, kernel: str, op: str, slot: int, view: View, dtype: DType) -> bool:
        return view.is_dense or (op in IMAGE_OPS and slot == 0 and channels_inside(view.shape, view.strides))

    def accepts_prologue(self, kernel: str, op: str, slot: int) -> bool:
        return op == "conv" and slot == 0

    def accepts_store(self, kernel: str, op: str, view: View, dtype: DType) -> bool:
        return op not in IMAGE_OPS or channels_inside(view.shape, view.strides)


def grouped(graph: Graph, **options: Any) -> Grouping:
    family = ImageFamily()
    return host_group(graph, family, storage=StoragePolicy.CHANNELS_LAST, **options)


def check_meaning(graph: Graph, grouping: Grouping, seed: int = 0) -> None:
    inputs = random_inputs(graph, seed)
    want = evaluate(graph, inputs)
    outputs, states = interpret_grouping(grouping, graph, inputs)
    for name, found in zip(graph.outputs, outputs, strict=True):
        np.testing.assert_allclose(found, want[name], rtol=1e-4, atol=1e-4, err_msg=name)
    for name, found in states.items():
        np.testing.assert_allclose(found, want.states[name], rtol=1e-4, atol=1e-4, err_msg=f"state {name}")


def check_on_addresses(graph: Graph, grouping: Grouping, cores: int = 1) -> None:
    """Placed: memory is planned and checked, and the result computed at the planned addresses."""
    schedule = place(grouping, graph, CPU, cores, Options(), lambda _: ImageFamily())
    inputs = random_inputs(graph, 1)
    outputs, _ = interpret_schedule(schedule, graph, inputs, grouping.constants)
    want = evaluate(graph, inputs)
    for name, found in zip(graph.outputs, outputs, strict=True):
        np.testing.assert_allclose(found, want[name], rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("net", NETS)
def test_only_the_input_is_converted(net: str, batch: int) -> None:
    graph = NETS[net](batch)
    grouping = grouped(graph)
    check_meaning(graph, grouping)
    moved = copies(grouping)
    assert [s.values[0] for s in moved] == ["x"]
    (load,), (store,) = moved[0].body.epilogue.inputs, moved[0].body.epilogue.outputs
    assert store.strides[1] == 1
    assert load.strides[-1] == 1
    check_on_addresses(graph, grouping)


@pytest.mark.parametrize("net", NETS)
def test_images_are_read_and_stored_channels_last(net: str) -> None:
    grouping = grouped(NETS[net](2))
    seen = 0
    for sub in grouping.subops:
        if sub.body.op not in IMAGE_OPS:
            continue
        feed = sub.body.anchor_inputs[0]
        loads = [feed.strides] if isinstance(feed, View) else [i.strides for i in feed.inputs if i.source >= 0]
        assert all(channels_inside(feed.shape, s) or not any(s[2:]) for s in loads)
        assert all(channels_inside(sub.body.epilogue.shape, o.strides) for o in sub.body.epilogue.outputs)
        seen += 1
    assert seen


def test_the_count_can_fail() -> None:
    """A channel shuffle is a permutation inside a pixel: it does need a copy, and the count sees it."""
    n = Net()
    y = n.op("reshape", n.conv(n.input("x", 1, 3, 6, 6), 3, 8, relu=False), shape=(1, 2, 4, 6, 6))
    mixed = n.op("reshape", n.op("transpose", y, perm=(0, 2, 1, 3, 4)), shape=(1, 8, 6, 6))
    graph = n.graph(n.head(n.conv(mixed, 8, 4), 4))
    grouping = grouped(graph)
    assert len(copies(grouping)) == 2
    check_meaning(graph, grouping)


def test_stages_of_a_dense_block_share_one_buffer() -> None:
    grouping = grouped(densenet())
    buffers = grouping.buffers.values()
    windows = [b for b in buffers if b.inside is not None and b.type == grouping.buffers[b.inside[0]].type]
    assert len(windows) == 4, "two of the three concatenations of each block"


def test_the_cast_of_an_input_converts_the_layout_too() -> None:
    n = Net()
    y = n.conv(n.op("mul", n.input("x", 1, 3, 6, 6), n.constant(np.float32(0.5))), 3, 4)
    graph = n.graph(n.head(y, 4))
    grouping = grouped(graph)
    assert [s.body.op for s in grouping.subops] == [None, "conv", "global_avg_pool", "matmul"]
    assert not copies(grouping)
    check_meaning(graph, grouping)


def test_outputs_and_states_keep_their_declared_layout() -> None:
    n = Net()
    s = n.state("s", RNG.standard_normal((1, 4, 5, 5)).astype(np.float32))
    y = n.conv(n.op("add", n.input("x", 1, 4, 5, 5), s), 4, 4)
    n.updates["s"] = y
    graph = n.graph(y, n.op("tanh", y), n.op("max_pool", y, kernel=(2, 2)))
    grouping = grouped(graph)
    check_meaning(graph, grouping)
    check_on_addresses(graph, grouping)


def test_a_flattened_image_is_copied_once() -> None:
    n = Net()
    y = n.conv(n.input("x", 2, 3, 4, 4), 3, 4)
    flat = n.op("reshape", y, shape=(2, 64))
    w = n.constant(RNG.standard_normal((64, 3)).astype(np.float32))
    graph = n.graph(n.op("matmul", flat, w), n.op("softmax", flat, axis=-1))
    grouping = grouped(graph)
    assert len(copies(grouping)) == 2, "the input and the flattened image"
    check_meaning(graph, grouping)


def test_pixels_as_tokens_need_no_copy() -> None:
    """What a convolution stores channels last is a matrix of pixels times channels: a vision transformer's tokens."""
    n = Net()
    y = n.op("reshape", n.conv(n.input("x", 1, 3, 8, 8), 3, 16, 1, relu=False), shape=(1, 16, 64))
    tokens = n.op("transpose", y, perm=(0, 2, 1))
    graph = n.graph(n.op("matmul", tokens, n.constant(RNG.standard_normal((16, 4)).astype(np.float32))))
    grouping = grouped(graph)
    assert [s.body.op for s in grouping.subops] == [None, "conv", "matmul"]
    feed = grouping.subops[2].body.anchor_inputs[0]
    assert isinstance(feed, View)
    assert feed.is_dense
    check_meaning(graph, grouping)


def test_split_channels_are_views() -> None:
    n = Net()
    y = n.conv(n.input("x", 1, 3, 6, 6), 3, 8)
    a, b = n.ops("split", y, outputs=2, axis=1, sizes=(4, 4))
    graph = n.graph(n.head(n.op("concat", n.conv(a, 4, 4), n.conv(b, 4, 4), axis=1), 8))
    grouping = grouped(graph)
    assert len(copies(grouping)) == 1
    check_meaning(graph, grouping)


def test_a_prologue_in_another_layout_is_not_taken() -> None:
    n = Net()
    graph = n.graph(n.head(n.conv(n.op("tanh", n.input("x", 1, 3, 6, 6)), 3, 4), 4))
    grouping = grouped(graph)
    assert not any(isinstance(f, PointwiseProgram) for s in grouping.subops for f in s.body.anchor_inputs)
    assert any("another layout" in note.reason for note in grouping.notes)


@pytest.mark.parametrize("net", NETS)
def test_without_fusion(net: str) -> None:
    graph = NETS[net](1)
    check_meaning(graph, grouped(graph, fuse=False))


@pytest.mark.parametrize("fuse", [True, False])
def test_random_graphs_keep_their_meaning(fuse: bool) -> None:
    with_images = 0
    for seed in seeds(30):
        graph = random_models.random_graph(random.Random(seed))
        with_images += any(node.op in IMAGE_OPS for node in graph.nodes)
        check_meaning(graph, grouped(graph, fuse=fuse), seed)
    assert with_images >= 5


@pytest.mark.parametrize("fuse", [True, False])
def test_graphs_without_images_are_grouped_as_ever(fuse: bool) -> None:
    family = ImageFamily()
    for seed in seeds(25):
        graph = random_graph(seed, 8 + seed % 25)
        if any(node.op in IMAGE_OPS for node in graph.nodes):
            continue
        rows = host_group(graph, family, fuse=fuse)
        assert str(grouped(graph, fuse=fuse)) == str(rows)


def test_multiply_adds_of_a_convolution() -> None:
    net = Net()
    graph = net.graph(net.conv(net.input("x", 2, 3, 8, 10), 3, 5, 3, stride=2, relu=False))
    (node,) = (node for node in graph.nodes if node.op == "conv")
    assert graph_flops(graph)(node) == (2 * 5 * 4 * 5) * (3 * 3 * 3)
