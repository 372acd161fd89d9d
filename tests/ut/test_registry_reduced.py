"""Rows of reduced precision: eligible only where the policy allows it, faster only where they are, what they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from anchor_bodies import AnchorCase, anchor_case
from registry_cases import TRIPLE

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.formats import REDUCED
from superkernel.ir.body import Body
from superkernel.machine import machine_profile
from superkernel.ops.opdef import AttrValue
from superkernel.registry.eligibility import clauses_of
from superkernel.registry.facts import facts_of
from superkernel.registry.lint import lint
from superkernel.registry.predicates import Reason
from superkernel.registry.records import Capability, Policy, Requirement
from superkernel.registry.requirement import parse_requirement, requirement_of
from superkernel.registry.selection import UNCUT, Selection
from superkernel.scheduler.families import HOST_KERNELS, family_of
from superkernel.scheduler.families.conv_nhwc import NhwcFamily
from superkernel.scheduler.families.kernel import HostTiling
from superkernel.scheduler.tiling import pack_bytes
from superkernel.target.cpu import AVX2, AVX512, TILES, CpuTarget, cpu_target
from superkernel.target.microcontroller import microcontroller_target, typical_profile

ROWS = [row for row in HOST_KERNELS.registry.rows if any(c.reason is Reason.PRECISION for c in row.limits)]
NATIVE = ("avx512bf16", "avx512vnni")
AMX = (*NATIVE, *TILES)


def target_of(row: Capability) -> CpuTarget:
    """A CPU with the row's features, and no others of the narrow formats."""
    assert row.tier is not None
    names = {*NATIVE, *TILES} if row.features & {*TILES} else row.features.intersection(NATIVE)
    if "dotprod" in row.features:
        return cpu_target("aarch64-unknown-linux-gnu", row.tier, ("dotprod",))
    if "mve" in row.features:
        return microcontroller_target(typical_profile("cortex-m55"))
    found = cpu_target(TRIPLE, row.tier, {*AVX2, *AVX512, *names})
    return replace(found, l1_bytes=32 << 10, l2_bytes=1 << 20, l3_bytes=32 << 20)


def precision_of(row: Capability) -> str:
    (clause,) = [c for c in row.limits if c.reason is Reason.PRECISION]
    return next(p for p in REDUCED if clause.test.holds(p, {}))


