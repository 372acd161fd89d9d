"""The backend of `torch.compile`: `torch.compile(model, backend="superkernel", options={...})`, or, where the package
is not installed but only importable, `backend=superkernel.dynamo.backend`.

Model: what TorchDynamo hands over is a graph with parameters and buffers among its inputs. These become constants, the
rest is compiled as any module is; whole numbers among the inputs are what changing dimensions are known by, and there
is a kernel for each combination that was met, made at the first call with it. Each call looks whether a parameter
has been replaced or written to since, and compiles anew where one has.

What cannot be compiled runs in eager mode, said once per graph with the reason (`EagerWarning`; an error with the
option `fallback="forbid"`): graphs that record gradients, torch.autocast, tensors outside of the CPU's memory,
operators without a lowering. Buffers that a graph writes to are copied into the kernel and back. Outputs that share
memory with inputs or with one another in eager mode do so here (`frontends/torch/views.py`).
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, TypeAlias

import torch
from torch.autograd import forward_ad

from superkernel.api import compile as compile_graph
from superkernel.api import thread_count
from superkernel.core.errors import GraphError, InputError, InternalError, SuperKernelError, UnsupportedError
from superkernel.core.option import did_you_mean
from superkernel.core.options import OPTIONS, Options
from superkernel.frontends import load_graph
from superkernel.frontends.torch.capture import tracing
from superkernel.frontends.torch.types import array_tensor, tensor_array
from superkernel.frontends.torch.views import SharedResults
from superkernel.runtime.kernel import Kernel

KERNELS_MAX = 16
"""Kernels that a graph with changing dimensions keeps; beyond, the one that was not called for longest goes."""

Arguments: TypeAlias = tuple[Any, ...]


class EagerWarning(UserWarning):
    """A graph of torch.compile runs in eager mode; the text says why."""


def backend(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """What runs in the graph's place. `options`: "threads" (default: torch's number of threads), and the options of
    `superkernel.compile` by name; the first call raises InputError on others."""
    return DynamoGraph(graph, example_inputs, dict(options or {}))


class DynamoGraph:
    """A graph of TorchDynamo with its kernels. Several threads may call it."""

    def __init__(self, graph: torch.fx.GraphModule, example_inputs: Sequence[Any], options: dict[str, Any]) -> None:
        self.graph = graph
        self.threads = options.pop("threads", torch.get_num_threads())
        self.options = options
        self.constants = [i for i, value in enumerate(example_inputs) if _is_kept(value)]
        self.sizes = [i for i, value in enumerate(example_inputs) if not isinstance(value, torch.Tensor)]
        self.results = SharedResults(graph)
        self.strided = any(getattr(n.target, "__name__", n.target) in _STRIDED for n in graph.graph.nodes)
        self._kernels: OrderedDict[tuple[int, ...], _Variant] = OrderedDict()
        self._eager = ""
        self._lock = Lock()

    def __call__(self, *arguments: Any) -> Any:
        if not self._eager and not self.results.only_views:
            try:
                if _has_tangents(arguments):  # at this call: TorchDynamo takes the same graph for both
                    raise _Tangents("tangents of forward-mode differentiation", hint="call it outside of dual_level()")
                variant = self._variant(arguments)
            except (UnsupportedError, InternalError, GraphError) as error:
                if self.options.get("fallback") == "forbid":
                    raise
                self._leave_to_eager(error)
            else:
                return variant(arguments)
        return self.graph(*arguments)

    def _variant(self, arguments: Arguments) -> _Variant:
        """The kernel for these arguments, made where there is none. Raises SuperKernelError."""
        sizes = tuple(int(arguments[i]) for i in self.sizes)
        kept = [arguments[i] for i in self.constants]
        with self._lock:
            variant = self._kernels.get(sizes)
            if variant is None or not variant.holds(kept):
                _check(self.options, self.threads)
                _refuse(arguments, self.strided)
                variant = self._kernels[sizes] = _Variant(self, arguments)
            self._kernels.move_to_end(sizes)
            while len(self._kernels) > KERNELS_MAX:
                self._kernels.popitem(last=False)
        return variant

    def _leave_to_eager(self, error: SuperKernelError) -> None:
        if not isinstance(error, _Tangents):
            self._eager = str(error)
            self._kernels.clear()
        warnings.warn(f"a graph of torch.compile runs in eager mode: {error}", EagerWarning, stacklevel=3)


class _Variant:
    """One kernel: for the parameters as they are and for one size of everything."""

    def __init__(self, owner: DynamoGraph, arguments: Arguments) -> None:
        constants = {i: arguments[i] for i in owner.constants}
        numbers = {i: int(arguments[i]) for i in owner.sizes}
        self._given = [i for i in range(len(arguments)) if i not in constants and i not in numbers]
        self._results = owner.results
        self._made: list[Any] = []
        self._computed: list[int] = []
        module = _Frozen(owner.results.computing(), constants, numbers, self._given, self._sorted)
        with tracing(UserWarning), torch.inference_mode(False), torch.no_grad():  # about attributes of graphs
            graph = load_graph(module, example_inputs=tuple(arguments[i] for i in self._given))
        names = {module.name_of(i): i for i in constants}
        self._written = {name: arguments[names[name]] for name in graph.states}
        self._kept = list(constants.values())
        self._read = [t for t in self._kept if not any(t is w for w in self._written.values())]
        self._versions = [_version(t) for t in self._read]
        self._memory = [t.detach() for t in self._read]  # held, so that no other tensor gets its address
        self._addresses = [t.data_ptr() for t in self._memory]
        self._kernel: Kernel = compile_graph(graph, threads=owner.threads, options=owner.options)
        self._turn = Lock()

    def _sorted(self, outputs: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs that the kernel computes; notes the others."""
        self._made = [None if isinstance(v, torch.Tensor) else v for v in outputs]
        self._computed = [i for i, v in enumerate(outputs) if isinstance(v, torch.Tensor)]
        if not self._computed:
            raise UnsupportedError("the graph computes no tensor")
        return tuple(outputs[i] for i in self._computed)

    def holds(self, kept: Sequence[torch.Tensor]) -> bool:
        """Whether parameters and buffers are those that were compiled, and those that are only read as they were."""
        if not all(a is b for a, b in zip(kept, self._kept, strict=True)):
            return False
        there = self._addresses == [t.data_ptr() for t in self._read]
        return there and self._versions == [_version(t) for t in self._read]

    def __call__(self, arguments: Arguments) -> list[Any]:
        given = [_array(arguments[i]) for i in self._given]
        if self._written:
            with self._turn:
                for name, buffer in self._written.items():
                    self._kernel.states[name][...] = _array(buffer)
                computed = self._kernel(*given)
                for name, buffer in self._written.items():
                    buffer.copy_(array_tensor(self._kernel.states[name]))
        else:
            computed = self._kernel(*given)
        arrays = computed if isinstance(computed, tuple) else (computed,)
        made = self._made.copy()
        for i, array in zip(self._computed, arrays, strict=True):
            made[i] = array_tensor(array)
        return self._results.of(made, arguments)


