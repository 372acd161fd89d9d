"""What the service hart (the first `aicpu` hart that computes no tilings) does beside a launch: SDMA tasks, tied to the
cores' progress.

Model: per type of core there is one word in global memory, which only grows, over launches too. `Notify` in the program
of a type: its first core counts the word up. The service program of a launch is a straight line of `AwaitCount` (stand
still until a type's first core has notified so often in this launch) and `Prefetch` (SDMA brings constants into L2). It
ends when SDMA is done. Cores never wait for the service hart, and what it does changes no memory that they read: a
launch computes the same without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superkernel.sync.aicore.plan import CoreKind


@dataclass(frozen=True, slots=True)
class Notify:
    """The first core of the type counts the type's word up, behind all its stores so far: queued on the engine that
    stores. `count`: how often it has in this launch then."""

    count: int

    def __str__(self) -> str:
        return f"notify {self.count}"


@dataclass(frozen=True, slots=True)
class AwaitCount:
    """Stand still until a type's first core has notified `count` times in this launch."""

    kind: CoreKind
    count: int

    def __str__(self) -> str:
        return f"await {self.kind.value} count {self.count}"


@dataclass(frozen=True, slots=True)
class Prefetch:
    """SDMA brings `nbytes` of the constants from `offset` on into L2, for a sub-operator."""

    subop: int
    offset: int
    nbytes: int

    def __str__(self) -> str:
        return f"prefetch {self.nbytes} bytes at {self.offset} for {self.subop}"


ServiceStep = AwaitCount | Prefetch
ServiceProgram = tuple[ServiceStep, ...]
