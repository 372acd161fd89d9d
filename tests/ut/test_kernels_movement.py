"""Concat, pad, tile, trilu, gathers, scatters, one_hot, topk, resize, rope, kv_update: against the operator table."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import combinations_with_replacement, product
from types import FrameType
from typing import Any

import numpy as np
import pytest
from kernel_check import Array, check_body
from op_cases import check_op, check_op_with_epilogue, check_op_with_prologue, op_body
from registry_cases import TARGETS

import superkernel as sk
from superkernel.ir.body import Body, Role
from superkernel.scheduler.families import HOST_KERNELS
from superkernel.scheduler.families.pieces import _axis_spans


def numbers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    values = np.random.default_rng(seed).standard_normal(shape)
    return (values if np.dtype(dtype).kind == "f" else values * 9).astype(dtype)


def places(*shape: int, extent: int = 9, dtype: Any = np.int64, seed: int = 1) -> Array:
    """Indices, some negative, some outside on either side."""
    return np.random.default_rng(seed).integers(-extent - 3, extent + 3, shape).astype(dtype)


def test_concat() -> None:
    check_op("host.concat", "concat", [numbers(3, 5, 7), numbers(3, 2, 7), numbers(3, 40, 7)], {"axis": 1}, tol=0)
    parts = [numbers(3000), numbers(5), numbers(0), numbers(700)]
    check_op("host.concat", "concat", parts, {"axis": 0}, tol=0)
    parts = [numbers(30, 5, dtype=np.uint8), numbers(30, 40, dtype=np.uint8)]
    check_op("host.concat", "concat", parts, {"axis": -1}, views={0: ((5, 30), (1, 0))}, tol=0)
    many = [numbers(3, 2, 7, seed=k) for k in range(300)]
    check_op("host.concat", "concat", [*many, numbers(3, 5, 7), *many[:9]], {"axis": 1}, tol=0)
    check_op_with_epilogue("host.concat", "concat", many[:20], {"axis": 1})
    check_op_with_epilogue("host.concat", "concat", [numbers(3, 5, 7), numbers(3, 2, 7)], {"axis": 1})
    check_op_with_prologue("host.concat", "concat", [numbers(3, 5, 7), numbers(3, 2, 7)], {"axis": 1})


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pad(mode: str) -> None:
    attrs = {"mode": mode, "value": 1.5}
    check_op("host.pad", "pad", [numbers(2, 3, 5, 7)], {**attrs, "pads": (0, 0, 1, 2, 0, 0, 3, 1)}, tol=0)
    check_op("host.pad", "pad", [numbers(5, 7, dtype="i4")], {"pads": (-1, 9, 2, -2), "mode": mode, "value": 3}, tol=0)
    check_op("host.pad", "pad", [numbers(40)], {**attrs, "pads": (3, 90)}, tol=0, tier="avx2")
    check_op("host.pad", "pad", [numbers(1, 3)], {**attrs, "pads": (2, 0, 1, 0)}, tol=0, tier="avx2")
    check_op_with_epilogue("host.pad", "pad", [numbers(5, 7)], {**attrs, "pads": (1, 2, 3, 1)}, tier="avx2")


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_spans_of_padded_axes(mode: str) -> None:
    """Laid behind one another they are what NumPy pads with, and a pad of a billion elements is as few."""
    for extent, begin, end in product(range(5), range(-3, 12, 2), range(-3, 12)):
        kept = np.arange(1, extent + 1)[max(0, -begin) : extent - max(0, -end)]
        if extent + min(begin, 0) + min(end, 0) < 0 or (not len(kept) and mode != "constant" and max(begin, end) > 0):
            continue
        widths: Any = (max(0, begin), max(0, end))
        expected = np.pad(kept, widths, mode) if len(kept) + sum(widths) else kept  # type: ignore[call-overload]
        found: list[int] = []
        for span in _axis_spans(extent, begin, end, mode):
            assert span.start == len(found)
            steps = range(span.stop - span.start)
            found += [0 if span.first is None else span.first + 1 + i * span.step for i in steps]
        assert found == expected.tolist()
    if mode == "constant":
        assert len(_axis_spans(4, 1 << 30, 1 << 40, mode)) == 3


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_spans_take_as_many_steps_however_long_the_axis_is(mode: str) -> None:
    """Not one of Python's per element: lines that are run, of all modules."""

    def steps(extent: int) -> int:
        count = 0

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal count
            count += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            _axis_spans(extent, extent // 2, extent // 4, mode)
        finally:
            sys.settrace(before)
        return count

    assert steps(1 << 20) == steps(1 << 6) > 0


def test_pads_that_no_memory_holds_are_errors() -> None:
    """They take no time to compile; what could not even be addressed is no graph."""

    def padded(end: int) -> sk.Kernel:
        b = sk.GraphBuilder("padded")
        b.output(b.pad(b.input("x", (4,)), pads=(0, end)), "y")
        return sk.compile(b.graph(), threads=1)

    with pytest.raises(sk.MachineError, match="not enough memory for the outputs"):
        padded(1 << 44)(np.zeros(4, np.float32))
    with pytest.raises(sk.GraphError, match=r"node 'y' \(pad\): a value is too large to be addressed"):
        padded(1 << 62)


def test_pad_of_nothing() -> None:
    check_op("host.pad", "pad", [np.zeros((0, 3), np.float32)], {"pads": (1, 0, 1, 0), "value": 2.0}, tol=0)


def test_tile() -> None:
    check_op("host.tile", "tile", [numbers(3, 5, 7)], {"repeats": (2, 1, 3)}, tol=0)
    check_op("host.tile", "tile", [numbers(1, 5)], {"repeats": (20, 1)}, tol=0, tier="avx2")
    check_op("host.tile", "tile", [numbers(3)], {"repeats": (0,)}, tol=0, tier="avx2")
    check_op("host.tile", "tile", [numbers(3, 1, 4)], {"repeats": (2, 3, 2)}, tol=0, tier="avx2")
    check_op_with_epilogue("host.tile", "tile", [numbers(3, 4)], {"repeats": (2, 3)}, tier="avx2")


@pytest.mark.parametrize("upper", [False, True])
def test_trilu(upper: bool) -> None:
    for k in (0, 3, -2):
        check_op("host.pad", "trilu", [numbers(2, 20, 37)], {"upper": upper, "k": k}, tol=0, splits=1)
    check_op_with_prologue("host.pad", "trilu", [numbers(20, 9)], {"upper": upper})


def test_gather() -> None:
    check_op("host.gather", "gather", [numbers(9, 33), places(4, 5)], {"axis": 0}, tol=0)
    check_op("host.gather", "gather", [numbers(9, 33), places(40, extent=33, dtype="i4")], {"axis": 1}, tol=0)
    check_op("host.gather", "gather", [numbers(3, 9, 33), places(2, 3)], {"axis": 1}, tol=0)
    check_op("host.gather", "gather", [numbers(9, 33), np.array(-2)], {"axis": 0}, tol=0, tier="avx2")
    check_op("host.gather", "gather", [numbers(9), places(50)], {"axis": 0}, tol=0, tier="avx2")
    check_op("host.gather", "gather", [numbers(9, 5), places(0)], {"axis": 0}, tol=0, tier="avx2")
    check_op("host.gather", "gather", [numbers(9, 3000), places(3)], {"axis": 0}, tol=0, tier="avx2")
    check_op("host.gather", "gather", [numbers(9, 6) > 0, places(3)], {"axis": 0}, tol=0, tier="avx2")
    check_op("host.gather", "gather", [numbers(9, 33), places(4, 5)], views={0: ((33, 9), (1, 0))}, tol=0)
    check_op_with_epilogue("host.gather", "gather", [numbers(9, 33), places(4, 5)], {"axis": 0})


def test_gathers_by_element_and_tuple() -> None:
    for axis in (0, 1, 2):
        check_op("host.index", "gather_elements", [numbers(5, 9, 20), places(4, 8, 17)], {"axis": axis}, tol=0)
    x = numbers(50, dtype="u1")
    check_op("host.index", "gather_elements", [x, places(100, extent=50, dtype="i4")], {"axis": 0}, tol=0, tier="avx2")
    for shape, attrs in (((3, 4, 2), {}), ((70, 3), {}), ((5, 3, 1), {"batch_dims": 1})):
        check_op("host.index", "gather_nd", [numbers(5, 9, 20), places(*shape)], attrs, tol=0, splits=1)
    check_op("host.index", "gather_nd", [numbers(5, 9), places(5, 9, 0)], tol=0, tier="avx2")


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatters(reduction: str) -> None:
    attrs = {"reduction": reduction}
    for dtype, tol in (("f4", 1e-5), ("i4", 0.0)):
        x, tier = numbers(5, 9, 20, dtype=dtype), None if dtype == "f4" else "avx2"
        updates = numbers(4, 8, 17, dtype=dtype, seed=3)
        by_element = [x, places(4, 8, 17), updates]
        check_op("host.index", "scatter_elements", by_element, {**attrs, "axis": 1}, tol=tol, tier=tier, splits=1)
        by_tuple = [x, places(3, 4, 2), numbers(3, 4, 20, dtype=dtype)]
        check_op("host.index", "scatter_nd", by_tuple, attrs, tol=tol, tier=tier, splits=1)
    check_op_with_epilogue("host.index", "scatter_nd", [numbers(5, 9), places(3, 2), numbers(3)], attrs, tier="avx2")


def test_scatters_of_bools_and_of_nothing() -> None:
    check_op("host.index", "scatter_nd", [numbers(5, 9) > 0, places(3, 2), numbers(3) > 0], tol=0, tier="avx2")
    check_op("host.index", "scatter_nd", [numbers(5, 9), places(0, 2), numbers(0)], tol=0, tier="avx2")


def test_one_hot() -> None:
    values = np.array([0.5, 2], np.float32)
    for axis in (-1, 0, 1):
        check_op("host.index", "one_hot", [places(3, 4), values], {"depth": 11, "axis": axis}, tol=0)
    levels = np.array([0, 1], np.uint8)
    check_op("host.index", "one_hot", [numbers(5) * 9, levels], {"depth": 6}, tol=0, tier="avx2")
    huge = np.array([2**64 - 1, 2**63, 3], np.uint64)
    check_op("host.index", "one_hot", [huge, levels], {"depth": 4}, tol=0)


@pytest.mark.parametrize("largest", [False, True])
def test_topk(largest: bool) -> None:
    x = numbers(5, 70).round(1)
    x[1, 3], x[2] = np.nan, 1.0
    attrs = {"largest": largest}
    check_op("host.index", "topk", [x], {**attrs, "k": 7}, tol=0)
    check_op("host.index", "topk", [x], {**attrs, "k": 5, "axis": 0}, tol=0, tier="avx2")
    check_op("host.index", "topk", [numbers(3, 6, 40, dtype="i4")], {**attrs, "k": 6, "axis": 1}, tol=0)
    check_op("host.index", "topk", [numbers(3, 3, dtype="i1")], {**attrs, "k": 0}, tol=0, tier="avx2")
    check_op("host.index", "topk", [numbers(9, dtype="f2")], {**attrs, "k": 1}, tol=0, tier="avx2")


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners"])
def test_resize(mode: str, coordinates: str) -> None:
    attrs = {"mode": mode, "coordinate_mode": coordinates}
    check_op("host.index", "resize", [numbers(2, 3, 5, 7)], {**attrs, "sizes": (2, 3, 10, 21)}, splits=1)
    check_op("host.index", "resize", [numbers(7)], {**attrs, "sizes": (40,)}, tier="avx2")
    turned = {0: ((7, 5, 3), (2, 1, 0))}
    check_op("host.index", "resize", [numbers(3, 5, 7)], {**attrs, "sizes": (3, 12, 15)}, views=turned)
    x = numbers(3, 5, 7, dtype="i1")
    check_op(
        "host.index", "resize", [x], {**attrs, "sizes": (3, 3, 7)}, tol=1.0, tier="avx2"
    )  # sums that are whole numbers may truncate to either side
    check_op_with_epilogue("host.index", "resize", [numbers(3, 5)], {**attrs, "sizes": (6, 5)}, tier="avx2")


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope(interleaved: bool) -> None:
    attrs = {"interleaved": interleaved}
    table = [numbers(9, 32), numbers(9, 32, seed=1)]
    x = numbers(2, 3, 5, 64)
    check_op("host.rope", "rope", [x, numbers(5, 32), numbers(5, 32, seed=1), None], attrs)
    check_op("host.rope", "rope", [x, *table, np.array(3)], attrs, views={0: ((2, 5, 3, 64), (0, 2, 1, 3))})
    wide = [numbers(2, 1, 5, 9), numbers(2, 1, 5, 9, seed=1)]
    check_op("host.rope", "rope", [numbers(2, 3, 5, 22), *wide, None], {**attrs, "rotary_dim": 18}, tier="avx2")
    small = [numbers(9, 5), numbers(9, 5, seed=1)]
    for position in (np.array([3]), np.array([3, 7]), places(2, 5, dtype="i4")):
        check_op("host.rope", "rope", [numbers(2, 3, 5, 10), *small, position], attrs, tier="avx2")
    check_op_with_epilogue("host.rope", "rope", [x, *table, np.array([1])], attrs, tier="avx2")


@pytest.mark.parametrize("position", [0, 3, 99, -4])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_kv_update(position: int, dtype: str) -> None:
    """Into another buffer, and in place."""
    tier = None if dtype == "f4" else "avx2"
    inputs = [numbers(2, 3, 8, 20, dtype=dtype), numbers(2, 3, 2, 20, dtype=dtype, seed=1), np.array([position])]
    check_op("host.kv_update", "kv_update", inputs, tol=0, tier=tier)
    body, arrays, expected = op_body("kv_update", inputs)
    check_body("host.kv_update", in_place(body), arrays[:3], {0: expected[3]}, tol=0, tier=tier, exact_writes=False)


def in_place(update: Body) -> Body:
    """The update of a cache that takes the cache's own place."""
    operands = (replace(update.operands[0], role=Role.INOUT), *update.operands[1:3])
    epilogue = replace(update.epilogue, outputs=(replace(update.epilogue.outputs[0], target=0),))
    return replace(update, operands=operands, epilogue=epilogue)


def test_heads_store_their_new_rows_in_place_wherever_these_go() -> None:
    """Elsewhere they store all that they declare."""
    body, _, _ = op_body("kv_update", [numbers(2, 3, 8, 20), numbers(2, 3, 2, 20, seed=1), np.array([0])])
    family, target = HOST_KERNELS.family_of("host.kv_update"), TARGETS["avx2"]
    for one, row_bytes in ((body, None), (in_place(body), 2 * 20 * 4)):
        (tiling,) = family.tilings("host.kv_update", one, target)
        for begin, end in combinations_with_replacement(range(7), 2):
            stored = tiling.stored_bytes(one, begin, end)
            assert stored == (None if row_bytes is None else row_bytes * (end - begin))


def test_a_resize_with_tables_of_megabytes(rng: np.random.Generator) -> None:
    columns = 100_000
    b = sk.GraphBuilder("wide")
    b.output(b.resize(b.input("x", (1, 1, columns), "f32"), sizes=(1, 1, 2 * columns), mode="linear"), name="y")
    x = rng.standard_normal((1, 1, columns), dtype=np.float32)
    kernel = sk.compile(b.graph(), threads=1)
    places = np.clip((np.arange(2 * columns) + 0.5) / 2 - 0.5, 0, columns - 1)
    expected = np.interp(places, np.arange(columns), x[0, 0].astype(np.float64))
    np.testing.assert_allclose(kernel(x)[0, 0], expected, atol=1e-6)
    assert kernel.summary()["code_bytes"] < 12 * 2 * columns + 10_000, "an offset and two weights per column"
