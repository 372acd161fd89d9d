"""Operators that find as many things as the data has: how many comes first, then they, then zeros.

Model: attribute `size` says how many rows there is room for; the result has one more, the first, which begins with how
many were found. Where there are more than there is room for, the first ones stand there. Frontends give the room that
always suffices; what reads the rows is proved not to hang on those behind the last, or told how many count
(`padding/counted.py`).
"""

from __future__ import annotations

import math

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType
from superkernel.ops.common import attr, get, present, require, require_rank, require_shape, slot
from superkernel.ops.opdef import ANY, ArgDef, Array, Arrays, AttrDef, AttrKind, Attrs, Family, OpDef, Outputs, Types

COORDINATES = 4  # of a box
ROW = 3  # of what is selected: batch, class, box
COMPARED = frozenset({DType.F32, DType.F16, DType.BF16})
"""Element types of boxes and scores, which are compared in f32."""


def _rows(attrs: Attrs) -> int:
    size = get(attrs, "size", int)
    require(size >= 0, "out of range", ">= 0", size, "attribute 'size'")
    return size + 1


# nonzero

_X = (ArgDef("x", ANY),)


def _nonzero_infer(inputs: Types, attrs: Attrs) -> Outputs:
    return (TensorType(DType.I64, (_rows(attrs),)),)


def _nonzero_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    size = get(attrs, "size", int)
    found = np.flatnonzero(present(inputs, 0))[:size]
    return (np.array([len(found), *found, *[0] * (size - len(found))], np.int64),)


# non_max_suppression

_BOXES = (
    ArgDef("boxes", COMPARED, doc="[N, B, 4], of each sample: two opposite corners y1, x1, y2, x2"),
    ArgDef("scores", COMPARED, doc="[N, C, B], of each class"),
)


def _suppression_infer(inputs: Types, attrs: Attrs) -> Outputs:
    boxes, scores = present(inputs, 0), present(inputs, 1)
    require_rank(boxes, 3, 3, slot(_BOXES, 0))
    require_rank(scores, 3, 3, slot(_BOXES, 1))
    require_shape(boxes, (scores.shape[0], scores.shape[2], COORDINATES), slot(_BOXES, 0))
    require(boxes.shape[1] < 1 << 31, "too many boxes", "below 2^31", boxes, slot(_BOXES, 0))
    limit = get(attrs, "limit", int)
    require(limit >= 0, "out of range", ">= 0", limit, "attribute 'limit'")
    return (TensorType(DType.I64, (_rows(attrs), ROW)),)


def least_score(attrs: Attrs) -> float | None:
    """The score that boxes must exceed, an f32; None: that boxes need only have one."""
    given = attrs["score_threshold"]
    return None if given is None else float(np.float32(get(attrs, "score_threshold", float)))


def _less(a: Array, b: Array) -> Array:
    return np.where(a < b, a, b)


def _more(a: Array, b: Array) -> Array:
    return np.where(a > b, a, b)


def _edges(boxes: Array, centers: bool) -> Array:
    """[B, 5]: least y and x, greatest y and x, area, f32. `centers`: boxes are x and y of the middle, width, height."""
    if centers:
        half = boxes[:, 2:] / np.float32(2)
        low, high = (boxes[:, :2] - half)[:, ::-1], (boxes[:, :2] + half)[:, ::-1]
    else:
        low, high = _less(boxes[:, :2], boxes[:, 2:]), _more(boxes[:, :2], boxes[:, 2:])
    size = high - low
    return np.concatenate([low, high, size[:, :1] * size[:, 1:]], axis=1)


def _overlaps(one: Array, others: Array, threshold: np.float32) -> bool:
    """Whether intersection over union of a box with any of the others is above the threshold."""
    size = _less(one[2:4], others[:, 2:4]) - _more(one[:2], others[:, :2])
    shared = size[:, 0] * size[:, 1]
    union = one[4] + others[:, 4] - shared
    meet = (size > 0).all(axis=1) & (shared > 0) & (one[4] > 0) & (others[:, 4] > 0) & (union > 0)
    return bool((meet & (shared / union > threshold)).any())


def _suppression_reference(inputs: Arrays, attrs: Attrs, outputs: Outputs) -> tuple[Array, ...]:
    boxes, scores = (present(inputs, i).astype(np.float32) for i in range(2))
    least, limit, size = least_score(attrs), get(attrs, "limit", int), get(attrs, "size", int)
    threshold = np.float32(get(attrs, "iou_threshold", float))
    rows: list[tuple[int, int, int]] = []
    for sample, classes in enumerate(scores):
        edges = _edges(boxes[sample], get(attrs, "centers", bool))
        for number, values in enumerate(classes):
            allowed = ~np.isnan(values) if least is None else values > np.float32(least)
            kept: list[int] = []
            for box in np.argsort(-values, kind="stable").tolist():
                if len(kept) == limit:
                    break
                if allowed[box] and not _overlaps(edges[box], edges[kept], threshold):
                    kept.append(box)
            rows += [(sample, number, box) for box in kept]
    found = np.zeros((size + 1, ROW), np.int64)
    count = found[0, 0] = min(len(rows), size)
    found[1 : count + 1] = np.array(rows, np.int64).reshape(-1, ROW)[:count]
    return (found,)


def _suppression_flops(inputs: Types, outputs: Outputs, attrs: Attrs) -> int:
    """Of looking at each score once, and at as many pairs of boxes as have room."""
    scores = present(inputs, 1)
    kept = min(get(attrs, "limit", int), scores.shape[2])
    return scores.size + 12 * math.prod(scores.shape[:2]) * kept * kept


OPS: tuple[OpDef, ...] = (
    OpDef(
        "nonzero",
        Family.OTHER,
        "How many elements of x are not 0, then their indices into x as one row, then zeros.",
        _X,
        (attr("size", int, "how many indices there is room for"),),
        _nonzero_infer,
        _nonzero_reference,
    ),
    OpDef(
        "non_max_suppression",
        Family.OTHER,
        "How many boxes overlap no better one of their class; they, best first: (sample, class, box).",
        _BOXES,
        (
            attr("size", int, "how many boxes there is room for"),
            attr("limit", int, "how many boxes of a class are selected at most"),
            attr("iou_threshold", 0.0, "intersection over union above which a box is left out"),
            AttrDef("score_threshold", AttrKind.FLOAT, None, "the score that boxes must exceed, if any"),
            attr("centers", False, "boxes are x and y of the middle, width and height"),
        ),
        _suppression_infer,
        _suppression_reference,
        _suppression_flops,
        discontinuous=True,
    ),
)
