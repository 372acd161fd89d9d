"""aicore.kv_update: positions inside and out of range, in place and into another buffer, layouts of the new rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from aicore_check import CompiledKernel, check_aicore
from op_cases import op_body

from superkernel.ir.body import Body, Role
from superkernel.scheduler.families.aicore import family_of
from superkernel.scheduler.families.aicore.update import UpdateTiling
from superkernel.target.aicore import load_target


def numbers(*shape: int, dtype: str = "f2", seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def check(inputs: list[Any], **options: Any) -> None:
    body, arrays, expected = op_body("kv_update", inputs, **options)
    check_aicore("aicore.kv_update", body, arrays, expected, tol=0)
    operands = (replace(body.operands[0], role=Role.INOUT), *body.operands[1:3])
    epilogue = replace(body.epilogue, outputs=(replace(body.epilogue.outputs[0], target=0),))
    in_place = Body(
        body.op, body.attrs, operands, body.anchor_inputs, body.anchor_input_types, body.anchor_outputs, epilogue
    )
    check_aicore("aicore.kv_update", in_place, arrays[:3], {0: expected[3]}, tol=0, exact_writes=False)


@pytest.mark.parametrize("position", [0, 3, 99, -4])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_positions(position: int, dtype: str) -> None:
    check([numbers(2, 3, 8, 20, dtype=dtype), numbers(2, 3, 2, 20, dtype=dtype, seed=1), np.array([position])])


def test_decoding() -> None:
    check([numbers(1, 12, 64, 64), numbers(1, 12, 1, 64, seed=1), np.array(17, np.int32)])
    view = {1: ((1, 1, 12, 64), (0, 2, 1, 3))}
    check([numbers(1, 12, 64, 64), numbers(1, 12, 1, 64, seed=1), np.array(17)], views=view)


def test_prefill() -> None:
    new = numbers(1, 4, 50, 64, seed=1)
    check([numbers(1, 4, 128, 64), new, np.array(5)])
    check([numbers(1, 4, 128, 64), new, np.array(100)], views={1: ((1, 50, 4, 64), (0, 2, 1, 3))})


def test_a_head_longer_than_the_memory() -> None:
    check([numbers(1, 2, 1100, 128), numbers(1, 2, 1000, 128, seed=1), np.array(60)])


def test_decoding_takes_one_transfer_each_way() -> None:
    inputs = [numbers(1, 12, 64, 64), numbers(1, 12, 1, 64, seed=1), np.array(17)]
    body, _, _ = op_body("kv_update", inputs)
    operands = (replace(body.operands[0], role=Role.INOUT), *body.operands[1:3])
    epilogue = replace(body.epilogue, outputs=(replace(body.epilogue.outputs[0], target=0),))
    in_place = replace(body, operands=operands, epilogue=epilogue)
    device = load_target("mini")
    (tiling,) = family_of("aicore.kv_update").tilings("aicore.kv_update", in_place, device)
    assert isinstance(tiling, UpdateTiling)
    compiled = CompiledKernel("aicore.kv_update", in_place, tiling, device)
    memory = bytearray(1 << 20)
    compiled.run(memory, [compiled.base + k * (1 << 17) for k in range(3)], compiled.base, 0, tiling.units)
    (commands,) = compiled.commands.values()
    assert sorted(c.name for c in commands if c.name not in ("set_flag", "wait_flag")) == ["gm_to_ub", "ub_to_gm_2d"]
