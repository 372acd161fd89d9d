"""The relocations of RV64 that the linker applies, as a table, and their application to whole arrays.

Model: with S the symbol's address, A the addend and P the place that is patched, a relocation's value is S + A or
S + A - P. A form says how many bytes it patches, which values it reaches and how a value goes into the instruction
(RISC-V ELF psABI; instruction formats of the unprivileged specification). PCREL_LO12 names the `auipc` of its pair and
takes its value from there. Everything is done for arrays of relocations of one kind: a program of 5,000 functions in
64 copies has millions of them.

Invariant: what is not in the table, misses its pair, is out of reach or patches bytes outside its section is reported,
all at once. Linker relaxation is not done: objects must be made without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.codegen.aicore.linking.program import SAME_COPY, Program
from superkernel.core.errors import Violation

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
_NAMES = {
    first + n: name
    for first, names in (
        (0, "NONE 32 64 RELATIVE COPY JUMP_SLOT TLS_DTPMOD32 TLS_DTPMOD64 TLS_DTPREL32 TLS_DTPREL64 TLS_TPREL32 "
            "TLS_TPREL64 TLSDESC"),
        (16, "BRANCH JAL CALL CALL_PLT GOT_HI20 TLS_GOT_HI20 TLS_GD_HI20 PCREL_HI20 PCREL_LO12_I PCREL_LO12_S HI20 "
             "LO12_I LO12_S TPREL_HI20 TPREL_LO12_I TPREL_LO12_S TPREL_ADD ADD8 ADD16 ADD32 ADD64 SUB8 SUB16 SUB32 "
             "SUB64 GOT32_PCREL"),
        (43, "ALIGN RVC_BRANCH RVC_JUMP"),
        (51, "RELAX SUB6 SET6 SET8 SET16 SET32 32_PCREL IRELATIVE PLT32 SET_ULEB128 SUB_ULEB128"),
    )
    for n, name in enumerate(names.split())
}  # fmt: skip
NUMBERS: dict[str, int] = {name: number for number, name in _NAMES.items()}


def _upper(word: Ints, value: Ints) -> Ints:
    return word & 0xFFF | (value + 0x800) & 0xFFFFF000


def _lower_i(word: Ints, value: Ints) -> Ints:
    return word & 0xFFFFF | (value & 0xFFF) << 20


def _lower_s(word: Ints, value: Ints) -> Ints:
    return word & 0x01FFF07F | (value >> 5 & 0x7F) << 25 | (value & 0x1F) << 7


def _call(pair: Ints, value: Ints) -> Ints:
    """auipc in the low word, jalr in the high one."""
    return _upper(pair & 0xFFFFFFFF, value) | _lower_i(pair >> 32 & 0xFFFFFFFF, value) << 32


def _whole(_: Ints, value: Ints) -> Ints:
    return value


@dataclass(frozen=True, slots=True)
class RelocationForm:
    """How relocations of a kind are applied: values from `low` to below `high`, even for targets in code."""

    width: int  # bytes patched
    relative: bool
    low: int
    high: int
    patch: Callable[[Ints, Ints], Ints]
    even: bool = False
    pair: bool = False  # takes the value of the PCREL_HI20 that its symbol points at


_ANY = (-(1 << 63), 1 << 63)
_FAR = (-(1 << 31) - 0x800, (1 << 31) - 0x800)  # a sign-extended upper part of 20 bits, a signed lower one of 12
FORMS: dict[int, RelocationForm] = {
    NUMBERS["64"]: RelocationForm(8, False, *_ANY, _whole),
    NUMBERS["CALL"]: RelocationForm(8, True, *_FAR, _call, even=True),
    NUMBERS["CALL_PLT"]: RelocationForm(8, True, *_FAR, _call, even=True),
    NUMBERS["PCREL_HI20"]: RelocationForm(4, True, *_FAR, _upper),
    NUMBERS["PCREL_LO12_I"]: RelocationForm(4, True, *_ANY, _lower_i, pair=True),
    NUMBERS["PCREL_LO12_S"]: RelocationForm(4, True, *_ANY, _lower_s, pair=True),
}
NONE = NUMBERS["NONE"]


def name_of(kind: int) -> str:
    """R_RISCV_..., as the psABI calls it."""
    return f"R_RISCV_{_NAMES.get(kind, kind)}"


class Relocator:
    """Checks the relocations of a program once and applies them per copy."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.violations: list[Violation] = []
        self._violating: set[tuple[int, str]] = set()
        self.groups: list[tuple[int, RelocationForm, Ints]] = []
        sizes = np.array([len(p.data) for p in program.pieces] or [0], np.int64)
        for kind in np.unique(program.relocation_kind).tolist():
            rows = np.flatnonzero(program.relocation_kind == kind)
            form = FORMS.get(kind)
            if kind == NONE:
                continue
            if form is None:
                for piece in np.unique(program.relocation_piece[rows]).tolist():
                    first = rows[program.relocation_piece[rows] == piece][0]
                    self._report(int(first), f"relocation {name_of(kind)} is not supported")
                continue
            offset = program.relocation_offset[rows]
            outside = (offset < 0) | (offset > sizes[program.relocation_piece[rows]] - form.width)
            for row in rows[outside].tolist():
                self._report(row, f"{name_of(kind)} patches bytes outside its section")
            self.groups.append((kind, form, rows[~outside]))
        self.pair = self._pairs()

    def _report(self, row: int, message: str, **rest: str) -> None:
        if (row, message) in self._violating:
            return  # once, not once per copy
        self._violating.add((row, message))
        name = self.program.symbol_names[self.program.relocation_symbol[row]]
        self.violations.append(
            Violation(f"{message}, to {name!r}" if name else message, self.program.where(row), **rest)
        )

    def _pairs(self) -> Ints:
        """For each PCREL_LO12 the number of the PCREL_HI20 at the place its symbol names."""
        p = self.program
        pair = np.zeros(len(p.relocation_kind), np.int64)
        high = np.flatnonzero(p.relocation_kind == NUMBERS["PCREL_HI20"])
        keys = p.relocation_piece[high] << 41 | p.relocation_offset[high]
        sort = np.argsort(keys, kind="stable")
        keys, high = keys[sort], high[sort]
        for n, (kind, form, rows) in enumerate(self.groups):
            if not form.pair:
                continue
            symbol = p.relocation_symbol[rows]
            wanted = p.symbol_piece[symbol] << 41 | p.symbol_value[symbol]
            at = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
            good = keys[at] == wanted if len(keys) else np.zeros(len(rows), bool)
            good &= p.symbol_piece[symbol] == p.relocation_piece[rows]
            for row in rows[~good].tolist():
                self._report(row, f"{name_of(kind)} has no R_RISCV_PCREL_HI20 in its section")
            pair[rows[good]] = high[at[good]]
            self.groups[n] = (kind, form, rows[good])
        return pair

    def apply(self, copy: int, address: Ints, position: Ints, image: NDArray[np.uint8]) -> None:
        """Patches the pieces of a copy (copy 0: all others, too) that stand in `image` at `position` [copy, piece]."""
        p = self.program
        value = self._values(copy, address)
        for kind, form, rows in self.groups:
            here = rows if copy == 0 else rows[p.copied[p.relocation_piece[rows]]]
            v = value[self.pair[here]] if form.pair else value[here]
            if form.relative and not form.pair:
                v = v - address[copy, p.relocation_piece[here]] - p.relocation_offset[here]
            elif form.pair:
                source = self.pair[here]
                v = v - address[copy, p.relocation_piece[source]] - p.relocation_offset[source]
            self._check(kind, form, here, v)
            at = position[copy, p.relocation_piece[here]] + p.relocation_offset[here]
            _patch(image, at, form, v)

    def _values(self, copy: int, address: Ints) -> Ints:
        """S + A of all relocations."""
        p = self.program
        piece = p.symbol_piece[p.relocation_symbol]
        fixed = p.symbol_copy[p.relocation_symbol]
        whose = np.where(fixed == SAME_COPY, copy, fixed)
        base = np.where(piece >= 0, address[whose, np.maximum(piece, 0)], 0) if address.shape[1] else piece * 0
        return base + p.symbol_value[p.relocation_symbol] + p.relocation_addend

    def _check(self, kind: int, form: RelocationForm, rows: Ints, value: Ints) -> None:
        if (form.low, form.high) != _ANY:
            bad = (value < form.low) | (value >= form.high)
            for row, found in zip(rows[bad].tolist(), value[bad].tolist(), strict=True):
                self._report(
                    row,
                    f"{name_of(kind)} is out of reach",
                    expected=f"{form.low:#x} to {form.high - 1:#x}",
                    found=f"{found:#x}",
                )
        if form.even:
            for row in rows[value % 2 != 0].tolist():
                self._report(row, f"{name_of(kind)} leads to an odd address")


def _patch(image: NDArray[np.uint8], at: Ints, form: RelocationForm, value: Ints) -> None:
    """Reads `form.width` bytes at each place, puts the values in, writes them back."""
    lanes = at[:, None] + np.arange(form.width)
    dtype: Any = f"<u{form.width}"
    old = np.ascontiguousarray(image[lanes]).view(dtype)[:, 0].astype(np.uint64).view(np.int64)
    new = form.patch(old, value).astype(dtype)
    image[lanes] = new.view(np.uint8).reshape(-1, form.width)
