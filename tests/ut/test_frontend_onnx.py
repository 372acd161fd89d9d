"""The ONNX frontend: options, refusals, versions of operators, functions, com.microsoft operators, bad files.

The standard's own node tests are in tests/st/test_onnx_backend.py; here is what they do not have. Numbers are compared
with onnxruntime.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx_models import RNG, Arrays, check, f32, helper, model, node, onnx

import superkernel
from superkernel.core.dtypes import DType
from superkernel.core.errors import FileFormatError, InputError, MachineError, SuperKernelError, UnsupportedError
from superkernel.frontends import load_graph
from superkernel.frontends.onnx.call import StaticValueError
from superkernel.frontends.onnx.registry import lowered_names
from superkernel.reference import evaluate

# -- operators whose meaning changed between operator sets, and attributes that the node tests do not reach

X = f32(2, 3, 4, 4)
VERSIONS: dict[str, tuple[list[Any], dict[str, Any], int]] = {
    "softmax 11 flattens": ([node("Softmax", "x", axis=1)], {}, 11),
    "softmax 13 does not": ([node("Softmax", "x", axis=1)], {}, 13),
    "log-softmax 11, default axis": ([node("LogSoftmax", "x")], {}, 11),
    "hardmax 11": ([node("Hardmax", "x", axis=2)], {}, 11),
    "clip 10": ([node("Clip", "x", min=-0.5, max=0.25)], {}, 10),
    "clip 10, one side": ([node("Clip", "x", max=0.25)], {}, 10),
    "clip 11, upper only": ([node("Clip", "x _ hi")], {"hi": np.float32(0.5)}, 11),
    "reduce 11, axes as attribute": ([node("ReduceSum", "x", axes=[1, -1], keepdims=0)], {}, 11),
    "reduce 13, axes as input": ([node("ReduceSum", "x a", keepdims=0)], {"a": np.array([1, -1])}, 13),
    "mean 17, axes as attribute": ([node("ReduceMean", "x", axes=[2])], {}, 17),
    "mean 18, axes as input": ([node("ReduceMean", "x a")], {"a": np.array([2])}, 18),
    **{
        f"{op} of integers": (
            [
                node("Mul", "x k", "scaled"),
                node("Cast", "scaled", "whole", to=onnx.TensorProto.INT32),
                node(op, "whole", "found", axes=[1]),
                node("Cast", "found", to=onnx.TensorProto.FLOAT),
            ],
            {"k": np.float32(9)},
            13,
        )
        for op in ("ReduceMean", "ReduceL2")
    },
    "squeeze 11": ([node("ReduceMax", "x", "t", axes=[1]), node("Squeeze", "t", axes=[1])], {}, 11),
    "unsqueeze 11": ([node("Unsqueeze", "x", axes=[0, -1])], {}, 11),
    "pad 10": ([node("Pad", "x", pads=[0, 0, 1, 2, 0, 0, 0, 1], value=1.5)], {}, 10),
    "pad 18, axes": (
        [node("Pad", "x p v a", mode="constant")],
        {"p": np.array([1, 0, 0, 2]), "v": np.float32(2), "a": np.array([-1, 1])},
        18,
    ),
    "pad reflect": ([node("Pad", "x p", mode="reflect")], {"p": np.array([0, 0, 1, 2, 0, 0, 1, 0])}, 13),
    "slice 9": ([node("Slice", "x", starts=[1, -3], ends=[9, -1], axes=[1, 2])], {}, 9),
    "slice 13, backwards": (
        [node("Slice", "x s e a t")],
        {"s": np.array([-1]), "e": np.array([-(2**62)]), "a": np.array([3]), "t": np.array([-2])},
        13,
    ),
    "upsample 9": ([node("Upsample", "x s", mode="nearest")], {"s": np.array([1, 1, 2, 2], np.float32)}, 9),
    "resize 10, linear": ([node("Resize", "x s", mode="linear")], {"s": np.array([1, 1, 2, 1.5], np.float32)}, 10),
    "resize 13, cubic": (
        [node("Resize", "x _ s", mode="cubic")],
        {"s": np.array([1, 1, 1.5, 2], np.float32)},
        13,
    ),
    "resize 13, pytorch, integers": (
        [
            node("Cast", "x", "i", to=onnx.TensorProto.INT32),
            node("Resize", "i _ s", "r", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
            node("Cast", "r", to=onnx.TensorProto.FLOAT),
        ],
        {"s": np.array([1, 1, 3, 2], np.float32)},
        13,
    ),
    "dropout 12": ([node("Dropout", "x", "y")], {}, 12),
    "split 11, equal": ([node("Split", "x", "a b", axis=2), node("Sub", "a b")], {}, 11),
    "split 13, sizes": (
        [node("Split", "x s", "a b", axis=2), node("Concat", "b a", axis=2)],
        {"s": np.array([1, 3])},
        13,
    ),
    "topk 10": ([node("TopK", "x k", "y i", axis=2)], {"k": np.array([2])}, 10),
    "lrn": ([node("LRN", "x", size=3, alpha=0.1, beta=0.6, bias=2.0)], {}, 13),
    "instance norm": ([node("InstanceNormalization", "x s b")], {"s": f32(3), "b": f32(3)}, 13),
    "group norm 21": ([node("GroupNormalization", "x s b", num_groups=3)], {"s": f32(3), "b": f32(3)}, 21),
    "layer norm over two axes": (
        [node("LayerNormalization", "x s b", axis=2)],
        {"s": f32(4, 4), "b": f32(4, 4)},
        17,
    ),
    "conv, same upper, strided": (
        [node("Conv", "x w b", auto_pad="SAME_UPPER", strides=[2, 2])],
        {"w": f32(5, 3, 3, 3), "b": f32(5)},
        13,
    ),
    "conv, same lower": ([node("Conv", "x w", auto_pad="SAME_LOWER")], {"w": f32(5, 3, 2, 2)}, 13),
    "conv, grouped, dilated": (
        [node("Conv", "x w", group=3, dilations=[2, 1], pads=[1, 0, 1, 1])],
        {"w": f32(6, 1, 2, 3)},
        13,
    ),
    "conv transpose": (
        [node("ConvTranspose", "x w", strides=[2, 2], output_padding=[1, 0], pads=[1, 0, 0, 1])],
        {"w": f32(3, 2, 3, 3)},
        13,
    ),
    "conv transpose, same": (
        [node("ConvTranspose", "x w", strides=[2, 2], auto_pad="SAME_UPPER")],
        {"w": f32(3, 2, 3, 3)},
        13,
    ),
    "max pool, ceil": ([node("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)], {}, 13),
    "average pool, padded": (
        [node("AveragePool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)],
        {},
        13,
    ),
    "global lp pool": ([node("GlobalLpPool", "x", p=3)], {}, 13),
    "einsum": ([node("Einsum", "x w", equation="bchw,dw->bdhc")], {"w": f32(5, 4)}, 13),
    "einsum, ellipsis and sum": ([node("Einsum", "x w", equation="...hw,wk->...k")], {"w": f32(4, 2)}, 13),
    "space to depth": ([node("SpaceToDepth", "x", blocksize=2)], {}, 13),
    "one-hot": (
        [node("ArgMax", "x", "i", axis=1, keepdims=0), node("OneHot", "i d v", axis=0)],
        {"d": np.array(3), "v": np.array([0.5, 2], np.float32)},
        13,
    ),
    "dequantised weight per channel": (
        [node("DequantizeLinear", "w s z", "d", axis=0), node("Conv", "x d")],
        {
            "w": RNG.integers(-128, 127, (5, 3, 1, 1)).astype(np.int8),
            "s": np.abs(f32(5)),
            "z": np.zeros(5, np.int8),
        },
        13,
    ),
}


@pytest.mark.parametrize("name", VERSIONS)
def test_versions(name: str) -> None:
    nodes, constants, opset = VERSIONS[name]
    arrays = {k: np.asarray(v) for k, v in constants.items()}
    check(model(nodes, {"x": X}, constants=arrays, opset=opset), {"x": X})


# -- recurrent operators


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_recurrent(op: str, direction: str) -> None:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    ways, steps, batch, width, hidden = 1 + (direction == "bidirectional"), 4, 2, 3, 5
    constants: dict[str, NDArray[Any]] = {
        "w": f32(ways, gates * hidden, width),
        "r": f32(ways, gates * hidden, hidden),
        "b": f32(ways, 2 * gates * hidden),
        "h": f32(ways, batch, hidden),
    }
    inputs, outputs = "x w r b _ h", "y last"
    if op == "LSTM":
        constants |= {"c": f32(ways, batch, hidden), "p": f32(ways, 3 * hidden)}
        inputs, outputs = inputs + " c p", outputs + " cell"
    extra = {"linear_before_reset": 1} if op == "GRU" else {}
    proto = model(
        [node(op, inputs, outputs, hidden_size=hidden, direction=direction, **extra)],
        {"x": f32(steps, batch, width)},
        outputs.split(),
        constants=constants,
        opset=14,
    )
    check(proto, {"x": f32(steps, batch, width)})


RECURRENT_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "LSTM clipped": ("LSTM", {"clip": 0.4}),
    "LSTM of coupled gates": ("LSTM", {"input_forget": 1}),
    "LSTM of other activations": (
        "LSTM",
        {"activations": ["HardSigmoid", "Elu", "Softsign"], "activation_alpha": [0.3]},
    ),
    "GRU clipped": ("GRU", {"clip": 0.4, "linear_before_reset": 1}),
    "GRU of other activations": ("GRU", {"activations": ["Sigmoid", "Softplus"]}),
    "RNN of a line": ("RNN", {"activations": ["Affine"], "activation_alpha": [0.3], "activation_beta": [0.1]}),
    "RNN of a scaled tangent": (
        "RNN",
        {"activations": ["ScaledTanh"], "activation_alpha": [0.3], "activation_beta": [0.7]},
    ),
}


@pytest.mark.parametrize("lengths", [None, [4, 2, 0]])
@pytest.mark.parametrize("name", RECURRENT_OPTIONS)
def test_options_of_recurrent_operators(name: str, lengths: list[int] | None) -> None:
    """Sequences of several lengths too, which come at run time."""
    (op, extra), hidden, ways = RECURRENT_OPTIONS[name], 5, 2
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    extra = {**extra, "direction": "bidirectional"}
    extra |= {key: extra[key] * 2 for key in extra if key.startswith("activation")}
    constants = {"w": f32(ways, gates * hidden, 3), "r": f32(ways, gates * hidden, hidden)}
    constants |= {"b": f32(ways, 2 * gates * hidden), "h": f32(ways, 3, hidden)}
    outputs = "y last cell" if op == "LSTM" else "y last"
    inputs = {"x": f32(4, 3, 3)} | ({} if lengths is None else {"n": np.array(lengths, np.int32)})
    steps = "_" if lengths is None else "n"
    nodes = [node(op, f"x w r b {steps} h", outputs, hidden_size=hidden, **extra)]
    check(model(nodes, inputs, outputs.split(), constants=constants, opset=14), inputs)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
def test_integers_are_resized_as_integers(dtype: Any) -> None:
    """Not with weights truncated to whole numbers."""
    x, steps = np.array([[[[0, 10, 40, 200], [20, 33, 255, 7]]]], dtype), np.array([1, 1, 1.5, 2], np.float32)
    check(model([node("Resize", "x _ s", mode="linear")], {"x": x}, constants={"s": steps}, opset=19), {"x": x})


def test_resizing_integers_rounds_where_the_standard_does() -> None:
    x, steps = np.array([[[[0, 10, 40, 200], [20, 33, 255, 7]]]], np.uint8), np.array([1, 1, 1.5, 0.5], np.float32)
    rule: dict[str, Any] = {"mode": "linear", "antialias": 1}
    check(model([node("Resize", "x _ s", **rule)], {"x": x}, constants={"s": steps}, opset=19), {"x": x})
    signed, whole = np.array([[[[0, 10], [20, 33]]]], np.int8), np.array([1, 1, 1.5, 2], np.float32)
    proto = model([node("Resize", "x _ s", mode="cubic")], {"x": signed}, constants={"s": whole}, opset=19)
    found = evaluate(load_graph(proto), {"x": signed})["y"]
    assert found.dtype == np.int8
    assert found.reshape(-1).tolist() == [-3, 0, 6, 9, 9, 13, 19, 23, 20, 25, 32, 36]  # of the standard's evaluator


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_crops_end_at_the_edge_and_not_beyond(mode: str) -> None:
    rule: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 7.5,
    }
    constants = {"r": np.array([0, 0, 0.1, 0.2, 1, 1, 0.9, 1.2], np.float32), "s": np.array([1, 1, 4, 11])}
    x = f32(1, 1, 5, 8)
    check(model([node("Resize", "x r _ s", **rule)], {"x": x}, constants=constants, opset=19), {"x": x})


@pytest.mark.parametrize(("strides", "dilations"), [([2, 2], [1, 1]), ([3, 2], [1, 2])])
def test_lp_pools_round_up(strides: list[int], dilations: list[int]) -> None:
    x = f32(1, 2, 8, 7)
    rule: dict[str, Any] = {"strides": strides, "dilations": dilations, "ceil_mode": 1, "pads": [1, 0, 1, 1]}
    check(model([node("LpPool", "x", kernel_shape=[3, 2], p=3, **rule)], {"x": x}, opset=22), {"x": x})


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("extents", [(7,), (7, 8), (4, 5, 6)])
def test_max_pools_say_where(extents: tuple[int, ...], order: int) -> None:
    """Counted through the whole input; where elements are equal, the first one."""
    n, x = len(extents), np.round(f32(2, 3, *extents) * 2)
    rule: dict[str, Any] = {
        "kernel_shape": [3, 2, 2][:n],
        "strides": [2, 1, 2][:n],
        "pads": [1, 0, 1][:n] + [0, 1, 1][:n],
    }
    nodes = [node("MaxPool", "x", "y at", storage_order=order, **rule)]
    check(model(nodes, {"x": x}, ["y", "at"], opset=22), {"x": x})


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("batch", [1, 2])
def test_affine_grids(batch: int, aligned: int) -> None:
    for sizes in ([batch, 2, 3, 4], [batch, 2, 3, 4, 2]):
        count = len(sizes) - 2
        theta = f32(batch, count, count + 1)
        nodes = [node("AffineGrid", "t s", align_corners=aligned)]
        check(model(nodes, {"t": theta}, constants={"s": np.array(sizes)}, opset=20), {"t": theta})
    with pytest.raises(FileFormatError, match="theta and size do not fit"):
        load_graph(
            model([node("AffineGrid", "t s")], {"t": f32(1, 2, 3)}, constants={"s": np.array([1, 2, 3])}, opset=20)
        )


def test_group_normalization_of_its_first_version() -> None:
    """Scale and bias per group; deprecated in that version, never removed."""
    x, constants = f32(2, 4, 5), {"s": f32(2), "b": f32(2)}
    check(model([node("GroupNormalization", "x s b", num_groups=2)], {"x": x}, constants=constants, opset=18), {"x": x})
    with pytest.raises(FileFormatError, match="does not exist any more"):
        load_graph(
            model([node("Scatter", "x i u")], {"x": f32(3)}, constants={"i": np.array([1]), "u": f32(1)}, opset=13)
        )


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_statistics_of_layer_normalization_are_f32(dtype: Any) -> None:
    x, scale = f32(2, 5).astype(dtype), f32(5).astype(dtype)
    nodes = [node("LayerNormalization", "x s", "y mean inverse")]
    check(model(nodes, {"x": x}, ["mean", "inverse"], constants={"s": scale}), {"x": x})


@pytest.mark.parametrize("exponent", [np.float64, np.int64, np.int32])
def test_powers_of_other_types_keep_their_digits(exponent: Any) -> None:
    x, e = np.array([1 + 2**-23, -1, 0.5], np.float32), np.array([16777217, 16777219, 3]).astype(exponent)
    check(model([node("Pow", "x e")], {"x": x, "e": e}), {"x": x, "e": e})


def test_attention_scaled_by_zero_is_the_mean() -> None:
    q, k, v = f32(1, 1, 2, 4), f32(1, 1, 3, 4), f32(1, 1, 3, 5)
    proto = model([node("Attention", "q k v", scale=0.0)], {"q": q, "k": k, "v": v}, opset=23)
    found = evaluate(load_graph(proto), {"q": q, "k": k, "v": v})["y"]
    np.testing.assert_allclose(found, np.broadcast_to(v.mean(axis=2, keepdims=True), found.shape), rtol=1e-5)


# -- com.microsoft

HIDDEN = f32(2, 5, 8)
MICROSOFT: dict[str, tuple[list[Any], Arrays]] = {
    "Gelu": ([node("Gelu", "x", domain="com.microsoft")], {}),
    "QuickGelu": ([node("QuickGelu", "x", domain="com.microsoft", alpha=1.5)], {}),
    "FastGelu": ([node("FastGelu", "x b", domain="com.microsoft")], {"b": f32(8)}),
    "BiasGelu": ([node("BiasGelu", "x b", domain="com.microsoft")], {"b": f32(8)}),
    "FusedMatMul": (
        [node("FusedMatMul", "x w", domain="com.microsoft", transB=1, alpha=0.3)],
        {"w": f32(3, 8)},
    ),
    "LayerNormalization": ([node("LayerNormalization", "x s b", epsilon=1e-6)], {"s": f32(8), "b": f32(8)}),
    "SimplifiedLayerNormalization": ([node("SimplifiedLayerNormalization", "x s", epsilon=1e-6)], {"s": f32(8)}),
    "SkipLayerNormalization": (
        [node("SkipLayerNormalization", "x k s b e", "y _ _ t", domain="com.microsoft"), node("Add", "y t", "z")],
        {"k": f32(2, 5, 8), "s": f32(8), "b": f32(8), "e": f32(8)},
    ),
    "SkipSimplifiedLayerNormalization": (
        [node("SkipSimplifiedLayerNormalization", "x k s", domain="com.microsoft")],
        {"k": f32(2, 5, 8), "s": f32(8)},
    ),
    "MultiHeadAttention": (
        [node("MultiHeadAttention", "x k v", domain="com.microsoft", num_heads=2)],
        {"k": f32(2, 6, 8), "v": f32(2, 6, 8)},
    ),
    "RotaryEmbedding": (
        [node("RotaryEmbedding", "x p c s", domain="com.microsoft", num_heads=2)],
        {"p": np.array([[0, 1, 2, 3, 4], [2, 3, 4, 5, 6]]), "c": f32(9, 2), "s": f32(9, 2)},
    ),
    "RotaryEmbedding, interleaved": (
        [node("RotaryEmbedding", "x p c s", domain="com.microsoft", num_heads=2, interleaved=1)],
        {"p": np.array([3]), "c": f32(9, 2), "s": f32(9, 2)},
    ),
    "DynamicQuantizeMatMul": (
        [node("DynamicQuantizeMatMul", "x w s z", domain="com.microsoft")],
        {
            "w": RNG.integers(0, 255, (8, 4)).astype(np.uint8),
            "s": np.array([0.02], np.float32),
            "z": np.array([120], np.uint8),
        },
    ),
}


@pytest.mark.parametrize("name", MICROSOFT)
def test_microsoft(name: str) -> None:
    nodes, constants = MICROSOFT[name]
    for made in nodes:
        made.output[:] = ["" if o == "_" else o for o in made.output]
    check(model(nodes, {"x": HIDDEN}, [nodes[-1].output[0]], constants=constants), {"x": HIDDEN})


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8, np.bool_, np.float32])
def test_an_attention_mask_shorter_than_the_keys(dtype: type[Any]) -> None:
    """The keys behind it are masked, whatever the mask's type."""
    mask = np.array([[1, 0, 1], [0, 1, 1]], dtype)
    rng = np.random.default_rng(7)
    drawn = {name: rng.standard_normal((1, 1, rows, 4), np.float32) for name, rows in (("q", 2), ("k", 5), ("v", 5))}
    arrays: dict[str, Any] = {**drawn, "m": mask}
    graph = load_graph(model([node("Attention", "q k v m")], arrays, opset=24))
    scores = arrays["q"][0, 0] @ arrays["k"][0, 0, :3].T / 2
    scores = np.where(mask, scores, -np.inf) if dtype is np.bool_ else scores + mask.astype(np.float32)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = weights / weights.sum(axis=1, keepdims=True) @ arrays["v"][0, 0, :3]
    np.testing.assert_allclose(evaluate(graph, arrays)["y"][0, 0], expected, rtol=1e-5)
    np.testing.assert_allclose(
        superkernel.compile(graph, threads=2).run(arrays).outputs["y"][0, 0], expected, rtol=1e-5
    )


