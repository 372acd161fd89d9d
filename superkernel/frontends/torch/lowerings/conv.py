"""Convolutions and transposed convolutions of one to three spatial axes."""

from __future__ import annotations

from superkernel.builder.tensor import Tensor
from superkernel.frontends.torch.call import TorchCall
from superkernel.frontends.torch.registry import lowers

_FORWARD = ("conv1d", "conv2d", "conv3d")
_TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")


@lowers(*_FORWARD, *_TRANSPOSED, "convolution", "_convolution")
def convolution(call: TorchCall) -> Tensor:
    x, weight, bias = call.tensor("input"), call.tensor("weight"), call.optional("bias")
    spatial = weight.rank - 2
    strides, dilations = (call.ints(n, spatial) or [1] * spatial for n in ("stride", "dilation"))
    pads = _pads(call, [d * (k - 1) for d, k in zip(dilations, weight.shape[2:], strict=True)])
    options = {"strides": strides, "dilations": dilations, "pads": pads, "groups": int(call.get("groups", 1))}
    single = x.rank == spatial + 1  # one image without its batch axis
    x = call.reshape(x, (1, *x.shape)) if single else x
    if call.op in _TRANSPOSED or call.get("transposed", False):
        extra = call.ints("output_padding", spatial) or [0] * spatial
        y = call.emit("conv_transpose", x, weight, bias, output_padding=extra, **options)
    else:
        x, options["pads"] = _without_pad(x, pads)
        y = call.emit("conv", x, weight, bias, **options)
    return call.reshape(y, y.shape[1:]) if single else y


def _without_pad(x: Tensor, pads: list[int]) -> tuple[Tensor, list[int]]:
    """Zeros put around the image by an operator of its own, as for unequal padding, become the convolution's."""
    record = x.value.record
    if record is None or record.op != "pad" or record.attrs["mode"] != "constant" or record.attrs["value"] != 0:
        return x, pads
    around = list(record.attrs["pads"])
    begins, ends = around[: x.rank], around[x.rank :]
    if any(begins[:2] + ends[:2]) or min(around) < 0:
        return x, pads
    return Tensor(x.builder, record.inputs[0]), [a + b for a, b in zip(begins[2:] + ends[2:], pads, strict=True)]


def _pads(call: TorchCall, reach: list[int]) -> list[int]:
    """Begins, then ends. "same" puts the odd one at the end."""
    given = call.args.get("padding")
    if given == "valid":
        return [0] * (2 * len(reach))
    if given == "same":
        begins = [r // 2 for r in reach]
        return [*begins, *(r - b for r, b in zip(reach, begins, strict=True))]
    return (call.ints("padding", len(reach)) or [0] * len(reach)) * 2
