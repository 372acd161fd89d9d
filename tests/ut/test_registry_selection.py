"""The choice of kernels: what is chosen, what excludes, what decides, and that the explanation tells exactly that."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import pytest
from registry_cases import PROBLEMS, TARGETS, cold, cured, many_rows, need, row

from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError, InternalError, UnsupportedError
from superkernel.core.tensor import TensorType
from superkernel.ir.body import (
    AnchorInput,
    Body,
    Instruction,
    Operand,
    PointwiseProgram,
    ProgramInput,
    ProgramOutput,
    Role,
    View,
)
from superkernel.ops.table import op_table
from superkernel.registry.eligibility import clauses_of
from superkernel.registry.explanation import diff
from superkernel.registry.facts import facts_of
from superkernel.registry.predicates import Failure, Reason
from superkernel.registry.records import Capability, Determinism, Estimate, KernelRole, Policy, Requirement
from superkernel.registry.selection import Registry, Selection
from superkernel.scheduler.families import HOST_KERNELS
from superkernel.target.cpu import TIERS

EXPECTED = {
    "matmul(f32[128,384], const f32[384,384])": "host.matmul.packed",
    "matmul(f32[1,384], const f32[384,1536])": "host.matmul.gemv",
    "matmul(f32[2,384], const f32[384,384])": "host.matmul.gemv",
    "matmul(f32[64,128,384], const f32[384,384])": "host.matmul.packed",
    "matmul(const f32[384,384], f32[384])": "host.matmul.gemv",
    "matmul(f32[4,12,128,64], f32[4,12,64,128])": "host.matmul.dynamic",
    "matmul(bf16[128,384], const bf16[384,384])": "host.matmul.packed",
    "matmul(i8[16,64], const i8[64,32])": "host.matmul.bytes",
    "matmul(i8[16,64], i8[64,32])": "host.matmul.generic",
    "matmul_integer(u8[16,64], const i8[64,32], u8[])": "host.matmul.bytes",
    "conv_integer(u8[1,8,9,9], const i8[16,8,3,3], const i32[16], u8[]; layout=channels_last)": "host.conv.bytes",
    "conv_integer(i8[1,8,9,9], const i8[16,8,3,3])": "host.conv.bytes_any",
    "conv_integer(u8[1,8,9,9], const u8[16,8,3,3])": "host.reference",
    "matmul_integer(u8[16,64], const i8[64,32], u8[], i8[])": "host.matmul.generic",
    "conv(f32[1,3,64,64], const f32[16,3,7,7], const f32[16]; strides=(2,2), pads=(3,3,3,3))": "host.conv.igemm",
    "conv(f32[1,32,28,28], const f32[32,1,3,3]; groups=32, pads=(1,1,1,1))": "host.conv.depthwise",
    "conv(f32[1,3,64], const f32[4,3,3])": "host.conv.igemm",
    "conv(f32[1,3,8,8,8], const f32[4,3,3,3,3])": "host.conv.generic",
    "conv(f32[1,3,8,8], f32[4,3,3,3])": "host.conv.generic",
    "conv(f64[1,3,8,8], const f64[4,3,3,3])": "host.conv.generic",
    "conv(bf16[1,3,8,8], const bf16[4,3,3,3])": "host.conv.igemm",
    "max_pool(f32[1,3,4,4,4,4]; kernel=(2,2,2,2))": "host.reference",
    "max_pool(i32[1,3,8,8]; kernel=(2,2))": "host.pool",
    "conv_transpose(f32[1,4,8,8], const f32[4,3,2,2])": "host.conv.transpose",
    "transpose(f32[64,32]; perm=(1,0))": "host.transpose",
    "transpose(f32[4,64,32]; perm=(1,0,2))": "host.pointwise",
    "add(f32[64], f32[64])": "host.pointwise",
    "attention(f32[1,4,16,32], f32[1,2,64,32], f32[1,2,64,32])": "host.attention",
    "attention(f64[1,4,16,32], f64[1,2,64,32], f64[1,2,64,32])": "host.reference",
    "gemm(f32[4,8], f32[8,4])": "host.reference",
}


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("text", EXPECTED)
def test_choice(text: str, tier: str) -> None:
    selection = HOST_KERNELS.registry.select(need(text, tier))
    assert selection.kernel == EXPECTED[text]
    assert selection.row.tier in (tier, None)


def test_operators_with_one_tuned_kernel_are_served_by_it() -> None:
    """The NumPy reference, which serves all, is none."""
    assert HOST_KERNELS.serving("softmax") == "host.softmax"
    assert HOST_KERNELS.serving("gather") == "host.gather"
    for several_or_none in ("matmul", "conv", "gemm"):
        with pytest.raises(InternalError, match="has not one tuned kernel"):
            HOST_KERNELS.serving(several_or_none)


def test_every_operator_has_the_reference_and_no_operator_is_unknown() -> None:
    registry = HOST_KERNELS.registry
    for op in op_table():
        assert [r.id for r in registry.rows_of(op) if r.role is KernelRole.REFERENCE] == ["host.reference"]
    assert set(registry.operators) == {*op_table(), "pointwise"}


@pytest.mark.parametrize("text", PROBLEMS)
@pytest.mark.parametrize("tier", TIERS)
def test_explanation_is_complete_and_a_cure_cures(text: str, tier: str) -> None:
    """All rows are accounted for; changing the facts of the stated clauses, and only those, makes a rejected row
    eligible."""
    requirement = need(text, tier)
    explanation = HOST_KERNELS.registry.select(requirement).explanation
    facts = facts_of(requirement)
    listed = [c.row.id for c in (*explanation.eligible, *explanation.rejected)]
    assert sorted(listed) == [r.id for r in HOST_KERNELS.registry.rows_of(requirement.op)]
    assert explanation.eligible[0].row is explanation.chosen
    for candidate in explanation.eligible:
        assert all(c.holds(facts) for c in clauses_of(candidate.row))
        assert not candidate.failures
    for candidate in explanation.rejected:
        failed = [c for c in clauses_of(candidate.row) if not c.holds(facts)]
        assert failed
        assert {(f.reason, f.field) for f in candidate.failures} == {(c.reason, c.field) for c in failed}
        changed = dict(facts)
        for clause in failed:
            changed = cured(clause, changed)
        assert all(c.holds(changed) for c in clauses_of(candidate.row)), candidate.row.id
        for clause in failed:  # and each single one was needed
            partly = {**changed, clause.field: facts.get(clause.field)}
            assert not all(c.holds(partly) for c in clauses_of(candidate.row)), (candidate.row.id, clause)


def test_scores_are_a_total_order() -> None:
    explanation = cold(many_rows(200)).select(need("matmul(f32[16,64], const f32[64,64])")).explanation
    scores = [c.score for c in explanation.eligible]
    assert len(scores) > 5
    known = [s for s in scores if s is not None]
    assert scores == known == sorted(known)
    assert len(set(scores)) == len(scores)
    assert explanation.decided_by in explanation.score._fields


def test_forbidden_fallback_raises_with_every_failed_clause() -> None:
    requirement = need("attention(f64[1,4,16,32], f64[1,2,64,32], f64[1,2,64,32])", policy=Policy(fallback="forbid"))
    with pytest.raises(UnsupportedError) as caught:
        HOST_KERNELS.registry.select(requirement)
    facts, text = facts_of(requirement), str(caught.value)
    expected = sum(not c.holds(facts) for r in HOST_KERNELS.registry.rows_of("attention") for c in clauses_of(r))
    assert len(caught.value.violations) == expected + 1
    assert "policy.fallback" in text
    assert "found f64" in text
    assert 'fallback="warn"' in text


def test_fallbacks_are_never_silent() -> None:
    text = "attention(f64[1,4,16,32], f64[1,2,64,32], f64[1,2,64,32])"
    registry = HOST_KERNELS.registry
    loud, quiet = registry.select(need(text)), registry.select(need(text, policy=Policy(fallback="allow")))
    assert loud.warning is not None
    assert "in0.dtype must be bf16 | f16 | f32, is f64" in loud.warning
    assert quiet.warning is None
    assert quiet.fallback is not None
    assert quiet.fallback.kind == "reference"
    assert quiet.explanation.transfer_bytes == 8 * (4 * 16 * 32 * 2 + 2 * 64 * 32 * 2)
    generic = registry.select(need("matmul(i8[16,64], i8[64,32])"))
    assert generic.fallback is not None
    assert generic.fallback.kind == "generic"
    assert generic.fallback.reason.startswith("no tuned kernel: host.matmul.")
    assert generic.warning is None
    assert registry.select(need("softmax(f32[8,128]; axis=-1)")).fallback is None


MATMUL = "matmul(f32[128,384], const f32[384,384])"


def test_deny_allow_and_pin_patterns() -> None:
    registry = HOST_KERNELS.registry
    assert registry.select(need(MATMUL, policy=Policy(deny=("host.matmul.packed",)))).kernel == "host.matmul.dynamic"
    denied = registry.select(need(MATMUL, policy=Policy(deny=("sk_f32_gemm_*",))))
    failures = {c.row.id: c.failures for c in denied.explanation.rejected}
    assert [f.reason for f in failures["host.matmul.packed/f32/avx512"]] == [Reason.DENIED]
    allowed = registry.select(need(MATMUL, policy=Policy(allow=("host.matmul.generic", "host.reference"))))
    assert allowed.kernel == "host.matmul.generic"
    assert {f.reason for f in dict(_rejected(allowed))["host.matmul.packed/f32/avx512"]} == {Reason.ALLOWED}
    pinned = registry.select(need(MATMUL, policy=Policy(pin=("host.matmul.gen*",))))
    assert pinned.kernel == "host.matmul.generic"
    assert pinned.explanation.decided_by == "pinned"
    not_eligible = registry.select(need(MATMUL, policy=Policy(pin=("host.matmul.packed/*/avx2",))))
    assert not_eligible.kernel == "host.matmul.packed"
    with pytest.raises(UnsupportedError, match=r"policy\.deny"):
        registry.select(need(MATMUL, policy=Policy(deny=("*",))))


def _rejected(selection: Selection) -> list[tuple[str, tuple[Failure, ...]]]:
    return [(c.row.id, c.failures) for c in selection.explanation.rejected]


def test_policy_limits_exclude_with_their_reason() -> None:
    rows = [row("host.matmul.dynamic/f32/avx512"), row("host.reference")]
    sloppy = replace(rows[0], id="test.sloppy", determinism=Determinism.RUN_TO_RUN)
    registry = cold([*rows, sloppy])
    cases = {
        Reason.WORKSPACE: Policy(max_workspace_bytes=100),
        Reason.TOLERANCE: Policy(tolerance=1e-6),
        Reason.DETERMINISM: Policy(determinism=Determinism.BITWISE),
    }
    for reason, policy in cases.items():
        requirement = need(MATMUL, policy=replace(policy, allow=("test.sloppy",)))
        with pytest.raises(UnsupportedError) as caught:
            registry.select(requirement)
        assert any(reason.value in v.message for v in caught.value.violations), reason


def test_platform_excludes_by_device_core_type_and_features() -> None:
    vector = replace(
        row("host.pointwise/avx512"), id="test.vector", device="npu", core_type="aiv", features=frozenset({"zvfh"})
    )
    selection = Registry([vector, row("host.reference")]).select(need("add(f32[4], f32[4])"))
    reasons = {f.reason for f in selection.explanation.rejected[0].failures}
    assert reasons == {Reason.DEVICE, Reason.CORE_TYPE, Reason.CPU_FEATURE}


TAKEN = {
    "test.fast": Estimate(100.0, {"packed": 4000}),
    "test.small": Estimate(800.0, {"packed": 4000}),
    "test.lean": Estimate(800.0, {"packed": 10}),
    "test.slower": Estimate(105.0, {"packed": 4000}),
    "test.reduced": Estimate(95.0),
}


def taken(kernel: str, problem: Requirement) -> Estimate | None:
    return TAKEN[kernel]


def made(kernel: str, **changes: Any) -> Capability:
    return replace(row("host.matmul.packed/f32/avx512"), id=kernel, kernel=kernel, **changes)


def test_objectives_weigh_size_and_memory_before_time() -> None:
    rows = [made("test.fast", code_bytes=9000), made("test.small", code_bytes=100), made("test.lean", code_bytes=5000)]
    registry = Registry(rows, taken)
    chosen = {o: registry.select(need(MATMUL, policy=Policy(objective=o))) for o in ("latency", "size", "memory")}
    assert {o: s.row.id for o, s in chosen.items()} == {
        "latency": "test.fast",
        "size": "test.small",
        "memory": "test.lean",
    }
    assert [s.explanation.decided_by for s in chosen.values()] == ["time_ns", "code_bytes", "workspace_bytes"]


def test_features_only_break_ties() -> None:
    more = frozenset({"avx512f", "avx512vl"})
    plain = made("test.fast", features=frozenset({"avx512f"}))
    assert Registry([plain, made("test.slower", features=more)], taken).select(need(MATMUL)).row is plain
    tie = Registry([plain, replace(plain, id="test.richer", features=more)], taken).select(need(MATMUL))
    assert (tie.row.id, tie.explanation.decided_by) == ("test.richer", "feature_rank")


def test_estimates_that_are_level_leave_it_to_the_error_and_to_what_joins() -> None:
    exact = made("test.fast")
    rough, narrow = made("test.reduced", error_ulps=2.0**16), made("test.reduced", layouts=frozenset({"dense"}))
    for other, decided in ((rough, "error_ulps"), (narrow, "joins")):
        found = Registry([exact, other], taken).select(need(MATMUL))
        assert (found.row, found.explanation.decided_by) == (exact, decided), "a twentieth is no difference"
        slow = Registry([replace(exact, kernel="test.small"), other], taken).select(need(MATMUL))
        assert (slow.row, slow.explanation.decided_by) == (other, "time_ns")


def test_registration_order_does_not_matter() -> None:
    rows, requirement = many_rows(60), need("matmul(f32[16,64], const f32[64,64])")
    first, turned = cold(rows), cold(rows[::-1])
    assert first.digest == turned.digest
    assert first.select(requirement).row.id == turned.select(requirement).row.id


def test_bad_rows_are_refused_with_every_fault() -> None:
    good = row("host.lrn/f32/avx2")
    with pytest.raises(InputError) as caught:
        Registry([good, good, replace(good, id="x", ops=())])
    assert len(caught.value.violations) == 2


def test_bad_policies_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        Policy(objective="speed", fallback="never", max_workspace_bytes=-1, deny="host.*")  # type: ignore[arg-type]
    assert len(caught.value.violations) == 4


def test_explanation_prints_and_diffs() -> None:
    registry = HOST_KERNELS.registry
    one, few = (registry.select(need(f"matmul(f32[{m},384], const f32[384,384])")).explanation for m in (1, 64))
    data = json.loads(json.dumps(one.to_json(cached=False)))
    assert data["chosen"]["kernel"] == "host.matmul.gemv"
    assert data["transforms"] == [{"kind": "pack", "slot": 1, "amortised": True, "bytes": 384 * 384 * 4}]
    assert data["workspace_bytes"]["packed"] == 384 * 384 * 4
    assert len(data["eligible"]) + len(data["rejected"]) == len(registry.rows_of("matmul"))
    assert "runner-up  host.matmul.packed/f32/avx512: specificity" in one.text, "one family, one time"
    assert "shape: m must be 1..6, is 64" in few.text
    away = sum(any(f.reason in (Reason.DTYPE, Reason.CPU_FEATURE) for f in c.failures) for c in few.rejected)
    assert f"rejected   {away} rows for other dtypes or machines" in few.text
    assert "/f64/" not in few.text
    changes = {c.what: (c.before, c.after) for c in diff(one, few)}
    assert changes["fact m"] == ("1", "64")
    assert changes["chosen"] == ("host.matmul.gemv/f32/avx512", "host.matmul.packed/f32/avx512")
    assert changes["candidate host.matmul.gemv/f32/avx512"] == ("eligible", "rejected: shape m")
    assert diff(one, one) == ()


def test_keys_are_canonical() -> None:
    first, same = need(MATMUL), need("matmul( f32[128,384],const  f32[384,384] ; trans_a=false)")
    assert first == same
    assert first.key == same.key
    assert first.problem() == need(MATMUL, "avx2").problem()
    others = [need(MATMUL, "avx2"), need(MATMUL, policy=Policy(fallback="allow")), need(MATMUL.replace("const ", ""))]
    assert len({r.key for r in [first, *others]}) == 4


def test_ill_formed_problems_are_refused() -> None:
    for text in ("matmul", "matmull(f32[2])", "add(f32[2], g32[2])", "add(f32[2])", "add(f32[2], f32[3])"):
        with pytest.raises(InputError):
            need(text)
    with pytest.raises(InputError):
        need("softmax(f32[2,3]; axis)")


def _matmul_body(fused: bool) -> Body:
    """x[64,32] times constant w[32,48]; fused: x is a transposed view passed through exp, the result is clipped and
    added to."""
    x, w, y = (TensorType(DType.F32, shape) for shape in ((64, 32), (32, 48), (64, 48)))
    operands = [Operand(Role.INPUT, x), Operand(Role.CONSTANT, w), Operand(Role.OUTPUT, y)]
    first: AnchorInput = View(0, x.shape, x.strides)
    store = (ProgramOutput(0, 2, y.strides),)
    epilogue = PointwiseProgram(y.shape, (ProgramInput(-1, DType.F32),), (), store)
    if fused:
        load = (ProgramInput(0, DType.F32, (1, 64)),)
        first = PointwiseProgram(x.shape, load, (Instruction("exp", (0,), DType.F32),), (ProgramOutput(1, -1),))
        relu = (Instruction("relu", (0,), DType.F32),)
        epilogue = PointwiseProgram(y.shape, epilogue.inputs, relu, (ProgramOutput(1, 2, y.strides),))
    slots = (first, View(1, w.shape, w.strides))
    attrs = (("trans_a", False), ("trans_b", False))
    return Body("matmul", attrs, tuple(operands), slots, (x, w), (y,), epilogue)


def test_bodies_are_understood_and_remembered() -> None:
    registry, target, policy = cold(), TARGETS["avx512"], Policy()
    plain, fused = _matmul_body(False), _matmul_body(True)
    alone = registry.select_body(plain, target, policy)
    assert alone.requirement == need("matmul(f32[64,32], const f32[32,48])")
    joined = registry.select_body(fused, target, policy)
    assert joined.kernel == alone.kernel == "host.matmul.packed"
    assert joined.requirement.program == {"exp", "relu"}
    assert [n.source if n else None for n in joined.requirement.inputs] == ["program", "dense"]
    assert (alone.cached, joined.cached) == (False, False)
    again = registry.select_body(fused, target, policy)
    assert again.cached
    assert again.explanation is joined.explanation
    assert registry.select_body(_matmul_body(True), target, policy).cached  # an equal body, by its requirement
    assert not registry.select_body(fused, TARGETS["avx2"], policy).cached
    assert not registry.select_body(fused, target, Policy(fallback="allow")).cached


def test_a_turned_copy_is_a_transposition() -> None:
    x = TensorType(DType.F32, (33, 48))
    turned = (Operand(Role.INPUT, x), Operand(Role.OUTPUT, TensorType(DType.F32, (48, 33))))
    load = ProgramInput(0, DType.F32, (1, 48))
    copy = PointwiseProgram((48, 33), (load,), (), (ProgramOutput(0, 1, (33, 1)),))
    work = replace(
        copy, instructions=(Instruction("neg", (0,), DType.F32),), outputs=(replace(copy.outputs[0], value=1),)
    )
    kernels = []
    for program in (copy, work, replace(copy, inputs=(replace(load, strides=(33, 1)),))):
        body = Body(None, (), turned, (), (), (), program)
        kernels.append(cold().select_body(body, TARGETS["avx512"], Policy()).kernel)
    assert kernels == ["host.transpose", "host.pointwise", "host.pointwise"]


def many_requirements() -> tuple[Registry, Requirement, list[Requirement]]:
    """A registry of 501 rows that has selected the first of them, and the others."""
    registry = cold(many_rows(500))
    texts = [f"matmul(f32[{m},384], const f32[384,{n}])" for m in (3, 17, 128) for n in range(64, 640, 64)]
    first, *others = [need(t) for t in texts]
    registry.select(first)
    assert len(registry.rows_of("matmul")) == 501
    return registry, first, others


def bytecodes(work: Callable[[], object]) -> int:
    """How many bytecodes of Python `work` executes."""
    executed = 0

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        nonlocal executed
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        executed += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return executed


def test_selection_does_little_and_is_cached() -> None:
    """Cold and warm; counted, because the time also says what else the machine does."""
    registry, first, others = many_requirements()
    for requirement in others:
        assert bytecodes(partial(registry.select, requirement)) < 40_000
    assert bytecodes(partial(registry.select, first)) < 50
    assert registry.select(first).cached


@pytest.mark.serial
def test_selection_is_quick() -> None:
    """Cold and warm, with room for a busy machine: the figures to reach are 200 us and 1 us."""
    cold_ns, warm_ns = [], []
    for _ in range(3):
        registry, first, others = many_requirements()
        for requirement in others:
            start = time.thread_time_ns()
            selection = registry.select(requirement)
            cold_ns.append(time.thread_time_ns() - start)
            assert not selection.cached
            assert len(selection.explanation.eligible) + len(selection.explanation.rejected) == 501
        start = time.thread_time_ns()
        for _ in range(1000):
            registry.select(first)
        warm_ns.append((time.thread_time_ns() - start) / 1000)
    assert min(cold_ns) < 400_000
    assert min(warm_ns) < 2_000
