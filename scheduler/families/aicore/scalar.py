"""aicore.scalar: small work that the vector engine has no commands for, done by control units: integers of 64 bits,
f64, divisions and remainders of integers, running sums, searches, scattered moves.

Model: a control unit is a CPU without vectors, so the families of the host cut and compute for it: the tiling here is
a host family's. Its units are divided among the vector cores where that saves more than the flags ahead and behind
take; else all of them are one unit, so that small steps which follow one another need no flag. A load is a whole trip
to global memory; what is spread over several *lanes*, as vectors are on the host, is loaded together, so that the trips
overlap. Code grows with the lanes: long programs have fewer.

Invariants: on vector cores; no local memory, no engine. The registry limits the number of elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import ClassVar

from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.ir.body import Body, PointwiseProgram, View
from superkernel.ops.opdef import Family as OpFamily
from superkernel.registry.facts import MAX_SLOTS
from superkernel.registry.predicates import Clause, Facts, FactValue, Reason, Test
from superkernel.registry.records import KernelRole
from superkernel.registry.requirement import POINTWISE
from superkernel.registry.rounding import EXACT, ROW_SUMS
from superkernel.scheduler.families import HOST_KERNELS
from superkernel.scheduler.families.aicore.base import AicoreTiling, VectorTiling
from superkernel.scheduler.families.aicore.kernel import AicoreKernelDef
from superkernel.scheduler.families.costing import program_weight
from superkernel.scheduler.families.rowspace import slot_program
from superkernel.scheduler.kerneldef import ops_of
from superkernel.scheduler.tiling import Access, KernelFamily, Tiling
from superkernel.target.aicore import AicoreTarget
from superkernel.target.cpu import CpuTarget

CALL_CYCLES = 60  # entering, leaving, the fences
INSTRUCTION_CYCLES = 2.0  # of what a host counts as one, with its loop's and its latency's share
LANES = ((12.0, 8), (32.0, 4))  # up to so many instructions per element: so many elements on their way together
FEWER = {"argmax": 2, "argmin": 2}  # searches join lanes step by step: half as many
SUMS = 4  # running statistics that the host's reductions keep side by side: LLVM waits for each one's load in turn
COSTLY = frozenset({"reduce_log_sum_exp", "reduce_log_sum"})
TRIPLE = "riscv64-unknown-elf"

ANCHORS = (
    *("concat", "pad", "trilu", "tile", "gather", "gather_elements", "gather_nd", "scatter_elements", "scatter_nd"),
    *(name for name in ops_of(OpFamily.REDUCE) if name.startswith("reduce_")),
    *("argmax", "argmin", "cumsum", "one_hot", "topk"),
)
"""Operators that are computed as the host's kernel for them does; pure programs as host.pointwise does."""
FINDING = ("nonzero", "non_max_suppression")
"""Those whose host's kernels take no program behind them."""


@cache
def control_unit(vector_bytes: int) -> CpuTarget:
    """A control unit as the host's families and emitters see CPUs."""
    return CpuTarget(
        triple=TRIPLE, tier="plain", features="", vector_bytes=vector_bytes, vector_registers=32, l1_bytes=0,
        l2_bytes=0, l3_bytes=0, flops_per_ns=1.0,
    )  # fmt: skip


def host_kernel(op: str | None) -> str:
    """The host kernel for an anchor, or for none. Raises InternalError where there is none."""
    if op is None:
        return "host.pointwise"
    if op not in (*ANCHORS, *FINDING):
        raise InternalError("no operator of the control unit", location=str(op))
    return HOST_KERNELS.serving(op)


@dataclass(frozen=True)
class ScalarTiling(VectorTiling):
    """`inner` is how the host's kernel would cut it for `lanes` elements of `width` bytes; `divided`: its units are the
    units here, else everything is one."""

    engines_write_all: ClassVar[bool] = False  # the control unit does
    kernel: str
    inner: Tiling
    lanes: int
    width: int
    divided: bool = False

    @property
    def units(self) -> int:
        return self.inner.units if self.divided else min(1, self.inner.units)

    @property
    def scratch_bytes(self) -> int:
        return self.inner.scratch_bytes

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        if begin >= end:
            return ()
        return self.inner.accesses(body, begin, end) if self.divided else self.inner.accesses(body, 0, self.inner.units)

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        if begin >= end:
            return 0.0
        control = target.control
        trip, store = control.global_load_cycles / self.lanes, control.global_store_cycles
        cycles = self.scratch_bytes / self.width * (trip + store)
        for slot, program in enumerate(programs_of(body)):
            passes = max(1, getattr(self.inner, "results", 1)) if slot == 0 else 1
            weight = program_weight(program) + (getattr(self.inner, "work", 0.0) / passes if slot == 0 else 0.0)
            loads = any(i.source >= 0 for i in program.inputs)
            stores = sum(1 for o in program.outputs if o.target >= 0)
            each = loads * trip + stores * store + INSTRUCTION_CYCLES * weight
            cycles += passes * prod(program.shape) * each
        part = (end - begin) / self.units if self.divided else 1.0
        return CALL_CYCLES + part * cycles


