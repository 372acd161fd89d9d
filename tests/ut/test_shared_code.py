"""Code that several sizes share: the same bits as code for one size, who shares it, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llvmlite import ir
from numpy.typing import NDArray
from seeds import seeds

import superkernel as sk
from superkernel.codegen.host.builder import KernelBuilder
from superkernel.codegen.host.features import detect_cpu
from superkernel.codegen.host.image import ImageBuilder, KernelKey, KernelSource
from superkernel.codegen.host.shared_code import marks, own_object
from superkernel.core.errors import InternalError
from superkernel.ir.body import Body, SubOperator
from superkernel.scheduler.families.attention import AttentionTiling
from superkernel.scheduler.families.lookup import LookupTiling
from superkernel.scheduler.families.matmul_tiling import PACKED, ROWS, MatmulTiling, make_tiling
from superkernel.scheduler.families.pointwise import SHARED_ELEMENTS, PointwiseTiling
from superkernel.scheduler.families.rope import RopeTiling
from superkernel.scheduler.families.rowtiling import RowTiling

SHARING = (MatmulTiling, RowTiling, AttentionTiling, PointwiseTiling, LookupTiling, RopeTiling)
SYMBOL, OWN = "sk_f32_gemm__avx512_" + "0123456789abcdef", "sk_f32_gemm__avx512_" + "fedcba9876543210"
RNG = np.random.default_rng(7)
WIDTH, HEADS = 64, 4


def _weights(rows: int, columns: int) -> NDArray[np.float32]:
    return (RNG.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)


FACTORS = {name: _weights(WIDTH, WIDTH) for name in "qo"}
FACTORS |= {name: _weights(WIDTH, WIDTH // 2) for name in "kv"}
FACTORS |= {"up": _weights(WIDTH, 3 * WIDTH + 5), "down": _weights(3 * WIDTH + 5, WIDTH)}
SCALE = RNG.standard_normal(WIDTH).astype(np.float32)


def layer(batch: int, tokens: int, *, causal: bool = False, mask: bool = False) -> sk.GraphBuilder:
    """One layer whose queries share keys in pairs, with ragged panels, residual sums, and both kinds of norm."""
    b = sk.GraphBuilder("layer")
    x = b.input("x", (batch, tokens, WIDTH))
    kept = b.input("mask", (batch, 1, 1, tokens), "bool") if mask else None
    normed = b.rms_norm(x, b.constant(SCALE), epsilon=1e-5)

    def heads(name: str, count: int) -> Any:
        rows = (normed @ b.constant(FACTORS[name])).reshape(batch, tokens, count, WIDTH // HEADS)
        return rows.transpose(0, 2, 1, 3)

    mixed = b.attention(heads("q", HEADS), heads("k", HEADS // 2), heads("v", HEADS // 2), kept, causal=causal)
    x = mixed.transpose(0, 2, 1, 3).reshape(batch, tokens, WIDTH) @ b.constant(FACTORS["o"]) + x
    normed = b.layer_norm(x, b.constant(SCALE), b.constant(SCALE), epsilon=1e-5)
    b.output(b.softmax(b.gelu(normed @ b.constant(FACTORS["up"])) @ b.constant(FACTORS["down"]) + x), name="y")
    return b


def given(batch: int, tokens: int, mask: bool) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(100 * batch + tokens)
    found: dict[str, NDArray[Any]] = {"x": rng.standard_normal((batch, tokens, WIDTH), np.float32)}
    if mask:
        found["mask"] = rng.random((batch, 1, 1, tokens)) < 0.7
    return found


@contextmanager
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every kernel is emitted for its own sizes."""
    with monkeypatch.context() as patch:
        for kind in SHARING:
            patch.setattr(kind, "representative", lambda self, body, target: None)
        yield


