"""aicore.scalar: operators of every kind on a control unit against the reference, their code for RV64, its order with
the engines, and whole graphs on the simulated device."""

from __future__ import annotations

import io
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from aicore_check import check_aicore
from elftools.elf.elffile import ELFFile
from kernel_check import Array, dense_strides, operand, undefined_symbols
from llvmlite import ir
from op_cases import op_body, with_epilogue
from operator_cases import Case, cases

from superkernel import Options, compile
from superkernel.builder import GraphBuilder
from superkernel.codegen.aicore.emission import emit_kernel, emitter_of
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.lower import compile_rv64
from superkernel.core.dtypes import DType
from superkernel.core.errors import VerificationError
from superkernel.core.tensor import TensorType, row_major_strides
from superkernel.ir.body import Body, Instruction, PointwiseProgram, ProgramInput, ProgramOutput
from superkernel.ir.body import Role as Use
from superkernel.ir.graph import Graph
from superkernel.ops.attributes import canonical_attrs
from superkernel.ops.opdef import Family
from superkernel.ops.table import op_table
from superkernel.reference import evaluate
from superkernel.scheduler.families.aicore import AICORE_KERNELS, family_of
from superkernel.scheduler.families.aicore.base import AicoreTiling, CoreRole
from superkernel.scheduler.families.aicore.scalar import ANCHORS as COMPUTED
from superkernel.scheduler.families.aicore.scalar import ScalarTiling, _divided
from superkernel.scheduler.families.rowtiling import RowTiling
from superkernel.scheduler.schedule import Schedule
from superkernel.sync.aicore.planner import _Planner
from superkernel.target.aicore import load_target

MINI = load_target("mini")
CONTROL_UNIT = "aicore.scalar"
ROW = next(r for r in AICORE_KERNELS.registry.rows if r.kernel == CONTROL_UNIT)
POINTWISE = sorted(n for n in ROW.ops if n in op_table() and op_table()[n].family is Family.POINTWISE)
ANCHORS = sorted(COMPUTED)
TOLERANCE = {DType.F64: 1e-6, DType.F32: 2e-5, DType.F16: 2e-3, DType.BF16: 1e-2}
CODE_BYTES_MAX = 4096  # a quarter of a vector core's instruction cache, for the longest function


def case_body(case: Case) -> tuple[Body, list[Array | None], dict[int, Array]]:
    """A pointwise operator as a program, anything else as an anchor."""
    row = op_table()[case.op]
    if row.family is not Family.POINTWISE:
        return op_body(case.op, case.inputs, case.attrs)
    full = canonical_attrs(row, case.attrs)
    given = [x for x in case.inputs if x is not None]
    types = [None if x is None else TensorType(DType.of(x.dtype), x.shape) for x in case.inputs]
    (kind,) = row.infer(types, full)
    count = len(given)
    sources = [ProgramInput(k, DType.of(x.dtype), dense_strides(x.shape, kind.shape)) for k, x in enumerate(given)]
    step = Instruction(case.op, tuple(range(count)), kind.dtype, tuple(full.items()))
    store = ProgramOutput(count, count, row_major_strides(kind.shape))
    operands = [operand(Use.INPUT, DType.of(x.dtype), x.shape) for x in given]
    operands.append(operand(Use.OUTPUT, kind.dtype, kind.shape))
    program = PointwiseProgram(kind.shape, tuple(sources), (step,), (store,))
    (want,) = row.reference(case.inputs, full, (kind,))
    with np.errstate(all="ignore"):
        wanted = np.broadcast_to(want, kind.shape).astype(kind.dtype.numpy)
    return Body(None, (), tuple(operands), (), (), (), program), [*given, None], {count: wanted}


