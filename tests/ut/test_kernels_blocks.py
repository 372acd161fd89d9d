"""Products with weights quantised in blocks, on every tier and way, against the operator table's reference."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from anchor_bodies import anchor_case
from kernel_check import tiers
from op_cases import check_op

from superkernel import GraphBuilder, compile
from superkernel.ir.body import Role
from superkernel.ops.blocks import Blocks
from superkernel.reference import apply, evaluate

GEMV, GEMM, GEMV_INT8, INT8 = (f"host.block_matmul.{name}" for name in ("gemv", "gemm", "gemv_int8", "int8"))
LARGEST = {GEMV_INT8: 127 * 256 + 127, INT8: 127}
CONSTANTS = dict.fromkeys((1, 2, 3), Role.CONSTANT)


def product(
    rows: int | tuple[int, ...],
    depth: int,
    columns: int,
    bits: int = 4,
    block: int = 32,
    zero: int = 0,
    offset: bool = False,
    x: Any = np.float32,
    scale: Any = np.float32,
    signed: bool = True,
) -> tuple[list[Any], dict[str, Any]]:
    """Inputs and attributes; the error of a result is relative to sums of about 1."""
    rng = np.random.default_rng((depth, columns, bits, block))
    shape = rows if isinstance(rows, tuple) else (rows,)
    kind = np.int8 if bits == 8 and signed else np.uint8
    info = np.iinfo(kind)
    codes = rng.integers(info.min, info.max + 1, (columns, -(-depth * bits // 8))).astype(kind)
    blocks = (columns, -(-depth // block))
    size = 2.0**bits * np.sqrt(depth)
    inputs: list[Any] = [rng.standard_normal((*shape, depth)).astype(x), codes]
    inputs.append((rng.uniform(0.5, 2, blocks) / size).astype(scale))
    if offset:
        inputs.append((rng.standard_normal(blocks) / np.sqrt(depth)).astype(scale))
    return inputs, {"bits": bits, "block": block, "zero": zero}


FORMS: dict[str, dict[str, Any]] = {
    "q4_0": {"bits": 4, "block": 32, "zero": 8, "scale": np.float16},
    "q4_1": {"bits": 4, "block": 32, "offset": True, "scale": np.float16},
    "q8_0": {"bits": 8, "block": 32, "scale": np.float16},
    "per column": {"bits": 4, "block": 1000, "zero": 7},
    "one word": {"bits": 4, "block": 8, "offset": True},
    "bytes, unsigned": {"bits": 8, "block": 16, "zero": 128, "signed": False, "offset": True},
    "bf16": {"bits": 4, "block": 128, "zero": 8, "x": ml_dtypes.bfloat16, "scale": ml_dtypes.bfloat16},
    "f16": {"bits": 8, "block": 64, "offset": True, "x": np.float16},
}


@pytest.mark.parametrize("tier", tiers())
@pytest.mark.parametrize("form", FORMS)
def test_every_form_on_every_tier(form: str, tier: str) -> None:
    tol = {"bf16": 3e-2, "f16": 4e-3}.get(form, 2e-5)
    for kernel, rows, depth, columns in ((GEMV, 1, 150, 130), (GEMV, 3, 64, 37), (GEMM, 17, 150, 37)):
        inputs, attrs = product(rows, depth, columns, **FORMS[form])
        check_op(kernel, "block_matmul", inputs, attrs, tol=tol, tier=tier, splits=1, roles=CONSTANTS)


@pytest.mark.parametrize(("depth", "columns"), [(1, 1), (7, 3), (8, 16), (33, 65), (97, 200)])
def test_odd_extents(depth: int, columns: int) -> None:
    for bits in (4, 8):
        for kernel, rows in ((GEMV, 1), (GEMV, 6), (GEMM, 1), (GEMM, 30)):
            inputs, attrs = product(rows, depth, columns, bits, offset=True)
            check_op(kernel, "block_matmul", inputs, attrs, tol=2e-5, splits=1, roles=CONSTANTS)


def whole(inputs: list[Any], block: int, largest: int) -> list[Any]:
    """The inputs with x of whole numbers, the largest of each block being `largest`: nothing is rounded."""
    rng = np.random.default_rng(4)
    x = rng.integers(-largest, largest + 1, inputs[0].shape).astype(np.float32)
    x[..., ::block] = np.float32(largest)
    return [x, inputs[1], *(part / np.float32(largest) for part in inputs[2:])]


@pytest.mark.parametrize("tier", tiers())
@pytest.mark.parametrize("form", [form for form, how in FORMS.items() if "x" not in how])
def test_whole_numbers_are_multiplied_exactly(form: str, tier: str) -> None:
    for kernel, rows, depth, columns in (
        (GEMV_INT8, 1, 150, 130), (GEMV_INT8, 3, 64, 37), (GEMV_INT8, 6, 33, 20),
        (INT8, 1, 150, 130), (INT8, 3, 64, 37), (INT8, 11, 33, 20),
    ):  # fmt: skip
        inputs, attrs = product(rows, depth, columns, **{**FORMS[form], "scale": np.float32})
        inputs = whole(inputs, attrs["block"], LARGEST[kernel])
        check_op(kernel, "block_matmul", inputs, attrs, tol=3e-5, tier=tier, splits=1, roles=CONSTANTS)


def in_bytes(inputs: list[Any], attrs: dict[str, Any]) -> Any:
    """The product as the kernel of bytes defines it, in NumPy: x rounded to -127 to 127 by block with an f32 scale,
    whole numbers multiplied and added exactly, blocks added in float64; offsets meet x as rounded, too."""
    x, codes, scale, *offset = inputs
    stored = Blocks(attrs["bits"], attrs["block"], attrs["zero"], len(codes), x.shape[-1])
    numbers, total = stored.numbers(codes).astype(np.int64), 0.0
    for index, first in enumerate(range(0, stored.depth, stored.block)):
        own = slice(first, first + stored.block)
        largest = np.abs(x[:, own]).max(axis=1, keepdims=True)
        rounded = np.rint(x[:, own] * (np.float32(127) / largest)).astype(np.int64)
        step = (largest / np.float32(127)).astype(float)
        total = total + rounded @ numbers[:, own].T * step * scale[:, index].astype(float)
        for part in offset:
            total = total + rounded.sum(axis=1, keepdims=True) * step * part[:, index].astype(float)
    return total


@pytest.mark.parametrize("form", [form for form, how in FORMS.items() if "x" not in how])
def test_bytes_are_those_of_the_definition(form: str) -> None:
    """Integers as they must be: one that differed would be off by far more than sums in f32 are."""
    for rows, depth, columns in ((1, 150, 130), (8, 97, 65)):
        inputs, attrs = product(rows, depth, columns, **FORMS[form])
        b = GraphBuilder("blocks")
        b.output(b.block_matmul(b.input("x", (rows, depth)), *(b.constant(w) for w in inputs[1:]), **attrs), name="r")
        kernel = compile(b.graph(), options={"precision": "int8", "allow": (INT8,), "fallback": "forbid"})
        found, wanted = kernel.run({"x": inputs[0]}).outputs["r"], in_bytes(inputs, attrs)
        step = np.abs(inputs[0]).max() / 127 * np.abs(inputs[2]).max()
        np.testing.assert_allclose(found, wanted, atol=min(2e-6 * np.abs(wanted).max(), 0.1 * step), rtol=0)


@pytest.mark.parametrize("taken", LARGEST)
def test_the_error_of_whole_numbers_is_bounded(taken: str) -> None:
    """By half a step of the block's largest x times the sum of the block's abs(w), and what sums in f32 round."""
    rng = np.random.default_rng(8)
    for bits, offset in ((4, False), (8, False), (4, True)):
        inputs, attrs = product(2, 256, 64, bits, zero=8 if bits == 4 else 0, offset=offset)
        inputs[0] *= np.exp(3 * rng.standard_normal(inputs[0].shape)).astype(np.float32)
        b = GraphBuilder("blocks")
        b.output(b.block_matmul(b.input("x", (2, 256)), *(b.constant(w) for w in inputs[1:]), **attrs), name="r")
        kernel = compile(b.graph(), options={"precision": "int8", "allow": (taken,)})
        assert [sub.kernel for sub in kernel._compiled.schedule.subops] == [taken]
        (wanted,) = apply("block_matmul", inputs, attrs, wide=True)
        weights = np.abs(Blocks(bits, 32, attrs["zero"], 64, 256).weights(*inputs[1:], *[None][offset:]))
        largest = np.abs(inputs[0]).reshape(2, 8, 32).max(axis=-1)
        bound = np.einsum("rb,nb->rn", largest, weights.reshape(64, 8, 32).sum(axis=-1)) * 0.51 / LARGEST[taken]
        bound += np.abs(inputs[0]) @ weights.T * 2.0**-22
        error = np.abs(kernel.run({"x": inputs[0]}).outputs["r"] - wanted)
        assert (error <= bound).all()
        assert error.max() > 0.01 * bound.max()


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_rows_that_are_not_finite_stay_so(special: float) -> None:
    inputs, attrs = product(2, 64, 16)
    inputs[0][1, 40] = special
    b = GraphBuilder("blocks")
    b.output(b.block_matmul(b.input("x", (2, 64)), *(b.constant(w) for w in inputs[1:]), **attrs), name="r")
    for taken in (GEMV, GEMV_INT8, INT8):
        options = {"precision": "int8", "allow": (taken,)}
        found = compile(b.graph(), options=options).run({"x": inputs[0]}).outputs["r"]
        assert np.isfinite(found[0]).all()
        assert not np.isfinite(found[1]).any()


@pytest.mark.parametrize("shape", [(), (2, 3), (1, 1), (2, 1, 2), (0,), (3, 0)])
def test_any_rank_of_x(shape: tuple[int, ...]) -> None:
    for kernel in (GEMV, GEMM, GEMV_INT8, INT8):
        inputs, attrs = product(shape, 40, 21, offset=True)
        tol = {GEMV_INT8: 2e-4, INT8: 3e-2}.get(kernel, 2e-5)
        check_op(kernel, "block_matmul", inputs, attrs, tol=tol, splits=1, roles=CONSTANTS)


def test_rows_are_read_as_they_lie() -> None:
    inputs, attrs = product((3, 2), 40, 21, offset=True)
    for kernel in (GEMV, GEMM):
        for perm in ((1, 0, 2), (2, 0, 1)):
            shape = tuple(inputs[0].shape[i] for i in np.argsort(perm))
            views = {0: (shape, perm)}
            check_op(kernel, "block_matmul", inputs, attrs, tol=2e-5, splits=1, views=views, roles=CONSTANTS)


@pytest.mark.parametrize("epilogue", ["mixed", "sliced"])
def test_epilogues_and_prologues(epilogue: str) -> None:
    for kernel, rows in ((GEMV, 2), (GEMM, 19), (GEMV_INT8, 2), (INT8, 8)):
        inputs, attrs = product(rows, 40, 37, offset=True)
        for prologue in (None, 0):
            made = anchor_case("block_matmul", attrs, inputs, constants=[1, 2, 3], epilogue=epilogue, prologue=prologue)
            made.check(kernel, tol={GEMV_INT8: 2e-4, INT8: 3e-2}.get(kernel, 2e-5))


@pytest.mark.parametrize("rows", [1, 9])
def test_a_compiled_graph_takes_the_kernels(rows: int) -> None:
    """With bias, activation and a residual sum in the same sub-operator, the same bits on one core and two."""
    inputs, attrs = product(rows, 96, 80, offset=True)
    b = GraphBuilder("blocks")
    x, y = b.input("x", (rows, 96)), b.input("y", (rows, 80))
    weights = [b.constant(w) for w in inputs[1:]]
    found = b.block_matmul(x, *weights, **attrs) + b.constant(np.linspace(-1, 1, 80, dtype=np.float32))
    b.output(b.silu(found) + y, name="r")
    graph, rng = b.graph(), np.random.default_rng(1)
    given = {"x": inputs[0], "y": rng.standard_normal((rows, 80)).astype(np.float32)}
    results = []
    for threads in (1, 2):
        kernel = compile(graph, threads=threads, options={"fallback": "forbid"})
        assert [sub.kernel for sub in kernel._compiled.schedule.subops] == [GEMV if rows == 1 else GEMM]
        results.append(kernel.run(given).outputs["r"])
    np.testing.assert_allclose(results[0], evaluate(graph, given)["r"], atol=2e-5)
    np.testing.assert_array_equal(results[0], results[1])


def test_weights_that_are_no_constants_are_multiplied_by_numpy() -> None:
    inputs, attrs = product(2, 64, 16)
    b = GraphBuilder("blocks")
    x, codes = b.input("x", (2, 64)), b.input("codes", (16, 32), "u8")
    b.output(b.block_matmul(x, codes, b.constant(inputs[2]), **attrs), name="r")
    graph, given = b.graph(), {"x": inputs[0], "codes": inputs[1]}
    with pytest.warns(UserWarning, match="block_matmul.*computed by NumPy"):
        kernel = compile(graph)
    np.testing.assert_allclose(kernel.run(given).outputs["r"], evaluate(graph, given)["r"], atol=2e-6)
