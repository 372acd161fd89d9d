"""The host's layout of images: chosen where it pays, no transposes inside, equal results, overruled by patterns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import superkernel
from superkernel.builder import GraphBuilder, Tensor
from superkernel.codegen.host.features import detect_cpu
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate
from superkernel.registry import requirement
from superkernel.scheduler import storage
from superkernel.scheduler.layout import channel_shuffles, wants_channels_last
from superkernel.target.aicore import AicoreTarget

CONV_KERNELS = ("host.conv.nhwc", "host.conv.winograd*", "host.conv.depthwise_nhwc")


class Net:
    """Layers with seeded weights."""

    def __init__(self) -> None:
        self.b, self.rng = GraphBuilder("net"), np.random.default_rng(3)

    def noise(self, *shape: int) -> Tensor:
        return self.b.constant(self.rng.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[0])))

    def conv(self, x: Tensor, outputs: int, size: int = 3, stride: int = 1, groups: int = 1) -> Tensor:
        weight = self.noise(outputs, x.shape[1] // groups, size, size)
        y = self.b.conv(x, weight, self.noise(outputs), strides=(stride,) * 2, pads=(size // 2,) * 4, groups=groups)
        return self.b.relu(y)


def network() -> Graph:
    """A stem, a residual block, a branch, a depthwise layer, a pool, a classifier."""
    n = Net()
    x = n.conv(n.b.input("x", (1, 3, 20, 24)), 16, stride=2)
    x = n.conv(n.conv(x, 16), 16) + x
    x = n.b.max_pool(n.b.concat(n.conv(x, 16, 1), n.conv(x, 16), axis=1), kernel=(3, 3), strides=(2, 2))
    x = n.conv(n.conv(x, 32, groups=32), 24, 1)
    x = n.b.reshape(n.b.global_avg_pool(x), shape=(1, 24))
    n.b.output(x @ n.noise(24, 5), name="y")
    return n.b.graph()


def run(graph: Graph, threads: int = 1, **options: Any) -> tuple[superkernel.Kernel, NDArray[np.float32]]:
    kernel = superkernel.compile(graph, threads=threads, options=options)
    x = np.random.default_rng(1).standard_normal((1, 3, 20, 24)).astype(np.float32)
    return kernel, np.array(kernel.run({"x": x}).outputs["y"])


def kernels_of(kernel: superkernel.Kernel) -> list[str]:
    return [line.split()[3] for line in kernel.stage_text("subops").splitlines() if line.startswith("subop")]


def test_a_network_lies_channels_last_without_copies() -> None:
    graph = network()
    kernel, got = run(graph)
    used = kernels_of(kernel)
    assert all(wants_channels_last(k) for k in used if ".conv." in k or ".pool" in k)
    assert "host.conv.depthwise_nhwc" in used
    assert not {"host.transpose", "host.pointwise", "host.concat"} & set(used)
    x = np.random.default_rng(1).standard_normal((1, 3, 20, 24)).astype(np.float32)
    want = evaluate(graph, {"x": x})["y"]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_single_convolution_in_three_dimensions_is_not_left_to_the_generic_kernel(dtype: type) -> None:
    n = Net()
    weights = n.b.constant(n.rng.standard_normal((8, 5, 2, 3, 3)).astype(dtype))
    x = n.b.input("x", (2, 5, 4, 9, 9), "f32" if dtype is np.float32 else "f16")
    n.b.output(n.b.conv(x, weights, strides=(2, 1, 1)), name="y")
    kernel = superkernel.compile(n.b.graph(), threads=2)
    assert "host.conv.nhwc" in kernels_of(kernel)
    given = {"x": n.rng.standard_normal((2, 5, 4, 9, 9)).astype(dtype)}
    got = kernel.run(given).outputs["y"].astype(np.float64)
    np.testing.assert_allclose(got, evaluate(n.b.graph(), given)["y"].astype(np.float64), rtol=2e-3, atol=2e-2)


def test_results_do_not_depend_on_threads_or_synchronisation() -> None:
    graph = network()
    _, one = run(graph)
    for threads, options in ((2, {}), (3, {"cost_placement": False}), (2, {"sync": "full"})):
        np.testing.assert_array_equal(run(graph, threads, **options)[1], one)


def test_dumps_do_not_change_the_layout() -> None:
    """Every dumped image is an output and so a border, but the layout was decided before."""
    graph = network()
    np.testing.assert_array_equal(run(graph, dump=("*",))[1], run(graph)[1])


@pytest.mark.parametrize("options", [{"deny": CONV_KERNELS}, {"pin": ("host.conv.igemm",)}], ids=["deny", "pin"])
def test_patterns_of_kernels_overrule_the_layout(options: dict[str, Any]) -> None:
    graph = network()
    kernel, got = run(graph, **options)
    assert not any(map(wants_channels_last, kernels_of(kernel)))
    np.testing.assert_allclose(got, run(graph)[1], rtol=1e-5, atol=1e-5)


def shuffled(n: Net, perm: tuple[int, ...] = (0, 2, 1, 3, 4), groups: int = 4) -> Tensor:
    """Convolutions in groups, with their channels divided anew between them."""
    x = n.conv(n.b.input("x", (1, 3, 20, 24)), 16)
    for _ in range(2):
        x = n.conv(x, 24, 1, groups=groups)
        x = n.b.transpose(n.b.reshape(x, shape=(1, groups, 24 // groups, 20, 24)), perm=perm)
        x = n.conv(n.conv(n.b.reshape(x, shape=(1, 24, 20, 24)), 24, groups=24), 16, 1, groups=groups)
    return n.b.global_avg_pool(x)


def shuffled_network(**how: Any) -> Graph:
    n = Net()
    n.b.output(shuffled(n, **how), name="y")
    return n.b.graph()


def test_shuffles_of_channels_are_no_border() -> None:
    graph = shuffled_network()
    assert len(channel_shuffles(graph)) == 6
    kernel, got = run(graph)
    assert all(wants_channels_last(k) for k in kernels_of(kernel) if ".conv." in k or ".pool" in k)
    x = np.random.default_rng(1).standard_normal((1, 3, 20, 24)).astype(np.float32)
    np.testing.assert_allclose(got, evaluate(graph, {"x": x})["y"], rtol=1e-5, atol=1e-5)
    for options in ({"sync": "full"}, {"cost_placement": False}):
        np.testing.assert_array_equal(run(graph, 2, **options)[1], got)


def test_what_moves_pixels_or_is_seen_on_the_way_is_no_shuffle() -> None:
    assert not channel_shuffles(shuffled_network(perm=(0, 2, 1, 4, 3)))
    assert not channel_shuffles(shuffled_network(perm=()))
    n = Net()
    x = n.conv(n.b.input("x", (1, 3, 20, 24)), 16)
    parts = n.b.transpose(n.b.reshape(x, shape=(1, 4, 4, 20, 24)), perm=(0, 2, 1, 3, 4))
    n.b.output(n.conv(n.b.reshape(parts, shape=(1, 16, 20, 24)), 16), name="y")
    n.b.output(parts, name="seen")
    assert not channel_shuffles(n.b.graph())
    n = Net()
    n.b.output(n.b.reshape(n.conv(n.b.input("x", (1, 3, 20, 24)), 16), shape=(1, 160, 48)), name="y")
    assert not channel_shuffles(n.b.graph())
    n = Net()
    x = n.b.reshape(n.conv(n.b.input("x", (1, 3, 20, 24)), 16), shape=(1, 4, 4, 20, 24))
    x = n.b.tanh(n.b.transpose(x, perm=(0, 2, 1, 3, 4)))  # computes on the way
    n.b.output(n.conv(n.b.reshape(x, shape=(1, 16, 20, 24)), 16), name="y")
    assert not channel_shuffles(n.b.graph())


def single(n: Net) -> Tensor:
    return n.conv(n.b.input("x", (1, 3, 20, 24)), 16)


def turned(n: Net) -> Tensor:
    """Each convolution's result is needed row-major."""
    x = n.conv(n.b.input("x", (1, 3, 20, 24)), 16)
    x = n.b.softmax(n.b.reshape(x, shape=(1, 16, 480)), axis=-1)
    x = n.conv(n.b.reshape(x, shape=(1, 16, 20, 24)), 16)
    return n.b.softmax(n.b.reshape(x, shape=(1, 16, 480)), axis=-1)