def test_embed_layer_normalization() -> None:
    constants = {"w": f32(20, 8), "p": f32(6, 8), "k": f32(2, 8), "g": f32(8), "b": f32(8)}
    inputs = {"ids": RNG.integers(0, 20, (2, 5)).astype(np.int32), "seg": RNG.integers(0, 2, (2, 5)).astype(np.int32)}
    made = node("EmbedLayerNormalization", "ids seg w p k g b", "y m", domain="com.microsoft", epsilon=1e-5)
    check(model([made], inputs, ["y"], constants=constants), inputs)


# -- shapes


def test_shape_arithmetic_disappears() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n zero1", "n1"),
        node("Concat", "n1 minus", "target", axis=0),
        node("Reshape", "x target", "flat"),
        node("ConstantOfShape", "target0", "zeros"),
        node("Range", "a b c", "r"),
        node("Add", "flat r", "t"),
        node("Add", "t zeros"),
    ]
    constants = {
        "zero": np.array(0),
        "zero1": np.array([0]),
        "minus": np.array([-1]),
        "target0": np.array([1, 24]),
        "a": np.float32(0),
        "b": np.float32(24),
        "c": np.float32(1),
    }
    graph = check(model(nodes, {"x": f32(2, 3, 8)}, constants=constants), {"x": f32(2, 3, 8)})
    assert [n.op for n in graph.nodes] == ["reshape", "add", "add"]
    assert graph.outputs == ("y",)


