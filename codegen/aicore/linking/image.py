"""What the linker makes: an `Image` of segments and symbols, its ELF form and its map as text.

Model: a segment is what a loader copies: bytes at an address, followed by zeros up to `memory_bytes`. A symbol is a
name with an address; functions of copy c > 0 are called `name.copy<c>`. `rows` tell what stands where and why
bytes are lost to alignment.

Invariant: segments do not overlap, and everything a symbol (other than absolute ones) names lies inside one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from superkernel.codegen.aicore.linking.elf_writer import ElfSegment, OutputSection, OutputSymbol, write_elf
from superkernel.codegen.aicore.linking.objects import FLAG_DOUBLE_FLOAT, FLAG_RVC
from superkernel.core.errors import LinkError

SECTIONS_MAX = 60_000
"""More sections than that an ELF header cannot count simply: then there is one section per region."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name with an address. `kind`: function, object or none; `row` is its place in the map, -1: absolute."""

    name: str
    address: int
    size: int
    kind: str
    local: bool
    object: str
    row: int


@dataclass(frozen=True, slots=True)
class MapRow:
    """One section of an object at its place, with the padding in front of it."""

    address: int
    size: int
    padding: int
    name: str  # the function's, with `.copy<c>`, or the section's
    section: str
    object: str
    region: str
    flags: str
    zeros: bool


@dataclass(frozen=True)
class Image:
    """See the module docstring."""

    segments: tuple[ElfSegment, ...]
    symbols: tuple[Symbol, ...]
    rows: tuple[MapRow, ...]
    entry: int
    notes: tuple[tuple[str, bytes], ...] = ()  # section, contents: for whoever reads the file, not loaded

    @cached_property
    def _by_name(self) -> dict[str, Symbol]:
        found: dict[str, Symbol] = {}
        for symbol in self.symbols:
            if not symbol.local or symbol.name not in found:
                found[symbol.name] = symbol
        return found

    def symbol(self, name: str) -> Symbol:
        """The symbol of a name, global ones before local ones. Raises LinkError where there is none."""
        found = self._by_name.get(name)
        if found is None:
            raise LinkError("the image has no such symbol", location="image", found=repr(name))
        return found

    @cached_property
    def code_bytes(self) -> int:
        """Bytes of code, all copies, padding included."""
        return sum(row.size + row.padding for row in self.rows if row.flags == "r-x")

    def map_text(self) -> str:
        """What stands where, by address, and totals."""
        lines = [f"{'address':>18} {'size':>9} {'padding':>7}  {'symbol':<40} object"]
        region = ""
        for row in sorted(self.rows, key=lambda r: r.address):
            if row.region != region:
                region = row.region
                lines.append(f"# {region} ({row.flags})")
            lines.append(f"{row.address:#18x} {row.size:>9} {row.padding:>7}  {row.name:<40} {row.object}")
        lines.append("# totals")
        for flags, name in (("r-x", "code"), ("r--", "constants"), ("rw-", "data")):
            rows = [row for row in self.rows if row.flags == flags]
            size, padding = sum(r.size for r in rows), sum(r.padding for r in rows)
            lines.append(f"{'':>18} {size:>9} {padding:>7}  {name}, {len(rows)} sections")
        return "\n".join(lines) + "\n"

    def elf(self) -> bytes:
        """A static ELF64 RISC-V executable with sections and symbols."""
        sections, number = self._sections()
        symbols = [
            OutputSymbol(s.name, s.address, s.size, s.kind, s.local, number[s.row] if s.row >= 0 else None)
            for s in self.symbols
        ]
        flags = FLAG_RVC | FLAG_DOUBLE_FLOAT
        return write_elf(self.segments, sections, symbols, entry=self.entry, flags=flags, notes=self.notes)

    def _sections(self) -> tuple[list[OutputSection], list[int]]:
        """Sections of the file, and for each row the number of its section (among these)."""
        if len(self.rows) <= SECTIONS_MAX:
            sections = [OutputSection(_section_name(r), r.address, r.size, r.flags, r.zeros) for r in self.rows]
            return sections, list(range(len(self.rows)))
        sections, number = [], []
        for region, rows in self._regions():
            name = {"r-x": ".text", "r--": ".rodata", "rw-": ".data"}[rows[0].flags] + "." + region.replace(" ", "")
            end = rows[-1].address + rows[-1].size
            number += [len(sections)] * len(rows)
            sections.append(OutputSection(name, rows[0].address, end - rows[0].address, rows[0].flags, rows[0].zeros))
        return sections, number

    def _regions(self) -> Iterator[tuple[str, list[MapRow]]]:
        """Rows of each region, in the order of `rows`."""
        start = 0
        for n, row in enumerate(self.rows):
            if n + 1 == len(self.rows) or self.rows[n + 1].region != row.region:
                yield row.region, list(self.rows[start : n + 1])
                start = n + 1


def _section_name(row: MapRow) -> str:
    return f".text.{row.name}" if row.flags == "r-x" else row.section
