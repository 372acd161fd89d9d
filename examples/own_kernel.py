"""A kernel of one's own, for the host and for the simulated accelerator: sums of rows, without the package's emitters.

    python examples/own_kernel.py
    superkernel --kernels examples/own_kernel.py kernels test 'example.*'

Declares for each target what the kernel computes and demands, how its work is cut (a unit is a row), which bytes a
range of units touches, what that takes, and writes its code. Then compiles a graph with it, shows that it was taken,
and compares with NumPy. docs/own-kernels.md explains every part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import superkernel as sk
from superkernel.kernels import (
    ROW_SUMS,
    Access,
    AicoreKernelBuilder,
    AicoreTarget,
    Body,
    CpuTarget,
    DType,
    HostTiling,
    KernelBuilder,
    KernelFamily,
    Local,
    Region,
    UnsupportedError,
    VectorTiling,
    kernel,
    vector_loop,
)

PROBLEMS = ("reduce_sum(f32[5,37]; axes=(1,))", "reduce_sum(f32[3,4,128]; axes=(2,), keepdims=false)")


def rows_of(body: Body) -> tuple[int, int]:
    """Rows and columns. Raises UnsupportedError where it is not the last dimension of a dense tensor that is summed."""
    kind = body.anchor_input_types[0]
    axes = body.attr["axes"]
    if kind is None or not isinstance(axes, tuple) or [int(a) % kind.rank for a in axes] != [kind.rank - 1]:
        raise UnsupportedError("sums of the last dimension only")
    columns = kind.shape[-1]
    return kind.size // max(1, columns), columns


def touched(body: Body, columns: int, begin: int, end: int) -> tuple[Access, ...]:
    """Rows [begin, end) are read, a number each is written."""
    if begin >= end:
        return ()
    read = Access(0, False, (Region(begin * columns * 4, (end - begin) * columns * 4),))
    written = Access(len(body.operands) - 1, True, (Region(begin * 4, (end - begin) * 4),))
    return (read, written)


# The host ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostRows(HostTiling):
    """A unit is a row."""

    rows: int
    columns: int

    @property
    def units(self) -> int:
        return self.rows

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        return touched(body, self.columns, begin, end)

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        return (end - begin) * (2.0 + self.columns * 4 / target.vector_bytes * 0.5)


class HostRowSums(KernelFamily[CpuTarget]):
    """Dense rows, stored as they are."""

    stores_only = True

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostRows]:
        return (HostRows(*rows_of(body)),)


@kernel(
    id="example.row_sum", ops=("reduce_sum",), family=HostRowSums(), micro="reduce",
    dtypes=frozenset({DType.F32}), typed=True, rounding=ROW_SUMS, problems=PROBLEMS,
)  # fmt: skip
def emit_host(kb: KernelBuilder, body: Body, tiling: HostRows) -> None:
    """One vector of partial sums per row; what is left of a row behind whole vectors is added at the end."""
    lanes = kb.cpu.vector_bytes // 4
    source, result = kb.operands[0], kb.operands[len(body.operands) - 1]
    zero = kb.const(0.0, DType.F32)
    with kb.loop(kb.begin, kb.end, name="row") as row:
        start, total = kb.mul(row, tiling.columns), kb.carry(zero.type, zero)
        partial = kb.carry(kb.splat(zero, lanes).type, kb.splat(zero, lanes))

        def add(position: object, width: int) -> None:
            value = kb.load(source, kb.add(start, position), DType.F32, width)
            if width == lanes:
                partial.set(kb.b.fadd(partial.get(), value))
            else:
                total.set(kb.b.fadd(total.get(), kb.reduce_lanes("fadd", value)))

        vector_loop(kb, tiling.columns, lanes, add)
        kb.store(kb.b.fadd(total.get(), kb.reduce_lanes("fadd", partial.get())), result, row, DType.F32)


# The accelerator -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VectorRows(VectorTiling):
    """A unit is a row, which fits into the memory of a vector core twice."""

    rows: int
    columns: int

    @property
    def units(self) -> int:
        return self.rows

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        return touched(body, self.columns, begin, end)

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        load = target.move_cycles("rates.gm_to_ub_gb_per_s", 1, self.columns * 4)
        return (end - begin) * (load + target.vector.startup_cycles + target.dma.store_startup_cycles)


class VectorRowSums(KernelFamily[AicoreTarget]):
    """Dense rows, stored as they are."""

    stores_only = True

    def tilings(self, kernel: str, body: Body, target: AicoreTarget) -> Sequence[VectorRows]:
        rows, columns = rows_of(body)
        if 2 * (columns * 4 + 64) > target.memory.ub_bytes:
            raise UnsupportedError("a row does not fit")
        return (VectorRows(rows, columns),)


@kernel(
    on="aicore", id="example.row_sum", ops=("reduce_sum",), family=VectorRowSums(), micro="reduce",
    dtypes=frozenset({DType.F32}), rounding=ROW_SUMS, problems=PROBLEMS,
)  # fmt: skip
def emit_vector(kb: AicoreKernelBuilder, body: Body, tiling: VectorRows) -> None:
    """A ring of two rows: while one is summed, the next one comes."""
    nbytes = tiling.columns * 4
    ring = kb.ring("row", 2)
    row, total = kb.buffer(ring, Local.UB, nbytes, "row"), kb.buffer(ring, Local.UB, 4, "total")
    with kb.loop(kb.begin, kb.end) as unit, kb.turn(ring):
        kb.issue("gm_to_ub", dst=row, src=kb.operand(0, unit * nbytes), bytes=nbytes)
        kb.issue("v_sum", DType.F32, dst=total, src=row, rows=1, cols=tiling.columns, scope="whole")
        kb.issue("ub_to_gm", dst=kb.operand(len(body.operands) - 1, unit * 4), src=total, bytes=4)


def main() -> None:
    """Compile with it, run, compare."""
    b = sk.GraphBuilder("row sums")
    b.output(b.reduce_sum(b.input("x", (64, 300)), axes=(1,)))
    graph, x = b.graph(), np.random.default_rng(0).standard_normal((64, 300)).astype(np.float32)
    for target, options in (("host", {}), ("mini", {"precision": "f32"})):
        compiled = sk.compile(graph, target=target, options={"pin": ("example.row_sum",), **options})
        decisions = compiled.explain(0)
        (result,) = compiled.run({"x": x}).outputs.values()
        error = np.abs(result.reshape(-1) - x.sum(1, dtype=np.float64)).max()
        print(f"{target}: {decisions.kernel}, symbol {decisions.symbols[0]}, error {error:.1e}")
        assert decisions.kernel == "example.row_sum"
        assert error < 1e-4


if __name__ == "__main__":
    main()
