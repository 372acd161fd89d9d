"""`DynamicKernel`: kernels of one source for whatever sizes arrive, made when they are first needed.

Every kernel is planned and proved for its sizes as any other, and computes the same bits as one that was compiled for
them alone. The machine code of sub-operators that do not change with the sizes is found in the cache. Packed constants
belong to a kernel: what all kept kernels hold grows with their number (`kernels_max`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np

from superkernel.core.errors import InputError, UnsupportedError, Violation, raise_all
from superkernel.frontends.dynamic import DynamicInput, DynamicSource, Ranges, sizes_of
from superkernel.ir.graph import Graph
from superkernel.runtime.inputs import bind_arguments, inputs_given
from superkernel.runtime.kernel import Kernel
from superkernel.runtime.result import RunReport, RunResult

KERNELS_MAX = 16


class DynamicKernel:
    """See the module docstring. Made by `superkernel.compile_dynamic`. Several threads may call it.

    Call: `kernel(*arrays, **named)`; the arrays' shapes tell the sizes, which must lie in their ranges, else
    InputError. The first call with new sizes compiles."""

    def __init__(self, source: DynamicSource, make: Callable[[Graph], Kernel]) -> None:
        self._source, self._make = source, make
        self._kernels: OrderedDict[tuple[int, ...], Kernel] = OrderedDict()
        self._kernels_max = KERNELS_MAX
        self._lock = Lock()

    @property
    def dims(self) -> Ranges:
        """Dimension -> least and largest size."""
        return self._source.ranges

    @property
    def inputs(self) -> Mapping[str, DynamicInput]:
        """Types of inputs by name, in call order; extents by dimensions."""
        return self._source.inputs

    @property
    def kernels_max(self) -> int:
        """How many kernels are kept; of more, the one that was not used for longest goes. 16 unless it is set."""
        return self._kernels_max

    @kernels_max.setter
    def kernels_max(self, count: int) -> None:
        if not isinstance(count, int) or count < 1:
            raise InputError("not a number of kernels", location="kernels_max", expected=">= 1", found=repr(count))
        self._kernels_max = count
        with self._lock:
            self._shrink()

    @property
    def compiled(self) -> list[dict[str, int]]:
        """The sizes that there is a kernel for; those used last come last."""
        with self._lock:
            return [dict(zip(self.dims, sizes, strict=True)) for sizes in self._kernels]

    def at(self, **sizes: int) -> Kernel:
        """The kernel for given sizes, compiled where there is none: to compile ahead, to report, explain, save. Raises
        InputError, and what compiling raises."""
        wrong = [Violation(f"no dimension {n!r}", expected=", ".join(self.dims)) for n in sizes if n not in self.dims]
        chosen = {name: low for name, (low, high) in self.dims.items() if low == high} | sizes
        for name, (low, high) in self.dims.items():
            size = chosen.get(name)
            if size is None or not low <= size <= high:
                wrong.append(Violation("no such size", f"dimension {name!r}", f"{low} to {high}", str(size)))
        raise_all(InputError, wrong)
        return self._at(tuple(int(chosen[name]) for name in self.dims))

    def __call__(self, *args: Any, **named: Any) -> Any:
        bound = bind_arguments(self.inputs, args, named)
        return self._for(bound)(**bound)

    def run(self, inputs: Mapping[str, Any] | Sequence[Any] | None = None, **named: Any) -> RunResult[RunReport]:
        """Run once and return outputs by name: `Kernel.run` of the kernel for the inputs' shapes. Inputs: a mapping, a
        list, or by keyword."""
        given = inputs_given(inputs, named)
        if isinstance(given, Mapping):
            bound = bind_arguments(self.inputs, (), given)
        else:
            bound = bind_arguments(self.inputs, given or (), {})
        return self._for(bound).run(bound)

    def __repr__(self) -> str:
        ranges = ", ".join(f"{name} {low} to {high}" for name, (low, high) in self.dims.items())
        return f"<DynamicKernel: {ranges}; {len(self._kernels)} compiled>"

    def _for(self, bound: Mapping[str, Any]) -> Kernel:
        sizes = sizes_of(self._source, {name: np.shape(value) for name, value in bound.items()})
        return self._at(tuple(sizes[name] for name in self.dims))

    def _at(self, sizes: tuple[int, ...]) -> Kernel:
        with self._lock:
            kernel = self._kernels.get(sizes)
            if kernel is None:
                graph = self._source.load(dict(zip(self.dims, sizes, strict=True)))
                if graph.states:
                    found = ", ".join(map(repr, graph.states))
                    raise UnsupportedError("states, of which each kernel would have its own", found=found)
                kernel = self._kernels[sizes] = self._make(graph)
            self._kernels.move_to_end(sizes)
            self._shrink()
            return kernel

    def _shrink(self) -> None:
        while len(self._kernels) > self._kernels_max:
            self._kernels.popitem(last=False)
