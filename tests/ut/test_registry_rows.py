"""Rows keep their promises: names agree with fields, ids lead to kernels, and for every row a problem it is eligible
for compiles, runs, and agrees with the reference."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import soak
from kernel_check import OPTIMISED_ONE_IN, Recorded
from llvmlite import ir
from numpy.typing import NDArray
from registry_cases import TARGETS, row

from superkernel.codegen.host.builder import KernelBuilder
from superkernel.codegen.host.emitters import emitter_of
from superkernel.codegen.host.features import detect_cpu
from superkernel.codegen.host.standalone import StandaloneKernel
from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.core.tensor import TensorType, channels_last_strides
from superkernel.ir.body import Body, Instruction, Operand, PointwiseProgram, ProgramInput, ProgramOutput, Role, View
from superkernel.ops.grouped import GroupTable
from superkernel.ops.table import find_op
from superkernel.registry.eligibility import clauses_of
from superkernel.registry.facts import facts_of
from superkernel.registry.lint import lint
from superkernel.registry.predicates import Reason
from superkernel.registry.records import Capability, KernelRole, Policy, Requirement
from superkernel.registry.requirement import parse_requirement, requirement_of
from superkernel.scheduler.families import HOST_KERNELS, family_of
from superkernel.scheduler.families.matmul_tiling import REGISTER_TILES as MATMUL_TILES
from superkernel.target.cpu import TIERS

ROWS = [
    r
    for r in HOST_KERNELS.registry.rows
    if all(c.reason is not Reason.PRECISION for c in r.limits)
    and not r.features & {"avx512vnni", "avx512bf16", "amx-int8", "amx-bf16", "dotprod", "mve"}
]  # of those test_aarch64_dots.py, test_kernels_bytes.py, test_kernels_pairs.py, test_tiles.py and
# test_registry_reduced.py run cases
KERNELS = sorted({r.kernel for r in ROWS if r.role is not KernelRole.REFERENCE})

# Problems to try on each row, {t} standing for its element type; the first for which the row is eligible is run.
TEMPLATES = (
    "matmul({t}[3,5], const {t}[5,37])",
    "matmul({t}[3,5], {t}[5,7])",
    "conv({t}[1,3,9,9], const {t}[5,3,3,3]; pads=(1,1,1,1))",
    "conv({t}[1,6,9,9], const {t}[6,1,3,3]; groups=6, pads=(1,1,1,1))",
    "conv({t}[1,8,9,9], const {t}[5,8,3,3]; pads=(1,1,1,1), layout=channels_last)",
    "conv({t}[1,6,9,9], const {t}[6,1,3,3]; groups=6, pads=(1,1,1,1), layout=channels_last)",
    "max_pool({t}[1,3,8,8]; kernel=(2,2), strides=(2,2), layout=channels_last)",
    "conv_integer({t}[1,8,9,9], const i8[16,8,3,3], const i32[16], {t}[]; layout=channels_last)",
    "conv_integer({t}[1,8,9,9], const i8[16,8,3,3])",
    "conv({t}[1,2,4,4,4], {t}[3,2,2,2,2])",
    "conv({t}[1,8,4,5,6], const {t}[5,8,3,3,3]; pads=(1,1,1,1,1,1), layout=channels_last)",
    "conv_transpose({t}[1,2,4,4], {t}[2,3,2,2]; strides=(2,2))",
    "concat({t}[2,3], {t}[2,5]; axis=1)",
    "pad({t}[2,3]; pads=(1,0,0,2))",
    "tile({t}[2,3]; repeats=(2,3))",
    "gather({t}[4,5], i64[3]; axis=1)",
    "gather_elements({t}[4,5], i64[2,5]; axis=0)",
    "kv_update({t}[1,2,8,4], {t}[1,2,3,4], i64[])",
    "reduce_sum({t}[4,37]; axes=(1,))",
    "argmax({t}[4,37]; axis=1)",
    "cumsum({t}[4,37]; axis=1)",
    "softmax({t}[4,37]; axis=-1)",
    "layer_norm({t}[4,37], {t}[37], {t}[37]; axis=-1)",
    "lrn({t}[1,5,3,4]; size=3)",
    "max_pool({t}[1,3,8,8]; kernel=(2,2), strides=(2,2))",
    "attention({t}[1,4,3,16], {t}[1,2,9,16], {t}[1,2,9,16])",
    "rope({t}[1,2,3,8], {t}[3,4], {t}[3,4])",
    "grouped_matmul({t}[6,5], const {t}[3,5,7], i64[3], i32[24]; cut=(2,1,1))",
    "tile_groups(i64[3]; rows=6, tile=2)",
    "nonzero({t}[3,37]; size=111)",
    "non_max_suppression({t}[2,9,4], {t}[2,3,9]; size=54, limit=9, iou_threshold=0.3)",
    "block_matmul({t}[9,24], const u8[37,12], const f16[37,3]; bits=4, block=8, zero=8)",
    "block_matmul({t}[2,24], const u8[37,12], const f16[37,3], const f16[37,3]; bits=4, block=8)",
)
TYPES = (DType.F32, DType.F64, DType.F16, DType.BF16, DType.I8, DType.I32)
TOLERANCES = {DType.F64: 1e-11, DType.F32: 2e-5, DType.F16: 4e-3, DType.BF16: 3e-2}


def test_names_agree_with_fields() -> None:
    assert lint(ROWS) == []


@pytest.mark.parametrize(
    "change",
    [
        {"input_dtypes": (frozenset({DType.F16}),)},
        {"tile": (("mr", 13), ("nr", 32))},
        {"tile": ()},
        {"tier": "avx2"},
        {"name": "sk_f32_gemm"},
    ],
)
def test_a_name_that_disagrees_is_reported(change: dict[str, Any]) -> None:
    good = row("host.matmul.packed/f32/avx512")
    assert lint([good]) == []
    assert len(lint([replace(good, **change)])) >= 1
    assert [v.message for v in lint([good, replace(good, id="other")])] == ["two rows share a canonical name"]


def test_tiles_are_those_the_family_prefers() -> None:
    lanes = {"avx512": 16, "avx2": 8, "plain": 4}
    for tier in TIERS:
        rows, vectors = MATMUL_TILES[tier][0]
        assert row(f"host.matmul.packed/f32/{tier}").tile == (("mr", rows), ("nr", vectors * lanes[tier]))


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_tier_has_its_row(kernel: str) -> None:
    assert {r.tier for r in ROWS if r.kernel == kernel} == set(TIERS)


def _is_eligible(candidate: Capability, requirement: Requirement) -> bool:
    facts = facts_of(requirement)
    return requirement.op in candidate.ops and all(c.holds(facts) for c in clauses_of(candidate))


@cache
def _problems(tier: str) -> tuple[Requirement, ...]:
    """All templates in all types that their operator takes."""
    found = []
    for template in TEMPLATES:
        definition = find_op(template.split("(")[0])
        assert definition is not None
        for dtype in TYPES:
            if "{t}" not in template or dtype in definition.args[0].dtypes:
                found.append(parse_requirement(template.format(t=dtype.value), TARGETS[tier], Policy()))
    return tuple(found)


def _body(problem: Requirement) -> Body:
    """The body of a lone operator: dense operands, results stored as they are; images in their layout."""
    slots: list[View | None] = []
    operands: list[Operand] = []
    for slot, need in enumerate(problem.inputs):
        strides = () if need is None else _strides(problem, need.type) if slot == 0 else need.type.strides
        slots.append(None if need is None else View(len(operands), need.type.shape, strides))
        if need is not None:
            operands.append(Operand(Role.CONSTANT if need.constant else Role.INPUT, need.type))
    first = len(operands)
    operands += [Operand(Role.OUTPUT, t) for t in problem.outputs]
    inputs = tuple(ProgramInput(-1 - k, t.dtype) for k, t in enumerate(problem.outputs))
    outputs = tuple(ProgramOutput(k, first + k, _strides(problem, t)) for k, t in enumerate(problem.outputs))
    epilogue = PointwiseProgram(problem.outputs[0].shape, inputs, (), outputs)
    types = tuple(None if n is None else n.type for n in problem.inputs)
    return Body(problem.op, problem.attrs, tuple(operands), tuple(slots), types, problem.outputs, epilogue)


def _strides(problem: Requirement, kind: TensorType) -> tuple[int, ...]:
    return channels_last_strides(kind.shape) if problem.layout == "channels_last" else kind.strides


def _turned(problem: Requirement, array: NDArray[Any]) -> NDArray[Any]:
    """The array's bytes as the image that they are in the problem's layout."""
    if problem.layout == "row_major":
        return array
    images, channels, *space = array.shape
    return np.moveaxis(array.reshape(images, *space, channels), -1, 1)


def _program_body(kernel: str) -> tuple[Body, Any]:
    """A pure program for a kernel of such: a sum, or a transposed copy; with its reference."""
    kind = TensorType(DType.F32, (33, 48))
    store = (ProgramOutput(2, 2, kind.strides),)
    if kernel == "host.pointwise":
        loads = tuple(ProgramInput(k, DType.F32, kind.strides) for k in range(2))
        program = PointwiseProgram(kind.shape, loads, (Instruction("add", (0, 1), DType.F32),), store)
        operands = (Operand(Role.INPUT, kind), Operand(Role.INPUT, kind), Operand(Role.OUTPUT, kind))
        return Body(None, (), operands, (), (), (), program), lambda arrays: arrays[0] + arrays[1]
    turned = TensorType(DType.F32, (48, 33))
    load = ProgramInput(0, DType.F32, (1, 48))
    out = (ProgramOutput(0, 1, turned.strides),)
    program = PointwiseProgram((48, 33), (load,), (), out)
    return Body(
        None, (), (Operand(Role.INPUT, kind), Operand(Role.OUTPUT, turned)), (), (), (), program
    ), lambda a: a[0].T


def _values(rng: np.random.Generator, operand: Operand) -> NDArray[Any]:
    kind = operand.type
    if operand.role is Role.OUTPUT:
        return np.zeros(kind.shape, kind.dtype.numpy)
    if kind.dtype.is_float:
        return np.asarray(rng.uniform(0.25, 1.5, kind.shape)).astype(kind.dtype.numpy)
    return np.asarray(rng.integers(0, 3, kind.shape)).astype(kind.dtype.numpy)


def _run(kernel: str, body: Body, tier: str, arrays: list[NDArray[Any]]) -> None:
    cpu = detect_cpu(tier)
    tiling = family_of(kernel).tilings(kernel, body, cpu)[0]
    level = 2 if soak.chosen(f"{kernel} on {tier}, {tiling}, {body.operands}", OPTIMISED_ONE_IN) else 0
    plain = StandaloneKernel(kernel, body, tiling, cpu, level=level)
    packed = plain.pack(arrays)
    Recorded(kernel, body, tiling, packed, cpu).check([(0, tiling.units)])
    plain.run_packed(packed)


def _compare(got: NDArray[Any], want: Any, dtype: DType) -> None:
    if dtype.is_float:
        bound = TOLERANCES[dtype]
        np.testing.assert_allclose(got.astype(np.float64), np.asarray(want, np.float64), rtol=bound, atol=bound)
    else:
        np.testing.assert_array_equal(got, want)


def test_an_emitter_refuses_a_tiling_of_another_kernel() -> None:
    body, _ = _program_body("host.pointwise")
    cpu = detect_cpu("")
    builder = KernelBuilder(ir.Module(), "kernel", len(body.operands), cpu)
    tiling = family_of("host.pointwise").tilings("host.pointwise", body, cpu)[0]
    with pytest.raises(InternalError, match="wrong tiling"):
        emitter_of("host.softmax")(builder, body, tiling)


@pytest.mark.parametrize("candidate", [r for r in ROWS if r.tier is not None], ids=lambda r: r.id)
def test_a_case_of_every_row_runs(candidate: Capability, rng: np.random.Generator) -> None:
    tier = candidate.tier
    assert tier is not None
    if TIERS.index(tier) < TIERS.index(detect_cpu("").tier):
        pytest.skip(f"this machine has no {tier}")
    assert callable(emitter_of(candidate.kernel))
    if candidate.kernel in ("host.pointwise", "host.transpose"):
        body, reference = _program_body(candidate.kernel)
        assert _is_eligible(candidate, requirement_of(body, TARGETS[tier], Policy()))
        arrays = [_values(rng, o) for o in body.operands]
        _run(candidate.kernel, body, tier, arrays)
        np.testing.assert_array_equal(arrays[-1], reference(arrays))
        return
    problem = next(p for p in _problems(tier) if _is_eligible(candidate, p))
    body = _body(problem)
    assert _is_eligible(candidate, requirement_of(body, TARGETS[tier], Policy()))
    arrays = [_values(rng, o) for o in body.operands]
    if problem.op == "grouped_matmul":  # a table is no random data
        arrays[3] = GroupTable(3, 6, 2, 1, 1).made(arrays[2])
    _run(candidate.kernel, body, tier, arrays)
    definition = find_op(problem.op)
    assert definition is not None
    slots = iter(arrays)
    given = [None if n is None else next(slots) for n in problem.inputs]
    given[0] = None if given[0] is None else _turned(problem, given[0])
    wanted = definition.reference(given, dict(problem.attrs), problem.outputs)
    for got, want, kind in zip(slots, wanted, problem.outputs, strict=True):
        _compare(_turned(problem, got), want, kind.dtype)
