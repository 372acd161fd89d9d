"""Calls in kernels of larger sizes: what kernels for their own sizes compute, poison in the padding, and what is
refused. What is proved and what is not stands in test_padding.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soak
from numpy.typing import NDArray
from seeds import seeds

import superkernel as sk
from superkernel.analysis.errors import relative_error
from superkernel.core.errors import InputError, MachineError, UnsupportedError
from superkernel.runtime import buckets as buckets_module

Array = NDArray[Any]
RNG = np.random.default_rng(8)


def weights(*shape: int) -> Array:
    array = (RNG.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
    array.flags.writeable = False
    return array


WIDTH, HEADS = 48, 4
FACTORS = {name: weights(WIDTH, WIDTH) for name in "qkvo"}
UP, DOWN, SCALE = weights(WIDTH, 3 * WIDTH), weights(3 * WIDTH, WIDTH), weights(WIDTH)
TOKENS, ANGLES = weights(100, WIDTH), np.outer(np.arange(256), 2.0 ** -np.arange(WIDTH // HEADS // 2))
COS, SIN = np.cos(ANGLES).astype(np.float32), np.sin(ANGLES).astype(np.float32)
FILTERS = weights(16, 3, 3, 3), weights(16, 16, 3, 3), weights(16, 10)


def mlp(batch: int) -> sk.GraphBuilder:
    b = sk.GraphBuilder("mlp")
    x = b.input("x", (batch, WIDTH))
    b.output(b.softmax(b.gelu(x @ b.constant(UP) + b.constant(UP[0])) @ b.constant(DOWN)), name="y")
    return b


def chain(rows: int, columns: int) -> sk.GraphBuilder:
    """Pointwise, over both dimensions, with a row and a column that are repeated."""
    b = sk.GraphBuilder("chain")
    x, row, column = b.input("x", (rows, columns)), b.input("row", (columns,)), b.input("column", (rows, 1))
    b.output(b.tanh(x * row) + column, name="y")
    b.output(b.greater(x, row), name="z")
    return b


def decoder(batch: int, seq: int, *, causal: bool = True, last: bool = False) -> sk.GraphBuilder:
    """Two layers of a language model's prefill, from tokens to logits of all places, or of the last one."""
    b = sk.GraphBuilder("decoder")
    x = b.gather(b.constant(TOKENS), b.input("tokens", (batch, seq), "i64"))
    cos, sin = b.constant(COS[:seq]), b.constant(SIN[:seq])
    for _ in range(2):
        q, k, v = (
            (x.reshape(batch * seq, WIDTH) @ b.constant(FACTORS[name]))
            .reshape(batch, seq, HEADS, -1)
            .transpose(0, 2, 1, 3)
            for name in "qkv"
        )
        mixed = b.attention(b.rope(q, cos, sin), b.rope(k, cos, sin), v, causal=causal).transpose(0, 2, 1, 3)
        x = b.rms_norm(mixed.reshape(batch, seq, WIDTH) @ b.constant(FACTORS["o"]) + x, b.constant(SCALE))
        x = b.silu(x @ b.constant(UP)) @ b.constant(DOWN) + x
    if last:
        x = b.slice(x, (-1,), (1 << 40,), axes=(1,))
    b.output(b.matmul(x, b.constant(TOKENS), trans_b=True), name="logits")
    return b


def prefill(batch: int, seq: int) -> sk.GraphBuilder:
    """Logits behind the last token alone."""
    return decoder(batch, seq, last=True)


def encoder(batch: int, seq: int) -> sk.GraphBuilder:
    return decoder(batch, seq, causal=False)


