"""host.kv_update: new rows written into a cache at a run-time position. A unit is one (batch, head) pair.

In place (the cache operand is INOUT) only the new rows are written; where they land is data, so the pair's whole
cache is declared written and the cache is not read. Otherwise the result is another buffer, and a unit copies its
pair's cache around the new rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superkernel.core.tensor import full_box
from superkernel.ir.body import Body, Role
from superkernel.ir.collapse import runs_of_range
from superkernel.registry.rounding import EXACT
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.costing import CALL_NS, memory_ns
from superkernel.scheduler.families.kernel import HostKernelDef, HostTiling
from superkernel.scheduler.families.rowspace import slot_program
from superkernel.scheduler.tiling import Access, KernelFamily
from superkernel.target.cpu import CpuTarget


def is_in_place(body: Body) -> bool:
    """Whether the result takes the cache's own place."""
    return any(o.target >= 0 and body.operands[o.target].role is Role.INOUT for o in body.epilogue.outputs)


def read_position(found: AccessSet, body: Body) -> None:
    """The one number that says where the new rows go."""
    position = slot_program(body, 2)
    if position is not None:
        found.program(position, full_box(position.shape))


@dataclass(frozen=True)
class UpdateTiling(HostTiling):
    """See the module docstring."""

    batch: int
    heads: int
    in_place: bool

    @property
    def units(self) -> int:
        return self.batch * self.heads

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        found = AccessSet(body)
        if begin >= end:
            return ()
        pairs = runs_of_range((self.batch, self.heads), begin, end)
        for program in (*(slot_program(body, k) for k in ((1,) if self.in_place else (0, 1))), body.epilogue):
            if program is not None:
                found.program(program, *((*pair, *((0, d) for d in program.shape[2:])) for pair in pairs))
        read_position(found, body)
        return found.result()

    def stored_bytes(self, body: Body, begin: int, end: int) -> int | None:
        new = body.anchor_input_types[1]
        return -(-new.nbytes * (end - begin) // self.units) if self.in_place and new is not None else None

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        if begin >= end:
            return 0.0
        moved = body.anchor_input_types[1 if self.in_place else 0]
        nbytes = 2 * (moved.nbytes if moved is not None else 0)
        return CALL_NS + 5.0 * (end - begin) + memory_ns(nbytes * (end - begin) / self.units, nbytes, target)


class UpdateFamily(KernelFamily[CpuTarget]):
    """Updates of a state."""

    view_slots = (1, 2)
    prologue_slots = (1,)

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostTiling]:
        shape = body.anchor_outputs[0].shape
        batch, heads = (0, 0) if 0 in shape else shape[:2]
        return (UpdateTiling(batch, heads, is_in_place(body)),)


KERNELS = (
    HostKernelDef(
        id="host.kv_update",
        ops=("kv_update",),
        family=UpdateFamily(),
        emitter="update",
        micro="kvupdate",
        rounding=EXACT,
        code_bytes=1024,
    ),
)
