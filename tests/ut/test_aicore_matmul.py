"""Matrix products on the cube: results, declared accesses, independence of the split; and that the engine which should
be the bottleneck is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from aicore_check import check_aicore
from aicore_timing import elapsed, engine_busy, recorded
from anchor_bodies import AnchorCase, anchor_case

import superkernel
from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.builder import GraphBuilder
from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.tensor import TensorType
from superkernel.ir.body import Body, Instruction, Operand, PointwiseProgram, ProgramInput, ProgramOutput, View
from superkernel.ir.body import Role as Use
from superkernel.reference import evaluate
from superkernel.scheduler.families.aicore import family_of
from superkernel.scheduler.families.aicore.base import AicoreKernelType, CoreRole
from superkernel.scheduler.families.aicore.cube import DepthCut, PackFactor
from superkernel.scheduler.families.aicore.matmul import _divisions, candidates
from superkernel.scheduler.families.aicore.matmul_form import product_of
from superkernel.scheduler.families.aicore.matmul_tiling import (
    LEFT,
    PIECE_ROWS,
    RIGHT,
    MatmulTiling,
    fix_of,
    lane_bytes,
    lane_code,
    lane_size,
)
from superkernel.scheduler.families.aicore.tilecode import TileSize
from superkernel.target.aicore import AicoreTarget, load_target
from superkernel.target.engines import Engine

KERNEL = "aicore.matmul"
F32, F16, BF16, I8, I32, F64 = (DType.of(n) for n in ("f32", "f16", "bf16", "i8", "i32", "f64"))
TOLERANCE = {F16: 2e-3, BF16: 1e-2, F32: 1e-4, I8: 0.0}


@cache
def tiny() -> AicoreTarget:
    """A core whose memories are so small that everything is cut: groups, chunks, steps, pieces."""
    return load_target("mini").replaced(
        {
            "memory.l1_bytes": 12288,
            "memory.l0a_bytes": 4096,
            "memory.l0b_bytes": 4096,
            "memory.l0c_bytes": 8192,
            "memory.ub_bytes": 16384,
        }
    )


def with_tile(body: Body, target: AicoreTarget, rows: int, columns: int, kept: str = LEFT) -> MatmulTiling:
    """The cut with a tile of that size."""
    return next(t for t in _divisions(rows, columns, 1, product_of(body), body, target) if t.kept == kept)


def check(case: AnchorCase, dtype: DType = F16, target: AicoreTarget | None = None, count: int = 2) -> MatmulTiling:
    """Check the first candidates; the best one is returned."""
    device = target or load_target("mini")
    found = candidates(case.body, device)
    for tiling in found[:count]:
        check_aicore(
            KERNEL, case.body, case.arrays, case.expected, tiling=tiling, tol=TOLERANCE[dtype], target=device, splits=1
        )
    return found[0]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((1, 1), (1, 1)),
        ((37, 45), (45, 83)),
        ((1, 130), (130, 170)),
        ((2, 3, 19, 33), (33, 65)),
        ((64, 16), (16, 64)),
        ((29, 1), (1, 31)),
        ((47,), (47, 50)),
        ((130, 300), (300, 200)),
    ],
    ids=str,
)
@pytest.mark.parametrize("constants", [[1], []], ids=["packed", "computed"])
def test_shapes(a: tuple[int, ...], b: tuple[int, ...], constants: list[int]) -> None:
    check(anchor_case("matmul", {}, [(a, F16), (b, F16)], constants=constants))


@pytest.mark.parametrize(
    ("a", "b", "attrs"),
    [
        ((2, 3, 20, 33), (3, 33, 65), {}),
        ((2, 1, 20, 33), (1, 3, 33, 30), {}),
        ((40, 33), (65, 33), {"trans_b": True}),
        ((33, 40), (33, 65), {"trans_a": True}),
        ((2, 33, 40), (2, 65, 33), {"trans_a": True, "trans_b": True}),
        ((33,), (33, 65), {}),
        ((5, 35, 33), (33,), {}),
        ((65, 33), (33, 1), {}),
        ((33,), (33,), {}),
        ((8, 1, 16), (8, 16, 9), {}),
    ],
    ids=str,
)
def test_batches_and_transpositions(a: tuple[int, ...], b: tuple[int, ...], attrs: dict[str, bool]) -> None:
    check(anchor_case("matmul", attrs, [(a, F16), (b, F16)]))


@pytest.mark.parametrize("constants", [[0], [1], []])
@pytest.mark.parametrize("dtype", [F32, BF16, I8])
def test_element_types(dtype: DType, constants: list[int]) -> None:
    check(anchor_case("matmul", {}, [((35, 70), dtype), ((70, 50), dtype)], constants=constants), dtype)


@pytest.mark.parametrize("constants", [[1], []], ids=["packed", "computed"])
@pytest.mark.parametrize(
    ("a", "b"), [((37, 45), (45, 83)), ((2, 3, 19, 33), (33, 65)), ((1, 130), (130, 170)), ((2, 40, 300), (2, 300, 50))]
)
@pytest.mark.parametrize("epilogue", ["store", "sliced"])
def test_integers(a: tuple[int, ...], b: tuple[int, ...], constants: list[int], epilogue: str) -> None:
    """Sums of i32 are exact, and FIX stores them as they are."""
    best = check(anchor_case("matmul_integer", {}, [(a, I8), (b, I8)], constants=constants, epilogue=epilogue), I8)
    assert not best.mix


def test_fix_stores_sums_of_integers_and_nothing_made_of_them() -> None:
    body = anchor_case("matmul_integer", {}, [((9, 40), I8), ((40, 20), I8)]).body
    assert fix_of(body) is not None
    (load,), (store,), target = body.epilogue.inputs, body.epilogue.outputs, len(body.operands) - 1
    for step, out in ((Instruction("relu", (0,), DType.I32), DType.I32), (None, F32), (None, DType.I32)):
        kinds = (*body.operands[:-1], Operand(Use.OUTPUT, TensorType(out, (9, 20))))
        cast = Instruction("cast", (0,), out, (("dtype", out),))
        steps = (step,) if step else (cast,) if out is F32 else ()
        program = PointwiseProgram((9, 20), (load,), steps, (replace(store, value=len(steps), target=target),))
        assert (fix_of(replace(body, operands=kinds, epilogue=program)) is None) is bool(steps)


def test_extreme_integers() -> None:
    """The largest sums, of both signs."""
    case = anchor_case("matmul_integer", {}, [((33, 600), I8), ((600, 40), I8)])
    for lowest in case.arrays[:2]:
        assert lowest is not None
        lowest[:] = -128
    (result,) = case.expected
    case.expected[result] = np.full((33, 40), 600 * 128 * 128, np.int32)
    check(case, I8)


def test_zero_points_are_refused() -> None:
    case = anchor_case("matmul_integer", {}, [((33, 60), I8), ((60, 40), I8), ((), I8)])
    with pytest.raises(UnsupportedError, match="zero points"):
        candidates(case.body, load_target("mini"))


@pytest.mark.parametrize("constants", [[1], []], ids=["packed", "computed"])
@pytest.mark.parametrize("kept", [LEFT, RIGHT])
@pytest.mark.parametrize(("a", "b"), [((70, 333), (333, 90)), ((2, 40, 250), (2, 250, 56)), ((3, 500), (500, 100))])
def test_small_memories(a: tuple[int, ...], b: tuple[int, ...], kept: str, constants: list[int]) -> None:
    """Depth in groups, which tiles of a panel walk to and fro."""
    case = anchor_case("matmul", {}, [(a, F16), (b, F16)], constants=constants)
    rows = min(32, -(-a[-2] // 16) * 16)
    tiling = with_tile(case.body, tiny(), rows, 32, kept)
    assert tiling.cut.groups > 1
    assert tiling.units > 1
    check_aicore(KERNEL, case.body, case.arrays, case.expected, tiling=tiling, target=tiny())


@pytest.mark.parametrize("kept", [LEFT, RIGHT])
def test_panels_begin_elsewhere(kept: str) -> None:
    """Other first tiles and first groups than usual: the same accesses, and every split gives the same bits."""
    case = anchor_case("matmul", {}, [((70, 333), F16), ((333, 90), F16)])
    tiling = replace(with_tile(case.body, tiny(), 32, 32, kept), drift=2, stagger=2)
    assert tiling.cut.groups > 2
    check_aicore(KERNEL, case.body, case.arrays, case.expected, tiling=tiling, target=tiny())


def test_cores_work_on_different_tiles_and_depths() -> None:
    """4096 columns lie a power of two apart: of 24 cores, few begin with the same columns, and few with the same depths
    of theirs."""
    target = load_target("a3")
    tiling = candidates(_body((4096, 4096, 4096), constant=False), target)[0]
    groups, count, cores = tiling.cut.groups, tiling.panel_tiles, target.device.cube_cores
    firsts = [divmod(core * tiling.units // cores, count) for core in range(cores)]
    columns = Counter((position + panel // tiling.stagger) % count for panel, position in firsts)
    depths = Counter((panel * tiling.drift - position) % groups for panel, position in firsts)
    assert max(columns.values()) <= 2
    assert max(depths.values()) <= cores // 2
    assert len(depths) > 1


@pytest.mark.parametrize("epilogue", ["store", "mixed"])
@pytest.mark.parametrize("tile", [(64, 32), (16, 64), (16, 112)])
def test_halves(tile: tuple[int, int], epilogue: str) -> None:
    """Half of a tile is stored while the cube works on the other one; the last tile has one half only."""
    case = anchor_case("matmul", {}, [((70, 200), F16), ((200, 130), F16)], constants=[1], epilogue=epilogue)
    found = with_tile(case.body, load_target("mini"), *tile)
    tiling = replace(found, halves=2, sums=1, cut=DepthCut(200, 80, 48, 16), kept_slots=1)
    assert tiling.part[0] * tiling.part[1] < tile[0] * tile[1]
    check_aicore(KERNEL, case.body, case.arrays, case.expected, tiling=tiling, splits=1)


def test_halves_fit() -> None:
    """80 rows are halves of 48 and 32: two slots of the larger one must fit."""
    case = anchor_case("matmul", {}, [((80, 64), F16), ((64, 48), F16)])
    target = load_target("mini").replaced({"memory.l0c_bytes": 16384})
    assert with_tile(case.body, target, 80, 48).halves == 1


def test_panels_ahead() -> None:
    """Many small products: the next one's panel is loaded while the cube works."""
    case = anchor_case("matmul", {"trans_b": True}, [((9, 40, 48), F16), ((9, 40, 48), F16)])
    best = check(case)
    tiling = replace(best, kept_slots=2)
    check_aicore(KERNEL, case.body, case.arrays, case.expected, tiling=tiling, target="mini")


