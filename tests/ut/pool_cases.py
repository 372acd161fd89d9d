"""Pools with windows that the tests of several kernels share."""

from __future__ import annotations

from typing import Any

WINDOWED: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("max_pool", (1, 5, 13, 17), {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    (
        "max_pool",
        (1, 3, 13, 17),
        {"kernel": (3, 2), "strides": (2, 1), "pads": (1, 0, 0, 1), "dilations": (2, 2), "ceil_mode": True},
    ),
    ("max_pool", (2, 3, 40), {"kernel": (5,), "strides": (3,), "pads": (2, 2)}),
    ("max_pool", (2, 3, 5, 6, 7), {"kernel": (2, 3, 2), "strides": (1, 2, 2), "pads": (1, 1, 1, 0, 1, 0)}),
    ("max_pool", (1, 1, 30, 30), {"kernel": (12, 12), "strides": (5, 5)}),
    ("avg_pool", (2, 3, 20, 21), {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    (
        "avg_pool",
        (2, 3, 20, 21),
        {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "count_include_pad": True, "ceil_mode": True},
    ),
    ("avg_pool", (2, 3, 5, 6, 7), {"kernel": (2, 3, 2), "strides": (1, 2, 2), "pads": (1, 1, 1, 0, 1, 0)}),
    ("avg_pool", (1, 1, 1, 1), {"kernel": (1, 1)}),
    ("lp_pool", (2, 3, 9, 21), {"kernel": (3, 3), "p": 1}),
    ("lp_pool", (2, 3, 9, 21), {"kernel": (3, 3), "p": 2}),
    ("lp_pool", (1, 3, 9, 21), {"kernel": (3, 3), "p": 3}),
]
