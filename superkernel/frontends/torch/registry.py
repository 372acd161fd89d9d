"""The table of lowerings: ATen operator -> function that emits operators of the table for one node.

A key is an operator ("relu": all its overloads that have no row of their own) or one overload ("max.dim"); of another
library than ATen, with the library in front ("transformers.grouped_mm_fallback"). A lowering gets a `TorchCall` and
returns the node's outputs in order (a single tensor where there is one; None for an output that nobody reads). Complex
tensors, which lowerings know as pairs of real ones, have a table of their own. What has no lowering is decomposed by
torch where torch can, so that a row here is either something the operator table has whole or something that no
decomposition reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from superkernel.builder.tensor import Tensor
from superkernel.frontends.torch.pairs import Pair, is_complex

if TYPE_CHECKING:
    from superkernel.frontends.torch.call import TorchCall

Lowered = Tensor | Sequence[Tensor | None]
Lowering = Callable[["TorchCall"], Lowered]

AnyLowering = TypeVar("AnyLowering", bound=Callable[..., Any])
ComplexLowered = Tensor | Pair | Sequence[Pair]
ComplexLowering = Callable[["TorchCall"], ComplexLowered]

_LOWERINGS: dict[str, Lowering] = {}
_COMPLEX: dict[str, ComplexLowering] = {}


def lowers(*names: str) -> Callable[[Lowering], Lowering]:
    """Registers the decorated function for the ATen operators or overloads `names`."""
    return partial(_register, _LOWERINGS, names)


def lowers_complex(*names: str) -> Callable[[ComplexLowering], ComplexLowering]:
    """Registers the decorated function for operators or overloads that read or compute complex tensors."""
    return partial(_register, _COMPLEX, names)


def _register(table: dict[str, AnyLowering], names: Sequence[str], function: AnyLowering) -> AnyLowering:
    for name in names:
        assert name not in table, name
        table[name] = function
    return function


def find_lowering(target: str) -> Lowering | None:
    """The lowering of an operator as torch writes it ("aten.max.dim"), or None."""
    return _found(_LOWERINGS, target)


def lowering_of(node: torch.fx.Node) -> Lowering | ComplexLowering | None:
    """The lowering of a node, or None."""
    return _found(_COMPLEX, str(node.target)) if is_complex(node) else find_lowering(str(node.target))


def is_lowered(target: str) -> bool:
    """True of an operator with a lowering of either kind."""
    return find_lowering(target) is not None or _found(_COMPLEX, target) is not None


def _found(table: Mapping[str, AnyLowering], target: str) -> AnyLowering | None:
    from superkernel.frontends.torch import lowerings

    lowerings.load_all()
    namespace, _, name = target.partition(".")
    packet, _, overload = name.partition(".")
    if namespace != "aten":
        packet, name = f"{namespace}.{packet}", target
    found = table.get(name)
    return table.get(packet) if found is None and "out" not in overload.split("_") else found


def lowered_names() -> list[str]:
    """Every key that has a lowering, sorted."""
    find_lowering("")
    return sorted({*_LOWERINGS, *_COMPLEX})
