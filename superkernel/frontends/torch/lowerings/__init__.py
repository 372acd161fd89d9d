"""The lowerings of ATen operators, one module per group. `load_all` imports them so that they register."""

from __future__ import annotations

from functools import cache
from importlib import import_module

GROUPS = (
    "attention",
    "bags",
    "complex",
    "constants",
    "conv",
    "index",
    "matmul",
    "norm",
    "pointwise",
    "pool",
    "reduce",
    "resize",
    "scan",
    "search",
    "shape",
    "signs",
    "update",
)


@cache
def load_all() -> None:
    """Imports every group once."""
    for group in GROUPS:
        import_module(f"{__name__}.{group}")
