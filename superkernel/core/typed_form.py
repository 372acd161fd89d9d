"""Values of declared types as bytes and back: what caches and saved kernels keep in place of pickles.

Model: a value is cut into columns by its declared type, `tuple[Task, ...]` say: numbers and text stand one behind the
other, tuples as lengths and one column of all their elements, alternatives as tags and a column each, rows of a frozen
dataclass as positions in the one table of its class, which has a column per field. So the reader's work is a few calls
per type and not per value, and equal rows are one. Columns are JSON behind their length, whole numbers in
blocks behind that, in the fewest bytes that hold them; arrays follow, raw, each at a multiple of ALIGNMENT; those that
the reader has at hand are told by name.

Types: int, float, bool, str, None, enumerations, tuples, mappings from text, arrays, unions of these, dataclasses of
them, and abstract ones, whose subclasses `variants` finds by name. No type may contain itself.

Invariants: nothing is called but the classes that the declared type names, and subclasses of its own abstract ones that
`variants` knows; each column is checked against its type; what is read is linear in the size of the file.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from inspect import isabstract
from itertools import chain, islice
from math import prod
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.core.json_text import parse_json

ALIGNMENT = 64
VERSION = 1
_PLAIN: dict[object, frozenset[type]] = {  # a float may be written as a whole number
    float: frozenset({int, float}), bool: frozenset({bool}), str: frozenset({str}), NoneType: frozenset({NoneType}),
}  # fmt: skip
_WIDTHS: tuple[np.dtype[np.signedinteger[Any]], ...] = tuple(map(np.dtype, ("<i1", "<i2", "<i4", "<i8")))
_DAMAGE = (
    ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError, MemoryError,
    StopIteration,
)  # fmt: skip

_OWN_KEYS = frozenset({int, str})  # equal ones are one, and equal nothing else
_ATOMS = frozenset({float, bool, NoneType})
Arrays = Mapping[str, NDArray[Any]]
Variants = Callable[[str], type]
"""A class by `class_name`. Raises KeyError on a name that is none of those that may be made."""


def class_name(kind: type) -> str:
    """Under which name a class stands in the bytes."""
    return f"{kind.__module__}.{kind.__qualname__}"


def encode(kind: Any, value: object, at_hand: Arrays) -> bytes:
    """A value of the declared type `kind`; arrays that the reader has `at_hand` are told by name. Raises TypeError on
    what is not of its declared type."""
    return _Writer(at_hand).written(kind, value)


def decode(kind: Any, data: bytes | memoryview, at_hand: Arrays, variants: Variants) -> Any:
    """Inverse of `encode`; arrays are views of `data`. Raises ValueError on what `encode` does not write."""
    try:
        return _Reader(kind, data, at_hand, variants).value(kind)
    except _DAMAGE as error:
        raise ValueError(f"not of the form: {type(error).__name__}: {error}") from error


@cache
def _fields(kind: type) -> tuple[tuple[str, Any], ...]:
    """Names and types of a class's fields."""
    hints = get_type_hints(kind)
    return tuple((field.name, hints[field.name]) for field in dataclasses.fields(kind))


@cache
def _getter(kind: type) -> Callable[[Any], tuple[Any, ...]] | None:
    """What takes the fields of a row of a class; None of what is no class of rows."""
    if not dataclasses.is_dataclass(kind):
        return None
    names = [name for name, _ in _fields(kind)]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda row: tuple(getattr(row, name) for name in names)


@cache
def _alternatives(kind: Any) -> tuple[Any, ...] | None:
    """The members of a union, or None."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else None


def _origin(kind: Any) -> Any:
    """As `get_origin`, but of what an alias stands for: NumPy's `NDArray` is one from 2.5 on."""
    origin = get_origin(kind)
    return get_origin(origin.__value__) if hasattr(origin, "__value__") else origin


