"""RoiAlign: regions of images, each resampled to the same number of bins, as ONNX and torchvision have it.

Model: along each axis a bin has samples, evenly spaced, and a sample the two points about it, linearly weighted. For
maxima, and means of few samples, a table has the points of all samples of a bin. Where a mean has many, or as many as a
bin has pixels, which is data, the weights of all points of an axis are summed for each bin first, and the mean is two
products with these matrices: so a point that is infinite or NaN reaches every region of its image.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.emitter import Emitter
from superkernel.frontends.sampling import Tap, between, linear_taps, places_type, rows_of, scaled, weighted

_TABLE_MAX = 2
"""Samples along an axis up to which a mean has a table of their points."""
_SAMPLES_MAX, _BINS_MAX = 1024, 1 << 16
_NEAR = 5
"""Samples of a bin that can touch one point, where there is about one per pixel: they are more than 5/6 apart where
there are more of them."""


@dataclass(frozen=True)
class Regions:
    """`bins` along y and x; `samples` of a bin along each axis, 0: one per pixel; `scale` of the boxes' coordinates to
    pixels; `centred`: whole coordinates are the middles of pixels, else corners, and regions have a pixel at least;
    `largest`: the greatest weighted point, not the mean."""

    bins: tuple[int, int]
    samples: int = 0
    scale: float = 1.0
    centred: bool = True
    largest: bool = False


@dataclass(frozen=True)
class _Axis:
    """Along one axis of `extent` points: where each region starts, how long its bins are, and how many samples they
    have, as floats [regions, 1, 1]."""

    extent: int
    bins: int
    start: Tensor
    length: Tensor
    samples: Tensor

    def places(self, call: Emitter, numbers: Tensor) -> Tensor:
        """Where samples lie, by their numbers, [.., regions, bins, ..]."""
        bins = call.constant(np.arange(self.bins).reshape(1, -1, 1).astype(self.start.dtype.numpy))
        begin = call.emit("add", self.start, call.emit("mul", bins, self.length))
        along = call.emit("mul", scaled(call, numbers, 1.0, 0.5), self.length)
        return call.emit("add", begin, call.emit("div", along, self.samples))

    def inside(self, call: Emitter, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Where samples lie within the image, and whether they count: up to a pixel outside they do."""
        place = self.places(call, numbers)
        last = call.like(self.extent - 1, place)
        return call.emit("clip", place, call.like(0, place), last), between(call, place, -1, self.extent)

    def numbers(self, call: Emitter, shape: tuple[int, ...]) -> Tensor:
        """0, 1, ... as floats."""
        return call.constant(np.arange(np.prod(shape)).reshape(shape).astype(self.start.dtype.numpy))


def roi_align(call: Emitter, x: Tensor, boxes: Tensor, images: Tensor, regions: Regions) -> Tensor:
    """[regions, C, bins y, bins x] of x [N, C, H, W], boxes [regions, 4] (x1, y1, x2, y2) and the number of each one's
    image [regions]. A number that no image has is clamped."""
    count, (channels, *extents) = boxes.shape[0], x.shape[1:]
    if x.type.size == 0:
        if count * channels:
            raise call.unsupported("regions of images without pixels", found=str(x.type))
        return call.expand(call.like(0, x), (count, channels, *regions.bins))
    if regions.samples > _SAMPLES_MAX:
        expected = f"at most {_SAMPLES_MAX} along an axis"
        raise call.unsupported("too many samples of a bin", expected=expected, found=str(regions.samples))
    if max(regions.bins) > _BINS_MAX:
        expected = f"at most {_BINS_MAX} along an axis"
        raise call.unsupported("too many bins of a region", expected=expected, found=str(max(regions.bins)))
    kind = places_type(x)
    boxes = scaled(call, call.cast(boxes, kind), regions.scale, -0.5 if regions.centred else 0.0)
    axes = [_axis(call, boxes, axis, extent, regions) for axis, extent in enumerate(extents)]
    images = call.cast(images, DType.I64)
    images = call.emit("clip", images, call.like(0, images), call.like(x.shape[0] - 1, images))
    exact = call.cast(x, kind)
    if regions.largest:
        y = _greatest(call, exact, axes, images, regions.samples)
    elif 0 < regions.samples <= _TABLE_MAX:
        y = _mean_of_few(call, exact, axes, images, regions.samples)
    else:
        y = _mean(call, exact, axes, images, regions.samples)
    return call.cast(call.transpose(y, (0, 3, 1, 2)), x.dtype)


