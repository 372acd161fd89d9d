"""host.transpose: permutations of dimensions. A copy through a transposed view is a pointwise program with a plane;
see pointwise and plane."""

from __future__ import annotations

from superkernel.codegen.host.pointwise import EMIT

__all__ = ["EMIT"]
