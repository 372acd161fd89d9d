"""torchvision's roi_align and deform_conv2d, known by their names, and unpooling, in torch modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from seeds import seeds

import superkernel as sk
from superkernel.core.errors import UnsupportedError

torch = pytest.importorskip("torch")
reference = pytest.importorskip("onnx.reference")
helper = pytest.importorskip("onnx.helper")

REGIONS = (
    "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, int sampling_ratio, "
    "bool aligned) -> Tensor"
)
DEFORMED = (
    "(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, "
    "SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, "
    "bool use_mask) -> Tensor"
)


@pytest.fixture(scope="module", autouse=True)
def _torchvision() -> None:
    """torchvision's operators, where there is no torchvision."""
    if hasattr(torch.ops.torchvision, "roi_align"):
        return

    def aligned(x: Any, rois: Any, scale: Any, height: int, width: int, samples: int, centred: bool) -> Any:
        return x.new_empty((rois.shape[0], x.shape[1], height, width))

    def deformed(x: Any, weight: Any, offset: Any, *others: Any) -> Any:
        return x.new_empty((x.shape[0], weight.shape[0], *offset.shape[2:]))

    for name, schema, fake in (("roi_align", REGIONS, aligned), ("deform_conv2d", DEFORMED, deformed)):
        torch.library.define(f"torchvision::{name}", schema)
        torch.library.register_fake(f"torchvision::{name}", fake)


class Module(torch.nn.Module):  # type: ignore[name-defined]
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Any) -> Any:
        return self.function(*given)


def compiled(function: Callable[..., Any], *given: Any) -> Any:
    return sk.compile(Module(function).eval(), threads=2, example_inputs=given)(*given)


def standard(op: str, *given: Any, opset: int = 22, **attributes: Any) -> Any:
    """The ONNX standard's own word."""
    names = [f"x{i}" for i in range(len(given))]
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
             for n, a in zip(names, given, strict=True)]  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)], "g", infos, [helper.make_empty_tensor_value_info("y")]
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return reference.ReferenceEvaluator(made).run(None, dict(zip(names, given, strict=True)))[0]


@pytest.mark.parametrize("samples", [-1, 0, 1, 2, 3])
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("seed", seeds(2))
def test_regions(seed: int, centred: bool, samples: int) -> None:
    rng = np.random.default_rng(seed)
    (n, c, h, w), count = (int(rng.integers(1, most)) for most in (4, 5, 9, 12)), int(rng.integers(1, 6))
    x = rng.standard_normal((n, c, h, w)).astype(np.float32)
    corner = rng.uniform(-8, 14, (count, 2))
    size = rng.choice([0, 1, 5, 20, -3, 60], (count, 2)) * rng.uniform(0.2, 1, (count, 2))
    images, boxes = rng.integers(0, n, count), np.concatenate([corner, corner + size], 1).astype(np.float32) * 4
    rois = np.concatenate([images[:, None], boxes], 1).astype(np.float32)
    found = compiled(
        lambda x, r: torch.ops.torchvision.roi_align(x, r, 0.25, 3, 2, samples, centred),
        torch.from_numpy(x), torch.from_numpy(rois),
    )  # fmt: skip
    want = standard(
        "RoiAlign", x, boxes, images, output_height=3, output_width=2, sampling_ratio=max(samples, 0),
        spatial_scale=0.25, coordinate_transformation_mode="half_pixel" if centred else "output_half_pixel",
    )  # fmt: skip
    np.testing.assert_allclose(found.numpy(), want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("masked", [True, False])
def test_deformed_convolutions(masked: bool) -> None:
    rng = np.random.default_rng(0)
    x, weight, offset, mask, bias = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((2, 4, 6, 7), (6, 2, 3, 2), (2, 24, 3, 9), (2, 12, 3, 9), (6,))
    )
    found = compiled(
        lambda x, w, o, m, b: torch.ops.torchvision.deform_conv2d(x, w, o, m, b, 2, 1, 1, 2, 1, 2, 2, 2, masked),
        *map(torch.from_numpy, (x, weight, offset, mask, bias)),
    )
    want = standard(
        "DeformConv", x, weight, offset, bias, *([mask] if masked else []), strides=[2, 1], pads=[1, 2, 1, 2],
        dilations=[1, 2], group=2, offset_group=2,
    )  # fmt: skip
    np.testing.assert_allclose(found.numpy(), want, rtol=1e-3, atol=1e-4)


def test_regions_of_another_form_are_refused() -> None:
    for x, rois in ((torch.rand(3, 5, 5), torch.rand(2, 5)), (torch.rand(1, 3, 5, 5), torch.rand(2, 4))):
        with pytest.raises(UnsupportedError, match="not regions of images"):
            compiled(lambda x, r: torch.ops.torchvision.roi_align(x, r, 1.0, 2, 2, 2, True), x, rois)


