"""Reductions of a whole tensor to one number, over all vector cores: a kernel whose cores meet inside.

Model: the tensor lies in one run of memory and is cut into chunks. In the first phase each core reduces the chunks of
its units, each to one f32 in the workspace, which all cores share. Then all vector cores of the device meet (one signal
each, one wait each): those without units too, for which the program joins the barrier. In the second phase the core
that has the first unit reduces the numbers of all chunks, in their order, and stores the result.

Invariants: chunks depend on the tensor and the target, not on which cores have them, so that the result has the same
bits wherever the kernel is placed. Floats are computed in f32. What a chunk reads is read once.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from superkernel.core.tensor import Region, row_major_strides
from superkernel.ir.body import Body, PointwiseProgram, ProgramInput
from superkernel.scheduler.families.aicore.base import CHANNEL_FLAGS, VectorTiling
from superkernel.scheduler.families.aicore.kernel import FLOATS
from superkernel.scheduler.families.aicore.rounding import ceil_to
from superkernel.scheduler.families.rowspace import slot_program
from superkernel.scheduler.tiling import Access
from superkernel.target.aicore import AicoreTarget

CHUNK_ELEMENTS_MIN, CHUNK_ELEMENTS_MAX = 1024, 8192
CHUNK_ALIGN = 64
NUMBER_BYTES = 4  # of a chunk in the workspace
CALL_CYCLES = 120.0
BEFORE = {"sum": None, "mean": None, "max": None, "min": None, "l1": "v_abs", "sum_square": "v_mul"}
"""Reductions, and what is done to an element first."""


@dataclass(frozen=True)
class BarrierReduceTiling(VectorTiling):
    """See the module docstring. `source` and `targets`: operand and offset in elements; the result may be stored in
    several types."""

    kind: str
    elements: int
    chunk: int
    source: tuple[int, int]
    targets: tuple[tuple[int, int], ...]

    @property
    def units(self) -> int:
        return -(-self.elements // self.chunk)

    @property
    def barriers(self) -> int:
        return 1

    @property
    def scratch_bytes(self) -> int:
        return ceil_to(self.units * NUMBER_BYTES, 32)

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        if begin >= end:
            return ()
        operand, offset = self.source
        item = body.operands[operand].type.dtype.itemsize
        first, last = begin * self.chunk, min(end * self.chunk, self.elements)
        found = [Access(operand, False, (Region((offset + first) * item, (last - first) * item),))]
        for target, offset in self.targets if begin == 0 else ():
            size = body.operands[target].type.dtype.itemsize
            found.append(Access(target, True, (Region(offset * size, size),)))
        return tuple(found)

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        if begin >= end:
            return 0.0
        item = body.operands[self.source[0]].type.dtype.itemsize
        vector, dma = target.vector, target.dma
        load = target.move_cycles("rates.gm_to_ub_gb_per_s", 1, self.chunk * item)
        beats = 3 * (vector.startup_cycles + -(-self.chunk // vector.lanes_32bit))
        total: float = CALL_CYCLES + load + (end - begin) * max(load, beats) + dma.store_startup_cycles
        total += target.cycles(target.sync.core_full_ns)
        if begin == 0:
            total += (
                dma.startup_cycles
                + dma.store_startup_cycles
                + 4 * vector.startup_cycles
                + -(-self.units // vector.lanes_32bit)
            )
        return total


def barrier_reduce_tiling(body: Body, target: AicoreTarget) -> BarrierReduceTiling | None:
    """The tiling of a body that is such a reduction, of more than one chunk; None for any other."""
    kind = (body.op or "").removeprefix("reduce_")
    load, targets = _plain_load(body), _plain_results(body)
    if kind not in BEFORE or load is None or not targets or body.anchor_outputs[0].size != 1:
        return None
    source = body.operands[load.source].type.dtype
    elements, cores = prod(_shape(body)), int(target.device.vector_cores)
    dtypes = {source, *(body.operands[operand].type.dtype for operand, _ in targets)}
    if not dtypes <= FLOATS or target.sync.flags_per_core <= CHANNEL_FLAGS:
        return None
    chunk = min(CHUNK_ELEMENTS_MAX, max(CHUNK_ELEMENTS_MIN, ceil_to(-(-elements // cores), CHUNK_ALIGN)))
    made = BarrierReduceTiling(kind, elements, chunk, (load.source, load.offset), targets)
    need = 2 * chunk * (source.itemsize + 4) + 2 * 64 + made.scratch_bytes + 4 * 64
    return made if made.units > 1 and need <= target.memory.ub_bytes else None


def _shape(body: Body) -> tuple[int, ...]:
    kind = body.anchor_input_types[0]
    assert kind is not None
    return kind.shape


def _plain_load(body: Body) -> ProgramInput | None:
    """The load of what is reduced, where it is all there is in front, from one run of memory."""
    program = slot_program(body, 0) if len(body.anchor_inputs) == 1 else None
    if program is None or len(program.inputs) != 1 or not _only_casts(program) or len(program.outputs) != 1:
        return None
    load, shape = program.inputs[0], program.shape
    dense = row_major_strides(shape)
    runs = all(d <= 1 or s == t for d, s, t in zip(shape, load.strides, dense, strict=True))
    return load if load.source >= 0 and runs and shape == _shape(body) else None


def _plain_results(body: Body) -> tuple[tuple[int, int], ...]:
    """Operands and offsets (elements) that the result is stored at, where that is all there is behind; else none."""
    program = body.epilogue
    if len(program.inputs) != 1 or program.inputs[0].source != -1 or not _only_casts(program):
        return ()
    if any(output.target < 0 for output in program.outputs):
        return ()
    return tuple((output.target, output.offset) for output in program.outputs)


def _only_casts(program: PointwiseProgram) -> bool:
    """Whether a program changes nothing but the type of a float."""
    return all(step.op in ("cast", "identity") and step.dtype in FLOATS for step in program.instructions)
