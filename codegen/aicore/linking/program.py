"""All objects as one program: whose symbol is meant by which reference.

Model: pieces, symbols and relocations of all objects in one numbering. Every symbol that a relocation names is resolved
to a place: piece (or none: an absolute address), offset in it, and copy (-1: the copy of whoever refers to it).
Invariant: a `Program` has no undefined and no duplicate symbol; all of them are reported at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from superkernel.codegen.aicore.linking.layout import LinkLayout
from superkernel.codegen.aicore.linking.objects import (
    ABSOLUTE,
    COMMON,
    GLOBAL,
    LOCAL,
    UNDEFINED,
    WEAK,
    LinkPiece,
    ObjectFile,
    PieceKind,
)
from superkernel.core.errors import LinkError, Violation, raise_all

SAME_COPY = -1
_COPY_SUFFIX = re.compile(r"(.+)\.copy(0|[1-9][0-9]{0,5})")
_SECTION_SYMBOL, _FILE_SYMBOL = 3, 4
_KINDS = {0: "none", 1: "object", 2: "function"}


@dataclass(frozen=True, slots=True)
class Definition:
    """A symbol at its place: an offset in a piece, or an absolute address where `piece` is -1."""

    name: str
    piece: int
    value: int
    size: int
    kind: str  # "function", "object", "none"
    binding: int
    object: str


@dataclass(frozen=True)
class Program:
    """See the module docstring. `relocation_*` are parallel arrays, `symbol_*` are indexed by `relocation_symbol`."""

    pieces: tuple[LinkPiece, ...]
    copied: NDArray[np.bool_]  # per piece
    definitions: tuple[Definition, ...]
    globals: dict[str, Definition]
    named: dict[str, Definition]  # global ones, and local ones whose name only one object has
    symbol_names: tuple[str, ...]
    symbol_piece: NDArray[np.int64]
    symbol_value: NDArray[np.int64]
    symbol_copy: NDArray[np.int64]
    relocation_piece: NDArray[np.int64]
    relocation_offset: NDArray[np.int64]
    relocation_kind: NDArray[np.int64]
    relocation_symbol: NDArray[np.int64]
    relocation_addend: NDArray[np.int64]

    def where(self, relocation: int) -> str:
        """A relocation's place in words."""
        piece = self.pieces[self.relocation_piece[relocation]]
        return f"object {piece.object!r}, section {piece.name!r} + {int(self.relocation_offset[relocation]):#x}"


def _named(definitions: Sequence[Definition], known: dict[str, Definition]) -> dict[str, Definition]:
    named: dict[str, Definition] = {}
    clashing: set[str] = set()
    for definition in definitions:
        if definition.name in named:
            clashing.add(definition.name)
        named[definition.name] = definition
    return {name: d for name, d in named.items() if name not in clashing} | known


def combine(objects: Sequence[ObjectFile], layout: LinkLayout) -> Program:
    """Raises LinkError with all undefined, duplicate and unknown symbols."""
    pieces = tuple(piece for obj in objects for piece in obj.pieces)
    definitions, violations = _definitions(objects)
    known, duplicates = _globals(definitions, layout)
    named = _named(definitions, known)
    shared, unknown = _shared(named, pieces, layout)
    violations += duplicates + unknown
    first_piece = np.cumsum([0] + [len(obj.pieces) for obj in objects])
    first_symbol = np.cumsum([0] + [len(obj.symbols) for obj in objects])
    joined = _join(objects, first_piece, first_symbol)
    resolver = _Resolver(known, layout, [p.name for p in pieces])
    symbol_piece, symbol_value, symbol_copy = resolver.resolve(objects, first_piece, np.unique(joined[3]), joined)
    raise_all(LinkError, violations + resolver.violations)
    copied = _copied(pieces, shared, joined, symbol_piece, symbol_copy)
    names = tuple(name for obj in objects for name in obj.symbol_names)
    return Program(pieces, copied, definitions, known, named, names, symbol_piece, symbol_value, symbol_copy, *joined)


