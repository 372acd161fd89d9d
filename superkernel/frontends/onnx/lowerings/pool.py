"""Pooling."""

from __future__ import annotations

from superkernel.builder_tensor import Tensor
from superkernel.frontends.onnx.call import Call
from superkernel.frontends.onnx.lowerings.conv import window
from superkernel.frontends.onnx.registry import lowers


def _geometry(call: Call) -> dict[str, object]:
    kernel = tuple(call.required("kernel_shape"))
    return {"kernel": kernel, **window(call, call.input(0).shape[2:], kernel)}


@lowers("MaxPool")
def max_pool(call: Call) -> list[Tensor | None]:
    if call.wants(1):
        raise call.unsupported("the indices of the maxima are not offered", hint="MaxPool with one output is")
    return [call.emit("max_pool", call.input(0), ceil_mode=bool(call.attr("ceil_mode", 0)), **_geometry(call))]


@lowers("AveragePool")
def average_pool(call: Call) -> Tensor:
    options = {
        "ceil_mode": bool(call.attr("ceil_mode", 0)),
        "count_include_pad": bool(call.attr("count_include_pad", 0)),
    }
    return call.emit("avg_pool", call.input(0), **_geometry(call), **options)


@lowers("LpPool")
def lp_pool(call: Call) -> Tensor:
    geometry = _geometry(call)
    dilations = geometry.pop("dilations")
    if any(d != 1 for d in dilations):  # type: ignore[attr-defined]
        geometry["dilations"] = dilations
    if call.attr("ceil_mode", 0):
        geometry["ceil_mode"] = True
    return call.emit("lp_pool", call.input(0), p=call.attr("p", 2), **geometry)


@lowers("GlobalAveragePool", "GlobalMaxPool")
def global_pool(call: Call) -> Tensor:
    return call.emit("global_avg_pool" if call.op == "GlobalAveragePool" else "global_max_pool", call.input(0))


@lowers("GlobalLpPool")
def global_lp_pool(call: Call) -> Tensor:
    x, p = call.input(0), call.attr("p", 2)
    axes = tuple(range(2, x.rank))
    if p in (1, 2):
        return call.emit("reduce_l1" if p == 1 else "reduce_l2", x, axes=axes, keepdims=True)
    powers = call.emit("pow", call.emit("abs", x), call.like(p, x))
    total = call.emit("reduce_sum", powers, axes=axes, keepdims=True)
    return call.emit("pow", total, call.like(1.0 / p, total))
