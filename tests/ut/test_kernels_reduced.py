"""Matrix products in narrow formats: held to a model of their rounding, against declared accesses, on every tier.

Model: `narrow_model.expected_product` rounds the factors as the format says and multiplies them in float64; what is
left is the rounding of f32 sums. The distance of the model itself to the exact product is what docs/numerics.md states.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from anchor_bodies import AnchorCase, anchor_case
from kernel_check import check_body, tiers
from narrow_model import expected_product
from numpy.typing import NDArray

from superkernel.codegen.host.features import detect_cpu
from superkernel.codegen.host.standalone import StandaloneKernel
from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.formats import BF16, BF16X3, INT8, INT8X2, WEIGHTS8, NumberFormat, choose
from superkernel.ir.body import Role
from superkernel.scheduler.families import family_of
from superkernel.scheduler.families.matmul import MatmulFamily
from superkernel.scheduler.families.matmul_tiling import MatmulTiling
from superkernel.scheduler.tiling import pack_bytes
from superkernel.target.cpu import CpuTarget

Array = NDArray[Any]
F32 = DType.F32
KERNELS = ("host.matmul.bf16", "host.matmul.gemv_bf16", "host.matmul.tf32", "host.matmul.int8", "host.matmul.gemv_int8")
CONVOLUTIONS = ("host.conv.bf16", "host.conv.int8")

# Error of a result, relative to the sum of |x| |w| behind it (INT8: to the largest |x| and |w| times the depth).
BOUNDS = {
    number.name: bound
    for number, bound in zip(
        (BF16, BF16X3, INT8, INT8X2, WEIGHTS8), (2.0**-7.9, 2.0**-15.5, 2.0**-7, 2.0**-8, 2.0**-8), strict=True
    )
}


def format_of(kernel: str, target: CpuTarget) -> NumberFormat:
    """The number format of a kernel on a CPU."""
    family = family_of(kernel)
    assert isinstance(family, MatmulFamily)
    return choose(family.numbers, target.has)


def narrow_case(a: tuple[int, ...], b: tuple[int, ...], seed: int = 0, **how: Any) -> tuple[AnchorCase, Array, Array]:
    """A case with its factors as matrices."""
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal(a).astype(np.float32), rng.standard_normal(b).astype(np.float32)
    return anchor_case("matmul", how, [x, w], constants=[1]), x, w


def tilings_of(kernel: str, case: AnchorCase, cpu: CpuTarget) -> list[MatmulTiling]:
    found = family_of(kernel).tilings(kernel, case.body, cpu)
    return [t for t in found if isinstance(t, MatmulTiling)]


def check(kernel: str, case: AnchorCase, want: Array, tier: str, tol: float = 2e-5) -> None:
    """One tiling per unit axis."""
    output = next(i for i, o in enumerate(case.body.operands) if o.role is Role.OUTPUT)
    axes = {t.axis: t for t in reversed(tilings_of(kernel, case, detect_cpu(tier)))}
    for tiling in axes.values():
        check_body(kernel, case.body, case.arrays, {output: want}, tilings=[tiling], tol=tol, tier=tier, splits=2)


SHAPES = [
    ((1, 1), (1, 1)),
    ((37, 45), (45, 83)),
    ((3, 130), (130, 17)),
    ((2, 3, 19, 33), (33, 65)),
    ((29, 1), (1, 31)),
    ((47,), (47, 50)),
]


@pytest.mark.parametrize("tier", tiers())
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("a", "b"), SHAPES, ids=str)
def test_products(kernel: str, a: tuple[int, ...], b: tuple[int, ...], tier: str) -> None:
    case, x, w = narrow_case(a, b)
    form = format_of(kernel, detect_cpu(tier))
    check(kernel, case, expected_product(x.astype(float), w.astype(float), form), tier, tol=1e-4)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("a", "b", "attrs"),
    [
        ((9, 33), (65, 33), {"trans_b": True}),
        ((33, 9), (33, 65), {"trans_a": True}),
        ((2, 1, 8, 35), (1, 3, 35, 30), {}),
        ((64, 4096), (4096, 7), {}),
    ],
    ids=str,
)
def test_forms(kernel: str, a: tuple[int, ...], b: tuple[int, ...], attrs: dict[str, bool]) -> None:
    """Transposed and batched factors, rows in several blocks."""
    case, x, w = narrow_case(a, b, **attrs)
    left, right = (m.swapaxes(-1, -2) if attrs.get(t) else m for m, t in ((x, "trans_a"), (w, "trans_b")))
    tier = tiers()[len(str(a)) % len(tiers())]
    form = format_of(kernel, detect_cpu(tier))
    want = expected_product(left.astype(float), right.astype(float), form)
    check(kernel, case, want, tier, tol=2e-4)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_matrix_of_weights_times_a_column(kernel: str) -> None:
    """Turned round: the matrix is what is packed."""
    rng = np.random.default_rng(5)
    w, x = rng.standard_normal((65, 33)).astype(np.float32), rng.standard_normal((33, 1)).astype(np.float32)
    tier = tiers()[0]
    want = expected_product(x.T.astype(float), w.T.astype(float), format_of(kernel, detect_cpu(tier))).T
    check(kernel, anchor_case("matmul", {}, [w, x], constants=[0]), want, tier, tol=1e-4)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("store", ["mixed", "sliced"])
def test_prologues_and_epilogues(kernel: str, store: str) -> None:
    """Held to the exact product: a tolerance as wide as the format's error, accesses and splits as strict as ever."""
    slots = [((2, 9, 24), F32), ((24, 37), F32)]
    case = anchor_case("matmul", {}, slots, constants=[1], prologue=0, epilogue=store)
    case.check(kernel, tol=0.15)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("tier", tiers())