def test_slices_take_what_the_standard_says() -> None:
    """Also backwards from before the first element, where NumPy, and the evaluator of the onnx package, take nothing:
    its shape inference and onnxruntime do not."""
    bounds = range(-5, 6)
    for start, end, step in itertools.product(bounds, bounds, (-2, -1, 1, 2)):
        at = [min(max(v + 3 if v < 0 else v, low), high) for v, low, high in _limits(start, end, step)]
        want = np.arange(3.0, dtype=np.float32)[list(range(at[0], at[1], step))]
        constants = {"s": np.array([start]), "e": np.array([end]), "a": np.array([0]), "t": np.array([step])}
        proto = model([node("Slice", "x s e a t")], {"x": np.arange(3, dtype=np.float32)}, constants=constants)
        found = evaluate(load_graph(proto), {"x": np.arange(3, dtype=np.float32)})["y"]
        np.testing.assert_array_equal(found, want, f"{start}:{end}:{step}")


def _limits(start: int, end: int, step: int) -> list[tuple[int, int, int]]:
    """Start and end with the places in three elements that the standard keeps them to."""
    return [(start, 0, 2), (end, -1, 2)] if step < 0 else [(start, 0, 3), (end, 0, 3)]


def test_symmetric_places_on_elements() -> None:
    """Outputs stand at elements 1 and 3, and no rounding puts the first before its own."""
    rule = {"coordinate_transformation_mode": "half_pixel_symmetric", "mode": "nearest", "nearest_mode": "floor"}
    x = f32(1, 1, 5)
    check(
        model(
            [node("Resize", "x _ s", **rule)], {"x": x}, constants={"s": np.array([1, 1, 0.5], np.float32)}, opset=19
        ),
        {"x": x},
    )


