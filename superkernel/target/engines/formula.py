"""The language of the command table's formulas: integers only, evaluated here and printed as C++.

A formula has integers, operands of the command by name (a choice counts from 0; a text stands for a choice's number
in a comparison with it), fields of the target description by path, `item0` and `item1` (bytes of the first and second
element type), the operators + - * // % | and comparisons (1 or 0), and these functions:

    ceil_div(a, b)               a / b, rounded up
    max(a, b), min(a, b)
    choose(c, a, b)              a where c is not 0, else b
    lanes(item)                  vector.lanes_32bit where item is 4, else vector.lanes_16bit
    depth()                      cube.k_f32, cube.k_i8 or cube.k_f16 by the first element type
    cycles(path)                 a time in ns as cycles, rounded up
    transfer(path, size)         cycles of size bytes at a rate, rounded up
    gm_transfer(path, size, address)   the same, with the loss of an address off dma.aligned_bytes

Where numbers are used nothing is negative, so // and % mean the same in Python and C++.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING

from superkernel.core.dtypes import DType
from superkernel.target.engines.model import CommandSpec
from superkernel.target.sections import all_fields

if TYPE_CHECKING:
    from superkernel.target.aicore import AicoreTarget

_OPERATORS: dict[type[ast.AST], tuple[str, Callable[[int, int], int]]] = {
    ast.Add: ("+", lambda a, b: a + b),
    ast.Sub: ("-", lambda a, b: a - b),
    ast.Mult: ("*", lambda a, b: a * b),
    ast.FloorDiv: ("/", lambda a, b: a // b),
    ast.Mod: ("%", lambda a, b: a % b),
    ast.BitOr: ("|", lambda a, b: a | b),
    ast.Eq: ("==", lambda a, b: int(a == b)),
    ast.NotEq: ("!=", lambda a, b: int(a != b)),
    ast.Lt: ("<", lambda a, b: int(a < b)),
    ast.LtE: ("<=", lambda a, b: int(a <= b)),
}
_PLAIN: dict[str, tuple[int, Callable[..., int]]] = {
    "ceil_div": (2, lambda a, b: -(-a // b)),
    "max": (2, max),
    "min": (2, min),
    "choose": (3, lambda c, a, b: a if c else b),
}
_WITH_PATH = {"cycles": 1, "transfer": 2, "gm_transfer": 3}


@cache
def _tree(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def evaluate(
    text: str, spec: CommandSpec, operands: Mapping[str, int], types: tuple[DType, ...], target: AicoreTarget
) -> int:
    """The number of a formula for one command on one target."""
    return _Evaluator(spec, operands, types, target).visit(_tree(text))


def to_cpp(text: str, spec: CommandSpec) -> str:
    """The formula as a C++ expression: O(operand), T(section, field), R(section, field) for a rate in MB/s."""
    return _Printer(spec).visit(_tree(text))


def _path(node: ast.expr) -> str:
    """The path of a `section.field` node; ValueError for anything else."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        path = f"{node.value.id}.{node.attr}"
        if path in all_fields():
            return path
    raise ValueError(f"not a field of the target description: {ast.unparse(node)}")


def _comparison(node: ast.Compare, spec: CommandSpec) -> tuple[ast.expr, type[ast.AST], ast.expr]:
    """The sides of a comparison, a text replaced by the number of the choice it names."""
    left, right = node.left, node.comparators[0]
    if isinstance(right, ast.Constant) and isinstance(right.value, str):
        assert isinstance(left, ast.Name)
        right = ast.Constant(spec.operand(left.id).choices.index(right.value))
    return left, type(node.ops[0]), right


class _Evaluator:
    def __init__(
        self, spec: CommandSpec, operands: Mapping[str, int], types: tuple[DType, ...], target: AicoreTarget
    ) -> None:
        self.spec, self.operands, self.types, self.target = spec, operands, types, target

    def visit(self, node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name):
            if node.id in ("item0", "item1"):
                return self.types[int(node.id[-1])].itemsize
            return self.operands[node.id]
        if isinstance(node, ast.Attribute):
            value = self.target.value(_path(node))
            assert isinstance(value, int)
            return value
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)][1](self.visit(node.left), self.visit(node.right))
        if isinstance(node, ast.Compare):
            left, operator, right = _comparison(node, self.spec)
            return _OPERATORS[operator][1](self.visit(left), self.visit(right))
        assert isinstance(node, ast.Call), ast.dump(node)
        return self._call(node)

    def _call(self, node: ast.Call) -> int:
        name = ast.unparse(node.func)
        if name in _PLAIN:
            return _PLAIN[name][1](*(self.visit(a) for a in node.args))
        if name == "lanes":
            vector = self.target.vector
            return vector.lanes_32bit if self.visit(node.args[0]) == 4 else vector.lanes_16bit
        if name == "depth":
            cube = self.target.cube
            return {DType.F32: cube.k_f32, DType.I8: cube.k_i8}.get(self.types[0], cube.k_f16)
        path, rest = _path(node.args[0]), [self.visit(a) for a in node.args[1:]]
        if name == "cycles":
            time_ns = self.target.value(path)
            assert isinstance(time_ns, int)
            return self.target.cycles(time_ns)
        if name == "transfer":
            return self.target.transfer_cycles(path, rest[0])
        assert name == "gm_transfer", name
        return self.target.global_transfer_cycles(path, rest[0], rest[1])


class _Printer:
    """Prints C++; refuses names that mean nothing, so that printing every formula checks them all."""

    def __init__(self, spec: CommandSpec) -> None:
        self.spec = spec

    def visit(self, node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return str(node.value)
        if isinstance(node, ast.Name):
            if node.id in ("item0", "item1"):
                if int(node.id[-1]) >= len(self.spec.type_names):
                    raise ValueError(f"{self.spec.name} has no {node.id}")
                return f"{node.id}()"
            return f"O({self.spec.operand(node.id).name})"
        if isinstance(node, ast.Attribute):
            section, name = _path(node).split(".")
            return f"T({section}, {name})"
        if isinstance(node, ast.BinOp):
            return f"({self.visit(node.left)} {_OPERATORS[type(node.op)][0]} {self.visit(node.right)})"
        if isinstance(node, ast.Compare):
            left, operator, right = _comparison(node, self.spec)
            return f"({self.visit(left)} {_OPERATORS[operator][0]} {self.visit(right)})"
        if not isinstance(node, ast.Call):
            raise ValueError(f"not in the language: {ast.unparse(node)}")
        return self._call(node)

    def _call(self, node: ast.Call) -> str:
        name, arity = ast.unparse(node.func), len(node.args)
        expected = _WITH_PATH.get(name, _PLAIN[name][0] if name in _PLAIN else {"lanes": 1, "depth": 0}.get(name))
        if arity != expected:
            raise ValueError(f"{name} with {arity} arguments in {self.spec.name}")
        if name not in _WITH_PATH:
            return f"{_CPP_NAMES.get(name, name)}({', '.join(self.visit(a) for a in node.args)})"
        section, field = _path(node.args[0]).split(".")
        figure = f"T({section}, {field})" if name == "cycles" else f"R({section}, {field})"
        return f"{_CPP_NAMES.get(name, name)}({', '.join([figure, *(self.visit(a) for a in node.args[1:])])})"


# `max`, `min` and `cycles` would meet other names where the header is included.
_CPP_NAMES = {"max": "larger", "min": "smaller", "cycles": "cycles_of_ns"}
