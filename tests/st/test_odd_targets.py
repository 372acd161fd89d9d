"""Targets that nobody built: groups of other shapes, small memories, few flags. A graph compiles and agrees with the
reference, or is refused by the field of the target that is too small; nothing else.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel.errors import UnsupportedError
from superkernel.graph import Graph
from superkernel.random_inputs import random_inputs
from superkernel.reference import evaluate

HEAD = 'schema_version = 1\nname = "odd"\nbase = "mini"\ndescription = "odd"\n'


def _weight(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32) / 8


def _mlp() -> Graph:
    rng, b = np.random.default_rng(0), sk.GraphBuilder("mlp")
    x = b.input("x", (33, 70))
    y = b.gelu(x @ b.constant(_weight(rng, 70, 50)))
    b.output(b.softmax(b.tanh(y @ b.constant(_weight(rng, 50, 50))) + y, axis=-1), "y")
    return b.graph()


def _image() -> Graph:
    rng, b = np.random.default_rng(0), sk.GraphBuilder("image")
    x = b.input("x", (1, 8, 17, 17))
    y = b.gelu(b.conv(x, b.constant(_weight(rng, 12, 8, 3, 3)), pads=(1, 1, 1, 1)))
    b.output(b.relu(b.conv(y, b.constant(_weight(rng, 8, 12, 1, 1))) + x), "y")
    return b.graph()


def _attention() -> Graph:
    b = sk.GraphBuilder("attention")
    q, k, v = (b.input(name, (1, 2, rows, 16)) for name, rows in (("q", 19), ("k", 40), ("v", 40)))
    b.output(b.attention(q, k, v), "y")
    return b.graph()


GRAPHS = {graph.name: graph for graph in (_mlp(), _image(), _attention())}


def _compile(fields: str, graph: Graph, folder: Path) -> tuple[sk.Kernel, list[str]]:
    path = folder / "odd.toml"
    path.write_text(HEAD + fields)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return sk.compile(graph, target=str(path)), [str(w.message) for w in caught]


def _check(kernel: sk.Kernel, graph: Graph) -> None:
    inputs = random_inputs(graph.inputs, 0)
    got, want = kernel.run(inputs).outputs["y"], evaluate(graph, inputs, wide=True)["y"]
    assert np.abs(got - want).max() <= 4e-3 * np.abs(want).max()


@contextmanager
def suppress_refusal(field: str) -> Iterator[None]:
    """Nothing, or a refusal that names the field."""
    try:
        yield
    except UnsupportedError as error:
        if field not in str(error):
            raise


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize(("cubes", "vectors"), [(1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (2, 1)])
def test_groups_of_any_shape(cubes: int, vectors: int, name: str, tmp_path: Path) -> None:
    """A kernel that cannot share tiles in such groups leaves what stands behind it to others; only attention, which
    must share them, falls back, and says so."""
    fields = (
        f"[device]\ncube_cores_per_group = {cubes}\ncube_cores = {2 * cubes}\n"
        f"vector_cores_per_group = {vectors}\nvector_cores = {2 * vectors}\n"
    )
    kernel, warned = _compile(fields, GRAPHS[name], tmp_path)
    _check(kernel, GRAPHS[name])
    assert bool(warned) == (name == "attention" and (cubes, vectors) not in ((1, 1), (1, 2)))


def test_two_cube_cores_of_a_group_are_both_waited_for(tmp_path: Path) -> None:
    """Each adds to the count of the group's vector cores by itself: one wait would hear the first only."""
    b = sk.GraphBuilder("pair")
    b.output((b.input("x", (2, 1, 3)) @ b.tanh(b.input("w", (2, 3, 1)))) * 2.0, "y")
    fields = "[device]\ncube_cores_per_group = 2\ncube_cores = 4\n"
    kernel, _ = _compile(fields, b.graph(), tmp_path)
    _check(kernel, b.graph())
    assert "mode group setters cube" not in kernel.plan


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("flags", [1, 2, 4, 6])
def test_too_few_cross_core_flags(flags: int, name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"sync\.flags_per_core.*at least 7"):
        _compile(f"[sync]\nflags_per_core = {flags}\n", GRAPHS[name], tmp_path)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize(
    "memory", ["ub_bytes = 1024", "l1_bytes = 1024", "l1_bytes = 4096", "l0c_bytes = 1024", "l0a_bytes = 512"]
)
def test_small_memories(memory: str, name: str, tmp_path: Path) -> None:
    kernel = None
    with suppress_refusal(memory.split()[0]):
        kernel, _ = _compile(f"[memory]\n{memory}\n", GRAPHS[name], tmp_path)
    if kernel is not None:
        _check(kernel, GRAPHS[name])
