"""Cases of operators that compute element by element, and what all cases are made with (see torch_cases.py).

Invariant: numbers come from one generator in the order of the cases, so that a case has the same ones on every run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from superkernel.ops.table import op_table, traits_of

Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
_G = torch.Generator().manual_seed(5)


def f32(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=_G)


def positive(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=_G) + 0.1


def i64(low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=_G)


def truth(*shape: int) -> torch.Tensor:
    return f32(*shape) > 0


_UNARY = ["abs", "ceil", "erfc", "exp2", "floor", "isfinite", "isinf", "isnan", "neg", "round", "sgn", "sign", "trunc"]
_UNARY += ["logical_not", "positive"]
_ACTIVATIONS = [
    "celu",
    "elu",
    "gelu",
    "glu",
    "hardshrink",
    "hardsigmoid",
    "hardtanh",
    "leaky_relu",
    "logsigmoid",
    "relu6",
]
_ACTIVATIONS += ["selu", "softplus", "softshrink", "softsign", "tanhshrink"]
_BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "minimum",
    "maximum",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "remainder",
    "fmod",
    "floor_divide",
    "pow",
]


def named() -> dict[str, Case]:
    """Operators that the table says are torch's own, on their domains."""
    found: dict[str, Case] = {}
    for row in op_table().values():
        if row.torch:
            x = torch.linspace(*traits_of(row.name).domain, 12).reshape(3, 4)
            function = getattr(torch, row.torch, None) or getattr(F, row.torch)
            found[row.torch] = (function, (x, x.flip(0))[: len(row.args)])
    return found


