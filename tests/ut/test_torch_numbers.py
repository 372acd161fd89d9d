"""Numbers that are computed from data: Python floats that change between calls of torch.compile, and `tensor.item()`
in exported programs, against eager mode."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

if os.environ.get("SK_REQUIRE_TORCH") != "1":
    pytest.importorskip("torch", reason="torch is not installed (SK_REQUIRE_TORCH=1 makes this a failure)")

import torch
from torch import nn

import superkernel as sk
from superkernel import dynamo
from superkernel.core.errors import UnsupportedError

NUMBERS = (0.5, 0.25, 3.0, -1.5)


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


FUNCTIONS: dict[str, Callable[[torch.Tensor, float], Any]] = {
    "products": lambda x, s: x * s + (1 - s) * x.flip(0),
    "quotients": lambda x, s: x / (s + 2.0) - s / (x * x + 1),
    "signs": lambda x, s: -s * x - x.abs() * -(s - 1),
    "bounds": lambda x, s: x.clamp(max=s) + x.clamp(min=s, max=s + 1),
    "powers": lambda x, s: (x.abs() + 0.1) ** s + (s * s) ** x,
    "new tensors": lambda x, s: (torch.full((2, 3), s), torch.full_like(x, s), x.new_full((4,), s)),
    "remainders": lambda x, s: x % s + torch.fmod(x, s) + torch.div(x, s, rounding_mode="floor"),
    "conditions": lambda x, s: torch.where(x > s, x, s).masked_fill(x == s, s),
    "whole numbers": lambda x, s: (torch.arange(5) * s, torch.arange(5) > s),
    "ends": lambda x, s: (torch.linspace(0, s, 5) + x, torch.linspace(s, 2.0, 6), torch.logspace(s, 1, 4)),
    "weights of a sum": lambda x, s: torch.add(x, x.sin(), alpha=2) * s,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_changing_numbers_share_a_kernel(name: str) -> None:
    function, graphs = FUNCTIONS[name], []

    def counted(graph: Any, examples: Any) -> Any:
        graphs.append(graph)
        return dynamo.backend(graph, examples)

    fast, x = torch.compile(function, backend=counted), torch.randn(3, 5)
    for number in NUMBERS:
        torch.testing.assert_close(fast(x, number), function(x, number), rtol=2e-5, atol=2e-5)
    assert len(graphs) == 2  # for the first number, and for all


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_they_take_the_type_of_what_they_meet(kind: torch.dtype) -> None:
    x = torch.randn(4, 6).to(kind)
    fast = torch.compile(lambda x, s: x * s, backend=dynamo.backend)
    for number in NUMBERS:
        found = fast(x, number)
        assert found.dtype is kind
        torch.testing.assert_close(found, x * number)


def test_numbers_among_the_results() -> None:
    fast, x = torch.compile(lambda x, s: (x * s, s * 2 + 1), backend=dynamo.backend), torch.randn(3)
    for number in NUMBERS:
        product, result = fast(x, number)
        torch.testing.assert_close(product, x * number)
        assert type(result) is float
        assert result == number * 2 + 1


def test_what_has_to_be_known_is_left_to_eager_mode() -> None:
    fast, x = torch.compile(nn.functional.leaky_relu, backend=dynamo.backend), torch.randn(6)
    torch.testing.assert_close(fast(x, 0.5), nn.functional.leaky_relu(x, 0.5))
    with pytest.warns(dynamo.EagerWarning, match="a number must be known.*negative_slope is computed"):
        torch.testing.assert_close(fast(x, 0.25), nn.functional.leaky_relu(x, 0.25))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, s: nn.functional.layer_norm(x, (6,), eps=s),
        lambda x, s: nn.functional.interpolate(x[None, None], scale_factor=s + 0.5),
    ],
    ids=["epsilon", "scale"],
)
def test_what_torch_has_to_know_is_left_to_eager_mode(function: Any) -> None:
    fast, x = torch.compile(function, backend=dynamo.backend), torch.randn(6)
    torch.testing.assert_close(fast(x, 0.5), function(x, 0.5))
    with pytest.warns(dynamo.EagerWarning, match="a number must be known"):
        torch.testing.assert_close(fast(x, 2.0), function(x, 2.0))


class Branched(nn.Module):
    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x * 2 if scale.item() > 1 else x


def test_a_branch_on_a_number_from_data_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="a number must be known"):
        sk.compile(Branched().eval(), example_inputs=(torch.ones(3), torch.tensor(1.5)))


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> tuple[Any, ...]:
        number = scale.item()
        return x * number, number / 2


def test_numbers_of_exported_programs() -> None:
    x, scale = torch.randn(3, 4), torch.tensor(1.7)
    kernel = sk.compile(Scaled().eval(), example_inputs=(x, scale), threads=1)
    for value in (1.7, -0.3):
        product, half = kernel(x, torch.tensor(value))
        np.testing.assert_allclose(product, x * value, rtol=1e-6)
        assert half == np.float64(np.float32(value)) / 2


def test_numbers_of_dynamic_programs() -> None:
    x, scale = torch.randn(3, 4), torch.tensor(1.7)
    kernel = sk.compile_dynamic(
        Scaled().eval(), {"rows": (2, 9)}, example_inputs=(x, scale), dynamic_shapes={"x": {0: "rows"}, "scale": None}
    )
    for rows in (3, 7):
        x = torch.randn(rows, 4)
        product, half = kernel(x, torch.tensor(-0.3))
        np.testing.assert_allclose(product, x * -0.3, rtol=1e-6)
        assert half == np.float64(np.float32(-0.3)) / 2


def test_sizes_among_the_results_of_dynamic_programs() -> None:
    class Counted(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[Any, ...]:
            return x * 2, x.shape[0], x.shape[0] / 2

    x = torch.randn(3, 4)
    kernel = sk.compile_dynamic(
        Counted().eval(), {"rows": (2, 9)}, example_inputs=(x,), dynamic_shapes={"x": {0: "rows"}}
    )
    for rows in (3, 5):
        _, count, half = kernel(torch.randn(rows, 4))
        assert (count, half) == (rows, rows / 2)


def test_whole_numbers_from_data_are_refused() -> None:
    class Repeated(nn.Module):
        def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
            return x * count.item()

    with pytest.raises(UnsupportedError):
        sk.compile(Repeated().eval(), example_inputs=(torch.randn(3), torch.tensor(2)), threads=1)


class Logarithms(nn.Module):
    """Of the two bases that torch has a function for."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.log2(x), torch.log10(y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_logarithms_of_powers_are_whole(dtype: torch.dtype) -> None:
    """As in torch: whoever rounds them down gets the power."""
    most = 5 if dtype is torch.float16 else 37
    twos, tens = torch.arange(-14, 3 * most).to(dtype), torch.arange(most).to(dtype)
    x, y = torch.exp2(twos), torch.tensor([10.0**n for n in range(most)], dtype=dtype)
    second, tenth = sk.compile(Logarithms().eval(), example_inputs=(x, y), threads=1)(x, y)
    np.testing.assert_array_equal(second, twos)
    np.testing.assert_array_equal(tenth, tens)
    ends = torch.tensor([0.0, -0.0, -1.0, torch.inf, torch.nan, 1.0], dtype=dtype)
    for found, want in zip(sk.compile(Logarithms().eval(), example_inputs=(ends, ends), threads=1)(ends, ends),
                           (torch.log2(ends), torch.log10(ends)), strict=True):  # fmt: skip
        np.testing.assert_array_equal(found, want)