Joined = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def _join(objects: Sequence[ObjectFile], pieces: NDArray[np.int64], symbols: NDArray[np.int64]) -> Joined:
    """Relocations of all objects: piece, offset, kind, symbol, addend."""
    none = [np.empty(0, np.int64)]
    rows = [obj.relocations for obj in objects]
    high, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    return (
        np.concatenate([obj.relocation_piece + pieces[n] for n, obj in enumerate(objects)] or none),
        np.concatenate([r["offset"].astype(np.int64) for r in rows] or none),
        np.concatenate([(r["info"] & low).astype(np.int64) for r in rows] or none),
        np.concatenate([(r["info"] >> high).astype(np.int64) + symbols[n] for n, r in enumerate(rows)] or none),
        np.concatenate([r["addend"] for r in rows] or none).astype(np.int64),
    )


def _definitions(objects: Sequence[ObjectFile]) -> tuple[tuple[Definition, ...], list[Violation]]:
    """All named symbols at their places; labels that assemblers make for themselves are left out."""
    found: list[Definition] = []
    violations: list[Violation] = []
    first = 0
    for obj in objects:
        columns = zip(obj.symbol_names, obj.symbol_piece.tolist(), obj.symbols.tolist(), strict=True)
        for name, piece, (_, info, _, section, value, size) in columns:
            binding, kind = info >> 4, info & 15
            if not name or name[0] == "$" or name.startswith(".L") or kind in (_SECTION_SYMBOL, _FILE_SYMBOL):
                continue
            if section == COMMON:
                place = f"object {obj.name!r}"
                violations.append(
                    Violation("a common symbol", place, "a definition", repr(name), "give it an initial value")
                )
            elif piece >= 0:
                if value + size > obj.pieces[piece].size:
                    place = f"object {obj.name!r}, symbol {name!r}"
                    violations.append(Violation("a symbol reaches beyond its section", place))
                found.append(Definition(name, first + piece, value, size, _KINDS.get(kind, "none"), binding, obj.name))
            elif section == ABSOLUTE:
                found.append(Definition(name, -1, value, size, _KINDS.get(kind, "none"), binding, obj.name))
        first += len(obj.pieces)
    return tuple(found), violations


def _globals(definitions: Sequence[Definition], layout: LinkLayout) -> tuple[dict[str, Definition], list[Violation]]:
    known = {
        name: Definition(name, -1, address, 0, "none", GLOBAL, "layout") for name, address in layout.absolute.items()
    }
    duplicates: list[Violation] = []
    for definition in definitions:
        if definition.binding == LOCAL:
            continue
        other = known.get(definition.name)
        if other is not None and other.binding != WEAK and definition.binding != WEAK:
            duplicates.append(
                Violation(
                    f"symbol {definition.name!r} is defined twice",
                    f"object {definition.object!r}",
                    found=f"another in {other.object!r}",
                )
            )
        elif other is None or (other.binding == WEAK and definition.binding != WEAK):
            known[definition.name] = definition
    for name in known:
        match = _COPY_SUFFIX.fullmatch(name)
        if match and match[1] in known and int(match[2]) < layout.copies:
            place = f"object {known[name].object!r}"
            duplicates.append(Violation(f"symbol {name!r} has the name of a copy of {match[1]!r}", place))
    return known, duplicates


def _shared(
    named: dict[str, Definition], pieces: Sequence[LinkPiece], layout: LinkLayout
) -> tuple[set[int], list[Violation]]:
    """The pieces of the shared symbols; complaints about unknown names in the layout."""
    code = {n for n, piece in enumerate(pieces) if piece.kind is PieceKind.CODE}
    unknown = [
        Violation("no such function", f"layout.{field}", "a function of the objects", repr(name))
        for field in ("shared", "order", "entered_cold")
        for name in getattr(layout, field)
        if name not in named or named[name].piece not in code
    ]
    return {named[name].piece for name in layout.shared if name in named}, unknown


