"""One operator on constant arrays, by its NumPy reference, rounded to the declared output types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.errors import InternalError
from superkernel.core.tensor import TensorType
from superkernel.ops.opdef import as_array
from superkernel.ops.table import find_op


def fold_node(
    op: str, inputs: Sequence[NDArray[Any] | None], attrs: Mapping[str, Any], outputs: tuple[TensorType, ...]
) -> tuple[NDArray[Any], ...]:
    """The outputs for these inputs. Raises InternalError where the reference contradicts the declared types."""
    definition = find_op(op)
    assert definition is not None, op
    with np.errstate(all="ignore"):
        arrays = definition.reference(inputs, attrs, outputs)
        rounded = tuple(as_array(a, kind.dtype) for a, kind in zip(arrays, outputs, strict=True))
    for index, (array, kind) in enumerate(zip(rounded, outputs, strict=True)):
        # as_array makes scalars one-dimensional (ascontiguousarray): sizes agree, shapes are restored.
        if array.size != kind.size:
            raise InternalError(
                "the reference has another shape", location=f"{op}, output {index}", expected=kind, found=array.shape
            )
    return tuple(array.reshape(kind.shape) for array, kind in zip(rounded, outputs, strict=True))