def test_dynamic_dimensions() -> None:
    proto = model([node("Relu", "x")], {"x": f32(2, 3)}, shapes={"x": ["batch", 3]})
    with pytest.raises(UnsupportedError, match="dynamic dimension") as caught:
        load_graph(proto)
    assert "dims={'batch': n}" in str(caught.value)
    assert load_graph(proto, dims={"batch": 5}).inputs["x"].shape == (5, 3)
    assert load_graph(proto, shapes={"x": (4, 3)}).inputs["x"].shape == (4, 3)
    with pytest.raises(InputError, match=r"no dimension 'bach'; expected batch .*did you mean 'batch'") as unknown:
        load_graph(proto, dims={"batch": 5, "bach": 5, "n": 1}, shapes={"nix": (1,)})
    assert [v.message.split()[-1] for v in unknown.value.violations] == ["'nix'", "'bach'", "'n'"]
    with pytest.raises(InputError, match="no dimension 'n'; expected none"):
        load_graph(model([node("Relu", "x")], {"x": f32(2, 3)}), dims={"n": 3})
    with pytest.raises(InputError, match="contradicts the file"):
        load_graph(proto, shapes={"x": (4, 5)})
    with pytest.raises(InputError, match="another rank"):
        load_graph(proto, shapes={"x": (4,)})
    with pytest.raises(InputError, match="no input 'z'"):
        load_graph(proto, shapes={"z": (4,)})


