"""Pools on the accelerator's vector cores: channels last and planar, every kind of window, against the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from aicore_check import check_aicore
from aicore_timing import elapsed, engine_busy, recorded
from kernel_check import Array
from op_cases import op_body, with_epilogue

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import Body, Instruction, ProgramOutput
from superkernel.scheduler.families.aicore import family_of
from superkernel.scheduler.families.aicore.base import CoreRole
from superkernel.scheduler.families.aicore.pool import PoolTiling, slab_of
from superkernel.scheduler.families.pool import pool_form
from superkernel.target.aicore import load_target
from superkernel.target.engines import Engine

TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float16): 2e-3, np.dtype(ml_dtypes.bfloat16): 1e-2}


def numbers(*shape: int, dtype: Any = np.float16, seed: int = 0) -> Array:
    values = np.random.default_rng(seed).standard_normal(shape)
    return (values if np.dtype(dtype).kind not in "iu" else values * 9 + 20).astype(dtype)


def channels_last(body: Body, arrays: list[Array | None], expected: dict[int, Array]) -> tuple[Body, dict[int, Array]]:
    """The body with its result stored channels last, the layout that images have in memory."""
    out = body.epilogue.outputs[0]
    shape = body.anchor_outputs[0].shape
    last = (shape[0], *shape[2:], shape[1])
    steps = np.cumprod((1, *last[:0:-1]))[::-1]
    strides = (int(steps[0]), int(steps[-1]), *(int(s) for s in steps[1:-1]))
    kind = replace(body.operands[out.target].type, shape=last)
    operands = list(body.operands)
    operands[out.target] = replace(operands[out.target], type=kind)
    epilogue = replace(body.epilogue, outputs=(ProgramOutput(out.value, out.target, strides),))
    moved = np.moveaxis(np.asarray(expected[out.target]), 1, -1)
    return replace(body, operands=tuple(operands), epilogue=epilogue), {out.target: moved}


def check(
    op: str,
    x: Array,
    attrs: Mapping[str, Any] | None = None,
    *,
    last: bool = True,
    target: Any = "mini",
    tilings: int = 2,
) -> None:
    """Both layouts of the input: channels last (and the result), or planar. The first tilings are checked."""
    views = None
    if last:
        shape = (x.shape[0], *x.shape[2:], x.shape[1])
        views = {0: (shape, (0, len(shape) - 1, *range(1, len(shape) - 1)))}
    body, arrays, expected = op_body(op, [x], attrs, views)
    if last:
        body, expected = channels_last(body, arrays, expected)
    device = load_target("mini") if target == "mini" else target
    found = list(family_of("aicore.pool").tilings("aicore.pool", body, device))
    tol = TOLERANCE.get(x.dtype, 0.0)
    for tiling in found[:tilings]:
        check_aicore("aicore.pool", body, arrays, expected, tiling=tiling, tol=tol, target=device, splits=1)  # type: ignore[arg-type]


WINDOWS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 64, 30, 28), {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ((2, 32, 8, 8), {"kernel": (2, 2), "strides": (2, 2)}),
    ((1, 20, 9, 13), {"kernel": (3, 2), "strides": (1, 2), "pads": (0, 1, 2, 0)}),
    ((1, 3, 11, 7), {"kernel": (5, 5), "strides": (1, 1), "pads": (2, 2, 2, 2)}),
    ((1, 16, 10, 10), {"kernel": (3, 3), "strides": (2, 2), "ceil_mode": True}),
    ((1, 16, 12, 12), {"kernel": (2, 3), "dilations": (3, 2), "pads": (3, 2, 3, 2)}),
    ((2, 17, 33), {"kernel": (4,), "strides": (3,), "pads": (1, 2)}),
    ((1, 8, 5, 6, 7), {"kernel": (3, 2, 3), "strides": (2, 1, 2), "pads": (1, 0, 1, 1, 1, 1)}),
    ((1, 8, 9, 9), {"kernel": (1, 1), "strides": (2, 2)}),
]


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(("shape", "attrs"), WINDOWS)
@pytest.mark.parametrize("op", ["max_pool", "avg_pool"])
def test_windows(op: str, shape: tuple[int, ...], attrs: dict[str, Any], last: bool) -> None:
    check(op, numbers(*shape), attrs, last=last)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int32, np.int16, np.int8, np.uint8])
def test_max_of_other_types(dtype: Any) -> None:
    for last in (True, False):
        check("max_pool", numbers(1, 20, 9, 9, dtype=dtype), {"kernel": (3, 3), "pads": (1, 1, 1, 1)}, last=last)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("padded", [True, False])
def test_means(dtype: Any, padded: bool) -> None:
    attrs = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "count_include_pad": padded, "ceil_mode": True}
    for last in (True, False):
        check("avg_pool", numbers(2, 20, 8, 9, dtype=dtype), attrs, last=last)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pool(p: int) -> None:
    attrs = {"kernel": (3, 2), "strides": (2, 2), "pads": (1, 0, 1, 0), "p": p}
    check("lp_pool", numbers(1, 16, 9, 10), attrs)
    check("lp_pool", numbers(1, 16, 9, 10), attrs, last=False)


def test_not_a_number_and_infinity() -> None:
    x = numbers(1, 16, 6, 6, dtype=np.float32)
    x[0, 3, 2, 2], x[0, 4], x[0, 5, 0, 0] = np.nan, -np.inf, np.inf
    for op in ("max_pool", "avg_pool"):
        check(op, x, {"kernel": (2, 2)})


@pytest.mark.parametrize("op", ["global_avg_pool", "global_max_pool"])
@pytest.mark.parametrize("shape", [(2, 64, 7, 7), (1, 40, 30, 30), (2, 5, 12)])
def test_global_pools(op: str, shape: tuple[int, ...]) -> None:
    for last in (True, False):
        check(op, numbers(*shape), last=last)


def test_little_memory() -> None:
    """Blocks of channels, rows and columns."""
    target = load_target("mini").replaced({"memory.ub_bytes": 8 * 1024})
    attrs = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    for op in ("max_pool", "avg_pool"):
        check(op, numbers(1, 48, 13, 40), attrs, target=target, tilings=4)
    check("max_pool", numbers(1, 48, 13, 20), attrs, last=False, target=target)


@pytest.mark.parametrize("op", ["max_pool", "avg_pool", "global_avg_pool"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_epilogues(op: str, dtype: Any) -> None:
    """A sum with a broadcast row, and the plain result stored backwards into every second element."""
    attrs = {} if op == "global_avg_pool" else {"kernel": (2, 3), "pads": (0, 1, 0, 1)}
    for views in (None, {0: ((2, 5, 6, 20), (0, 3, 1, 2))}):
        body, arrays, expected = op_body(op, [numbers(2, 20, 5, 6, dtype=dtype)], attrs, views)
        kind = body.anchor_outputs[0]
        extra = np.random.default_rng(11).standard_normal(kind.shape[-1:]).astype(dtype)
        joined, given = with_epilogue(body, arrays, "add", extra)
        want = np.asarray(expected[1])
        wide = np.zeros(joined.operands[-1].type.shape)
        wide[..., 1] = want.transpose()
        wanted = {1: want + extra.astype(np.float64), len(joined.operands) - 1: wide}
        found = family_of("aicore.pool").tilings("aicore.pool", joined, load_target("mini"))
        tol = 4e-3 if dtype is np.float16 else 2e-5
        check_aicore("aicore.pool", joined, given, wanted, tiling=found[0], tol=tol, splits=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("channels", [2, 20])
def test_results_turned_in_another_type(channels: int) -> None:
    """The sums' columns lie further apart than the transposed tile's."""
    x = numbers(1, channels, 5, 6)
    for op in ("lp_pool", "max_pool"):
        body, arrays, expected = op_body(op, [x], {"kernel": (2, 2)})
        wide = (("dtype", DType.F32), ("saturate", True))
        program = replace(
            body.epilogue, instructions=(Instruction("cast", (0,), DType.F32, wide),),
            outputs=(replace(body.epilogue.outputs[0], value=1),),
        )  # fmt: skip
        out = replace(body.operands[1], type=replace(body.operands[1].type, dtype=DType.F32))
        joined = replace(body, epilogue=program, operands=(body.operands[0], out))
        (tiling, *_) = family_of("aicore.pool").tilings("aicore.pool", joined, load_target("mini"))
        check_aicore("aicore.pool", joined, arrays, expected, tiling=tiling, tol=2e-3, splits=1)  # type: ignore[arg-type]


def test_too_little_memory_is_refused() -> None:
    target = load_target("mini").replaced({"memory.ub_bytes": 1024})
    with pytest.raises(UnsupportedError, match="ub_bytes"):
        check("max_pool", numbers(1, 64, 300, 300), {"kernel": (9, 9)}, target=target)


def test_pipeline() -> None:
    """Loading is the bottleneck, near what the slabs' bytes take, and the other engines are hidden behind it."""
    target = load_target("a3")
    attrs = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    views = {0: ((1, 112, 112, 64), (0, 3, 1, 2))}
    body, _, expected = op_body("max_pool", [np.zeros((1, 64, 112, 112), np.float16)], attrs, views)
    body, _ = channels_last(body, [], expected)
    tiling = family_of("aicore.pool").tilings("aicore.pool", body, target)[0]
    assert isinstance(tiling, PoolTiling)
    commands = recorded("aicore.pool", body, tiling, target, 0, tiling.units)[CoreRole.VECTOR0]
    busy = engine_busy(commands, target)
    assert max(busy, key=lambda e: busy[e]) is Engine.MTE2
    rows, cols = slab_of(pool_form(body), tiling)
    slab = target.transfer_cycles("rates.gm_to_ub_gb_per_s", rows * cols * tiling.channels * 2)
    assert busy[Engine.MTE2] <= 1.25 * tiling.units * (slab + target.dma.startup_cycles)
    assert elapsed(commands, target) <= 1.2 * busy[Engine.MTE2]
    assert 0.7 < tiling.cost_cycles(body, 0, tiling.units, target) / elapsed(commands, target) < 1.4
