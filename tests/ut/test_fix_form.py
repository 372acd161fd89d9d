"""What FIX does of an epilogue: every link of the chain, in the order of the command, and what is no link."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from aicore_conv_cases import conv_case

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType
from superkernel.ir.body import Body, Instruction, Operand, PointwiseProgram, ProgramInput, ProgramOutput, Role
from superkernel.scheduler.families.aicore.conv_fix import ChannelVector, FixForm, fix_form

F16, F32, I32 = DType.F16, DType.F32, DType.I32
OUT = (1, 24, 5, 5)
BODY = conv_case((1, 16, 5, 5), (24, 16, 1, 1), {}).body
BIASED = conv_case((1, 16, 5, 5), (24, 16, 1, 1), {}, bias=True).body
V, W, HALF, R = 1, 2, 3, 4
"""Inputs of the program beside the anchor's result, which is input 0: vectors of constants over channels, a vector over
columns, an image that others compute."""


def step(op: str, *args: int, dtype: DType = F16, **attrs: Any) -> Instruction:
    return Instruction(op, args, dtype, tuple(attrs.items()))


def formed(
    *steps: Instruction, body: Body = BODY, out: DType = F16, role: Role = Role.CONSTANT, dtype: DType = F16
) -> FixForm | None:
    """SSA: inputs 0 to 4, then the steps; the last one is stored."""
    first = len(body.operands)
    operands = [*body.operands, *(Operand(role, TensorType(dtype, (24,))) for _ in "vw")]
    operands += [Operand(Role.CONSTANT, TensorType(F16, (5,))), Operand(Role.INPUT, TensorType(F16, OUT))]
    (load,), (store,) = body.epilogue.inputs, body.epilogue.outputs
    operands[store.target] = Operand(Role.OUTPUT, TensorType(out, OUT))
    inputs = (
        load,
        ProgramInput(first, dtype, (0, 1, 0, 0)),
        ProgramInput(first + 1, dtype, (0, -1, 0, 0), 23),
        ProgramInput(first + 2, F16, (0, 0, 0, 1)),
        ProgramInput(first + 3, F16, (600, 25, 5, 1)),
    )
    outputs = (replace(store, value=4 + len(steps) if steps else 0),)
    program = PointwiseProgram(OUT, inputs, steps, outputs)
    return fix_form(replace(body, operands=tuple(operands), epilogue=program), program)


FIRST = len(BODY.operands)
SCALE, SUMMAND = ChannelVector(FIRST, 0, 1), ChannelVector(FIRST + 1, 23, -1)
BOUNDS = step("constant", value=-0.5), step("constant", value=2.0)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((), {}),
        ((step("identity", 0),), {}),
        ((step("mul", 0, V),), {"scale": SCALE}),
        ((step("mul", V, 0),), {"scale": SCALE}),
        ((step("add", 0, W),), {"bias": SUMMAND}),
        ((step("mul", 0, V), step("add", W, 5)), {"scale": SCALE, "bias": SUMMAND}),
        ((step("constant", value=0.5), step("mul", 0, 5)), {"factor": 0.5}),
        ((step("constant", value=2), step("mul", 5, 0), step("add", 6, W)), {"factor": 2.0, "bias": SUMMAND}),
        ((step("relu", 0),), {"activation": "relu"}),
        ((step("mul", 0, V), step("cast", 5, dtype=F32), step("relu", 6)), {"scale": SCALE, "activation": "relu"}),
        ((step("leaky_relu", 0, alpha=0.25),), {"activation": "leaky", "low": 0.25}),
        ((step("leaky_relu", 0),), {"activation": "leaky", "low": 0.01}),
        ((*BOUNDS, step("clip", 0, 5, 6)), {"activation": "clip", "low": -0.5, "high": 2.0}),
        ((BOUNDS[0], step("clip", 0, 5, 5)), {"activation": "clip", "low": -0.5, "high": -0.5}),
    ],
)
def test_links(steps: tuple[Instruction, ...], expected: dict[str, Any]) -> None:
    out = F32 if any(s.dtype is F32 for s in steps[-1:]) else F16
    store = BODY.epilogue.outputs[0]
    assert formed(*steps, out=out) == FixForm(store.target, store.strides, store.offset, **expected)


@pytest.mark.parametrize(
    "steps",
    [
        (step("add", 0, V), step("mul", 5, W)),
        (step("add", 0, V), step("add", 5, W)),
        (step("mul", 0, V), step("mul", 5, W)),
        (step("mul", 0, V), step("add", 5, V)),
        (step("mul", 0, V), step("constant", value=0.5), step("mul", 5, 6)),
        (step("constant", value=0.5), step("mul", 0, 5), step("mul", 6, V)),
        (step("constant", value=0.5), step("mul", 0, 5), step("mul", 6, 5)),
        (step("constant", value=0.5), step("add", 0, 5)),
        (step("constant", value=float("nan")), step("mul", 0, 5)),
        (step("relu", 0), step("add", 5, V)),
        (step("relu", 0), step("relu", 5)),
        (step("add", 0, HALF),),
        (step("mul", 0, HALF),),
        (step("add", 0, R),),
        (step("add", 0, 0),),
        (step("sub", 0, V),),
        (step("sub", V, 0),),
        (step("tanh", 0),),
        (step("cast", 0, dtype=I32), step("cast", 5)),
        (step("less", 0, V, dtype=DType.BOOL), step("cast", 5)),
        (BOUNDS[0], step("clip", 0, 5, -1)),
        (BOUNDS[0], step("clip", 0, -1, 5)),
        (*BOUNDS, step("clip", 0, 6, 5)),
        (*BOUNDS, step("clip", 5, 0, 6)),
        (step("relu", V),),
        (step("relu", 0), step("relu", V)),
    ],
)
def test_no_links(steps: tuple[Instruction, ...]) -> None:
    assert formed(*steps) is None


def test_vectors_that_others_compute_or_of_integers_are_none() -> None:
    for steps in ((step("add", 0, V),), (step("mul", 0, V),)):
        assert formed(*steps) is not None
        assert formed(*steps, role=Role.INPUT) is None
        assert formed(*steps, dtype=I32) is None


def test_the_convolutions_own_bias_stands_ahead_of_all() -> None:
    own = formed(body=BIASED)
    assert own is not None
    assert own.bias == ChannelVector(2, 0, 1)
    assert formed(step("add", 0, V), body=BIASED) is None
    assert formed(step("mul", 0, V), body=BIASED) is None
    assert formed(step("relu", 0), body=BIASED) is not None


@pytest.mark.parametrize(("out", "stored"), [(F16, True), (F32, False), (I32, False), (DType.BF16, False)])
def test_the_stored_type_is_that_of_the_value(out: DType, stored: bool) -> None:
    assert (formed(out=out) is not None) is stored
    if out.is_float:
        assert formed(step("cast", 0, dtype=out, to=out), out=out) is not None


def test_what_others_compute_may_stand_ahead_of_the_sums() -> None:
    """The chain begins at the anchor's result, not at the first input."""
    (load,), (store,) = BODY.epilogue.inputs, BODY.epilogue.outputs
    inputs = (ProgramInput(0, F16, (400, 1, 80, 16)), load)
    program = PointwiseProgram(OUT, inputs, (step("relu", 1),), (replace(store, value=2),))
    assert fix_form(BODY, program) is not None
    added = replace(program, instructions=(step("add", 0, 1),))
    assert fix_form(BODY, added) is None


