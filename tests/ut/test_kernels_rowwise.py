"""Softmax, normalisations, lrn, reductions and scans: against the operator table, along every kind of axis, with
prologues and epilogues."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_check import Array, tiers
from op_cases import check_op, check_op_with_epilogue, check_op_with_prologue, op_body

from superkernel.codegen.host.features import detect_cpu
from superkernel.scheduler.families.rowtiling import RowTiling
from superkernel.scheduler.families.rowwise import FAMILY
from superkernel.transforms.quantised import softmax_grid


def numbers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    values = np.random.default_rng(seed).standard_normal(shape)
    return (values if np.dtype(dtype).kind == "f" else values * 9).astype(dtype)


AXES = [((5, 77), -1), ((3, 70, 9), 1), ((2, 3, 20, 33), 1), ((3, 1), -1), ((0, 4), -1), ((130,), 0), ((4, 6, 1), 1)]


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize(("shape", "axis"), AXES)
def test_softmax(op: str, shape: tuple[int, ...], axis: int) -> None:
    tier = None if op == "softmax" else "avx2"
    check_op("host.softmax", op, [numbers(*shape) * 9], {"axis": axis}, tier=tier, splits=2)


@pytest.mark.parametrize(("shape", "axis"), [*AXES, ((40, 3), -1), ((2, 21, 10), -1)])
def test_softmax_of_whole_numbers(shape: tuple[int, ...], axis: int) -> None:
    """Nothing but the last product is rounded, on any tier."""
    grid = softmax_grid(0.05, shape[axis])
    attrs = {"axis": axis, "scale": 0.05, "grid": grid}
    for tier in tiers():
        check_op("host.softmax", "softmax_integer", [np.rint(numbers(*shape) * 30)], attrs, tol=1e-7, tier=tier)


@pytest.mark.parametrize(("dtype", "tol"), [(np.float64, 1e-13), (np.float16, 1e-3)])
def test_softmax_dtypes(dtype: Any, tol: float) -> None:
    check_op("host.softmax", "softmax", [numbers(3, 100, dtype=dtype)], tol=tol, tier="avx2")


def test_softmax_extremes() -> None:
    x = numbers(6, 40)
    x[0, 3], x[1, 4], x[2], x[3] = np.inf, -np.inf, -np.inf, 1e30
    x[4, 39] = np.nan
    x[5, 0] = x[5, 39] = np.nan
    for op in ("softmax", "log_softmax"):
        check_op("host.softmax", op, [x])
        check_op("host.softmax", op, [np.ascontiguousarray(x.T)], {"axis": 0}, tier="avx2")
    check_op("host.reduce", "reduce_log_sum_exp", [x], {"axes": (1,)})
    check_op("host.reduce", "reduce_log_sum_exp", [x], {"axes": (0,)}, tier="avx2")


def test_softmax_through_views() -> None:
    check_op("host.softmax", "softmax", [numbers(4, 6, 50)], views={0: ((6, 4, 50), (1, 0, 2))}, tier="avx2")
    check_op("host.softmax", "softmax", [numbers(60, 50)], views={0: ((50, 60), (1, 0))})


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_norms_over_the_tail(op: str) -> None:
    def args(*extra: Array | None) -> list[Array | None]:
        return list(extra[:1] if op == "rms_norm" else extra)

    check_op("host.norm", op, [numbers(5, 384), *args(numbers(384), numbers(384, seed=1))])
    check_op("host.norm", op, [numbers(3, 30) + 100, *args(None, None)], tol=4e-5, tier="avx2")
    check_op("host.norm", op, [numbers(2, 7, 61), *args(numbers(7, 61), numbers(1, 61))], {"axis": 1})
    check_op("host.norm", op, [numbers(60, 50), *args(None, numbers(50))], views={0: ((50, 60), (1, 0))}, tier="avx2")
    check_op("host.norm", op, [numbers(4, 70, dtype=np.float64), *args(None, None)], tol=1e-13, tier="avx2")


SHORT = [(40, 3), (2, 21, 10), (17, 8), (33, 2, 5)]


@pytest.mark.parametrize("op", ["softmax", "log_softmax", "layer_norm", "rms_norm"])
@pytest.mark.parametrize("shape", SHORT, ids=str)
def test_short_rows_are_walked_across(op: str, shape: tuple[int, ...]) -> None:
    weights = [numbers(shape[-1], seed=k) for k in range({"layer_norm": 2, "rms_norm": 1}.get(op, 0))]
    kernel = "host.norm" if "norm" in op else "host.softmax"
    given = [numbers(*shape) * 3, *weights]
    body, _, _ = op_body(op, given, {"axis": -1})
    walks = FAMILY.walks(kernel, body, detect_cpu("plain"))
    assert [walk.is_across for walk in walks] == [False, True]
    for walk in walks:
        check_op(kernel, op, given, {"axis": -1}, tol=4e-6, tilings=[walk], tier="plain")
    check_op(kernel, op, given, {"axis": -1}, tol=4e-6)


def test_short_rows_with_programs_and_of_other_types() -> None:
    x, scale = numbers(50, 6), numbers(6)
    check_op_with_prologue("host.norm", "layer_norm", [x, scale, None], {"axis": -1})
    check_op_with_epilogue("host.softmax", "softmax", [x], {"axis": -1}, tier="avx2")
    check_op("host.softmax", "softmax", [numbers(20, 7, dtype=np.float64)], tol=1e-13)
    check_op("host.softmax", "softmax", [numbers(40, 7, dtype=np.float16)], tol=1e-3)
    check_op("host.norm", "group_norm", [numbers(24, 4, 3), numbers(4), numbers(4)], {"groups": 2})
    check_op("host.norm", "instance_norm", [numbers(9, 8, 2, 2), numbers(8), numbers(8)])
    views = {0: ((40, 2, 6), (1, 0, 2))}
    check_op("host.softmax", "log_softmax", [numbers(2, 40, 6)], views=views, tier="avx2")


def test_short_rows_with_infinities() -> None:
    x = numbers(32, 6)
    x[0, 3], x[1, 4], x[2], x[3], x[4, 5] = np.inf, -np.inf, -np.inf, 1e30, np.nan
    check_op("host.softmax", "softmax", [x])


@pytest.mark.parametrize(
    ("op", "columns", "is_across"),
    [
        ("softmax", 10, True),
        ("softmax", 40, False),
        ("softmax", 1000, False),
        ("log_softmax", 40, True),
        ("log_softmax", 60, False),
        ("layer_norm", 16, True),
        ("layer_norm", 32, False),
        ("rms_norm", 5, True),
        ("rms_norm", 8, False),
        ("lp_norm", 4, False),
    ],
)
def test_rows_are_walked_across_where_that_is_faster(op: str, columns: int, is_across: bool) -> None:
    """As measured by `bench/kernels.py rows`."""
    kernel = "host.norm" if op.endswith("_norm") else "host.softmax"
    weights = [numbers(columns)] * {"layer_norm": 2, "rms_norm": 1}.get(op, 0)
    body, _, _ = op_body(op, [numbers(64, columns), *weights], {"axis": -1})
    cpu = detect_cpu("plain")
    (tiling,) = FAMILY.tilings(kernel, body, cpu)
    assert isinstance(tiling, RowTiling)
    assert tiling.is_across == is_across
    assert (len(FAMILY.walks(kernel, body, cpu)) == 2) == (op != "lp_norm" and columns <= 64)


def test_norms_by_channel() -> None:
    weights = [numbers(12), numbers(12, seed=1)]
    for shape in ((2, 12, 5, 7), (2, 12)):
        check_op("host.norm", "group_norm", [numbers(*shape), *weights], {"groups": 3})
        check_op("host.norm", "instance_norm", [numbers(*shape), *weights], tier="avx2")
        given = [*weights, numbers(12, seed=2), numbers(12, seed=3) ** 2]
        check_op("host.norm", "batch_norm", [numbers(*shape), *given])


@pytest.mark.parametrize("p", [1, 2])
def test_lp_norm(p: int) -> None:
    x = numbers(2, 12, 5, 7) * (numbers(2, 1, 5, 7, seed=4) > -1)
    check_op("host.norm", "lp_norm", [x], {"axis": 1, "p": p})
    check_op("host.norm", "lp_norm", [numbers(9, 70)], {"axis": 1, "p": p}, tier="avx2")


@pytest.mark.parametrize("size", [1, 4, 5])
def test_lrn(size: int) -> None:
    check_op("host.lrn", "lrn", [numbers(2, 12, 5, 7)], {"size": size})
    check_op("host.lrn", "lrn", [numbers(2, 40)], {"size": size, "beta": 0.6}, tier="avx2")
    check_op("host.lrn", "lrn", [numbers(2, 3, 20)], {"size": size, "beta": 0.5, "alpha": 0.1}, tier="avx2")


def test_prologues() -> None:
    check_op_with_prologue("host.norm", "layer_norm", [numbers(5, 70), numbers(70), numbers(70, seed=1)])
    check_op_with_prologue("host.norm", "group_norm", [numbers(2, 6, 5, 3), numbers(6), numbers(6)], {"groups": 2})
    check_op_with_prologue("host.softmax", "softmax", [numbers(3, 40, 9)], {"axis": 1})
    check_op_with_prologue("host.lrn", "lrn", [numbers(2, 5, 9)], {"size": 3})
    check_op_with_prologue("host.reduce", "reduce_sum", [numbers(3, 40, 9)], {"axes": (1,)})
    check_op_with_prologue("host.argreduce", "argmax", [numbers(3, 40)], {"axis": 1}, tol=0)
    check_op_with_prologue("host.cumsum", "cumsum", [numbers(3, 40)], {"axis": 1, "reverse": True}, tol=1e-5)


def test_epilogues() -> None:
    check_op_with_epilogue("host.norm", "rms_norm", [numbers(5, 70), numbers(70)])
    check_op_with_epilogue("host.softmax", "softmax", [numbers(3, 40, 9)], {"axis": 1})
    check_op_with_epilogue("host.softmax", "softmax", [numbers(3, 40, 9)], {"axis": 0})
    check_op_with_epilogue("host.reduce", "reduce_mean", [numbers(3, 40, 9)], {"axes": (1,), "keepdims": False})
    check_op_with_epilogue("host.reduce", "reduce_max", [numbers(3, 40, 9)], {"axes": (2,), "keepdims": True})
    check_op_with_epilogue("host.argreduce", "argmin", [numbers(3, 40, 9)], {"axis": 0}, tol=0)
    check_op_with_epilogue("host.cumsum", "cumsum", [numbers(3, 40, 9)], {"axis": 1}, tol=1e-5)


REDUCTIONS = ["sum", "mean", "max", "min", "prod", "l1", "l2", "log_sum", "log_sum_exp", "sum_square"]


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    x = numbers(4, 5, 67)
    x = np.abs(x) if name == "log_sum" else 1 + x / 10 if name == "prod" else x
    for axes in ((), (2,), (1,), (0, 2), (0, 1)):
        tier = None if axes in ((2,), (1,)) else "avx2"
        attrs = {"axes": axes, "keepdims": len(axes) == 1}
        check_op("host.reduce", f"reduce_{name}", [x], attrs, tol=4e-6, tier=tier, splits=1)


@pytest.mark.parametrize("dtype", ["i4", "u1", "i8", "f8"])
@pytest.mark.parametrize("name", ["sum", "max", "min", "prod", "l1"])
def test_reduction_dtypes(name: str, dtype: str) -> None:
    x = np.clip(numbers(3, 40, dtype=dtype), -3 if dtype != "u1" else 0, 3).astype(dtype)
    tol = 1e-12 if dtype == "f8" else 0.0
    for axes in ((1,), (0,)):
        check_op("host.reduce", f"reduce_{name}", [x], {"axes": axes}, tol=tol, tier="avx2", splits=1)


def test_reductions_of_bools_nan_and_nothing() -> None:
    check_op("host.reduce", "reduce_max", [numbers(3, 40) > 1], {"axes": (1,)}, tol=0)
    check_op("host.reduce", "reduce_min", [numbers(3, 40) > -2], {"axes": (0,)}, tol=0, tier="avx2")
    x = numbers(6, 80)
    x[2, 5] = x[3, 77] = np.nan
    check_op("host.reduce", "reduce_max", [x], {"axes": (1,)})
    check_op("host.reduce", "reduce_min", [x], {"axes": (0,)}, tier="avx2")
    for op in ("reduce_sum", "reduce_max", "reduce_mean", "reduce_prod"):
        check_op("host.reduce", op, [np.zeros((3, 0, 4), np.float32)], {"axes": (1,)}, tier="avx2")
    check_op("host.reduce", "reduce_sum", [np.zeros((3, 0, 4), np.float32)], {"axes": (0,)}, tier="avx2")
    check_op("host.reduce", "reduce_mean", [np.array(3, np.float32)])


def test_sums_of_long_rows_stay_accurate() -> None:
    check_op("host.reduce", "reduce_sum", [np.abs(numbers(300_000))], tol=5e-7, tier="avx2")
    check_op("host.reduce", "reduce_mean", [np.abs(numbers(20_000, 6))], {"axes": (0,)}, tol=5e-7, tier="avx2")


@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("last", [False, True])
def test_arg_reductions(op: str, last: bool) -> None:
    x = numbers(6, 80).round(1)
    for axis in (0, 1):
        check_op("host.argreduce", op, [x], {"axis": axis, "select_last_index": last}, tol=0)
    x[2, 5] = x[2, 9] = x[3, 77] = np.nan
    check_op("host.argreduce", op, [x], {"axis": 1, "select_last_index": last}, tol=0, tier="avx2")
    for dtype in ("i1", "u4", "f8", "f2"):
        y = np.abs(numbers(5, 70, dtype=dtype)).round()
        check_op("host.argreduce", op, [y], {"axis": 1, "select_last_index": last}, tol=0, tier="avx2", splits=1)
    check_op("host.argreduce", op, [numbers(3, 4, 5)], {"axis": 1, "keepdims": False}, tol=0, tier="avx2")


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums(exclusive: bool, reverse: bool) -> None:
    for axis in (0, 1, 2):
        attrs = {"axis": axis, "exclusive": exclusive, "reverse": reverse}
        check_op("host.cumsum", "cumsum", [numbers(3, 5, 70)], attrs, tol=5e-6, splits=1)
        check_op("host.cumsum", "cumsum", [numbers(3, 5, 37, dtype="i4")], attrs, tol=0, tier="avx2", splits=1)
