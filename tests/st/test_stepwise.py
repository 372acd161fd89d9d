"""Launches beside busy neighbours: sub-operator by sub-operator, each core's part by whoever has time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import models
import numpy as np
import pytest

import superkernel as sk
from superkernel import _core
from superkernel.ir.graph import Graph

NEVER, BESIDE_OTHERS, ALWAYS = range(3)


@contextmanager
def launches(stepwise: int) -> Iterator[None]:
    _core.set_option("stepwise", stepwise)
    try:
        yield
    finally:
        _core.set_option("stepwise", BESIDE_OTHERS)


def inputs_of(graph: Graph, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(kind.shape, np.float32) if kind.dtype.name == "F32" else np.full(kind.shape, seed)
        for name, kind in graph.inputs.items()
    }


def bits(kernel: sk.HostKernel, inputs: dict[str, Any]) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in kernel.run(inputs).outputs.items()}


@pytest.mark.filterwarnings("ignore::superkernel._core.OversubscriptionWarning")
@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("model", [models.transformer, models.decode_step])
def test_results_are_those_of_fused_launches(model: Callable[[], Graph], threads: int) -> None:
    """Of both in turn: states go on, counters stay what they must be."""
    graph = model()
    kernels = [sk.compile(graph, threads=threads) for _ in range(2)]
    assert kernels[0].certificate.stepwise
    for launch in range(6):
        inputs = inputs_of(graph, launch)
        with launches(NEVER):
            fused = bits(kernels[0], inputs)
        before = _core.pool_info()["stepwise"]
        with launches(ALWAYS if launch % 3 else NEVER):
            assert bits(kernels[1], inputs) == fused
        assert _core.pool_info()["stepwise"] == before + (launch % 3 != 0)


def test_callers_of_several_kernels_take_turns() -> None:
    graphs = [models.transformer(), models.transformer(tokens=4, seed=1)]
    kernels = [sk.compile(graph, threads=2) for graph in graphs]
    inputs = [inputs_of(graph, 5) for graph in graphs]
    with launches(NEVER):
        expected = [bits(kernel, given) for kernel, given in zip(kernels, inputs, strict=True)]
    right: list[bool] = []

    def call(n: int) -> None:
        right.extend(bits(kernels[n], inputs[n]) == expected[n] for _ in range(200))

    with launches(ALWAYS):
        threads = [threading.Thread(target=call, args=(n,)) for n in (0, 1, 0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(right) == 600
    assert all(right)


def test_kernels_that_call_python_are_launched_fused() -> None:
    """Python is for the caller's thread alone."""
    graph = models.transformer(layers=1)
    kernel = sk.compile(graph, threads=2, options={"deny": ("host.attention*",), "fallback": "allow"})
    assert kernel.certificate.stepwise
    assert kernel.summary()["fallbacks"]
    before = _core.pool_info()["stepwise"]
    with launches(ALWAYS):
        kernel.run(inputs_of(graph, 1))
    assert _core.pool_info()["stepwise"] == before


SPIN = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True)\nwhile True: pass"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a worker needs a CPU that is not the caller's")
def test_a_neighbour_is_noticed() -> None:
    """A program that spins on the worker's CPU, until launches go by steps."""
    graph = models.transformer(layers=2, width=256, tokens=64)
    kernel, inputs = sk.compile(graph, threads=2), inputs_of(graph, 1)
    expected = bits(kernel, inputs)
    cpu = _core.pool_info()["worker_cpus"][0]
    with subprocess.Popen([sys.executable, "-c", SPIN, str(cpu)], stdout=subprocess.PIPE) as neighbour:
        try:
            assert neighbour.stdout is not None
            neighbour.stdout.readline()
            before, deadline = _core.pool_info()["stepwise"], time.monotonic() + 120
            while _core.pool_info()["stepwise"] < before + 4:
                assert time.monotonic() < deadline, "nobody noticed"
                assert bits(kernel, inputs) == expected
        finally:
            neighbour.kill()
