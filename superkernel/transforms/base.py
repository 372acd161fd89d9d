"""What a pass is: a frozen dataclass with a name, a one-line description and `apply`; its fields are its options."""

from __future__ import annotations

from typing import ClassVar, Protocol

from superkernel.ir.graph import Graph


class Pass(Protocol):
    """graph -> graph. The result computes the same outputs under the same names from the same inputs and states; a
    pass that finds nothing to do returns the very graph it got."""

    name: ClassVar[str]
    description: ClassVar[str]

    def apply(self, graph: Graph) -> Graph:
        """The rewritten graph."""
        ...