def chosen_cases(op: str, count: int) -> list[Case]:
    """Instances of different leading types, integers first; a clip has an instruction's form with both bounds only."""
    found: dict[DType, Case] = {}
    for case in cases(op):
        if all(x is not None for x in case.inputs) or op_table()[op].family is not Family.POINTWISE:
            lead = [x for x in case.inputs if x is not None][1 if op == "where" else 0]
            found.setdefault(DType.of(lead.dtype), case)
    rng = random.Random(op)
    order = sorted(found, key=lambda d: (d.is_float, rng.random()))
    return [found[d] for d in [*order[: count - 1], *order[-1:]]][:count]


@pytest.mark.parametrize("op", [*POINTWISE, *ANCHORS])
def test_operators(op: str) -> None:
    for case in chosen_cases(op, 2 if DType.I64 in op_table()[op].args[-1].dtypes else 1):
        body, arrays, expected = case_body(case)
        limits = {k: TOLERANCE.get(body.operands[k].type.dtype, 0.0) for k in expected}
        check_aicore(CONTROL_UNIT, body, arrays, expected, tol=limits, splits=1)


def emitted(body: Body) -> bytes:
    """The RV64 object of a body's kernel."""
    (tiling,) = family_of(CONTROL_UNIT).tilings(CONTROL_UNIT, body, MINI)
    assert isinstance(tiling, ScalarTiling)
    module = ir.Module(name="kernel")
    emit_kernel(module, "kernel", emitter_of(CONTROL_UNIT), body, tiling, CoreRole.VECTOR0, MINI)
    return compile_rv64(str(module))


@pytest.mark.parametrize("op", [*POINTWISE, *ANCHORS])
def test_code_calls_no_library_and_is_short(op: str) -> None:
    case = chosen_cases(op, 2)[-1]
    data = emitted(case_body(case)[0])
    assert set(undefined_symbols(data)) <= {"sk_wait", "sk_fence", ""}, case
    sections = ELFFile(io.BytesIO(data)).iter_sections()
    assert sum(s["sh_size"] for s in sections if s["sh_flags"] & 4) <= CODE_BYTES_MAX, case


def test_rows_and_families_name_the_same_operators() -> None:
    families = {op_table()[n].family for n in ROW.ops if n in op_table() and n not in COMPUTED}
    assert families == {Family.POINTWISE, Family.VIEW, Family.RESHAPE}
    assert set(COMPUTED) <= set(ROW.ops)


def walks(shape: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...], b_offset: int = 0) -> Body:
    """a % b + b over i64, through views."""
    kind = DType.I64
    operands = [operand(Use.INPUT, kind, (60,)), operand(Use.INPUT, kind, (60,)), operand(Use.OUTPUT, kind, shape)]
    steps = (Instruction("mod", (0, 1), kind, (("fmod", False),)), Instruction("add", (2, 1), kind))
    sources = (ProgramInput(0, kind, a), ProgramInput(1, kind, b, b_offset))
    program = PointwiseProgram(shape, sources, steps, (ProgramOutput(3, 2, row_major_strides(shape)),))
    return Body(None, (), tuple(operands), (), (), (), program)


@pytest.mark.parametrize(
    ("shape", "a", "b", "offset"),
    [
        ((60,), (1,), (0,), 7),
        ((60,), (1,), (-1,), 59),
        ((5, 12), (12, 1), (1, 5), 0),
        ((3, 4, 5), (20, 5, 1), (0, 1, 12), 0),
        ((1,), (1,), (1,), 3),
        ((20,), (3,), (2,), 1),
    ],
)
def test_views(shape: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...], offset: int) -> None:
    rng = np.random.default_rng(len(shape))
    x, y = rng.integers(-50, 50, 60), rng.integers(1, 9, 60)
    at = np.indices(shape)
    left = x[sum(i * s for i, s in zip(at, a, strict=True))]
    right = y[sum(i * s for i, s in zip(at, b, strict=True)) + offset]
    check_aicore(CONTROL_UNIT, walks(shape, a, b, offset), [x, y, None], {2: left % right + right}, tol=0)


