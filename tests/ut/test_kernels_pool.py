"""Pool kernels: results, declared accesses and independence of the split, on every tier."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from anchor_bodies import anchor_case
from plan_cases import TARGETS
from pool_cases import WINDOWED

from superkernel.codegen.host.features import detect_cpu
from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.scheduler.families import family_of
from superkernel.scheduler.families.pool import APART_NS, _apart_ns, pool_form

F32, F64, F16, I8, U8 = (DType.of(n) for n in ("f32", "f64", "f16", "i8", "u8"))
KERNEL = "host.pool"


@pytest.mark.parametrize(("op", "x", "attrs"), WINDOWED, ids=str)
def test_windowed(op: str, x: tuple[int, ...], attrs: dict[str, Any]) -> None:
    anchor_case(op, attrs, [(x, F32)]).check(KERNEL)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "x", "attrs"), WINDOWED, ids=str)
def test_every_tier(op: str, x: tuple[int, ...], attrs: dict[str, Any]) -> None:
    anchor_case(op, attrs, [(x, F32)]).check(KERNEL, every_tier=True)


@pytest.mark.parametrize("op", ["global_avg_pool", "global_max_pool"])
@pytest.mark.parametrize("x", [(2, 3, 7, 7), (1, 3, 133), (2, 3, 7, 4, 3), (1, 2, 1, 200), (0, 3, 4, 4)], ids=str)
def test_global(op: str, x: tuple[int, ...]) -> None:
    anchor_case(op, {}, [(x, F32)], epilogue="mixed", bias_axis=1).check(KERNEL)


@pytest.mark.parametrize(("dtype", "tol"), [(I8, 0), (U8, 0), (F16, 0), (F64, 0)])
def test_maximum_of_other_types(dtype: DType, tol: float) -> None:
    attrs = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    anchor_case("max_pool", attrs, [((2, 3, 20, 19), dtype)]).check(KERNEL, tol)
    anchor_case("global_max_pool", {}, [((2, 3, 20, 19), dtype)]).check(KERNEL, tol)


def test_average_of_f64() -> None:
    anchor_case("avg_pool", {"kernel": (2, 2)}, [((1, 2, 9, 9), F64)]).check(KERNEL, 1e-13)


def test_nan_and_infinity_reach_the_maximum() -> None:
    x = np.arange(64, dtype=np.float32).reshape(1, 1, 8, 8)
    x[0, 0, 2, 2], x[0, 0, 6, 6], x[0, 0, :2, :2] = np.nan, np.inf, -np.inf
    anchor_case("max_pool", {"kernel": (2, 2), "strides": (2, 2)}, [x]).check(KERNEL, 0)


@pytest.mark.parametrize("op", ["max_pool", "avg_pool"])
def test_strided_input_and_epilogue(op: str) -> None:
    attrs = {"kernel": (2, 3), "strides": (1, 2)}
    case = anchor_case(op, attrs, [((2, 4, 9, 11), F32)], layouts={0: (0, 2, 3, 1)}, epilogue="mixed", bias_axis=1)
    case.check(KERNEL)


def test_global_pool_of_a_strided_input() -> None:
    for op in ("global_avg_pool", "global_max_pool"):
        anchor_case(op, {}, [((2, 4, 9, 11), F32)], layouts={0: (0, 2, 3, 1)}).check(KERNEL)


def test_four_spatial_dimensions_are_refused() -> None:
    body = anchor_case("max_pool", {"kernel": (1, 1, 1, 2)}, [((1, 1, 2, 2, 2, 4), F32)]).body
    with pytest.raises(UnsupportedError, match="too many dimensions"):
        family_of(KERNEL).tilings(KERNEL, body, detect_cpu())


@pytest.mark.parametrize(
    ("stride", "dtype", "line"),
    [(3, F32, 12), (-3, F32, 12), (16, F32, 64), (17, F32, 64), (3, DType.F16, 6), (8, F64, 64), (7, F64, 56)],
)
def test_elements_apart_take_a_load_and_of_images_that_do_not_stay_near_their_line(
    stride: int, dtype: DType, line: int
) -> None:
    machine: Any = TARGETS["avx512"]()
    cpu = replace(machine, l2_bytes=1 << 20, l3_bytes_per_ns=16.0)
    form = pool_form(anchor_case("max_pool", {"kernel": (2, 2)}, [((1, 3, 8, 8), dtype)]).body)
    form = replace(form, strides=(*form.strides[:4], stride))
    assert _apart_ns(form, 1 << 20, cpu) == APART_NS
    assert _apart_ns(form, (1 << 20) + 1, cpu) == pytest.approx(APART_NS + line / 16)
