"""Whole models on AMX's tiles, emulated: what is chosen, how far it is off, that no schedule changes a bit.

Model: rates of tiles that nobody measured are the manufacturer's, so that products of many rows are taken on tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import decode_step, mlp, transformer
from numpy.typing import NDArray

import superkernel as sk
from superkernel.builder import GraphBuilder
from superkernel.codegen.host.features import detect_cpu
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate
from superkernel.reference.random_inputs import random_inputs
from superkernel.target.cpu import EMULATED_TILES

pytestmark = pytest.mark.skipif(detect_cpu("").tier != "avx512", reason="kernels on tiles are chosen beside AVX-512")

BOUNDS = {"bf16": 0.03, "int8": 0.15}


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SK_CPU", f"avx512+{EMULATED_TILES}")


def encoder() -> Graph:
    return transformer(layers=1, tokens=24, width=64, heads=4)


def images() -> Graph:
    """Convolutions of several windows, the first over three channels."""
    b, rng = GraphBuilder("images"), np.random.default_rng(4)
    x = b.input("image", (1, 3, 20, 20))
    for channels, filters, side, stride in ((3, 32, 3, 1), (32, 48, 5, 2), (48, 64, 1, 1), (64, 32, 3, 1)):
        scale = np.float32((2.0 / (channels * side * side)) ** 0.5)
        w = rng.standard_normal((filters, channels, side, side)).astype(np.float32) * scale
        x = b.relu(b.conv(x, b.constant(w), pads=(side // 2,) * 4, strides=(stride, stride)))
    b.output(b.global_avg_pool(x), "features")
    return b.graph()


def outputs(kernel: sk.Kernel, graph: Graph) -> dict[str, NDArray[Any]]:
    return dict(kernel.run(random_inputs(graph.inputs, 1)).outputs)


def kernels_of(kernel: sk.Kernel) -> set[str]:
    assert isinstance(kernel, sk.HostKernel)
    return {work.kernel for work in kernel.report(rounds=1).work}


@pytest.mark.parametrize(
    ("make", "precision", "taken"),
    [
        (encoder, "bf16", "host.matmul.bf16_tiles"),
        (encoder, "int8", "host.matmul.int8_tiles"),
        (images, "bf16", "host.conv.nhwc_bf16_tiles"),
        (images, "int8", "host.conv.nhwc_int8_tiles"),
    ],
)
def test_what_gains_is_taken_on_tiles(make: Callable[[], Graph], precision: str, taken: str) -> None:
    graph = make()
    kernel = sk.compile(graph, options={"precision": precision})
    assert taken in kernels_of(kernel)
    assert "in tiles" in " ".join(kernel.explain(i).precision for i in range(kernel.summary()["sub_operators"]))
    wanted = evaluate(graph, random_inputs(graph.inputs, 1), wide=True)
    for name, got in outputs(kernel, graph).items():
        assert np.abs(got - wanted[name]).max() <= BOUNDS[precision] * np.abs(wanted[name]).max()


@pytest.mark.parametrize("precision", BOUNDS)
def test_few_rows_and_f32_stay_where_they_were(precision: str) -> None:
    for graph, options in ((decode_step(layers=1), {"precision": precision}), (encoder(), {})):
        assert not {name for name in kernels_of(sk.compile(graph, options=options)) if name.endswith("_tiles")}


@pytest.mark.parametrize(("make", "precision"), [(encoder, "bf16"), (images, "bf16"), (images, "int8")])
def test_bits_depend_on_no_schedule_and_nothing_undeclared_is_touched(
    make: Callable[[], Graph], precision: str
) -> None:
    graph = make()
    found = [
        outputs(sk.compile(graph, threads=threads, options={"precision": precision, **options}), graph)
        for threads, options in ((1, {}), (2, {}), (2, {"sync": "full"}), (2, {"debug": "races"}))
    ]
    for other in found[1:]:
        for name, first in found[0].items():
            np.testing.assert_array_equal(other[name].view(np.uint8), first.view(np.uint8))


def test_a_saved_kernel_is_made_anew_where_there_are_no_tiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    graph = mlp((64, 96, 32), batch=20)
    kernel = sk.compile(graph, options={"precision": "bf16", "pin": ("host.matmul.bf16_tiles",)})
    kernel.save(tmp_path / "k.skk")
    again = sk.load(tmp_path / "k.skk")
    assert "host.matmul.bf16_tiles" in kernels_of(again)
    for name, want in outputs(kernel, graph).items():
        np.testing.assert_array_equal(outputs(again, graph)[name], want)
    monkeypatch.setenv("SK_CPU", "avx512")
    request.getfixturevalue("without_tiles")  # which the CPU may have itself
    without = sk.load(tmp_path / "k.skk")
    assert "host.matmul.bf16_tiles" not in kernels_of(without)
    for name, want in outputs(kernel, graph).items():
        np.testing.assert_allclose(outputs(without, graph)[name], want, rtol=0.05, atol=0.05)
