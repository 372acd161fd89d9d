"""Tensor types, boxes and byte regions against plain sets of bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superkernel.core.dtypes import DType
from superkernel.core.errors import UserError
from superkernel.core.tensor import (
    MAX_REGIONS,
    Box,
    Region,
    TensorType,
    any_overlap,
    full_box,
    joined_regions,
    regions_of_box,
    row_major_strides,
)

SETTINGS = settings(max_examples=400)


def bytes_of(region: Region) -> set[int]:
    """The byte set by its definition."""
    return {region.start + i * region.stride + j for i in range(region.count) for j in range(region.length)}


@st.composite
def regions(draw: st.DrawFn, stride: int | None = None) -> Region:
    """Canonical regions near 0: runs, gapped runs, and runs whose rows touch or overlap."""
    start, length = draw(st.integers(0, 40)), draw(st.integers(1, 9))
    count = draw(st.integers(1, 6))
    if count == 1:
        return Region(start, length)
    return Region(start, length, stride or draw(st.integers(1, 17)), count)


@given(regions(), regions())
@SETTINGS
def test_overlap_is_never_missed(a: Region, b: Region) -> None:
    meet = bool(bytes_of(a) & bytes_of(b))
    assert a.overlaps(b) or not meet
    assert a.overlaps(b) == b.overlaps(a)


@given(regions(), regions())
@SETTINGS
def test_overlap_is_exact_with_a_run(a: Region, b: Region) -> None:
    run = Region(a.start, a.length)
    assert run.overlaps(b) == bool(bytes_of(run) & bytes_of(b))
    assert b.overlaps(run) == run.overlaps(b)


@given(st.data(), st.integers(1, 17))
@SETTINGS
def test_overlap_is_exact_for_equal_strides(data: st.DataObject, stride: int) -> None:
    a, b = data.draw(regions(stride)), data.draw(regions(stride))
    assert a.overlaps(b) == bool(bytes_of(a) & bytes_of(b))


@given(regions(), st.integers(-30, 30))
@SETTINGS
def test_region_facts(region: Region, offset: int) -> None:
    touched = bytes_of(region)
    assert region.stop == max(touched) + 1
    assert region.nbytes >= len(touched)
    assert bytes_of(region.shifted(offset)) == {b + offset for b in touched}
    assert Region.parse(str(region)) == region


@st.composite
def views(draw: st.DrawFn) -> tuple[Box, tuple[int, ...], int, int]:
    """A box in a strided view whose elements lie at 0 or above: (box, strides, itemsize, offset)."""
    rank = draw(st.integers(0, 4))
    box = tuple(
        (s, s + draw(st.integers(0, 4))) for s in draw(st.lists(st.integers(0, 3), min_size=rank, max_size=rank))
    )
    strides = tuple(draw(st.lists(st.integers(-20, 20), min_size=rank, max_size=rank)))
    lowest = sum(min(s * start, s * (stop - 1)) for s, (start, stop) in zip(strides, box, strict=True) if stop > start)
    return box, strides, draw(st.sampled_from([1, 2, 4, 8])), max(0, -lowest) + draw(st.integers(0, 5))


def touched_by(box: Box, strides: tuple[int, ...], itemsize: int, offset: int) -> set[int]:
    """Every byte of every element of the box."""
    ranges = [range(start, stop) for start, stop in box]
    found: set[int] = set()
    for index in np.ndindex(*(len(r) for r in ranges)):
        at = offset + sum(r[i] * s for r, i, s in zip(ranges, index, strides, strict=True))
        found.update(range(at * itemsize, (at + 1) * itemsize))
    return found


@given(views())
@SETTINGS
def test_regions_cover_strided_boxes_exactly(view: tuple[Box, tuple[int, ...], int, int]) -> None:
    box, strides, itemsize, offset = view
    touched = touched_by(box, strides, itemsize, offset)
    found = regions_of_box(box, strides, itemsize, offset)
    covered = set().union(*(bytes_of(r) for r in found)) if found else set()
    assert touched <= covered
    spread = all(abs(s) >= 1 for s in strides)
    gapless = _runs_have_no_hidden_gaps(box, strides)
    if spread and gapless:
        assert covered == touched
    assert len(found) <= MAX_REGIONS
    assert bool(found) == bool(touched)


def _runs_have_no_hidden_gaps(box: Box, strides: tuple[int, ...]) -> bool:
    """No dimension steps by less than the elements inside it span: then the levels nest and the cover is exact."""
    levels = sorted(
        (abs(s), stop - start) for s, (start, stop) in zip(strides, box, strict=True) if stop - start > 1 and s
    )
    span = 1
    for stride, extent in levels:
        if stride < span:
            return False
        span = stride * (extent - 1) + span
    return True


@given(st.lists(st.integers(1, 5), min_size=0, max_size=4), st.randoms(use_true_random=False))
@SETTINGS
def test_regions_of_dense_boxes(shape: list[int], draws: random.Random) -> None:
    rng = np.random.default_rng(draws.getrandbits(32))
    box: Box = tuple((int(s), int(rng.integers(s + 1, d + 1))) for d, s in ((d, rng.integers(0, d)) for d in shape))
    strides = row_major_strides(shape)
    touched = touched_by(box, strides, 4, 0)
    found = regions_of_box(box, strides, 4)
    assert set().union(*(bytes_of(r) for r in found)) == touched
    assert sum(r.nbytes for r in found) == len(touched)


def test_too_many_regions_are_widened_to_one_span() -> None:
    shape = (9, 9, 3, 3)
    strides = row_major_strides((9, 9, 9, 9))
    found = regions_of_box(full_box(shape), strides, 4)
    assert len(found) == 1
    assert touched_by(full_box(shape), strides, 4, 0) <= bytes_of(found[0])


def test_any_overlap_names_the_pair() -> None:
    left, right = [Region(0, 4), Region(16, 4)], [Region(8, 4), Region(18, 1)]
    assert any_overlap(left, right) == (left[1], right[1])
    assert any_overlap(left, [Region(4, 12)]) is None


@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 4), (1, 2, 3, 4)])
@pytest.mark.parametrize("dtype", list(DType))
def test_tensor_types(dtype: DType, shape: tuple[int, ...]) -> None:
    kind = TensorType(dtype, shape)
    dense = np.zeros(shape, dtype.numpy)
    assert (kind.size, kind.nbytes, kind.rank) == (dense.size, dense.nbytes, dense.ndim)
    if dense.size:
        assert kind.strides == tuple(s // dtype.itemsize for s in dense.strides)
    assert TensorType.parse(str(kind)) == kind
    assert DType.of(dense.dtype) is dtype
    assert DType.of(str(dtype)) is dtype


@pytest.mark.parametrize("thing", ["complex64", "f12", object, np.dtype("S4"), np.dtype("datetime64[s]"), 3])
def test_other_element_types_are_refused(thing: object) -> None:
    with pytest.raises(UserError):
        DType.of(thing)


def test_byte_order_is_no_type_of_its_own() -> None:
    assert DType.of(np.dtype(">f4")) is DType.F32


def _bytes_of(regions: Sequence[Region]) -> set[int]:
    return set[int]().union(*map(bytes_of, regions))


def _random_regions(rng: random.Random, most: int) -> list[Region]:
    found = []
    for _ in range(rng.randint(1, most)):
        count, length = rng.choice([1, 1, 2, 3, 5]), rng.randint(1, 6)
        found.append(Region(rng.randrange(60), length, 0 if count == 1 else length + rng.randint(1, 9), count))
    return found


def test_joined_regions_are_the_same_bytes() -> None:
    rng, fewer = random.Random(0), 0
    for _ in range(1000):
        regions = _random_regions(rng, 9)
        joined = joined_regions(regions)
        assert _bytes_of(joined) == _bytes_of(regions), regions
        if len(joined) < len(regions):
            fewer += 1
            assert sum(r.nbytes for r in joined) == len(_bytes_of(joined)), regions
    assert fewer > 100


def test_pieces_of_a_whole_are_one_region() -> None:
    """Tiles of a plane of 300 x 20 elements, each by rows."""
    pieces = [Region(80 * row + 16 * column, 16, 80, 2) for row in range(0, 300, 2) for column in range(5)]
    assert joined_regions(pieces) == [Region(0, 24000)]
    inner = [Region(r.start, r.length - 4, r.stride, r.count) for r in pieces]
    assert joined_regions(inner) == [Region(0, 12, 16, 1500)]


def test_many_regions_meet_as_few_do(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, met = random.Random(1), 0
    for _ in range(500):
        left, right = _random_regions(rng, 4), [r.shifted(40) for r in _random_regions(rng, 4)]
        expected = any_overlap(left, right)
        with monkeypatch.context() as patched:
            patched.setattr("superkernel.core.tensor.PAIRS_TRIED", 0)
            found = any_overlap(left, right)
        assert (found is None) == (expected is None)
        if found is not None:
            met += 1
            assert found[0] in left
            assert found[1] in right
            assert found[0].overlaps(found[1])
    assert 50 < met < 450