def test_views_of_heads() -> None:
    """[batch, sequence, head, depth] operands seen as [batch, head, sequence, depth]: no copies."""
    layouts = {0: (0, 2, 1, 3), 1: (0, 2, 1, 3)}
    slots = [((2, 3, 17, 20), F16), ((2, 3, 33, 20), F16)]
    case = anchor_case("matmul", {"trans_b": True}, slots, layouts=layouts)
    for slot, view in enumerate(case.body.anchor_inputs):
        assert isinstance(view, View)
        assert not view.is_dense
        assert family_of(KERNEL).accepts_view(KERNEL, "matmul", slot, view, F16)
    check(case)
    check(anchor_case("matmul", {}, [((9, 6), F16), ((6, 40), F16)], layouts={1: (1, 0)}, constants=[1]))


def test_views_that_need_a_copy() -> None:
    family = family_of(KERNEL)
    assert not family.accepts_view(KERNEL, "matmul", 0, View(0, (4, 8), (16, 2)), F16)
    assert not family.accepts_view(KERNEL, "matmul", 0, View(0, (4, 8), (-8, 1), 24), F16)
    assert family.accepts_view(KERNEL, "matmul", 1, View(0, (4, 8), (1, 4)), F16)


# Epilogues ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("constants", [[1], []], ids=["packed", "computed"])
@pytest.mark.parametrize("rows", [1, 2, 50])
@pytest.mark.parametrize("epilogue", ["mixed", "sliced"])
def test_epilogues(rows: int, epilogue: str, constants: list[int]) -> None:
    slots = [((2, rows, 24), F16), ((24, 37), F16)]
    best = check(anchor_case("matmul", {}, slots, constants=constants, epilogue=epilogue), count=1)
    assert best.mix == (epilogue == "mixed")


