"""Through which views kernels of the accelerator read their inputs and store their results, up to their bounds; all
else is copied first."""

from __future__ import annotations

import pytest

from superkernel.core.dtypes import DType
from superkernel.ir.body import View
from superkernel.scheduler.families.aicore import family_of

F16, F32, I8, I32 = (DType.of(name) for name in ("f16", "f32", "i8", "i32"))
FAR = (1 << 32) - 1  # bytes from row to row


def accepts(kernel: str, op: str, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType = F16, slot: int = 0,
            ) -> bool:  # fmt: skip
    return family_of(kernel).accepts_view(kernel, op, slot, View(0, shape, strides), dtype)


def stores(kernel: str, op: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    return family_of(kernel).accepts_store(kernel, op, View(0, shape, strides), F16)


@pytest.mark.parametrize(
    ("shape", "strides", "dtype", "slot", "expected"),
    [
        ((4, 8), (8, 1), F16, 0, True),
        ((4, 8), (1, 4), F16, 0, True),
        ((4, 8), (16, 2), F16, 0, False),
        ((4, 8), (-8, 1), F16, 0, False),
        ((4, 1), (16, 2), F16, 0, False),
        ((4, 1), (1, 2), F16, 0, True),
        ((1, 1), (3, 2), F16, 0, True),
        ((4, 8), (0, 1), F16, 0, True),
        ((4, 8), (FAR // 2, 1), F16, 0, True),
        ((4, 8), (FAR // 2 + 1, 1), F16, 0, False),
        ((4, 8), (FAR, 1), I8, 0, True),
        ((4, 8), (FAR + 1, 1), I8, 0, False),
        ((3, 4, 8), (-99, 8, 1), F16, 1, True),
        ((3, 4, 8), (-99, 8, 2), F16, 1, False),
        ((4, 8), (16, 1), F16, 2, False),
        ((4, 8), (8, 1), F16, 2, True),
        ((), (), F16, 0, True),
    ],
)
def test_matmul(shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, slot: int, expected: bool) -> None:
    assert accepts("aicore.matmul", "matmul", shape, strides, dtype, slot) is expected


@pytest.mark.parametrize(
    ("shape", "strides", "dtype", "slot", "expected"),
    [
        ((1, 16, 9, 9), (1296, 1, 144, 16), F16, 0, True),
        ((1, 16, 9, 9), (2592, 1, 288, 16), I8, 0, True),
        ((1, 16, 9), (144, 1, 16), F32, 0, True),
        ((1, 16, 9, 9), (1296, 81, 9, 1), F16, 0, False),
        ((1, 1, 9, 9), (81, 81, 9, 1), F16, 0, True),
        ((1, 16, 9, 9), (1296, 1, -144, 16), F16, 0, False),
        ((1, 16, 9, 9), (0, 1, 144, 16), F16, 0, True),
        ((1, 16, 9, 9), (1296, 1, 144, 16), I32, 0, False),
        ((1, 16, 2, 2, 2), (128, 1, 64, 32, 16), F16, 0, False),
        ((1, 16), (16, 1), F16, 0, False),
        ((16,), (-1,), F16, 2, True),
        ((16,), (1,), F16, 3, False),
    ],
)
def test_conv(shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, slot: int, expected: bool) -> None:
    assert accepts("aicore.conv", "conv", shape, strides, dtype, slot) is expected
    if slot == 0 and len(shape) == 4 and dtype is F16:
        assert stores("aicore.conv", "conv", shape, strides) is expected


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((1, 16, 9, 9), (1296, 1, 144, 16), True),
        ((1, 16, 9, 9), (1296, 81, 9, 1), True),
        ((1, 16, 9, 9), (2592, 162, 18, 1), False),
        ((1, 16, 9, 9), (2592, 1, 288, 32), True),
        ((1, 16, 2, 9), (1296, 1, -144, 16), False),
        ((1, 16, 9, 2), (1296, 1, 144, -16), False),
        ((1, 16, 9, 2), (1296, 1, 144, 0), False),
        ((1, 16, 1, 9), (1296, 1, -144, 16), True),
        ((1, 1, 9, 9), (99, 99, -9, 2), True),
        ((1, 16, 2, 2, 9), (1296, 1, 600, 144, 16), True),
        ((1, 16, 2, 2, 2, 9), (2592, 1, 1296, 600, 144, 16), False),
    ],
)
def test_pools(shape: tuple[int, ...], strides: tuple[int, ...], expected: bool) -> None:
    assert accepts("aicore.pool", "max_pool", shape, strides) is expected
    if len(shape) < 6:
        assert stores("aicore.pool", "max_pool", shape, strides) is expected


def test_pools_of_whole_images_read_and_store_as_rows_do() -> None:
    assert accepts("aicore.pool", "global_max_pool", (1, 16, 9, 9), (2592, 162, 18, 1))
    assert not accepts("aicore.pool", "global_max_pool", (1, 16, 9, 9), (2592, 162, 18, 2))
    assert stores("aicore.pool", "global_max_pool", (1, 16, 1, 1), (32, 2, 1, 1))


@pytest.mark.parametrize(
    ("shape", "strides", "slot", "expected"),
    [
        ((4, 8), (8, 1), 0, True),
        ((4, 8), (1, 4), 0, True),
        ((4, 8), (16, 2), 0, False),
        ((4, 8), (0, 1), 0, False),
        ((4, 8), (-8, 1), 0, False),
        ((1, 8), (-8, 1), 0, True),
        ((1, 2), (5, 2), 0, False),
        ((1, 1), (5, 2), 0, True),
        ((8,), (1,), 1, True),
        ((8,), (2,), 1, False),
    ],
)
def test_rows(shape: tuple[int, ...], strides: tuple[int, ...], slot: int, expected: bool) -> None:
    assert accepts("aicore.norm", "layer_norm", shape, strides, slot=slot) is expected


def test_only_norms_store_what_stands_in_front_of_them() -> None:
    found = {k: family_of(k).prologue_may_store(k, "", 0) for k in ("aicore.norm", "aicore.softmax", "aicore.reduce")}
    assert found == {"aicore.norm": True, "aicore.softmax": True, "aicore.reduce": False}


@pytest.mark.parametrize(
    ("shape", "strides", "slot", "expected"),
    [
        ((1, 4, 9, 16), (576, 16, 64, 1), 0, True),
        ((1, 4, 9, 16), (576, 16, 64, 2), 1, False),
        ((1, 4, 9, 1), (576, 16, 64, 2), 2, True),
        ((1, 4, 9, 2), (576, 16, 64, 2), 2, False),
        ((1, 4, 9, 16), (576, -16, 64, 1), 1, False),
        ((1, 4, 9, 16), (576, 0, 64, 1), 1, True),
        ((1, 2, 9, 16), (576, FAR // 2, 64, 1), 1, True),
        ((1, 2, 9, 16), (576, FAR // 2 + 1, 64, 1), 1, False),
        ((1, 1, 9, 16), (576, FAR // 2 + 1, 64, 1), 1, True),
        ((9,), (2,), 4, True),
        ((9,), (2,), 3, False),
        ((9,), (-2,), 4, False),
        ((), (), 3, True),
    ],
)
def test_attention(shape: tuple[int, ...], strides: tuple[int, ...], slot: int, expected: bool) -> None:
    assert accepts("aicore.attention", "attention", shape, strides, slot=slot) is expected


@pytest.mark.parametrize(
    ("shape", "strides", "slot", "expected"),
    [
        ((9, 8), (16, 1), 0, True),
        ((9, 8), (16, 2), 0, False),
        ((9, 8), (16, 2), 1, True),
        ((), (), 0, True),
    ],
)
def test_gather(shape: tuple[int, ...], strides: tuple[int, ...], slot: int, expected: bool) -> None:
    assert accepts("aicore.gather", "gather", shape, strides, slot=slot) is expected