class _Frozen(torch.nn.Module):  # type: ignore[misc]  # torch is optional, and Any to the type checker
    """The graph as a module of the remaining inputs: parameters are buffers, sizes are numbers."""

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        constants: Mapping[int, torch.Tensor],
        numbers: Mapping[int, int],
        given: Sequence[int],
        select: Callable[[Sequence[Any]], tuple[Any, ...]],
    ) -> None:
        super().__init__()
        self._graph, self._numbers, self._given, self._select = graph, numbers, given, select
        self._constants = list(constants)
        for i, tensor in constants.items():
            self.register_buffer(self.name_of(i), tensor.detach())
        self.eval()

    @staticmethod
    def name_of(index: int) -> str:
        """The name of the buffer that an input of the graph became."""
        return f"constant_{index}"

    def forward(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        values: dict[int, Any] = {**self._numbers, **dict(zip(self._given, inputs, strict=True))}
        values.update((i, getattr(self, self.name_of(i))) for i in self._constants)
        return self._select(self._graph(*(values[i] for i in range(len(values)))))


def _check(options: Mapping[str, Any], threads: Any) -> None:
    """Raises InputError on options that there are not, ahead of what would leave the graph to eager mode: there nobody
    would notice. Not where torch hands them over: it would wrap the error into one of its own."""
    known = ["threads", *OPTIONS]
    if unknown := [str(name) for name in options if name not in known]:
        raise InputError(
            "unknown option",
            location="options of torch.compile",
            expected=", ".join(known),
            found=", ".join(unknown),
            hint=did_you_mean(unknown, known),
        )
    Options.of(options)
    thread_count(threads)


_STRIDED = ("as_strided", "stride")
"""What goes by where elements lie in memory."""


def _refuse(arguments: Arguments, strided: bool) -> None:
    """Raises UnsupportedError where torch has to run the graph itself. `strided`: it has operators of `_STRIDED`."""
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    if strided and not all(t.is_contiguous() for t in tensors):
        raise UnsupportedError("strides of a tensor that is not contiguous", hint="call contiguous() on it")
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        hint = "call the model under torch.no_grad() or torch.inference_mode()"
        raise UnsupportedError("gradients are recorded", hint=hint)
    if torch.is_autocast_enabled("cpu"):
        hint = "call it outside of torch.autocast, with a model in bf16 or with the option precision"
        raise UnsupportedError("torch.autocast chooses types inside of the graph", hint=hint)
    places = sorted({str(t.device) for t in tensors if t.device.type != "cpu"})
    if places:
        raise UnsupportedError("tensors outside of the CPU's memory", found=", ".join(places))


class _Tangents(UnsupportedError):
    """What torch has to run itself this time; the next call may be another."""


def _has_tangents(arguments: Arguments) -> bool:
    """Whether forward-mode derivatives are asked for."""
    if forward_ad._current_level < 0:
        return False
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    return any(forward_ad.unpack_dual(t).tangent is not None for t in tensors)


def _is_kept(value: Any) -> bool:
    """Whether an input of the graph is a parameter or buffer of a module: what TorchDynamo takes to stay."""
    static = getattr(value, "_dynamo_static_input_type", None) is not None
    return isinstance(value, torch.Tensor) and (static or isinstance(value, torch.nn.Parameter))


def _version(tensor: torch.Tensor) -> int:
    """How often the tensor was written to; those of inference mode do not count."""
    return -1 if tensor.is_inference() else tensor._version


def _array(tensor: torch.Tensor) -> Any:
    """A tensor's elements as NumPy has them; bf16 as ml_dtypes has it."""
    return tensor_array(tensor.detach(), "")