def test_what_is_found_is_what_the_host_finds() -> None:
    rng = np.random.default_rng(4)
    for dtype, share in ((np.bool_, 0.3), (np.int64, 1.0), (np.float16, 0.1), (np.float32, 0.0)):
        x = np.where(rng.random((3, 19)) < share, rng.integers(1, 9, (3, 19)), 0).astype(dtype)
        for size in (57, 5):
            body, arrays, expected = op_body("nonzero", [x], {"size": size}, views={0: ((19, 3), (1, 0))})
            check_aicore("aicore.finding", body, arrays, expected, tol=0, splits=1)
    for dtype in (np.float32, np.float16):
        corner = rng.random((1, 21, 2))
        boxes = np.concatenate([corner, corner + 0.4], axis=2).astype(dtype)
        given = [boxes, rng.random((1, 3, 21)).astype(dtype)]
        for least in (None, 0.5):
            attrs = {"size": 30, "limit": 9, "iou_threshold": 0.3, "score_threshold": least}
            body, arrays, expected = op_body("non_max_suppression", given, attrs)
            check_aicore("aicore.finding", body, arrays, expected, tol=0, splits=1)


def test_an_epilogue_and_a_view_of_an_anchor() -> None:
    x = np.random.default_rng(0).integers(-9, 9, (7, 5))
    body, arrays, _ = op_body("cumsum", [x], {"axis": 1}, views={0: ((5, 7), (1, 0))})
    body, arrays = with_epilogue(body, arrays, "sub", np.arange(5))
    wanted = np.cumsum(x, axis=1) - np.arange(5)
    outputs = [k for k, o in enumerate(body.operands) if o.role is Use.OUTPUT]
    check_aicore(CONTROL_UNIT, body, arrays, {outputs[0]: wanted}, tol=0)


# Order between the control unit and the engines ----------------------------------------------------------------------


def test_loops_hold_neither_waits_nor_fences() -> None:
    body = walks((60,), (1,), (1,))
    elf = ELFFile(io.BytesIO(emitted(body)))
    symbols, relocations = elf.get_section_by_name(".symtab"), elf.get_section_by_name(".rela.text.kernel")
    called = [symbols.get_symbol(r["r_info_sym"]).name for r in relocations.iter_relocations()]
    operands = len(body.operands)
    assert called.count("sk_wait") == operands + 1, "each operand at the start, and the rest at the end"
    around = 1 + 1 + 2  # at the start, behind the drain, at both ends
    assert called.count("sk_fence") <= called.count("sk_wait") + around


@pytest.mark.parametrize("part", ["_settle", "_order_loads_behind", "finish"])
def test_a_kernel_without_its_drain_or_fences_is_caught(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: Any = getattr(KernelBuilder, part)

    def finish(kb: KernelBuilder) -> None:
        kb._stored = False
        kept(kb)

    def settle(kb: KernelBuilder) -> None:
        kb._unsettled.set(0)

    broken = {"_settle": settle, "finish": finish, "_order_loads_behind": lambda kb, engine: None}
    monkeypatch.setattr(KernelBuilder, part, broken[part])
    wrong = {"_settle": "drain", "_order_loads_behind": "behind a wait", "finish": "fence behind"}
    x, y = np.arange(60), np.arange(60) + 1
    with pytest.raises(AssertionError, match=wrong[part]):
        check_aicore(CONTROL_UNIT, walks((60,), (1,), (1,)), [x, y, None], {2: x % y + y}, tol=0)


# Whole graphs on the simulated device ---------------------------------------------------------------------------------


def positions() -> Graph:
    """Positions from a mask, rows looked up at them: integers between loads and stores of the engines."""
    b = GraphBuilder("positions")
    mask, x = b.input("mask", (2, 16), dtype="i64"), b.input("x", (2, 16, 32))
    place = b.maximum(b.cumsum(mask, axis=1) - b.constant(np.array(1)), b.constant(np.array(0)))
    table = b.constant(np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32))
    b.output(b.softmax(x + b.gather(table, place, axis=0), axis=-1), name="y")
    b.output(place, name="place")
    return b.graph()


