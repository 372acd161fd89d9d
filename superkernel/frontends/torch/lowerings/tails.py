"""The complementary error function: what 1 - erf(x) cannot tell where erf rounds to 1.

Model: near 0 it is 1 - erf(x). Beyond `start` it is e^(-z^2) t Q(t), z = |x|, t = 1 / (1 + z / spread), Q a minimax
polynomial; z^2 is taken in two parts, of which the first is exact, as e^(-z^2) magnifies what its square loses.
"""

from __future__ import annotations

from dataclasses import dataclass

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.torch.call import TorchCall
from superkernel.frontends.torch.registry import lowers


@dataclass(frozen=True)
class _Tail:
    """Of one element type. `end`: from there on it is 0."""

    start: float
    end: float
    spread: float
    polynomial: tuple[float, ...]  # highest power first


_F32 = _Tail(0.5, 11.0, 2.0, (
    -0.029547990443690695, 0.06405620986955726, 0.06671783449338788, -0.27406119073123747, 0.15233092263151257,
    0.0190711707538882, 0.19269542962638886, 0.2443146265240448, 0.28230994831673506, 0.28208696918516873,
))  # fmt: skip
"""Relative error 2^-27."""
_F64 = _Tail(1.0, 28.0, 3.0, (
    0.008562459539053833, -0.06800712205980029, 0.24043306769021383, -0.49553910817789, 0.6618191258814411,
    -0.618701857595278, 0.44307039611312515, -0.24865729275597684, 0.09551466144176475, -0.04363214973982897,
    0.013875937644513137, 0.02409722107206841, 0.057339474516853776, 0.0922430924174024, 0.1271214710777861,
    0.15671899016323926, 0.1776152560495062, 0.18806319400743873, 0.1880631945229992,
))  # fmt: skip
"""Relative error 2^-54."""


@lowers("erfc")
def complementary_error_function(call: TorchCall) -> Tensor:
    x = call.operand("self")
    wide = x if x.dtype is DType.F64 else call.cast(x, DType.F32)
    plan = _F64 if wide.dtype is DType.F64 else _F32
    near = call.emit("sub", call.like(1.0, wide), call.emit("erf", wide))
    size = call.emit("abs", wide)
    beyond = _tail(call, call.emit("minimum", size, call.like(plan.end, wide)), plan)
    beyond = call.emit(
        "where",
        call.emit("less", wide, call.like(0.0, wide)),
        call.emit("sub", call.like(2.0, wide), beyond),
        beyond,
    )
    is_near = call.emit("less", size, call.like(plan.start, wide))
    return call.cast(call.emit("where", is_near, near, beyond), x.dtype)


def _tail(call: TorchCall, z: Tensor, plan: _Tail) -> Tensor:
    def scaled(value: Tensor, factor: float) -> Tensor:
        return call.emit("mul", value, call.like(factor, z))

    first = scaled(call.emit("round", scaled(z, 64.0)), 1 / 64)
    rest = call.emit("mul", call.emit("sub", first, z), call.emit("add", first, z))
    powers = (call.emit("exp", p) for p in (call.emit("neg", call.emit("square", first)), rest))
    t = call.emit("reciprocal", call.emit("add", scaled(z, 1 / plan.spread), call.like(1.0, z)))
    total = call.like(plan.polynomial[0], z)
    for factor in plan.polynomial[1:]:
        total = call.emit("add", call.emit("mul", total, t), call.like(factor, z))
    outer, inner = powers
    return call.emit("mul", outer, call.emit("mul", inner, call.emit("mul", total, t)))