def programs_of(body: Body) -> list[PointwiseProgram]:
    """What is evaluated: one program per input slot of the anchor, and the epilogue."""
    slots = [slot_program(body, k) for k in range(len(body.anchor_inputs))]
    return [*(p for p in slots if p is not None), body.epilogue]


def lanes_of(body: Body) -> int:
    """How many elements are on their way together."""
    weight = sum(program_weight(p) for p in programs_of(body))
    lanes = next((lanes for most, lanes in LANES if weight <= most), 1)
    reduces = body.op is not None and body.op.startswith("reduce_")
    return 1 if body.op in COSTLY else max(1, lanes // (SUMS if reduces else FEWER.get(body.op or "", 1)))


def width_of(body: Body) -> int:
    """Bytes of the widest number that is computed with."""
    found = [o.type.dtype for o in body.operands]
    found += [i.dtype for p in programs_of(body) for i in p.instructions]
    return max(max(d.itemsize, 4 if d.is_float else 1) for d in found)


def _divided(whole: ScalarTiling, body: Body, target: AicoreTarget) -> ScalarTiling:
    """The same over all vector cores, where that saves more than two flags of all cores."""
    parts = replace(whole, divided=True)
    longest = -(-parts.units // max(1, int(target.device.vector_cores)))
    saved = whole.cost_cycles(body, 0, whole.units, target) - parts.cost_cycles(body, 0, longest, target)
    pays = parts.units > 1 and not whole.scratch_bytes and saved > 2 * target.cycles(target.sync.core_full_ns)
    return parts if pays else whole


class ScalarFamily(KernelFamily[AicoreTarget]):
    """What is left over, where it is small."""

    on_control_unit = True

    def tilings(self, kernel: str, body: Body, target: AicoreTarget) -> Sequence[AicoreTiling]:
        name = host_kernel(body.op)
        lanes, width = lanes_of(body), width_of(body)
        inner = HOST_KERNELS.family_of(name).tilings(name, body, control_unit(lanes * width))[0]
        whole = ScalarTiling(name, inner, lanes, width)
        return (_divided(whole, body, target),)

    def accepts_view(self, kernel: str, op: str, slot: int, view: View, dtype: DType) -> bool:
        name = host_kernel(op)
        return HOST_KERNELS.family_of(name).accepts_view(name, op, slot, view, dtype)

    def accepts_prologue(self, kernel: str, op: str, slot: int) -> bool:
        name = host_kernel(op)
        return HOST_KERNELS.family_of(name).accepts_prologue(name, op, slot)


class FindingFamily(ScalarFamily):
    """What finds as much as the data has."""

    stores_only = True


FAMILY = ScalarFamily()


@dataclass(frozen=True, slots=True)
class Few(Test):
    """A number of elements that one control unit gets through: fewer where floats are among them."""

    integers: int
    floats: int

    def _limit(self, facts: Facts) -> int:
        named = ("out0.dtype", *(f"in{slot}.dtype" for slot in range(MAX_SLOTS)))
        dtypes = {facts.get(name) for name in named} | set(facts.get("program.dtypes") or ())
        return self.floats if any(isinstance(d, DType) and d.is_float for d in dtypes) else self.integers

    def holds(self, value: FactValue, facts: Facts) -> bool:
        return value is not None and bool(value <= self._limit(facts))

    def required(self, facts: Facts) -> str:
        return f"<= {self._limit(facts)}"


KERNELS = (
    AicoreKernelDef(
        id="aicore.scalar",
        ops=(POINTWISE, *ops_of(OpFamily.POINTWISE, OpFamily.VIEW, OpFamily.RESHAPE), *ANCHORS),
        family=FAMILY,
        emitter="scalar",
        micro="vprogram",
        modifier="control",
        role=KernelRole.GENERIC,
        limits=(Clause(Reason.SHAPE, "elements", Few(integers=4096, floats=1024)),),
        rounding=ROW_SUMS,
    ),
    AicoreKernelDef(
        id="aicore.finding",
        ops=FINDING,
        family=FindingFamily(),
        emitter="scalar",
        micro="index",
        modifier="finding",
        role=KernelRole.GENERIC,
        limits=(Clause(Reason.SHAPE, "elements", Few(integers=4096, floats=1024)),),
        rounding=EXACT,
    ),
)