def _axis(call: Emitter, boxes: Tensor, axis: int, extent: int, regions: Regions) -> _Axis:
    count, bins = boxes.shape[0], regions.bins[axis]
    start, end = (call.reshape(call.slice(boxes, 1, at, at + 1), (count, 1, 1)) for at in (1 - axis, 3 - axis))
    length = call.emit("sub", end, start)
    if not regions.centred:
        length = call.emit("maximum", length, call.like(1, length))
    length = call.emit("div", length, call.like(bins, length))
    samples = call.like(regions.samples, length) if regions.samples > 0 else call.emit("ceil", length)
    return _Axis(extent, bins, start, length, samples)


# -- by tables


def _mean_of_few(call: Emitter, x: Tensor, axes: list[_Axis], images: Tensor, samples: int) -> Tensor:
    """[regions, bins y, bins x, C]: weights times points, bin by bin."""
    taps = [_table(call, axis, number, samples) for number, axis in enumerate(axes)]
    weights = [call.emit("where", inside, weight, call.like(0, weight)) for _, weight, inside in taps]
    points = _points(call, x, images, [Tap(place) for place, _, _ in taps])
    (*shape, down, across, channels), each = points.shape, call.emit("mul", *weights)
    count = int(np.prod(shape))
    points = call.reshape(points, (count, down * across, channels))
    total = call.emit("matmul", call.reshape(each, (count, 1, down * across)), points)
    return call.reshape(call.emit("div", total, call.like(samples * samples, total)), (*shape, channels))


def _greatest(call: Emitter, x: Tensor, axes: list[_Axis], images: Tensor, samples: int) -> Tensor:
    """[regions, bins y, bins x, C]: the greatest of all weighted points, 0 where there are no samples."""
    counts = [_most(call, axis, samples) for axis in axes]
    numbered = list(enumerate(zip(axes, counts, strict=True)))
    points = _points(call, x, images, [Tap(*_table(call, axis, number, most)) for number, (axis, most) in numbered])
    if samples > 0:
        return call.emit("reduce_max", points, axes=(3, 4), keepdims=False)
    for number, (axis, most) in numbered:
        exists = call.emit("less", axis.numbers(call, (1, 1, most)), axis.samples)
        exists = call.concat([exists, exists], 2)
        exists = call.reshape(exists, (*_shape(exists.shape, number), 1))
        points = call.emit("where", exists, points, call.like(-np.inf, points))
    y = call.emit("reduce_max", points, axes=(3, 4), keepdims=False)
    for axis in axes:
        some = call.emit("greater_equal", axis.samples, call.like(1, axis.samples))
        y = call.emit("where", call.reshape(some, (*some.shape, 1)), y, call.like(0, y))
    return y


def _most(call: Emitter, axis: _Axis, samples: int) -> int:
    """How many samples a bin has at most."""
    if samples > 0:
        return samples
    known = axis.samples.value.data
    if known is None:
        hint = "say how many by sampling_ratio, or take the mean, which may have any number"
        raise call.unsupported("how many samples a maximum has is data", found="sampling_ratio 0", hint=hint)
    most = max((n for n in known.reshape(-1).tolist() if n == n), default=1)
    if most > _SAMPLES_MAX:
        raise call.unsupported("too many samples of a bin", expected=f"at most {_SAMPLES_MAX}", found=str(most))
    return max(int(most), 1)


