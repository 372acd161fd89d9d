"""Exported programs with dynamic shapes: their dimensions, and the program's graph for given sizes.

Model: torch writes extents as expressions of symbols, and bounds every symbol. A graph for given sizes is the same
nodes with the expressions' values in their types, and numbers for the nodes that compute numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import sympy
import torch

from superkernel.core.errors import InputError, UnsupportedError, Violation, raise_all
from superkernel.core.option import did_you_mean
from superkernel.frontends.dynamic_axes import Axis, DynamicInput, Ranges
from superkernel.frontends.torch.capture import Program, needed_nodes
from superkernel.frontends.torch.types import element_type

_ATEN = torch.ops.aten
_SEARCHES = (_ATEN.nonzero.default, _ATEN.nonzero_numpy.default, _ATEN.where.default, _ATEN.masked_select.default)
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class SizedProgram:
    """A program whose dimensions have names: those of `named` (`dynamic_shapes` as `torch.export.export` takes it, or
    names in place of its `Dim`s), else those of its symbols. Raises InputError (names that are not those of `ranges`,
    sizes that the program is not for), UnsupportedError (inputs that are numbers, or with other extents)."""

    def __init__(self, program: Program, ranges: Ranges, named: object = None) -> None:
        self.program = program
        inputs = set(program.graph_signature.user_inputs)
        self._inputs = {n.name: n for n in program.graph.nodes if n.op == "placeholder" and n.name in inputs}
        self._nodes = _with_placeholders(program)
        self._symbols = self._named(ranges, _names(named, list(self._inputs)))
        self.inputs = self._typed()

    def _named(self, ranges: Ranges, names: Mapping[tuple[str, int], str]) -> dict[Any, str]:
        """Name of each symbol."""
        found: dict[Any, str] = {}
        wrong: list[Violation] = []
        for name, axis, extent in self._extents(wrong):
            for symbol in extent.node.expr.free_symbols:
                found.setdefault(symbol, names.get((name, axis), str(symbol)))
        here = set(found.values())
        for name in ranges:
            if name not in here:
                hint = did_you_mean([name], here)
                wrong.append(
                    Violation(f"the program has no dimension {name!r}", "", ", ".join(sorted(here)), hint=hint)
                )
        for symbol, name in sorted(found.items(), key=str):
            if name not in ranges:
                wrong.append(
                    Violation("a dimension without a range", f"dimension {name!r}", "(least, largest)", "none")
                )
                continue
            bounds = self.program.range_constraints.get(symbol)
            if bounds is not None and not (bounds.lower <= ranges[name][0] and ranges[name][1] <= bounds.upper):
                expected = f"{bounds.lower} to {bounds.upper}"
                hint = "export it with wider bounds of torch.export.Dim"
                what = "the program is not for all of these sizes"
                wrong.append(Violation(what, f"dimension {name!r}", expected, "{} to {}".format(*ranges[name]), hint))
        raise_all(InputError, wrong)
        return found

    def _extents(self, wrong: list[Violation]) -> Iterator[tuple[str, int, torch.SymInt]]:
        """Every dynamic extent of an input: its name, the axis, the extent."""
        for name, node in self._inputs.items():
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt):
                wrong.append(Violation("a dynamic number", f"input {name!r}", "a static one", str(value)))
            elif isinstance(value, torch.Tensor):
                yield from ((name, axis, e) for axis, e in enumerate(value.shape) if isinstance(e, torch.SymInt))

    def _typed(self) -> dict[str, DynamicInput]:
        found = {}
        for name, node in self._inputs.items():
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                where = f"input {name!r}"
                axes = tuple(self._axis(extent, f"{where}, axis {axis}") for axis, extent in enumerate(value.shape))
                found[name] = DynamicInput(element_type(value.dtype, where), axes)
        return found

    def _axis(self, extent: int | torch.SymInt, where: str) -> Axis:
        if isinstance(extent, int):
            return Axis(extent, {})
        terms = extent.node.expr.expand().as_coefficients_dict()
        offset = int(terms.pop(1, 0))
        if any(term not in self._symbols for term in terms):
            expected = "a sum of dimensions, each times a number"
            raise UnsupportedError("a dynamic extent", location=where, expected=expected, found=str(extent))
        return Axis(offset, {self._symbols[symbol]: int(factor) for symbol, factor in terms.items()})

    def graph(self, sizes: Mapping[str, int], asked: Sequence[int] = ()) -> tuple[torch.fx.Graph, dict[Hashable, int]]:
        """The program's graph for sizes by dimension, without what no output needs; and how much is found, by the
        `finding` of nodes. What says so twice in the same way says it once. `asked`: how much that is claimed to be, as
        of `FoundSizes`. Raises UnsupportedError where a shape depends on data in another way."""
        values = {symbol: sympy.Integer(sizes[name]) for symbol, name in self._symbols.items()}
        found: dict[Hashable, int] = {}
        known: dict[Any, Any] = {}

        def number(symbolic: Any, node: torch.fx.Node) -> Any:
            expression = symbolic.node.expr
            if expression not in known:
                value = expression.xreplace(values)
                if value.free_symbols and isinstance(symbolic, torch.SymFloat):
                    return symbolic  # a number like any other, and no shape
                if value.free_symbols:
                    found = f"{expression} of {node.name!r}"
                    raise UnsupportedError("a shape depends on data", location=f"node {node.name!r}", found=found)
                kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(symbolic)]
                known[expression] = kind(value)
            return known[expression]

        def concrete(value: Any, node: torch.fx.Node) -> Any:
            if isinstance(value, _SYMBOLIC):
                return number(value, node)
            if isinstance(value, (tuple, list)):
                return type(value)(concrete(each, node) for each in value)
            if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
                return value
            shape, stride = ([number(n, node) if isinstance(n, _SYMBOLIC) else n for n in given]
                             for given in (value.shape, value.stride()))  # fmt: skip
            return torch.empty_strided(shape, stride, dtype=value.dtype, device="meta")

        made, env = torch.fx.Graph(), dict[torch.fx.Node, Any]()
        deciding, same = self._deciding(), dict[Hashable, torch.fx.Node]()
        for node in self._nodes:
            if (finder := _found_by(node)) is not None:
                size = None if _is_selection(node) else self._known_count(finder)
                if size is None:
                    most = prod(env[finder].meta["val"].shape[: 1 if _is_selection(node) else None])
                    given = torch.fx.node.map_arg(node.args, env.__getitem__)
                    key = finding(*given) if _is_selection(node) else env[finder]
                    found.setdefault(key, min(most, asked[len(found)]) if len(found) < len(asked) else most)
                    size = found[key]
                values |= dict.fromkeys(node.meta["unbacked_bindings"], sympy.Integer(size))
            value = concrete(node.meta.get("val"), node)
            sized = isinstance(node.meta.get("val"), _SYMBOLIC) and not isinstance(value, _SYMBOLIC)
            if node.op == "call_function" and sized:
                env[node] = value
                continue
            written = _written(node, env) if node in deciding else None
            if written is not None and written in same:
                env[node] = same[written]
                continue
            copied = env[node] = made.node_copy(node, env.__getitem__)
            copied.meta = {**node.meta, "val": value}
            if written is not None:
                same[written] = copied
        return made, found

    def _deciding(self) -> set[torch.fx.Node]:
        """The nodes that say how much is found, or that such a node hangs on."""
        searches = (node for node in self._nodes if _found_by(node) is not None)
        return _behind(each for node in searches for each in node.all_input_nodes)

    def _known_count(self, mask: torch.fx.Node) -> int | None:
        """How many elements of a tensor that no input decides are not 0."""
        value = _Constants(self.program).value(mask)
        return None if value is None else int(torch.count_nonzero(value))


class _Constants(torch.fx.Interpreter):  # type: ignore[misc]
    """Computes what hangs on a program's constants alone."""

    def __init__(self, program: Program) -> None:
        super().__init__(program.graph_module)
        signature = program.graph_signature
        kept = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        kept |= signature.inputs_to_lifted_tensor_constants
        written = set(signature.buffers_to_mutate.values())
        self._tensors = {name: target for name, target in kept.items() if target not in written}
        self._contents = {**program.state_dict, **program.constants}

    def value(self, node: torch.fx.Node) -> torch.Tensor | None:
        """A node's tensor; None where an input, or what a run writes, decides it."""
        behind = _behind([node])
        if any(each.op == "placeholder" and each.name not in self._tensors for each in behind):
            return None
        for each in (one for one in self.module.graph.nodes if one in behind):
            self.env[each] = self.run_node(each)
        found = self.env[node]
        return found if isinstance(found, torch.Tensor) else None

    def placeholder(self, target: str, args: Any, kwargs: Any) -> torch.Tensor:
        """A constant, by the name of its placeholder."""
        tensor: torch.Tensor = self._contents[self._tensors[target]]
        return tensor


