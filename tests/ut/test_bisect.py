"""Bisection: names the sub-operator at fault, and nobody where nobody is.

Faults are put into the weights as they are packed: the graph and its reference know the right ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from aicore_systems import fused_model, random_model
from numpy.typing import NDArray

import superkernel as sk
from superkernel.analysis.bisection import Finding, bisect
from superkernel.cli import main
from superkernel.frontends.json_form import save_json
from superkernel.ir.graph import Graph
from superkernel.scheduler.tiling import pack_bytes

PACKERS = {
    "mini": "superkernel.codegen.aicore.image.pack_bytes",
    "host": "superkernel.codegen.host.constants.pack_bytes",
}
TARGETS = tuple(PACKERS)


@pytest.fixture
def damage(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, tuple[int, ...]], None]:
    """Negates a quarter of the elements of constants of a shape, in the kernels of a target."""

    def put(target: str, shape: tuple[int, ...]) -> None:
        def packed(pack: Any, values: NDArray[Any]) -> NDArray[np.uint8]:
            if values.shape == shape:
                values = values.copy()
                values.reshape(-1)[::4] *= -1
            return pack_bytes(pack, values)

        monkeypatch.setattr(PACKERS[target], packed)

    return put


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "graph", [models.transformer(layers=1), models.decode_step(layers=1), fused_model(), random_model(2)],
    ids=lambda g: g.name,
)  # fmt: skip
def test_nobody_is_blamed_without_a_fault(graph: Graph, target: str, fuse: bool) -> None:
    found = bisect(graph, target, options={"fuse": fuse})
    assert found.first is None, found.text()
    assert not found.placement
    assert all(f.verdict == "right" for f in found.findings), found.text()
    assert len(found.findings) >= 5
    assert "within the tolerance" in found.text()


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("target", TARGETS)
def test_the_first_wrong_one_is_named(target: str, fuse: bool, damage: Callable[..., None]) -> None:
    damage(target, (256, 64))  # the weights of the second product of the feed-forward part
    found = bisect(models.transformer(layers=2), target, options={"fuse": fuse})
    assert found.first is not None
    assert "layer0/matmul_5" in found.first.nodes
    wrong = [f for f in found.findings if f.verdict == "cause"]
    assert {n for f in wrong for n in f.nodes} >= {"layer0/matmul_5", "layer1/matmul_5"}
    assert len(wrong) == 2
    later = [f for f in found.findings if f.subop > found.first.subop and f not in wrong]
    assert later
    assert all(f.verdict == "arrived" for f in later), found.text()
    assert all(f.verdict == "right" for f in found.findings if f.subop < found.first.subop)
    assert "first wrong" in found.text()


@pytest.mark.parametrize("target", TARGETS)
def test_parts_of_one_buffer_are_told_apart(target: str, damage: Callable[..., None]) -> None:
    """Two sub-operators write one concatenation; the second one's table is wrong."""
    damage(target, (80, 64))
    found = bisect(fused_model(), target)
    causes = [f for f in found.findings if f.verdict == "cause"]
    assert [set(f.nodes) & {"gather_0", "matmul_0"} for f in causes] == [{"gather_0"}], found.text()


def test_tolerance() -> None:
    graph = models.mlp()
    assert bisect(graph, "mini").first is None
    strict = bisect(graph, "mini", tolerance=1e-9)
    assert strict.first is not None
    assert strict.first.subop == strict.findings[0].subop
    assert bisect(graph, "mini", tolerance=0.5).first is None


def test_values_that_are_not_finite_are_wrong() -> None:
    fine = Finding(0, "a", ("a",), "k", "v", 0.0, 0.0, 1e-3, 1e-3)
    assert fine.verdict == "right"
    assert Finding(0, "a", ("a",), "k", "v", float("inf"), 0.0, 1e-3, 1e-3).verdict == "cause"
    assert Finding(0, "a", ("a",), "k", "v", float("nan"), 0.0, 1e-3, 1e-3).verdict == "cause"
    assert Finding(0, "a", ("a",), "k", "v", 0.0, 1.0, 1e-3, 1e-3).verdict == "arrived"


def test_states_are_given_as_they_were() -> None:
    """What a cache held before the run is an input of the sub-operators that read it."""
    graph = models.decode_step(layers=1)
    inputs = {"token": np.array([3]), "position": np.array([2])}
    found = bisect(graph, "mini", inputs=inputs)
    assert found.first is None, found.text()
    assert any("cache" in f.value or "kv_update" in f.name for f in found.findings)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[..., None]) -> None:
    path = tmp_path / "model.json"
    save_json(models.mlp(), path)
    assert main(["bisect", str(path), "--target", "mini", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["first"] is None
    damage("mini", (128, 32))
    assert main(["bisect", str(path), "--target", "mini"]) == 1
    assert "first wrong" in capsys.readouterr().out
    assert main(["bisect", str(path), "--tolerance", "-1"]) == 2
    with pytest.raises(sk.InputError):
        bisect(models.mlp(), inputs={})


@pytest.mark.parametrize("target", TARGETS)
def test_a_graph_that_computes_nothing(target: str) -> None:
    """Its sub-operators only copy, so none stores a value that could be wrong."""
    b = sk.GraphBuilder("nothing")
    b.output(b.relu(b.matmul(b.input("x", (0, 16), "f32"), b.constant(np.ones((16, 8), np.float32)))), name="y")
    found = bisect(b.graph(), target)
    assert not found.findings
    assert found.first is None
    assert "computes nothing" in found.text()


@pytest.mark.parametrize("target", TARGETS)
def test_a_graph_of_one_value(target: str) -> None:
    b = sk.GraphBuilder("single")
    b.output(b.exp(b.input("x", (3,), "f32")), name="y")
    assert bisect(b.graph(), target).text().startswith("the one value of single on ")


def test_values_that_are_not_finite_are_said() -> None:
    """NaN where the reference has NaN is right, and no reason to say that all is well."""
    b = sk.GraphBuilder("odd")
    b.output(b.softmax(b.relu(b.input("x", (2, 3), "f32"))), name="y")
    found = bisect(b.graph(), inputs={"x": np.full((2, 3), np.nan, np.float32)})
    assert found.first is None
    assert [f.not_finite for f in found.findings] == [6] * len(found.findings)
    assert f"NaN or infinite: {6 * len(found.findings)} elements, the first in value" in found.text()
    fine = bisect(b.graph())
    assert "NaN" not in fine.text()
    assert not any(f.not_finite for f in fine.findings)