def _copied(
    pieces: Sequence[LinkPiece],
    shared: set[int],
    joined: Joined,
    symbol_piece: NDArray[np.int64],
    symbol_copy: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Code that is not shared, and constants that lead into such code (jump tables): a copy keeps to itself."""
    movable = np.array([p.kind in (PieceKind.CODE, PieceKind.CONSTANT) for p in pieces], bool)
    copied = np.array([p.kind is PieceKind.CODE for p in pieces], bool)
    for piece in shared:
        if piece >= 0:
            movable[piece] = copied[piece] = False
    owner, target = joined[0], symbol_piece[joined[3]]
    leads = (target >= 0) & (symbol_copy[joined[3]] == SAME_COPY) & movable[owner]
    owner, target = owner[leads], target[leads]
    while True:
        more = np.unique(owner[copied[target] & ~copied[owner]])
        if not len(more):
            return copied
        copied[more] = True


class _Resolver:
    """Gives every symbol that a relocation names its place."""

    def __init__(self, known: dict[str, Definition], layout: LinkLayout, sections: Sequence[str]) -> None:
        self.known, self.copies, self.sections = known, layout.copies, sections
        self.violations: list[Violation] = []

    def resolve(
        self, objects: Sequence[ObjectFile], first_piece: NDArray[np.int64], used: NDArray[np.int64], joined: Joined
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Piece, value and copy of all symbols; entries of symbols that nobody uses mean nothing."""
        none = [np.empty(0, np.int64)]
        local = [np.where(o.symbol_piece >= 0, o.symbol_piece + first_piece[n], -1) for n, o in enumerate(objects)]
        piece = np.concatenate(local or none)
        value = np.concatenate([o.symbols["value"] for o in objects] or none).astype(np.int64)
        info = np.concatenate([o.symbols["info"] for o in objects] or none).astype(np.int64)
        section = np.concatenate([o.symbols["section"] for o in objects] or none).astype(np.int64)
        copy = np.full(len(piece), SAME_COPY, np.int64)
        names = [name for obj in objects for name in obj.symbol_names]
        by_name = (section[used] == UNDEFINED) | (info[used] >> 4 != LOCAL)
        for symbol in used[by_name].tolist():
            if symbol == 0 or not names[symbol]:
                continue  # the null symbol: address 0
            place = self._place(names[symbol])
            if place is not None:
                piece[symbol], value[symbol], copy[symbol] = place
            elif section[symbol] == UNDEFINED and info[symbol] >> 4 == WEAK:
                piece[symbol], value[symbol] = -1, 0
            elif section[symbol] != COMMON:  # a complaint there is already
                self._undefined(names[symbol], symbol, objects, joined)
        dropped = used[(piece[used] < 0) & (section[used] != UNDEFINED) & (section[used] < ABSOLUTE)]
        for symbol in dropped[info[dropped] >> 4 == LOCAL].tolist():
            self._undefined(names[symbol] or "(a section that is not loaded)", symbol, objects, joined)
        return piece, value, copy

    def _place(self, name: str) -> tuple[int, np.int64, int] | None:
        """Piece, value and copy of a name: as it stands, or without `.copy<c>`."""
        found, copy = self.known.get(name), SAME_COPY
        if found is None and (match := _COPY_SUFFIX.fullmatch(name)) and int(match[2]) < self.copies:
            name, copy = match[1], int(match[2])
            found = self.known.get(name)
        if found is None:
            return None
        return found.piece, np.uint64(found.value & (1 << 64) - 1).astype(np.int64), copy

    def _undefined(self, name: str, symbol: int, objects: Sequence[ObjectFile], joined: Joined) -> None:
        user = int(joined[0][joined[3] == symbol].min())
        ends = accumulate(len(obj.pieces) for obj in objects)
        obj = next(obj for obj, end in zip(objects, ends, strict=True) if user < end)
        place = f"object {obj.name!r}, section {self.sections[user]!r}"
        suffix = _COPY_SUFFIX.fullmatch(name)
        hint = f"the layout has {self.copies} copies" if suffix and suffix[1] in self.known else ""
        self.violations.append(Violation(f"symbol {name!r} is not defined", place, hint=hint))


def names_of(definition: Definition, program: Program, copies: int) -> Iterator[tuple[int, str]]:
    """(copy, name) of a symbol in every copy it is in."""
    yield 0, definition.name
    if definition.piece >= 0 and program.copied[definition.piece]:
        for copy in range(1, copies):
            yield copy, f"{definition.name}.copy{copy}"
