"""Values handed out of a fused run: right, complete, and without a change to anything else."""

from __future__ import annotations

from pathlib import Path

import models
import numpy as np
import pytest
from aicore_systems import fused_model

import superkernel as sk
from superkernel.backends.aicore.report import SimReport
from superkernel.core.dtypes import DType
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate
from superkernel.reference.random_inputs import random_inputs
from superkernel.transforms.precision import error_bound

GRAPHS = (models.transformer(layers=1), models.decode_step(layers=1), fused_model())


@pytest.mark.parametrize("target", ["mini", "host"])
@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.name)
def test_values_are_those_of_the_reference_and_outputs_stay(graph: Graph, target: str) -> None:
    inputs = random_inputs(graph.inputs, 0)
    plain = sk.compile(graph, target=target).run(inputs)
    kernel = sk.compile(graph, target=target, options={"dump": ("*",)})
    result = kernel.run(inputs)
    assert list(kernel.outputs) == list(result.outputs) == list(graph.outputs)
    for name, array in plain.outputs.items():
        assert np.array_equal(array, result.outputs[name])
    if isinstance(result.report, SimReport):
        assert result.report.launches == 1
    named = [name for name in result.dumps if name in graph.types]
    assert len(named) >= len(kernel._compiled.schedule.subops) // 2
    exact = evaluate(graph, inputs, wide=True, keep=named)
    bound = error_bound(graph, DType.F16) if target == "mini" else 1e-5
    for name in named:
        scale = float(np.abs(exact[name]).max())
        assert np.abs(result.dumps[name].astype(np.float64) - exact[name]).max() <= bound * scale, name  # type: ignore[operator]


@pytest.mark.parametrize("target", ["mini", "host"])
def test_names(target: str) -> None:
    """A node, a value inside a kernel, an output, a pattern."""
    graph = models.transformer(layers=1)
    inputs = random_inputs(graph.inputs, 0)
    names = ("layer0/add_1", "layer0/layer_norm_0", "y", "*attention*")
    result = sk.compile(graph, target=target, options={"dump": names}).run(inputs)
    assert {"layer0/add_1", "layer0/layer_norm_0", "y"} < set(result.dumps)
    assert len(result.dumps) == 4
    assert np.array_equal(result.dumps["y"], result.outputs["y"])
    exact = evaluate(graph, inputs, wide=True, keep=["layer0/add_1"])["layer0/add_1"]
    assert np.abs(result.dumps["layer0/add_1"] - exact).max() <= 2e-3 * np.abs(exact).max()


def test_calls_return_the_graphs_own_outputs_only() -> None:
    graph = models.mlp()
    x = random_inputs(graph.inputs, 0)["x"]
    expected = sk.compile(graph)(x)
    kernel = sk.compile(graph, options={"dump": ["matmul_0"]})
    got = kernel(x)
    assert isinstance(got, np.ndarray)
    assert np.array_equal(got, expected)
    assert list(kernel.run([x], executor="reference").outputs) == ["y"]
    with pytest.raises(sk.UnsupportedError, match="dumps"):
        kernel.bind(x)


def test_saved_kernels_keep_their_dumps(tmp_path: Path) -> None:
    graph = models.mlp()
    inputs = random_inputs(graph.inputs, 0)
    kernel = sk.compile(graph, options={"dump": ("relu_0",)})
    kernel.save(tmp_path / "k.skm")
    again = sk.load(tmp_path / "k.skm").run(inputs).dumps
    assert np.array_equal(again["relu_0"], kernel.run(inputs).dumps["relu_0"])


@pytest.mark.parametrize("target", ["mini", "host"])
def test_names_that_mean_nothing_are_all_said(target: str) -> None:
    with pytest.raises(sk.InputError) as caught:
        sk.compile(models.mlp(), target=target, options={"dump": ("nix", "matmul_0", "*nix*")})
    assert [v.location for v in caught.value.violations] == ["option 'dump'"] * 2


@pytest.mark.parametrize("target", ["mini", "host"])
def test_one_switch_for_all_synchronisation(target: str) -> None:
    graph = models.transformer(layers=1)
    inputs = random_inputs(graph.inputs, 0)
    kernel = sk.compile(graph, target=target, options={"debug_sync_all": True})
    named = sk.compile(graph, target=target, options={"sync": "full", "early_start": False})
    assert kernel.plan == named.plan
    assert np.array_equal(kernel.run(inputs).outputs["y"], sk.compile(graph, target=target).run(inputs).outputs["y"])