def test_mix_in_pieces() -> None:
    """A tile's half does not fit into UB at once."""
    case = anchor_case("matmul", {}, [((75, 90), F16), ((90, 150), F16)], constants=[1], epilogue="mixed")
    for tile in ((64, 32), (16, 112)):
        tiling = with_tile(case.body, tiny(), *tile)
        assert tiling.kernel_type is AicoreKernelType.MIX_1_2
        check_aicore(KERNEL, case.body, case.arrays, case.expected, tiling=tiling, target=tiny(), splits=1)


def test_pieces_fill_ub_to_the_byte() -> None:
    """As many rows of the whole width as there is room for, where that is a few; half the width else."""
    body, target = anchor_case("matmul", {}, [((75, 90), F16), ((90, 150), F16)], epilogue="mixed").body, tiny()
    tiling, code = with_tile(body, target, 64, 32), lane_code(body)
    for rows, cols in ((32, 32), (31, 32), (PIECE_ROWS, 32), (PIECE_ROWS, 16), (1, 16)):
        need = lane_bytes(code, TileSize(rows, cols, 32))
        exact, short = (target.replaced({"memory.ub_bytes": n}) for n in (need, need - 32))
        found = lane_size(body, tiling, exact)
        assert (found.rows, found.cols) == (rows, cols)
        if (rows, cols) == (1, 16):
            with pytest.raises(UnsupportedError, match="does not fit into a vector core"):
                lane_size(body, tiling, short)
        else:
            found = lane_size(body, tiling, short)
            assert lane_bytes(code, found) < need