def case_of(row: Capability, rows: int, depth: int, columns: int) -> AnchorCase:
    f32 = DType.F32
    if "attention" in row.ops:
        keys, values = ((1, 2, columns, depth), f32), ((1, 2, columns, depth + 3), f32)
        return anchor_case("attention", {}, [((1, 2, rows, depth), f32), keys, values])
    if "conv" in row.ops:
        window = 3 if "winograd" in row.kernel else 1
        slots = [((1, depth, window, rows), f32), ((columns, depth, window, window), f32)]
        return anchor_case("conv", {}, slots, constants=[1], layouts={0: (0, 2, 3, 1)})
    if "block_matmul" in row.ops:
        codes, scales = ((columns, -(-depth // 2)), DType.U8), ((columns, -(-depth // 16)), f32)
        how: dict[str, AttrValue] = {"bits": 4, "block": 16}
        return anchor_case("block_matmul", how, [((rows, depth), f32), codes, scales], constants=[1, 2])
    return anchor_case("matmul", {}, [((rows, depth), f32), ((depth, columns), f32)], constants=[1])


def turned(body: Body) -> Body:
    """The body with its results channels last, as convolutions of such images have them."""
    if body.op != "conv":
        return body
    _, channels, _, _ = body.epilogue.shape
    (output,) = body.epilogue.outputs
    strides = (body.epilogue.shape[3] * channels, 1, body.epilogue.shape[3] * channels, channels)
    return replace(body, epilogue=replace(body.epilogue, outputs=(replace(output, strides=strides),)))


def failures(row: Capability, body: Body, precision: str) -> list[str]:
    facts = facts_of(requirement_of(body, target_of(row), Policy(precision=precision)))
    return [str(c) for c in clauses_of(row) if not c.holds(facts)]


def rows_for(row: Capability) -> int:
    return 3 if "gemv" in row.kernel else 60


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.id)
def test_a_row_is_eligible_under_its_precision_only(row: Capability) -> None:
    body = turned(case_of(row, rows_for(row), 37, 45).body)
    for precision in ("f32", *REDUCED):
        assert bool(failures(row, body, precision)) == (precision != precision_of(row)), precision


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.id)
@pytest.mark.parametrize(("depth", "columns"), [(37, 45), (1030, 300), (5, 500)])
def test_estimates_say_what_is_packed(row: Capability, depth: int, columns: int) -> None:
    case, target = case_of(row, rows_for(row), depth, columns), target_of(row)
    body = turned(case.body)
    estimate = HOST_KERNELS[row.kernel].estimate(body, target)
    assert estimate is not None
    tiling = family_of(row.kernel).tilings(row.kernel, body, target)[0]
    packed = sum(pack_bytes(p, case.arrays[k]).nbytes for k, p in tiling.packs(body).items())  # type: ignore[arg-type, misc]
    assert estimate.workspace.get("packed", 0) == sum(estimate.packed.values()) == packed
    assert estimate.workspace["scratch"] == tiling.scratch_bytes


def test_names_agree_with_fields() -> None:
    assert lint(HOST_KERNELS.registry.rows) == []


@pytest.mark.parametrize(
    ("rows", "features", "precision", "kernel"),
    [
        (128, NATIVE, "bf16", "host.matmul.bf16"),
        (128, NATIVE, "int8", "host.matmul.int8"),
        (128, NATIVE, "tf32-like", "host.matmul.packed"),
        (128, NATIVE, "f32", "host.matmul.packed"),
        (128, AMX, "bf16", "host.matmul.bf16_tiles"),
        (128, AMX, "int8", "host.matmul.int8_tiles"),
        (128, AMX, "f32", "host.matmul.packed"),
        (1, AMX, "bf16", "host.matmul.gemv_bf16"),
        (1, NATIVE, "bf16", "host.matmul.gemv_bf16"),
        (1, NATIVE, "int8", "host.matmul.gemv_int8"),
        (128, (), "bf16", "host.matmul.packed"),
        (128, (), "int8", "host.matmul.packed"),
        (1, (), "bf16", "host.matmul.gemv_bf16"),
        (1, (), "int8", "host.matmul.gemv_int8"),
    ],
)
def test_what_gains_is_chosen(rows: int, features: tuple[str, ...], precision: str, kernel: str) -> None:
    """Of weights of 64 MB, which come from memory."""
    target = cpu_target(TRIPLE, "avx512", {*AVX2, *AVX512, *features}, machine_profile())
    assert HOST_KERNELS.registry.select(problem_of(rows, target, precision)).kernel == kernel


@pytest.mark.parametrize(
    ("window", "attrs", "features", "kernel"),
    [
        (3, {}, NATIVE, "host.conv.winograd2_bf16"),
        (3, {"strides": (2, 2)}, NATIVE, "host.conv.nhwc_bf16"),
        (5, {}, NATIVE, "host.conv.nhwc_bf16"),
        (1, {"strides": (2, 2)}, NATIVE, "host.conv.nhwc_bf16"),
        (1, {}, AMX, "host.conv.nhwc_bf16_tiles"),
        (5, {}, AMX, "host.conv.nhwc_bf16_tiles"),
        (3, {"strides": (2, 2)}, AMX, "host.conv.nhwc_bf16_tiles"),
        (3, {"groups": 64}, NATIVE, "host.conv.depthwise_nhwc"),
        (3, {}, (), "host.conv.winograd4"),
        (5, {}, (), "host.conv.nhwc"),
    ],
    ids=str,
)
def test_convolutions_take_what_gains(
    window: int, attrs: dict[str, AttrValue], features: tuple[str, ...], kernel: str
) -> None:
    """Where less is allowed, the f32 kernel is taken all the same where it is faster."""
    assert convolution("bf16", window, attrs, features).kernel == kernel


@pytest.mark.parametrize(
    ("window", "attrs", "features", "kernel"),
    [
        (3, {}, NATIVE, "host.conv.nhwc_int8"),
        (3, {"strides": (2, 2)}, NATIVE, "host.conv.nhwc_int8"),
        (3, {"groups": 4}, NATIVE, "host.conv.nhwc_int8"),
        (1, {"strides": (2, 2)}, NATIVE, "host.conv.nhwc_int8"),
        (1, {}, AMX, "host.conv.nhwc_int8_tiles"),
        (5, {}, AMX, "host.conv.nhwc_int8_tiles"),
        (3, {"strides": (2, 2)}, AMX, "host.conv.nhwc_int8_tiles"),
        (3, {"groups": 64}, NATIVE, "host.conv.depthwise_nhwc"),
        (3, {}, (), "host.conv.winograd4"),
        (5, {}, (), "host.conv.nhwc"),
    ],
    ids=str,
)
def test_convolutions_in_int8_take_what_gains(
    window: int, attrs: dict[str, AttrValue], features: tuple[str, ...], kernel: str
) -> None:
    assert convolution("int8", window, attrs, features).kernel == kernel


def convolution(
    precision: str, window: int, attrs: dict[str, AttrValue], features: tuple[str, ...], channels: int = 64
) -> Selection:
    """What 64 filters over 28 x 28 pixels are computed by."""
    pads, groups = {"pads": (window // 2,) * 4}, int(str(attrs.get("groups", 1)))
    slots = [((1, channels, 28, 28), DType.F32), ((64, channels // groups, window, window), DType.F32)]
    case = anchor_case("conv", {**pads, **attrs}, slots, constants=[1], layouts={0: (0, 2, 3, 1)})
    target = cpu_target(TRIPLE, "avx512", {*AVX2, *AVX512, *features}, machine_profile())
    problem = requirement_of(turned(case.body), target, Policy(precision=precision))
    return HOST_KERNELS.registry.select(problem)


def test_a_kernel_that_cannot_cut_a_problem_is_rejected_and_the_others_have_their_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = NhwcFamily.tilings

    def tilings(self: NhwcFamily, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostTiling]:
        if kernel == "host.conv.nhwc_bf16_tiles":
            raise UnsupportedError("no cut", expected="another problem")
        return whole(self, kernel, body, target)

    monkeypatch.setattr(NhwcFamily, "tilings", tilings)
    selection = convolution("bf16", 3, {}, AMX, channels=3)
    found = selection.explanation
    assert selection.kernel == "host.conv.nhwc_bf16"
    assert 0 < found.score.time_ns < min(c.score.time_ns for c in found.eligible if c.row.kernel == "host.conv.nhwc")
    (tiles,) = [c for c in found.rejected if c.row.kernel == "host.conv.nhwc_bf16_tiles"]
    assert tiles.failures == (UNCUT,)
    assert len(found.eligible) + len(found.rejected) == len(HOST_KERNELS.registry.rows_of("conv"))
    assert convolution("bf16", 3, {}, NATIVE, channels=3).kernel == selection.kernel


def test_three_channels_go_through_tiles() -> None:
    """Where a run would end within a word, the patch has one more channel."""
    assert convolution("bf16", 7, {}, AMX, channels=3).kernel == "host.conv.nhwc_bf16_tiles"


def problem_of(rows: int, target: CpuTarget, precision: str) -> Requirement:
    return parse_requirement(f"matmul(f32[{rows},4096], const f32[4096,4096])", target, Policy(precision=precision))


@pytest.mark.parametrize(
    ("features", "precision", "x_bits", "kernel"),
    [
        (NATIVE, "f32", 0, "host.block_matmul.gemv"),
        (NATIVE, "bf16", 0, "host.block_matmul.gemv"),
        (NATIVE, "int8", 0, "host.block_matmul.int8"),
        (NATIVE, "auto", 0, "host.block_matmul.gemv"),
        (NATIVE, "auto", 8, "host.block_matmul.int8"),
        (NATIVE, "f32", 8, "host.block_matmul.gemv"),
        ((), "int8", 0, "host.block_matmul.gemv"),
    ],
)
def test_weights_in_blocks_meet_whole_numbers_where_that_gains(
    features: tuple[str, ...], precision: str, x_bits: int, kernel: str
) -> None:
    target = cpu_target(TRIPLE, "avx512", {*AVX2, *AVX512, *features}, machine_profile())
    text = "block_matmul(f32[1,4096], const u8[4096,2048], const f16[4096,128]; bits=4, block=32, zero=8, x_bits={})"
    problem = parse_requirement(text.format(x_bits), target, Policy(precision=precision))
    assert HOST_KERNELS.registry.select(problem).kernel == kernel


def test_a_reason_names_the_precision() -> None:
    problem = problem_of(128, cpu_target(TRIPLE, "avx512", {*AVX2, *AVX512, *NATIVE}), "f32")
    text = str([c.failures for c in HOST_KERNELS.registry.select(problem).explanation.rejected])
    assert "policy.precision" in text
