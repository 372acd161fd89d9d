"""Matrix products of any element type: integers with zero points, f64, mixed signedness. Same cuts as the tuned
family."""

from __future__ import annotations

from superkernel.scheduler.families.matmul import MatmulFamily


class GenericMatmulFamily(MatmulFamily):
    """Every dtype; the accumulator decides the width of the vectors."""

    kernels = ("host.matmul.generic",)


FAMILY = GenericMatmulFamily()
