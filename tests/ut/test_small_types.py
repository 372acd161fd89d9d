"""Small element types: conversions against `ml_dtypes` and the reference, code by code; moves; what takes them, and how
they come in and go out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import superkernel as sk
from superkernel.cli import main
from superkernel.core.dtypes import SMALL, DType
from superkernel.frontends.json_form import load_json, save_json
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate

Array = NDArray[Any]
TYPES = [d for d in DType if d in SMALL]
FLOATS = [d for d in TYPES if d.is_float]
ROUNDED_AS_NUMPY = [d for d in FLOATS if d is not DType.F8E8M0FNU]


def codes(dtype: DType) -> Array:
    """Every element there is."""
    found: Array = np.arange(2**dtype.bits, dtype=np.uint8).view(dtype.numpy)
    return found


def numbers() -> Array:
    """f32 of every exponent and sign, at halves between short ones and beside them."""
    high, low = (
        np.arange(1 << 12, dtype=np.uint32) << 20,
        np.array([0, 1, 0x7FFFF, 0x80000, 0x80001, 0xFFFFF], np.uint32),
    )
    found: Array = (high[:, None] | low).reshape(-1).view(np.float32)
    return found


def cast_graph(source: DType, shape: tuple[int, ...], target: DType, saturate: bool = True) -> Graph:
    b = sk.GraphBuilder("g")
    (y,) = b.apply("cast", [b.input("x", shape, source)], {"dtype": target, "saturate": saturate})
    b.output(y, "y")
    return b.graph()


def as_numbers(array: Array) -> Array:
    with np.errstate(invalid="ignore"):  # NaN that signals
        return array.astype(np.float64)


@pytest.mark.parametrize("dtype", ROUNDED_AS_NUMPY)
def test_the_reference_rounds_as_numpy_s_types_do(dtype: DType) -> None:
    x = numbers()
    found = evaluate(cast_graph(DType.F32, x.shape, dtype, saturate=False), {"x": x})["y"]
    with np.errstate(all="ignore"):
        expected = x.astype(dtype.numpy)
    assert found.dtype == dtype.numpy
    np.testing.assert_array_equal(as_numbers(found), as_numbers(expected))
    ends: Any = ml_dtypes.finfo(dtype.numpy)
    cut = as_numbers(evaluate(cast_graph(DType.F32, x.shape, dtype), {"x": x})["y"])
    beyond = np.abs(x) > float(ends.max)
    np.testing.assert_array_equal(cut[beyond], np.copysign(float(ends.max), x[beyond]))
    np.testing.assert_array_equal(cut[~beyond], as_numbers(found)[~beyond])


def test_powers_of_two_are_the_nearest() -> None:
    x = np.array(
        [1.0, 1.49, 1.5, 3.0, 2.9, 2.0**-127, 1.4 * 2.0**-127, 1.5 * 2.0**-127, 1e-45, 2.0**127, 3e38], np.float32
    )
    x = np.append(x, np.array([0.0, -0.0, -2.0, np.inf, -np.inf, np.nan], np.float32))
    nan = np.nan
    least, most = 2.0**-127, 2.0**127
    nearest = [1, 1, 2, 4, 2, least, least, 2 * least, least, most]
    plain = evaluate(cast_graph(DType.F32, x.shape, DType.F8E8M0FNU, saturate=False), {"x": x})["y"]
    np.testing.assert_array_equal(as_numbers(plain), [*nearest, *[nan] * 7])
    cut = evaluate(cast_graph(DType.F32, x.shape, DType.F8E8M0FNU), {"x": x})["y"]
    np.testing.assert_array_equal(as_numbers(cut), [*nearest, most, least, least, least, most, least, nan])


def test_small_integers_wrap_or_clamp() -> None:
    x = np.array([-9, -8.7, 7.9, 8, 100, -100, np.nan, np.inf], np.float32)
    for saturate, expected in ((True, [-8, -8, 7, 7, 7, -8, 0, 7]), (False, [7, -8, 7, -8, 4, -4, 0, -1])):
        found = evaluate(cast_graph(DType.F32, x.shape, DType.INT4, saturate), {"x": x})["y"]
        assert found.astype(int).tolist() == expected
    whole = np.arange(-20, 20, dtype=np.int64)
    for dtype in (DType.INT4, DType.UINT4, DType.INT2, DType.UINT2):
        found = evaluate(cast_graph(DType.I64, whole.shape, dtype), {"x": whole})["y"]
        low = whole & ((1 << dtype.bits) - 1)
        assert found.astype(int).tolist() == np.where(low > dtype.limits[1], low - (1 << dtype.bits), low).tolist()


def test_bits_as_another_type() -> None:
    rng = np.random.default_rng(3)
    for source in DType:
        raw = rng.integers(0, 2 if source is DType.BOOL else 256, (5, 7, source.itemsize), dtype=np.uint8)
        x = raw.view(source.numpy)[..., 0]
        for target in DType:
            if target.bits != source.bits or (target is DType.BOOL and source is not DType.BOOL):
                b = sk.GraphBuilder("g")
                with pytest.raises(sk.GraphError, match=r"other sizes|truth value"):
                    b.bitcast(b.input("x", x.shape, source), target)
                continue
            b = sk.GraphBuilder("g")
            b.output(b.bitcast(b.input("x", x.shape, source), target), "y")
            graph = b.graph()
            expected = np.ascontiguousarray(x).view(target.numpy)
            assert np.array_equal(evaluate(graph, {"x": x})["y"].view(np.uint8), expected.view(np.uint8))
            found = sk.compile(graph, threads=1).run({"x": x}).outputs["y"]
            np.testing.assert_array_equal(as_numbers(found), as_numbers(expected))


def finite(dtype: DType) -> Array:
    """Some elements, which f16 has too."""
    return codes(dtype)[112:140] if dtype is DType.F8E8M0FNU else codes(dtype)[: max(2, 2**dtype.bits // 2 - 4)]


def moves(dtype: DType) -> Graph:
    """Views and moves of an input and a constant, and what is computed of them in f32."""
    b = sk.GraphBuilder("moves")
    x, c = b.input("x", (4, 6), dtype), b.constant(np.resize(finite(dtype), (2, 6)))
    y = b.gather(b.transpose(b.concat(x, c, axis=0), perm=(1, 0)), b.constant(np.array([5, 0, 0, 3])), axis=0)
    part = b.slice(y, starts=[1], ends=[4], axes=[0], steps=[2])
    b.output(b.tile(b.expand(b.reshape(part, shape=(1, 2, 6)), shape=(3, 2, 6)), repeats=(1, 2, 1)), "moved")
    b.output(y, "bytes")
    b.output(b.cast(b.neg(b.cast(y, "f32")), dtype), "negated")
    b.output(b.cast(y, "f32"), "numbers")
    return b.graph()


@pytest.mark.parametrize("dtype", TYPES)
def test_what_is_moved_keeps_its_bits(dtype: DType, tmp_path: Path) -> None:
    """On the host, on an accelerator, from a file."""
    graph = moves(dtype)
    x = np.random.default_rng(1).choice(finite(dtype), (4, 6))
    expected = evaluate(graph, {"x": x})
    for form in ("npz", "safetensors"):
        save_json(graph, tmp_path / f"{form}.json", weights=form, inline_bytes=0)
    kernels = [
        sk.compile(graph, threads=2), sk.compile(graph, target="mini"),
        *(sk.compile(load_json(tmp_path / name), threads=1) for name in ("npz.json", "safetensors.json")),
    ]  # fmt: skip
    for kernel in kernels:
        found = kernel.run({"x": x}).outputs
        for name in ("moved", "bytes"):
            assert found[name].dtype == dtype.numpy
            assert np.array_equal(found[name].view(np.uint8), expected[name].view(np.uint8)), name
        for name in ("negated", "numbers"):
            np.testing.assert_array_equal(as_numbers(found[name]), as_numbers(expected[name]), name)


def test_the_emulator_converts_them() -> None:
    kernel = sk.compile(moves(DType.F8E4M3FN), target="mini")
    x = np.random.default_rng(2).choice(finite(DType.F8E4M3FN), (4, 6))
    (found, _), expected = kernel.emulate({"x": x}), kernel.run({"x": x}).outputs
    for name, array in expected.items():
        assert np.array_equal(found[name].view(np.uint8), array.view(np.uint8)), name


def test_nothing_computes_in_them() -> None:
    b = sk.GraphBuilder("g")
    x = b.input("x", (4, 4), "f8e4m3fn")
    for make in (lambda: x + x, lambda: x @ x, lambda: b.softmax(x), lambda: b.quantize(x, b.constant(np.float32(1)))):
        with pytest.raises(sk.GraphError, match="element type not accepted"):
            make()


def test_inputs_are_of_the_type_itself() -> None:
    kernel = sk.compile(cast_graph(DType.INT4, (3,), DType.F32), threads=1)
    assert kernel([1, -8, 7]).tolist() == [1.0, -8.0, 7.0]
    assert kernel(np.array([0xF1, 0x08, 0x17], np.uint8).view(ml_dtypes.int4)).tolist() == [1.0, -8.0, 7.0], "high bits"
    with pytest.raises(sk.InputError, match="does not fit"):
        kernel([1, 2, 8])
    with pytest.raises(sk.InputError, match="wrong element type"):
        kernel(np.array([1, 2, 3], np.int8))
    with pytest.raises(sk.InputError, match="does not fit"):
        sk.GraphBuilder("g").constant([1, 9], "int4")
    assert sk.GraphBuilder("g").input("x", (1,), "i4").dtype is DType.I32, "as NumPy reads it"


def test_files_of_arrays_hold_their_bits(tmp_path: Path) -> None:
    save_json(cast_graph(DType.F8E5M2, (4,), DType.F8E4M3FN), tmp_path / "m.json")
    x = np.array([1, -2, 448, 0.25], np.float32).astype(ml_dtypes.float8_e5m2)
    np.savez(tmp_path / "in.npz", x=x.view(np.uint8))
    words = ["run", str(tmp_path / "m.json"), "--inputs", str(tmp_path / "in.npz")]
    assert main([*words, "--outputs", str(tmp_path / "out.npz")]) == 0
    with np.load(tmp_path / "out.npz") as found:
        assert found["y"].view(ml_dtypes.float8_e4m3fn).astype(float).tolist() == [1, -2, 448, 0.25]