def pooled(batch: int, seq: int) -> sk.GraphBuilder:
    """Attention written out, with a mask that is an input, and a mean over what the mask keeps."""
    b = sk.GraphBuilder("pooled")
    x = b.gather(b.constant(TOKENS), b.input("tokens", (batch, seq), "i64"))
    mask = b.cast(b.input("mask", (batch, seq), "i64"), "f32")
    hidden = (1.0 - mask.reshape(batch, 1, 1, seq)) * -3e38
    q, k, v = ((x @ b.constant(FACTORS[name])).reshape(batch, seq, HEADS, -1).transpose(0, 2, 1, 3) for name in "qkv")
    scores = b.matmul(q, k, trans_b=True) * (WIDTH // HEADS) ** -0.5 + hidden
    x = x + (b.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(batch, seq, WIDTH) @ b.constant(FACTORS["o"])
    kept = mask.reshape(batch, seq, 1)
    count = b.maximum(b.reduce_sum(kept, axes=(1,), keepdims=False), b.constant(np.float32(1)))
    b.output(b.reduce_sum(x * kept, axes=(1,), keepdims=False) / count, name="y")
    return b


def speech(frames: int) -> sk.GraphBuilder:
    b = sk.GraphBuilder("speech")
    x = b.input("x", (1, 3, 1, frames))
    x = b.relu(b.conv(x, b.constant(FILTERS[0]), pads=(1, 1, 1, 1), strides=(1, 2)))
    x = b.max_pool(b.conv(x, b.constant(FILTERS[1]), pads=(1, 1, 1, 1)), (1, 2), strides=(1, 2))
    b.output(x, name="y")
    return b


def images(batch: int) -> sk.GraphBuilder:
    b = sk.GraphBuilder("images")
    x = b.input("x", (batch, 3, 14, 14))
    x = b.relu(b.conv(x, b.constant(FILTERS[0]), pads=(1, 1, 1, 1)))
    x = b.relu(b.conv(b.max_pool(x, (2, 2), strides=(2, 2)), b.constant(FILTERS[1]), pads=(1, 1, 1, 1)))
    b.output(b.global_avg_pool(x).reshape(batch, 16) @ b.constant(FILTERS[2]), name="y")
    return b


Case = tuple[Callable[..., sk.GraphBuilder], dict[str, tuple[int, int]], dict[str, tuple[int, ...]]]
CASES: dict[str, Case] = {
    "mlp": (mlp, {"batch": (1, 64)}, {"batch": (4, 16, 64)}),
    "chain": (chain, {"rows": (1, 40), "columns": (1, 90)}, {"rows": (8, 40), "columns": (32, 90)}),
    "decoder": (decoder, {"batch": (1, 3), "seq": (1, 96)}, {"batch": (1, 3), "seq": (16, 64, 96)}),
    "prefill": (prefill, {"batch": (1, 3), "seq": (1, 96)}, {"batch": (1, 3), "seq": (16, 64, 96)}),
    "encoder": (encoder, {"batch": (1, 3), "seq": (1, 96)}, {"batch": (1, 3), "seq": (16, 64, 96)}),
    "pooled": (pooled, {"batch": (1, 3), "seq": (1, 96)}, {"batch": (1, 3), "seq": (16, 64, 96)}),
    "speech": (speech, {"frames": (4, 90)}, {"frames": (32, 90)}),
    "images": (images, {"batch": (1, 8)}, {"batch": (2, 8)}),
}


def given(kernel: sk.DynamicKernel, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Array]:
    """Random inputs of these sizes."""
    rng, made = np.random.default_rng(seed), {}
    for name, kind in kernel.inputs.items():
        shape = [axis.offset + sum(f * sizes[d] for d, f in axis.factors.items()) for axis in kind.axes]
        numbers = rng.integers(0, 100, shape) if kind.dtype.is_integer else rng.standard_normal(shape)
        made[name] = numbers.astype(kind.dtype.numpy)
    return made


def in_buckets(name: str, **options: Any) -> tuple[sk.DynamicKernel, Callable[..., sk.GraphBuilder]]:
    source, dims, buckets = CASES[name]
    return sk.compile_dynamic(source, dims, threads=2, buckets=buckets, options=options or None), source


def near(found: Array, want: Array) -> None:
    """The same but for the order of sums, where another kernel or tile was chosen (docs/shapes.md): within what f32
    results of the host are held to against the reference. Results that are no floats are the same."""
    if want.dtype.kind == "f":
        assert relative_error(found, want, want) <= 1e-5
    else:
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", seeds(1))
def test_results_are_those_of_kernels_for_these_sizes(name: str, seed: int) -> None:
    kernel, source = in_buckets(name)
    rng = np.random.default_rng(seed)
    drawn = [
        {dim: int(rng.integers(low, high + 1)) for dim, (low, high) in kernel.dims.items()}
        for _ in range(40 if soak.enabled else 2)
    ]
    for sizes in [*drawn, {dim: low for dim, (low, _) in kernel.dims.items()}]:
        inputs = given(kernel, sizes, seed)
        want = sk.compile(source(**sizes), threads=2).run(inputs).outputs
        results = kernel.run(inputs).outputs
        assert list(results) == list(want)
        for array, result, called in zip(want.values(), results.values(), listed(kernel(**inputs)), strict=True):
            near(result, array)
            np.testing.assert_array_equal(called, result)
            assert result.flags.c_contiguous
            assert result.dtype == array.dtype
    made = {size for sizes in kernel.compiled for size in sizes.values()}
    assert made <= {size for sizes in CASES[name][2].values() for size in sizes}, "nothing was compiled for these sizes"


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("mlp", {"batch": 9}),
        ("chain", {"rows": 11, "columns": 50}),
        ("decoder", {"batch": 2, "seq": 40}),
        ("images", {"batch": 6}),
    ],
)
def test_the_same_bits_where_the_same_kernels_are_chosen(name: str, sizes: dict[str, int]) -> None:
    kernel, source = in_buckets(name)
    inputs = given(kernel, sizes)
    want = sk.compile(source(**sizes), threads=2).run(inputs).outputs
    for output, array in kernel.run(inputs).outputs.items():
        np.testing.assert_array_equal(array, want[output])


def listed(results: Any) -> list[Array]:
    return list(results) if isinstance(results, tuple) else [results]


@pytest.mark.parametrize(
    ("name", "sizes", "options"),
    [
        ("mlp", {"batch": 9}, {}),
        ("mlp", {"batch": 5}, {"precision": "int8"}),
        ("chain", {"rows": 11, "columns": 50}, {}),
        ("decoder", {"batch": 2, "seq": 23}, {}),
        ("decoder", {"batch": 1, "seq": 5}, {"precision": "bf16"}),
        ("decoder", {"batch": 3, "seq": 90}, {"precision": "int8"}),
        ("prefill", {"batch": 2, "seq": 23}, {}),
        ("encoder", {"batch": 2, "seq": 23}, {}),
        ("encoder", {"batch": 3, "seq": 90}, {"precision": "int8"}),
        ("pooled", {"batch": 2, "seq": 40}, {}),
        ("speech", {"frames": 50}, {}),
        ("images", {"batch": 5}, {}),
    ],
)
def test_no_bit_hangs_on_what_padding_holds(name: str, sizes: dict[str, int], options: dict[str, Any]) -> None:
    kernel, _ = in_buckets(name, **options)
    inputs = given(kernel, sizes)
    want = listed(kernel(**inputs))
    bucket = kernel._bucket(tuple(sizes.values()))
    assert bucket is not None
    rng = np.random.default_rng(1)
    for poison in (np.nan, np.inf, -3e38, "numbers"):
        for name_, array in inputs.items():
            buffer = bucket._buffers[name_]
            is_padding = np.ones(buffer.shape, np.bool_)
            is_padding[tuple(map(slice, array.shape))] = False
            if buffer.dtype.kind == "f" and not isinstance(poison, str):
                buffer[is_padding] = poison
            else:
                buffer[is_padding] = rng.integers(-200, 200, int(is_padding.sum()))
        for array, again in zip(want, listed(kernel(**inputs)), strict=True):
            np.testing.assert_array_equal(again, array, str(poison))
        for name_, array in inputs.items():
            np.testing.assert_array_equal(bucket._buffers[name_][tuple(map(slice, array.shape))], array)


def test_a_norm_over_the_length_is_refused() -> None:
    def norm(batch: int, seq: int) -> sk.GraphBuilder:
        b = sk.GraphBuilder("norm")
        b.output(b.layer_norm(b.relu(b.input("x", (batch, seq, 4))), axis=1, name="norm"), name="y")
        return b

    dims = {"batch": (1, 8), "seq": (1, 64)}
    with pytest.raises(UnsupportedError) as caught:
        sk.compile_dynamic(norm, dims, buckets={"batch": (4,), "seq": (16, 64)})
    (violation,) = caught.value.violations
    assert violation.location == "node 'norm' (layer_norm)"
    assert violation.message == "it normalises over an axis, and that axis is padded"
    assert violation.hint == "leave 'seq' out of buckets (seq 1 padded to 16)"
    kernel = sk.compile_dynamic(norm, dims, threads=2, buckets={"batch": (4, 8)})
    inputs = given(kernel, {"batch": 3, "seq": 7})
    near(kernel(**inputs), sk.compile(norm(3, 7), threads=2)(**inputs))
    assert kernel.compiled == [{"batch": 4, "seq": 7}]


def test_axes_that_grow_together_for_some_sizes_only() -> None:
    """The least sizes and those of the bucket tell two axes not apart."""

    def two(rows: int) -> sk.GraphBuilder:
        b = sk.GraphBuilder("two")
        fewer = rows - (rows == 5)
        x, y = b.input("x", (rows, 4)), b.slice(b.input("table", (9, 4)), (0,), (fewer,), axes=(0,))
        b.output(b.reduce_sum(x, axes=(0,)) + b.reduce_sum(y, axes=(0,), name="of the table"), name="y")
        return b

    kernel = sk.compile_dynamic(two, {"rows": (1, 8)}, threads=1, buckets={"rows": (8,)})
    for rows in (1, 4):
        inputs = given(kernel, {"rows": rows})
        near(kernel(**inputs), sk.compile(two(rows))(**inputs))
    with pytest.raises(UnsupportedError, match="axes that grow together for some sizes only") as caught:
        kernel(**given(kernel, {"rows": 5}))
    (violation,) = caught.value.violations
    assert (violation.expected, violation.found) == ("5 elements that count", "4")
    assert violation.location == "node 'of the table'"


def crossed(queries: int, keys: int) -> sk.GraphBuilder:
    """Sums over two dimensions that may be alike, and over what is empty for the least size."""
    b = sk.GraphBuilder("crossed")
    x, y = b.input("x", (queries, 4)), b.input("y", (keys, 4))
    b.output(b.reduce_sum(x, axes=(0,)) - b.reduce_max(y, axes=(0,)), name="both")
    b.output(b.reduce_sum(b.slice(y, (1,), (1 << 40,), axes=(0,)), axes=(0,)), name="but the first")
    return b


@pytest.mark.parametrize("asked", [(1, 1), (3, 5), (5, 3), (4, 4), (8, 1), (2, 8)])
def test_dimensions_that_are_alike_and_values_that_are_empty(asked: tuple[int, int]) -> None:
    dims = {"queries": (1, 8), "keys": (1, 8)}
    kernel = sk.compile_dynamic(crossed, dims, threads=1, buckets={"queries": (8,), "keys": (8,)})
    sizes = dict(zip(dims, asked, strict=True))
    inputs = given(kernel, sizes)
    want = sk.compile(crossed(**sizes), threads=1)(**inputs)
    for result, array in zip(kernel(**inputs), want, strict=True):
        near(result, array)
    assert kernel.compiled == [{"queries": 8, "keys": 8}]


def test_a_function_that_takes_no_sizes_but_those_of_calls() -> None:
    """What it raises for others that a bucket asks for is nobody's error."""

    def even(queries: int, keys: int) -> sk.GraphBuilder:
        if (queries, keys) == (7, 7):
            raise ValueError("what is asked for besides")
        return crossed(queries, keys)

    dims = {"queries": (1, 8), "keys": (1, 8)}
    kernel = sk.compile_dynamic(even, dims, threads=1, buckets={"queries": (8,), "keys": (8,)})
    inputs = given(kernel, {"queries": 3, "keys": 5})
    for result, array in zip(kernel(**inputs), sk.compile(crossed(3, 5), threads=1)(**inputs), strict=True):
        near(result, array)


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("over", [(1,), (0, 1), (0, 1, 2)])
def test_means_are_those_of_kernels_for_these_sizes(kind: str, over: tuple[int, ...]) -> None:
    """Of whole numbers, whose sums are exact: the division, and how results are rounded."""

    def mean(batch: int, seq: int) -> sk.GraphBuilder:
        b = sk.GraphBuilder("mean")
        b.output(b.reduce_mean(b.input("x", (batch, seq, 8), kind), axes=over, keepdims=False), name="y")
        return b

    dims = {"batch": (1, 4), "seq": (1, 40)}
    kernel = sk.compile_dynamic(mean, dims, threads=1, buckets={"batch": (4,), "seq": (40,)})
    for batch, seq in ((1, 1), (3, 7), (2, 39), (4, 40)):
        x = np.random.default_rng(seq).integers(-9, 10, (batch, seq, 8)).astype(kernel.inputs["x"].dtype.numpy)
        np.testing.assert_array_equal(kernel(x), sk.compile(mean(batch, seq), threads=1)(x))


def doubled(rows: int) -> sk.GraphBuilder:
    b = sk.GraphBuilder("doubled")
    x = b.input("x", (rows, 4))
    b.output(x + x, name="y")
    return b


def in_rows(source: Any = doubled, sizes: tuple[int, ...] = (4, 16), most: int = 40) -> sk.DynamicKernel:
    return sk.compile_dynamic(source, {"rows": (1, most)}, threads=1, buckets={"rows": sizes})


def call(kernel: sk.DynamicKernel, rows: int) -> None:
    x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    np.testing.assert_array_equal(kernel(x), 2 * x)


def two_names_of_one_length() -> Any:
    """An ONNX model, x softmax(x + y) over the length, in which the length has a name per input, as exporters do it."""
    helper = pytest.importorskip("onnx").helper
    nodes = [
        helper.make_node("Add", ["x", "y"], ["z"]),
        helper.make_node("Softmax", ["z"], ["p"], axis=0),
        helper.make_node("Mul", ["p", "x"], ["out"]),
    ]
    shapes = {"x": ["a", 3], "y": ["b", 3], "out": ["a", 3]}
    x, y, out = (helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items())
    return helper.make_model(helper.make_graph(nodes, "g", [x, y], [out]))


@pytest.mark.parametrize(("least", "listed"), [((1, 1), (8,)), ((2, 2), (8,)), ((2, 2), (4, 8)), ((2, 3), (8,))])
def test_dimensions_that_go_with_one_another(least: tuple[int, int], listed: tuple[int, ...]) -> None:
    dims = {"a": (least[0], 9), "b": (least[1], 9)}
    model = two_names_of_one_length()
    kernel = sk.compile_dynamic(model, dims, threads=1, buckets={"a": listed, "b": (8,)})
    x = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    wanted = np.exp(2 * x) / np.exp(2 * x).sum(0) * x
    np.testing.assert_allclose(kernel(x, x), wanted, rtol=1e-5)
    assert kernel.compiled == [{"a": 8, "b": 8}]
    with pytest.raises(sk.GraphError, match=r"found \[5, 3\] and \[6, 3\]"):
        sk.compile_dynamic(model, dims, threads=1, buckets={"a": (8,), "b": (9,)})(x[:5], x)


def test_a_bucket_without_a_graph() -> None:
    kernel = sk.compile_dynamic(two_names_of_one_length(), {"a": (1, 8), "b": (1, 8)}, threads=1, buckets={"a": (8,)})
    x = np.ones((3, 3), np.float32)
    with pytest.raises(UnsupportedError, match=r"leave 'a' out of buckets \(a 3 padded to 8\)"):
        kernel(x, x)


def test_the_least_bucket_that_holds_the_sizes() -> None:
    kernel = in_rows()
    for rows in (3, 4, 1, 5, 16, 17, 40):
        call(kernel, rows)
    assert [sizes["rows"] for sizes in kernel.compiled] == [4, 16, 17, 40], "beyond the last one as they are"


def test_kernels_for_these_sizes_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = in_rows(sizes=(8,))
    exact = kernel.at(rows=5)
    kernel.prepare({"rows": 8}, {"rows": 6})
    assert [sizes["rows"] for sizes in kernel.compiled] == [5, 8, 6]
    monkeypatch.setattr(kernel, "_make", None)
    assert kernel.at(rows=5) is exact
    for rows in (5, 6, 7, 8):
        call(kernel, rows)
    assert [sizes["rows"] for sizes in kernel.compiled] == [5, 6, 8]


class Interrupted(Mapping[str, int]):
    """Numbers of keys of which one is asked for in vain."""

    def __getitem__(self, name: str) -> int:
        raise KeyboardInterrupt

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0


def test_an_interrupted_call_leaves_nothing_behind() -> None:
    """Ctrl-C while the padding is written: the next call of the sizes that were there before writes it again."""
    kernel, _ = in_buckets("decoder")
    inputs = given(kernel, {"batch": 1, "seq": 9})
    want = kernel(**inputs)
    bucket = kernel._bucket((1, 12))
    assert bucket is not None
    fit = replace(bucket.fit((1, 12)), counts=Interrupted())
    with pytest.raises(KeyboardInterrupt):
        bucket.call(kernel.at(batch=1, seq=16), fit, (1, 12), given(kernel, {"batch": 1, "seq": 12}))
    np.testing.assert_array_equal(kernel(**inputs), want)


def test_a_bucket_that_no_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*given: Any) -> Array:
        raise MemoryError

    kernel, _ = in_buckets("mlp")
    monkeypatch.setattr(buckets_module, "np", SimpleNamespace(zeros=none))
    with pytest.raises(MachineError, match="not enough memory for a padded input"):
        kernel(np.ones((2, WIDTH), np.float32))


def test_buckets_ahead_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, _ = in_buckets("decoder")
    kernel.prepare({"batch": 1, "seq": 16}, wait=False)
    inputs = given(kernel, {"batch": 1, "seq": 9})
    first = kernel(**inputs)
    assert kernel.compiled == [{"batch": 1, "seq": 16}]
    exact = kernel.at(batch=1, seq=16)
    assert list(exact.inputs) == ["tokens"], "a kernel for these sizes knows nothing of padding"
    assert len(kernel.compiled) == 2
    monkeypatch.setattr(kernel, "_make", None)
    np.testing.assert_array_equal(kernel(**inputs), first)
    whole = given(kernel, {"batch": 1, "seq": 16})
    np.testing.assert_array_equal(kernel(**whole), exact(**whole))


def test_results_stay_what_they_are() -> None:
    kernel = in_rows()
    first = kernel(np.ones((3, 4), np.float32))
    kernel(np.full((3, 4), 7, np.float32))
    kernel(np.full((2, 4), 7, np.float32))
    np.testing.assert_array_equal(first, np.full((3, 4), 2, np.float32))
    assert first.flags.writeable


def test_memory_is_bounded() -> None:
    kernel = in_rows(sizes=(4, 16, 32))
    kernel.kernels_max = 2
    for rows in (3, 13, 30, 13, 2):
        call(kernel, rows)
    assert [sizes["rows"] for sizes in kernel.compiled] == [16, 4]
    assert kernel._buckets is not None
    held, buffers = kernel.held_bytes, kernel._buckets.nbytes
    assert buffers == (16 + 4) * 4 * 4
    kernel.bytes_max = 0
    assert [sizes["rows"] for sizes in kernel.compiled] == [4]
    assert kernel.held_bytes < held
    assert kernel._buckets.nbytes == 4 * 4 * 4


def test_several_threads() -> None:
    kernel = in_rows()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda rows: call(kernel, rows), [1, 2, 3, 4, 9, 12, 3, 16] * 8))
    assert len(kernel.compiled) == 2


def test_inputs_are_checked_as_ever() -> None:
    kernel = in_rows()
    call(kernel, 3)
    with pytest.raises(InputError, match="wrong element type"):
        kernel(np.ones((3, 4), np.int32))
    with pytest.raises(InputError, match=r"wrong shape.*f32\[3,4\]"):
        kernel(np.ones((3, 5), np.float32))
    with pytest.raises(InputError, match="dimension 'rows' out of its range"):
        kernel(np.ones((41, 4), np.float32))
    with pytest.raises(InputError, match="missing"):
        kernel()
    np.testing.assert_array_equal(kernel([[1.0, 2.0, 3.0, 4.0]]), np.array([[2, 4, 6, 8]], np.float32))
    np.testing.assert_array_equal(kernel(x=np.asfortranarray(np.eye(3, 4, dtype=np.float32))), 2 * np.eye(3, 4))


def test_sizes_that_differ_are_proved_each() -> None:
    """A function may return another graph for any size: it is looked at before the first result."""

    def odd(rows: int) -> sk.GraphBuilder:
        b = sk.GraphBuilder("odd")
        x = b.input("x", (rows, 4))
        b.output(b.add(x, x) if rows != 7 else b.add(x, b.reduce_max(x, axes=(0,))), name="y")
        return b

    kernel = in_rows(odd)
    call(kernel, 6)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="another one for other sizes") as caught:
            kernel(np.ones((7, 4), np.float32))
        assert "leave 'rows' out of buckets (rows 7 padded to 16)" in str(caught.value)
    call(kernel, 8)
    kernel.at(rows=7)
    kernel(np.ones((7, 4), np.float32))


def counting(rows: int, *, summed: bool = False) -> sk.GraphBuilder:
    b = sk.GraphBuilder("counting")
    x = b.input("x", (rows, 4))
    calls = b.state("calls", np.zeros(4, np.float32))
    b.update(
        calls,
        calls
        + (b.reduce_max(b.layer_norm(x, axis=0), axes=(0,), keepdims=False) if summed else b.constant(np.float32(1))),
    )
    b.output(x + x, name="y")
    return b


def test_states() -> None:
    kernel = in_rows(counting)
    for rows in (3, 9, 1, 30):
        call(kernel, rows)
    np.testing.assert_array_equal(kernel.states["calls"], np.full(4, 4, np.float32))
    with pytest.raises(UnsupportedError, match="normalises over an axis"):
        in_rows(lambda rows: counting(rows, summed=True))


@pytest.mark.parametrize(
    ("buckets", "said"),
    [
        ({"row": (4,)}, "no dimension 'row'"),
        ({"rows": (4, 4)}, "rising sizes, 1 to 40"),
        ({"rows": (16, 4)}, "rising sizes, 1 to 40"),
        ({"rows": (4, 41)}, "rising sizes, 1 to 40"),
        ({"rows": ()}, "rising sizes"),
        ({"rows": 4}, "rising sizes"),
        ([4], "buckets is not a mapping"),
    ],
)
def test_buckets_that_are_none(buckets: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        sk.compile_dynamic(doubled, {"rows": (1, 40)}, threads=1, buckets=buckets)


def test_an_accelerator_has_them_too() -> None:
    kernel = sk.compile_dynamic(doubled, {"rows": (1, 9)}, target="mini", buckets={"rows": (4,)})
    call(kernel, 3)
    assert kernel.compiled == [{"rows": 4}]