class Complement(nn.Module):
    """What erf leaves out of 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.erfc(x)


@pytest.mark.parametrize(("dtype", "least", "tolerance"), [(torch.float32, 9.0, 5e-7), (torch.float64, 26.0, 2e-15)])
def test_erfc_keeps_its_digits_in_the_tail(dtype: torch.dtype, least: float, tolerance: float) -> None:
    x = torch.cat(
        [torch.linspace(-least, least, 4001, dtype=torch.float64).to(dtype), torch.tensor([0.5, 1.0], dtype=dtype)]
    )
    found = sk.compile(Complement().eval(), example_inputs=(x,), threads=1)(x)
    np.testing.assert_allclose(found, [math.erfc(v) for v in x.tolist()], rtol=tolerance)
    ends = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, 40.0, -40.0], dtype=dtype)
    kernel = sk.compile(Complement().eval(), example_inputs=(ends,), threads=1)
    np.testing.assert_array_equal(kernel(ends), [0.0, 2.0, np.nan, 1.0, 0.0, 2.0])


class Beyond(nn.Module):
    """Numbers that f16 does not hold."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x / 1e6,
            x * 1e-8,
            1e6 / x,
            x - 1e5,
            1e5 - x,
            torch.add(x, x, alpha=1e-8),
            torch.floor_divide(x, 1e6),
            (1 - mask) * -1e9,
            x > 1e5,
            x < 1e-9,
            x / torch.tensor(1e6),
            x * 0.1,
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_that_narrow_floats_do_not_hold(dtype: torch.dtype) -> None:
    given = torch.tensor([100.0, -3.0, 60000.0, 0.5, 0.0]).to(dtype), torch.tensor([1.0, 0, 1, 0, 1]).to(dtype)
    wanted, module = Beyond()(*given), Beyond().eval()
    for found, want in zip(sk.compile(module, example_inputs=given, threads=1)(*given), wanted, strict=True):
        assert found.dtype == want.dtype
        torch.testing.assert_close(found, want, rtol=1e-2, atol=0, equal_nan=True)
