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

from superkernel.core.forks import wait_for_imports
from superkernel.core.version import __version__

if TYPE_CHECKING:
    from superkernel._core import OversubscriptionWarning
    from superkernel.adaptors.jit import jit
    from superkernel.adaptors.session import InferenceSession
    from superkernel.api import compile, compile_dynamic, export, from_pretrained, load
    from superkernel.backends.aicore.kernel import AicoreKernel
    from superkernel.backends.aicore.report import SimReport
    from superkernel.backends.host.bound import get_include
    from superkernel.backends.host.kernel import HostKernel
    from superkernel.backends.host.report import Report
    from superkernel.builder import GraphBuilder
    from superkernel.codegen.cache import CacheWarning
    from superkernel.compilation.library import Library
    from superkernel.compilation.scoping import ScopeWarning
    from superkernel.compilation.stages import FallbackWarning
    from superkernel.core.dtypes import DType
    from superkernel.core.errors import (
        DataError,
        DeadlineError,
        DeterminismError,
        FileFormatError,
        GraphError,
        InputError,
        InternalError,
        MachineError,
        ManifestError,
        OutputChangedError,
        PolicyError,
        RaceError,
        RegressionError,
        SimulationError,
        SuperKernelError,
        ToleranceError,
        UnsupportedError,
        UserError,
        VerificationError,
        WatchdogError,
        WorkspaceError,
    )
    from superkernel.core.options import Options
    from superkernel.core.tensor import TensorType
    from superkernel.display.tracing import Trace
    from superkernel.ir.graph import Graph, KernelType, Node
    from superkernel.machine import MachineWarning
    from superkernel.runtime.causal import CausalLM
    from superkernel.runtime.dynamic import DynamicKernel
    from superkernel.runtime.kernel import Kernel
    from superkernel.target.aicore import load_target

wait_for_imports()

_MODULES = {
    "CacheWarning": "codegen.cache",
    "OversubscriptionWarning": "_core",
    "InferenceSession": "adaptors.session",
    "jit": "adaptors.jit",
    "compile": "api",
    "compile_dynamic": "api",
    "export": "api",
    "from_pretrained": "api",
    "load": "api",
    "get_include": "backends.host.bound",
    "GraphBuilder": "builder",
    "DType": "core.dtypes",
    "DataError": "core.errors",
    "DeadlineError": "core.errors",
    "DeterminismError": "core.errors",
    "FileFormatError": "core.errors",
    "GraphError": "core.errors",
    "InputError": "core.errors",
    "InternalError": "core.errors",
    "MachineError": "core.errors",
    "ManifestError": "core.errors",
    "OutputChangedError": "core.errors",
    "PolicyError": "core.errors",
    "RaceError": "core.errors",
    "RegressionError": "core.errors",
    "SimulationError": "core.errors",
    "SuperKernelError": "core.errors",
    "ToleranceError": "core.errors",
    "UnsupportedError": "core.errors",
    "UserError": "core.errors",
    "VerificationError": "core.errors",
    "WatchdogError": "core.errors",
    "WorkspaceError": "core.errors",
    "Graph": "ir.graph",
    "KernelType": "ir.graph",
    "Node": "ir.graph",
    "CausalLM": "runtime.causal",
    "DynamicKernel": "runtime.dynamic",
    "Kernel": "runtime.kernel",
    "AicoreKernel": "backends.aicore.kernel",
    "HostKernel": "backends.host.kernel",
    "Options": "core.options",
    "FallbackWarning": "compilation.stages",
    "Library": "compilation.library",
    "MachineWarning": "machine",
    "Report": "backends.host.report",
    "ScopeWarning": "compilation.scoping",
    "SimReport": "backends.aicore.report",
    "load_target": "target.aicore",
    "TensorType": "core.tensor",
    "Trace": "display.tracing",
}

__all__ = [
    "AicoreKernel",
    "CacheWarning",
    "CausalLM",
    "DType",
    "DataError",
    "DeadlineError",
    "DeterminismError",
    "DynamicKernel",
    "FallbackWarning",
    "FileFormatError",
    "Graph",
    "GraphBuilder",
    "GraphError",
    "HostKernel",
    "InferenceSession",
    "InputError",
    "InternalError",
    "Kernel",
    "KernelType",
    "Library",
    "MachineError",
    "MachineWarning",
    "ManifestError",
    "Node",
    "Options",
    "OutputChangedError",
    "OversubscriptionWarning",
    "PolicyError",
    "RaceError",
    "RegressionError",
    "Report",
    "ScopeWarning",
    "SimReport",
    "SimulationError",
    "SuperKernelError",
    "TensorType",
    "ToleranceError",
    "Trace",
    "UnsupportedError",
    "UserError",
    "VerificationError",
    "WatchdogError",
    "WorkspaceError",
    "__version__",
    "compile",
    "compile_dynamic",
    "export",
    "from_pretrained",
    "get_include",
    "jit",
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
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'superkernel' has no attribute {name!r}")
    value = getattr(import_module(f"superkernel.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
