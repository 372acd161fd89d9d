"""Matrix products and determinants."""

from __future__ import annotations

from math import prod

from superkernel.builder.einsum import einsum
from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.determinants import determinant
from superkernel.frontends.torch.call import TorchCall
from superkernel.frontends.torch.registry import lowers


@lowers("matmul", "mm", "bmm", "mv", "dot", "linalg_vecdot", "inner", "vdot")
def matmul(call: TorchCall) -> Tensor:
    a, b = (call.args[n] for n in list(call.args)[:2])
    if call.op == "linalg_vecdot" and (a.rank, b.rank) != (1, 1):
        raise call.unsupported("only of two vectors", found=f"{a.type} and {b.type}")
    if call.op == "inner":
        return _inner(call, a, b)
    return product(call, a, b)


def _inner(call: TorchCall, a: Tensor, b: Tensor) -> Tensor:
    """Over the last axes; with a number it is the product of elements."""
    if a.rank == 0 or b.rank == 0:
        return call.emit("logical_and" if a.dtype is DType.BOOL else "mul", a, b)
    depth = a.shape[-1]
    rows = [call.reshape(t, (prod(t.shape[:-1]), depth)) for t in (a, b)]
    return call.reshape(product(call, *rows, trans_b=True), call.shape)


def product(call: TorchCall, a: Tensor, b: Tensor, *, trans_b: bool = False) -> Tensor:
    """a x b; 16-bit and truth values go by way of a type that the table's product has."""
    if a.dtype in (DType.I16, DType.BOOL):
        wide = call.emit("matmul", call.cast(a, DType.I32), call.cast(b, DType.I32), trans_b=trans_b)
        return call.cast(wide, a.dtype)
    y = call.emit("matmul", a, b, trans_b=trans_b)
    return call.cast(y, a.dtype)  # bytes accumulate in i32 here, modulo 2^8 there


@lowers("linear")
def linear(call: TorchCall) -> Tensor:
    x, weight, bias = call.tensor("input"), call.tensor("weight"), call.optional("bias")
    y = product(call, x, weight, trans_b=weight.rank == 2)
    return y if bias is None else call.emit("add", y, bias)


@lowers("addmm", "baddbmm", "addbmm", "addmv")
def addmm(call: TorchCall) -> Tensor:
    """beta * input + alpha * product; with beta 0 the input is not looked at."""
    names = [n for n in call.args if n not in ("self", "beta", "alpha")]
    a, b = (call.tensor(n) for n in names[:2])
    alpha, beta = call.get("alpha", 1), call.get("beta", 1)
    if call.op == "addmm" and a.dtype.is_float:
        added = call.tensor("self") if beta != 0 else None
        return call.emit("gemm", a, b, added, alpha=float(alpha), beta=float(beta))
    y = product(call, a, b)
    if call.op == "addbmm":
        y = call.emit("reduce_sum", y, axes=(0,), keepdims=False)
    y = y if alpha == 1 else call.emit("mul", y, call.like(alpha, y))
    if beta == 0:
        return y
    added = call.tensor("self")
    added = added if beta == 1 else call.emit("mul", added, call.like(beta, added))
    return call.emit("add", y, added)


@lowers("bilinear")
def bilinear(call: TorchCall) -> Tensor:
    y = _summed(call, "...i,oij,...j->...o", [call.tensor(n) for n in ("input1", "weight", "input2")])
    bias = call.optional("bias")
    return y if bias is None else call.emit("add", y, bias)


@lowers("einsum")
def lower_einsum(call: TorchCall) -> Tensor:
    return _summed(call, str(call.args["equation"]), call.args["tensors"])


def _summed(call: TorchCall, equation: str, operands: list[Tensor]) -> Tensor:
    """An Einstein sum in the type that torch gives it; what of a sum of short integers does not fit is left out at the
    end."""
    dtype = DType.I64 if call.dtype.is_integer else call.dtype
    return call.cast(einsum(call, equation, [call.cast(x, dtype) for x in operands]), call.dtype)


@lowers("linalg_det", "det", "_linalg_det")
def det(call: TorchCall) -> list[Tensor | None]:
    """The factors, which are further results, are not there."""
    if any(map(call.wants, (1, 2))):
        raise call.unsupported("the factors of a matrix")
    return [determinant(call, call.tensor("A" if "A" in call.args else "self"))]