class _Writer:
    """Rows are found first, each once; then all columns are written."""

    def __init__(self, at_hand: Arrays) -> None:
        self.names = {id(array): name for name, array in at_hand.items()}
        self.rows: dict[type, dict[Any, Any]] = {}
        self.places: dict[int, int] = {}
        self.arrays: dict[int, NDArray[Any]] = {}
        self.blocks: list[bytes] = []
        self.end = 0

    def written(self, kind: Any, value: object) -> bytes:
        self.find_rows(value)
        root = self.column(kind, [value])
        tables = {
            class_name(c): {f: self.column(of, [getattr(row, f) for row in rows.values()]) for f, of in _fields(c)}
            for c, rows in self.rows.items()
        }
        heads = [
            [self.names[i]]
            if i in self.names
            else [DType.of(array.dtype).value, array.shape, self.block(np.ascontiguousarray(array), ALIGNMENT)]
            for i, array in self.arrays.items()
        ]
        text = json.dumps([VERSION, str(kind), root, tables, heads], separators=(",", ":")).encode()
        head = len(text).to_bytes(8, "little") + text
        return b"".join([head.ljust(_aligned(len(head), ALIGNMENT), b"\0"), *self.blocks])

    def find_rows(self, value: Any) -> Any:
        """Make rows of the dataclasses in a value. A key that tells the value from all others."""
        kind: type = type(value)
        if kind in _OWN_KEYS:
            return value
        if kind is tuple:
            return tuple([v if type(v) in _OWN_KEYS else self.find_rows(v) for v in value])
        if (fields_of := _getter(kind)) is not None:
            place = self.places.get(id(value))
            if place is None:
                rows = self.rows.setdefault(kind, {})
                key = tuple([v if type(v) in _OWN_KEYS else self.find_rows(v) for v in fields_of(value)])
                place = self.places[id(value)] = self.places[id(rows[key])] if key in rows else len(rows)
                rows.setdefault(key, value)
            return kind, place
        if kind is np.ndarray:
            return id(value)
        if kind not in _ATOMS and isinstance(value, Mapping):
            return (*value, *map(self.find_rows, value.values()))
        return kind, repr(value) if kind is float else value  # -0.0 equals 0.0

    def block(self, array: NDArray[Any], alignment: int) -> int:
        """Where an array's bytes come to stand."""
        start = _aligned(self.end, alignment)
        self.blocks += [b"\0" * (start - self.end), array.tobytes()]
        self.end = start + array.nbytes
        return start

    def numbers(self, values: Sequence[int]) -> list[int]:
        """Width, place and number of whole numbers."""
        wide = np.array(_checked(int, values), np.int64)
        low, high = (int(wide.min()), int(wide.max())) if values else (0, 0)
        width = next(i for i, d in enumerate(_WIDTHS) if np.iinfo(d).min <= low and high <= np.iinfo(d).max)
        return [width, self.block(wide.astype(_WIDTHS[width]), _WIDTHS[width].itemsize), len(values)]

    def column(self, kind: Any, values: Sequence[Any]) -> Any:
        if kind is int:
            return self.numbers(values)
        if kind in _PLAIN:
            return _checked(kind, values)
        if (members := _alternatives(kind)) is not None:
            tags = _tags(members, values)
            parts = [[v for v, t in zip(values, tags, strict=True) if t == i] for i in range(len(members))]
            return [self.numbers(tags), *map(self.column, members, parts)]
        if (origin := _origin(kind)) is tuple:
            _checked(tuple, values)
            first, *rest = get_args(kind)
            if rest == [...]:
                return [self.numbers([len(v) for v in values]), self.column(first, list(chain.from_iterable(values)))]
            if any(len(v) != 1 + len(rest) for v in values):
                raise TypeError(f"a tuple that is no {kind}")
            return [self.column(of, [v[i] for v in values]) for i, of in enumerate((first, *rest))]
        if origin is Mapping:
            of = get_args(kind)[1]
            keys = _checked(str, [key for v in values for key in v])
            lengths = self.numbers([len(v) for v in values])
            return [lengths, keys, self.column(of, [item for v in values for item in v.values()])]
        if origin is np.ndarray:
            for value in values:
                if not isinstance(value, np.ndarray):
                    raise TypeError(f"{type(value).__name__} is no array")
                self.places.setdefault(id(value), len(self.arrays))
                self.arrays.setdefault(id(value), value)
            return self.numbers([self.places[id(value)] for value in values])
        if issubclass(kind, Enum):
            return [value.value for value in _checked(kind, values)]
        if not isabstract(kind):
            return self.numbers([self.places[id(value)] for value in _checked(kind, values)])
        kinds = list(dict.fromkeys(map(type, values)))
        if foreign := [k for k in kinds if not issubclass(k, kind)]:
            raise TypeError(f"{foreign[0].__name__} where {kind.__name__} is declared")
        tags = self.numbers([kinds.index(type(value)) for value in values])
        return [[class_name(k) for k in kinds], tags, self.numbers([self.places[id(value)] for value in values])]


