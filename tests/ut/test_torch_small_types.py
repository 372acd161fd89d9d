"""torch's 8-bit floats: conversions as torch makes them, tensors of them in and out, bits as another type."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

if os.environ.get("SK_REQUIRE_TORCH") != "1":
    pytest.importorskip("torch")
import torch
from torch import nn

import superkernel as sk

KINDS = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]


def numbers() -> torch.Tensor:
    """f32 of every exponent and sign, at halves between short ones and beside them."""
    high, low = np.arange(1 << 12, dtype=np.uint32) << 20, np.array([0, 1, 0x7FFFF, 0x80000, 0x80001], np.uint32)
    return torch.from_numpy((high[:, None] | low).reshape(-1).view(np.float32).copy())


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    a, b = a.to(torch.float32), b.to(torch.float32)
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


class Convert(nn.Module):
    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> Any:
        y = x.to(self.kind)
        return y, y.to(torch.float16), y.view(torch.uint8)


@pytest.mark.parametrize("name", [k for k in KINDS if hasattr(torch, k)])
def test_conversions_are_torch_s(name: str) -> None:
    kind, x = getattr(torch, name), numbers()
    module = Convert(kind)
    expected = module(x)
    for found in (
        sk.compile(module, example_inputs=(x,), threads=1)(x),
        torch.compile(module, backend="superkernel")(x),
    ):
        assert [f.dtype for f in found] == [kind, torch.float16, torch.uint8]
        assert same(found[0], expected[0])
        assert same(found[1], expected[1])
        known = ~expected[0].to(torch.float32).isnan()  # of which there are several
        assert torch.equal(found[2][known], expected[2][known])


class Scaled(nn.Module):
    """Weights in 8 bits with a scale per row."""

    def __init__(self) -> None:
        super().__init__()
        weights = torch.randn(32, 24, generator=torch.Generator().manual_seed(1))
        self.scale = nn.Buffer(weights.abs().amax(1, keepdim=True) / 448)
        self.weights = nn.Buffer((weights / self.scale).to(torch.float8_e4m3fn))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weights.to(torch.float32) * self.scale)


def test_weights_may_be_small() -> None:
    module, x = Scaled(), torch.randn(5, 24)
    assert torch.allclose(sk.compile(module, example_inputs=(x,), threads=2)(x), module(x), atol=1e-4)


class Product(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.to(torch.float32) @ b.to(torch.float32)


def test_tensors_of_them_are_inputs() -> None:
    a, b = torch.randn(4, 8).to(torch.float8_e4m3fn), torch.randn(8, 3).to(torch.float8_e5m2)
    kernel, expected = sk.compile(Product(), example_inputs=(a, b), threads=1), Product()(a, b)
    assert torch.allclose(kernel(a, b), expected)
    out = torch.empty(4, 3)
    kernel(a, b, out=out)
    assert torch.allclose(out, expected)
    bound = kernel.bind(a, b)
    bound.run()
    assert np.allclose(next(iter(bound.outputs.values())), expected.numpy())
    with pytest.raises(sk.InputError, match="wrong element type"):
        kernel(a.float(), b)


class Magnitude(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        bits = x.view(torch.int32)
        return bits, (bits & 0x7FFFFFFF).view(torch.float32), x.half().view(torch.int16), x.view(torch.float32)


def test_bits_are_viewed_as_another_type() -> None:
    x = torch.randn(3, 5)
    for found, expected in zip(sk.compile(Magnitude(), example_inputs=(x,))(x), Magnitude()(x), strict=True):
        assert torch.equal(found, expected)