def _table(call: Emitter, axis: _Axis, number: int, samples: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of all points of a bin's samples along the axis of this number: places, weights, and whether they count, with the
    axes regions, bins y, bins x, points y, points x."""
    place, inside = axis.inside(call, axis.numbers(call, (1, 1, samples)))
    places, weights = zip(*linear_taps(call, place), strict=True)
    both = (call.concat(each, 2) for each in (places, weights, [inside, inside]))
    at, weight, counts = (call.reshape(each, _shape(each.shape, number)) for each in both)
    return at, weight, counts


def _shape(shape: tuple[int, ...], number: int) -> tuple[int, ...]:
    """[regions, bins, points] among the axes of a table."""
    count, bins, points = shape
    return (count, bins, 1, points, 1) if number == 0 else (count, 1, bins, 1, points)


def _points(call: Emitter, x: Tensor, images: Tensor, taps: list[Tap]) -> Tensor:
    """[regions, bins y, bins x, points y, points x, C]"""
    first = call.emit("mul", images, call.constant(np.int64(x.shape[2] * x.shape[3])))
    first = call.reshape(first, (images.shape[0], 1, 1, 1, 1))
    (points,) = weighted(call, rows_of(call, x), first, x.shape[2:], [[tap] for tap in taps])
    return points


# -- by matrices


def _mean(call: Emitter, x: Tensor, axes: list[_Axis], images: Tensor, samples: int) -> Tensor:
    """[regions, bins y, bins x, C]: weights of rows times the image times weights of columns."""
    count, (channels, height, width) = images.shape[0], x.shape[1:]
    down, across = (_weights(call, axis, samples) for axis in axes)
    lines = call.reshape(call.transpose(x, (0, 2, 3, 1)), (x.shape[0], height, width * channels))
    if x.shape[0] == 1:
        lines = call.reshape(lines, (height, width * channels))
        rows = call.emit("matmul", call.reshape(down, (count * axes[0].bins, height)), lines)
    else:
        rows = call.emit("matmul", down, call.emit("gather", lines, images, axis=0))
    rows = call.reshape(rows, (count, axes[0].bins, width, channels))
    return call.emit("matmul", call.reshape(across, (count, 1, axes[1].bins, width)), rows)


def _weights(call: Emitter, axis: _Axis, samples: int) -> Tensor:
    """[regions, bins, extent]: what each point counts in the mean of a bin's samples along one axis."""
    points = axis.numbers(call, (axis.extent,))
    near = _near(call, axis, points) if samples <= 0 else axis.numbers(call, (samples, 1, 1, 1))
    place, counts = axis.inside(call, near)
    distance = call.emit("abs", call.emit("sub", place, points))
    weight = call.emit("relu", scaled(call, distance, -1.0, 1.0))
    if samples <= 0:
        counts = call.emit("logical_and", counts, call.emit("less", near, axis.samples))
    weight = call.emit("where", counts, weight, call.like(0, weight))
    total = call.emit("reduce_sum", weight, axes=(0,), keepdims=False)
    return call.emit("div", total, call.emit("maximum", axis.samples, call.like(1, total)))


def _near(call: Emitter, axis: _Axis, points: Tensor) -> Tensor:
    """Numbers of the samples near each point, [near, regions, bins, extent], where there is about one per pixel. They
    may be more than there are."""
    start = axis.places(call, call.like(0, axis.start))
    apart = call.emit("div", axis.length, axis.samples)
    before = call.emit("div", call.emit("sub", scaled(call, points, 1.0, -1.0), start), apart)
    last = call.emit("maximum", scaled(call, axis.samples, 1.0, -float(_NEAR)), call.like(0, apart))
    first = scaled(call, call.emit("ceil", before), 1.0, -1.0)
    first = call.emit("minimum", call.emit("maximum", first, call.like(0, first)), last)
    return call.emit("add", first, axis.numbers(call, (_NEAR, 1, 1, 1)))
