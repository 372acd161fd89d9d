"""Targets that nobody built: groups of other shapes, small memories, few flags. A graph compiles and agrees with the
reference, or is refused by the field of the target that is too small; nothing else.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel.core.errors import FileFormatError, UnsupportedError, VerificationError
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate
from superkernel.reference.random_inputs import random_inputs
from superkernel.target.aicore import load_target
from superkernel.target.schema import FieldSpec
from superkernel.target.sections import SECTIONS, all_fields

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
def test_too_few_cross_core_flags(flags: int, name: str) -> None:
    """Kernels whose cores exchange tiles need their own flags; the plan does without."""
    assert _outcome({"sync.flags_per_core": flags}, GRAPHS[name]) == (REFUSED if flags < 4 else RIGHT)


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


# ---- every number of a target file, as small as it may be

ILLEGAL, REFUSED, RIGHT = "illegal", "refused", "right"
TIMES = ("_ns", "_cycles", "_gb_per_s", "_percent", "_mhz", "_bytes_per_cycle")


def _numbers(section: str) -> list[FieldSpec]:
    """The fields of a section that decide more than times."""
    fields = (s for s in all_fields().values() if s.section == section and s.is_numeric and not s.is_list)
    return [s for s in fields if not s.path.endswith(TIMES) and s.path != "rates.scale"]


SECTIONS_WITH_NUMBERS = [name for name in SECTIONS if _numbers(name)]


def _outcome(fields: dict[str, Any], graph: Graph) -> str:
    """What becomes of a graph on a target with these values: right, refused by one of the fields, not a target."""
    try:
        target = load_target("mini").replaced(fields)
    except FileFormatError:
        return ILLEGAL
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kernel = sk.compile(graph, target=target)
        _check(kernel, graph)
    except UnsupportedError as error:
        first = error.violations[0]
        named = any(path in str(error) for path in fields)
        return REFUSED if named and first.expected and first.found and "-" not in first.expected else f"vague: {error}"
    except AssertionError:
        return "wrong"
    except sk.SuperKernelError as error:
        return f"{type(error).__name__}: {error}"
    return RIGHT


def _outcomes(section: str) -> dict[str, str]:
    """For each field of a section its least values; runs in a process of its own, which LLVM may end."""
    found = {}
    for spec in _numbers(section):
        low, usual = spec.quantity.low, load_target("mini").value(spec.path)
        assert isinstance(usual, (int, float))
        for value in sorted({low, min(low + 1, usual)} if low < 8 else {low, usual / 2}):
            number = spec.element(value)
            found[f"{spec.path} = {number}"] = _outcome({spec.path: number}, GRAPHS["mlp"])
    return found


@pytest.mark.parametrize("section", SECTIONS_WITH_NUMBERS)
def test_the_least_value_of_every_number(section: str) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as child:
        found = child.submit(_outcomes, section).result()
    bad = {place: said for place, said in found.items() if said not in (ILLEGAL, REFUSED, RIGHT)}
    assert not bad
    assert len(found) >= 2


def test_the_least_of_all_times_at_once() -> None:
    """Times decide choices, never results. Alone where relations between fields allow it no other way."""
    lows = {
        s.path: s.element(s.quantity.low)
        for s in all_fields().values()
        if s.is_numeric and not s.is_list and s.path.endswith(TIMES)
    }
    assert _outcome(lows, GRAPHS["mlp"]) == RIGHT


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("flags", [1, 2, 3, 4, 5, 6])
def test_too_few_flags_between_engines(flags: int, name: str) -> None:
    """A kernel whose rings have one slot each may still lack flags: it says how many it needs. Fewer than four are
    enough for none; attention gives way to NumPy before that."""
    found = _outcome({"queue.flag_ids": flags}, GRAPHS[name])
    assert found in (REFUSED, RIGHT)
    assert found == REFUSED or flags >= 4


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("flags", [7, 16])
def test_flags_that_hold_one_signal(flags: int, name: str) -> None:
    assert _outcome({"queue.flag_count_max": 1}, GRAPHS[name]) == RIGHT
    assert _outcome({"sync.flag_count_max": 1, "sync.flags_per_core": flags}, GRAPHS[name]) == RIGHT


def test_a_wrong_plan_is_no_fault_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays a finding of the verifier."""
    from superkernel.sync.aicore.planner import _Planner

    monkeypatch.setattr(_Planner, "_add_events", lambda *_, **__: None)
    with pytest.raises(VerificationError, match="not ordered"):
        sk.compile(GRAPHS["mlp"], target="mini")


def test_little_private_memory_is_told_with_what_is_needed() -> None:
    target = load_target("mini").replaced({"control.private_bytes": 1024})
    with pytest.raises(UnsupportedError, match=r"control\.private_bytes.*at least (\d+) bytes") as caught:
        sk.compile(GRAPHS["mlp"], target=target)
    need = int(caught.value.violations[0].expected.split()[2])
    enough = target.replaced({"control.private_bytes": -(-need // 16) * 16})
    _check(sk.compile(GRAPHS["mlp"], target=enough), GRAPHS["mlp"])