def test_all_dynamic_dimensions_at_once() -> None:
    proto = model([node("Add", "x z")], {"x": f32(2, 3), "z": f32(2, 3)}, shapes={"x": ["n", 3], "z": [None, 3]})
    with pytest.raises(UnsupportedError) as caught:
        load_graph(proto)
    assert len(caught.value.violations) == 2


def test_fixed_inputs() -> None:
    proto = model(
        [node("Mul", "s two", "t"), node("Reshape", "x t")],
        {"x": f32(2, 6), "s": np.array([2, 1])},
        constants={"two": np.array([2, 3])},
    )
    with pytest.raises(StaticValueError, match="constants=") as caught:
        load_graph(proto)
    assert caught.value.inputs == ("s",)
    graph = load_graph(proto, constants={"s": np.array([2, 1])})
    assert list(graph.inputs) == ["x"]
    assert graph.types["y"].shape == (4, 3)
    with pytest.raises(InputError, match="another element type"):
        load_graph(proto, constants={"s": np.array([2, 1], np.int32)})
    with pytest.raises(InputError, match="no input"):
        load_graph(proto, constants={"nobody": np.array([2, 1])})


def test_all_refused_nodes_at_once() -> None:
    """Two that have nothing to do with one another, one that reads a refused one's result; none that only follow."""
    proto = model(
        [
            node("Relu", "x", "a"),
            node("Reshape", "a s", "b", name="first"),
            node("Dropout", "a ratio training", "c", name="second"),
            node("Relu", "c", "d"),
            node("Dropout", "d ratio training", "e", name="third"),
            node("Relu", "b", "lost"),
            node("Shape", "lost", "size"),
            node("Expand", "e size", "follows"),
            node("Add", "e e", "y"),
        ],
        {"x": f32(2, 6), "s": np.array([4, 3])},
        constants={"ratio": np.float32(0.5), "training": np.array(True)},
    )
    with pytest.raises(UnsupportedError) as caught:
        load_graph(proto)
    places = [v.location.partition(",")[0] for v in caught.value.violations]
    assert places == ["node 'first' (Reshape)", "node 'second' (Dropout)", "node 'third' (Dropout)"]


def test_all_values_that_must_be_known_at_once() -> None:
    proto = model(
        [node("Reshape", "x s", "a"), node("Reshape", "x t", "b"), node("Add", "a b")],
        {"x": f32(2, 6), "s": np.array([4, 3]), "t": np.array([4, 3])},
    )
    with pytest.raises(StaticValueError) as caught:
        load_graph(proto)
    assert caught.value.inputs == ("s", "t")
    assert len(caught.value.violations) == 2
    given = {name: np.array([4, 3]) for name in caught.value.inputs}
    assert load_graph(proto, constants=given).types["y"].shape == (4, 3)


def test_initialisers_may_be_replaced() -> None:
    proto = model([node("Add", "x c")], {"x": f32(2)}, constants={"c": np.ones(2, np.float32)})
    graph = load_graph(proto, constants={"c": np.full(2, 5, np.float32)})
    np.testing.assert_array_equal(graph.constants["c"], [5, 5])


def test_large_constants_are_not_blown_up() -> None:
    nodes = [node("Expand", "c s", "e"), node("Add", "x e")]
    proto = model(nodes, {"x": f32(1)}, constants={"c": f32(1), "s": np.array([1024, 1024])})
    assert [n.op for n in load_graph(proto).nodes] == ["expand", "add"]


# -- outputs, functions, control flow


def test_outputs_keep_their_names() -> None:
    nodes = [node("Identity", "x", "copy"), node("Constant", "", "k", value_floats=[1.0, 2.0]), node("Relu", "x", "r")]
    nodes += [node("Identity", "r", "r2")]
    graph = check(model(nodes, {"x": f32(2)}, ["copy", "k", "r", "r2"]), {"x": f32(2)})
    assert graph.outputs == ("copy", "k", "r", "r2")


def test_initialiser_as_output() -> None:
    proto = model([node("Relu", "x")], {"x": f32(2)}, ["y", "c"], constants={"c": f32(3)})
    graph = load_graph(proto)
    assert graph.outputs == ("y", "c")
    assert "c" in graph.constants