class _Reader:
    """Tables are read when a column first refers to them."""

    def __init__(self, kind: Any, data: bytes | memoryview, at_hand: Arrays, variants: Variants) -> None:
        length = int.from_bytes(data[:8], "little")
        document = parse_json(bytes(data[8 : 8 + length]))
        version, declared, self.root, self.texts, heads = document
        if (version, declared) != (VERSION, str(kind)):
            raise ValueError(f"version {version!r} of {declared!r}")
        self.variants = variants
        self.tables: dict[type, list[Any]] = {}
        self.blocks = memoryview(data)[_aligned(8 + length, ALIGNMENT) :]
        self.arrays = [at_hand[head[0]] if len(head) == 1 else self.array(*head) for head in heads]

    def array(self, dtype: str, shape: Sequence[int], start: int) -> NDArray[Any]:
        if min(_checked(int, [*shape, start])) < 0:
            raise ValueError("a negative size")
        kind, count = DType(dtype).numpy, prod(shape)
        return np.frombuffer(self.blocks, kind, count, start).reshape(shape) if count else np.zeros(shape, kind)

    def numbers(self, place: Sequence[int], low: int = 0) -> list[int]:
        """Whole numbers, none below `low`: nobody counts from the end."""
        width, start, count = place
        if min(width, start, count) < 0:
            raise ValueError("a negative place")
        found = np.frombuffer(self.blocks, _WIDTHS[width], count, start) if count else np.zeros(0, np.int8)
        if count and found.min() < low:
            raise ValueError("a negative number")
        return found.tolist()

    def value(self, kind: Any) -> Any:
        (value,) = self.column(kind, self.root)
        return value

    def table(self, kind: type) -> list[Any]:
        found = self.tables.get(kind)
        if found is None:
            columns = self.texts.pop(class_name(kind), None)  # a class that contains itself finds nothing here
            names = [name for name, _ in _fields(kind)]
            if columns is None or list(columns) != names:
                raise ValueError(f"no table of {class_name(kind)} with fields {', '.join(names)}")
            read = [self.column(of, columns[name]) for name, of in _fields(kind)]
            if len({len(column) for column in read}) > 1:
                raise ValueError(f"columns of {class_name(kind)} differ in length")
            found = self.tables[kind] = _rows(kind, read) if read else [kind()]
        return found

    def column(self, kind: Any, data: Any) -> Sequence[Any]:
        if kind is int:
            return self.numbers(data, np.iinfo(np.int64).min)
        if kind in _PLAIN:
            return _checked(kind, data)
        if (members := _alternatives(kind)) is not None:
            tags, *columns = data
            found = [self.column(m, c) for m, c in zip(members, columns, strict=True)]
            order = self.numbers(tags)
            if sum(map(len, found)) != len(order):
                raise ValueError("tags and alternatives differ")
            if full := [column for column in found if len(column) == len(order)]:
                return full[0]
            parts = [iter(column) for column in found]
            return [next(parts[tag]) for tag in order]
        if (origin := _origin(kind)) is tuple:
            first, *rest = get_args(kind)
            if rest != [...]:
                return list(zip(*map(self.column, (first, *rest), _of_length(data, 1 + len(rest))), strict=True))
            lengths, elements = data
            return _cut(self.numbers(lengths), self.column(first, elements))
        if origin is Mapping:
            lengths, keys, items = data
            pairs = list(zip(_checked(str, keys), self.column(get_args(kind)[1], items), strict=True))
            return list(map(dict, _cut(self.numbers(lengths), pairs)))
        if origin is np.ndarray:
            return [self.arrays[i] for i in self.numbers(data)]
        if issubclass(kind, Enum):
            return list(map({member.value: member for member in kind}.__getitem__, data))
        if not isabstract(kind):
            positions = self.numbers(data)
            return list(map(self.table(kind).__getitem__, positions)) if positions else []
        names, tags, positions = data
        tables = [self.table(self.variant(kind, name)) for name in names]
        return [tables[t][i] for t, i in zip(self.numbers(tags), self.numbers(positions), strict=True)]

    def variant(self, base: type, name: str) -> type:
        found = self.variants(name)
        if not (issubclass(found, base) and dataclasses.is_dataclass(found)) or isabstract(found):
            raise ValueError(f"{name} is no {base.__name__}")
        return found


