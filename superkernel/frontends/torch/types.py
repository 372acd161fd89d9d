"""torch's element types and tensors as SuperKernel's; the only place that reads the memory of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd import forward_ad

from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError, UnsupportedError

_ELEMENT: dict[torch.dtype, DType] = {
    getattr(torch, dtype.numpy.name): dtype
    for dtype in DType
    if hasattr(torch, dtype.numpy.name) and not (dtype.is_small and dtype.is_integer)  # which torch only names
}
TORCH_OF = {dtype: kind for kind, dtype in _ELEMENT.items()}
_ELEMENT_OF_BYTES = {1: torch.uint8, 2: torch.int16}


def element_type(kind: torch.dtype, where: str) -> DType:
    """The DType of a torch dtype. Raises UnsupportedError on complex, quantised and packed types."""
    found = _ELEMENT.get(kind)
    if found is None:
        raise UnsupportedError(
            "the element type has no counterpart",
            location=where,
            expected=", ".join(sorted(d.value for d in TORCH_OF)),
            found=str(kind),
        )
    return found


def tensor_array(tensor: torch.Tensor, where: str) -> NDArray[Any]:
    """The contents of a dense tensor of any device, C-ordered; they share the tensor's memory where it is so already.
    Raises UnsupportedError."""
    dtype = element_type(tensor.dtype, where)
    require_memory(tensor, where)
    dense = tensor.detach().cpu().resolve_neg().contiguous()
    if dtype.stored is not dtype.numpy:  # NumPy has no such type: the bytes go across as integers
        return np.asarray(dense.view(_ELEMENT_OF_BYTES[dtype.itemsize]).numpy().view(dtype.numpy))
    return np.asarray(dense.numpy())


def is_unknown_to_numpy(tensor: torch.Tensor) -> bool:
    """Whether its elements are of a type that NumPy, and its reading of DLPack, does not know."""
    dtype = _ELEMENT.get(tensor.dtype)
    return dtype is not None and dtype.stored is not dtype.numpy


def require_memory(tensor: torch.Tensor, where: str) -> None:
    """Raises UnsupportedError where a tensor's elements do not lie in memory of its own: those of device meta, fake
    ones, and subclasses that wrap other tensors say that they are on the CPU, at address 0."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        found = "nested" if tensor.is_nested else str(tensor.layout)
    elif tensor.device.type == "meta" or (tensor.numel() and tensor.data_ptr() == 0):
        kind = type(tensor)
        found = "no data (device meta)" if tensor.device.type == "meta" else f"no data ({kind.__name__})"
    else:
        return
    raise UnsupportedError("only dense tensors with data are supported", location=where, found=found)


def require_no_derivative(tensor: torch.Tensor) -> None:
    """Raises InputError, without location, where derivatives are asked for: kernels compute none, and those of what
    they give would be missing."""
    if tensor.requires_grad:
        raise InputError("gradients are recorded, and kernels have none", hint="call .detach() on it")
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None:
        hint = "torch.autograd.forward_ad.unpack_dual(tensor).primal is without"
        raise InputError("it has a tangent, and kernels compute none", hint=hint)


def array_tensor(array: NDArray[Any]) -> torch.Tensor:
    """The array's memory as a tensor."""
    dtype = DType.of(array.dtype)
    if dtype.stored is not dtype.numpy:
        return torch.from_numpy(array.view(dtype.stored)).view(TORCH_OF[dtype])
    return torch.from_numpy(array)
