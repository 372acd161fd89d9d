"""What a kernel is: one `KernelDef` per kernel, the only place that knows its operators, types, limits and traits.

Everything else is derived from the declarations: the registry's rows, which family cuts a body and which emitter writes
its code, what grouping and layout ask of a kernel. Adding a kernel is adding one declaration to the `KERNELS` of the
module in `scheduler/families` that cuts its work; a kernel that is a variant of another one shares its family and
emitter.

Model: a declaration says what all variants of a kernel share. Each target has a subclass whose `rows` spells out the
variants: `HostKernel` (`families/kernel.py`) one per instruction-set tier, `AicoreKernel` (`families/aicore/kernel.py`)
one per element type. `kernel_table.py` collects them.

Why here and not in the registry: a declaration names its `KernelFamily`, which is the scheduler's; the registry chooses
among rows, of which it needs no more than their fields.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import Body, Role, View
from superkernel.ops.opdef import Family as OpFamily
from superkernel.ops.table import op_table
from superkernel.registry.predicates import Clause, Reason, one_of
from superkernel.registry.records import Capability, Estimate, KernelRole, Transform
from superkernel.registry.rounding import ROUNDED, Rounding
from superkernel.scheduler.tiling import KernelFamily, TargetT, within_workspace
from superkernel.scheduler.timed import measured_share


@dataclass(frozen=True, kw_only=True, eq=False)
class KernelDef(ABC, Generic[TargetT]):
    """What the variants of a kernel share.

    id: by which policies, plans and reports know it, e.g. "host.matmul.packed".
    ops: operators of the table that it serves, and `pointwise` for programs without an anchor.
    family: how its work is cut. emitter: the module of its target's `codegen` whose `emit` writes its code, or the
    function itself, of a kernel from outside (`superkernel.kernels`); such a one also has
    problems: on which it is tried (`superkernel kernels test`), and sources: the digest of what it is made from.
    micro, modifier: its operator, and what tells it from others of that, in canonical names.
    dtypes: types of the first input, None = any. others: of further inputs, None = the same as the first.
    limits: what else it demands of a problem. layout: how images must lie, None = in either order.
    """

    id: str
    ops: tuple[str, ...]
    family: KernelFamily[TargetT] = field(repr=False)
    emitter: str | Callable[..., None]
    micro: str
    modifier: str = ""
    dtypes: frozenset[DType] | None = None
    others: tuple[frozenset[DType] | None, ...] = ()
    role: KernelRole = KernelRole.TUNED
    limits: tuple[Clause, ...] = ()
    layout: str | None = None
    transforms: tuple[Transform, ...] = ()
    rounding: Rounding = ROUNDED
    code_bytes: int = 2048
    problems: tuple[str, ...] = ()
    sources: str = ""

    @abstractmethod
    def rows(self) -> Iterable[Capability]:
        """One row per variant."""

    def estimate(self, body: Body, target: TargetT, workspace_max: int | None = None) -> Estimate | None:
        """What the kernel takes for a body on one core: the best, by measured times or else by the family's own
        figures, of the cuts that keep to a limit of working memory in bytes, where any does. None where it cannot cut
        the body after all."""
        try:
            tilings = self.family.tilings(self.id, body, target)
        except UnsupportedError:
            return None
        tilings = within_workspace(tilings, workspace_max) or tilings
        shares = [measured_share(self.id, body, tiling, target) for tiling in tilings]
        costs = [tiling.cost_ns(body, 0, tiling.units, target) for tiling in tilings]
        timed = [
            (ns * (1.0 if share is None else share), share is not None, tiling)
            for ns, share, tiling in zip(costs, shares, tilings, strict=True)
        ]
        time_ns, measured, best = min(timed, key=lambda row: row[0])
        operands = {o: pack.packed_bytes(body.operands[o].type) for o, pack in best.packs(body).items()}
        packed = {
            slot: operands[view.operand]
            for slot, view in enumerate(body.anchor_inputs)
            if isinstance(view, View) and view.operand in operands
        }
        workspace = {"scratch": best.scratch_bytes, "packed": sum(operands.values())}
        found = {region: count for region, count in workspace.items() if count}
        raw = (o.type.nbytes for i, o in enumerate(body.operands) if o.role is Role.CONSTANT and i not in operands)
        constants = sum(operands.values()) + sum(raw)
        return Estimate(time_ns, found, packed, measured, min(costs), constants)

    def runs_on(self, row: Capability, target: TargetT) -> bool:
        """Whether a target takes the code of this row and not of another."""
        return True

    @property
    def demands(self) -> tuple[Clause, ...]:
        """The limits, with the layout's."""
        return self.limits if self.layout is None else (*self.limits, one_of(Reason.LAYOUT, "layout", self.layout))

    def inputs_of(self, first: frozenset[DType] | None) -> tuple[frozenset[DType], ...]:
        """Types per input slot of a variant for some types of the first one."""
        if first is None:
            return ()
        return (first, *(first if other is None else other for other in self.others))


def ops_of(*families: OpFamily) -> tuple[str, ...]:
    """Names of all operators of some families."""
    return tuple(op.name for op in op_table().values() if op.family in families)
