"""Whether costly checks are made of everything (`make soak`), or of a sample that is the same on every run."""

from __future__ import annotations

from zlib import crc32

enabled = False  # conftest.py: the option --soak


def chosen(name: str, one_in: int) -> bool:
    """Whether what has this name is checked: all of it in a soak run."""
    return enabled or crc32(name.encode()) % one_in == 0
