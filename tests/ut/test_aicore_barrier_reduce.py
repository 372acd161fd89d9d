"""Which reductions of a whole tensor have cores that meet inside: plain loads of one run of memory, plain stores."""

from __future__ import annotations

from dataclasses import replace

import pytest
from anchor_bodies import anchor_case

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType, row_major_strides
from superkernel.ir.body import Body, Instruction, Operand, PointwiseProgram, ProgramInput, ProgramOutput, Role, View
from superkernel.scheduler.families.aicore.barrier_reduce import (
    CHUNK_ELEMENTS_MAX,
    CHUNK_ELEMENTS_MIN,
    barrier_reduce_tiling,
)
from superkernel.target.aicore import load_target

MINI = load_target("mini")
SHAPE = (96, 256)
F16, F32 = DType.F16, DType.F32


def reduction(op: str = "reduce_sum", shape: tuple[int, int] = SHAPE, dtype: DType = F16) -> Body:
    return anchor_case(op, {"axes": (0, 1)}, [(shape, dtype)]).body


def loaded_by(
    *steps: Instruction, sources: int = 1, strides: tuple[int, ...] = row_major_strides(SHAPE), also: bool = False
) -> Body:
    """The reduction with a program in front; `also`: what it loads is stored besides."""
    body, count = reduction(), len(steps)
    inputs = (ProgramInput(0, F16, strides),) * sources
    outputs = [ProgramOutput(sources - 1 + count, -1)]
    operands = [*body.operands]
    if also:
        outputs.append(ProgramOutput(0, len(operands), row_major_strides(SHAPE)))
        operands.append(Operand(Role.OUTPUT, TensorType(F16, SHAPE)))
    program = PointwiseProgram(SHAPE, inputs, steps, tuple(outputs))
    return replace(body, operands=tuple(operands), anchor_inputs=(program,))


CAST = Instruction("cast", (0,), F32, (("dtype", F32),))


def test_casts_ahead_change_nothing() -> None:
    plain = barrier_reduce_tiling(reduction(), MINI)
    assert plain is not None
    assert barrier_reduce_tiling(loaded_by(), MINI) == plain
    assert barrier_reduce_tiling(loaded_by(CAST), MINI) == plain


@pytest.mark.parametrize(
    "body",
    [
        loaded_by(Instruction("relu", (0,), F16)),
        loaded_by(Instruction("add", (0, 1), F16), sources=2),
        loaded_by(sources=2),
        loaded_by(strides=(1, 96)),
        loaded_by(strides=(512, 1)),
        loaded_by(also=True),
        loaded_by(Instruction("cast", (0,), DType.I32, (("dtype", DType.I32),))),
        reduction("reduce_prod"),
        reduction(dtype=DType.I32),
        anchor_case("reduce_sum", {"axes": (0,)}, [(SHAPE, F16)]).body,
        anchor_case("reduce_sum", {"axes": (0, 1)}, [(SHAPE, F16)], epilogue="mixed").body,
    ],
    ids=["relu", "add", "two", "transposed", "apart", "stored", "integers", "product", "of integers", "rows", "behind"],
)
def test_left_to_rows(body: Body) -> None:
    assert barrier_reduce_tiling(body, MINI) is None


def test_axes_of_extent_one_may_lie_anywhere() -> None:
    body = reduction(shape=(1, 24576))
    assert isinstance(body.anchor_inputs[0], View)
    moved = replace(body, anchor_inputs=(replace(body.anchor_inputs[0], strides=(3, 1)),))
    assert barrier_reduce_tiling(moved, MINI) == barrier_reduce_tiling(body, MINI) is not None


def test_chunks_are_even_and_of_a_size_within_bounds() -> None:
    """On four cores; a single chunk is left to rows."""
    found = {n: barrier_reduce_tiling(reduction(shape=(1, n)), MINI) for n in (1024, 1025, 4096, 8196, 32768, 32832)}
    sizes = {n: t and (t.chunk, t.units, t.scratch_bytes) for n, t in found.items()}
    assert sizes == {
        1024: None,
        1025: (CHUNK_ELEMENTS_MIN, 2, 32),
        4096: (1024, 4, 32),
        8196: (2112, 4, 32),
        32768: (CHUNK_ELEMENTS_MAX, 4, 32),
        32832: (CHUNK_ELEMENTS_MAX, 5, 32),
    }


@pytest.mark.parametrize("dtype", [F16, F32, DType.BF16])
def test_two_chunks_and_what_sums_take_fit_into_ub(dtype: DType) -> None:
    body = reduction(dtype=dtype)
    need = 2 * 6144 * (dtype.itemsize + 4) + 2 * 64 + 32 + 4 * 64
    for nbytes in (need, need - 32):
        tiling = barrier_reduce_tiling(body, MINI.replaced({"memory.ub_bytes": nbytes}))
        assert (tiling is not None) is (nbytes == need)


def test_a_flag_is_left_for_the_barrier() -> None:
    flags = {n: barrier_reduce_tiling(reduction(), MINI.replaced({"sync.flags_per_core": n})) for n in (4, 5)}
    assert [tiling is not None for tiling in flags.values()] == [False, True]
