"""Views of buffers against NumPy's: the same elements in the same order, and none where NumPy has to copy."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from seeds import seeds

from superkernel.core.tensor import row_major_strides
from superkernel.ops.opdef import AttrValue
from superkernel.scheduler.affine import (
    Coords,
    Ref,
    dense_ref,
    permutation,
    reshape_strides,
    same_strides,
    view_refs,
)

BUFFER = np.arange(4096)
FACTORS = (1, 1, 2, 2, 3, 4)


def seen(shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> NDArray[Any]:
    """The elements of the buffer that a view names."""
    steps = [stride * BUFFER.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(BUFFER[offset:], shape, steps)


def seen_by(ref: Ref) -> NDArray[Any]:
    return seen(ref.shape, ref.strides, ref.offset)


def a_shape(rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.choice(FACTORS) for _ in range(rng.randint(0, 4)))


def another(rng: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of as many elements: some neighbours joined, some factors apart, ones put in."""
    factors = [f for extent in shape for f in ({4: (2, 2)}.get(extent, (extent,)))]
    found: list[int] = []
    for factor in factors:
        if found and rng.random() < 0.5:
            found[-1] *= factor
        else:
            found.append(factor)
    for _ in range(rng.randint(0, 1)):
        found.insert(rng.randint(0, len(found)), 1)
    return tuple(found)


