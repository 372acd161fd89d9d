"""Times as text: one form wherever a time is told in a sentence, a chart or a line of a terminal."""

from __future__ import annotations


def format_ns(ns: float) -> str:
    """A time with the unit that keeps three digits readable; whole nanoseconds below one microsecond."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= size:
            return f"{ns / size:.2f} {unit}"
    return f"{ns:.0f} ns"


def format_us(us: float) -> str:
    """The same of a time in us."""
    return format_ns(us * 1e3)