def test_error_bounds(kernel: str, tier: str) -> None:
    """What docs/numerics.md states, over rows and columns of very different sizes."""
    rng = np.random.default_rng(7)
    x = (rng.standard_normal((24, 512)) * 10.0 ** rng.integers(-6, 6, (24, 1))).astype(np.float32)
    w = (rng.standard_normal((512, 40)) * 10.0 ** rng.integers(-6, 6, (1, 40))).astype(np.float32)
    rows = 4 if "gemv" in kernel else 24
    case = anchor_case("matmul", {}, [x[:rows], w], constants=[1])
    cpu = detect_cpu(tier)
    form = format_of(kernel, cpu)
    tiling = tilings_of(kernel, case, cpu)[0]
    got = np.zeros((rows, 40), np.float32)
    StandaloneKernel(kernel, case.body, tiling, cpu).run([x[:rows], w, got])
    wide, weights = x[:rows].astype(np.float64), w.astype(np.float64)
    scale = np.abs(wide) @ np.abs(weights)
    if form.scales_weights:
        largest_x, largest_w = np.abs(wide).max(axis=1, keepdims=True), np.abs(weights).max(axis=0, keepdims=True)
        scale = 512 * largest_x * largest_w
    assert (np.abs(got - wide @ weights) <= BOUNDS[form.name] * scale).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_weights_of_zeros_and_rows_of_zeros(kernel: str) -> None:
    """No scale divides by zero; zeros give zeros."""
    x, w = np.zeros((3, 20), np.float32), np.ones((20, 9), np.float32)
    x[1], w[:, 4] = 1.5, 0.0
    want = x.astype(float) @ w.astype(float)
    check(kernel, anchor_case("matmul", {}, [x, w], constants=[1]), want, tiers()[0], tol=1e-2)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_rows_that_are_not_finite_stay_so(kernel: str, special: float) -> None:
    """And the rows beside them are none the worse."""
    x, w = np.ones((9, 33), np.float32), np.ones((33, 17), np.float32)
    x[4, 3] = special
    case, got = anchor_case("matmul", {}, [x, w], constants=[1]), np.zeros((9, 17), np.float32)
    cpu = detect_cpu(tiers()[0])
    StandaloneKernel(kernel, case.body, tilings_of(kernel, case, cpu)[0], cpu).run([x, w, got])
    assert not np.isfinite(got[4]).any()
    np.testing.assert_allclose(np.delete(got, 4, axis=0), 33.0, rtol=1e-2)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", [((1, 5), (5, 3)), ((40, 1001), (1001, 70)), ((3, 4, 33), (3, 33, 20))], ids=str)