@pytest.mark.parametrize("make", [single, turned])
def test_borders_keep_a_graph_row_major(make: Callable[[Net], Tensor]) -> None:
    n = Net()
    n.b.output(make(n), name="y")
    kernel, _ = run(n.b.graph())
    assert "host.conv.igemm" in kernels_of(kernel)


def test_scheduler_and_registry_agree_on_what_computes_images() -> None:
    assert requirement.IMAGE_OPS == storage.IMAGE_OPS


def test_explanations_show_the_candidates() -> None:
    graph = network()
    kernel, _ = run(graph)
    node = next(n.name for n in graph.nodes if n.op == "conv" and graph.types[n.outputs[0]].shape[1:] == (16, 10, 12))
    text = str(kernel.explain(node))
    assert all(name in text for name in ("host.conv.nhwc", "host.conv.winograd2", "host.conv.winograd4"))


def test_volumes_lie_channels_last_where_there_are_kernels() -> None:
    """A residual block in three dimensions: nothing is copied between its convolutions; targets without such kernels
    keep the order that their other kernels want."""
    n, shape = Net(), (1, 3, 4, 9, 10)
    x = n.b.relu(n.b.conv(n.b.input("x", shape), n.noise(16, 3, 3, 3, 3), strides=(1, 2, 2), pads=(1,) * 6))
    y = n.b.relu(n.b.conv(x, n.noise(16, 16, 3, 1, 1), pads=(1, 0, 0) * 2))
    y = n.b.relu(n.b.conv(y, n.noise(16, 16, 1, 3, 3), pads=(0, 1, 1) * 2) + x)
    n.b.output(n.b.global_avg_pool(y), name="y")
    graph = n.b.graph()
    kernel, given = superkernel.compile(graph, threads=2), np.random.default_rng(1).standard_normal(shape)
    assert set(kernels_of(kernel)) == {"host.conv.nhwc", "host.pool_nhwc"}
    want = evaluate(graph, {"x": given.astype(np.float32)})["y"]
    np.testing.assert_allclose(kernel(given.astype(np.float32)), want, rtol=1e-5, atol=1e-5)
    channels_last = storage.StoragePolicy.CHANNELS_LAST
    assert x.name in channels_last.of(graph, detect_cpu("").image_ranks).images
    assert not channels_last.of(graph, AicoreTarget.image_ranks).images