def _body(
    shape: tuple[int, int, int],
    steps: tuple[Instruction, ...] = (),
    vectors: int = 0,
    out: DType = F16,
    strides: tuple[int, int] | None = None,
    constant: bool = True,
    residual: bool = False,
) -> Body:
    """[m, k] x [k, n] and a chain; SSA 0 is the result, 1.. are constant vectors over columns, then the residual."""
    m, k, n = shape
    a, b = TensorType(F16, (m, k)), TensorType(F16, (k, n))
    operands = [Operand(Use.INPUT, a), Operand(Use.CONSTANT if constant else Use.INPUT, b)]
    inputs = [ProgramInput(-1, F16)]
    for _ in range(vectors):
        inputs.append(ProgramInput(len(operands), F16, (0, 1)))
        operands.append(Operand(Use.CONSTANT, TensorType(F16, (n,))))
    if residual:
        inputs.append(ProgramInput(len(operands), F16, (n, 1)))
        operands.append(Operand(Use.INPUT, TensorType(F16, (m, n))))
    result = TensorType(out, (m, n) if strides is None or strides[1] == 1 else (n, m))
    value = len(inputs) + len(steps) - 1
    stores = (ProgramOutput(value, len(operands), strides or (n, 1)),)
    operands.append(Operand(Use.OUTPUT, result))
    program = PointwiseProgram((m, n), tuple(inputs), steps, stores)
    attrs = (("trans_a", False), ("trans_b", False))
    views = (View(0, (m, k), a.strides), View(1, (k, n), b.strides))
    return Body("matmul", attrs, tuple(operands), views, (a, b), (TensorType(F16, (m, n)),), program)


def _arrays(body: Body) -> list[Any]:
    rng = np.random.default_rng(3)
    made = [rng.standard_normal(o.type.shape).astype(o.type.dtype.numpy) for o in body.operands[:-1]]
    return [*made, None]


