"""The benchmark of networks in bytes: what it says of agreement, and that it runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import quantised
from onnx_models import onnx
from quantised_nets import save_network


def test_images_are_of_one_scale_and_structured_ones_have_neighbours_alike() -> None:
    correlations = {}
    for name, draw in quantised.IMAGES.items():
        image = draw((1, 3, 40, 40), np.random.default_rng(0))
        assert image.dtype == np.float32
        assert abs(image.mean()) < 0.1
        assert 0.9 < image.std() < 1.1
        correlations[name] = float((image[..., 1:] * image[..., :-1]).mean())
    assert abs(correlations["random"]) < 0.1
    assert correlations["structured"] > 0.7


def test_agreement_counts_the_largest_and_the_difference() -> None:
    first = [np.array([1.0, 4.0, 2.0]), np.array([3.0, 1.0, 0.0])]
    second = [np.array([1.0, 3.0, 2.0]), np.array([1.0, 2.0, 0.0])]
    found = quantised.agreement("random", first, second)
    assert (found.samples, found.same_largest, found.difference) == (2, 0.5, 0.5)


def test_a_network_is_measured(tmp_path: Path) -> None:
    save_network("mobilenet", tmp_path / "net.onnx")
    result = quantised.measured("small", onnx.load(str(tmp_path / "net.onnx")), threads=1, rounds=2, samples=3)
    assert {"f32", "bytes", "onnxruntime"} <= result.least_ms.keys()
    assert result.times.keys() == result.least_ms.keys() - {"bytes"}
    assert all(value > 0 for value in (*result.times.values(), *result.least_ms.values()))
    assert [a.images for a in result.agreements] == ["random", "structured"]
    assert all(a.difference < 0.3 for a in result.agreements)
    assert result.off is not None
    assert result.off < 0.05
    assert "of outputs differ" in quantised.table([result])
