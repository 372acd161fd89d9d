"""Iteration spaces: merging, reordering and cutting keep exactly the same iterations and bytes; random programs run
right."""

from __future__ import annotations

import random
from itertools import product
from math import prod

import numpy as np
import pytest
from kernel_check import Array, check_body, operand
from seeds import seeds

from superkernel.core.dtypes import DType
from superkernel.core.tensor import row_major_strides
from superkernel.ir.body import Body, Instruction, PointwiseProgram, ProgramInput, ProgramOutput, Role
from superkernel.ir.collapse import canonical, collapse, exact_regions, feed, merge_dims, restrict, runs_of_range


def random_program(rng: random.Random) -> tuple[PointwiseProgram, list[tuple[int, ...]]]:
    """A program of two inputs (each dense in some order of dimensions, or broadcast) and one output (dense in another
    order, with a margin), and the buffers' shapes."""
    shape = tuple(rng.choice([1, 1, 2, 3, 5, 17, 20]) for _ in range(rng.randint(1, 4)))
    buffers: list[tuple[int, ...]] = []
    inputs = []
    for k in range(2):
        order = rng.sample(range(len(shape)), len(shape))
        kept = [d for d in order if rng.random() < 0.75]
        buffer = tuple(shape[d] for d in kept)
        strides = [0] * len(shape)
        for d, s in zip(kept, row_major_strides(buffer), strict=True):
            strides[d] = s
        offset = 0
        for d in kept:
            if rng.random() < 0.2:  # backwards
                offset += strides[d] * (shape[d] - 1)
                strides[d] = -strides[d]
        inputs.append(ProgramInput(k, DType.F32, tuple(strides), offset))
        buffers.append(buffer)
    order = rng.sample(range(len(shape)), len(shape))
    wide = [shape[d] for d in order]
    wide[rng.randrange(len(wide))] += rng.choice([0, 0, 3])
    strides = [0] * len(shape)
    for d, s in zip(order, row_major_strides(wide), strict=True):
        strides[d] = s
    buffers.append(tuple(wide))
    step = Instruction("sub", (0, 1), DType.F32)
    return PointwiseProgram(shape, tuple(inputs), (step,), (ProgramOutput(2, 2, tuple(strides)),)), buffers


def interpret(program: PointwiseProgram, arrays: list[Array]) -> Array:
    """The output buffer, element by element."""
    out = np.zeros_like(arrays[-1]).reshape(-1)
    store = program.outputs[0]
    for index in product(*(range(d) for d in program.shape)):
        a, b = (
            arrays[i.source].reshape(-1)[i.offset + sum(c * s for c, s in zip(index, i.strides, strict=True))]
            for i in program.inputs
        )
        out[store.offset + sum(c * s for c, s in zip(index, store.strides, strict=True))] = a - b
    return out.reshape(arrays[-1].shape)


@pytest.mark.parametrize("seed", seeds(30))
def test_random_programs(seed: int) -> None:
    rng = random.Random(seed)
    program, buffers = random_program(rng)
    numbers = np.random.default_rng(seed)
    arrays = [numbers.standard_normal(b).astype(np.float32) for b in buffers]
    want = interpret(program, arrays)
    for same in (collapse(program), canonical(program)):
        assert prod(same.shape) == prod(program.shape)
        assert np.array_equal(interpret(same, arrays), want)
    roles = (Role.INPUT, Role.INPUT, Role.OUTPUT)
    operands = tuple(operand(r, DType.F32, b) for r, b in zip(roles, buffers, strict=True))
    body = Body(None, (), operands, (), (), (), program)
    given = [arrays[0], arrays[1], None]
    check_body("host.pointwise", body, given, {2: want}, tol=0, splits=2, tier=None if seed < 6 else "avx2")


@pytest.mark.parametrize("seed", seeds(20))
def test_runs_cover_a_range_exactly(seed: int) -> None:
    rng = random.Random(seed)
    shape = tuple(rng.randint(1, 5) for _ in range(rng.randint(0, 4)))
    begin, end = sorted(rng.randint(0, prod(shape)) for _ in range(2))
    found = [
        sum(c * s for c, s in zip(index, row_major_strides(shape), strict=True))
        for box in runs_of_range(shape, begin, end)
        for index in product(*(range(*span) for span in box))
    ]
    assert found == list(range(begin, end))


def test_exact_regions_do_not_widen() -> None:
    """Three levels of gaps, more regions than the usual limit: still nothing but the elements."""
    box, strides = ((0, 9), (0, 9), (0, 9), (0, 2)), (1000, 100, 10, 3)
    wanted = {
        4 * (sum(c * s for c, s in zip(index, strides, strict=True))) + byte
        for index in product(*(range(*span) for span in box))
        for byte in range(4)
    }
    found = {
        r.start + i * r.stride + byte
        for r in exact_regions(box, strides, 4)
        for i in range(r.count)
        for byte in range(r.length)
    }
    assert found == wanted


def test_fences_keep_dimensions_apart() -> None:
    dense = row_major_strides((2, 3, 4, 5))
    assert merge_dims((2, 3, 4, 5), [dense]) == ((0, 1, 2, 3),)
    assert merge_dims((2, 3, 4, 5), [dense], (2,)) == ((0, 1), (2, 3))
    assert merge_dims((2, 3, 4, 5), [dense, (0, 0, 5, 1)]) == ((0, 1), (2, 3))
    assert merge_dims((2, 1, 4, 1), [(4, 9, 1, 7)]) == ((0, 1, 2, 3),)


def test_feed_joins_two_programs() -> None:
    """An epilogue result * c - result behind a source a + b, the sum stored too."""
    source = PointwiseProgram(
        (6,),
        (ProgramInput(0, DType.F32, (1,)), ProgramInput(1, DType.F32, (1,))),
        (Instruction("add", (0, 1), DType.F32),),
        (ProgramOutput(2, -1), ProgramOutput(2, 4, (1,))),
    )
    epilogue = PointwiseProgram(
        (6,),
        (ProgramInput(-1, DType.F32), ProgramInput(2, DType.F32, (0,))),
        (Instruction("mul", (0, 1), DType.F32), Instruction("sub", (2, 0), DType.F32)),
        (ProgramOutput(3, 3, (1,)),),
    )
    joined = restrict(feed(epilogue, source), ((1, 5),))
    shapes = [(6,), (6,), (), (6,), (6,)]
    roles = [Role.INPUT] * 3 + [Role.OUTPUT] * 2
    operands = tuple(operand(r, DType.F32, s) for r, s in zip(roles, shapes, strict=True))
    a, b, c = np.arange(6, dtype=np.float32), np.full(6, 2, np.float32), np.array(3, np.float32)
    total, result = np.zeros(6, np.float32), np.zeros(6, np.float32)
    total[1:5] = (a + b)[1:5]
    result[1:5] = (total * 3 - total)[1:5]
    body = Body(None, (), operands, (), (), (), joined)
    check_body("host.pointwise", body, [a, b, c, None, None], {3: result, 4: total}, tol=0, tier="avx2")
