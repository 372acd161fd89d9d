"""Kernels compiled in several processes: LLVM under llvmlite holds one lock per process, so threads gain nothing.

Model: a *chunk* is a list of kernels that become one object. The parent keeps some chunks for itself and gives the
others to child processes (`python -m superkernel.codegen.host.workers`, not multiprocessing: a user's script must not
be imported again), pickled over stdin; objects come back over stdout. A child that fails costs time, never the
result: its chunks are compiled by the parent, which then meets the real error.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from superkernel.body import Body
from superkernel.codegen.host.builder import KernelBuilder
from superkernel.codegen.host.emitters import emitter_of
from superkernel.codegen.host.lower import compile_ir
from superkernel.scheduler.tiling import Tiling
from superkernel.target.cpu import CpuTarget

CHUNKS_WORTH_A_CHILD = 2  # a child takes about half a second to start


@dataclass(frozen=True)
class KernelJob:
    """One kernel function to make."""

    symbol: str
    kernel: str
    body: Body
    tiling: Tiling


Chunk = tuple[KernelJob, ...]


def emit_chunk(chunk: Chunk, cpu: CpuTarget) -> str:
    """IR text of one module with the chunk's functions."""
    module = ir.Module(name="kernels")
    for job in chunk:
        kb = KernelBuilder(module, job.symbol, len(job.body.operands), cpu)
        emitter_of(job.kernel)(kb, job.body, job.tiling)
        kb.finish()
    return str(module)


def compile_chunks(chunks: Sequence[Chunk], cpu: CpuTarget, tell: Callable[[int], None]) -> list[bytes]:
    """The object of each chunk. `tell` is called with the number of finished chunks."""
    children = max(0, min(len(os.sched_getaffinity(0)), len(chunks) // CHUNKS_WORTH_A_CHILD) - 1)
    shares = [list(range(len(chunks)))[i :: children + 1] for i in range(children + 1)]
    started = [_Child([chunks[i] for i in share], cpu) for share in shares[1:]]
    done: dict[int, bytes] = {}
    try:
        for i in shares[0]:
            done[i] = compile_ir(emit_chunk(chunks[i], cpu), cpu)
            tell(len(done))
        for child, share in zip(started, shares[1:], strict=True):
            done.update(zip(share, child.objects() or (), strict=False))
            tell(len(done))
    finally:
        for child in started:
            child.close()
    for i in range(len(chunks)):
        if i not in done:
            done[i] = compile_ir(emit_chunk(chunks[i], cpu), cpu)
            tell(len(done))
    return [done[i] for i in range(len(chunks))]


class _Child:
    """A process that compiles some chunks."""

    def __init__(self, chunks: Sequence[Chunk], cpu: CpuTarget) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            assert self._process.stdin is not None
            self._process.stdin.write(pickle.dumps((sys.path, list(chunks), cpu)))
            self._process.stdin.close()
        except OSError:
            self.close()

    def objects(self) -> list[bytes] | None:
        """What it made, or None where it failed."""
        if self._process is None or self._process.stdout is None:
            return None
        data = self._process.stdout.read()
        if self._process.wait() != 0:
            return None
        objects: list[bytes] = pickle.loads(data)
        return objects

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None


def main() -> int:
    """The child: chunks from stdin, objects to stdout."""
    path, chunks, cpu = pickle.load(sys.stdin.buffer)
    sys.path[:] = path
    objects = [compile_ir(emit_chunk(chunk, cpu), cpu) for chunk in chunks]
    sys.stdout.buffer.write(pickle.dumps(objects))
    return 0


if __name__ == "__main__":
    sys.exit(main())