def test_local_functions_with_attributes() -> None:
    leaky = node("LeakyRelu", "a", "t")
    leaky.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    inner = helper.make_function("own", "Inner", ["a"], ["t"], [leaky], [helper.make_opsetid("", 17)], ["slope"])
    call = node("Inner", "p", "q", domain="own")
    call.attribute.append(onnx.AttributeProto(name="slope", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    body = [call, node("Add", "q p", "r")]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    outer = helper.make_function("own", "Outer", ["p"], ["r"], body, imports, ["slope"])
    nodes = [node("Outer", "x", "t", domain="own", slope=0.3), node("Outer", "t", "y", domain="own", slope=0.7)]
    graph = check(model(nodes, {"x": f32(7)}, functions=[inner, outer]), {"x": f32(7)})
    assert [round(float(str(n.attrs["alpha"])), 3) for n in graph.nodes if n.op == "leaky_relu"] == [0.3, 0.7]


def test_function_that_calls_itself() -> None:
    own = [helper.make_opsetid("own", 1)]
    endless = helper.make_function("own", "F", ["a"], ["b"], [node("F", "a", "b", domain="own")], own)
    with pytest.raises(FileFormatError, match="without end"):
        load_graph(model([node("F", "x", domain="own")], {"x": f32(2)}, functions=[endless]))


# -- refusals


def test_unknown_operators_are_listed_at_once() -> None:
    nodes = [
        node("MaxRoiPool", "x x", "a"),
        node("Magic", "a", "b", domain="own"),
        node("Multinomial", "b", "c", name="d1"),
    ]
    nodes += [node("Multinomial", "c", "y", name="d2")]
    with pytest.raises(UnsupportedError) as caught:
        load_graph(model(nodes, {"x": f32(1, 2, 4)}))
    text = str(caught.value)
    assert len(caught.value.violations) == 3
    assert "Multinomial" in text
    assert "2 nodes: 'd1', 'd2'" in text
    assert "own::Magic" in text


def test_strings_are_refused() -> None:
    proto = model([node("Identity", "x")], {"x": f32(2)})
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.STRING
    with pytest.raises(UnsupportedError, match="STRING"):
        load_graph(proto)


def test_errors_name_the_onnx_node() -> None:
    proto = model([node("Add", "x c", name="broken")], {"x": f32(2, 3)}, constants={"c": f32(4)})
    with pytest.raises(SuperKernelError, match=r"node 'broken' \(Add\)"):
        load_graph(proto)


def test_old_operator_sets_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="too old"):
        load_graph(model([node("Relu", "x")], {"x": f32(2)}, opset=6))


def test_training_dropout_is_refused() -> None:
    constants = {"r": np.float32(0.5), "t": np.array(True)}
    with pytest.raises(UnsupportedError, match="training"):
        load_graph(model([node("Dropout", "x r t")], {"x": f32(2)}, constants=constants))


# -- files


def test_file_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model([node("Relu", "x")], {"x": f32(2)}), str(path))
    assert load_graph(path).nodes[0].op == "relu"
    with pytest.raises(InputError, match="no such file"):
        load_graph(tmp_path / "none.onnx")


def test_external_data(tmp_path: Path) -> None:
    weight = f32(64, 64)
    proto = model([node("MatMul", "x w")], {"x": f32(2, 64)}, constants={"w": weight})
    path = tmp_path / "m.onnx"
    onnx.save(proto, str(path), save_as_external_data=True, location="w.bin", size_threshold=16)
    np.testing.assert_array_equal(load_graph(path).constants["w"], weight)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(FileFormatError):
        load_graph(path)


def test_corrupt_files_raise_typed_errors(tmp_path: Path) -> None:
    """Truncated at every eighth byte and with single bytes changed: never anything but an error of the package (or a
    graph, where the byte did not matter)."""
    whole = model(
        [node("MatMul", "x w", "t"), node("Softmax", "t", axis=1)], {"x": f32(2, 3)}, constants={"w": f32(3, 4)}
    ).SerializeToString()
    path = tmp_path / "m.onnx"
    variants = [whole[:n] for n in range(0, len(whole), 8)]
    for at in RNG.integers(0, len(whole), 120):
        changed = bytearray(whole)
        changed[at] ^= int(RNG.integers(1, 256))
        variants.append(bytes(changed))
    refused = 0
    for variant in variants:
        path.write_bytes(variant)
        try:
            load_graph(path)
        except SuperKernelError:
            refused += 1
    assert refused > len(whole) // 16


def test_not_onnx_at_all(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for content in (b"", b"\x00" * 100, b"PK\x03\x04 a zip file", b"\xff" * 64):
        path.write_bytes(content)
        with pytest.raises(FileFormatError):
            load_graph(path)


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MachineError, match=r"superkernel-compiler\[onnx\]"):
        load_graph("m.onnx")


def test_lowerings_are_of_operators_that_exist() -> None:
    """A name that the standard does not know (in any version) is a typing error in the table."""
    every = {(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history()}
    own = {("", "SimplifiedLayerNormalization")}
    assert not [k for k in lowered_names() if k[0] == "" and k not in every | own]
    assert len(lowered_names()) > 150


def test_element_types() -> None:
    for dtype in (DType.F64, DType.F16, DType.BF16, DType.I8, DType.U32, DType.BOOL):
        array = np.zeros((2, 2), dtype.numpy)
        graph = load_graph(model([node("Identity", "x")], {"x": array}, constants={"unused": array}))
        assert graph.inputs["x"].dtype is dtype


@pytest.mark.parametrize(("zeros", "kept"), [((0, 0), 0), ((0, 3), 1), ((5, 0), 1), ((5, 3), 2)])
def test_zero_points_of_zero_are_none(zeros: tuple[int, int], kept: int) -> None:
    b = RNG.integers(-128, 128, (5, 6)).astype(np.int8)
    constants = {"b": b, "za": np.int8(zeros[0]), "zb": np.full(6, zeros[1], np.int8)}
    proto = model([node("MatMulInteger", "a b za zb")], {"a": b.T[:4].copy()[:, :5]}, constants=constants)
    graph = check(proto, {"a": RNG.integers(-128, 128, (4, 5)).astype(np.int8)})
    (product,) = (n for n in graph.nodes if n.op == "matmul_integer")
    assert sum(1 for name in product.inputs[2:] if name) == kept


# -- what the standard demands


def well_formed() -> Any:
    """A model of operators with attributes of several kinds, branches, a function and declarations."""
    body = [node("Softmax", "a", "b", axis=1), node("Add", "b b", "c")]
    function = helper.make_function("own", "Twice", ["a"], ["c"], body, [helper.make_opsetid("", 17)])
    nodes = [
        node("Conv", "x w", "t", name="conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Flatten", "t", "u", axis=1),
        node("Twice", "u", "v", domain="own"),
        node("If", "cond", "y", name="choice", then_branch=branch("Relu"), else_branch=branch("Neg")),
        node("Split", "u parts", "p q", name="halves", axis=1),
    ]
    constants = {"w": f32(2, 1, 3, 3), "cond": np.array(True), "parts": np.array([20, 12])}
    made = model(nodes, {"x": f32(1, 1, 4, 4)}, ("y", "p", "q"), constants=constants, functions=[function])
    for info, shape in zip(made.graph.output, ([1, 32], [1, 20], ["n", 12]), strict=True):
        info.CopyFrom(helper.make_tensor_value_info(info.name, onnx.TensorProto.FLOAT, shape))
    made.graph.value_info.append(helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, [1, 2, 4, 4]))
    return made


