"""RoiAlign, DeformConv and MaxUnpool of ONNX models against the standard's own reference, with whatever regions,
offsets and places."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx_models import check, f32, helper, model, node, onnxruntime
from seeds import seeds

import superkernel as sk
from superkernel.core.errors import FileFormatError, SuperKernelError, UnsupportedError
from superkernel.frontends import load_graph
from superkernel.reference import evaluate

reference = pytest.importorskip("onnx.reference")

Feed = dict[str, NDArray[Any]]


def against_reference(proto: Any, feed: Feed, *, compiled: bool = False) -> None:
    """The same as the standard's reference has it."""
    graph = load_graph(proto)
    given = {name: feed[name] for name in graph.inputs}
    (want,) = reference.ReferenceEvaluator(proto).run(None, feed)
    found = [evaluate(graph, given)["y"], *([sk.compile(graph, threads=2).run(given).outputs["y"]] if compiled else [])]
    for each in found:
        assert each.dtype == want.dtype
        np.testing.assert_allclose(each, want, rtol=1e-3, atol=1e-4)


def regions(rng: np.random.Generator, count: int, scale: float) -> NDArray[np.float32]:
    """Boxes of all kinds: within an image, larger than it, outside, without a size, the wrong way round."""
    corner = rng.uniform(-8, 14, (count, 2))
    size = rng.choice([0, 1, 5, 20, -3, 60], (count, 2)) * rng.uniform(0.2, 1, (count, 2))
    boxes = np.concatenate([corner, corner + size], 1) / scale
    return (np.round(boxes) if rng.random() < 0.3 else boxes).astype(np.float32)


