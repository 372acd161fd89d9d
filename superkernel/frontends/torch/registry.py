"""The table of lowerings: ATen operator -> function that emits operators of the table for one node.

A key is an operator ("relu": all its overloads that have no row of their own) or one overload ("max.dim"). A lowering
gets a `Call` and returns the node's outputs in order (a single tensor where there is one; None for an output that
nobody reads). What has no lowering is decomposed by torch where torch can, so that a row here is either something the
operator table has whole or something that no decomposition reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from superkernel.builder.tensor import Tensor

if TYPE_CHECKING:
    from superkernel.frontends.torch.call import Call

Lowered = Tensor | Sequence[Tensor | None]
Lowering = Callable[["Call"], Lowered]

_LOWERINGS: dict[str, Lowering] = {}


def lowers(*names: str) -> Callable[[Lowering], Lowering]:
    """Registers the decorated function for the ATen operators or overloads `names`."""

    def register(function: Lowering) -> Lowering:
        for name in names:
            assert name not in _LOWERINGS, name
            _LOWERINGS[name] = function
        return function

    return register


def find_lowering(target: str) -> Lowering | None:
    """The lowering of an operator as torch writes it ("aten.max.dim"), or None."""
    from superkernel.frontends.torch import lowerings

    lowerings.load_all()
    namespace, _, name = target.partition(".")
    if namespace != "aten":
        return None
    packet, _, overload = name.partition(".")
    found = _LOWERINGS.get(name)
    return _LOWERINGS.get(packet) if found is None and "out" not in overload.split("_") else found


def lowered_names() -> list[str]:
    """Every key that has a lowering, sorted."""
    find_lowering("")
    return sorted(_LOWERINGS)
