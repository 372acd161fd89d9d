"""Does a legal join pay? Small rules with their reasons; none of them affects correctness.

A join saves a store, a load and a boundary. It costs registers (long programs spill), instruction cache, and, where a
prologue is evaluated more often than once per element, arithmetic.
"""

from __future__ import annotations

from superkernel.ir.body import Instruction
from superkernel.ops.opdef import Family
from superkernel.ops.table import traits_of
from superkernel.scheduler.cluster import Cluster, Load

MAX_INSTRUCTIONS = 48
MAX_BUFFERS = 14  # pointers of one kernel function that stay in registers together with the loop's own values


def too_big(*parts: Cluster) -> str | None:
    """None where a program of all the parts stays small, else why not."""
    if sum(p.instruction_count for p in parts) >= MAX_INSTRUCTIONS:
        return f"the program would exceed {MAX_INSTRUCTIONS} instructions"
    buffers = {cell.buffer for p in parts for cell in p.cells if isinstance(cell, Load)}
    buffers |= {store.buffer for p in parts for store in p.stores}
    if len(buffers) >= MAX_BUFFERS:
        return f"the program would touch more than {MAX_BUFFERS} buffers"
    return None


def prologue_loses(part: Cluster, family: Family, slot_elements: int) -> str | None:
    """None where evaluating `part` inside the anchor pays, else why not."""
    if part.instruction_count > MAX_INSTRUCTIONS // 2:
        return "the prologue is long"
    if not family.revisits or slot_elements <= 4096:
        return None
    for cell in part.cells:
        if isinstance(cell, Instruction) and traits_of(cell.op).costly:
            return f"{cell.op} would be evaluated several times per element"
    return None
