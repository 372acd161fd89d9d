"""Sizes in whole blocks, and the largest ones that fit."""

from __future__ import annotations

from collections.abc import Callable


def ceil_to(value: int, unit: int) -> int:
    """The least multiple of `unit` that is not below the value."""
    return -(-value // unit) * unit


def largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `most` that fits, where all below it do; 0: none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
