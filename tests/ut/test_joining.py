"""Small rules that say which legal joins do not pay: their bounds."""

from __future__ import annotations

import pytest

from superkernel.core.dtypes import DType
from superkernel.ops.opdef import Family
from superkernel.scheduler.cluster import Cluster, Load, Store
from superkernel.scheduler.profit import MAX_BUFFERS, MAX_INSTRUCTIONS, prologue_loses, too_big

F32 = DType.F32


def part(number: int, instructions: int = 0, loads: int = 0, stores: int = 0, op: str = "add") -> Cluster:
    """A cluster with buffers of its own."""
    made = Cluster(number, (4,))
    for n in range(loads):
        made.add(Load(f"in{number}.{n}", (1,), 0, F32))
    for n in range(instructions):
        made.instruct(op, (n, n), F32, ())
    made.stores += [Store(0, f"out{number}.{n}", (1,)) for n in range(stores)]
    return made


def test_instructions_of_all_parts_count() -> None:
    half = MAX_INSTRUCTIONS // 2
    assert too_big(part(0, half), part(1, half - 1)) is None
    assert str(MAX_INSTRUCTIONS) in str(too_big(part(0, half), part(1, half)))
    assert too_big(part(0, MAX_INSTRUCTIONS - 1), part(1)) is None


@pytest.mark.parametrize(("loads", "stores"), [(MAX_BUFFERS - 2, 1), (1, MAX_BUFFERS - 2), (6, MAX_BUFFERS - 7)])
def test_buffers_count_once_whoever_uses_them(loads: int, stores: int) -> None:
    most = part(0, 1, loads, stores)
    assert too_big(most, most) is None
    assert f"{MAX_BUFFERS} buffers" in str(too_big(most, part(1, 0, 1)))
    assert f"{MAX_BUFFERS} buffers" in str(too_big(most, part(1, 0, 0, 1)))


def test_long_prologues_and_costly_ones_that_are_read_again_lose() -> None:
    longest = MAX_INSTRUCTIONS // 2
    revisiting = next(f for f in Family if f.revisits)
    once = next(f for f in Family if not f.revisits)
    assert prologue_loses(part(0, longest), revisiting, 10**6) is None
    assert prologue_loses(part(0, longest + 1), once, 1) == "the prologue is long"
    costly = part(0, 1, 1, op="erf")
    assert "erf would be evaluated several times" in str(prologue_loses(costly, revisiting, 4097))
    assert prologue_loses(costly, revisiting, 4096) is None
    assert prologue_loses(costly, once, 10**6) is None
