"""GraphBuilder: the pleasant way to make a `Graph` in Python.

Model: a builder keeps value records; a `Tensor` is a handle on one. Every operator of the table is a method
(`methods.py`, generated from the table); it infers types at once, so a wrong shape raises at the line of the
caller, with the node named. Numbers and arrays are taken wherever a tensor is: a number takes the element type of the
other operand.

    b = GraphBuilder("net")
    x = b.input("x", (1, 384), "f32")
    y = b.gelu(x @ b.constant(weight, name="w") + 1.0)
    b.output(y, name="y")
    graph = b.graph()

Invariants: a value has one name for good once `graph()` is called; names that a user gives are never changed; names
that the builder makes never clash with them. A builder may be asked for its graph any number of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from superkernel.builder.methods import OperatorMethods
from superkernel.builder.tensor import Tensor, TensorLike, Value
from superkernel.core.arrays import constant_array
from superkernel.core.dtypes import DType
from superkernel.core.errors import GraphError, InputError, SuperKernelError
from superkernel.core.tensor import TensorType
from superkernel.ir.graph import Graph, KernelType, Node, inferred_types, type_of_array
from superkernel.ops.attributes import canonical_attrs
from superkernel.ops.opdef import Family
from superkernel.ops.table import find_op, suggest_ops

__all__ = ["GraphBuilder", "Tensor", "TensorLike"]

Item = TypeVar("Item")


@dataclass(slots=True, eq=False)
class _Record:
    """A node under construction; its values still may be renamed."""

    name: str
    op: str
    inputs: tuple[Value | None, ...]
    attrs: Mapping[str, Any]
    scope: str | None
    stream: int | str | None
    kernel_type: KernelType | None
    outputs: tuple[Value, ...] = ()

    def node(self) -> Node:
        return Node(
            self.name,
            self.op,
            tuple([None if v is None else v.name for v in self.inputs]),
            tuple([v.name for v in self.outputs]),
            self.attrs,
            self.kernel_type,
            self.stream,
            self.scope,
        )


class GraphBuilder(OperatorMethods):
    """Collects inputs, constants, states and operator applications; `graph()` gives the checked `Graph`."""

    def __init__(self, name: str = "graph") -> None:
        if not isinstance(name, str):
            raise InputError("not a name for a graph", found=repr(name))
        self.name = name
        self._inputs: list[Value] = []
        self._constants: list[Value] = []
        self._states: list[Value] = []
        self._updates: dict[Value, Value] = {}
        self._records: list[_Record] = []
        self._outputs: list[Value] = []
        self._extents: dict[Value, dict[int, Value]] = {}
        self._names: set[str] = set()
        self._reserved: set[str] = set()
        self._counters: dict[str, int] = {}
        self._scopes: list[str] = []
        self._sections: list[str] = []  # scopes and sections, as names begin with them
        self._streams: list[int | str] = []
        self._kernel_types: list[KernelType] = []

    def __repr__(self) -> str:
        counts = {"inputs": len(self._inputs), "nodes": len(self._records), "outputs": len(self._outputs)}
        said = ", ".join(f"{count} {what}" for what, count in counts.items())
        return f"<superkernel.GraphBuilder {self.name!r}: {said}>"

    # -- values

    def input(self, name: str, shape: Sequence[int], dtype: object = DType.F32) -> Tensor:
        """A graph input."""
        where = f"input {name!r}"
        if not isinstance(shape, Iterable):
            hint = f"a vector has the shape ({shape!r},)" if isinstance(shape, int) else ""
            raise GraphError("not a shape", location=where, expected="integers >= 0", found=repr(shape), hint=hint)
        sizes = tuple(shape)
        if any(not isinstance(d, (int, np.integer)) or d < 0 for d in sizes):
            raise GraphError("a dimension is not a size", location=where, expected="integers >= 0", found=sizes)
        value = Value(self._claim(name, "input"), TensorType(DType.of(dtype), tuple(map(int, sizes))), named=True)
        self._inputs.append(value)
        return Tensor(self, value)

    def constant(self, array: Any, dtype: object = None, *, name: str | None = None, copy: bool = True) -> Tensor:
        """A constant. Python numbers become f32 (floats), i64 (ints) or bool unless `dtype` says otherwise. Without
        `copy` an array is kept as it is where it can be: nobody may write to it any more. Raises InputError on what
        would lose something: masks, imaginary parts, fractions as integers."""
        data = _as_data(array, dtype, "constant" if name is None else f"constant {name!r}", copy)
        chosen = self._fresh("constant") if name is None else self._claim(name, "constant")
        value = Value(chosen, type_of_array(data), data=data, named=name is not None)
        self._constants.append(value)
        return Tensor(self, value)

    def state(self, name: str, array: Any, dtype: object = None) -> Tensor:
        """A tensor that stays from run to run; `array` is what it holds at first. `update` says what it holds next."""
        data = _as_data(array, dtype, f"state {name!r}")
        value = Value(self._claim(name, "state"), type_of_array(data), initial=data, named=True)
        self._states.append(value)
        return Tensor(self, value)

    def update(self, state: Tensor, value: Tensor) -> None:
        """After every run `state` holds `value`."""
        target = self._own(state)
        if target not in self._states:
            raise GraphError("only a state can be updated", location=f"value {target.name!r}")
        if target in self._updates:
            raise GraphError("the state already has an update", location=f"state {target.name!r}")
        source = self._own(value)
        if source.type != target.type:
            raise GraphError(
                "the update has another type",
                location=f"state {target.name!r}",
                expected=target.type,
                found=source.type,
            )
        self._updates[target] = source

    def output(self, tensor: Tensor, name: str | None = None, *, extents: Mapping[int, Tensor] | None = None) -> Tensor:
        """Marks a graph output. `name` names the value; one that carries a given name already is copied under it.
        `extents`: how many elements along an axis count, by axis, i64 []: kernels return so many."""
        value = self._own(tensor)
        if name is not None and value.name != name:
            if value.named or value.record is None or value in self._outputs:
                value = self._own(self.apply("identity", (tensor,), {}, name=name)[0])
            else:
                self._rename(value, name)
        if value in self._outputs:
            raise GraphError("the value already is an output", location=f"value {value.name!r}")
        self._outputs.append(value)
        if extents:
            self._extents[value] = {axis: self._own(count) for axis, count in extents.items()}
        return Tensor(self, value)

    # -- context

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Nodes made inside belong to scope `name`: an accelerator runs them in one launch. Scopes nest with '/': a
        scope within another is one of its own. Names of nodes begin with it."""
        if not isinstance(name, str):
            raise GraphError("scope must be a text", found=repr(name))
        with _pushed(self._scopes, name), self.section(name):
            yield

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Names of nodes made inside begin with `name`/; that is all."""
        with _pushed(self._sections, name):
            yield

    @contextmanager
    def stream(self, name: int | str) -> Iterator[None]:
        """Nodes made inside belong to stream `name`: they are issued in the order in which they are made."""
        if isinstance(name, bool) or not isinstance(name, (int, str)):
            raise GraphError("stream must be an integer or a text", found=repr(name))
        with _pushed(self._streams, name):
            yield

    @contextmanager
    def kernel_type(self, kind: KernelType | str) -> Iterator[None]:
        """Nodes made inside run as the given kernel type."""
        with _pushed(self._kernel_types, KernelType(kind)):
            yield

    # -- operators

    def apply(
        self,
        op: str,
        inputs: Sequence[TensorLike | None],
        attrs: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        stem: str | None = None,
    ) -> tuple[Tensor, ...]:
        """Any operator of the table by name; without `name`, `stem` (else the operator's name) begins the name that
        the builder makes. Raises GraphError, named after the node, on what the operator does not accept."""
        definition = find_op(op)
        if definition is None:
            near = suggest_ops(op)
            raise GraphError(
                f"unknown operator {op!r}", hint=f"did you mean {', '.join(near)}?" if near else "see docs/operators.md"
            )
        node_name = self._fresh(stem or op) if name is None else self._claim(name, f"node ({op})")
        try:
            complete = canonical_attrs(definition, attrs or {})
            operands = self._operands(op, inputs)
            types = tuple([None if v is None else v.type for v in operands])
            results = inferred_types(op, types, tuple(complete.items()))
        except SuperKernelError as error:
            self._names.discard(node_name)
            raise _located(error, f"node {node_name!r} ({op})") from error
        record = _Record(
            node_name,
            op,
            tuple(operands),
            complete,
            "/".join(self._scopes) or None,
            self._streams[-1] if self._streams else None,
            self._kernel_types[-1] if self._kernel_types else None,
        )
        self._records.append(record)
        single = len(results) == 1
        names = [node_name if single else self._claim(f"{node_name}:{i}", "output") for i in range(len(results))]
        values = [Value(n, kind, named=name is not None, record=record) for n, kind in zip(names, results, strict=True)]
        record.outputs = tuple(values)
        return tuple([Tensor(self, value) for value in values])

    def _apply(
        self, op: str, inputs: Sequence[TensorLike | None], attrs: Mapping[str, Any], name: str | None
    ) -> tuple[Tensor, ...]:
        return self.apply(op, inputs, attrs, name=name)

    def _operands(self, op: str, inputs: Sequence[TensorLike | None]) -> list[Value | None]:
        """Tensors as they are; numbers take the element type of the first tensor that lends one, arrays keep theirs."""
        own: list[Value | None] = [i.value for i in inputs if isinstance(i, Tensor) and i.builder is self]
        if len(own) == len(inputs):  # nearly always
            return own
        tensors = [item for item in inputs if isinstance(item, Tensor)]
        # The condition of `where` has no element type to lend, unless it is all there is.
        lenders = [t for t in tensors if op != "where" or t.dtype is not DType.BOOL] or tensors
        lender = lenders[0] if lenders else None
        values: list[Value | None] = []
        given = max((i for i, item in enumerate(inputs, 1) if item is not None), default=0)
        for item in inputs[:given]:  # what is left out at the end is not there
            if item is None:
                values.append(None)
            elif isinstance(item, Tensor):
                values.append(self._own(item))
            else:
                dtype = lender.dtype if isinstance(item, (bool, int, float)) and lender is not None else None
                if dtype is not None and not _fits(item, dtype, _compares(op)):
                    raise InputError("the number does not fit the element type", expected=str(dtype), found=repr(item))
                values.append(self._own(self.constant(item, dtype)))
        return values

    def drop_last(self, record: _Record) -> None:
        """Takes back the node made last (its results are known: it was folded)."""
        assert self._records[-1] is record
        self._records.pop()
        self._names.difference_update({record.name, *(v.name for v in record.outputs)})

    # -- the result

    def graph(self) -> Graph:
        """The validated graph. Raises GraphError with every violation."""
        return Graph.build(
            name=self.name,
            inputs={v.name: v.type for v in self._inputs},
            constants={v.name: v.data for v in self._used_constants()},
            states={v.name: v.initial for v in self._states},
            updates={s.name: v.name for s, v in self._updates.items()},
            nodes=[record.node() for record in self._records],
            outputs=[v.name for v in self._outputs],
            copy=False,
            inferred={v.name: v.type for record in self._records for v in record.outputs},
            extents={v.name: tuple((a, n.name) for a, n in row.items()) for v, row in self._extents.items()},
        )

    def _used_constants(self) -> list[Value]:
        """All constants that a user named, and those of the builder's own making that something reads."""
        used = {v for record in self._records for v in record.inputs if v is not None}
        used.update(self._outputs, self._updates.values(), *(row.values() for row in self._extents.values()))
        return [v for v in self._constants if v.named or v in used]

    # -- names

    def _own(self, tensor: Tensor) -> Value:
        if not isinstance(tensor, Tensor):
            raise InputError(
                "not a Tensor of this builder", found=type(tensor).__name__, hint="wrap it with b.constant(...)"
            )
        if tensor.builder is not self:
            raise InputError(
                f"the tensor {tensor.name!r} belongs to another builder", location=f"builder {self.name!r}"
            )
        return tensor.value

    def _claim(self, name: str, owner: str) -> str:
        if not isinstance(name, str) or not name:
            raise GraphError("a name must be a non-empty string", location=owner, found=repr(name))
        if name in self._names:
            raise GraphError(f"the name {name!r} is taken", location=owner, hint="names of values and nodes are unique")
        self._names.add(name)
        return name

    def _fresh(self, stem: str) -> str:
        prefix = "/".join([*self._sections, stem])
        while True:
            count = self._counters[prefix] = self._counters.get(prefix, -1) + 1
            name = f"{prefix}_{count}"
            if name not in self._names and name not in self._reserved:
                self._names.add(name)
                return name

    def reserve(self, names: Iterable[str]) -> None:
        """Keeps the builder from making up these names."""
        self._reserved.update(names)

    def is_free(self, name: str) -> bool:
        """True where nothing has the name yet."""
        return bool(name) and name not in self._names

    def rename(self, tensor: Tensor, name: str, *, final: bool = True) -> bool:
        """Names a value that so far has a made-up name; False (and no change) where it has a given name or `name` is
        taken. With `final` False the name counts as made up: another may follow."""
        value = self._own(tensor)
        if value.named or not self.is_free(name):
            return False
        self._rename(value, name)
        value.named = final
        return True

    def rename_node(self, tensor: Tensor, name: str) -> bool:
        """Names the node that computes a value; False where there is none or `name` is taken or reserved."""
        record = self._own(tensor).record
        if record is None or not self.is_free(name) or name in self._reserved:
            return False
        record.name = self._claim(name, "node")
        return True

    def _rename(self, value: Value, name: str) -> None:
        """Gives a value of the builder's own naming the name that the user wants."""
        self._claim(name, "value")
        assert not value.named
        if value.record is not None and len(value.record.outputs) == 1:
            value.record.name = name
        self._names.discard(value.name)
        value.name, value.named = name, True


@cache
def _compares(op: str) -> bool:
    """Whether an operator makes truth values of two integers."""
    definition, integer = find_op(op), TensorType(DType.I64, ())
    if definition is None or definition.family is not Family.POINTWISE or len(definition.args) != 2:
        return False
    try:
        (result,) = inferred_types(op, (integer, integer), tuple(canonical_attrs(definition, {}).items()))
    except SuperKernelError:
        return False
    return result is not None and result.dtype is DType.BOOL


def _fits(number: Any, dtype: DType, by_value: bool) -> bool:
    """Whether a number is one of an element type: floats of no integers, whole or not, but where only its value counts;
    no numbers are truth values."""
    if dtype.is_float or isinstance(number, bool):
        return True
    if isinstance(number, float):
        return by_value and number.is_integer()
    return by_value or dtype is not DType.BOOL


@contextmanager
def _pushed(stack: list[Item], item: Item) -> Iterator[None]:
    stack.append(item)
    try:
        yield
    finally:
        stack.pop()


def _as_data(array: Any, dtype: object, where: str, copy: bool = True) -> NDArray[Any]:
    """Constant data (see `superkernel.core.arrays`), of a type that Python numbers have here."""
    if isinstance(array, Tensor):
        raise InputError("a Tensor is not constant data", location=f"value {array.name!r}")
    if dtype is not None:
        kind: DType | None = DType.of(dtype)
    elif isinstance(array, (bool, np.bool_)):
        kind = DType.BOOL
    elif isinstance(array, int):
        kind = DType.I64
    else:
        kind = DType.F32 if isinstance(array, float) else None
    try:
        return constant_array(array, kind, copy=copy)
    except SuperKernelError as error:
        raise _located(error, where) from error


def _located(error: SuperKernelError, where: str) -> SuperKernelError:
    """The same error with the node in front of every violation's place."""
    return type(error)(violations=[v.within(where) for v in error.violations])