@pytest.mark.parametrize(
    ("steps", "vectors", "expected"),
    [
        ((Instruction("add", (0, 1), F16), Instruction("relu", (2,), F16)), 1, lambda r, v: np.maximum(r + v[0], 0)),
        (
            (Instruction("mul", (0, 1), F16), Instruction("add", (3, 2), F16)),
            2,
            lambda r, v: r * v[0] + v[1],
        ),
        (
            (Instruction("constant", (), F16, (("value", 0.125),)), Instruction("mul", (0, 1), F16)),
            0,
            lambda r, v: r * 0.125,
        ),
        ((Instruction("leaky_relu", (0,), F16, (("alpha", 0.25),)),), 0, lambda r, v: np.where(r > 0, r, 0.25 * r)),
    ],
    ids=["bias-relu", "scale-bias", "factor", "leaky"],
)
@pytest.mark.parametrize("tile", [(16, 32), (48, 112)])
def test_what_fix_does(steps: Any, vectors: int, expected: Any, tile: tuple[int, int]) -> None:
    body = _body((45, 70, 99), steps, vectors)
    assert fix_of(body) is not None
    arrays = _arrays(body)
    product = arrays[0].astype(np.float64) @ arrays[1].astype(np.float64)
    want = expected(product, [a.astype(np.float64) for a in arrays[2:-1]])
    tiling = with_tile(body, load_target("mini"), *tile)
    assert tiling.kernel_type is AicoreKernelType.CUBE
    check_aicore(KERNEL, body, arrays, {len(arrays) - 1: want}, tiling=tiling, splits=1)


def test_transposed_result() -> None:
    """The result is stored with rows along columns: left and right change places, FIX still stores it."""
    body = _body((45, 70, 99), strides=(1, 45))
    arrays = _arrays(body)
    want = (arrays[0].astype(np.float64) @ arrays[1].astype(np.float64)).T
    for tiling in candidates(body, load_target("mini"))[:2]:
        assert not tiling.mix
        check_aicore(KERNEL, body, arrays, {2: want}, tiling=tiling, splits=1)


@pytest.mark.parametrize("out", [F32, BF16])
def test_result_of_another_type(out: DType) -> None:
    body = _body((33, 40, 50), (Instruction("cast", (0,), out, (("dtype", out),)),), out=out)
    arrays = _arrays(body)
    want = arrays[0].astype(np.float64) @ arrays[1].astype(np.float64)
    check_aicore(KERNEL, body, arrays, {2: want}, tiling=candidates(body, load_target("mini"))[0], tol=1e-2)


def test_residual_and_activation() -> None:
    steps = (Instruction("add", (0, 1), F16), Instruction("silu", (2,), F16))
    body = _body((70, 64, 90), steps, residual=True)
    arrays = _arrays(body)
    r = arrays[0].astype(np.float64) @ arrays[1].astype(np.float64) + arrays[2].astype(np.float64)
    for tiling in candidates(body, load_target("mini"))[:2]:
        check_aicore(KERNEL, body, arrays, {3: r / (1 + np.exp(-r))}, tiling=tiling, splits=1)


def test_one_vector_core_per_group() -> None:
    fields = {"device.vector_cores_per_group": 1, "device.vector_cores": 2}
    target = load_target("mini").replaced(fields)
    case = anchor_case("matmul", {}, [((40, 64), F16), ((64, 50), F16)], constants=[1], epilogue="mixed")
    tiling = check(case, target=target, count=1)
    assert tiling.kernel_type is AicoreKernelType.MIX_1_1
    assert tiling.roles() == (CoreRole.CUBE, CoreRole.VECTOR0)


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F64, I32])
def test_types_the_cube_does_not_have(dtype: DType) -> None:
    case = anchor_case("matmul", {}, [((4, 8), dtype), ((8, 4), dtype)])
    with pytest.raises(UnsupportedError, match="element types"):
        candidates(case.body, load_target("mini"))


def test_memories_too_small() -> None:
    target = load_target("mini").replaced({"memory.l1_bytes": 1024})
    with pytest.raises(UnsupportedError, match=r"memory\.l1_bytes"):
        candidates(anchor_case("matmul", {}, [((64, 64), F32), ((64, 64), F32)]).body, target)


def test_too_many_vector_cores_per_group() -> None:
    target = load_target("mini").replaced({"device.vector_cores_per_group": 4, "device.vector_cores": 8})
    case = anchor_case("matmul", {}, [((40, 64), F16), ((64, 50), F16)], epilogue="mixed")
    with pytest.raises(UnsupportedError, match=r"device\.vector_cores_per_group"):
        candidates(case.body, target)


