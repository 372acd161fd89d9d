"""Sizes in whole blocks."""

from __future__ import annotations


def ceil_to(value: int, unit: int) -> int:
    """The least multiple of `unit` that is not below the value."""
    return -(-value // unit) * unit
