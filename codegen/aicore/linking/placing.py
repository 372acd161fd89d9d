"""Gives every piece its address in every copy.

Model: a `PlacedRegion` is a stretch of memory with one kind of contents: the shared code, one copy of the code,
constants, data, zero-filled data. Pieces stand in a region one behind the other, each aligned; what is skipped is
padding. Copies of the code hold the same pieces in the same order at addresses that agree modulo every alignment, so
that distances within a copy are the same in all of them.

Invariant: regions follow one another and stay within the layout's limits; all violations are reported at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from superkernel.codegen.aicore.linking.layout import PAGE_BYTES, LinkLayout
from superkernel.codegen.aicore.linking.objects import PieceKind
from superkernel.codegen.aicore.linking.program import Program
from superkernel.core.errors import MachineError, Violation, raise_all

_FLAGS = {PieceKind.CODE: "r-x", PieceKind.CONSTANT: "r--", PieceKind.DATA: "rw-", PieceKind.ZERO: "rw-"}


@dataclass(frozen=True, slots=True)
class PlacedPiece:
    """One piece in one copy, and the bytes of padding in front of it."""

    piece: int
    copy: int
    address: int
    padding: int


@dataclass(frozen=True)
class PlacedRegion:
    """A stretch of memory. `file_bytes` 0 where it holds zeros only."""

    name: str
    kind: PieceKind
    address: int
    end: int
    slots: tuple[PlacedPiece, ...]

    @property
    def flags(self) -> str:
        """Access as the ELF file names it: r-x, r-- or rw-."""
        return _FLAGS[self.kind]

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return self.end - self.address

    @property
    def file_bytes(self) -> int:
        """Bytes in the file: none where memory holds zeros."""
        return 0 if self.kind is PieceKind.ZERO else self.size


@dataclass(frozen=True)
class LinkPlacement:
    """Regions by address of their first byte within each class (code, then data); addresses as [copy, piece]."""

    regions: tuple[PlacedRegion, ...]
    address: NDArray[np.int64]


def place(program: Program, layout: LinkLayout) -> LinkPlacement:
    """Raises MachineError where regions exceed the limits."""
    placer = _Placer(program, layout)
    placer.place_code()
    placer.place_data()
    placer.check()
    return LinkPlacement(tuple(placer.regions), placer.address)


class _Placer:
    def __init__(self, program: Program, layout: LinkLayout) -> None:
        self.program, self.layout = program, layout
        self.regions: list[PlacedRegion] = []
        self.address = np.zeros((layout.copies, len(program.pieces)), np.int64)
        self.cold = {program.named[name].piece for name in layout.entered_cold}
        marked = {definition.piece for definition in program.definitions}  # even without bytes, a symbol has a place
        self.kept = [piece.size > 0 or n in marked for n, piece in enumerate(program.pieces)]

    def place_code(self) -> None:
        layout, program = self.layout, self.program
        order = self._code_order()
        at = self._region("shared", PieceKind.CODE, [p for p in order if not program.copied[p]], 0, layout.code_address)
        copied = [p for p in order if program.copied[p]]
        aligns = [program.pieces[p].align for p in copied]
        align = max(layout.copy_align, layout.func_align, *aligns) if aligns else layout.copy_align
        start = at
        for copy in range(layout.copies if copied else 0):
            at = _round_up(at, align)
            if copy and (at - start) // align % 2 == 0:  # an odd distance spreads a line's copies over all banks
                at += align
            start = at
            at = self._region(f"copy {copy}", PieceKind.CODE, copied, copy, at)

    def _code_order(self) -> list[int]:
        """Code pieces: those of the layout's order first, the rest behind in input order."""
        pieces, named = self.program.pieces, self.program.named
        wanted = dict.fromkeys(named[name].piece for name in self.layout.order)
        rest = (n for n, piece in enumerate(pieces) if piece.kind is PieceKind.CODE and n not in wanted)
        return [n for n in (*wanted, *rest) if self.kept[n]]

    def place_data(self) -> None:
        program, layout = self.program, self.layout
        at = _round_up(max((r.end for r in self.regions), default=layout.code_address), PAGE_BYTES)
        for kind, name in ((PieceKind.CONSTANT, "constants"), (PieceKind.DATA, "data"), (PieceKind.ZERO, "zeros")):
            members = [n for n, piece in enumerate(program.pieces) if piece.kind is kind and self.kept[n]]
            end = self._region(name, kind, members, 0, at)
            repeated = [n for n in members if program.copied[n]]
            for copy in range(1, layout.copies if repeated else 1):
                end = self._region(f"{name} of copy {copy}", kind, repeated, copy, end)
            at = _round_up(end, PAGE_BYTES) if kind is PieceKind.CONSTANT and members else end

    def _region(self, name: str, kind: PieceKind, members: Iterable[int], copy: int, start: int) -> int:
        """Adds a region where it has members; returns its end."""
        slots: list[PlacedPiece] = []
        at = start
        for number in members:
            piece = self.program.pieces[number]
            address = _round_up(at, max(piece.align, self._floor(number, kind)))
            slots.append(PlacedPiece(number, copy, address, address - at))
            if copy or not self.program.copied[number]:
                self.address[copy if copy else slice(None), number] = address
            else:
                self.address[0, number] = address
            at = address + piece.size
        if slots:
            self.regions.append(PlacedRegion(name, kind, start, at, tuple(slots)))
        return at

    def _floor(self, piece: int, kind: PieceKind) -> int:
        """What the layout demands of the piece's alignment."""
        if kind is not PieceKind.CODE:
            return 1
        return max(self.layout.func_align, self.layout.copy_align if piece in self.cold else 1)

    def check(self) -> None:
        layout = self.layout
        limits: list[Violation] = []
        for region in self.regions:
            name = "code_end" if region.kind is PieceKind.CODE else "data_end"
            limit = getattr(layout, name)
            if limit is not None and region.end > limit:
                limits.append(
                    Violation(
                        "the program does not fit into its stretch of memory", f"{region.name}, layout.{name}",
                        f"an end at or below {limit:#x}", f"{region.address:#x} to {region.end:#x}",
                        "fewer copies of the code" if layout.copies > 1 else "",
                    )
                )  # fmt: skip
        raise_all(MachineError, limits)


def _round_up(value: int, align: int) -> int:
    return -(-value // align) * align
