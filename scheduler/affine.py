"""Stride algebra: affine views of dense buffers, and changes of coordinates between iteration spaces.

Model: a `Ref` is a value in memory: buffer, shape, strides and offset in elements. A `Coords` is a bijective change
of coordinates, a chain of reshapes and permutations, from an iteration space (`base`) to a value's own index space.
`pull` takes strides over the value's space back to the iteration space, `push` goes the other way. Both give None
where the result is not affine (a reshape that would have to cut a stride); nothing here ever copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod

from superkernel.core.frozen import frozen
from superkernel.core.tensor import broadcast_strides, row_major_strides
from superkernel.ops.opdef import AttrValue

Shape = tuple[int, ...]


@frozen()
class Ref:
    """A value in memory: element (i0, i1, ...) sits at offset + sum(i * stride) of `buffer`, in elements."""

    buffer: str
    shape: Shape
    strides: Shape
    offset: int = 0

    @property
    def is_dense(self) -> bool:
        """True where the view is a contiguous run in row-major order."""
        return same_strides(self.shape, self.strides, row_major_strides(self.shape))


def dense_ref(buffer: str, shape: Shape) -> Ref:
    """The whole of a buffer, row-major."""
    return Ref(buffer, shape, row_major_strides(shape))


def same_strides(shape: Shape, a: Shape, b: Shape) -> bool:
    """True where two stride tuples address alike over `shape` (strides of extents 0 and 1 do not matter)."""
    return a == b or all(x == y for x, y, d in zip(a, b, shape, strict=True) if d > 1) or 0 in shape


@lru_cache(maxsize=4096)  # equal layers ask the same
def reshape_strides(shape: Shape, strides: Shape, target: Shape) -> Shape | None:
    """Strides over `target` that address the same elements in the same row-major order, or None where there are
    none."""
    if shape == target:
        return strides
    if prod(shape) == 0:
        return row_major_strides(target)
    levels: list[list[int]] = []  # merged (extent, stride), outermost first
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if levels and levels[-1][1] == extent * stride:
            levels[-1] = [levels[-1][0] * extent, stride]
        else:
            levels.append([extent, stride])
    result = [0] * len(target)
    at, room = len(levels) - 1, 1  # `room`: how much of the present level is used up
    for i in range(len(target) - 1, -1, -1):
        extent = target[i]
        if extent == 1:
            continue
        while at >= 0 and room == levels[at][0]:
            at, room = at - 1, 1
        if at < 0 or levels[at][0] % (room * extent):
            return None
        result[i] = levels[at][1] * room
        room *= extent
    return tuple(result)


@frozen()
class _Step:
    before: Shape
    after: Shape
    perm: Shape | None  # None: a reshape


@frozen()
class Coords:
    """How a value's index space relates to the iteration space `base` of the cluster that computes it."""

    base: Shape
    steps: tuple[_Step, ...] = ()

    @property
    def shape(self) -> Shape:
        """The value's own shape."""
        return self.steps[-1].after if self.steps else self.base

    def reshaped(self, shape: Shape) -> Coords:
        """The same value under another shape of equal size."""
        if shape == self.shape:
            return self
        if self.steps and self.steps[-1].perm is None:  # two reshapes in a row are one
            return Coords(self.base, self.steps[:-1]).reshaped(shape)
        return Coords(self.base, (*self.steps, _Step(self.shape, shape, None)))

    def permuted(self, perm: Shape) -> Coords:
        """The same value with its dimensions in the order `perm`."""
        if self.steps and self.steps[-1].perm is not None:  # two permutations in a row are one
            inner = self.steps[-1].perm
            perm = tuple(inner[p] for p in perm)
            return Coords(self.base, self.steps[:-1]).permuted(perm)
        if perm == tuple(range(len(perm))):
            return self
        after = tuple(self.shape[p] for p in perm)
        return Coords(self.base, (*self.steps, _Step(self.shape, after, perm)))

    def then(self, other: Coords) -> Coords:
        """First this change of coordinates, then `other` (whose base is this one's shape)."""
        found = self
        for step in other.steps:
            found = found.reshaped(step.after) if step.perm is None else found.permuted(step.perm)
        return found

    def inverse(self) -> Coords:
        """From the value's space back to the iteration space."""
        found = Coords(self.shape)
        for step in reversed(self.steps):
            if step.perm is None:
                found = found.reshaped(step.before)
            else:
                found = found.permuted(tuple(step.perm.index(i) for i in range(len(step.perm))))
        return found

    def pull(self, strides: Shape) -> Shape | None:
        """Strides over the value's shape -> strides over the iteration space."""
        for step in reversed(self.steps):
            if step.perm is not None:
                found = [0] * len(strides)
                for i, p in enumerate(step.perm):
                    found[p] = strides[i]
                strides = tuple(found)
            else:
                split = reshape_strides(step.after, strides, step.before)
                if split is None:
                    return None
                strides = split
        return strides

    def push(self, strides: Shape) -> Shape | None:
        """Strides over the iteration space -> strides over the value's shape."""
        for step in self.steps:
            if step.perm is not None:
                strides = tuple(strides[p] for p in step.perm)
            else:
                split = reshape_strides(step.before, strides, step.after)
                if split is None:
                    return None
                strides = split
        return strides

    def natural(self) -> Shape | None:
        """Iteration-space strides under which the value itself lies dense in memory."""
        return self.pull(row_major_strides(self.shape))


