"""Reductions, scans, softmax, sorting."""

from __future__ import annotations

import math
from math import prod
from typing import Any

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.torch.call import TorchCall
from superkernel.frontends.torch.lowerings.pointwise import truth
from superkernel.frontends.torch.registry import lowers

_PLAIN = {"sum": "reduce_sum", "mean": "reduce_mean", "prod": "reduce_prod", "amax": "reduce_max", "amin": "reduce_min"}


def reduced(call: TorchCall, op: str, x: Tensor, axes: list[int], keepdim: bool) -> Tensor:
    """A reduction over exactly these axes; a scalar, which has none, is reduced as one element."""
    if x.rank == 0:
        return call.reshape(call.emit(op, call.reshape(x, (1,)), axes=(0,), keepdims=False), ())
    return call.emit(op, x, axes=tuple(axes), keepdims=keepdim)


@lowers(*_PLAIN)
def plain(call: TorchCall) -> Tensor:
    x = call.operand("self")  # sum, mean and prod compute in the type of their result
    return reduced(call, _PLAIN[call.op], x, call.axes("dim", x.rank), bool(call.get("keepdim", False)))


@lowers("max.default", "min.default", "max", "min")
def extremum(call: TorchCall) -> list[Tensor | None]:
    """Of all elements, or along an axis together with the index."""
    x = call.tensor("self")
    op = f"reduce_{call.op}"
    if call.overload == "default":
        return [reduced(call, op, x, list(range(x.rank)), False)]
    axis, keepdim = call.axis("dim", x.rank), bool(call.get("keepdim", False))
    values = reduced(call, op, x, [axis], keepdim) if call.wants(0) else None
    return [values, _arg(call, f"arg{call.op}", x, axis, keepdim) if call.wants(1) else None]


@lowers("argmax", "argmin")
def arg(call: TorchCall) -> Tensor:
    x, keepdim = call.tensor("self"), bool(call.get("keepdim", False))
    if call.args.get("dim") is None:
        return call.reshape(_arg(call, call.op, call.reshape(x, (x.type.size,)), 0, False), call.shape)
    return _arg(call, call.op, x, call.axis("dim", x.rank), keepdim)


def _arg(call: TorchCall, op: str, x: Tensor, axis: int, keepdim: bool) -> Tensor:
    if x.rank == 0:
        return call.constant(np.int64(0))
    x = call.cast(x, DType.U8) if x.dtype is DType.BOOL else x
    return call.emit(op, x, axis=axis, keepdims=keepdim)


@lowers("any", "all")
def quantifier(call: TorchCall) -> Tensor:
    x = truth(call, call.tensor("self"))
    op = "reduce_max" if call.op == "any" else "reduce_min"
    y = reduced(call, op, x, call.axes("dim", x.rank), bool(call.get("keepdim", False)))
    return call.cast(y, call.dtype)


@lowers("var", "std", "var_mean", "std_mean")
def variance(call: TorchCall) -> list[Tensor | None]:
    x, keepdim = call.tensor("self"), bool(call.get("keepdim", False))
    axes = call.axes("dim", x.rank)
    if call.args.get("correction") is not None:
        correction = float(call.args["correction"])
    else:
        correction = float(bool(call.get("unbiased", True)))
    count = prod(x.shape[a] for a in axes)
    mean = reduced(call, "reduce_mean", x, axes, True) if x.rank else x
    total = reduced(call, "reduce_sum_square", call.emit("sub", x, mean), axes, keepdim)
    spread = call.emit("div", total, call.like(max(0.0, count - correction), total))
    spread = call.emit("sqrt", spread) if call.op.startswith("std") else spread
    pair = call.op.endswith("_mean")
    return [spread, call.reshape(mean, spread.shape)] if pair else [spread]


@lowers("logsumexp")
def log_sum_exp(call: TorchCall) -> Tensor:
    x = call.operand("self")
    return reduced(call, "reduce_log_sum_exp", x, call.axes("dim", x.rank), bool(call.get("keepdim", False)))