@pytest.mark.parametrize(
    ("shapes", "groups", "message"),
    [
        (((4, 6, 7), (6, 2, 3, 2), (2, 24, 3, 9)), 2, "not a kernel and its offsets"),
        (((2, 4, 6, 7), (6, 2, 3, 2), (2, 23, 3, 9)), 2, "not one per tap"),
        (((2, 4, 6, 7), (6, 2, 3, 2), (2, 24, 3, 9)), 0, "not a window"),
        (((2, 4, 6, 7), (6, 3, 3, 2), (2, 24, 3, 9)), 2, "channels in other groups"),
        (((2, 4, 6, 7), (7, 2, 3, 2), (2, 24, 3, 9)), 2, "channels in other groups"),
    ],
)
def test_what_is_no_deformed_convolution_is_refused(shapes: Any, groups: int, message: str) -> None:
    x, weight, offset = (torch.rand(shape) for shape in shapes)
    with pytest.raises(UnsupportedError, match=message):
        compiled(
            lambda *given: torch.ops.torchvision.deform_conv2d(*given, 2, 1, 1, 2, 1, 2, groups, 2, False),
            x, weight, offset, torch.rand(1, 1), torch.rand(weight.shape[0]),
        )  # fmt: skip


UNPOOLED: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "one axis": (lambda f, x: f.max_unpool1d(*f.max_pool1d(x, 2, return_indices=True), 2), (2, 3, 8)),
    "two axes": (lambda f, x: f.max_unpool2d(*f.max_pool2d(x, 2, return_indices=True), 2), (2, 3, 8, 6)),
    "three axes": (lambda f, x: f.max_unpool3d(*f.max_pool3d(x, 2, return_indices=True), 2), (2, 3, 4, 6, 8)),
    "windows that overlap": (
        lambda f, x: f.max_unpool2d(*f.max_pool2d(x, 3, 2, 1, return_indices=True), 3, 2, 1, output_size=x.shape),
        (2, 3, 8, 7),
    ),
    "without a batch": (lambda f, x: f.max_unpool2d(*f.max_pool2d(x, 2, return_indices=True), 2), (3, 8, 6)),
}


@pytest.mark.parametrize("what", UNPOOLED)
def test_unpooling(what: str) -> None:
    function, shape = UNPOOLED[what]
    x = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        compiled(lambda x: function(torch.nn.functional, x), x), function(torch.nn.functional, x)
    )


def test_regions_that_are_found() -> None:
    def function(x: Any, boxes: Any, scores: Any) -> Any:
        found = boxes[scores > 0.5]
        rois = torch.cat([found.new_zeros(found.shape[0], 1), found], 1)
        return torch.ops.torchvision.roi_align(x, rois, 0.5, 3, 3, 2, False).relu().mean((2, 3))

    rng = np.random.default_rng(0)
    corner = rng.uniform(0, 20, (20, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(1, 8, corner.shape)], 1).astype(np.float32)
    x, scores = rng.standard_normal((1, 4, 12, 14)).astype(np.float32), rng.uniform(0, 1, 20).astype(np.float32)
    given = [torch.from_numpy(each) for each in (x, boxes, scores)]
    kernel = sk.compile(Module(function).eval(), threads=2, example_inputs=tuple(given))
    for share in (1, 0.7, 0.0):
        chosen = boxes[scores * np.float32(share) > 0.5]
        want = standard(
            "RoiAlign", x, chosen, np.zeros(len(chosen), np.int64), output_height=3, output_width=3, sampling_ratio=2,
            spatial_scale=0.5, coordinate_transformation_mode="output_half_pixel",
        )  # fmt: skip
        found = kernel(given[0], given[1], torch.from_numpy(scores * np.float32(share)))
        np.testing.assert_allclose(found.numpy(), np.maximum(want, 0).mean((2, 3)), rtol=1e-3, atol=1e-4)


def test_levels_of_a_pyramid_that_regions_are_found_for() -> None:
    """Each level's regions are written among those of all, as torchvision's MultiScaleRoIAlign does it."""

    def function(x: Any, small: Any, boxes: Any, scores: Any) -> Any:
        found = boxes[scores > 0.5]
        rois = torch.cat([found.new_zeros(found.shape[0], 1), found], 1)
        near = (found[:, 2] - found[:, 0]) * (found[:, 3] - found[:, 1]) > 16
        y = torch.zeros(found.shape[0], 4, 3, 3)
        for level, image, scale in ((near, x, 0.5), (~near, small, 0.25)):
            index = torch.where(level)[0]
            y[index] = torch.ops.torchvision.roi_align(image, rois[index], scale, 3, 3, 2, False)
        return y, y.sum()

    rng = np.random.default_rng(0)
    corner = rng.uniform(0, 20, (20, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(1, 8, corner.shape)], 1).astype(np.float32)
    x, small = (rng.standard_normal((1, 4, *size)).astype(np.float32) for size in ((12, 14), (6, 7)))
    scores = rng.uniform(0, 1, 20).astype(np.float32)
    given = tuple(torch.from_numpy(each) for each in (x, small, boxes, scores))
    kernel = sk.compile(Module(function).eval(), threads=2, example_inputs=given)
    near = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) > 16
    for chosen in (scores > 0.5, (scores > 0.5) & near, (scores > 0.5) & ~near, scores > 2):
        aligned = [
            standard(
                "RoiAlign", image, boxes[chosen], np.zeros(chosen.sum(), np.int64), output_height=3, output_width=3,
                sampling_ratio=2, spatial_scale=scale, coordinate_transformation_mode="output_half_pixel",
            )
            for image, scale in ((x, 0.5), (small, 0.25))
        ]  # fmt: skip
        want = np.where(near[chosen][:, None, None, None], *aligned)
        found, total = kernel(*given[:3], torch.from_numpy(chosen.astype(np.float32)))
        np.testing.assert_allclose(found.numpy(), want, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(total.numpy(), want.sum(), rtol=1e-3, atol=1e-3)