def _tags(members: Sequence[Any], values: Sequence[object]) -> list[int]:
    """Which members of a union values are: what is no tuple, its class tells."""
    known: dict[type, int] = {}
    tags = []
    for value in values:
        kind = type(value)
        tag = known.get(kind)
        if tag is None:
            tag = _tag(members, value)
            if kind is not tuple:
                known[kind] = tag
        tags.append(tag)
    return tags


def _rows(kind: type, columns: Sequence[Sequence[Any]]) -> list[Any]:
    """Instances of a class from columns, one per field in the order of declaration."""
    fields = dataclasses.fields(kind)
    if not any(field.kw_only for field in fields):
        return list(map(kind, *columns))
    names = [field.name for field in fields]
    return [kind(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def _tag(members: Sequence[Any], value: object) -> int:
    """Which member of a union a value is."""
    for tag, member in enumerate(members):
        if get_origin(member) is tuple:
            if type(value) is not tuple:
                continue
            first, *rest = get_args(member)
            kinds = [first] * len(value) if rest == [...] else [first, *rest]
            if len(value) == len(kinds) and all(
                type(v) in _PLAIN.get(k, set(_alternatives(k) or (k,))) for v, k in zip(value, kinds, strict=True)
            ):
                return tag
        elif type(value) is member or (isinstance(member, type) and isabstract(member) and isinstance(value, member)):
            return tag
    raise TypeError(f"{value!r} is none of {members}")


def _checked(kind: Any, values: Sequence[Any]) -> Sequence[Any]:
    """The values, all of which are of the type itself: no subclass, no NumPy scalar."""
    if foreign := set(map(type, values)) - _PLAIN.get(kind, frozenset({kind})):
        raise TypeError(f"{foreign.pop().__name__} where {kind.__name__} is declared")
    return values


def _of_length(values: Sequence[Any], count: int) -> Sequence[Any]:
    if len(values) != count:
        raise ValueError(f"{len(values)} columns, not {count}")
    return values


def _cut(lengths: Sequence[int], elements: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Tuples of these lengths, one behind the other."""
    if sum(lengths) != len(elements):
        raise ValueError("lengths and elements differ")
    source = iter(elements)
    if len(set(lengths)) == 1 and lengths[0]:
        return list(zip(*[source] * lengths[0], strict=True))
    return [tuple(islice(source, n)) for n in lengths]


def _aligned(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment
