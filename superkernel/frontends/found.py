"""Sizes that data decides, as frontends come to them in their walk: `padding/counted.py` asks for graphs of some."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from superkernel.builder.tensor import Tensor, Value
from superkernel.frontends.emitter import Emitter
from superkernel.ir.graph import Graph
from superkernel.padding.counted import Counted

_DEPTH = 6
_NUMBERS_MAX = 16


def _written(value: Value, depth: int) -> Hashable:
    """What computes a value, equal for what is the same as far as one looks; else the value itself."""
    data, record = value.data, value.record
    if data is not None:
        return (str(data.dtype), data.shape, data.tobytes()) if data.size <= _NUMBERS_MAX else value
    if record is None or not depth:
        return value
    inputs = tuple(None if each is None else _written(each, depth - 1) for each in record.inputs)
    return record.op, record.outputs.index(value), inputs, repr(sorted(record.attrs.items()))


class FoundSizes:
    """What operators of `ops/counting.py` find, in order. `asked`: how much each is claimed to find; as much as there
    can be where nobody asks, or for more than that. `foreseen`: how much, by the keys of all that find something, where
    that is known ahead."""

    def __init__(self, asked: Sequence[int] = (), foreseen: Mapping[Hashable, int] | None = None) -> None:
        self._asked, self.foreseen = asked, foreseen
        self._sizes = {} if foreseen is None else dict(foreseen)
        self._tables: dict[Hashable, Tensor] = {}
        self._rows: dict[Hashable, Tensor] = {}
        self.branches: list[bool] = []
        """Which way was gone where that is known."""

    def find(self, call: Emitter, op: str, *inputs: Tensor, key: Hashable = None, most: int, **attrs: Any) -> Tensor:
        """What an operator finds that has room for `most`: its rows, without the one that counts them. The same is
        found where the same is looked for again: by `key`, if that is given."""
        if key is None:
            key = op, *(_written(tensor.value, _DEPTH) for tensor in inputs), *sorted(attrs.items())
        known = inputs[0].value.data
        if op == "nonzero" and known is not None and not self.foresees(key):
            return call.constant(np.flatnonzero(known))
        if key not in self._rows:
            size = self._size(call, key, most)
            table = call.emit(op, *inputs, size=size, **attrs)
            known = table.value.data
            if known is not None and self.foreseen is None:
                del self._sizes[key]
                size = int(known.flat[0])
            self._tables[key] = table
            self._rows[key] = call.emit("slice", table, starts=[1], ends=[size + 1], axes=[0], steps=[1])
        return self._rows[key]

    @property
    def sizes(self) -> tuple[int, ...]:
        """How much there is room for, of all that was found."""
        return tuple(self._sizes.values())

    def foresees(self, key: Hashable) -> bool:
        """Whether something is to be found by this key."""
        return self.foreseen is not None and key in self.foreseen

    def _size(self, call: Emitter, key: Hashable, most: int) -> int:
        if self.foreseen is not None:
            if key not in self.foreseen:
                raise call.unsupported("a size that data decides in a way that is not foreseen")
            return self.foreseen[key]
        place = len(self._sizes)
        self._sizes[key] = min(most, self._asked[place]) if place < len(self._asked) else most
        return self._sizes[key]

    def places(self, call: Emitter, mask: Tensor, key: Hashable = None) -> list[Tensor]:
        """Where a tensor is not 0: for each of its axes the coordinates, i64, all as long."""
        index = self.find(call, "nonzero", mask, key=key, most=mask.type.size)
        found = []
        for axis, extent in enumerate(mask.shape):
            inner = prod(mask.shape[axis + 1 :])
            place = index if inner == 1 else call.emit("div", index, call.like(inner, index))
            found.append(place if axis == 0 else call.emit("mod", place, call.like(extent, place)))
        return found

    def counted(self, graph: Graph) -> Counted:
        """The graph that the walk wrote."""
        tables = (self._tables[key].name if key in self._tables else "" for key in self._sizes)
        return Counted(graph, tuple(tables), self.sizes, tuple(self.branches))
