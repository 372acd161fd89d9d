"""Exported program -> Graph.

Model: one walk over the needed nodes in order, with an environment node -> tensor. Each node goes to its lowering (see
registry.py), and what it returns is held against the types that torch inferred.

Invariants: operators without a lowering are refused before anything is built, what lowerings refuse when the walk is
through (refusals.py), all at once each, with the module and the source line it stands in. An input keeps the name that
the module gives it; parameters and buffers keep their dotted names, and one that stands under several names is one
constant; a buffer that the program writes to is a state, whose update is what it wrote. Outputs that are None are left
out; a number among the outputs is a constant.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree

from superkernel.builder import GraphBuilder
from superkernel.builder.tensor import Tensor
from superkernel.core.errors import InternalError, SuperKernelError, UnsupportedError, Violation, raise_all
from superkernel.frontends.emitter import Emitter, in_node
from superkernel.frontends.found import FoundSizes
from superkernel.frontends.refusals import refuse_unknown
from superkernel.frontends.torch.call import TorchCall, is_getitem
from superkernel.frontends.torch.capture import needed_nodes
from superkernel.frontends.torch.numbers import computes_number, lower_number
from superkernel.frontends.torch.pairs import Pair, real_type, tensors_of
from superkernel.frontends.torch.refusals import NodeRefusals
from superkernel.frontends.torch.registry import lowering_of
from superkernel.frontends.torch.types import element_type, tensor_array
from superkernel.ir.graph import Graph
from superkernel.padding.counted import Counted
from superkernel.transforms.dead import RemoveDead

_CONTROL_FLOW = ("cond", "while_loop", "scan", "map_impl", "associative_scan")
_RANDOM = ("rand", "bernoulli", "multinomial", "normal", "dropout", "uniform", "poisson", "exponential")


class TorchImporter:
    """Builds the Graph of one exported program. `owned`: nobody else holds its tensors, so they need no copy. `graph`:
    the program's for certain sizes; `found`: of these, those that are data, by what finds them. `read`: constants by
    the memory they come from, for graphs of other sizes too."""

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        *,
        name: str,
        owned: bool,
        graph: torch.fx.Graph | None = None,
        read: dict[tuple[Any, ...], NDArray[Any]] | None = None,
        found: Mapping[Hashable, int] | None = None,
    ) -> None:
        self.program, self.owned = program, owned
        self.source, self.found = program.graph if graph is None else graph, FoundSizes(foreseen=found)
        self.read = {} if read is None else read
        self.builder = GraphBuilder(name)
        self.env: dict[torch.fx.Node, Any] = {}
        self.refusals = NodeRefusals(self.builder, self.env)
        self.nodes = needed_nodes(self.source)
        self.needed = frozenset(self.nodes)
        self.taken: set[str] = set()  # names of inputs and outputs
        self.states: dict[str, Tensor] = {}  # by the buffer's name
        self.shared: dict[tuple[Any, ...], Tensor] = {}  # constants by the memory they come from

    def counted(self) -> Counted:
        """The imported graph with the sizes that data decides."""
        return self.found.counted(self.graph())

    def graph(self) -> Graph:
        """The imported graph, without nodes that no output needs."""
        self.refuse_unknown()
        signature = self.program.graph_signature
        if signature.user_inputs_to_mutate:
            written = ", ".join(map(repr, signature.user_inputs_to_mutate.values()))
            hint = "copy it first, or make it a buffer of the module"
            raise UnsupportedError("the module writes to its inputs", location=f"input {written}", hint=hint)
        outputs = self.output_names()
        self.taken = {*(n for n in outputs if n is not None), *map(str, signature.user_inputs)}
        self.builder.reserve(self.taken)
        self.add_placeholders()
        for node in self.nodes:
            if node.op == "call_function":
                self.walk(node)
            elif node.op == "get_attr":
                target = str(node.target)
                self.env[node] = self.add_constant(target, attrgetter(target)(self.program.graph_module))
        self.refusals.raise_all()
        self.add_outputs(outputs)
        return RemoveDead(constants=True).apply(self.builder.graph())

    # -- refusals before the walk

    def refuse_unknown(self) -> None:
        """Raises UnsupportedError that lists every operator without a lowering, with the places that use it."""
        unknown: dict[str, list[str]] = {}
        for node in self.nodes:
            known = node.op != "call_function" or is_getitem(node) or computes_number(node)
            if not known and lowering_of(node) is None:
                unknown.setdefault(str(node.target), []).append(place(node))
        refuse_unknown("torch", unknown, _refusal_hint, "; ")

    # -- values

    def add_placeholders(self) -> None:
        """Inputs, constants and states, in the program's order; what nothing reads is left out, but for inputs."""
        program = self.program
        nodes = [n for n in self.source.nodes if n.op == "placeholder"]
        written = set(program.graph_signature.buffers_to_mutate.values())
        wrong: list[Violation] = []
        for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True):
            if spec.kind is InputKind.USER_INPUT:
                if isinstance(spec.arg, TensorArgument):
                    self.add_input(node, wrong)
                continue
            target = str(spec.target)
            if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
                if node in self.needed:
                    what = spec.kind.name.lower().replace("_", " ")
                    wrong.append(Violation(f"a {what} is not supported", f"{node.name!r}", "tensors", target))
                continue
            if target in written and spec.kind is InputKind.BUFFER:
                self.env[node] = self.add_state(target, self.contents(target))
            elif node in self.needed:
                self.env[node] = self.add_constant(target, self.contents(target))
        raise_all(UnsupportedError, wrong)

    def add_input(self, node: torch.fx.Node, wrong: list[Violation]) -> None:
        """An input of the graph from a placeholder; adds to `wrong` where it is not dense."""
        value = node.meta["val"]
        where = f"input {node.name!r}"
        if value.layout != torch.strided:
            wrong.append(Violation("only dense tensors can be inputs", where, "strided", str(value.layout)))
            return
        dtype = element_type(value.dtype, where)
        self.env[node] = self.builder.input(node.name, tuple(int(d) for d in value.shape), dtype)

    def contents(self, target: str) -> torch.Tensor:
        """A parameter, buffer or lifted constant by its dotted name."""
        program = self.program
        found = program.constants.get(target)
        found = program.state_dict.get(target) if found is None else found
        if not isinstance(found, torch.Tensor):
            raise InternalError("the program has no such tensor", location=f"value {target!r}")
        return found

    def add_constant(self, target: str, tensor: torch.Tensor) -> Tensor | Pair:
        """A constant; tensors that share their memory whole share the constant."""
        if tensor.is_complex():
            parts = torch.view_as_real(tensor.detach().resolve_conj())
            re, im = (self.real_constant(f"{target}.{n}", parts[..., i]) for i, n in enumerate(("real", "imag")))
            return Pair(re, im)
        return self.real_constant(target, tensor)

    def real_constant(self, target: str, tensor: torch.Tensor) -> Tensor:
        """A constant with a tensor's contents, one for all tensors that share storage and strides."""
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), str(tensor.device))
        found = self.shared.get(key)
        if found is None or not tensor.numel():
            name = target if self.is_free(target) else None
            array = self.read.get(key)
            if array is None:
                array = tensor_array(tensor, f"value {target!r}")
            found = self.shared[key] = self.builder.constant(array, name=name, copy=not self.owned)
            assert found.value.data is not None
            self.read[key] = found.value.data
        return found

    def add_state(self, target: str, tensor: torch.Tensor) -> Tensor:
        """A state that starts with a buffer's contents."""
        name = target
        while not self.is_free(name):
            name += "_state"
        state = self.states[target] = self.builder.state(name, tensor_array(tensor, f"buffer {target!r}"))
        return state

    def is_free(self, name: str) -> bool:
        """True where neither the builder nor the module's own inputs and outputs have the name."""
        return name not in self.taken and self.builder.is_free(name)

    # -- outputs

    def output_names(self) -> list[str | None]:
        """A name per output that the module returns, None for what is left out: "output", "output_1", or the keys of
        the mappings it stands in."""
        spec = self.program.call_spec.out_spec
        arguments = [s.arg for s in self.program.graph_signature.output_specs if s.kind is OutputKind.USER_OUTPUT]
        inputs = set(map(str, self.program.graph_signature.user_inputs))
        tree = pytree.tree_unflatten(list(range(len(arguments))), spec)
        names: list[str | None] = []
        for (path, _), argument in zip(pytree.tree_flatten_with_path(tree)[0], arguments, strict=True):
            if isinstance(argument, ConstantArgument) and argument.value is None:
                names.append(None)
                continue
            parts = [_key(k) for k in path]
            numbered = not parts or parts[0].isdecimal()
            name = "_".join(["output", *parts] if numbered else parts)
            while name in inputs or name in names:
                name += "_out"
            names.append(name)
        return names

    def add_outputs(self, names: Sequence[str | None]) -> None:
        """Declares outputs, and updates of buffers that the program changes. `names` in order; None: left out."""
        signature = self.program.graph_signature
        returned = next(n for n in self.nodes if n.op == "output").args[0]
        wanted = iter(names)
        for spec, value in zip(signature.output_specs, returned, strict=True):
            if spec.kind is OutputKind.BUFFER_MUTATION:
                tensor = self.env[value]
                if tensor.value.record is None:
                    (tensor,) = self.builder.apply("identity", (tensor,))
                self.builder.update(self.states[str(spec.target)], tensor)
                continue
            if spec.kind.name == "PARAMETER_MUTATION":
                hint = "make it a buffer (register_buffer): buffers that are written to become states"
                raise UnsupportedError("the module writes to a parameter", location=f"{spec.target!r}", hint=hint)
            if spec.kind is not OutputKind.USER_OUTPUT:
                kind = spec.kind.name.lower().replace("_", " ")
                raise UnsupportedError("this kind of output is not supported", location=f"output {value}", found=kind)
            name = next(wanted)
            if name is None:
                continue
            tensor = (
                self.real_output(value, name)
                if isinstance(value, torch.fx.Node)
                else self.builder.constant(_number(value, name))
            )
            if tensor.value.data is not None:
                tensor = self.builder.constant(tensor.value.data, name=name)
            self.builder.output(tensor, name=name)

    def real_output(self, node: torch.fx.Node, name: str) -> Tensor:
        """What an output is bound to. Raises UnsupportedError on a complex one."""
        found = self.env[node]
        if isinstance(found, Pair):
            hint = "return torch.view_as_real of it"
            raise UnsupportedError("an output is complex", location=f"output {name!r}", expected="real", hint=hint)
        tensor: Tensor = found
        return tensor

    # -- the walk

    def walk(self, node: torch.fx.Node) -> None:
        """Lowers one node; a refused one is kept aside, so that all refusals are raised together."""
        if self.refusals.passes_over(node):
            return
        where = f"node {place(node)} ({node.target})"
        try:
            self.env[node] = self.env[node.args[0]][node.args[1]] if is_getitem(node) else self.lower(node, where)
        except UnsupportedError as error:
            stand_ins = self.refusals.add(node, in_node(error, where))
            if stand_ins is not None:
                several = isinstance(node.meta.get("val"), (tuple, list))
                self.env[node] = stand_ins if several else stand_ins[0]
        except SuperKernelError as error:
            self.refusals.raise_all()  # of which it may be a consequence
            raise in_node(error, where) from error
        else:
            self.refusals.follow(node)

    def lower(self, node: torch.fx.Node, where: str) -> Any:
        """What a node computes: a tensor, or a list of them."""
        path = module_path(node)
        stem = f"{path}/{node.name}" if path else node.name
        if computes_number(node):
            return lower_number(Emitter(self.builder, stem, where), node, self.env)
        lowering = lowering_of(node)
        assert lowering is not None
        call = TorchCall(self.builder, node, self.env, self.needed, stem, where, self.found)
        if any(not isinstance(d, int) for v in call.values if isinstance(v, torch.Tensor) for d in v.shape):
            hint = "a mask as an index, for one; torch.where keeps the shape"
            raise call.unsupported("a shape depends on data", hint=hint)
        lowered = lowering(call)
        results: list[Any] = [lowered] if isinstance(lowered, (Tensor, Pair)) else list(lowered)
        several = isinstance(node.meta.get("val"), (tuple, list))
        for index, (tensor, value) in enumerate(zip(results, call.values, strict=False)):
            if tensor is None:
                continue
            for part in tensors_of(tensor):
                held_against(part, value, f"{where}, output {index}")
            if isinstance(tensor, Pair):
                continue
            self.builder.rename(tensor, f"{call.stem}:{index}" if several else call.stem, final=False)
        return results if several else results[0]


