"""The accelerator's rows: names, ids and operators; what is chosen for whom, and why not."""

from __future__ import annotations

from typing import Any

import pytest
from grouped_on import grouped_on
from registry_cases import TARGETS, cured

from superkernel.backends import backend_of
from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import Instruction, PointwiseProgram, ProgramInput, ProgramOutput
from superkernel.ir.graph import Graph
from superkernel.ops.opdef import AttrValue, _Required
from superkernel.ops.table import op_table, traits_of
from superkernel.registry.commands import kernels_list
from superkernel.registry.eligibility import clauses_of
from superkernel.registry.facts import facts_of
from superkernel.registry.lint import lint
from superkernel.registry.manifest import dump
from superkernel.registry.predicates import Reason
from superkernel.registry.records import Policy, Requirement
from superkernel.registry.requirement import parse_requirement
from superkernel.registry.selection import Selection
from superkernel.registry.vector_ops import STEPS, VECTOR_OPS
from superkernel.scheduler.families import HOST_KERNELS
from superkernel.scheduler.families.aicore import AICORE_KERNELS
from superkernel.scheduler.families.aicore.formulas import lower
from superkernel.target.aicore import AicoreTarget, load_target
from superkernel.target.base import Target, identity_of

A3 = load_target("a3")
REFERENCE, CONTROL = "host.reference", "aicore.scalar"


def chosen(text: str, target: AicoreTarget = A3, policy: Policy | None = None) -> Selection:
    return AICORE_KERNELS.registry.select(parse_requirement(text, target, policy or Policy()))


def problem(text: str) -> Requirement:
    return parse_requirement(text, A3, Policy())