@contextmanager
def kernels_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Symbols of the kernels that LLVM compiles meanwhile."""
    found: list[str] = []
    compile_kernels = ImageBuilder._compile_kernels

    def counted(self: ImageBuilder, parts: Any, objects: Any) -> None:
        found.extend(parts[name].symbol for name, data in objects.items() if data is None)
        compile_kernels(self, parts, objects)

    with monkeypatch.context() as patch:
        patch.setattr(ImageBuilder, "_compile_kernels", counted)
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize(("causal", "mask"), [(False, False), (True, False), (False, True)])
def test_the_same_bits_as_code_for_one_size(
    causal: bool, mask: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    for tokens in rng.integers(2, 300, 3).tolist():
        batch = int(rng.integers(1, 3))
        graph, inputs = layer(batch, tokens, causal=causal, mask=mask), given(batch, tokens, mask)
        shared = sk.compile(graph, threads=2)
        with alone(monkeypatch):
            own = sk.compile(graph, threads=2)
        assert shared.run(inputs).outputs["y"].tobytes() == own.run(inputs).outputs["y"].tobytes(), (batch, tokens)


def turned(batch: int, tokens: int, tables: str, *, split: bool, interleaved: bool) -> sk.GraphBuilder:
    """Rotary embedding of heads that lie one behind the other, or of a view of tokens' rows. `tables`: "rows" of the
    positions, a "batch" of them, or all that there are with "begins" as data, of each sequence or of each token."""
    b, angles = sk.GraphBuilder("turned"), np.outer(np.arange(512), 0.1 ** np.arange(8)).astype(np.float32)
    if split:
        x = b.input("x", (batch, tokens, 4 * 16)).reshape(batch, tokens, 4, 16).transpose(0, 2, 1, 3)
    else:
        x = b.input("x", (batch, 4, tokens, 16))
    rows = angles if tables.startswith("begins") else angles[:tokens]
    if tables == "batch":
        rows = np.broadcast_to(rows, (batch, 1, *rows.shape)).copy()
    position = None
    if tables.startswith("begins"):
        position = b.input("position", (batch,) if tables == "begins" else (batch, tokens), "i64")
    cos, sin = b.constant(np.cos(rows)), b.constant(np.sin(rows))
    b.output(b.rope(x + 1.0, cos, sin, position, interleaved=interleaved, rotary_dim=0 if split else 16), name="y")
    return b


def looked_up(batch: int, tokens: int) -> sk.GraphBuilder:
    """Rows of a table."""
    b = sk.GraphBuilder("looked up")
    b.output(b.gather(b.constant(SCALE * _weights(40, WIDTH)), b.input("at", (batch, tokens), "i64")), name="y")
    return b


def pointwise(batch: int, tokens: int, odd: int) -> sk.GraphBuilder:
    """A line of elements, rows that a vector is added to, long rows, and rows in another order."""
    b = sk.GraphBuilder("pointwise")
    x = b.input("x", (batch, tokens, WIDTH + odd))
    b.output(b.tanh(x * x), name="line")
    b.output(x * b.input("row", (WIDTH + odd,)), name="rows")
    b.output(b.input("long", (batch * tokens, 1200)) * b.input("wide", (1200,)), name="long rows")
    b.output(b.neg(b.input("z", (batch, tokens, 3, 10)).transpose(0, 2, 1, 3)), name="moved")
    return b


MODELS: dict[str, Any] = {
    **{f"pointwise {odd}": lambda batch, tokens, odd=odd: pointwise(batch, tokens, odd) for odd in (0, 3)},
    "gather": looked_up,
    **{
        f"rope {tables}{' split' * split}{' interleaved' * interleaved}": (
            lambda batch, tokens, tables=tables, split=split, interleaved=interleaved: turned(
                batch, tokens, tables, split=split, interleaved=interleaved
            )
        )
        for tables, split, interleaved in (
            ("rows", True, False), ("rows", False, True), ("batch", False, False), ("begins", True, True),
            ("begins of tokens", True, False),
        )
    },
}  # fmt: skip
"""Name -> graph of a batch and a length."""


def some(graph: sk.Graph, seed: int) -> dict[str, NDArray[Any]]:
    """Inputs of any graph."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(-3, 40, kind.shape) if kind.dtype.is_integer else rng.standard_normal(kind.shape, np.float32)
        for name, kind in graph.inputs.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("name", MODELS)
