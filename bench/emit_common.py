"""What the writers of other forms share: attributes without their union type, and what all of them refuse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from superkernel.ir.graph import Graph, Node


def attrs_of(node: Node) -> Mapping[str, Any]:
    """The node's attributes; the graph has checked and completed them."""
    return node.attrs


def check_rope(graph: Graph, node: Node) -> None:
    """One position, all of the depth, in halves: what a decoder step needs. Raises NotImplementedError otherwise."""
    kind = graph.types[str(node.inputs[0])]
    attrs = attrs_of(node)
    if attrs["interleaved"] or attrs["rotary_dim"] not in (0, kind.shape[3]) or kind.shape[2] != 1:
        raise NotImplementedError("rope of several positions, part of the depth, or interleaved")


def check_attention(node: Node) -> None:
    """Raises NotImplementedError where attention is more than scaled, masked and bounded."""
    if node.attrs["causal"] or node.attrs["softcap"]:
        raise NotImplementedError("causal or soft-capped attention")