CASES = (
    ("matmul(f16[128,384], const f16[384,384])", "aicore.matmul"),
    ("matmul(f32[128,384], f32[384,384])", "aicore.matmul"),
    ("matmul(bf16[4,8,16], bf16[4,16,8])", "aicore.matmul"),
    ("matmul(i8[128,384], const i8[384,384])", "aicore.matmul.i8"),
    ("matmul_integer(i8[4,8,16], i8[16,8])", "aicore.matmul.i8"),
    ("matmul_integer(i8[128,384], const i8[384,384], i8[])", REFERENCE),
    ("matmul_integer(u8[128,384], const i8[384,384])", REFERENCE),
    ("matmul(f64[8,8], f64[8,8])", REFERENCE),
    ("conv(f16[1,3,9,9], const f16[5,3,3,3]; pads=(1,1,1,1))", "aicore.conv"),
    ("conv(f16[1,8,9,9], const f16[8,1,3,3]; groups=8)", "aicore.conv"),
    ("conv(f32[1,8,30], const f32[4,8,3])", "aicore.conv"),
    ("conv(f16[1,8,5,5,5], const f16[4,8,3,3,3])", REFERENCE),
    ("conv(f16[1,3,9,9], f16[5,3,3,3])", REFERENCE),
    ("conv(f16[1,3,9,9], const f16[5,3,3,3], const f16[5])", "aicore.conv"),
    ("conv(f16[1,3,9,9], const f16[5,3,3,3], f16[5])", REFERENCE),
    ("conv_integer(i8[1,3,9,9], const i8[5,3,3,3]; pads=(1,1,1,1), padding=-3)", "aicore.conv.i8"),
    ("conv_integer(u8[1,3,9,9], const i8[5,3,3,3])", REFERENCE),
    ("conv_integer(i8[1,3,9,9], const i8[5,3,3,3], _, i8[])", REFERENCE),
    ("conv_integer(i8[1,3,9,9], const i8[5,3,3,3], const i32[5])", REFERENCE),
    ("conv_transpose(f32[1,4,8,8], const f32[4,3,2,2]; strides=(2,2))", REFERENCE),
    ("attention(f16[1,4,16,32], f16[1,2,64,32], f16[1,2,64,32])", "aicore.attention"),
    ("attention(bf16[1,4,16,32], bf16[1,2,64,32], bf16[1,2,64,32])", "aicore.attention"),
    ("attention(f64[1,4,16,32], f64[1,2,64,32], f64[1,2,64,32])", REFERENCE),
    ("rope(f16[1,2,4,8], f16[16,4], f16[16,4], i64[1])", "aicore.rope"),
    ("rope(bf16[1,2,4,8], bf16[16,4], bf16[16,4], i64[1])", "aicore.rope"),
    ("softmax(f16[8,128]; axis=-1)", "aicore.softmax"),
    ("layer_norm(f16[8,384], const f16[384], const f16[384]; axis=-1)", "aicore.norm"),
    ("reduce_mean(f16[8,128]; axes=(1,))", "aicore.reduce"),
    ("softmax(bf16[8,128]; axis=-1)", "aicore.softmax"),
    ("reduce_prod(f16[8,128]; axes=(1,))", "aicore.reduce"),
    ("reduce_prod(f64[16,128]; axes=(1,))", REFERENCE),
    ("reduce_sum(i32[8,128]; axes=(1,))", "aicore.reduce"),
    ("reduce_sum(i8[8,128]; axes=(1,))", CONTROL),
    ("reduce_max(i8[8,128]; axes=(1,))", "aicore.reduce"),
    ("reduce_mean(i32[8,128]; axes=(1,))", CONTROL),
    ("reduce_sum(i64[33,128]; axes=(1,))", REFERENCE),
    ("argmax(f32[8,128]; axis=1)", CONTROL),
    ("argmax(f32[8,200]; axis=1)", REFERENCE),
    ("cumsum(i64[1,128]; axis=1)", CONTROL),
    ("topk(f32[4,100]; k=3)", CONTROL),
    ("max_pool(f16[1,8,16,16]; kernel=(2,2), strides=(2,2))", "aicore.pool"),
    ("global_avg_pool(f16[1,8,16,16])", "aicore.pool"),
    ("lp_pool(f16[1,8,16,16]; kernel=(2,2), strides=(2,2))", "aicore.pool"),
    ("max_pool(bf16[1,8,6,6,6]; kernel=(2,2,2))", "aicore.pool"),
    ("max_pool(i8[1,8,16,16]; kernel=(2,2))", "aicore.pool"),
    ("avg_pool(i8[1,8,16,16]; kernel=(2,2))", REFERENCE),
    ("gather(f16[100,16], i64[7]; axis=0)", "aicore.gather"),
    ("concat(i64[2,3], i64[2,5]; axis=1)", "aicore.movement"),
    ("add(f16[64], f16[64])", "aicore.pointwise"),
    ("add(i64[64], i64[64])", CONTROL),
    ("add(i64[4096], i64[1])", CONTROL),
    ("add(i64[4097], i64[1])", REFERENCE),
    ("add(f64[1025], f64[1])", REFERENCE),
    ("pow(f16[64], const f16[])", "aicore.pointwise"),
    ("pow(f16[64], f16[64])", CONTROL),
    ("cast(i64[64]; dtype=f16)", "aicore.pointwise"),
    ("cast(f16[64]; dtype=i64)", CONTROL),
    ("cast(i64[64]; dtype=i64)", "aicore.pointwise"),
    ("quantize(f16[64], const f32[], const i8[]; dtype=i8)", "aicore.pointwise"),
    ("dequantize(i8[64], const f16[], const i8[])", "aicore.pointwise"),
    ("where(bool[64], i64[64], i64[64])", CONTROL),
    ("where(bool[64], f16[64], f16[64])", "aicore.pointwise"),
    ("less(i32[64], i32[64])", "aicore.pointwise"),
    ("cast(bool[64]; dtype=f16)", "aicore.pointwise"),
    ("shift_left(i32[64], i32[64])", CONTROL),
    ("shift_left(i32[64], const i32[])", "aicore.pointwise"),
    ("shift_right(i64[64], const i64[])", CONTROL),
    ("scatter_elements(i64[8,4], i64[2,4], i64[2,4]; axis=0)", CONTROL),
    ("lrn(f16[1,8,9,9]; size=3)", REFERENCE),
    ("grouped_matmul(f16[32,16], const f16[4,16,32], i64[4], i32[32]; cut=(16,1,2))", "aicore.grouped_matmul"),
    ("grouped_matmul(f16[32,16], const f16[4,16,32], i64[4])", REFERENCE),
    ("nonzero(bool[8,9]; size=72)", "aicore.finding"),
    ("nonzero(bool[90,90]; size=8100)", REFERENCE),
    ("non_max_suppression(f16[1,30,4], f16[1,2,30]; size=60, limit=30)", "aicore.finding"),
    ("tile_groups(i64[8]; rows=64, tile=16)", "aicore.tiling"),
    ("tile_lengths(i32[8]; keys=64)", "aicore.tiling"),
    ("transpose(i64[64,32]; perm=(1,0))", "aicore.pointwise"),
)


