"""The operators' references against formulas written another way: loops, complex numbers, Python integers, adjoints.

What the onnx package's evaluator can judge is in `test_ops_onnx.py`; a test here makes sure that no operator is left
out.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from operator_cases import cases

from superkernel.core.dtypes import DType
from superkernel.core.errors import DataError
from superkernel.ops.table import op_table
from superkernel.reference import apply


def test_transposed_convolution_is_the_adjoint() -> None:
    """<conv(x), y> = <x, conv_transpose(y)> for every instance of conv_transpose."""
    rng = np.random.default_rng(9)
    checked = 0
    for case in cases("conv_transpose", seed=7):
        y, w = case.inputs[:2]
        if len(case.inputs) > 2 or y is None or w is None or y.dtype != np.float32:
            continue
        back = apply(*case, wide=True)[0]
        attrs = {k: v for k, v in case.attrs.items() if k != "output_padding"}
        x = rng.normal(size=back.shape)
        forward = apply("conv", [x, w.astype(np.float64)], attrs)[0]
        assert forward.shape == y.shape
        np.testing.assert_allclose(np.sum(forward * y), np.sum(x * back), rtol=1e-9)
        checked += 1
    assert checked == 4


def test_lp_norm_of_order_one() -> None:
    x = np.array([[1.0, -3.0], [0.0, 0.0]])
    assert apply("lp_norm", [x], {"p": 1})[0].tolist() == [[0.25, -0.75], [0.0, 0.0]]


def test_lrn_sums_over_neighbouring_channels() -> None:
    x = np.random.default_rng(1).normal(size=(2, 5, 3))
    for size, before, behind in ((1, 0, 0), (2, 0, 1), (3, 1, 1), (4, 1, 2), (12, 5, 6)):
        found = apply("lrn", [x], {"size": size, "alpha": 0.5, "beta": 0.5, "bias": 2.0})[0]
        for c in range(5):
            total = (x[:, max(0, c - before) : c + behind + 1] ** 2).sum(axis=1)
            np.testing.assert_allclose(found[:, c], x[:, c] / np.sqrt(2.0 + 0.5 / size * total), rtol=1e-12)


def test_erf_to_the_last_places() -> None:
    x = np.concatenate([np.linspace(-7, 7, 4001), np.logspace(-300, 0, 301), [np.inf, -np.inf, 0.0, -0.0]])
    found = apply("erf", [x])[0]
    wanted = np.array([math.erf(v) for v in x])
    assert np.max(np.abs(found - wanted) / np.maximum(np.abs(wanted), 1e-308)) < 1e-15
    assert math.isnan(apply("erf", [np.array(np.nan)])[0])


@pytest.mark.parametrize("dtype", [DType.I8, DType.U8, DType.I64, DType.U64])
def test_integer_arithmetic_against_python(dtype: DType) -> None:
    info = np.iinfo(dtype.numpy)
    rng = np.random.default_rng(0)
    edges = np.array([info.min, info.max, 0, 1], dtype.numpy)
    pool = np.concatenate([rng.integers(-9 if info.min else 0, 10, 40).astype(dtype.numpy), edges])
    a, b = (pool[rng.permutation(44)] for _ in range(2))

    def wrapped(value: int) -> int:
        span = info.max - info.min + 1
        return (value - int(info.min)) % span + int(info.min)

    pairs = [(int(x), int(y)) for x, y in zip(a, b, strict=True)]

    def truncated(x: int, y: int) -> int:
        return 0 if y == 0 else wrapped(abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1))

    assert apply("div", [a, b])[0].tolist() == [truncated(x, y) for x, y in pairs]
    assert apply("mod", [a, b])[0].tolist() == [0 if y == 0 else x % y for x, y in pairs]
    fmod = [0 if y == 0 else int(math.copysign(abs(x) % abs(y), x)) for x, y in pairs if abs(x) < 2**53]
    small = np.array([abs(x) < 2**53 for x, _ in pairs])
    assert apply("mod", [a, b], {"fmod": True})[0][small].tolist() == fmod
    assert apply("mul", [a, b])[0].tolist() == [wrapped(x * y) for x, y in pairs]
    exponent = rng.integers(0, 6, 44).astype(dtype.numpy)
    powers = [wrapped(x ** int(e)) for (x, _), e in zip(pairs, exponent, strict=True)]
    assert apply("pow", [a, exponent])[0].tolist() == powers
    width = dtype.itemsize * 8
    amount = rng.integers(0, width + 3, 44).astype(dtype.numpy)
    right = [x >> int(n) for (x, _), n in zip(pairs, amount, strict=True)]
    left = [wrapped(x << int(n)) if n < width else 0 for (x, _), n in zip(pairs, amount, strict=True)]
    assert apply("shift_right", [a, amount])[0].tolist() == right
    assert apply("shift_left", [a, amount])[0].tolist() == left


def test_negative_integer_powers_truncate() -> None:
    base = np.array([2, 1, -1, -1, 0], np.int32)
    assert apply("pow", [base, np.array([-1, -3, -2, -3, -1], np.int32)])[0].tolist() == [0, 1, 1, -1, 0]


@pytest.mark.parametrize("to", [DType.I8, DType.U8, DType.I32, DType.I64, DType.U64])
def test_casts_saturate_or_wrap(to: DType) -> None:
    info = np.iinfo(to.numpy)
    x = np.array([1e30, -1e30, np.inf, -np.inf, np.nan, 3.99, -3.99])
    low, high = int(info.min), int(info.max)
    wanted = [high, low, high, low, 0, 3, max(low, -3)]
    assert apply("cast", [x], {"dtype": to})[0].tolist() == wanted
    assert apply("cast", [np.array([300.0, -1.0])], {"dtype": "u8", "saturate": False})[0].tolist() == [44, 255]
    wrapped = apply("cast", [np.array([-1.0, -1e30, 1e19, 1e30])], {"dtype": "u64", "saturate": False})[0]
    assert wrapped.tolist() == [2**64 - 1, 2**63, 10**19, 2**64 - 1]
    assert apply("cast", [np.array([300, -1])], {"dtype": "u8"})[0].tolist() == [44, 255]
    big = np.array([2**53 + 1, 2**24 + 1])
    assert apply("cast", [big], {"dtype": "f32"})[0].tolist() == big.astype(np.float32).tolist()


def test_large_unsigned_indices_are_not_counted_from_the_end() -> None:
    huge = np.array([2**64 - 1, 3], np.uint64)
    assert apply("one_hot", [huge, np.array([0, 1])], {"depth": 4})[0].tolist() == [[0, 0, 0, 0], [0, 0, 0, 1]]


def test_quantize_rounds_half_to_even_and_saturates() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, 1e9, -1e9], np.float32)
    one, zero = np.float32(1.0), np.array(3, np.uint8)
    assert apply("quantize", [x, np.asarray(one), zero], {"dtype": "u8"})[0].tolist() == [3, 5, 5, 3, 255, 0]


def test_attention_against_a_loop() -> None:
    for case in cases("attention", seed=6):
        if case.inputs[0] is None or case.inputs[0].dtype != np.float32:
            continue
        found = apply(*case)[0]
        q, k, v = (np.asarray(x, np.float64) for x in case.inputs[:3])
        mask = case.inputs[3] if len(case.inputs) > 3 else None
        length = case.inputs[4] if len(case.inputs) > 4 else None
        scale = case.attrs.get("scale", 0.0) or 1 / math.sqrt(q.shape[3])
        batch, heads, rows, _ = q.shape
        for b, h, i in np.ndindex(batch, heads, rows):
            group = h // (heads // k.shape[1])
            valid = k.shape[2] if length is None else int(np.broadcast_to(length, (batch,))[b])
            scores, seen = [], []
            for j in range(valid):
                if case.attrs.get("causal") and j > i + valid - rows:
                    continue
                score = float(q[b, h, i] @ k[b, group, j]) * scale
                cap = case.attrs.get("softcap", 0.0)
                score = cap * math.tanh(score / cap) if cap else score
                if mask is not None:
                    entry = np.broadcast_to(mask, (batch, heads, rows, k.shape[2]))[b, h, i, j]
                    if mask.dtype == np.bool_ and not entry:
                        continue
                    score += 0.0 if mask.dtype == np.bool_ else float(entry)
                scores.append(score)
                seen.append(j)
            power = np.exp(scores)
            wanted = power @ v[b, group, seen] / power.sum() if seen else np.zeros(v.shape[3])
            np.testing.assert_allclose(found[b, h, i], wanted, rtol=1e-5, atol=1e-6, err_msg=str(case))


def test_attention_ignores_what_lies_beyond_the_length() -> None:
    q, k, v = (np.ones((1, 1, 2, 4), np.float32) for _ in range(3))
    k[:, :, 1] = np.nan
    v[:, :, 1] = np.inf
    found = apply("attention", [q, k, v, None, np.array([1])])[0]
    assert np.array_equal(found, np.ones_like(found))
    assert not apply("attention", [q, k, v, None, np.array([0])])[0].any()
    assert not apply("attention", [q, q, q, np.full((2, 2), -np.inf, np.float32)])[0].any()


def test_rope_turns_pairs() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(1, 2, 3, 8))
    angle = rng.normal(size=(3, 4))
    cos, sin = np.cos(angle), np.sin(angle)
    halves = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * angle)
    wanted = np.concatenate([halves.real, halves.imag], axis=-1)
    np.testing.assert_allclose(apply("rope", [x, cos, sin])[0], wanted, rtol=1e-12)
    pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)
    spread = apply("rope", [x, cos, sin], {"interleaved": True})[0]
    np.testing.assert_allclose(spread[..., 0::2], pairs.real, rtol=1e-12)
    np.testing.assert_allclose(spread[..., 1::2], pairs.imag, rtol=1e-12)
    table_cos, table_sin = (np.concatenate([np.full((2, 4), np.nan), t]) for t in (cos, sin))
    np.testing.assert_allclose(apply("rope", [x, table_cos, table_sin, np.array(2)])[0], wanted, rtol=1e-12)
    part = apply("rope", [x, cos[:, :2], sin[:, :2]], {"rotary_dim": 4})[0]
    assert np.array_equal(part[..., 4:], x[..., 4:])


def test_rms_norm_and_silu_and_square_and_rsqrt_and_expm1_and_log1p_and_trunc() -> None:
    x = np.random.default_rng(0).normal(size=(3, 6))
    scale = np.arange(6.0)
    rms = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5) * scale
    np.testing.assert_allclose(apply("rms_norm", [x, scale])[0], rms, rtol=1e-12)
    np.testing.assert_allclose(apply("silu", [x])[0], x / (1 + np.exp(-x)), rtol=1e-12)
    for name, function in (("square", np.square), ("expm1", np.expm1), ("trunc", np.trunc)):
        np.testing.assert_array_equal(apply(name, [x])[0], function(x))
    np.testing.assert_allclose(apply("rsqrt", [x**2])[0], 1 / np.abs(x), rtol=1e-12)
    np.testing.assert_allclose(apply("log1p", [x**2])[0], np.log1p(x**2), rtol=1e-12)
    np.testing.assert_array_equal(apply("not_equal", [x, x[:1]])[0], x != x[:1])
    u8 = np.array([0, 128, 255], np.uint8)
    np.testing.assert_allclose(apply("dequantize", [u8, np.array(0.5), np.array(128, np.uint8)])[0], [-64, 0, 63.5])


def test_kv_update_clamps_its_position() -> None:
    cache, new = np.zeros((1, 1, 4, 1), np.float32), np.ones((1, 1, 2, 1), np.float32)
    for position, rows in ((1, [0, 1, 1, 0]), (99, [0, 0, 1, 1]), (-5, [1, 1, 0, 0])):
        assert apply("kv_update", [cache, new, np.array(position)])[0].reshape(-1).tolist() == rows
    assert not cache.any()


def test_out_of_range_indices_are_clamped() -> None:
    x = np.arange(4.0)
    assert apply("gather", [x, np.array([-9, -1, 9])])[0].tolist() == [0.0, 3.0, 3.0]
    assert apply("gather_elements", [x, np.array([-9, 9])])[0].tolist() == [0.0, 3.0]
    assert apply("scatter_elements", [x, np.array([9]), np.array([7.0])])[0].tolist() == [0.0, 1.0, 2.0, 7.0]


def test_reductions_over_nothing() -> None:
    empty = np.zeros((2, 0), np.float32)
    wanted = {
        "sum": 0.0,
        "prod": 1.0,
        "max": -np.inf,
        "min": np.inf,
        "log_sum": -np.inf,
        "log_sum_exp": -np.inf,
        "l2": 0.0,
    }
    for name, value in wanted.items():
        assert apply(f"reduce_{name}", [empty], {"axes": (1,)})[0].tolist() == [[value], [value]]
    assert np.isnan(apply("reduce_mean", [empty], {"axes": (1,)})[0]).all()


def test_a_grouped_product_is_a_product_per_expert() -> None:
    """Their tilings are checked with their kernels."""
    x, w = np.arange(12.0).reshape(6, 2), np.array([[[1.0], [0.0]], [[0.0], [1.0]], [[7.0], [7.0]]])
    found = apply("grouped_matmul", [x, w, np.array([2, 3, 0])])[0]
    assert found.reshape(-1).tolist() == [0.0, 2.0, 5.0, 7.0, 9.0, 0.0]
    for counts in ([2, 3, 2], [-1, 0, 0]):
        with pytest.raises(DataError):
            apply("grouped_matmul", [x, w, np.array(counts)])


def test_a_product_with_weights_in_blocks_by_hand() -> None:
    """Two columns of five weights in blocks of two, a lower nibble being the even one."""
    x, codes = np.arange(1, 6, dtype=np.float32), np.array([[0x21, 0x43, 0x05], [0xFF, 0x0F, 0xF8]], np.uint8)
    scale = np.array([[1.0, 10.0, 0.5], [2.0, 0.0, 1.0]], np.float32)
    offset = np.array([[0.0, 0.0, 7.0], [1.0, 1.0, 0.0]], np.float32)
    found = apply("block_matmul", [x, codes, scale, offset], {"bits": 4, "block": 2, "zero": 1})[0]
    first = [0, 1, 20, 30, 2 + 7.0]
    second = [28 + 1.0, 28 + 1.0, 1.0, 1.0, 7]
    assert found.tolist() == [float(np.dot(x, first)), float(np.dot(x, second))]
    signed_codes = codes[:, :2].view(np.int8)
    signed = apply("block_matmul", [x[:2], signed_codes, scale[:, :1], offset[:, :1]], {"bits": 8, "block": 2})[0]
    assert signed.tolist() == [0x21 + 2.0 * 0x43, 1 - 2.0 + 2 * (2 * 15 + 1)]


def test_a_softmax_of_whole_numbers_by_hand() -> None:
    """Of e^-0.5 = 0.607 and e^-2 = 0.135 in tenths."""
    found = apply("softmax_integer", [np.array([[3.0, 2.0, -1.0]])], {"scale": 0.5, "grid": 10})[0]
    np.testing.assert_array_equal(found, np.array([[10.0, 6.0, 1.0]]) / 17)


def test_ragged_attention_takes_no_length_that_is_none() -> None:
    q = np.ones((2, 1, 3, 4))
    assert (apply("attention", [q, q, q, None, np.array([3, 1])], {"ragged": True})[0] == 1).all()
    assert (apply("attention", [q, q, q, None, np.array([9, -1])])[0][0] == 1).all()
    for lengths in ([4, 1], [3, -1]):
        with pytest.raises(DataError, match="length"):
            apply("attention", [q, q, q, None, np.array(lengths)], {"ragged": True})


def test_powers_are_those_of_ieee_for_any_exponent() -> None:
    """NumPy takes the square root for an exponent of 1/2: -inf is NaN then, and the root of -0 is -0."""
    base = np.array([-np.inf, -0.0, 4.0], np.float32)
    (root,) = apply("pow", [base, np.array(0.5, np.float32)])
    assert [math.copysign(1, v) * v for v in root.tolist()] == [np.inf, 0.0, 2.0]
    assert apply("pow", [base, np.array(-0.5, np.float32)])[0].tolist() == [0.0, np.inf, 0.5]


def test_gelu_keeps_its_digits_in_the_tail() -> None:
    x = np.array([-1.5, -4.0, -8.0, -20.0, -37.0])
    want = [0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x.tolist()]
    np.testing.assert_allclose(apply("gelu", [x])[0], want, rtol=1e-15)
    inner = [math.sqrt(2 / math.pi) * (v + 0.044715 * v**3) for v in x.tolist()]
    want = [v * math.exp(2 * u) / (1 + math.exp(2 * u)) for v, u in zip(x.tolist(), inner, strict=True)]
    np.testing.assert_allclose(apply("gelu", [x], {"approximate": "tanh"})[0], want, rtol=1e-12)


def test_a_summand_times_zero_is_not_there() -> None:
    row, column, nan = np.array([[1.0, 2.0]]), np.array([[1.0], [2.0]]), np.array([np.nan])
    assert apply("gemm", [row, column, nan], {"beta": 0.0})[0].tolist() == [[5.0]]


ROUNDINGS = {
    "floor": math.floor,
    "ceil": math.ceil,
    "round_prefer_floor": lambda at: math.ceil(at - Fraction(1, 2)),
    "round_prefer_ceil": lambda at: math.floor(at + Fraction(1, 2)),
}


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("rule", ["asymmetric", "half_pixel", "align_corners"])
def test_nearest_elements_are_those_of_exact_places(rule: str, rounding: str) -> None:
    """14 to 18: output 9 stands at 9 * 14 / 18 = 7, and 9 / (18 / 14) is less in floating point."""
    for extent in (1, 2, 3, 5, 7, 9, 14, 18, 20, 21):
        for size in (1, 2, 6, 9, 17, 18, 22, 29, 36, 42, 44, 50, 51):
            for scales in ((), (float(np.float32(size / extent)),)):
                attrs = {"coordinate_mode": rule, "nearest_mode": rounding, "sizes": (size,), "scales": scales}
                (found,) = apply("resize", [np.arange(extent, dtype=np.float32)], attrs)
                want = []
                for i in range(size):
                    if rule == "half_pixel":
                        at = Fraction((2 * i + 1) * extent, 2 * size) - Fraction(1, 2)
                    elif rule == "asymmetric":
                        at = Fraction(i * extent, size)
                    else:
                        at = Fraction(i * (extent - 1), max(size - 1, 1))
                    want.append(min(max(ROUNDINGS[rounding](at), 0), extent - 1))
                assert found.tolist() == want, (extent, size)


def test_places_of_scales_in_single_precision() -> None:
    """Output 11 stands at element 10 where the scale is 1.1, though 11 / f32(1.1) is 9.9999998."""
    attrs = {
        "coordinate_mode": "asymmetric",
        "nearest_mode": "floor",
        "sizes": (16,),
        "scales": (float(np.float32(1.1)),),
    }
    assert apply("resize", [np.arange(15.0)], attrs)[0][11] == 10


def test_what_is_found_comes_behind_how_much() -> None:
    x = np.array([[0.0, 3.0], [np.nan, 0.0], [0.0, -0.0]])
    assert apply("nonzero", [x], {"size": 4})[0].tolist() == [2, 1, 2, 0, 0]
    assert apply("nonzero", [x], {"size": 1})[0].tolist() == [1, 1]


def square(y: float, x: float, side: float = 2.0) -> list[float]:
    return [y, x, y + side, x + side]


def test_boxes_are_selected_by_score_and_overlap() -> None:
    boxes = np.array([[square(0, 0), square(0, 1), square(2.0, 0), square(9, 9), square(0, 0)]], np.float32)
    scores = np.array([[[0.5, 0.9, 0.5, np.nan, 0.9], [0.1, 0.2, 0.3, 0.4, 0.5]]], np.float32)

    def selected(**attrs: object) -> list[list[int]]:
        (found,) = apply("non_max_suppression", [boxes, scores], {"size": 10, "limit": 9, **attrs})
        count = int(found[0, 0])
        assert not found[0, 1:].any()
        assert not found[count + 1 :].any()
        return [row[1:] for row in found[1 : count + 1].tolist()]

    # Box 1 shares 2 of 6 with boxes 0 and 4, which are the same; box 2 touches both; box 3 has no score in class 0.
    assert selected(iou_threshold=0.3) == [[0, 1], [0, 2], [1, 4], [1, 3], [1, 2]]
    assert selected(iou_threshold=0.4) == [[0, 1], [0, 4], [0, 2], [1, 4], [1, 3], [1, 2], [1, 1]]
    assert selected(iou_threshold=0.4, limit=1) == [[0, 1], [1, 4]]
    assert selected(iou_threshold=1.0, score_threshold=0.4) == [[0, 1], [0, 4], [0, 0], [0, 2], [1, 4]]
    turned = [2, 3, 0, 1]
    (same,) = apply("non_max_suppression", [boxes[..., turned], scores], {"size": 3, "limit": 9, "iou_threshold": 0.3})
    assert same.tolist() == [[3, 0, 0], [0, 0, 1], [0, 0, 2], [0, 1, 4]]
    middles = np.stack([boxes[..., 1] + 1, boxes[..., 0] + 1, *[np.full((1, 5), 2, np.float32)] * 2], axis=-1)
    (same,) = apply(
        "non_max_suppression", [middles, scores], {"size": 9, "limit": 9, "iou_threshold": 0.3, "centers": True}
    )
    assert same[1:6, 1:].tolist() == [[0, 1], [0, 2], [1, 4], [1, 3], [1, 2]]


def test_every_operator_is_checked_somewhere() -> None:
    pytest.importorskip("onnx")
    from onnx_rows import ROWS

    here = {
        "attention", "rope", "rms_norm", "trunc", "not_equal", "cast", "bitcast", "quantize", "dequantize",
        "kv_update", "lrn",
        "grouped_matmul", "tile_groups", "tile_lengths", "block_matmul", "softmax_integer",
        "nonzero", "non_max_suppression",
    }  # fmt: skip
    against_torch = {row.name for row in op_table().values() if row.torch}  # test_torch_operators.py
    assert set(op_table()) == set(ROWS) | here | against_torch
