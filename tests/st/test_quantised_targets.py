"""Quantised networks: the same integers on every tier of the host, on the simulator and on an emulator. A run draws
half of the networks; a soak run has all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from firmware_bench import needs_qemu
from numpy.typing import NDArray

pytest.importorskip("onnxruntime")

import soak
from kernel_check import tiers
from onnx_models import numpy_helper, onnx
from quantised_nets import NETWORKS, images, save_network

import superkernel as sk
from superkernel.analysis.quantising import quantise

SAMPLES = images(3)


QUANTISED = [*((name, "u8") for name in NETWORKS), (NETWORKS[0], "i16")]


@pytest.fixture(scope="module", params=soak.drawn(QUANTISED, 2), ids="-".join)
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A quantised network, and its outputs on this machine. Outputs are codes times a scale: equal values are equal
    integers."""
    folder = tmp_path_factory.mktemp("quantised")
    name, activations = request.param
    save_network(name, folder / "f32.onnx")
    quantise(folder / "f32.onnx", folder / "bytes.onnx", SAMPLES, activations=activations, threads=1)
    kernel = sk.compile(folder / "bytes.onnx", threads=1)
    assert kernel.summary()["computed_in"]["bytes"] >= 5
    assert name != "attention" or "host.softmax" in " ".join(kernel.manifest().kernels)
    outputs = results(kernel)
    assert all(len(np.unique(y)) > 4 for y in outputs)
    return folder / "bytes.onnx", outputs


def results(kernel: Any, **how: Any) -> list[NDArray[Any]]:
    return [np.array(kernel.run(sample, **how).outputs["y"]) for sample in SAMPLES]


def same(found: list[NDArray[Any]], wanted: list[NDArray[Any]]) -> None:
    np.testing.assert_array_equal(np.stack(found), np.stack(wanted))


def test_within_a_step_of_onnxruntime(network: tuple[Path, list[Any]]) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(network[0], providers=["CPUExecutionProvider"])
    proto = onnx.load(network[0])
    (step,) = (numpy_helper.to_array(t).item() for t in proto.graph.initializer if t.name == "y_scale")
    for sample, found in zip(SAMPLES, network[1], strict=True):
        (wanted,) = session.run(None, sample)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1.01 * step)


@pytest.mark.parametrize("tier", tiers())
def test_on_the_host(network: tuple[Path, list[Any]], tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SK_CPU", tier)
    same(results(sk.compile(network[0], threads=2)), network[1])


@pytest.mark.parametrize("target", ["mini", "a3"])
def test_on_accelerators(network: tuple[Path, list[Any]], target: str) -> None:
    kernel = sk.compile(network[0], target=target, options={"fallback": "forbid"})
    kernels = kernel.manifest().kernels
    assert {"aicore.conv.i8/i8", "aicore.softmax/f32"} & set(kernels)
    assert "aicore.matmul.i8/i8" in kernels
    same(results(kernel), network[1])


@needs_qemu
def test_on_an_emulator(network: tuple[Path, list[Any]]) -> None:
    same(results(sk.compile(network[0], target="mini"), executor="qemu"), network[1])


def test_halves_are_rounded_ahead_of_the_zero_point() -> None:
    b = sk.GraphBuilder("ties")
    x = b.input("x", (64,))
    b.output(b.quantize(x, b.constant(np.float32(0.5)), b.constant(np.array(1, np.uint8)), dtype="u8"), "y")
    values = (np.arange(-4, 60, dtype=np.float32) + 0.5) * np.float32(0.5)
    found = sk.compile(b.graph(), target="mini").run({"x": values}).outputs["y"]
    np.testing.assert_array_equal(found, np.clip(np.rint(values / 0.5) + 1, 0, 255))
