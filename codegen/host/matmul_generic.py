"""Code for matrix products of any element type: the tuned kernels' loops with the accumulator that the types ask
for."""

from __future__ import annotations

from superkernel.codegen.host.emitters import Emitter
from superkernel.codegen.host.matmul import emit_matmul

EMIT: dict[str, Emitter] = {"host.matmul.generic": emit_matmul}
