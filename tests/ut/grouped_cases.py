"""Kinds of counts that tests of grouped products share."""

from __future__ import annotations

COUNTS = {
    "even": [8, 8, 8, 8],
    "one expert": [0, 0, 32, 0],
    "nobody": [0, 0, 0, 0],
    "uneven": [1, 0, 17, 9],
    "last": [0, 0, 0, 5],
    "short": [7, 7, 7, 7],
}
