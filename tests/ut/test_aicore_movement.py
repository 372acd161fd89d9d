"""aicore.movement: concat, pad and tile against the operator table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from aicore_check import check_aicore
from anchor_bodies import anchor_case

from superkernel.core.dtypes import DType

F16, F32, I64, BOOL = DType.F16, DType.F32, DType.I64, DType.BOOL


def check(op: str, attrs: dict[str, Any], slots: list[Any], kernel: str = "aicore.movement", **options: Any) -> None:
    case = anchor_case(op, attrs, slots, **options)
    check_aicore(kernel, case.body, case.arrays, case.expected, tol=2e-3)


@pytest.mark.parametrize("dtype", [F16, F32, I64, BOOL])
def test_concat(dtype: DType) -> None:
    check("concat", {"axis": 0}, [((3, 40), dtype), ((5, 40), dtype)])
    check("concat", {"axis": -1}, [((6, 40), dtype), ((6, 17), dtype), ((6, 1), dtype)])
    check("concat", {"axis": 1}, [((2, 3, 20), dtype), ((2, 1, 20), dtype)], layouts={0: (0, 2, 1)})


def test_concat_with_surroundings() -> None:
    slots = [((4, 5, 20), F16), ((4, 3, 20), F16)]
    check("concat", {"axis": 1}, slots, prologue=1)
    check("concat", {"axis": 1}, slots, epilogue="mixed")
    check("concat", {"axis": 1}, slots, epilogue="sliced")


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad(mode: str) -> None:
    attrs: dict[str, Any] = {"pads": (0, 2, 1, 0, 1, 3), "mode": mode}
    if mode == "constant":
        attrs["value"] = 1.5
    check("pad", attrs, [((3, 6, 40), F16)])
    check("pad", attrs, [((3, 6, 7), F32)])
    check("pad", {**attrs, "pads": (0, 0, -1, 0, 0, -2)}, [((2, 3, 30), F16)])


@pytest.mark.parametrize("dtype", [F16, I64])
def test_tile(dtype: DType) -> None:
    check("tile", {"repeats": (2, 3)}, [((4, 20), dtype)])
    check("tile", {"repeats": (1, 2, 1)}, [((3, 4, 16), dtype)])


def test_large_pieces() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((n, 5000)).astype(np.float16) for n in (30, 50))
    check("concat", {"axis": 0}, [a, b])
    check("concat", {"axis": 1}, [a[:20], b[:20]])
