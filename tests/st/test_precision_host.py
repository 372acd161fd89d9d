"""Option `precision` on the host: whole models against the reference in float64, reports, promises.

Model: the reference computes what the graph says. How far a reduced precision may be off it on a whole model is stated
in docs/numerics.md and asserted here, relative to the largest value of an output.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import decode_step, mlp, transformer

import superkernel as sk
from superkernel.builder import GraphBuilder
from superkernel.codegen.host.features import detect_cpu
from superkernel.core.errors import InputError, UnsupportedError
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate
from superkernel.reference.random_inputs import random_inputs

BOUNDS = {"f32": 1e-5, "tf32-like": 1e-4, "bf16": 0.03, "int8": 0.15}
MODELS = {
    "mlp": lambda: mlp((256, 512, 64), batch=9),
    "encoder": lambda: transformer(layers=2, tokens=24, width=64, heads=4),
    "decode": lambda: decode_step(layers=2),
    "cnn": lambda: separable(),
    "windows": lambda: windows(),
}
NATIVE = detect_cpu().has("avx512bf16") and detect_cpu().has("avx512vnni")


def separable() -> Graph:
    """Depthwise and 1 x 1 convolutions in turn, as small image models have them."""
    b, rng = GraphBuilder("separable"), np.random.default_rng(2)
    x = b.relu(b.conv(b.input("image", (1, 3, 24, 24)), b.constant(_filters(rng, 16, 3, 3)), pads=(1, 1, 1, 1)))
    for width, wider in ((16, 32), (32, 48), (48, 48)):
        x = b.relu(b.conv(x, b.constant(_filters(rng, width, 1, 3)), pads=(1, 1, 1, 1), groups=width))
        bias = rng.standard_normal(wider).astype(np.float32) * np.float32(0.1)
        x = b.relu(b.conv(x, b.constant(_filters(rng, wider, width, 1)), b.constant(bias)))
    b.output(b.global_avg_pool(x), "features")
    return b.graph()


def windows() -> Graph:
    """Convolutions of several windows and strides over an image that comes in with rows inside."""
    b, rng = GraphBuilder("windows"), np.random.default_rng(4)
    x = b.input("image", (1, 3, 40, 40))
    for channels, filters, side, stride in (
        (3, 32, 7, 2),
        (32, 48, 3, 1),
        (48, 64, 3, 2),
        (64, 64, 3, 1),
        (64, 96, 1, 2),
    ):
        w = b.constant(_filters(rng, filters, channels, side))
        x = b.relu(b.conv(x, w, pads=(side // 2,) * 4, strides=(stride, stride)))
    b.output(b.global_avg_pool(x), "features")
    return b.graph()


def _filters(rng: np.random.Generator, count: int, channels: int, side: int) -> np.ndarray:
    scale = np.float32((2.0 / (channels * side * side)) ** 0.5)
    return rng.standard_normal((count, channels, side, side)).astype(np.float32) * scale


def error(graph: Graph, precision: str, **options: Any) -> float:
    inputs = random_inputs(graph.inputs, 1)
    kernel = sk.compile(graph, options={"precision": precision, **options})
    wanted = evaluate(graph, inputs, wide=True)
    worst = 0.0
    for name, got in kernel.run(inputs).outputs.items():
        if got.dtype.kind == "f":
            worst = max(worst, float(np.abs(got - wanted[name]).max() / np.abs(wanted[name]).max()))
    return worst


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("name", MODELS)
def test_models_stay_within_the_stated_error(name: str, precision: str) -> None:
    assert error(MODELS[name](), precision) <= BOUNDS[precision]


@pytest.mark.parametrize(("precision", "pin"), [("tf32-like", "tf32"), ("bf16", "bf16"), ("int8", "int8")])
def test_pinned_kernels_compute_the_model(precision: str, pin: str) -> None:
    """With a pin the narrow kernel is taken even where it gains nothing."""
    graph = mlp((100, 130, 37), batch=11)
    kernel = sk.compile(graph, options={"precision": precision, "pin": (f"host.matmul.{pin}",)})
    assert {"bf16x3", "bf16", "int8"} & set(kernel.summary()["computed_in"])
    assert 0 < error(graph, precision, pin=(f"host.matmul.{pin}",)) <= BOUNDS[precision]


@pytest.mark.parametrize(
    ("name", "precision"), [("encoder", "bf16"), ("encoder", "int8"), ("windows", "bf16"), ("windows", "int8")]
)
def test_bits_do_not_depend_on_the_number_of_threads(name: str, precision: str) -> None:
    graph = MODELS[name]()
    inputs = random_inputs(graph.inputs, 1)
    found = [
        sk.compile(graph, threads=n, options={"precision": precision, "sync": sync}).run(inputs).outputs
        for n, sync in ((1, "minimal"), (2, "minimal"), (2, "full"))
    ]
    for name, first in found[0].items():
        for other in found[1:]:
            np.testing.assert_array_equal(other[name].view(np.uint8), first.view(np.uint8))


def test_nothing_is_reduced_unless_asked_for() -> None:
    graph = mlp((256, 512, 64), batch=9)
    for options in ({}, {"precision": "f32"}, {"precision": "auto"}):
        kernel = sk.compile(graph, options=options)
        assert set(kernel.summary()["computed_in"]) == {"f32"}
        assert kernel.report(rounds=3).precision == ""
        assert kernel.explain(0).precision == ""


@pytest.mark.skipif(not NATIVE, reason="the CPU multiplies neither bf16 nor bytes")
@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_reports_say_what_ran(precision: str) -> None:
    kernel = sk.compile(mlp((256, 512, 64), batch=9), options={"precision": precision})
    assert kernel.summary()["computed_in"] == {precision: 2}
    report = kernel.report(rounds=3)
    assert {w.computed_in for w in report.work} == {precision}
    assert f"precision {precision} allowed" in report.text()
    assert json.loads(report.json())["precision"] == report.precision
    assert f"precision: {precision} allowed" in kernel.explain(0).text()
    assert "own instructions" in kernel.explain(0).precision


@pytest.mark.skipif(not NATIVE, reason="the CPU multiplies neither bf16 nor bytes")
@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_convolutions_are_narrow_too(precision: str) -> None:
    """Of any window; depthwise ones are not, and it is said why."""
    kernel = sk.compile(separable(), options={"precision": precision})
    assert kernel.summary()["computed_in"][precision] >= 4
    texts = [kernel.explain(i).precision for i in range(kernel.summary()["sub_operators"])]
    assert any("gains nothing" in t for t in texts), "of depthwise convolutions"


@pytest.mark.skipif(not NATIVE, reason="the CPU does not multiply bf16")
def test_images_and_attention_are_computed_in_bf16(without_tiles: None) -> None:
    kernels = set()
    for name in ("windows", "encoder"):
        kernel = sk.compile(MODELS[name](), options={"precision": "bf16"})
        kernels |= {w.kernel for w in kernel.report(rounds=3).work if w.computed_in == "bf16"}
    assert {"host.conv.nhwc_bf16", "host.conv.winograd2_bf16", "host.attention.bf16"} <= kernels


@pytest.mark.skipif(not NATIVE, reason="the CPU does not multiply bytes")
def test_windows_are_computed_in_int8(without_tiles: None) -> None:
    """With strides and without, where Winograd convolution in f32 is the rival."""
    kernel = sk.compile(windows(), options={"precision": "int8"})
    work = [w.kernel for w in kernel.report(rounds=3).work if w.computed_in == "int8"]
    assert work.count("host.conv.nhwc_int8") == 5


def test_what_gains_nothing_is_computed_in_f32_and_said() -> None:
    """Three products of parts cost more than one of f32 wherever there is no matrix unit."""
    kernel = sk.compile(mlp((256, 512, 64), batch=9), options={"precision": "tf32-like"})
    assert set(kernel.summary()["computed_in"]) == {"f32"}
    assert "gains nothing on this CPU" in kernel.explain(0).precision


def test_what_has_no_narrow_kernel_is_computed_in_f32_and_said() -> None:
    b = GraphBuilder("odd")
    x, y = b.input("x", (9, 33)), b.input("y", (33, 20))
    image = b.input("image", (1, 3, 9, 9))
    weight = np.random.default_rng(0).standard_normal((5, 3, 3, 3)).astype(np.float32)
    b.output(b.softmax(b.matmul(x, y), axis=-1, name="weights"), "p")
    b.output(b.conv(image, b.constant(weight), name="window"), "c")
    kernel = sk.compile(b.graph(), options={"precision": "bf16"})
    texts = [kernel.explain(i).precision for i in range(kernel.summary()["sub_operators"])]
    assert set(kernel.summary()["computed_in"]) == {"f32"}
    assert any("weight.constant" in t for t in texts)
    assert any("no bf16 kernel computes conv" in t or "does not fit" in t for t in texts)
    assert any("no product of matrices" in t for t in texts)


def test_precisions_of_the_other_target_are_refused() -> None:
    graph = mlp((8, 8))
    with pytest.raises(UnsupportedError, match="not on the host"):
        sk.compile(graph, options={"precision": "f16"})
    for precision in ("int8", "tf32-like"):
        with pytest.raises(UnsupportedError, match="not on an accelerator"):
            sk.compile(graph, "mini", options={"precision": precision})
    with pytest.raises(InputError, match="not a legal choice"):
        sk.compile(graph, options={"precision": "f8"})


@pytest.mark.parametrize("tier", ["avx2", "plain"])
@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_cpus_without_the_instructions(tier: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows gain there too: their weights are what takes the time."""
    monkeypatch.setenv("SK_CPU", tier)
    graph = mlp((1024, 1024, 512))
    kernel = sk.compile(graph, options={"precision": precision})
    assert error(graph, precision) <= BOUNDS[precision]
    words = {kernel.explain(i).precision for i in range(kernel.summary()["sub_operators"])}
    assert all(f"{precision} allowed" in text for text in words)


def test_saved_kernels_keep_their_precision(tmp_path: Path) -> None:
    graph = mlp((256, 512, 64), batch=9)
    kernel = sk.compile(graph, options={"precision": "bf16"})
    kernel.save(tmp_path / "k.skk")
    again = sk.load(tmp_path / "k.skk")
    assert again.summary()["computed_in"] == kernel.summary()["computed_in"]
    inputs = random_inputs(graph.inputs, 1)
    for name, want in kernel.run(inputs).outputs.items():
        np.testing.assert_array_equal(again.run(inputs).outputs[name], want)