@pytest.mark.parametrize("samples", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("seed", seeds(3))
def test_regions(seed: int, mode: str, samples: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(4):
        (n, c, h, w), count = (int(rng.integers(1, most)) for most in (4, 5, 9, 12)), int(rng.integers(0, 6))
        scale = float(rng.choice([1, 0.5, 0.25, 1.7]))
        feed: Feed = {"x": rng.standard_normal((n, c, h, w)).astype(np.float32), "i": rng.integers(0, n, count)}
        known = {"r": regions(rng, count, scale)}
        if mode == "avg" or samples:
            feed, known = {**feed, **known}, {}
        align = node(
            "RoiAlign", "x r i", mode=mode, sampling_ratio=samples, spatial_scale=scale,
            output_height=int(rng.integers(1, 5)), output_width=int(rng.integers(1, 5)),
            coordinate_transformation_mode=str(rng.choice(["half_pixel", "output_half_pixel"])),
        )  # fmt: skip
        proto = model([align], feed, constants=known, opset=int(rng.choice([16, 22])))
        against_reference(proto, feed, compiled=seed == 0)


def boxes_of(*boxes: tuple[float, float, float, float]) -> NDArray[np.float32]:
    return np.array(boxes, np.float32).reshape(-1, 4)


@pytest.mark.parametrize("samples", [0, 2, 3])
def test_regions_of_narrow_and_wide_floats_and_before_operator_set_16(samples: int) -> None:
    boxes, images = boxes_of((0, 0, 5, 4), (-3, 2, 40, 3)), np.array([1, 0])
    align = node("RoiAlign", "x r i", output_height=2, output_width=3, sampling_ratio=samples)
    for kind, close in ((np.float16, 2e-3), (np.float64, 1e-12)):
        feed: Feed = {"x": f32(2, 3, 6, 7).astype(kind), "r": boxes.astype(kind), "i": images}
        graph = load_graph(model([align], feed, opset=16))
        wide = {name: array.astype(np.float64) if name != "i" else array for name, array in feed.items()}
        (want,) = reference.ReferenceEvaluator(model([align], wide, opset=16)).run(None, wide)
        found = sk.compile(graph, threads=1).run(feed).outputs["y"]
        assert found.dtype == kind
        np.testing.assert_allclose(found.astype(np.float64), want, rtol=close, atol=close)
    feed = {"x": f32(2, 3, 6, 7), "r": boxes, "i": images}
    check(model([align], feed, opset=10), feed)


def test_regions_that_are_tiny_or_huge_have_the_samples_that_they_should() -> None:
    sizes = [0, 1e-30, 1e-7, 0.5, 2, 2.0001, 4.9, 10, 10.5, 11, 12.001, 100, 1e4]
    boxes = boxes_of(*((3 - s / 3, 2 - s / 2, 3 + s / 3, 2 + s / 2) for s in sizes))
    feed: Feed = {"x": f32(1, 2, 6, 7), "r": boxes[:-1], "i": np.zeros(len(boxes) - 1, np.int64)}
    for rule in ("half_pixel", "output_half_pixel"):
        align = node("RoiAlign", "x r i", output_height=2, output_width=2, coordinate_transformation_mode=rule)
        against_reference(model([align], feed, opset=16), feed)


def test_numbers_of_images_that_there_are_not_are_clamped() -> None:
    feed: Feed = {"x": f32(2, 3, 6, 7), "r": boxes_of(*[(0, 0, 5, 4)] * 4), "i": np.array([-5, 0, 1, 1 << 40])}
    for samples in (0, 2):
        align = node("RoiAlign", "x r i", output_height=2, output_width=2, sampling_ratio=samples)
        y = sk.compile(load_graph(model([align], feed, opset=16)), threads=2).run(feed).outputs["y"]
        np.testing.assert_array_equal(y[0], y[1])
        np.testing.assert_array_equal(y[2], y[3])


@pytest.mark.parametrize("samples", [0, 2])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_that_are_not_numbers_read_within_the_image(mode: str, samples: int) -> None:
    boxes = boxes_of((np.nan, 0, 5, 4), (-np.inf, 0, np.inf, 4), (0, 0, 3e38, 3e38), (0, 0, 5, 4))
    feed: Feed = {"x": f32(1, 3, 6, 7), "r": boxes, "i": np.zeros(4, np.int64)}
    align = node("RoiAlign", "x r i", output_height=2, output_width=2, sampling_ratio=samples, mode=mode)
    proto = model([align], feed, opset=16)
    if mode == "max" and not samples:
        del feed["r"]
        with pytest.raises(UnsupportedError, match="too many samples"):
            load_graph(model([align], feed, constants={"r": boxes}, opset=16))
        return
    graph = load_graph(proto)
    y = sk.compile(graph, threads=1).run(feed).outputs["y"]
    alone = {**feed, "r": boxes[3:], "i": feed["i"][3:]}
    np.testing.assert_allclose(y[3:], evaluate(load_graph(model([align], alone, opset=16)), alone)["y"], rtol=1e-5)


REGIONS: Feed = {"x": f32(2, 3, 6, 7), "r": boxes_of(*[(0, 0, 5, 4)] * 4), "i": np.zeros(4, np.int64)}
WRONG_REGIONS: dict[str, tuple[Feed, dict[str, Any], type[SuperKernelError], str]] = {
    "image of three axes": ({"x": f32(2, 3, 6)}, {}, FileFormatError, "another number of axes"),
    "boxes of three numbers": ({"r": f32(4, 3)}, {}, FileFormatError, "not regions of images"),
    "boxes of three axes": ({"r": f32(4, 1, 4)}, {}, FileFormatError, "not regions of images"),
    "fewer numbers than boxes": ({"i": np.zeros(3, np.int64)}, {}, FileFormatError, "not regions of images"),
    "numbers of two axes": ({"i": np.zeros((4, 1), np.int64)}, {}, FileFormatError, "not regions of images"),
    "no image": ({"x": f32(0, 3, 6, 7)}, {}, UnsupportedError, "images without pixels"),
    "no pixels": ({"x": f32(2, 3, 0, 7)}, {}, UnsupportedError, "images without pixels"),
    "no bins": ({}, {"output_height": 0}, FileFormatError, "no such mode or size"),
    "a median": ({}, {"mode": "median"}, FileFormatError, "no such mode or size"),
    "another rule": ({}, {"coordinate_transformation_mode": "x"}, FileFormatError, "no such mode or size"),
    "millions of samples": ({}, {"sampling_ratio": 1 << 30}, UnsupportedError, "too many samples"),
    "millions of bins": ({}, {"output_width": 1 << 31}, UnsupportedError, "too many bins"),
    "a maximum of any number": ({}, {"mode": "max"}, UnsupportedError, "how many samples a maximum has is data"),
}


@pytest.mark.parametrize("what", WRONG_REGIONS)
def test_what_are_no_regions_is_refused(what: str) -> None:
    others, attributes, error, message = WRONG_REGIONS[what]
    with pytest.raises(error, match=message) as caught:
        load_graph(model([node("RoiAlign", "x r i", **attributes)], {**REGIONS, **others}, opset=16))
    assert caught.value.violations[0].location.startswith("node 'y' (RoiAlign)")


def test_no_regions_and_no_channels() -> None:
    align = node("RoiAlign", "x r i", output_height=2, output_width=5)
    for x, count in ((f32(2, 3, 6, 7), 0), (f32(2, 0, 6, 7), 4), (f32(0, 3, 6, 7), 0)):
        feed: Feed = {"x": x, "r": REGIONS["r"][:count], "i": REGIONS["i"][:count]}
        y = sk.compile(load_graph(model([align], feed, opset=16)), threads=1).run(feed).outputs["y"]
        assert y.shape == (count, x.shape[1], 2, 5)


@pytest.mark.parametrize("seed", seeds(6))
def test_deformed_convolutions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = int(rng.integers(1, 4))
    many = int(rng.choice([1, groups]))
    n, channels, outputs = (int(rng.integers(1, 3)) for _ in range(3))
    kernel, strides, dilations = (tuple(map(int, rng.integers(1, most, 2))) for most in (4, 3, 3))
    pads = tuple(map(int, rng.integers(0, 3, 4)))
    size = [int(rng.integers(5, 9)) for _ in range(2)]
    out = [
        (s + pads[a] + pads[2 + a] - (kernel[a] - 1) * dilations[a] - 1) // strides[a] + 1 for a, s in enumerate(size)
    ]
    taps = many * kernel[0] * kernel[1]
    feed: Feed = {
        "x": rng.standard_normal((n, groups * channels, *size)).astype(np.float32),
        "w": rng.standard_normal((groups * outputs, channels, *kernel)).astype(np.float32),
        "o": (rng.choice([0, 0.5, 2, 20]) * rng.standard_normal((n, 2 * taps, *out))).astype(np.float32),
        "b": rng.standard_normal(groups * outputs).astype(np.float32),
        "m": rng.standard_normal((n, taps, *out)).astype(np.float32),
    }
    for given in ("x w o", "x w o b", "x w o _ m", "x w o b m"):
        attributes: dict[str, Any] = {
            "strides": strides,
            "pads": pads,
            "dilations": dilations,
            "group": groups,
            "offset_group": many,
        }
        deformed = node("DeformConv", given, kernel_shape=kernel, **attributes)
        taken = {name: feed[name] for name in given.split() if name != "_"}
        against_reference(model([deformed], taken, opset=19), taken, compiled=given == "x w o b m")


@pytest.mark.parametrize("axes", [1, 3])
def test_deformed_convolutions_that_stand_still_along_any_number_of_axes(axes: int) -> None:
    """Without offsets, and with whole ones, which is a convolution of a moved image."""
    x, weight = f32(2, 4, *[7, 6, 5][:axes]), f32(6, 2, *[3, 2, 2][:axes])
    sizes = [e - k + 1 for e, k in zip(x.shape[2:], weight.shape[2:], strict=True)]
    taps = int(np.prod(weight.shape[2:]))
    for move in (0, 1):
        feed: Feed = {"x": x, "w": weight, "o": np.full((2, 2 * taps * axes, *sizes), move, np.float32)}
        graph = load_graph(model([node("DeformConv", "x w o", group=2, offset_group=2)], feed, opset=19))
        index: tuple[Any, ...] = (..., *[slice(move, None)] * axes)
        moved: Feed = {"x": np.pad(x[index], [(0, 0)] * 2 + [(0, move)] * axes), "w": weight}
        conv = load_graph(model([node("Conv", "x w", group=2)], moved))
        want = evaluate(conv, moved)["y"]
        np.testing.assert_allclose(evaluate(graph, feed)["y"], want, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(sk.compile(graph, threads=2).run(feed).outputs["y"], want, rtol=1e-4, atol=1e-4)


def test_offsets_that_are_not_numbers_stay_where_they_are() -> None:
    feed: Feed = {"x": f32(1, 2, 5, 5), "w": f32(3, 2, 1, 1), "o": np.zeros((1, 2, 5, 5), np.float32)}
    graph = load_graph(model([node("DeformConv", "x w o")], feed, opset=19))
    want = evaluate(graph, feed)["y"]
    feed["o"][0, :, 2, 3], feed["o"][0, :, 4, 4], feed["o"][0, :, 0, 0] = np.nan, np.inf, 3e38
    found = sk.compile(graph, threads=2).run(feed).outputs["y"]
    keep = np.ones((5, 5), bool)
    keep[[2, 4, 0], [3, 4, 0]] = False
    np.testing.assert_allclose(found[:, :, keep], want[:, :, keep], rtol=1e-5, atol=1e-6)


DEFORMED: Feed = {"x": f32(1, 4, 5, 5), "w": f32(6, 4, 2, 2), "o": f32(1, 8, 4, 4), "b": f32(6), "m": f32(1, 4, 4, 4)}
WRONG_DEFORMED: dict[str, tuple[Feed, dict[str, Any], str]] = {
    "two axes": ({"x": f32(4, 5)}, {}, "another number of axes"),
    "offsets of three axes": ({"o": f32(8, 4, 4)}, {}, "not a kernel and its offsets"),
    "another kernel": ({}, {"kernel_shape": [3, 3]}, "not the kernel's shape"),
    "no kernel": ({"w": f32(6, 4, 0, 2)}, {}, "not a kernel and its offsets"),
    "another batch": ({"o": f32(2, 8, 4, 4)}, {}, "not one per tap"),
    "another size": ({"o": f32(1, 8, 4, 5)}, {}, "not one per tap"),
    "a size that a stride leaves": ({}, {"strides": [2, 2]}, "not one per tap"),
    "a mask of another size": ({"m": f32(1, 8, 4, 4)}, {}, "not one per tap"),
    "channels that are not in groups": ({}, {"group": 3}, "channels in other groups"),
    "offsets that are not in groups": ({}, {"offset_group": 3}, "channels in other groups"),
    "no groups": ({}, {"group": 0}, "not a window"),
    "a stride of 0": ({}, {"strides": [0, 1]}, "not a window"),
    "three strides": ({}, {"strides": [1, 1, 1]}, "another number of axes"),
    "a bias of another length": ({"b": f32(5)}, {}, "not a bias"),
}


@pytest.mark.parametrize("what", WRONG_DEFORMED)
def test_what_is_no_deformed_convolution_is_refused(what: str) -> None:
    others, attributes, message = WRONG_DEFORMED[what]
    with pytest.raises(FileFormatError, match=message) as caught:
        load_graph(model([node("DeformConv", "x w o b m", **attributes)], {**DEFORMED, **others}, opset=19))
    assert caught.value.violations[0].location.startswith("node 'y' (DeformConv)")


@pytest.mark.parametrize("seed", seeds(6))
def test_unpooling(seed: int) -> None:
    rng = np.random.default_rng(seed)
    axes = int(rng.integers(1, 4))
    kernel, strides = (tuple(map(int, rng.integers(1, 4, axes))) for _ in range(2))
    x = rng.standard_normal((2, 3, *rng.integers(3, 6, axes))).astype(np.float32)
    pads = tuple(map(int, rng.integers(0, 2, 2 * axes)))
    shape = [2, 3, *((x.shape[2 + a] - 1) * strides[a] - pads[a] - pads[axes + a] + kernel[a] for a in range(axes))]
    feed: Feed = {"x": x, "i": rng.integers(0, np.prod(shape), x.shape)}
    whole = {"s": np.array([*shape[:2], *(e + rng.integers(0, 3) for e in shape[2:])])}
    for constants in ({}, whole):
        unpool = node("MaxUnpool", " ".join(["x i", *constants]), kernel_shape=kernel, strides=strides, pads=pads)
        against_reference(model([unpool], feed, constants=constants, opset=11), feed, compiled=True)


def test_pooling_undone() -> None:
    nodes = [
        node("MaxPool", "x", "p i", kernel_shape=[2, 2], strides=[2, 2]),
        node("MaxUnpool", "p i", kernel_shape=[2, 2], strides=[2, 2]),
    ]
    feed: Feed = {"x": f32(2, 3, 6, 8)}
    check(model(nodes, feed), feed)


UNPOOLED: Feed = {"x": f32(1, 2, 3, 3), "i": np.zeros((1, 2, 3, 3), np.int64)}
WRONG_UNPOOLED: dict[str, tuple[Feed, dict[str, Any], list[int] | None, str]] = {
    "no kernel": ({}, {"kernel_shape": None}, None, "'kernel_shape' is missing"),
    "places of another shape": ({"i": np.zeros((1, 2, 9), np.int64)}, {}, None, "not elements and their places"),
    "pads that leave nothing": ({}, {"pads": [5, 5, 5, 5]}, None, "not elements and their places"),
    "three strides": ({}, {"strides": [1, 1, 1]}, None, "another number of axes"),
    "too small an output": ({}, {}, [1, 2, 3, 3], "not the size of an output"),
    "an output of three axes": ({}, {}, [1, 2, 20], "not elements and their places"),
    "an endless output": ({}, {}, [1, 2, 4, 1 << 62], "not the size of an output"),
}


@pytest.mark.parametrize("what", WRONG_UNPOOLED)
def test_what_is_no_unpooling_is_refused(what: str) -> None:
    others, attributes, size, message = WRONG_UNPOOLED[what]
    attributes = {"kernel_shape": [2, 2], **attributes}
    unpool = node("MaxUnpool", "x i" + " s" * bool(size), **{k: v for k, v in attributes.items() if v is not None})
    proto = model([unpool], {**UNPOOLED, **others}, constants={"s": np.array(size)} if size else {})
    with pytest.raises(FileFormatError, match=message) as caught:
        load_graph(proto)
    assert caught.value.violations[0].location.startswith("node 'y' (MaxUnpool)")


def test_an_output_whose_size_is_data_is_refused() -> None:
    feed: Feed = {**UNPOOLED, "s": np.array([1, 2, 4, 4])}
    with pytest.raises(UnsupportedError, match="must be known at compile time"):
        load_graph(model([node("MaxUnpool", "x i s", kernel_shape=[2, 2])], feed))


def test_two_nodes_of_the_same_regions() -> None:
    nodes = [node("RoiAlign", "x r i", "a"), node("RoiAlign", "x r i", "b"), helper.make_node("Add", ["a", "b"], ["y"])]
    graph = load_graph(model(nodes, REGIONS, opset=16))
    once = load_graph(model([node("RoiAlign", "x r i")], REGIONS, opset=16))
    np.testing.assert_allclose(evaluate(graph, REGIONS)["y"], 2 * evaluate(once, REGIONS)["y"], rtol=1e-5)


FOUND = [
    node("NonMaxSuppression", "boxes scores limit overlap least", "selected"),
    node("Gather", "selected two", "of", axis=1),
    node("Squeeze", "boxes zeros", "all"),
    node("Gather", "all of", "rois", axis=0),
    node("Gather", "selected zero", "image", axis=1),
]
HEADS: dict[str, list[Any]] = {
    "masks": [
        node("Conv", "regions w", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("ConvTranspose", "r up", "d", strides=[2, 2]),
        node("Sigmoid", "d"),
    ],
    "deformed": [
        node("Conv", "regions turns", "offsets", pads=[1, 1, 1, 1]),
        node("DeformConv", "regions w offsets", pads=[1, 1, 1, 1]),
    ],
    "sampled": [
        node("Conv", "regions places", "c"),
        node("Tanh", "c", "t"),
        node("Transpose", "t", "grid", perm=[0, 2, 3, 1]),
        node("GridSample", "regions grid"),
    ],
    "classes": [node("Flatten", "regions", "rows"), node("MatMul", "rows dense", "c"), node("Softmax", "c", axis=1)],
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("samples", [0, 2])
def test_heads_behind_regions_that_are_found(samples: int, head: str) -> None:
    rng = np.random.default_rng(1)
    align = node("RoiAlign", "x rois image", "regions", output_height=5, output_width=5, sampling_ratio=samples,
                 spatial_scale=0.5)  # fmt: skip
    constants = {
        "limit": np.array([12]), "overlap": np.array([0.3], np.float32), "least": np.array([0.4], np.float32),
        "two": np.array(2), "zero": np.array(0), "zeros": np.array([0]), "w": f32(5, 4, 3, 3), "up": f32(5, 3, 2, 2),
        "dense": f32(100, 7), "turns": f32(18, 4, 3, 3) / 4, "places": f32(2, 4, 2, 2),
    }  # fmt: skip
    corner = rng.uniform(0, 20, (1, 30, 2))
    feed: Feed = {
        "x": f32(1, 4, 12, 14),
        "boxes": np.concatenate([corner, corner + rng.uniform(1, 8, corner.shape)], 2).astype(np.float32),
        "scores": rng.uniform(0, 1, (1, 1, 30)).astype(np.float32),
    }
    proto = model([*FOUND, align, *HEADS[head]], feed, constants=constants, opset=20)
    kernel = sk.compile(load_graph(proto), threads=2)
    lengths = set()
    for power in (1, 2, 4, 1000):
        given = {**feed, "scores": feed["scores"] ** power}
        (want,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, given)
        found = kernel.run(given).outputs["y"]
        lengths.add(len(found))
        np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-4)
    assert len(lengths) > 2
    assert 0 in lengths


def test_levels_of_a_pyramid() -> None:
    """As torchvision's models are exported: regions of each level are written among those of all."""
    nodes = [
        *FOUND,
        node("Mul", "rois rois", "squares"),
        node("ReduceSum", "squares ones", "sizes", keepdims=0),
        node("Shape", "of", "count"),
        node("Concat", "count rest", "shape", axis=0),
        node("ConstantOfShape", "shape", "level0"),
    ]
    for level, op in enumerate(("Greater", "LessOrEqual")):
        nodes += [
            node(op, "sizes bar", f"is{level}"),
            node("NonZero", f"is{level}", f"rows{level}"),
            node("Squeeze", f"rows{level} zeros", f"row{level}"),
            node("Gather", f"rois row{level}", f"rois{level}", axis=0),
            node("Gather", f"image row{level}", f"image{level}", axis=0),
            node("RoiAlign", f"x rois{level} image{level}", f"aligned{level}", output_height=2, output_width=3,
                 sampling_ratio=2, spatial_scale=0.5 / (level + 1)),
            node("Reshape", f"row{level} column", f"index{level}"),
            node("Shape", f"aligned{level}", f"extents{level}"),
            node("Expand", f"index{level} extents{level}", f"places{level}"),
            node("ScatterElements", f"level{level} places{level} aligned{level}", f"level{level + 1}", axis=0),
        ]  # fmt: skip
    constants = {
        "limit": np.array([12]), "overlap": np.array([0.3], np.float32), "least": np.array([0.4], np.float32),
        "two": np.array(2), "zero": np.array(0), "zeros": np.array([0]), "ones": np.array([1]),
        "bar": np.array(500, np.float32), "column": np.array([-1, 1, 1, 1]), "rest": np.array([4, 2, 3]),
    }  # fmt: skip
    rng = np.random.default_rng(1)
    corner = rng.uniform(0, 20, (1, 30, 2))
    feed: Feed = {
        "x": f32(1, 4, 12, 14),
        "boxes": np.concatenate([corner, corner + rng.uniform(1, 8, corner.shape)], 2).astype(np.float32),
        "scores": rng.uniform(0, 1, (1, 1, 30)).astype(np.float32),
    }
    proto = model(nodes, feed, ["level2"], constants=constants, opset=16)
    kernel = sk.compile(load_graph(proto), threads=2)
    for power in (1, 4, 1000):
        given = {**feed, "scores": feed["scores"] ** power}
        (want,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, given)
        np.testing.assert_allclose(kernel.run(given).outputs["level2"], want, rtol=1e-3, atol=1e-4)
