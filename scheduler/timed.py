"""Modelled times of kernels held to measured ones (`target/timings.py`)."""

from __future__ import annotations

from functools import lru_cache

from superkernel.ir.body import Body, Role
from superkernel.scheduler.tiling import CostedTiling, TargetT

MODELLED_MIN_NS = 1.0


def measured_share(kernel: str, body: Body, tiling: CostedTiling[TargetT], target: TargetT) -> float | None:
    """The measured time of all units on one core as a share of the modelled one; None where nothing was measured."""
    measured_ns = target.measured_ns(lambda: code_text(kernel, body, tiling), constant_bytes(body))
    if measured_ns is None:
        return None
    return measured_ns / max(MODELLED_MIN_NS, tiling.cost_ns(body, 0, tiling.units, target))


@lru_cache(maxsize=4096)
def code_text(kernel: str, body: Body, tiling: CostedTiling[TargetT]) -> str:
    """What determines a kernel function on any one machine."""
    return f"{kernel}\n{body.text}\n{tiling!r}"


def constant_bytes(body: Body) -> int:
    """Of all constants that it reads, as they are stored in the graph."""
    return sum(operand.type.nbytes for operand in body.operands if operand.role is Role.CONSTANT)