def test_packed_sizes_are_told_ahead(kernel: str, shape: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    case, _, w = narrow_case(*shape)
    for tier in tiers():
        for tiling in tilings_of(kernel, case, detect_cpu(tier)):
            for operand, pack in tiling.packs(case.body).items():
                kind = case.body.operands[operand].type
                assert pack.packed_bytes(kind) == pack_bytes(pack, w).nbytes


def test_a_factor_that_is_computed_is_refused() -> None:
    case = anchor_case("matmul", {}, [((9, 5), F32), ((5, 7), F32)])
    with pytest.raises(UnsupportedError, match="constant factor"):
        family_of("host.matmul.bf16").tilings("host.matmul.bf16", case.body, detect_cpu())


def test_bytes_streamed_are_a_half_and_a_quarter() -> None:
    """What few rows are about."""
    case, _, w = narrow_case((1, 4096), (4096, 1024))
    sizes = {}
    for kernel in ("host.matmul.gemv_bf16", "host.matmul.gemv_int8"):
        tiling = tilings_of(kernel, case, detect_cpu())[0]
        sizes[kernel] = sum(pack_bytes(p, w).nbytes for p in tiling.packs(case.body).values()) / w.nbytes
    assert sizes == {"host.matmul.gemv_bf16": 0.5, "host.matmul.gemv_int8": pytest.approx(0.25, rel=0.01)}


def conv_case(x: tuple[int, ...], filters: int, bias: bool, epilogue: str = "store") -> tuple[AnchorCase, Array]:
    """A 1 x 1 convolution of an image that lies channels last, and its product of matrices [pixels, filters] in each
    format."""
    rng = np.random.default_rng(3)
    image = rng.standard_normal(x).astype(np.float32)
    w = rng.standard_normal((filters, x[1], *(1 for _ in x[2:]))).astype(np.float32)
    terms = rng.standard_normal(filters).astype(np.float32) if bias else None
    order = (0, *range(2, len(x)), 1)
    slots = [image, w, terms]
    case = anchor_case("conv", {}, slots, constants=[1, 2], layouts={0: order}, epilogue=epilogue, bias_axis=1)
    return case, image


@pytest.mark.parametrize("kernel", CONVOLUTIONS)
@pytest.mark.parametrize("tier", tiers())
@pytest.mark.parametrize(
    ("x", "filters", "bias"),
    [((1, 24, 7, 9), 40, True), ((2, 33, 5, 4), 17, False), ((3, 16, 11), 8, True), ((1, 130, 4, 4), 70, True)],
    ids=str,
)
def test_convolutions(kernel: str, x: tuple[int, ...], filters: int, bias: bool, tier: str) -> None:
    case, image = conv_case(x, filters, bias)
    arrays = [a for a in case.arrays if a is not None]
    pixels = np.moveaxis(image, 1, -1).reshape(-1, x[1]).astype(float)
    want = expected_product(pixels, arrays[1].reshape(filters, -1).T.astype(float), format_of(kernel, detect_cpu(tier)))
    want = want + (arrays[2].astype(float) if bias else 0.0)
    shaped = np.moveaxis(want.reshape(x[0], *x[2:], filters), -1, 1)
    check(kernel, case, shaped, tier, tol=1e-4)


@pytest.mark.parametrize("kernel", CONVOLUTIONS)
def test_convolutions_with_epilogues(kernel: str) -> None:
    conv_case((2, 24, 5, 6), 37, True, "mixed")[0].check(kernel, tol=0.15)


@pytest.mark.parametrize(
    ("x", "w", "attrs", "turned"),
    [
        ((1, 6, 5, 5), (4, 6, 3, 3), {}, True),
        ((1, 6, 5, 5), (4, 6, 1, 1), {"strides": (2, 2)}, True),
        ((1, 6, 5, 5), (4, 6, 1, 1), {"pads": (1, 1, 1, 1)}, True),
        ((1, 6, 5, 5), (4, 3, 1, 1), {"groups": 2}, True),
        ((1, 6, 5, 5), (4, 6, 1, 1), {}, False),
    ],
    ids=str,
)
def test_convolutions_that_are_no_product_are_refused(
    x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], turned: bool
) -> None:
    layouts = {0: (0, 2, 3, 1)} if turned else {}
    case = anchor_case("conv", attrs, [(x, F32), (w, F32)], constants=[1], layouts=layouts)
    with pytest.raises(UnsupportedError, match="not one matrix product"):
        family_of("host.conv.bf16").tilings("host.conv.bf16", case.body, detect_cpu())
