"""The result of grouping: sub-operators and the buffers between them. Data alone, so that who reads it needs nothing of
what makes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from superkernel.core.frozen import frozen
from superkernel.core.tensor import TensorType
from superkernel.ir.body import SubOperator
from superkernel.scheduler.schedule import MemoryAddress, Space


@frozen()
class GroupNote:
    """One decision of grouping: `node` was treated so, because."""

    node: str
    decision: str
    reason: str

    def __str__(self) -> str:
        return f"{self.node}: {self.decision} ({self.reason})"


@frozen()
class ValueBuffer:
    """A buffer that sub-operators read or write. `address`: None in the arena, else the space and slot it fills
    (constants: slot 0, offsets come with the memory plan). `inside`: a part of another buffer, from that byte on; one
    of the same type is a *window*: all of the other one's bytes, of which its views touch some.
    `previous`: the buffer whose bytes this one takes over in the same place (states)."""

    type: TensorType
    address: MemoryAddress | None = None
    previous: str | None = None
    inside: tuple[str, int] | None = None

    @property
    def is_temporary(self) -> bool:
        """True of arena buffers with a place of their own."""
        return self.address is None and self.inside is None

    @property
    def is_constant(self) -> bool:
        """Whether its contents are known when the graph is compiled."""
        return self.address is not None and self.address.space is Space.CONSTANT


@dataclass(frozen=True)
class Grouping:
    """`subops` in a legal order; `values` of a sub-operator name entries of `buffers`. `constants`: those of the
    graph and folded views."""

    subops: tuple[SubOperator, ...]
    buffers: Mapping[str, ValueBuffer]
    constants: Mapping[str, NDArray[Any]]
    notes: tuple[GroupNote, ...]

    def __str__(self) -> str:
        lines = []
        for sub in self.subops:
            operands = [f"{o.role.value} {v}:{o.type}" for o, v in zip(sub.body.operands, sub.values, strict=True)]
            lines.append(
                f"subop {sub.index} {sub.name} {sub.kernel} ({', '.join(operands)}) computes {', '.join(sub.nodes)}"
            )
        return "\n".join([*lines, *(f"# {note}" for note in self.notes)])


def view_chain(buffers: Mapping[str, ValueBuffer], name: str) -> Iterator[tuple[str, ValueBuffer, int]]:
    """The buffer, the one it is a part of, and so on, each with the byte offset of the first one in it."""
    offset = 0
    while True:
        buffer = buffers[name]
        yield name, buffer, offset
        if buffer.inside is None:
            return
        name, step = buffer.inside
        offset += step
