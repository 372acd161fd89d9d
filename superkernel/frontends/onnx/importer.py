"""ONNX model -> Graph.

Model: one walk over the nodes in file order with an environment name -> tensor. Each node goes to its lowering; a
model-local function or an operator that the standard defines by a function body is walked in its place, with an
environment of its own. Shapes are static from the first node on, so shape arithmetic folds away as it is met (see
call.py).

Invariants: operators without a lowering are refused before anything is built, what lowerings refuse when the walk is
through (refusals.py), all at once each; a graph output keeps its ONNX name; nodes that no output needs are not in the
result. Loops are unrolled (control.py); a sequence is its elements (values.py): an input that is one must be fixed, an
output that is one becomes as many outputs. What is refused: lengths known only at run time, maps, strings, sparse
tensors, element types without a counterpart, dynamic dimensions that were not given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from superkernel.builder import GraphBuilder
from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.core.errors import (
    FileFormatError,
    InputError,
    SuperKernelError,
    UnsupportedError,
    Violation,
    raise_all,
)
from superkernel.core.option import did_you_mean
from superkernel.frontends.emitter import in_node
from superkernel.frontends.found import FoundSizes
from superkernel.frontends.onnx.call import OnnxCall
from superkernel.frontends.onnx.control import CONTROL, RunBody
from superkernel.frontends.onnx.refusals import ModelRefusals
from superkernel.frontends.onnx.registry import find_lowering
from superkernel.frontends.onnx.schema import attribute_defaults, function_body, rejection, schema_of, standard_domain
from superkernel.frontends.onnx.types import (
    ONNX_OF,
    attribute_value,
    element_type,
    is_sequence,
    tensor_array,
    tensor_type,
)
from superkernel.frontends.onnx.values import EMPTY, LOST, Bound, TensorSequence
from superkernel.frontends.onnx.wellformed import declared_otherwise, refuse_ill_formed, refuse_versions
from superkernel.frontends.refusals import refuse_unknown
from superkernel.ir.graph import Graph
from superkernel.padding.counted import Counted
from superkernel.transforms.dead import RemoveDead

OLDEST_OPSET = 7  # numpy-style broadcasting since then
_MAX_FUNCTION_DEPTH = 64
_KNOWN_BYTES_MAX = 1 << 10
"""Of what decides shapes; larger arrays are left out where a rejection is asked for."""


@dataclass
class _Scope:
    """Where a run of nodes stands: names it sees, operator set versions, attributes of the enclosing function."""

    env: dict[str, Bound]
    opsets: Mapping[str, int]
    prefix: str = ""
    attributes: Mapping[str, onnx.AttributeProto] = field(default_factory=dict)
    depth: int = 0


class OnnxImporter:
    """Builds the Graph of one ModelProto."""

    def __init__(
        self,
        model: onnx.ModelProto,
        *,
        name: str,
        shapes: Mapping[str, Sequence[Any]],
        dims: Mapping[str, int],
        constants: Mapping[str, Any],
        read: dict[str, NDArray[Any]],
        found: Sequence[int] = (),
    ) -> None:
        self.found = FoundSizes(found)
        self.model, self.shapes, self.dims, self.constants, self.read = model, shapes, dims, constants, read
        self.builder = GraphBuilder(name or model.graph.name or "onnx")
        self.functions = {(standard_domain(f.domain), f.name): f for f in model.functions}
        self.opsets = {standard_domain(o.domain): o.version for o in model.opset_import}
        self.refusals = ModelRefusals(self.builder, model)

    def counted(self) -> Counted:
        """The imported graph with the sizes that data decides."""
        return self.found.counted(self.graph())

    def graph(self) -> Graph:
        """The imported graph, without nodes that no output needs."""
        main = self.model.graph
        version = self.opsets.get("", onnx.defs.onnx_opset_version())
        if version < OLDEST_OPSET:
            raise UnsupportedError(
                "the operator set is too old",
                expected=f">= {OLDEST_OPSET}",
                found=version,
                hint="convert it with onnx.version_converter",
            )
        refuse_versions(self.model, self.opsets)
        self.refuse_unknown()
        refuse_ill_formed(self.model, self.opsets)
        self.builder.reserve(_all_names(main))
        scope = _Scope({"": None}, self.opsets)
        self.add_initializers(main, scope, self.read)
        self.add_inputs(main, scope)
        self.walk(main.node, scope)
        self.refusals.raise_all()
        self.check_declarations(main, scope)
        self.add_outputs(main, scope)
        return RemoveDead(constants=True).apply(self.builder.graph())

    # -- refusals before the walk

    def refuse_unknown(self) -> None:
        """Raises UnsupportedError that lists every operator without a lowering, with the nodes that use it."""
        unknown: dict[str, list[str]] = {}
        self._collect_unknown(self.model.graph.node, self.opsets, unknown, set())
        refuse_unknown("ONNX", {op: [repr(n) for n in nodes] for op, nodes in unknown.items()}, _refusal_hint)

    def _collect_unknown(
        self,
        nodes: Iterable[onnx.NodeProto],
        opsets: Mapping[str, int],
        unknown: dict[str, list[str]],
        visited: set[tuple[str, str]],
    ) -> None:
        for node in nodes:
            if not all(isinstance(t, str) for t in (node.op_type, node.domain, node.name, *node.input, *node.output)):
                raise FileFormatError("a node's names are not text", found=repr(node.op_type))
            domain = standard_domain(node.domain)
            key = (domain, node.op_type)
            if node.op_type in CONTROL and domain == "":
                for attribute in node.attribute:
                    self._collect_unknown(attribute.g.node, opsets, unknown, visited)
            elif key in self.functions:
                if key not in visited:
                    visited.add(key)
                    function = self.functions[key]
                    inner = {**opsets, **{standard_domain(o.domain): o.version for o in function.opset_import}}
                    self._collect_unknown(function.node, inner, unknown, visited)
            elif find_lowering(*key) is None:
                schema = schema_of(node, opsets)
                if schema is None or not (schema.has_function or schema.has_context_dependent_function):
                    label = f"{domain}::{node.op_type}" if domain else node.op_type
                    unknown.setdefault(label, []).append(node.name or ", ".join(node.output))

    # -- values

    def add_initializers(self, graph: onnx.GraphProto, scope: _Scope, read: dict[str, NDArray[Any]]) -> None:
        """Constants of a graph into `scope`, but for what the caller replaces. `read`: those known by name, and then
        all. UnsupportedError for sparse ones."""
        if graph.sparse_initializer:
            raise UnsupportedError("sparse initialisers are not supported", location=f"graph {graph.name!r}")
        for tensor in graph.initializer:
            if tensor.name in self.constants and not scope.prefix:
                continue
            array = read.get(tensor.name)
            if array is None:
                array = read[tensor.name] = tensor_array(tensor, f"initialiser {tensor.name!r}")
                array.flags.writeable = False
            name = tensor.name if self.builder.is_free(tensor.name) and not scope.prefix else None
            scope.env[tensor.name] = self.builder.constant(array, name=name)

    def add_inputs(self, graph: onnx.GraphProto, scope: _Scope) -> None:
        """Inputs of a graph into `scope`, dimensions filled in from `shapes`. All violations are raised together."""
        declared = {i.name for i in graph.input} | {t.name for t in graph.initializer}
        wrong = [
            Violation(
                f"the model has no input {name!r}", expected=", ".join(sorted(declared)), hint="check the spelling"
            )
            for group in (self.shapes, self.constants)
            for name in group
            if name not in declared
        ]
        symbols = {dim.dim_param for i in graph.input for dim in i.type.tensor_type.shape.dim if dim.dim_param}
        expected = ", ".join(sorted(symbols)) or "none: its inputs have no symbolic dimensions"
        wrong += [
            Violation(f"the model has no dimension {name!r}", expected=expected, hint=did_you_mean([name], symbols))
            for name in self.dims
            if name not in symbols
        ]
        raise_all(InputError, wrong)
        unknown: list[Violation] = []
        for info in graph.input:
            if info.name in self.constants:
                scope.env[info.name] = self.fixed_input(info)
            elif info.name not in scope.env:
                scope.env[info.name] = self.free_input(info, unknown)
        for name in self.constants:
            if name not in scope.env:
                scope.env[name] = self.builder.constant(np.asarray(self.constants[name]), name=name)
        raise_all(UnsupportedError, unknown)

    def free_input(self, info: onnx.ValueInfoProto, unknown: list[Violation]) -> Bound:
        """A graph input that calls give: a tensor, or a tensor per element of a sequence."""
        name, listed = info.name, is_sequence(info)
        tensor = tensor_type(info)
        if tensor is None:
            kind = str(info.type.WhichOneof("value"))
            unknown.append(Violation("only tensors and their sequences can be inputs", f"input {name!r}", found=kind))
            return None
        dtype = element_type(tensor.elem_type, f"input {name!r}")
        given = self.shapes.get(name, ())
        if any(isinstance(d, Sequence) is not listed for d in given):
            expected = "a shape per element" if listed else "one size per axis"
            where = f"input {name!r}"
            raise InputError("the given shape is of another kind", location=where, expected=expected, found=given)
        if listed:
            if name not in self.shapes:
                hint = (
                    f"in Python, give its elements' shapes, shapes={{{name!r}: [(...), ...]}}, or fix it with constants"
                )
                unknown.append(Violation("a sequence of unknown length", f"input {name!r}", hint=hint))
                return None
            return TensorSequence(tuple(self.builder.input(f"{name}.{i}", s, dtype) for i, s in enumerate(given)))
        shape = self.input_shape(name, tensor, unknown)
        if shape is None:
            return None
        self.refusals.shapes[name] = shape
        return self.builder.input(name, shape, dtype)

    def fixed_input(self, info: onnx.ValueInfoProto) -> Bound:
        """A graph input that the caller fixes: an array, arrays of a sequence, None for an optional."""
        given = self.constants[info.name]
        tensor = tensor_type(info)
        if given is None and info.type.HasField("optional_type"):
            return EMPTY
        if tensor is None:
            raise UnsupportedError("only tensors and their sequences can be inputs", location=f"input {info.name!r}")
        dtype = element_type(tensor.elem_type, f"input {info.name!r}")
        if is_sequence(info):
            arrays = (np.asarray(array, dtype.numpy) for array in given)
            return TensorSequence(tuple(self.builder.constant(array) for array in arrays))
        given = np.asarray(given)
        if DType.of(given.dtype) is not dtype:
            raise InputError(
                "the constant has another element type",
                location=f"input {info.name!r}",
                expected=dtype,
                found=given.dtype,
            )
        return self.builder.constant(given, name=info.name)

    def input_shape(self, name: str, tensor: onnx.TypeProto.Tensor, unknown: list[Violation]) -> tuple[int, ...] | None:
        """The static shape of an input: given by name, by symbolic dimension, or in the file."""
        where = f"input {name!r}"
        given = self.shapes.get(name)
        if not tensor.HasField("shape"):
            if given is None:
                unknown.append(Violation("the shape is not known", where, "a static shape", "none", _shape_hint(name)))
                return None
            return tuple(int(d) for d in given)
        if given is not None and len(given) != len(tensor.shape.dim):
            raise InputError(
                "the given shape has another rank", location=where, expected=len(tensor.shape.dim), found=given
            )
        shape: list[int] = []
        for axis, dim in enumerate(tensor.shape.dim):
            fixed = dim.dim_value if dim.WhichOneof("value") == "dim_value" else None
            if given is not None:
                if fixed is not None and fixed != given[axis] and fixed > 0:
                    raise InputError(
                        "the given shape contradicts the file",
                        location=f"{where}, axis {axis}",
                        expected=fixed,
                        found=given[axis],
                    )
                shape.append(int(given[axis]))
            elif fixed is not None and fixed >= 0:
                shape.append(fixed)
            elif dim.dim_param and dim.dim_param in self.dims:
                shape.append(int(self.dims[dim.dim_param]))
            else:
                symbol = dim.dim_param
                hint = f"give dims={{{symbol!r}: n}} (command line: --dim {symbol}=n)" if symbol else _shape_hint(name)
                unknown.append(
                    Violation("dynamic dimension", f"{where}, axis {axis}", "a static size", symbol or "?", hint)
                )
                shape.append(0)
        return tuple(shape)

    def check_declarations(self, graph: onnx.GraphProto, scope: _Scope) -> None:
        """Raises FileFormatError with all values that the file declares otherwise than they are; not where the caller
        replaced some of them, which may change others, nor where data decides sizes: those of some data are declared
        then, if any."""
        if self.constants or self.found.sizes:
            return
        wrong = []
        for infos, what in ((graph.output, "output"), (graph.value_info, "value")):
            for info in infos:
                tensor = scope.env.get(info.name)
                if isinstance(tensor, Tensor):
                    wrong.append(declared_otherwise(info, tensor.type, f"{what} {info.name!r}"))
        raise_all(FileFormatError, [violation for violation in wrong if violation is not None])

    def add_outputs(self, graph: onnx.GraphProto, scope: _Scope) -> None:
        """Declares the outputs under their names, elements of a sequence as NAME.0 and on; an empty optional is none.
        Raises FileFormatError for one that no node computes."""
        for info in graph.output:
            value = scope.env.get(info.name)
            if isinstance(value, TensorSequence):
                for index, item in enumerate(value.items):
                    self.builder.output(item, name=f"{info.name}.{index}")
                continue
            if value is EMPTY:
                continue
            if not isinstance(value, Tensor):
                raise FileFormatError("no node computes the output", location=f"output {info.name!r}")
            tensor = value
            if tensor.value.data is not None and tensor.name != info.name and self.builder.is_free(info.name):
                tensor = self.builder.constant(tensor.value.data, name=info.name)
            self.builder.output(tensor, name=info.name)

    # -- the walk

    def walk(self, nodes: Iterable[onnx.NodeProto], scope: _Scope) -> None:
        """Lowers nodes in order and binds their outputs in `scope`."""
        for node in nodes:
            results = self.lowered(node, scope)
            for index, name in enumerate(node.output):
                if not name:
                    continue
                value = results[index] if index < len(results) else None
                if value is None:
                    where = f"node {node.name or name!r} ({node.op_type})"
                    self.refusals.add(
                        UnsupportedError(f"output {index} is not offered", location=where, found=name), [], []
                    )
                    value = LOST
                scope.env[name] = value
                if isinstance(value, Tensor):
                    self.builder.rename(value, scope.prefix + name, final=not scope.prefix)
                    if index == 0 and node.name and not scope.prefix:
                        self.builder.rename_node(value, node.name)

    def lowered(self, node: onnx.NodeProto, scope: _Scope) -> Sequence[Bound]:
        """The outputs of one node, or what stands for them where it is refused."""
        bound = [scope.env.get(name) for name in node.input]
        if LOST in bound:
            return [LOST] * len(node.output)
        read = [t for value in bound for t in _tensors(value)]
        try:
            results = self.lower(node, scope)
        except UnsupportedError as error:
            return self.refusals.add(error, read, [scope.prefix + name for name in node.output])
        except SuperKernelError:
            self.refusals.raise_all()  # of which it may be a consequence
            raise
        self.refusals.followed(read, [t for value in results for t in _tensors(value)])
        return results

    def lower(self, node: onnx.NodeProto, scope: _Scope) -> Sequence[Bound]:
        """The outputs of one node."""
        domain = standard_domain(node.domain)
        stem = scope.prefix + (node.name or next((o for o in node.output if o), node.op_type))
        where = f"node {node.name or stem!r} ({node.op_type})"
        inputs: list[Bound] = []
        for name in node.input:
            if name not in scope.env:
                raise FileFormatError("the input is not a value that precedes the node", location=where, found=name)
            inputs.append(scope.env[name])
        attributes = [_resolve(a, scope) for a in node.attribute]
        function = self.functions.get((domain, node.op_type))
        if function is None:
            call = OnnxCall(
                self.builder,
                node,
                inputs,
                {a.name: attribute_value(a, where) for a in attributes if a is not None},
                scope.opsets.get(domain, 1),
                stem,
                self.found,
            )
            if node.op_type in CONTROL and domain == "":
                return CONTROL[node.op_type](call, self.bodies(call, scope))
            lowering = find_lowering(domain, node.op_type)
            if lowering is not None:
                try:
                    lowered = lowering(call)
                except SuperKernelError as error:
                    raise in_node(error, where) from error
                except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                    raise self.blame(error, node, inputs, scope, where) from error
                return lowered if isinstance(lowered, Sequence) else (lowered,)
            function = self.standard_function(_with_attributes(node, attributes), inputs, scope, where)
            defaults = attribute_defaults(node, scope.opsets)
            attributes = [*(d for d in defaults if d.name not in call.attrs), *attributes]
        return self.inline(function, node, inputs, [a for a in attributes if a is not None], scope, stem)

    def blame(
        self, error: Exception, node: onnx.NodeProto, inputs: Sequence[Bound], scope: _Scope, where: str
    ) -> Exception:
        """What to raise where a lowering met what it did not expect: the node's fault where the standard rejects it
        for these inputs, else ours, with the node's name."""
        given = {n: t for n, t in zip(node.input, inputs, strict=True) if isinstance(t, Tensor)}
        kinds = {n: onnx.helper.make_tensor_type_proto(ONNX_OF[t.dtype], t.shape) for n, t in given.items()}
        known = [
            onnx.numpy_helper.from_array(t.value.data, n)
            for n, t in given.items()
            if t.value.data is not None and t.value.data.nbytes <= _KNOWN_BYTES_MAX
        ]
        if found := rejection(node, scope.opsets, kinds, known):
            return FileFormatError("the node breaks its operator's rules", location=where, found=found)
        error.add_note(where)
        return error

    def standard_function(
        self, node: onnx.NodeProto, inputs: Sequence[Bound], scope: _Scope, where: str
    ) -> onnx.FunctionProto:
        """The body of an operator that ONNX defines by others. Raises UnsupportedError where it has none."""
        kinds = [
            onnx.helper.make_tensor_type_proto(ONNX_OF[t.dtype], t.shape) if isinstance(t, Tensor) else None
            for t in inputs
        ]
        body = function_body(node, scope.opsets, kinds)
        if body is None:
            raise UnsupportedError("no lowering for this operator", location=where, hint=_refusal_hint(node.op_type))
        unknown: dict[str, list[str]] = {}
        opsets = {**scope.opsets, **{standard_domain(o.domain): o.version for o in body.opset_import}}
        self._collect_unknown(body.node, opsets, unknown, set())
        if unknown:
            raise UnsupportedError(
                "the operator's definition uses operators without a lowering",
                location=where,
                found=", ".join(sorted(unknown)),
            )
        return body

    def inline(
        self,
        function: onnx.FunctionProto,
        node: onnx.NodeProto,
        inputs: Sequence[Bound],
        attributes: Sequence[onnx.AttributeProto],
        scope: _Scope,
        stem: str,
    ) -> list[Bound]:
        """Walks a function's body in place of the node that calls it."""
        if scope.depth >= _MAX_FUNCTION_DEPTH:
            raise FileFormatError("functions call each other without end", location=f"function {function.name!r}")
        env: dict[str, Bound] = {"": None, **dict.fromkeys(function.input)}
        env.update(zip(function.input, inputs, strict=False))
        bound = {a.name: a for a in function.attribute_proto}
        bound.update({a.name: a for a in attributes})
        opsets = {standard_domain(o.domain): o.version for o in function.opset_import}
        inner = _Scope(env, {**scope.opsets, **opsets}, f"{stem}/", bound, scope.depth + 1)
        self.walk(function.node, inner)
        return [env.get(name) for name in function.output]

    def bodies(self, call: OnnxCall, scope: _Scope) -> RunBody:
        """What walks the bodies of a node: constants of a body are made once, however many turns there are."""
        outer: dict[int, _Scope] = {}

        def run(body: onnx.GraphProto, inputs: Sequence[Bound], turn: str) -> list[Bound]:
            if scope.depth >= _MAX_FUNCTION_DEPTH:
                raise FileFormatError("bodies in bodies without end", location=call.where)
            if len(inputs) != len(body.input):
                raise FileFormatError(
                    "a body with another number of inputs",
                    location=call.where,
                    expected=len(inputs),
                    found=len(body.input),
                )
            if id(body) not in outer:
                outer[id(body)] = _Scope(dict(scope.env), scope.opsets, f"{call.stem}/", scope.attributes)
                self.add_initializers(body, outer[id(body)], {})
            env = {**outer[id(body)].env, **dict(zip((i.name for i in body.input), inputs, strict=True))}
            prefix = f"{call.stem}/{turn}"
            self.walk(body.node, _Scope(env, scope.opsets, prefix, scope.attributes, scope.depth + 1))
            missing = [o.name for o in body.output if o.name not in env]
            if missing:
                raise FileFormatError("no node computes the output", location=call.where, found=", ".join(missing))
            return [env[o.name] for o in body.output]

        return run


