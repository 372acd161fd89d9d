"""Products whose depth is cut into passes: results, declared accesses, independence of the split, and the choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from aicore_check import check_aicore
from anchor_bodies import AnchorCase, anchor_case

import superkernel
from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.builder import GraphBuilder
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate
from superkernel.registry.records import Policy
from superkernel.registry.requirement import body_of, parse_requirement
from superkernel.scheduler.families.aicore.base import AicoreKernelType
from superkernel.scheduler.families.aicore.cube import DepthCut
from superkernel.scheduler.families.aicore.matmul import MatmulFamily
from superkernel.scheduler.families.aicore.matmul_split import WORKSPACE_SHARE, SplitTiling, split_candidates
from superkernel.scheduler.families.aicore.matmul_tiling import LEFT, RIGHT
from superkernel.target.aicore import AicoreTarget, load_target

KERNEL = "aicore.matmul"
F16, BF16 = DType.of("f16"), DType.of("bf16")
TOLERANCE = {F16: 2e-3, BF16: 1e-2}


def tiling_of(
    case: AnchorCase, tile: tuple[int, int], cut: DepthCut, block: int, *, stage: int, parts: int, spare: int,
    kept: str = LEFT, transposed: bool = False,
) -> SplitTiling:  # fmt: skip
    (m, _), (_, n) = (a.shape for a in case.arrays[:2])
    rows, columns = (n, m) if transposed else (m, n)
    return SplitTiling(
        kept, *tile, cut, 1, 2, 1, 2, 1, -(-rows // tile[0]), -(-columns // tile[1]), 32, 16, block=block, stage=stage,
        parts=parts, spare=spare, transposed=transposed,
    )  # fmt: skip


def check(
    shape: tuple[int, int, int], tiling: dict[str, Any], dtype: DType = F16, epilogue: str = "store",
    constants: Sequence[int] = (),
) -> None:  # fmt: skip
    m, k, n = shape
    case = anchor_case("matmul", {}, [((m, k), dtype), ((k, n), dtype)], constants=list(constants), epilogue=epilogue)
    made = tiling_of(case, **tiling)
    check_aicore(
        KERNEL, case.body, case.arrays, case.expected, tiling=made, tol=TOLERANCE[dtype], target=load_target("mini"),
        splits=1,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_one_stage_per_pass(dtype: DType, transposed: bool) -> None:
    """What the stages before left is read again; no spare place in the window."""
    cut = DepthCut(384, 192, 64, 32)
    given = {"tile": (32, 16), "cut": cut, "block": 3, "stage": 1, "parts": 2, "spare": 0, "transposed": transposed}
    check((96, 384, 96), given, dtype)


def test_last_tiles_are_smaller() -> None:
    cut = DepthCut(384, 192, 64, 16)
    given = {"tile": (48, 16), "cut": cut, "block": 6, "stage": 2, "parts": 4, "spare": 1, "transposed": True}
    check((93, 384, 285), given, epilogue="mixed")


def test_right_factor_kept_and_a_shorter_last_stage() -> None:
    given = {"tile": (16, 32), "cut": DepthCut(576, 192, 64, 32), "block": 6, "stage": 2, "parts": 2, "spare": 1}
    check((285, 576, 93), {**given, "kept": RIGHT}, epilogue="mixed")


@pytest.mark.parametrize("transposed", [False, True])
def test_a_constant_factor(transposed: bool) -> None:
    """Packed, kept or streamed; rows of two passes share a line, and the last tiles are smaller."""
    given: Any = {
        "tile": (32, 64), "cut": DepthCut(768, 192, 64, 32), "block": 3, "stage": 2, "parts": 1, "spare": 0,
    }  # fmt: skip
    m, n = (189, 61) if transposed else (61, 189)
    tiling = tiling_of(anchor_case("matmul", {}, [((m, 768), F16), ((768, n), F16)]), **given, transposed=transposed)
    assert tiling.abreast == 2
    assert tiling.stages == 2
    check((m, 768, n), {**given, "transposed": transposed}, constants=[1])


def product(m: int, k: int, n: int, constant: bool = False, activation: bool = False) -> Graph:
    b = GraphBuilder("product")
    weights = np.random.default_rng(7).standard_normal((k, n), np.float32).astype(np.float16) / np.float16(8)
    right = b.constant(weights) if constant else b.input("b", (k, n), "f16")
    c = b.input("a", (m, k), "f16") @ right
    b.output(b.relu(c) if activation else c, name="c")
    return b.graph()


@pytest.mark.parametrize(
    ("shape", "constant", "is_split"),
    [
        ((3072, 3072, 3072), False, True),
        ((3072, 3072, 3072), True, True),
        ((1536, 3072, 1536), False, False),  # a block per core
        ((3072, 4096, 3072), False, False),
        ((3072, 6144, 3072), True, True),
        ((6144, 6144, 6144), True, False),  # more than L2 has room for
    ],
    ids=str,
)
def test_chosen_where_it_pays(shape: tuple[int, int, int], constant: bool, is_split: bool) -> None:
    compiled = superkernel.compile(product(*shape, constant), target="a3")._compiled
    assert isinstance(compiled, AicoreCompiled)
    tiling = compiled.schedule.tilings[0]
    assert isinstance(tiling, SplitTiling) is is_split
    if isinstance(tiling, SplitTiling):
        assert tiling.kernel_type is AicoreKernelType.MIX_1_2
        assert tiling.scratch_bytes * 24 <= load_target("a3").l2.capacity_bytes // 2


def test_cuts_fill_the_memories() -> None:
    """Each part of what fits is as large as it may be, to the byte; a little less memory leaves out what filled it."""
    device = load_target("a3")
    body = anchor_body("matmul(f16[3072,3072], f16[3072,3072])", device)
    memory, found = device.memory, list(split_candidates(body, device))
    for t in found:
        cut, pieces = t.cut, t.cut.group // t.cut.chunk
        assert 2 * t.rows * t.columns * 4 <= memory.l0c_bytes
        assert 2 * t.rows * cut.step * 2 <= memory.l0a_bytes
        assert 2 * t.columns * cut.step * 2 <= memory.l0b_bytes
        assert (t.rows * (pieces + t.spare) + 4 * t.columns) * cut.chunk * 2 <= memory.l1_bytes
        assert t.scratch_bytes * device.device.groups * WORKSPACE_SHARE <= device.l2_room_bytes
    sizes = {(t.rows, t.columns) for t in found}
    assert max(2 * rows * columns * 4 for rows, columns in sizes) == memory.l0c_bytes
    less = device.replaced({"memory.l0c_bytes": memory.l0c_bytes - 1024})
    left = {(t.rows, t.columns) for t in split_candidates(body, less)}
    assert left == {(rows, columns) for rows, columns in sizes if 8 * rows * columns < memory.l0c_bytes}


def anchor_body(text: str, device: AicoreTarget) -> Body:
    body = body_of(parse_requirement(text, device, Policy()))
    assert body is not None
    return body


def test_not_chosen_with_an_epilogue() -> None:
    compiled = superkernel.compile(product(3072, 3072, 3072, activation=True), target="a3")._compiled
    assert isinstance(compiled, AicoreCompiled)
    assert not isinstance(compiled.schedule.tilings[0], SplitTiling)


@pytest.mark.parametrize(
    ("shape", "constant"), [((192, 3072, 1024), False), ((192, 3072, 1024), True), ((1152, 3072, 512), False)], ids=str
)
def test_simulated(shape: tuple[int, int, int], constant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled program on the device, which looks for races and reads of what nobody wrote: a panel per block, or
    two blocks of a panel on each core."""
    monkeypatch.setattr(MatmulFamily, "tilings", lambda _, __, body, target: tuple(split_candidates(body, target))[:1])
    rng = np.random.default_rng(5)
    graph = product(*shape, constant)
    kernel = superkernel.compile(graph, target="mini")
    compiled = kernel._compiled
    assert isinstance(compiled, AicoreCompiled)
    assert isinstance(compiled.schedule.tilings[0], SplitTiling)
    inputs = {n: (rng.standard_normal(t.shape) / 8).astype(np.float16) for n, t in graph.inputs.items()}
    want = evaluate(graph, inputs)["c"].astype(np.float64)
    assert np.abs(kernel(**inputs).astype(np.float64) - want).max() < 1e-2