def _behind(nodes: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """The nodes, and all that they hang on."""
    met = set(nodes)
    todo = [*met]
    while todo:
        todo += (new := [each for each in todo.pop().all_input_nodes if each not in met])
        met.update(new)
    return met


def finds_sizes(program: Program) -> bool:
    """Whether some sizes are found in the data."""
    return any(_found_by(node) is not None for node in program.graph.nodes)


def _found_by(node: torch.fx.Node) -> torch.fx.Node | None:
    """What says how much a node finds, of those that lowerings know: a tensor whose elements that are not 0 are found,
    or boxes."""
    if not node.meta.get("unbacked_bindings"):
        return None
    given = node.args[1] if node.target is _ATEN.masked_select.default else node.args[0]
    if node.target is _ATEN.masked_select.default and given.meta["val"].shape != node.args[0].meta["val"].shape:
        return None
    if _is_selection(node) or node.target in _SEARCHES:
        found: torch.fx.Node = given
        return found
    if node.target is not _ATEN.index.Tensor:
        return None
    masks = [i for i in node.args[1] if i is not None and i.meta["val"].dtype is torch.bool]
    return masks[0] if len(masks) == 1 else None


def finding(*given: object) -> Hashable:
    """What tells a selection of boxes from others: its operands, with each its own identity, and its threshold."""
    return given


def _written(node: torch.fx.Node, env: Mapping[torch.fx.Node, Any]) -> Hashable:
    """An operator and its operands, equal for nodes that compute the same; None where that is not known."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    if node.target._schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags:
        return None

    def plain(value: object) -> Hashable:
        if isinstance(value, (tuple, list)):
            return tuple(map(plain, value))
        return value if isinstance(value, torch.fx.Node) else (type(value), str(value))

    given = torch.fx.node.map_arg((node.args, tuple(sorted(node.kwargs.items()))), env.__getitem__)
    return node.target, plain(given)


def _is_selection(node: torch.fx.Node) -> bool:
    return str(node.target) == "torchvision.nms.default"


def as_dims(named: Any, ranges: Ranges) -> Any:
    """`named` with a `Dim` for every name that has a range; what is fixed stays static."""
    dims = {
        name: torch.export.Dim(name, min=low, max=high) if low < high else None for name, (low, high) in ranges.items()
    }
    if isinstance(named, str):
        return dims.get(named)
    if isinstance(named, Mapping):
        return {key: as_dims(each, ranges) for key, each in named.items()}
    if isinstance(named, (tuple, list)):
        return type(named)(as_dims(each, ranges) for each in named)
    return named


def _with_placeholders(program: Program) -> list[torch.fx.Node]:
    needed = set(needed_nodes(program.graph))
    return [node for node in program.graph.nodes if node in needed or node.op == "placeholder"]


def _by_input(named: Mapping[Any, Any], inputs: Sequence[str], outer: str) -> Iterator[tuple[str, Any]]:
    """Axes by input, of what is nested as the inputs are: their names are the paths. Raises InputError."""
    for key, axes in named.items():
        name = f"{outer}{key}"
        if name in inputs:
            yield name, axes
        elif isinstance(axes, (Mapping, tuple, list)) and any(i.startswith(f"{name}_") for i in inputs):
            yield from _by_input(axes if isinstance(axes, Mapping) else dict(enumerate(axes)), inputs, f"{name}_")
        else:
            hint = did_you_mean([name], inputs)
            raise InputError(f"no input {name!r}", location="dynamic_shapes", expected=", ".join(inputs), hint=hint)


def _names(named: object, inputs: Sequence[str]) -> dict[tuple[str, int], str]:
    """Names of dimensions by input and axis. Raises InputError."""
    if named is None:
        return {}
    where, expected = "dynamic_shapes", "axes by input, as torch.export.export takes them"
    if isinstance(named, (tuple, list)) and len(named) <= len(inputs):
        named = dict(zip(inputs, named, strict=False))
    if not isinstance(named, Mapping):
        raise InputError("not dynamic shapes", location=where, expected=expected, found=type(named).__name__)
    found: dict[tuple[str, int], str] = {}
    for name, axes in _by_input(named, inputs, ""):
        listed = axes.items() if isinstance(axes, Mapping) else enumerate(axes or ())
        for axis, dimension in listed:
            if not isinstance(axis, int):
                hint = "of nested inputs, a mapping by the names of the arguments"
                raise InputError("not an axis", location=where, expected="a number", found=repr(axis), hint=hint)
            if dimension is not None and not isinstance(dimension, int):
                single = getattr(dimension, "root", dimension)  # of 10 * Dim("frames")
                found[name, axis] = str(getattr(single, "__name__", single))
    return found