def _tensors(value: Bound) -> Sequence[Tensor]:
    """The tensors that a value is made of."""
    if isinstance(value, TensorSequence):
        return value.items
    return (value,) if isinstance(value, Tensor) else ()


def _resolve(attribute: onnx.AttributeProto, scope: _Scope) -> onnx.AttributeProto | None:
    """The attribute itself, or what the enclosing function's caller gave for the attribute it refers to."""
    if not attribute.ref_attr_name:
        return attribute
    given = scope.attributes.get(attribute.ref_attr_name)
    if given is None:
        return None
    renamed = onnx.AttributeProto()
    renamed.CopyFrom(given)
    renamed.name = attribute.name
    return renamed


def _with_attributes(node: onnx.NodeProto, attributes: Iterable[onnx.AttributeProto | None]) -> onnx.NodeProto:
    """The node with its attributes resolved: a function body that depends on them must see values, not references."""
    resolved = onnx.NodeProto()
    resolved.CopyFrom(node)
    del resolved.attribute[:]
    resolved.attribute.extend(a for a in attributes if a is not None)
    return resolved


def _refusal_hint(op: str) -> str:
    if op.startswith(("String", "Regex")):
        return "strings are not supported"
    return "see docs/operators.md for the supported operators"


def _all_names(graph: onnx.GraphProto) -> set[str]:
    names = {i.name for i in graph.input} | {o.name for o in graph.output} | {t.name for t in graph.initializer}
    return names | {name for node in graph.node for name in node.output}


def _shape_hint(name: str) -> str:
    """How an input is given a shape."""
    return f"give shapes={{{name!r}: (...)}} (command line: --shape {name}=...)"
