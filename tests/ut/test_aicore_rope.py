"""aicore.rope: halves and neighbours, tables by position, elements that do not turn, surroundings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from aicore_check import check_aicore
from aicore_timing import engine_busy, recorded
from anchor_bodies import anchor_case
from op_cases import op_body

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType
from superkernel.ir.body import Instruction, Operand, PointwiseProgram, Role
from superkernel.scheduler.families.aicore import family_of
from superkernel.scheduler.families.aicore.base import AicoreTiling, CoreRole
from superkernel.target.aicore import load_target
from superkernel.target.engines import Engine


def numbers(*shape: int, dtype: Any = "f2", seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def check(inputs: list[Any], attrs: dict[str, Any], tol: float = 2e-3, **options: Any) -> None:
    body, arrays, expected = op_body("rope", inputs, attrs, **options)
    check_aicore("aicore.rope", body, arrays, expected, tol=tol)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dtype", "tol"), [("f2", 2e-3), ("f4", 1e-5), (ml_dtypes.bfloat16, 1.6e-2)], ids=str)
def test_tables(interleaved: bool, dtype: Any, tol: float) -> None:
    attrs = {"interleaved": interleaved}
    x = numbers(2, 3, 5, 64, dtype=dtype)
    check([x, numbers(5, 32, dtype=dtype, seed=1), numbers(5, 32, dtype=dtype, seed=2), None], attrs, tol)
    wide = [numbers(2, 1, 5, 9, dtype=dtype, seed=s) for s in (1, 2)]
    check([numbers(2, 3, 5, 22, dtype=dtype), *wide, None], {**attrs, "rotary_dim": 18}, tol)


@pytest.mark.parametrize("interleaved", [False, True])
def test_positions(interleaved: bool) -> None:
    attrs = {"interleaved": interleaved}
    x, table = numbers(2, 3, 5, 64), [numbers(20, 32, seed=s) for s in (1, 2)]
    for position in (np.array(3), np.array([17]), np.array(-2), np.array([1, 30]), np.arange(10).reshape(2, 5) * 2):
        check([x, *table, position], attrs)
    check([x, *table, np.array(4, np.int32)], attrs, views={0: ((2, 5, 3, 64), (0, 2, 1, 3))})
    one = numbers(2, 3, 1, 64)
    for position in (np.array(7), np.array([2, 9]), np.array([[2], [50]])):
        check([one, *table, position], attrs)


def test_surroundings() -> None:
    x, table = numbers(2, 3, 5, 64), [numbers(20, 32, seed=s) for s in (1, 2)]
    for options in ({"epilogue": "mixed"}, {"prologue": 0}, {"epilogue": "sliced", "prologue": 0}):
        for slots in ([x, *table, np.array([1])], [x, table[0][:5].copy(), table[1][:5].copy(), None]):
            case = anchor_case("rope", {}, slots, **options)
            check_aicore("aicore.rope", case.body, case.arrays, case.expected, tol=4e-3)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dtype", "out"), [("f4", DType.F16), ("f2", DType.F32), ("f4", DType.BF16)], ids=str)
def test_results_of_another_type(interleaved: bool, dtype: str, out: DType) -> None:
    inputs = [numbers(2, 3, 5, 64, dtype=dtype), *(numbers(5, 32, dtype=dtype, seed=s) for s in (1, 2)), None]
    body, arrays, expected = op_body("rope", inputs, {"interleaved": interleaved})
    ((target, want),) = expected.items()
    (load,), (store,) = body.epilogue.inputs, body.epilogue.outputs
    steps = (Instruction("cast", (0,), out, (("dtype", out),)),)
    program = PointwiseProgram(body.epilogue.shape, (load,), steps, (replace(store, value=1),))
    operands = [*body.operands]
    operands[target] = Operand(Role.OUTPUT, TensorType(out, want.shape))
    body = replace(body, operands=tuple(operands), epilogue=program)
    check_aicore("aicore.rope", body, arrays, {target: want}, tol=1.6e-2 if out is DType.BF16 else 2e-3)


@pytest.mark.parametrize(("interleaved", "slowest"), [(False, Engine.MTE2), (True, Engine.MTE2)])
def test_pairs_travel_together(interleaved: bool, slowest: Engine) -> None:
    """Each row of x is moved once, whole; neighbours cost two gathers and two scatters more."""
    inputs = [numbers(1, 12, 256, 64), numbers(256, 32), numbers(256, 32), None]
    body, _, _ = op_body("rope", inputs, {"interleaved": interleaved})
    device = load_target("mini")
    (tiling,) = family_of("aicore.rope").tilings("aicore.rope", body, device)
    assert isinstance(tiling, AicoreTiling)
    commands = recorded("aicore.rope", body, tiling, device, 0, tiling.units)[CoreRole.VECTOR0]
    busy = engine_busy(commands, device)
    x_cycles = device.transfer_cycles("rates.gm_to_ub_gb_per_s", body.operands[0].type.nbytes)
    assert max(busy.values()) <= 1.05 * busy[slowest]
    assert busy[Engine.MTE2] <= 2 * x_cycles + 4 * 12 * 4 * device.dma.startup_cycles  # with the tables of each head
    assert busy[Engine.MTE3] <= x_cycles + 4 * 12 * device.dma.store_startup_cycles
    assert (busy[Engine.V] > 0.8 * busy[slowest]) is interleaved
