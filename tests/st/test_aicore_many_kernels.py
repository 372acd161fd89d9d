"""Hundreds of small kernels in one program: flags that kernels share must not be set twice before they are taken, and
compiling must not leave memory behind."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.core.errors import SimulationError
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate
from superkernel.reference.random_inputs import random_inputs
from superkernel.target.engines import Engine

COUNT = 120
LEFT_KIB_MAX = 100  # per compilation


def _many(count: int = COUNT) -> Graph:
    """Kernels that wait for nobody, so that each engine runs as far ahead as the queues let it."""
    b = sk.GraphBuilder("many")
    x = b.input("x", (6, 2048), "f16")
    for i in range(count):
        b.output(b.gelu(x), f"y{i}")
    return b.graph()


def _ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel of a vector core ends with orders between two engines of which the first is ahead."""
    kept = KernelBuilder.finish

    def finish(kb: KernelBuilder) -> None:
        if not kb.role.is_cube:
            for _ in range(3):
                kb.order(Engine.MTE2, Engine.V)
        kept(kb)

    monkeypatch.setattr(KernelBuilder, "finish", finish)


OPTIONS = {"fuse": False, "simplify": False, "cache": False}


def test_orders_of_many_kernels_overflow_no_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    _ordered(monkeypatch)
    graph = _many()
    kernel = sk.compile(graph, target="mini", options=OPTIONS)
    inputs = random_inputs(graph.inputs, 0)
    expected = evaluate(graph, inputs)["y0"]
    for got in kernel.run(inputs).outputs.values():
        assert np.abs(got.astype(np.float32) - expected.astype(np.float32)).max() <= 4e-3 * np.abs(expected).max()


def test_an_order_in_one_direction_only_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above could not see, it would not be worth."""
    _ordered(monkeypatch)
    kept = KernelBuilder._flag

    def one_way(kb: KernelBuilder, name: str, source: Engine, target: Engine, flag: Any) -> None:
        if (source, target, flag) != (Engine.V, Engine.MTE2, 1):
            kept(kb, name, source, target, flag)

    monkeypatch.setattr(KernelBuilder, "_flag", one_way)
    graph = _many(20)
    with pytest.raises(SimulationError) as caught:
        sk.compile(graph, target="mini", options=OPTIONS).run(random_inputs(graph.inputs, 0))
    assert caught.value.kind == "flag_overflow"


LEAK_PROBE = """
import ctypes, gc
import numpy as np
import superkernel as sk

def resident_kib():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the allocator keeps for later is nobody's leak
    return int(open("/proc/self/statm").read().split()[1]) * 4

b = sk.GraphBuilder("small")
x = b.input("x", (8, 64))
b.output(b.softmax(b.relu(x @ b.constant(np.eye(64, dtype=np.float32))) + x, axis=-1), "y")
graph = b.graph()
held = []
for _ in range(2):
    for _ in range(15):
        sk.compile(graph, target="mini")
    held.append(resident_kib())
print((held[1] - held[0]) / 15)
"""


@pytest.mark.serial
def test_compilations_leave_little_behind() -> None:
    """In a process of its own: what other tests left to the allocator would be counted."""
    done = subprocess.run([sys.executable, "-c", LEAK_PROBE], capture_output=True, text=True, check=True, timeout=120)
    assert float(done.stdout) <= LEFT_KIB_MAX


def test_functional_mode_too_notices_what_did_not_run() -> None:
    """It counts no bytes, but who went where."""
    graph = _many(3)
    executable = sk.compile(graph, target="mini", options=OPTIONS)._compiled.executable
    io = [*random_inputs(graph.inputs, 0).values(), *(np.empty((6, 2048), np.float16) for _ in graph.outputs)]
    executable.simulate(io, mode="functional")
    idle = [dataclasses.replace(p, value=np.zeros_like(p.value)) for p in executable.image.data]  # no core has units
    assert idle
    executable.image = dataclasses.replace(executable.image, data=idle)  # type: ignore[arg-type]
    with pytest.raises(SimulationError) as caught:
        executable.simulate(io, mode="functional")
    assert caught.value.kind == "unfinished"
    assert "never entered" in str(caught.value)
