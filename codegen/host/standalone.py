"""One body compiled and called on its own: the workbench of kernel tests and tuning (no plan, no runtime, no sync)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray

from superkernel.codegen.host.constants import aligned_bytes
from superkernel.codegen.host.emitters import emit_ir
from superkernel.codegen.host.loader import LoadedCode
from superkernel.codegen.host.lower import compile_ir
from superkernel.codegen.host.recording import MemoryWindow, compile_recorded, recordable
from superkernel.ir.body import Body, Role
from superkernel.scheduler.tiling import Tiling, pack_bytes
from superkernel.target.cpu import CpuTarget


class StandaloneKernel:
    """A compiled body. `run(arrays)` takes one C-contiguous array per operand (constants unpacked, outputs are
    written). With a `window` it records what it touches: operands and scratch must lie there (`run_packed`). `level`:
    of optimisation, 0 to 2, where nothing is recorded."""

    def __init__(
        self,
        kernel: str,
        body: Body,
        tiling: Tiling,
        cpu: CpuTarget,
        window: MemoryWindow | None = None,
        *,
        level: int = 2,
    ) -> None:
        self.body, self.tiling = body, tiling
        text = emit_ir(kernel, body, tiling, cpu if window is None else recordable(cpu))
        self.object = compile_ir(text, cpu, level) if window is None else compile_recorded(text, cpu, window)
        self._code = LoadedCode([self.object])
        kinds = [ctypes.c_void_p] * (len(body.operands) + 1) + [ctypes.c_int64] * 2
        self._call = ctypes.CFUNCTYPE(None, *kinds)(self._code.address("kernel"))
        self._scratch = aligned_bytes(max(64, tiling.scratch_bytes))

    def pack(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Constants replaced by their packed form, everything else as it is."""
        packs = self.tiling.packs(self.body)
        packed = list(arrays)
        for i, (operand, array) in enumerate(zip(self.body.operands, arrays, strict=True)):
            if operand.role is Role.CONSTANT and i in packs:
                data = pack_bytes(packs[i], array)
                packed[i] = aligned_bytes(data.nbytes)
                packed[i][:] = data
        return packed

    def run(self, arrays: Sequence[NDArray[Any]], begin: int = 0, end: int | None = None) -> None:
        """Execute units [begin, end) (default all)."""
        self.run_packed(self.pack(arrays), begin, end)

    def run_packed(
        self,
        packed: Sequence[NDArray[Any]],
        begin: int = 0,
        end: int | None = None,
        scratch: NDArray[Any] | None = None,
    ) -> None:
        """As `run`, on the result of `pack`, and in a scratch of the caller's."""
        stop = self.tiling.units if end is None else end
        own = self._scratch if scratch is None else scratch
        self._call(*(a.ctypes.data for a in packed), own.ctypes.data, begin, stop)

    def prepared(self, packed: Sequence[NDArray[Any]]) -> Callable[[int, int], None]:
        """A call of `run_packed` without what that does per operand: of begin and end. The arrays must stay."""
        return partial(self._call, *(a.ctypes.data for a in packed), self._scratch.ctypes.data)
