"""Coded of codes in GGUF files: what `Coded` holds against the decoder of the `gguf` package, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from superkernel.builder import GraphBuilder
from superkernel.core.dtypes import DType
from superkernel.frontends.pretrained.gguf import _BLOCKS
from superkernel.reference import evaluate


def raw(kind: gguf.GGMLQuantizationType, rows: int, columns: int) -> np.ndarray:
    """Random bytes of a matrix whose f16 values are all finite."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(int(kind))
    while True:
        data = rng.integers(0, 256, (rows, columns // block * size), dtype=np.uint8)
        with np.errstate(all="ignore"):
            good = np.isfinite(gguf.quants.dequantize(data, kind)).all(axis=1)
        if good.sum() >= rows // 2:
            return data[good]


@pytest.mark.parametrize("name", _BLOCKS)
def test_blocks_hold_what_the_file_says(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    data = raw(kind, 60, 512)
    matrix = _BLOCKS[name](data)
    expected = gguf.quants.dequantize(data, kind)
    assert matrix.shape == expected.shape
    np.testing.assert_array_equal(matrix.dense(), expected)

    b = GraphBuilder("rows")
    x, ids = b.input("x", (2, 512)), b.input("ids", (3,), "i64")
    b.output(matrix.rows(b, ids, DType.F32), name="rows")
    b.output(matrix.product(b, x), name="product")
    wanted, ones = np.array([1, 0, 1]), np.eye(512, dtype=np.float32)[[7, 300]]
    found = evaluate(b.graph(), {"x": ones, "ids": wanted})
    np.testing.assert_array_equal(found["rows"], expected[wanted])
    np.testing.assert_allclose(found["product"], expected[:, [7, 300]].T, rtol=1e-6)