def test_packing_pads_with_zeros() -> None:
    pack = PackFactor((), (), 3, 1, 3, 0, 16, DepthCut(5, 16, 16, 16), 16, 16)
    packed = pack.apply(np.arange(1, 16, dtype=np.float16).reshape(5, 3)).reshape(16, 16)
    assert (packed[:3, :5] == np.arange(1, 16).reshape(5, 3).T).all()
    assert not packed[3:].any()
    assert not packed[:, 5:].any()
    assert pack.packed_bytes(TensorType(F16, (5, 3))) == packed.nbytes


# Speed ----------------------------------------------------------------------------------------------------------------


def _run(body: Body, target: AicoreTarget) -> tuple[dict[CoreRole, Any], MatmulTiling]:
    tiling = candidates(body, target)[0]
    units = -(-tiling.units // target.device.cube_cores)
    return recorded(KERNEL, body, tiling, target, 0, units), tiling


@pytest.mark.parametrize("vectors", [0, 1])
def test_large_product_keeps_the_cube_busy(vectors: int) -> None:
    target = load_target("a3")
    steps = (Instruction("add", (0, 1), F16),) if vectors else ()
    body = _body((3072, 3072, 3072), steps, vectors)
    commands, tiling = _run(body, target)
    time = elapsed(commands[CoreRole.CUBE], target)
    busy = engine_busy(commands[CoreRole.CUBE], target)
    assert busy[Engine.M] >= 0.70 * time
    assert busy[Engine.MTE1] < busy[Engine.M]
    assert busy[Engine.M] <= 1.25 * 3072**3 / 4096 / target.device.cube_cores
    estimate = tiling.cost_cycles(body, 0, tiling.units // target.device.cube_cores, target)
    assert 0.8 * time <= estimate <= 1.25 * time


@pytest.mark.parametrize("rows", [1, 16])
def test_few_rows_stream_the_weights(rows: int) -> None:
    target = load_target("a3")
    body = _body((rows, 4096, 4096))
    commands, tiling = _run(body, target)
    assert tiling.units >= target.device.cube_cores * 0.9
    time = elapsed(commands[CoreRole.CUBE], target)
    busy = engine_busy(commands[CoreRole.CUBE], target)
    assert busy[Engine.MTE2] >= 0.85 * time
    moved = (4096 // target.device.cube_cores + rows) * 4096 * 2  # every core reads all rows
    ideal = target.transfer_cycles("rates.gm_to_l1_gb_per_s", moved)
    assert busy[Engine.MTE2] <= 1.25 * ideal


def test_weights_come_first() -> None:
    """The first loads are of weights: they run while the kernel waits for its input."""
    target = load_target("a3")
    body = _body((4, 4096, 4096))
    commands, _ = _run(body, target)
    loads = [c for c in commands[CoreRole.CUBE] if c.engine is Engine.MTE2 and "gm_to_l1" in c.name]
    place = target.map.ram_address
    sources = [(int(c.operand("src")) - place) >> 30 for c in loads]
    assert sources[:3] == [1, 1, 0]


def test_the_lead_is_the_loads_of_weights_that_come_first() -> None:
    """As long as a flag takes, they cost nothing: a kept panel of weights, the first chunks of streamed ones, nothing
    where both factors are computed."""
    target = load_target("a3")
    for rows, constant in ((64, True), (4, True), (64, False)):
        body = _body((rows, 128, 128), constant=constant)
        for tiling in candidates(body, target):
            share = -(-tiling.units // target.device.cube_cores)
            lead, whole = (f(body, 0, share, target) for f in (tiling.lead_cycles, tiling.cost_cycles))
            assert tiling.lead_cycles(body, 0, 0, target) == 0.0
            if constant:  # one tile each: its weights come in one transfer, from HBM
                assert target.dma.startup_cycles + target.cycles(target.hbm.latency_ns) < lead < whole
            else:
                assert lead == 0.0


def test_epilogue_does_not_hold_the_cube_up() -> None:
    target = load_target("a3")
    steps = (Instruction("add", (0, 1), F16), Instruction("relu", (2,), F16))
    body = _body((3072, 3072, 3072), steps, residual=True)
    commands, _ = _run(body, target)
    cube = engine_busy(commands[CoreRole.CUBE], target)
    for lane in (CoreRole.VECTOR0, CoreRole.VECTOR1):
        assert max(engine_busy(commands[lane], target).values()) < 0.5 * max(cube.values())


# On the simulated device ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "epilogue"),
    [(300, 2100, 600, "residual"), (129, 4096, 257, "gelu"), (3, 256, 300, "store"), (200, 1024, 600, "store")],
)
def test_simulated(rows: int, depth: int, columns: int, epilogue: str) -> None:
    """A compiled program on the device, which looks for races and reads of what nobody wrote."""
    rng = np.random.default_rng(5)
    b = GraphBuilder("product")
    weights = (rng.standard_normal((depth, columns)) / np.sqrt(depth)).astype(np.float16)
    y = b.input("x", (rows, depth), "f16") @ b.constant(weights, name="w")
    if epilogue == "residual":
        y = y + b.input("r", (rows, columns), "f16")
    b.output(b.gelu(y) if epilogue == "gelu" else y, name="y")
    graph = b.graph()
    kernel = superkernel.compile(graph, target="mini")
    inputs = {n: rng.standard_normal(t.shape).astype(np.float16) for n, t in graph.inputs.items()}
    want = evaluate(graph, inputs)["y"].astype(np.float64)
    assert np.abs(kernel(**inputs).astype(np.float64) - want).max() < 1e-2


def test_simulated_integers() -> None:
    """Two layers of whole numbers on the device, with vector cores scaling sums and quantising results in between:
    nothing is left to the reference, every bit is right."""
    rng = np.random.default_rng(5)
    weights = [rng.integers(-128, 128, shape).astype(np.int8) for shape in ((300, 200), (200, 130))]
    b = GraphBuilder("integers")
    hidden = b.matmul_integer(b.input("x", (70, 300), "i8"), b.constant(weights[0], name="w"))
    real = b.relu(b.cast(hidden, dtype="f32") * b.constant(np.float32(2.0**-12)))
    narrow = b.quantize(real, b.constant(np.float32(0.5)), dtype="i8")
    b.output(b.matmul_integer(narrow, b.constant(weights[1])), name="y")
    graph = b.graph()
    kernel = superkernel.compile(graph, target="mini", options={"fallback": "forbid"})
    x = rng.integers(-128, 128, (70, 300)).astype(np.int8)
    np.testing.assert_array_equal(kernel(x=x), evaluate(graph, {"x": x})["y"])


def test_an_outer_product_on_the_device() -> None:
    """Of two rows, the first one transposed: its only depth has no stride."""
    b = GraphBuilder("outer")
    b.output(b.input("x", (1, 17), "f16").transpose(1, 0) @ b.input("y", (1, 33), "f16"), name="z")
    graph = b.graph()
    kernel = superkernel.compile(graph, target="mini", options={"fallback": "forbid"})
    rng = np.random.default_rng(6)
    given = {name: rng.standard_normal((1, width)).astype(np.float16) for name, width in (("x", 17), ("y", 33))}
    np.testing.assert_array_equal(kernel(**given), evaluate(graph, given)["z"])


@pytest.mark.slow
def test_large_product_on_the_device() -> None:
    """With everything in L2, as in a sequence of layers: the cube is busy 70 % of the time."""
    b = GraphBuilder("product")
    weights = np.random.default_rng(5).standard_normal((3072, 3072), np.float32)
    b.output(b.input("x", (3072, 3072), "f16") @ b.constant(weights.astype(np.float16), name="w"), name="y")
    kernel = superkernel.compile(b.graph(), target="a3")
    compiled = kernel._compiled
    assert isinstance(compiled, AicoreCompiled)
    run = compiled.executable.simulate(kernel._io(list(kernel._random().values())), mode="timing")
    warm = run.device.launch(number=0, cold=False)
    cubes = [core.engines["m"] for core in warm.cores if core.type == "aic"]
    assert min(m.busy for m in cubes) >= 0.70 * warm.cycles
