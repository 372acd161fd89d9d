"""What lowerings refuse in an exported program: the nodes of `frontends/refusals.py`, with the types torch inferred. A
node whose type has no counterpart has no stand-in: it is lost, and so is all that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from superkernel.builder import GraphBuilder
from superkernel.builder.tensor import Tensor
from superkernel.core.errors import SuperKernelError, UnsupportedError
from superkernel.core.tensor import TensorType
from superkernel.frontends.refusals import Refusals
from superkernel.frontends.torch.pairs import tensors_of
from superkernel.frontends.torch.types import element_type


class NodeRefusals(Refusals):
    """What has been refused so far in a walk that binds the nodes in `env`."""

    def __init__(self, builder: GraphBuilder, env: Mapping[torch.fx.Node, Any]) -> None:
        super().__init__(builder)
        self.env = env
        self.lost: set[torch.fx.Node] = set()

    def passes_over(self, node: torch.fx.Node) -> bool:
        """True of a node that cannot be lowered for want of a value it reads."""
        if self.lost.isdisjoint(node.all_input_nodes):
            return False
        self.lost.add(node)
        return True

    def follow(self, node: torch.fx.Node) -> None:
        """Notes a node that was lowered."""
        self.followed(self._read(node), tensors_of(self.env[node]))

    def add(self, node: torch.fx.Node, error: SuperKernelError) -> list[Tensor] | None:
        """Notes a node that was refused; what stands for its results, None where nothing can."""
        value = node.meta.get("val")
        read = self._read(node)
        try:
            types = [_type(v) for v in (value if isinstance(value, (tuple, list)) else [value])]
        except UnsupportedError:
            self.lost.add(node)
            self.refused(error.violations, read, [], node.name)
            return None
        return self.refused(error.violations, read, types, node.name)

    def _read(self, node: torch.fx.Node) -> list[Tensor]:
        return [t for n in node.all_input_nodes for t in tensors_of(self.env[n])]


def _type(value: Any) -> TensorType:
    """Shape and element type by torch's inference. Raises UnsupportedError where they have no counterpart."""
    if not isinstance(value, torch.Tensor) or not all(isinstance(d, int) for d in value.shape):
        raise UnsupportedError("no tensor of a shape that is known")
    return TensorType(element_type(value.dtype, ""), tuple(value.shape))
