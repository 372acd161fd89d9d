"""Grouped products and their tilings on the host, over all kinds of counts, against the operator table's references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from grouped_cases import COUNTS
from kernel_check import tiers
from op_cases import check_op, op_body

from superkernel import DataError, GraphBuilder, compile
from superkernel.ir.body import Role
from superkernel.ops.grouped import STATUS_WORD, TILE_WORDS, TILES_WORD, GroupTable
from superkernel.ops.ragged import PART_BITS, LengthTable
from superkernel.ops.table import find_op
from superkernel.reference import evaluate


def product(
    counts: list[int], depth: int = 20, columns: int = 70, dtype: str = "f4", tile: int = 8, rows: int = 32
) -> tuple[list[Any], dict[str, Any]]:
    """Inputs and attributes of a grouped product."""
    rng = np.random.default_rng(sum(counts) + columns)
    x = rng.standard_normal((rows, depth)).astype(dtype)
    w = rng.standard_normal((len(counts), depth, columns)).astype(dtype)
    cut = (tile, 1, 1)
    given = np.array(counts, np.int64)
    return [x, w, given, GroupTable(len(counts), rows, *cut).made(given)], {"cut": cut}


@pytest.mark.parametrize("name", COUNTS)
def test_all_kinds_of_counts(name: str) -> None:
    inputs, attrs = product(COUNTS[name])
    check_op("host.grouped_matmul", "grouped_matmul", inputs, attrs, tol=2e-5, roles={1: Role.CONSTANT})


@pytest.mark.parametrize("tier", tiers())
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_all_types_and_tiers(dtype: str, tier: str) -> None:
    tol = {"f2": 4e-3, "f4": 2e-5, "f8": 1e-12}[dtype]
    for packed in (True, False):
        inputs, attrs = product(COUNTS["uneven"], columns=37, dtype=dtype)
        roles = {1: Role.CONSTANT} if packed else {}
        check_op("host.grouped_matmul", "grouped_matmul", inputs, attrs, tol=tol, roles=roles, tier=tier, splits=1)


@pytest.mark.parametrize(("columns", "depth", "tile"), [(1, 5, 3), (48, 1, 8), (96, 64, 32), (49, 33, 1)])
def test_odd_extents(columns: int, depth: int, tile: int) -> None:
    inputs, attrs = product(COUNTS["uneven"], depth, columns, tile=tile)
    check_op("host.grouped_matmul", "grouped_matmul", inputs, attrs, tol=2e-5, splits=1)
    check_op("host.grouped_matmul", "grouped_matmul", inputs, attrs, tol=2e-5, roles={1: Role.CONSTANT}, splits=1)


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_the_table(name: str, dtype: str) -> None:
    counts = np.array(COUNTS[name], dtype)
    for attrs in ({"rows": 32, "tile": 8}, {"rows": 40, "tile": 5, "columns": 3, "slots": 7}):
        check_op("host.tiling", "tile_groups", [counts], attrs, tol=0, splits=1)


def test_a_table_covers_every_row_once() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        experts, rows, tile, columns, slots = (int(n) for n in rng.integers(1, 9, 5))
        counts = rng.multinomial(rows, np.full(experts + 1, 1 / (experts + 1)))[:experts]
        table = GroupTable(experts, rows, tile, columns, slots)
        words = table.made(counts).tolist()
        tiles = [words[at : at + TILE_WORDS] for at in range(table.tiles_word, table.words, TILE_WORDS)]
        used, rest = tiles[: words[TILES_WORD]], tiles[words[TILES_WORD] :]
        covered = [(expert, row) for expert, first, count, _ in used for row in range(first, first + count)]
        assert covered == [(e, row) for row, e in enumerate(np.repeat(np.arange(experts), counts))]
        assert all(1 <= count <= tile for _, _, count, _ in used)
        assert not any(map(any, rest))
        for start, whole in ((4, [0, len(used) * columns]), (table.cleared_word, [counts.sum(), rows])):
            bounds = words[start : start + slots + 1]
            assert [bounds[0], bounds[-1]] == whole
            assert max(np.diff(bounds)) - min(np.diff(bounds)) <= 1


@pytest.mark.parametrize(
    ("counts", "told"),
    [([3, -1, 2], "negative"), ([20, 20, 0], "more rows"), ([1 << 62, 1 << 62, 1 << 62], "more rows")],
)
def test_counts_out_of_range_are_told(counts: list[int], told: str) -> None:
    given = np.array(counts, np.int64)
    row = find_op("tile_groups")
    assert row is not None
    with pytest.raises(DataError, match=told):
        GroupTable(3, 32, 8, 1, 1).made(given)
    b = GraphBuilder("grouped")
    x, n = b.input("x", (32, 16)), b.input("n", (3,), "i64")
    b.output(b.grouped_matmul(x, b.constant(np.ones((3, 16, 24), np.float32)), n), name="y")
    kernel = compile(b.graph(), threads=2)
    fine = {"x": np.ones((32, 16), np.float32), "n": np.array([1, 2, 3])}
    for _ in range(2):
        with pytest.raises(DataError, match=told):
            kernel.run({**fine, "n": given})
        got = kernel.run(fine).outputs["y"]
        assert got.tolist() == [[16.0] * 24] * 6 + [[0.0] * 24] * 26


def test_the_kernel_tells_what_is_wrong() -> None:
    """Status, expert and count stand in the table, and there are no units."""
    from kernel_check import check_body

    table = GroupTable(3, 32, 8, 2, 2)
    body, arrays, _ = op_body("tile_groups", [np.array([3, 2, 1])], {"rows": 32, "tile": 8, "columns": 2, "slots": 2})
    for counts, head in (([3, -7, 2], [1, 1, -7, 0]), ([20, 20, -1], [2, 1, 20, 0])):
        expected = np.zeros(table.words, np.int32)
        expected[STATUS_WORD : TILES_WORD + 1] = head
        check_body("host.tiling", body, [np.array(counts), *arrays[1:]], {1: expected}, tol=0, splits=0)


LENGTHS = ([0, 0, 0], [64, 64, 64], [1, 0, 64, 17, 33], [5], [0, 64, 0, 0, 0, 0, 0, 1])


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("slots", [1, 2, 7, 24])
def test_the_table_of_lengths(lengths: list[int], slots: int) -> None:
    for dtype in ("i4", "i8"):
        for attrs in ({"keys": 64, "slots": slots}, {"keys": 64, "slots": slots, "fixed": 3}):
            check_op("host.tiling", "tile_lengths", [np.array(lengths, dtype)], attrs, tol=0, splits=1)


def test_lengths_are_divided_evenly() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        batches, slots = int(rng.integers(1, 9)), int(rng.integers(1, 30))
        lengths, fixed = rng.integers(0, 500, batches), int(rng.integers(1, 300))
        bounds = LengthTable(batches, 500, slots, fixed).made(lengths)[4:]
        assert bounds[0] == 0
        assert bounds[-1] == batches << PART_BITS
        costs = fixed + lengths
        cost = np.diff(np.interp(bounds / (1 << PART_BITS), np.arange(batches + 1), np.cumsum([0, *costs])))
        assert np.abs(cost - costs.sum() / slots).max() < 0.02


def test_a_length_out_of_range_is_told() -> None:
    b = GraphBuilder("ragged")
    q, n = b.input("q", (3, 2, 16, 8)), b.input("n", (3,), "i64")
    b.output(b.attention(q, q, q, length=n, ragged=True), name="y")
    graph = b.graph()
    kernel = compile(graph, threads=2, options={"fallback": "forbid"})
    values = np.random.default_rng(0).standard_normal((3, 2, 16, 8)).astype(np.float32)
    for lengths in ([0, 16, 5], [1, 1, 1]):
        given = {"q": values, "n": np.array(lengths)}
        np.testing.assert_allclose(kernel.run(given).outputs["y"], evaluate(graph, given)["y"], atol=2e-6)
    for lengths in ([0, 17, 5], [3, 4, -1]):
        for call in (kernel.run, lambda given: evaluate(graph, given)):
            with pytest.raises(DataError, match="a length out of range"):
                call({"q": values, "n": np.array(lengths)})
