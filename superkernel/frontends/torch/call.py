"""One node of an exported program on its way into the graph: its arguments by the names of the operator's schema,
tensors among them as handles, and the types that torch says its outputs have; what it becomes is written with
`Emitter`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from math import isfinite
from typing import Any

import numpy as np
import torch

from superkernel.builder import GraphBuilder
from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.core.errors import InternalError
from superkernel.frontends.emitter import Emitter
from superkernel.frontends.found import FoundSizes
from superkernel.frontends.torch.numbers import is_computed
from superkernel.frontends.torch.pairs import real_type
from superkernel.frontends.torch.types import element_type

Number = bool | int | float
_CONTENTS = frozenset(("fill_value", "s"))  # arguments of what fills new tensors


class TorchCall(Emitter):
    """What a lowering works with. `read` holds the indices of the outputs that a needed node reads."""

    def __init__(
        self,
        builder: GraphBuilder,
        node: torch.fx.Node,
        env: Mapping[torch.fx.Node, Any],
        needed: Container[torch.fx.Node],
        stem: str,
        where: str,
        found: FoundSizes,
    ) -> None:
        super().__init__(builder, stem, where, thorough=bool(found.foreseen))
        self.node, self.found = node, found
        self.op: str = node.target._schema.name.partition("::")[2]
        self.overload: str = node.target._overloadname
        self.raw = _by_name(node)
        self.args: dict[str, Any] = torch.fx.node.map_arg(dict(self.raw), lambda n: env[n])
        self._refuse_computed()
        found = node.meta.get("val")
        self.values: list[Any] = list(found) if isinstance(found, (tuple, list)) else [found]
        self.read = _outputs_read(node, needed)

    def _refuse_computed(self) -> None:
        """Raises UnsupportedError where a number that is computed stands for what no overload takes as a tensor, but
        for the contents of new tensors."""
        computed = [name for name, given in self.raw.items() if is_computed(given)]
        if not computed:
            return
        packet = self.node.target.overloadpacket
        overloads = [getattr(packet, name)._schema for name in packet.overloads()]
        taken = {a.name for schema in overloads for a in schema.arguments if "Tensor" in str(a.type)}
        for name in computed:
            if name not in taken | _CONTENTS:
                found = f"{name} is computed"
                raise self.unsupported("a number must be known", expected="a Python number", found=found)

    # -- reading

    def get(self, name: str, default: Any = None) -> Any:
        """An argument; `default` where it is absent or None."""
        value = self.args.get(name)
        return default if value is None else value

    def tensor(self, name: str) -> Tensor:
        """An argument that is a tensor."""
        value = self.args.get(name)
        if not isinstance(value, Tensor):
            raise InternalError("a tensor was expected", location=self.where, expected=name, found=repr(value))
        return value

    def optional(self, name: str) -> Tensor | None:
        """An argument that is a tensor or None."""
        return None if self.args.get(name) is None else self.tensor(name)

    def ints(self, name: str, count: int | None = None) -> list[int]:
        """A list of integers; a single one stands for `count` of them, an absent one for none."""
        value = self.get(name, [])
        flat = [value] if isinstance(value, int) else [int(v) for v in value]
        return flat * count if count is not None and len(flat) == 1 else flat

    def axis(self, name: str, rank: int, default: int = 0) -> int:
        """A non-negative axis."""
        return int(self.get(name, default)) % max(rank, 1)

    def axes(self, name: str, rank: int) -> list[int]:
        """Non-negative axes, sorted; all of them where none are given."""
        given = self.ints(name)
        return sorted({a % max(rank, 1) for a in given}) if given and rank else list(range(rank))

    def wants(self, index: int) -> bool:
        """True where something reads output `index`."""
        return index in self.read

    def known(self, name: str) -> Any:
        """The contents of an argument that must be a constant."""
        data = self.tensor(name).value.data
        if data is None:
            hint = "make it a buffer or a Python number"
            raise self.unsupported(f"{name} must be known at compile time", expected="a constant", hint=hint)
        return data

    def lifted(self, name: str) -> Tensor:
        """An argument that is a tensor, a scalar as a row of one element."""
        x = self.tensor(name)
        return x if x.rank else self.reshape(x, (1,))

    # -- types

    @property
    def dtype(self) -> DType:
        """Element type of the first output, or of its parts."""
        return element_type(real_type(self.values[0].dtype), self.where)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first output."""
        return tuple(int(d) for d in self.values[0].shape)

    def promoted(self, first: str, second: str) -> DType:
        """The type in which torch computes with two arguments, by its rules for tensors, scalars and numbers."""
        raw = (self.raw[first], self.raw[second])
        values = (1.0 if is_computed(r) else r.meta["val"] if isinstance(r, torch.fx.Node) else r for r in raw)
        return element_type(torch.result_type(*values), self.where)

    # -- writing

    def typed(self, value: Tensor | Number, dtype: DType) -> Tensor:
        """A tensor or number in an element type."""
        if isinstance(value, Tensor):
            return self.cast(value, dtype)
        return self.constant(np.asarray(value).astype(dtype.numpy), dtype)

    def holding(self, kind: DType, *names: str) -> DType:
        """`kind`; f32, in which torch multiplies and divides narrow floats by numbers, where one of these arguments is
        a number that `kind` does not hold: 1e6 is infinite in f16, 1e-8 is 0. (It adds and compares them as `kind`.)"""
        if not kind.is_float or kind.itemsize > 2:
            return kind
        given = (self.args.get(n) for n in names)
        scalars = (v.value.data if isinstance(v, Tensor) and not v.rank else v for v in given)
        numbers = [float(v) for v in scalars if isinstance(v, (int, float, np.ndarray))]
        near = (abs(v - float(np.float64(v).astype(kind.numpy))) <= abs(v) * 2**-8 for v in numbers if isfinite(v))
        return kind if all(near) else DType.F32

    def operand(self, name: str, dtype: DType | None = None) -> Tensor:
        """A tensor or number argument in the element type `dtype` (that of the output)."""
        return self.typed(self.args[name], dtype or self.dtype)


def _by_name(node: torch.fx.Node) -> dict[str, Any]:
    """Arguments by the schema's names, defaults filled in."""
    named: dict[str, Any] = {}
    for position, argument in enumerate(node.target._schema.arguments):
        if position < len(node.args):
            named[argument.name] = node.args[position]
        elif argument.name in node.kwargs:
            named[argument.name] = node.kwargs[argument.name]
        else:
            named[argument.name] = argument.default_value if argument.has_default_value() else None
    return named


def _outputs_read(node: torch.fx.Node, needed: Container[torch.fx.Node]) -> frozenset[int]:
    """The outputs that something reads: those of the getitem nodes, or the only one."""
    picks = {u.args[1] for u in node.users if is_getitem(u) and u in needed}
    return frozenset(picks) if picks else frozenset({0})


def is_getitem(node: torch.fx.Node) -> bool:
    """True where the node picks one output of another."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"
