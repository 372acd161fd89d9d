"""Fourier transforms, running products and images read at computed places, from ONNX: against onnxruntime, and where it
has none, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx_models import check, f32, model, node

import superkernel
from superkernel.core.errors import FileFormatError, UnsupportedError
from superkernel.frontends import load_graph
from superkernel.reference import evaluate

RNG = np.random.default_rng(8)


def grid_of(*shape: int) -> NDArray[np.float32]:
    """Places inside and well beyond both borders."""
    return RNG.uniform(-2.6, 2.6, shape).astype(np.float32)


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_grid_sample(mode: str, padding: str, aligned: int) -> None:
    inputs = {"x": f32(2, 3, 5, 4), "g": grid_of(2, 6, 7, 2)}
    sample = node("GridSample", "x g", mode=mode, padding_mode=padding, align_corners=aligned)
    check(model([sample], inputs, opset=16), inputs)


def test_grid_sample_compiles() -> None:
    inputs = {"x": f32(1, 8, 9, 7), "g": grid_of(1, 5, 6, 2)}
    graph = load_graph(model([node("GridSample", "x g", mode="linear")], inputs, opset=20))
    kernel = superkernel.compile(graph, threads=2, options={"fallback": "forbid"})
    np.testing.assert_allclose(kernel.run(inputs).outputs["y"], evaluate(graph, inputs)["y"], rtol=1e-5, atol=1e-6)


def test_grid_sample_in_a_row_of_one_point() -> None:
    inputs = {"x": f32(1, 2, 1, 3), "g": grid_of(1, 4, 4, 2)}
    sample = node("GridSample", "x g", mode="bilinear", padding_mode="reflection", align_corners=1)
    assert np.isfinite(evaluate(load_graph(model([sample], inputs, opset=16)), inputs)["y"]).all()


def test_a_grid_of_another_rank_is_refused() -> None:
    inputs = {"x": f32(1, 2, 4, 3), "g": grid_of(1, 4, 4, 3)}
    with pytest.raises(FileFormatError, match="the grid does not fit"):
        load_graph(model([node("GridSample", "x g")], inputs, opset=16))


def transform(
    x: NDArray[Any], *, axis: int, length: int | None = None, inverse: bool = False, onesided: bool = False
) -> NDArray[Any]:
    constants: dict[str, Any] = {"axis": np.int64(axis)}
    if length is not None:
        constants["length"] = np.int64(length)
    call = node("DFT", f"x {'length' if length is not None else '_'} axis", inverse=inverse, onesided=onesided)
    graph = load_graph(model([call], {"x": x}, constants=constants, opset=20))
    return np.asarray(evaluate(graph, {"x": x})["y"])


def complex_of(x: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0])


@pytest.mark.parametrize("length", [None, 5, 12])
@pytest.mark.parametrize("axis", [1, -2])
def test_dft_cuts_off_and_pads(axis: int, length: int | None) -> None:
    at = axis if axis > 0 else axis + 1
    for x in (f32(2, 8, 9, 1), f32(2, 8, 9, 2)):
        given = complex_of(x)
        np.testing.assert_allclose(
            complex_of(transform(x, axis=axis, length=length)), np.fft.fft(given, length, at), atol=1e-4
        )
        back = complex_of(transform(x, axis=axis, length=length, inverse=True))
        np.testing.assert_allclose(back, np.fft.ifft(given, length, at), atol=1e-4)
    halved = complex_of(transform(f := f32(2, 8, 9, 1), axis=axis, length=length, onesided=True))
    np.testing.assert_allclose(halved, np.fft.rfft(f[..., 0], length, at), atol=1e-4)


@pytest.mark.parametrize("length", [None, 9, 6])
def test_dft_to_a_real_signal(length: int | None) -> None:
    x = f32(3, 6, 2)
    signal = transform(x, axis=1, length=length, inverse=True, onesided=True)
    np.testing.assert_allclose(signal[..., 0], np.fft.irfft(complex_of(x), length, 1), atol=1e-5)


def test_transforms_that_have_no_meaning_are_refused() -> None:
    with pytest.raises(FileFormatError, match="the last axis is of real and imaginary parts"):
        transform(f32(2, 8, 3), axis=1)
    with pytest.raises(FileFormatError, match="along the axis of real and imaginary parts"):
        transform(f32(2, 8, 2), axis=-1)
    with pytest.raises(UnsupportedError, match="one-sided"):
        transform(f32(2, 8, 2), axis=1, onesided=True)
    with pytest.raises(UnsupportedError, match="too long"):
        transform(f32(1, 5000, 1), axis=1)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("onesided", [0, 1])
def test_stft(onesided: int, known: bool) -> None:
    x, window = f32(2, 64, 1), np.hanning(16).astype(np.float32)
    constants = {"step": np.int64(6), "length": np.int64(16)}
    inputs = {"x": x} if known else {"x": x, "w": window}
    call = node("STFT", "x step w length", onesided=onesided)
    proto = model([call], inputs, constants={**constants, "w": window} if known else constants)
    graph = load_graph(proto)
    frames = np.stack([x[:, at : at + 16, 0] for at in range(0, 49, 6)], 1) * window
    wanted = np.fft.rfft(frames) if onesided else np.fft.fft(frames)
    np.testing.assert_allclose(complex_of(evaluate(graph, inputs)["y"]), wanted, atol=1e-4)
    assert ("mul" in [n.op for n in graph.nodes]) is not known


def test_frames_longer_than_the_signal_are_refused() -> None:
    constants = {"step": np.int64(6), "length": np.int64(80)}
    with pytest.raises(FileFormatError, match="no such frames"):
        load_graph(model([node("STFT", "x step _ length")], {"x": f32(1, 64, 1)}, constants=constants))
