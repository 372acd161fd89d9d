"""The table of ONNX lowerings: (domain, operator) -> function that emits operators of the table for one ONNX node.

A lowering gets a `OnnxCall` and returns the node's outputs in order (a single one where there is one; None for an
output that nobody asked for). It never looks at values that are not static except through `OnnxCall.static`, which
raises with the graph inputs to fix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from superkernel.builder.tensor import Tensor
from superkernel.frontends.onnx.values import Result

if TYPE_CHECKING:
    from superkernel.frontends.onnx.call import OnnxCall

Lowered = Result | Sequence[Tensor | None]
Lowering = Callable[["OnnxCall"], Lowered]

MICROSOFT = "com.microsoft"
_LOWERINGS: dict[tuple[str, str], Lowering] = {}


def lowers(*names: str, domain: str = "") -> Callable[[Lowering], Lowering]:
    """Registers the decorated function for the ONNX operators `names`."""

    def register(function: Lowering) -> Lowering:
        for name in names:
            assert (domain, name) not in _LOWERINGS, name
            _LOWERINGS[domain, name] = function
        return function

    return register


def find_lowering(domain: str, name: str) -> Lowering | None:
    """The lowering, or None."""
    from superkernel.frontends.onnx import lowerings

    lowerings.load_all()
    return _LOWERINGS.get((domain, name))


def lowered_names() -> list[tuple[str, str]]:
    """Every (domain, operator) that has a lowering of its own, sorted."""
    find_lowering("", "")
    return sorted(_LOWERINGS)
