"""The two doors of the package: `compile` and `load`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from superkernel.errors import InputError, UnsupportedError
from superkernel.kernel import Kernel
from superkernel.options import Options

if TYPE_CHECKING:
    import networkx as nx

    from superkernel.graph import Graph

TARGETS = ("host",)
THREADS_MAX = 64


def compile(
    graph: Graph | nx.DiGraph[Any] | str | PathLike[str] | Any,
    target: str = "host",
    threads: int | None = None,
    options: Options | Mapping[str, Any] | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Kernel:
    """Fuse a graph into one kernel.

    graph: a `superkernel.Graph`, a networkx DiGraph/MultiDiGraph (docs/graph-format.md), a path to an .onnx or node-link .json
        file, or an `onnx.ModelProto`.
    target: "host", the CPU at hand.
    threads: worker threads, the calling one included; default: all CPUs the process may use. More than there are CPUs works, slowly,
        with a warning.
    options: `Options`, or a mapping of their names.
    dims, shapes: values of symbolic dimensions, or whole shapes of inputs, of an ONNX model.

    Raises GraphError, InputError, FileFormatError (mend the input), UnsupportedError (cannot be compiled), MachineError."""
    from superkernel.frontends import load_graph
    from superkernel.pipeline import compile_graph

    if target not in TARGETS:
        raise UnsupportedError("unknown target", expected=", ".join(TARGETS), found=repr(target))
    loaded = load_graph(graph, dims=dict(dims or {}), shapes={k: tuple(v) for k, v in (shapes or {}).items()})
    return Kernel(compile_graph(loaded, cores=thread_count(threads), options=Options.of(options)))


def load(path: str | PathLike[str], *, threads: int | None = None) -> Kernel:
    """A kernel saved by `Kernel.save`. On another CPU or with another thread count it is compiled again from the saved graph. Raises
    FileFormatError on a file that is not whole."""
    from superkernel.saved import load_saved

    return Kernel(load_saved(path, None if threads is None else thread_count(threads)))


def thread_count(threads: int | None) -> int:
    """The number of workers asked for, checked; None: the CPUs the process may use."""
    if threads is None:
        import os

        return min(THREADS_MAX, len(os.sched_getaffinity(0)))
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= THREADS_MAX:
        raise InputError("bad number of threads", expected=f"1 to {THREADS_MAX}", found=repr(threads))
    return threads
