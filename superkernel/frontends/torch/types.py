"""torch's element types and tensors as SuperKernel's; the only place that reads the memory of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError

_ELEMENT: dict[torch.dtype, DType] = {getattr(torch, dtype.numpy.name): dtype for dtype in DType}
TORCH_OF = {dtype: kind for kind, dtype in _ELEMENT.items()}


def element_type(kind: torch.dtype, where: str) -> DType:
    """The DType of a torch dtype. Raises UnsupportedError on complex, quantised and 8-bit floating types."""
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
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        found = "no data (device meta)" if tensor.device.type == "meta" else str(tensor.layout)
        raise UnsupportedError("only dense tensors with data are supported", location=where, found=found)
    dense = tensor.detach().cpu().contiguous()
    if dtype is DType.BF16:  # NumPy has no such type: the bytes go across as integers
        return np.asarray(dense.view(torch.int16).numpy().view(dtype.numpy))
    return np.asarray(dense.numpy())


def array_tensor(array: NDArray[Any]) -> torch.Tensor:
    """The array's memory as a tensor."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