@pytest.mark.parametrize(("text", "kernel"), CASES)
@pytest.mark.parametrize("name", ["a2", "a3", "mini"])
def test_what_is_chosen(text: str, kernel: str, name: str) -> None:
    assert chosen(text, load_target(name)).kernel == kernel


def test_names_agree_with_fields() -> None:
    assert lint(AICORE_KERNELS.registry.rows) == []
    broken = [r for r in AICORE_KERNELS.registry.rows if r.id == "aicore.matmul/f16"]
    object.__setattr__(broken[0], "core_type", "aiv")
    try:
        assert any("core type" in v.message for v in lint(broken))
    finally:
        object.__setattr__(broken[0], "core_type", "mix")


def test_rows_and_families_have_the_same_ids() -> None:
    assert {r.kernel for r in AICORE_KERNELS.registry.rows} == set(AICORE_KERNELS.kernels)
    assert REFERENCE in AICORE_KERNELS.kernels


def test_operators_of_rows_exist_and_every_operator_has_a_row() -> None:
    assert set(AICORE_KERNELS.registry.operators) == {"pointwise", *op_table()}
    assert set(op_table()) >= VECTOR_OPS


def test_registries_do_not_mix() -> None:
    assert backend_of(A3).kernels is AICORE_KERNELS
    assert backend_of(TARGETS["avx2"]).kernels is HOST_KERNELS
    text = "add(f32[64], f32[64])"
    with pytest.raises(UnsupportedError, match="device"):
        AICORE_KERNELS.registry.select(parse_requirement(text, TARGETS["avx2"], Policy()))


def test_curing_every_stated_clause_makes_a_row_eligible() -> None:
    for text in [t for t, k in CASES if k == REFERENCE]:
        wanted = problem(text)
        facts = facts_of(wanted)
        for candidate in AICORE_KERNELS.registry.rows_of(wanted.op):
            changed: dict[str, Any] = facts
            for clause in clauses_of(candidate):
                if not clause.holds(changed):
                    changed = cured(clause, changed)
            assert all(clause.holds(changed) for clause in clauses_of(candidate)), (text, candidate.id)


def test_rejections_are_typed() -> None:
    reasons = {f.reason for c in chosen("conv(f16[1,3,9,9], f16[5,3,3,3])").explanation.rejected for f in c.failures}
    assert Reason.CONSTANT in reasons
    wide = chosen("add(i64[64], i64[64])").explanation.rejected
    assert {f.field for c in wide for f in c.failures} == {"program.steps"}


def test_a_fallback_is_refused_by_policy() -> None:
    with pytest.raises(UnsupportedError):
        chosen("mod(i32[8192], i32[8192])", policy=Policy(fallback="forbid"))
    assert chosen("mod(i32[8192], i32[8192])", policy=Policy(fallback="warn")).warning is not None


def test_another_matrix_engine_is_told() -> None:
    wide = A3.replaced({"cube.k_f16": 32})
    reasons = {f.field for c in chosen("matmul(f16[64,64], f16[64,64])", wide).explanation.rejected for f in c.failures}
    assert "aicore.cube_depth" in reasons
    assert identity_of(wide) != identity_of(A3)


