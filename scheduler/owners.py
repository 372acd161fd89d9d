"""Which core writes which bytes of the arena: buffers lie so that the users of an address are the same core.

Model: a cache line that another core wrote before must come over from that core before it is written again, though
nobody wants what it holds. A buffer whose halves two cores write is therefore best laid over others so that the cores
meet at the same address. Among the offsets at which a buffer is free to lie, the one that takes the fewest bytes from
other cores is chosen, then the lowest.

Candidates: both ends of the gaps between buffers that interfere, and where the borders between two cores come together
with those of buffers placed before. Bytes that several cores write in strided pieces best lie over others of that kind.
Where there are too many runs to look at, with many cores and buffers, a buffer takes the lowest offset.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Run = tuple[int, int, int]
"""First byte, byte behind the last, and the core that writes them or `MIXED`."""

MIXED = -1  # in place of the core, of bytes that several write in strided pieces
_CANDIDATES_MOST = 64
_PAIRS_MOST = 2048  # of a buffer's runs with placed ones; beyond that the search takes too long
_Ints = NDArray[np.int64]


class Owners:
    """What has been placed. `runs` per buffer, relative to its start; nothing ends behind `limit` that can help it."""

    def __init__(self, runs: Sequence[Sequence[Run]], align: int, limit: int) -> None:
        self._runs = [np.array(sorted(rows), np.int64).reshape(-1, 3) for rows in runs]
        self._align, self._limit = align, limit
        self._placed = np.zeros((0, 3), np.int64)
        self._buffer = np.zeros(0, np.int64)  # of each placed run

    def choose(self, buffer: int, size: int, lowest: int, starts: _Ints, ends: _Ints, near: NDArray[np.bool_]) -> int:
        """An offset for a buffer. `lowest`: the lowest one free; `starts` and `ends` of what interferes; `near`: which
        buffers do not, and may have their bytes here too."""
        own, others = self._runs[buffer], self._placed[near[self._buffer]]
        if not 0 < len(own) * len(others) <= _PAIRS_MOST:
            return lowest
        gaps = np.concatenate(([lowest], ends, starts - size))
        offsets = np.unique(np.concatenate((gaps, self._overlap(own, others))))
        fits = (offsets >= 0) & (offsets + size <= self._limit) & (offsets % self._align == 0)
        offsets = offsets[fits]
        taken = (offsets[:, None] < ends) & (starts < offsets[:, None] + size)
        offsets = offsets[~taken.any(axis=1)]
        if len(offsets) == 0:
            return lowest
        if len(offsets) > _CANDIDATES_MOST:  # and the last: where nothing is yet, if anywhere
            offsets = np.concatenate((offsets[: _CANDIDATES_MOST - 1], offsets[-1:]))
        first, stop, core = (others[:, i].reshape(-1, 1, 1) for i in range(3))  # others x offsets x own
        low, high = np.maximum(own[:, 0] + offsets[:, None], first), np.minimum(own[:, 1] + offsets[:, None], stop)
        foreign = (np.maximum(high - low, 0) * (own[:, 2] != core)).sum(axis=(0, 2))
        return int(offsets[np.argmin(foreign)])

    def place(self, buffer: int, offset: int) -> None:
        """The buffer lies there."""
        own = self._runs[buffer] + np.array([offset, offset, 0])
        self._placed = np.concatenate((self._placed, own))
        self._buffer = np.concatenate((self._buffer, np.full(len(own), buffer)))

    def _overlap(self, own: _Ints, others: _Ints) -> _Ints:
        """Offsets at which a border between two cores, or an end of the buffer, lies on one of the others'."""
        return (others[:, :2].reshape(-1, 1) - own[:, :2].reshape(1, -1)).reshape(-1)
