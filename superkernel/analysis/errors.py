"""How far values are from what they should be."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def relative_error(got: Array, want: Array, scale_of: Array, mask: NDArray[np.bool_] | None = None) -> float:
    """The largest difference (where `mask` is set), relative to the largest finite magnitude in `scale_of`; infinite
    where one is not finite and the other is, or they are not the same."""
    a, b = got.astype(np.float64), want.astype(np.float64)
    apart = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if mask is not None:
        apart &= mask
    if not apart.any():
        return 0.0
    if not (np.isfinite(a[apart]).all() and np.isfinite(b[apart]).all()):
        return float("inf")
    whole = scale_of.astype(np.float64)
    scale = np.abs(whole[np.isfinite(whole)]).max(initial=0.0)
    return float(np.abs(a[apart] - b[apart]).max() / max(scale, np.finfo(np.float32).tiny))