@lowers("linalg_vector_norm", "norm.ScalarOpt_dim", "norm.Scalar", "norm.ScalarOpt_dim_dtype")
def vector_norm(call: TorchCall) -> Tensor:
    x, order = call.operand("self"), float(call.get("ord", call.get("p", 2)))
    return _norm(call, x, order, call.axes("dim", x.rank), bool(call.get("keepdim", False)))


@lowers("cdist", "_cdist_forward", "_euclidean_dist")
def distances(call: TorchCall) -> Tensor:
    """Between all rows of one and all rows of the other."""
    a, b = call.tensor("x1"), call.tensor("x2")
    a, b = (
        call.reshape(t, shape)
        for t, shape in ((a, (*a.shape[:-1], 1, a.shape[-1])), (b, (*b.shape[:-2], 1, *b.shape[-2:])))
    )
    difference = call.emit("sub", a, b)
    return _norm(call, difference, float(call.get("p", 2)), [difference.rank - 1], False)


@lowers("pdist", "_pdist_forward")
def distances_of_pairs(call: TorchCall) -> Tensor:
    """Between all rows of one, each pair once."""
    x = call.tensor("self")
    a, b = (call.emit("gather", x, call.constant(i), axis=0) for i in np.triu_indices(x.shape[0], 1))
    return _norm(call, call.emit("sub", a, b), float(call.get("p", 2)), [1], False)


def _norm(call: TorchCall, x: Tensor, order: float, axes: list[int], keepdim: bool) -> Tensor:
    if order in (1.0, 2.0):
        return reduced(call, f"reduce_l{int(order)}", x, axes, keepdim)
    size = call.emit("abs", x)
    if math.isinf(order):
        return reduced(call, "reduce_max" if order > 0 else "reduce_min", size, axes, keepdim)
    if order == 0.0:
        return reduced(call, "reduce_sum", call.cast(truth(call, x), x.dtype), axes, keepdim)
    total = reduced(call, "reduce_sum", call.emit("pow", size, call.like(order, x)), axes, keepdim)
    return call.emit("pow", total, call.like(1 / order, total))


@lowers("softmax", "_softmax", "log_softmax", "_log_softmax")
def softmax(call: TorchCall) -> Tensor:
    x = call.operand("self")
    if x.rank == 0:
        return call.constant(np.asarray(0.0 if "log" in call.op else 1.0), x.dtype)
    return call.emit("log_softmax" if "log" in call.op else "softmax", x, axis=call.axis("dim", x.rank))


@lowers("cumsum")
def cumsum(call: TorchCall) -> Tensor:
    x = call.operand("self")
    return x if x.rank == 0 else call.emit("cumsum", x, axis=call.axis("dim", x.rank))


@lowers("topk")
def topk(call: TorchCall) -> list[Tensor | None]:
    x = call.lifted("self")
    axis, order = call.axis("dim", x.rank), {"largest": bool(call.args["largest"]), "sorted": bool(call.args["sorted"])}
    return _ranked(call, x, k=int(call.args["k"]), axis=axis, **order)


@lowers("sort", "argsort")
def sort(call: TorchCall) -> list[Tensor | None]:
    """All elements of the axis as its top k, which keeps equal ones in order."""
    x = call.lifted("self")
    axis, descending = call.axis("dim", x.rank, -1), bool(call.get("descending", False))
    found = _ranked(call, x, k=x.shape[axis], axis=axis, largest=descending, sorted=True)
    return found[1:] if call.op == "argsort" else found


def _ranked(call: TorchCall, x: Tensor, **options: Any) -> list[Tensor | None]:
    """The values and places of a top k; those of truth values are compared as numbers."""
    numbers = call.cast(x, DType.U8) if x.dtype is DType.BOOL else x
    values, places = call.emit_all("topk", numbers, **options)
    return [call.reshape(y, call.shape) for y in (call.cast(values, x.dtype), places)]
