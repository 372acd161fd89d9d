"""aicore.attention: results, declared accesses, independence of the split, the right bottleneck."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from aicore_check import check_aicore
from aicore_timing import engine_busy, recorded
from anchor_bodies import AnchorCase, Slot, anchor_case

import superkernel
from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import View
from superkernel.registry.records import Policy
from superkernel.registry.requirement import body_of, parse_requirement
from superkernel.scheduler.families.aicore import family_of
from superkernel.scheduler.families.aicore.attention import of_rows
from superkernel.scheduler.families.aicore.attention_tiling import (
    AttentionTiling,
    Stack,
    crowds_l2,
    overflows,
    way_cycles,
)
from superkernel.scheduler.families.aicore.base import AicoreKernelType, CoreRole
from superkernel.scheduler.families.attention import attention_form
from superkernel.target.aicore import AicoreTarget, load_target
from superkernel.target.engines import Engine

F32, F16, BF16, BOOL = (DType.of(n) for n in ("f32", "f16", "bf16", "bool"))
KERNEL = "aicore.attention"
TOLERANCE = {F32: 1e-4, F16: 2e-3, BF16: 2e-2}
Sizes = tuple[int, int, int, int, int, int, int]


def slots_of(sizes: Sizes, dtype: DType = F16) -> list[Slot]:
    """q, k and v for (batch, query heads, key heads, queries, keys, depth, value depth)."""
    b, hq, hkv, sq, skv, d, dv = sizes
    return [((b, hq, sq, d), dtype), ((b, hkv, skv, d), dtype), ((b, hkv, skv, dv), dtype)]


def tilings_of(case: AnchorCase, target: AicoreTarget | None = None) -> list[AttentionTiling]:
    found: Any = family_of(KERNEL).tilings(KERNEL, case.body, target or load_target("mini"))
    return list(found)


def check(
    case: AnchorCase, tol: float | None = None, *, target: Any = "mini", every: bool = False, splits: int = 1
) -> AttentionTiling:
    """The best tiling, or every one."""
    limit = TOLERANCE[case.body.anchor_outputs[0].dtype] if tol is None else tol
    device = load_target(target) if isinstance(target, str) else target
    found = tilings_of(case, device)
    for tiling in found if every else found[:1]:
        check_aicore(
            KERNEL, case.body, case.arrays, case.expected, tiling=tiling, tol=limit, target=device, splits=splits
        )
    return found[0]


def small(**values: int) -> AicoreTarget:
    """A target with little local memory, so that quick shapes take several blocks."""
    return load_target("mini").replaced({f"memory.{name}_bytes": value * 1024 for name, value in values.items()})


SHAPES: list[tuple[Sizes, Mapping[str, Any], Stack]] = [
    ((1, 2, 2, 33, 33, 16, 16), {}, Stack.ROWS),
    ((2, 4, 2, 17, 150, 20, 24), {"causal": True}, Stack.PAIR),
    ((1, 2, 2, 80, 64, 16, 16), {"causal": True}, Stack.ROWS),
    ((1, 3, 3, 130, 300, 16, 8), {"causal": True}, Stack.ROWS),
    ((1, 6, 2, 30, 31, 8, 5), {"causal": True, "scale": 0.3}, Stack.ROWS),
    ((1, 8, 2, 1, 300, 64, 64), {}, Stack.HEADS),
    ((2, 8, 8, 1, 200, 64, 64), {"causal": True}, Stack.HEADS),
    ((1, 1, 1, 1, 1, 1, 1), {}, Stack.HEADS),
    ((1, 2, 1, 9, 40, 17, 33), {"softcap": 3.0}, Stack.PAIR),
    ((1, 2, 2, 3, 0, 5, 6), {}, Stack.ROWS),
]


@pytest.mark.parametrize(("sizes", "attrs", "stack"), SHAPES, ids=str)
def test_shapes(sizes: Sizes, attrs: dict[str, Any], stack: Stack) -> None:
    tiling = check(anchor_case("attention", attrs, slots_of(sizes)), splits=2)
    assert tiling.stack is stack
    assert tiling.kernel_type is AicoreKernelType.MIX_1_2


def test_no_batches_are_no_units() -> None:
    assert check(anchor_case("attention", {}, slots_of((0, 2, 2, 3, 4, 5, 6)))).units == 0


@pytest.mark.parametrize("sizes", [(1, 2, 2, 200, 200, 64, 64), (1, 4, 2, 100, 500, 128, 128)], ids=str)
def test_every_tiling(sizes: Sizes) -> None:
    case = anchor_case("attention", {"causal": True}, slots_of(sizes))
    assert len(tilings_of(case)) >= 2
    check(case, every=True)


@pytest.mark.parametrize(("sizes", "attrs"), [(s, a) for s, a, _ in SHAPES[:7]], ids=str)
def test_small_memories(sizes: Sizes, attrs: dict[str, Any]) -> None:
    target = small(l1=24, l0a=8, l0b=8, l0c=16, ub=24)
    tiling = check(anchor_case("attention", attrs, slots_of(sizes)), target=target)
    assert tiling.blocks > 1 or tiling.piece < tiling.keys or sizes[4] <= 64


LONG: list[tuple[Sizes, Mapping[str, Any]]] = [
    ((1, 1, 1, 256, 1100, 64, 64), {"causal": True}),
    ((1, 1, 1, 130, 2100, 64, 48), {}),  # blocks of 2 and 3, in turn of several pieces and of one
    ((1, 2, 2, 128, 1024, 128, 128), {"softcap": 5.0}),
]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("sizes", "attrs"), LONG, ids=str)
def test_long_blocks_in_pieces(sizes: Sizes, attrs: dict[str, Any], masked: bool) -> None:
    """Of keys into L1, of rows into UB, of rows into L0C."""
    noise = np.random.default_rng(5).random((sizes[3], sizes[4]))
    mask = np.where(noise > 0.9, np.float16(-np.inf), np.float16(0.5))
    case, device = anchor_case("attention", attrs, [*slots_of(sizes), *([mask] if masked else [])]), load_target("mini")
    tilings = of_rows(case.body, attention_form(case.body), 128, device)
    found = [t for t in tilings if t.piece < t.keys and t.part < t.lane_rows and not overflows(case.body, t, device)]
    tiling = max(found, key=lambda t: (t.score_rows < t.rows, t.keys))
    assert tiling.score_rows < tiling.rows
    check_aicore(KERNEL, case.body, case.arrays, case.expected, tiling=tiling, tol=2e-3, target=device, splits=1)


def test_workspaces_leave_room_in_l2() -> None:
    case = anchor_case("attention", {}, slots_of((1, 1, 1, 128, 4096, 64, 64)))
    device = load_target("mini")
    roomy = tilings_of(case, device)[0]
    tight = device.replaced({"l2.capacity_bytes": 2 * roomy.scratch_bytes})
    assert not crowds_l2(roomy, device)
    assert crowds_l2(roomy, tight)
    assert not any(crowds_l2(t, tight) for t in tilings_of(case, tight))


def test_too_small_memories_are_named() -> None:
    case = anchor_case("attention", {}, slots_of((1, 2, 2, 33, 33, 64, 64)))
    with pytest.raises(UnsupportedError, match=r"memory\.ub_bytes"):
        tilings_of(case, small(ub=1))
    with pytest.raises(UnsupportedError, match=r"queue\.flag_ids"):
        tilings_of(case, load_target("mini").replaced({"queue.flag_ids": 4}))


@pytest.mark.parametrize(("depth", "fits"), [(0, False), (1, True), (4096, True), (4097, False)])
def test_heads_are_no_deeper_than_the_cube_takes(depth: int, fits: bool) -> None:
    target, head = load_target("mini"), f"f16[1,1,2,{depth}]"
    text = f"attention({head}, {head}, f16[1,1,2,16]; scale=1.0)"
    body = body_of(parse_requirement(text, target, Policy()))
    assert body is not None
    family = family_of("aicore.attention")
    if fits:
        assert family.tilings("aicore.attention", body, target)
        return
    with pytest.raises(UnsupportedError, match="bad depth of heads"):
        family.tilings("aicore.attention", body, target)


def test_one_vector_core_per_group() -> None:
    target = load_target("mini").replaced({"device.vector_cores_per_group": 1, "device.vector_cores": 2})
    case = anchor_case("attention", {"causal": True}, slots_of((1, 4, 2, 20, 70, 16, 16)))
    assert check(case, target=target).kernel_type is AicoreKernelType.MIX_1_1


MASK_SHAPES = [(2, 1, 5, 70), (1, 3, 1, 70), (5, 1), (70,), (2, 3, 5, 70), (1, 1)]


@pytest.mark.parametrize("dtype", [F16, BOOL], ids=str)
@pytest.mark.parametrize("shape", MASK_SHAPES, ids=str)
@pytest.mark.parametrize(("heads", "queries"), [(3, 5), (6, 1)])
def test_masks(shape: tuple[int, ...], dtype: DType, heads: int, queries: int) -> None:
    rng = np.random.default_rng(3)
    shape = tuple(queries if d == 5 else heads if d == 3 else d for d in shape)
    noise = rng.standard_normal(shape).astype(np.float16)
    mask = noise > -0.3 if dtype is BOOL else np.where(noise > 1, np.float16(-np.inf), noise)
    target = small(ub=12) if shape[-1] == 70 else load_target("mini")
    check(anchor_case("attention", {}, [*slots_of((2, heads, 3, queries, 70, 8, 9)), mask]), target=target)


@pytest.mark.parametrize("shape", [(2, 1, 5, 70), (1, 6, 1, 1)], ids=str)
def test_masks_of_pairs_of_heads(shape: tuple[int, ...]) -> None:
    mask = np.random.default_rng(3).random(shape) > 0.4
    case = anchor_case("attention", {}, [*slots_of((2, 6, 3, 5, 70, 8, 9)), mask])
    assert check(case, target=small(ub=12)).stack is Stack.PAIR


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_masks_of_other_types(dtype: DType) -> None:
    mask = np.random.default_rng(1).standard_normal((9, 40)).astype(dtype.numpy)
    check(anchor_case("attention", {"causal": True}, [*slots_of((1, 2, 1, 9, 40, 16, 16), dtype), mask]))


def test_large_negative_masks_hide_like_the_reference() -> None:
    """Rows that are hidden by numbers, not by infinities, are softmaxes of what is left."""
    mask = np.zeros((6, 200), np.float16)
    mask[:, 100:], mask[3] = -65504, -65504
    check(anchor_case("attention", {}, [*slots_of((1, 1, 1, 6, 200, 8, 8)), mask]), target=small(ub=12))


@pytest.mark.parametrize("length", [np.array(200), np.array([3], np.int32), np.array([0]), np.array([999])], ids=str)
@pytest.mark.parametrize("queries", [1, 2, 40])
def test_lengths(length: np.ndarray[Any, Any], queries: int) -> None:
    slots = [*slots_of((1, 4, 2, queries, 210, 16, 16)), None, length]
    check(anchor_case("attention", {"causal": True}, slots), target=small(ub=24))


def test_length_per_batch_with_a_mask() -> None:
    mask = np.random.default_rng(0).random((3, 1, 4, 50)) < 0.5
    slots = [*slots_of((3, 2, 1, 4, 50, 16, 16)), mask, np.array([50, 0, 7])]
    check(anchor_case("attention", {}, slots), target=small(ub=8), splits=2)


def test_rows_without_visible_keys_are_zero() -> None:
    mask = np.ones((6, 20), np.bool_)
    mask[2] = False
    case = anchor_case("attention", {}, [*slots_of((1, 1, 1, 6, 20, 8, 8)), mask])
    assert not case.expected[4][0, 0, 2].any()
    check(case)


@pytest.mark.parametrize("valid", [37, 0])
def test_what_lies_beyond_the_length_is_never_used(valid: int) -> None:
    """A cache may hold anything behind its valid rows, even NaN."""
    rng = np.random.default_rng(0)
    k, v = (rng.standard_normal((1, 2, 90, 16)).astype(np.float16) for _ in range(2))
    k[:, :, valid:], v[:, :, valid:] = np.nan, np.nan
    q = rng.standard_normal((1, 4, 3, 16)).astype(np.float16)
    case = anchor_case("attention", {"causal": True}, [q, k, v, None, np.array(valid)])
    assert not np.isnan(case.expected[4]).any()
    check(case)


@pytest.mark.parametrize("queries", [1, 20, 70])
@pytest.mark.parametrize("epilogue", ["store", "mixed", "sliced"])
def test_views_of_sequence_major_tensors(queries: int, epilogue: str) -> None:
    """[batch, sequence, head, depth] operands, no copies; programs and stores behind."""
    layouts = dict.fromkeys(range(3), (0, 2, 1, 3))
    case = anchor_case("attention", {}, slots_of((2, 4, 2, queries, 33, 16, 16)), layouts=layouts, epilogue=epilogue)
    family = family_of(KERNEL)
    for slot, view in enumerate(case.body.anchor_inputs[:3]):
        assert isinstance(view, View)
        assert family.accepts_view(KERNEL, "attention", slot, view, F16)
    check(case)


def test_scattered_elements_are_not_accepted() -> None:
    for slot in range(3):
        body = anchor_case("attention", {}, slots_of((1, 1, 1, 4, 5, 6, 7)), layouts={slot: (0, 1, 3, 2)}).body
        view = body.anchor_inputs[slot]
        assert isinstance(view, View)
        assert not family_of(KERNEL).accepts_view(KERNEL, "attention", slot, view, F16)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("sizes", [(1, 2, 1, 9, 40, 16, 16), (1, 1, 1, 70, 300, 72, 40)], ids=str)
def test_other_types(dtype: DType, sizes: Sizes) -> None:
    check(anchor_case("attention", {"causal": True}, slots_of(sizes, dtype)))


def test_large_scores_do_not_overflow() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, 5, 8)).astype(np.float32) for _ in range(3))
    check(anchor_case("attention", {"scale": 1.0}, [q * 100, k * 100, v]))


def test_infinities_and_nan_stay_in_their_rows() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, 20, 8)).astype(ml_dtypes.bfloat16) for _ in range(3))
    q[0, 0, 3] = np.nan
    check(anchor_case("attention", {}, [q, k, v]))


# Pipelines ------------------------------------------------------------------------------------------------------------

BOUND = [
    ((1, 4, 4, 256, 2048, 64, 64), Engine.FIX),  # scores leave the cube core as f32
    ((4, 2, 2, 128, 128, 64, 64), Engine.FIX),
    ((1, 8, 2, 1, 2048, 128, 128), Engine.MTE2),  # decoding streams keys and values
]


def busy_of(case: AnchorCase, tiling: AttentionTiling) -> dict[CoreRole, dict[Engine, int]]:
    target = load_target("mini")
    made = recorded(KERNEL, case.body, tiling, target, 0, tiling.units)
    return {role: engine_busy(commands, target) for role, commands in made.items()}


@pytest.mark.parametrize(("sizes", "engine"), BOUND, ids=str)
def test_the_slowest_engine_is_the_right_one_and_near_its_ideal(sizes: Sizes, engine: Engine) -> None:
    case, target = anchor_case("attention", {}, slots_of(sizes)), load_target("mini")
    tiling = tilings_of(case)[0]
    busy = busy_of(case, tiling)
    slowest = max((cycles, e, role) for role, of in busy.items() for e, cycles in of.items())
    assert (slowest[1], slowest[2]) == (engine, CoreRole.CUBE)
    batch, heads, kv_heads, queries, keys, depth, value_depth = sizes
    if engine is Engine.FIX:
        moved = batch * heads * queries * 4 * (keys + value_depth)
        ideal = target.transfer_cycles("rates.l0c_to_gm_gb_per_s", moved)
        tiles, high = -(-keys // tiling.score_keys), -(-tiling.rows // tiling.score_rows)
        ideal += tiling.units * (tiles * high + 1) * target.dma.store_startup_cycles
        ideal += tiling.units * (tiles + 1) * tiling.rows * target.dma.row_cycles
    else:
        moved = batch * kv_heads * keys * (depth + value_depth) * 2
        commands = 2 * tiling.units * tiling.blocks
        ideal = target.transfer_cycles("rates.gm_to_l1_gb_per_s", moved) + commands * target.dma.startup_cycles
    assert slowest[0] <= 1.25 * ideal
    for role, of in busy.items():
        assert role.is_cube or max(of.values()) < 0.8 * slowest[0]


def test_the_estimate_is_the_slowest_engine() -> None:
    for sizes, engine in BOUND:
        case, target = anchor_case("attention", {}, slots_of(sizes)), load_target("mini")
        tiling = tilings_of(case)[0]
        total = busy_of(case, tiling)[CoreRole.CUBE][engine]
        way = way_cycles(case.body, tiling, target)
        assert 0.95 * total <= tiling.cost_cycles(case.body, 0, tiling.units, target) <= 1.05 * total + way


def test_causal_units_cost_what_they_see() -> None:
    case, target = (
        anchor_case("attention", {"causal": True}, slots_of((1, 2, 2, 512, 512, 64, 64))),
        load_target("mini"),
    )
    tiling = tilings_of(case)[0]
    blocks = tiling.position_blocks
    first, last = (tiling.cost_cycles(case.body, i, i + 1, target) for i in (0, blocks - 1))
    both = tiling.cost_cycles(case.body, 0, 2 * blocks, target)
    assert both > 1.5 * tiling.cost_cycles(case.body, 0, blocks, target)
    assert last >= first
    dense = anchor_case("attention", {}, slots_of((1, 2, 2, 512, 512, 64, 64)))
    assert both < 0.8 * tilings_of(dense)[0].cost_cycles(dense.body, 0, 2 * blocks, target)


SIMULATED: list[tuple[Sizes, dict[str, Any], int | None]] = [
    ((1, 4, 2, 64, 600, 64, 64), {}, None),
    ((2, 4, 2, 100, 100, 32, 32), {"causal": True}, None),
    ((1, 8, 2, 1, 700, 64, 64), {}, 555),
    ((1, 4, 2, 20, 90, 16, 16), {"causal": True}, 70),
    ((1, 3, 3, 200, 1300, 64, 64), {"causal": True}, None),
]


@pytest.mark.parametrize(("sizes", "attrs", "length"), SIMULATED, ids=str)
def test_on_the_simulated_device(sizes: Sizes, attrs: dict[str, Any], length: int | None) -> None:
    """With real concurrency: flags, channels, races and declared accesses are the simulator's to check."""
    given = [np.array(length)] if length is not None else []
    case = anchor_case("attention", attrs, [*slots_of(sizes), None, *given])
    arrays = [a for a in case.arrays if a is not None]
    builder = superkernel.GraphBuilder("attention")
    names = ["q", "k", "v", "length"][: len(arrays)]
    values = {n: builder.input(n, a.shape, DType.of(a.dtype)) for n, a in zip(names, arrays, strict=True)}
    builder.output(builder.attention(**values, **attrs), "y")  # type: ignore[arg-type]
    kernel = superkernel.compile(builder.graph(), target="mini")
    (expected,) = case.expected.values()
    np.testing.assert_allclose(np.asarray(kernel(*arrays), np.float64), expected, rtol=2e-3, atol=2e-3)