def searches() -> Graph:
    """What engines computed, searched and counted."""
    b = GraphBuilder("searches")
    x = b.input("x", (8, 24))
    scores = b.softmax(x * 3.0, axis=-1)
    best = b.argmax(scores, axis=-1)
    b.output(best, name="best")
    b.output(b.cast(best, dtype="f32") * 0.5 + b.reduce_max(scores, axes=(1,)), name="mixed")
    b.output(b.mod(best * best + b.constant(np.array(3)), b.constant(np.array(7))), name="hash")
    return b.graph()


def turns(rounds: int = 6) -> Graph:
    """Control unit and engines in turns, memory reused between them."""
    b = GraphBuilder("turns")
    n, x = b.input("n", (64,), dtype="i64"), b.input("x", (64, 16))
    for step in range(rounds):
        n = b.mod(n * n + b.constant(np.array(step + 1)), b.constant(np.array(64)))
        x = b.relu(b.gather(x, n, axis=0) - b.reduce_mean(x, axes=(0,), keepdims=True))
    b.output(x, name="x_out")
    b.output(n, name="n_out")
    return b.graph()


def idle() -> Graph:
    """Work on one core between two kernels of which each core reads its own part: cores without work pass no fence."""
    b = GraphBuilder("idle")
    n, x = b.input("n", (4,), dtype="i64"), b.input("x", (4, 8))
    first = b.softmax(x, axis=-1)
    counted = b.cumsum(b.mod(b.argmax(x, axis=1, keepdims=False) + n, 5), axis=-1)
    b.output(b.cumsum(counted * 3, axis=-1), name="n_out")
    b.output(b.softmax(first, axis=-1), name="x_out")
    return b.graph()


def schedule_of(kernel: Any) -> Schedule:
    found = kernel._compiled.schedule
    assert isinstance(found, Schedule)
    return found


@pytest.mark.parametrize("sync", ["minimal", "full"])
@pytest.mark.parametrize("early_start", [True, False])
@pytest.mark.parametrize("make", [positions, searches, turns, idle])
def test_graphs_on_the_device(make: Any, early_start: bool, sync: Any) -> None:
    graph = make()
    options = Options(fallback="forbid", sync=sync, early_start=early_start, precision="f32", cache=False)
    kernel = compile(graph, target="mini", options=options)
    assert CONTROL_UNIT in {s.kernel for s in schedule_of(kernel).subops}
    rng = np.random.default_rng(1)
    given = {
        n: rng.integers(0, 2 if n == "mask" else 64, t.shape)
        if t.dtype is DType.I64
        else rng.standard_normal(t.shape).astype(np.float32)
        for n, t in graph.inputs.items()
    }
    want, found = evaluate(graph, given), kernel(**given)
    for name, got in zip(graph.outputs, found, strict=True):
        np.testing.assert_allclose(got, want[name], rtol=1e-4, atol=1e-4 if got.dtype.kind == "f" else 0)


def test_a_plan_that_counts_on_fences_of_idle_cores_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: Any = _Planner._fences

    def fences(planner: Any, subop: int, *rest: Any) -> Any:
        planner.busy[subop] = set(range(planner.cores.total))
        return kept(planner, subop, *rest)

    options = Options(fallback="forbid", precision="f32", cache=False)
    compile(idle(), target="mini", options=options)
    monkeypatch.setattr(_Planner, "_fences", fences)
    with pytest.raises(VerificationError, match="fence"):
        compile(idle(), target="mini", options=options)