def held_against(tensor: Tensor, value: Any, where: str) -> None:
    """Raises InternalError where a lowering's result has another type than torch inferred."""
    expected = (element_type(real_type(value.dtype), where), tuple(value.shape))
    if (tensor.dtype, tensor.shape) != expected:
        found = f"{tensor.dtype}{list(tensor.shape)}"
        wanted = f"{expected[0]}{list(expected[1])}"
        raise InternalError("the lowering gives another type than torch", location=where, expected=wanted, found=found)


def place(node: torch.fx.Node) -> str:
    """Where a node comes from: its name, the module, and the innermost source line of the user's own."""
    parts = [repr(node.name)]
    path = module_path(node)
    if path:
        parts.append(f"module {path!r}")
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    theirs = [(file, line) for file, line in lines if not file.startswith(("<", *_NOT_THEIRS))]
    if theirs:
        file, line = theirs[-1]
        parts.append(f"{Path(file).name}:{line}")
    return ", ".join(parts)


_NOT_THEIRS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))


def module_path(node: torch.fx.Node) -> str:
    """The dotted name of the module whose forward the node stands in; empty for the outermost."""
    stack = node.meta.get("nn_module_stack") or {}
    path = str(next(reversed(stack.values()))[0]) if stack else ""
    return path.removeprefix("L['self']").removeprefix(".")


def _key(entry: Any) -> str:
    """One step of a path into nested outputs."""
    for name in ("key", "name", "idx"):
        if hasattr(entry, name):
            return str(getattr(entry, name))
    return str(entry)


def _number(value: Any, name: str) -> Any:
    """An output that is a Python number, as an array."""
    if isinstance(value, (bool, int, float)):
        return np.asarray(value, {bool: np.bool_, int: np.int64, float: np.float64}[type(value)])
    found = type(value).__name__
    raise UnsupportedError("an output is neither tensor nor number", location=f"output {name!r}", found=found)


def _refusal_hint(target: str) -> str:
    name = target.rpartition("aten.")[2]
    if any(word in target for word in _CONTROL_FLOW) and "aten" not in target:
        return "control flow that depends on data cannot be fused; compile the branches on their own"
    if any(word in name for word in _RANDOM):
        return "random numbers are for training; make the sample an input"
    if "complex" in name or "fft" in name:
        return "of complex numbers products, sums, moves and Fourier transforms are supported"
    if "aten" not in target:
        return "register the operator's decomposition, or write it with torch's own operators"
    return "see docs/operators.md for what there is to express it with"
