"""What a name of an ONNX model stands for while the model is walked: a tensor, a sequence of tensors, an empty
optional, or what stands for a value that was refused."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, TypeAlias

from superkernel.builder.tensor import Tensor


@dataclass(frozen=True, slots=True)
class TensorSequence:
    """A sequence whose length is known: it exists in the importer alone, the graph has its elements."""

    items: tuple[Tensor, ...] = ()


class Stand(Enum):
    """What is no tensor and holds none."""

    LOST = "lost"
    EMPTY = "empty"


LOST: Final = Stand.LOST
"""A value of a refused node for which nothing stands."""
EMPTY: Final = Stand.EMPTY
"""An optional that holds nothing."""

Bound: TypeAlias = Tensor | TensorSequence | Stand | None
"""What a name is bound to; None: an optional input or output that is left out."""
Result: TypeAlias = Tensor | TensorSequence | Literal[Stand.EMPTY]
"""What one output of a node may be."""
