"""The IR of host kernels. Model: a *chunk* is a list of kernels that become one object."""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from superkernel.codegen.host.builder import KernelBuilder
from superkernel.codegen.host.emitters import emitter_in
from superkernel.ir.body import Body
from superkernel.scheduler.tiling import Tiling
from superkernel.target.cpu import CpuTarget


@dataclass(frozen=True)
class KernelJob:
    """One kernel function to make."""

    symbol: str
    emitter: str  # its module
    body: Body
    tiling: Tiling


Chunk = tuple[KernelJob, ...]


def emit_chunk(chunk: Chunk, cpu: CpuTarget) -> str:
    """IR text of one module with the chunk's functions."""
    module = ir.Module(name="kernels")
    for job in chunk:
        kb = KernelBuilder(module, job.symbol, len(job.body.operands), cpu)
        emitter_in(job.emitter)(kb, job.body, job.tiling)
        kb.finish()
    return str(module)
