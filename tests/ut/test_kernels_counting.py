"""host.nonzero and host.non_max_suppression against the operator table's references, to the bit."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernel_check import tiers
from numpy.typing import NDArray
from op_cases import check_op

import superkernel as sk

TYPES = ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", ml_dtypes.bfloat16]


@pytest.mark.parametrize("tier", tiers())
@pytest.mark.parametrize("dtype", TYPES)
def test_nonzero(dtype: Any, tier: str) -> None:
    rng = np.random.default_rng(1)
    for shape, share in product(
        [(), (1,), (131,), (3, 70), (2, 3, 4, 5), (0, 4), (0, 2, 3), (2, 0, 3)], [0.0, 0.02, 0.5, 1.0]
    ):
        x = np.where(rng.random(shape) < share, rng.integers(1, 100, shape), 0).astype(dtype)
        for size in {x.size, x.size + 3, x.size // 2, 1}:
            check_op("host.nonzero", "nonzero", [x], {"size": size}, tol=0, splits=1, tier=tier)


def problem(seed: int, boxes: int, *, ties: bool = False) -> list[NDArray[Any]]:
    """Boxes that overlap here and there, some of them turned or without area, and scores of three classes."""
    rng = np.random.default_rng(seed)
    middle, side = rng.random((2, boxes, 2)), rng.random((2, boxes, 2)) / 3
    corners = np.concatenate([middle - side, middle + side], axis=2)
    corners[:, ::7] = corners[:, ::7, [2, 3, 0, 1]]
    corners[:, 3::9, 2] = corners[:, 3::9, 0]
    scores = rng.random((2, 3, boxes))
    scores[:, 1, 5::6] = np.nan
    return [corners.astype(np.float32), (np.round(scores, 1) if ties else scores).astype(np.float32)]


@pytest.mark.parametrize("tier", tiers())
@pytest.mark.parametrize("boxes", [0, 1, 2, 15, 16, 40, 131])
def test_suppression(boxes: int, tier: str) -> None:
    for limit, least, centers in product([0, 1, 17, 200], [None, 0.5], [False, True]):
        given = problem(boxes, boxes, ties=limit == 17)
        attrs = {"limit": limit, "iou_threshold": 0.25, "score_threshold": least, "centers": centers}
        for size in {6 * min(limit, boxes), 7}:
            all_attrs = {**attrs, "size": size}
            check_op("host.non_max_suppression", "non_max_suppression", given, all_attrs, tol=0, splits=1, tier=tier)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_suppression_in_other_types(dtype: Any) -> None:
    given = [x.astype(dtype) for x in problem(4, 50, ties=True)]
    attrs = {"limit": 20, "iou_threshold": 0.25, "score_threshold": 0.2, "size": 120}
    check_op("host.non_max_suppression", "non_max_suppression", given, attrs, tol=0, splits=1)


def test_inputs_that_do_not_lie_dense() -> None:
    b = sk.GraphBuilder()
    boxes, scores = b.input("boxes", (4, 40, 2), "f32"), b.input("scores", (40, 2, 3), "f32")
    turned = scores.transpose(1, 2, 0)[:, ::-1]
    selected = b.non_max_suppression(boxes.transpose(2, 1, 0), turned, 99, 20, iou_threshold=0.25)
    b.output(selected, name="selected")
    b.output(b.nonzero(b.greater(scores, 0.5).transpose(2, 0, 1), 300), name="found")
    kernel = sk.compile(b, threads=2)
    corners, values = problem(2, 40)
    given = {"boxes": corners.transpose(2, 1, 0).copy(), "scores": values.transpose(2, 0, 1).copy()}
    want = kernel.run(given, executor="reference").outputs
    for name, found in kernel.run(given).outputs.items():
        np.testing.assert_array_equal(found, want[name])
    assert kernel.run(given).outputs["selected"][0, 0] > 20