def branch(op: str) -> Any:
    return helper.make_graph([node(op, "v", "w0")], "branch", [], [helper.make_empty_tensor_value_info("w0")])


def _attribute(proto: Any, at: int, name: str) -> Any:
    return next(a for a in proto.graph.node[at].attribute if a.name == name)


ILL_FORMED = {
    "misspelt": (lambda m: setattr(_attribute(m, 1, "axis"), "name", "axys"), r"no such attribute.*axys.*axis"),
    "misspelt in a function": (
        lambda m: setattr(m.functions[0].node[0].attribute[0], "name", "axe"),
        r"function 'Twice', node 'b' \(Softmax\): no such attribute",
    ),
    "misspelt in a branch": (
        lambda m: _attribute(m, 3, "then_branch").g.node[0].attribute.append(helper.make_attribute("alpha", 1.0)),
        r"node 'choice' \(If\), node 'w0' \(Relu\): no such attribute; expected none; found alpha",
    ),
    "another kind": (
        lambda m: m.graph.node[1].attribute[0].CopyFrom(helper.make_attribute("axis", 1.0)),
        r"\(Flatten\), attribute 'axis': an attribute of another type; expected INT; found FLOAT",
    ),
    "an axis behind the last": (
        lambda m: setattr(_attribute(m, 1, "axis"), "i", 5),
        r"\(Flatten\): axis out of range; expected -4..4; found 5",
    ),
    "missing": (lambda m: m.graph.node[3].attribute.pop(), r"attribute '(then|else)_branch' is missing"),
    "too many inputs": (lambda m: m.graph.node[1].input.append("u"), r"another number of inputs"),
    "too few inputs": (lambda m: m.graph.node[0].input.pop(), r"another number of inputs; expected 2 to 3; found 1"),
    "too many outputs": (lambda m: m.graph.node[1].output.append("z"), r"another number of outputs"),
    "two values": (lambda m: m.graph.node[4].output.__setitem__(1, "p"), r"'halves' \(Split\): a second value"),
    "two inputs": (lambda m: m.graph.input.append(m.graph.input[0]), "two graph inputs of the same name; found x"),
    "negative initialiser": (lambda m: m.graph.initializer[0].dims.__setitem__(0, -1), "initialiser 'w': a negative"),
    "another shape": (
        lambda m: setattr(m.graph.value_info[0].type.tensor_type.shape.dim[1], "dim_value", 3),
        r"value 't': declared with another shape; expected \[1, 2, 4, 4\]; found \[1, 3, 4, 4\]",
    ),
    "another rank": (lambda m: m.graph.output[0].type.tensor_type.shape.dim.pop(), r"output 'y': declared with anoth"),
    "another type": (
        lambda m: setattr(m.graph.output[1].type.tensor_type, "elem_type", onnx.TensorProto.INT32),
        r"output 'p': declared with another element type; expected f32; found INT32",
    ),
    "negative declaration": (
        lambda m: setattr(m.graph.output[1].type.tensor_type.shape.dim[0], "dim_value", -4),
        "value 'p': a negative size",
    ),
    "no such operator set": (lambda m: setattr(m.opset_import[0], "version", 1 << 40), "operator set is newer"),
    "no such format": (lambda m: setattr(m, "ir_version", 1 << 20), "format is newer than the installed onnx"),
}


def test_a_well_formed_model_loads() -> None:
    proto = well_formed()
    onnx.checker.check_model(proto, full_check=True)
    assert set(load_graph(proto).outputs) == {"y", "p", "q"}


@pytest.mark.parametrize("name", ILL_FORMED)
def test_ill_formed_models_are_refused(name: str) -> None:
    """Each as the standard's own checker does, with the place and what is wrong."""
    damage, message = ILL_FORMED[name]
    proto = well_formed()
    damage(proto)
    refused = (onnx.checker.ValidationError, onnx.shape_inference.InferenceError)
    with pytest.raises(refused):
        onnx.checker.check_model(proto, full_check=True)
    with pytest.raises((FileFormatError, UnsupportedError), match=message):
        load_graph(proto)


def test_all_that_is_ill_formed_is_said_at_once() -> None:
    proto = well_formed()
    for name in ("misspelt", "missing", "two values", "negative initialiser"):
        ILL_FORMED[name][0](proto)
    with pytest.raises(FileFormatError) as caught:
        load_graph(proto)
    assert len(caught.value.violations) == 4


def test_operators_that_are_gone_are_refused() -> None:
    proto = model([node("Upsample", "x s", mode="nearest")], {"x": f32(1, 1, 2, 2)}, constants={"s": np.ones(4, "f4")})
    with pytest.raises(FileFormatError, match="does not exist any more"):
        load_graph(proto)


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


