"""`superkernel quantise`: models that are quantised on data, and what is said of them."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx_models import helper, node, numpy_helper, onnx

import superkernel
from superkernel.analysis.quantising import METHODS, quantise, stacked_samples
from superkernel.cli import main
from superkernel.core.errors import InputError, MachineError, UnsupportedError

RNG = np.random.default_rng(6)


def weights(*shape: int) -> NDArray[np.float32]:
    return (RNG.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convolutions with a residual sum, a pool and a product, for any number of images."""
    constants = {
        "w1": weights(16, 3, 3, 3),
        "w2": weights(16, 16, 3, 3),
        "w3": weights(16, 10),
        "b3": weights(10, 1)[:, 0],
    }
    nodes = [
        node("Conv", "x w1", "c1", pads=[1] * 4, strides=[2, 2]),
        node("Relu", "c1", "r1"),
        node("Conv", "r1 w2", "c2", pads=[1] * 4),
        node("Add", "c2 r1", "a"),
        node("Relu", "a", "r2"),
        node("GlobalAveragePool", "r2", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f w3 b3", "y"),
    ]
    x, y = (helper.make_tensor_value_info(n, 1, ["n", *s]) for n, s in (("x", [3, 16, 16]), ("y", [10])))
    graph = helper.make_graph(nodes, "cnn", [x], [y], [numpy_helper.from_array(a, n) for n, a in constants.items()])
    path = tmp_path_factory.mktemp("quantise") / "cnn.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def images(count: int) -> list[dict[str, Any]]:
    return [{"x": RNG.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_network_is_computed_in_bytes_and_agrees(method: str, model: Path, tmp_path: Path) -> None:
    samples = images(8)
    found = quantise(model, tmp_path / "q.onnx", samples, method=method, threads=1)
    assert [layer.tensor for layer in found.layers][:2] == ["x", "r1"]
    assert min(layer.decibels for layer in found.layers) > 25
    (output,) = found.outputs
    assert output.relative_difference < 0.05
    assert found.computed_in["bytes"] == 3
    kernel = superkernel.compile(tmp_path / "q.onnx", threads=1, dims={"n": 1})
    wanted = superkernel.compile(model, threads=1, dims={"n": 1})
    differences = [np.abs(kernel(s["x"]) - wanted(s["x"])).max() for s in samples]
    scale = max(np.abs(wanted(s["x"])).max() for s in samples)
    assert max(differences) / scale == pytest.approx(output.relative_difference, rel=1e-6)


@pytest.mark.slow
def test_scales_per_tensor_and_signed_bytes(model: Path, tmp_path: Path) -> None:
    for per_channel in (True, False):
        quantise(model, tmp_path / "q.onnx", images(2), per_channel=per_channel, activations="i8", threads=1)
        written = onnx.load(tmp_path / "q.onnx")
        arrays = {t.name: numpy_helper.to_array(t) for t in written.graph.initializer}
        scales = {np.size(a) for name, a in arrays.items() if name.startswith("w2") and name.endswith("scale")}
        assert scales == {16 if per_channel else 1}
        points = [a for name, a in arrays.items() if name.endswith("zero_point")]
        assert {a.dtype for a in points} <= {np.dtype(np.int8), np.dtype(np.int32)}


@pytest.mark.slow
def test_activations_of_16_bits_lose_less(model: Path, tmp_path: Path) -> None:
    samples = images(4)
    told = {a: quantise(model, tmp_path / "q.onnx", samples, activations=a, threads=1) for a in ("u8", "i16", "u16")}
    assert told["i16"].computed_in["bytes"] == told["u16"].computed_in["bytes"] == 2 * told["u8"].computed_in["bytes"]
    for activations in ("i16", "u16"):  # weights are of 8 bits all the same
        gained = [
            ours.decibels - theirs.decibels
            for ours, theirs in zip(told[activations].layers, told["u8"].layers, strict=True)
        ]
        assert gained[0] > 40  # the input itself
        assert min(gained) > 0


@pytest.mark.slow
def test_a_model_of_an_old_opset(model: Path, tmp_path: Path) -> None:
    """IR version 3 and opset 9: constants need not be inputs, and scales per channel come with opset 13."""
    old = onnx.load(model)
    old.ir_version, old.opset_import[0].version = 3, 9
    onnx.save(old, tmp_path / "old.onnx")
    done = quantise(tmp_path / "old.onnx", tmp_path / "out.onnx", images(2))
    assert done.computed_in["bytes"] >= 3
    assert onnx.load(tmp_path / "out.onnx").opset_import[0].version >= 13


def test_the_command(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "d.npz"
    np.savez(data, x=np.stack([s["x"] for s in images(4)]))
    words = ["quantise", str(model), "-o", str(tmp_path / "q.onnx"), "--data", str(data), "--threads", "1"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "superkernel.quantisation/1"
    assert told["samples"] == 4
    assert main([*words, "--method", "percentile"]) == 0
    text = capsys.readouterr().out
    assert "ranges by percentile over 4 samples" in text
    assert "Percentile :" not in text  # what the quantiser itself prints


def test_samples_lie_along_a_first_axis(model: Path) -> None:
    one = images(1)[0]["x"]
    assert len(stacked_samples(model, {"x": one})) == 1
    assert [s["x"].shape for s in stacked_samples(model, {"x": np.stack([one] * 3)})] == [(1, 3, 16, 16)] * 3


def test_data_that_are_not_the_models(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no data"):
        quantise(model, tmp_path / "q.onnx", [])
    with pytest.raises(InputError, match="the model has no input 'z'") as caught:
        quantise(model, tmp_path / "q.onnx", [{"z": np.zeros(3, np.float32)}])
    assert "sample 0, input 'x': missing" in str(caught.value)
    with pytest.raises(UnsupportedError, match="onnxruntime cannot quantise"):
        quantise(model, tmp_path / "q.onnx", [{"x": np.zeros((1, 4), np.float32)}])
    with pytest.raises(InputError, match="no such quantisation"):
        quantise(model, tmp_path / "q.onnx", images(1), method="guess")
    assert not (tmp_path / "q.onnx").exists()


def test_no_room_for_temporary_files(model: Path, tmp_path: Path) -> None:
    limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(MachineError, match="temporary files cannot be written") as caught:
            quantise(model, tmp_path / "q.onnx", images(1), threads=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    assert "File too large" in str(caught.value)
    assert "TMPDIR" in str(caught.value)
    assert not list(tmp_path.iterdir())
