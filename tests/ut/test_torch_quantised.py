"""Quantised exports of torch: what its quantiser writes, as operators of `quantized_decomposed`, in bytes."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

if os.environ.get("SK_REQUIRE_TORCH") != "1":
    pytest.importorskip("torch", reason="torch is not installed (SK_REQUIRE_TORCH=1 makes this a failure)")

import torch
import torch.ao.quantization.fx._decomposed  # registers the operators

import superkernel as sk
from superkernel.core.errors import UnsupportedError
from superkernel.frontends.torch.registry import lowered_names

OPS = torch.ops.quantized_decomposed
SCALE = 0.05
RANGES = {"u8": (torch.uint8, 120, 0, 255), "narrow": (torch.uint8, 60, 0, 127), "i8": (torch.int8, -3, -128, 127)}


class Quantised(torch.nn.Module):
    """A residual block, an average and a product; weights i8 with a scale per channel, as converted models have."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.kind = kind
        for name, shape in (("first", (16, 8, 3, 3)), ("second", (16, 16, 1, 1)), ("last", (10, 16))):
            codes = torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)
            self.register_buffer(name, codes)
            scales = (torch.rand(shape[0], generator=generator) + 0.5) * 0.02 / codes[0].numel() ** 0.5
            self.register_buffer(f"{name}_scale", scales)
            self.register_buffer(f"{name}_zero", torch.zeros(shape[0], dtype=torch.int64))
        self.register_buffer("bias", torch.randn(16, generator=generator) * 0.1)

    def weights(self, name: str) -> Any:
        scale, zero = getattr(self, f"{name}_scale"), getattr(self, f"{name}_zero")
        return OPS.dequantize_per_channel(getattr(self, name), scale, zero, 0, -127, 127, torch.int8)

    def codes(self, x: Any) -> Any:
        dtype, zero, low, high = RANGES[self.kind]
        return OPS.quantize_per_tensor(x, SCALE, zero, low, high, dtype)

    def real(self, codes: Any) -> Any:
        dtype, zero, low, high = RANGES[self.kind]
        return OPS.dequantize_per_tensor(codes, SCALE, zero, low, high, dtype)

    def through(self, x: Any) -> Any:
        return self.real(self.codes(x))

    def forward(self, x: Any) -> Any:
        x = self.through(torch.relu(torch.conv2d(self.through(x), self.weights("first"), self.bias, padding=1)))
        y = self.through(torch.conv2d(x, self.weights("second"), self.bias))
        x = self.through(torch.relu(x + y))
        x = self.through(torch.nn.functional.adaptive_avg_pool2d(x, 1)).flatten(1)
        return self.codes(torch.nn.functional.linear(x, self.weights("last")))


@pytest.mark.parametrize("kind", RANGES)
def test_a_static_model_is_computed_in_bytes(kind: str) -> None:
    model, x = Quantised(kind).eval(), torch.randn(1, 8, 12, 12, generator=torch.Generator().manual_seed(1)) * 2
    exported = torch.export.export(model, (x,))
    kernel = sk.compile(exported, threads=1, options={"fallback": "forbid"})
    found = next(iter(kernel.run({next(iter(kernel.inputs)): x.numpy()}).outputs.values()))
    wanted = model(x).numpy()
    assert found.dtype == wanted.dtype
    assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 1
    assert len(np.unique(wanted)) > 4
    assert kernel.summary()["computed_in"]["bytes"] >= 3
    low, high = RANGES[kind][2:]
    assert low <= found.min()
    assert found.max() <= high


class Dynamic(torch.nn.Module):
    """A product whose left factor is quantised by its own range."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.register_buffer("codes", torch.randint(-127, 128, (24, 40), generator=generator, dtype=torch.int8))

    def forward(self, x: Any) -> Any:
        scale, zero = OPS.choose_qparams.tensor(x, -128, 127, 1e-6, torch.int8)
        codes = OPS.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
        real = OPS.dequantize_per_tensor.tensor(codes, scale, zero, -128, 127, torch.int8)
        w = OPS.dequantize_per_tensor(self.codes, 0.01, 0, -127, 127, torch.int8)
        return torch.nn.functional.linear(real, w), zero


def test_a_dynamic_model() -> None:
    model, x = Dynamic().eval(), torch.randn(5, 40, generator=torch.Generator().manual_seed(2)) * 3 + 1
    kernel = sk.compile(torch.export.export(model, (x,)), threads=1, options={"fallback": "forbid"})
    found, zero = kernel.run({next(iter(kernel.inputs)): x.numpy()}).outputs.values()
    wanted, point = model(x)
    assert int(np.asarray(zero).reshape(())) == int(point)
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-4 * float(wanted.abs().max()))


def test_per_token_codes_are_refused_by_name() -> None:
    class PerToken(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            scale, zero = OPS.choose_qparams_per_token_asymmetric(x, torch.int8)
            return OPS.quantize_per_token(x, scale, zero, -128, 127, torch.int8)

    with pytest.raises(UnsupportedError, match="per_token"):
        sk.compile(torch.export.export(PerToken(), (torch.randn(4, 8),)), threads=1)


def test_every_lowering_names_an_operator() -> None:
    mine = [name.partition(".")[2] for name in lowered_names() if name.startswith("quantized_decomposed.")]
    assert len(mine) >= 5
    assert all(hasattr(OPS, name) for name in mine)
