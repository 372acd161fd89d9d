"""The lowerings of ONNX operators, one module per group. `load_all` imports them so that they register."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules


@cache
def load_all() -> None:
    """Imports every group once."""
    for group in iter_modules(__path__):
        import_module(f"{__name__}.{group.name}")
