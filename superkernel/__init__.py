"""SuperKernel: a whole graph of operators as one multi-core kernel, with proved and measured synchronisation.

    import numpy as np, superkernel as sk

    b = sk.GraphBuilder("mlp")
    x = b.input("x", (1, 256), "f32")
    b.output(b.relu(b.matmul(x, b.constant(np.eye(256, dtype=np.float32)))), name="y")
    kernel = sk.compile(b.graph(), threads=2)
    y = kernel(np.ones((1, 256), np.float32))

Names are loaded on first use, so `import superkernel` is fast and needs neither LLVM nor ONNX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from superkernel.analysis.report import Report
    from superkernel.analysis.sim_report import SimReport
    from superkernel.analysis.tracing import Trace
    from superkernel.api import compile, load
    from superkernel.bound import get_include
    from superkernel.builder import GraphBuilder
    from superkernel.compilation.scoping import ScopeWarning
    from superkernel.compilation.stages import FallbackWarning
    from superkernel.dtypes import DType
    from superkernel.errors import (
        DataError,
        FileFormatError,
        GraphError,
        InputError,
        InternalError,
        MachineError,
        SimulationError,
        SuperKernelError,
        UnsupportedError,
        UserError,
        VerificationError,
        WatchdogError,
    )
    from superkernel.graph import Graph, KernelType, Node
    from superkernel.kernel import Kernel
    from superkernel.kernels import AicoreKernel, HostKernel
    from superkernel.options import Options
    from superkernel.target.aicore import load_target
    from superkernel.tensor import TensorType

_HOMES = {
    "compile": "api",
    "load": "api",
    "get_include": "bound",
    "GraphBuilder": "builder",
    "DType": "dtypes",
    "DataError": "errors",
    "FileFormatError": "errors",
    "GraphError": "errors",
    "InputError": "errors",
    "InternalError": "errors",
    "MachineError": "errors",
    "SimulationError": "errors",
    "SuperKernelError": "errors",
    "UnsupportedError": "errors",
    "UserError": "errors",
    "VerificationError": "errors",
    "WatchdogError": "errors",
    "Graph": "graph",
    "KernelType": "graph",
    "Node": "graph",
    "Kernel": "kernel",
    "AicoreKernel": "kernels",
    "HostKernel": "kernels",
    "Options": "options",
    "FallbackWarning": "compilation.stages",
    "Report": "analysis.report",
    "ScopeWarning": "compilation.scoping",
    "SimReport": "analysis.sim_report",
    "load_target": "target.aicore",
    "TensorType": "tensor",
    "Trace": "analysis.tracing",
}

__all__ = [
    "AicoreKernel",
    "DType",
    "DataError",
    "FallbackWarning",
    "FileFormatError",
    "Graph",
    "GraphBuilder",
    "GraphError",
    "HostKernel",
    "InputError",
    "InternalError",
    "Kernel",
    "KernelType",
    "MachineError",
    "Node",
    "Options",
    "Report",
    "ScopeWarning",
    "SimReport",
    "SimulationError",
    "SuperKernelError",
    "TensorType",
    "Trace",
    "UnsupportedError",
    "UserError",
    "VerificationError",
    "WatchdogError",
    "__version__",
    "compile",
    "get_include",
    "load",
    "load_target",
]


def _refuse_subinterpreters() -> None:
    """The extension module would hang in another interpreter than the first of the process: say so instead."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # of Python 3.13, and before
        try:
            interpreters = import_module(name)
        except ImportError:
            continue
        if interpreters.get_current() != interpreters.get_main():
            raise ImportError(
                "superkernel works in the main interpreter of a process only, this is a subinterpreter (hint: use a "
                "thread or a process; under mod_wsgi set WSGIApplicationGroup %{GLOBAL})"
            )
        return


_refuse_subinterpreters()


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'superkernel' has no attribute {name!r}")
    value = getattr(import_module(f"superkernel.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
