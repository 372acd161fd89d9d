"""Calls without checks: a kernel bound to fixed buffers, and the preparation of its direct calls.

Model: `Kernel.bind` checks buffers once. From then on a launch is one C++ call on known addresses: `BoundKernel.run`
from Python, the C function of superkernel_call.h (in `get_include()`) from anywhere else. The buffers are the caller's
own arrays: whoever writes the inputs and runs finds the results in the outputs.

Invariants:
 - What a launch writes (outputs, states) overlaps nothing else that it uses.
 - The arrays live as long as the binding and cannot be resized in place meanwhile.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from numpy.typing import NDArray

from superkernel import _core
from superkernel.core.arrays import NamedArrays
from superkernel.core.errors import UnsupportedError
from superkernel.core.tensor import TensorType

if TYPE_CHECKING:
    from superkernel.backends.host.executable import HostExecutable

Array = NDArray[Any]
FUNCTION_TYPE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


def get_include() -> str:
    """The folder of `superkernel_call.h`, the C header of bound kernels' function: for a compiler's -I."""
    return str(Path(__file__).parents[2] / "include")


class BoundKernel(_core.BoundCall):
    """A kernel on fixed buffers, made by `Kernel.bind`. `run()` is one launch without checks or allocation; it raises
    WatchdogError, what NumPy's part raises, and InputError once closed. Several threads may run it: launches take
    turns. It keeps code, buffers and states alive whatever becomes of the Kernel object; `close()`, or leaving a `with`
    block, lets go of them.

    For other languages: `function_address` and `self_address` (docs/getting-started.md), or `function`, the same as a
    ctypes function of one argument."""

    def __init__(
        self,
        executable: HostExecutable,
        name: str,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        states: Mapping[str, Array],
    ) -> None:
        self.name = name
        self._inputs, self._outputs, self._states = dict(inputs), dict(outputs), dict(states)
        io = [*inputs.values(), *outputs.values(), *states.values()]
        # An array that something refers to weakly refuses to be resized in place, even with refcheck=False.
        self._pins = [weakref.ref(array) for array in io]
        _core.prepare_bound(
            self,
            executable.core,
            io,
            executable.watchdog_ns,
            executable.explained,
            partial(executable.run, io) if executable.calls_python else None,
        )

    @property
    def inputs(self) -> Mapping[str, Array]:
        """The bound arrays by name: write here before a run."""
        return NamedArrays(self._inputs)

    @property
    def outputs(self) -> Mapping[str, Array]:
        """The bound arrays by name: read here after a run."""
        return NamedArrays(self._outputs)

    @property
    def states(self) -> Mapping[str, Array]:
        """The kernel's states, shared with it and with other bindings."""
        return NamedArrays(self._states)

    @cached_property
    def function(self) -> Any:
        """The C function by way of ctypes: `function(self_address)` returns a code of `_core.CALL_CODES`, 0 for
        success. ctypes gives up the GIL around it."""
        return FUNCTION_TYPE(self.function_address)

    def close(self) -> None:
        """Refuse further launches, wait for the present one and let go of the buffers. May be called again."""
        super().close()
        self._inputs, self._outputs, self._states, self._pins = {}, {}, {}, []

    def __enter__(self) -> BoundKernel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        hint = "bind the kernel again, where it is needed"
        raise UnsupportedError("a binding cannot be copied or pickled", location=f"kernel {self.name!r}", hint=hint)

    def __repr__(self) -> str:
        return f"<superkernel.BoundKernel {self.name!r}{', closed' if self.closed else ''}>"


def prepare_direct_calls(
    call: _core.DirectCall,
    executable: HostExecutable,
    inputs: Sequence[TensorType],
    outputs: Sequence[TensorType],
    states: Sequence[Array],
) -> None:
    """Let exact calls of `call` run without Python in between. A kernel with host calls goes through Python anyway."""
    if executable.calls_python:
        return
    _core.prepare_direct(
        call,
        executable.core,
        [(t.dtype.numpy, t.shape) for t in inputs],
        [(t.dtype.numpy, t.shape) for t in outputs],
        states,
        executable.watchdog_ns,
        executable.explained,
    )
