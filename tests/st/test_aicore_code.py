"""Preload and split on the simulated device: what they are for they do, where they gain nothing `auto` leaves them off,
and no setting changes a bit of the results."""

from __future__ import annotations

from functools import cache
from typing import Any

import models
import numpy as np
import pytest

import superkernel as sk
from superkernel.backends.aicore.report import SimReport
from superkernel.builder import GraphBuilder
from superkernel.ir.graph import Graph
from superkernel.reference.random_inputs import random_inputs
from superkernel.runtime.kernel import Kernel
from superkernel.target.aicore import AicoreTarget, load_target

FETCH_STALLS = ("fetch", "prefetch_late")
FUNCTIONS = ("tanh", "sigmoid", "exp", "gelu", "silu", "erf", "elu", "sin", "cos", "relu", "softplus", "mish")
CUT = 0.2  # what may be left of a stall that is cut by 80 %


@cache
def many_kernels(rounds: int = 2) -> Graph:
    """A chain of pointwise kernels, each another function; unfused. The second round comes back to them."""
    b = GraphBuilder("many_kernels")
    x = b.input("x", (96, 512))
    for _ in range(rounds):
        for name in FUNCTIONS:
            x = getattr(b, name)(x)
            if name in ("exp", "softplus"):
                x = x * 0.125
    b.output(x, name="y")
    return b.graph()


def small_cache() -> AicoreTarget:
    """mini with instruction caches that the kernels above do not fit into."""
    return load_target("mini").replaced({"icache.cube_bytes": 8192, "icache.vector_bytes": 8192})


def compiled(graph: Graph, target: Any, **options: Any) -> Kernel:
    return sk.compile(graph, target=target, options=options)


def run(kernel: Kernel) -> tuple[SimReport, dict[str, bytes]]:
    result = kernel.run(random_inputs(kernel.inputs, 0))
    assert isinstance(result.report, SimReport)
    return result.report, {name: array.tobytes() for name, array in result.outputs.items()}


def stalled(report: SimReport) -> int:
    """Cycles that vector control units stood still for code."""
    return sum(row.stalls.get(cause, 0) for row in report.cores if row.kind == "vector" for cause in FETCH_STALLS)


@pytest.mark.parametrize("target", ["mini", "small cache", "a3"])
def test_preload_cuts_the_stalls_of_code_that_is_larger_than_the_cache(target: str) -> None:
    chosen = small_cache() if target == "small cache" else target
    graph = many_kernels()
    cold, without = run(compiled(graph, chosen, fuse=False, preload="none", split=1))
    warm, outputs = run(compiled(graph, chosen, fuse=False, preload="auto", split=1))
    assert cold.code_bytes > load_target("mini").icache.vector_bytes
    assert cold.prefetched == {"timely": 0, "late": 0, "useless": 0}
    assert stalled(warm) <= CUT * stalled(cold)
    assert warm.cycles <= (0.85 if target == "a3" else 1) * cold.cycles
    assert outputs == without
    assert warm.prefetched["timely"] > 10 * warm.prefetched["late"]
    assert sum(row.prefetched["timely"] for row in warm.subops) <= warm.prefetched["timely"]
    assert f"{warm.prefetched['timely']} timely" in warm.text()


def test_auto_leaves_preload_off_where_fetching_costs_nothing() -> None:
    target = load_target("mini").replaced({"icache.miss_latency_cycles": 1, "icache.fill_bytes_per_cycle": 128})
    graph = many_kernels(1)
    kernel = compiled(graph, target, fuse=False)
    summary = kernel.summary()
    assert summary["preload"] == "none"
    assert summary["prefetched_lines"] == 0
    assert any("off: " in reason for reason in summary["code_reasons"])
    assert run(kernel)[0].prefetched == {"timely": 0, "late": 0, "useless": 0}


def _same_line(kernel: Kernel) -> tuple[SimReport, int, dict[str, bytes]]:
    report, outputs = run(kernel)
    return report, report.memory["fetch_same_line_cycles"], outputs


def test_split_cuts_what_cores_wait_for_each_other_where_they_enter_cold_code_together() -> None:
    options = {"fuse": False, "sync": "full", "early_start": False, "preload": "none"}
    one, serial, expected = _same_line(compiled(many_kernels(1), "a3", **options, split=1))
    several, apart, outputs = _same_line(compiled(many_kernels(1), "a3", **options, split=8))
    assert apart <= CUT * serial
    assert several.cycles < one.cycles
    assert several.copies == 8
    assert outputs == expected
    chosen = compiled(many_kernels(1), "a3", **options, split="auto")
    assert chosen.summary()["code_copies"] > 1
    assert run(chosen)[0].cycles < one.cycles


def test_auto_leaves_split_at_one_where_code_is_there_in_time() -> None:
    for target, options in (("a3", {"sync": "full", "early_start": False}), ("mini", {"preload": "none"})):
        kernel = compiled(many_kernels(1), target, fuse=False, **options)
        summary = kernel.summary()
        assert summary["code_copies"] == 1
        assert summary["code_reasons"][-1].startswith("split 1: ")


SETTINGS: tuple[dict[str, Any], ...] = (
    {"preload": "none", "split": 1},
    {"preload": "per-func", "split": 3, "func_align": 4},
    {"preload": "max", "split": 64},
    {"preload": "auto", "split": "auto"},
    {"preload": "max", "split": 2, "sync": "full", "early_start": False},
)


@pytest.mark.parametrize("name", ["many_kernels", "decode_step"])
def test_no_setting_changes_a_bit(name: str) -> None:
    graph = many_kernels(1) if name == "many_kernels" else models.decode_step(layers=1)
    fuse = name != "many_kernels"
    found = []
    for options in SETTINGS:
        kernel = compiled(graph, "mini", fuse=fuse, **options)
        _, outputs = run(kernel)
        states = {state: array.tobytes() for state, array in kernel.states.items()}
        found.append(outputs | states)
    assert all(other == found[0] for other in found[1:])


def test_lanes_of_a_group_fetch_their_own_functions() -> None:
    """A product whose two vector cores run different functions: few prefetches are for nothing."""
    rng = np.random.default_rng(0)
    b = GraphBuilder("lanes")
    x = b.input("x", (64, 128))
    for number in range(3):
        x = b.gelu(x @ b.constant(rng.standard_normal((128, 128), np.float32) * 0.1, name=f"w{number}") + x)
    b.output(x, name="y")
    kernel = compiled(b.graph(), "mini")
    report, _ = run(kernel)
    assert kernel.summary()["preload"] == "auto"
    assert report.prefetched["useless"] <= 0.2 * sum(report.prefetched.values())