ONE_OUTPUT = helper.make_graph([node("Relu", "x", "w0")], "one", [], branch("Relu").output)
CONTRADICTIONS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "Expand to a negative size": (node("Expand", "x s"), {"s": ints(-1, -1)}, "not a shape to expand to"),
    "Expand to another size": (node("Expand", "x s"), {"s": ints(7, 7)}, "not a shape to expand to"),
    "a constant of a negative size": (node("ConstantOfShape", "s"), {"s": ints(-1, 2)}, "not the shape and value"),
    "a constant beyond memory": (node("ConstantOfShape", "s"), {"s": ints(1 << 40, 1 << 40)}, "too large"),
    "an axis twice": (node("Unsqueeze", "x s"), {"s": ints(1, 1)}, "an axis is given twice"),
    "Resize to few sizes": (node("Resize", "x _ _ s"), {"s": ints()}, "not what to resize to"),
    "Resize without end": (node("Resize", "x _ s"), {"s": np.full(2, np.inf, np.float32)}, "not what to resize to"),
    "no k": (node("TopK", "x s", "y z"), {"s": ints()}, "not a single element"),
    "no depth": (node("OneHot", "s d v"), {"s": ints(1), "d": ints(), "v": ints(0, 1)}, "not a single element"),
    "steps of 0": (
        node("Range", "a b c"), {"a": np.float32(0), "b": np.float32(5), "c": np.float32(0)}, "not a range"
    ),
    "a range to NaN": (
        node("Range", "a b c"), {"a": np.float32(0), "b": np.float32(np.nan), "c": np.float32(1)}, "not a range"
    ),
    "a range beyond memory": (
        node("Range", "a b c"), {"a": np.int64(0), "b": np.int64(1 << 60), "c": np.int64(1)}, "too large"
    ),
    "pads of other axes": (
        node("Pad", "x p _ a"), {"p": ints(1, 1, 1), "a": ints(1)}, "not two pads per axis|rules"
    ),
    "windows of other axes": (
        node("Conv", "q w", strides=[1], auto_pad="SAME_UPPER"), {"q": f32(1, 2, 5, 5), "w": f32(3, 2, 3, 3)},
        "axes|rules",
    ),
    "a sequence without a batch": (
        node("GRU", "x w r", hidden_size=4), {"w": f32(1, 12, 3), "r": f32(1, 12, 4)}, "node 'n' .*(axes|rules)"
    ),
    "branches of other lengths": (
        node("If", "c", then_branch=ONE_OUTPUT, else_branch=helper.make_graph([], "none", [], [])), {},
        "another number of outputs",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_what_contradicts_itself_is_refused_by_its_node(name: str) -> None:
    """What the standard's checker does not see: values, and ranks of operands."""
    wrong, constants, text = CONTRADICTIONS[name]
    wrong.name = "n"
    inputs: Arrays = {"x": f32(2, 3), "c": np.array(True)}
    with pytest.raises((FileFormatError, UnsupportedError), match=text) as found:
        load_graph(model([wrong], inputs, list(wrong.output), constants=constants, opset=18))
    assert all(v.location.startswith("node 'n'") for v in found.value.violations)


def test_an_element_type_that_is_none() -> None:
    proto = model([node("Relu", "x")], {"x": f32(2, 3)})
    proto.graph.output[0].type.tensor_type.elem_type = 92
    with pytest.raises(FileFormatError, match=r"another element type.*found 92"):
        load_graph(proto)


def test_external_data_under_a_name_that_is_too_long(tmp_path: Path) -> None:
    proto = model([node("Add", "x w")], {"x": f32(2, 3)}, constants={"w": f32(2, 3)})
    onnx.external_data_helper.set_external_data(proto.graph.initializer[0], "x" * 5000)
    proto.graph.initializer[0].ClearField("raw_data")
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(FileFormatError, match="not a readable ONNX file"):
        load_graph(tmp_path / "m.onnx")


# -- sizes without an end


def empty(*shape: int) -> NDArray[np.float32]:
    """Of a shape that no memory would hold."""
    return np.broadcast_to(np.float32(0), shape)


def test_ranges_of_large_integers_are_exact() -> None:
    ends = {"a": np.int64(2**62 + 1), "b": np.int64(2**62 + 6), "d": np.int64(2)}
    graph = load_graph(model([node("Range", "a b d")], {}, constants=ends))
    assert evaluate(graph, {})["y"].tolist() == [2**62 + 1, 2**62 + 3, 2**62 + 5]


@pytest.mark.timeout(60)
def test_sizes_without_end_end() -> None:
    """Windows as large as their input, and vectors of a terabyte, of which nobody has to look at each element."""
    load_graph(model([node("GlobalMaxPool", "x")], {"x": empty(1, 1, 2**40, 3)}))
    row = [node("Cast", "x", "s", to=onnx.TensorProto.INT64), node("Slice", "d s s")]
    with pytest.raises(UnsupportedError, match="known at compile time"):
        load_graph(model(row, {"x": empty(2**40)}, constants={"d": np.ones((4, 4), np.float32)}))
    with pytest.raises(SuperKernelError, match="bad p"):
        load_graph(model([node("LpPool", "x", kernel_shape=[2], p=2**62)], {"x": empty(1, 1, 4)}))


@pytest.mark.parametrize(
    ("steps", "ways", "direction", "said"),
    [
        (2, 3, "bidirectional", "number of directions"),
        (2, 2, "forward", "number of directions"),
        (0, 1, "reverse", "a sequence of no elements"),
    ],
)
def test_recurrences_of_other_sizes_are_refused(steps: int, ways: int, direction: str, said: str) -> None:
    weights = {"w": np.ones((ways, 9, 4), np.float32), "r": np.ones((ways, 9, 3), np.float32)}
    made = node("GRU", "x w r", hidden_size=3, direction=direction)
    with pytest.raises(SuperKernelError, match=f"GRU.*{said}"):
        load_graph(model([made], {"x": empty(steps, 1, 4)}, constants=weights))