def test_one_store_of_channels_side_by_side() -> None:
    (store,) = BODY.epilogue.outputs
    for outputs in ((store, store), (replace(store, strides=(600, 25, 5, 1)),)):
        assert fix_form(BODY, replace(BODY.epilogue, outputs=outputs)) is None
    single = conv_case((1, 16, 5, 5), (1, 16, 1, 1), {}).body
    apart = replace(single.epilogue.outputs[0], strides=(50, 2, 10, 2))
    assert fix_form(single, replace(single.epilogue, outputs=(apart,))) is not None


def test_sums_of_integers_are_stored_as_they_are() -> None:
    body = replace(BODY, anchor_outputs=(TensorType(I32, OUT),))

    def made(*steps: Instruction, out: DType = I32, channel: int = 1) -> FixForm | None:
        store = replace(BODY.epilogue.outputs[0], value=len(steps), strides=(600, channel, 120, 24))
        operands = [*body.operands]
        operands[store.target] = Operand(Role.OUTPUT, TensorType(out, OUT))
        program = PointwiseProgram(OUT, (ProgramInput(-1, I32),), steps, (ProgramOutput(len(steps), *_rest(store)),))
        return fix_form(replace(body, operands=tuple(operands)), program)

    assert made() is not None
    assert made(step("relu", 0, dtype=I32)) is None
    assert made(out=F32) is None
    assert made(channel=2) is None


def _rest(store: ProgramOutput) -> tuple[int, tuple[int, ...], int]:
    return store.target, store.strides, store.offset