def some_strides(rng: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a transposed, padded or broadcast tensor."""
    order = rng.sample(range(len(shape)), len(shape))
    if rng.random() < 0.5:
        order = [*range(len(shape))]
    padded = [shape[d] + (rng.random() < 0.2) for d in order]
    dense = row_major_strides(tuple(padded))
    found = [dense[order.index(d)] for d in range(len(shape))]
    return tuple(0 if rng.random() < 0.1 else stride for stride in found)


@pytest.mark.parametrize("seed", seeds(4))
def test_a_reshape_has_strides_where_numpy_needs_no_copy(seed: int) -> None:
    rng, found = random.Random(seed), set()
    for _ in range(150):
        shape = a_shape(rng)
        strides, target = some_strides(rng, shape), another(rng, shape)
        view = seen(shape, strides)
        made = reshape_strides(shape, strides, target)
        try:
            there: NDArray[Any] | None = view.view()
            assert there is not None
            there.shape = target
        except AttributeError:
            there = None
        assert (made is None) == (there is None), (shape, strides, target)
        found.add(made is None)
        if made is not None:
            assert np.array_equal(seen(target, made), view.reshape(target))
    assert found == {False, True}


def test_without_elements_every_reshape_is_dense() -> None:
    assert reshape_strides((3, 0), (7, 9), (0, 2, 5)) == row_major_strides((0, 2, 5))
    assert reshape_strides((3, 0), (7, 9), (3, 0)) == (7, 9)
    assert reshape_strides((1, 4), (7, 1), (4, 1)) == (1, 0)


def test_strides_of_dimensions_with_one_element_do_not_matter() -> None:
    assert same_strides((3, 1, 4), (4, 9, 1), (4, 0, 1))
    assert same_strides((2, 0), (5, 1), (7, 2))
    assert not same_strides((3, 2, 4), (8, 9, 1), (8, 4, 1))
    assert not same_strides((3, 1, 4), (4, 9, 2), (4, 0, 1))
    assert dense_ref("x", (3, 1, 4)).is_dense
    assert dense_ref("x", (3, 1, 4)).offset == 0
    assert Ref("x", (3, 1, 4), (4, 77, 1), 5).is_dense
    assert not Ref("x", (3, 2), (1, 3)).is_dense


def coords(rng: random.Random, base: tuple[int, ...]) -> tuple[Coords, NDArray[Any]]:
    """A change of coordinates, and what it makes of the elements of a dense tensor."""
    made, values = Coords(base), seen(base, row_major_strides(base))
    for _ in range(rng.randint(0, 4)):
        if rng.random() < 0.5:
            shape = another(rng, made.shape)
            made, values = made.reshaped(shape), values.reshape(shape)
        else:
            perm = tuple(rng.sample(range(len(made.shape)), len(made.shape)))
            made, values = made.permuted(perm), values.transpose(perm)
    return made, values


@pytest.mark.parametrize("seed", seeds(4))
def test_coordinates_name_the_elements_that_numpy_does(seed: int) -> None:
    rng, found = random.Random(seed), [0, 0, 0]
    for _ in range(100):
        base = a_shape(rng)
        made, values = coords(rng, base)
        assert made.shape == values.shape
        strides = made.push(row_major_strides(base))
        if strides is not None:
            found[0] += 1
            assert np.array_equal(seen(made.shape, strides), values)
            back = made.pull(strides)
            found[1] += back is not None
            assert back is None or same_strides(base, back, row_major_strides(base))
        natural = made.natural()
        if natural is not None and len(made.steps) > 1:  # own elements in their own order
            found[2] += 1
            again = made.push(natural)
            assert again is None or same_strides(made.shape, again, row_major_strides(made.shape))
            where = np.empty(values.size, np.int64)
            where[values.reshape(-1)] = np.arange(values.size)
            assert np.array_equal(seen(base, natural).reshape(-1), where)
        inverse = made.inverse()
        assert (inverse.base, inverse.shape) == (made.shape, base)
        assert made.then(inverse) == Coords(base)
        assert inverse.then(made) == Coords(made.shape)
        other, more = coords(rng, made.shape)
        both = made.then(other).push(row_major_strides(base))
        if both is not None:
            assert np.array_equal(seen(other.shape, both), values.reshape(-1)[more.reshape(-1)].reshape(more.shape))
    assert min(found) > 5, found


def test_two_steps_of_a_kind_are_one() -> None:
    made = Coords((2, 3, 4))
    assert made.reshaped((6, 4)).reshaped((2, 12)) == made.reshaped((2, 12))
    assert made.reshaped((6, 4)).reshaped((2, 3, 4)) == made
    assert made.permuted((1, 2, 0)).permuted((1, 0, 2)) == made.permuted((2, 1, 0))
    assert made.permuted((1, 2, 0)).permuted((2, 0, 1)) == made
    assert len(made.permuted((1, 2, 0)).reshaped((12, 2)).permuted((1, 0)).steps) == 3


def test_permutations_are_told_from_the_back_or_turn_all_round() -> None:
    assert permutation({}, 3) == (2, 1, 0)
    assert permutation({"perm": ()}, 2) == (1, 0)
    assert permutation({"perm": ()}, 0) == ()
    assert permutation({"perm": (-1, 0, 1)}, 3) == (2, 0, 1)


SOURCE = Ref("x", (5, 6, 4), (48, 8, 2), 7)


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ((1,), (4,), (), ()),
        ((1, 2), (5, 6), (), ()),
        ((1, -3), (5, 99), (2, 1), (1, 2)),
        ((-99,), (99,), (-1,), (3,)),
        ((99,), (-99,), (1,), (-1,)),
        ((-2, 3), (-99, 0), (0, 2), (-2, -1)),
        ((4,), (1,), (0,), (-3,)),
        ((5,), (9,), (0,), (1,)),
        ((0, 0), (3, 4), (), ()),
        ((-99,), (3,), (0,), (1,)),
    ],
)
def test_slices_are_numpys(starts: Any, ends: Any, axes: Any, steps: Any) -> None:
    parts = [slice(None)] * 3
    for at, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis, step = axes[at] if axes else at, steps[at] if steps else 1
        extent = SOURCE.shape[axis]
        parts[axis] = slice(start, None if step < 0 and end < -extent else end, step)
    want = seen_by(SOURCE)[tuple(parts)]
    attrs: dict[str, AttrValue] = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
    found = view_refs("slice", attrs, SOURCE, [want.shape])
    assert found is not None
    (ref,) = found
    assert (ref.buffer, ref.shape) == ("x", want.shape)
    if want.size:
        assert np.array_equal(seen_by(ref), want)
    else:
        assert ref.offset == SOURCE.offset


def test_other_views_are_numpys() -> None:
    values = seen_by(SOURCE)

    def of(op: str, attrs: dict[str, AttrValue], *shapes: tuple[int, ...]) -> list[NDArray[Any]]:
        return [seen_by(ref) for ref in view_refs(op, attrs, SOURCE, shapes) or []]

    assert np.array_equal(of("transpose", {"perm": (2, 0, 1)}, (4, 5, 6))[0], values.transpose(2, 0, 1))
    assert np.array_equal(of("expand", {}, (3, 5, 6, 4))[0], np.broadcast_to(values, (3, 5, 6, 4)))
    assert np.array_equal(of("reshape", {}, (5, 2, 3, 4))[0], values.reshape(5, 2, 3, 4))
    assert np.array_equal(of("reshape", {}, (30, 4))[0], values.reshape(30, 4))
    assert view_refs("reshape", {}, Ref("x", (5, 6), (8, 1)), [(30,)]) is None
    shapes = (5, 1, 4), (5, 3, 4), (5, 2, 4)
    by: list[dict[str, AttrValue]] = [{"axis": 1}, {"axis": -2}]
    for attrs in by:
        for part, want in zip(of("split", attrs, *shapes), np.split(values, (1, 4), 1), strict=True):
            assert np.array_equal(part, want)
    for part, want in zip(of("split", {}, (2, 6, 4), (3, 6, 4)), np.split(values, (2,)), strict=True):
        assert np.array_equal(part, want)
