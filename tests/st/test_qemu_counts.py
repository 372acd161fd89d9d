"""Instructions and missed lines of code per hart: the emulator's plugin counts what the simulator counts, for any
geometry of the cache, with and without prefetches, in every timing."""

from __future__ import annotations

import os
import shutil
from typing import Any

import models
import pytest
from firmware_bench import needs_qemu

import superkernel as sk
from superkernel import _core
from superkernel.analysis import crosscheck
from superkernel.backends.aicore import qemu, qemu_counts
from superkernel.backends.aicore.qemu_counts import HartCounts, plugin_path, simulated_counts
from superkernel.backends.aicore.qemu_process import PROGRAM
from superkernel.backends.aicore.qemu_schedule import EngineSchedule
from superkernel.reference.random_inputs import random_inputs
from superkernel.target.aicore import load_target

pytestmark = needs_qemu
needs_plugin = pytest.mark.skipif(
    os.environ.get("SK_REQUIRE_QEMU") != "1" and (shutil.which(PROGRAM) is None or plugin_path() is None),
    reason="the emulator does not load the plugin",
)

SMALL: dict[str, Any] = {
    "icache.cube_bytes": 4096,
    "icache.vector_bytes": 2048,
    "icache.line_bytes": 64,
    "icache.ways": 2,
}


@needs_plugin
@pytest.mark.parametrize("changes", [{}, SMALL, {**SMALL, "icache.ways": 1}], ids=("usual", "small", "direct"))
@pytest.mark.parametrize("preload", ["none", "max"])
def test_counts_are_the_simulators(changes: dict[str, Any], preload: str) -> None:
    graph = models.transformer(layers=1, tokens=16, width=64, heads=4)
    kernel = sk.compile(graph, target=load_target("mini").replaced(changes), options={"preload": preload})
    inputs = random_inputs(graph.inputs, 0)
    executable, io = kernel.emulation(inputs)
    program = executable.program
    want = simulated_counts(program.simulate(io).launches[0], program.image.image)
    assert (sum(c.prefetches or 0 for c in want) > 0) is (preload == "max")
    assert sum(c.misses or 0 for c in want) > 0
    for schedule in (EngineSchedule("now"), EngineSchedule("random", 2)):
        _, run = kernel.emulate(inputs, schedule, count=True)
        assert run.counts == (want,)


def test_other_counts_are_told() -> None:
    one = ((HartCounts(10, 2, 3), HartCounts(7, 1, 0)),)
    assert crosscheck._same_counts(one, one)
    assert not crosscheck._same_counts(((HartCounts(10, 2, 3), HartCounts(8, 1, 0)),), one)
    assert not crosscheck._same_counts(((HartCounts(10, 3, 3), HartCounts(7, 1, 0)),), one)
    assert crosscheck._same_counts(((HartCounts(10, None, None), HartCounts(7, 1, 0)),), one)


@needs_plugin
def test_without_the_plugin_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plugin_path() is not None
    monkeypatch.setattr(qemu, "plugin_path", lambda: None)
    kernel = sk.compile(models.mlp(), target="mini")
    inputs = random_inputs(kernel.inputs, 0)
    assert kernel.emulate(inputs, count=True)[1].counts == ()
    result = crosscheck.crosscheck(models.mlp(), inputs, runs=[EngineSchedule("late")])
    assert result.ok
    assert result.rows[-1].counts is None


def test_a_plugin_that_is_none_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / qemu_counts.PLUGIN).write_bytes(b"no shared object")
    monkeypatch.setattr(_core, "__file__", str(tmp_path / "_core.so"))
    qemu_counts.plugin_path.cache_clear()
    try:
        assert qemu_counts.plugin_path() is None
        (tmp_path / qemu_counts.PLUGIN).unlink()
        qemu_counts.plugin_path.cache_clear()
        assert qemu_counts.plugin_path() is None
    finally:
        qemu_counts.plugin_path.cache_clear()