@pytest.mark.parametrize("name", ["add", "mod", "cumsum", "argmax", "reduce_sum"])
def test_estimates_are_of_the_simulated_size(name: str) -> None:
    b = GraphBuilder(name)
    x = b.input("x", (8, 96), dtype="i64")
    y = x + 5 if name == "add" else b.mod(x, x + 3) if name == "mod" else getattr(b, name)(x, **_AXIS[name])  # type: ignore[arg-type]
    b.output(y, name="y")
    kernel = compile(b.graph(), target="mini", options=Options(fallback="forbid", cache=False))
    compiled = kernel._compiled
    (sub,), (tiling,) = compiled.schedule.subops, compiled.schedule.tilings
    assert isinstance(tiling, AicoreTiling)
    report: Any = kernel.run({"x": np.arange(768).reshape(8, 96)}).report
    longest = -(-tiling.units // int(MINI.device.vector_cores))
    estimate = tiling.cost_cycles(sub.body, 0, longest, MINI)
    assert 0.5 < estimate / report.cycles < 2.0, (estimate, report.cycles)


_AXIS = {"cumsum": {"axis": 1}, "argmax": {"axis": 1}, "reduce_sum": {"axes": (1,)}}


def kernels_of(graph: Graph, **options: Any) -> dict[str, str]:
    kernel = compile(graph, target="mini", options=Options(cache=False, **options))
    return {node: sub.kernel for sub in schedule_of(kernel).subops for node in sub.nodes}


def test_engines_keep_their_programs() -> None:
    b = GraphBuilder("apart")
    x, n = b.input("x", (16, 16)), b.input("n", (16, 16), dtype="i64")
    b.output(b.exp(b.relu(x) + b.cast(b.add(n, n, name="twice"), dtype="f32")), name="y")
    found = kernels_of(b.graph(), precision="f32")
    assert found.pop("twice") == CONTROL_UNIT
    assert set(found.values()) == {"aicore.pointwise"}


def test_long_integers_stay_with_the_reference_and_engines_are_not_drawn_along() -> None:
    b = GraphBuilder("long")
    x, n = b.input("x", (80, 64)), b.input("n", (80, 64), dtype="i64")
    b.output(b.exp(x) * b.cast(b.add(n, n, name="twice"), dtype="f32"), name="y")
    found = kernels_of(b.graph(), precision="f32", fallback="allow")
    assert found.pop("twice") == "host.reference"
    assert set(found.values()) == {"aicore.pointwise"}


def test_units_are_divided_where_that_saves_more_than_flags_take() -> None:
    """A top-k goes over the cores row by row; a few sums stay on one core. A scatter is in order, on one core too."""
    rng = np.random.default_rng(0)
    found = {}
    for name, op, inputs, attrs in (
        ("long", "topk", [rng.standard_normal((32, 16)).astype(np.float32)], {"k": 2}),
        ("short", "topk", [rng.standard_normal((2, 4)).astype(np.float32)], {"k": 1}),
        (
            "in order", "scatter_elements",
            [np.zeros(256, np.int32), np.arange(256, dtype=np.int32), np.arange(256, dtype=np.int32)], {"axis": 0},
        ),
    ):  # fmt: skip
        body, arrays, expected = op_body(op, inputs, attrs)
        (tiling,) = check_aicore(CONTROL_UNIT, body, arrays, expected, splits=2)
        found[name] = tiling.units
    assert found == {"long": 32, "short": 1, "in order": 1}


@pytest.mark.parametrize("scratch", [0, 64])
def test_units_that_want_room_of_their_own_are_not_divided(scratch: int) -> None:
    """A top-k as if it built its rows in scratch."""
    body, _, _ = op_body("topk", [np.zeros((32, 16), np.float32)], {"k": 2})
    (tiling,) = family_of(CONTROL_UNIT).tilings(CONTROL_UNIT, body, MINI)
    assert isinstance(tiling, ScalarTiling)
    assert tiling.divided
    assert isinstance(tiling.inner, RowTiling)
    whole = replace(tiling, divided=False, inner=replace(tiling.inner, scratch=scratch))
    assert _divided(whole, body, MINI).divided is not bool(scratch)
