"""Inputs made from a seed, for trying a model out: the same seed gives the same arrays everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError
from superkernel.core.tensor import TensorType


def check_seed(seed: object) -> None:
    """Raises InputError on a seed that is none."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InputError("bad seed", expected="an integer >= 0", found=repr(seed))


def random_inputs(types: Mapping[str, TensorType], seed: int) -> dict[str, NDArray[Any]]:
    """Standard normal floats, integers 0 to 9 (indices into real tables rather stay small), fair truth values.
    Raises InputError on a seed that is none."""
    check_seed(seed)
    rng = np.random.default_rng(seed)
    made: dict[str, NDArray[Any]] = {}
    for name, kind in types.items():
        if kind.dtype.is_float:
            array: NDArray[Any] = rng.standard_normal(kind.shape)
        elif kind.dtype is DType.BOOL:
            array = rng.integers(0, 2, kind.shape)
        else:
            array = rng.integers(0, min(10, kind.dtype.limits[1] + 1), kind.shape)
        made[name] = np.ascontiguousarray(array.astype(kind.dtype.numpy)).reshape(kind.shape)
    return made