def test_what_is_no_product_has_the_same_bits_too(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    for batch, tokens in [(1, int(rng.integers(30, 300))), (3, int(rng.integers(2, 60)))]:
        graph = MODELS[name](batch, tokens).graph()
        inputs = some(graph, tokens)
        shared = sk.compile(graph, threads=2, options={"fuse": False})
        with alone(monkeypatch):
            own = sk.compile(graph, threads=2, options={"fuse": False})
        for output, found in shared.run(inputs).outputs.items():
            assert found.tobytes() == own.run(inputs).outputs[output].tobytes(), (output, batch, tokens)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_what_is_no_product_is_compiled_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths whose lines of elements end with the same part of a vector."""
    monkeypatch.setenv("SK_CACHE_DIR", str(tmp_path))
    with kernels_compiled(monkeypatch) as compiled:
        sk.compile(MODELS[name](1, 64), threads=2)
        first = len(compiled)
        for tokens in (96, 160, 224):
            sk.compile(MODELS[name](1, tokens), threads=2)
    assert first >= 1
    assert [symbol for symbol in compiled[first:] if "transpose" not in symbol] == []


def test_few_elements_have_code_of_their_own() -> None:
    for elements in (SHARED_ELEMENTS // 2, SHARED_ELEMENTS):
        b = sk.GraphBuilder("line")
        b.output(b.tanh(b.input("x", (elements,))), name="y")
        made = sk.compile(b, threads=1)._compiled.schedule
        body, tiling = made.subops[0].body, made.tilings[0]
        assert (tiling.representative(body, detect_cpu()) is None) == (elements < SHARED_ELEMENTS)


def rows_of_heads(batch: int, tokens: int) -> sk.GraphBuilder:
    """Attention over heads that lie one behind the other, under a mask of all pairs: strides go by the length."""
    b = sk.GraphBuilder("heads")
    q = b.input("q", (batch, 4, tokens, 16))
    k, v = (b.input(name, (batch, 2, tokens, 16)) for name in "kv")
    mixed = b.attention(q, k, v, b.input("mask", (batch, 1, tokens, tokens)))
    b.output(mixed.transpose(0, 2, 1, 3).reshape(batch, tokens, 64), name="y")
    return b


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2])
def test_strides_that_go_by_the_length_are_shared_too(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, texts = np.random.default_rng(batch), set()
    for tokens in (224, 238):
        graph = rows_of_heads(batch, tokens).graph()
        inputs = {name: rng.standard_normal(kind.shape, np.float32) for name, kind in graph.inputs.items()}
        shared = sk.compile(graph, threads=2)
        (sub,), (tiling,) = shared._compiled.schedule.subops, shared._compiled.schedule.tilings
        texts.add(KernelSource.of(KernelKey.of(sub, tiling), sub, tiling, detect_cpu()).text)
        with alone(monkeypatch):
            own = sk.compile(graph, threads=2)
        assert shared.run(inputs).outputs["y"].tobytes() == own.run(inputs).outputs["y"].tobytes()
    assert len(texts) == (1 if batch == 1 else 2)  # where results of a batch begin is in the code


@pytest.mark.slow
def test_sizes_find_the_code_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SK_CACHE_DIR", str(tmp_path))
    kernel = sk.compile_dynamic(lambda tokens: layer(1, tokens, causal=True), {"tokens": (1, 400)}, threads=2)
    lengths = range(200, 216)
    with kernels_compiled(monkeypatch) as compiled:
        results = {tokens: kernel(**given(1, tokens, mask=False)) for tokens in lengths}
    made = [kernel.at(tokens=tokens)._compiled.objects for tokens in lengths]
    kernels = sum(name.startswith("kernel ") for objects in made for name in objects)
    assert len(compiled) == len(set(compiled)) < kernels / 4
    with alone(monkeypatch):
        own = sk.compile(layer(1, 211, causal=True), threads=2)
    assert results[211].tobytes() == own(**given(1, 211, mask=False)).tobytes()


def _product(rows: int, columns: int = 96) -> Body:
    """[1, rows, 64] x [64, columns]."""
    b = sk.GraphBuilder("product")
    b.output(b.input("x", (1, rows, 64)) @ b.constant(np.ones((64, columns), np.float32)), name="y")
    return sk.compile(b, threads=1)._compiled.schedule.subops[0].body


def _source(body: Body, tile_rows: int) -> KernelSource:
    """Of a product in tiles of so many rows."""
    cpu = detect_cpu()
    tiling = make_tiling(body, ROWS, tile_rows, 1, PACKED, cpu)
    assert tiling.tile_rows == tile_rows
    sub = SubOperator(0, "product", body, (), (), "host.matmul.packed")
    return KernelSource.of(KernelKey.of(sub, tiling), sub, tiling, cpu)


def test_what_a_representative_stands_for() -> None:
    few, many = _source(_product(24), 4), _source(_product(32), 4)
    assert (few.text, few.symbol) == (many.text, many.symbol)
    assert few.sizes is not None
    assert many.sizes is not None
    assert (few.sizes["rows"], many.sizes["rows"]) == (24, 32)
    assert _source(_product(24), 6).text != few.text
    assert _source(_product(24, columns=95), 4).text != few.text
    assert _source(_product(4), 4).sizes is None


def test_an_object_is_filled_with_sizes_and_symbol() -> None:
    table = marks(SYMBOL, ("rows", "keys"))
    words = {name: mark.to_bytes(8, "little", signed=True) for name, mark in table.items()}
    shared = b"code" + words["rows"] + words["keys"] + SYMBOL.encode() + b"\0"
    own = own_object(shared, SYMBOL, OWN, {"rows": 7, "keys": 1 << 40})
    assert own == b"code" + (7).to_bytes(8, "little") + (1 << 40).to_bytes(8, "little") + OWN.encode() + b"\0"


@pytest.mark.parametrize("times", [0, 2])
def test_a_size_without_one_place_is_refused(times: int) -> None:
    word = marks(SYMBOL, ("rows",))["rows"].to_bytes(8, "little", signed=True)
    with pytest.raises(InternalError, match="no single place"):
        own_object(SYMBOL.encode() + times * word, SYMBOL, OWN, {"rows": 7})


def test_an_object_of_another_kernel_is_refused() -> None:
    for shared, own in ((SYMBOL.encode(), OWN.replace("gemm", "conv")), (OWN.encode(), OWN)):
        with pytest.raises(InternalError, match="another kernel"):
            own_object(shared, SYMBOL, own, {})


def test_a_size_that_is_not_in_the_table_is_refused() -> None:
    known = KernelBuilder(ir.Module(), "kernel", 1, detect_cpu())
    assert known.size("rows", 5) == 5
    shared = KernelBuilder(ir.Module(), "kernel", 1, detect_cpu(), {"rows": 5})
    assert isinstance(shared.size("rows", 5), ir.Value)
    with pytest.raises(InternalError, match="not in the kernel's table"):
        shared.size("keys", 5)
