"""Streams of the kernel-writing layer: slots whose filling and draining do not nest."""

from __future__ import annotations

import pytest

from superkernel.codegen.aicore.rings import Ring, plan_flags
from superkernel.core.errors import InternalError
from superkernel.target.engines import Engine


def _stream(number: int, depth: int, producer: Engine = Engine.MTE2, consumer: Engine = Engine.MTE1) -> Ring:
    return Ring(f"s{number}", number, depth, engines=(producer, consumer))


def test_a_flag_per_slot_each_way() -> None:
    plan = plan_flags([], [], 5, [_stream(0, 2), _stream(2, 3)])
    (full0, free0), (full2, free2) = plan.streams[0], plan.streams[2]
    assert [(f.source, f.target, f.base) for f in (full0, full2)] == [(Engine.MTE2, Engine.MTE1, n) for n in (0, 2)]
    assert [(f.source, f.target, f.base) for f in (free0, free2)] == [(Engine.MTE1, Engine.MTE2, n) for n in (3, 0)]


def test_every_slot_begins_free() -> None:
    plan = plan_flags([], [], 5, [_stream(0, 2)])
    (credit,) = plan.credits
    assert (credit.source, credit.target, credit.depth) == (Engine.MTE1, Engine.MTE2, 2)


def test_flags_are_limited() -> None:
    with pytest.raises(InternalError, match="more than 5 flags from mte2 to mte1"):
        plan_flags([], [], 5, [_stream(0, 3), _stream(2, 3)])
