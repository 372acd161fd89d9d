"""Operators of torchvision, found by their names: torchvision need not be there."""

from __future__ import annotations

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.deformable import Deformed, deform_conv
from superkernel.frontends.regions import Regions, roi_align
from superkernel.frontends.torch.call import TorchCall
from superkernel.frontends.torch.registry import lowers


@lowers("torchvision.roi_align")
def regions(call: TorchCall) -> Tensor:
    """A region is the number of its image, then its box."""
    x, rois = call.tensor("input"), call.tensor("rois")
    bins = (int(call.get("pooled_height")), int(call.get("pooled_width")))
    if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 5 or min(bins) < 1:
        expected = "images [N, C, H, W], regions [count, 5] and a size of at least 1 x 1"
        raise call.unsupported("not regions of images", expected=expected, found=f"{x.type}, {rois.type}, {bins}")
    images = call.reshape(call.cast(call.slice(rois, 1, 0, 1), DType.I64), rois.shape[:1])
    samples, scale = max(int(call.get("sampling_ratio")), 0), float(call.get("spatial_scale"))
    return roi_align(
        call, x, call.slice(rois, 1, 1, 5), images, Regions(bins, samples, scale, bool(call.get("aligned")))
    )


@lowers("torchvision.deform_conv2d")
def deformed(call: TorchCall) -> Tensor:
    """A mask is always given, and read where `use_mask` says so."""
    x, weight, offset, bias = (call.tensor(name) for name in ("input", "weight", "offset", "bias"))
    mask = call.tensor("mask") if call.get("use_mask") else None
    strides, begins, dilations = (
        [int(call.get(f"{name}_{axis}")) for axis in "hw"] for name in ("stride", "pad", "dilation")
    )
    groups, many = int(call.get("groups")), int(call.get("offset_groups"))
    moved = Deformed(strides, begins, begins, dilations, groups, many)
    wrong = moved.misfit(x, weight, offset, mask, bias)
    if wrong is not None:
        raise call.unsupported(**wrong)
    return deform_conv(call, x, weight, offset, mask, bias, moved)
