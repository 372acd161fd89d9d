"""All that lowerings refuse in one program, gathered for one error.

Model: where a lowering refuses a node, inputs of the types that torch inferred stand for its results, and the walk
goes on to find what else is refused; the graph that comes of it is never seen. A node whose type has no counterpart
has no stand-in: it is lost, and so is all that reads it.

Invariant: nothing is reported that follows from an earlier refusal. A stand-in for what would have been a constant is
no constant, so a node that reads one and is refused is not reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from superkernel.builder import GraphBuilder
from superkernel.builder.tensor import Tensor
from superkernel.dtypes import DType
from superkernel.errors import SuperKernelError, UnsupportedError, Violation, raise_all
from superkernel.frontends.torch.types import element_type


class Refusals:
    """What has been refused so far in a walk that binds the nodes in `env`."""

    def __init__(self, builder: GraphBuilder, env: Mapping[torch.fx.Node, Any]) -> None:
        self.builder, self.env = builder, env
        self.violations: list[Violation] = []
        self.lost: set[torch.fx.Node] = set()
        self.guessed: set[torch.fx.Node] = set()  # their values stand for constants

    def passes_over(self, node: torch.fx.Node) -> bool:
        """True of a node that cannot be lowered for want of a value it reads."""
        if not self.violations or self.lost.isdisjoint(node.all_input_nodes):
            return False
        self.lost.add(node)
        return True

    def follow(self, node: torch.fx.Node) -> None:
        """Notes a node that was lowered."""
        if self.guessed and self._reads_guesses(node) and self._reads_constants(node):
            self.guessed.add(node)

    def add(self, node: torch.fx.Node, error: SuperKernelError) -> list[Tensor] | None:
        """Notes a node that was refused; what stands for its results, None where nothing can."""
        if not self._reads_guesses(node):
            self.violations += error.violations
        if self._reads_constants(node):
            self.guessed.add(node)
        value = node.meta.get("val")
        try:
            types = [_type(v) for v in (value if isinstance(value, (tuple, list)) else [value])]
        except UnsupportedError:
            self.lost.add(node)
            return None
        return [self.builder.input(f"{node.name} refused:{i}", *kind) for i, kind in enumerate(types)]

    def raise_all(self) -> None:
        """Raises UnsupportedError where anything was refused."""
        raise_all(UnsupportedError, self.violations)

    def _reads_guesses(self, node: torch.fx.Node) -> bool:
        return not self.guessed.isdisjoint(node.all_input_nodes)

    def _reads_constants(self, node: torch.fx.Node) -> bool:
        """True where everything a node reads is a constant, or stands for one."""
        return all(n in self.guessed or _is_constant(self.env[n]) for n in node.all_input_nodes)


def _is_constant(bound: Any) -> bool:
    tensors = bound if isinstance(bound, list) else [bound]
    return all(isinstance(t, Tensor) and t.value.data is not None for t in tensors if t is not None)


def _type(value: Any) -> tuple[tuple[int, ...], DType]:
    """Shape and element type by torch's inference. Raises UnsupportedError where they have no counterpart."""
    if not isinstance(value, torch.Tensor) or not all(isinstance(d, int) for d in value.shape):
        raise UnsupportedError("no tensor of a shape that is known")
    return tuple(value.shape), element_type(value.dtype, "")