def test_time_grows_with_the_problem_and_falls_with_the_rates() -> None:
    def time(text: str, target: AicoreTarget = A3) -> float:
        return chosen(text, target).explanation.score.time_ns

    assert time("matmul(f16[512,512], f16[512,512])") < time("matmul(f16[512,1024], f16[1024,512])")
    assert time("matmul(f16[512,512], f16[512,512])") < time("matmul(f32[512,512], f32[512,512])")
    assert time("gelu(f16[4096])") < time("gelu(f16[65536])")
    slow = A3.replaced({"rates.gm_to_ub_gb_per_s": 10.0})
    assert time("gelu(f16[65536])") < time("gelu(f16[65536])", slow)


def test_a_manifest_is_of_the_accelerator() -> None:
    registry = AICORE_KERNELS.registry
    manifest = dump("m", [chosen("add(f16[64], f16[64])")], registry, 1)
    assert manifest.target == identity_of(A3)
    assert list(manifest.kernels) == ["aicore.pointwise"]


def test_the_chooser_takes_either_target() -> None:
    from superkernel.builder import GraphBuilder

    def kernels(target: Target) -> dict[str, str]:
        kernels = backend_of(target).kernels
        grouping = grouped_on(graph(), target, kernels)
        return {node: sub.kernel for sub in grouping.subops for node in sub.nodes}

    def graph() -> Graph:
        b = GraphBuilder("powers")
        x = b.input("x", (8, 8))
        b.output(b.pow(x, 3.0), name="y")
        b.output(b.pow(x, x), name="z")
        return b.graph()

    assert set(kernels(TARGETS["avx2"]).values()) == {"host.pointwise"}
    assert kernels(A3) == {"y": "aicore.pointwise", "z": CONTROL}, "a known exponent, and a computed one"


def test_the_list_says_core_types() -> None:
    text = kernels_list(AICORE_KERNELS.registry, op="matmul")
    assert "sk_f16_f32acc_gemm_ukernel_16x16c16__aic_aiv" in text
    assert "aicore.softmax" not in text


def program_of_step(op: str, source: DType, result: DType) -> PointwiseProgram:
    """One operator on 64 elements of each input, with the attributes it needs."""
    definition = op_table()[op]
    attrs: dict[str, AttrValue] = {}
    for attr in definition.attrs:
        if not isinstance(attr.default, _Required) and attr.default is not None:
            attrs[attr.name] = attr.default
    if op in ("cast", "quantize"):
        attrs.update(dtype=result, saturate=True)
    dtypes = [source] * sum(not a.optional for a in definition.args)
    if op == "where":
        dtypes[0] = DType.BOOL
    if op in ("quantize", "dequantize"):
        dtypes[1] = DType.F32
    args, instructions = list(range(len(dtypes))), []
    if traits_of(op).constant:
        args[1] = len(dtypes)
        instructions.append(Instruction("constant", (), source, (("value", 3.0 if source.is_float else 3),)))
    instructions.append(Instruction(op, tuple(args), result, tuple(sorted(attrs.items()))))
    last = len(dtypes) + len(instructions) - 1
    inputs = tuple(ProgramInput(k, d, (1,)) for k, d in enumerate(dtypes))
    return PointwiseProgram((64,), inputs, tuple(instructions), (ProgramOutput(last, len(dtypes), (1,)),))


@pytest.mark.parametrize("op", sorted(VECTOR_OPS))
def test_the_code_generator_lowers_what_rows_promise(op: str) -> None:
    for _, source, result in sorted((s for s in STEPS if s[0] == op), key=str):
        code = lower(program_of_step(op, source, result), (result,), -1, 0)
        assert [s.output for s in code.stores] == [0], (op, source, result)


def test_a_step_that_rows_do_not_promise_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="add"):
        lower(program_of_step("add", DType.I64, DType.I64), (DType.I64,), -1, 0)
