"""Complex tensors while a program is imported: two real ones. The operator table has none, and needs none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from superkernel.builder.tensor import Tensor


@dataclass(frozen=True)
class Pair:
    """Real and imaginary part, of the same shape and element type."""

    re: Tensor
    im: Tensor


def tensors_of(bound: Any) -> list[Tensor]:
    """The tensors of what a node is bound to: one, a list, the parts of complex ones."""
    return list(_flat(bound))


def _flat(bound: Any) -> Iterator[Tensor]:
    if isinstance(bound, Tensor):
        yield bound
    elif isinstance(bound, Pair):
        yield from (bound.re, bound.im)
    elif isinstance(bound, (list, tuple)):
        for item in bound:
            yield from _flat(item)


def is_complex(node: torch.fx.Node) -> bool:
    """True of a node that reads or computes complex tensors."""
    return any(_holds_complex(n.meta.get("val")) for n in (node, *node.all_input_nodes))


def _holds_complex(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_holds_complex, value))
    return isinstance(value, torch.Tensor) and value.is_complex()


def real_type(kind: torch.dtype) -> torch.dtype:
    """The element type of a tensor, or of the parts of a complex one."""
    return kind.to_real() if kind.is_complex else kind
