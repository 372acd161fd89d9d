"""Requirements and synthetic rows that the tests of the registry share, and facts that a clause holds of."""

from __future__ import annotations

import random
from copy import copy
from dataclasses import replace
from typing import Any

from superkernel.core.dtypes import DType
from superkernel.registry.eligibility import Fits, Promised, Tolerated, relative_error
from superkernel.registry.manifest import Manifest, dump
from superkernel.registry.predicates import (
    Among,
    Clause,
    FactValue,
    Includes,
    OneOf,
    Reason,
    Within,
    one_of,
    show,
    within,
)
from superkernel.registry.records import Capability, Estimate, KernelRole, Policy, Requirement
from superkernel.registry.requirement import parse_requirement
from superkernel.registry.selection import Registry
from superkernel.registry.vector_ops import STEPS, Computable
from superkernel.scheduler.families import HOST_KERNELS
from superkernel.scheduler.families.aicore.rows import AheadOfLast
from superkernel.scheduler.families.aicore.scalar import Few
from superkernel.target.cpu import AVX2, AVX512, TIERS, CpuTarget, cpu_target

TRIPLE = "x86_64-unknown-linux-gnu"
TARGETS: dict[str, CpuTarget] = {
    tier: replace(cpu_target(TRIPLE, tier, AVX2 + AVX512), l1_bytes=32 << 10, l2_bytes=1 << 20, l3_bytes=32 << 20)
    for tier in TIERS
}

PROBLEMS = (
    "matmul(f32[128,384], const f32[384,384])",
    "matmul(f32[1,384], const f32[384,1536])",
    "matmul(bf16[4,12,128,64], bf16[4,12,64,128])",
    "matmul(i8[16,64], const i8[64,32])",
    "matmul_integer(u8[16,64], const i8[64,32], u8[], i8[])",
    "conv(f32[1,3,64,64], const f32[16,3,7,7], const f32[16]; strides=(2,2), pads=(3,3,3,3))",
    "conv(f32[1,32,28,28], const f32[32,1,3,3]; groups=32, pads=(1,1,1,1))",
    "conv(f64[1,3,8,8,8], f64[4,3,3,3,3])",
    "conv_transpose(f32[1,4,8,8], const f32[4,3,2,2]; strides=(2,2))",
    "softmax(f32[8,128]; axis=-1)",
    "layer_norm(f16[8,384], const f16[384], const f16[384]; axis=-1)",
    "reduce_sum(i32[8,128]; axes=(1,))",
    "argmax(f32[8,128]; axis=1)",
    "cumsum(f32[8,128]; axis=1)",
    "max_pool(f32[1,8,16,16]; kernel=(2,2), strides=(2,2))",
    "attention(f32[1,4,16,32], f32[1,2,64,32], f32[1,2,64,32])",
    "attention(f64[1,4,16,32], f64[1,2,64,32], f64[1,2,64,32])",
    "transpose(f32[64,32]; perm=(1,0))",
    "add(f32[64], f32[64])",
    "gather(f32[100,16], i64[7]; axis=0)",
    "concat(f32[2,3], f32[2,5]; axis=1)",
    "gemm(f32[4,8], f32[8,4])",
)


def need(text: str, tier: str = "avx512", policy: Policy | None = None) -> Requirement:
    """The requirement of one line of text."""
    return parse_requirement(text, TARGETS[tier], policy or Policy())


def row(row_id: str) -> Capability:
    """A row of the default registry."""
    return next(r for r in HOST_KERNELS.registry.rows if r.id == row_id)


def many_rows(count: int, seed: int = 0) -> list[Capability]:
    """`count` matrix kernels that differ in types, tiles, limits and features, as a grown registry would hold them."""
    random_ = random.Random(seed)
    limits: list[Clause] = [one_of(Reason.CONSTANT, "weight.constant", True), within(Reason.SHAPE, "m", 1, 6)]
    limits += [within(Reason.SHAPE, "n", low) for low in (16, 64, 256)]
    limits += [within(Reason.SHAPE, axis, step) for axis in "kn" for step in (4, 16, 64)]
    rows = []
    for i in range(count):
        role = random_.choices([KernelRole.TUNED, KernelRole.GENERIC], [9, 1])[0]
        rows.append(
            Capability(
                id=f"test.gemm.{i:04}",
                kernel="test.gemm",
                ops=("matmul",),
                name=f"sk_f32_gemm_ukernel_{1 + i % 14}x{16 * (1 + i % 4)}__avx2_u{i}",
                role=role,
                input_dtypes=(frozenset({random_.choice([DType.F32, DType.F16, DType.BF16, DType.I8])}),) * 2,
                limits=tuple(random_.sample(limits, random_.randint(0, 4))),
                tier=random_.choice(TIERS),
                features=frozenset(random_.sample(AVX2 + AVX512, random_.randint(0, 3))),
                tile=(("mr", 1 + i % 14), ("nr", 16 * (1 + i % 4))),
                error_ulps=0.0,
                code_bytes=1024 * random_.randint(1, 8),
            )
        )
    return [*rows, row("host.reference")]


def cold(rows: list[Capability] | None = None) -> Registry:
    """A registry that has selected nothing yet. Kernels that are not the host's take 1 us by estimate."""
    return Registry(HOST_KERNELS.registry.rows if rows is None else rows, estimate)


def estimate(kernel: str, problem: Requirement) -> Estimate | None:
    """The host's estimates; 1 us for kernels of tests."""
    known = HOST_KERNELS.registry.estimator
    assert known is not None
    return Estimate(1000.0) if kernel.startswith("test.") else known(kernel, problem)


ABI = 7


def manifest(
    model: str, texts: tuple[str, ...] = PROBLEMS, registry: Registry | None = None, tier: str = "avx512"
) -> Manifest:
    chosen_from = registry or HOST_KERNELS.registry
    return dump(model, [chosen_from.select(need(t, tier)) for t in texts], chosen_from, ABI)


def cured(clause: Clause, facts: dict[str, Any]) -> dict[str, Any]:
    """The facts with the clause's field changed so that it holds: what "fix this, and the kernel is eligible" means."""
    value: FactValue = facts.get(clause.field)
    match clause.test:
        case OneOf(values):
            value = min(values, key=show)
        case Within(low, high):
            value = low if low is not None and (value is None or value < low) else low if high is None else high
        case Includes(members):
            value = frozenset(value or ()) | members
        case Among(members):
            value = frozenset(value) & members
        case Computable():
            value = frozenset(value or ()) & STEPS
        case Promised(level):
            value = level.value
        case Tolerated(row):
            value = relative_error(row, facts.get("out0.dtype"))
        case Fits() as test:
            value = test._needed(facts)
        case Few() as test:
            value = test._limit(facts)
        case AheadOfLast():
            value = 0
    changed = copy(facts)  # which knows its problem
    changed[clause.field] = value
    return changed
