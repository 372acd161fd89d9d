"""What holds of every tiling of every kernel, whatever it is estimated to take: problems as `plan_cases` has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from emitted import contents
from plan_cases import TARGETS, problems, small_problems, tilings
from plan_draws import MACHINES, drawn_problems

from superkernel.core.dtypes import DType
from superkernel.ir.body import Body, Role
from superkernel.scheduler.tiling import pack_bytes

PER_KERNEL = 3  # tilings of a kernel and problem


def every(name: str) -> Iterator[tuple[str, str, Body, Any, Any]]:
    target = TARGETS[name]()
    small = small_problems((DType.F32, DType.F16, DType.I32), images_last=name in ("a3", "mini"))
    for text, policy in (*problems(name), *small):
        count: dict[str, int] = {}
        for kernel, body, tiling in tilings(text, policy, target):
            count[kernel] = count.get(kernel, 0) + 1
            if count[kernel] <= PER_KERNEL:
                yield f"{text}: {kernel} {tiling}", kernel, body, tiling, target


@pytest.mark.parametrize("name", ["avx512", "plain", "a3"])
def test_a_range_without_units_writes_nothing_and_costs_less_than_all(name: str) -> None:
    """At most what calling a kernel takes."""
    kernels = set()
    for where, kernel, body, tiling, target in every(name):
        kernels.add(kernel)
        whole = tiling.cost_ns(body, 0, tiling.units, target)
        for at in {0, tiling.units // 2, tiling.units}:
            assert not tiling.units or tiling.cost_ns(body, at, at, target) < whole, where
            assert not any(access.regions for access in tiling.accesses(body, at, at) if access.write), where
    assert len(kernels) > 10


@pytest.mark.parametrize("name", ["avx512", "plain", "a3"])
def test_all_units_cost_no_less_than_some_and_something(name: str) -> None:
    for where, _, body, tiling, target in every(name):
        if not tiling.units:
            continue
        whole, part = (tiling.cost_ns(body, 0, end, target) for end in (tiling.units, (tiling.units + 1) // 2))
        assert 0 < part <= whole * (1 + 1e-9), where
        assert tiling.scratch_bytes >= 0, where
        assert all(0 <= tiling.align(body, at) <= tiling.units for at in {0, tiling.units // 3, tiling.units}), where


def test_packed_constants_have_the_bytes_that_memory_keeps_for_them() -> None:
    """Without a look at their numbers."""
    machines, kinds = {name: made() for name, made in MACHINES.items()}, set()
    for name, text, policy in drawn_problems(120):
        for kernel, body, tiling in tilings(text, policy, machines[name]):
            for operand, pack in tiling.packs(body).items():
                kind = body.operands[operand].type
                if body.operands[operand].role is Role.CONSTANT and kind.size < 4000 and (pack, kind) not in kinds:
                    kinds.add((pack, kind))
                    packed = pack_bytes(pack, contents(kind))
                    assert pack.packed_bytes(kind) == packed.nbytes, f"{text}: {kernel} {pack}"
    assert len(kinds) > 60
