"""Floating-point numbers that a program computes from data: `tensor.item()`, and arithmetic with it in Python.

Model: such a number is a tensor of no axes in f64, which is what Python computes in. Where it meets tensors it is cast
to their element type, as a Python number is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.emitter import Emitter

_ARITHMETIC: Mapping[Callable[..., Any], str] = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.truediv: "div",
    operator.neg: "neg",
}


def is_computed(argument: Any) -> bool:
    """True of a node whose value is a floating-point number that depends on data."""
    return isinstance(argument, torch.fx.Node) and isinstance(argument.meta.get("val"), torch.SymFloat)


def computes_number(node: torch.fx.Node) -> bool:
    """True of a node that `lower_number` lowers."""
    return is_computed(node) and (node.target in _ARITHMETIC or node.target is _ITEM)


_ITEM = torch.ops.aten._local_scalar_dense.default


def lower_number(emitter: Emitter, node: torch.fx.Node, env: Mapping[torch.fx.Node, Any]) -> Tensor:
    """A number as a tensor of no axes in f64."""
    values = [env[a] if isinstance(a, torch.fx.Node) else float(a) for a in node.args]
    operands = [emitter.cast(v, DType.F64) if isinstance(v, Tensor) else emitter.constant(v, DType.F64) for v in values]
    if node.target is _ITEM:
        return emitter.reshape(operands[0], ())
    return emitter.emit(_ARITHMETIC[node.target], *operands)
