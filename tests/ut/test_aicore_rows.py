"""Row-wise operators on the accelerator's vector cores: against the operator table, in every mode of tiling, resident
and streaming, whole and split, for every element type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from aicore_check import check_aicore
from kernel_check import Array
from op_cases import op_body

from superkernel.scheduler.families.aicore import family_of
from superkernel.scheduler.families.aicore.rows import Mode, RowsTiling
from superkernel.target.aicore import load_target

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
    ((5, 77), -1, Mode.LINES),
    ((3, 70, 9), 1, Mode.COLUMNS),
    ((2, 3, 20, 33), 1, Mode.COLUMNS),
    ((40, 128), -1, Mode.LINES),
    ((1, 200), -1, Mode.LINES),
    ((130,), 0, Mode.LINES),
    ((3, 1), -1, Mode.COLUMNS),
]


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize(("shape", "axis", "mode"), AXES)
def test_softmax(op: str, shape: tuple[int, ...], axis: int, mode: Mode) -> None:
    (first, *_) = check("aicore.softmax", op, [numbers(*shape, scale=4)], {"axis": axis})
    assert first.mode is mode and first.resident


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


REDUCTIONS = "sum mean max min prod l1 l2 log_sum log_sum_exp sum_square".split()


@pytest.mark.parametrize("ub_bytes", [192 * 1024, 6 * 1024])
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (0, 1, 2), (1, 2)])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions(op: str, axes: tuple[int, ...], ub_bytes: int) -> None:
    ub_bytes = max(ub_bytes, 12 * 1024) if op == "prod" else ub_bytes
    x = np.abs(numbers(5, 21, 90, dtype=np.float32)) * (0.1 if op != "prod" else 0.02) + 0.98
    check("aicore.reduce", f"reduce_{op}", [x], {"axes": axes, "keepdims": False}, target=small(ub_bytes), tol=1e-4)


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
    x = x.astype(dtype) if dtype is not np.bool_ else x > 3
    wide = np.dtype(dtype).itemsize > 1
    for op in ("max", "min", *(("sum", "prod", "l1", "sum_square") if wide else ())):
        for axis in (0, 1):
            check("aicore.reduce", f"reduce_{op}", [x], {"axes": (axis,)}, tol=0)


def test_reductions_over_nothing() -> None:
    for op in ("sum", "max", "mean", "log_sum_exp"):
        check("aicore.reduce", f"reduce_{op}", [numbers(3, 0, 4)], {"axes": (1,)})
        check("aicore.reduce", f"reduce_{op}", [numbers(3, 0, 4)], {"axes": (0,)})


