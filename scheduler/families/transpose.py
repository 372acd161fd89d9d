"""host.transpose: permutations of dimensions, cut as pointwise programs are (see pointwise: units are blocks of a
plane)."""

from __future__ import annotations

from superkernel.scheduler.families.pointwise import FAMILY

__all__ = ["FAMILY"]
