"""Row-wise operators on the accelerator's vector cores: against the operator table, in every mode of tiling, resident
and streaming, whole and split, for every element type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from aicore_check import check_aicore
from aicore_timing import elapsed, engine_busy, recorded
from kernel_check import Array, operand
from op_cases import op_body, with_epilogue, with_slot

from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import Instruction, PointwiseProgram, ProgramInput, ProgramOutput, Role
from superkernel.scheduler.families.aicore import family_of
from superkernel.scheduler.families.aicore.base import CoreRole
from superkernel.scheduler.families.aicore.row_modes import RowMode
from superkernel.scheduler.families.aicore.rows import TILE_BYTES_MAX, AheadOfLast, RowsTiling
from superkernel.target.aicore import load_target
from superkernel.target.engines import Engine
from superkernel.transforms.quantised import softmax_grid

TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float16): 2e-3, np.dtype(ml_dtypes.bfloat16): 1e-2}


def numbers(*shape: int, dtype: Any = np.float16, seed: int = 0, scale: float = 1.0) -> Array:
    values = np.random.default_rng(seed).standard_normal(shape) * scale
    return values.astype(dtype) if np.dtype(dtype).kind != "i" else (values * 9).astype(dtype)


def check(
    kernel: str,
    op: str,
    inputs: list[Array | None],
    attrs: Mapping[str, Any] | None = None,
    *,
    views: Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]] | None = None,
    tol: float | None = None,
    target: Any = "mini",
    splits: int = 1,
) -> list[RowsTiling]:
    body, arrays, expected = op_body(op, inputs, attrs, views)
    assert inputs[0] is not None
    limit = TOLERANCE.get(inputs[0].dtype, 0.0) if tol is None else tol
    return check_aicore(kernel, body, arrays, expected, tol=limit, target=target, splits=splits)  # type: ignore[return-value]


def small(ub_bytes: int) -> Any:
    """A target with little local memory, so that quick shapes stream."""
    return load_target("mini").replaced({"memory.ub_bytes": ub_bytes})


AXES = [
    ((5, 77), -1, RowMode.LINES),
    ((3, 70, 9), 1, RowMode.COLUMNS),
    ((2, 3, 20, 33), 1, RowMode.COLUMNS),
    ((40, 128), -1, RowMode.LINES),
    ((1, 200), -1, RowMode.LINES),
    ((130,), 0, RowMode.LINES),
    ((3, 1), -1, RowMode.COLUMNS),
]


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"), [((64, 8), 0), ((3, 7, 20), 1), ((1, 40), 0), ((2, 5, 3, 33), -2), ((32, 1000), 0)]
)
def test_running_sums(shape: tuple[int, ...], axis: int, exclusive: bool) -> None:
    x = np.random.default_rng(0).integers(-(2**31), 2**31, shape).astype(np.int32)  # sums wrap
    tilings = check("aicore.scan", "cumsum", [x], {"axis": axis, "exclusive": exclusive}, splits=2)
    assert all(t.mode is RowMode.COLUMNS and t.resident for t in tilings)


@pytest.mark.parametrize(("shape", "axis"), [((40,), 0), ((4, 40), -1), ((4, 40, 1), 1), ((100_000, 8), 0)])
def test_running_sums_along_lines_and_of_long_columns_are_refused(shape: tuple[int, ...], axis: int) -> None:
    body, _, _ = op_body("cumsum", [np.zeros(shape, np.int32)], {"axis": axis})
    with pytest.raises(UnsupportedError, match="running sum"):
        family_of("aicore.scan").tilings("aicore.scan", body, load_target("mini"))


@pytest.mark.parametrize(("rank", "axes"), [(1, ()), (2, (0, -2)), (3, (0, 1, -2, -3))])
def test_an_axis_ahead_of_the_last(rank: int, axes: tuple[int, ...]) -> None:
    holds = [axis for axis in range(-rank, rank) if AheadOfLast().holds(axis, {"rank": rank})]
    assert set(holds) == set(axes)
    assert not AheadOfLast().holds(None, {"rank": rank})


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize(("shape", "axis", "mode"), AXES)
def test_softmax(op: str, shape: tuple[int, ...], axis: int, mode: RowMode) -> None:
    (first, *_) = check("aicore.softmax", op, [numbers(*shape, scale=4)], {"axis": axis})
    assert first.mode is mode
    assert first.resident


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_softmax_dtypes(dtype: Any) -> None:
    check("aicore.softmax", "softmax", [numbers(9, 100, dtype=dtype)])


def test_softmax_extremes() -> None:
    x = numbers(6, 40, dtype=np.float32)
    x[0, 3], x[1, 4], x[2], x[3] = np.inf, -np.inf, -np.inf, 1e30
    x[4, 39] = np.nan
    check("aicore.softmax", "softmax", [x])
    check("aicore.softmax", "softmax", [np.ascontiguousarray(x.T)], {"axis": 0})
    long = np.full((3, 3000), -np.inf, np.float32)
    long[0, 2999], long[1, 0], long[1, 2500] = 1.0, 5.0, 7.0
    (tiling,) = check("aicore.softmax", "softmax", [long], target=small(16 * 1024))
    assert not tiling.resident


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_long_rows_stream(op: str) -> None:
    for shape, axis in (((3, 5000), -1), ((2, 700, 40), 1)):
        for tiling in check("aicore.softmax", op, [numbers(*shape)], {"axis": axis}, target=small(20 * 1024)):
            assert not tiling.resident


@pytest.mark.parametrize(
    ("shape", "axis"), [*((shape, axis) for shape, axis, _ in AXES), ((3, 700), -1), ((2, 700, 40), 1)]
)
def test_softmax_of_whole_numbers(shape: tuple[int, ...], axis: int) -> None:
    """Nothing but the last product is rounded, where rows stream neither."""
    attrs = {"axis": axis, "scale": 0.05, "grid": softmax_grid(0.05, shape[axis])}
    is_long, x = shape[axis] >= 700, np.rint(numbers(*shape, scale=40)).astype(np.float32)
    target = small(4 * 1024) if is_long else "mini"
    for tiling in check("aicore.softmax", "softmax_integer", [x], attrs, target=target, tol=1e-7):
        assert tiling.resident is not is_long


def test_views() -> None:
    """Heads apart, a turned matrix, channels last."""
    check("aicore.softmax", "softmax", [numbers(4, 6, 50)], views={0: ((6, 4, 50), (1, 0, 2))})
    check("aicore.softmax", "softmax", [numbers(60, 50)], views={0: ((50, 60), (1, 0))})
    check("aicore.softmax", "softmax", [numbers(6, 5, 7)], {"axis": 1}, views={0: ((7, 6, 5), (1, 2, 0))})
    weights = [numbers(12), numbers(12, seed=1)]
    last = {0: ((2, 5, 7, 12), (0, 3, 1, 2))}
    check("aicore.norm", "group_norm", [numbers(2, 12, 5, 7), *weights], {"groups": 3}, views=last)
    check("aicore.norm", "instance_norm", [numbers(2, 12, 5, 7), *weights], views=last)
    check("aicore.norm", "batch_norm", [numbers(2, 12, 5, 7), *weights, weights[0], weights[1] ** 2], views=last)
    check("aicore.reduce", "reduce_mean", [numbers(2, 12, 5, 7)], {"axes": (2, 3)}, views=last)


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_norms_over_the_tail(op: str) -> None:
    def args(*extra: Array | None) -> list[Array | None]:
        return list(extra[:1] if op == "rms_norm" else extra)

    check("aicore.norm", op, [numbers(37, 768), *args(numbers(768), numbers(768, seed=1))], splits=2)
    f32 = [numbers(n, dtype=np.float32, seed=n) for n in (61, 384)]
    check("aicore.norm", op, [numbers(3, 384, dtype=np.float32) + 100, *args(None, f32[1])], tol=6e-5)
    whole, row = numbers(7, 61, dtype=np.float32), numbers(1, 61, dtype=np.float32)
    check("aicore.norm", op, [numbers(2, 7, 61, dtype=np.float32), *args(whole, row)], {"axis": 1})
    check("aicore.norm", op, [numbers(60, 50), *args(None, numbers(50))], views={0: ((50, 60), (1, 0))})
    turned = [numbers(70, 200), *args(numbers(200), numbers(200, seed=1))]
    (tiling, *_) = check("aicore.norm", op, turned, views={0: ((200, 70), (1, 0))}, target=small(16 * 1024))
    assert tiling.mode is RowMode.COLUMNS
    assert not tiling.resident
    check("aicore.norm", op, [numbers(3, 4000), *args(numbers(4000), numbers(4000))], target=small(20 * 1024))


@pytest.mark.parametrize("ub_bytes", [192 * 1024, 12 * 1024])
def test_norms_by_channel(ub_bytes: int) -> None:
    weights = [numbers(12), numbers(12, seed=1)]
    given = [*weights, numbers(12, seed=2), numbers(12, seed=3) ** 2]
    for shape in ((2, 12, 9, 50), (2, 12)):
        target = small(ub_bytes)
        check("aicore.norm", "group_norm", [numbers(*shape), *weights], {"groups": 3}, target=target)
        check("aicore.norm", "instance_norm", [numbers(*shape), *weights], target=target)
        check("aicore.norm", "batch_norm", [numbers(*shape), *given], target=target)


@pytest.mark.parametrize("p", [1, 2])
def test_lp_norm(p: int) -> None:
    x = numbers(2, 12, 5, 7) * (numbers(2, 1, 5, 7, seed=4) > -1)
    check("aicore.norm", "lp_norm", [x], {"axis": 1, "p": p})
    check("aicore.norm", "lp_norm", [numbers(9, 70, dtype=np.float32)], {"axis": 1, "p": p})


REDUCTIONS = ["sum", "mean", "max", "min", "prod", "l1", "l2", "log_sum", "log_sum_exp", "sum_square"]


AXES_OF_REDUCTIONS = [(0,), (1,), (2,), (0, 2), (0, 1, 2), (1, 2)]


@pytest.mark.parametrize("ub_bytes", [192 * 1024, 6 * 1024])
@pytest.mark.parametrize(
    ("op", "axes"),
    [
        *((op, axes) for op in ("sum", "prod", "log_sum_exp") for axes in AXES_OF_REDUCTIONS),
        *((op, AXES_OF_REDUCTIONS[k % 6]) for k, op in enumerate(REDUCTIONS)),
    ],
)
def test_reductions(op: str, axes: tuple[int, ...], ub_bytes: int) -> None:
    ub_bytes = max(ub_bytes, 12 * 1024) if op == "prod" else ub_bytes
    x = np.abs(numbers(5, 21, 90, dtype=np.float32)) * (0.1 if op != "prod" else 0.02) + 0.98
    check("aicore.reduce", f"reduce_{op}", [x], {"axes": axes, "keepdims": False}, target=small(ub_bytes), tol=1e-4)


@pytest.mark.parametrize("op", ["sum", "max"])
def test_reductions_over_three_dimensions_that_lie_apart(op: str) -> None:
    check("aicore.reduce", f"reduce_{op}", [numbers(3, 2, 4, 2, 9, dtype=np.float32)], {"axes": (0, 2, 4)}, tol=1e-4)


@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions_of_f16(op: str) -> None:
    x = numbers(50, 33) * (0.2 if op == "prod" else 1) + (1 if op in ("prod", "log_sum") else 0)
    if op == "log_sum":
        x = np.abs(x)
    for axis in (0, 1):
        check("aicore.reduce", f"reduce_{op}", [x], {"axes": (axis,)})


@pytest.mark.parametrize("dtype", [np.int32, np.int16, np.int8, np.uint8, np.bool_])
def test_reductions_of_integers(dtype: Any) -> None:
    x = np.random.default_rng(5).integers(-100 if np.dtype(dtype).kind == "i" else 0, 120, (19, 45))
    x = x.astype(dtype) if dtype is not np.bool_ else x > 3  # type: ignore[assignment]
    wide = np.dtype(dtype).itemsize > 1
    for op in ("max", "min", *(("sum", "prod", "l1", "sum_square") if wide else ())):
        for axis in (0, 1):
            check("aicore.reduce", f"reduce_{op}", [x], {"axes": (axis,)}, tol=0)


def test_reductions_over_nothing() -> None:
    for op in ("sum", "max", "mean", "log_sum_exp"):
        check("aicore.reduce", f"reduce_{op}", [numbers(3, 0, 4)], {"axes": (1,)})
        check("aicore.reduce", f"reduce_{op}", [numbers(3, 0, 4)], {"axes": (0,)})


PROGRAM_CASES = [
    ("aicore.softmax", "softmax", (6, 50), {}, 192),
    ("aicore.softmax", "softmax", (3, 40, 20), {"axis": 1}, 192),
    ("aicore.softmax", "log_softmax", (2, 3000), {}, 32),
    ("aicore.norm", "layer_norm", (2, 9, 64), {}, 192),
    ("aicore.norm", "rms_norm", (2, 4000), {}, 40),
    ("aicore.norm", "group_norm", (2, 8, 5, 16), {"groups": 2}, 192),
    ("aicore.norm", "batch_norm", (2, 8, 5, 16), {}, 192),
    ("aicore.reduce", "reduce_sum", (4, 7, 40), {"axes": (2,)}, 192),
    ("aicore.reduce", "reduce_mean", (4, 7, 40), {"axes": (1,)}, 192),
    ("aicore.reduce", "reduce_max", (4, 7, 40), {"axes": (0, 2)}, 192),
    ("aicore.reduce", "reduce_log_sum_exp", (4, 3000), {"axes": (1,)}, 20),
]


def arguments(op: str, x: Array) -> list[Array | None]:
    """The operator's inputs around its data."""
    width = x.shape[1] if op in ("group_norm", "batch_norm") else x.shape[-1]
    count = {"layer_norm": 2, "rms_norm": 1, "group_norm": 2, "batch_norm": 4}.get(op, 0)
    extra = [np.abs(numbers(width, dtype=x.dtype, seed=7 + k)) for k in range(count)]
    return [x, *extra]


@pytest.mark.parametrize("flags", [4, 5, 8])
def test_few_engine_flags(flags: int) -> None:
    """Rings are left with one slot where flags are short; the results are the same."""
    target = load_target("mini").replaced({"queue.flag_ids": flags})
    body, arrays, expected = op_body("softmax", [numbers(40, 61)], {})
    (tiling, *_) = family_of("aicore.softmax").tilings("aicore.softmax", body, target)
    check_aicore("aicore.softmax", body, arrays, expected, tiling=tiling, tol=2e-3, target=target, splits=1)  # type: ignore[arg-type]


def test_no_engine_flags() -> None:
    target = load_target("mini").replaced({"queue.flag_ids": 3})
    body, arrays, expected = op_body("softmax", [numbers(40, 61)], {})
    with pytest.raises(UnsupportedError, match=r"'queue.flag_ids'.* expected at least 5; found 3"):
        check_aicore("aicore.softmax", body, arrays, expected, target=target)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(("kernel", "op", "shape", "attrs", "ub_kib"), PROGRAM_CASES)
def test_epilogues(kernel: str, op: str, shape: tuple[int, ...], attrs: Any, ub_kib: int, dtype: Any) -> None:
    """The sum with a broadcast row, stored densely, and the plain result stored backwards into every second element."""
    body, arrays, expected = op_body(op, arguments(op, numbers(*shape, dtype=dtype)), attrs)
    kind = body.anchor_outputs[0]
    extra = (np.random.default_rng(11).standard_normal(kind.shape[-1:]) * 5).astype(dtype)
    joined, given = with_epilogue(body, arrays, "add", extra)
    first = len(body.operands) - 1
    want = np.asarray(expected[first])
    wanted = {**expected, first: want + extra.astype(np.float64)}
    target = small(ub_kib * 1024)
    device_tol = 4e-3 if dtype is np.float16 else 2e-5
    wide = np.zeros(joined.operands[-1].type.shape)
    wide[..., 1] = want.transpose()
    check_aicore(kernel, joined, given, {**wanted, len(joined.operands) - 1: wide}, tol=device_tol, target=target)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(("kernel", "op", "shape", "attrs", "ub_kib"), PROGRAM_CASES)
def test_prologues(kernel: str, op: str, shape: tuple[int, ...], attrs: Any, ub_kib: int, dtype: Any) -> None:
    """The data is the sum of two tensors, the sum stored as well."""
    x, other = numbers(*shape, dtype=dtype), numbers(*shape, dtype=dtype, seed=3)
    body, arrays, expected = op_body(op, arguments(op, x + other), attrs)
    kind = body.anchor_input_types[0]
    assert kind is not None
    count = len(body.operands)
    prologue = PointwiseProgram(
        x.shape,
        (ProgramInput(0, kind.dtype, kind.strides), ProgramInput(count, kind.dtype, kind.strides)),
        (Instruction("add", (0, 1), kind.dtype),),
        (ProgramOutput(2, -1), ProgramOutput(2, count + 1, kind.strides)),
    )
    operands = (*body.operands, operand(Role.INPUT, kind.dtype, x.shape), operand(Role.OUTPUT, kind.dtype, x.shape))
    wider = with_slot(replace(body, operands=operands), 0, prologue)
    arrays[0] = x
    wanted = {**expected, count + 1: x + other}
    tol = 4e-3 if dtype is np.float16 else 2e-5
    check_aicore(kernel, wider, [*arrays, other, None], wanted, tol=tol, target=small(ub_kib * 1024))


STREAMS = [
    # kernel, operator, shape, attributes, vector passes at 64 numbers per cycle, engine that should be the slowest
    ("aicore.norm", "layer_norm", (128, 768), {}, 9.0, Engine.V),
    ("aicore.norm", "rms_norm", (64, 4096), {}, 6.0, Engine.V),
    ("aicore.softmax", "softmax", (384, 128), {}, 8.0, Engine.V),
    ("aicore.softmax", "softmax", (64, 1024), {}, 8.0, Engine.V),
    ("aicore.softmax", "softmax", (4, 32000), {}, 12.0, Engine.V),
    ("aicore.reduce", "reduce_sum", (512, 768), {"axes": (1,)}, 0.0, Engine.MTE2),
    ("aicore.reduce", "reduce_mean", (512, 768), {"axes": (0,)}, 0.0, Engine.MTE2),
]


@pytest.mark.parametrize(("kernel", "op", "shape", "attrs", "passes", "slowest"), STREAMS)
def test_pipeline(kernel: str, op: str, shape: tuple[int, ...], attrs: Any, passes: float, slowest: Engine) -> None:
    """The right engine is the bottleneck, near what the arithmetic (or the data) takes, and the others are hidden."""
    target = load_target("a3")
    body, _, _ = op_body(op, arguments(op, np.zeros(shape, np.float16)), attrs)
    tiling = family_of(kernel).tilings(kernel, body, target)[0]
    assert isinstance(tiling, RowsTiling)
    commands = recorded(kernel, body, tiling, target, 0, tiling.units)[CoreRole.VECTOR0]
    busy = engine_busy(commands, target)
    assert max(busy, key=lambda e: busy[e]) is slowest
    size = shape[0] * shape[1]
    per_row = {True: 1, False: target.vector.reduce_tail_cycles}[tiling.fold]  # turning 64 columns, or a tree
    tails = 2 * shape[0] * per_row if tiling.mode is RowMode.LINES else 0
    ideal = {
        Engine.V: passes * size / target.vector.lanes_32bit + tails,
        Engine.MTE2: target.transfer_cycles("rates.gm_to_ub_gb_per_s", 2 * size)
        + 2 * size // TILE_BYTES_MAX * target.dma.startup_cycles,
    }[slowest]
    assert ideal <= busy[slowest] * 1.01
    assert busy[slowest] <= 1.25 * ideal
    assert elapsed(commands, target) <= 1.2 * busy[slowest]
    estimate = tiling.cost_cycles(body, 0, tiling.units, target)
    assert 0.7 < estimate / elapsed(commands, target) < 1.4


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="ub_bytes"):
        check("aicore.softmax", "softmax", [numbers(4, 5000)], target=small(1024))
