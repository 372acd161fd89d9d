"""Convolution kernels: results, declared accesses and independence of the split, on every tier, over awkward shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from anchor_bodies import anchor_case
from conv_cases import DIRECT

from superkernel.codegen.host.features import detect_cpu
from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.scheduler.families import family_of
from superkernel.scheduler.families.conv import CHANNELS, PIXELS, ConvTiling, PackFilters
from superkernel.scheduler.families.conv_form import conv_form, make_patch

F32, F64, F16, BF16 = (DType.of(n) for n in ("f32", "f64", "f16", "bf16"))


@pytest.mark.parametrize(("x", "w", "attrs"), DIRECT, ids=str)
def test_direct(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> None:
    slots = [(x, F32), (w, F32), ((w[0],), F32)]
    anchor_case("conv", attrs, slots, constants=[1, 2]).check("host.conv.igemm")


@pytest.mark.slow
@pytest.mark.parametrize(("x", "w", "attrs"), DIRECT, ids=str)
def test_direct_on_every_tier(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> None:
    anchor_case("conv", attrs, [(x, F32), (w, F32)], constants=[1]).check("host.conv.igemm", every_tier=True)
    anchor_case("conv", attrs, [(x, F32), (w, F32)]).check("host.conv.generic", every_tier=True)


@pytest.mark.parametrize("w", [(12, 6, 3, 3), (12, 6, 1, 1)], ids=str)
@pytest.mark.parametrize("epilogue", ["mixed", "sliced"])
def test_epilogues(w: tuple[int, ...], epilogue: str) -> None:
    slots = [((2, 6, 10, 13), F32), (w, F32)]
    case = anchor_case("conv", {}, slots, constants=[1], epilogue=epilogue, bias_axis=1)
    case.check("host.conv.igemm")


@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((1, 6, 10, 13), (12, 6, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
        ((1, 6, 10, 13), (12, 6, 1, 1), {}),
        ((1, 4, 600), (5, 4, 3), {"pads": (1, 1)}),
    ],
    ids=str,
)
def test_prologue(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> None:
    anchor_case("conv", attrs, [(x, F32), (w, F32)], constants=[1], prologue=0).check("host.conv.igemm")


@pytest.mark.parametrize("w", [(9, 6, 3, 3), (9, 6, 1, 1)], ids=str)
def test_channels_last_view(w: tuple[int, ...]) -> None:
    case = anchor_case("conv", {}, [((1, 6, 8, 9), F32), (w, F32)], constants=[1], layouts={0: (0, 2, 3, 1)})
    case.check("host.conv.igemm")


@pytest.mark.parametrize(("dtype", "tol"), [(F16, 4e-3), (BF16, 4e-2)])
def test_half_precision(dtype: DType, tol: float) -> None:
    slots = [((1, 6, 10, 13), dtype), ((12, 6, 3, 3), dtype), ((12,), dtype)]
    anchor_case("conv", {"pads": (1, 1, 1, 1)}, slots, constants=[1]).check("host.conv.igemm", tol)


@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((1, 9, 14, 14), (9, 1, 3, 3), {"groups": 9, "pads": (1, 1, 1, 1)}),
        ((2, 5, 15, 17), (10, 1, 5, 5), {"groups": 5, "pads": (2, 2, 2, 2), "strides": (2, 2)}),
        ((1, 20, 100), (20, 1, 3), {"groups": 20, "pads": (1, 1)}),
        ((1, 3, 9, 40), (3, 1, 9, 9), {"groups": 3, "pads": (4, 4, 4, 4)}),
    ],
    ids=str,
)
def test_depthwise(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> None:
    case = anchor_case("conv", attrs, [(x, F32), (w, F32)], constants=[1], epilogue="mixed", bias_axis=1)
    case.check("host.conv.depthwise")


@pytest.mark.parametrize(("dtype", "tol"), [(F32, 2e-5), (F16, 4e-3), (BF16, 4e-2)])
def test_depthwise_with_computed_weights(dtype: DType, tol: float) -> None:
    attrs = {"groups": 6, "pads": (1, 1, 1, 1)}
    anchor_case("conv", attrs, [((1, 6, 9, 14), dtype), ((12, 1, 3, 3), dtype)]).check("host.conv.depthwise", tol)


@pytest.mark.parametrize(
    ("x", "w", "attrs", "dtype", "tol"),
    [
        ((1, 3, 5, 6, 7), (4, 3, 2, 3, 3), {"strides": (1, 2, 2), "pads": (0, 1, 1, 1, 1, 1)}, F32, 2e-5),
        ((1, 4, 9, 11), (6, 2, 3, 3), {"strides": (2, 2), "dilations": (1, 2), "groups": 2}, F64, 1e-12),
        ((1, 3, 40), (4, 3, 5), {"dilations": (2,), "pads": (4, 4)}, F16, 1e-2),
        ((0, 2, 4, 3), (3, 2, 1, 1), {}, F32, 0),
    ],
    ids=str,
)
def test_generic(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], dtype: DType, tol: float) -> None:
    slots = [(x, dtype), (w, dtype), ((w[0],), dtype)]
    anchor_case("conv", attrs, slots).check("host.conv.generic", tol)


@pytest.mark.parametrize(
    ("x", "w", "attrs", "dtype"),
    [
        ((1, 4, 5, 6), (4, 3, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1), "output_padding": (1, 1)}, F32),
        ((2, 4, 30), (4, 3, 4), {"strides": (3,), "dilations": (2,), "pads": (1, 2)}, F32),
        ((1, 4, 5, 6, 3), (4, 2, 2, 3, 3), {"strides": (1, 2, 2), "groups": 2, "dilations": (1, 1, 2)}, F64),
        ((1, 1, 1, 1), (1, 1, 2, 2), {"strides": (2, 2)}, F32),
        ((1, 2, 3, 3), (2, 1, 1, 1), {"strides": (3, 3)}, F32),
    ],
    ids=str,
)
def test_transposed(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], dtype: DType) -> None:
    groups = int(attrs.get("groups", 1))
    slots = [(x, dtype), (w, dtype), ((w[1] * groups,), dtype)]
    anchor_case("conv_transpose", attrs, slots, constants=[1], epilogue="mixed", bias_axis=1).check(
        "host.conv.transpose"
    )


def test_pack_filters() -> None:
    weights = np.arange(12, dtype=np.float32).reshape(3, 2, 1, 2)
    packed = PackFilters(1, 3, (2, 1, 2), (4, 2, 2, 1), 0, 2).apply(weights)
    assert packed.shape == (1, 2, 4, 2)
    np.testing.assert_array_equal(packed[0, 0], weights[:2].reshape(2, 4).T)
    np.testing.assert_array_equal(packed[0, 1], np.stack([weights[2].reshape(4), np.zeros(4)]).T)


@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("dilations", [(1, 1), (2, 3)])
def test_every_tap_of_a_patch_is_a_constant_offset(strides: tuple[int, int], dilations: tuple[int, int]) -> None:
    """Filling a patch by its definition, output (r, c) finds tap (i, j) of the input at offset + r * pitch + c."""
    kernel, rows, columns = (3, 2), 4, 5
    patch = make_patch(kernel, strides, dilations, rows, columns)
    height = (rows + patch.patch_rows) * strides[0] + 9
    image = np.arange(height * 200).reshape(height, 200)
    flat = np.concatenate(
        [
            image[pr :: strides[0], pc :: strides[1]][: patch.patch_rows, : patch.pitch].reshape(-1)
            for pr, pc in patch.phases
        ]
    )
    for tap, offset in enumerate(patch.offsets):
        i, j = divmod(tap, kernel[1])
        for r in range(rows):
            for c in range(columns):
                want = image[r * strides[0] + i * dilations[0], c * strides[1] + j * dilations[1]]
                assert flat[offset + r * patch.pitch + c] == want


def test_pointwise_convolutions_merge_rows_and_read_in_place() -> None:
    body = anchor_case("conv", {}, [((1, 16, 14, 14), F32), ((40, 16, 1, 1), F32)], constants=[1]).body
    assert (conv_form(body).out_height, conv_form(body).out_width) == (1, 196)
    tilings = family_of("host.conv.igemm").tilings("host.conv.igemm", body, detect_cpu())
    assert all(isinstance(t, ConvTiling) and t.in_place for t in tilings)
    assert {t.axis for t in tilings if isinstance(t, ConvTiling)} == {PIXELS, CHANNELS}


def test_computed_weights_are_refused_by_the_packed_kernels() -> None:
    body = anchor_case("conv", {}, [((1, 2, 5, 5), F32), ((3, 2, 1, 1), F32)]).body
    with pytest.raises(UnsupportedError, match=r"host\.conv\.generic"):
        family_of("host.conv.igemm").tilings("host.conv.igemm", body, detect_cpu())
