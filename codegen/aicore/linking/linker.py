"""Objects and a layout to an image: read, combine, place, copy bytes, patch, name.

Each step reports all that is wrong before the next one starts; see the modules it calls for what they guarantee.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from superkernel.codegen.aicore.linking.elf_writer import ElfSegment
from superkernel.codegen.aicore.linking.image import Image, MapRow, Symbol
from superkernel.codegen.aicore.linking.layout import PAGE_BYTES, LinkLayout
from superkernel.codegen.aicore.linking.objects import LOCAL, ObjectFile, PieceKind, read_object
from superkernel.codegen.aicore.linking.placing import LinkPlacement, PlacedRegion, place
from superkernel.codegen.aicore.linking.program import Program, combine, names_of
from superkernel.codegen.aicore.linking.relocations import Relocator
from superkernel.core.errors import LinkError, SuperKernelError, Violation, raise_all


def link(objects: Sequence[bytes], layout: LinkLayout, names: Sequence[str] = ()) -> Image:
    """The image of relocatable RV64 objects. `names` are what errors and the map call the objects.

    Raises LinkError (bad object, undefined or duplicate symbol, unsupported or unreachable relocation, overlap: all of
    one step at once) and MachineError (the program exceeds the layout's limits).
    """
    titles = names or [f"object {n}" for n in range(len(objects))]
    files: list[ObjectFile] = []
    violations: list[Violation] = []
    for data, title in zip(objects, titles, strict=True):
        try:
            files.append(read_object(data, title))
        except SuperKernelError as error:
            violations += error.violations
    raise_all(LinkError, violations)
    program = combine(files, layout)
    placement = place(program, layout)
    buffer, position = _fill(program, placement)
    relocator = Relocator(program)
    for copy in range(layout.copies):
        relocator.apply(copy, placement.address, position, buffer)
    raise_all(LinkError, relocator.violations)
    symbols, rows = _describe(program, placement, layout)
    entry = next((s for s in symbols if s.name == layout.entry and not s.local), None)
    if entry is None or entry.address % 2:
        found = "no such global symbol" if entry is None else f"an odd address, {entry.address:#x}"
        raise_all(LinkError, [Violation("no entry", f"layout.entry {layout.entry!r}", found=found)])
    assert entry is not None
    return Image(_segments(placement, buffer), symbols, rows, entry.address)


def _fill(program: Program, placement: LinkPlacement) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of all regions one behind the other, and the position of each piece in them, [copy, piece]."""
    data = bytearray(sum(region.file_bytes for region in placement.regions))
    position = np.zeros_like(placement.address)
    start = 0
    for region in placement.regions:
        if region.kind is PieceKind.ZERO:
            continue
        for slot in region.slots:
            at = start + slot.address - region.address
            content = program.pieces[slot.piece].data
            data[at : at + len(content)] = content
            position[slot.copy, slot.piece] = at
        start += region.size
    return np.frombuffer(data, np.uint8), position


def _segments(placement: LinkPlacement, buffer: NDArray[np.uint8]) -> tuple[ElfSegment, ...]:
    """One segment per stretch of equal flags: neighbours less than a page apart become one."""
    starts = np.cumsum([0] + [region.file_bytes for region in placement.regions]).tolist()
    content = {region.name: buffer[starts[n] : starts[n + 1]].tobytes() for n, region in enumerate(placement.regions)}
    groups: list[list[PlacedRegion]] = []
    for region in sorted(placement.regions, key=lambda r: (r.address, r.end)):
        last = groups[-1][-1] if groups else None
        near = last is not None and last.flags == region.flags and region.address - last.end < PAGE_BYTES
        if near and last is not None and (last.kind is not PieceKind.ZERO or region.kind is PieceKind.ZERO):
            groups[-1].append(region)
        else:
            groups.append([region])
    segments = []
    for group in groups:
        base = group[0].address
        data = bytearray()
        for region in group:
            if region.file_bytes:
                data += bytes(region.address - base - len(data)) + content[region.name]
        segments.append(ElfSegment(base, bytes(data), group[0].flags, group[-1].end - base))
    return tuple(segments)


def _describe(
    program: Program, placement: LinkPlacement, layout: LinkLayout
) -> tuple[tuple[Symbol, ...], tuple[MapRow, ...]]:
    """Symbols of all copies, and the map."""
    first_name: dict[int, str] = {}
    for definition in sorted(program.definitions, key=lambda d: (d.value, d.kind != "function", d.binding == LOCAL)):
        if definition.piece >= 0 and (program.pieces[definition.piece].kind is PieceKind.CODE):
            first_name.setdefault(definition.piece, definition.name)
    rows: list[MapRow] = []
    row_of: dict[tuple[int, int], int] = {}
    for region in placement.regions:
        for slot in region.slots:
            piece = program.pieces[slot.piece]
            suffix = f".copy{slot.copy}" if slot.copy else ""
            name = first_name.get(slot.piece, piece.name.removeprefix(".text.")) + suffix
            row_of[slot.copy, slot.piece] = len(rows)
            section, zeros = piece.name + suffix, region.kind is PieceKind.ZERO
            place = (slot.address, piece.size, slot.padding)
            rows.append(MapRow(*place, name, section, piece.object, region.name, region.flags, zeros))
    symbols: list[Symbol] = []
    for d in program.definitions:
        local = d.binding == LOCAL
        if not local and program.globals[d.name] is not d:
            continue  # a weak definition that another one replaced
        for copy, name in names_of(d, program, layout.copies):
            row = row_of.get((copy, d.piece), -1)
            address = d.value + (int(placement.address[copy, d.piece]) if row >= 0 else 0)
            symbols.append(Symbol(name, address, d.size, d.kind, local, d.object, row))
    for name, address in layout.absolute.items():
        symbols.append(Symbol(name, address, 0, "none", False, "layout", -1))
    return tuple(symbols), tuple(rows)