def pointwise() -> dict[str, Case]:
    x, y, p = f32(3, 4) * 2, f32(4) * 2, positive(3, 4)
    whole, small = i64(-9, 9, 3, 4), i64(1, 5, 4)
    cases = named() | {n: (getattr(torch, n), (x,)) for n in _UNARY}
    cases |= {n: (getattr(torch, n), (p,)) for n in ("log2", "log10")}
    cases |= {f"F.{n}": (getattr(F, n), (x,)) for n in _ACTIVATIONS}
    cases |= {f"{n}_floats": (getattr(torch, n), (p, y)) for n in _BINARY}
    cases |= {f"{n}_integers": (getattr(torch, n), (whole, small)) for n in _BINARY}
    cases |= {f"{n}_mixed": (getattr(torch, n), (whole, y)) for n in _BINARY if n != "pow"}
    cases |= {
        f"{n}_{kind}": (getattr(torch, n), pair)
        for n in ("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor")
        for kind, pair in (("integers", (whole, small)), ("truth", (whole > 0, small > 2)))
    }
    inf, nan = float("inf"), float("nan")
    ends = torch.tensor([-128, -127, -7, -3, -1, 1, 3, 7, 100, 127], dtype=torch.int8)  # their differences overflow
    divisors = ends[ends != -1]
    odd = torch.tensor([0.0, -0.0, 1.5, -1.5, 1.1, -1.2, 3e38, -3e38, 1e-40, inf, -inf, nan])
    return cases | {
        "abs_integers": (torch.abs, (whole,)),
        "floor_integers": (torch.floor, (whole,)),
        "sqrt_integers": (torch.sqrt, (whole.abs(),)),
        "sigmoid_integers": (torch.sigmoid, (whole,)),
        "isnan_integers": (torch.isnan, (whole,)),
        "bitwise_not": (torch.bitwise_not, (whole,)),
        "bitwise_not_truth": (torch.bitwise_not, (whole > 0,)),
        "shifts": (lambda a, b: ((a << b), (a >> b)), (whole, small)),
        "number_operands": (lambda a: (a + 2, 2 - a, a * 0.5, 3 / a, a // 0.7, a % 2, -a), (x,)),
        "number_with_integers": (lambda a: (a + 2, a + 0.5, a * 2, a / 2, a // 2, a % 3, a - 1.5), (whole,)),
        "compare_numbers": (lambda a: (a > 0.5, a == 2, a <= -1, a != 0.5), (whole,)),
        "compare_truth": (lambda a, b: (a < b, a >= b, a == b), (truth(3, 4), truth(4))),
        "truth_arithmetic": (lambda a, b: (a + b, a * b), (truth(3, 4), truth(4))),
        "alpha": (
            lambda a, b: (torch.add(a, b, alpha=2), torch.sub(a, b, alpha=0.5), torch.rsub(a, b, alpha=3)),
            (x, y),
        ),
        "div_floor": (lambda a, b: torch.div(a, b, rounding_mode="floor"), (x, y)),
        "div_trunc": (lambda a, b: torch.div(a, b, rounding_mode="trunc"), (x, y)),
        "div_floor_integers": (lambda a, b: torch.div(a, b, rounding_mode="floor"), (whole, small)),
        "div_floor_ends": (torch.floor_divide, (ends.reshape(-1, 1), divisors)),
        "div_floor_bytes": (torch.floor_divide, (ends.to(torch.uint8).reshape(-1, 1), divisors.to(torch.uint8))),
        "div_trunc_integers": (lambda a, b: torch.div(a, b, rounding_mode="trunc"), (whole, small)),
        "pow_numbers": (lambda a: (a**2, a**3, a**0.5, a**-0.5, a**-1, 2**a), (p,)),
        "pow_integers": (lambda a: (a**2, a**3), (whole,)),
        "rounded_to_decimals": (lambda a: torch.round(a, decimals=1), (torch.tensor([1.23, -4.56, 7.81]),)),
        "lerp": (lambda a, b: torch.lerp(a, a + b, 0.3), (x, y)),
        "addcmul": (lambda a, b: torch.addcmul(a, a, b, value=0.5), (x, y)),
        "addcdiv": (lambda a, b: torch.addcdiv(a, a, b.abs() + 1, value=0.5), (x, y)),
        "where": (torch.where, (x > 0, x, y)),
        "where_numbers": (lambda c: torch.where(c, 1.0, -2.0), (x > 0,)),
        "where_promotes": (lambda c, a, b: torch.where(c, a, b), (x > 0, whole, y)),
        "masked_fill": (lambda a, m: a.masked_fill(m, float("-inf")), (x, truth(4))),
        "masked_fill_wider": (lambda a, m: a.masked_fill(m, 1.5), (f32(4), truth(3, 4))),
        "clamp": (lambda a: (a.clamp(-1, 1), a.clamp(min=0), a.clamp(max=0.5)), (x,)),
        "clamp_tensors": (lambda a, b: (torch.clamp(a, b - 1, b), torch.clamp(a, max=b)), (x, y)),
        "clamp_bytes": (lambda a: a.clamp(2, 200), (whole.to(torch.uint8),)),
        "gelu_tanh": (lambda a: F.gelu(a, approximate="tanh"), (x,)),
        "softplus_steep": (lambda a: F.softplus(a, beta=3, threshold=2), (x,)),
        "hardtanh_bounds": (lambda a: F.hardtanh(a, -0.5, 0.7), (x,)),
        "threshold": (lambda a: F.threshold(a, 0.3, -7.0), (x,)),
        "prelu": (lambda a, w: F.prelu(a, w), (f32(2, 3, 4), f32(3))),
        "elu_alpha": (lambda a: F.elu(a, 0.7), (x,)),
        "leaky_relu_slope": (lambda a: F.leaky_relu(a, 0.3), (x,)),
        "atan2": (torch.atan2, (x, y)),
        "atan2_odd": (torch.atan2, (odd.reshape(-1, 1), odd)),
        "div_floor_odd": (lambda a, b: torch.div(a, b, rounding_mode="floor"), (odd.reshape(-1, 1), odd)),
        "div_trunc_odd": (lambda a, b: torch.div(a, b, rounding_mode="trunc"), (odd.reshape(-1, 1), odd)),
        "threshold_odd": (lambda a: F.threshold(a, 0.1, 20.0), (odd,)),
        "sign_odd": (lambda a: (torch.sign(a), torch.sgn(a)), (odd,)),
        "neg_bytes": (torch.neg, (whole.to(torch.uint8),)),
        "casts": (lambda a: (a.half(), a.double(), a.to(torch.int32), a.bool(), a.long().float()), (x,)),
        "bf16": (lambda a: (a.bfloat16() + 1).float(), (x,)),
        "inplace": (lambda a: a.clone().add_(1).relu_().mul_(2), (x,)),
        "inplace_part": (lambda a: _write_part(a), (x,)),
    }


def _write_part(a: torch.Tensor) -> torch.Tensor:
    b = a.clone()
    b[1:3, 2] = 5.0
    b[0] += 1
    return b