def permutation(attrs: Mapping[str, AttrValue], rank: int) -> Shape:
    """The `perm` of a transpose, canonical (default: reversed dimensions)."""
    return tuple(p % rank for p in _ints(attrs.get("perm"))) or tuple(reversed(range(rank)))


def view_refs(op: str, attrs: Mapping[str, AttrValue], source: Ref, outputs: Sequence[Shape]) -> list[Ref] | None:
    """The outputs of a VIEW or RESHAPE operator as refs into the source's buffer; None where that is not affine."""
    if op == "transpose":
        perm = permutation(attrs, len(source.shape))
        strides = tuple(source.strides[p] for p in perm)
        return [Ref(source.buffer, outputs[0], strides, source.offset)]
    if op == "expand":
        return [
            Ref(source.buffer, outputs[0], broadcast_strides(source.shape, source.strides, outputs[0]), source.offset)
        ]
    if op == "slice":
        return [_slice(attrs, source, outputs[0])]
    if op == "split":
        return _split(attrs, source, outputs)
    split = reshape_strides(source.shape, source.strides, outputs[0])
    return None if split is None else [Ref(source.buffer, outputs[0], split, source.offset)]


def _ints(value: AttrValue) -> Shape:
    return tuple(int(v) for v in value) if isinstance(value, tuple) else ()


def _slice(attrs: Mapping[str, AttrValue], source: Ref, shape: Shape) -> Ref:
    """NumPy's clamping: starts are clamped to [0, d] going up, to [-1, d - 1] going down; the ends follow from the
    output's shape."""
    starts, axes, steps = (_ints(attrs.get(name)) for name in ("starts", "axes", "steps"))
    axes = axes or tuple(range(len(starts)))
    steps = steps or (1,) * len(starts)
    strides, offset = list(source.strides), source.offset
    if 0 in shape:
        return Ref(source.buffer, shape, tuple(strides), offset)
    for start, axis, step in zip(starts, axes, steps, strict=True):
        extent = source.shape[axis]
        first = start + extent if start < 0 else start
        first = min(max(first, 0), extent) if step > 0 else min(max(first, -1), extent - 1)
        offset += first * source.strides[axis]
        strides[axis] = source.strides[axis] * step
    return Ref(source.buffer, shape, tuple(strides), offset)


def _split(attrs: Mapping[str, AttrValue], source: Ref, outputs: Sequence[Shape]) -> list[Ref]:
    axis = attrs.get("axis")
    at = (axis if isinstance(axis, int) else 0) % len(source.shape)
    found, offset = [], source.offset
    for shape in outputs:
        found.append(Ref(source.buffer, shape, source.strides, offset))
        offset += shape[at] * source.strides[at]
    return found
